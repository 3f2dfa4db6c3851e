/* doorman_server, part GRPC: decides on calls, as permits. This file changes the permits of the
 * server object, and counts each call that it decides as one message, that of its last step.
 *
 * W2 All descriptors of a call are one permit. The permit may not wait, because the protocols
 *    cannot say "later". Descriptors whose resource has no limits are not in it.
 * W4 If this process is not the master, the master decides on the call: see grpc_master.c.
 *    Whichever process decides, server_grpc_call_prepare makes the requests, and
 *    server_grpc_call_take takes the responses.
 *
 * CheckRateLimit asks whether one more hit fits, and charges nothing. So its permit has the cost 0,
 * which a limit without units grants too. The answer comes from what remains of each limit.
 *
 * A Reserve is a permit that is settled by a Commit: see grpc_reserve.c. If the reservation of a
 * Commit cannot be settled, the Commit is a report, which charges the same amounts. But if that is
 * because the master reads its store, or because the keys are in different shards, the Commit fails
 * and charges nothing. */
#include "grpc.h"

/* ---- requests ------------------------------------------------------------------------------- */

static void permit_add(struct grpc_call *call, size_t *count, size_t place) {
    const struct grpc_descriptor *descriptor = &call->descriptors[place];
    bool looks = descriptor->is_refund || call->method == GRPC_CHECK_RATE_LIMIT;
    call->items[*count] = (doorman_permit_item){.resource_id = descriptor->item.resource_id,
                                                .key = descriptor->item.key,
                                                .cost = looks ? 0 : descriptor->hits,
                                                .sets = &descriptor->set,
                                                .set_count = descriptor->brings ? 1 : 0};
    call->places[(*count)++] = place;
}

static void report_add(struct grpc_call *call, size_t *count, size_t place) {
    const struct grpc_descriptor *descriptor = &call->descriptors[place];
    double hits = descriptor->is_refund ? -descriptor->hits : descriptor->hits;
    bool is_wanted = call->method == GRPC_REPORT || call->method == GRPC_COMMIT ||
                     (descriptor->is_refund && call->method != GRPC_RESERVE);
    if (!is_wanted || descriptor->is_unmatched) return;
    call->entries[*count] = (doorman_permit_entry){
        .resource_id = descriptor->item.resource_id, .key = descriptor->item.key, .cost = hits};
    call->places[(*count)++] = place;
}

/* Makes the permit of a Reserve a reservation. */
static void permit_reserve(struct grpc_call *call) {
    if (call->method != GRPC_RESERVE) return;
    call->permit.request_id = call->reservation.number;
    call->permit.settle_within = call->reservation.ttl;
    call->request.holder_id = call->reservation.holder;
}

/* Makes the request that settles a reservation. */
static void settle_prepare(struct grpc_call *call) {
    size_t count = 0;
    for (size_t i = 0; i < call->descriptor_count; i++) {
        const struct grpc_descriptor *descriptor = &call->descriptors[i];
        if (descriptor->is_unmatched) continue;
        call->items[count++] = (doorman_permit_item){.resource_id = descriptor->item.resource_id,
                                                     .key = descriptor->item.key,
                                                     .cost = descriptor->hits};
    }
    call->settle = (doorman_settle_request){
        .request_id = call->reservation.number, .items = call->items, .item_count = count};
    call->request.method = DOORMAN_SETTLE;
    call->request.holder_id = call->reservation.holder;
    call->request.settles = &call->settle;
    call->request.settle_count = 1;
    if (count == 0) call->step = GRPC_STEP_REPORT;
}

void server_grpc_call_prepare(struct grpc_call *call) {
    size_t count = 0;
    doorman_request *request = &call->request;
    *request = (doorman_request){.holder_id = "grpc", .wire_names = true};
    if (call->step == GRPC_STEP_PERMIT) {
        for (size_t i = 0; i < call->descriptor_count; i++) {
            if (!call->descriptors[i].is_unmatched) permit_add(call, &count, i);
        }
        call->permit =
            (doorman_permit_request){.items = call->items, .item_count = count, .detail = true};
        request->method = DOORMAN_ACQUIRE;
        request->permits = &call->permit;
        request->permit_count = 1;
        permit_reserve(call);
        if (count == 0) call->step = GRPC_STEP_REPORT;
    }
    if (call->step == GRPC_STEP_SETTLE) settle_prepare(call);
    if (call->step == GRPC_STEP_REPORT) {
        count = 0;
        for (size_t i = 0; i < call->descriptor_count; i++) report_add(call, &count, i);
        *request = (doorman_request){.method = DOORMAN_REPORT,
                                     .holder_id = "grpc",
                                     .entries = call->entries,
                                     .entry_count = count,
                                     .wire_names = true};
        if (count == 0) call->step = GRPC_STEP_DONE;
    }
}

/* ---- responses ------------------------------------------------------------------------------ */

/* Notes the limit that refuses a descriptor, or else the one with the fewest units left. */
static void outcome_take(struct grpc_outcome *outcome, const struct limit_fields *fields) {
    const struct limit_field *least = fields->has_first ? &fields->items[0] : NULL;
    for (size_t i = 0; i < fields->count && !fields->has_first; i++) {
        const struct limit_field *limit = &fields->items[i];
        if (!least || limit->remaining < least->remaining) least = limit;
    }
    outcome->has_limit = least != NULL;
    outcome->has_reset = fields->has_retry_after || (least && server_limit_has_times(least));
    if (fields->has_retry_after) outcome->reset = fields->retry_after;
    if (!least) return;
    memcpy(outcome->name, least->name, strlen(least->name) + 1);
    outcome->most = least->most;
    outcome->remaining = least->remaining;
    outcome->window = least->window;
    if (!fields->has_retry_after) outcome->reset = least->reset_after;
}

/* For CheckRateLimit: returns whether a limit of an item has less than one unit left. Makes that
 * limit the first of the fields. */
static bool fields_lack_unit(struct limit_fields *fields) {
    size_t least = 0;
    for (size_t i = 1; i < fields->count; i++) {
        if (fields->items[i].remaining < fields->items[least].remaining) least = i;
    }
    if (fields->count == 0 || fields->items[least].remaining >= 1) return false;
    struct limit_field limit = fields->items[least];
    fields->items[least] = fields->items[0];
    doorman_time retry = limit.more_after > 0 ? limit.more_after : limit.reset_after;
    limit.reset_after = limit.more_after = retry;
    fields->items[0] = limit;
    fields->has_first = true;
    fields->has_retry_after = retry > 0;
    fields->retry_after = retry;
    return true;
}

/* Takes what a permit says of one of its items. The call keeps the fields of the item that is
 * refused, or else of the item with the fewest units left. */
static void call_take_item(struct grpc_call *call, const doorman_permit *permit, size_t item) {
    struct grpc_descriptor *descriptor = &call->descriptors[call->places[item]];
    struct limit_fields fields;
    bool names = !permit->granted && permit->item_index == item;
    server_limit_fields_take(&fields, permit, item);
    bool lacks =
        call->method == GRPC_CHECK_RATE_LIMIT && permit->granted && fields_lack_unit(&fields);
    bool refused = names || lacks;
    for (size_t i = 0; i < permit->detail_count && !permit->granted; i++) {
        const doorman_permit_detail *detail = &permit->details[i];
        refused = refused || (detail->item_index == item && detail->refused && !detail->shadow);
    }
    descriptor->outcome.is_over = refused;
    outcome_take(&descriptor->outcome, &fields);
    bool is_tighter =
        !call->has_fields ||
        (fields.count > 0 && call->fields->count > 0 && permit->granted && !lacks &&
         !call->is_over && fields.items[0].remaining < call->fields->items[0].remaining);
    bool decides = names || (lacks && !call->is_over) || is_tighter;
    if (call->fields && decides && (fields.count > 0 || fields.has_retry_after)) {
        *call->fields = fields;
        call->has_fields = true;
    }
    call->is_over = call->is_over || refused;
}

/* Leaves out the descriptors whose resources have no template with limits. If another process
 * decides, its configuration may be newer than that of this process. Then only the items of the
 * resource that the answer names are left out. */
static void call_drop_unmatched(struct grpc_call *call, size_t item) {
    const doorman_config *config = call->service->config;
    const char *named = call->items[item].resource_id;
    for (size_t i = 0; i < call->permit.item_count; i++) {
        struct grpc_descriptor *descriptor = &call->descriptors[call->places[i]];
        const doorman_template *found = NULL;
        descriptor->is_unmatched = strcmp(descriptor->item.resource_id, named) == 0;
        if (call->is_forwarded || descriptor->is_unmatched) continue;
        if (config) found = doorman_config_find(config, descriptor->item.resource_id);
        descriptor->is_unmatched = !found || !found->has_limits;
    }
}

bool server_grpc_call_refuse_holds(const struct grpc_call *call, size_t place,
                                   struct grpc_status *status) {
    return server_grpc_fail(status, GRPC_FAILED_PRECONDITION,
                            "descriptors[%zu]: the resource '%.100s' has a limit of kind "
                            "CONCURRENCY, which needs a hold",
                            place, call->descriptors[place].item.resource_id);
}

/* Refuses a call whose keys are in different shards (N5).
 *   index   of an item that is in another shard than the first one */
static bool call_refuse_shards(const struct grpc_call *call, size_t index,
                               struct grpc_status *status) {
    const doorman_permit_item *item = &call->items[index];
    return server_grpc_fail(status, GRPC_FAILED_PRECONDITION,
                            "SHARDS: the keys '%.60s' and '%.60s' are in different shards; braces "
                            "around a part that both have keep them together",
                            call->items[0].key, item->key);
}

static bool call_take_permit(struct grpc_call *call, const doorman_permit *permit,
                             struct grpc_status *status) {
    if (!permit->granted && permit->reason == DOORMAN_REASON_UNMATCHED) {
        if (permit->item_index >= call->permit.item_count) {
            return server_grpc_fail(status, GRPC_INTERNAL, "the master names an unknown item");
        }
        call_drop_unmatched(call, permit->item_index);
        return true;
    }
    for (size_t i = 0; i < permit->detail_count; i++) {
        const doorman_permit_detail *detail = &permit->details[i];
        if (detail->kind != DOORMAN_CONCURRENCY) continue;
        return server_grpc_call_refuse_holds(call, call->places[detail->item_index], status);
    }
    if (!permit->granted && permit->reason == DOORMAN_REASON_SHARDS) {
        const size_t index = permit->item_index;
        return call_refuse_shards(call, index < call->permit.item_count ? index : 0, status);
    }
    bool is_full =
        permit->reason == DOORMAN_REASON_REPEATS || permit->reason == DOORMAN_REASON_MAX_HOLDS;
    if (call->method == GRPC_RESERVE && !permit->granted && is_full) {
        return server_grpc_fail(status, GRPC_RESOURCE_EXHAUSTED, "too many reservations: %s",
                                doorman_reason_name(permit->reason));
    }
    for (size_t i = 0; i < call->permit.item_count; i++) call_take_item(call, permit, i);
    call->is_over = call->is_over || !permit->granted;
    call->reservation.is_made = call->method == GRPC_RESERVE && permit->granted;
    bool has_refunds = false;
    for (size_t i = 0; i < call->descriptor_count; i++) {
        has_refunds = has_refunds || call->descriptors[i].is_refund;
    }
    has_refunds = has_refunds && !call->is_over && call->method == GRPC_SHOULD_RATE_LIMIT;
    call->step = has_refunds ? GRPC_STEP_REPORT : GRPC_STEP_DONE;
    return true;
}

static bool call_take_settlement(struct grpc_call *call, const doorman_response *response,
                                 struct grpc_status *status) {
    if (response->settlement_count != 1) {
        return server_grpc_fail(status, GRPC_INTERNAL, "the response has no settlement");
    }
    const doorman_settlement *settled = &response->settlements[0];
    if (settled->reason == DOORMAN_REASON_LEARNING) {
        /* a report now would be charged in addition to the reservation, which is read soon */
        return server_grpc_fail(status, GRPC_UNAVAILABLE,
                                "the master does not know all reservations yet: send it again");
    }
    if (settled->reason == DOORMAN_REASON_SHARDS) {
        const size_t index = settled->item_index;
        return call_refuse_shards(call, index < call->settle.item_count ? index : 0, status);
    }
    call->reservation.is_released = !settled->reason && !settled->late && !settled->unknown;
    call->step = settled->reason ? GRPC_STEP_REPORT : GRPC_STEP_DONE;
    server_grpc_call_prepare(call);
    return true;
}

bool server_grpc_call_take(struct grpc_call *call, const doorman_response *response,
                           struct grpc_status *status) {
    assert(server_lock_is_held(&call->service->lock) && call->step != GRPC_STEP_DONE);
    if (call->step == GRPC_STEP_SETTLE) return call_take_settlement(call, response, status);
    if (call->step == GRPC_STEP_REPORT) {
        call->step = GRPC_STEP_DONE;
        return true;
    }
    if (response->permit_count != 1) {
        return server_grpc_fail(status, GRPC_INTERNAL, "the response has no decision");
    }
    if (!call_take_permit(call, &response->permits[0], status)) return false;
    if (call->step != GRPC_STEP_DONE) server_grpc_call_prepare(call);
    return true;
}

/* ---- this process --------------------------------------------------------------------------- */

/* Returns whether the template of a resource has a limit of kind CONCURRENCY. */
static bool call_has_holds(const doorman_config *config, const char *resource_id) {
    const doorman_template *found = config ? doorman_config_find(config, resource_id) : NULL;
    bool has = false;
    for (size_t i = 0; found && i < found->limit_count; i++) {
        has = has || found->limits[i].kind == DOORMAN_CONCURRENCY;
    }
    return has;
}

/* The server object refuses an item with a limit of kind CONCURRENCY and a cost above 0, but its
 * error names a field of the permit, which a gateway does not know. A Reserve would make a hold. */
size_t server_grpc_call_find_holds(const struct grpc_call *call, const doorman_config *config) {
    size_t at = 0;
    while (at < call->descriptor_count &&
           !call_has_holds(config, call->descriptors[at].item.resource_id)) {
        at++;
    }
    return at;
}

/* Returns the first item that has no cost and a limit of kind CONCURRENCY, or the count of items.
 * The server object would grant such an item, and charge the others. An inspection says whether the
 * limit concerns the key. Precondition: the lock is held. */
static size_t call_find_look(struct grpc_call *call) {
    const size_t count = call->permit.item_count;
    doorman_response response;
    size_t at = 0, first = count;
    for (; at < count; at++) {
        const doorman_permit_item *item = &call->items[at];
        if (item->cost > 0 || !call_has_holds(call->service->config, item->resource_id)) continue;
        call->entries[0] =
            (doorman_permit_entry){.resource_id = item->resource_id, .key = item->key};
        const doorman_request inspection = {
            .method = DOORMAN_INSPECT, .entries = call->entries, .entry_count = 1};
        doorman_status status = doorman_server_handle(call->service->server, &inspection, &response,
                                                      NULL, doorman_clock());
        if (status != DOORMAN_OK || !response.is_master || response.result_count != 1) break;
        const doorman_permit *state = &response.results[0].state;
        for (size_t i = 0; i < state->detail_count; i++) {
            if (state->details[i].kind == DOORMAN_CONCURRENCY && first == count) first = at;
        }
    }
    return first;
}

/* Sets the status of a call that the server object does not accept. */
static void call_set_failed(const struct grpc_call *call, struct grpc_status *status,
                            doorman_status code, const char *why) {
    enum grpc_code to = GRPC_INTERNAL;
    if (code == DOORMAN_RESOURCE_EXHAUSTED || code == DOORMAN_OUT_OF_MEMORY) {
        to = GRPC_RESOURCE_EXHAUSTED;
    } else if (code == DOORMAN_UNAVAILABLE) {
        to = GRPC_UNAVAILABLE;
    } else if (code == DOORMAN_INVALID_ARGUMENT) {
        size_t place = server_grpc_call_find_holds(call, call->service->config);
        if (place < call->descriptor_count) {
            server_grpc_call_refuse_holds(call, place, status);
            return;
        }
    }
    server_grpc_fail(status, to, "%s", why[0] ? why : server_status_text(code));
}

/* Tells the parts of the server about a decision, as for any other message. The path of an error
 * begins with the method, as in any message. */
static void call_report(const struct grpc_call *call, const struct peer *peer,
                        doorman_status status, doorman_time started_at) {
    doorman_json_exchange *exchange = call->exchange;
    if (exchange->error.path_bytes > 0) {
        const char *method = doorman_method_name(exchange->request.method, false);
        const doorman_error error = exchange->error;
        snprintf(exchange->error.text, sizeof exchange->error.text, "%s.%.480s", method,
                 error.text);
        exchange->error.path_bytes = strlen(method) + 1 + error.path_bytes;
    }
    const struct message_report report = {.exchange = exchange,
                                          .peer = peer,
                                          .was_read = true,
                                          .status = status,
                                          .duration = doorman_clock() - started_at};
    server_note_message(call->service, &report);
}

/* Decides step by step, until the call is done, has failed, or must be decided elsewhere.
 * Precondition: the lock is held, and the server is not stopping.
 *   now       when the lock was taken
 *   returns   the status of the last request */
static doorman_status call_decide_locked(struct grpc_call *call, enum grpc_decided *decided,
                                         struct grpc_status *status,
                                         char master[DOORMAN_ID_BYTES_MAX + 1], doorman_time now) {
    struct service *service = call->service;
    doorman_json_exchange *exchange = call->exchange;
    doorman_status result = DOORMAN_OK;
    assert(server_lock_is_held(&service->lock));
    *decided = GRPC_DECIDED;
    call->brings = server_grpc_figures_bring(call, call->may_bring);
    if (call->brings) server_grpc_call_prepare(call);
    if (call->step == GRPC_STEP_PERMIT) {
        const size_t look = call_find_look(call);
        if (look < call->permit.item_count) {
            server_grpc_call_refuse_holds(call, call->places[look], status);
            *decided = GRPC_FAILED;
            return DOORMAN_INVALID_ARGUMENT;
        }
    }
    while (call->step != GRPC_STEP_DONE && *decided == GRPC_DECIDED) {
        doorman_response response;
        if (service->forwards && service->forwards->is_away(service, &call->request)) {
            *decided = GRPC_AWAY;
            break;
        }
        exchange->request = call->request;
        result = doorman_server_handle(service->server, &call->request, &response, &exchange->error,
                                       now);
        if (result == DOORMAN_INVALID_ARGUMENT && call->brings) {
            server_grpc_figures_drop(call); /* figures are never an error */
            server_grpc_call_prepare(call);
        } else if (result != DOORMAN_OK) {
            *decided = GRPC_FAILED;
            call_set_failed(call, status, result, exchange->error.text);
        } else if (!response.is_master) {
            const char *address = response.master_address ? response.master_address : "";
            snprintf(master, DOORMAN_ID_BYTES_MAX + 1, "%s", address);
            *decided = GRPC_ELSEWHERE;
        } else if (!server_grpc_call_take(call, &response, status)) {
            *decided = GRPC_FAILED;
        }
    }
    return result;
}

enum grpc_decided server_grpc_call_decide(struct grpc_call *call, const struct peer *peer,
                                          struct grpc_status *status,
                                          char master[DOORMAN_ID_BYTES_MAX + 1]) {
    struct service *service = call->service;
    doorman_json_exchange *exchange = call->exchange;
    const doorman_time started_at = doorman_clock();
    doorman_status result = DOORMAN_UNAVAILABLE;
    enum grpc_decided decided = GRPC_FAILED;
    master[0] = 0;
    if (call->step == GRPC_STEP_DONE) return GRPC_DECIDED;
    exchange->has_method = true;
    exchange->request = call->request;
    exchange->error.text[0] = 0;
    exchange->error.path_bytes = 0;
    const bool waits = !server_try_lock(&service->lock);
    if (waits) server_lock(&service->lock);
    const bool pauses = server_pauses(service); /* charges would be lost */
    if (!pauses) {
        const doorman_time now = waits ? doorman_clock() : started_at;
        result = call_decide_locked(call, &decided, status, master, now);
    }
    server_unlock(&service->lock);
    if (pauses) server_grpc_fail(status, GRPC_UNAVAILABLE, "the server is stopping");
    if (decided == GRPC_DECIDED || decided == GRPC_FAILED)
        call_report(call, peer, result, started_at);
    return decided;
}
