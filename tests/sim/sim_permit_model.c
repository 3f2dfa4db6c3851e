/* What a doorman_permit_client must do: see sim_permit_model.h.
 *
 * The model knows each permit and report from the call that asks for it to its result. Before or
 * after each call of the client, the model does what the client must do in this call. So it knows
 * the permits that must have a result now, the result of each, and its cause. It also knows the
 * content of the next message, and all counts.
 *
 *     P21   a message has all permits or all reports that wait. An ask that has failed is sent
 *           alone. While a message is under way, no other one is sent
 *     P22   while a refusal is valid, and no longer, it answers every permit that asks for the same
 *           or more. None of these permits is sent
 *     P23   failures, redirects, the address of each message, the breaker, and the fallback
 *     P25   with the kill switch or in shadow, a permit is granted at once, and a copy is sent
 *
 * Every permit has exactly one result, and has it within its timeout. A client that stands still
 * gives the results when it runs again.
 *
 * Permits that wait are in the order of asking. A message takes the first ones. Permits that return
 * from a message come before all others again. So the order of asking says what a message has. */
#include "sim_permit_model.h"

#include <math.h>
#include <string.h>

#define SECOND DOORMAN_SECOND
#define REDIRECTS 5 /* one after another */
#define FAILURES 5  /* in a row, until the breaker opens */
#define DOUBLINGS 5
#define DOUBLINGS_ALIVE 2 /* of the pause, if a server has answered that it knows no master */

/* ---- asks */

sim_ask *sim_model_free_ask(sim_model *model) {
    for (size_t i = 0; i < SIM_ASKS; i++) {
        if (model->asks[i].state == SIM_ASK_FREE) return &model->asks[i];
    }
    return NULL;
}

static void leave_message(sim_model *model, sim_ask *ask) {
    if (ask->state == SIM_ASK_SENT) model->message[ask->place] = NULL;
}

static void free_ask(sim_model *model, sim_ask *ask) {
    leave_message(model, ask);
    ask->state = SIM_ASK_FREE;
}

/* Sets the result of an ask. Nobody waits for the result of a report or a copy. */
static void decide(sim_model *model, sim_ask *ask, doorman_decider decider) {
    leave_message(model, ask);
    ask->decider = decider;
    ask->state = ask->is_report || ask->is_copy ? SIM_ASK_FREE : SIM_ASK_DECIDED;
}

static void fall_back(sim_model *model, sim_ask *ask) {
    if (ask->is_report) model->counts.lost++;
    decide(model, ask, DOORMAN_BY_FALLBACK);
}

/* Returns the least that an item accepts. */
static double minimum(const sim_wanted *wanted, size_t index) {
    double least = 0;
    for (size_t i = 0; i < wanted->request.item_count; i++) {
        const doorman_permit_item *item = &wanted->items[i];
        double min = item->has_min ? item->min : item->cost;
        if (wanted->request.equal) least = fmax(least, ceil(min));
        if (!wanted->request.equal && i == index) least = min;
    }
    return least;
}

/* ---- refusals that are still valid (P22) */

static sim_refusal *refusal_of(sim_model *model, const doorman_permit_item *item) {
    size_t place = 0, key = 0;
    while (strcmp(sim_place_names[place], item->resource_id) != 0) place++;
    while (strcmp(sim_key_names[key], item->key) != 0) key++;
    return &model->refusals[place][key];
}

static const sim_refusal *known_refusal(sim_model *model, sim_ask *ask, doorman_time now) {
    const sim_wanted *wanted = &ask->wanted;
    for (size_t i = 0; i < wanted->request.item_count; i++) {
        const sim_refusal *refusal = refusal_of(model, &wanted->items[i]);
        ask->item_index = i;
        if (now < refusal->until && wanted->request.max_wait <= refusal->max_wait &&
            minimum(wanted, i) >= refusal->min) {
            return refusal;
        }
    }
    return NULL;
}

/* Notes a refusal. Its time counts from when the message was sent, so it lasts no longer than its
 * server allows, except for the drift of the client's clock: at most 1 %. */
static void remember(sim_model *model, const sim_ask *ask, const doorman_permit *permit,
                     doorman_time decided_at, doorman_time now) {
    doorman_time until = model->sent_at + permit->valid_for;
    if (ask->wanted.request.item_count != 1 || until <= now) return;
    sim_refusal *refusal = refusal_of(model, &ask->wanted.items[0]);
    *refusal = (sim_refusal){.min = minimum(&ask->wanted, 0), .until = until};
    doorman_time rest = ask->deadline - model->sent_at;
    refusal->max_wait = ask->wanted.request.max_wait < rest ? ask->wanted.request.max_wait : rest;
    refusal->until_global = decided_at + permit->valid_for + permit->valid_for / 90;
    refusal->retry_at = permit->has_retry_after ? now + permit->retry_after : DOORMAN_NEVER;
    refusal->reason = permit->reason;
    refusal->limit = permit->limit;
}

/* ---- asking */

static bool breaker_is_open(const sim_model *model, doorman_time now) {
    if (model->is_pausing) return now < model->pause_end;
    return model->is_requested && model->failures >= FAILURES;
}

static void start(sim_model *model, sim_ask *ask, doorman_time now) {
    const sim_refusal *refusal = ask->is_report ? NULL : known_refusal(model, ask, now);
    ask->serial = ++model->serial;
    ask->state = SIM_ASK_QUEUED;
    if (refusal && refusal->reason != DOORMAN_REASON_UNMATCHED) {
        ask->refusal = *refusal;
        model->counts.refused_locally++;
        if (ask->is_copy) model->counts.bypassed++;
        decide(model, ask, DOORMAN_BY_REFUSAL);
    } else if (refusal || breaker_is_open(model, now)) {
        fall_back(model, ask);
    }
}

/* P25: with the kill switch or in shadow, the permit is granted at once, and a copy is sent. */
void sim_model_before_acquire(sim_model *model, sim_ask *ask, doorman_time now) {
    if (!model->kill_switch && !model->policy.shadow) {
        start(model, ask, now);
        return;
    }
    ask->serial = ++model->serial;
    ask->state = SIM_ASK_DECIDED;
    ask->decider = DOORMAN_BY_BYPASS;
    sim_ask *copy = sim_model_free_ask(model);
    *copy = *ask;
    copy->is_copy = true;
    start(model, copy, now);
}

void sim_model_before_report(sim_model *model, sim_ask *ask, doorman_time now) {
    start(model, ask, now);
}

void sim_model_before_kill_switch(sim_model *model, bool on) {
    model->kill_switch = on;
    for (size_t i = 0; i < SIM_ASKS && on; i++) {
        sim_ask *ask = &model->asks[i];
        bool open = ask->state != SIM_ASK_FREE && ask->state != SIM_ASK_DECIDED;
        if (!open || ask->is_report || ask->is_copy) continue;
        decide(model, ask, ask->state == SIM_ASK_WAITING ? DOORMAN_BY_SERVER : DOORMAN_BY_BYPASS);
    }
}

/* ---- messages */

/* Lets all asks of the message wait for another message.
 *   failed   the message has failed, so its asks travel alone. After one failure more than there
 *            are addresses, the fallback decides */
static void return_message(sim_model *model, bool failed) {
    for (size_t i = 0; i < model->message_count; i++) {
        sim_ask *ask = model->message[i];
        if (!ask) continue;
        ask->state = SIM_ASK_QUEUED;
        if (!failed) continue;
        ask->is_alone = true;
        if (++ask->failures > model->process_count) fall_back(model, ask);
    }
    model->message_count = 0;
    model->is_requested = false;
}

/* Notes that the message has failed.
 *   alive   a server has answered that it knows no master */
static void fail_message(sim_model *model, bool alive, doorman_time now) {
    unsigned most = FAILURES + (alive ? DOUBLINGS_ALIVE : DOUBLINGS);
    model->failures = model->failures < most ? model->failures + 1 : most;
    model->counts.failures++;
    model->redirects = 0;
    model->redirect = SIM_NONE;
    model->process_index = (model->process_index + 1) % model->process_count;
    return_message(model, true);
    if (model->failures < FAILURES) return;
    doorman_time pause = SECOND << (model->failures - FAILURES);
    model->is_pausing = true;
    model->pause_end = now + (pause < 30 * SECOND ? pause : 30 * SECOND);
    model->counts.pauses++;
    for (size_t i = 0; i < SIM_ASKS; i++) {
        if (model->asks[i].state == SIM_ASK_QUEUED) fall_back(model, &model->asks[i]);
    }
}

/* Ends the asks whose time has come. */
static void expire(sim_model *model, doorman_time now) {
    for (size_t i = 0; i < SIM_ASKS; i++) {
        sim_ask *ask = &model->asks[i];
        bool open = ask->state == SIM_ASK_QUEUED || ask->state == SIM_ASK_SENT;
        if (ask->state == SIM_ASK_WAITING && ask->until <= now) {
            decide(model, ask, DOORMAN_BY_SERVER);
        } else if (open && !ask->is_report && ask->deadline <= now) {
            model->counts.timed_out++;
            fall_back(model, ask);
        }
    }
}

void sim_model_before_request(sim_model *model, doorman_time now) {
    expire(model, now);
    if (model->is_requested && now >= model->due) fail_message(model, false, now);
}

/* Returns the ask after `serial` that waits for a message of this kind, or NULL. */
static sim_ask *next_queued(sim_model *model, bool report, uint64_t serial) {
    sim_ask *first = NULL;
    for (size_t i = 0; i < SIM_ASKS; i++) {
        sim_ask *ask = &model->asks[i];
        if (ask->state != SIM_ASK_QUEUED || ask->is_report != report) continue;
        if (ask->serial > serial && (!first || ask->serial < first->serial)) first = ask;
    }
    return first;
}

static bool same_item(const doorman_permit_item *a, const doorman_permit_item *b) {
    return strcmp(a->resource_id, b->resource_id) == 0 && strcmp(a->key, b->key) == 0 &&
           a->cost == b->cost && a->has_min == b->has_min && a->min == b->min;
}

static bool same_permit(const doorman_permit_request *sent, const sim_ask *ask, doorman_time now) {
    const doorman_permit_request *wanted = &ask->wanted.request;
    doorman_time rest = ask->deadline - now;
    doorman_time max_wait = wanted->max_wait < rest ? wanted->max_wait : rest;
    bool same = sent->item_count == wanted->item_count && sent->equal == wanted->equal &&
                sent->max_wait == max_wait && !sent->detail;
    for (size_t i = 0; same && i < sent->item_count; i++) {
        same = same_item(&sent->items[i], &ask->wanted.items[i]);
    }
    return same;
}

static bool same_entry(const doorman_permit_entry *sent, const sim_ask *ask) {
    const doorman_permit_item entry = {
        .resource_id = sent->resource_id, .key = sent->key, .cost = sent->cost};
    return same_item(&entry, &ask->wanted.items[0]);
}

/* Puts the asks that the message must have into it. An ask that has failed is alone in its message.
 * Returns the number of asks. */
static size_t fill_message(sim_model *model, bool reports) {
    sim_ask *ask = next_queued(model, reports, 0);
    bool alone = ask->is_alone;
    model->message_count = 0;
    while (ask && (!ask->is_alone || !model->message_count)) {
        ask->state = SIM_ASK_SENT;
        ask->place = model->message_count;
        model->message[model->message_count++] = ask;
        ask = alone ? NULL : next_queued(model, reports, ask->serial);
    }
    return model->message_count;
}

/* Returns when the client gives a message up: when its last caller has no time left, but after at
 * least 0.1 s, and at most the request timeout. A message of reports has the request timeout,
 * because nobody waits for reports. */
static doorman_time message_due(const sim_model *model, bool reports, doorman_time now) {
    doorman_time last = reports ? model->request_timeout : SECOND / 10;
    for (size_t i = 0; i < model->message_count && !reports; i++) {
        doorman_time rest = model->message[i]->deadline - now;
        if (rest > last) last = rest;
    }
    return now + (last < model->request_timeout ? last : model->request_timeout);
}

static void check_sent(sim_model *model, const doorman_request *request, bool reports,
                       doorman_time now) {
    size_t count = reports ? request->entry_count : request->permit_count;
    bool same = count == fill_message(model, reports);
    for (size_t i = 0; same && i < count; i++) {
        same = reports ? same_entry(&request->entries[i], model->message[i])
                       : same_permit(&request->permits[i], model->message[i], now);
    }
    if (!same) {
        sim_fail(model->world, "%s sends %zu asks, which are not the %zu that wait first",
                 model->name, count, model->message_count);
    }
}

/* Checks that the client has made the request that the model expects.
 *   request   NULL: the client has made none */
void sim_model_after_request(sim_model *model, const doorman_request *request, size_t process,
                             doorman_time now) {
    bool permits_wait = next_queued(model, false, 0), reports_wait = next_queued(model, true, 0);
    bool must = (permits_wait || reports_wait) && !model->is_requested &&
                !(model->is_pausing && now < model->pause_end);
    if (must != (request != NULL)) {
        sim_fail(model->world, "%s sends %s message", model->name, must ? "no" : "a needless");
    }
    if (!must || !request) return;
    bool reports = !permits_wait || (reports_wait && model->method == DOORMAN_ACQUIRE);
    size_t expected =
        model->redirect == SIM_NONE ? model->processes[model->process_index] : model->redirect;
    if (reports != (request->method == DOORMAN_REPORT) || process != expected) {
        sim_fail(model->world, "%s sends another kind of message, or to another address",
                 model->name);
        return;
    }
    check_sent(model, request, reports, now);
    model->method = request->method;
    model->is_requested = true;
    model->is_pausing = false;
    model->sent_at = now;
    model->due = message_due(model, reports, now);
    model->counts.messages++;
}

/* ---- responses */

static void answer(sim_model *model, sim_ask *ask, const doorman_permit *permit,
                   doorman_time decided_at, doorman_time now) {
    if (!permit->granted) remember(model, ask, permit, decided_at, now);
    if (!permit->granted && permit->reason == DOORMAN_REASON_UNMATCHED) {
        fall_back(model, ask);
        return;
    }
    (*(permit->granted ? &model->counts.granted : &model->counts.refused))++;
    if (!permit->granted && ask->is_copy) model->counts.bypassed++;
    ask->permit = *permit;
    for (size_t i = 0; permit->granted && i < permit->item_count; i++) {
        ask->grants[i] = permit->items[i];
    }
    doorman_time ready = now + (permit->granted ? permit->wait : 0);
    ask->until = ready < ask->deadline ? ready : ask->deadline;
    ask->beyond = ready - ask->until;
    if (ask->until <= now || ask->is_copy) {
        decide(model, ask, DOORMAN_BY_SERVER);
    } else {
        leave_message(model, ask);
        ask->state = SIM_ASK_WAITING;
    }
}

static void answer_all(sim_model *model, const sim_reply *reply, doorman_time now) {
    model->failures = model->redirects = 0;
    model->is_requested = false;
    for (size_t i = 0; i < model->message_count; i++) {
        sim_ask *ask = model->message[i];
        if (ask && ask->is_report) {
            model->counts.reported++;
            free_ask(model, ask);
        } else if (ask) {
            answer(model, ask, &reply->permits[i], reply->decided_at, now);
        }
    }
    model->message_count = 0;
}

doorman_status sim_model_before_response(sim_model *model, bool is_stale, const sim_reply *reply,
                                         doorman_time now) {
    if (is_stale || !model->is_requested) return DOORMAN_STALE;
    bool redirected =
        !reply->is_master && reply->master != SIM_NONE && model->redirects < REDIRECTS;
    if (redirected) {
        model->redirects++;
        model->redirect = reply->master;
        return_message(model, false);
    } else if (!reply->is_master) {
        fail_message(model, true, now);
    } else {
        answer_all(model, reply, now);
    }
    return DOORMAN_OK;
}

void sim_model_before_failed(sim_model *model, doorman_time now) {
    fail_message(model, false, now);
}

void sim_model_before_next(sim_model *model, doorman_time now) { expire(model, now); }

/* ---- decisions */

static bool same_limit(const doorman_acquired *acquired, const char *limit) {
    return strcmp(acquired->limit, limit ? limit : "") == 0;
}

/* Compares a grant with the grant of the server. It must name the limit with the fewest units left
 * of all items. */
static bool is_grant_of_server(const sim_ask *ask, const doorman_acquired *acquired) {
    const doorman_permit_grant none = {.granted = 0}, *least = NULL;
    bool same = acquired->granted && acquired->warning == ask->permit.warning;
    for (size_t i = 0; i < ask->permit.item_count; i++) {
        const doorman_permit_grant *grant = &ask->grants[i];
        same = same && acquired->units[i] == grant->granted;
        if (grant->limit && (!least || grant->remaining < least->remaining)) least = grant;
    }
    if (!least) least = &none;
    return same && same_limit(acquired, least->limit) && acquired->wait == ask->beyond &&
           acquired->remaining == least->remaining && acquired->reset_after == least->reset_after;
}

static bool is_refusal_of_server(const sim_ask *ask, const doorman_acquired *acquired) {
    const doorman_permit *permit = &ask->permit;
    return !acquired->granted && acquired->reason == permit->reason &&
           acquired->item_index == permit->item_index && same_limit(acquired, permit->limit) &&
           acquired->has_retry_after == permit->has_retry_after &&
           (!permit->has_retry_after || acquired->retry_after == permit->retry_after);
}

static bool is_known_refusal(const sim_model *model, const sim_ask *ask,
                             const doorman_acquired *acquired, doorman_time now) {
    const sim_refusal *refusal = &ask->refusal;
    bool waits = refusal->retry_at != DOORMAN_NEVER;
    doorman_time rest = refusal->retry_at > now ? refusal->retry_at - now : 0;
    if (model->world->now > refusal->until_global) return false;
    return !acquired->granted && acquired->reason == refusal->reason &&
           acquired->item_index == ask->item_index && same_limit(acquired, refusal->limit) &&
           acquired->has_retry_after == waits && (!waits || acquired->retry_after == rest);
}

static bool is_granted(const sim_ask *ask, const doorman_acquired *acquired, bool in_full) {
    bool same = acquired->granted && acquired->wait == 0;
    for (size_t i = 0; same && i < ask->wanted.request.item_count; i++) {
        double units = in_full ? ask->wanted.items[i].cost : minimum(&ask->wanted, i);
        same = acquired->units[i] == units;
    }
    return same;
}

/* Compares a result with the local limiters: one bucket for each resource and key. If the bucket of
 * an item refuses, the units of the items before this item stay taken. */
static bool is_local(sim_model *model, const sim_ask *ask, const doorman_acquired *acquired,
                     doorman_time now) {
    for (size_t i = 0; i < ask->wanted.request.item_count; i++) {
        const doorman_permit_item *item = &ask->wanted.items[i];
        const sim_refusal *refusal = refusal_of(model, item);
        sim_local_limit *local = &model->locals[0][0] + (refusal - &model->refusals[0][0]);
        double gained = model->local_rate * ((double)(now - local->at) / 1e9);
        double min = minimum(&ask->wanted, i), error = 1e-6;
        local->level = fmin(model->local_size, local->level + gained);
        local->at = now;
        bool refused = !acquired->granted && acquired->item_index == i;
        if (refused) return local->level - error < min;
        if (local->level + error < min) return false;
        local->level = fmax(0, local->level - min);
    }
    return acquired->granted && is_granted(ask, acquired, false);
}

static bool is_fallback(sim_model *model, const sim_ask *ask, const doorman_acquired *acquired,
                        doorman_time now) {
    bool granted = acquired->granted, right = false;
    (*(granted ? &model->counts.fallback_granted : &model->counts.fallback_refused))++;
    switch (model->policy.fallback) {
    case DOORMAN_FAIL_OPEN: right = is_granted(ask, acquired, false); break;
    case DOORMAN_FAIL_CLOSED: right = !granted; break;
    case DOORMAN_FAIL_LOCAL: right = is_local(model, ask, acquired, now); break;
    }
    return right && acquired->reason == DOORMAN_NO_REASON && same_limit(acquired, NULL);
}

static bool is_right(sim_model *model, const sim_ask *ask, const doorman_acquired *acquired,
                     doorman_time now) {
    switch (ask->decider) {
    case DOORMAN_BY_SERVER:
        return ask->permit.granted ? is_grant_of_server(ask, acquired)
                                   : is_refusal_of_server(ask, acquired);
    case DOORMAN_BY_REFUSAL: return is_known_refusal(model, ask, acquired, now);
    case DOORMAN_BY_FALLBACK: return is_fallback(model, ask, acquired, now);
    case DOORMAN_BY_BYPASS: return is_granted(ask, acquired, true);
    case DOORMAN_BY_CALLER:
    case DOORMAN_BY_PREFETCH: return false;
    }
    return false;
}

void sim_model_decision(sim_model *model, uint64_t serial, const doorman_acquired *acquired,
                        doorman_time now) {
    static const char *const deciders[] = {"a server", "a refusal", "the fallback", "a bypass",
                                           "the caller"};
    sim_ask *ask = model->asks;
    while (ask < model->asks + SIM_ASKS &&
           (ask->state != SIM_ASK_DECIDED || ask->serial != serial)) {
        ask++;
    }
    if (ask == model->asks + SIM_ASKS) {
        sim_fail(model->world, "%s decides on a permit too early, or a second time: by %s",
                 model->name, deciders[acquired->decided_by]);
        return;
    }
    bool late = now > ask->deadline + 2 && now != model->resumed_at;
    if (late) sim_fail(model->world, "%s decides after the timeout", model->name);
    if (acquired->decided_by != ask->decider) {
        sim_fail(model->world, "%s lets %s decide, not %s", model->name,
                 deciders[acquired->decided_by], deciders[ask->decider]);
    } else if (!is_right(model, ask, acquired, now)) {
        sim_fail(model->world, "%s returns a wrong result by %s", model->name,
                 deciders[ask->decider]);
    }
    ask->state = SIM_ASK_FREE;
}

void sim_model_check(sim_model *model, const doorman_permit_client_info *info, doorman_time now) {
    doorman_permit_client_info counts = model->counts;
    for (size_t i = 0; i < SIM_ASKS; i++) {
        if (model->asks[i].state == SIM_ASK_DECIDED) {
            sim_fail(model->world, "%s does not decide on a permit", model->name);
        }
        counts.waiting_count += model->asks[i].state != SIM_ASK_FREE;
    }
    counts.is_pausing = breaker_is_open(model, now);
    bool decisions = info->granted == counts.granted && info->refused == counts.refused &&
                     info->refused_locally == counts.refused_locally &&
                     info->fallback_granted == counts.fallback_granted &&
                     info->fallback_refused == counts.fallback_refused &&
                     info->bypassed == counts.bypassed && info->timed_out == counts.timed_out;
    bool others = info->waiting_count == counts.waiting_count &&
                  info->reported == counts.reported && info->lost == counts.lost &&
                  info->messages == counts.messages && info->failures == counts.failures &&
                  info->pauses == counts.pauses && info->is_pausing == counts.is_pausing;
    if (!decisions) sim_fail(model->world, "%s has wrong counts of decisions", model->name);
    if (!others) sim_fail(model->world, "%s has wrong counts of messages", model->name);
}
