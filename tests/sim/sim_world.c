/* Time, clocks, the network, processes and their elections, clients: see sim.h. */
#include "sim.h"

#include <assert.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- dice: splitmix64 */

uint64_t sim_random(uint64_t *dice) {
    uint64_t x = *dice += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

double sim_unit(uint64_t *dice) { return (double)(sim_random(dice) >> 11) / 9007199254740992.0; }

uint64_t sim_below(uint64_t *dice, uint64_t count) { return sim_random(dice) % count; }

double sim_between(uint64_t *dice, double low, double high) {
    return low + (high - low) * sim_unit(dice);
}

doorman_time sim_time_between(uint64_t *dice, doorman_time low, doorman_time high) {
    return low + (doorman_time)((double)(high - low) * sim_unit(dice));
}

/* Rolls the dice of this kind of fault, also where it cannot happen: the other kinds stay as they
 * are when one is left out. */
bool sim_strikes(sim_world *world, sim_fault fault, double probability) {
    return sim_unit(&world->fault_dice[fault]) < probability * world->intensity[fault];
}

/* ---- clocks */

doorman_time sim_local(const sim_clock *clock, doorman_time at) {
    return clock->offset + at * clock->rate / 1000;
}

/* The first simulated time at which the clock shows `local`. */
doorman_time sim_global(const sim_clock *clock, doorman_time local) {
    if (local > DOORMAN_NEVER / 1000) return DOORMAN_NEVER;
    doorman_time passed = local - clock->offset;
    return passed <= 0 ? 0 : (passed * 1000 + clock->rate - 1) / clock->rate;
}

/* ---- events: a binary heap, by time and then by the order of planning */

static bool event_before(const sim_event *a, const sim_event *b) {
    return a->at < b->at || (a->at == b->at && a->sequence < b->sequence);
}

static void heap_swap(sim_event *a, sim_event *b) {
    sim_event kept = *a;
    *a = *b;
    *b = kept;
}

void sim_plan(sim_world *world, doorman_time at, sim_event event) {
    if (at >= DOORMAN_NEVER / 1000) return;
    if (world->event_count == world->event_capacity) {
        world->event_capacity = world->event_capacity ? 2 * world->event_capacity : 256;
        world->heap = realloc(world->heap, world->event_capacity * sizeof *world->heap);
        if (!world->heap) abort();
    }
    event.at = at > world->now ? at : world->now;
    event.sequence = ++world->planned;
    if (event.message) event.message->references++;
    size_t place = world->event_count++;
    world->heap[place] = event;
    while (place && event_before(&world->heap[place], &world->heap[(place - 1) / 2])) {
        heap_swap(&world->heap[place], &world->heap[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
}

static sim_event heap_pop(sim_world *world) {
    sim_event first = world->heap[0];
    sim_event *heap = world->heap;
    size_t count = --world->event_count, place = 0;
    heap[0] = heap[count];
    for (;;) {
        size_t least = 2 * place + 1;
        if (least >= count) return first;
        if (least + 1 < count && event_before(&heap[least + 1], &heap[least])) least++;
        if (!event_before(&heap[least], &heap[place])) return first;
        heap_swap(&heap[least], &heap[place]);
        place = least;
    }
}

static void message_drop(sim_message *message) {
    if (message && --message->references == 0) free(message);
}

/* Everything up to a time, or to the first failure. */
void sim_run(sim_world *world, doorman_time end) {
    while (world->event_count && world->heap[0].at <= end && !world->failure[0]) {
        sim_event event = heap_pop(world);
        world->now = event.at;
        world->happened++;
        sim_mix(world, (uint64_t)event.at);
        sim_mix(world, event.who << 8 | event.what);
        event.handler(world, &event);
        message_drop(event.message);
        if (!world->failure[0]) sim_check_sums(world);
    }
    if (!world->failure[0]) world->now = end;
}

/* ---- what is told */

static double seconds(doorman_time time) { return (double)time / (double)DOORMAN_SECOND; }

void sim_note(sim_world *world, const char *format, ...) {
    char *line = world->notes[world->note_count++ % SIM_NOTES];
    size_t bytes = sizeof world->notes[0];
    int written = snprintf(line, bytes, "%10.3f s  #%-6llu ", seconds(world->now),
                           (unsigned long long)world->happened);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line + written, bytes - (size_t)written, format, arguments);
    va_end(arguments);
    if (world->verbose) puts(line);
}

void sim_fail(sim_world *world, const char *format, ...) {
    if (world->failure[0]) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(world->failure, sizeof world->failure, format, arguments);
    va_end(arguments);
}

/* FNV-1a, by words: two runs are the same if their events and all amounts in them are. */
void sim_mix(sim_world *world, uint64_t bits) {
    world->hash = (world->hash ^ bits) * UINT64_C(0x100000001b3);
    world->hash ^= world->hash >> 29;
}

void sim_mix_amount(sim_world *world, double amount) {
    uint64_t bits = 0;
    memcpy(&bits, &amount, sizeof bits);
    sim_mix(world, bits);
}

/* ---- the world */

void sim_init(sim_world *world, uint64_t seed) {
    memset(world, 0, sizeof *world);
    world->seed = seed;
    world->dice = seed;
    world->hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < SIM_FAULT_COUNT; i++) {
        uint64_t dice = seed + (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
        world->fault_dice[i] = sim_random(&dice);
    }
}

void sim_uninit(sim_world *world) {
    for (size_t i = 0; i < world->event_count; i++) message_drop(world->heap[i].message);
    for (size_t i = 0; i < world->client_count; i++) {
        doorman_client_destroy(world->clients[i].client);
    }
    for (size_t i = 0; i < world->process_count; i++) {
        doorman_server_destroy(world->processes[i].server);
    }
    for (size_t i = 0; i < world->version_count; i++) {
        doorman_config_destroy(world->versions[i].config);
    }
    free(world->heap);
}

void sim_add_resource(sim_world *world) {
    assert(world->resource_count < SIM_RESOURCES);
    size_t index = world->resource_count++;
    snprintf(world->resources[index], sizeof world->resources[index], "r%zu", index);
}

/* A name of the world's own, equal to one that somebody said. */
static const char *known_name(const sim_world *world, const char *name) {
    for (size_t i = 0; i < world->resource_count; i++) {
        if (strcmp(world->resources[i], name) == 0) return world->resources[i];
    }
    for (size_t i = 0; i < world->client_count; i++) {
        if (strcmp(world->clients[i].id, name) == 0) return world->clients[i].id;
    }
    for (size_t i = 0; i < world->node_count; i++) {
        if (strcmp(world->nodes[i].name, name) == 0) return world->nodes[i].name;
    }
    for (size_t i = 0; i < world->process_count; i++) {
        if (strcmp(world->processes[i].address, name) == 0) return world->processes[i].address;
    }
    fprintf(stderr, "nobody has the name %s\n", name);
    abort();
}

/* A configuration that gives each resource its rules. */
void sim_add_version(sim_world *world, const sim_rules *rules) {
    assert(world->version_count < SIM_VERSIONS);
    doorman_template templates[SIM_RESOURCES];
    size_t count = 0;
    sim_version *version = &world->versions[world->version_count++];
    memset(templates, 0, sizeof templates);
    for (size_t i = 0; i < world->resource_count; i++) {
        version->rules[i] = rules[i];
        if (!rules[i].matched) continue;
        templates[count++] = (doorman_template){.identifier_glob = world->resources[i],
                                                .capacity = rules[i].capacity,
                                                .has_algorithm = true,
                                                .algorithm = rules[i].algorithm};
    }
    doorman_config_options options = {.templates = templates, .template_count = count};
    doorman_error error = {""};
    if (doorman_config_create(&version->config, &options, &error) != DOORMAN_OK) {
        fprintf(stderr, "configuration: %s\n", error.text);
        abort();
    }
    const doorman_template *resolved = doorman_config_templates(version->config, &count);
    for (size_t i = 0, at = 0; i < world->resource_count; i++) {
        if (rules[i].matched) version->rules[i].algorithm = resolved[at++].algorithm;
    }
}

/* ---- the network */

static bool passes(const sim_world *world, size_t client, size_t process) {
    return !world->partitioned || world->clients[client].aside == world->processes[process].aside;
}

/* Sends a message on its way: it may be lost, come twice, or take long. */
static void deliver(sim_world *world, sim_handler handler, size_t who, uint64_t life,
                    sim_message *message) {
    sim_event event = {.handler = handler, .who = who, .life = life, .message = message};
    int copies = sim_strikes(world, SIM_DOUBLE, 0.2) ? 2 : 1;
    for (int i = 0; i < copies; i++) {
        doorman_time delay = sim_time_between(&world->dice, 0, world->latency);
        if (sim_strikes(world, SIM_DELAY, 0.2)) {
            delay += sim_time_between(&world->fault_dice[SIM_DELAY], 0, 10 * DOORMAN_SECOND);
        }
        if (sim_strikes(world, SIM_LOSS, 0.3)) continue;
        if (!passes(world, message->client, message->process)) continue;
        sim_plan(world, world->now + delay, event);
    }
}

static sim_message *message_create(void) {
    sim_message *message = calloc(1, sizeof *message);
    if (!message) abort();
    message->references = 1;
    return message;
}

static sim_message *copy_request(const sim_world *world, const doorman_request *request) {
    sim_message *message = message_create();
    assert(request->ask_count <= SIM_RESOURCES);
    message->sequence = request->sequence;
    message->request = *request;
    message->request.holder_id = known_name(world, request->holder_id);
    message->request.asks = message->asks;
    for (size_t i = 0; i < request->ask_count; i++) {
        doorman_ask *ask = &message->asks[i];
        *ask = request->asks[i];
        ask->resource_id = known_name(world, ask->resource_id);
        if (ask->has.id) ask->has.node = known_name(world, ask->has.node);
        if (!ask->wants_count) continue;
        message->wants[i] = ask->wants[0];
        ask->wants = &message->wants[i];
    }
    return message;
}

static sim_message *copy_response(const sim_world *world, const sim_message *asked,
                                  const doorman_response *response) {
    sim_message *message = message_create();
    assert(response->answer_count <= SIM_RESOURCES);
    message->client = asked->client;
    message->life = asked->life;
    message->process = asked->process;
    message->sequence = asked->sequence;
    message->response = *response;
    message->response.answers = message->answers;
    const char *master = response->master_address;
    if (master) message->response.master_address = known_name(world, master);
    for (size_t i = 0; i < response->answer_count; i++) {
        doorman_answer *answer = &message->answers[i];
        *answer = response->answers[i];
        answer->resource_id = known_name(world, answer->resource_id);
        if (answer->gets.node) answer->gets.node = known_name(world, answer->gets.node);
    }
    return message;
}

/* ---- messages to a client */

static size_t resource_index(const sim_world *world, const char *resource_id) {
    for (size_t i = 0; i < world->resource_count; i++) {
        if (strcmp(world->resources[i], resource_id) == 0) return i;
    }
    return SIM_NONE;
}

static void note_response(sim_world *world, const sim_message *message, doorman_status status) {
    const sim_client *client = &world->clients[message->client];
    const doorman_response *response = &message->response;
    const char *stale = status == DOORMAN_STALE ? " too late" : "";
    sim_mix(world, (uint64_t)status);
    if (!response->is_master) {
        sim_note(world, "%s hears%s that the master is %s", client->id, stale,
                 response->master_address ? response->master_address : "unknown");
    }
    for (size_t i = 0; i < response->answer_count; i++) {
        const doorman_answer *answer = &message->answers[i];
        size_t resource = resource_index(world, answer->resource_id);
        doorman_resource_info info = {0};
        bool leased = sim_leased(world, message->client, resource, &info);
        sim_mix_amount(world, leased ? info.capacity : -1);
        sim_note(world, "%s takes%s %.6g of %s, lease %llx: has %.6g for %.3f s, in flight %.6g",
                 client->id, stale, answer->gets.capacity, answer->resource_id,
                 (unsigned long long)answer->gets.id, leased ? info.capacity : 0,
                 leased ? seconds(info.expires_at - sim_local(&client->clock, world->now)) : 0,
                 info.in_flight);
    }
}

/* A lease of another node goes on with nothing of the last one: what is in flight is an orphan. */
static void note_granter(sim_world *world, const sim_message *message) {
    size_t node = world->processes[message->process].node;
    for (size_t i = 0; i < message->response.answer_count; i++) {
        size_t resource = resource_index(world, message->answers[i].resource_id);
        sim_use *use = &world->clients[message->client].uses[resource];
        if (use->node == node) continue;
        use->node = node;
        use->leased = false;
        use->abandoned = 0;
    }
}

/* A client that stands still finds its messages when it wakes, or never. */
static bool client_misses(sim_world *world, const sim_event *event) {
    const sim_client *client = &world->clients[event->who];
    if (!client->client || client->life != event->life) return true;
    if (!client->stalled_until) return false;
    if (!sim_strikes(world, SIM_STALL, 0.5)) sim_plan(world, client->stalled_until, *event);
    return true;
}

static void on_response(sim_world *world, const sim_event *event) {
    if (client_misses(world, event)) return;
    sim_client *client = &world->clients[event->who];
    doorman_status status =
        doorman_asker_response(doorman_client_asker(client->client), event->message->sequence,
                               &event->message->response, sim_local(&client->clock, world->now));
    if (status != DOORMAN_OK && status != DOORMAN_STALE) {
        sim_fail(world, "%s calls a right answer %s", client->id, doorman_status_name(status));
    }
    if (status == DOORMAN_OK) note_granter(world, event->message);
    note_response(world, event->message, status);
    sim_carry(world, event->who);
}

static void on_no_answer(sim_world *world, const sim_event *event) {
    if (client_misses(world, event)) return;
    sim_client *client = &world->clients[event->who];
    doorman_asker_failed(doorman_client_asker(client->client), event->message->sequence,
                         sim_local(&client->clock, world->now));
    sim_note(world, "%s finds nobody at %s", client->id,
             world->processes[event->message->process].address);
    sim_carry(world, event->who);
}

/* ---- messages to a process */

static void note_request(sim_world *world, const sim_message *message, bool is_master) {
    const sim_process *process = &world->processes[message->process];
    for (size_t i = 0; i < message->request.ask_count; i++) {
        const doorman_ask *ask = &message->asks[i];
        bool release = message->request.method == DOORMAN_RELEASE_CAPACITY;
        char wants[40] = "", has[80] = "";
        sim_mix(world, ask->has.id);
        if (!release) snprintf(wants, sizeof wants, "wants %.6g, ", ask->wants[0].wants);
        if (ask->has.id) {
            snprintf(has, sizeof has, "%.6g by lease %llx", ask->has.capacity,
                     (unsigned long long)ask->has.id);
        }
        sim_note(world, "%s at %s%s: %s %s, %shas %s", message->request.holder_id, process->address,
                 is_master ? "" : " (no master)", release ? "releases" : "asks for",
                 ask->resource_id, wants, ask->has.id ? has : "nothing");
    }
}

static void note_answers(sim_world *world, const sim_message *message) {
    for (size_t i = 0; i < message->response.answer_count; i++) {
        const doorman_answer *answer = &message->answers[i];
        sim_mix_amount(world, answer->gets.capacity);
        sim_note(world, "%s gives %s %.6g of %s, lease %llx for %.3f s",
                 world->processes[message->process].address, world->clients[message->client].id,
                 answer->gets.capacity, answer->resource_id, (unsigned long long)answer->gets.id,
                 seconds(answer->gets.expires_in));
    }
}

static void on_request(sim_world *world, const sim_event *event) {
    sim_process *process = &world->processes[event->who];
    sim_message *message = event->message;
    if (process->frozen_until) {
        if (!sim_strikes(world, SIM_FREEZE, 0.5)) sim_plan(world, process->frozen_until, *event);
        return;
    }
    if (!process->server) { /* refused by its machine, or silence */
        if (sim_below(&world->dice, 2)) {
            deliver(world, on_no_answer, message->client, message->life, message);
        }
        return;
    }
    doorman_response response;
    doorman_error error = {""};
    doorman_time local = sim_local(&process->clock, world->now);
    doorman_status status =
        doorman_server_handle(process->server, &message->request, &response, &error, local);
    if (status != DOORMAN_OK) {
        sim_fail(world, "%s refuses a right request: %s", process->address, error.text);
        return;
    }
    note_request(world, message, response.is_master);
    sim_message *answer = copy_response(world, message, &response);
    note_answers(world, answer);
    sim_check_answers(world, message, answer);
    sim_check_books(world, event->who);
    deliver(world, on_response, message->client, message->life, answer);
    message_drop(answer);
}

/* ---- processes */

static void on_process_due(sim_world *world, const sim_event *event) {
    sim_process *process = &world->processes[event->who];
    if (!process->server || process->life != event->life) return;
    doorman_time next = world->now + DOORMAN_SECOND + (doorman_time)sim_below(&world->dice, 1000);
    if (!process->frozen_until) {
        doorman_server_update(process->server, sim_local(&process->clock, world->now));
        doorman_time due = sim_global(&process->clock, doorman_server_due(process->server));
        if (due > next) next = due;
    }
    if (next > world->now + 30 * DOORMAN_SECOND) next = world->now + 30 * DOORMAN_SECOND;
    sim_plan(world, next, *event);
}

static void set_master(sim_world *world, sim_process *process, const char *address,
                       doorman_time until, doorman_time gone) {
    doorman_mastership mastership = {.address = address, .until = until, .predecessor_gone = gone};
    doorman_time local = sim_local(&process->clock, world->now);
    if (doorman_server_set_master(process->server, &mastership, local) != DOORMAN_OK) {
        sim_fail(world, "%s refuses a mastership", process->address);
    }
}

static bool votes(const sim_process *process) {
    return process->server && !process->frozen_until && !process->exiled;
}

/* The key of the election falls. Whoever watches sees it. */
static void key_falls(sim_world *world, sim_node *node) {
    node->master = SIM_NONE;
    for (size_t i = 0; i < node->process_count; i++) {
        sim_process *process = &world->processes[node->first_process + i];
        if (!votes(process)) continue;
        process->seen_term = node->term;
        process->seen_gone = sim_local(&process->clock, world->now);
    }
}

/* The moment at which a process saw the last master go may stand for the victory only if there was
 * no other master since that it did not see. */
static void win(sim_world *world, sim_node *node, size_t winner) {
    sim_process *process = &world->processes[winner];
    bool seen = node->term && process->seen_term == node->term;
    node->term++;
    node->master = winner;
    sim_note(world, "%s is elected%s", process->address, seen ? ", and saw the last one go" : "");
    doorman_time until = sim_local(&process->clock, world->now) + world->ttl * 95 / 100;
    set_master(world, process, process->address, until, seen ? process->seen_gone : 0);
}

/* A process looks at the election every third of the time for which the key lasts. A master
 * believes in itself for a twentieth less, by its own clock, so that it has stopped, slow as its
 * clock may be, before another one can win (V2). */
static void on_election(sim_world *world, const sim_event *event) {
    sim_process *process = &world->processes[event->who];
    sim_node *node = &world->nodes[process->node];
    if (!process->server || process->life != event->life) return;
    sim_plan(world, world->now + world->ttl / 3, *event);
    if (!votes(process)) return;
    if (node->master != SIM_NONE && world->now >= node->key_until) key_falls(world, node);
    if (node->master == SIM_NONE && world->now >= node->vacant_until) win(world, node, event->who);
    if (node->master == event->who) {
        node->key_until = world->now + world->ttl;
        doorman_time until = sim_local(&process->clock, world->now) + world->ttl * 95 / 100;
        set_master(world, process, process->address, until, 0);
    } else {
        bool known = node->master != SIM_NONE;
        set_master(world, process, known ? world->processes[node->master].address : NULL, 0, 0);
    }
}

void sim_resign(sim_world *world, size_t index, doorman_time vacant_until) {
    sim_node *node = &world->nodes[index];
    if (node->master == SIM_NONE) return;
    sim_process *process = &world->processes[node->master];
    if (!votes(process)) return;
    sim_note(world, "%s gives up its mastership", process->address);
    set_master(world, process, NULL, 0, 0);
    node->vacant_until = vacant_until;
    key_falls(world, node);
    for (size_t i = 0; i < node->process_count; i++) {
        size_t other = node->first_process + i;
        sim_event look = {.handler = on_election, .who = other};
        look.life = world->processes[other].life;
        doorman_time late = sim_time_between(&world->dice, 0, world->latency);
        sim_plan(world, vacant_until + late, look);
    }
}

/* Loads the configurations up to the one in force, one after the other. */
void sim_load(sim_world *world, size_t index) {
    sim_process *process = &world->processes[index];
    doorman_time local = sim_local(&process->clock, world->now);
    if (!process->server) return;
    while (process->version < world->version) {
        const doorman_config *config = world->versions[++process->version].config;
        if (doorman_server_configure(process->server, config, local) != DOORMAN_OK) {
            sim_fail(world, "%s refuses a configuration", process->address);
        }
        sim_note(world, "%s loads configuration %zu", process->address, process->version);
        sim_check_books(world, index);
    }
}

/* A process that starts knows the configurations under which leases may still be in force: it has
 * to learn for as long as they last. Whoever shortens leases must see to it, and not start a
 * process within the old lease length, or set learning_mode_duration: nothing else could tell
 * it. */
void sim_start_process(sim_world *world, size_t index) {
    sim_process *process = &world->processes[index];
    assert(!process->server);
    process->life++;
    process->frozen_until = 0;
    process->seen_term = 0;
    process->version = sim_first_version(world);
    uint64_t dice = world->seed ^ (index << 32 | process->life);
    doorman_server_options options = {.node = world->nodes[process->node].name,
                                      .config = world->versions[process->version].config};
    options.seed[0] = sim_random(&dice);
    options.seed[1] = sim_random(&dice);
    doorman_time local = sim_local(&process->clock, world->now);
    if (doorman_server_create(&process->server, &options, NULL, local) != DOORMAN_OK) abort();
    sim_note(world, "%s starts", process->address);
    sim_load(world, index);
    sim_event event = {.handler = on_election, .who = index, .life = process->life};
    sim_plan(world, world->now, event);
    event.handler = on_process_due;
    sim_plan(world, world->now, event);
}

void sim_kill_process(sim_world *world, size_t index) {
    sim_process *process = &world->processes[index];
    doorman_server_destroy(process->server);
    process->server = NULL;
    process->frozen_until = 0;
    sim_note(world, "%s dies", process->address);
}

static void on_thaw(sim_world *world, const sim_event *event) {
    sim_process *process = &world->processes[event->who];
    if (process->life != event->life || !process->frozen_until) return;
    process->frozen_until = 0;
    sim_note(world, "%s goes on", process->address);
    sim_load(world, event->who);
}

void sim_freeze_process(sim_world *world, size_t index, doorman_time until) {
    sim_process *process = &world->processes[index];
    process->frozen_until = until;
    sim_note(world, "%s stands still for %.3f s", process->address, seconds(until - world->now));
    sim_event event = {.handler = on_thaw, .who = index, .life = process->life};
    sim_plan(world, until, event);
}

void sim_add_node(sim_world *world, size_t process_count) {
    assert(world->node_count < SIM_NODES);
    assert(world->process_count + process_count <= SIM_PROCESSES);
    size_t index = world->node_count++;
    sim_node *node = &world->nodes[index];
    snprintf(node->name, sizeof node->name, "n%zu", index);
    node->first_process = world->process_count;
    node->process_count = process_count;
    node->master = SIM_NONE;
    for (size_t i = 0; i < process_count; i++) {
        sim_process *process = &world->processes[world->process_count++];
        snprintf(process->address, sizeof process->address, "n%zup%zu", index, i);
        process->node = index;
        process->clock = (sim_clock){1000 * DOORMAN_SECOND, 1000};
    }
}

/* ---- clients */

bool sim_leased(const sim_world *world, size_t client, size_t resource,
                doorman_resource_info *info) {
    const sim_client *who = &world->clients[client];
    if (!who->client || !who->uses[resource].resource) return false;
    doorman_resource_read(who->uses[resource].resource, info, sim_local(&who->clock, world->now));
    return info->leased;
}

static size_t process_at(const sim_world *world, const char *address) {
    for (size_t i = 0; i < world->process_count; i++) {
        if (strcmp(world->processes[i].address, address) == 0) return i;
    }
    return SIM_NONE;
}

static void on_client_due(sim_world *world, const sim_event *event) {
    const sim_client *client = &world->clients[event->who];
    if (!client->client || client->wake != event->life || client->stalled_until) return;
    sim_carry(world, event->who);
}

/* The loop that carries the messages of a client, once around. */
void sim_carry(sim_world *world, size_t index) {
    sim_client *client = &world->clients[index];
    if (!client->client || client->stalled_until) return;
    doorman_time local = sim_local(&client->clock, world->now);
    doorman_asker *asker = doorman_client_asker(client->client);
    doorman_request request;
    doorman_client_update(client->client, local);
    if (doorman_asker_request(asker, &request, local) != DOORMAN_OK) abort();
    if (request.sequence) {
        sim_message *message = copy_request(world, &request);
        message->client = index;
        message->life = client->life;
        message->process = process_at(world, doorman_asker_address(asker));
        deliver(world, on_request, message->process, 0, message);
        message_drop(message);
    }
    doorman_time due = doorman_client_due(client->client);
    if (due <= local) {
        sim_fail(world, "%s wants to be called again at once, without end", client->id);
    }
    sim_event event = {.handler = on_client_due, .who = index, .life = ++client->wake};
    sim_plan(world, sim_global(&client->clock, due), event);
}

/* It knows the processes of its node; where clients roam, those of all nodes. */
void sim_start_client(sim_world *world, size_t index) {
    sim_client *client = &world->clients[index];
    const char *addresses[SIM_PROCESSES];
    uint64_t dice = world->seed ^ ~(uint64_t)index ^ ++client->life << 32;
    size_t first = sim_below(&dice, world->process_count), count = 0;
    for (size_t i = 0; i < world->process_count; i++) {
        const sim_process *process = &world->processes[(first + i) % world->process_count];
        bool known = process->node == client->node || world->intensity[SIM_ROAM] > 0;
        if (known) addresses[count++] = process->address;
    }
    doorman_client_options options = {.client_id = client->id,
                                      .addresses = addresses,
                                      .address_count = count,
                                      .seed = sim_random(&dice)};
    doorman_time local = sim_local(&client->clock, world->now);
    if (doorman_client_create(&client->client, &options, NULL, local) != DOORMAN_OK) abort();
    sim_note(world, "%s starts", client->id);
}

void sim_kill_client(sim_world *world, size_t index) {
    sim_client *client = &world->clients[index];
    doorman_client_destroy(client->client);
    client->client = NULL;
    client->stalled_until = 0;
    for (size_t i = 0; i < world->resource_count; i++) {
        sim_use *use = &client->uses[i];
        use->resource = NULL;
        use->leased = false;
        use->abandoned = use->owed = 0;
        use->opening++;
    }
    sim_note(world, "%s dies", client->id);
}

static void on_wake_up(sim_world *world, const sim_event *event) {
    sim_client *client = &world->clients[event->who];
    if (client->life != event->life || !client->stalled_until) return;
    client->stalled_until = 0;
    sim_note(world, "%s goes on", client->id);
    sim_carry(world, event->who);
}

void sim_stall_client(sim_world *world, size_t index, doorman_time until) {
    sim_client *client = &world->clients[index];
    client->stalled_until = until;
    sim_note(world, "%s stands still for %.3f s", client->id, seconds(until - world->now));
    sim_event event = {.handler = on_wake_up, .who = index, .life = client->life};
    sim_plan(world, until, event);
}

/* Opened again soon a gauge still knows what is in flight, and hears of what came back meanwhile.
 * Else it is a new one. */
void sim_open(sim_world *world, size_t index, size_t resource) {
    sim_client *client = &world->clients[index];
    sim_use *use = &client->uses[resource];
    doorman_resource_options options = {
        .resource_id = world->resources[resource], .has_priority = true, .priority = use->priority};
    doorman_time local = sim_local(&client->clock, world->now);
    doorman_status status =
        doorman_resource_open(&use->resource, client->client, &options, NULL, local);
    if (status != DOORMAN_OK) abort();
    if (doorman_resource_set_wants(use->resource, use->wants, local) != DOORMAN_OK) abort();
    doorman_resource_info info;
    (void)sim_leased(world, index, resource, &info);
    if (info.in_flight > 0) {
        doorman_gauge_release(doorman_resource_gauge(use->resource), use->owed);
    } else {
        use->opening++;
        use->leased = false;
    }
    use->abandoned = use->owed = 0;
    use->seen_at = local;
    use->capacity = use->peak = use->budget = use->passed = 0;
    sim_note(world, "%s opens %s, wants %.6g", client->id, options.resource_id, use->wants);
    sim_carry(world, index);
}

/* What is in flight goes on. */
void sim_close(sim_world *world, size_t index, size_t resource) {
    sim_client *client = &world->clients[index];
    sim_use *use = &client->uses[resource];
    doorman_resource_info info;
    if (sim_leased(world, index, resource, &info) && info.in_flight > use->orphans) {
        use->abandoned = info.in_flight - use->orphans;
        use->abandoned_until = info.expires_at;
    }
    doorman_resource_close(use->resource, sim_local(&client->clock, world->now));
    use->resource = NULL;
    sim_note(world, "%s closes %s with %.6g in flight", client->id, world->resources[resource],
             info.in_flight);
    sim_carry(world, index);
}

void sim_want(sim_world *world, size_t index, size_t resource, double wants) {
    sim_client *client = &world->clients[index];
    sim_use *use = &client->uses[resource];
    use->wants = wants;
    if (!client->client || !use->resource) return;
    doorman_time local = sim_local(&client->clock, world->now);
    if (doorman_resource_set_wants(use->resource, wants, local) != DOORMAN_OK) abort();
    sim_note(world, "%s wants %.6g of %s", client->id, wants, world->resources[resource]);
    sim_carry(world, index);
}

sim_client *sim_add_client(sim_world *world, size_t node, sim_clock clock) {
    assert(world->client_count < SIM_CLIENTS);
    size_t index = world->client_count++;
    sim_client *client = &world->clients[index];
    snprintf(client->id, sizeof client->id, "c%zu", index);
    client->node = node;
    client->clock = clock;
    return client;
}
