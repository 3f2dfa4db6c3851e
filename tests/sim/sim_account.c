/* The account of the permits of one mastership: see sim_account.h.
 *
 * The account follows what the process does, and checks every step. It knows each counter of the
 * process. Before a call it finds the counters that a permit or a report concerns. After the call
 * sim_decision.c checks the decision by the rules of the section >>permits, and charges the
 * counters of the account with what was granted.
 *
 *     P1, P2    a permit is granted if it fits, and only then. Every item gets what P2 says
 *     P3 to P6  the wait, the limit that is named, retry_after, valid_for, the details
 *     warn_at   a grant carries a warning if a limit has used more than this fraction
 *     P12, P26  windows and tiers, to the nanosecond, except where sim_account_is_edge is true. The
 *               level of a bucket is uncertain, so a decision at its edge may go either way
 *     P13       reports, and what they charged
 *     P14       a counter is removed only if it equals a fresh one. The process has as many
 *               counters as the account. In the end no idle counter is left that equals a fresh one
 *     P15       counters, bans and counts of refusals survive a new configuration
 *     P16       each mastership begins with a new account
 *     P19       a counter is evicted, or a permit refused with MAX_KEYS, only if the limit has
 *               as many counters as it may have. The evicted counter has used the smallest
 *               fraction of its limit. The account forgets it
 *
 *     P18       each granted item, refusal, ban, entered tier, and created or removed counter has
 *               an event
 *
 * Events say what the decision does not: which counters were created or removed, and which limits
 * have refused. */
#include "sim_account.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

const char *const sim_key_names[SIM_KEYS] = {"", "a1", "a2", "b1", "b2", "c"};
const char *const sim_place_names[SIM_PLACES] = {"x1", "x2", "y1", "y2"};
const char *const sim_limit_names[SIM_LIMIT_NAMES] = {
    "l0",    "l1",    "l2",    "l3", /* per key or resource */
    "l0 x1", "l1 x1", "l2 x1", "l3 x1", "l0 x*", "l1 x*", "l2 x*", "l3 x*", /* per template */
    "l0 y*", "l1 y*", "l2 y*", "l3 y*", "l0 ?2", "l1 ?2", "l2 ?2", "l3 ?2",
    "l0 y2", "l1 y2", "l2 y2", "l3 y2", "l0 *",  "l1 *",  "l2 *",  "l3 *"};
const char *const sim_template_globs[SIM_GLOBS] = {"x1", "x*", "y*", "?2", "y2", "*"};
const unsigned sim_template_places[SIM_GLOBS] = {0x1, 0x3, 0xc, 0xa, 0x8, 0xf};

void sim_account_fail(const sim_account *account, const char *format, ...) {
    char text[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    sim_fail(account->world, "%s: %s", account->owner, text);
}

static size_t index_of(const char *const *names, size_t count, const char *name) {
    for (size_t i = 0; name && i < count; i++) {
        if (strcmp(names[i], name) == 0) return i;
    }
    return SIM_NONE;
}

/* ---- definitions */

const sim_permit_template *sim_template_of(const sim_permit_version *version, size_t place) {
    const sim_permit_template *found = NULL;
    for (size_t i = version->template_count; i-- > 0;) {
        const sim_permit_template *each = &version->templates[i];
        if (sim_template_places[each->glob] >> place & 1) found = each;
    }
    for (size_t i = 0; i < version->template_count; i++) {
        const char *glob = sim_template_globs[version->templates[i].glob];
        if (strcmp(glob, sim_place_names[place]) == 0) return &version->templates[i];
    }
    return found;
}

static const sim_definition *definition_named(const sim_permit_template *template_, size_t name) {
    for (size_t i = 0; template_ && template_->has_limits && i < template_->limit_count; i++) {
        if (template_->limits[i].name == name) return &template_->limits[i];
    }
    return NULL;
}

const sim_definition *sim_definition_of(const sim_account *account, size_t row, size_t column,
                                        size_t name) {
    const sim_permit_version *version = account->version;
    doorman_scope per = row == SIM_PLACES    ? DOORMAN_PER_TEMPLATE
                        : column == SIM_KEYS ? DOORMAN_PER_RESOURCE
                                             : DOORMAN_PER_KEY;
    const sim_permit_template *template_ = NULL;
    if (per != DOORMAN_PER_TEMPLATE) template_ = sim_template_of(version, row);
    for (size_t i = 0; per == DOORMAN_PER_TEMPLATE && i < version->template_count; i++) {
        if (version->templates[i].glob == column) template_ = &version->templates[i];
    }
    const sim_definition *definition = definition_named(template_, name);
    return definition && definition->limit.per == per ? definition : NULL;
}

const doorman_figures *sim_figures_of(const sim_definition *definition, size_t key) {
    for (size_t i = 0; i < definition->override_count && key < SIM_KEYS; i++) {
        if (definition->override_keys[i] >> key & 1) return &definition->figures[1 + i];
    }
    return &definition->figures[0];
}

double sim_most_cost(const sim_definition *definition, const doorman_figures *figures) {
    double most = sim_figures_most(definition->limit.kind, figures);
    return definition->limit.has_max_cost ? fmin(most, definition->limit.max_cost) : most;
}

/* ---- the life of an account */

void sim_account_open(sim_account *account, const sim_permit_version *version, doorman_time epoch,
                      doorman_time now) {
    sim_account_close(account);
    account->open = true;
    account->version = version;
    account->at = (sim_moment){now, epoch, now, epoch};
    account->given = epoch;
}

/* Frees the counters. Has no effect if the account is closed already. */
void sim_account_close(sim_account *account) {
    sim_world *world = account->world;
    const char *owner = account->owner;
    if (!account->open) return;
    for (size_t row = 0; row <= SIM_PLACES; row++) {
        for (size_t column = 0; column <= SIM_KEYS; column++) {
            for (size_t name = 0; name < SIM_NAMES; name++) {
                sim_counter_uninit(&account->counters[row][column][name]);
            }
        }
    }
    memset(account, 0, sizeof *account);
    account->world = world;
    account->owner = owner;
}

/* Returns 16 times the epoch at `now`, counted from start_epoch (P26). It follows the time of day
 * that the caller gives in `epoch`, but never runs slower than 15/16 of `now`. */
static int64_t epoch_16_at(const sim_account *account, doorman_time epoch, doorman_time now) {
    int64_t slow = account->epoch_16 + 15 * (now - account->at.now);
    int64_t fraction = (16 - slow % 16) % 16; /* what rounding up adds */
    int64_t given = 16 * (epoch - account->at.start_epoch);
    return given > slow + fraction ? given - fraction : slow;
}

static doorman_time round_epoch(const sim_account *account, int64_t epoch_16) {
    return account->at.start_epoch + (epoch_16 + 15) / 16;
}

void sim_account_move(sim_account *account, doorman_time epoch, doorman_time now) {
    account->epoch_16 = epoch_16_at(account, epoch, now);
    account->at.now = now;
    account->at.epoch = round_epoch(account, account->epoch_16);
    account->given = epoch;
}

sim_moment sim_account_moment_after(const sim_account *account, doorman_time delay) {
    sim_moment later = account->at;
    later.now += delay;
    int64_t epoch_16 = epoch_16_at(account, account->given + delay, later.now);
    later.epoch = round_epoch(account, epoch_16);
    return later;
}

/* Returns true just before and after the beginning of a window (a multiple of half a second), if
 * the epoch differs from the given time of day: only then it has rounding errors. */
bool sim_account_is_edge(const sim_account *account, doorman_time epoch, doorman_time now) {
    doorman_time slow = round_epoch(account, epoch_16_at(account, epoch, now));
    doorman_time rest = slow % (DOORMAN_SECOND / 2);
    return slow != epoch && (rest < 100 || rest > DOORMAN_SECOND / 2 - 100);
}

static void remove_counter(sim_account *account, sim_counter *counter) {
    sim_counter_uninit(counter);
    account->counter_count--;
}

/* Adapts a counter to new figures. Tiers keep their state by index. A tier that is not there any
 * more loses its state. A sliding window of changed length becomes fresh. A bucket counts the time
 * since its last use at the new rate, so its level is uncertain if the account does not know when
 * it was used last. */
static void adapt(sim_counter *counter, const sim_definition *definition, size_t key) {
    const doorman_figures *figures = sim_figures_of(definition, key);
    doorman_time unknown = counter->touched_at - counter->at;
    if (unknown > 0) counter->slack += SIM_BUCKET_RATE * (double)unknown / 1e9;
    for (size_t i = figures->tier_count; i < SIM_TIERS; i++) {
        counter->tiers[i] = (sim_tier_state){.window = 0};
    }
    if (!definition->limit.ban.refusals) counter->refusals = 0;
    bool sliding = counter->kind == DOORMAN_SLIDING_WINDOW;
    if (!sliding || counter->window == figures->window) return;
    counter->hit_count = 0;
    counter->window = figures->window;
    counter->start_units = definition->limit.empty_at_start ? figures->limit : 0;
}

/* P15: adapts all counters at once, because the simulator makes the process do the same. */
void sim_account_configure(sim_account *account, const sim_permit_version *version) {
    account->version = version;
    account->reloaded = true;
    for (size_t row = 0; row <= SIM_PLACES; row++) {
        for (size_t column = 0; column <= SIM_KEYS; column++) {
            for (size_t name = 0; name < SIM_NAMES; name++) {
                sim_counter *counter = &account->counters[row][column][name];
                if (!counter->exists) continue;
                const sim_definition *definition = sim_definition_of(account, row, column, name);
                bool kept = definition && definition->limit.kind == counter->kind;
                if (kept) {
                    adapt(counter, definition, row < SIM_PLACES ? column : SIM_KEYS);
                } else {
                    sim_counter_uninit(counter);
                    counter->gone = true;
                }
            }
        }
    }
}

/* ---- finding what a call concerns */

sim_counter *sim_account_counter(sim_account *account, const sim_definition *definition,
                                 const sim_permit_template *template_, size_t place, size_t key) {
    doorman_scope per = definition->limit.per;
    size_t row = per == DOORMAN_PER_TEMPLATE ? SIM_PLACES : place;
    size_t column = per == DOORMAN_PER_KEY        ? key
                    : per == DOORMAN_PER_RESOURCE ? SIM_KEYS
                                                  : template_->glob;
    return &account->counters[row][column][definition->name];
}

/* Adds what one item wants of one counter. */
static void add_charge(sim_account *account, const sim_permit_template *template_,
                       const sim_definition *definition, size_t item) {
    const sim_want *want = &account->wants[item];
    sim_counter *counter =
        sim_account_counter(account, definition, template_, want->place, want->key);
    bool shadow = definition->limit.shadow || account->version->shadow >> want->place & 1;
    sim_charge *charge = account->charges;
    while (charge < account->charges + account->charge_count && charge->counter != counter) {
        charge++;
    }
    if (charge == account->charges + account->charge_count) {
        account->charge_count++;
        bool per_key = definition->limit.per == DOORMAN_PER_KEY;
        *charge = (sim_charge){.definition = definition, .counter = counter, .shadow = true};
        charge->figures = sim_figures_of(definition, per_key ? want->key : SIM_KEYS);
        charge->place = want->place;
        charge->key = want->key;
        counter->created = counter->refused = counter->banned = false;
    }
    charge->shadow = charge->shadow && shadow;
    charge->items[item] = true;
    charge->item_count++;
    charge->need += want->min;
}

static void add_item(sim_account *account, const doorman_permit_item *given) {
    size_t item = account->want_count++;
    sim_want *want = &account->wants[item];
    *want = (sim_want){.cost = given->cost, .min = given->has_min ? given->min : given->cost};
    want->place = index_of(sim_place_names, SIM_PLACES, given->resource_id);
    want->key = index_of(sim_key_names, SIM_KEYS, given->key ? given->key : "");
}

/* P2: with `equal`, all items get the same number of whole units. */
static void make_equal(sim_account *account) {
    double least = 0, most = INFINITY;
    for (size_t i = 0; i < account->want_count; i++) {
        least = fmax(least, ceil(account->wants[i].min));
        most = fmin(most, floor(account->wants[i].cost));
    }
    for (size_t i = 0; i < account->want_count; i++) {
        account->wants[i].min = least;
        account->wants[i].cost = most;
    }
}

void sim_account_begin(sim_account *account, const doorman_permit_request *request, bool looks) {
    account->want_count = account->charge_count = account->granted_count = 0;
    account->unmatched_count = 0;
    for (size_t i = 0; i < request->item_count; i++) add_item(account, &request->items[i]);
    if (request->equal) make_equal(account);
    for (size_t i = 0; i < account->want_count; i++) {
        sim_want *want = &account->wants[i];
        const sim_permit_template *template_ = sim_template_of(account->version, want->place);
        bool has_limits = template_ && template_->has_limits;
        want->unmatched = !has_limits && (template_ || account->version->reject_unmatched);
        doorman_time until = account->bans[want->place][want->key];
        if (until > account->at.now) want->ban_rest = until - account->at.now;
        if (want->unmatched) want->ban_rest = 0;
        for (size_t j = 0; has_limits && j < template_->limit_count; j++) {
            const sim_definition *definition = &template_->limits[j];
            if (want->ban_rest && !looks) continue;
            if (definition->keys >> want->key & 1) add_charge(account, template_, definition, i);
        }
    }
}

/* ---- events */

/* Returns the first charge that an event can be about and for which `open` is true, or NULL. */
static sim_charge *charge_of(sim_account *account, const doorman_permit_event *event,
                             bool (*open)(const sim_charge *charge)) {
    size_t place = index_of(sim_place_names, SIM_PLACES, event->resource_id);
    size_t key = index_of(sim_key_names, SIM_KEYS, event->key);
    for (size_t i = 0; i < account->charge_count; i++) {
        sim_charge *charge = &account->charges[i];
        doorman_scope per = charge->definition->limit.per;
        bool same_place = per == DOORMAN_PER_TEMPLATE ? place == SIM_NONE : place == charge->place;
        bool same_key = per != DOORMAN_PER_KEY || key == charge->key;
        bool same_name = strcmp(charge->definition->limit.name, event->limit) == 0;
        if (same_place && same_key && same_name && open(charge)) return charge;
    }
    return NULL;
}

static bool is_absent(const sim_charge *charge) {
    return !charge->counter->exists && !charge->counter->created;
}

static bool is_not_refused(const sim_charge *charge) { return !charge->counter->refused; }

static bool is_not_banned(const sim_charge *charge) { return !charge->counter->banned; }

static bool is_in_same_tier(const sim_charge *charge) { return !charge->tier_entered; }

/* Returns how many counters the process has for limits of this name. */
static size_t count_named(const sim_account *account, size_t name) {
    size_t count = 0;
    for (size_t row = 0; row <= SIM_PLACES; row++) {
        for (size_t column = 0; column <= SIM_KEYS; column++) {
            const sim_counter *counter = &account->counters[row][column][name];
            if (counter->exists || counter->gone) count++;
        }
    }
    return count;
}

/* Returns whether a limit has no room for the counters that the present call may add. All counters
 * of its name count: a change of configuration may leave them in several tables. */
bool sim_account_is_full(const sim_account *account, const sim_definition *definition) {
    size_t count = count_named(account, definition->name);
    for (size_t i = 0; i < account->charge_count; i++) {
        const sim_charge *charge = &account->charges[i];
        bool same = charge->definition->name == definition->name;
        if (same && !charge->counter->exists) count++;
    }
    return count > definition->limit.max_keys;
}

/* P19: a counter is evicted only for a permit whose limit has no room. */
static void check_evicted(sim_account *account, size_t name) {
    for (size_t i = 0; i < account->charge_count; i++) {
        const sim_charge *charge = &account->charges[i];
        const sim_definition *definition = charge->definition;
        if (definition->name != name || charge->counter->exists) continue;
        if (!definition->limit.refuse_new && sim_account_is_full(account, definition)) return;
    }
    sim_account_fail(account, "a counter of %s is evicted without need", sim_limit_names[name]);
}

/* Sets the bounds of the fraction that a counter has used of its limit (P19). */
static void fraction_of(const sim_account *account, const sim_definition *definition, size_t key,
                        const sim_counter *counter, double bounds[2]) {
    const doorman_figures *figures = sim_figures_of(definition, key);
    double most = sim_figures_most(counter->kind, figures), refused = 0;
    sim_offer offer = sim_counter_offer(counter, definition, figures, DOORMAN_NEVER, &account->at);
    bool fresh = sim_counter_is_fresh(counter, definition, figures, &account->at);
    if (sim_counter_counts(counter, definition, &account->at)) {
        refused = (double)counter->refusals / definition->limit.ban.refusals;
    }
    double least = fmin(1, most), part = 1 / 4096.0; /* the process counts whole grains */
    bounds[0] = offer.high < least ? 1 : 1 - (offer.high + part) / most;
    bounds[1] = offer.low - part < least ? 1 : 1 - (offer.low - part) / most;
    if (fresh) bounds[0] = 0;
    if (fresh && counter->kind != DOORMAN_TOKEN_BUCKET) bounds[1] = 0;
    for (size_t i = 0; i < 2; i++) bounds[i] = fmax(bounds[i], fmin(1, refused));
}

static bool is_in_call(const sim_account *account, const sim_counter *counter) {
    for (size_t i = 0; i < account->charge_count; i++) {
        if (account->charges[i].counter == counter) return true;
    }
    return false;
}

/* P19: the evicted counter has used the fraction that the event says, and no counter of its limit
 * outside the call has used less: the process samples all counters of such small limits. Nothing is
 * checked after a change of configuration, when the counters of a limit may be in several
 * tables. */
static void check_least_used(sim_account *account, const sim_counter *victim, size_t name,
                             double fraction) {
    size_t at = (size_t)(victim - &account->counters[0][0][0]) / SIM_NAMES;
    size_t place = at / (SIM_KEYS + 1), own = at % (SIM_KEYS + 1);
    const sim_definition *definition = sim_definition_of(account, place, own, name);
    double bounds[2], others[2];
    if (account->reloaded || !definition || definition->limit.per != DOORMAN_PER_KEY) return;
    fraction_of(account, definition, own, victim, bounds);
    if (fraction < bounds[0] - 1e-9 || fraction > bounds[1] + 1e-9) {
        sim_account_fail(account, "%s has used %g of its limit, not %g to %g",
                         definition->limit.name, fraction, bounds[0], bounds[1]);
    }
    for (size_t row = 0; row < SIM_PLACES; row++) {
        for (size_t column = 0; column < SIM_KEYS; column++) {
            const sim_counter *other = &account->counters[row][column][name];
            bool same = sim_definition_of(account, row, column, name) == definition;
            if (!same || !other->exists || is_in_call(account, other)) continue;
            fraction_of(account, definition, column, other, others);
            if (fraction <= others[1] + 1e-9) continue;
            sim_account_fail(account, "a counter of %s is evicted, but another has used less",
                             definition->limit.name);
        }
    }
}

/* Returns whether a counter may be removed now (P14). */
static bool may_remove(const sim_account *account, size_t row, size_t column, size_t name) {
    const sim_counter *counter = &account->counters[row][column][name];
    if (counter->gone || !counter->exists) return counter->gone;
    const sim_definition *definition = sim_definition_of(account, row, column, name);
    const doorman_figures *figures =
        sim_figures_of(definition, row < SIM_PLACES ? column : SIM_KEYS);
    return sim_counter_is_fresh(counter, definition, figures, &account->at) &&
           !sim_counter_counts(counter, definition, &account->at);
}

/* Returns the counter that an event says is removed, or NULL. An event names the counter of a limit
 * per resource like the counter of an empty key. */
static sim_counter *removed_counter(sim_account *account, const doorman_permit_event *event,
                                    size_t index) {
    size_t row = index_of(sim_place_names, SIM_PLACES, event->resource_id);
    size_t column = index_of(sim_key_names, SIM_KEYS, event->key), name = index % SIM_NAMES;
    bool any = event->kind == DOORMAN_PERMIT_KEY_EVICTED || account->resets;
    if (row == SIM_NONE) row = SIM_PLACES;
    if (row == SIM_PLACES && index < SIM_NAMES) return NULL;
    if (row == SIM_PLACES) column = index / SIM_NAMES - 1;
    for (; column <= SIM_KEYS; column += SIM_KEYS) {
        sim_counter *counter = &account->counters[row][column][name];
        bool there = counter->exists || counter->gone;
        if (there && (any || may_remove(account, row, column, name))) return counter;
        if (row == SIM_PLACES || column > 0) break;
    }
    return NULL;
}

static void on_removed(sim_account *account, const doorman_permit_event *event) {
    size_t index = index_of(sim_limit_names, SIM_LIMIT_NAMES, event->limit);
    if (index == SIM_NONE) {
        sim_account_fail(account, "a counter without a limit is removed");
        return;
    }
    if (event->kind == DOORMAN_PERMIT_KEY_EVICTED) check_evicted(account, index % SIM_NAMES);
    sim_counter *counter = removed_counter(account, event, index);
    bool evicted = counter && counter->exists && event->kind == DOORMAN_PERMIT_KEY_EVICTED;
    if (evicted) check_least_used(account, counter, index % SIM_NAMES, event->amount);
    if (counter) {
        remove_counter(account, counter);
    } else {
        sim_account_fail(account, "the counter of %s for %s in %s is removed, but is not fresh",
                         event->limit, event->key,
                         event->resource_id ? event->resource_id : "a template");
    }
}

/* Returns how many bans of a limit are in force. */
static size_t count_bans(const sim_account *account, const sim_ban_limit *limit) {
    size_t count = 0;
    for (size_t place = 0; place < SIM_PLACES; place++) {
        for (size_t key = 0; key < SIM_KEYS; key++) {
            const sim_ban_limit *by = &account->ban_limits[place][key];
            bool same = by->by_limit && by->glob == limit->glob && by->name == limit->name &&
                        by->kind == limit->kind;
            if (same && account->bans[place][key] > account->at.now) count++;
        }
    }
    return count;
}

/* P20: a ban begins, or ends later than before. A limit has at most max_keys bans. */
static void on_banned(sim_account *account, sim_charge *charge) {
    const sim_definition *definition = charge->definition;
    doorman_time *until = &account->bans[charge->place][charge->key];
    doorman_time end = account->at.now + definition->limit.ban.duration;
    const sim_ban_limit limit = {true, sim_template_of(account->version, charge->place)->glob,
                                 definition->name, definition->limit.kind};
    bool begins = *until <= account->at.now;
    if (*until < end) *until = end;
    charge->banned_until = *until;
    charge->counter->banned = true;
    if (!begins) return;
    account->ban_limits[charge->place][charge->key] = limit;
    size_t count = count_bans(account, &limit);
    if (count > definition->limit.max_keys) {
        sim_account_fail(account, "%s has %zu bans", definition->limit.name, count);
    }
}

/* Returns the limit of the present configuration that has set a ban, or NULL. */
static const sim_definition *ban_definition(const sim_account *account, const sim_ban_limit *by) {
    for (size_t i = 0; i < account->version->template_count; i++) {
        const sim_permit_template *template_ = &account->version->templates[i];
        for (size_t j = 0; template_->glob == by->glob && j < template_->limit_count; j++) {
            if (template_->limits[j].name == by->name) return &template_->limits[j];
        }
    }
    return NULL;
}

/* P20: a ban is ended early only if its limit has max_keys bans, and none of these ends earlier. */
static void on_ban_evicted(sim_account *account, const doorman_permit_event *event) {
    size_t place = index_of(sim_place_names, SIM_PLACES, event->resource_id);
    size_t column = index_of(sim_key_names, SIM_KEYS, event->key);
    const sim_ban_limit *by = &account->ban_limits[place][column];
    const sim_definition *definition = by->by_limit ? ban_definition(account, by) : NULL;
    doorman_time until = account->bans[place][column];
    if (!definition || strcmp(definition->limit.name, event->limit) != 0 ||
        until <= account->at.now || count_bans(account, by) < definition->limit.max_keys) {
        sim_account_fail(account, "a ban of %s is ended without need", event->key);
        return;
    }
    account->bans[place][column] = account->at.now;
    for (size_t i = 0; i < SIM_PLACES * SIM_KEYS; i++) {
        const sim_ban_limit *other = &account->ban_limits[i / SIM_KEYS][i % SIM_KEYS];
        doorman_time end = account->bans[i / SIM_KEYS][i % SIM_KEYS];
        bool same = other->by_limit && other->glob == by->glob && other->name == by->name &&
                    other->kind == by->kind && end > account->at.now;
        if (same && end < until) sim_account_fail(account, "another ban ends before the evicted");
    }
}

static void on_granted(sim_account *account, double amount) {
    if (account->granted_count == account->want_count) {
        sim_account_fail(account, "too many items are granted");
    } else {
        account->granted[account->granted_count++] = amount;
    }
}

void sim_account_event(sim_account *account, const doorman_permit_event *event) {
    sim_charge *charge = NULL;
    bool removed =
        event->kind == DOORMAN_PERMIT_KEY_REMOVED || event->kind == DOORMAN_PERMIT_KEY_EVICTED;
    if (removed) on_removed(account, event);
    if (event->kind == DOORMAN_PERMIT_UNMATCHED) account->unmatched_count++;
    if (event->kind == DOORMAN_PERMIT_KEY_CREATED) {
        charge = charge_of(account, event, is_absent);
        if (charge) charge->counter->created = true;
    } else if (event->kind == DOORMAN_PERMIT_REFUSED && event->limit) {
        if (event->reason == DOORMAN_REASON_MAX_KEYS) return;
        charge = charge_of(account, event, is_not_refused);
        if (charge) charge->counter->refused = true;
    } else if (event->kind == DOORMAN_PERMIT_BANNED && event->limit) {
        charge = charge_of(account, event, is_not_banned);
        if (charge) on_banned(account, charge);
    } else if (event->kind == DOORMAN_PERMIT_BAN_EVICTED) {
        on_ban_evicted(account, event);
        return;
    } else if (event->kind == DOORMAN_PERMIT_TIER_ENTERED) {
        charge = charge_of(account, event, is_in_same_tier);
        if (charge) charge->tier_entered = (size_t)event->amount;
    } else if (event->kind == DOORMAN_PERMIT_GRANTED) {
        on_granted(account, event->amount);
        return;
    } else {
        return;
    }
    if (!charge) sim_account_fail(account, "an event about %s is about no item", event->limit);
}

/* ---- memory */

/* P14: the process has as many counters as the account. Bans may stay for a short time after their
 * end. */
void sim_account_check(sim_account *account, const doorman_permits *permits) {
    doorman_permits_info info;
    size_t bans = 0;
    doorman_permits_read(permits, &info);
    for (size_t place = 0; place < SIM_PLACES; place++) {
        for (size_t key = 0; key < SIM_KEYS; key++) {
            if (account->bans[place][key] > account->at.now) bans++;
        }
    }
    if (info.counter_count != account->counter_count) {
        sim_account_fail(account, "%zu counters, not %zu", info.counter_count,
                         account->counter_count);
    }
    if (info.ban_count < bans) sim_account_fail(account, "%zu bans, not %zu", info.ban_count, bans);
}

void sim_account_check_idle(sim_account *account) {
    for (size_t row = 0; row <= SIM_PLACES; row++) {
        for (size_t column = 0; column <= SIM_KEYS; column++) {
            for (size_t name = 0; name < SIM_NAMES; name++) {
                if (account->counters[row][column][name].slack > 0.01) continue;
                if (!may_remove(account, row, column, name)) continue;
                sim_account_fail(account, "an idle counter of %s stays", sim_limit_names[name]);
            }
        }
    }
}
