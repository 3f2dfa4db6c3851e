/* Holds in a simulated system: processes, messages, configurations, and permits that wait.
 *
 * One node has some processes, which elect a master. Clients hold units of limits of kind
 * CONCURRENCY (sim_hold_client.c). They acquire, wait, renew, release, cancel, transfer and seize.
 * Messages are lost, copied and late. Processes and clients crash or stand still. Clocks run at
 * different rates. Configurations change the limits and the times to live. An account
 * (sim_hold_account.c) checks that the units in use never exceed a limit. */
#include "sim_holds.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define SECOND DOORMAN_SECOND
#define UPDATES_MAX 10 /* updates at one time; there are far fewer holds than these can end */

const char *const sim_hold_places[SIM_HOLD_PLACES] = {"h/a", "h/b", "h/c"};
const char *const sim_hold_keys[SIM_HOLD_KEYS] = {"", "k", "l"};
static const char *const limit_names[SIM_HOLD_LIMITS] = {"l0", "l1", "l2", "l3"};

static sim_holds the_holds; /* one at a time */

doorman_time sim_hold_local(const sim_world *world, size_t process) {
    return sim_local(&world->processes[process].machine.clock, world->now);
}

/* ---- the network */

static void on_call(sim_world *world, const sim_event *event);
static void on_reply(sim_world *world, const sim_event *event);

/* Sends a message or a response.
 *   call    the message, or the message that is answered
 *   index   what the handler gets */
static void transmit(sim_world *world, sim_handler handler, const sim_hold_call *call,
                     size_t index) {
    const sim_event event = {.handler = handler, .actor = call->client, .target = index};
    bool passes = sim_reaches(world, call->client, call->process);
    sim_transmit(world, &world->holds->random, event, passes);
}

size_t sim_holds_add_call(sim_world *world, const sim_hold_call *call) {
    sim_holds *holds = world->holds;
    if (holds->call_count == holds->call_capacity) {
        holds->call_capacity = holds->call_capacity ? 2 * holds->call_capacity : 256;
        holds->calls = realloc(holds->calls, holds->call_capacity * sizeof *holds->calls);
        if (!holds->calls) abort();
    }
    holds->calls[holds->call_count] = *call;
    return holds->call_count++;
}

void sim_holds_send(sim_world *world, const sim_hold_call *calls, size_t count) {
    size_t first = world->holds->call_count;
    for (size_t i = 0; i < count; i++) {
        const sim_hold_call *call = &calls[i];
        (void)sim_holds_add_call(world, call);
        sim_log(world, "%s, job %zu: %s, request %llu, id %llu", world->clients[call->client].id,
                call->job, doorman_method_name(call->method, false),
                (unsigned long long)call->request_id, (unsigned long long)call->id);
    }
    transmit(world, on_call, calls, first);
}

/* Adds a response to one part of a message, and notes it in the account. */
static size_t add_reply(sim_world *world, size_t process, const sim_hold_reply *reply) {
    sim_holds *holds = world->holds;
    const sim_hold_call *call = &holds->calls[reply->call];
    if (holds->reply_count == holds->reply_capacity) {
        holds->reply_capacity = holds->reply_capacity ? 2 * holds->reply_capacity : 256;
        holds->replies = realloc(holds->replies, holds->reply_capacity * sizeof *holds->replies);
        if (!holds->replies) abort();
    }
    holds->replies[holds->reply_count] = *reply;
    sim_hash(world, (uint64_t)reply->expires_in ^ reply->id);
    sim_hash_amount(world, reply->granted ? reply->amounts[0] : 0);
    sim_log(world, "%s answers %s, job %zu: %s %s, id %llu, %g units",
            world->processes[process].address, world->clients[call->client].id, call->job,
            doorman_method_name(call->method, false),
            !reply->is_master ? "not master"
            : reply->gone     ? "gone"
            : reply->granted  ? "done"
                              : doorman_reason_name(reply->reason),
            (unsigned long long)reply->id, reply->amounts[0]);
    if (reply->is_master) sim_hold_account_reply(world, process, reply);
    return holds->reply_count++;
}

static void send_reply(sim_world *world, size_t process, const sim_hold_reply *reply) {
    size_t index = add_reply(world, process, reply);
    transmit(world, on_reply, &world->holds->calls[reply->call], index);
}

static void on_reply(sim_world *world, const sim_event *event) {
    const sim_hold_reply *reply = &world->holds->replies[event->target];
    const sim_hold_call *call = &world->holds->calls[reply->call];
    const sim_machine *machine = &world->clients[call->client].machine;
    if (machine->incarnation != call->incarnation) return;
    if (machine->paused_until) {
        bool lost = sim_fault_occurs(world, SIM_STALL, 0.5);
        if (!lost) sim_schedule(world, machine->paused_until, *event);
        return;
    }
    if (call->from_agent) {
        sim_agent_reply(world, reply);
    } else {
        sim_holder_reply(world, reply);
    }
}

/* ---- decisions */

static sim_hold_reply permit_reply(size_t call, const doorman_permit *permit) {
    sim_hold_reply reply = {.call = call, .is_master = true, .granted = permit->granted};
    reply.reason = permit->reason;
    reply.id = permit->granted ? permit->hold_id : 0;
    reply.waited = permit->waited;
    reply.expires_in = permit->expires_in;
    reply.item_count = permit->granted ? permit->item_count : 0;
    for (size_t i = 0; i < reply.item_count; i++) reply.amounts[i] = permit->items[i].granted;
    return reply;
}

/* P7: while a permit waits, no later permit with the same resource and key is granted, unless it
 * has a higher priority. */
static void check_order(sim_world *world, size_t process, const sim_hold_wait *granted) {
    const sim_hold_process *own = &world->holds->processes[process];
    const sim_hold_call *call = &world->holds->calls[granted->call];
    if (call->item_count != 1) return;
    for (size_t i = 0; i < own->wait_count; i++) {
        const sim_hold_wait *wait = &own->waits[i];
        const sim_hold_call *other = &world->holds->calls[wait->call];
        bool same = other->item_count == 1 && other->items[0].place == call->items[0].place &&
                    other->items[0].key == call->items[0].key;
        if (!same || other->priority < call->priority || wait->arrival > granted->arrival) continue;
        sim_fail(world, "%s lets c%zu, job %zu, overtake c%zu, job %zu",
                 world->processes[process].address, call->client, call->job, other->client,
                 other->job);
    }
}

static void remove_wait(sim_hold_process *own, size_t index) {
    own->waits[index] = own->waits[--own->wait_count];
}

/* Takes the decisions on permits that have waited. All decided permits are removed before
 * check_order compares the granted ones with the permits that still wait. */
static void take_decisions(sim_world *world, size_t process) {
    sim_hold_process *own = &world->holds->processes[process];
    doorman_permits *permits = doorman_server_permits(world->processes[process].server);
    static sim_hold_wait granted[SIM_HOLD_WAITS];
    size_t granted_count = 0;
    doorman_permit permit;
    uint64_t ticket = 0;
    while (permits && doorman_permits_next_decision(permits, &ticket, &permit)) {
        size_t i = 0;
        while (i < own->wait_count && own->waits[i].ticket != ticket) i++;
        if (i == own->wait_count) {
            sim_fail(world, "%s decides on a permit that does not wait",
                     world->processes[process].address);
            return;
        }
        sim_hold_wait wait = own->waits[i];
        remove_wait(own, i);
        if (permit.granted) granted[granted_count++] = wait;
        own->shared += permit.reason == DOORMAN_REASON_SHARED;
        sim_hold_reply reply = permit_reply(wait.call, &permit);
        send_reply(world, process, &reply);
    }
    for (size_t i = 0; i < granted_count; i++) check_order(world, process, &granted[i]);
}

doorman_time sim_hold_longest_wait(const sim_world *world, const sim_hold_call *call) {
    doorman_time longest = 0;
    for (size_t i = 0; i <= world->version; i++) {
        for (size_t j = 0; j < world->holds->limit_count; j++) {
            doorman_time most = world->holds->versions[i].figures[j].max_wait;
            if (world->holds->versions[i].present[j] && most > longest) longest = most;
        }
    }
    return call->max_wait < longest ? call->max_wait : longest;
}

/* Notes that a permit waits. A repeated request keeps its first position in the queue. */
static void add_wait(sim_world *world, size_t process, size_t index, uint64_t ticket) {
    sim_holds *holds = world->holds;
    sim_hold_process *own = &holds->processes[process];
    const sim_hold_call *call = &holds->calls[index];
    if (own->wait_count == SIM_HOLD_WAITS) {
        sim_fail(world, "too many permits wait");
        return;
    }
    sim_hold_wait *wait = &own->waits[own->wait_count];
    *wait = (sim_hold_wait){.ticket = ticket, .call = index, .arrival = ++holds->arrivals};
    wait->asked_at = sim_hold_local(world, process);
    for (size_t i = 0; i < own->wait_count; i++) {
        const sim_hold_call *other = &holds->calls[own->waits[i].call];
        bool same = other->client == call->client && other->request_id == call->request_id;
        if (same) wait->arrival = own->waits[i].arrival;
    }
    own->wait_count++;
}

/* ---- masterships */

/* Ends a mastership. All permits that wait are answered "not master". */
static void lose_mastership(sim_world *world, size_t process) {
    sim_hold_process *own = &world->holds->processes[process];
    for (size_t i = 0; i < own->wait_count; i++) {
        sim_hold_reply reply = {.call = own->waits[i].call, .master = SIM_NONE};
        send_reply(world, process, &reply);
    }
    own->wait_count = 0;
    own->mastership = 0;
}

void sim_holds_died(sim_world *world, size_t process) {
    if (!world->holds) return;
    world->holds->processes[process].wait_count = 0;
    world->holds->processes[process].mastership = 0;
}

void sim_holds_elected(sim_world *world, size_t process, doorman_time until) {
    if (!world->holds) return;
    sim_hold_process *own = &world->holds->processes[process];
    doorman_time local = sim_hold_local(world, process);
    if (local >= until || local >= own->until) lose_mastership(world, process);
    own->until = until;
    if (local >= until || own->mastership) return;
    own->mastership = ++world->holds->masterships;
}

/* D8: notes the mastership whose holds are handed over, and when. */
void sim_holds_hand_over(sim_world *world, size_t process, sim_handover *handover) {
    if (!world->holds) return;
    take_decisions(world, process);
    handover->holds_mastership = world->holds->processes[process].mastership;
    handover->handed_at = sim_hold_local(world, process);
}

void sim_holds_take_over(sim_world *world, size_t process, const sim_handover *handover) {
    if (!world->holds) return;
    sim_hold_process *own = &world->holds->processes[process];
    own->mastership = handover->holds_mastership;
    sim_hold_account_take_over(world, process, own->mastership, handover->handed_at);
}

static void plan_tick(sim_world *world, size_t process);

/* Updates the permits, and takes their decisions. */
static void step(sim_world *world, size_t process) {
    const sim_process *server = &world->processes[process];
    doorman_permits *permits = server->server ? doorman_server_permits(server->server) : NULL;
    if (!permits) {
        if (server->server) lose_mastership(world, process);
        return;
    }
    doorman_time now = sim_hold_local(world, process);
    take_decisions(world, process);
    for (int i = 0; i < UPDATES_MAX; i++) {
        doorman_permits_update(permits, now);
        take_decisions(world, process);
        sim_hold_account_shared(world, process, 0, 0);
        if (doorman_permits_due(permits) > now) break;
        if (i == UPDATES_MAX - 1) sim_fail(world, "the permits are always due at once");
    }
    sim_hold_account_waits(world, process);
}

static void on_tick(sim_world *world, const sim_event *event) {
    const sim_process *process = &world->processes[event->actor];
    if (world->holds->processes[event->actor].ticks != event->incarnation) return;
    if (!process->server) return;
    if (!process->machine.paused_until) step(world, event->actor);
    plan_tick(world, event->actor);
}

static void plan_tick(sim_world *world, size_t process) {
    const sim_process *server = &world->processes[process];
    const doorman_permits *permits = doorman_server_permits(server->server);
    doorman_time next = world->now + SECOND;
    doorman_time due = permits ? doorman_permits_due(permits) : DOORMAN_NEVER;
    due = due < DOORMAN_NEVER ? sim_global(&server->machine.clock, due) : DOORMAN_NEVER;
    if (due < next && !server->machine.paused_until) next = due;
    if (next < world->now + SECOND / 1000) next = world->now + SECOND / 1000;
    sim_event event = {.handler = on_tick, .actor = process};
    event.incarnation = ++world->holds->processes[process].ticks;
    sim_schedule(world, next, event);
}

void sim_holds_started(sim_world *world, size_t process) {
    if (!world->holds) return;
    doorman_server_set_epoch(world->processes[process].server, world->now,
                             sim_hold_local(world, process));
    plan_tick(world, process);
}

void sim_holds_configured(sim_world *world, size_t process) {
    if (!world->holds) return;
    step(world, process);
    plan_tick(world, process);
}

/* A process starts with the first configuration, and then loads the others, so that it learns for
 * as long as holds of any of them may last. An operator sets learning_mode_duration instead. */
void sim_holds_fill_options(sim_world *world, size_t process, doorman_server_options *options) {
    if (!world->holds) return;
    options->config = world->versions[0].config;
    world->processes[process].version = 0;
}

/* ---- messages at a process */

static doorman_status acquire(sim_world *world, size_t process, size_t index,
                              doorman_response *response, doorman_error *error) {
    const sim_hold_call *calls = &world->holds->calls[index];
    doorman_permit_item items[SIM_HOLD_BATCH][SIM_HOLD_ITEMS];
    doorman_permit_request permits[SIM_HOLD_BATCH];
    for (size_t i = 0; i < calls->count; i++) {
        const sim_hold_call *call = &calls[i];
        for (size_t j = 0; j < call->item_count; j++) {
            const sim_hold_item *item = &call->items[j];
            items[i][j] = (doorman_permit_item){.resource_id = sim_hold_places[item->place],
                                                .key = sim_hold_keys[item->key],
                                                .cost = item->cost,
                                                .has_min = true,
                                                .min = item->min};
        }
        permits[i] = (doorman_permit_request){.items = items[i],
                                              .item_count = call->item_count,
                                              .max_wait = call->max_wait,
                                              .equal = call->equal,
                                              .detail = call->detail,
                                              .request_id = call->request_id,
                                              .time_to_live = call->time_to_live,
                                              .has_priority = true,
                                              .priority = call->priority,
                                              .share = call->share};
    }
    doorman_request request = {.method = DOORMAN_ACQUIRE,
                               .holder_id = world->clients[calls->client].id,
                               .permits = permits,
                               .permit_count = calls->count,
                               .may_wait = calls->count == 1,
                               .connection = calls->connected ? calls->client + 1 : 0};
    return doorman_server_handle(world->processes[process].server, &request, response, error,
                                 sim_hold_local(world, process));
}

/* Returns the request for a part of a message whose method is not ACQUIRE. */
static doorman_hold_request hold_entry(const sim_hold_call *call, doorman_hold_item *items) {
    doorman_hold_request entry = {.id = call->id, .request_id = call->request_id};
    for (size_t i = 0; i < call->item_count; i++) {
        items[i] = (doorman_hold_item){sim_hold_places[call->items[i].place],
                                       sim_hold_keys[call->items[i].key], call->amounts[i]};
    }
    bool renews = call->method == DOORMAN_RENEW, seizes = call->method == DOORMAN_SEIZE;
    entry.items = renews ? items : NULL;
    entry.item_count = renews ? call->item_count : 0;
    entry.amounts = renews || seizes ? NULL : call->amounts;
    entry.amount_count = renews || seizes ? 0 : call->item_count;
    if (call->method != DOORMAN_RELEASE) entry.time_to_live = call->time_to_live;
    return entry;
}

static doorman_status other_method(sim_world *world, size_t process, size_t index,
                                   doorman_response *response, doorman_error *error) {
    const sim_hold_call *calls = &world->holds->calls[index];
    doorman_hold_item items[SIM_HOLD_BATCH][SIM_HOLD_ITEMS];
    doorman_hold_request entries[SIM_HOLD_BATCH];
    for (size_t i = 0; i < calls->count; i++) entries[i] = hold_entry(&calls[i], items[i]);
    doorman_request request = {.method = calls->method,
                               .holder_id = world->clients[calls->client].id,
                               .holds = entries,
                               .hold_count = calls->count};
    return doorman_server_handle(world->processes[process].server, &request, response, error,
                                 sim_hold_local(world, process));
}

static size_t process_named(const sim_world *world, const char *address) {
    for (size_t i = 0; address && i < world->process_count; i++) {
        if (strcmp(world->processes[i].address, address) == 0) return i;
    }
    return SIM_NONE;
}

static const char *known_text(const char *const *texts, size_t count, const char *text) {
    for (size_t i = 0; i < count; i++) {
        if (strcmp(texts[i], text) == 0) return texts[i];
    }
    return NULL;
}

/* Returns the answer to a part of a message whose method is not ACQUIRE. */
static sim_hold_reply hold_reply(size_t index, const doorman_hold *hold) {
    sim_hold_reply reply = {.call = index, .is_master = true, .gone = hold->gone};
    reply.granted = !hold->gone && !hold->reason;
    reply.reason = hold->reason;
    reply.id = hold->id;
    reply.expires_in = hold->expires_in;
    reply.item_count = hold->item_count;
    for (size_t i = 0; i < hold->item_count; i++) {
        const doorman_hold_item *item = &hold->items[i];
        reply.amounts[i] = item->amount;
        reply.items[i] =
            (doorman_hold_item){known_text(sim_hold_places, SIM_HOLD_PLACES, item->resource_id),
                                known_text(sim_hold_keys, SIM_HOLD_KEYS, item->key), item->amount};
    }
    return reply;
}

/* Answers a message. A permit that waits is in a message of its own. */
static void answer(sim_world *world, size_t process, size_t index,
                   const doorman_response *response) {
    const size_t count = world->holds->calls[index].count;
    const bool acquires = response->method == DOORMAN_ACQUIRE;
    bool granted[SIM_HOLD_BATCH];
    if (acquires && response->permits[0].pending) {
        add_wait(world, process, index, response->permits[0].ticket);
        take_decisions(world, process);
        return;
    }
    /* a permit that waited may already have what a part of the message has released */
    if (!acquires) take_decisions(world, process);
    size_t first = world->holds->reply_count;
    for (size_t i = 0; i < count; i++) {
        const doorman_permit *permit = acquires ? &response->permits[i] : NULL;
        sim_hold_reply reply =
            acquires ? permit_reply(index + i, permit) : hold_reply(index + i, &response->holds[i]);
        granted[i] = acquires && permit->granted && permit->items[0].limit;
        (void)add_reply(world, process, &reply);
    }
    transmit(world, on_reply, &world->holds->calls[index], first);
    take_decisions(world, process);
    for (size_t i = 0; i < count; i++) {
        sim_hold_wait now = {.call = index + i, .arrival = UINT64_MAX};
        if (granted[i]) check_order(world, process, &now); /* a repeat names no limit */
    }
    sim_hold_account_shared(world, process, first, count);
}

static void handle_call(sim_world *world, size_t process, size_t index) {
    const doorman_method method = world->holds->calls[index].method;
    doorman_response response;
    doorman_error error = {0};
    take_decisions(world, process);
    double before = sim_hold_account_excess(world, process, index);
    doorman_status status = method == DOORMAN_ACQUIRE
                                ? acquire(world, process, index, &response, &error)
                                : other_method(world, process, index, &response, &error);
    if (status != DOORMAN_OK) {
        sim_fail(world, "%s refuses a correct message: %s", world->processes[process].address,
                 error.text);
        return;
    }
    if (!response.is_master) {
        sim_hold_reply reply = {.call = index};
        reply.master = process_named(world, response.master_address);
        lose_mastership(world, process);
        send_reply(world, process, &reply);
        return;
    }
    answer(world, process, index, &response);
    /* a limit is rounded up to 1/4096 of a unit */
    if (sim_hold_account_excess(world, process, index) > before + 1.0 / 4096) {
        sim_fail(world, "%s counts more units than a limit has", world->processes[process].address);
    }
    plan_tick(world, process);
}

static void on_call(sim_world *world, const sim_event *event) {
    size_t process = world->holds->calls[event->target].process;
    const sim_process *receiver = &world->processes[process];
    if (receiver->machine.paused_until) {
        bool lost = sim_fault_occurs(world, SIM_FREEZE, 0.5);
        if (!lost) sim_schedule(world, receiver->machine.paused_until, *event);
    } else if (receiver->server) {
        handle_call(world, process, event->target);
    }
}

/* ---- configurations */

static void draw_figures(const sim_holds *holds, const sim_hold_limit *limit,
                         doorman_figures *figures, uint64_t *random) {
    static const double lives[] = {1, 3, 10, 15};
    if (limit->is_rate) {
        *figures = (doorman_figures){.rate = sim_between(random, 0.5, 5), .size = 6};
        return;
    }
    double most = sim_below(random, 12) ? (double)(2 + sim_below(random, 7)) : 0;
    if (!holds->whole && sim_below(random, 3) == 0) most = sim_between(random, 0, 7);
    *figures = (doorman_figures){.limit = most, .has_max_wait = true};
    figures->time_to_live = (doorman_time)(lives[sim_below(random, 4)] * 1e9);
    figures->queue = sim_below(random, 4) ? (size_t)sim_below(random, 12) : 0;
    figures->max_wait = sim_below(random, 4) ? sim_time_between(random, 1, 30 * SECOND) : 0;
}

static void draw_version(sim_holds *holds, sim_hold_version *version,
                         const sim_hold_version *before, uint64_t *random) {
    for (size_t i = 0; i < holds->limit_count; i++) {
        bool keeps = before && sim_below(random, 2);
        draw_figures(holds, &holds->limits[i], &version->figures[i], random);
        version->present[i] = i == 0 || sim_below(random, 8) > 0;
        version->full_at_start[i] = before ? before->full_at_start[i] : sim_below(random, 12) == 0;
        if (holds->limits[i].is_rate) version->full_at_start[i] = false;
        if (keeps) version->figures[i] = before->figures[i];
        if (keeps) version->present[i] = before->present[i];
    }
}

static doorman_config *create_config(const sim_holds *holds, const sim_hold_version *version) {
    doorman_permit_limit limits[SIM_HOLD_LIMITS];
    size_t count = 0;
    for (size_t i = 0; i < holds->limit_count; i++) {
        if (!version->present[i]) continue;
        limits[count++] = (doorman_permit_limit){
            .name = limit_names[i],
            .per = holds->limits[i].per,
            .kind = holds->limits[i].is_rate ? DOORMAN_TOKEN_BUCKET : DOORMAN_CONCURRENCY,
            .figures = version->figures[i],
            .full_at_start = version->full_at_start[i]};
    }
    doorman_template template = {.identifier_glob = "h/*",
                                 .without_capacity = true,
                                 .has_limits = true,
                                 .limits = limits,
                                 .limit_count = count};
    doorman_config_options options = {.templates = &template, .template_count = 1};
    doorman_config *config = NULL;
    doorman_error error = {0};
    if (doorman_config_create(&config, &options, &error) == DOORMAN_OK) return config;
    fprintf(stderr, "configuration: %s\n", error.text);
    abort();
}

static void log_version(sim_world *world, const sim_hold_version *version) {
    sim_log(world, "configuration %zu:", world->version_count - 1);
    for (size_t i = 0; i < world->holds->limit_count; i++) {
        const doorman_figures *figures = &version->figures[i];
        if (!version->present[i]) continue;
        sim_log(world, "  %s, scope %d: limit %g, %g s, queue %zu, max_wait %g s, rate %g%s",
                limit_names[i], (int)world->holds->limits[i].per, figures->limit,
                (double)figures->time_to_live / 1e9, figures->queue,
                (double)figures->max_wait / 1e9, figures->rate,
                version->full_at_start[i] ? ", full at the start" : "");
    }
}

static void add_version(sim_world *world, uint64_t *random) {
    sim_holds *holds = world->holds;
    sim_hold_version *version = &holds->versions[world->version_count];
    draw_version(holds, version, world->version_count ? version - 1 : NULL, random);
    world->versions[world->version_count++].config = create_config(holds, version);
    log_version(world, version);
}

/* Lets all processes that run load a new configuration at once. */
void sim_holds_reload(sim_world *world, uint64_t *random) {
    if (world->version_count == SIM_VERSIONS) return;
    add_version(world, random);
    world->version++;
    for (size_t i = 0; i < world->process_count; i++) {
        if (!world->processes[i].machine.paused_until) sim_load_config(world, i);
    }
}

/* ---- other faults */

void sim_holds_restart_client(sim_world *world, size_t client) {
    world->clients[client].machine.paused_until = 0;
    sim_holder_start(world, client);
}

/* Closes the connection of a client to a process (P7). */
void sim_holds_close(sim_world *world, uint64_t *random) {
    size_t process = sim_pick(random, world->process_count);
    size_t client = sim_pick(random, world->client_count);
    const sim_process *server = &world->processes[process];
    doorman_permits *permits = server->server ? doorman_server_permits(server->server) : NULL;
    sim_hold_process *own = &world->holds->processes[process];
    size_t removed = 0;
    if (!permits || server->machine.paused_until) return;
    take_decisions(world, process);
    size_t count = doorman_permits_cancel(permits, client + 1, sim_hold_local(world, process));
    for (size_t i = own->wait_count; i-- > 0;) {
        const sim_hold_call *call = &world->holds->calls[own->waits[i].call];
        if (call->client != client || !call->connected) continue;
        remove_wait(own, i);
        removed++;
    }
    if (removed != count) {
        sim_fail(world, "%s cancels %zu permits, not %zu", server->address, count, removed);
    }
    take_decisions(world, process);
    plan_tick(world, process);
}

/* ---- one run */

void sim_holds_set_up(sim_world *world) {
    sim_holds *holds = &the_holds, kept = the_holds;
    memset(holds, 0, sizeof *holds);
    holds->calls = kept.calls;
    holds->call_capacity = kept.call_capacity;
    holds->replies = kept.replies;
    holds->reply_capacity = kept.reply_capacity;
    holds->grants = kept.grants;
    holds->grant_capacity = kept.grant_capacity;
    holds->random = world->seed * 31 + 7;
    holds->whole = sim_below(&holds->random, 3) > 0;
    holds->limit_count = 1 + sim_pick(&holds->random, SIM_HOLD_LIMITS);
    for (size_t i = 0; i < holds->limit_count; i++) {
        holds->limits[i].per = (doorman_scope)sim_below(&holds->random, 3);
        holds->limits[i].is_rate = i > 0 && sim_below(&holds->random, 4) == 0;
    }
    world->holds = holds;
    add_version(world, &holds->random);
}

/* P14: when all holds and waits have ended, no counter is left. */
void sim_holds_check_idle(sim_world *world) {
    for (size_t i = 0; i < world->process_count && !world->failure[0]; i++) {
        doorman_permits_info info;
        doorman_permits *permits = doorman_server_permits(world->processes[i].server);
        if (!permits) continue;
        for (int j = 0; j < 3; j++) step(world, i);
        doorman_permits_read(permits, &info);
        if (info.hold_count || info.wait_count || info.counter_count) {
            sim_fail(world, "%s is idle, and has %zu holds, %zu waits and %zu counters",
                     world->processes[i].address, info.hold_count, info.wait_count,
                     info.counter_count);
        }
    }
    for (size_t i = 0; i < world->client_count && !world->failure[0]; i++) {
        sim_agent_check_idle(world, i);
    }
}

void sim_holds_tear_down(sim_world *world) {
    for (size_t i = 0; i < world->client_count; i++) sim_agent_stop(world, i);
    world->holds = NULL;
}
