/* What one counter of permits offers, by the rules of the section >>permits: see sim_account.h. A
 * sliding window or a tier has a list of what was charged to it, and adds up what counts now. */
#include "sim_account.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SLICES 16

static double per_second(double rate, doorman_time time) { return rate * ((double)time / 1e9); }

static double lent(const doorman_figures *figures) {
    return per_second(figures->rate, figures->max_debt);
}

double sim_figures_most(doorman_limit_kind kind, const doorman_figures *figures) {
    if (kind == DOORMAN_TOKEN_BUCKET) return figures->size + lent(figures);
    if (kind != DOORMAN_TIERS) return figures->limit;
    double sum = 0;
    for (size_t i = 0; i < figures->tier_count; i++) {
        if (figures->tiers[i].active) sum += figures->tiers[i].limit;
    }
    return sum;
}

/* ---- windows of the calendar */

static int days_of_month(int year, int month) {
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    return days[month] + (month == 1 && leap);
}

/* Sets the month that contains a time. */
static void month_at(doorman_time epoch, doorman_time *begin, doorman_time *end) {
    const doorman_time day = 86400 * DOORMAN_SECOND;
    *begin = 0;
    for (int month = 0;; month++) {
        *end = *begin + days_of_month(1970 + month / 12, month % 12) * day;
        if (epoch < *end) return;
        *begin = *end;
    }
}

/* Sets the window that contains a time. 1 January 1970 was a Thursday. */
static void window_at(const doorman_figures *figures, doorman_time epoch, doorman_time *begin,
                      doorman_time *end) {
    doorman_time day = 86400 * DOORMAN_SECOND, length = figures->window, monday = 0;
    if (figures->calendar == DOORMAN_MONTH) {
        month_at(epoch, begin, end);
        return;
    }
    if (figures->calendar == DOORMAN_MINUTE) length = 60 * DOORMAN_SECOND;
    if (figures->calendar == DOORMAN_HOUR) length = 3600 * DOORMAN_SECOND;
    if (figures->calendar == DOORMAN_DAY) length = day;
    if (figures->calendar == DOORMAN_WEEK) {
        length = 7 * day;
        monday = 4 * day;
    }
    *begin = epoch - (epoch - monday + length) % length;
    *end = *begin + length;
}

/* ---- hits */

static void add_hit(sim_counter *counter, doorman_time at, double units, size_t tier) {
    if (counter->hit_count == counter->hit_capacity) {
        counter->hit_capacity = counter->hit_capacity ? 2 * counter->hit_capacity : 16;
        counter->hits = realloc(counter->hits, counter->hit_capacity * sizeof *counter->hits);
        if (!counter->hits) abort();
    }
    counter->hits[counter->hit_count++] = (sim_hit){at, units, tier};
}

static void forget_hits(sim_counter *counter, size_t tier) {
    size_t kept = 0;
    for (size_t i = 0; i < counter->hit_count; i++) {
        if (counter->hits[i].tier != tier) counter->hits[kept++] = counter->hits[i];
    }
    counter->hit_count = kept;
}

/* Returns whether a hit counts: its slice is one of the last 16. Slices count from `origin`. */
static bool hit_counts(doorman_time at, doorman_time now, doorman_time origin,
                       doorman_time window) {
    return (at - origin) * SLICES / window + SLICES > (now - origin) * SLICES / window;
}

static double sum_hits(const sim_counter *counter, size_t tier, doorman_time now,
                       doorman_time origin, doorman_time window) {
    double sum = 0;
    for (size_t i = 0; i < counter->hit_count; i++) {
        const sim_hit *hit = &counter->hits[i];
        if (hit->tier == tier && hit_counts(hit->at, now, origin, window)) sum += hit->units;
    }
    return sum;
}

/* Removes hits that are older than every window of the simulator. They never count again. */
static void forget_old_hits(sim_counter *counter, doorman_time now) {
    size_t kept = 0;
    for (size_t i = 0; i < counter->hit_count; i++) {
        bool old = counter->hits[i].at < now - 100 * DOORMAN_SECOND;
        if (!old) counter->hits[kept++] = counter->hits[i];
    }
    counter->hit_count = kept;
}

/* ---- tiers */

typedef enum phase { INACTIVE, ACTIVE, COOLING } phase;

static phase phase_of(const sim_counter *counter, const doorman_figures *figures, size_t tier,
                      doorman_time now) {
    const sim_tier_state *state = &counter->tiers[tier];
    const doorman_tier *rules = &figures->tiers[tier];
    if (!state->window) return INACTIVE;
    if (now < state->entered + rules->active) return ACTIVE;
    return now < state->entered + rules->active + rules->cooldown ? COOLING : INACTIVE;
}

size_t sim_counter_tier(const sim_counter *counter, const doorman_figures *figures,
                        const sim_moment *at) {
    size_t current = 0;
    for (size_t i = 0; i < figures->tier_count; i++) {
        if (phase_of(counter, figures, i, at->now) == ACTIVE) current = i + 1;
    }
    return current;
}

/* Returns what is left in the window of a tier. If its length has changed, nothing is used. */
static double tier_room(const sim_counter *counter, const doorman_figures *figures, size_t tier,
                        doorman_time now) {
    const sim_tier_state *state = &counter->tiers[tier];
    const doorman_tier *rules = &figures->tiers[tier];
    double used = 0;
    if (state->window == rules->window) {
        used = sum_hits(counter, tier, now, state->origin, state->window);
    }
    return fmax(0, rules->limit - used);
}

/* Returns the number of the tier that is entered after a tier (P12). 0: there is none. */
static size_t tier_after(const sim_counter *counter, const doorman_figures *figures, size_t number,
                         doorman_time now) {
    for (size_t i = number; i < figures->tier_count; i++) {
        if (figures->tiers[i].active == 0) continue;
        if (phase_of(counter, figures, i, now) == INACTIVE) return i + 1;
        if (!figures->tiers[i].skippable) return 0;
    }
    return 0;
}

static double tiers_offer(const sim_counter *counter, const doorman_figures *figures,
                          const sim_moment *at) {
    size_t number = sim_counter_tier(counter, figures, at);
    double sum = number ? tier_room(counter, figures, number - 1, at->now) : 0;
    while ((number = tier_after(counter, figures, number, at->now)) != 0) {
        sum += tier_room(counter, figures, number - 1, at->now);
    }
    return sum;
}

/* Enters a tier. It keeps the units that are in its window. If there are none, a new window
 * begins. */
static void enter_tier(sim_counter *counter, const doorman_figures *figures, size_t tier,
                       doorman_time now) {
    sim_tier_state *state = &counter->tiers[tier];
    const doorman_tier *rules = &figures->tiers[tier];
    double used = 0;
    if (state->window == rules->window) {
        used = sum_hits(counter, tier, now, state->origin, state->window);
    }
    state->entered = now;
    if (used > 0) return;
    forget_hits(counter, tier);
    state->window = rules->window;
    state->origin = now;
}

static void tiers_charge(sim_counter *counter, const doorman_figures *figures, double units,
                         const sim_moment *at) {
    size_t number = sim_counter_tier(counter, figures, at);
    for (;;) {
        if (number) {
            sim_tier_state *state = &counter->tiers[number - 1];
            double room = tier_room(counter, figures, number - 1, at->now);
            if (state->window != figures->tiers[number - 1].window) {
                forget_hits(counter, number - 1);
                state->window = figures->tiers[number - 1].window;
                state->origin = state->entered;
            }
            add_hit(counter, at->now, fmin(units, room), number - 1);
            units -= fmin(units, room);
        }
        if (units <= 0) return;
        number = tier_after(counter, figures, number, at->now);
        assert(number);
        enter_tier(counter, figures, number - 1, at->now);
    }
}

/* ---- all kinds */

/* Returns what a fresh fixed window has used (P16). */
static double fixed_fresh(const sim_definition *definition, const doorman_figures *figures,
                          const sim_moment *at) {
    doorman_time begin = 0, end = 0;
    window_at(figures, at->epoch, &begin, &end);
    return definition->limit.empty_at_start && begin <= at->start_epoch ? figures->limit : 0;
}

void sim_counter_init(sim_counter *counter, const sim_definition *definition,
                      const doorman_figures *figures, const sim_moment *at) {
    bool empty = definition->limit.empty_at_start;
    *counter = (sim_counter){.kind = definition->limit.kind, .per = definition->limit.per};
    counter->level = empty ? 0 : figures->size;
    counter->at = empty ? at->started_at : at->now;
    counter->window = figures->window;
    if (empty) counter->start_units = figures->limit;
    if (counter->kind != DOORMAN_FIXED_WINDOW) return;
    window_at(figures, at->epoch, &counter->begin, &counter->end);
    counter->used = fixed_fresh(definition, figures, at);
}

void sim_counter_uninit(sim_counter *counter) {
    free(counter->hits);
    *counter = (sim_counter){.exists = false};
}

static double level_at(const sim_counter *counter, const doorman_figures *figures,
                       doorman_time now) {
    return fmin(figures->size, counter->level + per_second(figures->rate, now - counter->at));
}

double sim_counter_used(const sim_counter *counter, const sim_definition *definition,
                        const doorman_figures *figures, const sim_moment *at) {
    doorman_time begin = 0, end = 0;
    double start = counter->start_units;
    switch (counter->kind) {
    case DOORMAN_TOKEN_BUCKET: return figures->size - level_at(counter, figures, at->now);
    case DOORMAN_FIXED_WINDOW:
        window_at(figures, at->epoch, &begin, &end);
        if (begin == counter->begin && end == counter->end) return counter->used;
        return fixed_fresh(definition, figures, at);
    case DOORMAN_SLIDING_WINDOW:
        if (!hit_counts(at->started_at, at->now, 0, figures->window)) start = 0;
        return start + sum_hits(counter, 0, at->now, counter->origin, figures->window);
    case DOORMAN_TIERS:
    case DOORMAN_SLIDING_LOG:
    case DOORMAN_CONCURRENCY:
    default: {
        double most = sim_figures_most(counter->kind, figures);
        return fmax(0, most - tiers_offer(counter, figures, at));
    }
    }
}

/* Returns how far the level of a bucket may be off: its slack, and some nanoseconds of its rate. */
static double tolerance(const sim_counter *counter, const doorman_figures *figures) {
    return counter->slack + 1e-8 + 4e-9 * figures->rate;
}

static sim_offer bucket_offer(const sim_counter *counter, const doorman_figures *figures,
                              doorman_time max_wait, doorman_time now) {
    double level = level_at(counter, figures, now), error = tolerance(counter, figures);
    double saved = counter->level + per_second(figures->rate, now - counter->at);
    if (saved - error >= figures->size) error = 0; /* a full bucket has exactly its size */
    double most = (double)(max_wait < figures->max_wait ? max_wait : figures->max_wait);
    sim_offer offer = {.saved_low = fmax(0, level - error), .saved_high = fmax(0, level + error)};
    double debt = fmax(0, -level), error_time = error / figures->rate * 1e9 + 2;
    offer.wait = debt / figures->rate * 1e9;
    bool lends_low = level - error >= 0 || offer.wait + error_time <= most;
    bool lends_high = level + error >= 0 || offer.wait - error_time <= most;
    if (lends_low) offer.low = fmax(0, level + lent(figures) - error);
    if (lends_high) offer.high = fmax(0, level + lent(figures) + error);
    return offer;
}

sim_offer sim_counter_offer(const sim_counter *counter, const sim_definition *definition,
                            const doorman_figures *figures, doorman_time max_wait,
                            const sim_moment *at) {
    double left = 0;
    if (counter->kind == DOORMAN_TOKEN_BUCKET) {
        return bucket_offer(counter, figures, max_wait, at->now);
    }
    if (counter->kind == DOORMAN_TIERS) left = tiers_offer(counter, figures, at);
    if (counter->kind != DOORMAN_TIERS) {
        left = fmax(0, figures->limit - sim_counter_used(counter, definition, figures, at));
    }
    return (sim_offer){.low = left, .high = left, .saved_low = left, .saved_high = left};
}

void sim_counter_charge(sim_counter *counter, const sim_definition *definition,
                        const doorman_figures *figures, double units, const sim_moment *at) {
    double used = sim_counter_used(counter, definition, figures, at);
    if (counter->kind == DOORMAN_TOKEN_BUCKET) {
        bool full = used <= 0 && counter->level - counter->slack +
                                         per_second(figures->rate, at->now - counter->at) >=
                                     figures->size;
        if (full) counter->slack = 0;
        counter->level = fmin(figures->size, figures->size - used - units);
        counter->at = at->now;
    } else if (counter->kind == DOORMAN_FIXED_WINDOW) {
        window_at(figures, at->epoch, &counter->begin, &counter->end);
        counter->used = fmax(0, used + units);
    } else if (counter->kind == DOORMAN_SLIDING_WINDOW) {
        assert(counter->window == figures->window);
        add_hit(counter, at->now, units, 0);
    } else {
        tiers_charge(counter, figures, units, at);
    }
    forget_old_hits(counter, at->now);
}

bool sim_counter_is_fresh(const sim_counter *counter, const sim_definition *definition,
                          const doorman_figures *figures, const sim_moment *at) {
    double used = sim_counter_used(counter, definition, figures, at);
    bool empty = definition->limit.empty_at_start;
    switch (counter->kind) {
    case DOORMAN_TOKEN_BUCKET: return used <= tolerance(counter, figures);
    case DOORMAN_FIXED_WINDOW: return used == fixed_fresh(definition, figures, at);
    case DOORMAN_SLIDING_WINDOW:
        return used == 0 && !(empty && hit_counts(at->started_at, at->now, 0, figures->window));
    case DOORMAN_TIERS:
    case DOORMAN_SLIDING_LOG:
    case DOORMAN_CONCURRENCY:
    default:
        for (size_t i = 0; i < figures->tier_count; i++) {
            if (phase_of(counter, figures, i, at->now) != INACTIVE) return false;
            double room = tier_room(counter, figures, i, at->now);
            if (counter->tiers[i].window && room < figures->tiers[i].limit) return false;
        }
        return true;
    }
}

bool sim_counter_counts(const sim_counter *counter, const sim_definition *definition,
                        const sim_moment *at) {
    doorman_time window = definition->limit.ban.window;
    return counter->refusals && at->now <= counter->refused_at + window;
}
