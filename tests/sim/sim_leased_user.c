/* Clients that ask for leased permits: see sim_leased.c. They take units of rates, and hold units
 * for some time. They renew most holds, and use a hold until they release it, or until it has ended
 * by their clock. */
#include "sim_leased.h"

#include <math.h>
#include <string.h>

#define SECOND DOORMAN_SECOND

static doorman_time local_of(const sim_world *world, size_t client) {
    return sim_local(&world->clients[client].machine.clock, world->now);
}

static size_t random_process(sim_world *world, size_t client) {
    const sim_client *from = &world->clients[client];
    uint64_t *random = &world->leased->random;
    const sim_node *node = &world->nodes[sim_below(random, 4) ? from->node : from->other];
    return node->first_process + sim_pick(random, node->process_count);
}

/* ---- sending */

static sim_leased_call call_of(sim_world *world, size_t client, size_t resource) {
    return (sim_leased_call){.method = DOORMAN_ACQUIRE,
                             .client = client,
                             .job = SIM_LEASED_JOBS,
                             .process = world->leased->users[client].process,
                             .resource = resource,
                             .incarnation = world->clients[client].machine.incarnation,
                             .sent_at = local_of(world, client)};
}

static void send_job(sim_world *world, size_t client, sim_leased_job *job, doorman_method method) {
    sim_leased_user *user = &world->leased->users[client];
    sim_leased_call call = call_of(world, client, job->resource);
    call.method = method;
    call.job = (size_t)(job - user->jobs);
    call.serial = job->serial;
    call.request_id = job->id ? 0 : job->request_id;
    call.id = job->id;
    call.cost = job->cost;
    call.max_wait = job->max_wait;
    sim_leased_send(world, &call);
}

static void end_job(sim_world *world, sim_leased_job *job) {
    world->leased->changed[job->resource] = true;
    job->state = SIM_LEASED_FREE;
    job->serial++;
}

static double draw_cost(sim_leased_run *run) {
    uint64_t choice = sim_below(&run->random, 8);
    if (run->all || choice < 3) return 1;
    return ceil(sim_between(&run->random, 0, choice < 7 ? 30 : 200));
}

static void start_job(sim_world *world, size_t client, size_t resource) {
    sim_leased_run *run = world->leased;
    sim_leased_user *user = &run->users[client];
    sim_leased_job *job = user->jobs;
    while (job < user->jobs + SIM_LEASED_JOBS && job->state != SIM_LEASED_FREE) job++;
    if (job == user->jobs + SIM_LEASED_JOBS) return;
    *job = (sim_leased_job){
        .state = SIM_LEASED_ASKING, .serial = job->serial + 1, .resource = resource};
    job->cost = draw_cost(run);
    job->request_id = ++user->request_ids;
    job->patience = (unsigned)sim_below(&run->random, 12);
    if (sim_below(&run->random, 4)) job->max_wait = sim_time_between(&run->random, 1, 20 * SECOND);
    job->again_at = local_of(world, client) + sim_time_between(&run->random, SECOND, 4 * SECOND);
    send_job(world, client, job, DOORMAN_ACQUIRE);
}

/* ---- what a job does */

static void step_asking(sim_world *world, size_t client, sim_leased_job *job) {
    uint64_t *random = &world->leased->random;
    doorman_time now = local_of(world, client);
    if (now < job->again_at) return;
    if (!job->patience) {
        if (sim_below(random, 2)) send_job(world, client, job, DOORMAN_RELEASE); /* cancels */
        end_job(world, job);
        return;
    }
    job->patience--;
    job->again_at = now + sim_time_between(random, SECOND, 4 * SECOND);
    send_job(world, client, job, DOORMAN_ACQUIRE);
}

static void step_holding(sim_world *world, size_t client, sim_leased_job *job) {
    doorman_time now = local_of(world, client);
    size_t process = world->leased->users[client].process;
    world->leased->users[client].process = job->process;
    if (now >= job->end) {
        end_job(world, job);
    } else if (now >= job->leave_at) {
        send_job(world, client, job, DOORMAN_RELEASE);
        end_job(world, job);
    } else if (job->renews && now >= job->again_at) {
        job->again_at = now + sim_time_between(&world->leased->random, SECOND / 2, 4 * SECOND);
        send_job(world, client, job, DOORMAN_RENEW);
    }
    world->leased->users[client].process = process;
}

static void ask(sim_world *world, size_t client) {
    sim_leased_run *run = world->leased;
    size_t resource = sim_pick(&run->random, world->resource_count);
    if (run->holds[resource]) {
        start_job(world, client, resource);
        return;
    }
    sim_leased_call call = call_of(world, client, resource);
    call.cost = draw_cost(run);
    sim_leased_send(world, &call);
}

static void on_tick(sim_world *world, const sim_event *event) {
    size_t client = event->actor;
    sim_leased_user *user = &world->leased->users[client];
    const sim_client *own = &world->clients[client];
    uint64_t *random = &world->leased->random;
    double pace = sim_between(random, 0, 2 * user->pace);
    sim_schedule(world, world->now + (doorman_time)(pace * 1e9), *event);
    if (!own->client || own->machine.paused_until) return;
    for (size_t i = 0; i < SIM_LEASED_JOBS; i++) {
        sim_leased_job *job = &user->jobs[i];
        if (job->state == SIM_LEASED_ASKING) step_asking(world, client, job);
        if (job->state == SIM_LEASED_HOLDING) step_holding(world, client, job);
    }
    if (sim_below(random, 16) == 0) user->process = random_process(world, client);
    if (world->leased->asks) ask(world, client);
}

void sim_leased_add_client(sim_world *world, size_t client) {
    if (!world->leased) return;
    sim_leased_user *user = &world->leased->users[client];
    user->process = random_process(world, client);
    user->pace = sim_between(&world->leased->random, 0.3, 3);
    sim_schedule(world, 0, (sim_event){.handler = on_tick, .actor = client});
}

/* Ends all jobs of a client that has died. */
void sim_leased_client_died(sim_world *world, size_t client) {
    if (!world->leased) return;
    for (size_t i = 0; i < SIM_LEASED_JOBS; i++) {
        end_job(world, &world->leased->users[client].jobs[i]);
    }
}

/* ---- answers */

static void take_hold(sim_world *world, const sim_leased_call *call, const sim_leased_reply *reply,
                      sim_leased_job *job) {
    uint64_t *random = &world->leased->random;
    doorman_time now = local_of(world, call->client);
    job->state = SIM_LEASED_HOLDING;
    job->id = reply->id;
    job->process = call->process;
    job->mastership = reply->mastership;
    job->end = call->sent_at + (doorman_time)((double)reply->waited / 1.05) + reply->expires_in;
    job->leave_at = now + sim_time_between(random, 0, SIM_LEASED_STAY);
    job->renews = sim_below(random, 4) > 0;
    job->again_at = now + sim_time_between(random, SECOND / 2, 4 * SECOND);
    world->leased->changed[job->resource] = true;
    if (!reply->id || now >= job->end) end_job(world, job);
}

static void count_reply(sim_world *world, const sim_leased_call *call, bool granted) {
    sim_leased_user *user = &world->leased->users[call->client];
    (granted ? user->granted : user->refused)[call->resource]++;
}

static void reply_to_job(sim_world *world, const sim_leased_call *call,
                         const sim_leased_reply *reply, sim_leased_job *job) {
    if (job->state == SIM_LEASED_ASKING && call->method == DOORMAN_ACQUIRE) {
        count_reply(world, call, reply->granted);
        if (!reply->granted) return; /* it asks again */
        take_hold(world, call, reply, job);
    } else if (job->state == SIM_LEASED_HOLDING && call->method == DOORMAN_RENEW) {
        doorman_time end = call->sent_at + reply->expires_in;
        if (reply->gone) job->renews = false;
        if (!reply->gone && end > job->end) job->end = end;
    }
}

void sim_leased_user_reply(sim_world *world, const sim_leased_reply *reply) {
    const sim_leased_call *call = &world->leased->calls[reply->call];
    sim_leased_user *user = &world->leased->users[call->client];
    if (!reply->is_master) {
        bool known = reply->master != SIM_NONE;
        user->process = known ? reply->master : random_process(world, call->client);
        return;
    }
    if (call->job == SIM_LEASED_JOBS) {
        count_reply(world, call, reply->granted);
        return;
    }
    sim_leased_job *job = &user->jobs[call->job];
    if (job->serial == call->serial) reply_to_job(world, call, reply, job);
}
