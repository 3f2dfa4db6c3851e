/* Checks each decision of a process against its account: see sim_account.h and sim_account.c. */
#include "sim_account.h"

#include <math.h>
#include <string.h>

#define UNIT 4096   /* grains of a unit: permits count in grains */
#define UNKNOWN 1e6 /* the slack of a bucket of which nothing is known until it is full */

/* ---- decisions */

/* Asks each counter what it offers, and decides whether it refuses. */
static void evaluate(sim_account *account, doorman_time max_wait) {
    for (size_t i = 0; i < account->charge_count; i++) {
        sim_charge *charge = &account->charges[i];
        sim_counter fresh;
        const sim_counter *counter = charge->counter;
        if (!counter->exists) {
            sim_counter_init(&fresh, charge->definition, charge->figures, &account->at);
            counter = &fresh;
        }
        charge->offer =
            sim_counter_offer(counter, charge->definition, charge->figures, max_wait, &account->at);
        charge->over_max_cost = charge->need > sim_most_cost(charge->definition, charge->figures);
        double cut =
            charge->definition->limit.has_max_cost ? charge->definition->limit.max_cost : INFINITY;
        charge->spare_low = fmax(0, fmin(cut, charge->offer.saved_low) - charge->need);
        charge->spare_high = fmax(0, fmin(cut, charge->offer.saved_high) - charge->need);
        bool must = charge->need > charge->offer.high || charge->over_max_cost;
        bool may = charge->need > charge->offer.low || charge->over_max_cost;
        charge->refused = may && (must || charge->counter->refused);
        if (counter->kind == DOORMAN_TIERS) {
            charge->tier_before = sim_counter_tier(counter, charge->figures, &account->at);
        }
    }
}

/* Creates the counter of a charge, as the process has done. */
static void create(sim_account *account, sim_charge *charge) {
    sim_counter *counter = charge->counter;
    bool refused = counter->refused, banned = counter->banned;
    sim_counter_init(counter, charge->definition, charge->figures, &account->at);
    counter->exists = true;
    counter->refused = refused;
    counter->banned = banned;
    account->counter_count++;
}

/* P19: a limit has at most max_keys counters. After a change of configuration, nothing is
 * checked. */
static void check_max_keys(sim_account *account, const sim_charge *charge) {
    const sim_definition *definition = charge->definition;
    size_t count = 0;
    if (account->reloaded || definition->limit.per != DOORMAN_PER_KEY) return;
    for (size_t row = 0; row < SIM_PLACES; row++) {
        for (size_t column = 0; column < SIM_KEYS; column++) {
            bool same = sim_definition_of(account, row, column, definition->name) == definition;
            if (same && account->counters[row][column][definition->name].exists) count++;
        }
    }
    if (count > definition->limit.max_keys) {
        sim_account_fail(account, "%s has %zu counters", definition->limit.name, count);
    }
}

/* Charges a counter, and creates it if the process has just created it. Returns false if the
 * process has no such counter. */
static bool charge_units(sim_account *account, sim_charge *charge, double units) {
    bool created = charge->counter->created;
    if (!charge->counter->exists && !created) return false;
    charge->counter->created = false;
    if (!charge->counter->exists) create(account, charge);
    sim_counter_charge(charge->counter, charge->definition, charge->figures, units, &account->at);
    if (created) check_max_keys(account, charge);
    return true;
}

/* Returns what a granted permit takes from a counter, and sets the slack of the counter afterwards.
 * In shadow, what would be refused is not charged, and what does not fit is cut. A bucket whose
 * charge is cut has then lent all that it can, except for less than one grain. */
static double units_of(const sim_charge *charge, double *slack) {
    const sim_offer *offer = &charge->offer;
    bool bucket = charge->definition->limit.kind == DOORMAN_TOKEN_BUCKET;
    *slack = charge->counter->slack;
    if (charge->shadow && charge->refused) return 0;
    if (!charge->shadow || charge->granted <= offer->low) return charge->granted;
    /* a bucket whose debt may be too long has lent, if it has not refused */
    bool lends = offer->low > 0 || (charge->need > 0 && offer->high > 0);
    bool cut = charge->granted > offer->high;
    bool nothing = offer->high < 2.0 / UNIT + 2 * charge->counter->slack;
    if (!bucket) return cut ? offer->high : charge->granted;
    if (cut && lends) {
        *slack = 2.0 / UNIT + (offer->low > 0 ? 0 : charge->counter->slack);
    } else if (cut && nothing) {
        *slack += 1.0 / UNIT;
        return 0;
    } else {
        *slack = UNKNOWN;
    }
    if (!cut) return charge->granted;
    return offer->low > 0 ? (offer->low + offer->high) / 2 : offer->high;
}

/* Notes that less than one grain may have been charged to a counter now. The level of a bucket
 * stays about the same, but this may be its last use. */
static void touch(const sim_account *account, sim_counter *counter) {
    if (counter->kind == DOORMAN_TOKEN_BUCKET) counter->touched_at = account->at.now;
}

/* P1: charges all that a granted permit takes. */
static void commit(sim_account *account) {
    for (size_t i = 0; i < account->charge_count; i++) {
        sim_charge *charge = &account->charges[i];
        double slack = 0, units = units_of(charge, &slack);
        charge->counter->slack = charge->counter->exists ? slack : 0;
        if (units <= 0 && charge->granted > 0 && !charge->refused) touch(account, charge->counter);
        if (units <= 0) continue;
        bool nothing = units < 2.0 / UNIT;
        bool may_lack =
            charge->shadow && (nothing || sim_account_is_full(account, charge->definition));
        if (charge_units(account, charge, units)) {
            charge->counter->slack = slack;
        } else if (!may_lack) {
            sim_account_fail(account, "%s has no counter after a grant",
                             charge->definition->limit.name);
        }
    }
}

/* Checks what an item got: P2. */
static void check_item(sim_account *account, size_t item, double granted, bool equal) {
    const sim_want *want = &account->wants[item];
    double most = want->cost - want->min, low = most, high = most, extra = granted - want->min;
    for (size_t i = 0; i < account->charge_count; i++) {
        const sim_charge *charge = &account->charges[i];
        bool concerned = equal || charge->items[item];
        if (!concerned || charge->shadow) continue;
        double shares = equal ? (double)charge->item_count : 1;
        low = fmin(low, charge->spare_low / shares);
        high = fmin(high, charge->spare_high / shares);
    }
    if (low < most) low = floor(low);
    if (high < most) high = floor(high);
    bool whole = extra >= most || extra == floor(extra);
    if (extra < low || extra > high || !whole) {
        sim_account_fail(account, "item %zu gets %g, not %g to %g", item, granted, want->min + low,
                         want->min + high);
    }
}

static void check_granted(sim_account *account, const doorman_permit_request *request,
                          const doorman_permit *permit) {
    for (size_t i = 0; i < account->want_count; i++) {
        double granted = permit->items[i].granted;
        check_item(account, i, granted, request->equal);
        for (size_t j = 0; j < account->charge_count; j++) {
            sim_charge *charge = &account->charges[j];
            if (!charge->items[i]) continue;
            charge->granted += granted;
            if (request->equal) continue;
            charge->spare_low = fmax(0, charge->spare_low - (granted - account->wants[i].min));
            charge->spare_high = fmax(0, charge->spare_high - (granted - account->wants[i].min));
        }
    }
}

/* P3: checks the wait of a grant. */
static void check_wait(sim_account *account, const doorman_permit *permit) {
    double wait = 0, error = 2;
    for (size_t i = 0; i < account->charge_count; i++) {
        const sim_charge *charge = &account->charges[i];
        if (charge->shadow || !(charge->granted > 0)) continue;
        const double width = charge->offer.saved_high - charge->offer.saved_low;
        if (charge->definition->limit.kind != DOORMAN_TOKEN_BUCKET) continue;
        double slack = charge->counter->slack + width + 1e-8;
        wait = fmax(wait, charge->offer.wait);
        error = fmax(error, slack / charge->figures->rate * 1e9 + 8);
    }
    if (fabs((double)permit->wait - wait) > error) {
        sim_account_fail(account, "the wait is %g s, not %g s", (double)permit->wait / 1e9,
                         wait / 1e9);
    }
}

/* A grant carries a warning if a limit that is not in shadow has used more than warn_at of what it
 * could grant. A bucket with a size above 0 counts as if it could grant only its size. */
static void check_warning(sim_account *account, const doorman_permit *permit) {
    bool must = false, may = false;
    for (size_t i = 0; i < account->charge_count; i++) {
        const sim_charge *charge = &account->charges[i];
        const doorman_permit_limit *limit = &charge->definition->limit;
        if (charge->shadow || !(charge->granted > 0) || !(limit->warn_at > 0)) continue;
        bool bucket = limit->kind == DOORMAN_TOKEN_BUCKET, saves = charge->figures->size > 0;
        double most = sim_figures_most(limit->kind, charge->figures);
        double used =
            sim_counter_used(charge->counter, charge->definition, charge->figures, &account->at);
        double error = bucket ? charge->counter->slack + 1e-7 + 1e-8 * charge->figures->rate : 0;
        if (bucket && saves) most = charge->figures->size;
        if (!bucket) used = fmin(used, most);
        must = must || used - error > limit->warn_at * most;
        may = may || used + error > limit->warn_at * most;
    }
    if (permit->warning ? !may : must) {
        sim_account_fail(account, "a grant has %s warning", permit->warning ? "a" : "no");
    }
}

/* Returns whether a charge fits after `delay` if no other charge comes first: surely (at_least) or
 * perhaps. */
static bool fits_after(const sim_account *account, const sim_charge *charge, doorman_time max_wait,
                       doorman_time delay, bool at_least) {
    sim_moment later = sim_account_moment_after(account, delay);
    sim_counter fresh;
    const sim_counter *counter = charge->counter;
    if (!counter->exists) {
        sim_counter_init(&fresh, charge->definition, charge->figures, &account->at);
        counter = &fresh;
    }
    sim_offer offer =
        sim_counter_offer(counter, charge->definition, charge->figures, max_wait, &later);
    return charge->need <= (at_least ? offer.low : offer.high);
}

/* P4: the limit that is named has room after retry_after, and not much earlier. All other limits
 * that refuse have room then too, except for tiers. */
static void check_retry_after(sim_account *account, const doorman_permit *permit,
                              doorman_time max_wait) {
    for (size_t i = 0; i < account->charge_count; i++) {
        const sim_charge *charge = &account->charges[i];
        const sim_definition *definition = charge->definition;
        if (!charge->refused || charge->shadow) continue;
        bool tiers = definition->limit.kind == DOORMAN_TIERS;
        double slack = 1e9 * (4 * charge->counter->slack + 1e-7) / charge->figures->rate;
        bool bucket = definition->limit.kind == DOORMAN_TOKEN_BUCKET;
        doorman_time error = bucket ? 50 + (doorman_time)slack : 2;
        bool named = permit->limit && charge->items[permit->item_index] &&
                     strcmp(permit->limit, definition->limit.name) == 0;
        if (tiers && (!named || charge->counter->banned)) continue;
        if (!fits_after(account, charge, max_wait, permit->retry_after + error, false)) {
            sim_account_fail(account, "%s has no room after %g s", definition->limit.name,
                             (double)permit->retry_after / 1e9);
        }
        doorman_time earlier = permit->retry_after - error;
        doorman_time ban = charge->banned_until - account->at.now;
        if (charge->counter->banned && permit->retry_after == ban) continue;
        if (named && earlier > 0 && fits_after(account, charge, max_wait, earlier, true)) {
            sim_account_fail(account, "%s has room before %g s", definition->limit.name,
                             (double)permit->retry_after / 1e9);
        }
    }
}

/* Returns whether a refusal names this limit, and gives the right reason. */
static bool is_reason_of_charge(const sim_account *account, const sim_charge *charge,
                                const doorman_permit *permit) {
    bool named = permit->limit && charge->items[permit->item_index] && !charge->shadow &&
                 strcmp(permit->limit, charge->definition->limit.name) == 0;
    if (!named) return false;
    if (permit->reason == DOORMAN_REASON_MAX_COST) return charge->over_max_cost;
    if (permit->reason == DOORMAN_REASON_MAX_KEYS) {
        return !charge->counter->exists && sim_account_is_full(account, charge->definition);
    }
    return permit->reason == DOORMAN_REASON_RATE && charge->refused && !charge->over_max_cost;
}

/* P4: the reason is right. A reason that waiting does not change comes before all others. */
static void check_reason(sim_account *account, const doorman_permit *permit) {
    const sim_want *want = &account->wants[permit->item_index];
    bool helpless = false, right = false, max_keys = permit->reason == DOORMAN_REASON_MAX_KEYS;
    for (size_t i = 0; i < account->want_count; i++) helpless |= account->wants[i].unmatched;
    for (size_t i = 0; i < account->charge_count; i++) {
        const sim_charge *charge = &account->charges[i];
        helpless |= charge->over_max_cost && !charge->shadow;
        right |= is_reason_of_charge(account, charge, permit);
    }
    if (permit->reason == DOORMAN_REASON_UNMATCHED) right = want->unmatched;
    if (permit->reason == DOORMAN_REASON_BANNED) right = want->ban_rest > 0;
    bool waits = permit->reason == DOORMAN_REASON_RATE || permit->reason == DOORMAN_REASON_BANNED;
    if (!right || waits != permit->has_retry_after || (waits && helpless)) {
        sim_account_fail(account, "a permit is wrongly refused with %s by %s",
                         doorman_reason_name(permit->reason),
                         permit->limit ? permit->limit : "none");
    }
    if (max_keys && helpless)
        sim_account_fail(account, "MAX_KEYS is named for a permit that cannot fit");
}

/* P4: retry_after is not shorter than a ban, also if the ban begins now. */
static void check_bans(sim_account *account, const doorman_permit *permit) {
    for (size_t i = 0; i < account->charge_count; i++) {
        const sim_charge *charge = &account->charges[i];
        doorman_time rest = charge->banned_until - account->at.now;
        if (charge->counter->banned && rest > permit->retry_after) {
            sim_account_fail(account, "a ban of %g s begins, retry_after is %g s",
                             (double)rest / 1e9, (double)permit->retry_after / 1e9);
        }
    }
    for (size_t i = 0; i < account->want_count; i++) {
        doorman_time rest = account->wants[i].ban_rest;
        bool named = permit->reason == DOORMAN_REASON_BANNED && permit->item_index == i;
        if (rest > permit->retry_after || (named && rest != permit->retry_after)) {
            sim_account_fail(account, "a ban has %g s left, retry_after is %g s",
                             (double)rest / 1e9, (double)permit->retry_after / 1e9);
        }
    }
}

/* P5: checks how long a refusal is valid. */
static void check_valid_for(sim_account *account, const doorman_permit *permit) {
    doorman_time expected = DOORMAN_SECOND;
    if (permit->has_retry_after && permit->retry_after < expected) expected = permit->retry_after;
    for (size_t i = 0; i < account->charge_count; i++) {
        const sim_charge *charge = &account->charges[i];
        bool counts = charge->definition->limit.ban.refusals && charge->refused &&
                      !charge->over_max_cost && !charge->shadow && permit->has_retry_after;
        if (counts) expected = 0;
    }
    if (account->want_count > 1) expected = 0;
    if (permit->valid_for != expected) {
        sim_account_fail(account, "valid_for is %g s, not %g s", (double)permit->valid_for / 1e9,
                         (double)expected / 1e9);
    }
}

/* Counts a refusal for a ban. If the count is complete, an event must have begun the ban. */
static void count_refusal(sim_account *account, sim_charge *charge) {
    const doorman_ban *ban = &charge->definition->limit.ban;
    sim_counter *counter = charge->counter;
    if (!counter->exists && !counter->created) {
        if (!sim_account_is_full(account, charge->definition))
            sim_account_fail(account, "a refusal does not count");
        return;
    }
    if (!counter->exists) create(account, charge);
    counter->created = false;
    if (!sim_counter_counts(counter, charge->definition, &account->at)) {
        counter->refusals = 0;
        counter->refused_at = account->at.now;
    }
    bool complete = ++counter->refusals >= ban->refusals;
    if (complete != counter->banned) {
        sim_account_fail(account, "%u of %u refusals: %s", counter->refusals, ban->refusals,
                         complete ? "no ban" : "a ban");
    }
    if (complete) counter->refusals = 0;
}

/* P4: every limit that refuses has an event. A refusal with retry_after counts for a ban. */
static void check_refusals(sim_account *account, const doorman_permit *permit) {
    for (size_t i = 0; i < account->charge_count; i++) {
        sim_charge *charge = &account->charges[i];
        bool full = !charge->counter->exists && sim_account_is_full(account, charge->definition);
        if (charge->refused != charge->counter->refused && !full) {
            sim_account_fail(account, "a refusal by %s has %s event",
                             charge->definition->limit.name, charge->refused ? "no" : "an");
        }
        bool counts = charge->refused && !charge->over_max_cost && !charge->shadow;
        if (!permit->has_retry_after || !counts || !charge->definition->limit.ban.refusals)
            continue;
        count_refusal(account, charge);
    }
}

static void check_refused(sim_account *account, const doorman_permit_request *request,
                          const doorman_permit *permit) {
    check_reason(account, permit);
    if (permit->has_retry_after) {
        check_retry_after(account, permit, request->max_wait);
        check_bans(account, permit);
    }
    check_valid_for(account, permit);
}

/* P18: each granted item, each unmatched item and each entered tier has an event. */
static void check_events(sim_account *account, const doorman_permit *permit) {
    bool same = account->granted_count == (permit->granted ? account->want_count : 0);
    for (size_t i = 0; same && i < account->granted_count; i++) {
        same = account->granted[i] == permit->items[i].granted;
    }
    if (!same) sim_account_fail(account, "%zu items have wrong events", account->granted_count);
    size_t unmatched = 0;
    for (size_t i = 0; i < account->want_count; i++) {
        const sim_permit_template *found =
            sim_template_of(account->version, account->wants[i].place);
        unmatched += !found || !found->has_limits;
    }
    if (account->unmatched_count != unmatched) {
        sim_account_fail(account, "%zu events of %zu unmatched items", account->unmatched_count,
                         unmatched);
    }
    for (size_t i = 0; i < account->charge_count; i++) {
        const sim_charge *charge = &account->charges[i];
        if (charge->definition->limit.kind != DOORMAN_TIERS || !charge->counter->exists) continue;
        size_t tier = sim_counter_tier(charge->counter, charge->figures, &account->at);
        if (charge->tier_entered != (tier == charge->tier_before ? 0 : tier)) {
            sim_account_fail(account, "%s is in tier %zu after %zu, an event says %zu",
                             charge->definition->limit.name, tier, charge->tier_before,
                             charge->tier_entered);
        }
    }
}

/* P6: checks what the details say about the decision of a limit. */
static void check_detail_decision(sim_account *account, const sim_charge *charge,
                                  const doorman_permit_detail *detail) {
    bool full = !charge->counter->exists && sim_account_is_full(account, charge->definition);
    if (detail->shadow != charge->shadow || (detail->refused != charge->refused && !full)) {
        sim_account_fail(account, "the details of %s say that it %s", detail->limit,
                         detail->refused ? "refuses" : "does not refuse");
    }
    if (detail->moved_up != (charge->tier_entered > 0)) {
        sim_account_fail(account, "the details of %s have another tier", detail->limit);
    }
}

/* P6: checks the figures that the details give of a limit after the decision. */
static void check_detail(sim_account *account, const sim_charge *charge,
                         const doorman_permit_detail *detail) {
    const sim_definition *definition = charge->definition;
    const doorman_figures *figures = charge->figures;
    sim_counter fresh;
    const sim_counter *counter = charge->counter;
    if (!counter->exists) {
        sim_counter_init(&fresh, definition, figures, &account->at);
        counter = &fresh;
    }
    bool bucket = counter->kind == DOORMAN_TOKEN_BUCKET;
    double most = bucket ? figures->size : sim_figures_most(counter->kind, figures);
    double used = sim_counter_used(counter, definition, figures, &account->at);
    if (!bucket) used = fmin(used, most);
    double error = bucket ? counter->slack + 1e-7 + 1e-8 * figures->rate : 0;
    bool counts = counter->exists && sim_counter_counts(counter, definition, &account->at);
    size_t tier =
        counter->kind == DOORMAN_TIERS ? sim_counter_tier(counter, figures, &account->at) : 0;
    if (fabs(detail->used - used) > error) {
        sim_account_fail(account, "%s has used %.9g, not %.9g", detail->limit, detail->used, used);
    }
    if (fabs(detail->remaining - fmax(0, most - used)) > error || detail->most != most) {
        sim_account_fail(account, "%s has %.9g left of %g", detail->limit, detail->remaining,
                         detail->most);
    }
    if (detail->tier != tier) sim_account_fail(account, "tier %zu, not %zu", detail->tier, tier);
    if (detail->refusals != (counts ? counter->refusals : 0)) {
        sim_account_fail(account, "%s counts %u refusals", detail->limit, detail->refusals);
    }
}

/* P6: checks the details, which list each limit of each item. */
static void check_details(sim_account *account, const doorman_permit *permit) {
    size_t next = 0;
    for (size_t item = 0; item < account->want_count; item++) {
        for (size_t i = 0; i < account->charge_count; i++) {
            const sim_charge *charge = &account->charges[i];
            const sim_definition *definition = charge->definition;
            if (!charge->items[item]) continue;
            const doorman_permit_detail *detail = NULL;
            for (size_t j = 0; j < permit->detail_count && !detail; j++) {
                const doorman_permit_detail *each = &permit->details[j];
                bool same = strcmp(each->limit, definition->limit.name) == 0;
                if (same && each->item_index == item) detail = each;
            }
            next++;
            if (!detail) {
                sim_account_fail(account, "%s is not in the details", definition->limit.name);
                return;
            }
            check_detail(account, charge, detail);
            check_detail_decision(account, charge, detail);
        }
    }
    if (next != permit->detail_count)
        sim_account_fail(account, "%zu details", permit->detail_count);
}

void sim_account_permit(sim_account *account, const doorman_permit_request *request,
                        const doorman_permit *permit) {
    bool must = false, may = false;
    evaluate(account, request->max_wait);
    for (size_t i = 0; i < account->want_count; i++) {
        must = must || account->wants[i].unmatched || account->wants[i].ban_rest;
    }
    for (size_t i = 0; i < account->charge_count; i++) {
        const sim_charge *charge = &account->charges[i];
        if (charge->shadow) continue;
        must = must || charge->over_max_cost || charge->need > charge->offer.high;
        may = may || charge->need > charge->offer.low;
    }
    may = may || must || permit->reason == DOORMAN_REASON_MAX_KEYS;
    if (permit->granted ? must : !may) {
        sim_account_fail(account, "a permit is %s",
                         permit->granted ? "granted that does not fit" : "refused that fits");
        return;
    }
    if (permit->granted) {
        check_granted(account, request, permit);
        check_wait(account, permit);
        commit(account);
        check_warning(account, permit);
    }
    check_refusals(account, permit);
    if (!permit->granted) check_refused(account, request, permit);
    check_events(account, permit);
    if (request->detail) check_details(account, permit);
}

void sim_account_inspect(sim_account *account, const doorman_permit *permit) {
    evaluate(account, 0);
    bool banned = account->wants[0].ban_rest > 0;
    bool refused = banned || account->wants[0].unmatched;
    if (permit->granted == refused) sim_account_fail(account, "an inspection is wrongly decided");
    if (banned && permit->retry_after != account->wants[0].ban_rest) {
        sim_account_fail(account, "a ban has another end");
    }
    check_details(account, permit);
}

/* ---- reports (P13) */

/* Returns the units that a report charges to one counter. */
static double reported(const sim_charge *charge, const sim_counter *counter, double cost,
                       const sim_moment *at) {
    const sim_definition *definition = charge->definition;
    const doorman_figures *figures = charge->figures;
    doorman_limit_kind kind = definition->limit.kind;
    double used = sim_counter_used(counter, definition, figures, at);
    double debt = figures->rate * ((double)figures->max_debt / 1e9);
    double room = charge->offer.high;
    if (cost < 0) {
        if (!definition->limit.refunds) return 0;
        return fmax(cost, -fmax(0, used));
    }
    if (kind == DOORMAN_TOKEN_BUCKET) room = figures->size - used + fmax(debt, figures->size);
    if (kind == DOORMAN_FIXED_WINDOW || kind == DOORMAN_SLIDING_WINDOW) {
        room = 2 * figures->limit - used;
    }
    return fmax(0, fmin(cost, fmin(room, sim_most_cost(definition, figures))));
}

void sim_account_report(sim_account *account, double cost, double charged) {
    double expected = 0, slack = 1e-7 + 1.0 / UNIT;
    bool none = false;
    evaluate(account, 0);
    double units[SIM_CHARGES] = {0};
    for (size_t i = 0; i < account->charge_count; i++) {
        sim_charge *charge = &account->charges[i];
        sim_counter fresh;
        const sim_counter *counter = charge->counter;
        if (!counter->exists) {
            sim_counter_init(&fresh, charge->definition, charge->figures, &account->at);
            counter = &fresh;
        }
        units[i] = reported(charge, counter, cost, &account->at);
        bool less = cost < 0 ? units[i] > expected : units[i] < expected;
        if (i == 0 || less) expected = units[i];
        slack = fmax(slack, 2 * charge->counter->slack + 1e-6 + 1.0 / UNIT);
        bool lacks =
            fabs(units[i]) >= 2.0 / UNIT && !charge->counter->exists && !charge->counter->created;
        if (lacks && sim_account_is_full(account, charge->definition)) none = true;
    }
    for (size_t i = 0; i < account->charge_count && !none; i++) {
        sim_charge *charge = &account->charges[i];
        double least = charge->counter->exists ? 1.0 / UNIT : 2.0 / UNIT + 1e-6;
        if (fabs(units[i]) < least && !charge->counter->created) {
            bool sure = units[i] == 0 && charge->counter->slack <= 0;
            if (!sure) touch(account, charge->counter);
            continue;
        }
        if (!charge_units(account, charge, units[i]))
            sim_account_fail(account, "a report of %g is not charged to %s", units[i],
                             charge->definition->limit.name);
        bool bucket = charge->definition->limit.kind == DOORMAN_TOKEN_BUCKET;
        double most = sim_most_cost(charge->definition, charge->figures);
        double limit = cost < 0 ? -cost : fmin(cost, most), old = charge->counter->slack;
        if (!bucket || fabs(units[i]) >= limit) continue;
        bool sure = fabs(units[i]) + 2 * old + 1e-6 < limit; /* it lends all that it can */
        charge->counter->slack = sure ? 2.0 / UNIT : UNKNOWN;
    }
    if (none) expected = 0;
    if (fabs(charged - expected) > slack) {
        sim_account_fail(account, "a report of %g charges %g, not %g", cost, charged, expected);
    }
}

/* ---- administration */

void sim_account_reset(sim_account *account, size_t place, size_t key, const char *limit,
                       size_t count) {
    const sim_permit_template *template_ = sim_template_of(account->version, place);
    bool banned = !limit && account->bans[place][key] > account->at.now;
    for (size_t i = 0; template_ && template_->has_limits && i < template_->limit_count; i++) {
        const sim_definition *definition = &template_->limits[i];
        bool named = limit && strcmp(limit, definition->limit.name) == 0;
        bool wanted = limit ? named : definition->limit.per == DOORMAN_PER_KEY;
        if (wanted && sim_account_counter(account, definition, template_, place, key)->exists) {
            sim_account_fail(account, "a counter survives a reset");
        }
    }
    if (!limit) account->bans[place][key] = 0;
    if (banned && !count) sim_account_fail(account, "a reset ends no ban");
}

void sim_account_ban(sim_account *account, size_t place, size_t key, doorman_time duration) {
    account->bans[place][key] = duration ? account->at.now + duration : 0;
    account->ban_limits[place][key].by_limit = false;
}
