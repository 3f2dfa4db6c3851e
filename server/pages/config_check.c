/* doorman_server, part HTTP: POST /v1/config/check. It says what is wrong with a configuration, and
 * what the configuration would change here and now. It changes nothing.
 *
 * E4 The answer has the errors and warnings that --check-config prints, and how the configuration
 *    differs from the one in force: the templates and limits that it adds, removes or changes, how
 *    many counters and bans each change drops, and the resources whose leases exceed their new
 *    capacity. The templates and limits that the answer does not list stay as they are. */
#include "../config/config.h"
#include "pages.h"

#define OVER_MAX 100 /* resources that are listed as leased beyond their new capacity */

/* A resource whose leases exceed its new capacity. */
struct over {
    char *resource_id; /* NULL: memory has run out */
    double leased, capacity;
};

struct over_list {
    const doorman_config *config; /* the new one */
    struct over items[OVER_MAX];
    size_t count; /* may be more than OVER_MAX */
};

/* ---- changes -------------------------------------------------------------------------------- */

/* How the configuration in force would change. */
struct check {
    struct config_changes changes;
    struct limit_counts *counts; /* of the limits in force; NULL: not known */
    struct limit_counts dropped; /* in all */
    bool has_store;
    bool is_master; /* only the master has counters */
};

/* Adds a changed limit, and how many counters and bans the change drops. */
static void add_limit(cJSON *list, struct check *check, const struct limit_change *change) {
    cJSON *item = cJSON_CreateObject();
    struct limit_counts drops = server_changes_counts(&check->changes, check->counts, change->last);
    if (!change->drops) drops.counters = 0;
    if (!change->ends_bans) drops.bans = 0;
    cJSON_AddStringToObject(item, "limit", (change->now ? change->now : change->last)->name);
    cJSON_AddStringToObject(item, "text", change->text);
    if (drops.counters) {
        cJSON_AddNumberToObject(item, "drops_counters", (double)drops.counters);
    }
    if (drops.bans) cJSON_AddNumberToObject(item, "drops_bans", (double)drops.bans);
    cJSON_AddItemToArray(list, item);
    check->dropped.counters += drops.counters;
    check->dropped.bans += drops.bans;
}

/* Adds the capacity in force and the new one, if they differ. */
static void add_capacities(cJSON *item, const struct template_change *change) {
    const doorman_template *last = change->last, *now = change->now;
    bool had = last && !last->without_capacity, has = now && !now->without_capacity;
    bool same = had && has && !(last->capacity < now->capacity || last->capacity > now->capacity);
    if (had && !same) cJSON_AddNumberToObject(item, "last_capacity", last->capacity);
    if (has && !same) cJSON_AddNumberToObject(item, "capacity", now->capacity);
}

static void add_template(cJSON *list, struct check *check, const struct template_change *change) {
    const doorman_template *last = change->last, *now = change->now;
    cJSON *item = cJSON_CreateObject();
    struct limit_change limit;
    size_t cursor = 0;
    cJSON_AddStringToObject(item, "template", (now ? now : last)->identifier_glob);
    cJSON_AddStringToObject(item, "change", !last ? "added" : !now ? "removed" : "changed");
    add_capacities(item, change);
    cJSON *limits = cJSON_AddArrayToObject(item, "limits");
    while (server_changes_next_limit(change, &cursor, check->has_store, &limit)) {
        add_limit(limits, check, &limit);
    }
    cJSON_AddItemToArray(list, item);
}

/* Adds what the new configuration changes. */
static void add_changes(cJSON *answer, struct check *check) {
    const struct config_changes *changes = &check->changes;
    const bool rejects = changes->now.reject_unmatched;
    cJSON *list = cJSON_AddArrayToObject(answer, "changes");
    for (size_t i = 0; i < changes->count; i++) add_template(list, check, &changes->items[i]);
    cJSON_AddBoolToObject(answer, "is_reordered", changes->reordered);
    if (changes->last.reject_unmatched != rejects) {
        cJSON_AddStringToObject(answer, "unmatched", rejects ? "reject" : "allow");
    }
    if (changes->descriptors) cJSON_AddStringToObject(answer, "descriptors", "changed");
    cJSON_AddBoolToObject(answer, "is_master", check->is_master);
    if (!check->counts) return;
    cJSON_AddNumberToObject(answer, "drops_counters", (double)check->dropped.counters);
    cJSON_AddNumberToObject(answer, "drops_bans", (double)check->dropped.bans);
}

/* Compares a configuration with the one in force, which is not freed while config_lock is held. */
static void compare(struct service *service, const doorman_config *config, cJSON *answer) {
    struct check check = {.has_store = service->settings->state != NULL};
    server_lock(&service->config_lock);
    server_lock(&service->lock);
    const doorman_config *in_force = service->config;
    check.is_master = doorman_server_permits(service->server) != NULL;
    check.counts = server_changes_count(service);
    server_unlock(&service->lock);
    if (server_changes_find(&check.changes, in_force, config)) add_changes(answer, &check);
    server_changes_uninit(&check.changes);
    server_unlock(&service->config_lock);
    free(check.counts);
}

/* ---- leases --------------------------------------------------------------------------------- */

static bool over_reserve(void *context) {
    (void)context;
    return true; /* the list has a fixed size */
}

/* Notes the resource if its leases exceed its new capacity. */
static bool over_add(void *context, const doorman_server_resource *info) {
    struct over_list *list = (struct over_list *)context;
    const doorman_template *now = doorman_config_find(list->config, info->resource_id);
    if (!info->divides_capacity || !now || now->without_capacity) return true;
    if (!DOORMAN_KIND_DIVIDES(now->algorithm.kind)) {
        return true; /* its leases are no parts of the capacity */
    }
    if (info->has <= now->capacity) return true;
    if (list->count < OVER_MAX) {
        list->items[list->count] =
            (struct over){strdup(info->resource_id), info->has, now->capacity};
    }
    list->count++;
    return true;
}

/* Adds the resources whose leases exceed their new capacity. */
static void add_over(struct service *service, const doorman_config *config, cJSON *answer) {
    struct over_list list = {.config = config};
    server_for_each_resource(service, over_reserve, over_add, &list);
    cJSON *items = cJSON_AddArrayToObject(answer, "leased_over");
    for (size_t i = 0; i < list.count && i < OVER_MAX; i++) {
        struct over *over = &list.items[i];
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "resource_id", over->resource_id ? over->resource_id : "");
        cJSON_AddNumberToObject(item, "leased", over->leased);
        cJSON_AddNumberToObject(item, "capacity", over->capacity);
        cJSON_AddItemToArray(items, item);
        free(over->resource_id);
    }
    if (list.count > OVER_MAX) {
        cJSON_AddNumberToObject(answer, "leased_over_count", (double)list.count);
    }
}

/* ---- the path ------------------------------------------------------------------------------- */

/* Makes the answer, which the caller deletes. */
static cJSON *check_config(struct service *service, const struct http_request *request) {
    struct config_problems problems;
    char hash[CONFIG_HASH_BYTES], in_force[CONFIG_HASH_BYTES];
    cJSON *answer = cJSON_CreateObject();
    doorman_config *config =
        server_config_read_text(service, request->body, request->body_bytes, &problems);
    cJSON_AddBoolToObject(answer, "valid", config != NULL);
    server_problems_add(answer, config ? "warnings" : "errors", &problems);
    if (!config) return answer;
    server_config_hash(config, hash);
    server_lock(&service->lock);
    memcpy(in_force, service->last_load.hash, sizeof in_force);
    server_unlock(&service->lock);
    cJSON_AddStringToObject(answer, "hash", hash);
    cJSON_AddStringToObject(answer, "hash_in_force", in_force);
    compare(service, config, answer);
    add_over(service, config, answer);
    doorman_config_destroy(config);
    return answer;
}

static void handle_config_check(struct service *service, const struct http_request *request,
                                struct http_response *response) {
    if (service->settings->parents.count > 0) {
        server_http_response_set_error(response, 400, "INVALID_ARGUMENT",
                                       "this node gets its resources from its parent: ask a root");
        return;
    }
    cJSON *answer = check_config(service, request);
    char *text = cJSON_PrintUnformatted(answer);
    cJSON_Delete(answer);
    response->type = "application/json";
    response->text.failed = response->text.failed || !text;
    server_text_add(&response->text, text ? text : "");
    server_text_add(&response->text, "\n");
    cJSON_free(text);
}

static const struct http_route config_check_routes[] = {
    {"/v1/config/check", .verbs = VERB_POST, .role = ROLE_READ, .handle = handle_config_check},
    {.path = NULL}};

const struct server_part server_part_config_check = {.routes = config_check_routes};
