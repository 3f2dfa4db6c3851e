/* What one node that never fails would decide: see sim_shards.c.
 *
 * Each shard has a doorman_permits without shards. It gets the same calls as the owners of the
 * shard, in the order of their decisions.
 *
 *     exact runs     it decides as the owners do: grants, reasons, units, and each counter's state
 *     other runs     it gets only what was granted or charged, and there are no resets. When a node
 *                    takes a shard, the calls that the node may have forgotten (V8) are taken out
 *                    again. So each counter of the owner has used at least as much as the
 *                    account's, and the account must grant what the owner grants. A sliding window
 *                    is a slice shorter than that of the owner, because slices begin at other times
 *                    after a restore
 *
 * Holds are compared only in exact runs. sim_shards_check_holds adds up what clients use. */
#include "sim_shards.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static doorman_permits *single_create(const shards_world *world, doorman_time at) {
    const doorman_permits_options options = {.config = world->single_config, .seed = {7, 11}};
    doorman_permits *permits = NULL;
    if (doorman_permits_create(&permits, &options, NULL, at) != DOORMAN_OK) abort();
    doorman_permits_set_epoch(permits, sim_shards_epoch(world) - world->now + at, at);
    return permits;
}

void sim_shards_account_open(shards_world *world) {
    for (size_t i = 0; i < world->shards.count; i++) {
        world->singles[i].permits = single_create(world, world->now);
    }
}

void sim_shards_account_close(shards_world *world) {
    for (size_t i = 0; i < world->shards.count; i++) {
        doorman_permits_destroy(world->singles[i].permits);
        free(world->singles[i].ops);
    }
    free(world->ids);
    free(world->forgotten);
}

size_t sim_shards_counter(size_t place, size_t key, bool is_ban) {
    if (place == SHARDS_BY_RESOURCE && !is_ban) key = 0; /* its limit is per resource */
    return 2 * (place * SHARDS_KEYS + key) + is_ban;
}

static const char *const kinds[] = {"acquire",     "reserve", "settle",   "report",
                                    "report once", "ban",     "reset",    "hold",
                                    "renew",       "release", "transfer", "seize"};

static bool is_about_holds(shards_kind kind) { return kind >= SHARDS_GET_HOLD; }

/* ---- ids of both sides */

static uint64_t single_id(const shards_world *world, uint64_t id) {
    for (size_t i = 0; i < world->id_count; i += 2) {
        if (world->ids[i] == id) return world->ids[i + 1];
    }
    return id; /* unknown on both sides */
}

static void add_ids(shards_world *world, uint64_t id, uint64_t single) {
    if (!id || !single || single_id(world, id) != id) return;
    for (int i = 0; i < 2; i++) {
        world->ids =
            sim_shards_grow(world->ids, world->id_count, &world->id_capacity, sizeof *world->ids);
        world->ids[world->id_count++] = i ? single : id;
    }
}

/* ---- comparing */

static void compare(shards_world *world, const shards_call *call, const shards_answer *node,
                    const shards_answer *single) {
    const bool same = node->granted == single->granted && node->gone == single->gone &&
                      node->pending == single->pending && node->reason == single->reason &&
                      fabs(node->amount - single->amount) < 1e-6 &&
                      fabs(node->returned - single->returned) < 1e-6 && !node->id == !single->id;
    if (same) return;
    sim_shards_fail(world,
                    "%s of %s/%s: a node says %d %s %g back %g gone %d pending %d, and one node %d "
                    "%s %g back %g gone %d pending %d",
                    kinds[call->kind], sim_shards_places[call->place[0]],
                    sim_shards_keys[call->key[0]], node->granted, doorman_reason_name(node->reason),
                    node->amount, node->returned, node->gone, node->pending, single->granted,
                    doorman_reason_name(single->reason), single->amount, single->returned,
                    single->gone, single->pending);
}

static void compare_counters(shards_world *world, size_t process, size_t place, size_t key) {
    const shards_process *own = &world->processes[process];
    const size_t shard = sim_shards_shard_of(world, place, key);
    doorman_permit x, y;
    double used[8];
    doorman_time resets[8];
    const doorman_permit_item item = {.resource_id = sim_shards_places[place],
                                      .key = sim_shards_keys[key]};
    if (doorman_permits_inspect(own->permits, &item, &x, NULL, sim_shards_local(own, world->now)) !=
        DOORMAN_OK) {
        return;
    }
    for (size_t i = 0; i < x.detail_count && i < 8; i++) {
        used[i] = x.details[i].used;
        resets[i] = x.details[i].reset_after;
    }
    if (doorman_permits_inspect(world->singles[shard].permits, &item, &y, NULL, world->now) !=
        DOORMAN_OK) {
        return;
    }
    if (x.detail_count != y.detail_count) sim_shards_fail(world, "details are missing");
    for (size_t i = 0; i < x.detail_count && i < y.detail_count; i++) {
        const double other = y.details[i].used;
        if (fabs(used[i] - other) < 1e-6 && resets[i] == y.details[i].reset_after) continue;
        sim_shards_fail(world, "%s/%s: %s has used %.12g for %lld, and of one node %.12g for %lld",
                        item.resource_id, item.key, y.details[i].limit, used[i],
                        (long long)resets[i], other, (long long)y.details[i].reset_after);
    }
}

void sim_shards_account_inspect(shards_world *world, size_t process, size_t shard) {
    sim_shards_account_update(world, shard);
    for (size_t place = 0; place < world->place_count; place++) {
        for (size_t key = 0; key < world->key_count && !world->failure[0]; key++) {
            if (sim_shards_shard_of(world, place, key) != shard) continue;
            compare_counters(world, process, place, key);
        }
    }
}

/* ---- permits that wait, in exact runs */

/* Takes the decisions of a shard's account on permits that have waited. */
static void drain_single(shards_world *world, size_t shard) {
    uint64_t ticket = 0;
    doorman_permit out;
    while (doorman_permits_next_decision(world->singles[shard].permits, &ticket, &out)) {
        for (size_t i = 0; i < SHARDS_WAITS; i++) {
            shards_wait *wait = &world->waits[i];
            const shards_call *call = &wait->message.call;
            if (!wait->used || wait->single_decided || wait->single_ticket != ticket) continue;
            if (sim_shards_shard_of(world, call->place[0], call->key[0]) != shard) continue;
            wait->single_decided = true;
            wait->single =
                (shards_answer){.granted = out.granted, .reason = out.reason, .id = out.hold_id};
            if (out.granted) wait->single.amount = out.items[0].granted;
        }
    }
}

void sim_shards_account_update(shards_world *world, size_t shard) {
    if (!world->singles[shard].permits) return;
    doorman_permits_update(world->singles[shard].permits, world->now);
    if (world->exact) drain_single(world, shard);
}

void sim_shards_account_decided(shards_world *world, shards_wait *wait) {
    const shards_call *call = &wait->message.call;
    const size_t shard = sim_shards_shard_of(world, call->place[0], call->key[0]);
    if (!world->exact) return;
    if (wait->answer.reason == DOORMAN_REASON_MOVED) { /* so it waits no longer */
        shards_call cancel = {.kind = SHARDS_RELEASE, .client = call->client};
        shards_answer ignored;
        cancel.request_id = call->request_id;
        (void)sim_shards_do(world, world->singles[shard].permits, &cancel, &ignored, world->now);
        drain_single(world, shard);
        return;
    }
    sim_shards_account_update(world, shard);
    if (!wait->single_decided) {
        sim_shards_fail(world, "a permit waits no longer, but would wait at one node");
        return;
    }
    compare(world, call, &wait->answer, &wait->single);
    add_ids(world, wait->answer.id, wait->single.id);
}

/* ---- decisions */

/* N3, N5: only the owner decides, and only about one shard. */
static void check_owner(shards_world *world, size_t process, const shards_call *call) {
    const size_t shard = sim_shards_shard_of(world, call->place[0], call->key[0]);
    for (size_t i = 1; i < call->item_count; i++) {
        if (sim_shards_shard_of(world, call->place[i], call->key[i]) == shard) continue;
        sim_shards_fail(world, "a permit has items of two shards");
    }
    for (size_t i = 0; i < world->process_count; i++) {
        const shards_process *other = &world->processes[i];
        const bool owns = other->permits && sim_shards_is_master(world, other) &&
                          doorman_permits_owns(other->permits, shard);
        if (owns == (i == process)) continue;
        sim_shards_fail(world, "process %zu decides by %s for shard %zu, which process %zu %s",
                        process, kinds[call->kind], shard, i, owns ? "owns too" : "does not own");
    }
}

static bool is_forgotten(const shards_world *world, uint64_t request_id) {
    for (size_t i = 0; i < world->forgotten_count; i++) {
        if (world->forgotten[i] == request_id) return true;
    }
    return false;
}

static void forget_request(shards_world *world, uint64_t request_id) {
    world->forgotten = sim_shards_grow(world->forgotten, world->forgotten_count,
                                       &world->forgotten_capacity, sizeof *world->forgotten);
    world->forgotten[world->forgotten_count++] = request_id;
}

static bool has_memory(shards_kind kind) {
    return kind == SHARDS_RESERVE || kind == SHARDS_SETTLE || kind == SHARDS_REPORT_ONCE;
}

/* Returns whether a call repeats one that the account has. */
static bool is_repeat(const shards_single *single, const shards_call *call) {
    for (size_t i = 0; has_memory(call->kind) && i < single->op_count; i++) {
        const shards_op *op = &single->ops[i];
        const bool same = op->call.kind == call->kind && op->call.request_id == call->request_id;
        if (same && !op->lost[0]) return true;
    }
    return false;
}

static void account_exact(shards_world *world, size_t process, const shards_message *message,
                          const shards_answer *answer, uint64_t ticket) {
    shards_call call = message->call;
    shards_answer single;
    const size_t shard = sim_shards_shard_of(world, call.place[0], call.key[0]);
    if (call.id) call.id = single_id(world, call.id);
    drain_single(world, shard);
    if (!sim_shards_do(world, world->singles[shard].permits, &call, &single, world->now)) return;
    compare(world, &call, answer, &single);
    add_ids(world, answer->id, single.id);
    for (size_t i = 0; i < SHARDS_WAITS; i++) {
        shards_wait *wait = &world->waits[i];
        if (!wait->used || wait->ticket != ticket || wait->process != process) continue;
        if (single.pending) wait->single_ticket = single.ticket;
    }
    drain_single(world, shard);
    if (!world->failure[0]) compare_counters(world, process, call.place[0], call.key[0]);
}

/* Changes a call to what the account charges or gives back for it. A counter that is full charges
 * less than was asked for, so a report and a settlement become what they have really changed.
 *   returns   false: nothing */
static bool find_change(const shards_single *single, const shards_answer *answer,
                        shards_call *call) {
    if (call->kind == SHARDS_REPORT || call->kind == SHARDS_REPORT_ONCE) {
        call->cost[0] = answer->amount;
    }
    if (call->kind != SHARDS_SETTLE) return true;
    if (answer->amount > 0) {
        call->kind = SHARDS_REPORT;
        call->cost[0] = answer->amount;
        return true;
    }
    for (size_t i = 0; i < single->op_count && answer->returned > 0; i++) {
        const shards_call *reserved = &single->ops[i].call;
        if (reserved->kind != SHARDS_RESERVE || reserved->request_id != call->request_id) continue;
        call->cost[0] = fmax(0, reserved->cost[0] - answer->returned);
        return true;
    }
    return false;
}

/* Adds to the account what an owner has granted or charged. */
static void account_granted(shards_world *world, const shards_message *message,
                            const shards_answer *given) {
    shards_call call = message->call;
    const bool must_fit = call.kind == SHARDS_ACQUIRE || call.kind == SHARDS_RESERVE;
    shards_single *single = &world->singles[sim_shards_shard_of(world, call.place[0], call.key[0])];
    shards_answer answer;
    if (has_memory(call.kind) && is_forgotten(world, call.request_id)) return;
    if (!find_change(single, given, &call)) return;
    if (call.kind != message->call.kind)
        forget_request(world, call.request_id); /* it counts once */
    if (!sim_shards_do(world, single->permits, &call, &answer, world->now)) return;
    const bool fits = answer.granted || answer.reason == DOORMAN_REASON_REPEATED;
    if (must_fit && !fits) {
        sim_shards_fail(world, "%g of %s/%s are granted, but one node would say %s", call.cost[0],
                        sim_shards_places[call.place[0]], sim_shards_keys[call.key[0]],
                        doorman_reason_name(answer.reason));
    }
    /* a repeat changes nothing, so a crash forgets nothing with it */
    if (is_repeat(single, &call)) return;
    single->ops =
        sim_shards_grow(single->ops, single->op_count, &single->op_capacity, sizeof *single->ops);
    single->ops[single->op_count++] =
        (shards_op){.at = world->now, .number = world->op_number, .call = call};
}

void sim_shards_account(shards_world *world, size_t process, const shards_message *message,
                        const shards_answer *answer, uint64_t ticket) {
    const shards_call *call = &message->call;
    const bool none =
        answer->reason == DOORMAN_REASON_MOVED || answer->reason == DOORMAN_REASON_SHARDS;
    const shards_kind kind = call->kind;
    sim_shards_log(
        world, "process %zu, %s %s/%s for %g, request %llu: %d %s %g, id %llu%s%s", process,
        kinds[kind], sim_shards_places[call->place[0]], sim_shards_keys[call->key[0]],
        call->cost[0], (unsigned long long)call->request_id, answer->granted,
        doorman_reason_name(answer->reason), answer->amount, (unsigned long long)answer->id,
        answer->gone ? ", gone" : "", answer->pending ? ", waits" : "");
    if (none) {
        if (answer->reason == DOORMAN_REASON_MOVED) world->moved++;
        return;
    }
    world->op_number++;
    world->decisions++;
    world->hash = world->hash * 31 + (uint64_t)(answer->amount * 4096) + answer->granted +
                  2 * (uint64_t)answer->reason;
    check_owner(world, process, call);
    if (answer->id && answer->id % world->shards.count !=
                          sim_shards_shard_of(world, call->place[0], call->key[0])) {
        sim_shards_fail(world, "the id %llu does not tell its shard",
                        (unsigned long long)answer->id);
    }
    if (world->failure[0] || !world->counts) return;
    if (world->exact) {
        account_exact(world, process, message, answer, ticket);
    } else if (!is_about_holds(kind) && answer->reason == DOORMAN_NO_REASON) {
        const bool asks = kind == SHARDS_ACQUIRE || kind == SHARDS_RESERVE;
        if (!asks || answer->granted) account_granted(world, message, answer);
    }
}

/* ---- what a crash forgets */

/* Does a call again, without the items that were forgotten. */
static void repeat(shards_world *world, shards_single *single, const shards_op *op) {
    shards_call call = op->call;
    shards_answer ignored;
    call.item_count = 0;
    for (size_t i = 0; i < op->call.item_count; i++) {
        if (op->lost[i]) continue;
        const size_t to = call.item_count++;
        call.place[to] = op->call.place[i];
        call.key[to] = op->call.key[i];
        call.cost[to] = op->call.cost[i];
    }
    if (!call.item_count) return;
    (void)sim_shards_do(world, single->permits, &call, &ignored, op->at);
}

void sim_shards_account_taken(shards_world *world, size_t shard, const uint64_t *upto) {
    shards_single *single = &world->singles[shard];
    bool changed = false;
    for (size_t i = 0; i < single->op_count; i++) {
        shards_op *op = &single->ops[i];
        for (size_t j = 0; j < op->call.item_count; j++) {
            const bool is_ban = op->call.kind == SHARDS_BAN;
            const size_t counter = sim_shards_counter(op->call.place[j], op->call.key[j], is_ban);
            if (op->lost[j] || op->number <= upto[counter]) continue;
            sim_shards_log(world, "forgotten: %s %s/%s for %g at %.3f", kinds[op->call.kind],
                           sim_shards_places[op->call.place[j]], sim_shards_keys[op->call.key[j]],
                           op->call.cost[j], (double)op->at / 1e9);
            op->lost[j] = changed = true;
            world->losses++;
            const bool is_first =
                op->call.kind == SHARDS_RESERVE || op->call.kind == SHARDS_REPORT_ONCE;
            if (is_first) forget_request(world, op->call.request_id);
        }
    }
    if (!changed || !world->counts) return;
    const doorman_time begin = single->op_count ? single->ops[0].at : world->now;
    doorman_permits_destroy(single->permits);
    single->permits = single_create(world, begin);
    for (size_t i = 0; i < single->op_count; i++) repeat(world, single, &single->ops[i]);
    sim_shards_account_update(world, shard);
}
