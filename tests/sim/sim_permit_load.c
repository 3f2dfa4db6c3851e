/* What the clients of permits ask for: see sim_permits.c.
 *
 * Half of the time a client asks through its doorman_permit_client: see sim_permit_client.c.
 * Otherwise it sends messages as other programs do: permits, reports, inspections, resets and bans.
 * A sixth of the permits that are refused with retry_after are repeated exactly at that time. */
#include "sim_permits.h"

#include <math.h>
#include <stdlib.h>

#define SECOND DOORMAN_SECOND

/* ---- what is asked for */

static double draw_cost(uint64_t *random) {
    uint64_t choice = sim_below(random, 16);
    if (choice == 0) return 0;
    if (choice < 4) return (double)(1 + sim_below(random, 64)) / 8;
    return (double)(1 + sim_below(random, choice < 14 ? 3 : 20));
}

static void draw_item(doorman_permit_item *item, uint64_t *random) {
    *item = (doorman_permit_item){.resource_id = sim_place_names[sim_below(random, SIM_PLACES)]};
    item->key = sim_key_names[sim_below(random, SIM_KEYS)];
    item->cost = draw_cost(random);
    item->has_min = sim_below(random, 3) == 0;
    if (item->has_min) item->min = (double)sim_below(random, 1 + (uint64_t)(8 * item->cost)) / 8;
}

void sim_draw_permit(sim_wanted *wanted, uint64_t *random) {
    doorman_permit_request *permit = &wanted->request;
    doorman_permit_item *items = wanted->items;
    *permit = (doorman_permit_request){.item_count = 1};
    if (sim_below(random, 3) == 0) permit->item_count = 1 + sim_pick(random, SIM_ITEMS);
    for (size_t i = 0; i < permit->item_count; i++) draw_item(&items[i], random);
    if (sim_below(random, 2)) permit->max_wait = sim_time_between(random, 0, 4 * SECOND);
    permit->equal = sim_below(random, 8) == 0;
    double least = 0, most = INFINITY;
    for (size_t i = 0; i < permit->item_count; i++) {
        least = fmax(least, ceil(items[i].has_min ? items[i].min : items[i].cost));
        most = fmin(most, floor(items[i].cost));
    }
    if (least > most) permit->equal = false;
}

static void draw_entry(sim_entry *wanted, doorman_method method, uint64_t *random) {
    doorman_permit_entry *entry = &wanted->entry;
    wanted->place = sim_pick(random, SIM_PLACES);
    wanted->key = sim_pick(random, SIM_KEYS);
    entry->resource_id = sim_place_names[wanted->place];
    entry->key = sim_key_names[wanted->key];
    if (method == DOORMAN_REPORT) {
        entry->cost = (double)(1 + sim_below(random, 80)) / 8;
        if (sim_below(random, 3) == 0) entry->cost = -entry->cost;
    }
    if (method != DOORMAN_RESET) return;
    entry->sets_ban = sim_below(random, 2);
    if (entry->sets_ban && sim_below(random, 3))
        entry->ban = sim_time_between(random, 1, 20 * SECOND);
    if (!entry->sets_ban && sim_below(random, 2)) {
        entry->limit = sim_limit_names[sim_below(random, SIM_LIMIT_NAMES)];
    }
}

/* ---- messages of other programs */

static size_t random_process(const sim_world *world, size_t client, uint64_t *random) {
    const sim_node *node = &world->nodes[world->clients[client].node];
    return node->first_process + sim_pick(random, node->process_count);
}

static void address_call(sim_world *world, size_t index, size_t client, size_t process) {
    sim_call *call = &world->permits->calls[index];
    call->client = client;
    call->incarnation = world->clients[client].machine.incarnation;
    call->process = process;
}

/* Repeats a sixth of the refused permits exactly when retry_after has passed, at the same
 * process. */
void sim_load_refused(sim_world *world, size_t call, size_t permit, doorman_time after) {
    bool repeats = world->now < world->end && sim_below(&world->permits->random, 6) == 0;
    if (!repeats) return;
    size_t again = sim_add_call(world, DOORMAN_ACQUIRE, 1);
    const sim_call *from = &world->permits->calls[call];
    const sim_clock *clock = &world->processes[from->process].machine.clock;
    world->permits->calls[again].permits[0] = from->permits[permit];
    world->permits->calls[again].answered = true;
    address_call(world, again, from->client, from->process);
    sim_plan_call(world, again, sim_global(clock, sim_local(clock, world->now) + after));
}

static size_t draw_entries(sim_world *world, uint64_t *random) {
    uint64_t choice = sim_below(random, 16);
    doorman_method method = choice < 9    ? DOORMAN_REPORT
                            : choice < 13 ? DOORMAN_INSPECT
                                          : DOORMAN_RESET;
    size_t call = sim_add_call(world, method, 1);
    draw_entry(&world->permits->calls[call].entries[0], method, random);
    return call;
}

static size_t draw_permits(sim_world *world, uint64_t *random) {
    size_t count = 1 + (sim_below(random, 4) == 0 ? sim_pick(random, 3) : 0);
    size_t call = sim_add_call(world, DOORMAN_ACQUIRE, count);
    for (size_t i = 0; i < count; i++) {
        sim_wanted *wanted = &world->permits->calls[call].permits[i];
        sim_draw_permit(wanted, random);
        wanted->request.detail = sim_below(random, 4) == 0;
    }
    return call;
}

static void on_loader_due(sim_world *world, const sim_event *event) {
    sim_loader *loader = &world->permits->loaders[event->actor];
    uint64_t *random = &world->permits->random;
    doorman_time wait = (doorman_time)(sim_between(random, 0, 2 * loader->pace) * 1e9);
    if (world->now >= world->end) return;
    sim_schedule(world, world->now + wait, *event);
    if (world->clients[event->actor].machine.paused_until) return;
    if (sim_below(random, 2)) {
        sim_permit_client_ask(world, event->actor, random);
        return;
    }
    size_t call = sim_below(random, 5) ? draw_permits(world, random) : draw_entries(world, random);
    if (sim_below(random, 12) == 0) loader->process = random_process(world, event->actor, random);
    address_call(world, call, event->actor, loader->process);
    sim_send_call(world, call);
}

void sim_load_reply(sim_world *world, const sim_reply *reply) {
    sim_call *call = &world->permits->calls[reply->call];
    sim_loader *loader = &world->permits->loaders[call->client];
    if (call->answered) return;
    call->answered = true;
    if (reply->is_master) return;
    loader->process = reply->master == SIM_NONE
                          ? random_process(world, call->client, &world->permits->random)
                          : reply->master;
}

void sim_load_start(sim_world *world, size_t client) {
    uint64_t *random = &world->permits->random;
    sim_loader *loader = &world->permits->loaders[client];
    loader->process = random_process(world, client, random);
    loader->pace = sim_between(random, 0.1, 1.5);
    sim_schedule(world, sim_time_between(random, 0, SECOND),
                 (sim_event){.handler = on_loader_due, .actor = client});
}
