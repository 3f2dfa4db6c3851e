/* Time, clocks, processes, clients: see sim.h. */
#include "sim.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory */

static size_t block_count;

void *sim_allocate(void *old, size_t bytes) {
    void *memory = realloc(old, bytes);
    if (memory && !old) block_count++;
    return memory;
}

void sim_free(void *memory) {
    if (memory) block_count--;
    free(memory);
}

size_t sim_block_count(void) { return block_count; }

/* ---- random numbers */

double sim_unit(uint64_t *random) {
    return (double)(sim_random(random) >> 11) / 9007199254740992.0;
}

uint64_t sim_below(uint64_t *random, uint64_t count) { return sim_random(random) % count; }

size_t sim_pick(uint64_t *random, size_t count) { return (size_t)sim_below(random, count); }

double sim_between(uint64_t *random, double low, double high) {
    return low + (high - low) * sim_unit(random);
}

doorman_time sim_time_between(uint64_t *random, doorman_time low, doorman_time high) {
    return low + (doorman_time)((double)(high - low) * sim_unit(random));
}

/* Returns whether a fault happens now. Each kind of fault has its own random numbers, so that
 * leaving out one kind does not change the others. */
bool sim_fault_occurs(sim_world *world, sim_fault fault, double probability) {
    bool occurs = sim_unit(&world->fault_random[fault]) < probability * world->intensity[fault];
    world->strikes[fault] += occurs;
    return occurs;
}

/* ---- clocks */

doorman_time sim_local(const sim_clock *clock, doorman_time at) {
    return clock->offset + at * clock->rate / 1000;
}

/* Returns the first simulated time at which the clock shows `local` or more. */
doorman_time sim_global(const sim_clock *clock, doorman_time local) {
    if (local > DOORMAN_NEVER / 1000) return DOORMAN_NEVER;
    doorman_time elapsed = local - clock->offset;
    return elapsed <= 0 ? 0 : (elapsed * 1000 + clock->rate - 1) / clock->rate;
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

void sim_schedule(sim_world *world, doorman_time at, sim_event event) {
    if (at >= DOORMAN_NEVER / 1000) return;
    if (world->event_count == world->event_capacity) {
        world->event_capacity = world->event_capacity ? 2 * world->event_capacity : 256;
        world->heap = realloc(world->heap, world->event_capacity * sizeof *world->heap);
        if (!world->heap) abort();
    }
    event.at = at > world->now ? at : world->now;
    event.sequence = ++world->scheduled_count;
    event.message = sim_message_retain(event.message);
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
        size_t child = 2 * place + 1;
        if (child >= count) return first;
        if (child + 1 < count && event_before(&heap[child + 1], &heap[child])) child++;
        if (!event_before(&heap[child], &heap[place])) return first;
        heap_swap(&heap[child], &heap[place]);
        place = child;
    }
}

/* Handles all events up to `end`, or up to the first failure. */
void sim_run(sim_world *world, doorman_time end) {
    while (world->event_count && world->heap[0].at <= end && !world->failure[0]) {
        sim_event event = heap_pop(world);
        world->now = event.at;
        world->handled_count++;
        sim_hash(world, (uint64_t)event.at);
        sim_hash(world, event.actor << 8 | event.target);
        event.handler(world, &event);
        sim_message_release(event.message);
        if (!world->failure[0]) sim_check_sums(world);
    }
    if (!world->failure[0]) world->now = end;
}

/* ---- notes and failures */

static double seconds(doorman_time time) { return (double)time / (double)DOORMAN_SECOND; }

void sim_log(sim_world *world, const char *format, ...) {
    if (world->quiet) return;
    char *line = world->log_lines[world->log_count++ % SIM_LOG_LINES];
    size_t bytes = sizeof world->log_lines[0];
    int written = snprintf(line, bytes, "%10.3f s  #%-6llu ", seconds(world->now),
                           (unsigned long long)world->handled_count);
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

/* Like FNV-1a, but over words. Two runs have the same hash if their events and all amounts in them
 * are the same. */
void sim_hash(sim_world *world, uint64_t bits) {
    world->hash = (world->hash ^ bits) * UINT64_C(0x100000001b3);
    world->hash ^= world->hash >> 29;
}

void sim_hash_amount(sim_world *world, double amount) {
    uint64_t bits = 0;
    memcpy(&bits, &amount, sizeof bits);
    sim_hash(world, bits);
}

/* ---- the world */

void sim_init(sim_world *world, uint64_t seed) {
    memset(world, 0, sizeof *world);
    world->seed = seed;
    world->random = seed;
    world->election_random = ~seed;
    world->hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < SIM_FAULT_COUNT; i++) {
        uint64_t random = seed + (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
        world->fault_random[i] = sim_random(&random);
    }
}

void sim_uninit(sim_world *world) {
    for (size_t i = 0; i < world->event_count; i++) sim_message_release(world->heap[i].message);
    for (size_t i = 0; i < world->client_count; i++) {
        doorman_client_destroy(world->clients[i].client);
    }
    for (size_t i = 0; i < world->process_count; i++) {
        doorman_server_destroy(world->processes[i].server);
    }
    for (size_t i = 0; i < world->version_count; i++) {
        doorman_config_destroy(world->versions[i].config);
    }
    for (size_t i = 0; i < world->node_count; i++) sim_drop_handover(&world->nodes[i].store);
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
    doorman_template templates[2 * SIM_RESOURCES];
    doorman_permit_limit limits[SIM_RESOURCES];
    size_t count = 0, index = world->version_count++;
    sim_version *version = &world->versions[index];
    memset(templates, 0, sizeof templates);
    for (size_t i = 0; i < world->resource_count; i++) {
        version->rules[i] = rules[i];
        if (rules[i].whole) version->rules[i].capacity = floor(rules[i].capacity);
        doorman_overload *overload = &version->rules[i].overload;
        overload->capacity_min = fmin(overload->capacity_min, version->rules[i].capacity);
        if (!rules[i].matched) continue;
        templates[count++] = (doorman_template){.identifier_glob = world->resources[i],
                                                .capacity = version->rules[i].capacity,
                                                .whole = rules[i].whole,
                                                .overload = *overload,
                                                .has_algorithm = true,
                                                .algorithm = rules[i].algorithm};
    }
    count = sim_leased_fill_templates(world, templates, count, limits);
    doorman_config_options options = {.templates = templates, .template_count = count};
    doorman_error error = {0};
    if (doorman_config_create(&version->config, &options, &error) != DOORMAN_OK) {
        fprintf(stderr, "configuration: %s\n", error.text);
        abort();
    }
    doorman_config_read(version->config, &options);
    for (size_t i = 0, at = 0; i < world->resource_count; i++) {
        if (rules[i].matched) version->rules[i].algorithm = options.templates[at++].algorithm;
    }
    sim_find_drains(world, index);
}

/* ---- processes */

bool sim_is_root(const sim_world *world, const sim_process *process) {
    return world->nodes[process->node].parent == SIM_NONE;
}

/* Loads all configurations up to the one in force, one after the other. */
void sim_load_config(sim_world *world, size_t index) {
    sim_process *process = &world->processes[index];
    doorman_time local = sim_local(&process->machine.clock, world->now);
    bool configured = sim_is_root(world, process) || world->permits || world->holds;
    if (!process->server || !configured) return;
    while (process->version < world->version) {
        sim_states_before_configuration(world, index);
        const doorman_config *config = world->versions[++process->version].config;
        if (doorman_server_configure(process->server, config, local) != DOORMAN_OK) {
            sim_fail(world, "%s refuses a configuration", process->address);
        }
        sim_invalidate_processes(world);
        sim_log(world, "%s loads configuration %zu", process->address, process->version);
        sim_permits_configured(world, index);
        sim_holds_configured(world, index);
        sim_states_configured(world, index);
        sim_overload_configured(world, index);
        sim_leased_stepped(world, index);
        sim_check_resources(world, index);
    }
}

/* Lists the addresses of all processes of a node, starting at a random one. */
static size_t addresses_of(const sim_world *world, size_t node_index, uint64_t *random,
                           const char **out) {
    const sim_node *node = &world->nodes[node_index];
    size_t first = sim_pick(random, node->process_count);
    for (size_t i = 0; i < node->process_count; i++) {
        size_t place = (first + i) % node->process_count;
        out[i] = world->processes[node->first_process + place].address;
    }
    return node->process_count;
}

/* Starts a process. A process of a root starts with the oldest configuration whose leases may still
 * be in force, because it must learn for as long as they last. A real process cannot know the old
 * lease length, so an operator who shortens leases must not start a process within the old lease
 * length, or must set learning_mode_duration. */
void sim_start_process(sim_world *world, size_t index) {
    sim_process *process = &world->processes[index];
    sim_node *node = &world->nodes[process->node];
    assert(!process->server);
    process->machine.incarnation++;
    process->machine.paused_until = 0;
    uint64_t random = world->seed ^ ((uint64_t)index << 32 | process->machine.incarnation);
    const char *parents[SIM_PROCESSES];
    doorman_server_options options = {.node = node->name};
    options.seed[0] = sim_random(&random);
    options.seed[1] = sim_random(&random);
    if (!options.seed[0]) options.seed[0] = 1; /* the fuzzer also draws zeros */
    if (node->parent == SIM_NONE) {
        process->version = sim_first_version(world);
        options.config = world->versions[process->version].config;
    } else {
        options.parents = parents;
        options.parent_count = addresses_of(world, node->parent, &random, parents);
    }
    doorman_permits_options permits;
    sim_permits_fill_options(world, index, &options, &permits);
    sim_holds_fill_options(world, index, &options);
    sim_states_fill_options(world, index, &options, &permits);
    sim_leased_fill_options(world, index, &options);
    doorman_time local = sim_local(&process->machine.clock, world->now);
    if (doorman_server_create(&process->server, &options, NULL, local) != DOORMAN_OK) abort();
    memset(process->pending, 0, sizeof process->pending);
    memset(process->followed, 0, sizeof process->followed);
    memset(process->in_force, 0, sizeof process->in_force);
    sim_permits_started(world, index);
    sim_holds_started(world, index);
    sim_states_started(world, index);
    sim_invalidate_processes(world);
    sim_log(world, "%s starts", process->address);
    sim_load_config(world, index);
    sim_begin_election(world, index);
    sim_step_process(world, index);
}

void sim_kill_process(sim_world *world, size_t index) {
    sim_process *process = &world->processes[index];
    doorman_server_destroy(process->server);
    process->server = NULL;
    sim_permits_died(world, index);
    sim_holds_died(world, index);
    sim_states_died(world, index);
    sim_leased_died(world, index);
    process->machine.paused_until = 0;
    sim_invalidate_processes(world);
    sim_log(world, "%s dies", process->address);
}

static void on_process_resumed(sim_world *world, const sim_event *event) {
    sim_process *process = &world->processes[event->actor];
    if (process->machine.incarnation != event->incarnation || !process->machine.paused_until) {
        return;
    }
    process->machine.paused_until = 0;
    sim_invalidate_processes(world);
    sim_log(world, "%s runs again", process->address);
    sim_load_config(world, event->actor);
    sim_step_process(world, event->actor);
}

void sim_pause_process(sim_world *world, size_t index, doorman_time until) {
    sim_process *process = &world->processes[index];
    process->machine.paused_until = until;
    sim_invalidate_processes(world);
    sim_log(world, "%s stands still for %.3f s", process->address, seconds(until - world->now));
    sim_event event = {
        .handler = on_process_resumed, .actor = index, .incarnation = process->machine.incarnation};
    sim_schedule(world, until, event);
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
    const sim_client *holder = &world->clients[client];
    if (!holder->client || !holder->usages[resource].resource) return false;
    doorman_client_read(holder->usages[resource].resource, info,
                        sim_local(&holder->machine.clock, world->now));
    return info->leased;
}

/* Starts a client. It knows the processes of its node. Where clients roam, it also knows the
 * processes of another node. */
void sim_start_client(sim_world *world, size_t index) {
    sim_client *client = &world->clients[index];
    const char *addresses[2 * SIM_PROCESSES];
    uint64_t random = world->seed ^ ~(uint64_t)index ^ ++client->machine.incarnation << 32;
    size_t count = addresses_of(world, client->node, &random, addresses);
    if (client->other != client->node) {
        count += addresses_of(world, client->other, &random, addresses + count);
    }
    doorman_client_options options = {.client_id = client->id,
                                      .addresses = addresses,
                                      .address_count = count,
                                      .seed = sim_random(&random)};
    if (!options.seed) options.seed = 1;
    doorman_time local = sim_local(&client->machine.clock, world->now);
    if (doorman_client_create(&client->client, &options, NULL, local) != DOORMAN_OK) abort();
    sim_log(world, "%s starts", client->id);
}

void sim_kill_client(sim_world *world, size_t index) {
    sim_client *client = &world->clients[index];
    doorman_client_destroy(client->client);
    client->client = NULL;
    client->machine.paused_until = 0;
    for (size_t i = 0; i < world->resource_count; i++) {
        sim_usage *usage = &client->usages[i];
        usage->resource = NULL;
        usage->leased = false;
        usage->abandoned = usage->returned_units = 0;
        usage->generation++;
        usage->pending = (sim_pending){.some = false};
    }
    sim_leased_client_died(world, index);
    sim_invalidate_client(world, index);
    sim_log(world, "%s dies", client->id);
}

static void on_client_resumed(sim_world *world, const sim_event *event) {
    sim_client *client = &world->clients[event->actor];
    if (client->machine.incarnation != event->incarnation || !client->machine.paused_until) return;
    client->machine.paused_until = 0;
    sim_log(world, "%s runs again", client->id);
    if (world->permits) sim_permit_client_resume(world, event->actor);
    sim_step_client(world, event->actor);
}

void sim_pause_client(sim_world *world, size_t index, doorman_time until) {
    sim_client *client = &world->clients[index];
    client->machine.paused_until = until;
    sim_log(world, "%s stands still for %.3f s", client->id, seconds(until - world->now));
    sim_event event = {
        .handler = on_client_resumed, .actor = index, .incarnation = client->machine.incarnation};
    sim_schedule(world, until, event);
}

/* Opens a resource. A gauge that is opened again soon still knows its units in flight. Units that
 * came back while it was closed are released now. A gauge that is opened later is a new one. */
void sim_open(sim_world *world, size_t index, size_t resource) {
    sim_client *client = &world->clients[index];
    sim_usage *usage = &client->usages[resource];
    doorman_resource_options options = {.resource_id = world->resources[resource],
                                        .kind = usage->gauge ? DOORMAN_GAUGE : DOORMAN_RATE,
                                        .has_priority = true,
                                        .priority = usage->priority};
    options.wants_maximum = 1e6; /* if wants follow use: some use 10 times their lease */
    doorman_time local = sim_local(&client->machine.clock, world->now);
    doorman_status status =
        doorman_client_open(&usage->resource, client->client, &options, NULL, local);
    if (status != DOORMAN_OK) abort();
    if (!usage->follows_use &&
        doorman_client_set_wants(usage->resource, usage->wants, local) != DOORMAN_OK) {
        abort();
    }
    doorman_resource_info info;
    (void)sim_leased(world, index, resource, &info);
    if (info.in_use > 0) {
        (void)doorman_client_release(usage->resource, usage->returned_units);
    } else {
        usage->generation++;
        usage->leased = false;
    }
    usage->abandoned = usage->returned_units = 0;
    usage->observed_at = local;
    usage->capacity = usage->peak = usage->budget = usage->granted = usage->largest = 0;
    sim_invalidate_client(world, index);
    sim_log(world, "%s opens %s, wants %.6g", client->id, options.resource_id, usage->wants);
    sim_step_client(world, index);
}

/* Closes a resource. Its units in flight stay in flight. */
void sim_close(sim_world *world, size_t index, size_t resource) {
    sim_client *client = &world->clients[index];
    sim_usage *usage = &client->usages[resource];
    doorman_resource_info info;
    if (sim_leased(world, index, resource, &info)) {
        usage->abandoned = info.in_use;
        usage->abandoned_until = info.expires_at;
    }
    doorman_client_close(usage->resource, sim_local(&client->machine.clock, world->now));
    usage->resource = NULL;
    usage->pending.uncertain = true;
    sim_invalidate_client(world, index);
    sim_log(world, "%s closes %s with %.6g in flight", client->id, world->resources[resource],
            info.in_use);
    sim_step_client(world, index);
}

void sim_set_wants(sim_world *world, size_t index, size_t resource, double wants) {
    sim_client *client = &world->clients[index];
    sim_usage *usage = &client->usages[resource];
    usage->wants = wants;
    if (!client->client || !usage->resource || usage->follows_use) return;
    doorman_time local = sim_local(&client->machine.clock, world->now);
    if (doorman_client_set_wants(usage->resource, wants, local) != DOORMAN_OK) abort();
    sim_invalidate_client(world, index);
    sim_log(world, "%s wants %.6g of %s", client->id, wants, world->resources[resource]);
    sim_step_client(world, index);
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
