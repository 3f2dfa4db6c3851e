/* Permits in a simulated system: clients, messages, the time of day, and configurations.
 *
 * The processes of each node elect a master, as they do for leases. Each process also has a clock
 * of the time of day, which an administrator may set back or forward. Clients send messages to the
 * processes of a node: permits, reports, inspections, resets and bans. Messages are lost, copied
 * and late. Each process has an account (sim_account.c), which checks every decision while the
 * process is master.
 *
 * A client takes the first response to a message, and ignores the others. What it was granted is
 * never more than what the processes have decided for this message. */
#include "sim_permits.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SECOND DOORMAN_SECOND
#define EPOCH (1792000000 * SECOND) /* October 2026 */

/* A message of a client, or a repetition that comes exactly after `retry_after`. */
typedef struct sim_call {
    size_t client;
    uint64_t incarnation;
    size_t process;
    bool answered;
    doorman_method method;
    size_t permit_count; /* ACQUIRE */
    doorman_permit_request permits[SIM_PERMITS];
    doorman_permit_item items[SIM_PERMITS][SIM_ITEMS];
    size_t place, key; /* of the entry of another method */
    doorman_permit_entry entry;
    double decided; /* the units that processes have granted for it */
} sim_call;

typedef struct sim_reply {
    size_t call;
    bool is_master;
    size_t master; /* SIM_NONE: the process does not know it */
    double granted;
} sim_reply;

typedef struct sim_permit_process {
    sim_account account;
    doorman_time offset;          /* of its clock of the time of day */
    doorman_time epoch, epoch_at; /* what the server was told last */
    doorman_time until;           /* the end of its mastership, by its clock */
    bool queues;                  /* events wait until the response is known */
    doorman_permit_event events[SIM_EVENTS];
    size_t event_count;
} sim_permit_process;

typedef struct sim_permit_client {
    size_t process; /* to which it sends */
    double pace;    /* seconds between two messages */
} sim_permit_client;

struct sim_permits {
    sim_permit_version versions[SIM_VERSIONS];
    sim_permit_process processes[SIM_PROCESSES];
    sim_permit_client clients[SIM_CLIENTS];
    sim_call *calls;
    size_t call_count, call_capacity;
    sim_reply *replies;
    size_t reply_count, reply_capacity;
    uint64_t random; /* of the load */
};

static const char marker[] = "marker"; /* a resource: see handle_acquire */

static sim_permits the_permits; /* one at a time */

/* ---- the time of day */

static doorman_time local_of(const sim_world *world, size_t process) {
    return sim_local(&world->processes[process].machine.clock, world->now);
}

/* Returns what the server takes for the time of day now. */
static doorman_time epoch_of(const sim_world *world, size_t process) {
    const sim_permit_process *own = &world->permits->processes[process];
    return own->epoch + local_of(world, process) - own->epoch_at;
}

static void set_epoch(sim_world *world, size_t process) {
    sim_permit_process *own = &world->permits->processes[process];
    own->epoch_at = local_of(world, process);
    own->epoch = EPOCH + world->now + own->offset;
    doorman_server_set_epoch(world->processes[process].server, own->epoch, own->epoch_at);
}

/* Moves the account to the present time. */
static sim_account *move_account(sim_world *world, size_t process) {
    sim_account *account = &world->permits->processes[process].account;
    if (account->open) {
        sim_account_move(account, epoch_of(world, process), local_of(world, process));
    }
    return account;
}

/* Visits all counters. */
static void update(sim_world *world, size_t process) {
    doorman_permits *permits = doorman_server_permits(world->processes[process].server);
    sim_account *account = move_account(world, process);
    if (!permits || !account->open) return;
    for (int i = 0; i < 2; i++) {
        doorman_permits_update(permits, epoch_of(world, process), local_of(world, process));
    }
    sim_account_check(account, permits);
}

static void on_tick(sim_world *world, const sim_event *event) {
    const sim_process *process = &world->processes[event->actor];
    if (!process->server || process->machine.incarnation != event->incarnation) return;
    sim_schedule(world, world->now + SECOND, *event);
    if (process->machine.paused_until) return;
    update(world, event->actor); /* the account knows when the epoch changes */
    set_epoch(world, event->actor);
    (void)move_account(world, event->actor);
}

/* ---- processes */

static size_t known_index(const char *const *names, size_t count, const char *name) {
    for (size_t i = 0; name && i < count; i++) {
        if (strcmp(names[i], name) == 0) return i;
    }
    return SIM_NONE;
}

static const char *known_text(const char *const *names, size_t count, const char *name) {
    size_t index = known_index(names, count, name);
    return index == SIM_NONE ? NULL : names[index];
}

/* The listener of a process. The texts of an event are only valid during the call. */
static void on_event(void *context, const doorman_permit_event *event) {
    sim_permit_process *own = context;
    sim_world *world = own->account.world;
    size_t process = (size_t)(own - world->permits->processes);
    doorman_permit_event copy = *event;
    bool marks = event->resource_id && strcmp(event->resource_id, marker) == 0;
    copy.resource_id = marks ? marker : known_text(sim_place_names, SIM_PLACES, event->resource_id);
    copy.key = known_text(sim_key_names, SIM_KEYS, event->key);
    copy.limit = known_text(sim_limit_names, SIM_LIMIT_NAMES, event->limit);
    if (!own->account.open) {
        sim_fail(world, "%s decides without being master", own->account.owner);
    } else if (!own->queues) {
        sim_account_event(move_account(world, process), &copy);
    } else if (own->event_count < SIM_EVENTS) {
        own->events[own->event_count++] = copy;
    } else {
        sim_fail(world, "%s raises too many events", own->account.owner);
    }
}

void sim_permits_fill_options(sim_world *world, size_t process, doorman_server_options *options,
                              doorman_permits_options *permits) {
    if (!world->permits) return;
    sim_permit_process *own = &world->permits->processes[process];
    *permits = (doorman_permits_options){.on_event = on_event, .context = own};
    options->permits = permits;
    options->config = world->versions[world->version].config;
    world->processes[process].version = world->version;
}

void sim_permits_started(sim_world *world, size_t process) {
    if (!world->permits) return;
    sim_permit_process *own = &world->permits->processes[process];
    own->account.world = world;
    own->account.owner = world->processes[process].address;
    sim_account_close(&own->account);
    set_epoch(world, process);
    sim_event event = {.handler = on_tick,
                       .actor = process,
                       .incarnation = world->processes[process].machine.incarnation};
    sim_schedule(world, world->now + (doorman_time)sim_below(&world->permits->random, SECOND),
                 event);
}

void sim_permits_died(sim_world *world, size_t process) {
    if (world->permits) sim_account_close(&world->permits->processes[process].account);
}

/* P16: each mastership begins without counters. It also ends if it is renewed too late. */
void sim_permits_elected(sim_world *world, size_t process, doorman_time until) {
    if (!world->permits) return;
    sim_permit_process *own = &world->permits->processes[process];
    doorman_time local = local_of(world, process);
    if (local >= until || local >= own->until) sim_account_close(&own->account);
    own->until = until;
    if (local >= until || own->account.open) return;
    const sim_permit_version *version =
        &world->permits->versions[world->processes[process].version];
    sim_account_open(&own->account, version, epoch_of(world, process), local);
    sim_account_check(&own->account, doorman_server_permits(world->processes[process].server));
}

/* P15. */
void sim_permits_configured(sim_world *world, size_t process) {
    if (!world->permits) return;
    sim_permit_process *own = &world->permits->processes[process];
    if (!doorman_server_permits(world->processes[process].server)) {
        sim_account_close(&own->account);
    }
    if (!own->account.open) return;
    sim_account_configure(&own->account,
                          &world->permits->versions[world->processes[process].version]);
    update(world, process);
}

/* ---- messages at a process */

static void hash_permit(sim_world *world, const doorman_permit *permit) {
    sim_hash(world, (uint64_t)permit->granted << 8 | permit->reason);
    sim_hash(world, (uint64_t)permit->retry_after ^ (uint64_t)permit->wait);
    for (size_t i = 0; permit->granted && i < permit->item_count; i++) {
        sim_hash_amount(world, permit->items[i].granted);
    }
}

static void log_permit(sim_world *world, size_t process, const doorman_permit_request *request,
                       const doorman_permit *permit) {
    char text[120] = "";
    size_t length = 0;
    if (world->quiet) return;
    for (size_t i = 0; i < request->item_count; i++) {
        const doorman_permit_item *item = &request->items[i];
        int written = snprintf(text + length, sizeof text - length, " %g to %g of %s for \"%s\",",
                               item->has_min ? item->min : item->cost, item->cost,
                               item->resource_id, item->key);
        length += written > 0 ? (size_t)written : 0;
        if (length >= sizeof text) length = sizeof text - 1;
    }
    if (permit->granted) {
        sim_log(world, "%s:%s granted %g, wait %.3f s", world->processes[process].address, text,
                permit->items[0].granted, (double)permit->wait / 1e9);
    } else {
        sim_log(world, "%s:%s refused: %s by %s, %.3f s", world->processes[process].address, text,
                doorman_reason_name(permit->reason), permit->limit ? permit->limit : "none",
                (double)permit->retry_after / 1e9);
    }
}

static void send_repetition(sim_world *world, const sim_call *call, size_t process, size_t permit,
                            doorman_time after);

/* Gives the events of one permit to the account. A permit first sweeps, and then decides. So what
 * is removed after that was swept by the marker. */
static size_t take_events(sim_permit_process *own, size_t next) {
    bool decided = false;
    for (; next < own->event_count; next++) {
        const doorman_permit_event *event = &own->events[next];
        bool removed = event->kind == DOORMAN_PERMIT_KEY_REMOVED;
        if (event->resource_id == marker || (decided && removed)) break;
        decided = decided || !removed;
        sim_account_event(&own->account, event);
    }
    return next;
}

/* Gives the events of a marker to the account. */
static size_t take_marker(sim_permit_process *own, size_t next) {
    while (next < own->event_count && own->events[next].resource_id != marker) {
        sim_account_event(&own->account, &own->events[next++]);
    }
    return next + 1;
}

/* Checks the decisions on the permits of a message, and on the markers between them. */
static void check_permits(sim_world *world, size_t process, size_t call_index,
                          const doorman_request *request, const doorman_response *response) {
    sim_permit_process *own = &world->permits->processes[process];
    size_t next = 0;
    for (size_t i = 0; i < request->permit_count && !world->failure[0]; i += 2) {
        const doorman_permit_request *wanted = &request->permits[i];
        const doorman_permit *permit = &response->permits[i];
        sim_call *call = &world->permits->calls[call_index];
        log_permit(world, process, wanted, permit);
        hash_permit(world, permit);
        sim_account_begin(&own->account, wanted, false);
        next = take_events(own, next);
        sim_account_permit(&own->account, wanted, permit);
        next = take_marker(own, next);
        for (size_t j = 0; permit->granted && j < permit->item_count; j++) {
            call->decided += permit->items[j].granted;
        }
        bool repeats = permit->has_retry_after && world->now < world->end &&
                       sim_below(&world->permits->random, 6) == 0;
        if (repeats) send_repetition(world, call, process, i / 2, permit->retry_after);
    }
}

/* Between two permits stands a marker, so that the events of each can be told apart. Its resource
 * has no limits, or its cost is 0. So the marker takes nothing. */
static doorman_status handle_acquire(sim_world *world, size_t process, size_t call_index,
                                     doorman_response *response, doorman_error *error) {
    static const doorman_permit_item mark = {.resource_id = marker, .key = ""};
    sim_permit_process *own = &world->permits->processes[process];
    sim_call *call = &world->permits->calls[call_index];
    doorman_permit_request permits[2 * SIM_PERMITS];
    doorman_request request = {.method = DOORMAN_ACQUIRE,
                               .holder_id = world->clients[call->client].id,
                               .permits = permits};
    for (size_t i = 0; i < call->permit_count; i++) {
        permits[request.permit_count] = call->permits[i];
        permits[request.permit_count++].items = call->items[i];
        permits[request.permit_count++] = (doorman_permit_request){.items = &mark, .item_count = 1};
    }
    own->event_count = 0;
    own->queues = true;
    doorman_status status = doorman_server_handle(world->processes[process].server, &request,
                                                  response, error, local_of(world, process));
    own->queues = false;
    if (status != DOORMAN_OK || !response->is_master) return status;
    check_permits(world, process, call_index, &request, response);
    return status;
}

/* Handles a report, an inspection, a reset, or a ban. */
static doorman_status handle_entry(sim_world *world, size_t process, const sim_call *call,
                                   doorman_response *response, doorman_error *error) {
    sim_permit_process *own = &world->permits->processes[process];
    sim_account *account = &own->account;
    const doorman_permit_entry *entry = &call->entry;
    const doorman_permit_item item = {.resource_id = entry->resource_id, .key = entry->key};
    const doorman_permit_request looks = {.items = &item, .item_count = 1};
    doorman_request request = {.method = call->method,
                               .holder_id = world->clients[call->client].id,
                               .entries = entry,
                               .entry_count = 1};
    if (account->open) sim_account_begin(account, &looks, true);
    account->resets = call->method == DOORMAN_RESET;
    doorman_status status = doorman_server_handle(world->processes[process].server, &request,
                                                  response, error, local_of(world, process));
    account->resets = false;
    if (status != DOORMAN_OK || !response->is_master) return status;
    const doorman_permit_result *result = &response->results[0];
    sim_log(world, "%s: %s of %s for \"%s\", %g", world->processes[process].address,
            doorman_method_name(call->method, false), entry->resource_id, entry->key, entry->cost);
    if (call->method == DOORMAN_REPORT) sim_account_report(account, entry->cost, result->charged);
    if (call->method == DOORMAN_INSPECT) sim_account_inspect(account, &result->state);
    if (call->method != DOORMAN_RESET) return status;
    if (entry->sets_ban) {
        sim_account_ban(account, call->place, call->key, entry->ban);
    } else {
        sim_account_reset(account, call->place, call->key, entry->limit, result->count);
    }
    return status;
}

static size_t process_named(const sim_world *world, const char *address) {
    for (size_t i = 0; address && i < world->process_count; i++) {
        if (strcmp(world->processes[i].address, address) == 0) return i;
    }
    return SIM_NONE;
}

static void on_reply(sim_world *world, const sim_event *event);
static void transmit(sim_world *world, sim_handler handler, size_t client, size_t process,
                     size_t index);

static void send_reply(sim_world *world, size_t process, size_t call_index,
                       const doorman_response *response) {
    sim_permits *permits = world->permits;
    if (permits->reply_count == permits->reply_capacity) {
        permits->reply_capacity = permits->reply_capacity ? 2 * permits->reply_capacity : 256;
        permits->replies =
            realloc(permits->replies, permits->reply_capacity * sizeof *permits->replies);
        if (!permits->replies) abort();
    }
    sim_reply *reply = &permits->replies[permits->reply_count];
    *reply = (sim_reply){.call = call_index, .is_master = response->is_master};
    reply->master = process_named(world, response->master_address);
    for (size_t i = 0; i < response->permit_count; i += 2) {
        const doorman_permit *permit = &response->permits[i];
        for (size_t j = 0; permit->granted && j < permit->item_count; j++) {
            reply->granted += permit->items[j].granted;
        }
    }
    transmit(world, on_reply, permits->calls[call_index].client, process, permits->reply_count++);
}

/* Handles a message at a process that is running. Returns whether the process is master. */
static void handle_call(sim_world *world, size_t process, size_t call_index) {
    sim_call *call = &world->permits->calls[call_index];
    sim_account *account = &world->permits->processes[process].account;
    doorman_response response;
    doorman_error error = {""};
    doorman_status status = DOORMAN_OK;
    if (account->open &&
        sim_account_is_edge(account, epoch_of(world, process), local_of(world, process))) {
        return; /* a rounding error decides between two windows: the message is lost */
    }
    (void)move_account(world, process);
    if (call->method == DOORMAN_ACQUIRE) {
        status = handle_acquire(world, process, call_index, &response, &error);
    } else {
        status = handle_entry(world, process, call, &response, &error);
    }
    if (status != DOORMAN_OK) {
        sim_fail(world, "%s refuses a correct message: %s", account->owner, error.text);
        return;
    }
    if (!response.is_master) sim_account_close(account);
    if (response.is_master) {
        sim_account_check(account, doorman_server_permits(world->processes[process].server));
    }
    send_reply(world, process, call_index, &response);
}

static void on_call(sim_world *world, const sim_event *event) {
    size_t index = event->target;
    size_t process = world->permits->calls[index].process;
    const sim_process *receiver = &world->processes[process];
    if (receiver->machine.paused_until) {
        bool lost = sim_fault_occurs(world, SIM_FREEZE, 0.5);
        if (!lost) sim_schedule(world, receiver->machine.paused_until, *event);
    } else if (receiver->server) {
        handle_call(world, process, index);
    }
}

/* ---- the network */

/* Sends a message or a reply. It may be lost, copied or late. */
static void transmit(sim_world *world, sim_handler handler, size_t client, size_t process,
                     size_t index) {
    sim_event event = {.handler = handler, .actor = client, .target = index};
    bool passes = !world->partitioned || world->clients[client].machine.other_side ==
                                             world->processes[process].machine.other_side;
    int copies = sim_fault_occurs(world, SIM_DOUBLE, 0.2) ? 2 : 1;
    for (int i = 0; i < copies; i++) {
        doorman_time delay = sim_time_between(&world->permits->random, 0, world->latency);
        if (sim_fault_occurs(world, SIM_DELAY, 0.2)) {
            delay += sim_time_between(&world->fault_random[SIM_DELAY], 0, 10 * SECOND);
        }
        if (sim_fault_occurs(world, SIM_LOSS, 0.3)) continue;
        if (passes) sim_schedule(world, world->now + delay, event);
    }
}

/* ---- clients */

static sim_call *add_call(sim_world *world) {
    sim_permits *permits = world->permits;
    if (permits->call_count == permits->call_capacity) {
        permits->call_capacity = permits->call_capacity ? 2 * permits->call_capacity : 256;
        permits->calls = realloc(permits->calls, permits->call_capacity * sizeof *permits->calls);
        if (!permits->calls) abort();
    }
    sim_call *call = &permits->calls[permits->call_count++];
    memset(call, 0, sizeof *call);
    return call;
}

/* A repetition arrives exactly when retry_after has passed, at the same process. */
static void send_repetition(sim_world *world, const sim_call *call, size_t process, size_t permit,
                            doorman_time after) {
    const sim_clock *clock = &world->processes[process].machine.clock;
    sim_call copy = *call;
    sim_call *again = add_call(world);
    *again = (sim_call){.client = copy.client, .process = process, .answered = true};
    again->incarnation = copy.incarnation;
    again->method = DOORMAN_ACQUIRE;
    again->permit_count = 1;
    again->permits[0] = copy.permits[permit];
    memcpy(again->items[0], copy.items[permit], sizeof again->items[0]);
    sim_event event = {.handler = on_call, .actor = copy.client};
    event.target = world->permits->call_count - 1;
    sim_schedule(world, sim_global(clock, local_of(world, process) + after), event);
}

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

static void draw_permit(doorman_permit_request *permit, doorman_permit_item *items,
                        uint64_t *random) {
    *permit = (doorman_permit_request){.item_count = 1};
    if (sim_below(random, 3) == 0) permit->item_count = 1 + sim_pick(random, SIM_ITEMS);
    for (size_t i = 0; i < permit->item_count; i++) draw_item(&items[i], random);
    if (sim_below(random, 2)) permit->max_wait = sim_time_between(random, 0, 4 * SECOND);
    permit->detail = sim_below(random, 4) == 0;
    permit->equal = sim_below(random, 8) == 0;
    double least = 0, most = INFINITY;
    for (size_t i = 0; i < permit->item_count; i++) {
        least = fmax(least, ceil(items[i].has_min ? items[i].min : items[i].cost));
        most = fmin(most, floor(items[i].cost));
    }
    if (least > most) permit->equal = false;
}

static void draw_entry(sim_call *call, uint64_t *random) {
    uint64_t choice = sim_below(random, 16);
    doorman_permit_entry *entry = &call->entry;
    call->place = sim_pick(random, SIM_PLACES);
    call->key = sim_pick(random, SIM_KEYS);
    entry->resource_id = sim_place_names[call->place];
    entry->key = sim_key_names[call->key];
    call->method = choice < 9 ? DOORMAN_REPORT : choice < 13 ? DOORMAN_INSPECT : DOORMAN_RESET;
    if (call->method == DOORMAN_REPORT) {
        entry->cost = (double)(1 + sim_below(random, 80)) / 8;
        if (sim_below(random, 3) == 0) entry->cost = -entry->cost;
    }
    if (call->method != DOORMAN_RESET) return;
    entry->sets_ban = sim_below(random, 2);
    if (entry->sets_ban && sim_below(random, 3))
        entry->ban = sim_time_between(random, 1, 20 * SECOND);
    if (!entry->sets_ban && sim_below(random, 2)) {
        entry->limit = sim_limit_names[sim_below(random, SIM_LIMIT_NAMES)];
    }
}

static size_t random_process(const sim_world *world, size_t client, uint64_t *random) {
    const sim_node *node = &world->nodes[world->clients[client].node];
    return node->first_process + sim_pick(random, node->process_count);
}

static void on_client_due(sim_world *world, const sim_event *event) {
    sim_permit_client *client = &world->permits->clients[event->actor];
    uint64_t *random = &world->permits->random;
    doorman_time wait = (doorman_time)(sim_between(random, 0, 2 * client->pace) * 1e9);
    if (world->now >= world->end) return;
    sim_schedule(world, world->now + wait, *event);
    sim_call *call = add_call(world);
    call->client = event->actor;
    call->incarnation = world->clients[event->actor].machine.incarnation;
    if (sim_below(random, 12) == 0) client->process = random_process(world, event->actor, random);
    call->process = client->process;
    if (sim_below(random, 8) == 0) {
        draw_entry(call, random);
    } else {
        call->method = DOORMAN_ACQUIRE;
        call->permit_count = 1 + (sim_below(random, 4) == 0 ? sim_pick(random, SIM_PERMITS) : 0);
        for (size_t i = 0; i < call->permit_count; i++) {
            draw_permit(&call->permits[i], call->items[i], random);
        }
    }
    transmit(world, on_call, event->actor, call->process, world->permits->call_count - 1);
}

static void on_reply(sim_world *world, const sim_event *event) {
    const sim_reply *reply = &world->permits->replies[event->target];
    sim_call *call = &world->permits->calls[reply->call];
    bool late = call->incarnation != world->clients[event->actor].machine.incarnation;
    if (call->answered || late) return;
    call->answered = true;
    if (reply->granted > call->decided) {
        sim_fail(world, "%s was granted %g, the servers decided %g",
                 world->clients[event->actor].id, reply->granted, call->decided);
    }
    if (reply->is_master) return;
    sim_permit_client *client = &world->permits->clients[event->actor];
    client->process = reply->master == SIM_NONE
                          ? random_process(world, event->actor, &world->permits->random)
                          : reply->master;
}

/* ---- faults */

static void add_version(sim_world *world, uint64_t *random) {
    sim_permits *permits = world->permits;
    sim_permit_version *version = &permits->versions[world->version_count];
    const sim_permit_version *before = world->version_count ? version - 1 : NULL;
    sim_draw_definitions(version, before, world->node_count > 1, random);
    sim_log(world, "configuration %zu:", world->version_count);
    world->versions[world->version_count++].config = sim_create_config(version);
    sim_log_definitions(world, version);
}

bool sim_permits_add_version(sim_world *world, uint64_t *random) {
    if (world->version_count == SIM_VERSIONS) return false;
    add_version(world, random);
    return true;
}

void sim_permits_die(sim_world *world, uint64_t *random) {
    world->clients[sim_pick(random, world->client_count)].machine.incarnation++;
}

/* Sets the clock of the time of day of a process, mostly by some seconds. */
void sim_permits_set_clock(sim_world *world, uint64_t *random) {
    sim_permit_process *own = &world->permits->processes[sim_pick(random, world->process_count)];
    static const double seconds[] = {0.5, 5, 60, 5000, 40000000};
    double most = seconds[sim_below(random, 5)];
    own->offset = (doorman_time)(sim_between(random, -most, most) * 1e9);
    sim_log(world, "the time of day of %s is wrong by %g s", own->account.owner,
            (double)own->offset / 1e9);
}

/* ---- one run */

void sim_permits_set_up(sim_world *world) {
    sim_permits *permits = &the_permits;
    sim_call *calls = permits->calls;
    sim_reply *replies = permits->replies;
    size_t call_capacity = permits->call_capacity, reply_capacity = permits->reply_capacity;
    memset(permits, 0, sizeof *permits);
    permits->calls = calls;
    permits->call_capacity = call_capacity;
    permits->replies = replies;
    permits->reply_capacity = reply_capacity;
    permits->random = world->seed * 31 + 5;
    world->permits = permits;
}

void sim_permits_add_client(sim_world *world, size_t index) {
    uint64_t *random = &world->permits->random;
    sim_permit_client *client = &world->permits->clients[index];
    client->process = random_process(world, index, random);
    client->pace = sim_between(random, 0.1, 2);
    sim_schedule(world, sim_time_between(random, 0, SECOND),
                 (sim_event){.handler = on_client_due, .actor = index});
}

/* After a time without messages, no counter is left that equals a fresh one. */
void sim_permits_check_idle(sim_world *world) {
    for (size_t i = 0; i < world->process_count && !world->failure[0]; i++) {
        sim_account *account = &world->permits->processes[i].account;
        if (!world->processes[i].server || !doorman_server_permits(world->processes[i].server)) {
            continue;
        }
        update(world, i);
        if (account->open) sim_account_check_idle(account);
    }
}

void sim_permits_tear_down(sim_world *world) {
    for (size_t i = 0; i < world->process_count; i++) {
        sim_account_close(&world->permits->processes[i].account);
    }
    world->permits = NULL;
}
