/* Permits in a simulated system: processes, messages, the time of day, and configurations.
 *
 * The processes of each node elect a master, as they do for leases. Each process also has a clock
 * of the time of day, which an administrator may set back or forward. Clients send messages to the
 * processes of a node: permits, reports, inspections, resets and bans. Most permits and reports go
 * through a doorman_permit_client, as in an agent (sim_permit_client.c). The others are messages of
 * the load itself (sim_permit_load.c). Messages are lost, copied and late. Each process has an
 * account (sim_account.c), which checks every decision while the process is master.
 *
 * A client takes the first response to a message, and ignores the others. It is never granted more
 * than what the processes have decided for that message. */
#include "sim_permits.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SECOND DOORMAN_SECOND
#define EPOCH (1792000000 * SECOND) /* October 2026 */

static const char marker[] = "marker"; /* a resource: see handle_acquire */

static sim_permits the_permits; /* one at a time */

/* The events of the permits that a process decides on. They wait until the response is known. */
static struct {
    const sim_permit_process *process; /* NULL: none */
    doorman_permit_event events[SIM_EVENTS];
    size_t count;
} queue;

/* ---- the time of day */

static doorman_time local_of(const sim_world *world, size_t process) {
    return sim_local(&world->processes[process].machine.clock, world->now);
}

/* Returns the server's time of day: the last one that it was given, plus the time since. */
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

/* Lets a process visit all its counters, and compares their number with the account's. */
static void update(sim_world *world, size_t process) {
    doorman_permits *permits = doorman_server_permits(world->processes[process].server);
    sim_account *account = move_account(world, process);
    if (!permits || !account->open) return;
    for (int i = 0; i < 2; i++) {
        doorman_permits_update(permits, local_of(world, process));
    }
    sim_account_check(account, permits);
}

static void on_tick(sim_world *world, const sim_event *event) {
    const sim_process *process = &world->processes[event->actor];
    if (!process->server || process->machine.incarnation != event->incarnation) return;
    sim_schedule(world, world->now + SECOND, *event);
    if (process->machine.paused_until) return;
    update(world, event->actor); /* before the epoch changes */
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

/* Receives the events of a process. Copies each event, because its texts are only valid during the
 * call. */
static void on_event(void *context, const doorman_permit_event *event) {
    sim_permit_process *own = context;
    sim_world *world = own->account.world;
    size_t process = (size_t)(own - world->permits->processes);
    doorman_permit_event copy = *event;
    bool marks = event->resource_id && strcmp(event->resource_id, marker) == 0;
    if (marks && event->kind == DOORMAN_PERMIT_UNMATCHED) return; /* one event for each marker */
    copy.resource_id = marks ? marker : known_text(sim_place_names, SIM_PLACES, event->resource_id);
    copy.key = known_text(sim_key_names, SIM_KEYS, event->key);
    copy.limit = known_text(sim_limit_names, SIM_LIMIT_NAMES, event->limit);
    if (!own->account.open) {
        sim_fail(world, "%s decides without being master", own->account.owner);
    } else if (queue.process != own) {
        sim_account_event(move_account(world, process), &copy);
    } else if (queue.count < SIM_EVENTS) {
        queue.events[queue.count++] = copy;
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

/* P16: each mastership begins without counters, so it opens a new account. A mastership that is
 * renewed too late has ended. */
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

/* P15: counters survive a configuration, unless the process has no permits any more. */
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

/* Gives the events of one permit to the account. A permit first removes counters that are fresh,
 * and then decides. So a removal after the decision belongs to the marker. */
static size_t take_events(sim_account *account, size_t next) {
    bool decided = false;
    for (; next < queue.count; next++) {
        const doorman_permit_event *event = &queue.events[next];
        bool removed = event->kind == DOORMAN_PERMIT_KEY_REMOVED;
        if (event->resource_id == marker || (decided && removed)) break;
        decided = decided || !removed;
        sim_account_event(account, event);
    }
    return next;
}

/* Gives the events of a marker to the account. */
static size_t take_marker(sim_account *account, size_t next) {
    while (next < queue.count && queue.events[next].resource_id != marker) {
        sim_account_event(account, &queue.events[next++]);
    }
    return next + 1;
}

/* Checks the decisions on the permits of a message. Gives the account the events of these permits
 * and of the markers. */
static void check_permits(sim_world *world, size_t process, size_t call,
                          const doorman_request *request, const doorman_response *response) {
    sim_account *account = &world->permits->processes[process].account;
    size_t next = 0;
    for (size_t i = 0; i < request->permit_count && !world->failure[0]; i += 2) {
        const doorman_permit_request *wanted = &request->permits[i];
        const doorman_permit *permit = &response->permits[i];
        log_permit(world, process, wanted, permit);
        hash_permit(world, permit);
        sim_account_begin(account, wanted, false);
        next = take_events(account, next);
        sim_account_permit(account, wanted, permit);
        next = take_marker(account, next);
        for (size_t j = 0; permit->granted && j < permit->item_count; j++) {
            world->permits->calls[call].decided += permit->items[j].granted;
        }
        if (permit->has_retry_after) sim_load_refused(world, call, i / 2, permit->retry_after);
    }
}

/* Lets a process decide on the permits of a message. A marker follows each permit, so that the
 * events of each permit can be told apart. A marker is a permit with a cost of 0, so it takes
 * nothing. */
static doorman_status handle_acquire(sim_world *world, size_t process, size_t index,
                                     doorman_response *response, doorman_error *error) {
    static const doorman_permit_item mark = {.resource_id = marker, .key = ""};
    const sim_call *call = &world->permits->calls[index];
    doorman_permit_request permits[2 * SIM_PERMITS];
    doorman_request request = {.method = DOORMAN_ACQUIRE,
                               .holder_id = world->clients[call->client].id,
                               .permits = permits};
    for (size_t i = 0; i < call->count; i++) {
        permits[request.permit_count++] = sim_request_of(&call->permits[i]);
        permits[request.permit_count++] = (doorman_permit_request){.items = &mark, .item_count = 1};
    }
    queue.count = 0;
    queue.process = &world->permits->processes[process];
    doorman_status status = doorman_server_handle(world->processes[process].server, &request,
                                                  response, error, local_of(world, process));
    queue.process = NULL;
    if (status != DOORMAN_OK || !response->is_master) return status;
    check_permits(world, process, index, &request, response);
    return status;
}

static void check_entry(sim_account *account, const sim_entry *wanted, doorman_method method,
                        const doorman_permit_result *result) {
    const doorman_permit_entry *entry = &wanted->entry;
    if (method == DOORMAN_REPORT) sim_account_report(account, entry->cost, result->charged);
    if (method == DOORMAN_INSPECT) sim_account_inspect(account, &result->state);
    if (method != DOORMAN_RESET) return;
    if (entry->sets_ban) {
        sim_account_ban(account, wanted->place, wanted->key, entry->ban);
    } else {
        sim_account_reset(account, wanted->place, wanted->key, entry->limit, result->count);
    }
}

/* Returns whether an inspection or a reset is about a resource without limits, or names a limit
 * that the resource does not have. A server refuses such a message. */
static bool names_no_limit(const sim_account *account, const sim_entry *wanted,
                           doorman_method method) {
    const char *name = wanted->entry.limit;
    const sim_permit_template *found = sim_template_of(account->version, wanted->place);
    if (method == DOORMAN_REPORT || wanted->entry.sets_ban) return false;
    if (!found || !found->has_limits || !found->limit_count) return true;
    for (size_t i = 0; name && i < found->limit_count; i++) {
        if (strcmp(found->limits[i].limit.name, name) == 0) return false;
    }
    return name != NULL;
}

/* Handles an entry of a report or an inspection, or a reset or a ban. */
static doorman_status handle_entry(sim_world *world, size_t process, const sim_call *call,
                                   const sim_entry *wanted, doorman_response *response,
                                   doorman_error *error) {
    sim_account *account = &world->permits->processes[process].account;
    const doorman_permit_entry *entry = &wanted->entry;
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
    bool refused = account->open && status == DOORMAN_INVALID_ARGUMENT;
    if (refused && names_no_limit(account, wanted, call->method)) {
        request.entry_count = 0; /* the message has nothing to do */
        return doorman_server_handle(world->processes[process].server, &request, response, error,
                                     local_of(world, process));
    }
    if (status != DOORMAN_OK || !response->is_master) return status;
    sim_log(world, "%s: %s of %s for \"%s\", %g", world->processes[process].address,
            doorman_method_name(call->method, false), entry->resource_id, entry->key, entry->cost);
    check_entry(account, wanted, call->method, &response->results[0]);
    return status;
}

/* Handles the entries of a message one by one, so that the events of each can be told apart. */
static doorman_status handle_entries(sim_world *world, size_t process, size_t index,
                                     doorman_response *response, doorman_error *error) {
    const sim_call *call = &world->permits->calls[index];
    doorman_status status = DOORMAN_OK;
    for (size_t i = 0; i < call->count && status == DOORMAN_OK; i++) {
        status = handle_entry(world, process, call, &call->entries[i], response, error);
        if (status == DOORMAN_OK && !response->is_master) break;
    }
    return status;
}

static size_t process_named(const sim_world *world, const char *address) {
    for (size_t i = 0; address && i < world->process_count; i++) {
        if (strcmp(world->processes[i].address, address) == 0) return i;
    }
    return SIM_NONE;
}

static void transmit(sim_world *world, sim_handler handler, size_t call, size_t index);
static void on_reply(sim_world *world, const sim_event *event);

/* Copies the decisions of a response, without those on the markers. */
static doorman_permit *copy_permits(const doorman_response *response) {
    size_t count = response->permit_count / 2;
    size_t bytes = count * (sizeof(doorman_permit) + SIM_ITEMS * sizeof(doorman_permit_grant));
    doorman_permit *permits = malloc(bytes);
    if (!permits) abort();
    doorman_permit_grant *grants = (doorman_permit_grant *)(permits + count);
    for (size_t i = 0; i < count; i++, grants += SIM_ITEMS) {
        const doorman_permit *from = &response->permits[2 * i];
        permits[i] = *from;
        permits[i].items = grants;
        permits[i].limit = known_text(sim_limit_names, SIM_LIMIT_NAMES, from->limit);
        for (size_t j = 0; from->granted && j < from->item_count; j++) {
            grants[j] = from->items[j];
            grants[j].limit = known_text(sim_limit_names, SIM_LIMIT_NAMES, grants[j].limit);
        }
    }
    return permits;
}

static size_t add_reply(sim_permits *permits) {
    if (permits->reply_count == permits->reply_capacity) {
        permits->reply_capacity = permits->reply_capacity ? 2 * permits->reply_capacity : 256;
        permits->replies =
            realloc(permits->replies, permits->reply_capacity * sizeof *permits->replies);
        if (!permits->replies) abort();
    }
    return permits->reply_count++;
}

static void send_reply(sim_world *world, size_t call, const doorman_response *response) {
    sim_permits *permits = world->permits;
    size_t index = add_reply(permits);
    sim_reply *reply = &permits->replies[index];
    *reply = (sim_reply){.call = call, .is_master = response->is_master};
    reply->decided_at = world->now;
    reply->master = process_named(world, response->master_address);
    for (size_t i = 0; i < response->permit_count; i += 2) {
        const doorman_permit *permit = &response->permits[i];
        for (size_t j = 0; permit->granted && j < permit->item_count; j++) {
            reply->granted += permit->items[j].granted;
        }
    }
    if (permits->calls[call].batched && response->permit_count) {
        reply->permits = copy_permits(response);
    }
    transmit(world, on_reply, call, index);
}

/* Handles a message at a process that is running. */
static void handle_call(sim_world *world, size_t process, size_t call) {
    sim_account *account = &world->permits->processes[process].account;
    doorman_response response;
    doorman_error error = {0};
    doorman_status status = DOORMAN_OK;
    if (account->open &&
        sim_account_is_edge(account, epoch_of(world, process), local_of(world, process))) {
        return; /* a rounding error decides between two windows: the message is lost */
    }
    (void)move_account(world, process);
    if (world->permits->calls[call].method == DOORMAN_ACQUIRE) {
        status = handle_acquire(world, process, call, &response, &error);
    } else {
        status = handle_entries(world, process, call, &response, &error);
    }
    if (status != DOORMAN_OK) {
        sim_fail(world, "%s refuses a correct message: %s", account->owner, error.text);
        return;
    }
    if (!response.is_master) sim_account_close(account);
    if (response.is_master) {
        sim_account_check(account, doorman_server_permits(world->processes[process].server));
    }
    send_reply(world, call, &response);
}

static void on_refused_connection(sim_world *world, const sim_event *event);

/* Handles a message at its process. The machine of a dead process refuses the connection, or is
 * silent. */
static void on_call(sim_world *world, const sim_event *event) {
    size_t index = event->target;
    size_t process = world->permits->calls[index].process;
    const sim_process *receiver = &world->processes[process];
    if (receiver->machine.paused_until) {
        bool lost = sim_fault_occurs(world, SIM_FREEZE, 0.5);
        if (!lost) sim_schedule(world, receiver->machine.paused_until, *event);
    } else if (receiver->server) {
        handle_call(world, process, index);
    } else if (sim_below(&world->permits->random, 2)) {
        transmit(world, on_refused_connection, index, index);
    }
}

/* ---- the network */

/* Sends a message, a reply, or the news that a connection was refused. It may be lost, copied or
 * late.
 *   call    the message, or the message that it is about
 *   index   what the handler gets */
static void transmit(sim_world *world, sim_handler handler, size_t call, size_t index) {
    const sim_call *about = &world->permits->calls[call];
    const sim_event event = {.handler = handler, .actor = about->client, .target = index};
    bool passes = sim_reaches(world, about->client, about->process);
    sim_transmit(world, &world->permits->random, event, passes);
}

size_t sim_add_call(sim_world *world, doorman_method method, size_t count) {
    sim_permits *permits = world->permits;
    if (permits->call_count == permits->call_capacity) {
        permits->call_capacity = permits->call_capacity ? 2 * permits->call_capacity : 256;
        permits->calls = realloc(permits->calls, permits->call_capacity * sizeof *permits->calls);
        if (!permits->calls) abort();
    }
    sim_call *call = &permits->calls[permits->call_count];
    *call = (sim_call){.method = method, .count = count};
    bool acquires = method == DOORMAN_ACQUIRE;
    void *items = calloc(count, acquires ? sizeof *call->permits : sizeof *call->entries);
    if (!items) abort();
    if (acquires) call->permits = items;
    if (!acquires) call->entries = items;
    return permits->call_count++;
}

doorman_permit_request sim_request_of(const sim_wanted *wanted) {
    doorman_permit_request request = wanted->request;
    request.items = wanted->items;
    return request;
}

void sim_send_call(sim_world *world, size_t call) { transmit(world, on_call, call, call); }

void sim_plan_call(sim_world *world, size_t call, doorman_time at) {
    sim_event event = {.handler = on_call, .actor = world->permits->calls[call].client};
    event.target = call;
    sim_schedule(world, at, event);
}

/* ---- what reaches a client */

/* Returns whether a client does not receive an answer now. A client that stands still receives it
 * when it runs again, or never. A client that was started again receives no earlier answer. */
static bool client_misses(sim_world *world, const sim_event *event, const sim_call *call) {
    const sim_machine *machine = &world->clients[call->client].machine;
    if (machine->incarnation != call->incarnation) return true;
    if (!machine->paused_until) return false;
    bool lost = sim_fault_occurs(world, SIM_STALL, 0.5);
    if (!lost) sim_schedule(world, machine->paused_until, *event);
    return true;
}

static void on_refused_connection(sim_world *world, const sim_event *event) {
    const sim_call *call = &world->permits->calls[event->target];
    if (call->batched && !client_misses(world, event, call)) sim_permit_client_failed(world, call);
}

static void on_reply(sim_world *world, const sim_event *event) {
    const sim_reply *reply = &world->permits->replies[event->target];
    const sim_call *call = &world->permits->calls[reply->call];
    if (client_misses(world, event, call)) return;
    if (reply->granted > call->decided) {
        sim_fail(world, "%s was granted %g, the servers decided %g",
                 world->clients[event->actor].id, reply->granted, call->decided);
    }
    if (call->batched) {
        sim_permit_client_reply(world, reply);
    } else {
        sim_load_reply(world, reply);
    }
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

/* Lets a client die, and starts it again at once. */
void sim_permits_restart_client(sim_world *world, size_t client) {
    sim_permit_client_stop(world, client);
    world->clients[client].machine.paused_until = 0;
    sim_permit_client_start(world, client);
}

/* Makes the time of day of a process wrong, by at most 0.5, 5, 60 or 5000 s, or 463 days. */
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

void sim_permits_add_client(sim_world *world, size_t client) {
    sim_permit_client_start(world, client);
    sim_load_start(world, client);
}

/* Must be called after a time without messages. Checks that no account keeps a counter that equals
 * a fresh one, and that no client keeps a waiting permit or too much memory. */
void sim_permits_check_idle(sim_world *world) {
    for (size_t i = 0; i < world->process_count && !world->failure[0]; i++) {
        sim_account *account = &world->permits->processes[i].account;
        if (!world->processes[i].server || !doorman_server_permits(world->processes[i].server)) {
            continue;
        }
        update(world, i);
        if (account->open) sim_account_check_idle(account);
    }
    for (size_t i = 0; i < world->client_count && !world->failure[0]; i++) {
        sim_permit_client_check_idle(world, i);
    }
}

void sim_permits_tear_down(sim_world *world) {
    for (size_t i = 0; i < world->process_count; i++) {
        sim_account_close(&world->permits->processes[i].account);
    }
    for (size_t i = 0; i < world->client_count; i++) sim_permit_client_stop(world, i);
    for (size_t i = 0; i < world->permits->call_count; i++) {
        free(world->permits->calls[i].permits);
        free(world->permits->calls[i].entries);
    }
    for (size_t i = 0; i < world->permits->reply_count; i++) {
        free(world->permits->replies[i].permits);
    }
    world->permits = NULL;
}
