/* Reservations that last, in a simulated system: see sim_state.c.
 *
 * The resource "reserved" has one durable window that does not end in a run. Clients reserve units
 * of it and settle them. They may settle twice, too late, or at another master than that of the
 * reservation. The ledger of a node has what each request has reserved and cost, and so the least
 * and the most that the counter may have counted:
 *
 *     P27  a reservation counts what it has reserved, and after its settlement what it has cost.
 *          What was settled too late counts the larger amount. Repeats change nothing, also at
 *          another master. So a request never counts more than the larger amount
 *     V8   a crash forgets at most what came after the last round of writing
 *
 * If a store is replaced by an older copy, any of these charges may be missing, and a batch that is
 * on its way is written into the copy. So after a replacement the ledger is not used any more. */
#include "sim_state.h"

#include <math.h>

#define SECOND DOORMAN_SECOND
#define WITHIN (1000 * SECOND)
#define SOON_MS 4000          /* half of the reservations end within this time */
#define REPEATS (50 * SECOND) /* for how long a settlement is repeated */
#define KNOWN (500 * SECOND)  /* for how long a reservation that has ended is certainly known */
#define DRIFT(time) ((time) / 16 + SECOND / 1000) /* more than clocks differ in this time */

/* Returns the item of a reservation, or of its settlement. */
static doorman_permit_item item_of(double cost) {
    return (doorman_permit_item){.resource_id = SIM_SETTLE_RESOURCE, .key = "", .cost = cost};
}

static bool handle(sim_world *world, size_t process, doorman_request *request,
                   doorman_response *response) {
    doorman_error error = {0};
    request->holder_id = "gateway";
    doorman_status status =
        doorman_server_handle(world->processes[process].server, request, response, &error,
                              sim_state_local(world, process));
    if (status != DOORMAN_OK) sim_fail(world, "a correct settle is refused: %s", error.text);
    return status == DOORMAN_OK && response->is_master;
}

/* ---- the ledger */

static double least_of(const sim_settle_slot *slot) {
    if (slot->is_lost) return 0;
    if (!slot->settled) return slot->reserved;
    if (slot->maybe) return fmin(slot->reserved, slot->cost);
    return slot->late ? fmax(slot->reserved, slot->cost) : slot->cost;
}

static double most_of(const sim_settle_slot *slot) {
    if (!slot->settled) return slot->reserved;
    const bool keeps = slot->late || slot->maybe || slot->is_lost;
    return keeps ? fmax(slot->reserved, slot->cost) : slot->cost;
}

/* Compares the counter with the ledger. */
static void check(sim_world *world, size_t process) {
    const sim_settle_ledger *ledger = &world->states->ledgers[world->processes[process].node];
    double least = ledger->done_least, most = ledger->done_most;
    doorman_permit out;
    doorman_permits *permits = sim_state_permits(world, process);
    if (!permits || ledger->is_unknown) return;
    if (world->states->processes[process].account.rows != DOORMAN_ROWS_READ) return;
    const doorman_permit_item item = {.resource_id = SIM_SETTLE_RESOURCE};
    doorman_status status =
        doorman_permits_inspect(permits, &item, &out, NULL, sim_state_local(world, process));
    if (status != DOORMAN_OK) return;
    for (size_t i = 0; i < SIM_SETTLE_SLOTS; i++) {
        least += least_of(&ledger->slots[i]);
        most += most_of(&ledger->slots[i]);
    }
    const double used = out.details[0].used;
    if (used >= least - 1e-6 && used <= most + 1e-6) return;
    sim_fail(world, "%s has counted %g of reservations, not %g to %g",
             world->processes[process].address, used, least, most);
}

/* Must be called when a mastership begins: what was not written is perhaps lost (V8). */
void sim_settle_opened(sim_world *world, size_t process) {
    sim_settle_ledger *ledger = &world->states->ledgers[world->processes[process].node];
    for (size_t i = 0; i < SIM_SETTLE_SLOTS; i++) {
        sim_settle_slot *slot = &ledger->slots[i];
        if (slot->reserved > 0 && slot->reserved_at >= ledger->kept_at) slot->is_lost = true;
        if (slot->settled && slot->settled_at >= ledger->kept_at) slot->maybe = true;
    }
    ledger->kept_at = ledger->opened_at = world->now;
}

/* Must be called when all changes before `since` are in the store. */
void sim_settle_kept(sim_world *world, size_t process, doorman_time since) {
    sim_settle_ledger *ledger = &world->states->ledgers[world->processes[process].node];
    if (since > ledger->kept_at) ledger->kept_at = since;
    check(world, process);
}

/* Must be called when the store of a node was replaced by an older copy. */
void sim_settle_put_back(sim_world *world, size_t node) {
    sim_settle_ledger *ledger = &world->states->ledgers[node];
    ledger->is_unknown = true;
}

/* ---- what clients do */

static void reserve(sim_world *world, size_t process, sim_settle_slot *slot, uint64_t *random) {
    const bool repeats = slot->reserved > 0;
    const double cost = repeats ? slot->reserved : (double)(1 + sim_below(random, 20));
    const doorman_permit_item item = item_of(cost);
    if (!repeats) {
        const bool soon = sim_below(random, 2);
        slot->request_id = ++world->states->settle_requests;
        slot->within =
            soon ? (doorman_time)(1 + sim_below(random, SOON_MS)) * SECOND / 1000 : WITHIN;
    }
    const doorman_permit_request permit = {.items = &item,
                                           .item_count = 1,
                                           .request_id = slot->request_id,
                                           .settle_within = slot->within};
    doorman_request request = {.method = DOORMAN_ACQUIRE, .permits = &permit, .permit_count = 1};
    doorman_response response;
    if (!handle(world, process, &request, &response)) return;
    const doorman_permit *out = &response.permits[0];
    sim_log(world, "%s: reservation %zu of %g%s is %s", world->processes[process].address,
            (size_t)slot->request_id, cost, repeats ? ", again," : "",
            out->granted ? "granted" : doorman_reason_name(out->reason));
    if (!out->granted) return;
    if (!out->reservation_id) sim_fail(world, "a reservation has no id");
    const bool is_known = out->settle_within < slot->within; /* its charge may still be lost */
    if (repeats && (!slot->is_lost || is_known)) return;
    slot->reserved = cost; /* a lost one is made again */
    slot->is_lost = false;
    slot->reserved_at = world->now;
    slot->passed = world->states->ledgers[world->processes[process].node].passed;
}

/* Checks the first settlement of a known reservation: whether `late` is right, and the charge. */
static void check_settled(sim_world *world, const sim_settle_ledger *ledger,
                          const sim_settle_slot *slot, const doorman_settlement *out) {
    const doorman_settled_item *item = &out->items[0];
    const doorman_time most = ledger->passed - slot->passed, least = world->now - slot->reserved_at;
    const bool is_early = most + DRIFT(most) < slot->within;
    const bool is_over = slot->reserved_at > ledger->opened_at && /* no other clock has counted */
                         least - DRIFT(least) > slot->within;
    if (out->late && is_early) sim_fail(world, "a settle is late before its time");
    if (!out->late && is_over) sim_fail(world, "a settle is late, but was not told so");
    if (out->late && item->returned > 0) sim_fail(world, "a late settle has given units back");
    if (fabs(item->charged - fmax(0, slot->cost - slot->reserved)) < 1e-6) return;
    sim_fail(world, "a settle of %g, of which %g were reserved, has charged %g", slot->cost,
             slot->reserved, item->charged);
}

static void settle(sim_world *world, size_t process, sim_settle_slot *slot, uint64_t *random) {
    const bool repeats = slot->settled;
    const sim_settle_ledger *ledger = &world->states->ledgers[world->processes[process].node];
    if (!repeats && !(slot->cost > 0)) slot->cost = (double)(1 + sim_below(random, 25));
    const doorman_permit_item item = item_of(slot->cost);
    const doorman_settle_request one = {
        .request_id = slot->request_id, .items = &item, .item_count = 1};
    doorman_request request = {.method = DOORMAN_SETTLE, .settles = &one, .settle_count = 1};
    doorman_response response;
    if (!handle(world, process, &request, &response)) return;
    const doorman_settlement *out = &response.settlements[0];
    sim_log(world, "%s: reservation %zu has cost %g%s: %s%s", world->processes[process].address,
            (size_t)slot->request_id, slot->cost, repeats ? ", again" : "",
            doorman_reason_name(out->reason),
            out->unknown ? "unknown"
            : out->late  ? "late"
                         : "");
    sim_hash(world, (uint64_t)out->late << 9 | (uint64_t)out->unknown << 8 | out->reason);
    if (out->reason == DOORMAN_REASON_LEARNING) return;
    if (out->reason) sim_fail(world, "a settle is %s", doorman_reason_name(out->reason));
    bool was_known = !slot->is_lost && !slot->unknown;
    if (out->unknown && was_known) sim_fail(world, "a reservation is not known any more");
    /* a settlement that was unknown answers so again */
    if (repeats && (!out->unknown || !slot->is_lost || slot->unknown)) return;
    if (!repeats && !out->unknown && !slot->is_lost) check_settled(world, ledger, slot, out);
    slot->late = out->late;
    slot->unknown = out->unknown;
    slot->maybe = !out->unknown && slot->is_lost;
    if (out->unknown) slot->is_lost = false; /* it is charged now */
    slot->settled = true;
    slot->settled_at = world->now;
    if (out->unknown) slot->reserved_at = world->now;
    slot->passed = ledger->passed;
}

/* Adds the final figures of a request to the ledger, and forgets the request. */
static void retire(sim_settle_ledger *ledger, sim_settle_slot *slot) {
    ledger->done_least += least_of(slot);
    ledger->done_most += most_of(slot);
    *slot = (sim_settle_slot){.reserved = 0};
}

/* Adds the time since the last look, by simulated time or by the time of day if that is longer. */
static void look(const sim_world *world, sim_settle_ledger *ledger, doorman_time epoch) {
    const doorman_time passed = world->now - ledger->seen_at, ahead = epoch - ledger->epoch;
    ledger->passed += passed > ahead ? passed : ahead;
    ledger->seen_at = world->now;
    ledger->epoch = epoch;
}

void sim_settle_load(sim_world *world, size_t process) {
    uint64_t *random = &world->states->settle_random;
    sim_settle_ledger *ledger = &world->states->ledgers[world->processes[process].node];
    sim_settle_slot *slot = &ledger->slots[sim_below(random, SIM_SETTLE_SLOTS)];
    look(world, ledger, world->states->processes[process].account.at.epoch);
    if (ledger->is_unknown) return;
    /* after this time, the server may have forgotten the request: the time of day counts too */
    const doorman_time most = slot->settled ? REPEATS : slot->within + KNOWN;
    const bool is_late = slot->reserved > 0 && ledger->passed - slot->passed >= most;
    const bool is_kept = slot->reserved_at < ledger->kept_at && slot->settled_at < ledger->kept_at;
    if (is_late) {
        if (is_kept) retire(ledger, slot);
        return;
    }
    if (!(slot->reserved > 0) || (!slot->settled && sim_below(random, 3) == 0)) {
        reserve(world, process, slot, random);
    } else {
        settle(world, process, slot, random);
    }
    check(world, process);
}
