/* What counters and bans must be, from one mastership of a node to the next: see sim_state.c.
 *
 * The account of a process has a list of everything that was charged to each counter, with its
 * time. A row that is yielded takes a copy of this list with it, through the store and into the
 * account of the process that restores the row. So a process that has read a store must decide as
 * the lists say, to the nanosecond and to the rounding error of a bucket:
 *
 *     D3  a new row of a counter replaces its old one. If a change makes a counter fresh, its row
 *         is deleted
 *     D4  while rows are awaited, permits of durable limits are refused with LEARNING
 *     D5  a row has times since 1970. A row without a counter in memory keeps its slices. If there
 *         is a counter already, the units of row and counter move to new slices. The last slice
 *         begins now, and no unit returns earlier. A row that was yielded or restored before does
 *         not count twice. The epoch moves forward to the time of a row. A ban keeps its time left
 *     D3, D6  when a round of writing has ended, the store has all changes that were made before
 *         the round. So a crash forgets at most what came after the last round, and a planned stop
 *         forgets nothing */
#include "sim_state.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SLICES 16
#define GRAIN (1.0 / 4096)
#define CLOCK_ERROR 1000 /* nanoseconds that rounding can make */

/* ---- the clocks */

static void clock_move(sim_state_clock *at, doorman_time now) {
    doorman_time given = at->given + now - at->given_at;
    doorman_time passed = now - at->now, slow = passed + at->rest;
    assert(passed >= 0);
    at->epoch += passed - slow / 16;
    at->rest = slow % 16;
    at->now = now;
    if (given > at->epoch) at->epoch = given;
}

static sim_moment moment_of(const sim_state_clock *at) {
    return (sim_moment){.now = at->now, .epoch = at->epoch};
}

sim_state_account *sim_state_account_move(sim_world *world, size_t process) {
    sim_state_account *account = &world->states->processes[process].account;
    if (account->is_open) clock_move(&account->at, sim_state_local(world, process));
    return account;
}

/* ---- memory */

static void copy_counter(sim_counter *to, const sim_counter *from) {
    *to = *from;
    to->hits = NULL;
    to->hit_capacity = from->hit_count;
    if (!from->hit_count) return;
    to->hits = (sim_hit *)malloc(from->hit_count * sizeof *to->hits);
    if (!to->hits) abort();
    memcpy(to->hits, from->hits, from->hit_count * sizeof *to->hits);
}

void sim_state_row_copy(sim_state_row *to, const sim_state_row *from) {
    sim_state_row_clear(to);
    *to = *from;
    copy_counter(&to->item.counter, &from->item.counter);
}

void sim_state_row_clear(sim_state_row *row) {
    sim_counter_uninit(&row->item.counter);
    *row = (sim_state_row){.byte_count = 0};
}

static void item_clear(sim_state_item *item) {
    sim_counter_uninit(&item->counter);
    *item = (sim_state_item){.is_stored = false};
}

void sim_state_account_close(sim_state_account *account) {
    for (size_t i = 0; i < SIM_STATE_ROWS; i++) {
        item_clear(&account->items[i]);
        account->change_count[i] = 0;
    }
    account->is_open = false;
}

void sim_state_account_open(sim_world *world, size_t process) {
    sim_state_account *account = &world->states->processes[process].account;
    doorman_time now = sim_state_local(world, process);
    sim_state_account_close(account);
    account->is_open = true;
    account->rows = DOORMAN_ROWS_READ;
    account->at.now = now; /* P16: the epoch is what the server was given */
    account->at.epoch = account->at.given + now - account->at.given_at;
    account->at.rest = 0;
    account->kept_at = world->now;
    sim_state_store *store = &world->states->stores[world->processes[process].node];
    for (size_t i = 0; i < SIM_STATE_ROWS; i++) store->rows[i].change_count = 0;
}

static void note_change(sim_world *world, sim_state_account *account, size_t index) {
    size_t *count = &account->change_count[index], *capacity = &account->change_capacity[index];
    if (*count == *capacity) {
        *capacity = *capacity ? 2 * *capacity : 16;
        account->changes[index] =
            (doorman_time *)realloc(account->changes[index], *capacity * sizeof(doorman_time));
        if (!account->changes[index]) abort();
    }
    account->changes[index][(*count)++] = world->now;
}

/* ---- finding what a call is about */

static size_t counter_index(const sim_state_limit *limit, size_t number, size_t key) {
    return number * SIM_STATE_KEYS + (limit->definition.limit.per == DOORMAN_PER_KEY ? key : 0);
}

static size_t ban_index(size_t place, size_t key) {
    return SIM_STATE_COUNTERS + place * SIM_STATE_KEYS + key;
}

static const sim_definition *definition_of(const sim_world *world, size_t index) {
    return &world->states->limits[sim_state_limit_of(index)].definition;
}

/* What a permit wants of one counter. */
typedef struct wanted {
    size_t index;
    const sim_definition *definition;
    sim_state_item *item;
    sim_offer offer;
} wanted;

/* Finds the counters that a permit concerns, and what they offer. Returns how many. */
static size_t find_wanted(sim_world *world, size_t process, size_t place, size_t key,
                          wanted out[SIM_STATE_LIMITS]) {
    sim_state_account *account = &world->states->processes[process].account;
    sim_moment at = moment_of(&account->at);
    size_t count = 0;
    for (size_t i = 0; i < SIM_STATE_LIMITS; i++) {
        const sim_state_limit *limit = &world->states->limits[i];
        if (limit->place != place || !sim_state_is_present(world, process, i)) continue;
        wanted *each = &out[count++];
        each->index = counter_index(limit, i, key);
        each->definition = &limit->definition;
        each->item = &account->items[each->index];
        sim_counter fresh;
        const sim_counter *counter = &each->item->counter;
        if (!counter->exists) {
            sim_counter_init(&fresh, each->definition, &each->definition->figures[0], &at);
            counter = &fresh;
        }
        each->offer =
            sim_counter_offer(counter, each->definition, &each->definition->figures[0], 0, &at);
    }
    return count;
}

static void charge(sim_world *world, sim_state_account *account, const wanted *to, double units) {
    sim_moment at = moment_of(&account->at);
    sim_counter *counter = &to->item->counter;
    const doorman_figures *figures = &to->definition->figures[0];
    if (!counter->exists) sim_counter_init(counter, to->definition, figures, &at);
    counter->exists = true;
    sim_counter_charge(counter, to->definition, figures, units, &at);
    note_change(world, account, to->index);
}

/* ---- decisions */

static bool awaits_rows(const sim_state_account *account, const sim_definition *definition) {
    if (!definition->limit.durable || account->rows == DOORMAN_ROWS_READ) return false;
    return account->rows == DOORMAN_ROWS_AWAITED || definition->limit.refuse_unread;
}

void sim_state_account_permit(sim_world *world, size_t process, size_t place, size_t key,
                              double cost, const doorman_permit *permit) {
    sim_state_account *account = &world->states->processes[process].account;
    const char *owner = world->processes[process].address;
    wanted all[SIM_STATE_LIMITS];
    size_t count = find_wanted(world, process, place, key, all);
    bool banned = account->items[ban_index(place, key)].ban_until > account->at.now;
    bool learns = false, must = banned, may = banned;
    for (size_t i = 0; i < count; i++) {
        learns = learns || awaits_rows(account, all[i].definition);
        must = must || cost > all[i].offer.high;
        may = may || cost > all[i].offer.low;
    }
    bool says_learns = !permit->granted && permit->reason == DOORMAN_REASON_LEARNING;
    if (learns ? permit->granted : says_learns) {
        sim_fail(world, "%s %s %s although its rows are %s", owner,
                 permit->granted ? "grants" : "waits for", sim_state_places[place],
                 learns ? "not read" : "read");
        return;
    }
    if (!learns && (permit->granted ? must : !may)) {
        sim_fail(world, "%s %s %g of %s for \"%s\": offered are %g to %g", owner,
                 permit->granted ? "grants" : "refuses", cost, sim_state_places[place],
                 sim_state_keys[key], count ? all[0].offer.low : 0, count ? all[0].offer.high : 0);
        return;
    }
    for (size_t i = 0; permit->granted && i < count; i++) charge(world, account, &all[i], cost);
}

void sim_state_account_report(sim_world *world, size_t process, size_t place, size_t key,
                              double charged) {
    wanted all[SIM_STATE_LIMITS];
    size_t count = find_wanted(world, process, place, key, all);
    for (size_t i = 0; i < count && charged != 0; i++) {
        charge(world, &world->states->processes[process].account, &all[i], charged);
        all[i].item->counter.slack += 2 * GRAIN;
    }
}

void sim_state_account_reset(sim_world *world, size_t process, size_t place, size_t key) {
    sim_state_account *account = &world->states->processes[process].account;
    wanted all[SIM_STATE_LIMITS];
    size_t count = find_wanted(world, process, place, key, all);
    for (size_t i = 0; i < count; i++) {
        if (all[i].definition->limit.per != DOORMAN_PER_KEY) continue;
        if (!all[i].item->counter.exists) continue;
        item_clear(all[i].item);
        note_change(world, account, all[i].index);
    }
    sim_state_account_ban(world, process, place, key, 0);
}

void sim_state_account_ban(sim_world *world, size_t process, size_t place, size_t key,
                           doorman_time duration) {
    sim_state_account *account = &world->states->processes[process].account;
    size_t index = ban_index(place, key);
    bool was_banned = account->items[index].ban_until > account->at.now;
    account->items[index].ban_until = duration ? account->at.now + duration : 0;
    if (was_banned || duration) note_change(world, account, index);
}

void sim_state_account_inspect(sim_world *world, size_t process, size_t place, size_t key,
                               const doorman_permit *permit) {
    wanted all[SIM_STATE_LIMITS];
    size_t count = find_wanted(world, process, place, key, all);
    if (permit->detail_count != count) sim_fail(world, "an inspection has %zu details", count);
    for (size_t i = 0; i < count && !world->failure[0]; i++) {
        const doorman_permit_detail *detail = &permit->details[i];
        const sim_offer *offer = &all[i].offer;
        if (detail->remaining >= offer->saved_low - 2 * GRAIN &&
            detail->remaining <= offer->saved_high + 2 * GRAIN) {
            continue;
        }
        sim_fail(world, "%s has %g left of %s in %s for \"%s\", not %g to %g",
                 world->processes[process].address, detail->remaining, detail->limit,
                 sim_state_places[place], sim_state_keys[key], offer->saved_low, offer->saved_high);
    }
}

/* ---- counters that go */

static bool is_fresh(const sim_world *world, const sim_state_account *account, size_t index) {
    const sim_definition *definition = definition_of(world, index);
    sim_moment at = moment_of(&account->at);
    return sim_counter_is_fresh(&account->items[index].counter, definition, &definition->figures[0],
                                &at);
}

/* Notes that a counter was removed. P14: it must equal a fresh one, unless its limit was dropped. A
 * reset also removes counters that are not fresh, which sim_state_account_reset notes. */
void sim_state_account_removed(sim_world *world, size_t process,
                               const doorman_permit_event *event) {
    sim_state_account *account = &world->states->processes[process].account;
    for (size_t i = 0; i < SIM_STATE_COUNTERS; i++) {
        size_t number = sim_state_limit_of(i);
        const sim_state_limit *limit = &world->states->limits[number];
        const doorman_scope per = limit->definition.limit.per;
        const char *key = per == DOORMAN_PER_KEY ? sim_state_keys[i % SIM_STATE_KEYS] : "";
        if (!event->limit || strcmp(event->limit, sim_state_names[number]) != 0) continue;
        if (per == DOORMAN_PER_KEY && (!event->key || strcmp(event->key, key) != 0)) continue;
        sim_state_item *item = &account->items[i];
        if (!item->counter.exists) continue;
        bool fresh = is_fresh(world, account, i);
        if (!fresh && world->states->resets) continue; /* the reset is noted when it is done */
        if (!fresh && item->is_gone) {
            item->is_gone = false;
            continue;
        }
        if (!fresh) {
            sim_fail(world, "%s removes a counter of %s for \"%s\", which is not fresh",
                     world->processes[process].address, sim_state_names[number], key);
        }
        item_clear(item);
        /* the epoch may be slower, so the row is fresh a little later (P26) */
        world->states->stores[world->processes[process].node].rows[i].has_lapsed = true;
    }
}

/* P15: the counters of a limit are forgotten when the limit is dropped, and when it comes back. */
void sim_state_account_configure(sim_world *world, size_t process, unsigned before) {
    sim_state_account *account = &world->states->processes[process].account;
    for (size_t i = 0; account->is_open && i < SIM_STATE_COUNTERS; i++) {
        size_t limit = sim_state_limit_of(i);
        bool is_same = sim_state_is_present(world, process, limit) == (before >> limit & 1);
        if (is_same) continue;
        bool gone = account->items[i].counter.exists || account->items[i].is_gone;
        item_clear(&account->items[i]);
        account->items[i].is_gone = gone;
        account->change_count[i] = 0; /* what was taken before is on its way to the store */
        sim_state_store *store = &world->states->stores[world->processes[process].node];
        store->rows[i].change_count = 0;
    }
}

/* ---- rows */

/* Returns the index of what a row is about, or SIM_NONE. */
static size_t index_of_row(const sim_world *world, const doorman_permit_row *row) {
    size_t key = 0, place = 0;
    if (row->is_clock) return SIM_STATE_CLOCK;
    if (row->is_reservation) {
        const size_t number = (size_t)strtoull(row->key + 1, NULL, 10);
        return SIM_SETTLE_ROW + 1 + number % SIM_SETTLE_REQUESTS;
    }
    if (strcmp(row->limit, SIM_SETTLE_LIMIT) == 0) return SIM_SETTLE_ROW;
    while (key < SIM_STATE_KEYS && strcmp(sim_state_keys[key], row->key) != 0) key++;
    while (place < SIM_STATE_PLACES && strcmp(sim_state_places[place], row->resource_id) != 0) {
        place++;
    }
    if (row->is_ban) {
        return place < SIM_STATE_PLACES && key < SIM_STATE_KEYS ? ban_index(place, key) : SIM_NONE;
    }
    for (size_t i = 0; i < SIM_STATE_LIMITS && key < SIM_STATE_KEYS; i++) {
        const sim_state_limit *limit = &world->states->limits[i];
        if (strcmp(sim_state_names[i], row->limit) == 0) return counter_index(limit, i, key);
    }
    return SIM_NONE;
}

void sim_state_account_yielded(sim_world *world, size_t process, sim_state_row *row) {
    sim_state_account *account = sim_state_account_move(world, process);
    doorman_permit_row read;
    doorman_status status = doorman_permit_row_read(row->bytes, row->byte_count, &read, NULL);
    row->index = status == DOORMAN_OK ? index_of_row(world, &read) : SIM_NONE;
    if (row->index == SIM_NONE) {
        sim_fail(world, "%s yields a row about nothing", world->processes[process].address);
        row->index = SIM_STATE_CLOCK;
        return;
    }
    doorman_time wrong = read.written_at - account->at.epoch;
    if (!read.removed && (wrong < -CLOCK_ERROR || wrong > CLOCK_ERROR)) {
        sim_fail(world, "%s yields a row of another time: %g s", world->processes[process].address,
                 (double)wrong / 1e9);
    }
    sim_state_item *item = &account->items[row->index];
    row->removed = read.removed;
    item->is_stored = !read.removed;
    row->item = *item;
    copy_counter(&row->item.counter, &item->counter);
    row->at = account->at;
    row->at.epoch = read.written_at;
    row->change_count = account->change_count[row->index];
    sim_log(world, "%s yields %zu%s", world->processes[process].address, row->index,
            row->removed ? ", removed" : "");
}

void sim_state_account_marked(sim_world *world, size_t process, const sim_state_row *row) {
    sim_state_account *account = sim_state_account_move(world, process);
    sim_state_item *item = &account->items[row->index];
    if (item->counter.exists || item->ban_until > account->at.now) item->is_stored = true;
}

/* ---- restoring (D5) */

static void shift(sim_counter *counter, doorman_time by) {
    counter->at += by;
    counter->origin += by;
    for (size_t i = 0; i < counter->hit_count; i++) counter->hits[i].at += by;
    for (size_t i = 0; i < SIM_TIERS; i++) {
        counter->tiers[i].entered += by;
        counter->tiers[i].origin += by;
    }
}

/* Moves the units of a window to other slices. The last of these slices begins now. */
static void move_slices(sim_counter *counter, size_t tier, doorman_time *origin,
                        doorman_time window, doorman_time now) {
    const doorman_time slice = window / SLICES;
    size_t kept = 0;
    for (size_t i = 0; i < counter->hit_count; i++) {
        sim_hit hit = counter->hits[i];
        if (hit.tier == tier) {
            doorman_time begin = *origin + (hit.at - *origin) / slice * slice;
            if (now - begin >= window) continue;
            hit.at = now - (now - begin) / slice * slice;
        }
        counter->hits[kept++] = hit;
    }
    counter->hit_count = kept;
    *origin = now - window;
}

static void add_hits(sim_counter *to, const sim_counter *from, size_t tier) {
    for (size_t i = 0; i < from->hit_count; i++) {
        if (from->hits[i].tier != tier) continue;
        to->hits = (sim_hit *)realloc(to->hits, (to->hit_count + 1) * sizeof *to->hits);
        if (!to->hits) abort();
        to->hits[to->hit_count++] = from->hits[i];
        to->hit_capacity = to->hit_count;
    }
}

/* Adds a row to a window or to a tier of a counter that exists. */
static void merge_window(sim_counter *own, sim_counter *row, size_t tier, doorman_time now) {
    bool slides = own->kind == DOORMAN_SLIDING_WINDOW;
    doorman_time window = slides ? own->window : own->tiers[tier].window;
    doorman_time *origin = slides ? &own->origin : &own->tiers[tier].origin;
    doorman_time *other = slides ? &row->origin : &row->tiers[tier].origin;
    move_slices(own, tier, origin, window, now);
    move_slices(row, tier, other, window, now);
    add_hits(own, row, tier);
}

/* Adds the units of a row to a counter that exists already. */
static void merge(const sim_definition *definition, sim_counter *own, sim_counter *row,
                  const sim_moment *at) {
    const doorman_figures *figures = &definition->figures[0];
    double used = sim_counter_used(own, definition, figures, at);
    double other = sim_counter_used(row, definition, figures, at);
    switch (definition->limit.kind) {
    case DOORMAN_TOKEN_BUCKET:
        own->level = figures->size - used - other;
        own->at = at->now;
        own->slack += row->slack + 1e-9;
        return;
    case DOORMAN_FIXED_WINDOW: sim_counter_charge(own, definition, figures, other, at); return;
    case DOORMAN_SLIDING_WINDOW: merge_window(own, row, 0, at->now); return;
    case DOORMAN_TIERS:
        for (size_t i = 0; i < figures->tier_count; i++) {
            if (!row->tiers[i].window) continue;
            if (own->tiers[i].window) merge_window(own, row, i, at->now);
        }
        return;
    case DOORMAN_SLIDING_LOG:
    case DOORMAN_CONCURRENCY:
    default: assert(false);
    }
}

static void restore_ban(sim_state_account *account, const sim_state_row *row, doorman_time passed,
                        sim_state_item *item) {
    doorman_time until = account->at.now + row->item.ban_until - row->at.now - passed;
    if (until <= account->at.now) return;
    if (until > item->ban_until) item->ban_until = until;
    item->is_stored = true;
}

static void restore_counter(const sim_definition *definition, const sim_state_row *row,
                            sim_state_account *account, sim_state_item *item) {
    const sim_moment at = moment_of(&account->at);
    sim_counter counter;
    copy_counter(&counter, &row->item.counter);
    shift(&counter, (at.now - at.epoch) - (row->at.now - row->at.epoch));
    bool is_fresh_now = sim_counter_is_fresh(&counter, definition, &definition->figures[0], &at);
    if (item->counter.exists) {
        if (!item->is_stored) merge(definition, &item->counter, &counter, &at);
        item->is_stored = true;
    } else if (!is_fresh_now) {
        copy_counter(&item->counter, &counter);
        item->is_stored = true;
    }
    sim_counter_uninit(&counter);
}

doorman_status sim_state_account_restore(sim_world *world, size_t process,
                                         const sim_state_row *row) {
    sim_state_account *account = sim_state_account_move(world, process);
    sim_state_item *item = &account->items[row->index];
    bool counts = sim_state_is_counter(row->index);
    if (counts && !sim_state_is_present(world, process, sim_state_limit_of(row->index))) {
        return DOORMAN_NOT_FOUND;
    }
    if (row->at.epoch > account->at.epoch) account->at.epoch = row->at.epoch;
    doorman_time passed = account->at.epoch - row->at.epoch;
    sim_log(world, "%s restores %zu", world->processes[process].address, row->index);
    bool existed = item->counter.exists;
    bool is_added = existed && !item->is_stored;
    bool is_banned = item->ban_until > account->at.now;
    doorman_time until = item->ban_until;
    if (counts) {
        restore_counter(definition_of(world, row->index), row, account, item);
    } else if (row->index < SIM_STATE_CLOCK) {
        restore_ban(account, row, passed, item);
    }
    if (!existed && !is_banned) { /* so the process knows what the row says, and no more */
        sim_state_store *store = &world->states->stores[world->processes[process].node];
        store->rows[row->index].change_count = account->change_count[row->index];
    }
    if (is_added || (is_banned && until < item->ban_until)) note_change(world, account, row->index);
    return DOORMAN_OK;
}

/* ---- what may be forgotten (V8) */

/* Returns whether a process that read the row of an item now would know the same as the account. */
static bool is_kept(const sim_world *world, const sim_state_account *account,
                    const sim_state_row *row, size_t index) {
    const sim_state_item *item = &account->items[index];
    const sim_moment at = moment_of(&account->at);
    sim_state_item other = {.is_stored = false};
    if (!sim_state_is_counter(index)) {
        doorman_time passed = account->at.epoch - row->at.epoch;
        if (row->byte_count) other.ban_until = at.now + row->item.ban_until - row->at.now - passed;
        /* the clock of the process and the time of day drift apart */
        const doorman_time drift = DOORMAN_SECOND / 10 + (passed > 0 ? passed / 16 : 0);
        const doorman_time apart = item->ban_until - other.ban_until;
        if (item->ban_until <= at.now && other.ban_until <= at.now + drift) return true;
        return apart > -DOORMAN_SECOND / 10 && apart < DOORMAN_SECOND / 10;
    }
    const sim_definition *definition = definition_of(world, index);
    const doorman_figures *figures = &definition->figures[0];
    if (row->byte_count && !row->has_lapsed) {
        sim_state_account reader = {.at = account->at};
        restore_counter(definition, row, &reader, &other);
    }
    double used[2] = {0, 0};
    if (item->counter.exists) used[0] = sim_counter_used(&item->counter, definition, figures, &at);
    if (other.counter.exists) used[1] = sim_counter_used(&other.counter, definition, figures, &at);
    sim_counter_uninit(&other.counter);
    return fabs(used[0] - used[1]) < 2 * GRAIN;
}

/* Notes that all changes were taken. A change without effect needs no row. */
void sim_state_account_took_all(sim_world *world, size_t process) {
    const sim_state_process *own = &world->states->processes[process];
    const sim_state_account *account = sim_state_account_move(world, process);
    sim_state_store *store = &world->states->stores[world->processes[process].node];
    bool is_taken[SIM_STATE_ROWS] = {false};
    for (size_t i = 0; i < own->row_count; i++) is_taken[own->rows[i].index] = true;
    for (size_t i = 0; i < SIM_STATE_CLOCK; i++) {
        sim_state_row *row = &store->rows[i];
        if (is_taken[i] || row->change_count >= account->change_count[i]) continue;
        if (is_kept(world, account, row, i)) row->change_count = account->change_count[i];
    }
}

void sim_state_account_check_kept(sim_world *world, size_t process, doorman_time since) {
    sim_state_account *account = sim_state_account_move(world, process);
    const sim_state_store *store = &world->states->stores[world->processes[process].node];
    for (size_t i = 0; i < SIM_STATE_CLOCK && !world->failure[0]; i++) {
        const sim_state_row *row = &store->rows[i];
        size_t limit = sim_state_limit_of(i);
        if (sim_state_is_counter(i) && !sim_state_is_present(world, process, limit)) continue;
        if (sim_state_is_counter(i) && !definition_of(world, i)->limit.durable) continue;
        if (row->change_count >= account->change_count[i]) continue;
        if (account->changes[i][row->change_count] >= since) continue;
        sim_fail(world, "the store lacks what %s changed %g s ago in %s number %zu",
                 world->processes[process].address,
                 (double)(world->now - account->changes[i][row->change_count]) / 1e9,
                 sim_state_is_counter(i) ? "a counter" : "a ban", i);
    }
}
