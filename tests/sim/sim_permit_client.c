/* The doorman_permit_clients of a simulated system: see sim_permits.c. Each has a model
 * (sim_permit_model.c), which knows what the client must do. */
#include "sim_permit_model.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define SECOND DOORMAN_SECOND

static sim_model models[SIM_CLIENTS];
static doorman_permit_client *clients[SIM_CLIENTS]; /* NULL: the client does not run */

static doorman_time local_of(const sim_world *world, size_t client) {
    return sim_local(&world->clients[client].machine.clock, world->now);
}

/* ---- the life of a client */

static doorman_limit_options draw_local(sim_model *model, uint64_t *random) {
    static const double rates[] = {0.25, 1, 4};
    model->local_rate = rates[sim_below(random, 3)];
    model->local_size = (double)(1 + sim_below(random, 8));
    for (size_t i = 0; i < SIM_PLACES; i++) {
        for (size_t j = 0; j < SIM_KEYS; j++) model->locals[i][j].level = model->local_size;
    }
    return (doorman_limit_options){
        .kind = DOORMAN_TOKEN_BUCKET, .rate = model->local_rate, .size = model->local_size};
}

/* Lists the processes of the node of a client, and of its other node if it roams. */
static size_t list_processes(const sim_world *world, size_t client, size_t *out, uint64_t *random) {
    const sim_client *machine = &world->clients[client];
    const size_t nodes[] = {machine->node, machine->other};
    size_t count = 0;
    for (size_t i = 0; i < 2 && (i == 0 || nodes[1] != nodes[0]); i++) {
        const sim_node *node = &world->nodes[nodes[i]];
        size_t first = sim_pick(random, node->process_count);
        for (size_t j = 0; j < node->process_count; j++) {
            out[count++] = node->first_process + (first + j) % node->process_count;
        }
    }
    return count;
}

static void create_client(sim_world *world, size_t index, uint64_t *random) {
    static const doorman_permit_fallback fallbacks[] = {DOORMAN_FAIL_OPEN, DOORMAN_FAIL_CLOSED,
                                                        DOORMAN_FAIL_LOCAL};
    static const doorman_time timeouts[] = {SECOND / 5, SECOND, 3 * SECOND};
    sim_model *model = &models[index];
    const char *addresses[SIM_PROCESSES];
    doorman_limit_options local = draw_local(model, random);
    model->policy.fallback = fallbacks[sim_below(random, 3)];
    model->policy.shadow = sim_below(random, 10) == 0;
    model->request_timeout = timeouts[sim_below(random, 3)];
    model->process_count = list_processes(world, index, model->processes, random);
    for (size_t i = 0; i < model->process_count; i++) {
        addresses[i] = world->processes[model->processes[i]].address;
    }
    doorman_client_options options = {.client_id = world->clients[index].id,
                                      .addresses = addresses,
                                      .address_count = model->process_count,
                                      .seed = 1 + sim_below(random, 1000000),
                                      .request_timeout = model->request_timeout,
                                      .permits = model->policy};
    if (model->policy.fallback == DOORMAN_FAIL_LOCAL) options.permits.local = &local;
    doorman_error error = {0};
    doorman_status status =
        doorman_permit_client_create(&clients[index], &options, &error, local_of(world, index));
    if (status == DOORMAN_OK) return;
    fprintf(stderr, "permit client: %s\n", error.text);
    abort();
}

void sim_permit_client_start(sim_world *world, size_t index) {
    sim_model *model = &models[index];
    world->clients[index].machine.incarnation++;
    memset(model, 0, sizeof *model);
    model->world = world;
    model->name = world->clients[index].id;
    model->redirect = SIM_NONE;
    create_client(world, index, &world->permits->random);
    sim_log(world, "%s starts", model->name);
}

/* Stops a client. Permits that have no decision yet never get one. */
void sim_permit_client_stop(sim_world *world, size_t index) {
    doorman_permit_client_destroy(clients[index]);
    clients[index] = NULL;
    sim_log(world, "%s dies", world->clients[index].id);
}

/* ---- its calls */

static void hash_decision(sim_world *world, const doorman_acquired *acquired) {
    sim_hash(world, (uint64_t)acquired->granted << 8 | (uint64_t)acquired->decided_by << 4);
    sim_hash_amount(world, acquired->units[0]);
}

/* Takes all decisions of a client, and compares them with its model. */
static void take_decisions(sim_world *world, size_t index) {
    static const char *const deciders[] = {"server", "refusal", "fallback", "bypass"};
    doorman_time now = local_of(world, index);
    doorman_permit_client_info info;
    doorman_acquired acquired;
    void *context = NULL;
    sim_model_before_next(&models[index], now);
    while (doorman_permit_client_next(clients[index], &context, &acquired, now)) {
        sim_log(world, "%s: %s by %s, %g", models[index].name,
                acquired.granted ? "granted" : "refused", deciders[acquired.decided_by],
                acquired.units[0]);
        hash_decision(world, &acquired);
        sim_model_decision(&models[index], (uint64_t)(uintptr_t)context, &acquired, now);
    }
    doorman_permit_client_read(clients[index], &info);
    sim_model_check(&models[index], &info, now);
}

static void send_message(sim_world *world, size_t index, const doorman_request *request,
                         size_t process) {
    const sim_model *model = &models[index];
    size_t number = sim_add_call(world, request->method, model->message_count);
    sim_call *call = &world->permits->calls[number];
    call->client = index;
    call->incarnation = world->clients[index].machine.incarnation;
    call->batched = true;
    call->sequence = request->sequence;
    call->process = process;
    for (size_t i = 0; i < model->message_count; i++) {
        const sim_wanted *wanted = &model->message[i]->wanted;
        if (request->method == DOORMAN_ACQUIRE) {
            call->permits[i] = *wanted;
            call->permits[i].request.max_wait = request->permits[i].max_wait;
        } else {
            call->entries[i].entry.resource_id = wanted->items[0].resource_id;
            call->entries[i].entry.key = wanted->items[0].key;
            call->entries[i].entry.cost = wanted->items[0].cost;
        }
    }
    sim_log(world, "%s sends %zu %s to %s", model->name, model->message_count,
            request->method == DOORMAN_ACQUIRE ? "permits" : "reports", request->address);
    sim_send_call(world, number);
}

static size_t process_at(const sim_world *world, const char *address) {
    for (size_t i = 0; i < world->process_count; i++) {
        if (strcmp(world->processes[i].address, address) == 0) return i;
    }
    return SIM_NONE;
}

static void on_due(sim_world *world, const sim_event *event) {
    const sim_machine *machine = &world->clients[event->actor].machine;
    if (machine->wakeup == event->incarnation) sim_permit_client_step(world, event->actor);
}

void sim_permit_client_step(sim_world *world, size_t index) {
    sim_machine *machine = &world->clients[index].machine;
    if (!clients[index] || machine->paused_until || world->failure[0]) return;
    doorman_upstream *upstream = doorman_permit_client_upstream(clients[index]);
    doorman_time now = local_of(world, index);
    doorman_request request;
    sim_model_before_request(&models[index], now);
    bool made = doorman_upstream_request(upstream, &request, now);
    size_t process = made ? process_at(world, request.address) : SIM_NONE;
    sim_model_after_request(&models[index], made ? &request : NULL, process, now);
    if (world->failure[0]) return;
    if (made) send_message(world, index, &request, process);
    take_decisions(world, index);
    doorman_time due = doorman_upstream_due(upstream);
    if (due <= now) sim_fail(world, "%s is always due at once", models[index].name);
    sim_event event = {.handler = on_due, .actor = index, .incarnation = ++machine->wakeup};
    sim_schedule(world, sim_global(&machine->clock, due), event);
}

void sim_permit_client_resume(sim_world *world, size_t index) {
    models[index].resumed_at = local_of(world, index);
    sim_permit_client_step(world, index);
}

void sim_permit_client_reply(sim_world *world, const sim_reply *reply) {
    const sim_call *call = &world->permits->calls[reply->call];
    size_t index = call->client;
    doorman_time now = local_of(world, index);
    static const doorman_permit_result results[SIM_PERMITS];
    bool acquires = call->method == DOORMAN_ACQUIRE, is_master = reply->is_master;
    doorman_response response = {.method = call->method, .is_master = is_master};
    if (reply->master != SIM_NONE) {
        response.master_address = world->processes[reply->master].address;
    }
    if (is_master && acquires) response.permit_count = call->count;
    if (is_master && !acquires) response.result_count = call->count;
    response.permits = reply->permits;
    response.results = results;
    bool is_stale = call->sequence != models[index].counts.messages;
    doorman_status expected = sim_model_before_response(&models[index], is_stale, reply, now);
    doorman_upstream *upstream = doorman_permit_client_upstream(clients[index]);
    doorman_status status = doorman_upstream_response(upstream, call->sequence, &response, now);
    if (status != expected) {
        sim_fail(world, "%s answers a response with %s", models[index].name,
                 doorman_status_name(status));
        return;
    }
    take_decisions(world, index);
    sim_permit_client_step(world, index);
}

void sim_permit_client_failed(sim_world *world, const sim_call *call) {
    size_t index = call->client;
    doorman_time now = local_of(world, index);
    doorman_upstream *upstream = doorman_permit_client_upstream(clients[index]);
    bool is_stale = call->sequence != models[index].counts.messages;
    if (!is_stale && models[index].is_requested) sim_model_before_failed(&models[index], now);
    doorman_upstream_failed(upstream, call->sequence, now);
    take_decisions(world, index);
    sim_permit_client_step(world, index);
}

/* ---- its callers */

static sim_ask *new_ask(sim_model *model) {
    sim_ask *ask = sim_model_free_ask(model);
    *ask = (sim_ask){.state = SIM_ASK_FREE};
    return ask;
}

/* Draws what a caller asks for. Half of the callers ask for the same as the caller before, because
 * they try again. Some of them want more, or wait for a shorter or longer time. */
static void draw_ask(sim_model *model, sim_ask *ask, uint64_t *random) {
    sim_draw_permit(&ask->wanted, random);
    doorman_time max_wait = ask->wanted.request.max_wait;
    uint64_t choice = sim_below(random, 8);
    if (choice < 4 && model->last.request.item_count) {
        ask->wanted = model->last;
        if (choice == 0 && !ask->wanted.request.equal) ask->wanted.items[0].cost += 1;
        if (choice == 1) ask->wanted.request.max_wait = max_wait;
    }
    model->last = ask->wanted;
}

static void acquire(sim_world *world, size_t index, uint64_t *random) {
    sim_model *model = &models[index];
    sim_ask *ask = new_ask(model);
    doorman_error error = {0};
    doorman_time now = local_of(world, index);
    doorman_time timeout = sim_time_between(random, 1, 4 * SECOND);
    draw_ask(model, ask, random);
    ask->deadline = now + timeout;
    doorman_permit_request request = sim_request_of(&ask->wanted);
    void *context = (void *)(uintptr_t)(model->serial + 1);
    sim_model_before_acquire(model, ask, now);
    doorman_status status =
        doorman_permit_client_acquire(clients[index], &request, timeout, context, &error, now);
    if (status != DOORMAN_OK) sim_fail(world, "%s: %s", model->name, error.text);
    take_decisions(world, index);
}

static void report(sim_world *world, size_t index, uint64_t *random) {
    sim_model *model = &models[index];
    sim_ask *ask = new_ask(model);
    doorman_error error = {0};
    doorman_time now = local_of(world, index);
    sim_draw_permit(&ask->wanted, random);
    doorman_permit_item *item = &ask->wanted.items[0];
    ask->wanted.request = (doorman_permit_request){.item_count = 1};
    *item = (doorman_permit_item){
        .resource_id = item->resource_id, .key = item->key, .cost = item->cost};
    if (sim_below(random, 3) == 0) item->cost = -item->cost;
    ask->is_report = true;
    sim_model_before_report(model, ask, now);
    doorman_status status = doorman_permit_client_report(clients[index], item, &error, now);
    if (status != DOORMAN_OK) sim_fail(world, "%s: %s", model->name, error.text);
    take_decisions(world, index);
}

static void turn_kill_switch(sim_world *world, size_t index) {
    sim_model *model = &models[index];
    sim_model_before_kill_switch(model, !model->kill_switch);
    doorman_permit_client_kill_switch(clients[index], model->kill_switch);
    sim_log(world, "%s turns its kill switch %s", model->name, model->kill_switch ? "on" : "off");
    take_decisions(world, index);
}

/* Returns whether there is room for a permit and its copy. */
static bool has_room(const sim_model *model) {
    size_t count = 0;
    for (size_t i = 0; i < SIM_ASKS; i++) count += model->asks[i].state == SIM_ASK_FREE;
    return count >= 2;
}

void sim_permit_client_ask(sim_world *world, size_t index, uint64_t *random) {
    size_t count = 1 + (sim_below(random, 3) == 0 ? sim_pick(random, 6) : 0);
    uint64_t most = models[index].kill_switch ? 8 : 100;
    if (sim_below(random, most) == 0) turn_kill_switch(world, index);
    for (size_t i = 0; i < count && has_room(&models[index]) && !world->failure[0]; i++) {
        if (sim_below(random, 8)) {
            acquire(world, index, random);
        } else {
            report(world, index, random);
        }
    }
    if (!world->failure[0]) sim_permit_client_step(world, index);
}

/* Stops an idle client, and checks how many blocks it had: one for each address, and some for its
 * tables. With FAIL_LOCAL it may have one more for each key of each resource. */
void sim_permit_client_check_idle(sim_world *world, size_t index) {
    const sim_model *model = &models[index];
    doorman_permit_client_info info;
    doorman_permit_client_read(clients[index], &info);
    if (info.waiting_count) sim_fail(world, "%s has lost a permit", model->name);
    size_t before = sim_block_count(), most = model->process_count + 8;
    if (model->policy.fallback == DOORMAN_FAIL_LOCAL) most += 4 + (size_t)SIM_PLACES * SIM_KEYS;
    sim_permit_client_stop(world, index);
    size_t count = before - sim_block_count();
    if (count > most) sim_fail(world, "%s, which is idle, has %zu blocks", model->name, count);
}
