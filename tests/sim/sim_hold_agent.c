/* Holders of a simulated system that use a doorman_permit_client: see sim_holds.c. The permit
 * client repeats, renews, claims, releases and cancels. The holder obeys the rules for
 * applications: it stops using units before it releases or transfers them. After a change that it
 * did not cause, it uses what it had until the end that it knew before. */
#include "sim_holds.h"

#include <stdlib.h>
#include <string.h>

#define SECOND DOORMAN_SECOND

static doorman_time local_of(const sim_world *world, size_t client) {
    return sim_local(&world->clients[client].machine.clock, world->now);
}

/* ---- the life of a client */

static void create_agent(sim_world *world, size_t client) {
    static const doorman_time timeouts[] = {SECOND / 2, SECOND, 3 * SECOND};
    sim_holder *holder = &world->holds->holders[client];
    uint64_t *random = &world->holds->random;
    const sim_node *node = &world->nodes[world->clients[client].node];
    const char *addresses[SIM_PROCESSES];
    for (size_t i = 0; i < node->process_count; i++) {
        addresses[i] = world->processes[node->first_process + i].address;
    }
    doorman_client_options options = {.client_id = world->clients[client].id,
                                      .addresses = addresses,
                                      .address_count = node->process_count,
                                      .seed = 1 + sim_below(random, 1000000),
                                      .request_timeout = timeouts[sim_below(random, 3)]};
    options.permits.fallback = DOORMAN_FAIL_CLOSED;
    doorman_error error = {0};
    if (doorman_permit_client_create(&holder->agent, &options, &error, local_of(world, client)) !=
        DOORMAN_OK) {
        fprintf(stderr, "permit client: %s\n", error.text);
        abort();
    }
}

void sim_agent_start(sim_world *world, size_t client) {
    sim_holder *holder = &world->holds->holders[client];
    uint64_t *random = &world->holds->random;
    create_agent(world, client);
    holder->lanes[0] = doorman_permit_client_upstream(holder->agent);
    holder->lane_count = 1;
    holder->noted_count = 0;
    for (uint64_t lanes = sim_below(random, SIM_HOLD_LANES); lanes > 0; lanes--) {
        if (doorman_permit_client_add_lane(holder->agent, &holder->lanes[holder->lane_count++]) !=
            DOORMAN_OK) {
            abort();
        }
    }
}

void sim_agent_stop(sim_world *world, size_t client) {
    sim_holder *holder = &world->holds->holders[client];
    doorman_permit_client_destroy(holder->agent);
    holder->agent = NULL;
}

/* ---- what the application knows of its holds */

/* Returns the context of a call about a job. It is even, and the context of a transfer is odd. */
static void *job_context(const sim_holder *holder, const sim_hold_job *job) {
    uintptr_t index = (uintptr_t)(job - holder->jobs);
    return (void *)(((uintptr_t)job->serial * SIM_HOLD_JOBS + index) << 1);
}

static sim_hold_job *job_of(sim_holder *holder, const void *context) {
    uintptr_t number = (uintptr_t)context >> 1;
    sim_hold_job *job = &holder->jobs[number % SIM_HOLD_JOBS];
    return job->serial == number / SIM_HOLD_JOBS ? job : NULL;
}

static uint64_t noted_id(const sim_holder *holder, uint64_t number) {
    for (size_t i = 0; i < SIM_HOLD_NOTED; i++) {
        if (holder->noted[i].number == number) return holder->noted[i].id;
    }
    return 0;
}

/* Adapts a job to its hold. Units that the hold has lost may be used until the end that was known
 * before. The hold gets units back if a transfer could not move them. */
static void follow_hold(sim_hold_job *job, const doorman_held *held) {
    bool less = false, equal = true;
    if (held->gone) return;
    for (size_t i = 0; i < job->ask.item_count; i++) {
        less = less || held->units[i] < job->later[i];
        job->later[i] = held->units[i];
        if (job->amounts[i] < held->units[i]) job->amounts[i] = held->units[i];
        equal = equal && job->later[i] >= job->amounts[i];
    }
    job->later_end = held->ends_at;
    if (!less && equal) job->end = held->ends_at;
}

static void follow_holds(sim_world *world, size_t client) {
    sim_holder *holder = &world->holds->holders[client];
    doorman_held held;
    while (doorman_permit_client_next_change(holder->agent, &held, local_of(world, client))) {
        sim_log(world, "%s: request %llu %s", world->clients[client].id,
                (unsigned long long)held.hold, held.gone ? "is gone" : "is smaller");
    }
    for (size_t i = 0; i < SIM_HOLD_JOBS; i++) {
        sim_hold_job *job = &holder->jobs[i];
        if (job->state != SIM_HOLD_HOLDING) continue;
        doorman_permit_client_read_hold(holder->agent, job->request_id, &held);
        follow_hold(job, &held);
    }
}

/* ---- decisions */

static void take_transfer(sim_world *world, const void *context, const doorman_acquired *acquired) {
    size_t call = (size_t)((uintptr_t)context >> 1);
    if (acquired->granted) sim_holder_pass_on(world, call, acquired->transfer_id);
}

static void take_hold(sim_world *world, size_t client, const void *context,
                      const doorman_acquired *acquired) {
    sim_holder *holder = &world->holds->holders[client];
    uint64_t *random = &world->holds->random;
    sim_hold_job *job = job_of(holder, context);
    doorman_time now = local_of(world, client);
    if (!job) {
        if (acquired->granted) sim_fail(world, "c%zu is granted what it has cancelled", client);
        return;
    }
    if (!acquired->granted || !acquired->hold) {
        sim_holder_end_job(job);
        return;
    }
    job->state = SIM_HOLD_HOLDING;
    job->request_id = acquired->hold;
    job->id = noted_id(holder, acquired->hold);
    job->end = job->later_end = acquired->ends_at;
    memcpy(job->amounts, acquired->units, sizeof job->amounts);
    memcpy(job->later, acquired->units, sizeof job->later);
    job->leave_at = now + sim_time_between(random, 0, 20 * SECOND);
    if (!job->id) sim_fail(world, "c%zu has a hold that no server has granted", client);
}

static void take_decisions(sim_world *world, size_t client) {
    doorman_permit_client *agent = world->holds->holders[client].agent;
    doorman_acquired acquired;
    void *context = NULL;
    while (doorman_permit_client_next(agent, &context, &acquired, local_of(world, client))) {
        sim_log(world, "%s: %s, hold %llu, until %g", world->clients[client].id,
                acquired.granted ? "granted" : "refused", (unsigned long long)acquired.hold,
                (double)acquired.ends_at / 1e9);
        if ((uintptr_t)context & 1) {
            take_transfer(world, context, &acquired);
        } else {
            take_hold(world, client, context, &acquired);
        }
    }
    follow_holds(world, client);
}

/* ---- what a job does */

void sim_agent_ask(sim_world *world, size_t client, sim_hold_job *job) {
    sim_holder *holder = &world->holds->holders[client];
    uint64_t *random = &world->holds->random;
    doorman_permit_item items[SIM_HOLD_ITEMS];
    for (size_t i = 0; i < job->ask.item_count; i++) {
        const sim_hold_item *item = &job->ask.items[i];
        items[i] = (doorman_permit_item){.resource_id = sim_hold_places[item->place],
                                         .key = sim_hold_keys[item->key],
                                         .cost = item->cost,
                                         .has_min = true,
                                         .min = item->min};
    }
    doorman_permit_request request = {.items = items,
                                      .item_count = job->ask.item_count,
                                      .max_wait = job->ask.max_wait,
                                      .equal = job->ask.equal,
                                      .time_to_live = job->ask.time_to_live,
                                      .has_priority = true,
                                      .priority = job->ask.priority,
                                      .share = job->ask.share,
                                      .hold = &job->request_id};
    doorman_error error = {0};
    doorman_status status = doorman_permit_client_acquire(
        holder->agent, &request, sim_time_between(random, 1, 30 * SECOND), job_context(holder, job),
        &error, local_of(world, client));
    if (status != DOORMAN_OK) sim_fail(world, "c%zu: %s", client, error.text);
    take_decisions(world, client);
}

void sim_agent_seize(sim_world *world, size_t client, sim_hold_job *job, uint64_t transfer_id) {
    sim_holder *holder = &world->holds->holders[client];
    doorman_hold_request request = {
        .id = transfer_id, .time_to_live = job->ask.time_to_live, .timeout = 5 * SECOND};
    doorman_error error = {0};
    doorman_status status = doorman_permit_client_seize(
        holder->agent, &request, job_context(holder, job), &error, local_of(world, client));
    if (status != DOORMAN_OK) sim_fail(world, "c%zu: %s", client, error.text);
    sim_agent_step(world, client);
}

/* Releases units, or cancels what was asked for.
 *   keep   the units that are kept; NULL: none */
static void release(sim_world *world, size_t client, sim_hold_job *job, const double *keep) {
    doorman_hold_request request = {.id = job->request_id};
    request.amounts = keep;
    request.amount_count = keep ? job->ask.item_count : 0;
    doorman_error error = {0};
    doorman_status status = doorman_permit_client_release(
        world->holds->holders[client].agent, &request, &error, local_of(world, client));
    if (status != DOORMAN_OK) sim_fail(world, "c%zu: %s", client, error.text);
    if (!keep) sim_holder_end_job(job);
}

/* Transfers one third, two thirds or all of the units. */
static void transfer(sim_world *world, size_t client, sim_hold_job *job, unsigned thirds) {
    double moved[SIM_HOLD_ITEMS], keep[SIM_HOLD_ITEMS];
    for (size_t i = 0; i < SIM_HOLD_ITEMS; i++) {
        moved[i] = thirds == 3 ? job->later[i] : job->later[i] * thirds / 3;
        keep[i] = job->later[i] - moved[i];
    }
    sim_hold_call given = job->ask;
    given.time_to_live = sim_time_between(&world->holds->random, SECOND, 15 * SECOND);
    void *context = (void *)((uintptr_t)sim_holds_add_call(world, &given) << 1 | 1);
    doorman_hold_request request = {
        .id = job->request_id, .time_to_live = given.time_to_live, .timeout = 5 * SECOND};
    request.amounts = moved;
    request.amount_count = job->ask.item_count;
    doorman_error error = {0};
    sim_holder_keep(job, keep);
    doorman_status status = doorman_permit_client_transfer(
        world->holds->holders[client].agent, &request, context, &error, local_of(world, client));
    if (status != DOORMAN_OK) sim_fail(world, "c%zu: %s", client, error.text);
}

static void release_part(sim_world *world, size_t client, sim_hold_job *job) {
    double keep[SIM_HOLD_ITEMS];
    for (size_t i = 0; i < SIM_HOLD_ITEMS; i++) {
        keep[i] = job->later[i] * (double)sim_below(&world->holds->random, 3) / 3;
    }
    sim_holder_keep(job, keep);
    release(world, client, job, keep);
}

static void use_hold(sim_world *world, size_t client, sim_hold_job *job) {
    uint64_t *random = &world->holds->random;
    doorman_time now = local_of(world, client);
    if (now >= job->later_end || world->now >= world->end) {
        release(world, client, job, NULL);
    } else if (now >= job->leave_at) {
        if (sim_below(random, 2)) {
            release(world, client, job, NULL);
        } else {
            job->leave_at = now + 10 * SECOND;
            transfer(world, client, job, 3);
        }
    } else if (sim_below(random, 30) == 0) {
        release_part(world, client, job);
    } else if (sim_below(random, 30) == 0) {
        transfer(world, client, job, 1 + (unsigned)sim_below(random, 2));
    }
}

void sim_agent_step_job(sim_world *world, size_t client, sim_hold_job *job) {
    bool gives_up = sim_below(&world->holds->random, 100) == 0;
    if (job->state == SIM_HOLD_ASKING && gives_up) {
        release(world, client, job, NULL);
    } else if (job->state == SIM_HOLD_HOLDING) {
        use_hold(world, client, job);
    }
}

/* ---- messages */

static size_t index_of(const char *const *texts, size_t count, const char *text) {
    for (size_t i = 0; i < count; i++) {
        if (strcmp(texts[i], text) == 0) return i;
    }
    return 0;
}

static sim_hold_item item_of(const char *resource_id, const char *key) {
    return (sim_hold_item){.place = index_of(sim_hold_places, SIM_HOLD_PLACES, resource_id),
                           .key = index_of(sim_hold_keys, SIM_HOLD_KEYS, key)};
}

static void copy_permit(sim_hold_call *call, const doorman_permit_request *permit) {
    call->request_id = permit->request_id;
    call->item_count = permit->item_count;
    for (size_t i = 0; i < permit->item_count; i++) {
        const doorman_permit_item *item = &permit->items[i];
        call->items[i] = item_of(item->resource_id, item->key);
        call->items[i].cost = item->cost;
        call->items[i].min = item->has_min ? item->min : item->cost;
    }
    call->max_wait = permit->max_wait;
    call->time_to_live = permit->time_to_live;
    call->priority = permit->priority;
    call->share = permit->share;
    call->equal = permit->equal;
}

static void copy_hold_request(sim_hold_call *call, const doorman_hold_request *request) {
    call->id = request->id;
    call->request_id = request->request_id;
    call->time_to_live = request->time_to_live;
    call->item_count = call->method == DOORMAN_RENEW ? request->item_count : request->amount_count;
    for (size_t i = 0; i < request->item_count; i++) {
        call->items[i] = item_of(request->items[i].resource_id, request->items[i].key);
        call->amounts[i] = request->items[i].amount;
    }
    for (size_t i = 0; i < request->amount_count; i++) call->amounts[i] = request->amounts[i];
}

static size_t process_at(const sim_world *world, const char *address) {
    for (size_t i = 0; i < world->process_count; i++) {
        if (strcmp(world->processes[i].address, address) == 0) return i;
    }
    return SIM_NONE;
}

static void send_message(sim_world *world, size_t client, size_t lane,
                         const doorman_request *request) {
    bool acquires = request->method == DOORMAN_ACQUIRE;
    size_t count = acquires ? request->permit_count : request->hold_count;
    sim_hold_call calls[SIM_HOLD_BATCH];
    if (count > SIM_HOLD_BATCH) {
        sim_fail(world, "c%zu sends %zu parts in one message", client, count);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        calls[i] = (sim_hold_call){.method = request->method, .count = count, .from_agent = true};
        calls[i].lane = lane;
        calls[i].sequence = request->sequence;
        calls[i].client = client;
        calls[i].process = process_at(world, request->address);
        calls[i].incarnation = world->clients[client].machine.incarnation;
        calls[i].connected = lane > 0;
        if (acquires) copy_permit(&calls[i], &request->permits[i]);
        if (!acquires) copy_hold_request(&calls[i], &request->holds[i]);
    }
    sim_holds_send(world, calls, count);
}

static void on_due(sim_world *world, const sim_event *event) {
    const sim_machine *machine = &world->clients[event->actor].machine;
    if (machine->wakeup != event->incarnation || machine->paused_until) return;
    if (world->holds->holders[event->actor].agent) sim_agent_step(world, event->actor);
    sim_hold_account_check(world);
}

void sim_agent_step(sim_world *world, size_t client) {
    sim_holder *holder = &world->holds->holders[client];
    sim_machine *machine = &world->clients[client].machine;
    doorman_time now = local_of(world, client), due = DOORMAN_NEVER;
    doorman_request request;
    for (size_t i = 0; i < holder->lane_count; i++) {
        if (!doorman_upstream_request(holder->lanes[i], &request, now)) continue;
        send_message(world, client, i, &request);
    }
    take_decisions(world, client);
    for (size_t i = 0; i < holder->lane_count; i++) {
        doorman_time at = doorman_upstream_due(holder->lanes[i]);
        if (at < due) due = at;
    }
    if (due == DOORMAN_NEVER) return;
    if (due < now + SECOND / 10000) due = now + SECOND / 10000;
    sim_event event = {.handler = on_due, .actor = client, .incarnation = ++machine->wakeup};
    sim_schedule(world, sim_global(&machine->clock, due), event);
}

/* Makes the response of a server from the replies to the parts of a message. */
static void read_replies(const sim_world *world, const sim_hold_reply *replies, size_t count,
                         doorman_permit *permits, doorman_permit_grant (*grants)[SIM_HOLD_ITEMS],
                         doorman_hold *holds) {
    const char *node = world->nodes[0].name;
    for (size_t i = 0; i < count; i++) {
        const sim_hold_reply *reply = &replies[i];
        for (size_t j = 0; j < reply->item_count; j++) {
            grants[i][j] = (doorman_permit_grant){.granted = reply->amounts[j]};
        }
        permits[i] = (doorman_permit){.granted = reply->granted,
                                      .items = grants[i],
                                      .item_count = reply->item_count,
                                      .reason = reply->reason,
                                      .hold_id = reply->id,
                                      .node = node,
                                      .waited = reply->waited,
                                      .expires_in = reply->expires_in};
        holds[i] = (doorman_hold){.gone = reply->gone,
                                  .reason = reply->reason,
                                  .id = reply->id,
                                  .node = node,
                                  .expires_in = reply->expires_in,
                                  .items = reply->items,
                                  .item_count = reply->item_count};
    }
}

void sim_agent_reply(sim_world *world, const sim_hold_reply *replies) {
    const sim_hold_call *calls = &world->holds->calls[replies->call];
    const size_t client = calls->client, count = calls->count;
    sim_holder *holder = &world->holds->holders[client];
    doorman_permit permits[SIM_HOLD_BATCH];
    doorman_permit_grant grants[SIM_HOLD_BATCH][SIM_HOLD_ITEMS];
    doorman_hold holds[SIM_HOLD_BATCH];
    doorman_response response = {.method = calls->method, .is_master = replies->is_master};
    if (!replies->is_master && replies->master != SIM_NONE) {
        response.master_address = world->processes[replies->master].address;
    }
    if (replies->is_master) {
        read_replies(world, replies, count, permits, grants, holds);
        bool acquires = calls->method == DOORMAN_ACQUIRE;
        response.permits = permits;
        response.permit_count = acquires ? count : 0;
        response.holds = holds;
        response.hold_count = acquires ? 0 : count;
    }
    doorman_status status = doorman_upstream_response(holder->lanes[calls->lane], calls->sequence,
                                                      &response, local_of(world, client));
    if (status != DOORMAN_OK && status != DOORMAN_STALE) {
        sim_fail(world, "c%zu answers a response with %s", client, doorman_status_name(status));
        return;
    }
    bool grants_holds = calls->method == DOORMAN_ACQUIRE || calls->method == DOORMAN_SEIZE;
    for (size_t i = 0; status == DOORMAN_OK && replies->is_master && grants_holds && i < count;
         i++) {
        if (!replies[i].granted || !replies[i].id) continue;
        holder->noted[holder->noted_count++ % SIM_HOLD_NOTED] =
            (sim_hold_noted){calls[i].request_id, replies[i].id};
    }
    sim_agent_step(world, client);
    sim_hold_account_check(world);
}

/* Fails if a client that has nothing to do keeps a hold or a call. */
void sim_agent_check_idle(sim_world *world, size_t client) {
    doorman_permit_client *agent = world->holds->holders[client].agent;
    doorman_permit_client_info info;
    if (!agent) return;
    doorman_permit_client_read(agent, &info);
    if (!info.hold_count && !info.waiting_count) return;
    sim_fail(world, "c%zu is idle, and has %zu holds and %zu calls", client, info.hold_count,
             info.waiting_count);
}
