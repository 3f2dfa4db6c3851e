/* The invariants that must hold at every event, and the shares that must result in the end: see
 * sim.h. Each check states its exact condition. A failure ends the run. */
#include "sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Relative tolerance for two sums of doubles; absolute if both sums are less than 1. */
#define TOLERANCE 1e-9

static bool exceeds(double amount, double bound) {
    if (!(amount > bound)) return false; /* this is frequent, and fmax is slow */
    return amount > bound + TOLERANCE * fmax(1, fmax(fabs(amount), fabs(bound)));
}

static bool differs(double a, double b) { return exceeds(a, b) || exceeds(b, a); }

/* Returns whether the algorithm divides the capacity, so that all amounts together fit into it. */
static bool divides_capacity(const doorman_algorithm *algorithm) {
    return DOORMAN_KIND_DIVIDES(algorithm->kind);
}

/* Returns whether an algorithm promises that the leases never exceed the capacity (T7). There is no
 * such promise if the algorithm does not divide the capacity, if handover is immediate, or if
 * learning is shorter than the longest lease with drift. */
static bool guarantees_capacity(const doorman_algorithm *algorithm) {
    doorman_time length = algorithm->lease_length;
    bool learns = !algorithm->has_learning_mode_duration ||
                  algorithm->learning_mode_duration >= length + length / 20;
    return divides_capacity(algorithm) && learns && algorithm->handover == DOORMAN_CONFIRMED;
}

/* Returns how long, in simulated time, leases of a configuration can last after it is no longer in
 * force: the lease length with drift, by the slowest clock. Where no template matches, leases have
 * the default length. */
static doorman_time drain_time(const sim_rules *rules) {
    doorman_time length = rules->matched ? rules->algorithm.lease_length : 60 * DOORMAN_SECOND;
    return (length + length / 20) * 1000 / SIM_RATE_MIN;
}

void sim_find_drains(sim_world *world, size_t index) {
    sim_version *version = &world->versions[index];
    for (size_t i = 0; i < world->resource_count; i++) {
        doorman_time longest = index ? world->versions[index - 1].drain_max[i] : 0;
        version->drains[i] = drain_time(&version->rules[i]);
        version->drain_max[i] = version->drains[i] > longest ? version->drains[i] : longest;
    }
}

/* Computes when everything that was granted under each configuration has ended:
 *   - A lease ends no earlier than leases under earlier configurations, because a renewal never
 *     makes a lease end earlier (R9).
 *   - A lease that a learning server repeats lasts no longer than the longest lease of a version.
 *   - A cut does not end the units in flight of a gauge: the holder continues to claim them. So
 *     ends are later by the longest hold. */
static void find_ends(const sim_world *world, size_t resource, doorman_time *ends) {
    doorman_time last = 0, longest = world->versions[world->version].drain_max[resource];
    for (size_t i = 0; i <= world->version; i++) {
        const sim_version *version = &world->versions[i];
        doorman_time end = version->used_at[resource] + version->drains[resource];
        if (end > last) last = end;
        if (version->kept_at[resource] + longest > last) {
            last = version->kept_at[resource] + longest;
        }
        ends[i] = last + world->hold;
    }
}

/* Stores until when a process learns each resource. */
void sim_observe_learning(sim_world *world, size_t index) {
    sim_process *process = &world->processes[index];
    doorman_time local = sim_local(&process->machine.clock, world->now);
    doorman_cursor cursor = {0};
    doorman_server_resource resource;
    doorman_time learned_at[SIM_RESOURCES] = {0};
    while (process->server &&
           doorman_server_next_resource(process->server, &cursor, &resource, local)) {
        learned_at[sim_resource_index(world, resource.resource_id)] = resource.learned_at;
    }
    if (memcmp(learned_at, process->learned_at, sizeof learned_at) == 0) return;
    memcpy(process->learned_at, learned_at, sizeof learned_at);
    sim_invalidate_processes(world);
}

/* ---- limits */
/*
 * The limit of a resource is the largest capacity that may be in force. After each event the checks
 * mark the configurations that may still have leases:
 *   - Used: a running process of a root has the configuration. That process may be master.
 *   - Kept: some server of any node learns, and the leases under the configuration have not ended.
 *     That server may repeat them, if they fit together with the leases of the other holders that
 *     it knows. It also keeps the lease that it has from its parent (R7).
 *
 * Most events change none of this, so a limit stores how long it stays valid. While it is valid,
 * each check would mark the same configurations as used and kept. So these checks mark nothing, and
 * store_marks stores the time of the last one before the marks are read. A limit is valid until
 *   - the state of a process changes (sim_invalidate_processes), or another configuration comes
 *     into force;
 *   - a child that learns has its lease repeated (`kept`);
 *   - the last server that learns has learned, if some configuration is kept until then;
 *   - the leases of a configuration that is older than all marked ones have ended.
 * A configuration that is marked at each check counts in the next check only if its leases have not
 * ended in between. So the time between two checks must not exceed the shortest time in which
 * leases of a configuration end. */

void sim_invalidate_processes(sim_world *world) {
    for (size_t i = 0; i < world->resource_count; i++) world->limits[i].valid = false;
}

static bool limit_is_valid(const sim_world *world, size_t resource) {
    const sim_limit *limit = &world->limits[resource];
    return limit->valid && !world->kept[resource] && limit->version == world->version &&
           world->now <= limit->until &&
           world->now - world->checked_at <= limit->check_interval_max;
}

/* While a limit is valid, checks mark nothing. This function marks the same configurations as used
 * and kept at the time of the last finished check, checked_at. Marks of the present check are newer
 * and stay. */
static void store_marks(sim_world *world, size_t resource) {
    const sim_limit *limit = &world->limits[resource];
    for (size_t i = 0; i < world->version_count; i++) {
        sim_version *version = &world->versions[i];
        doorman_time *used_at = &version->used_at[resource], *kept_at = &version->kept_at[resource];
        if (limit->used >> i & 1 && world->checked_at > *used_at) *used_at = world->checked_at;
        if (limit->kept >> i & 1 && world->checked_at > *kept_at) *kept_at = world->checked_at;
    }
}

/* Marks the configurations that are used. Returns the time until which some server learns. */
static doorman_time mark_used(sim_world *world, size_t resource, uint32_t *used) {
    doorman_time learns_until = 0;
    for (size_t i = 0; i < world->process_count; i++) {
        const sim_process *process = &world->processes[i];
        if (!process->server || process->machine.paused_until) continue;
        if (sim_is_root(world, process)) {
            world->versions[process->version].used_at[resource] = world->now;
            *used |= UINT32_C(1) << process->version;
        }
        if (!process->learned_at[resource]) continue;
        doorman_time until = sim_global(&process->machine.clock, process->learned_at[resource]);
        if (until > learns_until) learns_until = until;
    }
    return learns_until;
}

static void mark_kept(sim_world *world, size_t resource, uint32_t *kept) {
    doorman_time ends[SIM_VERSIONS];
    find_ends(world, resource, ends);
    for (size_t i = 0; i < world->version; i++) {
        if (world->now > ends[i]) continue;
        world->versions[i].kept_at[resource] = world->now;
        *kept |= UINT32_C(1) << i;
    }
}

/* Returns the oldest configuration whose leases may still be in force. */
size_t sim_first_version(sim_world *world) {
    size_t first = world->version;
    for (size_t resource = 0; resource < world->resource_count; resource++) {
        doorman_time ends[SIM_VERSIONS];
        store_marks(world, resource);
        find_ends(world, resource, ends);
        for (size_t i = 0; i < first; i++) {
            if (world->now <= ends[i]) first = i;
        }
    }
    return first;
}

/* Returns the largest capacity of the configurations whose leases may be in force. It is infinite
 * if one of these configurations promises nothing, or has a learning time shorter than the leases
 * of another one. `ends` include world->hold, for units in flight. `early` is subtracted:
 * world->hold for leases only. */
static double find_limit(const sim_world *world, size_t resource, const doorman_time *ends,
                         doorman_time early) {
    double limit = 0;
    doorman_time longest = 0, learning_for = DOORMAN_NEVER;
    for (size_t i = 0; i <= world->version; i++) {
        const sim_rules *rules = &world->versions[i].rules[resource];
        const doorman_algorithm *algorithm = &rules->algorithm;
        doorman_time given = algorithm->learning_mode_duration;
        if (world->now > ends[i] - early) continue;
        limit = fmax(limit,
                     rules->matched && guarantees_capacity(algorithm) ? rules->capacity : INFINITY);
        if (algorithm->lease_length > longest) longest = algorithm->lease_length;
        if (algorithm->has_learning_mode_duration && given < learning_for) learning_for = given;
    }
    return learning_for < longest + longest / 20 ? INFINITY : limit;
}

/* Returns the limit according to the marks up to the last check. */
static double capacity_limit(sim_world *world, size_t resource) {
    doorman_time ends[SIM_VERSIONS];
    if (limit_is_valid(world, resource)) return world->limits[resource].amount;
    store_marks(world, resource);
    find_ends(world, resource, ends);
    return find_limit(world, resource, ends, 0);
}

/* Makes the marks of a check, and computes the limit that follows from them. A marked configuration
 * and all newer ones count for as long as it is marked. Older ones count until their leases have
 * ended. Returns whether some server learns: this server may grant its holders their last leases
 * again. */
static bool renew_limit(sim_world *world, size_t resource) {
    sim_limit *limit = &world->limits[resource];
    doorman_time ends[SIM_VERSIONS];
    store_marks(world, resource);
    *limit = (sim_limit){.valid = !world->kept[resource], .version = world->version};
    limit->until = limit->check_interval_max = DOORMAN_NEVER;
    doorman_time learns_until = mark_used(world, resource, &limit->used);
    bool learns = world->kept[resource] || world->now < learns_until;
    if (learns && world->version) mark_kept(world, resource, &limit->kept);
    if (learns && world->version) limit->until = learns_until - 1;
    limit->learns_until = learns_until;
    world->kept[resource] = false;
    find_ends(world, resource, ends);
    limit->amount = find_limit(world, resource, ends, 0);
    limit->leases = find_limit(world, resource, ends, world->hold);
    for (size_t i = 0; i <= world->version; i++) {
        doorman_time drained = world->versions[i].drains[resource];
        bool marked = (limit->used | limit->kept) & ((UINT64_C(2) << i) - 1);
        if (drained < limit->check_interval_max) limit->check_interval_max = drained;
        if (marked) continue;
        if (world->now <= ends[i] && ends[i] < limit->until) limit->until = ends[i];
        doorman_time early = ends[i] - world->hold;
        if (world->now <= early && early < limit->until) limit->until = early;
    }
    return learns;
}

/* ---- responses */

typedef struct sim_resource_state {
    doorman_server_resource resource;
    double others; /* committed for the other holders */
} sim_resource_state;

static bool read_resource_state(const sim_process *process, const char *resource_id,
                                const char *holder_id, doorman_time local,
                                sim_resource_state *out) {
    doorman_cursor cursor = {0};
    doorman_server_lease lease;
    if (!doorman_server_find(process->server, resource_id, &out->resource, local)) return false;
    out->others = 0;
    while (doorman_server_next_lease(process->server, resource_id, &cursor, &lease, local)) {
        if (strcmp(lease.holder_id, holder_id) != 0) out->others += lease.committed;
    }
    return true;
}

/* An item of a request, and what a server has answered. */
typedef struct sim_answered {
    const doorman_capacity_request *request;
    const doorman_capacity_response *response;
    const char *holder;
} sim_answered;

/* Checks one lease when it is granted:
 *   - It is at most what the holder wants; for whole units, each demand is rounded up. A server
 *     that learns may repeat the lease that the holder names if that is more, because the
 *     difference is in flight. If the holder names no lease of this node, such a server grants
 *     no lease above 0, and no lease of 0 that commits nothing (S4).
 *   - After a cut no holder uses more until the sum fits: the lease is at most what the holder
 *     claims, or it fits into the capacity together with everything that is committed for the
 *     others. A lease from a server that learns fits, except a repeated one.
 *
 * A child that learns is not checked, because it keeps what it has, which may be more (R7). */
static void check_lease(sim_world *world, const sim_resource_state *state,
                        const sim_answered *answered, bool same_node, bool learns) {
    const doorman_capacity_request *request_item = answered->request;
    const doorman_capacity_response *response_item = answered->response;
    const char *holder = answered->holder;
    const doorman_lease *lease = &response_item->gets;
    double has = request_item->has.id ? request_item->has.capacity : 0, wants = 0;
    for (size_t i = 0; i < request_item->wants_count; i++) {
        wants += response_item->whole ? ceil(request_item->wants[i].wants)
                                      : request_item->wants[i].wants;
    }
    double maximum = !learns ? wants : same_node ? fmax(wants, has) : 0;
    if (exceeds(lease->capacity, maximum)) {
        sim_fail(world, "%s gets %.9g of %s, but wants %.9g and has %.9g%s", holder,
                 lease->capacity, request_item->resource_id, wants, has,
                 same_node ? "" : " from another node");
    }
    if (learns && !same_node && !(lease->committed > 0)) {
        sim_fail(world, "a server that learns grants %s 0 of %s", holder,
                 request_item->resource_id);
    }
    if (!state || !guarantees_capacity(&state->resource.settings->algorithm)) return;
    double claim = fmax(has, request_item->outstanding), capacity = state->resource.capacity;
    if (response_item->whole) claim = ceil(claim); /* committed amounts are whole */
    bool more = exceeds(lease->capacity, learns && lease->id != request_item->has.id ? 0 : claim);
    if (more && exceeds(lease->capacity + state->others, capacity)) {
        sim_fail(
            world, "%s claims %.9g of %s and gets %.9g; others: %.9g committed, capacity: %.9g",
            holder, claim, request_item->resource_id, lease->capacity, state->others, capacity);
    }
}

/* S14: a lease below 0.999 of the wants has a reason, and any other lease has none. */
static void check_reason(sim_world *world, const sim_answered *answered) {
    const doorman_capacity_request *request_item = answered->request;
    const doorman_capacity_response *response_item = answered->response;
    double has = response_item->gets.capacity, wants = 0;
    for (size_t i = 0; i < request_item->wants_count; i++) {
        wants += response_item->whole ? ceil(request_item->wants[i].wants)
                                      : request_item->wants[i].wants;
    }
    bool is_near = fabs(has - 0.999 * wants) < 1e-9; /* rounding decides */
    bool is_less = has < 0.999 * wants;
    if (is_near || is_less == (response_item->gets.reason != 0)) return;
    sim_fail(world, "%s gets %.9g of %s and wants %.9g, with the reason \"%s\"", answered->holder,
             has, request_item->resource_id, wants,
             doorman_lease_reason_name(response_item->gets.reason));
}

/* R5: checks that no lease grows while the leases do not fit into the capacity, and notes the
 * lease.
 *   known   what a master that learns has noted for the holder, even if it wants less (R6) */
static void check_growth(sim_world *world, sim_process *process, const sim_resource_state *state,
                         const sim_answered *answered, double known) {
    const doorman_capacity_response *response_item = answered->response;
    const char *holder = answered->holder;
    size_t number = strtoul(holder + 1, NULL, 10); /* "c12" or "n3" */
    size_t resource = sim_resource_index(world, response_item->resource_id);
    double *last = &process->granted[resource][holder[0] == 'n' ? SIM_CLIENTS + number : number];
    double has = response_item->gets.capacity, before = *last;
    *last = fmax(has, known);
    if (!state || !guarantees_capacity(&state->resource.settings->algorithm)) return;
    if (exceeds(has, before) && exceeds(state->resource.has, state->resource.capacity)) {
        sim_fail(world, "the lease of %s of %s grows from %.9g to %.9g; all leases: %.9g of %.9g",
                 holder, response_item->resource_id, before, has, state->resource.has,
                 state->resource.capacity);
    }
}

static void check_answer(sim_world *world, sim_process *process, const sim_answered *answered,
                         size_t resource) {
    const doorman_capacity_request *request_item = answered->request;
    const doorman_capacity_response *response_item = answered->response;
    const char *holder = answered->holder;
    const sim_rules *rules = &world->versions[process->version].rules[resource];
    const doorman_lease *lease = &response_item->gets;
    doorman_time local = sim_local(&process->machine.clock, world->now);
    bool same_node = request_item->has.id &&
                     strcmp(request_item->has.node, world->nodes[process->node].name) == 0;
    if (!(lease->capacity >= 0) || isinf(lease->capacity) || lease->expires_in < 0) {
        sim_fail(world, "%s gets %g of %s", holder, lease->capacity, request_item->resource_id);
        return;
    }
    sim_resource_state state = {.others = 0};
    bool known = read_resource_state(process, request_item->resource_id, holder, local, &state);
    bool root = sim_is_root(world, process);
    bool follows = rules->overload.target > 0; /* sim_overload.c checks it */
    if (root && known && !follows && differs(state.resource.capacity, rules->capacity)) {
        sim_fail(world, "%s has a capacity of %.9g of %s, its configuration has %.9g",
                 process->address, state.resource.capacity, request_item->resource_id,
                 rules->capacity);
    }
    if (response_item->whole && lease->capacity > floor(lease->capacity)) {
        sim_fail(world, "%s is granted %.17g of %s, which is in whole units", holder,
                 lease->capacity, request_item->resource_id);
    }
    check_reason(world, answered);
    bool learns = known && divides_capacity(&state.resource.settings->algorithm) &&
                  local < state.resource.learned_at;
    check_growth(world, process, known ? &state : NULL, answered,
                 learns && same_node ? request_item->has.capacity : 0);
    if (request_item->learning) return;
    check_lease(world, known ? &state : NULL, answered, same_node, learns);
}

void sim_check_response(sim_world *world, const sim_message *request, const sim_message *reply) {
    sim_process *process = &world->processes[request->process];
    for (size_t i = 0; i < reply->response.item_count; i++) {
        const doorman_capacity_request *request_item = &request->request_items[i];
        size_t resource = sim_resource_index(world, request_item->resource_id);
        if (request_item->learning) world->kept[resource] = true;
        if (reply->response_items[i].outcome != DOORMAN_GRANTED) continue;
        const sim_answered answered = {request_item, &reply->response_items[i],
                                       request->request.holder_id};
        check_answer(world, process, &answered, resource);
    }
}

/* ---- lease tables */

/* What a server has committed for each client and each node that may ask it. */
typedef struct sim_committed_amounts {
    double clients[SIM_CLIENTS], nodes[SIM_NODES];
    double permits; /* of the node itself */
} sim_committed_amounts;

/* The fast sums of a resource equal a recount of its leases, and what is committed for a holder is
 * at least what it has. */
static void check_resource(sim_world *world, const sim_process *process,
                           const doorman_server_resource *resource, doorman_time local,
                           sim_committed_amounts *amounts) {
    double has = 0, committed = 0, wants = 0, subclients = 0;
    size_t count = 0;
    const char *id = resource->resource_id;
    doorman_cursor cursor = {0};
    doorman_server_lease lease;
    while (doorman_server_next_lease(process->server, id, &cursor, &lease, local)) {
        has += lease.has;
        committed += lease.committed;
        wants += lease.wants;
        subclients += lease.subclients;
        count++;
        size_t holder = strtoul(lease.holder_id + 1, NULL, 10); /* "c12", "n3" or "(permits)" */
        *(lease.is_server             ? &amounts->nodes[holder]
          : lease.holder_id[0] == '(' ? &amounts->permits
                                      : &amounts->clients[holder]) = lease.committed;
        if (!(lease.has >= 0) || !(lease.committed >= lease.has) || isinf(lease.committed)) {
            sim_fail(world, "%s has %g committed for %s, which has %g of %s", process->address,
                     lease.committed, lease.holder_id, lease.has, id);
        }
    }
    if (differs(has, resource->has) || differs(committed, resource->committed) ||
        differs(wants, resource->wants) || differs(subclients, resource->subclients) ||
        count != resource->holder_count) {
        sim_fail(world,
                 "%s has for %s the sums has %.17g committed %.17g wants %.17g of %zu holders; a "
                 "recount finds %.17g, %.17g, %.17g of %zu",
                 process->address, id, resource->has, resource->committed, resource->wants,
                 resource->holder_count, has, committed, wants, count);
    }
}

/* Returns whether a holder uses more than this node has committed for it, and which one. */
static bool overdrawn(const sim_world *world, size_t node, size_t resource,
                      const sim_committed_amounts *amounts, const char **holder, double *used) {
    for (size_t i = 0; i < world->client_count; i++) {
        const sim_usage *usage = &world->clients[i].usages[resource];
        if (usage->node != node || !exceeds(usage->in_use, amounts->clients[i])) continue;
        *holder = world->clients[i].id;
        *used = usage->in_use;
        return true;
    }
    *holder = "(permits)";
    *used = sim_leased_units(world, node, resource);
    if (exceeds(*used, amounts->permits)) return true;
    for (size_t i = 0; i < world->node_count; i++) {
        double below = world->nodes[i].in_use[resource];
        if (world->nodes[i].parent != node || !exceeds(below, amounts->nodes[i])) continue;
        *holder = world->nodes[i].name;
        *used = below;
        return true;
    }
    return false;
}

/* The central check of T7: what a holder and all clients below it use is at most what a master that
 * has finished learning has committed for that holder. The sums of the last check may contain
 * leases that have ended since, so a violation counts only if new sums confirm it. */
static void check_holders(sim_world *world, const sim_process *process,
                          const doorman_server_resource *resource, doorman_time local,
                          const sim_committed_amounts *amounts) {
    size_t index = sim_resource_index(world, resource->resource_id);
    const char *holder = NULL;
    double used = 0;
    if (local < resource->learned_at || isinf(capacity_limit(world, index))) return;
    if (!overdrawn(world, process->node, index, amounts, &holder, &used)) return;
    sim_leased_refresh(world);
    sim_check_sums(world);
    if (!overdrawn(world, process->node, index, amounts, &holder, &used)) return;
    sim_fail(world, "%s uses %.9g of %s, more than %s has committed for it", holder, used,
             resource->resource_id, process->address);
}

/* S12: no node reports an overshoot where the leases never exceed the capacity (T7). */
static void check_overshoot(sim_world *world, const sim_process *process,
                            const doorman_server_resource *resource) {
    size_t index = sim_resource_index(world, resource->resource_id);
    if (resource->overshoot <= 0 || isinf(capacity_limit(world, index))) return;
    sim_fail(world, "%s reports that the leases of %s, %.9g, exceed what it may have by %.9g",
             process->address, resource->resource_id, resource->has, resource->overshoot);
}

void sim_check_resources(sim_world *world, size_t index) {
    const sim_process *process = &world->processes[index];
    doorman_time local = sim_local(&process->machine.clock, world->now);
    doorman_cursor cursor = {0};
    doorman_server_resource resource;
    sim_observe_learning(world, index);
    while (doorman_server_next_resource(process->server, &cursor, &resource, local)) {
        sim_committed_amounts amounts = {.clients = {0}};
        check_resource(world, process, &resource, local, &amounts);
        check_holders(world, process, &resource, local, &amounts);
        check_overshoot(world, process, &resource);
    }
}

/* ---- leases in force */

/* Stores what a lease covers: units in flight, up to the amount that its granter has committed. A
 * lease covers them until it ends, even if a smaller lease replaces it (R9). When a lease renews
 * nothing, or another node gave it, the earlier leases cover nothing any more. */
void sim_record_lease(sim_world *world, size_t index, size_t resource, const doorman_lease *lease,
                      doorman_time sent_at, bool renewed) {
    sim_client *client = &world->clients[index];
    sim_usage *usage = &client->usages[resource];
    doorman_time local = sim_local(&client->machine.clock, world->now);
    sim_commitment commitments[SIM_COMMITMENTS] = {
        {fmax(lease->committed, lease->capacity), sent_at + lease->expires_in}};
    size_t count = 1;
    if (!renewed) usage->commitment_count = 0;
    if (usage->commitment_count && usage->commitments[0].end > commitments[0].end) {
        commitments[0].end = usage->commitments[0].end;
    }
    for (size_t i = 0; i < usage->commitment_count; i++) {
        bool more = usage->commitments[i].amount > commitments[count - 1].amount;
        if (!more || local >= usage->commitments[i].end) continue;
        if (count == SIM_COMMITMENTS) abort();
        commitments[count++] = usage->commitments[i];
    }
    memcpy(usage->commitments, commitments, sizeof commitments);
    usage->commitment_count = count;
}

static double committed_amount(const sim_usage *usage, doorman_time local) {
    double maximum = 0;
    for (size_t i = 0; i < usage->commitment_count; i++) {
        if (local < usage->commitments[i].end) {
            maximum = fmax(maximum, usage->commitments[i].amount);
        }
    }
    return maximum;
}

/* Returns the units that a client may use under its lease, or does use if that is more.
 *
 * Units in flight count up to the amount that leases in force cover. Other units in flight are
 * outside of T7: the fallback allowed them, or a lease that has ended. Units that are in flight
 * when a resource is closed count until the lease that covers them ends. */
static double in_use(const sim_usage *usage, const doorman_resource_info *info,
                     doorman_time local) {
    double maximum = committed_amount(usage, local);
    if (info->leased) return fmax(info->capacity, fmin(info->in_use, maximum));
    return local < usage->abandoned_until ? fmin(usage->abandoned, maximum) : 0;
}

/* Returns until when, by the client's clock, a use stays unchanged if no event changes the
 * client. */
static doorman_time unchanged_until(const sim_usage *usage, const doorman_resource_info *info,
                                    doorman_time local) {
    doorman_time until = info->leased ? info->expires_at : DOORMAN_NEVER;
    if (usage->abandoned > 0 && usage->abandoned_until < until) until = usage->abandoned_until;
    if (info->in_use <= 0 && usage->abandoned <= 0) return until;
    for (size_t i = 0; i < usage->commitment_count; i++) {
        doorman_time end = usage->commitments[i].end;
        if (local < end && end < until) until = end;
    }
    return until;
}

/* L1: a rate grants at most the sum of its capacity over the time since it was opened, plus one
 * burst at its largest capacity (or one unit, or the largest request, if that is more). When a
 * lease ends, the fallback gives the capacity. The saved burst is kept as time, so the budget then
 * grows by one burst at the new capacity. Time up to the last check counts with the capacity at the
 * last observation, and later time with the larger of that capacity and the present one. */
static void check_rate(sim_world *world, size_t index, size_t resource,
                       const doorman_resource_info *info, doorman_time local) {
    sim_client *client = &world->clients[index];
    sim_usage *usage = &client->usages[resource];
    if (!usage->resource || usage->gauge) return;
    doorman_time checked_at = sim_local(&client->machine.clock, world->checked_at);
    double burst = (double)SIM_BURST / (double)DOORMAN_SECOND;
    if (checked_at > usage->observed_at) {
        double since = (double)(checked_at - usage->observed_at) / (double)DOORMAN_SECOND;
        usage->budget += since * usage->capacity;
        usage->observed_at = checked_at;
    }
    double time = (double)(local - usage->observed_at) / (double)DOORMAN_SECOND;
    usage->budget += time * fmax(usage->capacity, info->capacity);
    double least = fmax(usage->largest, 1);
    if (usage->leased && !info->leased) usage->budget += fmax(burst * info->capacity, least);
    usage->peak = fmax(usage->peak, info->capacity);
    usage->capacity = info->capacity;
    usage->observed_at = local;
    double maximum = usage->budget + fmax(burst * usage->peak, least);
    if (exceeds(usage->granted, maximum)) {
        sim_fail(world, "%s granted %.9g of %s, and may grant %.9g", client->id, usage->granted,
                 world->resources[resource], maximum);
    }
}

void sim_invalidate_client(sim_world *world, size_t client) {
    for (size_t i = 0; i < world->resource_count; i++) {
        world->observe_at[i][client] = world->first_observe_at[i] = 0;
    }
}

/* Observes a use again. Returns whether that changes the sums. */
static bool observe_usage(sim_world *world, size_t index, size_t resource) {
    sim_client *client = &world->clients[index];
    sim_usage *usage = &client->usages[resource];
    doorman_resource_info info = {0};
    bool live = sim_leased(world, index, resource, &info);
    doorman_time local = sim_local(&client->machine.clock, world->now);
    check_rate(world, index, resource, &info, local);
    if (usage->resource) usage->leased = live;
    if (local >= usage->abandoned_until) usage->abandoned = 0;
    if (live && (!(info.capacity >= 0) || isinf(info.capacity))) {
        sim_fail(world, "%s has %g of %s", client->id, info.capacity, info.resource_id);
    }
    double units = in_use(usage, &info, local);
    double lease = live ? info.capacity : 0;
    bool same = units <= usage->in_use && units >= usage->in_use &&
                usage->in_use_node == usage->node && lease <= usage->lease && lease >= usage->lease;
    usage->in_use = units;
    usage->lease = lease;
    usage->in_use_node = usage->node;
    doorman_time until = unchanged_until(usage, &info, local);
    world->observe_at[resource][index] = sim_global(&client->machine.clock, until);
    return !same;
}

/* Observes the uses whose observation is due: sim_invalidate_client makes it due at once. Returns
 * whether that changes the sums. */
static bool observe_usages(sim_world *world, size_t resource) {
    doorman_time *observe_at = world->observe_at[resource], first = DOORMAN_NEVER;
    bool changed = false;
    if (world->now < world->first_observe_at[resource]) return false;
    for (size_t i = 0; i < world->client_count; i++) {
        if (world->now >= observe_at[i]) changed = observe_usage(world, i, resource) || changed;
        if (observe_at[i] < first) first = observe_at[i];
    }
    world->first_observe_at[resource] = first;
    return changed;
}

/* Recounts everything slowly and compares it with the cached values. */
static void recount(sim_world *world, size_t resource) {
    sim_limit *limit = &world->limits[resource];
    double before = limit->amount, leases = limit->leases;
    doorman_time learns_until = limit->learns_until;
    bool was_valid = limit->valid;
    (void)renew_limit(world, resource);
    if (was_valid && (limit->amount < before || limit->amount > before || limit->leases < leases ||
                      limit->leases > leases)) {
        sim_fail(world, "the simulator missed a change of the limit of %s from %g to %g",
                 world->resources[resource], before, limit->amount);
    }
    if (was_valid && limit->learns_until != learns_until) {
        sim_fail(world, "the simulator missed that servers learn %s until %.3f s, not %.3f s",
                 world->resources[resource], (double)limit->learns_until / DOORMAN_SECOND,
                 (double)learns_until / DOORMAN_SECOND);
    }
    for (size_t i = 0; i < world->client_count; i++) {
        const sim_usage *usage = &world->clients[i].usages[resource];
        doorman_resource_info info = {0};
        (void)sim_leased(world, i, resource, &info);
        doorman_time local = sim_local(&world->clients[i].machine.clock, world->now);
        double now = in_use(usage, &info, local);
        bool rate = usage->resource && !usage->gauge;
        double lease = info.leased ? info.capacity : 0;
        if (now <= usage->in_use && now >= usage->in_use && usage->in_use_node == usage->node &&
            lease <= usage->lease && lease >= usage->lease &&
            (!usage->resource || info.leased == usage->leased) &&
            (!rate || (info.capacity <= usage->capacity && info.capacity >= usage->capacity))) {
            continue;
        }
        sim_fail(world, "the simulator missed that %s uses %g of %s, not %g", world->clients[i].id,
                 now, world->resources[resource], usage->in_use);
    }
}

static void add_up(sim_world *world, size_t resource) {
    for (size_t i = 0; i < world->node_count; i++) {
        world->nodes[i].in_use[resource] = world->nodes[i].leases[resource] = 0;
    }
    for (size_t i = 0; i < world->client_count; i++) {
        const sim_usage *usage = &world->clients[i].usages[resource];
        for (size_t node = usage->node; node != SIM_NONE; node = world->nodes[node].parent) {
            world->nodes[node].in_use[resource] += usage->in_use;
            world->nodes[node].leases[resource] += usage->lease;
        }
    }
    sim_leased_add_up(world, resource);
}

/* T7: the leases of a tree that are in force, by the clocks of their holders, add up to at most the
 * largest capacity that the configuration of its root gave within the last lease length. The units
 * in use under these leases add up to at most the largest capacity of a longer time: a cut does not
 * end the units in flight of a gauge, which the holder claims until they come back. Where nothing
 * has changed since the last check, its result still holds. */
static void check_sums(sim_world *world, size_t resource) {
    bool same_limit = limit_is_valid(world, resource);
    bool learns = same_limit ? world->now < world->limits[resource].learns_until
                             : renew_limit(world, resource);
    sim_overload_check(world, resource, learns);
    bool changed = observe_usages(world, resource);
    changed = sim_leased_changed(world, resource) || changed;
    if (changed) add_up(world, resource);
    if (world->handled_count % SIM_RECOUNT_INTERVAL == 0) recount(world, resource);
    if (same_limit && !changed && !world->follows) return; /* peaks end at any time */
    const sim_limit *limit = &world->limits[resource];
    for (size_t i = 0; i < world->node_count; i++) {
        const sim_node *node = &world->nodes[i];
        if (node->parent != SIM_NONE) continue;
        double leases = limit->leases, amount = limit->amount;
        if (!isinf(leases)) leases = fmin(leases, sim_overload_peak(world, i, resource, true));
        if (!isinf(amount)) amount = fmin(amount, sim_overload_peak(world, i, resource, false));
        bool more =
            exceeds(node->leases[resource], leases) || exceeds(node->in_use[resource], amount);
        if (more && world->leased) { /* leases of permits may have ended since */
            sim_leased_refresh(world);
            add_up(world, resource);
        }
        if (exceeds(node->leases[resource], leases)) {
            sim_fail(world, "the leases of %s in force add up to %.9g of %.9g",
                     world->resources[resource], node->leases[resource], leases);
        }
        if (exceeds(node->in_use[resource], amount)) {
            sim_fail(world, "the units of %s in use under leases add up to %.9g of %.9g",
                     world->resources[resource], node->in_use[resource], amount);
        }
    }
}

void sim_check_sums(sim_world *world) {
    for (size_t i = 0; i < world->resource_count; i++) check_sums(world, i);
    world->checked_at = world->now;
}

/* ---- exact shares: an independent oracle, by bisection, that shares no code with the header */

typedef struct demand {
    size_t client;
    double wants, share;
    int priority;
} demand;

static double fair_sum(const demand *demands, size_t count, double level) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += fmin(demands[i].wants, level);
    return sum;
}

/* Returns the level that cuts the demands to the capacity; if all fit, the largest demand. */
static double fair_level(const demand *demands, size_t count, double capacity) {
    double low = 0, high = 0;
    for (size_t i = 0; i < count; i++) high = fmax(high, demands[i].wants);
    if (fair_sum(demands, count, high) <= capacity) return high;
    for (int i = 0; i < 100; i++) {
        double middle = (low + high) / 2;
        *(fair_sum(demands, count, middle) > capacity ? &high : &low) = middle;
    }
    return low;
}

static void share_fairly(demand *demands, size_t count, double capacity) {
    double level = fair_level(demands, count, capacity);
    for (size_t i = 0; i < count; i++) demands[i].share = fmin(demands[i].wants, level);
}

static void share_in_proportion(demand *demands, size_t count, double capacity) {
    double part = capacity / (double)count, above = 0, base = 0;
    for (size_t i = 0; i < count; i++) {
        base += fmin(demands[i].wants, part);
        above += fmax(demands[i].wants - part, 0);
    }
    double slope = above > 0 ? fmin(1, (capacity - base) / above) : 0;
    for (size_t i = 0; i < count; i++) {
        demands[i].share = fmin(demands[i].wants, part) + slope * fmax(demands[i].wants - part, 0);
    }
}

/* Sets the shares of PRIORITY_SHARE. All demands share the reserve. Then each priority, from the
 * highest down, shares what the higher priorities and the reserve of the lower ones leave. */
static void share_by_priority(demand *demands, size_t count, double capacity, double reserve) {
    share_fairly(demands, count, capacity * reserve);
    double left = capacity;
    for (int priority = DOORMAN_PRIORITY_MAX; priority >= 0; priority--) {
        demand band[SIM_CLIENTS];
        size_t members = 0;
        double below = 0;
        for (size_t i = 0; i < count; i++) {
            if (demands[i].priority < priority) below += demands[i].share;
            if (demands[i].priority == priority) band[members++] = demands[i];
        }
        double level = fair_level(band, members, left - below);
        for (size_t i = 0; i < count; i++) {
            if (demands[i].priority != priority) continue;
            demands[i].share = fmin(demands[i].wants, level);
            left -= demands[i].share;
        }
    }
}

static void share(demand *demands, size_t count, const sim_rules *rules) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        demands[i].share = demands[i].wants;
        sum += demands[i].wants;
    }
    if (!rules->matched) return;
    switch (rules->algorithm.kind) {
    case DOORMAN_STATIC_SHARE:
        for (size_t i = 0; i < count; i++) {
            demands[i].share = fmin(demands[i].wants, rules->capacity);
        }
        return;
    case DOORMAN_PROPORTIONAL_SHARE:
        if (sum > rules->capacity) share_in_proportion(demands, count, rules->capacity);
        return;
    case DOORMAN_PRIORITY_SHARE:
        if (sum > rules->capacity) {
            share_by_priority(demands, count, rules->capacity, rules->algorithm.reserve);
        }
        return;
    case DOORMAN_FAIR_SHARE: share_fairly(demands, count, rules->capacity); return;
    case DOORMAN_NO_ALGORITHM:
    case DOORMAN_KIND_COUNT: return;
    }
}

/* Some time after the last fault each lease is within 5 % of the share that the client would get
 * from a single server for all clients of the tree (T2). The sum of the leases is within 0.1 % of
 * the sum of the shares, so all capacity that is wanted is in use. (A holder that lacks less than
 * 0.1 % gets no shorter refresh interval, R12.) With whole units, each level above a holder may
 * round its share down or up, and two units and 10 % of the sum may be moving between holders. */
static void check_settled(sim_world *world, size_t root, size_t resource) {
    const sim_rules *rules = &world->versions[world->version].rules[resource];
    bool units = rules->matched && rules->whole;
    demand demands[SIM_CLIENTS];
    size_t count = 0;
    double wanted = 0, sum = 0;
    for (size_t i = 0; i < world->client_count; i++) {
        const sim_usage *usage = &world->clients[i].usages[resource];
        if (!usage->resource || world->nodes[usage->node].root != root) continue;
        double wants = units ? ceil(usage->wants) : usage->wants;
        demands[count++] = (demand){i, wants, 0, usage->priority};
    }
    share(demands, count, rules);
    for (size_t i = 0; i < count; i++) {
        doorman_resource_info info;
        bool leased = sim_leased(world, demands[i].client, resource, &info);
        double has = leased ? info.capacity : 0, exact = demands[i].share;
        wanted += exact;
        sum += has;
        if (units && has > floor(has)) {
            sim_fail(world, "%s has %.6g of %s, but leases of it must be whole units",
                     world->clients[demands[i].client].id, has, world->resources[resource]);
        }
        if (!leased || fabs(has - exact) > 0.05 * exact + (units ? SIM_LEVELS : TOLERANCE)) {
            sim_fail(world, "long after the last fault %s has %.6g of %s, but its share is %.6g",
                     world->clients[demands[i].client].id, has, world->resources[resource], exact);
        }
    }
    if (fabs(sum - wanted) > 0.001 * wanted + (units ? 2 + 0.1 * wanted : TOLERANCE)) {
        sim_fail(world,
                 "long after the last fault %.6g of %s is in use, but the shares sum to %.6g", sum,
                 world->resources[resource], wanted);
    }
}

void sim_check_settled(sim_world *world) {
    for (size_t i = 0; i < world->process_count; i++) sim_overload_check_settled(world, i);
    for (size_t node = 0; node < world->node_count; node++) {
        if (world->nodes[node].parent != SIM_NONE) continue;
        for (size_t resource = 0; resource < world->resource_count; resource++) {
            check_settled(world, node, resource);
        }
    }
}
