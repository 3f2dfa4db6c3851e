/* Override rows and plan rows that last, in a simulated system: see sim_state.c.
 *
 * The resource "raised" has one limit, and clients ask nothing of it. Administrators set and end
 * rows of its keys. Such an act changes the store, and then the memory of the master:
 *
 *     the store is there       the row is in both. Or the master crashes in between, and the next
 *                              master reads the row
 *     the store is gone        it is not known whether the row was written. The master reads all
 *                              rows again when the store is back
 *     another is master        the store takes nothing, and nothing changes
 *
 * A new master reads the override rows and plan rows before the rows of counters. So at any time
 * the figures of a key are those of its rows that are in force, and of no others:
 *
 *     E1  a row of the key, from its beginning to its end by the clock of P26
 *     E2  a plan of the key, if no override row is in force */
#include "sim_state.h"

#include <string.h>

#define SECOND DOORMAN_SECOND
#define MOST 5 /* the limit of a key without rows */

typedef enum row_kind { OF_OVERRIDE, OF_PLAN } row_kind;

static const char *const keys[SIM_ACT_KEYS] = {"x", "y", "z"};
static const doorman_plan plans[] = {{.name = "gold", .figures = {.limit = 50, .has_limit = true}},
                                     {.name = "iron", .figures = {.limit = 2, .has_limit = true}}};

void sim_acts_define(doorman_template *template_, doorman_permit_limit *limit) {
    /* no clock of a process leaves this window */
    *limit = (doorman_permit_limit){.name = "lo",
                                    .kind = DOORMAN_FIXED_WINDOW,
                                    .figures = {.limit = MOST, .window = 92000000 * SECOND},
                                    .has_durable = true,
                                    .plans = plans,
                                    .plan_count = sizeof plans / sizeof *plans};
    *template_ = (doorman_template){.identifier_glob = SIM_ACT_RESOURCE,
                                    .without_capacity = true,
                                    .has_limits = true,
                                    .limits = limit,
                                    .limit_count = 1};
}

/* ---- what a process knows ------------------------------------------------------------------- */

static bool has_ended(const sim_act_row *row, doorman_time epoch) {
    return row->ends_at && row->ends_at <= epoch;
}

static bool is_in_force(const sim_act_row *row, doorman_time epoch) {
    return row->id && row->starts_at <= epoch && !has_ended(row, epoch);
}

/* Compares the figures of a key with its rows. */
static void check(sim_world *world, size_t process, size_t key) {
    const sim_state_account *account = sim_state_account_move(world, process);
    const sim_act_rows *own = &world->states->processes[process].acts;
    const sim_act_row *override_ = &own->rows[OF_OVERRIDE][key], *plan = &own->rows[OF_PLAN][key];
    const bool has_plan = is_in_force(plan, account->at.epoch);
    const bool is_overridden = is_in_force(override_, account->at.epoch);
    const double most = is_overridden ? override_->most : has_plan ? plan->most : MOST;
    doorman_permits *permits = sim_state_permits(world, process);
    doorman_permit out;
    if (!permits) return; /* the mastership is over */
    const doorman_permit_item item = {.resource_id = SIM_ACT_RESOURCE, .key = keys[key]};
    doorman_status status =
        doorman_permits_inspect(permits, &item, &out, NULL, sim_state_local(world, process));
    if (status != DOORMAN_OK || out.detail_count != 1) {
        sim_fail(world, "a key with rows cannot be inspected");
        return;
    }
    const doorman_permit_detail *detail = &out.details[0];
    sim_hash(world, (uint64_t)detail->most);
    if (detail->most < most || detail->most > most) {
        sim_fail(world, "%s gives %g to the key %s, and not %g", world->processes[process].address,
                 detail->most, keys[key], most);
    }
    if ((detail->plan != NULL) != has_plan) {
        sim_fail(world, "%s says that the key %s has %s plan", world->processes[process].address,
                 keys[key], has_plan ? "no" : "a");
    }
}

static void check_all(sim_world *world, size_t process) {
    for (size_t i = 0; i < SIM_ACT_KEYS && !world->failure[0]; i++) check(world, process, i);
}

/* P16: forgets all rows, because a mastership begins without any. */
void sim_acts_opened(sim_world *world, size_t process) {
    sim_state_process *own = &world->states->processes[process];
    own->acts = (sim_act_rows){.rows = {{{.id = 0}}}};
    own->rereads_acts = false;
    check_all(world, process);
}

/* ---- one row in the memory of a process ------------------------------------------------------ */

static doorman_override_row override_of(const sim_act_row *row, size_t key) {
    return (doorman_override_row){.resource_id = SIM_ACT_RESOURCE,
                                  .limit = "lo",
                                  .key = keys[key],
                                  .id = row->id,
                                  .figures = {.limit = row->most, .has_limit = true},
                                  .starts_at = row->starts_at,
                                  .ends_at = row->ends_at};
}

static doorman_plan_row plan_of(const sim_act_row *row, size_t key) {
    const bool is_gold = row->most >= plans[0].figures.limit;
    return (doorman_plan_row){.identifier_glob = SIM_ACT_RESOURCE,
                              .key = keys[key],
                              .plan = plans[is_gold ? 0 : 1].name,
                              .id = row->id,
                              .starts_at = row->starts_at,
                              .ends_at = row->ends_at};
}

/* Sets a row of an administrator, or restores a row of the store. */
static doorman_status set(doorman_permits *permits, row_kind kind, size_t key,
                          const sim_act_row *row, bool restores, doorman_time now) {
    const doorman_override_row override_ = override_of(row, key);
    const doorman_plan_row plan = plan_of(row, key);
    if (kind == OF_PLAN && restores) return doorman_permits_restore_plan(permits, &plan, NULL, now);
    if (kind == OF_PLAN) return doorman_permits_set_plan(permits, &plan, NULL, now);
    if (restores) return doorman_permits_restore_override(permits, &override_, NULL, now);
    return doorman_permits_set_override(permits, &override_, NULL, now);
}

static doorman_status end(doorman_permits *permits, row_kind kind, size_t key, doorman_time now) {
    const sim_act_row any = {.id = 1};
    const doorman_override_row override_ = override_of(&any, key);
    const doorman_plan_row plan = plan_of(&any, key);
    if (kind == OF_PLAN) return doorman_permits_end_plan(permits, &plan, NULL, now);
    return doorman_permits_end_override(permits, &override_, NULL, now);
}

/* Ends a row that a process has. The process may have forgotten a row whose end has passed. */
static void end_own(sim_world *world, size_t process, row_kind kind, size_t key) {
    const sim_state_account *account = sim_state_account_move(world, process);
    sim_act_row *own = &world->states->processes[process].acts.rows[kind][key];
    doorman_status status =
        end(sim_state_permits(world, process), kind, key, sim_state_local(world, process));
    if (status != DOORMAN_OK && !has_ended(own, account->at.epoch)) {
        sim_fail(world, "%s has no row of the key %s", world->processes[process].address,
                 keys[key]);
    }
    *own = (sim_act_row){.id = 0};
}

void sim_acts_restore(sim_world *world, size_t process, const sim_act_rows *rows) {
    sim_act_rows *own = &world->states->processes[process].acts;
    for (row_kind kind = OF_OVERRIDE; kind <= OF_PLAN; kind++) {
        for (size_t key = 0; key < SIM_ACT_KEYS && !world->failure[0]; key++) {
            const sim_act_row *row = &rows->rows[kind][key];
            /* a row that has ended replaces no other one when it is restored */
            const uint64_t id = own->rows[kind][key].id;
            if (id && id != row->id) end_own(world, process, kind, key);
            if (!row->id || world->failure[0]) continue;
            doorman_status status = set(sim_state_permits(world, process), kind, key, row, true,
                                        sim_state_local(world, process));
            if (status != DOORMAN_OK) sim_fail(world, "a row of the store is refused");
            own->rows[kind][key] = *row;
        }
    }
    world->states->processes[process].rereads_acts = false;
}

/* ---- what administrators do ------------------------------------------------------------------ */

/* Draws a row. It begins and ends at whole seconds, because nothing is checked close to these. */
static sim_act_row draw_row(sim_world *world, row_kind kind, doorman_time epoch) {
    uint64_t *random = &world->states->act_random;
    const doorman_time second = epoch / SECOND * SECOND;
    sim_act_row row = {.id = ++world->states->act_count};
    row.most = kind == OF_PLAN ? plans[sim_below(random, 2)].figures.limit
                               : (double)(6 + sim_below(random, 1000));
    if (sim_below(random, 3) == 0) {
        row.starts_at = second + (doorman_time)(1 + sim_below(random, 20)) * SECOND;
    }
    if (sim_below(random, 3)) {
        doorman_time begin = row.starts_at ? row.starts_at : second + SECOND;
        row.ends_at = begin + (doorman_time)(1 + sim_below(random, 40)) * SECOND;
    }
    return row;
}

/* Changes a row in the memory of a process that has written the row to the store. */
static void apply(sim_world *world, size_t process, row_kind kind, size_t key, sim_act_row row) {
    sim_act_row *own = &world->states->processes[process].acts.rows[kind][key];
    if (!row.id) {
        end_own(world, process, kind, key);
        return;
    }
    doorman_status status = set(sim_state_permits(world, process), kind, key, &row, false,
                                sim_state_local(world, process));
    if (status != DOORMAN_OK) sim_fail(world, "a row of an administrator is refused");
    *own = row;
}

static void act(sim_world *world, size_t process) {
    uint64_t *random = &world->states->act_random;
    sim_state_process *own = &world->states->processes[process];
    sim_state_store *store = &world->states->stores[world->processes[process].node];
    const row_kind kind = sim_below(random, 2) ? OF_PLAN : OF_OVERRIDE;
    const size_t key = sim_pick(random, SIM_ACT_KEYS);
    const bool ends = own->acts.rows[kind][key].id && sim_below(random, 3) == 0;
    const sim_act_row row =
        ends ? (sim_act_row){.id = 0} : draw_row(world, kind, own->account.at.epoch);
    const bool answers = world->now >= store->gone_until;
    if (own->term < store->term) return;
    if (answers || sim_below(random, 2)) store->acts.rows[kind][key] = row;
    sim_log(world, "%s: %s a row of the key %s%s", world->processes[process].address,
            ends ? "ends" : "sets", keys[key], answers ? "" : ", perhaps");
    if (!answers) {
        own->rereads_acts = true;
    } else if (sim_fault_occurs(world, SIM_CRASH, 0.05)) {
        sim_state_restart(world, process, false);
    } else {
        apply(world, process, kind, key, row);
    }
}

void sim_acts_load(sim_world *world, size_t process) {
    const sim_state_process *own = &world->states->processes[process];
    const bool serves = own->step == SIM_STATE_WRITING && own->account.rows == DOORMAN_ROWS_READ;
    check_all(world, process);
    if (world->failure[0] || !sim_state_permits(world, process) || !serves || own->rereads_acts)
        return;
    if (sim_below(&world->states->act_random, 4) == 0) act(world, process);
}

void sim_acts_tick(sim_world *world, size_t process) {
    const sim_state_process *own = &world->states->processes[process];
    const sim_state_store *store = &world->states->stores[world->processes[process].node];
    if (!own->rereads_acts || own->step != SIM_STATE_WRITING) return;
    if (!sim_state_permits(world, process)) return;
    if (world->now < store->gone_until || own->term < store->term) return;
    sim_acts_restore(world, process, &store->acts);
}
