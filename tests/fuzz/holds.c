/* The first two lines are configurations, as JSON. Each of the next triples of bytes is one step: a
 * call on permits or on holds, a change to the other configuration, or time that passes. No counter
 * holds more than its limit, except in shadow mode or after a change of the configuration. Each
 * permit that waits is decided once, or cancelled. When all holds have ended, nothing is left. */
#define DOORMAN_STATIC /* compiles in less time */
#define DOORMAN_IMPLEMENTATION
#define DOORMAN_JSON
#include "fuzz.h"

#define CALLS 600      /* at most */
#define REMEMBERED 16  /* ids of holds and of transfers */
#define PARTS 4096     /* of a unit */
#define HOLD_MAX 40    /* a small bound, so that it is reached */
#define IDLE_ROUNDS 20 /* calls in which the last holds end */

static const char *const ids[] = {"a", "api/x", "login", "beta/y"};
static const char *const keys[] = {"", "ann", "vip-1", "\xc3\xa9t\xc3\xa9"};
static const char *const clients[] = {"one", "two", "three"};
static const double costs[] = {1, 0, 0.3, 2, 7, 3.5, 1, 1e15};
static const doorman_time lives[] = {0, 1, DOORMAN_SECOND, 20 * DOORMAN_SECOND};

typedef struct holds_world {
    doorman_permits *permits;
    doorman_config *configs[2];
    bool second;    /* the configuration that is in force */
    bool changed;   /* so counters may hold more than their limits */
    size_t pending; /* permits that wait */
    uint64_t ids[REMEMBERED];
    size_t id_count;
    doorman_time now;
} holds_world;

static void remember(holds_world *world, uint64_t id) {
    if (id) world->ids[world->id_count++ % REMEMBERED] = id;
}

/* Compares a counter with what the holds have taken from it, and with its limit. */
static void check_counter(const holds_world *world, const doorman__slot *slot,
                          doorman__counter *counter) {
    doorman__hold *hold = world->permits->holds.granted.first;
    uint64_t sum = 0, held = doorman__counter_state(counter)[0];
    for (; hold; hold = hold->later) {
        for (size_t i = 0; i < hold->takes.count; i++) {
            const doorman__take *take = doorman__takes_at(&hold->takes, i);
            sum += take->counter == counter ? take->grains : 0;
        }
    }
    must(sum == held);
    const doorman__place *place = doorman__permits_place_of(world->permits, counter->node.tag);
    bool shadow = place ? place->shadow : world->configs[world->second]->shadow_count > 0;
    if (world->changed || !slot->limit || slot->limit->shadow || shadow) return;
    const doorman_figures *figures = doorman__limit_figures(slot->limit, counter->override_);
    must((double)held <= figures->limit * PARTS);
}

static void check(const holds_world *world) {
    const doorman_permits *permits = world->permits;
    for (size_t i = 0; i < permits->slot_count; i++) {
        const doorman__slot *slot = permits->slots[i];
        size_t waiting = 0;
        if (slot->kind != DOORMAN_CONCURRENCY) continue;
        for (size_t b = 0; b < slot->nodes.bucket_count; b++) {
            doorman__chain *node = *doorman__chains_at(&slot->nodes, b);
            for (; node; node = node->next) {
                doorman__counter *counter = (doorman__counter *)(void *)node;
                const doorman__hold_queue *queue = doorman__counter_queue(counter);
                check_counter(world, slot, counter);
                waiting += queue ? queue->turns.count : 0;
            }
        }
        must(slot->totals.waiting == waiting);
    }
    must(permits->holds.granted.count + permits->holds.spent.count <= HOLD_MAX);
    must(permits->holds.waiting.count == world->pending);
}

static void check_decision(holds_world *world, const doorman_permit *permit) {
    must(permit->granted == (permit->reason == DOORMAN_NO_REASON));
    must(permit->wait >= 0 && permit->retry_after >= 0 && permit->waited >= 0);
    must(!permit->hold_id || permit->granted);
    remember(world, permit->hold_id);
}

/* Reads the decisions on permits that have waited. */
static void take_decisions(holds_world *world) {
    doorman_permit permit;
    uint64_t ticket = 0;
    while (doorman_permits_next_decision(world->permits, &ticket, &permit)) {
        must(world->pending > 0 && !permit.pending);
        world->pending--;
        check_decision(world, &permit);
    }
}

static void acquire(holds_world *world, unsigned op, unsigned value, unsigned more) {
    doorman_permit_item items[3];
    doorman_permit permit;
    doorman_permit_request request = {.items = items, .item_count = 1 + op / 8 % 3};
    if (op / 8 == 31) request.item_count = 1;
    request.client_id = clients[more % 3];
    request.request_id = value % 13; /* 0 is an error if units of CONCURRENCY are needed */
    request.max_wait = DOORMAN_SECOND * (more % 4);
    request.connection = more / 4 % 3;
    request.time_to_live = lives[more / 8 % 4];
    request.has_priority = true;
    request.priority = (int)(value % 3);
    request.detail = value % 2;
    request.equal = more > 200;
    request.share = request.item_count == 1 && more % 5 == 0;
    for (unsigned i = 0; i < 3; i++) {
        items[i] = (doorman_permit_item){.resource_id = ids[(value >> i) % 4],
                                         .key = keys[(value >> (2 * i)) % 4],
                                         .cost = costs[(value / 16 + i) % 8],
                                         .has_min = op > 128 && !request.equal};
    }
    doorman_status status =
        doorman_permits_acquire(world->permits, &request, &permit, NULL, world->now);
    must(status == DOORMAN_OK || status == DOORMAN_INVALID_ARGUMENT);
    if (status != DOORMAN_OK) return;
    if (!permit.pending) check_decision(world, &permit);
    world->pending += permit.pending;
}

typedef doorman_status (*hold_call)(doorman_permits *permits, const doorman_hold_request *request,
                                    doorman_hold *out, doorman_error *error, doorman_time now);

/* Calls a function on holds. The hold may be another client's, and the amounts may be too large. */
static void call_hold(holds_world *world, unsigned op, unsigned value, unsigned more) {
    static const hold_call functions[] = {doorman_permits_renew, doorman_permits_release,
                                          doorman_permits_transfer, doorman_permits_seize};
    const hold_call function = functions[op / 8 % 4];
    const double amounts[] = {costs[value / 16 % 8], costs[value % 8]};
    const doorman_hold_item items[] = {{ids[value % 4], keys[more % 4], amounts[0]},
                                       {ids[more % 4], keys[value % 4], amounts[1]}};
    doorman_hold_request request = {.client_id = clients[more % 3],
                                    .id = world->ids[value % REMEMBERED]};
    doorman_hold out;
    if (more > 250) request.id = value;
    if (function == doorman_permits_renew && value % 2) {
        request.items = items;
        request.item_count = 1 + more % 2;
    }
    bool by_request = function == doorman_permits_release && more > 128;
    bool moves = function == doorman_permits_transfer || function == doorman_permits_seize;
    if (by_request) request.id = 0;
    if (by_request || moves) request.request_id = value % 13;
    if (moves) request.time_to_live = lives[more / 4 % 4];
    if (function == doorman_permits_release || function == doorman_permits_transfer) {
        request.amounts = amounts;
        request.amount_count = more / 32 % 3;
    }
    if (function(world->permits, &request, &out, NULL, world->now) != DOORMAN_OK) {
        return;
    }
    remember(world, out.id);
    for (size_t i = 0; i < out.item_count; i++) must(fuzz_amount(out.items[i].amount));
}

static void call(holds_world *world, unsigned op, unsigned value, unsigned more) {
    switch (op % 8) {
    case 0: world->now += DOORMAN_SECOND * value / 16; break;
    case 1:
        if (op > 192) {
            world->pending -= doorman_permits_cancel(world->permits, 1 + more % 2, world->now);
        } else if (op > 128) {
            world->second = !world->second;
            world->changed = true;
            must(doorman_permits_configure(world->permits, world->configs[world->second]) ==
                 DOORMAN_OK);
        } else {
            doorman_permits_update(world->permits, world->now);
        }
        break;
    case 2:
    case 3:
    case 4: call_hold(world, op / 8 * 8 + value % 4 * 8, value, more); break;
    default: acquire(world, op, value, more); break;
    }
    take_decisions(world);
    check(world);
}

/* Lets all holds end, and checks that nothing is left. */
static void drain(holds_world *world) {
    for (int i = 0; i < IDLE_ROUNDS; i++) {
        world->now += i < 3 ? 5 * DOORMAN_DURATION_MAX : 0;
        doorman_permits_update(world->permits, world->now);
        take_decisions(world);
    }
    doorman_permits_info info;
    doorman_permits_read(world->permits, &info);
    must(world->pending == 0 && info.hold_count == 0 && info.wait_count == 0);
    must(info.counter_count == 0 && info.resource_count == 0);
    must(world->permits->holds.owners.count == 0 && world->permits->holds.by_id.count == 0);
    must(world->permits->holds.by_request.count == 0 && world->permits->holds.by_key.count == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    holds_world world = {.now = DOORMAN_SECOND};
    fuzz_text rest = {(const char *)data, bytes}, line;
    bool valid = true;
    for (int i = 0; valid && i < 2; i++) {
        valid = fuzz_line(&rest, &line) &&
                doorman_json_config(&world.configs[i], line.text, line.bytes, NULL) == DOORMAN_OK;
    }
    const doorman_permits_options options = {.config = world.configs[0],
                                             .seed = {1, 2},
                                             .counter_max = 20,
                                             .hold_max = HOLD_MAX,
                                             .client_hold_max = HOLD_MAX / 2,
                                             .learns_until = bytes % 2 ? 10 * DOORMAN_SECOND : 0};
    if (valid) {
        must(doorman_permits_create(&world.permits, &options, NULL, world.now) == DOORMAN_OK);
        for (size_t i = 0; i + 2 < rest.bytes && i < 3 * CALLS; i += 3) {
            const uint8_t *at = (const uint8_t *)rest.text + i;
            call(&world, at[0], at[1], at[2]);
        }
        drain(&world);
    }
    doorman_permits_destroy(world.permits);
    doorman_config_destroy(world.configs[0]);
    doorman_config_destroy(world.configs[1]);
    return 0;
}
