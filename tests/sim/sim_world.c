/* Time, clocks, processes and their elections, clients: see sim.h. */
#include "sim.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- random numbers */

double sim_unit(uint64_t *dice) { return (double)(sim_random(dice) >> 11) / 9007199254740992.0; }

uint64_t sim_below(uint64_t *dice, uint64_t count) { return sim_random(dice) % count; }

size_t sim_pick(uint64_t *dice, size_t count) { return (size_t)sim_below(dice, count); }

double sim_between(uint64_t *dice, double low, double high) {
    return low + (high - low) * sim_unit(dice);
}

doorman_time sim_time_between(uint64_t *dice, doorman_time low, doorman_time high) {
    return low + (doorman_time)((double)(high - low) * sim_unit(dice));
}

/* Draws from this fault's random numbers even where the fault cannot happen. So leaving out one
 * kind of fault does not change the others. */
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

/* ---- events: a binary heap, ordered by time and then by the order of planning */

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
    event.message = sim_message_keep(event.message);
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

/* Handles all events up to `end`, or up to the first failure. */
void sim_run(sim_world *world, doorman_time end) {
    while (world->event_count && world->heap[0].at <= end && !world->failure[0]) {
        sim_event event = heap_pop(world);
        world->now = event.at;
        world->happened++;
        sim_mix(world, (uint64_t)event.at);
        sim_mix(world, event.who << 8 | event.what);
        event.handler(world, &event);
        sim_message_drop(event.message);
        if (!world->failure[0]) sim_check_sums(world);
    }
    if (!world->failure[0]) world->now = end;
}

/* ---- notes and failures */

static double seconds(doorman_time time) { return (double)time / (double)DOORMAN_SECOND; }

void sim_note(sim_world *world, const char *format, ...) {
    if (world->quiet) return;
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

/* FNV-1a over words. Two runs have the same hash if their events and all amounts in them are the
 * same. */
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
    for (size_t i = 0; i < world->event_count; i++) sim_message_drop(world->heap[i].message);
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

size_t sim_resource_index(const sim_world *world, const char *resource_id) {
    size_t index = (size_t)(resource_id[1] - '0'); /* "r0" */
    assert(index < world->resource_count && strcmp(world->resources[index], resource_id) == 0);
    return index;
}

/* Adds a configuration that gives each resource its rules. */
void sim_add_version(sim_world *world, const sim_rules *rules) {
    assert(world->version_count < SIM_VERSIONS && SIM_VERSIONS <= 32);
    doorman_template templates[SIM_RESOURCES];
    size_t count = 0;
    sim_version *version = &world->versions[world->version_count++];
    memset(templates, 0, sizeof templates);
    for (size_t i = 0; i < world->resource_count; i++) {
        version->rules[i] = rules[i];
        if (rules[i].whole) version->rules[i].capacity = floor(rules[i].capacity);
        if (!rules[i].matched) continue;
        templates[count++] = (doorman_template){.identifier_glob = world->resources[i],
                                                .capacity = version->rules[i].capacity,
                                                .whole = rules[i].whole,
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

/* ---- processes */

bool sim_is_root(const sim_world *world, const sim_process *process) {
    return world->nodes[process->node].parent == SIM_NONE;
}

static void set_master(sim_world *world, sim_process *process, const char *address,
                       doorman_time until, doorman_time gone) {
    doorman_mastership mastership = {.address = address, .until = until, .predecessor_gone = gone};
    doorman_time local = sim_local(&process->machine.clock, world->now);
    if (doorman_server_set_master(process->server, &mastership, local) != DOORMAN_OK) {
        sim_fail(world, "%s refuses a mastership", process->address);
    }
    size_t index = (size_t)(process - world->processes);
    sim_look(world, index);
    if (!sim_is_root(world, process)) sim_carry_process(world, index);
}

static bool votes(const sim_process *process) {
    return process->server && !process->machine.still_until && !process->exiled;
}

/* The election key expires. Every process that watches the election sees it. */
static void key_falls(sim_world *world, sim_node *node) {
    node->master = SIM_NONE;
    for (size_t i = 0; i < node->process_count; i++) {
        sim_process *process = &world->processes[node->first_process + i];
        if (!votes(process)) continue;
        process->seen_term = node->term;
        process->seen_gone = sim_local(&process->machine.clock, world->now);
    }
}

/* The time at which a process saw the last master go counts as the end of its predecessor only if
 * no other master has been elected since then. */
static void win(sim_world *world, sim_node *node, size_t winner) {
    sim_process *process = &world->processes[winner];
    bool seen = node->term && process->seen_term == node->term;
    node->term++;
    node->master = winner;
    sim_note(world, "%s is elected%s", process->address,
             seen ? ", and saw its predecessor go" : "");
    doorman_time until = sim_local(&process->machine.clock, world->now) + world->ttl * 95 / 100;
    set_master(world, process, process->address, until, seen ? process->seen_gone : 0);
}

/* A process checks the election every third of the key's time to live (TTL). A master claims
 * mastership for only 95 % of the TTL, by its own clock. So even with the slowest clock it stops
 * before another process can win (V2). */
static void on_election(sim_world *world, const sim_event *event) {
    sim_process *process = &world->processes[event->who];
    sim_node *node = &world->nodes[process->node];
    if (!process->server || process->machine.life != event->life) return;
    sim_plan(world, world->now + world->ttl / 3, *event);
    if (!votes(process)) return;
    if (node->master != SIM_NONE && world->now >= node->key_until) key_falls(world, node);
    if (node->master == SIM_NONE && world->now >= node->vacant_until) win(world, node, event->who);
    if (node->master == event->who) {
        node->key_until = world->now + world->ttl;
        doorman_time until = sim_local(&process->machine.clock, world->now) + world->ttl * 95 / 100;
        set_master(world, process, process->address, until, 0);
    } else {
        bool known = node->master != SIM_NONE;
        set_master(world, process, known ? world->processes[node->master].address : NULL, 0, 0);
    }
}

void sim_resign(sim_world *world, size_t index, doorman_time vacant_until) {
    sim_node *node = &world->nodes[index];
    if (node->master == SIM_NONE) return;
    size_t master = node->master - node->first_process;
    sim_process *process = &world->processes[node->master];
    if (!votes(process)) return;
    sim_note(world, "%s resigns", process->address);
    set_master(world, process, NULL, 0, 0);
    node->vacant_until = vacant_until;
    key_falls(world, node);
    for (size_t i = 1; i <= node->process_count; i++) { /* the others come first */
        size_t other = node->first_process + (master + i) % node->process_count;
        sim_event look = {.handler = on_election, .who = other};
        look.life = world->processes[other].machine.life;
        doorman_time late = sim_time_between(&world->dice, 0, world->latency);
        sim_plan(world, vacant_until + late, look);
    }
}

/* Loads all configurations up to the one in force, one after the other. */
void sim_load(sim_world *world, size_t index) {
    sim_process *process = &world->processes[index];
    doorman_time local = sim_local(&process->machine.clock, world->now);
    if (!process->server || !sim_is_root(world, process)) return;
    while (process->version < world->version) {
        const doorman_config *config = world->versions[++process->version].config;
        if (doorman_server_configure(process->server, config, local) != DOORMAN_OK) {
            sim_fail(world, "%s refuses a configuration", process->address);
        }
        sim_touch_processes(world);
        sim_note(world, "%s loads configuration %zu", process->address, process->version);
        sim_check_books(world, index);
    }
}

/* Lists the addresses of all processes of a node, starting at a random one. */
static size_t addresses_of(const sim_world *world, size_t node_index, uint64_t *dice,
                           const char **out) {
    const sim_node *node = &world->nodes[node_index];
    size_t first = sim_pick(dice, node->process_count);
    for (size_t i = 0; i < node->process_count; i++) {
        size_t place = (first + i) % node->process_count;
        out[i] = world->processes[node->first_process + place].address;
    }
    return node->process_count;
}

/* Starts a process. A process of a root starts with the oldest configuration whose leases may still
 * be in force, because it must learn for as long as they last. Nothing tells it that length in
 * reality, so an operator who shortens leases must not start a process within the old lease length,
 * or must set learning_mode_duration. */
void sim_start_process(sim_world *world, size_t index) {
    sim_process *process = &world->processes[index];
    sim_node *node = &world->nodes[process->node];
    assert(!process->server);
    process->machine.life++;
    process->machine.still_until = 0;
    process->seen_term = 0;
    uint64_t dice = world->seed ^ ((uint64_t)index << 32 | process->machine.life);
    const char *parents[SIM_PROCESSES];
    doorman_server_options options = {.node = node->name};
    options.seed[0] = sim_random(&dice);
    options.seed[1] = sim_random(&dice);
    if (node->parent == SIM_NONE) {
        process->version = sim_first_version(world);
        options.config = world->versions[process->version].config;
    } else {
        options.parents = parents;
        options.parent_count = addresses_of(world, node->parent, &dice, parents);
    }
    doorman_time local = sim_local(&process->machine.clock, world->now);
    if (doorman_server_create(&process->server, &options, NULL, local) != DOORMAN_OK) abort();
    sim_touch_processes(world);
    sim_note(world, "%s starts", process->address);
    sim_load(world, index);
    sim_event event = {.handler = on_election, .who = index, .life = process->machine.life};
    sim_plan(world, world->now, event);
    sim_carry_process(world, index);
}

void sim_kill_process(sim_world *world, size_t index) {
    sim_process *process = &world->processes[index];
    doorman_server_destroy(process->server);
    process->server = NULL;
    process->machine.still_until = 0;
    sim_touch_processes(world);
    sim_note(world, "%s dies", process->address);
}

static void on_thaw(sim_world *world, const sim_event *event) {
    sim_process *process = &world->processes[event->who];
    if (process->machine.life != event->life || !process->machine.still_until) return;
    process->machine.still_until = 0;
    sim_touch_processes(world);
    sim_note(world, "%s runs again", process->address);
    sim_load(world, event->who);
    sim_carry_process(world, event->who);
}

void sim_freeze_process(sim_world *world, size_t index, doorman_time until) {
    sim_process *process = &world->processes[index];
    process->machine.still_until = until;
    sim_touch_processes(world);
    sim_note(world, "%s stands still for %.3f s", process->address, seconds(until - world->now));
    sim_event event = {.handler = on_thaw, .who = index, .life = process->machine.life};
    sim_plan(world, until, event);
}

/* Adds a root, or a child of a node that exists already. */
size_t sim_add_node(sim_world *world, size_t parent, size_t process_count) {
    assert(world->node_count < SIM_NODES);
    assert(world->process_count + process_count <= SIM_PROCESSES);
    size_t index = world->node_count++;
    bool root = parent == SIM_NONE;
    sim_node *node = &world->nodes[index];
    snprintf(node->name, sizeof node->name, "n%zu", index);
    node->parent = parent;
    node->root = root ? index : world->nodes[parent].root;
    node->level = root ? 0 : world->nodes[parent].level + 1;
    node->first_process = world->process_count;
    node->process_count = process_count;
    node->master = SIM_NONE;
    for (size_t i = 0; i < process_count; i++) {
        sim_process *process = &world->processes[world->process_count++];
        snprintf(process->address, sizeof process->address, "n%zup%zu", index, i);
        process->node = index;
        process->machine.clock = (sim_clock){1000 * DOORMAN_SECOND, 1000};
    }
    return index;
}

/* ---- clients */

bool sim_leased(const sim_world *world, size_t client, size_t resource,
                doorman_resource_info *info) {
    const sim_client *who = &world->clients[client];
    if (!who->client || !who->uses[resource].resource) return false;
    doorman_resource_read(who->uses[resource].resource, info,
                          sim_local(&who->machine.clock, world->now));
    return info->leased;
}

/* The client knows the processes of its node. Where clients roam, it also knows those of another
 * node. */
void sim_start_client(sim_world *world, size_t index) {
    sim_client *client = &world->clients[index];
    const char *addresses[2 * SIM_PROCESSES];
    uint64_t dice = world->seed ^ ~(uint64_t)index ^ ++client->machine.life << 32;
    size_t count = addresses_of(world, client->node, &dice, addresses);
    if (client->other != client->node) {
        count += addresses_of(world, client->other, &dice, addresses + count);
    }
    doorman_client_options options = {.client_id = client->id,
                                      .addresses = addresses,
                                      .address_count = count,
                                      .seed = sim_random(&dice)};
    doorman_time local = sim_local(&client->machine.clock, world->now);
    if (doorman_client_create(&client->client, &options, NULL, local) != DOORMAN_OK) abort();
    sim_note(world, "%s starts", client->id);
}

void sim_kill_client(sim_world *world, size_t index) {
    sim_client *client = &world->clients[index];
    doorman_client_destroy(client->client);
    client->client = NULL;
    client->machine.still_until = 0;
    for (size_t i = 0; i < world->resource_count; i++) {
        sim_use *use = &client->uses[i];
        use->resource = NULL;
        use->leased = false;
        use->abandoned = use->owed = 0;
        use->opening++;
    }
    sim_touch_client(world, index);
    sim_note(world, "%s dies", client->id);
}

static void on_wake_up(sim_world *world, const sim_event *event) {
    sim_client *client = &world->clients[event->who];
    if (client->machine.life != event->life || !client->machine.still_until) return;
    client->machine.still_until = 0;
    sim_note(world, "%s runs again", client->id);
    sim_carry_client(world, event->who);
}

void sim_stall_client(sim_world *world, size_t index, doorman_time until) {
    sim_client *client = &world->clients[index];
    client->machine.still_until = until;
    sim_note(world, "%s stands still for %.3f s", client->id, seconds(until - world->now));
    sim_event event = {.handler = on_wake_up, .who = index, .life = client->machine.life};
    sim_plan(world, until, event);
}

/* A gauge that is opened again soon still knows its units in flight. Units that came back while it
 * was closed are released now. Otherwise the gauge is a new one. */
void sim_open(sim_world *world, size_t index, size_t resource) {
    sim_client *client = &world->clients[index];
    sim_use *use = &client->uses[resource];
    doorman_resource_options options = {
        .resource_id = world->resources[resource], .has_priority = true, .priority = use->priority};
    options.wants_maximum = 1e6; /* if wants follow use: some use 10 times their lease */
    doorman_time local = sim_local(&client->machine.clock, world->now);
    doorman_status status =
        doorman_resource_open(&use->resource, client->client, &options, NULL, local);
    if (status != DOORMAN_OK) abort();
    if (!use->follows && doorman_resource_set_wants(use->resource, use->wants, local) != DOORMAN_OK)
        abort();
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
    sim_touch_client(world, index);
    sim_note(world, "%s opens %s, wants %.6g", client->id, options.resource_id, use->wants);
    sim_carry_client(world, index);
}

/* Units in flight stay in flight. */
void sim_close(sim_world *world, size_t index, size_t resource) {
    sim_client *client = &world->clients[index];
    sim_use *use = &client->uses[resource];
    doorman_resource_info info;
    if (sim_leased(world, index, resource, &info)) {
        use->abandoned = info.in_flight;
        use->abandoned_until = info.expires_at;
    }
    doorman_resource_close(use->resource, sim_local(&client->machine.clock, world->now));
    use->resource = NULL;
    sim_touch_client(world, index);
    sim_note(world, "%s closes %s with %.6g in flight", client->id, world->resources[resource],
             info.in_flight);
    sim_carry_client(world, index);
}

void sim_want(sim_world *world, size_t index, size_t resource, double wants) {
    sim_client *client = &world->clients[index];
    sim_use *use = &client->uses[resource];
    use->wants = wants;
    if (!client->client || !use->resource || use->follows) return;
    doorman_time local = sim_local(&client->machine.clock, world->now);
    if (doorman_resource_set_wants(use->resource, wants, local) != DOORMAN_OK) abort();
    sim_touch_client(world, index);
    sim_note(world, "%s wants %.6g of %s", client->id, wants, world->resources[resource]);
    sim_carry_client(world, index);
}

sim_client *sim_add_client(sim_world *world, size_t node, sim_clock clock) {
    assert(world->client_count < SIM_CLIENTS);
    size_t index = world->client_count++;
    sim_client *client = &world->clients[index];
    snprintf(client->id, sizeof client->id, "c%zu", index);
    client->node = client->other = node;
    client->machine.clock = clock;
    return client;
}
