/* Messages between the senders of requests (clients, and processes of nodes with a parent) and the
 * processes that answer them: see sim.h. */
#include "sim.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* How often leased permits and their server may make each other due in one step. */
#define LEASED_STEPS 4

static double seconds(doorman_time time) { return (double)time / (double)DOORMAN_SECOND; }

/* ---- senders */

static sim_machine *machine_of(sim_world *world, sim_sender sender) {
    return sender.is_process ? &world->processes[sender.index].machine
                             : &world->clients[sender.index].machine;
}

/* Returns NULL for a dead client or process. */
static doorman_upstream *upstream_of(const sim_world *world, sim_sender sender) {
    if (sender.is_process) {
        doorman_server *server = world->processes[sender.index].server;
        return server ? doorman_server_upstream(server) : NULL;
    }
    doorman_client *client = world->clients[sender.index].client;
    return client ? doorman_client_upstream(client) : NULL;
}

static const char *name_of(const sim_world *world, sim_sender sender) {
    return sender.is_process ? world->processes[sender.index].address
                             : world->clients[sender.index].id;
}

static doorman_time local_time(sim_world *world, sim_sender sender) {
    return sim_local(&machine_of(world, sender)->clock, world->now);
}

static void step_sender(sim_world *world, sim_sender sender) {
    if (sender.is_process) {
        sim_step_process(world, sender.index);
    } else {
        sim_step_client(world, sender.index);
    }
}

/* ---- copies */

/* Reads the number at the beginning of a text, and moves the text past it. */
static size_t read_index(const char **text) {
    size_t index = 0;
    for (; **text >= '0' && **text <= '9'; ++*text) index = 10 * index + (size_t)(**text - '0');
    return index;
}

/* Finds a name by its form: "r1", "c12", "n3", "n3p0". Returns the world's own copy, or NULL. Sets
 * `process` if a process has the name. */
static const char *find_name(const sim_world *world, const char *name, size_t *process) {
    const char *rest = name + 1;
    size_t index = read_index(&rest);
    if (*name == 'r') return index < world->resource_count ? world->resources[index] : NULL;
    if (*name == 'c') return index < world->client_count ? world->clients[index].id : NULL;
    if (*name != 'n' || index >= world->node_count) return NULL;
    if (*rest++ != 'p') return world->nodes[index].name;
    *process = world->nodes[index].first_process + read_index(&rest);
    return *process < world->process_count ? world->processes[*process].address : NULL;
}

/* Like find_name, but the name must be known. */
static const char *known_name_of(const sim_world *world, const char *name, size_t *process) {
    const char *known = find_name(world, name, process);
    if (known && strcmp(known, name) == 0) return known;
    fprintf(stderr, "unknown name: %s\n", name);
    abort();
}

static const char *known_name(const sim_world *world, const char *name) {
    size_t process = SIM_NONE;
    return known_name_of(world, name, &process);
}

static size_t process_at(const sim_world *world, const char *address) {
    size_t process = SIM_NONE;
    (void)known_name_of(world, address, &process);
    assert(process != SIM_NONE);
    return process;
}

static void *allocate(size_t count, size_t bytes) {
    void *memory = calloc(count, bytes);
    if (!memory) abort();
    return memory;
}

static sim_message *message_create(void) {
    sim_message *message = allocate(1, sizeof *message);
    message->references = 1;
    return message;
}

sim_message *sim_message_retain(sim_message *message) {
    if (message) message->references++;
    return message;
}

void sim_message_release(sim_message *message) {
    if (!message || --message->references) return;
    free(message->demands);
    free(message->terms);
    free(message);
}

static void copy_demands(sim_message *message) {
    size_t count = 0, at = 0;
    for (size_t i = 0; i < message->request.item_count; i++) {
        count += message->request_items[i].wants_count;
    }
    if (!count) return;
    message->demands = allocate(count, sizeof *message->demands);
    for (size_t i = 0; i < message->request.item_count; i++) {
        doorman_capacity_request *request_item = &message->request_items[i];
        if (!request_item->wants_count) continue;
        memcpy(&message->demands[at], request_item->wants,
               request_item->wants_count * sizeof *request_item->wants);
        request_item->wants = &message->demands[at];
        at += request_item->wants_count;
    }
}

static sim_message *copy_request(const sim_world *world, const doorman_request *request) {
    sim_message *message = message_create();
    assert(request->item_count <= SIM_RESOURCES && request->path_count <= SIM_LEVELS);
    message->sequence = request->sequence;
    message->request = *request;
    message->request.holder_id = known_name(world, request->holder_id);
    message->request.items = message->request_items;
    message->request.path = message->path;
    for (size_t i = 0; i < request->path_count; i++) {
        message->path[i] = known_name(world, request->path[i]);
    }
    for (size_t i = 0; i < request->item_count; i++) {
        doorman_capacity_request *request_item = &message->request_items[i];
        *request_item = request->items[i];
        request_item->resource_id = known_name(world, request_item->resource_id);
        if (request_item->has.id) {
            request_item->has.node = known_name(world, request_item->has.node);
        }
    }
    copy_demands(message);
    return message;
}

static void copy_terms(sim_message *message) {
    size_t count = 0, at = 0;
    for (size_t i = 0; i < message->response.item_count; i++) {
        count += message->response_items[i].terms_count;
    }
    if (!count) return;
    message->terms = allocate(count, sizeof *message->terms);
    for (size_t i = 0; i < message->response.item_count; i++) {
        doorman_capacity_response *response_item = &message->response_items[i];
        if (!response_item->terms_count) continue;
        memcpy(&message->terms[at], response_item->terms,
               response_item->terms_count * sizeof *response_item->terms);
        response_item->terms = &message->terms[at];
        at += response_item->terms_count;
    }
}

static sim_message *copy_response(const sim_world *world, const sim_message *request,
                                  const doorman_response *response) {
    sim_message *message = message_create();
    assert(response->item_count <= SIM_RESOURCES);
    message->sender = request->sender;
    message->incarnation = request->incarnation;
    message->process = request->process;
    message->sequence = request->sequence;
    message->sent_at = request->sent_at;
    message->response = *response;
    message->response.items = message->response_items;
    const char *master = response->master_address;
    if (master) message->response.master_address = known_name(world, master);
    for (size_t i = 0; i < response->item_count; i++) {
        doorman_capacity_response *response_item = &message->response_items[i];
        *response_item = response->items[i];
        response_item->resource_id = known_name(world, response_item->resource_id);
        if (response_item->gets.node) {
            response_item->gets.node = known_name(world, response_item->gets.node);
        }
        if (!response_item->algorithm) continue;
        message->algorithms[i] = *response_item->algorithm;
        response_item->algorithm = &message->algorithms[i];
    }
    copy_terms(message);
    return message;
}

/* ---- the network */

static bool passes(sim_world *world, const sim_message *message) {
    bool other_side = machine_of(world, message->sender)->other_side;
    return !world->partitioned ||
           other_side == world->processes[message->process].machine.other_side;
}

void sim_transmit(sim_world *world, uint64_t *random, sim_event event, bool passes) {
    int copies = sim_fault_occurs(world, SIM_DOUBLE, 0.2) ? 2 : 1;
    for (int i = 0; i < copies; i++) {
        doorman_time delay = sim_time_between(random, 0, world->latency);
        if (sim_fault_occurs(world, SIM_DELAY, 0.2)) {
            delay += sim_time_between(&world->fault_random[SIM_DELAY], 0, 10 * DOORMAN_SECOND);
        }
        if (sim_fault_occurs(world, SIM_LOSS, 0.3)) continue;
        if (passes) sim_schedule(world, world->now + delay, event);
    }
}

bool sim_reaches(const sim_world *world, size_t client, size_t process) {
    return !world->partitioned || world->clients[client].machine.other_side ==
                                      world->processes[process].machine.other_side;
}

static void deliver(sim_world *world, sim_handler handler, sim_message *message) {
    const sim_event event = {.handler = handler,
                             .message = message,
                             .actor = message->sender.index,
                             .target = message->process};
    sim_transmit(world, &world->random, event, passes(world, message));
}

/* ---- responses, to the sender of the request */

static void log_item(sim_world *world, const sim_message *message, size_t index,
                     const char *stale) {
    const doorman_capacity_response *response_item = &message->response_items[index];
    const char *name = name_of(world, message->sender);
    unsigned long long id = (unsigned long long)response_item->gets.id;
    if (response_item->outcome != DOORMAN_GRANTED) {
        sim_log(world, "%s receives%s TRY_LATER for %s", name, stale, response_item->resource_id);
        return;
    }
    if (message->sender.is_process) {
        sim_log(world, "%s receives%s %.6g of %s, lease %llx", name, stale,
                response_item->gets.capacity, response_item->resource_id, id);
        return;
    }
    size_t resource = sim_resource_index(world, response_item->resource_id);
    doorman_resource_info info = {0};
    bool leased = sim_leased(world, message->sender.index, resource, &info);
    double left = leased ? seconds(info.expires_at - local_time(world, message->sender)) : 0;
    sim_hash_amount(world, leased ? info.capacity : -1);
    if (world->quiet) return;
    sim_log(world, "%s receives%s %.6g of %s, lease %llx: has %.6g for %.3f s, in flight %.6g",
            name, stale, response_item->gets.capacity, response_item->resource_id, id,
            leased ? info.capacity : 0, left, info.in_use);
}

static void log_response_received(sim_world *world, const sim_message *message,
                                  doorman_status status) {
    const doorman_response *response = &message->response;
    const char *stale = status == DOORMAN_STALE ? " too late" : "";
    sim_hash(world, (uint64_t)status);
    if (!response->is_master) {
        sim_log(world, "%s learns%s that the master is %s", name_of(world, message->sender), stale,
                response->master_address ? response->master_address : "unknown");
    }
    for (size_t i = 0; i < response->item_count; i++) log_item(world, message, i, stale);
}

/* Stores the leases that a client has accepted. `before` says which of its resources had a lease.
 * When a lease of another node arrives, units abandoned earlier no longer count. */
static void take_leases(sim_world *world, const sim_message *message, const bool *before) {
    size_t node = world->processes[message->process].node;
    for (size_t i = 0; i < message->response.item_count; i++) {
        const doorman_capacity_response *response_item = &message->response_items[i];
        size_t resource = sim_resource_index(world, response_item->resource_id);
        sim_usage *usage = &world->clients[message->sender.index].usages[resource];
        if (response_item->outcome != DOORMAN_GRANTED) continue;
        bool renewed = (before[resource] || usage->abandoned > 0) && usage->node == node;
        if (usage->node != node) usage->abandoned = 0;
        usage->node = node;
        sim_record_lease(world, message->sender.index, resource, &response_item->gets,
                         message->sent_at, renewed);
    }
}

/* Returns true if the sender is dead, was restarted since, or is paused. A paused sender receives
 * its messages when it runs again, or never. */
static bool sender_misses(sim_world *world, const sim_event *event) {
    sim_sender sender = event->message->sender;
    const sim_machine *machine = machine_of(world, sender);
    if (!upstream_of(world, sender) || machine->incarnation != event->message->incarnation) {
        return true;
    }
    if (!machine->paused_until) return false;
    bool lost = sim_fault_occurs(world, sender.is_process ? SIM_FREEZE : SIM_STALL, 0.5);
    if (!lost) sim_schedule(world, machine->paused_until, *event);
    return true;
}

static void on_response(sim_world *world, const sim_event *event) {
    const sim_message *message = event->message;
    sim_sender sender = message->sender;
    bool leased[SIM_RESOURCES] = {false};
    doorman_resource_info info;
    if (sender_misses(world, event)) return;
    for (size_t i = 0; i < world->resource_count && !sender.is_process; i++) {
        leased[i] = sim_leased(world, sender.index, i, &info);
    }
    doorman_status status =
        doorman_upstream_response(upstream_of(world, sender), message->sequence, &message->response,
                                  local_time(world, sender));
    if (status != DOORMAN_OK && status != DOORMAN_STALE) {
        sim_fail(world, "%s rejects a correct response with %s", name_of(world, sender),
                 doorman_status_name(status));
    }
    if (sender.is_process) sim_leased_stepped(world, sender.index);
    if (status == DOORMAN_OK && !sender.is_process) take_leases(world, message, leased);
    if (!sender.is_process) sim_invalidate_client(world, sender.index);
    log_response_received(world, message, status);
    if (sender.is_process) sim_check_resources(world, sender.index);
    step_sender(world, sender);
}

static void on_connection_refused(sim_world *world, const sim_event *event) {
    sim_sender sender = event->message->sender;
    if (sender_misses(world, event)) return;
    doorman_upstream_failed(upstream_of(world, sender), event->message->sequence,
                            local_time(world, sender));
    if (!sender.is_process) sim_invalidate_client(world, sender.index);
    sim_log(world, "%s cannot connect to %s", name_of(world, sender),
            world->processes[event->message->process].address);
    step_sender(world, sender);
}

/* ---- requests, to a process */

static void log_request(sim_world *world, const sim_message *message, bool is_master) {
    const char *address = world->processes[message->process].address;
    for (size_t i = 0; i < message->request.item_count; i++) {
        const doorman_capacity_request *request_item = &message->request_items[i];
        bool release = message->request.method == DOORMAN_RELEASE_CAPACITY;
        char wants[40] = "", has[80] = "";
        double sum = 0;
        for (size_t j = 0; j < request_item->wants_count; j++) sum += request_item->wants[j].wants;
        sim_hash(world, request_item->has.id);
        sim_hash_amount(world, sum);
        if (world->quiet) continue;
        if (!release) snprintf(wants, sizeof wants, "wants %.6g, ", sum);
        if (request_item->has.id) {
            snprintf(has, sizeof has, "%.6g by lease %llx for %.3f s", request_item->has.capacity,
                     (unsigned long long)request_item->has.id,
                     seconds(request_item->has.expires_in));
        }
        sim_log(world, "%s%s at %s%s: %s %s, %shas %s", message->request.holder_id,
                request_item->learning ? " (learning)" : "", address,
                is_master ? "" : " (not master)", release ? "releases" : "requests",
                request_item->resource_id, wants, request_item->has.id ? has : "nothing");
    }
}

static void log_response_sent(sim_world *world, const sim_message *message) {
    const char *address = world->processes[message->process].address;
    const char *name = name_of(world, message->sender);
    for (size_t i = 0; i < message->response.item_count; i++) {
        const doorman_capacity_response *response_item = &message->response_items[i];
        sim_hash_amount(world, response_item->gets.capacity);
        if (response_item->outcome != DOORMAN_GRANTED) {
            sim_log(world, "%s answers %s TRY_LATER for %s", address, name,
                    response_item->resource_id);
            continue;
        }
        sim_log(world, "%s grants %s %.6g of %s, commits %.6g, lease %llx for %.3f s", address,
                name, response_item->gets.capacity, response_item->resource_id,
                response_item->gets.committed, (unsigned long long)response_item->gets.id,
                seconds(response_item->gets.expires_in));
    }
}

static void handle_request(sim_world *world, size_t index, sim_message *message) {
    sim_process *process = &world->processes[index];
    doorman_response response;
    doorman_error error = {0};
    doorman_time local = sim_local(&process->machine.clock, world->now);
    sim_overload_before(world, index);
    sim_leased_before(world, index);
    doorman_status status =
        doorman_server_handle(process->server, &message->request, &response, &error, local);
    if (status != DOORMAN_OK) {
        sim_fail(world, "%s refuses a correct request: %s", process->address, error.text);
        return;
    }
    log_request(world, message, response.is_master);
    sim_message *reply = copy_response(world, message, &response);
    log_response_sent(world, reply);
    sim_overload_handled(world, index, message, &reply->response);
    sim_leased_stepped(world, index);
    sim_check_response(world, message, reply);
    sim_check_resources(world, index);
    deliver(world, on_response, reply);
    sim_message_release(reply);
    if (!sim_is_root(world, process)) sim_step_process(world, index);
}

static void on_request(sim_world *world, const sim_event *event) {
    sim_message *message = event->message;
    const sim_process *process = &world->processes[message->process];
    if (process->machine.paused_until) {
        bool lost = sim_fault_occurs(world, SIM_FREEZE, 0.5);
        if (!lost) sim_schedule(world, process->machine.paused_until, *event);
    } else if (process->server) {
        handle_request(world, message->process, message);
    } else if (sim_below(&world->random,
                         2)) { /* its machine refuses the connection, or is silent */
        deliver(world, on_connection_refused, message);
    }
}

/* ---- reports of overload, in messages of their own */

static void handle_report(sim_world *world, size_t index, const sim_message *message) {
    const sim_process *process = &world->processes[index];
    const doorman_overload_report *report = &message->request_items[0].overload;
    doorman_time local = sim_local(&process->machine.clock, world->now);
    doorman_response response = {.item_count = 0};
    bool valid = sim_overload_is_valid(report);
    sim_overload_before(world, index);
    doorman_status status =
        doorman_server_handle(process->server, &message->request, &response, NULL, local);
    if (status != (valid ? DOORMAN_OK : DOORMAN_INVALID_ARGUMENT)) {
        sim_fail(world, "%s answers %s to a report", process->address, doorman_status_name(status));
        return;
    }
    sim_hash_amount(world, valid ? report->arrived : -1);
    sim_log(world, "%s reports to %s that %g of %g of %s were refused and %g late",
            message->request.holder_id, process->address, report->refused, report->arrived,
            message->request_items[0].resource_id, report->late);
    if (!valid) response.item_count = 0;
    sim_overload_handled(world, index, message, &response);
    sim_check_resources(world, index);
}

static void on_report(sim_world *world, const sim_event *event) {
    const sim_message *message = event->message;
    const sim_process *process = &world->processes[message->process];
    if (!process->server) return;
    if (!process->machine.paused_until) {
        handle_report(world, message->process, message);
    } else if (!sim_fault_occurs(world, SIM_FREEZE, 0.5)) {
        sim_schedule(world, process->machine.paused_until, *event);
    }
}

void sim_send_report(sim_world *world, size_t client, size_t resource,
                     const doorman_overload_report *report) {
    const sim_node *node = &world->nodes[world->clients[client].node];
    uint64_t *random = &world->fault_random[SIM_OVERLOAD];
    const doorman_capacity_request item = {.resource_id = world->resources[resource],
                                           .overload = *report};
    const doorman_request request = {.method = DOORMAN_REPORT_OVERLOAD,
                                     .holder_id = world->clients[client].id,
                                     .items = &item,
                                     .item_count = 1};
    sim_message *message = copy_request(world, &request);
    message->sender = (sim_sender){false, client};
    message->process = node->first_process + sim_pick(random, node->process_count);
    deliver(world, on_report, message);
    sim_message_release(message);
}

/* ---- one iteration of the loops that send requests */

/* Lets a careless client name no lease, or the one before the last. Its server must not treat such
 * a request as a confirmation of the last lease. */
static void change_named_lease(sim_world *world, sim_client *client,
                               doorman_capacity_request *request_item) {
    sim_usage *usage = &client->usages[sim_resource_index(world, request_item->resource_id)];
    uint64_t lease = request_item->has.id;
    if (lease && lease != usage->named_lease) {
        usage->earlier_lease = usage->named_lease;
        usage->named_lease = lease;
    }
    if (!sim_fault_occurs(world, SIM_CARELESS, client->careless)) return;
    if (client->names_earlier_lease && usage->earlier_lease && lease) {
        request_item->has.id = usage->earlier_lease;
    } else {
        request_item->has = (doorman_lease){.id = 0};
    }
}

static void send_request(sim_world *world, sim_sender sender) {
    doorman_upstream *upstream = upstream_of(world, sender);
    doorman_request request;
    bool made = doorman_upstream_request(upstream, &request, local_time(world, sender));
    if (!sender.is_process) sim_invalidate_client(world, sender.index);
    if (!made) return;
    sim_message *message = copy_request(world, &request);
    message->sender = sender;
    message->incarnation = machine_of(world, sender)->incarnation;
    message->sent_at = local_time(world, sender);
    message->process = process_at(world, request.address);
    sim_overload_sent(world, message);
    bool careless = !sender.is_process && world->clients[sender.index].careless > 0;
    for (size_t i = 0; i < request.item_count && careless; i++) {
        if (request.method != DOORMAN_GET_CAPACITY) break;
        change_named_lease(world, &world->clients[sender.index], &message->request_items[i]);
    }
    deliver(world, on_request, message);
    sim_message_release(message);
}

static void on_client_due(sim_world *world, const sim_event *event) {
    const sim_machine *machine = &world->clients[event->actor].machine;
    if (machine->wakeup == event->incarnation) sim_step_client(world, event->actor);
}

void sim_step_client(sim_world *world, size_t index) {
    sim_client *client = &world->clients[index];
    sim_machine *machine = &client->machine;
    if (!client->client || machine->paused_until) return;
    doorman_time local = sim_local(&machine->clock, world->now);
    send_request(world, (sim_sender){false, index});
    doorman_time due = doorman_upstream_due(doorman_client_upstream(client->client));
    if (due <= local) {
        sim_fail(world, "%s is always due at once", client->id);
    }
    sim_event event = {.handler = on_client_due, .actor = index, .incarnation = ++machine->wakeup};
    sim_schedule(world, sim_global(&machine->clock, due), event);
}

static void on_process_due(sim_world *world, const sim_event *event) {
    const sim_machine *machine = &world->processes[event->actor].machine;
    if (machine->wakeup == event->incarnation) sim_step_process(world, event->actor);
}

/* Does the due work of a process, and plans the next time. A root plans its next work at least 1 s
 * later (10 ms with leased permits), because its answers do not depend on this work. */
void sim_step_process(sim_world *world, size_t index) {
    sim_process *process = &world->processes[index];
    sim_machine *machine = &process->machine;
    bool root = sim_is_root(world, process);
    if (!process->server || machine->paused_until) return;
    doorman_time local = sim_local(&machine->clock, world->now);
    doorman_upstream *upstream = doorman_server_upstream(process->server);
    int steps = world->leased ? LEASED_STEPS : 1;
    for (int i = 0; i < steps && (i == 0 || doorman_upstream_due(upstream) <= local); i++) {
        sim_leased_before(world, index);
        send_request(world, (sim_sender){true, index});
        sim_overload_stepped(world, index);
        sim_leased_stepped(world, index);
    }
    sim_observe_learning(world, index);
    doorman_time due = doorman_upstream_due(upstream);
    if (!root && due <= local) {
        sim_fail(world, "%s is always due at once", process->address);
    }
    doorman_time next = sim_global(&machine->clock, due);
    doorman_time soon = world->now + DOORMAN_SECOND + (doorman_time)sim_below(&world->random, 1000);
    if (world->leased) soon = world->now + DOORMAN_SECOND / 100;
    if (root && next < soon) next = soon;
    if (next > world->now + 30 * DOORMAN_SECOND) next = world->now + 30 * DOORMAN_SECOND;
    sim_event event = {.handler = on_process_due, .actor = index, .incarnation = ++machine->wakeup};
    sim_schedule(world, next, event);
}
