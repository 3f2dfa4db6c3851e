/* The holders of a simulated system: see sim_holds.c. They obey P8 and P9 as an application must.
 *
 * A client has some jobs. A job asks for units, and asks again with the same request_id until it
 * has an answer. Then it uses the units until their end, which it counts from the time at which it
 * sent the request, plus the time that the permit waited. It renews its hold, or neglects that.
 * Later it releases a part or all of its units, or transfers them to a random client, which seizes
 * them. It stops using the units before it sends such a message. A client that gives up cancels its
 * request. From time to time a client asks for what belongs to others, or claims what it does not
 * have. */
#include "sim_holds.h"

#include <string.h>

#define SECOND DOORMAN_SECOND

static doorman_time local_of(const sim_world *world, size_t client) {
    return sim_local(&world->clients[client].machine.clock, world->now);
}

static size_t random_process(const sim_world *world, size_t client, uint64_t *random) {
    const sim_node *node = &world->nodes[world->clients[client].node];
    return node->first_process + sim_pick(random, node->process_count);
}

double sim_hold_in_use(const sim_world *world, size_t client, const sim_hold_job *job,
                       size_t item) {
    doorman_time local = local_of(world, client);
    if (local < job->end) return job->amounts[item];
    return local < job->later_end ? job->later[item] : 0;
}

/* ---- sending */

static void send_job(sim_world *world, size_t client, sim_hold_job *job, doorman_method method) {
    sim_holder *holder = &world->holds->holders[client];
    sim_hold_call call = job->ask;
    uint64_t *random = &world->holds->random;
    if (sim_below(random, 10) == 0) holder->process = random_process(world, client, random);
    call.method = method;
    call.count = 1;
    call.from_agent = false;
    call.client = client;
    call.job = (size_t)(job - holder->jobs);
    call.process = holder->process;
    call.incarnation = world->clients[client].machine.incarnation;
    call.serial = job->serial;
    call.sent_at = local_of(world, client);
    job->again_at = call.sent_at + sim_time_between(random, SECOND / 10, 3 * SECOND);
    sim_holds_send(world, &call, 1);
}

void sim_holder_end_job(sim_hold_job *job) {
    job->state = SIM_HOLD_FREE;
    job->serial++;
}

/* ---- what a job does */

static void draw_items(sim_holds *holds, sim_hold_call *ask, uint64_t *random) {
    ask->item_count = 1 + (sim_below(random, 4) == 0);
    ask->equal = holds->whole && sim_below(random, 5) == 0;
    for (size_t i = 0; i < ask->item_count; i++) {
        double cost = (double)(1 + sim_below(random, 3));
        if (!holds->whole && sim_below(random, 2)) cost = sim_between(random, 0.1, 3);
        double min = sim_below(random, 4) ? cost : holds->whole ? 1 : cost / 3;
        if (ask->equal) min = 1;
        ask->items[i] = (sim_hold_item){sim_pick(random, SIM_HOLD_PLACES),
                                        sim_pick(random, SIM_HOLD_KEYS), cost, min};
    }
}

void sim_holder_draw_ask(sim_world *world, sim_hold_call *ask) {
    uint64_t *random = &world->holds->random;
    draw_items(world->holds, ask, random);
    if (sim_below(random, 4)) ask->max_wait = sim_time_between(random, 1, 30 * SECOND);
    if (sim_below(random, 3) == 0) ask->time_to_live = sim_time_between(random, 1, 15 * SECOND);
    ask->priority = (int)sim_below(random, 4);
    ask->share = ask->item_count == 1 && sim_below(random, 8) == 0;
    ask->detail = sim_below(random, 8) == 0;
    ask->connected = sim_below(random, 2);
}

static void start_job(sim_world *world, size_t client, sim_hold_job *job) {
    uint64_t *random = &world->holds->random;
    sim_holder *holder = &world->holds->holders[client];
    uint64_t serial = job->serial + 1;
    *job = (sim_hold_job){.state = SIM_HOLD_ASKING, .serial = serial};
    sim_holder_draw_ask(world, &job->ask);
    if (holder->agent) {
        sim_agent_ask(world, client, job);
        return;
    }
    job->ask.request_id = job->request_id = ++holder->request_ids;
    job->patience = (unsigned)(1 + sim_below(random, 12));
    send_job(world, client, job, DOORMAN_ACQUIRE);
}

static void cancel_job(sim_world *world, size_t client, sim_hold_job *job) {
    job->ask.id = 0;
    memset(job->ask.amounts, 0, sizeof job->ask.amounts);
    send_job(world, client, job, DOORMAN_RELEASE);
    sim_holder_end_job(job);
}

static void hold_units(sim_world *world, size_t client, sim_hold_job *job,
                       const sim_hold_call *call, const sim_hold_reply *reply) {
    uint64_t *random = &world->holds->random;
    doorman_time waited = (doorman_time)((double)reply->waited / (1 + SIM_HOLD_DRIFT));
    doorman_time now = local_of(world, client);
    job->state = SIM_HOLD_HOLDING;
    job->id = reply->id;
    job->life = reply->expires_in;
    job->end = job->later_end = call->sent_at + waited + reply->expires_in;
    memcpy(job->amounts, reply->amounts, sizeof job->amounts);
    memcpy(job->later, reply->amounts, sizeof job->later);
    job->renews = sim_unit(random) >= world->holds->holders[client].neglect;
    job->leave_at = now + sim_time_between(random, 0, 20 * SECOND);
    job->again_at = now + job->life / 3;
}

/* Lets a job use at most `keep`, before the client sends a message that says so. */
void sim_holder_keep(sim_hold_job *job, const double *keep) {
    for (size_t i = 0; i < job->ask.item_count; i++) {
        if (job->amounts[i] > keep[i]) job->amounts[i] = keep[i];
        if (job->later[i] > keep[i]) job->later[i] = keep[i];
    }
}

/* Releases some of the units, perhaps all. The job stays HOLDING. */
static void release_part(sim_world *world, size_t client, sim_hold_job *job) {
    sim_hold_call ask = job->ask;
    for (size_t i = 0; i < job->ask.item_count; i++) {
        job->ask.amounts[i] = job->amounts[i] * (double)sim_below(&world->holds->random, 3) / 3;
    }
    job->ask.id = job->id;
    job->ask.request_id = 0;
    sim_holder_keep(job, job->ask.amounts);
    send_job(world, client, job, DOORMAN_RELEASE);
    job->ask = ask;
}

/* Releases or transfers all units. Without an answer, the job repeats this up to three times. */
static void give_units(sim_world *world, size_t client, sim_hold_job *job) {
    uint64_t *random = &world->holds->random;
    static const double none[SIM_HOLD_ITEMS];
    bool transfers = sim_below(random, 3) == 0, by_request = sim_below(random, 4) == 0;
    double had[SIM_HOLD_ITEMS];
    memcpy(had, job->amounts, sizeof had);
    sim_holder_keep(job, none);
    job->state = SIM_HOLD_GIVING;
    job->patience = (unsigned)sim_below(random, 4);
    job->ask.id = by_request && !transfers ? 0 : job->id;
    job->ask.request_id = by_request ? job->request_id : 0;
    if (transfers) job->ask.request_id = ++world->holds->holders[client].request_ids;
    for (size_t i = 0; i < SIM_HOLD_ITEMS; i++) job->ask.amounts[i] = transfers ? had[i] : 0;
    send_job(world, client, job, transfers ? DOORMAN_TRANSFER : DOORMAN_RELEASE);
}

static void renew_units(sim_world *world, size_t client, sim_hold_job *job) {
    sim_hold_call ask = job->ask;
    memcpy(job->ask.amounts, job->amounts, sizeof job->amounts);
    job->ask.id = job->id;
    job->ask.request_id = 0;
    send_job(world, client, job, DOORMAN_RENEW);
    job->again_at =
        local_of(world, client) +
        (doorman_time)(sim_between(&world->holds->random, 0.2, 0.4) * (double)job->life);
    job->ask = ask;
}

static void step_job(sim_world *world, size_t client, sim_hold_job *job) {
    uint64_t *random = &world->holds->random;
    doorman_time now = local_of(world, client);
    bool again = now >= job->again_at;
    if (world->holds->holders[client].agent) {
        sim_agent_step_job(world, client, job);
        return;
    }
    switch (job->state) {
    case SIM_HOLD_FREE: break;
    case SIM_HOLD_ASKING:
    case SIM_HOLD_SEIZING:
        if (!again) break;
        if (job->patience-- == 0) {
            cancel_job(world, client, job);
        } else {
            send_job(world, client, job,
                     job->state == SIM_HOLD_ASKING ? DOORMAN_ACQUIRE : DOORMAN_SEIZE);
        }
        break;
    case SIM_HOLD_HOLDING:
        if (now >= job->later_end) {
            sim_holder_end_job(job);
        } else if (now >= job->leave_at || world->now >= world->end) {
            give_units(world, client, job);
        } else if (again && job->renews) {
            renew_units(world, client, job);
        } else if (sim_below(random, 30) == 0) {
            release_part(world, client, job);
        }
        break;
    case SIM_HOLD_GIVING:
        if (!again) break;
        if (job->patience-- == 0) {
            sim_holder_end_job(job);
        } else {
            send_job(world, client, job,
                     job->ask.id && job->ask.request_id ? DOORMAN_TRANSFER : DOORMAN_RELEASE);
        }
        break;
    }
}

/* Asks for other items under the request_id of an earlier request (P9). */
static void ask_for_other(sim_world *world, size_t client, const sim_hold_grant *grant) {
    uint64_t *random = &world->holds->random;
    sim_hold_call call = world->holds->calls[grant->call];
    if (call.method != DOORMAN_ACQUIRE || call.equal || world->now >= world->end) return;
    call.items[0].cost += 1;
    call.count = 1;
    call.max_wait = 0;
    call.from_agent = call.connected = false;
    call.job = SIM_HOLD_LIE;
    call.process = random_process(world, client, random);
    call.incarnation = world->clients[client].machine.incarnation;
    sim_holds_send(world, &call, 1);
}

/* Names a hold of another client, or a transfer, as if this client had it. A server must answer
 * that it is gone (P8). With a hold of its own, the client may ask for other items instead. */
static void meddle(sim_world *world, size_t client) {
    static const doorman_method methods[] = {DOORMAN_RENEW, DOORMAN_RELEASE, DOORMAN_TRANSFER};
    sim_holds *holds = world->holds;
    uint64_t *random = &holds->random;
    if (!holds->grant_count) return;
    size_t last = holds->grant_count < 20 ? holds->grant_count : 20;
    const sim_hold_grant *grant = &holds->grants[holds->grant_count - 1 - sim_pick(random, last)];
    if (grant->client == client && !grant->is_transfer) {
        if (sim_below(random, 3) == 0) ask_for_other(world, client, grant);
        return;
    }
    sim_hold_call call = {.count = 1, .id = grant->id, .client = client, .job = SIM_HOLD_JOBS};
    call.method = methods[sim_below(random, 3)];
    if (call.method == DOORMAN_TRANSFER) call.request_id = ++holds->holders[client].request_ids;
    call.process = random_process(world, client, random);
    call.incarnation = world->clients[client].machine.incarnation;
    sim_holds_send(world, &call, 1);
}

/* Claims units that the client does not have: more than its hold has, or a hold that does not
 * exist. A master that learns believes the claim as far as units are free (P16). */
static void lie(sim_world *world, size_t client) {
    sim_holds *holds = world->holds;
    uint64_t *random = &holds->random;
    const sim_hold_job *job = &holds->holders[client].jobs[sim_pick(random, SIM_HOLD_JOBS)];
    sim_hold_call call = {.count = 1, .client = client, .job = SIM_HOLD_LIE};
    bool has_hold = job->state == SIM_HOLD_HOLDING && job->id;
    if (has_hold) {
        call = job->ask;
        call.client = client;
        call.job = SIM_HOLD_LIE;
        call.count = 1;
        call.from_agent = false;
        call.request_id = 0;
    } else {
        draw_items(holds, &call, random);
    }
    call.method = DOORMAN_RENEW;
    call.id = has_hold ? job->id : (sim_random(random) >> 11) | 1U;
    for (size_t i = 0; i < call.item_count; i++) {
        call.amounts[i] = (has_hold ? job->amounts[i] : 0) + (double)(1 + sim_below(random, 9));
    }
    call.process = random_process(world, client, random);
    call.incarnation = world->clients[client].machine.incarnation;
    sim_holds_send(world, &call, 1);
}

static void on_tick(sim_world *world, const sim_event *event) {
    sim_holder *holder = &world->holds->holders[event->actor];
    uint64_t *random = &world->holds->random;
    if (holder->ticks != event->incarnation) return;
    bool asks = world->now < world->end && sim_unit(random) * holder->pace < 0.3;
    sim_schedule(world, world->now + sim_time_between(random, 0, SECOND / 2), *event);
    if (world->clients[event->actor].machine.paused_until) return;
    for (size_t i = 0; i < SIM_HOLD_JOBS; i++) {
        sim_hold_job *job = &holder->jobs[i];
        if (asks && job->state == SIM_HOLD_FREE) {
            start_job(world, event->actor, job);
            asks = false;
        } else {
            step_job(world, event->actor, job);
        }
    }
    if (holder->agent) sim_agent_step(world, event->actor);
    if (sim_below(random, 20) == 0) meddle(world, event->actor);
    if (world->now < world->end && sim_below(random, 20) == 0) lie(world, event->actor);
    sim_hold_account_check(world);
}

/* Starts a client. Its request_ids differ from those of its earlier incarnations. */
void sim_holder_start(sim_world *world, size_t client) {
    sim_holder *holder = &world->holds->holders[client];
    uint64_t *random = &world->holds->random;
    world->clients[client].machine.incarnation++;
    for (size_t i = 0; i < SIM_HOLD_JOBS; i++) sim_holder_end_job(&holder->jobs[i]);
    holder->process = random_process(world, client, random);
    holder->pace = sim_between(random, 0.3, 3);
    holder->neglect = sim_below(random, 2) ? sim_unit(random) : 0;
    sim_agent_stop(world, client);
    if (sim_below(random, 2)) sim_agent_start(world, client);
    sim_event event = {.handler = on_tick, .actor = client, .incarnation = ++holder->ticks};
    sim_schedule(world, world->now, event);
    sim_log(world, "%s starts", world->clients[client].id);
}

/* ---- answers */

/* Gives a client the id of a transfer. No server takes part in this. */
static void on_gift(sim_world *world, const sim_event *event) {
    const sim_hold_call *given = &world->holds->calls[event->incarnation];
    sim_holder *holder = &world->holds->holders[event->actor];
    const sim_machine *machine = &world->clients[event->actor].machine;
    sim_hold_job *job = holder->jobs;
    while (job < holder->jobs + SIM_HOLD_JOBS && job->state != SIM_HOLD_FREE) job++;
    if (job == holder->jobs + SIM_HOLD_JOBS || machine->paused_until) return;
    uint64_t serial = job->serial + 1;
    *job = (sim_hold_job){.state = SIM_HOLD_SEIZING, .serial = serial, .patience = 4};
    job->ask = *given;
    if (holder->agent) {
        sim_agent_seize(world, event->actor, job, (uint64_t)event->lease);
        return;
    }
    job->ask.id = (uint64_t)event->lease;
    job->ask.request_id = job->request_id = ++holder->request_ids;
    send_job(world, event->actor, job, DOORMAN_SEIZE);
}

void sim_holder_pass_on(sim_world *world, size_t call, uint64_t transfer_id) {
    uint64_t *random = &world->holds->random;
    size_t receivers = sim_below(random, 6) ? 1 : 2;
    for (size_t i = 0; i < receivers; i++) {
        sim_event event = {.handler = on_gift,
                           .actor = sim_pick(random, world->client_count),
                           .incarnation = call,
                           .lease = (int64_t)transfer_id};
        sim_schedule(world, world->now + sim_time_between(random, 0, SECOND), event);
    }
}

/* Takes the result of a renewal. Until the end that was known before, the job uses no more than
 * before. After that end it uses at most what the response says. */
static void renewed(sim_hold_job *job, const sim_hold_call *call, const sim_hold_reply *reply) {
    doorman_time end = call->sent_at + reply->expires_in;
    bool less = false;
    for (size_t i = 0; i < job->ask.item_count; i++) {
        if (reply->amounts[i] < job->later[i]) {
            job->later[i] = reply->amounts[i];
            less = true;
        }
    }
    if (end > job->later_end) job->later_end = end;
    bool equal = true;
    for (size_t i = 0; i < job->ask.item_count; i++) {
        equal = equal && job->later[i] >= job->amounts[i];
    }
    if (!less && equal) job->end = job->later_end;
    job->life = reply->expires_in;
}

static void reply_to_ask(sim_world *world, size_t client, sim_hold_job *job,
                         const sim_hold_call *call, const sim_hold_reply *reply) {
    if (reply->granted) {
        hold_units(world, client, job, call, reply);
        if (!reply->id || local_of(world, client) >= job->end) sim_holder_end_job(job);
    } else if (reply->gone) {
        sim_holder_end_job(job);
    } else if (reply->reason != DOORMAN_REASON_REPEATED &&
               reply->reason != DOORMAN_REASON_LEARNING) {
        sim_holder_end_job(job);
    }
}

void sim_holder_reply(sim_world *world, const sim_hold_reply *reply) {
    const sim_hold_call *call = &world->holds->calls[reply->call];
    sim_holder *holder = &world->holds->holders[call->client];
    if (call->job == SIM_HOLD_LIE) return;
    if (call->job == SIM_HOLD_JOBS) {
        if (reply->is_master && !reply->gone) {
            sim_fail(world, "c%zu may use id %llu, which is not its own", call->client,
                     (unsigned long long)call->id);
        }
        return;
    }
    sim_hold_job *job = &holder->jobs[call->job];
    if (!reply->is_master) {
        holder->process = reply->master == SIM_NONE
                              ? random_process(world, call->client, &world->holds->random)
                              : reply->master;
        return;
    }
    if (job->serial != call->serial) return;
    if (job->state == SIM_HOLD_ASKING || job->state == SIM_HOLD_SEIZING) {
        reply_to_ask(world, call->client, job, call, reply);
    } else if (job->state == SIM_HOLD_HOLDING && call->method == DOORMAN_RENEW) {
        if (reply->gone) job->renews = false;
        if (!reply->gone && reply->id == job->id) renewed(job, call, reply);
    } else if (job->state == SIM_HOLD_GIVING && call->method == DOORMAN_TRANSFER) {
        if (!reply->gone && reply->granted) sim_holder_pass_on(world, reply->call, reply->id);
        sim_holder_end_job(job);
    } else if (job->state == SIM_HOLD_GIVING && call->method == DOORMAN_RELEASE) {
        sim_holder_end_job(job);
    }
    sim_hold_account_check(world);
}
