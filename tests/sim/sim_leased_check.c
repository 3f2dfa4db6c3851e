/* What leased permits may use, and what holders use: see sim_leased.c. Of Doorman, these checks use
 * only messages, and what an inspection shows.
 *
 * The permits of a master may use what an inspection shows of their lease. A client uses the units
 * of a hold until the hold ends by the client's clock. Holds of the present mastership use its
 * lease. Holds of earlier masterships count in addition. */
#include "sim_leased.h"

#include <math.h>
#include <string.h>

#define SECOND DOORMAN_SECOND
#define BURST 0.1      /* seconds: the default of a rate */
#define ROUNDING 1e-6  /* an inspection rounds the time in which a bucket fills */
#define UNLIMITED 1e15 /* units of a lease without a limit: an inspection does not list it */
#define LATENESS (2 * SECOND)

static doorman_time local_of(const sim_world *world, size_t process) {
    return sim_local(&world->processes[process].machine.clock, world->now);
}

/* ---- the leases of permits */

static bool is_running_master(const sim_world *world, size_t process) {
    const sim_process *server = &world->processes[process];
    const sim_leased_process *own = &world->leased->processes[process];
    return server->server && !server->machine.paused_until && own->mastership &&
           local_of(world, process) < own->until;
}

/* Reads the leased limit of a resource. Returns false if the process has no such limit now. */
static bool inspect(const sim_world *world, size_t process, size_t resource,
                    doorman_permit_detail *out) {
    doorman_permits *permits = doorman_server_permits(world->processes[process].server);
    doorman_permit permit;
    if (!permits) return false;
    const doorman_permit_item item = {.resource_id = world->leased->places[resource]};
    doorman_status status =
        doorman_permits_inspect(permits, &item, &permit, NULL, local_of(world, process));
    if (status != DOORMAN_OK || !permit.granted) return false;
    *out = (doorman_permit_detail){.most = UNLIMITED};
    if (permit.detail_count) *out = permit.details[0];
    return true;
}

static double leased_units(const sim_world *world, size_t process, size_t resource) {
    doorman_permit_detail detail;
    if (!is_running_master(world, process)) return 0;
    if (!inspect(world, process, resource, &detail)) return 0;
    if (world->leased->holds[resource]) return detail.most;
    if (detail.window <= 0) return detail.most;
    return detail.most / ((double)detail.window / 1e9) * (1 - ROUNDING);
}

/* L1: permits take at most what their lease gives, plus one burst (or one unit, or the largest
 * permit, if that is more). */
static void check_budget(sim_world *world, size_t process, size_t resource) {
    const sim_leased_amount *amount = &world->leased->processes[process].amounts[resource];
    double most = amount->budget + fmax(BURST * amount->peak, fmax(1, amount->largest));
    if (amount->granted <= most * (1 + 2 * ROUNDING) + ROUNDING) return;
    sim_fail(world, "permits have taken %.9g of %s at %s, and their leases gave %.9g",
             amount->granted, world->resources[resource], world->processes[process].address, most);
}

void sim_leased_observe(sim_world *world, size_t process) {
    doorman_time now = local_of(world, process);
    for (size_t i = 0; i < world->resource_count; i++) {
        sim_leased_amount *amount = &world->leased->processes[process].amounts[i];
        double units = leased_units(world, process, i);
        double since = (double)(now - amount->observed_at) / 1e9;
        if (amount->observed_at) amount->budget += since * fmax(amount->units, units);
        if (units > amount->units || units < amount->units) world->leased->changed[i] = true;
        amount->observed_at = now;
        amount->units = units;
        amount->peak = fmax(amount->peak, units);
    }
}

void sim_leased_granted(sim_world *world, size_t process, size_t resource, double units) {
    sim_leased_amount *amount = &world->leased->processes[process].amounts[resource];
    amount->granted += units;
    amount->largest = fmax(amount->largest, units);
    check_budget(world, process, resource);
}

/* ---- sums */

bool sim_leased_changed(sim_world *world, size_t resource) {
    if (!world->leased || !world->leased->changed[resource]) return false;
    world->leased->changed[resource] = false;
    return true;
}

/* Lets all sums be computed again, because holds end without an event. */
void sim_leased_refresh(sim_world *world) {
    if (!world->leased) return;
    for (size_t i = 0; i < world->process_count; i++) sim_leased_observe(world, i);
    for (size_t i = 0; i < world->resource_count; i++) world->leased->changed[i] = true;
}

/* The units of the holds in use that each process has granted, in its present mastership and in
 * earlier ones. */
typedef struct held_units {
    double present[SIM_PROCESSES], earlier[SIM_PROCESSES];
} held_units;

/* Adds up the holds of a resource that are in use, for all processes. */
static void add_held_units(const sim_world *world, size_t resource, held_units *out) {
    const sim_leased_run *run = world->leased;
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < world->client_count; i++) {
        doorman_time now = sim_local(&world->clients[i].machine.clock, world->now);
        for (size_t j = 0; j < SIM_LEASED_JOBS; j++) {
            const sim_leased_job *job = &run->users[i].jobs[j];
            if (job->state != SIM_LEASED_HOLDING || job->resource != resource) continue;
            if (now >= job->end) continue;
            bool earlier = job->mastership != run->processes[job->process].mastership;
            (earlier ? out->earlier : out->present)[job->process] += job->cost;
        }
    }
}

static double node_units(const sim_world *world, size_t node, size_t resource,
                         const held_units *held) {
    double units = 0;
    for (size_t i = 0; i < world->nodes[node].process_count; i++) {
        size_t process = world->nodes[node].first_process + i;
        double lease = world->leased->processes[process].amounts[resource].units;
        units += fmax(lease, held->present[process]);
        units += held->earlier[process];
    }
    return units;
}

double sim_leased_units(const sim_world *world, size_t node, size_t resource) {
    held_units held;
    if (!world->leased) return 0;
    add_held_units(world, resource, &held);
    return node_units(world, node, resource, &held);
}

void sim_leased_add_up(sim_world *world, size_t resource) {
    held_units held;
    if (!world->leased) return;
    add_held_units(world, resource, &held);
    for (size_t i = 0; i < world->node_count; i++) {
        double lease = 0, units = node_units(world, i, resource, &held);
        for (size_t j = 0; j < world->nodes[i].process_count; j++) {
            size_t process = world->nodes[i].first_process + j;
            lease += world->leased->processes[process].amounts[resource].units;
        }
        for (size_t node = i; node != SIM_NONE; node = world->nodes[node].parent) {
            world->nodes[node].in_use[resource] += units;
            world->nodes[node].leases[resource] += lease;
        }
    }
}

/* ---- permits that wait */

/* P7: the first permit of a queue does not wait if there is room for it. */
static void check_first(sim_world *world, size_t process, size_t resource) {
    const sim_leased_process *own = &world->leased->processes[process];
    const sim_leased_wait *first = NULL;
    doorman_permit_detail detail;
    for (size_t i = 0; i < own->wait_count; i++) {
        const sim_leased_wait *wait = &own->waits[i];
        bool same = world->leased->calls[wait->call].resource == resource;
        if (same && (!first || wait->arrival < first->arrival)) first = wait;
    }
    if (!first || !inspect(world, process, resource, &detail)) return;
    const sim_leased_call *call = &world->leased->calls[first->call];
    if (detail.most - detail.used < call->cost) return;
    sim_fail(world, "%s lets request %llu of c%zu wait for %g, and %g of %g are in use",
             world->processes[process].address, (unsigned long long)call->request_id, call->client,
             call->cost, detail.used, detail.most);
}

void sim_leased_check_waits(sim_world *world, size_t process) {
    const sim_leased_process *own = &world->leased->processes[process];
    doorman_time now = local_of(world, process);
    for (size_t i = 0; i < own->wait_count; i++) {
        const sim_leased_call *call = &world->leased->calls[own->waits[i].call];
        doorman_time most = world->leased->figures[call->resource].max_wait;
        if (call->max_wait < most) most = call->max_wait;
        if (own->waits[i].asked_at + most + LATENESS >= now) continue;
        sim_fail(world, "%s lets a permit of c%zu wait for too long",
                 world->processes[process].address, call->client);
    }
    for (size_t i = 0; i < world->resource_count; i++) check_first(world, process, i);
}

/* ---- the end of a run */

void sim_leased_pause(sim_world *world) {
    if (world->leased) world->leased->asks = false;
}

void sim_leased_ask_all(sim_world *world) {
    sim_leased_run *run = world->leased;
    run->asks = run->all = true;
    for (size_t i = 0; i < world->client_count; i++) {
        for (size_t j = 0; j < world->resource_count; j++) {
            run->users[i].granted[j] = run->users[i].refused[j] = 0;
            sim_set_wants(world, i, j, 0);
        }
    }
}

/* Returns whether there is room for twice what clients may need: one unit for each job, and one for
 * each node, which may round its lease. */
static bool has_room(const sim_world *world, size_t resource) {
    const sim_rules *rules = &world->versions[world->version].rules[resource];
    size_t most = 2 * world->client_count * SIM_LEASED_JOBS + 2 * world->node_count;
    return rules->matched && rules->capacity >= (double)most;
}

/* Fewer refusals than this can be chance. A lease follows use, so it has little to spare, and each
 * permit of a rate may come just after a permit of another client. */
#define CHANCE 16

void sim_leased_check_granted(sim_world *world) {
    for (size_t i = 0; i < world->client_count; i++) {
        const sim_leased_user *user = &world->leased->users[i];
        if (!world->clients[i].client) continue;
        for (size_t j = 0; j < world->resource_count; j++) {
            bool by_chance = user->refused[j] > 0 && user->refused[j] < CHANCE;
            if (user->granted[j] || by_chance || !has_room(world, j)) continue;
            sim_fail(world, "%s asks for %s for long, and gets none, although there is room",
                     world->clients[i].id, world->leased->places[j]);
        }
    }
}
