/* An account of holds in a simulated system: see sim_holds.c. It knows the messages, what the
 * holders use, and what an inspection shows.
 *
 * It checks that the units that holders use, by their own clocks, never exceed a limit without
 * full_at_start. After a limit was lowered (P15), what was granted before may exceed it. So the
 * account puts the holds in the order of their grants. For each hold in use, the units in use of
 * this and all earlier holds must be within the limit of the configuration that has granted this
 * hold. If no configuration lowers a limit, this means that all units in use are within it. A hold
 * that was seized is as old as the hold from which its units come, because the server has counted
 * these units all the time. */
#include "sim_holds.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SECOND DOORMAN_SECOND

static sim_hold_grant *grant_of(sim_holds *holds, uint64_t id) {
    for (size_t i = holds->grant_count; id && i-- > 0;) {
        if (holds->grants[i].id == id) return &holds->grants[i];
    }
    return NULL;
}

static sim_hold_grant *add_grant(sim_holds *holds) {
    if (holds->grant_count == holds->grant_capacity) {
        holds->grant_capacity = holds->grant_capacity ? 2 * holds->grant_capacity : 256;
        holds->grants = realloc(holds->grants, holds->grant_capacity * sizeof *holds->grants);
        if (!holds->grants) abort();
    }
    return &holds->grants[holds->grant_count++];
}

/* P9: one request has one hold, as long as this hold can be in force. */
static void check_request(sim_world *world, size_t process, const sim_hold_call *call,
                          uint64_t id) {
    const sim_holds *holds = world->holds;
    doorman_time local = sim_hold_local(world, process);
    for (size_t i = 0; i < holds->grant_count; i++) {
        const sim_hold_grant *grant = &holds->grants[i];
        bool same = grant->client == call->client && grant->request_id == call->request_id &&
                    grant->mastership == holds->processes[process].mastership &&
                    !grant->is_transfer;
        if (!same || grant->released || grant->ends_at <= local || grant->id == id) continue;
        sim_fail(world, "request %llu of c%zu has two holds", (unsigned long long)call->request_id,
                 call->client);
    }
}

static bool same_items(const sim_hold_call *one, const sim_hold_call *two) {
    bool same = one->item_count == two->item_count;
    for (size_t i = 0; same && i < one->item_count; i++) {
        const sim_hold_item *left = &one->items[i], *right = &two->items[i];
        same = left->place == right->place && left->key == right->key &&
               !(left->cost < right->cost) && !(left->cost > right->cost);
    }
    return same;
}

/* Notes a grant, a transfer or a seizure. */
static void note_grant(sim_world *world, size_t process, const sim_hold_call *call,
                       const sim_hold_reply *reply) {
    sim_holds *holds = world->holds;
    uint64_t source = call->method == DOORMAN_ACQUIRE ? 0 : call->id;
    sim_hold_grant *from = grant_of(holds, source);
    sim_hold_grant old = from ? *from : (sim_hold_grant){.number = 0};
    if (call->method != DOORMAN_TRANSFER) check_request(world, process, call, reply->id);
    sim_hold_grant *grant = grant_of(holds, reply->id);
    bool known = grant != NULL;
    if (!known) grant = add_grant(holds);
    if (!known) {
        *grant = (sim_hold_grant){.id = reply->id, .source = source, .client = call->client};
        grant->call = reply->call;
        grant->number = source ? old.number : ++holds->grant_number;
        grant->version = source ? old.version : world->processes[process].version;
        grant->request_id = call->request_id;
        grant->mastership = holds->processes[process].mastership;
        grant->is_transfer = call->method == DOORMAN_TRANSFER;
    }
    doorman_time end = sim_hold_local(world, process) - 2 * SECOND + reply->expires_in;
    if (end > grant->ends_at) grant->ends_at = end;
    const sim_hold_call *first = &holds->calls[grant->call];
    bool same_master = grant->mastership == holds->processes[process].mastership;
    if (call->method == DOORMAN_ACQUIRE && same_master && !same_items(first, call)) {
        sim_fail(world, "request %llu of c%zu renews a hold of other items",
                 (unsigned long long)call->request_id, call->client);
    }
}

/* Returns whether a message names a hold of its client that is in force. */
static bool names_hold_in_force(const sim_world *world, size_t process, const sim_hold_call *call) {
    const sim_holds *holds = world->holds;
    bool by_request = call->method == DOORMAN_SEIZE || !call->id;
    for (size_t i = 0; i < holds->grant_count; i++) {
        const sim_hold_grant *grant = &holds->grants[i];
        bool named = by_request ? grant->request_id == call->request_id : grant->id == call->id;
        bool in_force = !grant->is_transfer && !grant->released &&
                        grant->mastership == holds->processes[process].mastership &&
                        grant->ends_at > sim_hold_local(world, process);
        if (named && in_force && grant->client == call->client) return true;
    }
    return false;
}

/* P8, P9: a hold is not gone before it ends, and lasts at most as long as some limit allows. */
static void check_life(sim_world *world, size_t process, const sim_hold_reply *reply) {
    const sim_hold_call *call = &world->holds->calls[reply->call];
    doorman_time longest = 0;
    if (reply->gone && call->method != DOORMAN_TRANSFER &&
        names_hold_in_force(world, process, call)) {
        sim_fail(world, "%s says that a hold of c%zu is gone", world->processes[process].address,
                 call->client);
    }
    for (size_t i = 0; i <= world->version; i++) {
        const sim_hold_version *version = &world->holds->versions[i];
        for (size_t j = 0; j < world->holds->limit_count; j++) {
            doorman_time life = version->figures[j].time_to_live;
            if (version->present[j] && life > longest) longest = life;
        }
    }
    if (reply->expires_in <= longest) return;
    sim_fail(world, "%s lets c%zu hold units for %g s", world->processes[process].address,
             call->client, (double)reply->expires_in / 1e9);
}

void sim_hold_account_reply(sim_world *world, size_t process, const sim_hold_reply *reply) {
    const sim_hold_call *call = &world->holds->calls[reply->call];
    check_life(world, process, reply);
    if (call->method == DOORMAN_RELEASE && !reply->gone) {
        sim_hold_grant *grant = grant_of(world->holds, reply->id);
        if (grant && !reply->item_count) grant->released = true;
    }
    if (call->method == DOORMAN_TRANSFER && !reply->gone) {
        sim_hold_grant *source = grant_of(world->holds, call->id);
        if (source) source->released = true;
    }
    bool grants = call->method == DOORMAN_ACQUIRE || call->method == DOORMAN_SEIZE ||
                  call->method == DOORMAN_TRANSFER;
    if (grants && reply->granted && reply->id) note_grant(world, process, call, reply);
}

/* D8: at the next master, a hold lasts as long as it still had to last when it was handed over. */
void sim_hold_account_take_over(sim_world *world, size_t process, uint64_t mastership,
                                doorman_time handed_at) {
    doorman_time local = sim_hold_local(world, process);
    for (size_t i = 0; i < world->holds->grant_count; i++) {
        sim_hold_grant *grant = &world->holds->grants[i];
        if (grant->mastership == mastership) grant->ends_at += local - handed_at;
    }
}

/* ---- units in use */

/* The units in use of one item of a hold. */
typedef struct used_item {
    uint64_t number;
    size_t version, place, key;
    double amount;
} used_item;

static bool same_counter(const sim_hold_limit *limit, const used_item *one, const used_item *two) {
    if (limit->per == DOORMAN_PER_TEMPLATE) return true;
    if (one->place != two->place) return false;
    return limit->per == DOORMAN_PER_RESOURCE || one->key == two->key;
}

static size_t list_used(const sim_world *world, used_item *out) {
    size_t count = 0;
    for (size_t i = 0; i < world->client_count; i++) {
        for (size_t j = 0; j < SIM_HOLD_JOBS; j++) {
            const sim_hold_job *job = &world->holds->holders[i].jobs[j];
            if (job->state != SIM_HOLD_HOLDING) continue;
            const sim_hold_grant *grant = grant_of(world->holds, job->id);
            for (size_t k = 0; grant && k < job->ask.item_count; k++) {
                double amount = sim_hold_in_use(world, i, job, k);
                if (!(amount > 0)) continue;
                out[count++] = (used_item){grant->number, grant->version, job->ask.items[k].place,
                                           job->ask.items[k].key, amount};
            }
        }
    }
    return count;
}

void sim_hold_account_check(sim_world *world) {
    static used_item used[SIM_CLIENTS * SIM_HOLD_JOBS * SIM_HOLD_ITEMS];
    const sim_holds *holds = world->holds;
    size_t count = list_used(world, used);
    for (size_t i = 0; i < count; i++) {
        const sim_hold_version *version = &holds->versions[used[i].version];
        for (size_t limit = 0; limit < holds->limit_count; limit++) {
            if (holds->limits[limit].is_rate || !version->present[limit]) continue;
            double sum = 0, most = version->figures[limit].limit;
            for (size_t j = 0; j < count; j++) {
                bool earlier = used[j].number <= used[i].number;
                if (earlier && same_counter(&holds->limits[limit], &used[j], &used[i])) {
                    sum += used[j].amount;
                }
            }
            most += 1.0 / 4096; /* a limit is rounded up to whole grains */
            if (sum <= most || version->full_at_start[limit]) continue;
            sim_fail(world, "%g units of %s for \"%s\" are in use, limit l%zu has %g", sum,
                     sim_hold_places[used[i].place], sim_hold_keys[used[i].key], limit, most);
        }
    }
}

/* Returns by how many units the fullest counter of a resource and a key exceeds its limit. */
static double excess_of(const sim_world *world, size_t process, const sim_hold_item *item) {
    doorman_permits *permits = doorman_server_permits(world->processes[process].server);
    const doorman_permit_item of_key = {.resource_id = sim_hold_places[item->place],
                                        .key = sim_hold_keys[item->key]};
    doorman_permit permit = {.detail_count = 0};
    double excess = 0;
    if (permits) {
        (void)doorman_permits_inspect(permits, &of_key, &permit, NULL,
                                      sim_hold_local(world, process));
    }
    for (size_t i = 0; i < permit.detail_count; i++) {
        const doorman_permit_detail *detail = &permit.details[i];
        bool is_rate = world->holds->limits[detail->limit[1] - '0'].is_rate;
        double more = is_rate ? 0 : detail->used - detail->most;
        if (more > excess) excess = more;
    }
    return excess;
}

double sim_hold_account_excess(const sim_world *world, size_t process, size_t index) {
    const sim_hold_call *calls = &world->holds->calls[index];
    double excess = 0;
    for (size_t i = 0; i < calls->count; i++) {
        for (size_t j = 0; j < calls[i].item_count; j++) {
            double more = excess_of(world, process, &calls[i].items[j]);
            if (more > excess) excess = more;
        }
    }
    return excess;
}

/* ---- permits that wait */

/* Returns the permit that comes before all others in every queue, or NULL. */
static const sim_hold_wait *first_wait(const sim_world *world, const sim_hold_process *own) {
    const sim_hold_wait *first = NULL;
    for (size_t i = 0; i < own->wait_count; i++) {
        const sim_hold_wait *wait = &own->waits[i];
        int priority = world->holds->calls[wait->call].priority;
        int best = first ? world->holds->calls[first->call].priority : -1;
        bool earlier = first && wait->arrival < first->arrival;
        if (priority > best || (priority == best && earlier)) first = wait;
    }
    return first;
}

/* Returns whether each limit of CONCURRENCY has room for the minimums of all items of a call, with
 * a margin for rounding. */
static bool has_room(const sim_world *world, doorman_permits *permits, const sim_hold_call *call,
                     doorman_time now) {
    double units = 0.01;
    for (size_t i = 0; i < call->item_count; i++) units += call->items[i].min;
    for (size_t i = 0; i < call->item_count; i++) {
        const doorman_permit_item item = {.resource_id = sim_hold_places[call->items[i].place],
                                          .key = sim_hold_keys[call->items[i].key]};
        doorman_permit permit;
        if (doorman_permits_inspect(permits, &item, &permit, NULL, now) != DOORMAN_OK) {
            return false;
        }
        for (size_t j = 0; j < permit.detail_count; j++) {
            const doorman_permit_detail *detail = &permit.details[j];
            bool is_rate = world->holds->limits[detail->limit[1] - '0'].is_rate;
            if (!is_rate && detail->most - detail->used < units) return false;
        }
    }
    return true;
}

/* P7: the permit that comes before all others does not wait if there is room for it. */
static void check_first(sim_world *world, size_t process, doorman_time now) {
    const sim_hold_wait *first = first_wait(world, &world->holds->processes[process]);
    doorman_permits *permits = doorman_server_permits(world->processes[process].server);
    doorman_permits_info info;
    if (!first || !permits) return;
    doorman_permits_read(permits, &info);
    const sim_hold_call *call = &world->holds->calls[first->call];
    if (now < info.learns_until || !has_room(world, permits, call, now)) return;
    sim_fail(world, "%s lets request %llu of c%zu wait, although there is room",
             world->processes[process].address, (unsigned long long)call->request_id, call->client);
}

/* P9, P10: after a release, no permit of the same request waits. After a full release, no permit
 * that wants to share the result waits. */
static void check_released(sim_world *world, size_t process, const sim_hold_reply *reply) {
    const sim_holds *holds = world->holds;
    const sim_hold_process *own = &holds->processes[process];
    const sim_hold_call *call = &holds->calls[reply->call];
    const sim_hold_grant *grant = grant_of(world->holds, reply->id);
    bool acquired = grant && holds->calls[grant->call].method == DOORMAN_ACQUIRE;
    const sim_hold_call *work = acquired ? &holds->calls[grant->call] : NULL;
    for (size_t i = 0; i < own->wait_count; i++) {
        const sim_hold_call *other = &holds->calls[own->waits[i].call];
        bool cancelled = call->request_id && other->request_id == call->request_id;
        if (cancelled && other->client == call->client) {
            sim_fail(world, "a permit of c%zu waits on, although it was cancelled", call->client);
        }
        if (!work || !other->share || work->item_count != 1) continue;
        if (other->items[0].place != work->items[0].place) continue;
        if (other->items[0].key != work->items[0].key) continue;
        sim_fail(world, "a permit of c%zu does not share what was released", other->client);
    }
}

/* P10: only a full release is shared. */
void sim_hold_account_shared(sim_world *world, size_t process, size_t first, size_t count) {
    sim_hold_process *own = &world->holds->processes[process];
    bool released = false;
    for (size_t i = first; i < first + count; i++) {
        const sim_hold_reply *reply = &world->holds->replies[i];
        bool releases = world->holds->calls[reply->call].method == DOORMAN_RELEASE;
        if (!releases || reply->gone || reply->item_count) continue;
        check_released(world, process, reply);
        released = released || reply->id;
    }
    if (own->shared && !released) {
        sim_fail(world, "%s shares what was not released", world->processes[process].address);
    }
    own->shared = 0;
}

/* P7: until the limits change, no more permits wait at a counter than its queue has room for. */
static void check_queues(sim_world *world, const doorman_permits *permits) {
    doorman_permits_wait wait, other;
    doorman_cursor cursor = {.position = 0};
    while (world->version == 0 && doorman_permits_next_wait(permits, &cursor, &wait)) {
        size_t limit = wait.limit ? (size_t)(wait.limit[1] - '0') : 0, count = 0;
        doorman_scope per = world->holds->limits[limit].per;
        doorman_cursor again = {.position = 0};
        while (doorman_permits_next_wait(permits, &again, &other)) {
            bool same = other.limit && wait.limit && strcmp(other.limit, wait.limit) == 0;
            bool place = strcmp(other.resource_id, wait.resource_id) == 0;
            bool key = place && strcmp(other.key, wait.key) == 0;
            bool scope = per == DOORMAN_PER_TEMPLATE || (per == DOORMAN_PER_RESOURCE ? place : key);
            count += same && scope;
        }
        if (count <= world->holds->versions[0].figures[limit].queue) continue;
        sim_fail(world, "%zu permits wait at a counter of limit l%zu", count, limit);
        return;
    }
}

/* P7: a permit has a decision at the latest when its wait is over. */
void sim_hold_account_waits(sim_world *world, size_t process) {
    const sim_hold_process *own = &world->holds->processes[process];
    doorman_time local = sim_hold_local(world, process);
    for (size_t i = 0; i < own->wait_count; i++) {
        const sim_hold_wait *wait = &own->waits[i];
        const sim_hold_call *call = &world->holds->calls[wait->call];
        doorman_time most = sim_hold_longest_wait(world, call);
        if (wait->asked_at + most + 2 * SECOND >= local) continue;
        sim_fail(world, "%s lets a permit of c%zu wait for too long",
                 world->processes[process].address, call->client);
    }
    check_first(world, process, local);
    doorman_permits *permits = doorman_server_permits(world->processes[process].server);
    if (permits) check_queues(world, permits);
}
