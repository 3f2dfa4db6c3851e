/* Counters and bans that last, in a simulated system: processes, permits, configurations, faults.
 *
 * The processes of each node elect a master, and the node has a store (sim_state_store.c). Once a
 * second the master writes the changed rows of counters and bans into the store. A new master reads
 * all rows. An account (sim_state_account.c) follows the units through the store, and checks each
 * decision of each master, and that after a round of writing the store has all earlier changes.
 *
 * Processes crash, also while a batch is under way. They stop as planned. The store is slow, gone,
 * or replaced by an older copy of itself. A process that has lost its mastership may still write.
 * Clocks of the time of day are set back and forward, and differ between processes. Configurations
 * drop limits and bring them back. Override rows and plan rows are in the store too
 * (sim_state_acts.c). */
#include "sim_state.h"

#include <stdlib.h>
#include <string.h>

#define SECOND DOORMAN_SECOND
#define EPOCH (1792000000 * SECOND) /* October 2026 */
#define EDGE 1000                   /* nanoseconds around the edge of a window */

const char *const sim_state_places[SIM_STATE_PLACES] = {"quota", "bucket", "sliding",
                                                        "tiers", "two",    "short"};
const char *const sim_state_keys[SIM_STATE_KEYS] = {"", "a", "b"};
const char *const sim_state_names[SIM_STATE_LIMITS] = {"l0", "l1", "l2", "l3", "l4", "l5", "l6"};

static sim_states the_states; /* one at a time */

doorman_time sim_state_local(const sim_world *world, size_t process) {
    return sim_local(&world->processes[process].machine.clock, world->now);
}

/* Returns NULL if the process is not master. */
doorman_permits *sim_state_permits(const sim_world *world, size_t process) {
    const sim_process *own = &world->processes[process];
    const sim_state_process *state = &world->states->processes[process];
    bool is_master =
        own->server && state->account.is_open && sim_state_local(world, process) < state->until;
    return is_master ? doorman_server_permits(own->server) : NULL;
}

bool sim_state_is_present(const sim_world *world, size_t process, size_t limit) {
    return world->states->present[world->processes[process].version] >> limit & 1;
}

size_t sim_state_limit_of(size_t index) { return index / SIM_STATE_KEYS; }

bool sim_state_is_counter(size_t index) { return index < SIM_STATE_COUNTERS; }

/* ---- configurations */

static doorman_figures draw_figures(doorman_limit_kind kind, doorman_tier *tiers,
                                    uint64_t *random) {
    static const int seconds[] = {8, 16, 32, 48};
    doorman_time window = seconds[sim_below(random, 4)] * SECOND;
    doorman_figures figures = {.limit = 0};
    if (kind == DOORMAN_TOKEN_BUCKET) {
        figures.size = (double)(4 + sim_below(random, 16));
        figures.rate = figures.size / ((double)window / 1e9);
    } else if (kind == DOORMAN_TIERS) {
        figures.tiers = tiers;
        figures.tier_count = 2;
        tiers[0] = (doorman_tier){.limit = 4, .window = window / 2, .active = window / 2};
        tiers[1] = (doorman_tier){.limit = 6, .window = window, .active = window};
        tiers[0].cooldown = tiers[1].cooldown = (doorman_time)sim_below(random, 3) * window / 4;
    } else {
        figures.limit = (double)(4 + sim_below(random, 16));
        figures.window = window;
        if (kind == DOORMAN_FIXED_WINDOW && sim_below(random, 4) == 0) {
            figures.window = 0;
            figures.calendar = sim_below(random, 2) ? DOORMAN_MINUTE : DOORMAN_DAY;
            figures.limit *= 10;
        }
    }
    return figures;
}

/* Draws the limits. The resource "short" has a limit that is not durable. */
static void draw_limits(sim_states *states) {
    static const doorman_limit_kind kinds[SIM_STATE_LIMITS] = {
        DOORMAN_FIXED_WINDOW, DOORMAN_TOKEN_BUCKET, DOORMAN_SLIDING_WINDOW, DOORMAN_TIERS,
        DOORMAN_FIXED_WINDOW, DOORMAN_FIXED_WINDOW, DOORMAN_SLIDING_WINDOW};
    static const size_t places[SIM_STATE_LIMITS] = {0, 1, 2, 3, 4, 5, 4};
    static const doorman_scope scopes[] = {DOORMAN_PER_KEY, DOORMAN_PER_KEY, DOORMAN_PER_RESOURCE,
                                           DOORMAN_PER_TEMPLATE};
    for (size_t i = 0; i < SIM_STATE_LIMITS; i++) {
        sim_definition *definition = &states->limits[i].definition;
        doorman_permit_limit *limit = &definition->limit;
        states->limits[i].place = places[i];
        definition->figures[0] = draw_figures(kinds[i], definition->tiers[0], &states->random);
        *limit = (doorman_permit_limit){.name = sim_state_names[i], .kind = kinds[i]};
        limit->per = scopes[sim_below(&states->random, 4)];
        limit->figures = definition->figures[0];
        limit->has_durable = true;
        limit->durable = places[i] != 5;
        limit->refuse_unread =
            limit->durable && (sim_below(&states->random, 2) || kinds[i] == DOORMAN_TIERS);
        limit->refunds = kinds[i] == DOORMAN_FIXED_WINDOW || kinds[i] == DOORMAN_TOKEN_BUCKET;
    }
}

static doorman_config *create_config(const sim_states *states, unsigned present) {
    doorman_permit_limit limits[SIM_STATE_PLACES][SIM_STATE_LIMITS];
    doorman_template templates[SIM_STATE_PLACES + 2];
    doorman_permit_limit of_acts;
    memset(templates, 0, sizeof templates);
    for (size_t place = 0; place < SIM_STATE_PLACES; place++) {
        doorman_template *template_ = &templates[place];
        template_->identifier_glob = sim_state_places[place];
        template_->without_capacity = template_->has_limits = true;
        template_->limits = limits[place];
        for (size_t i = 0; i < SIM_STATE_LIMITS; i++) {
            if (states->limits[i].place != place || !(present >> i & 1)) continue;
            limits[place][template_->limit_count++] = states->limits[i].definition.limit;
        }
    }
    /* no clock of a process leaves this window */
    const doorman_permit_limit reserved = {.name = SIM_SETTLE_LIMIT,
                                           .kind = DOORMAN_FIXED_WINDOW,
                                           .figures = {.limit = 1e9, .window = 92000000 * SECOND},
                                           .has_durable = true,
                                           .durable = true,
                                           .refuse_unread = true};
    templates[SIM_STATE_PLACES] = (doorman_template){.identifier_glob = SIM_SETTLE_RESOURCE,
                                                     .without_capacity = true,
                                                     .has_limits = true,
                                                     .limits = &reserved,
                                                     .limit_count = 1};
    sim_acts_define(&templates[SIM_STATE_PLACES + 1], &of_acts);
    doorman_config_options options = {.templates = templates,
                                      .template_count = SIM_STATE_PLACES + 2};
    doorman_config *config = NULL;
    doorman_error error = {0};
    if (doorman_config_create(&config, &options, &error) == DOORMAN_OK) return config;
    fprintf(stderr, "configuration: %s\n", error.text);
    abort();
}

/* Adds a configuration. It may drop a limit of the previous one, or bring limits back, or both. */
bool sim_states_add_version(sim_world *world, uint64_t *random) {
    sim_states *states = world->states;
    size_t index = world->version_count;
    unsigned present = (1u << SIM_STATE_LIMITS) - 1;
    if (index == SIM_VERSIONS) return false;
    if (index) {
        present = states->present[index - 1];
        present ^= 1u << sim_below(random, SIM_STATE_LIMITS);
        if (sim_below(random, 2)) present |= 1u << sim_below(random, SIM_STATE_LIMITS);
    }
    states->present[index] = present;
    world->versions[world->version_count++].config = create_config(states, present);
    sim_log(world, "configuration %zu has the limits %02x", index, present);
    return true;
}

/* ---- the time of day */

static void set_epoch(sim_world *world, size_t process) {
    sim_state_process *own = &world->states->processes[process];
    doorman_time local = sim_state_local(world, process);
    (void)sim_state_account_move(world, process); /* before the epoch changes */
    doorman_permits_update(sim_state_permits(world, process), local);
    own->account.at.given = EPOCH + world->now + own->offset;
    own->account.at.given_at = local;
    doorman_server_set_epoch(world->processes[process].server, own->account.at.given, local);
}

/* Makes the time of day of a process wrong, by at most 0.5, 5, 60 or 5000 s, or 463 days. */
void sim_states_set_clock(sim_world *world, uint64_t *random) {
    static const double seconds[] = {0.5, 5, 60, 5000, 40000000};
    size_t process = sim_pick(random, world->process_count);
    double most = seconds[sim_below(random, 5)];
    doorman_time *offset = &world->states->processes[process].offset;
    *offset = (doorman_time)(sim_between(random, -most, most) * 1e9);
    sim_log(world, "the time of day of %s is wrong by %g s", world->processes[process].address,
            (double)*offset / 1e9);
}

/* ---- processes */

/* Notes which counters a process removes. */
static void on_event(void *context, const doorman_permit_event *event) {
    sim_world *world = the_states.world;
    size_t process = (size_t)((sim_state_process *)context - the_states.processes);
    bool removed = event->kind == DOORMAN_PERMIT_KEY_REMOVED && event->limit;
    if (!removed || !the_states.processes[process].account.is_open) return;
    (void)sim_state_account_move(world, process);
    sim_state_account_removed(world, process, event);
}

void sim_states_fill_options(sim_world *world, size_t process, doorman_server_options *options,
                             doorman_permits_options *permits) {
    if (!world->states) return;
    *permits = (doorman_permits_options){.on_event = on_event,
                                         .context = &world->states->processes[process]};
    options->permits = permits;
    options->config = world->versions[world->version].config;
    world->processes[process].version = world->version;
}

static void on_tick(sim_world *world, const sim_event *event) {
    const sim_process *process = &world->processes[event->actor];
    if (!process->server || process->machine.incarnation != event->incarnation) return;
    sim_schedule(world, world->now + SECOND, *event);
    if (process->machine.paused_until) return;
    set_epoch(world, event->actor);
    sim_state_tick(world, event->actor);
}

void sim_states_started(sim_world *world, size_t process) {
    if (!world->states) return;
    sim_state_process *own = &world->states->processes[process];
    sim_state_end(world, process);
    own->until = 0;
    own->stop_at = 0;
    set_epoch(world, process);
    sim_event event = {.handler = on_tick,
                       .actor = process,
                       .incarnation = world->processes[process].machine.incarnation};
    sim_schedule(world, world->now + (doorman_time)sim_below(&world->states->random, SECOND),
                 event);
}

void sim_states_died(sim_world *world, size_t process) {
    if (world->states) sim_state_end(world, process);
}

static void on_restart(sim_world *world, const sim_event *event) {
    const sim_process *process = &world->processes[event->actor];
    if (!process->server && process->machine.incarnation == event->incarnation) {
        sim_start_process(world, event->actor);
    }
}

/* Ends a process, and starts it again within 40 s, or within 5 s if the end is planned. */
void sim_state_restart(sim_world *world, size_t process, bool is_planned) {
    doorman_time most = (is_planned ? 5 : 40) * SECOND;
    doorman_time back = world->now + sim_time_between(&world->states->random, 0, most);
    sim_kill_process(world, process);
    sim_event event = {.handler = on_restart, .actor = process};
    event.incarnation = world->processes[process].machine.incarnation;
    sim_schedule(world, back, event);
}

/* P16: a new master begins without counters, and reads the store. */
void sim_states_elected(sim_world *world, size_t process, const doorman_mastership *mastership) {
    if (!world->states) return;
    sim_state_process *own = &world->states->processes[process];
    doorman_time local = sim_state_local(world, process);
    if (local >= mastership->until || local >= own->until) sim_state_end(world, process);
    own->until = mastership->until;
    if (local >= mastership->until || own->account.is_open) return;
    own->term = mastership->term;
    world->counts[SIM_MASTERSHIPS]++;
    sim_state_begin(world, process);
}

void sim_states_before_configuration(sim_world *world, size_t process) {
    if (world->states) sim_state_take_all(world, process);
}

/* P15, D10. Must be called when the process has the new version. */
void sim_states_configured(sim_world *world, size_t process) {
    if (!world->states || !sim_state_permits(world, process)) return;
    unsigned before = world->states->present[world->processes[process].version - 1];
    unsigned now = world->states->present[world->processes[process].version];
    (void)sim_state_account_move(world, process);
    sim_state_account_configure(world, process, before);
    unsigned of_no_store = 0;
    for (size_t i = 0; i < SIM_STATE_LIMITS; i++) {
        bool durable = world->states->limits[i].definition.limit.durable;
        if (!durable) of_no_store |= 1u << i;
    }
    if ((before ^ now) & ~of_no_store) sim_state_read_again(world, process);
}

/* ---- what clients ask for */

/* What a message is about. */
typedef struct subject {
    size_t process, place, key;
} subject;

static bool handle(sim_world *world, size_t process, doorman_request *request,
                   doorman_response *response) {
    doorman_error error = {0};
    request->holder_id = "client";
    doorman_status status =
        doorman_server_handle(world->processes[process].server, request, response, &error,
                              sim_state_local(world, process));
    if (status != DOORMAN_OK) sim_fail(world, "a correct message is refused: %s", error.text);
    if (status == DOORMAN_OK && !response->is_master) sim_state_end(world, process);
    return status == DOORMAN_OK && response->is_master;
}

static void acquire(sim_world *world, subject about, uint64_t *random) {
    const doorman_permit_item item = {.resource_id = sim_state_places[about.place],
                                      .key = sim_state_keys[about.key],
                                      .cost = (double)(1 + sim_below(random, 3))};
    const doorman_permit_request permit = {.items = &item, .item_count = 1};
    doorman_request request = {.method = DOORMAN_ACQUIRE, .permits = &permit, .permit_count = 1};
    doorman_response response;
    if (!handle(world, about.process, &request, &response)) return;
    const doorman_permit *out = &response.permits[0];
    sim_hash(world, (uint64_t)out->granted << 8 | out->reason);
    sim_log(world, "%s: %g of %s for \"%s\" are %s", world->processes[about.process].address,
            item.cost, item.resource_id, item.key,
            out->granted ? "granted" : doorman_reason_name(out->reason));
    sim_state_account_permit(world, about.process, about.place, about.key, item.cost, out);
}

/* Makes a report. It is about a resource with one limit, so that the answer says what was charged
 * to this limit. */
static void report(sim_world *world, subject about, uint64_t *random) {
    doorman_permit_entry entry = {.resource_id = sim_state_places[about.place],
                                  .key = sim_state_keys[about.key]};
    entry.cost = (double)(1 + sim_below(random, 3));
    bool refunds = about.place < 2 && sim_below(random, 2);
    if (refunds) entry.cost = -10 * entry.cost;
    doorman_request request = {.method = DOORMAN_REPORT, .entries = &entry, .entry_count = 1};
    doorman_response response;
    if (!handle(world, about.process, &request, &response)) return;
    double charged = response.results[0].charged;
    sim_log(world, "%s: a report of %g of %s for \"%s\" charges %g",
            world->processes[about.process].address, entry.cost, entry.resource_id, entry.key,
            charged);
    sim_state_account_report(world, about.process, about.place, about.key, charged);
}

static void reset(sim_world *world, subject about, bool bans, uint64_t *random) {
    doorman_permit_entry entry = {.resource_id = sim_state_places[about.place],
                                  .key = sim_state_keys[about.key],
                                  .sets_ban = bans};
    if (bans && sim_below(random, 4)) {
        /* some bans end before the store has them */
        doorman_time least = sim_below(random, 2) ? SECOND : SECOND / 10;
        entry.ban = sim_time_between(random, least, 40 * least);
    }
    doorman_request request = {.method = DOORMAN_RESET, .entries = &entry, .entry_count = 1};
    doorman_response response;
    the_states.resets = true;
    bool done = handle(world, about.process, &request, &response);
    the_states.resets = false;
    if (!done) return;
    sim_log(world, "%s: \"%s\" of %s is %s", world->processes[about.process].address, entry.key,
            entry.resource_id, bans ? "banned" : "reset");
    if (bans) {
        sim_state_account_ban(world, about.process, about.place, about.key, entry.ban);
    } else {
        sim_state_account_reset(world, about.process, about.place, about.key);
    }
}

static void inspect(sim_world *world, subject about) {
    doorman_permit out;
    doorman_permits *permits = sim_state_permits(world, about.process);
    if (!permits) return;
    const doorman_permit_item item = {.resource_id = sim_state_places[about.place],
                                      .key = sim_state_keys[about.key]};
    doorman_status status =
        doorman_permits_inspect(permits, &item, &out, NULL, sim_state_local(world, about.process));
    if (status == DOORMAN_OK) {
        sim_state_account_inspect(world, about.process, about.place, about.key, &out);
    }
}

void sim_state_check_all(sim_world *world, size_t process) {
    for (size_t place = 0; place < SIM_STATE_PLACES; place++) {
        for (size_t key = 0; key < SIM_STATE_KEYS && !world->failure[0]; key++) {
            inspect(world, (subject){process, place, key});
        }
    }
}

static bool has_limits(const sim_world *world, size_t process, size_t place) {
    for (size_t i = 0; i < SIM_STATE_LIMITS; i++) {
        if (world->states->limits[i].place == place && sim_state_is_present(world, process, i)) {
            return true;
        }
    }
    return false;
}

/* Returns whether a rounding error could put the time into another window. */
static bool is_edge(const sim_state_clock *at) {
    doorman_time rest = at->epoch % SECOND;
    return rest < EDGE || rest > SECOND - EDGE;
}

static void on_load(sim_world *world, const sim_event *event) {
    uint64_t *random = &world->states->random;
    const sim_node *node = &world->nodes[event->actor];
    if (world->now >= world->end + 60 * SECOND) return;
    sim_schedule(world, world->now + sim_time_between(random, 0, SECOND / 4), *event);
    size_t process = sim_key_holder(world, event->actor);
    if (process == SIM_NONE || sim_below(random, 8) == 0) {
        process = node->first_process + sim_pick(random, node->process_count);
    }
    subject about = {process, sim_pick(random, SIM_STATE_PLACES), sim_pick(random, SIM_STATE_KEYS)};
    uint64_t choice = sim_below(random, 32);
    const sim_process *receiver = &world->processes[process];
    sim_state_process *own = &world->states->processes[process];
    if (!receiver->server || receiver->machine.paused_until || own->stop_at) return;
    sim_state_account *account = sim_state_account_move(world, process);
    if (!account->is_open || is_edge(&account->at)) return;
    sim_acts_load(world, process);
    if (world->failure[0] || !sim_state_account_move(world, process)->is_open) return;
    sim_settle_load(world, process);
    if (world->failure[0] || !sim_state_account_move(world, process)->is_open) return;
    if (choice < 24) acquire(world, about, random);
    /* most bans are of one key, so that a ban often follows another one of its key */
    if (choice == 24) reset(world, about, true, random);
    if (choice > 26 && choice < 29) reset(world, (subject){process, 0, 0}, true, random);
    if (!has_limits(world, process, about.place)) return; /* nothing to report or reset */
    if (choice == 25 && account->rows == DOORMAN_ROWS_READ) reset(world, about, false, random);
    if (choice > 28 && about.place < 3) report(world, about, random);
    if (choice == 26) inspect(world, about);
}

/* ---- faults */

void sim_states_stop(sim_world *world, uint64_t *random) {
    size_t process = sim_key_holder(world, sim_pick(random, world->node_count));
    if (process == SIM_NONE || world->processes[process].machine.paused_until) return;
    sim_state_stop(world, process);
}

void sim_states_lose_store(sim_world *world, uint64_t *random) {
    sim_state_store *store = &world->states->stores[sim_pick(random, world->node_count)];
    static const int seconds[] = {1, 5, 15, 60};
    doorman_time most = seconds[sim_below(random, 4)] * SECOND;
    store->gone_until = world->now + sim_time_between(random, 0, most);
    sim_log(world, "a store is gone for %.3f s", (double)(store->gone_until - world->now) / 1e9);
}

/* Copies a store, or puts the last copy in its place while no process of the node runs. */
void sim_states_put_back(sim_world *world, uint64_t *random) {
    size_t number = sim_pick(random, world->node_count);
    const sim_node *node = &world->nodes[number];
    sim_state_store *store = &world->states->stores[number];
    bool puts_back = sim_below(random, 3) == 0;
    for (size_t i = 0; i < node->process_count && puts_back; i++) {
        size_t process = node->first_process + i;
        if (world->processes[process].server) sim_state_restart(world, process, false);
    }
    for (size_t i = 0; i < SIM_STATE_ROWS; i++) {
        if (puts_back) sim_state_row_copy(&store->rows[i], &store->copy[i]);
        if (!puts_back) sim_state_row_copy(&store->copy[i], &store->rows[i]);
    }
    if (puts_back) sim_settle_put_back(world, number);
    if (puts_back) store->acts = store->acts_copy;
    if (!puts_back) store->acts_copy = store->acts;
    if (puts_back) store->term = store->copy_term;
    if (!puts_back) store->copy_term = store->term;
    sim_log(world, "a store is %s", puts_back ? "replaced by its copy" : "copied");
}

/* ---- one run */

void sim_states_set_up(sim_world *world) {
    sim_states *states = &the_states;
    sim_state_call *calls = states->calls;
    size_t capacity = states->call_capacity;
    memset(states, 0, sizeof *states);
    states->world = world;
    states->calls = calls;
    states->call_capacity = capacity;
    states->random = world->seed * 31 + 11;
    states->settle_random = world->seed * 37 + 13;
    states->act_random = world->seed * 41 + 17;
    draw_limits(states);
    world->states = states;
}

void sim_states_start(sim_world *world) {
    for (size_t i = 0; i < world->node_count; i++) {
        sim_schedule(world, 0, (sim_event){.handler = on_load, .actor = i});
    }
}

/* Checks, after a time without faults, that each node has a master that has read its store. */
void sim_states_check_idle(sim_world *world) {
    for (size_t i = 0; i < world->node_count && !world->failure[0]; i++) {
        size_t process = sim_key_holder(world, i);
        bool ready = process != SIM_NONE && world->states->processes[process].was_read &&
                     world->states->processes[process].account.rows == DOORMAN_ROWS_READ;
        if (!ready) sim_fail(world, "%s has no master that has read", world->nodes[i].name);
        if (!ready) continue;
        const sim_state_account *account = sim_state_account_move(world, process);
        doorman_time age = world->now - account->kept_at;
        if (age > 4 * SECOND)
            sim_fail(world, "changes are not written for %g s", (double)age / 1e9);
        sim_state_check_all(world, process);
    }
}

void sim_states_tear_down(sim_world *world) {
    sim_states *states = world->states;
    for (size_t i = 0; i < world->process_count; i++) {
        sim_state_process *own = &states->processes[i];
        sim_state_end(world, i);
        free(own->rows);
        for (size_t j = 0; j < SIM_STATE_ROWS; j++) free(own->account.changes[j]);
    }
    for (size_t i = 0; i < world->node_count; i++) sim_state_store_clear(&states->stores[i]);
    for (size_t i = 0; i < states->call_count; i++) {
        for (size_t j = 0; j < states->calls[i].row_count; j++) {
            sim_state_row_clear(&states->calls[i].rows[j]);
        }
        free(states->calls[i].rows);
    }
    world->states = NULL;
}
