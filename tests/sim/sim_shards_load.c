/* What the clients of shards do: see sim_shards.c.
 *
 * A client knows a map, perhaps an old one. It sends a call to the node that owns the shard in this
 * map. After an answer MOVED it asks again, often with a new map. It repeats calls without answers.
 * Messages are lost, late and doubled. */
#include "sim_shards.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SECOND DOORMAN_SECOND
#define TIMEOUT (SECOND / 2)
#define TRIES 24
#define RESERVED_MAX (9 * SECOND) /* the longest settle_within */

/* ---- calls of permits */

/* A call at some permits. */
typedef struct permits_call {
    const shards_world *world;
    doorman_permits *permits;
    const shards_call *call;
    doorman_permit_item items[SHARDS_ITEMS]; /* of the call */
    doorman_time now;
} permits_call;

static bool do_acquire(const permits_call *at, shards_answer *out, doorman_error *error) {
    const shards_call *call = at->call;
    doorman_permit permit;
    doorman_permit_request request = {.items = at->items, .item_count = call->item_count};
    if (call->request_id) {
        request.client_id = at->world->clients[call->client].name;
        request.request_id = call->request_id;
    }
    if (call->kind == SHARDS_RESERVE) request.settle_within = call->duration;
    if (call->kind == SHARDS_GET_HOLD) request.max_wait = call->duration;
    if (doorman_permits_acquire(at->permits, &request, &permit, error, at->now) != DOORMAN_OK) {
        return false;
    }
    out->granted = permit.granted;
    out->pending = permit.pending;
    out->reason = permit.reason;
    out->id = permit.hold_id ? permit.hold_id : permit.reservation_id;
    out->waited = permit.waited;
    out->expires_in = permit.expires_in;
    out->ticket = permit.ticket;
    for (size_t i = 0; permit.granted && i < permit.item_count; i++) {
        out->amount += permit.items[i].granted;
    }
    return true;
}

static bool do_settle(const permits_call *at, shards_answer *out, doorman_error *error) {
    const shards_call *call = at->call;
    doorman_settlement done;
    const doorman_settle_request request = {.client_id = at->world->clients[call->client].name,
                                            .request_id = call->request_id,
                                            .items = at->items,
                                            .item_count = call->item_count};
    doorman_status status =
        call->kind == SHARDS_SETTLE
            ? doorman_permits_settle(at->permits, &request, &done, error, at->now)
            : doorman_permits_report_once(at->permits, &request, &done, error, at->now);
    if (status != DOORMAN_OK) return false;
    out->reason = done.reason;
    if (done.items) {
        out->amount = done.items[0].charged;
        out->returned = done.items[0].returned;
    }
    return true;
}

static bool do_hold(const permits_call *at, shards_answer *out, doorman_error *error) {
    const shards_call *call = at->call;
    doorman_permits *permits = at->permits;
    const doorman_time now = at->now;
    const doorman_hold_item item = {.resource_id = sim_shards_places[call->place[0]],
                                    .key = sim_shards_keys[call->key[0]],
                                    .amount = call->cost[0]};
    doorman_hold_request request = {.client_id = at->world->clients[call->client].name,
                                    .id = call->id};
    doorman_hold hold;
    doorman_status status = DOORMAN_OK;
    if (call->kind == SHARDS_RENEW) {
        request.items = &item;
        request.item_count = call->item_count;
        status = doorman_permits_renew(permits, &request, &hold, error, now);
    } else if (call->kind == SHARDS_RELEASE) {
        request.request_id = call->id ? 0 : call->request_id;
        request.items = call->id || !call->item_count ? NULL : &item;
        request.item_count = request.items ? 1 : 0;
        status = doorman_permits_release(permits, &request, &hold, error, now);
    } else {
        request.request_id = call->request_id;
        status = call->kind == SHARDS_TRANSFER
                     ? doorman_permits_transfer(permits, &request, &hold, error, now)
                     : doorman_permits_seize(permits, &request, &hold, error, now);
    }
    if (status != DOORMAN_OK) return false;
    out->gone = hold.gone;
    out->reason = hold.reason;
    out->id = hold.gone ? 0 : hold.id;
    out->expires_in = hold.expires_in;
    if (hold.item_count) out->amount = hold.items[0].amount;
    return true;
}

/* Sets the reason that belongs to a status. Returns whether the call was correct. */
static bool take_status(doorman_status status, shards_answer *out) {
    if (status == DOORMAN_UNAVAILABLE) out->reason = DOORMAN_REASON_MOVED;
    return status == DOORMAN_OK || status == DOORMAN_UNAVAILABLE;
}

bool sim_shards_do(shards_world *world, doorman_permits *permits, const shards_call *call,
                   shards_answer *out, doorman_time now) {
    permits_call at = {.world = world, .permits = permits, .call = call, .now = now};
    doorman_permit_item *items = at.items;
    doorman_error error = {0};
    size_t count = 0;
    bool done = false;
    *out = (shards_answer){.reason = DOORMAN_NO_REASON};
    for (size_t i = 0; i < call->item_count; i++) {
        items[i] = (doorman_permit_item){.resource_id = sim_shards_places[call->place[i]],
                                         .key = sim_shards_keys[call->key[i]],
                                         .cost = call->cost[i]};
        items[i].has_min = world->exact && call->kind == SHARDS_ACQUIRE;
        items[i].min = items[i].has_min ? 1 : 0;
    }
    switch (call->kind) {
    case SHARDS_ACQUIRE:
    case SHARDS_RESERVE:
    case SHARDS_GET_HOLD: done = do_acquire(&at, out, &error); break;
    case SHARDS_SETTLE:
    case SHARDS_REPORT_ONCE: done = do_settle(&at, out, &error); break;
    case SHARDS_REPORT:
        done = take_status(doorman_permits_report(permits, items, &out->amount, &error, now), out);
        break;
    case SHARDS_BAN:
        done = take_status(doorman_permits_ban(permits, items, call->duration, &error, now), out);
        break;
    case SHARDS_RESET:
        done = take_status(doorman_permits_reset(permits, items, "l", &count, &error), out);
        break;
    case SHARDS_RENEW:
    case SHARDS_RELEASE:
    case SHARDS_TRANSFER:
    case SHARDS_SEIZE: done = do_hold(&at, out, &error); break;
    }
    if (!done) sim_shards_fail(world, "a correct call is refused: %s", error.text);
    return done;
}

/* ---- messages */

static doorman_time delay(shards_world *world) {
    doorman_time late = sim_shards_between(world, 0, SECOND / 20);
    if (sim_shards_fault(world, SIM_DELAY, 0.05)) late += sim_shards_between(world, 0, 5 * SECOND);
    return late;
}

static void deliver(shards_world *world, const shards_message *message) {
    if (sim_shards_fault(world, SIM_LOSS, 0.05)) return;
    const int copies = sim_shards_fault(world, SIM_DOUBLE, 0.1) ? 2 : 1;
    for (int i = 0; i < copies; i++) {
        size_t at = 0;
        while (at < world->message_count && world->messages[at].used) at++;
        if (at == world->message_count) {
            world->messages = sim_shards_grow(world->messages, world->message_count,
                                              &world->message_capacity, sizeof *world->messages);
            world->message_count++;
        }
        world->messages[at] = *message;
        world->messages[at].used = true;
        world->messages[at].at = world->now + delay(world);
    }
}

void sim_shards_send(shards_world *world, const shards_message *message,
                     const shards_answer *answer) {
    shards_message reply = *message;
    reply.is_answer = true;
    reply.answer = *answer;
    deliver(world, &reply);
}

/* ---- what a process does with a call */

/* Notes a permit that waits. A repeat has the same ticket, and is not noted again. */
static void add_wait(shards_world *world, size_t process, const shards_message *message,
                     uint64_t ticket) {
    shards_wait *room = NULL;
    for (size_t i = 0; i < SHARDS_WAITS; i++) {
        shards_wait *wait = &world->waits[i];
        if (wait->used && wait->process == process && wait->ticket == ticket &&
            wait->incarnation == world->processes[process].incarnation) {
            return;
        }
        if (!wait->used && !room) room = wait;
    }
    if (!room) {
        sim_shards_fail(world, "too many permits wait for the simulator");
        return;
    }
    *room = (shards_wait){.used = true, .process = process, .ticket = ticket, .message = *message};
    room->incarnation = world->processes[process].incarnation;
}

void sim_shards_drain(shards_world *world, size_t process) {
    const shards_process *own = &world->processes[process];
    uint64_t ticket = 0;
    doorman_permit out;
    while (doorman_permits_next_decision(own->permits, &ticket, &out)) {
        for (size_t i = 0; i < SHARDS_WAITS; i++) {
            shards_wait *wait = &world->waits[i];
            if (!wait->used || wait->process != process || wait->ticket != ticket) continue;
            wait->answer = (shards_answer){.granted = out.granted, .reason = out.reason};
            wait->answer.id = out.hold_id;
            wait->answer.waited = out.waited;
            wait->answer.expires_in = out.expires_in;
            if (out.granted) wait->answer.amount = out.items[0].granted;
            sim_shards_account_decided(world, wait);
            sim_shards_send(world, &wait->message, &wait->answer);
            wait->used = false;
            break;
        }
    }
}

void sim_shards_handle(shards_world *world, size_t process, const shards_message *message) {
    const shards_process *own = &world->processes[process];
    shards_answer answer = {.away = true};
    if (!own->alive || world->now < own->paused_until) return;
    if (!sim_shards_is_master(world, own) || !own->was_read) {
        sim_shards_send(world, message, &answer);
        return;
    }
    if (!sim_shards_do(world, own->permits, &message->call, &answer,
                       sim_shards_local(own, world->now))) {
        return;
    }
    if (answer.pending) add_wait(world, process, message, answer.ticket);
    if (message->call.kind == SHARDS_RESET) {
        world->reset_until[message->call.place[0]][message->call.key[0]] =
            world->now + RESERVED_MAX + SECOND; /* for clocks that differ */
    }
    sim_shards_account(world, process, message, &answer, answer.pending ? answer.ticket : 0);
    sim_shards_drain(world, process);
    if (!answer.pending) sim_shards_send(world, message, &answer);
}

/* ---- tasks */

static doorman_time client_local(const shards_world *world, size_t client) {
    return sim_local(&world->clients[client].clock, world->now);
}

static bool begin(shards_world *world, const shards_call *call, doorman_time after) {
    for (size_t i = 0; i < SHARDS_TASKS; i++) {
        shards_task *task = &world->tasks[i];
        if (task->used) continue;
        *task = (shards_task){.used = true, .number = ++world->task_number, .call = *call};
        task->next_at = world->now + after;
        return true;
    }
    return false;
}

/* Sends the call of a task to a process of the node that the client believes to be the owner. */
static void send_task(shards_world *world, size_t index) {
    shards_task *task = &world->tasks[index];
    shards_client *client = &world->clients[task->call.client];
    const size_t shard = sim_shards_shard_of(world, task->call.place[0], task->call.key[0]);
    if (task->attempts++ == TRIES) {
        task->used = false;
        return;
    }
    if (task->attempts > 3 || !client->map.epoch) client->map = world->map;
    size_t seen = 0, process = 0;
    const size_t node = client->map.owners[shard].owner;
    for (size_t i = 0; i < world->process_count; i++) {
        if (world->processes[i].node == node && seen++ == task->turn % 2) process = i;
        if (world->processes[i].node == node && seen == 1) process = i;
    }
    task->turn += sim_shards_chance(world, 0.3);
    task->next_at = world->now + TIMEOUT;
    shards_message message = {.number = task->number, .task = index, .process = process};
    message.call = task->call;
    message.sent_at = client_local(world, task->call.client);
    deliver(world, &message);
}

static shards_hold *new_hold(shards_world *world) {
    for (size_t i = 0; i < SHARDS_HOLDS; i++) {
        if (!world->holds[i].used) return &world->holds[i];
    }
    return NULL;
}

/* Notes a hold that was granted or seized. */
static void take_hold(shards_world *world, const shards_message *message) {
    const shards_answer *answer = &message->answer;
    const doorman_time waited = (doorman_time)((double)answer->waited / 1.05);
    shards_hold *hold = new_hold(world);
    if (!hold) return;
    *hold = (shards_hold){.used = true, .call = message->call, .id = answer->id};
    hold->amount = answer->amount;
    hold->until = message->sent_at + waited + answer->expires_in;
    hold->renew_at = message->sent_at + answer->expires_in / 4;
    if (hold->until <= client_local(world, message->call.client)) hold->used = false;
}

static void renewed(shards_world *world, const shards_message *message) {
    const shards_answer *answer = &message->answer;
    for (size_t i = 0; i < SHARDS_HOLDS; i++) {
        shards_hold *hold = &world->holds[i];
        if (!hold->used || hold->id != message->call.id) continue;
        if (answer->gone) {
            hold->renew_at = DOORMAN_NEVER;
        } else if (answer->amount >= hold->amount - 1e-6) {
            const doorman_time until = message->sent_at + answer->expires_in;
            if (until > hold->until) hold->until = until;
        }
    }
}

static void seize(shards_world *world, const shards_message *message) {
    shards_call call = message->call;
    call.kind = SHARDS_SEIZE;
    call.client = (size_t)sim_below(&world->random, world->client_count);
    call.id = message->answer.id;
    call.request_id = ++world->requests;
    (void)begin(world, &call, sim_shards_between(world, 0, 2 * SECOND));
}

static void settle(shards_world *world, const shards_message *message) {
    shards_call call = message->call;
    call.kind = SHARDS_SETTLE;
    call.cost[0] = (double)sim_below(&world->random, 9);
    if (sim_below(&world->random, 4) == 0) return; /* it ends by itself */
    const doorman_time after = sim_shards_between(world, 0, 3 * SECOND);
    (void)begin(world, &call, after);
    if (sim_below(&world->random, 3) == 0) (void)begin(world, &call, after + SECOND);
}

/* Plans to repeat a call, perhaps with a new map, because the process has not decided. */
static void take_moved(shards_world *world, shards_task *task) {
    shards_client *client = &world->clients[task->call.client];
    if (sim_below(&world->random, 2)) client->map = world->map;
    task->next_at = world->now + sim_shards_between(world, SECOND / 20, SECOND / 2);
}

static void take_answer(shards_world *world, const shards_message *message) {
    shards_task *task = &world->tasks[message->task];
    const shards_answer *answer = &message->answer;
    if (!task->used || task->number != message->number) return;
    if (answer->away || answer->reason == DOORMAN_REASON_MOVED) {
        task->turn += answer->away;
        take_moved(world, task);
        return;
    }
    const shards_kind kind = task->call.kind;
    const bool is_hold = answer->id && !answer->gone;
    task->used = false;
    if (kind == SHARDS_RESERVE && answer->granted) settle(world, message);
    if ((kind == SHARDS_GET_HOLD || kind == SHARDS_SEIZE) && is_hold) take_hold(world, message);
    if (kind == SHARDS_TRANSFER && is_hold) seize(world, message);
    if (kind == SHARDS_RENEW) renewed(world, message);
}

/* ---- holds */

/* Lets a client renew a hold, or sometimes release or transfer it. */
static void work_hold(shards_world *world, shards_hold *hold) {
    const doorman_time local = client_local(world, hold->call.client);
    shards_call call = hold->call;
    call.id = hold->id;
    call.cost[0] = hold->amount;
    if (local >= hold->until) {
        hold->used = false;
        return;
    }
    if (local >= hold->renew_at) {
        call.kind = SHARDS_RENEW;
        hold->renew_at = local + (hold->until - local) / 4 + SECOND / 10;
        (void)begin(world, &call, 0);
        return;
    }
    if (!world->quiet && !sim_shards_chance(world, (double)world->step / 4e9)) return;
    call.kind = sim_below(&world->random, 3) || world->quiet ? SHARDS_RELEASE : SHARDS_TRANSFER;
    if (call.kind == SHARDS_TRANSFER) call.request_id = ++world->requests;
    if (begin(world, &call, 0)) hold->used = false; /* it stops using the units first */
}

void sim_shards_check_holds(shards_world *world) {
    double used[SHARDS_KEYS] = {0};
    for (size_t i = 0; i < SHARDS_HOLDS; i++) {
        const shards_hold *hold = &world->holds[i];
        if (!hold->used || client_local(world, hold->call.client) >= hold->until) continue;
        used[hold->call.key[0]] += hold->amount;
    }
    for (size_t i = 0; i < world->key_count; i++) {
        if (used[i] <= world->slots + 1e-6) continue;
        sim_shards_fail(world, "clients use %g units of %s, and the limit is %g", used[i],
                        sim_shards_keys[i], world->slots);
    }
}

/* ---- new calls */

/* Draws a key, often one of the first, so that keys run out of units. */
static size_t draw_key(shards_world *world) {
    const size_t most = sim_below(&world->random, 2) ? 3 : world->key_count;
    return (size_t)sim_below(&world->random, most < world->key_count ? most : world->key_count);
}

static size_t draw_place(shards_world *world) {
    size_t place = (size_t)sim_below(&world->random, world->place_count - 1);
    return place >= SHARDS_HOLD ? place + 1 : place;
}

static bool is_bucket(size_t place) {
    return place <= SHARDS_LASTING || place == SHARDS_BY_RESOURCE;
}

/* Returns whether a call of this kind with the resource and key of `of` is under way. */
static bool is_under_way(const shards_world *world, shards_kind kind, const shards_call *of) {
    for (size_t i = 0; i < SHARDS_TASKS; i++) {
        const shards_call *call = &world->tasks[i].call;
        if (!world->tasks[i].used || call->kind != kind) continue;
        if (call->place[0] == of->place[0] && call->key[0] == of->key[0]) return true;
    }
    return false;
}

/* Returns whether a reservation or a reset must not be made now. After a reset, a new reservation
 * of a window lets reservations from before the reset get units back too, until the counter is
 * fresh and is forgotten. A node may forget the counter earlier than the account does. So a window
 * that was reset gets no new reservation while an earlier reservation may be open. */
static bool is_left_alone(const shards_world *world, const shards_call *call) {
    if (is_bucket(call->place[0])) return false;
    if (call->kind == SHARDS_RESET) return is_under_way(world, SHARDS_RESERVE, call);
    return call->kind == SHARDS_RESERVE &&
           (is_under_way(world, SHARDS_RESET, call) ||
            world->now < world->reset_until[call->place[0]][call->key[0]]);
}

static void ask(shards_world *world) {
    static const shards_kind some[] = {
        SHARDS_ACQUIRE,  SHARDS_ACQUIRE,  SHARDS_ACQUIRE,     SHARDS_ACQUIRE, SHARDS_RESERVE,
        SHARDS_RESERVE,  SHARDS_REPORT,   SHARDS_REPORT_ONCE, SHARDS_BAN,     SHARDS_RESET,
        SHARDS_GET_HOLD, SHARDS_GET_HOLD, SHARDS_GET_HOLD};
    shards_call call = {.kind = some[sim_below(&world->random, sizeof some / sizeof *some)]};
    call.client = (size_t)sim_below(&world->random, world->client_count);
    call.item_count = 1;
    call.place[0] = draw_place(world);
    call.key[0] = draw_key(world);
    call.cost[0] = (double)(1 + sim_below(&world->random, 6));
    if (call.kind == SHARDS_ACQUIRE && sim_below(&world->random, 4) == 0) {
        call.item_count = 2; /* keys with the same text in braces are in one shard */
        call.place[1] = draw_place(world);
        call.key[1] = sim_below(&world->random, 2) ? call.key[0] : draw_key(world);
        call.cost[1] = (double)(1 + sim_below(&world->random, 3));
    }
    const bool rare = call.kind == SHARDS_BAN || call.kind == SHARDS_RESET;
    if (rare && sim_below(&world->random, 3)) return;
    if (call.kind == SHARDS_BAN) {
        call.duration = (doorman_time)sim_below(&world->random, 4) * 2 * SECOND;
    }
    /* A counter that a store has kept also gives units back for reservations from before a reset,
     * or from before its bucket was full. The account cannot follow that. */
    const bool is_kept = !world->exact && sim_shards_is_durable(call.place[0]);
    if (call.kind == SHARDS_RESET && (call.place[0] >= SHARDS_MIXED || !world->exact)) return;
    if (call.kind == SHARDS_RESERVE && is_kept && is_bucket(call.place[0])) return;
    if (is_left_alone(world, &call)) return;
    if (call.kind == SHARDS_RESERVE) {
        call.duration = sim_shards_between(world, SECOND, RESERVED_MAX);
    }
    if (call.kind == SHARDS_GET_HOLD) {
        call.place[0] = SHARDS_HOLD;
        call.cost[0] = (double)(1 + sim_below(&world->random, 2));
        call.duration = (doorman_time)sim_below(&world->random, 3) * SECOND;
    }
    const bool named = call.kind == SHARDS_RESERVE || call.kind == SHARDS_REPORT_ONCE ||
                       call.kind == SHARDS_GET_HOLD;
    if (named) call.request_id = ++world->requests;
    (void)begin(world, &call, 0);
}

/* Gives up a request for a hold that was not answered. */
static void cancel(shards_world *world, shards_task *task) {
    shards_call call = task->call;
    call.kind = SHARDS_RELEASE;
    call.id = 0;
    task->used = false;
    (void)begin(world, &call, 0);
}

void sim_shards_load(shards_world *world) {
    for (size_t i = 0; i < world->message_count && !world->failure[0]; i++) {
        if (!world->messages[i].used || world->messages[i].at > world->now) continue;
        const shards_message message = world->messages[i];
        world->messages[i].used = false;
        if (message.is_answer) {
            take_answer(world, &message);
        } else {
            sim_shards_handle(world, message.process, &message);
        }
    }
    for (size_t i = 0; i < SHARDS_TASKS; i++) {
        shards_task *task = &world->tasks[i];
        if (!task->used || task->next_at > world->now) continue;
        const bool gives_up = task->call.kind == SHARDS_GET_HOLD && task->attempts > 12;
        if (gives_up) cancel(world, task);
        if (!gives_up) send_task(world, i);
    }
    for (size_t i = 0; i < SHARDS_HOLDS; i++) {
        if (world->holds[i].used) work_hold(world, &world->holds[i]);
    }
    if (!world->quiet && sim_shards_chance(world, (double)world->step / 1e9 * world->unit_rate))
        ask(world);
    sim_shards_check_holds(world);
}
