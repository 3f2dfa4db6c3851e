/* The elections of the processes, and the store of each node: see sim.h.
 *
 * Each process runs the doorman_election of doorman.h. The store is a model: a key, and store
 * leases that end by the simulated time. Its clock is exact, and the clocks of the processes differ
 * from it. Calls and answers are messages. They take time, and can be lost, late or duplicated. An
 * exiled process cannot reach the store. A paused process gets its answers when it runs again.
 *
 * This file checks V2: no two processes of a node are master at the same simulated time, and the
 * store lease of the master holds the key. A process that is not master never redirects to itself.
 */
#include "sim.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- the store of a node */

#define OWNER_BITS 6 /* bits of the id of a store lease that hold its process */
static_assert(SIM_PROCESSES <= 1 << OWNER_BITS, "a process fits into OWNER_BITS");

static size_t owner_of(int64_t lease) { return (size_t)lease & ((1 << OWNER_BITS) - 1); }

/* Returns NULL if there is no such store lease, or if it has ended. */
static sim_store_lease *find_lease(sim_store *store, int64_t id, doorman_time now) {
    for (size_t i = 0; id && i < SIM_STORE_LEASES; i++) {
        if (store->leases[i].id == id && now < store->leases[i].end) return &store->leases[i];
    }
    return NULL;
}

/* Returns the process whose store lease holds the key, or SIM_NONE. */
size_t sim_key_holder(sim_world *world, size_t node) {
    sim_store *store = &world->nodes[node].store;
    if (!find_lease(store, store->key, world->now)) store->key = 0;
    return store->key ? owner_of(store->key) : SIM_NONE;
}

static int64_t grant_lease(sim_world *world, sim_store *store, size_t process) {
    sim_store_lease *lease = store->leases;
    while (world->now < lease->end) {
        lease++;
        assert(lease < store->leases + SIM_STORE_LEASES);
    }
    lease->id = (int64_t)(++store->grant_count << OWNER_BITS | process);
    lease->end = world->now + world->ttl;
    return lease->id;
}

/* Handles a call in the store, and turns the event of the call into the event of the answer. The
 * store creates no key before `vacant_until`. */
static void handle_call(sim_world *world, sim_event *event) {
    size_t node = world->processes[event->actor].node;
    sim_store *store = &world->nodes[node].store;
    sim_store_lease *lease = find_lease(store, event->lease, world->now);
    bool is_free = sim_key_holder(world, node) == SIM_NONE && world->now >= store->vacant_until;
    switch (event->target) {
    case DOORMAN_GRANT_LEASE: event->lease = grant_lease(world, store, event->actor); break;
    case DOORMAN_KEEP_ALIVE:
        event->lease = lease ? lease->id : 0;
        if (lease) lease->end = world->now + world->ttl;
        break;
    case DOORMAN_READ_KEY: event->lease = store->key; break;
    case DOORMAN_CREATE_KEY:
        event->lease = lease && is_free ? lease->id : 0;
        if (event->lease) {
            store->key = event->lease;
            store->term++;
        }
        break;
    default:
        assert(event->target == DOORMAN_REVOKE_LEASE);
        if (lease) lease->end = world->now;
        break;
    }
    event->term = store->term;
}

static doorman_election_answer answer_of(const sim_world *world, const sim_event *event) {
    doorman_election_answer answer = {.lease = event->lease, .term = event->term};
    answer.exists = answer.created = event->lease != 0;
    if (!event->lease) return answer;
    answer.ttl = world->ttl;
    answer.address = world->processes[owner_of(event->lease)].address;
    return answer;
}

/* ---- what a process does with its mastership */

static doorman_election_state mastership_of(const sim_world *world, const sim_process *process,
                                            doorman_mastership *out) {
    return doorman_election_mastership(&process->election, out,
                                       sim_local(&process->machine.clock, world->now));
}

/* V2: no other process of the node is master, and this process holds the key. */
static void check_master(sim_world *world, size_t index) {
    const sim_process *process = &world->processes[index];
    const sim_node *node = &world->nodes[process->node];
    doorman_mastership mastership;
    for (size_t i = 0; i < node->process_count; i++) {
        const sim_process *other = &world->processes[node->first_process + i];
        if (other == process || !other->server) continue;
        if (mastership_of(world, other, &mastership) == DOORMAN_MASTER) {
            sim_fail(world, "%s and %s are master", process->address, other->address);
        }
    }
    if (sim_key_holder(world, process->node) != index) {
        sim_fail(world, "%s is master without the key", process->address);
    }
}

/* ---- planned stops */

static bool add_bytes(void *context, const void *bytes, size_t count) {
    sim_handover *handover = (sim_handover *)context;
    while (handover->capacity - handover->count < count) {
        handover->capacity = handover->capacity ? 2 * handover->capacity : 4096;
        handover->bytes = (unsigned char *)realloc(handover->bytes, handover->capacity);
        if (!handover->bytes) abort();
    }
    memcpy(handover->bytes + handover->count, bytes, count);
    handover->count += count;
    return true;
}

void sim_drop_handover(sim_store *store) {
    free(store->handover.bytes);
    store->handover = (sim_handover){.bytes = NULL};
}

/* D8: with the fault HANDOVER, a master that will resign mostly hands its leases over. Sometimes
 * the store loses the end of what the master writes. Returns whether the master has handed over. */
static bool hand_over(sim_world *world, sim_process *process) {
    sim_store *store = &world->nodes[process->node].store;
    doorman_time local = sim_local(&process->machine.clock, world->now);
    sim_handover *handover = &store->handover;
    sim_drop_handover(store);
    if (process->election_state != DOORMAN_MASTER) return false;
    if (!sim_fault_occurs(world, SIM_HANDOVER, 0.9)) return false;
    sim_holds_hand_over(world, (size_t)(process - world->processes), handover);
    doorman_status status = doorman_server_hand_over(process->server, add_bytes, handover, local);
    if (status == DOORMAN_UNAVAILABLE) sim_drop_handover(store); /* its mastership has ended */
    if (status != DOORMAN_OK) return false;
    handover->is_cut = sim_fault_occurs(world, SIM_HANDOVER, 0.1);
    if (handover->is_cut) {
        handover->count = (size_t)sim_below(&world->fault_random[SIM_HANDOVER], handover->count);
    }
    handover->term = store->term;
    memcpy(handover->granted, process->granted, sizeof handover->granted);
    sim_log(world, "%s hands over %zu bytes", process->address, handover->count);
    return true;
}

/* D8, D9: lets a new master take over what the master just before it has handed over, at most once.
 * With the fault MARK the new master may find the handover too late, and learns. Or it takes over,
 * but the store keeps the handover, which neither a later master nor the same master after an
 * interruption may use. */
static void take_over(sim_world *world, sim_process *process) {
    sim_store *store = &world->nodes[process->node].store;
    const sim_handover *handover = &store->handover;
    doorman_time local = sim_local(&process->machine.clock, world->now);
    doorman_error error = {0};
    const bool is_late = sim_fault_occurs(world, SIM_MARK, 0.3);
    const bool survives = sim_fault_occurs(world, SIM_MARK, 0.5) || is_late;
    const bool is_valid = handover->bytes && sim_handover_is_next(handover, store->term) &&
                          sim_handover_is_new(process, store->term);
    process->looked_term = store->term;
    if (is_valid && !is_late) {
        doorman_status status = doorman_server_take_over(process->server, handover->bytes,
                                                         handover->count, &error, local);
        if ((status == DOORMAN_OK) == handover->is_cut) {
            sim_fail(world, "%s takes over: %s", process->address, error.text);
        }
        if (status == DOORMAN_OK) {
            memcpy(process->granted, handover->granted, sizeof process->granted);
            sim_overload_forget(process); /* reports are not handed over */
            sim_holds_take_over(world, (size_t)(process - world->processes), handover);
            sim_log(world, "%s takes over", process->address);
        }
    }
    if (!survives) sim_drop_handover(store);
}

/* Passes the mastership on to the server. */
static void apply(sim_world *world, size_t index) {
    sim_process *process = &world->processes[index];
    doorman_time local = sim_local(&process->machine.clock, world->now);
    doorman_mastership mastership;
    doorman_election_state state = mastership_of(world, process, &mastership);
    const char *master = mastership.address ? mastership.address : "";
    bool changed = state != process->election_state || strcmp(master, process->master) != 0;
    if (state == DOORMAN_MASTER) check_master(world, index);
    if (state != DOORMAN_MASTER && strcmp(master, process->address) == 0) {
        sim_fail(world, "%s redirects to itself", process->address);
    }
    if (doorman_server_set_master(process->server, &mastership, local) != DOORMAN_OK) {
        sim_fail(world, "%s refuses a mastership", process->address);
    }
    if (state == DOORMAN_MASTER && process->election_state != DOORMAN_MASTER) {
        take_over(world, process);
    }
    sim_permits_elected(world, index, mastership.until);
    sim_holds_elected(world, index, mastership.until);
    sim_states_elected(world, index, &mastership);
    sim_leased_elected(world, index, mastership.until);
    if (state == DOORMAN_MASTER || changed) sim_observe_learning(world, index);
    if (!changed) return;
    if (state == DOORMAN_MASTER) {
        sim_log(world, "%s is elected%s", process->address,
                mastership.predecessor_gone ? ", and saw its predecessor go" : "");
    }
    process->election_state = state;
    snprintf(process->master, sizeof process->master, "%s", master);
    if (!sim_is_root(world, process)) sim_step_process(world, index);
}

/* ---- calls and answers on their way */

static void step_election(sim_world *world, size_t index);

/* Returns the number of a call, which is unique among all elections of the process. */
static uint64_t call_number(const sim_process *process, uint64_t sequence) {
    return process->election_number << 32 | sequence;
}

/* Returns true if the process has died, has begun another election since, or is paused. A paused
 * process gets the event again when it runs again. */
static bool misses(sim_world *world, const sim_event *event) {
    const sim_process *process = &world->processes[event->actor];
    if (!process->server || process->election_number != event->incarnation >> 32) return true;
    if (!process->machine.paused_until) return false;
    sim_schedule(world, process->machine.paused_until, *event);
    return true;
}

static void take_answer(sim_world *world, const sim_event *event,
                        const doorman_election_answer *answer) {
    sim_process *process = &world->processes[event->actor];
    doorman_status status =
        doorman_election_answered(&process->election, event->incarnation & UINT32_MAX, answer,
                                  sim_local(&process->machine.clock, world->now));
    if (status == DOORMAN_STALE) return;
    apply(world, event->actor);
    step_election(world, event->actor);
}

static void on_answer(sim_world *world, const sim_event *event) {
    if (misses(world, event)) return;
    doorman_election_answer answer = answer_of(world, event);
    take_answer(world, event, &answer);
}

static void on_no_answer(sim_world *world, const sim_event *event) {
    if (!misses(world, event)) take_answer(world, event, NULL);
}

/* Sends a call or an answer. If the message is lost, or takes longer than the time limit of a call,
 * the process gives up the call after this time. A message without delay is handled at once. */
static void transmit(sim_world *world, sim_handler handler, sim_event event) {
    doorman_time limit = world->ttl / 5;
    if (limit < DOORMAN_SECOND / 2) limit = DOORMAN_SECOND / 2;
    if (limit > 2 * DOORMAN_SECOND) limit = 2 * DOORMAN_SECOND;
    int copies = sim_fault_occurs(world, SIM_DOUBLE, 0.2) ? 2 : 1;
    bool in_time = false, at_once = false;
    event.handler = handler;
    for (int i = 0; i < copies; i++) {
        doorman_time delay = sim_time_between(&world->election_random, 0, world->latency);
        if (sim_fault_occurs(world, SIM_DELAY, 0.05)) {
            delay += sim_time_between(&world->fault_random[SIM_DELAY], 0, 10 * DOORMAN_SECOND);
        }
        if (sim_fault_occurs(world, SIM_LOSS, 0.1)) continue;
        if (world->processes[event.actor].exiled) continue;
        in_time = in_time || delay < limit;
        at_once = at_once || delay == 0;
        if (delay > 0) sim_schedule(world, world->now + delay, event);
    }
    sim_event late = event;
    late.handler = on_no_answer;
    if (!in_time) sim_schedule(world, world->now + limit, late);
    if (at_once) handler(world, &event);
}

static void on_call(sim_world *world, const sim_event *event) {
    sim_event answer = *event;
    handle_call(world, &answer);
    transmit(world, on_answer, answer);
}

/* ---- the loop of a process */

static void on_due(sim_world *world, const sim_event *event) {
    if (!misses(world, event)) step_election(world, event->actor);
}

/* Makes the next call, or waits until it is due. */
static void step_election(sim_world *world, size_t index) {
    sim_process *process = &world->processes[index];
    doorman_time local = sim_local(&process->machine.clock, world->now);
    doorman_election_call call;
    sim_event event = {.actor = index};
    if (doorman_election_next(&process->election, &call, local)) {
        event.incarnation = call_number(process, call.sequence);
        event.target = call.kind;
        event.lease = call.lease;
        transmit(world, on_call, event);
    } else {
        event.incarnation = call_number(process, 0);
        event.handler = on_due;
        sim_schedule(world, sim_global(&process->machine.clock, call.due), event);
    }
}

/* Begins an election of a process, in place of its last one. */
static void begin(sim_world *world, size_t index) {
    sim_process *process = &world->processes[index];
    doorman_time local = sim_local(&process->machine.clock, world->now);
    doorman_election_options options = {.address = process->address, .ttl = world->ttl};
    process->election_number++;
    process->election_state = DOORMAN_NO_MASTER;
    process->master[0] = 0;
    if (doorman_election_init(&process->election, &options, NULL, local) != DOORMAN_OK) {
        sim_fail(world, "%s refuses the options of an election", process->address);
    }
}

void sim_begin_election(sim_world *world, size_t index) {
    begin(world, index);
    sim_event event = {.handler = on_due, .actor = index};
    event.incarnation = call_number(&world->processes[index], 0);
    sim_schedule(world, world->now, event);
}

static void on_return(sim_world *world, const sim_event *event) {
    if (misses(world, event)) return;
    begin(world, event->actor);
    step_election(world, event->actor);
}

/* Makes a process resign. It takes part again when all others have had time to poll the store. */
static void resign(sim_world *world, size_t index, doorman_time vacant_until) {
    sim_process *process = &world->processes[index];
    doorman_time local = sim_local(&process->machine.clock, world->now);
    sim_log(world, "%s resigns", process->address);
    world->nodes[process->node].store.vacant_until = vacant_until;
    doorman_election_resign(&process->election, local);
    apply(world, index);
    step_election(world, index);
    sim_event event = {.handler = on_return, .actor = index};
    event.incarnation = call_number(process, 0);
    sim_schedule(world, world->now + DOORMAN_SECOND + DOORMAN_SECOND / 50 + 1, event);
}

static void on_stored(sim_world *world, const sim_event *event) {
    if (misses(world, event)) return;
    if (world->processes[event->actor].election_state == DOORMAN_RESIGNED) return;
    resign(world, event->actor, (doorman_time)event->term);
}

/* A process that hands over resigns when the store has its leases. */
void sim_resign(sim_world *world, size_t node, doorman_time vacant_until) {
    size_t index = sim_key_holder(world, node);
    if (index == SIM_NONE) return;
    sim_process *process = &world->processes[index];
    if (!process->server || process->machine.paused_until) return;
    if (process->election_state == DOORMAN_RESIGNED) return; /* the store does not know it yet */
    if (!hand_over(world, process)) {
        resign(world, index, vacant_until);
        return;
    }
    uint64_t *random = &world->fault_random[SIM_HANDOVER];
    bool at_once = sim_below(random, 2);
    doorman_time stored = world->now;
    if (!at_once) stored += sim_time_between(random, 0, 3 * DOORMAN_SECOND);
    sim_event event = {.handler = on_stored, .actor = index, .term = (uint64_t)vacant_until};
    event.incarnation = call_number(process, 0);
    sim_schedule(world, stored, event);
}
