/* Runs the stories of clients/stories with the clients of the library. The client packages of other
 * languages run the same stories. clients/stories/README.md has their form. */
#include "unit.h"

#include <dirent.h>

#define DOORMAN_JSON
#define DOORMAN_NNG
#define DOORMAN_IMPLEMENTATION
#include "../../doorman_permits.h"

#include "stories.h"

/* ---- the client of a story ---- */

static const char *const fallbacks[] = {"open", "closed", "local"};
static const char *const limit_kinds[] = {"", "TOKEN_BUCKET", "FIXED_WINDOW", "SLIDING_WINDOW"};

static doorman_limit_options local_limit(world *w, const cJSON *local) {
    check_keys(w, local, " kind rate size limit window ");
    return (doorman_limit_options){
        .kind = (doorman_limit_kind)INDEX_OF(w, text_of(local, "kind", ""), limit_kinds),
        .rate = number_of(local, "rate", 0),
        .size = number_of(local, "size", 0),
        .limit = number_of(local, "limit", 0),
        .window = duration_of(local, "window")};
}

static doorman_status permits_start(world *w, doorman_client_options *options, const cJSON *from,
                                    doorman_error *error) {
    const cJSON *local = get(from, "local");
    const doorman_limit_options limit = local_limit(w, local);
    options->permits = (doorman_permit_policy){.fallback = (doorman_permit_fallback)INDEX_OF(
                                                   w, text_of(from, "fallback", "open"), fallbacks),
                                               .local = local ? &limit : NULL,
                                               .shadow = is_true(from, "shadow"),
                                               .prefetch = duration_of(from, "prefetch"),
                                               .max_pause = duration_of(from, "max_pause"),
                                               .report_once = is_true(from, "report_once")};
    doorman_status status = doorman_permit_client_create(&w->permits, options, error, w->now);
    if (status != DOORMAN_OK) return status;
    w->permits->hold_number = 0; /* the first number of a story is 1 */
    w->upstreams[w->upstream_count++] = doorman_permit_client_upstream(w->permits);
    for (double i = number_of(from, "lanes", 0); i > 0; i--) {
        doorman_upstream **lane = &w->upstreams[w->upstream_count++];
        assert_int_equal(doorman_permit_client_add_lane(w->permits, lane), DOORMAN_OK);
    }
    return DOORMAN_OK;
}

static doorman_status leases_start(world *w, const doorman_client_options *options,
                                   const cJSON *from, doorman_error *error) {
    doorman_status status = doorman_client_create(&w->client, options, error, w->now);
    if (status != DOORMAN_OK) return status;
    w->client->release_delay = duration_of(from, "release_delay");
    w->upstreams[w->upstream_count++] = doorman_client_upstream(w->client);
    return DOORMAN_OK;
}

static void client_start(world *w, const cJSON *from) {
    static const char *const one[] = {"ws://a:1"};
    char texts[16][300];
    const char *addresses[16];
    const cJSON *given = get(from, "addresses"), *address;
    doorman_client_options options = {.client_id = text_of(from, "client_id", "me"),
                                      .addresses = given ? addresses : one,
                                      .address_count = given ? 0 : 1,
                                      .seed = 1,
                                      .request_timeout = duration_of(from, "request_timeout")};
    doorman_error error = {.text = ""};
    check_keys(w, from,
               " kind client_id addresses request_timeout fallback local shadow prefetch max_pause "
               "report_once lanes release_delay ");
    cJSON_ArrayForEach(address, given) {
        assert_true(options.address_count < 16);
        translate(texts[options.address_count], sizeof *texts, address->valuestring, false);
        addresses[options.address_count] = texts[options.address_count];
        options.address_count++;
    }
    w->now = START;
    bool leases = strcmp(text_of(from, "kind", "leases"), "leases") == 0;
    doorman_status status =
        leases ? leases_start(w, &options, from, &error) : permits_start(w, &options, from, &error);
    if (status != DOORMAN_OK) fail_story(w, "the client does not start: %s", error.text);
}

static void client_stop(world *w) {
    doorman_client_destroy(w->client);
    doorman_permit_client_destroy(w->permits);
    for (size_t i = 0; i < w->sent_count; i++) cJSON_Delete(w->sent[i].message);
}

/* ---- steps: requests and responses ---- */

/* Describes a request. Its resources are in the order of `expected`. */
static cJSON *message_of(const story_request *sent, const cJSON *expected) {
    cJSON *out = cJSON_CreateObject(), *message = cJSON_Duplicate(sent->message, true);
    reorder(message, "resource", get(expected, "resource"));
    cJSON_AddStringToObject(out, "address", sent->address);
    cJSON_AddStringToObject(out, "method", sent->method);
    cJSON_AddItemToObject(out, "message", message);
    return out;
}

static void step_sends(world *w, const cJSON *expected) {
    check_keys(w, expected, " address method message as ");
    doorman_time first = advance_for(w, WAIT_REQUEST, NULL);
    if (w->fault[0]) return;
    if (w->read_count == w->sent_count) {
        fail_story(w, "the client sends nothing until %.6f s", seconds_of(w->now - START));
        return;
    }
    story_request *sent = &w->sent[w->read_count++];
    cJSON *is = cJSON_Duplicate(expected, true);
    cJSON_DeleteItemFromObjectCaseSensitive(is, "as");
    match_seen(w, "the request", message_of(sent, get(is, "message")), is);
    cJSON_Delete(is);
    check_time(w, "the request", sent->at, first);
    snprintf(sent->name, sizeof sent->name, "%s", text_of(expected, "as", ""));
}

/* Returns the request that an answer names, or else the last one without an answer. */
static story_request *request_of(world *w, const cJSON *answer) {
    const char *name = text_of(answer, "to", "");
    for (size_t i = w->read_count; i > 0; i--) {
        story_request *at = &w->sent[i - 1];
        if (name[0] ? strcmp(at->name, name) == 0 : !at->answered) return at;
    }
    fail_story(w, "there is no request to answer");
    return NULL;
}

/* Makes a whole message from its body. The entries are in the order of the request. Over nng the
 * library reads the address of the master from `master_address`. */
static char *whole_message(const story_request *sent, const cJSON *body) {
    cJSON *copy = cJSON_Duplicate(body, true), *whole = copy;
    cJSON *mastership = cJSON_GetObjectItemCaseSensitive(copy, "mastership");
    const char *master = text_of(mastership, "http_address", NULL);
    if (mastership) {
        char address[300];
        translate(address, sizeof address, master ? master : "", false);
        cJSON_DeleteItemFromObjectCaseSensitive(mastership, "http_address");
        cJSON_DeleteItemFromObjectCaseSensitive(mastership, "master_address");
        if (master) cJSON_AddStringToObject(mastership, "master_address", address);
    }
    reorder(copy, "response", get(sent->message, "resource"));
    if (!get(body, "error")) {
        whole = cJSON_CreateObject();
        cJSON_AddItemToObject(whole, sent->method, copy);
    }
    char *text = cJSON_PrintUnformatted(whole);
    cJSON_Delete(whole);
    return text;
}

static void step_answers(world *w, const cJSON *answer) {
    check_keys(w, answer, " to status body text ");
    story_request *sent = request_of(w, answer);
    if (!sent) return;
    const cJSON *body = get(answer, "body");
    const char *raw = text_of(answer, "text", "");
    char *text = body ? whole_message(sent, body) : NULL;
    if (text) raw = text;
    bool failed = !body && number_of(answer, "status", 200) >= 300;
    sent->answered = true;
    remove_jitter(w);
    if (failed) {
        doorman_upstream_failed(sent->upstream, sent->sequence, w->now);
    } else {
        doorman_error error;
        (void)doorman_json_response(sent->upstream, sent->sequence, raw, strlen(raw), &error,
                                    w->now);
        remove_jitter_of_renewals(w);
    }
    cJSON_free(text);
}

static void step_breaks(world *w, const cJSON *what) {
    check_keys(w, what, " to ");
    story_request *sent = request_of(w, what);
    if (!sent) return;
    sent->answered = true;
    remove_jitter(w);
    doorman_upstream_failed(sent->upstream, sent->sequence, w->now);
}

static void step_waits(world *w, const cJSON *nothing) { check_keys(w, nothing, " "); }

/* ---- steps: leases ---- */

static const char *const kinds[] = {"rate", "gauge"};
static const char *const lease_fallbacks[] = {"safe", "pessimistic", "optimistic"};

static doorman_client_resource *resource_of(world *w, const cJSON *from) {
    const char *id = text_of(from, "resource_id", "");
    doorman_client_resource *resource = w->client ? doorman__client_find(w->client, id) : NULL;
    if (!resource) fail_story(w, "the client has no resource \"%s\"", id);
    return resource;
}

static void step_opens(world *w, const cJSON *from) {
    doorman_client_resource *resource;
    doorman_error error = {.text = ""};
    check_keys(w, from,
               " resource_id kind wants wants_minimum wants_maximum wants_initial window priority "
               "fallback safe_capacity burst shadow ");
    const doorman_resource_options options = {
        .resource_id = text_of(from, "resource_id", ""),
        .kind = (doorman_resource_kind)INDEX_OF(w, text_of(from, "kind", "rate"), kinds),
        .has_priority = get(from, "priority") != NULL,
        .priority = (int)number_of(from, "priority", 0),
        .wants = number_of(from, "wants", 0),
        .has_wants_minimum = get(from, "wants_minimum") != NULL,
        .wants_minimum = number_of(from, "wants_minimum", 0),
        .wants_maximum = number_of(from, "wants_maximum", 0),
        .wants_initial = number_of(from, "wants_initial", 0),
        .window = duration_of(from, "window"),
        .burst = duration_of(from, "burst"),
        .fallback =
            (doorman_fallback)INDEX_OF(w, text_of(from, "fallback", "safe"), lease_fallbacks),
        .has_safe_capacity = get(from, "safe_capacity") != NULL,
        .safe_capacity = number_of(from, "safe_capacity", 0),
        .shadow = is_true(from, "shadow")};
    doorman_status status = doorman_client_open(&resource, w->client, &options, &error, w->now);
    if (status != DOORMAN_OK) fail_story(w, "the resource does not open: %s", error.text);
}

static void step_closes(world *w, const cJSON *from) {
    check_keys(w, from, " resource_id ");
    doorman_client_resource *resource = resource_of(w, from);
    remove_jitter(w);
    if (resource) doorman_client_close(resource, w->now);
}

static void step_wants(world *w, const cJSON *from) {
    check_keys(w, from, " resource_id amount ");
    doorman_client_resource *resource = resource_of(w, from);
    if (!resource) return;
    doorman_status status =
        doorman_client_set_wants(resource, number_of(from, "amount", 0), w->now);
    assert_int_equal(status, DOORMAN_OK);
}

static void step_tries(world *w, const cJSON *from) {
    double allowed = 0;
    doorman_result result = {.decision = DOORMAN_REFUSED};
    check_keys(w, from, " resource_id units times allowed impossible retry_after ");
    doorman_client_resource *resource = resource_of(w, from);
    for (double i = number_of(from, "times", 1); resource && i > 0; i--) {
        (void)doorman_client_try(resource, number_of(from, "units", 1), &result, w->now);
        allowed += result.decision == DOORMAN_ALLOWED;
    }
    cJSON *seen = cJSON_CreateObject();
    cJSON_AddNumberToObject(seen, "allowed", allowed);
    cJSON_AddBoolToObject(seen, "impossible", result.decision == DOORMAN_IMPOSSIBLE);
    if (result.decision == DOORMAN_REFUSED && result.retry_after != DOORMAN_NEVER) {
        cJSON_AddNumberToObject(seen, "retry_after", seconds_of(result.retry_after));
    }
    cJSON *expected = cJSON_Duplicate(from, true);
    static const char *const inputs[] = {"resource_id", "units", "times"};
    for (int i = 0; i < 3; i++) cJSON_DeleteItemFromObjectCaseSensitive(expected, inputs[i]);
    match_seen(w, "the try", seen, expected);
    cJSON_Delete(expected);
}

static void step_returns(world *w, const cJSON *from) {
    check_keys(w, from, " resource_id units ");
    doorman_client_resource *resource = resource_of(w, from);
    if (!resource) return;
    doorman_status status = doorman_client_release(resource, number_of(from, "units", 1));
    assert_int_equal(status, DOORMAN_OK);
}

static const char *outcome_name(const doorman_resource_info *info) {
    static const char *const names[] = {"GRANTED", "TRY_LATER", "UNMATCHED", "FULL"};
    return info->has_outcome ? names[info->outcome - DOORMAN_GRANTED] : NULL;
}

static cJSON *describe_resource(const doorman_resource_info *info) {
    cJSON *out = cJSON_CreateObject();
    cJSON_AddBoolToObject(out, "leased", info->leased);
    cJSON_AddNumberToObject(out, "capacity", info->capacity);
    cJSON_AddNumberToObject(out, "wants", info->wants);
    cJSON_AddNumberToObject(out, "in_use", info->in_use);
    if (info->leased) {
        cJSON_AddNumberToObject(out, "expires_at", seconds_of(info->expires_at - START));
    }
    if (info->reason) {
        cJSON_AddStringToObject(out, "reason", doorman_lease_reason_name(info->reason));
    }
    if (info->has_outcome) cJSON_AddStringToObject(out, "outcome", outcome_name(info));
    cJSON_AddBoolToObject(out, "learning", info->learning);
    if (info->has_safe_capacity) {
        cJSON_AddNumberToObject(out, "safe_capacity", info->safe_capacity);
    }
    cJSON_AddNumberToObject(out, "allowed", info->counts.allowed);
    cJSON_AddNumberToObject(out, "refused", info->counts.refused);
    cJSON_AddNumberToObject(out, "excess", info->counts.excess);
    cJSON_AddNumberToObject(out, "failures", (double)info->refresh_failures);
    return out;
}

static void step_reads(world *w, const cJSON *from) {
    doorman_resource_info info;
    check_keys(w, from,
               " resource_id leased capacity wants in_use expires_at reason outcome learning "
               "safe_capacity allowed refused excess failures ");
    doorman_client_resource *resource = resource_of(w, from);
    if (!resource) return;
    doorman_client_read(resource, &info, w->now);
    cJSON *expected = cJSON_Duplicate(from, true);
    cJSON_DeleteItemFromObjectCaseSensitive(expected, "resource_id");
    match_seen(w, "the resource", describe_resource(&info), expected);
    cJSON_Delete(expected);
}

/* ---- steps: permits, holds and reservations ---- */

static story_call *call_named(world *w, const char *name) {
    for (size_t i = 0; i < w->call_count; i++) {
        if (strcmp(w->calls[i].name, name) == 0) return &w->calls[i];
    }
    fail_story(w, "the story has no call \"%s\"", name);
    return NULL;
}

static story_call *call_create(world *w, const cJSON *from) {
    assert_true(w->call_count < CALLS_MAX);
    story_call *made = &w->calls[w->call_count++];
    *made = (story_call){.items = get(from, "item")};
    snprintf(made->name, sizeof made->name, "%s", text_of(from, "call", "?"));
    return made;
}

static size_t items_of(world *w, const cJSON *list, doorman_permit_item *items) {
    size_t count = 0;
    const cJSON *from;
    cJSON_ArrayForEach(from, list) {
        check_keys(w, from, " resource_id key cost min ");
        assert_true(count < DOORMAN_PERMIT_ITEMS_MAX);
        items[count++] = (doorman_permit_item){.resource_id = text_of(from, "resource_id", ""),
                                               .key = text_of(from, "key", ""),
                                               .cost = number_of(from, "cost", 1),
                                               .has_min = get(from, "min") != NULL,
                                               .min = number_of(from, "min", 0)};
    }
    return count;
}

static void step_acquires(world *w, const cJSON *from) {
    doorman_permit_item items[DOORMAN_PERMIT_ITEMS_MAX];
    doorman_error error = {.text = ""};
    uint64_t hold = 0;
    check_keys(w, from,
               " call item max_wait equal detail timeout hold time_to_live priority share "
               "settle_within ");
    story_call *made = call_create(w, from);
    const doorman_permit_request request = {.items = items,
                                            .item_count = items_of(w, made->items, items),
                                            .max_wait = duration_of(from, "max_wait"),
                                            .equal = is_true(from, "equal"),
                                            .detail = is_true(from, "detail"),
                                            .time_to_live = duration_of(from, "time_to_live"),
                                            .has_priority = get(from, "priority") != NULL,
                                            .priority = (int)number_of(from, "priority", 0),
                                            .share = is_true(from, "share"),
                                            .settle_within = duration_of(from, "settle_within"),
                                            .hold = is_true(from, "hold") ? &hold : NULL};
    doorman_status status = doorman_permit_client_acquire(
        w->permits, &request, duration(number_of(from, "timeout", 1)), made, &error, w->now);
    made->out.hold = hold; /* until the decision */
    if (status != DOORMAN_OK) fail_story(w, "the permit is not valid: %s", error.text);
}

static cJSON *describe_units(const doorman_acquired *out, int count) {
    cJSON *units = cJSON_CreateArray();
    for (int i = 0; i < count; i++) {
        cJSON_AddItemToArray(units, cJSON_CreateNumber(out->units[i]));
    }
    return units;
}

/* Adds the fields that only some decisions have. */
static void describe_rest(cJSON *to, const doorman_acquired *out) {
    if (out->limit[0]) cJSON_AddStringToObject(to, "limit", out->limit);
    if (out->reason) cJSON_AddStringToObject(to, "reason", doorman_reason_name(out->reason));
    if (out->has_retry_after) {
        cJSON_AddNumberToObject(to, "retry_after", seconds_of(out->retry_after));
    }
    if (out->ends_at) cJSON_AddNumberToObject(to, "ends_at", seconds_of(out->ends_at - START));
    if (out->settle_by) {
        cJSON_AddNumberToObject(to, "settle_by", seconds_of(out->settle_by - START));
    }
    if (out->transfer_id) cJSON_AddNumberToObject(to, "transfer_id", (double)out->transfer_id);
}

static cJSON *describe_decision(const story_call *call) {
    static const char *const by[] = {"server", "refusal", "fallback",
                                     "bypass", "caller",  "prefetch"};
    const doorman_acquired *out = &call->out;
    cJSON *to = cJSON_CreateObject();
    int count = call->items ? cJSON_GetArraySize(call->items) : 1;
    cJSON_AddBoolToObject(to, "granted", out->granted);
    cJSON_AddStringToObject(to, "by", by[out->decided_by]);
    cJSON_AddItemToObject(to, "units", describe_units(out, count));
    cJSON_AddBoolToObject(to, "warning", out->warning);
    cJSON_AddNumberToObject(to, "wait", seconds_of(out->wait));
    cJSON_AddNumberToObject(to, "remaining", out->remaining);
    cJSON_AddNumberToObject(to, "reset_after", seconds_of(out->reset_after));
    cJSON_AddNumberToObject(to, "quota", out->quota);
    cJSON_AddNumberToObject(to, "window", seconds_of(out->window));
    cJSON_AddNumberToObject(to, "item_index", (double)out->item_index);
    cJSON_AddBoolToObject(to, "hold", out->granted && out->hold);
    cJSON_AddBoolToObject(to, "reservation", out->reservation != 0);
    cJSON_AddBoolToObject(to, "late", out->late);
    cJSON_AddBoolToObject(to, "unknown", out->unknown);
    describe_rest(to, out);
    return to;
}

static void step_decides(world *w, const cJSON *from) {
    story_call *call = call_named(w, text_of(from, "call", ""));
    if (!call) return;
    doorman_time first = advance_for(w, WAIT_CALL, call);
    if (!call->decided) {
        fail_story(w, "%s has no decision at %.6f s", call->name, seconds_of(w->now - START));
        return;
    }
    check_keys(w, from,
               " call granted by units warning wait remaining reset_after quota window item_index "
               "hold reservation late unknown limit reason retry_after ends_at settle_by "
               "transfer_id ");
    cJSON *expected = cJSON_Duplicate(from, true);
    cJSON_DeleteItemFromObjectCaseSensitive(expected, "call");
    match_seen(w, call->name, describe_decision(call), expected);
    cJSON_Delete(expected);
    check_time(w, "the decision", call->at, first);
    call->seen = true;
}

/* Reads a list of amounts, and returns how many there are. */
static size_t amounts_of(const cJSON *list, double *amounts) {
    size_t count = 0;
    const cJSON *amount;
    cJSON_ArrayForEach(amount, list) {
        assert_true(count < DOORMAN_PERMIT_ITEMS_MAX);
        amounts[count++] = amount->valuedouble;
    }
    return count;
}

static void step_releases(world *w, const cJSON *from) {
    double keep[DOORMAN_PERMIT_ITEMS_MAX];
    doorman_error error = {.text = ""};
    check_keys(w, from, " call keep ");
    const story_call *call = call_named(w, text_of(from, "call", ""));
    if (!call) return;
    const doorman_hold_request request = {
        .id = call->out.hold, .amounts = keep, .amount_count = amounts_of(get(from, "keep"), keep)};
    doorman_status status = doorman_permit_client_release(w->permits, &request, &error, w->now);
    if (status != DOORMAN_OK) fail_story(w, "the release is not valid: %s", error.text);
}

static void step_transfers(world *w, const cJSON *from) {
    double amounts[DOORMAN_PERMIT_ITEMS_MAX];
    doorman_error error = {.text = ""};
    check_keys(w, from, " call hold amount time_to_live timeout ");
    const story_call *hold = call_named(w, text_of(from, "hold", ""));
    if (!hold) return;
    const doorman_hold_request request = {.id = hold->out.hold,
                                          .timeout = duration(number_of(from, "timeout", 1)),
                                          .time_to_live = duration_of(from, "time_to_live"),
                                          .amounts = amounts,
                                          .amount_count = amounts_of(get(from, "amount"), amounts)};
    doorman_status status =
        doorman_permit_client_transfer(w->permits, &request, call_create(w, from), &error, w->now);
    if (status != DOORMAN_OK) fail_story(w, "the transfer is not valid: %s", error.text);
}

static void step_seizes(world *w, const cJSON *from) {
    doorman_error error = {.text = ""};
    check_keys(w, from, " call transfer_id time_to_live timeout ");
    const doorman_hold_request request = {.id = (uint64_t)number_of(from, "transfer_id", 0),
                                          .timeout = duration(number_of(from, "timeout", 1)),
                                          .time_to_live = duration_of(from, "time_to_live")};
    doorman_status status =
        doorman_permit_client_seize(w->permits, &request, call_create(w, from), &error, w->now);
    if (status != DOORMAN_OK) fail_story(w, "the seizure is not valid: %s", error.text);
}

static void step_settles(world *w, const cJSON *from) {
    doorman_permit_item items[DOORMAN_PERMIT_ITEMS_MAX];
    double costs[DOORMAN_PERMIT_ITEMS_MAX];
    doorman_error error = {.text = ""};
    check_keys(w, from, " call reservation cost timeout ");
    const story_call *permit = call_named(w, text_of(from, "reservation", ""));
    if (!permit) return;
    size_t count = items_of(w, permit->items, items);
    assert_int_equal(amounts_of(get(from, "cost"), costs), count);
    for (size_t i = 0; i < count; i++) {
        items[i].cost = costs[i];
        items[i].has_min = false;
        items[i].min = 0;
    }
    const doorman_settle_request request = {.id = permit->out.reservation,
                                            .items = items,
                                            .item_count = count,
                                            .timeout = duration_of(from, "timeout")};
    story_call *made = request.timeout ? call_create(w, from) : NULL;
    if (made) made->items = permit->items;
    doorman_status status =
        doorman_permit_client_settle(w->permits, &request, made, &error, w->now);
    if (status != DOORMAN_OK) fail_story(w, "the settle is not valid: %s", error.text);
}

static void step_reports(world *w, const cJSON *from) {
    doorman_error error = {.text = ""};
    check_keys(w, from, " resource_id key cost ");
    const doorman_permit_item item = {.resource_id = text_of(from, "resource_id", ""),
                                      .key = text_of(from, "key", ""),
                                      .cost = number_of(from, "cost", 1)};
    doorman_status status = doorman_permit_client_report(w->permits, &item, &error, w->now);
    if (status != DOORMAN_OK) fail_story(w, "the report is not valid: %s", error.text);
}

static cJSON *describe_hold(const doorman_held *held) {
    cJSON *to = cJSON_CreateObject(), *units = cJSON_CreateArray();
    cJSON_AddBoolToObject(to, "gone", held->gone);
    if (held->ends_at) cJSON_AddNumberToObject(to, "ends_at", seconds_of(held->ends_at - START));
    for (size_t i = 0; i < held->item_count; i++) {
        cJSON_AddItemToArray(units, cJSON_CreateNumber(held->units[i]));
    }
    cJSON_AddItemToObject(to, "units", units);
    return to;
}

static void match_hold(world *w, const cJSON *from, const doorman_held *held) {
    check_keys(w, from, " call gone ends_at units ");
    cJSON *expected = cJSON_Duplicate(from, true);
    cJSON_DeleteItemFromObjectCaseSensitive(expected, "call");
    match_seen(w, "the hold", describe_hold(held), expected);
    cJSON_Delete(expected);
}

static void step_changes(world *w, const cJSON *from) {
    doorman_time first = advance_for(w, WAIT_CHANGE, NULL);
    if (w->changes_seen == w->change_count) {
        fail_story(w, "no hold has changed at %.6f s", seconds_of(w->now - START));
        return;
    }
    const story_change *change = &w->changes[w->changes_seen++];
    const story_call *call = call_named(w, text_of(from, "call", ""));
    if (call && call->out.hold != change->held.hold) fail_story(w, "another hold has changed");
    match_hold(w, from, &change->held);
    check_time(w, "the change", change->at, first);
}

static void step_holds(world *w, const cJSON *from) {
    doorman_held held;
    const story_call *call = call_named(w, text_of(from, "call", ""));
    if (!call) return;
    doorman_permit_client_read_hold(w->permits, call->out.hold, &held);
    match_hold(w, from, &held);
}

static void step_hears_master(world *w, const cJSON *nothing) {
    check_keys(w, nothing, " ");
    doorman__upstream_retry_soon(w->upstreams[0], w->now);
}

static void step_kill_switch(world *w, const cJSON *on) {
    if (w->permits) {
        doorman_permit_client_kill_switch(w->permits, cJSON_IsTrue(on));
        return;
    }
    w->client->kill_switch = cJSON_IsTrue(on);
    doorman__held_lease *held = w->client->upstream.first;
    for (; held; held = held->next) {
        doorman__usage_bypass(doorman__resource_of(held)->usage, DOORMAN__KILL_SWITCH,
                              cJSON_IsTrue(on));
    }
}

static void step_counts(world *w, const cJSON *expected) {
    doorman_permit_client_info info;
    doorman_permit_client_read(w->permits, &info);
    const struct {
        const char *name;
        double value;
    } all[] = {{"granted", (double)info.granted},
               {"refused", (double)info.refused},
               {"refused_locally", (double)info.refused_locally},
               {"prefetch_granted", (double)info.prefetch_granted},
               {"fallback_granted", (double)info.fallback_granted},
               {"fallback_refused", (double)info.fallback_refused},
               {"bypassed", (double)info.bypassed},
               {"timed_out", (double)info.timed_out},
               {"reported", (double)info.reported},
               {"lost", (double)info.lost},
               {"uncharged", info.uncharged},
               {"settled", (double)info.settled},
               {"unsettled", (double)info.unsettled},
               {"messages", (double)info.messages},
               {"failures", (double)info.failures},
               {"pauses", (double)info.pauses},
               {"holds_lost", (double)info.holds_lost},
               {"moved", (double)info.moved},
               {"waiting", (double)info.waiting_count},
               {"holds", (double)info.hold_count}};
    cJSON *seen = cJSON_CreateObject();
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        cJSON_AddNumberToObject(seen, all[i].name, all[i].value);
    }
    match_seen(w, "the counts", seen, expected);
}

static void step_repeats(world *w, const cJSON *from);

/* ---- stories ---- */

/* Before a step that acts, other steps must have seen all that the client has sent. A step that
 * expects something lets time pass until it comes. */
typedef enum step_kind { ACTS, LOOKS, EXPECTS } step_kind;

static const struct step {
    const char *verb;
    void (*run)(world *w, const cJSON *what);
    step_kind kind;
} steps[] = {
    {"sends", step_sends, EXPECTS},
    {"answers", step_answers, ACTS},
    {"breaks", step_breaks, ACTS},
    {"waits", step_waits, ACTS},
    {"opens", step_opens, ACTS},
    {"closes", step_closes, ACTS},
    {"wants", step_wants, ACTS},
    {"tries", step_tries, ACTS},
    {"returns", step_returns, ACTS},
    {"reads", step_reads, LOOKS},
    {"acquires", step_acquires, ACTS},
    {"decides", step_decides, EXPECTS},
    {"releases", step_releases, ACTS},
    {"transfers", step_transfers, ACTS},
    {"seizes", step_seizes, ACTS},
    {"settles", step_settles, ACTS},
    {"reports", step_reports, ACTS},
    {"changes", step_changes, EXPECTS},
    {"holds", step_holds, LOOKS},
    {"kill_switch", step_kill_switch, ACTS},
    {"counts", step_counts, LOOKS},
    {"repeats", step_repeats, ACTS},
    {"hears_master", step_hears_master, ACTS},
};

static void check_all_is_seen(world *w) {
    if (w->read_count < w->sent_count && !w->fault[0]) {
        char *text = cJSON_PrintUnformatted(w->sent[w->read_count].message);
        fail_story(w, "the story does not tell that the client sends %s at %.6f s: %s",
                   w->sent[w->read_count].method, seconds_of(w->sent[w->read_count].at - START),
                   text);
        cJSON_free(text);
    }
}

static void run_step(world *w, const cJSON *step) {
    const cJSON *what = step->child;
    w->step = step;
    if (what && strcmp(what->string, "at") == 0) what = what->next;
    if (!what || cJSON_GetArraySize(step) != 1 + (get(step, "at") != NULL)) {
        fail_story(w, "a step has one verb, and may have \"at\"");
        return;
    }
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        if (strcmp(steps[i].verb, what->string) != 0) continue;
        if (steps[i].kind != EXPECTS) (void)advance_for(w, WAIT_TIME, NULL);
        if (steps[i].kind == ACTS) check_all_is_seen(w);
        if (w->fault[0]) return;
        steps[i].run(w, what);
        collect(w);
        return;
    }
    fail_story(w, "the story has an unknown step: %s", what->string);
}

/* Tries again and again. With ignores_requests, steps need not see what the client sends. */
static void step_repeats(world *w, const cJSON *from) {
    const doorman_time every = duration_of(from, "every"), start = w->now;
    check_keys(w, from, " every times tries ignores_requests ");
    for (int i = 1; i <= number_of(from, "times", 1) && !w->fault[0]; i++) {
        advance(w, start + i * every, WAIT_TIME, NULL);
        if (is_true(from, "ignores_requests")) w->read_count = w->sent_count;
        check_all_is_seen(w);
        step_tries(w, get(from, "tries"));
    }
}

static void check_end(world *w) {
    check_all_is_seen(w);
    for (size_t i = 0; i < w->call_count; i++) {
        const story_call *call = &w->calls[i];
        if (call->decided && !call->seen) {
            fail_story(w, "the story does not tell the decision on %s", call->name);
        }
    }
    if (w->changes_seen < w->change_count) fail_story(w, "the story does not tell a change");
}

/* Runs a story. Returns whether all is as the story says.
 *   fault   out: what is not */
static bool run_story(const cJSON *story, char *fault, size_t bytes) {
    world *w = calloc(1, sizeof *w);
    int number = 0;
    const cJSON *step;
    assert_non_null(w);
    check_keys(w, story, " story why client steps ");
    client_start(w, get(story, "client"));
    cJSON_ArrayForEach(step, get(story, "steps")) {
        if (w->fault[0]) break;
        number++;
        run_step(w, step);
    }
    if (!w->fault[0]) check_end(w);
    if (!number) fail_story(w, "the story has no steps");
    bool good = !w->fault[0];
    snprintf(fault, bytes, "step %d: %s", number, w->fault);
    client_stop(w);
    free(w);
    return good;
}

static cJSON *read_stories(const char *path) {
    FILE *file = fopen(path, "r");
    static char text[1 << 20];
    assert_non_null(file);
    size_t bytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[bytes] = 0;
    cJSON *all = cJSON_Parse(text);
    if (!all) fail_msg("%s is not JSON near: %.60s", path, cJSON_GetErrorPtr());
    return all;
}

typedef struct story_totals {
    int count, failed;
} story_totals;

/* STORIES=FOLDER runs other stories. */
static const char *stories_folder(void) {
    const char *folder = getenv("STORIES");
    return folder ? folder : "clients/stories";
}

static void run_stories(const char *name, story_totals *totals) {
    char path[300], fault[1100];
    const cJSON *story;
    snprintf(path, sizeof path, "%s/%s", stories_folder(), name);
    cJSON *all = read_stories(path);
    cJSON_ArrayForEach(story, get(all, "stories")) {
        totals->count++;
        if (run_story(story, fault, sizeof fault)) continue;
        print_error("%s: %s: %s\n", path, text_of(story, "story", "?"), fault);
        totals->failed++;
    }
    cJSON_Delete(all);
}

TEST(the_clients_of_the_library_behave_as_the_stories_say) {
    story_totals all = {.count = 0};
    DIR *folder = opendir(stories_folder());
    assert_non_null(folder);
    for (const struct dirent *entry; (entry = readdir(folder));) {
        size_t bytes = strlen(entry->d_name);
        if (bytes < 5 || strcmp(entry->d_name + bytes - 5, ".json") != 0) continue;
        run_stories(entry->d_name, &all);
    }
    closedir(folder);
    print_message("%d stories\n", all.count);
    assert_int_equal(all.failed, 0);
    assert_true(all.count >= 20);
}

/* A story with a wrong word must fail: otherwise the stories would promise nothing. */
TEST(a_story_that_is_wrong_fails) {
    static const char *const wrong[] = {
        /* another amount in a request */
        "{'client':{},'steps':[{'opens':{'resource_id':'a','wants':5}},{'sends':{'message':"
        "{'resource':[{'wants':6}]}}}]}",
        /* another time */
        "{'client':{},'steps':[{'opens':{'resource_id':'a','wants':5}},{'sends':{}},{'breaks':{}},"
        "{'at':[1.5,2],'sends':{}}]}",
        /* a request that the story does not tell */
        "{'client':{},'steps':[{'opens':{'resource_id':'a','wants':5}},{'at':1,'waits':{}}]}",
        /* a field that must be absent */
        "{'client':{},'steps':[{'opens':{'resource_id':'a','wants':5}},{'sends':{'message':"
        "{'client_id':null}}}]}",
        /* another capacity */
        "{'client':{},'steps':[{'opens':{'resource_id':'a','wants':5}},{'sends':{}},"
        "{'reads':{'resource_id':'a','capacity':5}}]}",
        /* a decision that does not come */
        "{'client':{'kind':'permits'},'steps':[{'acquires':{'call':'p','item':[{'resource_id':'a'}]"
        "}},{'sends':{}},{'at':0.5,'decides':{'call':'p'}}]}",
        /* a decision that the story does not tell */
        "{'client':{'kind':'permits'},'steps':[{'acquires':{'call':'p','item':[{'resource_id':'a'}]"
        "}},{'sends':{}},{'at':2,'waits':{}}]}",
        /* words that the form does not know */
        "{'client':{},'steps':[{'sings':{}}]}",
        "{'client':{},'steps':[{'waits':{'long':true}}]}",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[1000], fault[1100];
        snprintf(text, sizeof text, "%s", wrong[i]);
        for (char *at = text; *at; at++) *at = *at == '\'' ? '"' : *at;
        cJSON *story = cJSON_Parse(text);
        assert_non_null(story);
        if (run_story(story, fault, sizeof fault)) fail_msg("this story passes: %s", wrong[i]);
        cJSON_Delete(story);
    }
}
