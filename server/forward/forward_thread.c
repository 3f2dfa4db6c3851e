/* doorman_server, part SHARDS: answers messages about keys for which other nodes decide (N4).
 *
 * A message comes over HTTP or gRPC. Entries for which other nodes decide are sent to them, as one
 * message to each node, and the answers are merged in the order of the entries. If the message must
 * be split again because a shard has moved, this node can be among the nodes that are asked. An
 * acquire that is wholly for other nodes is not decided here at all.
 *
 *     what happens                             what is done
 *     a node answers                           the entries are done
 *     an entry is MOVED, or a process cannot   the map is read, and the message tries again with
 *     decide now                               the newest map, for a second
 *     a process is not the master              the master that the process names is asked
 *     a process does not answer                the next process of the node is asked
 *     no process of a node answers             the entries are refused, and other messages to the
 *                                              node are refused at once for NODE_PAUSE
 *     all entries are done, or a second is     the message is answered: as UNAVAILABLE if a node
 *     over, and the time that the permits      has failed and no entry has an answer
 *     may wait
 *
 * There is one hop: messages that come over nng, or from another node over HTTP, are never
 * forwarded. So two nodes with different maps cannot send a message to and fro.
 *
 * Each thread does its own work: the thread that has a message, mostly the loop of HTTP or gRPC,
 * sends it. The loop of HTTP or a thread of nng takes the answers and passes them on. The thread of
 * the part does what is due later. So no further thread is woken on the way of a message. */
#include "forward.h"

#include <nng/supplemental/util/platform.h>

#define NODE_PAUSE (DOORMAN_SECOND / 5) /* after a node did not answer */
#define PAUSE_MIN (DOORMAN_SECOND / 50) /* before a message tries again; doubled each time */
#define PAUSE_MAX (DOORMAN_SECOND / 10)
#define NUDGE (DOORMAN_SECOND / 20) /* between two orders to read the map */
#define TRIES_MAX 8                 /* further processes that a message to a node asks in turn */
#define TEND (DOORMAN_SECOND / 2)   /* at most, between two looks at the links */

/* ---- the shards of a request ---------------------------------------------------------------- */

/* Returns the shard of an item. Precondition: the lock is held. */
static size_t shard_of_item(const struct service *service, const char *resource_id,
                            const char *key) {
    assert(server_lock_is_held(&service->lock));
    const doorman_template *found =
        service->config ? doorman_config_find(service->config, resource_id) : NULL;
    return doorman_shard_of(&service->shards->map->shards, resource_id, key ? key : "",
                            found && found->shard_by_resource);
}

static size_t shard_of_id(const struct service *service, uint64_t id) {
    return (size_t)(id % service->shards->map->shards.count);
}

static size_t request_count(const doorman_request *request) {
    switch (request->method) {
    case DOORMAN_ACQUIRE: return request->permit_count;
    case DOORMAN_REPORT:
    case DOORMAN_INSPECT:
    case DOORMAN_RESET: return request->entry_count;
    case DOORMAN_RENEW:
    case DOORMAN_RELEASE:
    case DOORMAN_TRANSFER:
    case DOORMAN_SEIZE: return request->hold_count;
    case DOORMAN_SETTLE: return request->settle_count;
    case DOORMAN_DISCOVERY:
    case DOORMAN_GET_CAPACITY:
    case DOORMAN_RELEASE_CAPACITY:
    case DOORMAN_REPORT_OVERLOAD:
    case DOORMAN_METHOD_COUNT:
    default: return 0;
    }
}

/* Finds the shard of an entry. Precondition: the lock is held.
 *   returns   false: the entry belongs to no shard */
static bool request_find_shard(const struct service *service, const doorman_request *request,
                               size_t index, size_t *shard) {
    assert(server_lock_is_held(&service->lock) && index < request_count(request));
    const char *resource = NULL, *key = NULL;
    uint64_t id = 0;
    if (request->method == DOORMAN_ACQUIRE) {
        const doorman_permit_request *permit = &request->permits[index];
        if (permit->item_count > 0) resource = permit->items[0].resource_id;
        if (permit->item_count > 0) key = permit->items[0].key;
    } else if (request->method == DOORMAN_SETTLE) {
        const doorman_settle_request *settle = &request->settles[index];
        if (settle->item_count > 0) resource = settle->items[0].resource_id;
        if (settle->item_count > 0) key = settle->items[0].key;
        id = settle->id;
    } else if (request->holds && request_count(request) == request->hold_count) {
        const doorman_hold_request *hold = &request->holds[index];
        id = hold->id;
        if (!id && hold->item_count > 0) resource = hold->items[0].resource_id;
        if (!id && hold->item_count > 0) key = hold->items[0].key;
    } else {
        resource = request->entries[index].resource_id;
        key = request->entries[index].key;
    }
    if (resource) *shard = shard_of_item(service, resource, key);
    if (!resource) *shard = shard_of_id(service, id);
    return resource || id;
}

/* Returns whether this node decides for a shard. A master knows that from its permits, and another
 * process from its map. Precondition: the lock is held. */
static bool shard_is_here(const struct service *service, size_t shard) {
    assert(server_lock_is_held(&service->lock));
    const doorman_shard_map *map = service->shards->map;
    const doorman_permits *permits = doorman_server_permits(service->server);
    assert(shard < map->shards.count);
    if (permits) return doorman_permits_owns(permits, shard);
    return strcmp(map->nodes[map->owners[shard].owner].name, service->node) == 0;
}

static bool forward_is_away(const struct service *service, const doorman_request *request) {
    size_t shard = 0;
    assert(server_lock_is_held(&service->lock));
    if (!server_shards_on(service) || !service->shards->map) return false;
    for (size_t i = 0; i < request_count(request); i++) {
        if (request_find_shard(service, request, i, &shard) && !shard_is_here(service, shard)) {
            return true;
        }
    }
    return false;
}

/* Says which node decides for a shard. Precondition: the lock is held. */
static void owner_write(const struct service *service, size_t shard, char out[OWNER_TEXT]) {
    assert(server_lock_is_held(&service->lock));
    const doorman_shard_map *map = service->shards->map;
    assert(shard < map->shards.count);
    const doorman_shard_node *node = &map->nodes[map->owners[shard].owner];
    if (strcmp(node->name, service->node) == 0) {
        snprintf(out, OWNER_TEXT, "its shard moves now: try again");
        return;
    }
    int used =
        snprintf(out, OWNER_TEXT, "the node '%.80s' decides for it, so ask that one", node->name);
    for (size_t i = 0; i < node->address_count && (size_t)used < OWNER_TEXT; i++) {
        used += snprintf(out + used, OWNER_TEXT - (size_t)used, "%s%s", i ? " or " : ", at ",
                         node->addresses[i]);
    }
}

static size_t forward_find_owner(const struct service *service, const doorman_request *request,
                                 char out[OWNER_TEXT]) {
    size_t shard = 0;
    assert(server_lock_is_held(&service->lock));
    if (!server_shards_on(service) || !service->shards->map) return SIZE_MAX;
    for (size_t i = 0; i < request_count(request); i++) {
        if (!request_find_shard(service, request, i, &shard)) continue;
        if (shard_is_here(service, shard)) continue;
        owner_write(service, shard, out);
        return i;
    }
    return SIZE_MAX;
}

/* ---- jobs ----------------------------------------------------------------------------------- */

static void job_free(struct forward_job *job) {
    for (size_t i = 0; i < job->count; i++) cJSON_Delete(job->entries[i].answer);
    cJSON_Delete(job->root);
    free(job->text);
    free(job->whole);
    free(job->error);
    free(job);
}

/* Makes a job for a request. Returns NULL if memory runs out.
 *   text   NULL: the request is written */
static struct forward_job *job_create(const doorman_request *request, const char *text,
                                      size_t bytes) {
    const size_t count = request_count(request);
    struct forward_job *job =
        (struct forward_job *)calloc(1, sizeof *job + count * sizeof *job->entries);
    doorman_buffer written = {.text = NULL};
    if (!job) return NULL;
    job->method = request->method;
    job->count = count;
    if (!text && doorman_json_request(request, &written) == DOORMAN_OK) {
        text = written.text;
        bytes = written.bytes;
    }
    job->text = text ? (char *)malloc(bytes + 1) : NULL;
    if (job->text) memcpy(job->text, text, bytes);
    job->bytes = bytes;
    for (size_t i = 0; i < request->permit_count; i++) {
        if (request->permits[i].max_wait > job->wait) job->wait = request->permits[i].max_wait;
    }
    doorman_buffer_uninit(&written);
    if (job->text) return job;
    job_free(job);
    return NULL;
}

/* Returns whether this process has refused an entry because another node decides. */
static bool response_is_moved(const doorman_response *response, size_t index) {
    if (index < response->permit_count) {
        return response->permits[index].reason == DOORMAN_REASON_MOVED;
    }
    if (index < response->result_count) {
        return response->results[index].reason == DOORMAN_REASON_MOVED;
    }
    if (index < response->hold_count) return response->holds[index].reason == DOORMAN_REASON_MOVED;
    return index < response->settlement_count &&
           response->settlements[index].reason == DOORMAN_REASON_MOVED;
}

/* Returns whether a release names, by its request_id, a permit that this process does not know. */
static bool entry_is_unknown(const doorman_request *request, const doorman_response *response,
                             size_t index) {
    if (request->method != DOORMAN_RELEASE || request->holds[index].id) return false;
    return !response->is_master || (index < response->hold_count && response->holds[index].gone);
}

/* Returns whether a part of a message must be forwarded. */
static bool message_is_away(const struct service *service, const doorman_request *request,
                            const doorman_response *response) {
    assert(server_lock_is_held(&service->lock));
    bool is_away = false;
    for (size_t i = 0; i < request_count(request) && !is_away; i++) {
        is_away = response->is_master &&
                  (response_is_moved(response, i) || entry_is_unknown(request, response, i));
    }
    return response->is_master ? is_away : forward_is_away(service, request);
}

/* Notes what this process has decided already.
 *   response   NULL: it has decided nothing */
static void job_note_entries(struct forward_job *job, struct service *service,
                             const doorman_request *request, const doorman_response *response) {
    server_lock(&service->lock);
    for (size_t i = 0; i < job->count; i++) {
        struct forward_entry *entry = &job->entries[i];
        const bool is_known = request_find_shard(service, request, i, &entry->shard);
        entry->is_everywhere = !is_known && (!response || entry_is_unknown(request, response, i));
        entry->is_done = response && response->is_master && !entry->is_everywhere &&
                         !response_is_moved(response, i);
    }
    server_unlock(&service->lock);
}

/* Counts a job. Returns false if there are too many, or if the server stops.
 *   adds   false: the job is gone */
static bool job_count(struct forward *forward, const struct forward_job *job, bool adds) {
    server_lock(&forward->lock);
    assert(adds || (forward->job_count > 0 && forward->byte_count >= job->bytes));
    const bool has_room = !adds || (!forward->pool.stops && forward->job_count < FORWARD_JOB_MAX &&
                                    forward->byte_count + job->bytes <= FORWARD_BYTES_MAX);
    if (has_room) forward->job_count += adds ? 1 : (size_t)-1;
    if (has_room) forward->byte_count += adds ? job->bytes : (size_t)0 - job->bytes;
    if (forward->pool.stops && forward->job_count == 0) server_forward_call(forward);
    server_unlock(&forward->lock);
    return has_room;
}

/* Makes a job of a message that other nodes decide, wholly or in part. Returns NULL if too much is
 * under way, if the server stops, or if memory has run out.
 *   response   NULL: nothing is decided here */
static struct forward_job *job_accept(struct service *service, struct waiter *waiter,
                                      const char *text, size_t bytes,
                                      const doorman_response *response) {
    struct forward *forward = service->forward;
    const doorman_request *request = &waiter->exchange->request;
    struct forward_job *job = job_create(request, text, bytes);
    if (!job) return NULL;
    job_note_entries(job, service, request, response);
    job->waiter = waiter;
    job->is_body = text && waiter->method;
    job->has_reply = response && response->is_master;
    waiter->is_forwarded = true;
    if (job_count(forward, job, true)) {
        if (!text || waiter->prepare(waiter)) return job;
        job_count(forward, job, false);
    }
    waiter->is_forwarded = false;
    job_free(job);
    return NULL;
}

static bool forward_may_take(const struct forward *forward, const struct waiter *waiter) {
    const doorman_request *request = &waiter->exchange->request;
    return waiter->may_forward && waiter->prepare && forward->is_started && !request->is_server &&
           request_count(request) > 0;
}

static struct forward_job *forward_prepare(struct service *service, struct waiter *waiter,
                                           const char *text, size_t bytes) {
    const doorman_request *request = &waiter->exchange->request;
    const doorman_response *response = &waiter->exchange->response;
    if (!forward_may_take(service->forward, waiter) || !waiter->is_decided) return NULL;
    server_lock(&service->lock);
    const bool is_away = message_is_away(service, request, response);
    server_unlock(&service->lock);
    return is_away ? job_accept(service, waiter, text, bytes, response) : NULL;
}

static struct forward_job *forward_prepare_whole(struct service *service, struct waiter *waiter,
                                                 const char *text, size_t bytes) {
    const doorman_request *request = &waiter->exchange->request;
    size_t shard = 0;
    if (!forward_may_take(service->forward, waiter) || request->method != DOORMAN_ACQUIRE) {
        return NULL;
    }
    server_lock(&service->lock);
    bool is_away = !server_pauses(service) && service->shards->map;
    for (size_t i = 0; i < request->permit_count && is_away; i++) {
        is_away = request_find_shard(service, request, i, &shard) && !shard_is_here(service, shard);
    }
    server_unlock(&service->lock);
    return is_away ? job_accept(service, waiter, text, bytes, NULL) : NULL;
}

/* Answers a job, and frees it. Precondition: the lock is not held. */
static void job_finish(struct forward *forward, struct forward_job *job) {
    struct waiter *waiter = job->waiter;
    const struct forward_asker asker = job->asker;
    assert(job->asked == 0 && (waiter || asker.answer));
    doorman_status status = DOORMAN_OK;
    char *text = server_forward_write(job, job->is_body, &status);
    if (waiter && text) {
        doorman_json_exchange *exchange = waiter->exchange;
        doorman_buffer_uninit(&exchange->reply);
        exchange->reply = (doorman_buffer){.text = text, .bytes = strlen(text)};
        exchange->reply.capacity = exchange->reply.bytes + 1;
        exchange->response.is_master = true;
        waiter->status = status;
        text = NULL;
    }
    const struct forward_job counted = {.bytes = job->bytes};
    job_free(job);
    if (waiter) {
        waiter->finish(waiter, true);
    } else {
        asker.answer(asker.context, text, text ? strlen(text) : 0);
    }
    free(text);
    job_count(forward, &counted, false); /* when it is 0, the part may end */
}

/* Notes that a job must be answered. Precondition: the lock is held. */
static void job_end(struct forward *forward, struct forward_job *job) {
    assert(server_lock_is_held(&forward->lock) && job->asked == 0);
    job->next = forward->finished;
    forward->finished = job;
}

/* ---- nodes ---------------------------------------------------------------------------------- */

static struct forward_node *node_find(struct forward *forward, const char *name) {
    assert(server_lock_is_held(&forward->lock));
    struct forward_node *node = forward->nodes;
    while (node && strcmp(node->name, name) != 0) node = node->next;
    if (node) return node;
    node = (struct forward_node *)calloc(1, sizeof *node);
    if (!node) return NULL;
    snprintf(node->name, sizeof node->name, "%s", name);
    node->next = forward->nodes;
    forward->nodes = node;
    return node;
}

/* Returns the address to ask. */
static const char *node_address(const struct forward *forward, const struct forward_node *node) {
    const doorman_shard_map *map = forward->map;
    const size_t at = doorman_shard_map_node(map, node->name);
    if (node->master[0]) return node->master;
    if (at >= map->node_count || !map->nodes[at].address_count) return NULL;
    /* the last address belongs to the process that has joined last */
    const size_t count = map->nodes[at].address_count;
    return map->nodes[at].addresses[(count - 1 + count - node->at % count) % count];
}

static size_t node_address_count(const struct forward *forward, const struct forward_node *node) {
    const size_t at = doorman_shard_map_node(forward->map, node->name);
    return at < forward->map->node_count ? forward->map->nodes[at].address_count : 0;
}

/* Returns where the process at `address` listens over HTTP; "": it is not known. The two lists of
 * addresses of a node have the same order. */
static const char *node_http_address(const struct forward *forward, const struct forward_node *node,
                                     const char *address) {
    const size_t at = doorman_shard_map_node(forward->map, node->name);
    if (at >= forward->map->node_count) return "";
    const doorman_shard_node *of = &forward->map->nodes[at];
    for (size_t i = 0; i < of->address_count && of->address_count == of->http_address_count; i++) {
        if (strcmp(of->addresses[i], address) == 0) return of->http_addresses[i];
    }
    return "";
}

static void job_fail(struct forward_job *job, const struct forward_node *node, const char *why) {
    snprintf(job->failure, sizeof job->failure, "the node '%.80s' %s", node->name, why);
}

static void entries_fail(struct forward_job *job, const size_t *indexes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        assert(indexes[i] < job->count);
        job->entries[indexes[i]].is_failed = true;
    }
}

/* Sends a message to an address. Returns false if it cannot be sent. A message with little time, or
 * with permits that may wait, goes alone, because the messages of a batch end together.
 *   message   freed if it is not sent; NULL: there was no memory for it */
static bool question_send(struct forward *forward, const struct forward_question *question,
                          const char *address, nng_msg *message, doorman_time timeout) {
    const bool is_alone = question->job->wait > 0 || timeout < FORWARD_SECOND / 2;
    struct link *link = message ? server_link_open(&forward->pool, address) : NULL;
    if (link && server_link_wants_http(link)) {
        server_link_open_http(link, node_http_address(forward, question->node, address));
    }
    struct forward_question *copy = link ? (struct forward_question *)malloc(sizeof *copy) : NULL;
    if (copy) *copy = *question;
    if (copy && server_link_send(link, &copy->link, message, timeout, is_alone)) return true;
    if (message) nng_msg_free(message);
    free(copy);
    return false;
}

/* Sends a message of a job. Returns false if it cannot be sent.
 *   question   says what to ask. A copy of it is sent, and gets the indexes */
static bool node_ask(struct forward *forward, const struct forward_question *question) {
    assert(server_lock_is_held(&forward->lock));
    struct forward_node *node = question->node;
    struct forward_job *job = question->job;
    const char *address = node_address(forward, node);
    const doorman_time now = doorman_clock();
    const doorman_time timeout = job->ends_at + job->wait - now;
    if (!address) job_fail(job, node, "is not in the map of shards");
    if (node->asked >= FORWARD_NODE_MAX) {
        job_fail(job, node, "has too many messages under way");
        server_counter_add(&node->full, 1);
        address = NULL;
    }
    if (node->broken_until > now && question->tries == 0) {
        job_fail(job, node, "does not answer");
        address = NULL;
    }
    if (!address || timeout <= 0) return false;
    const struct mark_source source = {.secret = {forward->secret[0], forward->secret[1]},
                                       .number = ++forward->last_mark,
                                       .now = (int64_t)time(NULL)};
    nng_msg *message = server_forward_message(job, question->indexes, question->count, &source);
    if (!question_send(forward, question, address, message, timeout)) {
        job_fail(job, node, "cannot be asked");
        return false;
    }
    node->asked++;
    job->asked++;
    server_counter_add(&node->sent, 1);
    return true;
}

/* ---- rounds --------------------------------------------------------------------------------- */

/* Copies the map of service->shards, if its epoch is new. */
static void forward_take_map(struct forward *forward) {
    struct service *service = forward->service;
    doorman_shard_map *copy = NULL;
    server_lock(&service->lock);
    const doorman_shard_map *map = service->shards->map;
    if (map && (!forward->map || forward->map->epoch != map->epoch)) {
        (void)doorman_shard_map_create(&copy, map, NULL);
    }
    server_unlock(&service->lock);
    if (!copy) return;
    doorman_shard_map_destroy(forward->map);
    forward->map = copy;
}

/* Lets the thread of shards read the map soon. Precondition: the lock of the service is held. */
static void forward_nudge(struct service *service, doorman_time now) {
    assert(server_lock_is_held(&service->lock));
    if (now < service->forward->nudged_at + NUDGE) return;
    service->forward->nudged_at = now;
    pthread_cond_signal(&service->shards->changed);
}

/* Returns whether a node is asked about an entry. */
static bool entry_is_for(const struct forward *forward, const struct forward_job *job, size_t index,
                         size_t node) {
    assert(index < job->count && node < forward->map->node_count);
    const struct forward_entry *entry = &job->entries[index];
    const bool is_here = strcmp(forward->map->nodes[node].name, forward->service->node) == 0;
    if (entry->is_done || entry->is_failed) return false;
    if (!entry->is_everywhere) return entry->node == node;
    return !is_here || !job->has_reply;
}

/* Asks one node for all its entries of a job. */
static void job_ask_node(struct forward *forward, struct forward_job *job, size_t node) {
    size_t count = 0;
    for (size_t i = 0; i < job->count; i++) {
        count += entry_is_for(forward, job, i, node);
    }
    if (!count) return;
    size_t *indexes = (size_t *)malloc(count * sizeof *indexes);
    struct forward_node *to = node_find(forward, forward->map->nodes[node].name);
    count = 0;
    for (size_t i = 0; indexes && i < job->count; i++) {
        if (entry_is_for(forward, job, i, node)) indexes[count++] = i;
    }
    const struct forward_question question = {
        .node = to, .job = job, .indexes = indexes, .count = count};
    if (indexes && to && node_ask(forward, &question)) return;
    if (indexes) entries_fail(job, indexes, count);
    free(indexes);
}

/* If the questions of a job are over, ends the job or lets it try again. */
static void job_look(struct forward *forward, struct forward_job *job, doorman_time now) {
    bool is_done = true;
    if (job->asked > 0) return;
    for (size_t i = 0; i < job->count; i++) {
        const struct forward_entry *entry = &job->entries[i];
        is_done = is_done && (entry->is_done || entry->is_everywhere || entry->is_failed);
    }
    if (is_done || job->error || now >= job->ends_at || forward->pool.stops) {
        job_end(forward, job);
        return;
    }
    job->pause = job->pause ? job->pause * 2 : PAUSE_MIN;
    if (job->pause > PAUSE_MAX) job->pause = PAUSE_MAX;
    job->due = now + job->pause;
    job->next = forward->later;
    forward->later = job;
    server_forward_call(forward);
    server_lock(&forward->service->lock);
    forward_nudge(forward->service, now);
    server_unlock(&forward->service->lock);
}

/* Asks the nodes that own the shards of the entries that are not done. If the shard of an entry is
 * not known, asks all nodes, but not this node if it has replied. */
static void job_run(struct forward *forward, struct forward_job *job, doorman_time now) {
    assert(server_lock_is_held(&forward->lock) && job->asked == 0);
    for (size_t i = 0; i < job->count; i++) {
        job->entries[i].node = forward->map->owners[job->entries[i].shard].owner;
    }
    for (size_t i = 0; i < forward->map->node_count; i++) job_ask_node(forward, job, i);
    job_look(forward, job, now);
}

/* ---- answers -------------------------------------------------------------------------------- */

/* Asks the node again, at the address that node_address returns now. Returns false if the message
 * cannot be sent or was sent too often, or if the server stops. */
static bool question_retry(struct forward *forward, struct forward_question *question) {
    const struct forward_question next = {.node = question->node,
                                          .job = question->job,
                                          .tries = question->tries + 1,
                                          .indexes = question->indexes,
                                          .count = question->count};
    if (question->tries >= TRIES_MAX || forward->pool.stops || !node_ask(forward, &next)) {
        return false;
    }
    question->indexes = NULL;
    return true;
}

static void question_fail(struct forward *forward, struct forward_question *question,
                          doorman_time now) {
    struct forward_node *node = question->node;
    const bool was_master = node->master[0] != 0;
    node->master[0] = 0;
    if (!was_master) node->at++;
    if (question->tries <= node_address_count(forward, node) && question_retry(forward, question)) {
        return;
    }
    server_counter_add(&node->failed, 1);
    node->broken_until = now + NODE_PAUSE;
    entries_fail(question->job, question->indexes, question->count);
    job_fail(question->job, node, "does not answer");
}

/* Deals with the answer of a process that is not the master. */
static void question_redirect(struct forward *forward, struct forward_question *question,
                              const char *master) {
    struct forward_node *node = question->node;
    if (master[0]) {
        snprintf(node->master, sizeof node->master, "%s", master);
    } else {
        node->master[0] = 0;
        node->at++;
    }
    const bool tries = master[0] || question->tries < node_address_count(forward, node);
    if (tries && question_retry(forward, question)) return;
    if (doorman_clock() + PAUSE_MAX >= question->job->ends_at) {
        job_fail(question->job, node, "has no master now");
    }
}

static void question_take(struct forward *forward, struct forward_question *question) {
    const doorman_time now = doorman_clock();
    struct forward_node *node = question->node;
    struct forward_job *job = question->job;
    char master[DOORMAN_ID_BYTES_MAX + 1];
    assert(node->asked > 0 && job->asked > 0);
    node->asked--;
    job->asked--;
    server_counter_add(&node->nanoseconds, (uint64_t)(now - question->link.started_at));
    if (question->link.result == NNG_EAGAIN && question_retry(forward, question)) {
        node->broken_until = 0;
    } else if (question->link.result != 0) {
        question_fail(forward, question, now);
    } else {
        const enum forward_result result = server_forward_take(question, master);
        node->broken_until = 0;
        if (result == FORWARD_REDIRECT) question_redirect(forward, question, master);
    }
    server_link_end(&question->link);
    free(question->indexes);
    free(question);
    job_look(forward, job, now);
}

/* ---- the thread ----------------------------------------------------------------------------- */

/* Runs the jobs that are due. Returns when the next one is due, at most TEND from now. */
static doorman_time forward_run_later(struct forward *forward, doorman_time now) {
    struct forward_job *all = forward->later, *next = NULL;
    doorman_time due = now + TEND;
    forward->later = NULL;
    for (; all; all = next) {
        next = all->next;
        if (all->due <= now || forward->pool.stops) {
            job_run(forward, all, now);
        } else {
            all->next = forward->later;
            forward->later = all;
        }
    }
    for (const struct forward_job *each = forward->later; each; each = each->next) {
        if (each->due < due) due = each->due;
    }
    return due;
}

static void jobs_finish(struct forward *forward, struct forward_job *jobs) {
    for (struct forward_job *next = NULL; jobs; jobs = next) {
        next = jobs->next;
        job_finish(forward, jobs);
    }
}

static struct forward_job *forward_take_finished(struct forward *forward) {
    struct forward_job *finished = forward->finished;
    forward->finished = NULL;
    return finished;
}

/* Does what is due. Precondition: the lock is held, which this call gives back for a while.
 *   returns   when more is due */
static doorman_time forward_turn(struct forward *forward) {
    assert(server_lock_is_held(&forward->lock));
    const doorman_time now = doorman_clock();
    forward->is_called = false;
    forward_take_map(forward);
    struct link *unused = server_link_tend(&forward->pool, now);
    doorman_time due = forward_run_later(forward, now);
    server_link_flush(&forward->pool);
    if (server_link_due(&forward->pool) < due) due = server_link_due(&forward->pool);
    struct forward_job *finished = forward_take_finished(forward);
    server_unlock(&forward->lock);
    server_link_close(unused);
    jobs_finish(forward, finished);
    server_lock(&forward->lock);
    return due;
}

static void *forward_main(void *context) {
    struct forward *forward = (struct forward *)context;
    server_shares_memory = true; /* trees last longer than a turn, and would keep the arena */
    server_lock(&forward->lock);
    while (!forward->pool.stops || forward->job_count > 0 || server_link_has_http(&forward->pool)) {
        const doorman_time rest = forward_turn(forward) - doorman_clock();
        if (!forward->is_called && rest > 0) {
            server_condition_wait(&forward->wake, &forward->lock, rest);
        }
    }
    server_unlock(&forward->lock);
    return NULL;
}

/* ---- other threads -------------------------------------------------------------------------- */

/* Of this thread: whether it handles more messages before it calls forward_release, and whether
 * that call must send messages. */
static _Thread_local bool forward_holds, forward_has_held;

static void forward_hold(void) { forward_holds = true; }

static bool forward_has_more(void) { return forward_has_held; }

static void forward_release(struct service *service) {
    const bool has_held = forward_has_held;
    forward_holds = forward_has_held = false;
    if (!has_held) return;
    server_lock(&service->forward->lock);
    server_link_flush(&service->forward->pool);
    server_unlock(&service->forward->lock);
}

/* Sends what is due, or leaves it to forward_release after forward_hold. Precondition: the lock is
 * held. */
static void forward_flush(struct forward *forward) {
    if (forward_holds) {
        forward_has_held = true;
    } else {
        server_link_flush(&forward->pool);
    }
}

/* Asks the nodes about a job. If the job is over at once, the thread of the part answers it,
 * because the caller does not expect an answer during this call. */
static void forward_begin(struct service *service, struct forward_job *job) {
    struct forward *forward = service->forward;
    const bool is_short = !job->waiter && job->asker.timeout < FORWARD_SECOND;
    const bool shares_memory = server_shares_memory;
    const doorman_time now = doorman_clock();
    job->ends_at = now + (is_short ? job->asker.timeout : FORWARD_SECOND);
    server_shares_memory = true; /* see forward_main */
    server_lock(&forward->lock);
    forward_take_map(forward);
    job_run(forward, job, now);
    forward_flush(forward);
    if (forward->finished || forward->pool.stops) server_forward_call(forward);
    server_unlock(&forward->lock);
    server_shares_memory = shares_memory;
}

static const char *forward_ask(struct service *service, const doorman_request *request,
                               struct forward_asker asker) {
    struct forward *forward = service->forward;
    struct forward_job *job = forward->is_started ? job_create(request, NULL, 0) : NULL;
    if (!job) return forward->is_started ? "out of memory" : "the server is starting";
    job_note_entries(job, service, request, NULL);
    job->asker = asker;
    if (!job_count(forward, job, true)) {
        job_free(job);
        return "too many messages wait for other nodes";
    }
    forward_begin(service, job);
    return NULL;
}

static void forward_take_batch(struct link_pool *pool, const struct link_batch *batch) {
    struct forward *forward = pool->service->forward;
    const bool shares_memory = server_shares_memory;
    server_shares_memory = true;
    server_lock(&forward->lock);
    forward_take_map(forward);
    for (struct link_question *next = NULL, *each = batch->questions; each; each = next) {
        next = each->next;
        question_take(forward, (struct forward_question *)each);
    }
    forward_flush(forward);
    struct forward_job *finished = forward_take_finished(forward);
    server_unlock(&forward->lock);
    jobs_finish(forward, finished);
    server_shares_memory = shares_memory;
}

static void forward_note_link(struct link_pool *pool, bool is_lost) {
    struct forward *forward = pool->service->forward;
    if (!is_lost) return;
    server_lock(&forward->lock);
    server_forward_call(forward);
    server_unlock(&forward->lock);
}

static void forward_note_tls(struct service *service) {
    struct forward *forward = service->forward;
    if (!forward->is_started) return;
    server_lock(&forward->lock);
    server_link_note_tls(&forward->pool);
    server_unlock(&forward->lock);
}

/* ---- the part ------------------------------------------------------------------------------- */

static bool forward_is_signed(struct service *service, const char *text, size_t bytes) {
    struct forward *forward = service->forward;
    if (!forward->is_started) return false;
    const enum mark_result result =
        server_mark_check(text, bytes, forward->secret, (int64_t)time(NULL));
    if (result == MARK_WRONG) server_counter_add(&forward->marks_wrong, 1);
    if (result == MARK_RIGHT) server_counter_add(&forward->received, 1);
    return result == MARK_RIGHT;
}

/* After a message about a shard that this process does not own, lets the map be read soon: the
 * sender may have a newer map. */
static void forward_decided(struct service *service, doorman_json_exchange *exchange,
                            doorman_time now) {
    const size_t count = request_count(&exchange->request);
    if (!server_shards_on(service)) return;
    for (size_t i = 0; i < count; i++) {
        if (!response_is_moved(&exchange->response, i)) continue;
        forward_nudge(service, now);
        return;
    }
}

void server_forward_read(struct service *service, const doorman_shard_map *map,
                         struct forward_figures *out) {
    struct forward *forward = service->forward;
    if (!forward->is_started) return;
    server_lock(&forward->lock);
    for (const struct forward_node *each = forward->nodes; each; each = each->next) {
        const size_t at = doorman_shard_map_node(map, each->name);
        if (at >= map->node_count) continue;
        out[at].is_known = true;
        out[at].is_broken = each->broken_until != 0;
        out[at].sent = __atomic_load_n(&each->sent, __ATOMIC_RELAXED);
        out[at].failed = __atomic_load_n(&each->failed, __ATOMIC_RELAXED);
        out[at].full = __atomic_load_n(&each->full, __ATOMIC_RELAXED);
        out[at].nanoseconds = __atomic_load_n(&each->nanoseconds, __ATOMIC_RELAXED);
    }
    server_unlock(&forward->lock);
}

void server_forward_read_marks(const struct service *service, uint64_t *received, uint64_t *wrong) {
    *received = __atomic_load_n(&service->forward->received, __ATOMIC_RELAXED);
    *wrong = __atomic_load_n(&service->forward->marks_wrong, __ATOMIC_RELAXED);
}

static enum exit_status forward_listen(struct service *service) {
    struct forward *forward = service->forward;
    if (!server_shards_on(service)) return CONTINUE;
    forward->service = service;
    forward->pool = (struct link_pool){.service = service,
                                       .lock = &forward->lock,
                                       .take = forward_take_batch,
                                       .changed = forward_note_link};
    memcpy(forward->secret, service->shards->secret, sizeof forward->secret);
    forward->last_mark = (uint64_t)nng_random() << 32;
    forward->has_lock = server_lock_init(&forward->lock, LOCK_LINKS);
    if (!forward->has_lock || !server_condition_init(&forward->wake)) {
        return server_fatal_error(EXIT_ERROR, "out of memory");
    }
    forward_take_map(forward);
    if (!forward->map) return server_fatal_error(EXIT_ERROR, "out of memory");
    const int error = pthread_create(&forward->thread, NULL, forward_main, forward);
    forward->is_started = forward->has_thread = error == 0;
    return error == 0 ? CONTINUE
                      : server_fatal_error(EXIT_ERROR, "cannot serve: %s", strerror(error));
}

/* Lets the thread answer all jobs. Later messages are not forwarded. */
static void forward_stopping(struct service *service) {
    struct forward *forward = service->forward;
    if (!forward || !forward->is_started) return;
    server_lock(&forward->lock);
    forward->pool.stops = true;
    server_forward_call(forward);
    server_unlock(&forward->lock);
}

static void forward_stop(struct service *service) {
    struct forward *forward = service->forward;
    forward_stopping(service);
    if (!forward || !forward->has_thread) return;
    pthread_join(forward->thread, NULL);
    server_link_close(forward->pool.links);
    forward->pool.links = NULL;
    forward->has_thread = false;
}

static void forward_destroy(struct service *service) {
    struct forward *forward = service->forward;
    if (!forward) return;
    for (struct forward_node *next = NULL, *each = forward->nodes; each; each = next) {
        next = each->next;
        free(each);
    }
    doorman_shard_map_destroy(forward->map);
    if (forward->has_lock) server_lock_uninit(&forward->lock);
}

static const struct forward_calls forward_functions = {.is_away = forward_is_away,
                                                       .find_owner = forward_find_owner,
                                                       .prepare = forward_prepare,
                                                       .prepare_whole = forward_prepare_whole,
                                                       .begin = forward_begin,
                                                       .ask = forward_ask,
                                                       .hold = forward_hold,
                                                       .holds = forward_has_more,
                                                       .release = forward_release,
                                                       .is_signed = forward_is_signed};

const struct server_part server_part_forward = {
    SERVER_PART_STATE(forward),      .listen = forward_listen,
    .stopping = forward_stopping,    .stop = forward_stop,
    .destroy = forward_destroy,      .decided = forward_decided,
    .tls_changed = forward_note_tls, .forwards = &forward_functions};
