/* Messages between the senders of requests (clients, and processes of nodes with a parent) and the
 * processes that answer them: see sim.h. */
#include "sim.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static double seconds(doorman_time time) { return (double)time / (double)DOORMAN_SECOND; }

/* ---- senders */

static sim_machine *machine_of(sim_world *world, sim_party party) {
    return party.is_process ? &world->processes[party.index].machine
                            : &world->clients[party.index].machine;
}

/* Returns NULL for a dead client or process, and for a root. */
static doorman_upstream *asker_of(const sim_world *world, sim_party party) {
    if (party.is_process) {
        doorman_server *server = world->processes[party.index].server;
        return server ? doorman_server_upstream(server) : NULL;
    }
    doorman_client *client = world->clients[party.index].client;
    return client ? doorman_client_upstream(client) : NULL;
}

static const char *name_of(const sim_world *world, sim_party party) {
    return party.is_process ? world->processes[party.index].address
                            : world->clients[party.index].id;
}

static doorman_time local_time(sim_world *world, sim_party party) {
    return sim_local(&machine_of(world, party)->clock, world->now);
}

static void carry(sim_world *world, sim_party party) {
    if (party.is_process) {
        sim_carry_process(world, party.index);
    } else {
        sim_carry_client(world, party.index);
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
 * `process` where the name is that of a process. */
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

/* Returns the world's own copy of a name, and the process where the name is that of one. */
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

sim_message *sim_message_keep(sim_message *message) {
    if (message) message->references++;
    return message;
}

void sim_message_drop(sim_message *message) {
    if (!message || --message->references) return;
    free(message->demands);
    free(message->terms);
    free(message);
}

static void copy_demands(sim_message *message) {
    size_t count = 0, at = 0;
    for (size_t i = 0; i < message->request.item_count; i++) count += message->asks[i].wants_count;
    if (!count) return;
    message->demands = allocate(count, sizeof *message->demands);
    for (size_t i = 0; i < message->request.item_count; i++) {
        doorman_capacity_request *ask = &message->asks[i];
        if (!ask->wants_count) continue;
        memcpy(&message->demands[at], ask->wants, ask->wants_count * sizeof *ask->wants);
        ask->wants = &message->demands[at];
        at += ask->wants_count;
    }
}

static sim_message *copy_request(const sim_world *world, const doorman_request *request) {
    sim_message *message = message_create();
    assert(request->item_count <= SIM_RESOURCES && request->path_count <= SIM_LEVELS);
    message->sequence = request->sequence;
    message->request = *request;
    message->request.holder_id = known_name(world, request->holder_id);
    message->request.items = message->asks;
    message->request.path = message->path;
    for (size_t i = 0; i < request->path_count; i++) {
        message->path[i] = known_name(world, request->path[i]);
    }
    for (size_t i = 0; i < request->item_count; i++) {
        doorman_capacity_request *ask = &message->asks[i];
        *ask = request->items[i];
        ask->resource_id = known_name(world, ask->resource_id);
        if (ask->has.id) ask->has.node = known_name(world, ask->has.node);
    }
    copy_demands(message);
    return message;
}

static void copy_terms(sim_message *message) {
    size_t count = 0, at = 0;
    for (size_t i = 0; i < message->response.item_count; i++) {
        count += message->answers[i].terms_count;
    }
    if (!count) return;
    message->terms = allocate(count, sizeof *message->terms);
    for (size_t i = 0; i < message->response.item_count; i++) {
        doorman_capacity_response *answer = &message->answers[i];
        if (!answer->terms_count) continue;
        memcpy(&message->terms[at], answer->terms, answer->terms_count * sizeof *answer->terms);
        answer->terms = &message->terms[at];
        at += answer->terms_count;
    }
}

static sim_message *copy_response(const sim_world *world, const sim_message *asked,
                                  const doorman_response *response) {
    sim_message *message = message_create();
    assert(response->item_count <= SIM_RESOURCES);
    message->asker = asked->asker;
    message->life = asked->life;
    message->process = asked->process;
    message->sequence = asked->sequence;
    message->sent_at = asked->sent_at;
    message->response = *response;
    message->response.items = message->answers;
    const char *master = response->master_address;
    if (master) message->response.master_address = known_name(world, master);
    for (size_t i = 0; i < response->item_count; i++) {
        doorman_capacity_response *answer = &message->answers[i];
        *answer = response->items[i];
        answer->resource_id = known_name(world, answer->resource_id);
        if (answer->gets.node) answer->gets.node = known_name(world, answer->gets.node);
        if (!answer->algorithm) continue;
        message->algorithms[i] = *answer->algorithm;
        answer->algorithm = &message->algorithms[i];
    }
    copy_terms(message);
    return message;
}

/* ---- the network */

static bool passes(sim_world *world, const sim_message *message) {
    bool aside = machine_of(world, message->asker)->aside;
    return !world->partitioned || aside == world->processes[message->process].machine.aside;
}

/* Sends a message. It may be lost, duplicated or delayed. */
static void deliver(sim_world *world, sim_handler handler, sim_message *message) {
    sim_event event = {.handler = handler, .message = message};
    event.who = message->asker.index;
    event.what = message->process;
    int copies = sim_strikes(world, SIM_DOUBLE, 0.2) ? 2 : 1;
    for (int i = 0; i < copies; i++) {
        doorman_time delay = sim_time_between(&world->dice, 0, world->latency);
        if (sim_strikes(world, SIM_DELAY, 0.2)) {
            delay += sim_time_between(&world->fault_dice[SIM_DELAY], 0, 10 * DOORMAN_SECOND);
        }
        if (sim_strikes(world, SIM_LOSS, 0.3)) continue;
        if (passes(world, message)) sim_plan(world, world->now + delay, event);
    }
}

/* ---- responses, to the sender of the request */

static void note_taken(sim_world *world, const sim_message *message, size_t index,
                       const char *stale) {
    const doorman_capacity_response *answer = &message->answers[index];
    const char *name = name_of(world, message->asker);
    unsigned long long id = (unsigned long long)answer->gets.id;
    if (answer->outcome != DOORMAN_GRANTED) {
        sim_note(world, "%s receives%s TRY_LATER for %s", name, stale, answer->resource_id);
        return;
    }
    if (message->asker.is_process) {
        sim_note(world, "%s receives%s %.6g of %s, lease %llx", name, stale, answer->gets.capacity,
                 answer->resource_id, id);
        return;
    }
    size_t resource = sim_resource_index(world, answer->resource_id);
    doorman_resource_info info = {0};
    bool leased = sim_leased(world, message->asker.index, resource, &info);
    double left = leased ? seconds(info.expires_at - local_time(world, message->asker)) : 0;
    sim_mix_amount(world, leased ? info.capacity : -1);
    if (world->quiet) return;
    sim_note(world, "%s receives%s %.6g of %s, lease %llx: has %.6g for %.3f s, in flight %.6g",
             name, stale, answer->gets.capacity, answer->resource_id, id,
             leased ? info.capacity : 0, left, info.in_flight);
}

static void note_response(sim_world *world, const sim_message *message, doorman_status status) {
    const doorman_response *response = &message->response;
    const char *stale = status == DOORMAN_STALE ? " too late" : "";
    sim_mix(world, (uint64_t)status);
    if (!response->is_master) {
        sim_note(world, "%s learns%s that the master is %s", name_of(world, message->asker), stale,
                 response->master_address ? response->master_address : "unknown");
    }
    for (size_t i = 0; i < response->item_count; i++) note_taken(world, message, i, stale);
}

/* Stores the leases that a client has accepted. `before` says which of its resources had a lease.
 * Units that are in flight when a lease of another node arrives no longer count. */
static void take_leases(sim_world *world, const sim_message *message, const bool *before) {
    size_t node = world->processes[message->process].node;
    for (size_t i = 0; i < message->response.item_count; i++) {
        const doorman_capacity_response *answer = &message->answers[i];
        size_t resource = sim_resource_index(world, answer->resource_id);
        sim_use *use = &world->clients[message->asker.index].uses[resource];
        if (answer->outcome != DOORMAN_GRANTED) continue;
        bool renewed = (before[resource] || use->abandoned > 0) && use->node == node;
        if (use->node != node) use->abandoned = 0;
        use->node = node;
        sim_take_lease(world, message->asker.index, resource, &answer->gets, message->sent_at,
                       renewed);
    }
}

/* A client or process that stands still receives its messages when it runs again, or never. */
static bool asker_misses(sim_world *world, const sim_event *event) {
    sim_party asker = event->message->asker;
    const sim_machine *machine = machine_of(world, asker);
    if (!asker_of(world, asker) || machine->life != event->message->life) return true;
    if (!machine->still_until) return false;
    bool lost = sim_strikes(world, asker.is_process ? SIM_FREEZE : SIM_STALL, 0.5);
    if (!lost) sim_plan(world, machine->still_until, *event);
    return true;
}

static void on_response(sim_world *world, const sim_event *event) {
    const sim_message *message = event->message;
    sim_party asker = message->asker;
    bool leased[SIM_RESOURCES] = {false};
    doorman_resource_info info;
    if (asker_misses(world, event)) return;
    for (size_t i = 0; i < world->resource_count && !asker.is_process; i++) {
        leased[i] = sim_leased(world, asker.index, i, &info);
    }
    doorman_status status = doorman_upstream_response(asker_of(world, asker), message->sequence,
                                                      &message->response, local_time(world, asker));
    if (status != DOORMAN_OK && status != DOORMAN_STALE) {
        sim_fail(world, "%s rejects a correct response with %s", name_of(world, asker),
                 doorman_status_name(status));
    }
    if (status == DOORMAN_OK && !asker.is_process) take_leases(world, message, leased);
    if (!asker.is_process) sim_touch_client(world, asker.index);
    note_response(world, message, status);
    if (asker.is_process) sim_check_books(world, asker.index);
    carry(world, asker);
}

static void on_no_answer(sim_world *world, const sim_event *event) {
    sim_party asker = event->message->asker;
    if (asker_misses(world, event)) return;
    doorman_upstream_failed(asker_of(world, asker), event->message->sequence,
                            local_time(world, asker));
    if (!asker.is_process) sim_touch_client(world, asker.index);
    sim_note(world, "%s cannot connect to %s", name_of(world, asker),
             world->processes[event->message->process].address);
    carry(world, asker);
}

/* ---- requests, to a process */

static void note_request(sim_world *world, const sim_message *message, bool is_master) {
    const char *address = world->processes[message->process].address;
    for (size_t i = 0; i < message->request.item_count; i++) {
        const doorman_capacity_request *ask = &message->asks[i];
        bool release = message->request.method == DOORMAN_RELEASE_CAPACITY;
        char wants[40] = "", has[80] = "";
        double sum = 0;
        for (size_t j = 0; j < ask->wants_count; j++) sum += ask->wants[j].wants;
        sim_mix(world, ask->has.id);
        sim_mix_amount(world, sum);
        if (world->quiet) continue;
        if (!release) snprintf(wants, sizeof wants, "wants %.6g, ", sum);
        if (ask->has.id) {
            snprintf(has, sizeof has, "%.6g by lease %llx for %.3f s", ask->has.capacity,
                     (unsigned long long)ask->has.id, seconds(ask->has.expires_in));
        }
        sim_note(world, "%s%s at %s%s: %s %s, %shas %s", message->request.holder_id,
                 ask->learning ? " (learning)" : "", address, is_master ? "" : " (not master)",
                 release ? "releases" : "asks for", ask->resource_id, wants,
                 ask->has.id ? has : "nothing");
    }
}

static void note_answers(sim_world *world, const sim_message *message) {
    const char *address = world->processes[message->process].address;
    const char *name = name_of(world, message->asker);
    for (size_t i = 0; i < message->response.item_count; i++) {
        const doorman_capacity_response *answer = &message->answers[i];
        sim_mix_amount(world, answer->gets.capacity);
        if (answer->outcome != DOORMAN_GRANTED) {
            sim_note(world, "%s answers %s TRY_LATER for %s", address, name, answer->resource_id);
            continue;
        }
        sim_note(world, "%s gives %s %.6g of %s, commits %.6g, lease %llx for %.3f s", address,
                 name, answer->gets.capacity, answer->resource_id, answer->gets.committed,
                 (unsigned long long)answer->gets.id, seconds(answer->gets.expires_in));
    }
}

static void answer(sim_world *world, size_t index, sim_message *message) {
    sim_process *process = &world->processes[index];
    doorman_response response;
    doorman_error error = {""};
    doorman_time local = sim_local(&process->machine.clock, world->now);
    doorman_status status =
        doorman_server_handle(process->server, &message->request, &response, &error, local);
    if (status != DOORMAN_OK) {
        sim_fail(world, "%s refuses a correct request: %s", process->address, error.text);
        return;
    }
    note_request(world, message, response.is_master);
    sim_message *answered = copy_response(world, message, &response);
    note_answers(world, answered);
    sim_check_answers(world, message, answered);
    sim_check_books(world, index);
    deliver(world, on_response, answered);
    sim_message_drop(answered);
    if (!sim_is_root(world, process)) sim_carry_process(world, index);
}

static void on_request(sim_world *world, const sim_event *event) {
    sim_message *message = event->message;
    const sim_process *process = &world->processes[message->process];
    if (process->machine.still_until) {
        bool lost = sim_strikes(world, SIM_FREEZE, 0.5);
        if (!lost) sim_plan(world, process->machine.still_until, *event);
    } else if (process->server) {
        answer(world, message->process, message);
    } else if (sim_below(&world->dice, 2)) { /* its machine refuses the connection, or is silent */
        deliver(world, on_no_answer, message);
    }
}

/* ---- one iteration of the loops that send requests */

/* A careless client reports truthfully what it has, but names no lease, or the one before the last.
 * So its server must not treat the request as a confirmation. */
static void forget_lease(sim_world *world, sim_client *client, doorman_capacity_request *ask) {
    sim_use *use = &client->uses[sim_resource_index(world, ask->resource_id)];
    uint64_t lease = ask->has.id;
    if (lease && lease != use->named_lease) {
        use->earlier_lease = use->named_lease;
        use->named_lease = lease;
    }
    if (!sim_strikes(world, SIM_CARELESS, client->careless)) return;
    if (client->names_earlier && use->earlier_lease && lease) {
        ask->has.id = use->earlier_lease;
    } else {
        ask->has = (doorman_lease){.id = 0};
    }
}

static void send_request(sim_world *world, sim_party party) {
    doorman_upstream *asker = asker_of(world, party);
    doorman_request request;
    doorman_status status = doorman_upstream_request(asker, &request, local_time(world, party));
    if (status != DOORMAN_OK) abort();
    if (!request.sequence) return;
    sim_message *message = copy_request(world, &request);
    message->asker = party;
    message->life = machine_of(world, party)->life;
    message->sent_at = local_time(world, party);
    message->process = process_at(world, doorman_upstream_address(asker));
    bool careless = !party.is_process && world->clients[party.index].careless > 0;
    for (size_t i = 0; i < request.item_count && careless; i++) {
        if (request.method != DOORMAN_GET_CAPACITY) break;
        forget_lease(world, &world->clients[party.index], &message->asks[i]);
    }
    deliver(world, on_request, message);
    sim_message_drop(message);
}

static void on_client_due(sim_world *world, const sim_event *event) {
    const sim_machine *machine = &world->clients[event->who].machine;
    if (machine->wake == event->life) sim_carry_client(world, event->who);
}

void sim_carry_client(sim_world *world, size_t index) {
    sim_client *client = &world->clients[index];
    sim_machine *machine = &client->machine;
    if (!client->client || machine->still_until) return;
    doorman_time local = sim_local(&machine->clock, world->now);
    doorman_client_update(client->client, local);
    sim_touch_client(world, index);
    send_request(world, (sim_party){false, index});
    doorman_time due = doorman_client_due(client->client);
    if (due <= local) {
        sim_fail(world, "%s is always due at once", client->id);
    }
    sim_event event = {.handler = on_client_due, .who = index, .life = ++machine->wake};
    sim_plan(world, sim_global(&machine->clock, due), event);
}

static void on_process_due(sim_world *world, const sim_event *event) {
    const sim_machine *machine = &world->processes[event->who].machine;
    if (machine->wake == event->life) sim_carry_process(world, event->who);
}

/* A root handles due work at most once a second, because its answers do not depend on it. */
void sim_carry_process(sim_world *world, size_t index) {
    sim_process *process = &world->processes[index];
    sim_machine *machine = &process->machine;
    bool root = sim_is_root(world, process);
    if (!process->server || machine->still_until) return;
    doorman_time local = sim_local(&machine->clock, world->now);
    doorman_server_update(process->server, local);
    if (!root) send_request(world, (sim_party){true, index});
    sim_look(world, index);
    doorman_time due = doorman_server_due(process->server);
    if (!root && due <= local) {
        sim_fail(world, "%s is always due at once", process->address);
    }
    doorman_time next = sim_global(&machine->clock, due);
    doorman_time soon = world->now + DOORMAN_SECOND + (doorman_time)sim_below(&world->dice, 1000);
    if (root && next < soon) next = soon;
    if (next > world->now + 30 * DOORMAN_SECOND) next = world->now + 30 * DOORMAN_SECOND;
    sim_event event = {.handler = on_process_due, .who = index, .life = ++machine->wake};
    sim_plan(world, next, event);
}
