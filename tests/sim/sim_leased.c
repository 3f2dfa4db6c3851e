/* Leased permits in a simulated tree: configurations, processes and messages.
 *
 * A run has the nodes, clients and faults of a run with leases, except OVERLOAD. Each resource also
 * has a leased limit, of kind TOKEN_BUCKET or CONCURRENCY (in a root only if a template matches).
 * So the permits of each master are one more holder of the resource. All clients ask the processes
 * of their nodes for permits, and hold and renew units (sim_leased_user.c). The checks of leases
 * also count what permits may use and what holders use by their clocks (sim_leased_check.c).
 *
 * When the faults have ended, clients ask for no permits until all leases have their exact shares.
 * Then the clients want no leases any more, and ask for permits again. Where there is room, each
 * client must get permits for each resource. */
#include "sim_leased.h"

#include <stdlib.h>
#include <string.h>

#define SECOND DOORMAN_SECOND
#define UPDATES_MAX 10 /* updates at one time; there are far fewer holds than these can end */

static sim_leased_run the_run; /* one at a time */

static doorman_time local_of(const sim_world *world, size_t process) {
    return sim_local(&world->processes[process].machine.clock, world->now);
}

/* ---- configurations */

static doorman_permit_limit limit_of(const sim_world *world, size_t resource) {
    const sim_leased_run *run = world->leased;
    return (doorman_permit_limit){.name = "share",
                                  .per = DOORMAN_PER_RESOURCE,
                                  .kind = run->holds[resource] ? DOORMAN_CONCURRENCY
                                                               : DOORMAN_TOKEN_BUCKET,
                                  .leased = true,
                                  .figures = run->figures[resource],
                                  .subclients = run->subclients[resource],
                                  .lease_of = run->apart ? world->resources[resource] : NULL};
}

/* Adds the limits. Only resources with a template get one, because lease_of must name such a
 * resource. */
size_t sim_leased_fill_templates(const sim_world *world, doorman_template *templates, size_t count,
                                 doorman_permit_limit *limits) {
    if (!world->leased) return count;
    bool apart = world->leased->apart;
    for (size_t i = 0, matched = count; i < matched; i++) {
        size_t resource = sim_resource_index(world, templates[i].identifier_glob);
        limits[i] = limit_of(world, resource);
        doorman_template *template = &templates[apart ? count++ : i];
        if (apart) {
            *template = (doorman_template){.identifier_glob = world->leased->places[resource],
                                           .without_capacity = true};
        }
        template->has_limits = true;
        template->limits = &limits[i];
        template->limit_count = 1;
    }
    return count;
}

/* Creates the configuration of the nodes that have a parent. It has only limits. */
static void create_child_config(sim_world *world) {
    doorman_template templates[SIM_RESOURCES];
    doorman_permit_limit limits[SIM_RESOURCES];
    memset(templates, 0, sizeof templates);
    for (size_t i = 0; i < world->resource_count; i++) {
        limits[i] = limit_of(world, i);
        templates[i] = (doorman_template){.identifier_glob = world->leased->places[i],
                                          .without_capacity = true,
                                          .has_limits = true,
                                          .limits = &limits[i],
                                          .limit_count = 1};
    }
    doorman_config_options options = {.templates = templates,
                                      .template_count = world->resource_count};
    doorman_error error = {0};
    if (doorman_config_create(&world->leased->child, &options, &error) == DOORMAN_OK) return;
    fprintf(stderr, "configuration: %s\n", error.text);
    abort();
}

static void draw_figures(doorman_figures *figures, uint64_t *random) {
    *figures = (doorman_figures){.has_max_wait = true};
    figures->time_to_live = sim_time_between(random, 2 * SECOND, SIM_LEASED_LIFE);
    figures->queue = sim_below(random, 4) ? (size_t)sim_below(random, 16) : 0;
    figures->max_wait = sim_time_between(random, SECOND, 20 * SECOND);
}

void sim_leased_set_up(sim_world *world) {
    sim_leased_run *run = &the_run, kept = the_run;
    memset(run, 0, sizeof *run);
    run->calls = kept.calls;
    run->call_capacity = kept.call_capacity;
    run->replies = kept.replies;
    run->reply_capacity = kept.reply_capacity;
    run->random = world->seed * 37 + 11;
    world->leased = run;
}

void sim_leased_draw(sim_world *world) {
    sim_leased_run *run = world->leased;
    if (!run) return;
    run->asks = true;
    run->apart = sim_below(&run->random, 2);
    for (size_t i = 0; i < world->resource_count; i++) {
        run->holds[i] = sim_below(&run->random, 3) > 0;
        snprintf(run->places[i], sizeof run->places[i], "%c%zu", run->apart ? 'p' : 'r', i);
        if (run->holds[i]) draw_figures(&run->figures[i], &run->random);
        if (sim_below(&run->random, 2)) {
            run->subclients[i] = 1 + (uint32_t)sim_below(&run->random, 9);
        }
    }
    doorman_time hold = 2 * SIM_LEASED_STAY + 2 * SIM_LEASED_LIFE;
    if (world->hold < hold) world->hold = hold;
    create_child_config(world);
}

void sim_leased_tear_down(sim_world *world) {
    if (world->leased) doorman_config_destroy(world->leased->child);
    world->leased = NULL;
}

/* ---- the network */

static void on_call(sim_world *world, const sim_event *event);
static void on_reply(sim_world *world, const sim_event *event);

static void transmit(sim_world *world, sim_handler handler, const sim_leased_call *call,
                     size_t index) {
    const sim_event event = {.handler = handler, .actor = call->client, .target = index};
    bool passes = sim_reaches(world, call->client, call->process);
    sim_transmit(world, &world->leased->random, event, passes);
}

void sim_leased_send(sim_world *world, const sim_leased_call *call) {
    sim_leased_run *run = world->leased;
    if (run->call_count == run->call_capacity) {
        run->call_capacity = run->call_capacity ? 2 * run->call_capacity : 256;
        run->calls = realloc(run->calls, run->call_capacity * sizeof *run->calls);
        if (!run->calls) abort();
    }
    run->calls[run->call_count] = *call;
    sim_log(world, "%s sends to %s: %s %g of %s, request %llu, hold %llx",
            world->clients[call->client].id, world->processes[call->process].address,
            doorman_method_name(call->method, false), call->cost, run->places[call->resource],
            (unsigned long long)call->request_id, (unsigned long long)call->id);
    transmit(world, on_call, call, run->call_count++);
}

static void send_reply(sim_world *world, size_t process, sim_leased_reply reply) {
    sim_leased_run *run = world->leased;
    const sim_leased_call *call = &run->calls[reply.call];
    if (run->reply_count == run->reply_capacity) {
        run->reply_capacity = run->reply_capacity ? 2 * run->reply_capacity : 256;
        run->replies = realloc(run->replies, run->reply_capacity * sizeof *run->replies);
        if (!run->replies) abort();
    }
    reply.mastership = run->processes[process].mastership;
    run->replies[run->reply_count] = reply;
    sim_hash(world, (uint64_t)reply.expires_in ^ reply.id);
    sim_log(world, "%s answers %s about %g of %s: %s, hold %llx for %.3f s",
            world->processes[process].address, world->clients[call->client].id, call->cost,
            run->places[call->resource],
            !reply.is_master ? "not master"
            : reply.gone     ? "gone"
            : reply.granted  ? "done"
                             : "refused",
            (unsigned long long)reply.id, (double)reply.expires_in / 1e9);
    transmit(world, on_reply, call, run->reply_count++);
}

static void on_reply(sim_world *world, const sim_event *event) {
    const sim_leased_reply *reply = &world->leased->replies[event->target];
    const sim_leased_call *call = &world->leased->calls[reply->call];
    const sim_machine *machine = &world->clients[call->client].machine;
    if (machine->incarnation != call->incarnation || !world->clients[call->client].client) return;
    if (machine->paused_until) {
        bool lost = sim_fault_occurs(world, SIM_STALL, 0.5);
        if (!lost) sim_schedule(world, machine->paused_until, *event);
        return;
    }
    sim_leased_user_reply(world, reply);
}

/* ---- decisions */

static sim_leased_reply permit_reply(size_t call, const doorman_permit *permit) {
    sim_leased_reply reply = {.call = call, .is_master = true, .granted = permit->granted};
    if (!permit->granted) return reply;
    reply.id = permit->hold_id;
    reply.waited = permit->waited;
    reply.expires_in = permit->expires_in;
    return reply;
}

/* Takes the decisions on permits that have waited. */
static void take_decisions(sim_world *world, size_t process) {
    sim_leased_process *own = &world->leased->processes[process];
    doorman_permits *permits = doorman_server_permits(world->processes[process].server);
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
        size_t call = own->waits[i].call;
        memmove(&own->waits[i], &own->waits[i + 1], (--own->wait_count - i) * sizeof own->waits[i]);
        send_reply(world, process, permit_reply(call, &permit));
    }
}

/* Notes that a permit waits. A repeated request keeps its first position in the queue. */
static void add_wait(sim_world *world, size_t process, size_t index, uint64_t ticket) {
    sim_leased_run *run = world->leased;
    sim_leased_process *own = &run->processes[process];
    const sim_leased_call *call = &run->calls[index];
    if (own->wait_count == SIM_LEASED_WAITS) {
        sim_fail(world, "too many permits wait");
        return;
    }
    sim_leased_wait *wait = &own->waits[own->wait_count];
    *wait = (sim_leased_wait){.ticket = ticket, .call = index, .arrival = ++run->arrivals};
    wait->asked_at = local_of(world, process);
    for (size_t i = 0; i < own->wait_count; i++) {
        const sim_leased_call *other = &run->calls[own->waits[i].call];
        bool same = other->client == call->client && other->request_id == call->request_id;
        if (same) wait->arrival = own->waits[i].arrival;
    }
    own->wait_count++;
}

/* ---- masterships */

static void change_all(sim_world *world) {
    for (size_t i = 0; i < world->resource_count; i++) world->leased->changed[i] = true;
}

/* Ends a mastership. If `answers` is set, all permits that wait are answered "not master". */
static void lose_mastership(sim_world *world, size_t process, bool answers) {
    sim_leased_process *own = &world->leased->processes[process];
    for (size_t i = 0; i < own->wait_count && answers; i++) {
        send_reply(world, process,
                   (sim_leased_reply){.call = own->waits[i].call, .master = SIM_NONE});
    }
    own->wait_count = 0;
    own->mastership = 0;
    memset(own->amounts, 0, sizeof own->amounts);
    change_all(world);
}

void sim_leased_died(sim_world *world, size_t process) {
    if (world->leased) lose_mastership(world, process, false);
}

void sim_leased_elected(sim_world *world, size_t process, doorman_time until) {
    if (!world->leased) return;
    sim_leased_process *own = &world->leased->processes[process];
    doorman_time local = local_of(world, process);
    if (local >= until || local >= own->until) lose_mastership(world, process, true);
    own->until = until;
    if (local < until && !own->mastership) own->mastership = ++world->leased->masterships;
    sim_leased_observe(world, process);
}

void sim_leased_fill_options(sim_world *world, size_t process, doorman_server_options *options) {
    if (!world->leased || sim_is_root(world, &world->processes[process])) return;
    options->config = world->leased->child;
}

void sim_leased_before(sim_world *world, size_t process) {
    if (world->leased) sim_leased_observe(world, process);
}

/* Does what is due for the permits of a process, and takes their decisions. */
void sim_leased_stepped(sim_world *world, size_t process) {
    if (!world->leased || world->failure[0]) return;
    sim_leased_process *own = &world->leased->processes[process];
    doorman_permits *permits = doorman_server_permits(world->processes[process].server);
    doorman_time now = local_of(world, process);
    if (!permits) {
        if (own->mastership) lose_mastership(world, process, true);
        return;
    }
    take_decisions(world, process);
    for (int i = 0; i < UPDATES_MAX && doorman_permits_due(permits) <= now; i++) {
        doorman_permits_update(permits, now);
        take_decisions(world, process);
    }
    sim_leased_observe(world, process);
    sim_leased_check_waits(world, process);
}

/* ---- messages at a process */

static doorman_status acquire(sim_world *world, size_t process, const sim_leased_call *call,
                              doorman_response *response, doorman_error *error) {
    doorman_permit_item item = {.resource_id = world->leased->places[call->resource],
                                .cost = call->cost};
    doorman_permit_request permit = {.items = &item, .item_count = 1, .max_wait = call->max_wait};
    bool holds = world->leased->holds[call->resource];
    permit.request_id = holds ? call->request_id : 0;
    doorman_request request = {.method = DOORMAN_ACQUIRE,
                               .holder_id = world->clients[call->client].id,
                               .permits = &permit,
                               .permit_count = 1,
                               .may_wait = holds};
    return doorman_server_handle(world->processes[process].server, &request, response, error,
                                 local_of(world, process));
}

static doorman_status renew_or_release(sim_world *world, size_t process,
                                       const sim_leased_call *call, doorman_response *response,
                                       doorman_error *error) {
    doorman_hold_item item = {world->leased->places[call->resource], "", call->cost};
    bool renews = call->method == DOORMAN_RENEW;
    doorman_hold_request hold = {.id = call->id,
                                 .request_id = call->request_id,
                                 .items = renews ? &item : NULL,
                                 .item_count = renews};
    doorman_request request = {.method = call->method,
                               .holder_id = world->clients[call->client].id,
                               .holds = &hold,
                               .hold_count = 1};
    return doorman_server_handle(world->processes[process].server, &request, response, error,
                                 local_of(world, process));
}

static size_t process_named(const sim_world *world, const char *address) {
    for (size_t i = 0; address && i < world->process_count; i++) {
        if (strcmp(world->processes[i].address, address) == 0) return i;
    }
    return SIM_NONE;
}

static void answer(sim_world *world, size_t process, size_t index,
                   const doorman_response *response) {
    const sim_leased_call *call = &world->leased->calls[index];
    if (call->method != DOORMAN_ACQUIRE) {
        const doorman_hold *hold = &response->holds[0];
        send_reply(world, process,
                   (sim_leased_reply){.call = index,
                                      .is_master = true,
                                      .gone = hold->gone,
                                      .granted = !hold->gone,
                                      .id = hold->id,
                                      .expires_in = hold->expires_in});
        return;
    }
    const doorman_permit *permit = &response->permits[0];
    if (permit->pending) {
        add_wait(world, process, index, permit->ticket);
        return;
    }
    bool takes = permit->granted && !world->leased->holds[call->resource];
    if (takes) sim_leased_granted(world, process, call->resource, permit->items[0].granted);
    send_reply(world, process, permit_reply(index, permit));
}

static void handle_call(sim_world *world, size_t process, size_t index) {
    const sim_leased_call call = world->leased->calls[index];
    doorman_response response;
    doorman_error error = {0};
    sim_overload_before(world, process); /* the permits may ask for a lease */
    sim_leased_stepped(world, process);
    doorman_status status = call.method == DOORMAN_ACQUIRE
                                ? acquire(world, process, &call, &response, &error)
                                : renew_or_release(world, process, &call, &response, &error);
    if (status != DOORMAN_OK) {
        sim_fail(world, "%s refuses a correct message: %s", world->processes[process].address,
                 error.text);
        return;
    }
    if (response.is_master) {
        answer(world, process, index, &response);
    } else {
        sim_leased_reply reply = {.call = index};
        reply.master = process_named(world, response.master_address);
        lose_mastership(world, process, true);
        send_reply(world, process, reply);
    }
    sim_check_resources(world, process);
    sim_step_process(world, process);
}

static void on_call(sim_world *world, const sim_event *event) {
    size_t process = world->leased->calls[event->target].process;
    const sim_process *receiver = &world->processes[process];
    if (receiver->machine.paused_until) {
        bool lost = sim_fault_occurs(world, SIM_FREEZE, 0.5);
        if (!lost) sim_schedule(world, receiver->machine.paused_until, *event);
    } else if (receiver->server) {
        handle_call(world, process, event->target);
    }
}
