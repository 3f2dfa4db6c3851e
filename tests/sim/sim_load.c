/* What clients with leases use: units of gauges, which they give back, and units of rates. */
#include "sim.h"

#define SECOND DOORMAN_SECOND

/* Gives back units of sim_use_gauge. If the resource is closed, only notes that they are back. */
static void release_units(sim_world *world, const sim_event *event) {
    sim_usage *usage = &world->clients[event->actor].usages[event->target];
    double amount = event->amount;
    if (usage->generation != event->incarnation) return;
    sim_invalidate_client(world, event->actor);
    if (usage->resource) {
        (void)doorman_client_release(usage->resource, amount);
        sim_log(world, "c%zu releases %.6g of r%zu", event->actor, amount, event->target);
    } else {
        usage->abandoned = usage->abandoned > amount ? usage->abandoned - amount : 0;
        usage->returned_units += amount;
    }
}

void sim_use_gauge(sim_world *world, const sim_event *event) {
    sim_client *client = &world->clients[event->actor];
    sim_usage *usage = &client->usages[event->target];
    uint64_t *random = &world->fault_random[SIM_HOLD];
    doorman_time local = sim_local(&client->machine.clock, world->now);
    doorman_time hold = sim_time_between(random, SECOND / 10, world->hold);
    double part = sim_below(random, 2) ? 1 : sim_unit(random);
    doorman_resource_info info;
    if (world->now < world->end) {
        sim_schedule(world, world->now + sim_time_between(random, SECOND / 10, 10 * SECOND),
                     *event);
    }
    if (world->now >= world->end || client->machine.paused_until) return;
    if (!sim_leased(world, event->actor, event->target, &info)) return;
    double amount = (double)(int64_t)((info.capacity - info.in_use) * part * 16) / 16;
    if (amount <= 0) return;
    sim_invalidate_client(world, event->actor);
    if (doorman_client_try(usage->resource, amount, NULL, local) != DOORMAN_ALLOWED) {
        sim_fail(world, "%s has %g of r%zu with %g in flight, but is refused %g", client->id,
                 info.capacity, event->target, info.in_use, amount);
        return;
    }
    sim_log(world, "%s uses %.6g of r%zu for %.3f s", client->id, amount, event->target,
            (double)hold / SECOND);
    sim_event back = {.handler = release_units, .actor = event->actor, .target = event->target};
    back.incarnation = usage->generation;
    back.amount = amount;
    sim_schedule(world, world->now + hold, back);
}

void sim_use_rate(sim_world *world, const sim_event *event) {
    sim_client *client = &world->clients[event->actor];
    sim_usage *usage = &client->usages[event->target];
    uint64_t *random = &world->random;
    doorman_time next = world->now + sim_time_between(random, SECOND / 100, 4 * SECOND);
    double amount = usage->capacity * sim_between(random, 0, 10);
    size_t parts = 1 + sim_pick(random, 8);
    if (world->now < world->end) sim_schedule(world, next, *event);
    if (!usage->resource || client->machine.paused_until || amount <= 0) return;
    doorman_time local = sim_local(&client->machine.clock, world->now);
    double before = usage->granted;
    if (usage->largest < amount / (double)parts) usage->largest = amount / (double)parts;
    for (size_t i = 0; i < parts; i++) {
        doorman_decision decision =
            doorman_client_try(usage->resource, amount / (double)parts, NULL, local);
        if (decision == DOORMAN_ALLOWED) usage->granted += amount / (double)parts;
    }
    sim_invalidate_client(world, event->actor);
    if (usage->granted <= before) return;
    sim_log(world, "%s grants %.6g of r%zu", client->id, usage->granted - before, event->target);
}
