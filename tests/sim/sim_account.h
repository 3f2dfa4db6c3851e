/*
 * An exact account of the permits of one mastership, to check every decision against: see
 * sim_account.c. It has the same rules as >>permits of doorman_permits.h, written a second time and
 * as simply as possible. Of the headers it uses only the public API.
 */
#ifndef SIM_ACCOUNT_H
#define SIM_ACCOUNT_H

#include "sim.h"

#define SIM_KEYS 6
#define SIM_PLACES 4 /* resources of permits */
#define SIM_GLOBS 6  /* of templates */
#define SIM_NAMES 4  /* of limits; also the most limits of a template */
#define SIM_LIMIT_NAMES (SIM_NAMES * (1 + SIM_GLOBS))
#define SIM_TIERS 3
#define SIM_OVERRIDES 2
#define SIM_BUCKET_RATE 10.0                /* the largest rate of a bucket */
#define SIM_ITEMS 3                         /* of a permit */
#define SIM_CHARGES (SIM_ITEMS * SIM_NAMES) /* of a permit */
#define SIM_MAX_KEYS_NONE ((size_t)1000000) /* a limit without a small bound */

extern const char *const sim_key_names[SIM_KEYS];
extern const char *const sim_place_names[SIM_PLACES];
/* The names of limits. A limit per key or per resource has the name at its number. A limit per
 * template has the name at SIM_NAMES * (1 + glob) + number, which no other template uses. */
extern const char *const sim_limit_names[SIM_LIMIT_NAMES];
extern const char *const sim_template_globs[SIM_GLOBS];
/* The resources that each glob matches, as bits. */
extern const unsigned sim_template_places[SIM_GLOBS];

/* One limit of a template. `figures` has the complete figures: those of the limit, and behind them
 * those of each override. */
typedef struct sim_definition {
    size_t name;                /* its number */
    doorman_permit_limit limit; /* its pointers lead into this struct */
    unsigned keys;              /* the keys that the limit concerns, as bits */
    const char *globs[2];
    size_t override_count;
    doorman_override overrides[SIM_OVERRIDES];
    unsigned override_keys[SIM_OVERRIDES];
    const char *override_globs[SIM_OVERRIDES];
    doorman_figures figures[1 + SIM_OVERRIDES];
    doorman_tier tiers[1 + SIM_OVERRIDES][SIM_TIERS];
} sim_definition;

typedef struct sim_permit_template {
    size_t glob;
    bool has_limits; /* false: it has a capacity alone */
    size_t limit_count;
    sim_definition limits[SIM_NAMES];
} sim_permit_template;

/* A configuration of permits. */
typedef struct sim_permit_version {
    sim_permit_template templates[SIM_GLOBS];
    size_t template_count;
    bool reject_unmatched;
    unsigned shadow; /* the resources in shadow, as bits */
} sim_permit_version;

/* Units that were charged to a window at a time. */
typedef struct sim_hit {
    doorman_time at;
    double units;
    size_t tier;
} sim_hit;

typedef struct sim_tier_state {
    doorman_time entered, window; /* window 0: it was never entered */
    doorman_time origin;          /* when the slices of its window begin */
} sim_tier_state;

/* What the simulator knows about one counter of the process. */
typedef struct sim_counter {
    bool exists; /* otherwise only `gone` and the events have a meaning */
    bool gone;   /* the process has a counter, whose limit is not in the configuration any more */
    doorman_limit_kind kind;
    doorman_scope per;
    double level, slack; /* a bucket: its level at `at`, and how uncertain the level is */
    doorman_time at;
    doorman_time touched_at; /* a bucket: when less than a grain may have been charged */
    doorman_time begin, end; /* a fixed window */
    double used;
    doorman_time window; /* of a sliding window */
    doorman_time origin; /* when its slices begin; 0 except after a restore */
    double start_units;  /* units of a sliding window that count as used at the start (P16) */
    sim_tier_state tiers[SIM_TIERS];
    sim_hit *hits; /* of a sliding window, or of tiers */
    size_t hit_count, hit_capacity;
    uint32_t refusals;             /* that count for a ban */
    doorman_time refused_at;       /* when this count began */
    bool created, refused, banned; /* events of the present call */
} sim_counter;

/* What a counter offers. The level of a bucket is uncertain by `slack` and rounding errors. */
typedef struct sim_offer {
    double low, high;             /* at least `low` and at most `high` */
    double saved_low, saved_high; /* the same, without debt */
    double wait;                  /* nanoseconds of debt */
} sim_offer;

/* The time of a call and the beginning of the mastership, each as `now` and as an epoch (P26). */
typedef struct sim_moment {
    doorman_time now, epoch, started_at, start_epoch;
} sim_moment;

/* What the present permit or report wants of one counter. */
typedef struct sim_charge {
    const sim_definition *definition;
    const doorman_figures *figures;
    sim_counter *counter;
    size_t place, key; /* of the first item */
    bool shadow;
    size_t item_count;
    bool items[SIM_ITEMS]; /* the items that it concerns */
    double need, granted;
    double spare_low, spare_high;
    sim_offer offer;
    bool over_max_cost, refused;
    size_t tier_before;        /* TIERS: the current tier before the call */
    size_t tier_entered;       /* by an event; 0: there was none */
    doorman_time banned_until; /* by an event; 0: there was none */
} sim_charge;

/* One item of the present permit. */
typedef struct sim_want {
    size_t place, key;
    double cost, min;
    bool unmatched;
    doorman_time ban_rest;
} sim_want;

/* The limit that has set a ban. */
typedef struct sim_ban_limit {
    bool by_limit; /* false: an administrator has set it */
    size_t glob, name;
    doorman_limit_kind kind;
} sim_ban_limit;

/* The counters of one process while it is master. A counter of a limit per key is at
 * [resource][key]. The counter of a limit per resource is at [resource][SIM_KEYS]. The counter of a
 * limit per template is at [SIM_PLACES][glob]. */
typedef struct sim_account {
    bool open;
    const char *owner; /* the address of the process */
    sim_world *world;
    const sim_permit_version *version;
    sim_counter counters[SIM_PLACES + 1][SIM_KEYS + 1][SIM_NAMES];
    size_t counter_count;                    /* counters that exist, with those that are gone */
    doorman_time bans[SIM_PLACES][SIM_KEYS]; /* when they end */
    sim_ban_limit ban_limits[SIM_PLACES][SIM_KEYS]; /* which limits have set them */
    bool reloaded;                                  /* the configuration has changed */
    bool resets; /* a reset is under way, which may remove any counter */
    sim_moment at;
    int64_t epoch_16;   /* 16 times the epoch of P26, counted from start_epoch */
    doorman_time given; /* the epoch that the caller gives at `now` */

    /* The present call. */
    sim_want wants[SIM_ITEMS];
    size_t want_count;
    sim_charge charges[SIM_CHARGES];
    size_t charge_count;
    double granted[SIM_ITEMS]; /* by events */
    size_t granted_count;
    size_t unmatched_count; /* by events */
} sim_account;

/* ---- sim_counter.c */

/* Makes a counter fresh. It does not exist yet. */
void sim_counter_init(sim_counter *counter, const sim_definition *definition,
                      const doorman_figures *figures, const sim_moment *at);
void sim_counter_uninit(sim_counter *counter);
sim_offer sim_counter_offer(const sim_counter *counter, const sim_definition *definition,
                            const doorman_figures *figures, doorman_time max_wait,
                            const sim_moment *at);
/* Returns the used units. Of a bucket, these are the units that it lacks to be full. */
double sim_counter_used(const sim_counter *counter, const sim_definition *definition,
                        const doorman_figures *figures, const sim_moment *at);
/* Charges units, or gives them back if `units` is negative. */
void sim_counter_charge(sim_counter *counter, const sim_definition *definition,
                        const doorman_figures *figures, double units, const sim_moment *at);
bool sim_counter_is_fresh(const sim_counter *counter, const sim_definition *definition,
                          const doorman_figures *figures, const sim_moment *at);
/* Returns the number of the current tier, or 0. */
size_t sim_counter_tier(const sim_counter *counter, const doorman_figures *figures,
                        const sim_moment *at);
bool sim_counter_counts(const sim_counter *counter, const sim_definition *definition,
                        const sim_moment *at);
/* Returns the most that a limit could grant at once. */
double sim_figures_most(doorman_limit_kind kind, const doorman_figures *figures);

/* ---- sim_account.c, for sim_decision.c */

void sim_account_fail(const sim_account *account, const char *format, ...) SIM_FORMAT(2);
/* Returns the template of a resource (G1), or NULL. */
const sim_permit_template *sim_template_of(const sim_permit_version *version, size_t place);
/* Returns the figures of a limit for a key. SIM_KEYS: the limit is not per key. */
const doorman_figures *sim_figures_of(const sim_definition *definition, size_t key);
/* Returns the largest sum of minimums that a permit may have at one counter. */
double sim_most_cost(const sim_definition *definition, const doorman_figures *figures);
/* Returns the definition of the counter at [row][column][name], or NULL. */
const sim_definition *sim_definition_of(const sim_account *account, size_t row, size_t column,
                                        size_t name);
/* Returns the moment `delay` after the present one, if there is no call until then. */
sim_moment sim_account_moment_after(const sim_account *account, doorman_time delay);
sim_counter *sim_account_counter(sim_account *account, const sim_definition *definition,
                                 const sim_permit_template *template_, size_t place, size_t key);
/* Returns whether a limit has no room for the counters that the present call may add. */
bool sim_account_is_full(const sim_account *account, const sim_definition *definition);

/* ---- sim_account.c and sim_decision.c. `epoch` is the time of day that the caller gives. */

void sim_account_open(sim_account *account, const sim_permit_version *version, doorman_time epoch,
                      doorman_time now);
void sim_account_close(sim_account *account);
void sim_account_move(sim_account *account, doorman_time epoch, doorman_time now);
/* Returns whether a rounding error could put the time into another window. */
bool sim_account_is_edge(const sim_account *account, doorman_time epoch, doorman_time now);
void sim_account_configure(sim_account *account, const sim_permit_version *version);
void sim_account_event(sim_account *account, const doorman_permit_event *event);
/* Must be called before the permits decide, and one of the next functions afterwards.
 *   looks   the call is a report or an inspection, which also concern a banned key */
void sim_account_begin(sim_account *account, const doorman_permit_request *request, bool looks);
void sim_account_permit(sim_account *account, const doorman_permit_request *request,
                        const doorman_permit *permit);
void sim_account_report(sim_account *account, double cost, double charged);
void sim_account_inspect(sim_account *account, const doorman_permit *permit);
void sim_account_reset(sim_account *account, size_t place, size_t key, const char *limit,
                       size_t count);
void sim_account_ban(sim_account *account, size_t place, size_t key, doorman_time duration);
void sim_account_check(sim_account *account, const doorman_permits *permits);
/* Must be called after all permits were updated. No counter may be left that equals a fresh one. */
void sim_account_check_idle(sim_account *account);

#endif
