/*
 * doorman_permits.h, version 0.1.0: permits, in addition to the leases of doorman.h.
 *
 * PERMITS. A server decides on each request, by rules for each of very many keys, such as users,
 * tenants or addresses. A permit for something that lasts is a HOLD. Such a permit can wait in a
 * queue, and its units come back if the holder crashes.
 *
 * DO THIS
 *
 *     In one C file, before any other include:
 *
 *         #define DOORMAN_IMPLEMENTATION
 *         #define DOORMAN_JSON      // messages and configurations as JSON; needs cJSON
 *         #define DOORMAN_NNG       // a client with its own thread; needs JSON, nng, POSIX threads
 *         #include "doorman_permits.h"
 *
 *     The header includes doorman.h, which must be in the same folder and have the same version.
 *     This one file then has the implementation of both, so no other file may define
 *     DOORMAN_IMPLEMENTATION. Where a file defines it, doorman_permits.h comes before doorman.h and
 *     doorman_throttle.h. Other files include the header without this macro. The macros are those
 *     of doorman.h.
 *
 *     docs/permits.md has solutions for common tasks. examples/permit_client.c asks a server
 *     for a permit, examples/permits_only.c has permits without a network, and examples/job_pool.c
 *     has holds.
 *
 * CONCEPTS
 *
 *     permit          a decision on one request, for strict limits on very many keys
 *     hold            a granted permit whose units stay taken until they are released, or until its
 *                     time to live ends. Its client renews the hold
 *     limit           a rule that a permit must satisfy. It has a name, a scope and a kind
 *     key             on whose behalf a permit is asked
 *     item            one resource, one key and a cost. A permit has one or several items
 *     counter         the state of one limit for one value of its scope, for example for one user
 *
 * THE API, by group. The documentation of each function is above its declaration.
 *
 *     permits        doorman_permits_create  _destroy  _set_epoch  _configure  _acquire  _report
 *                    _inspect  _reset  _ban  _due  _update  _read  _next_limit  _next_top
 *                    _next_usage  _next_counter  doorman_reason_name
 *     state          doorman_permits_next_changed  _mark_changed  _mark_all  _restore
 *                    _set_rows  doorman_permit_row_read
 *     overrides      doorman_permits_set_override  _restore_override  _end_override
 *                    _find_override  _next_override  _after_override
 *                    _set_plan  _check_plan  _restore_plan  _end_plan  _find_plan  _next_plan
 *     descriptors    doorman_config_descriptors  doorman_descriptors_resolve
 *     holds          doorman_permits_renew  _release  _transfer  _seize  _cancel
 *                    _next_decision  _next_hold  _next_wait  _find_hold  _end_hold
 *     limiters       doorman_limiter_map_create  _destroy  _try  _release  _reset  _sweep
 *     server         doorman_server_permits
 *     permit client  doorman_permit_client_create  _destroy  _upstream  _add_lane  _acquire
 *                    _report  _next  _new_hold  _release  _transfer  _seize  _read_hold
 *                    _next_change
 *                    _kill_switch  _read
 *     JSON           doorman_json_exchange_settle  _undo
 *                    doorman_json_read_override  _write_override
 *                    doorman_override_message_uninit
 *                    doorman_json_read_plans  _write_plan  doorman_plans_message_uninit
 *     agent          doorman_agent_acquire  _acquire_async  _report  _transfer  _seize  _read_hold
 *                    _new_hold  _release  _release_part
 *
 * MEMORY, ERRORS, THREADS AND TIME are as in doorman.h.
 *
 * LIMITS
 *
 *     permits         16 limits of a template, 100 items of a permit, 1,000,000 counters of a
 *                     limit, 10,000,000 counters in all, 1,000,000 override rows, 1,000,000
 *                     plan rows; in a message
 *                     10,000 items, and 100 permits with detail. The options, and max_keys of a
 *                     limit, can change all but the first
 *     descriptors     1,000 rules of a configuration, 16 entries of a rule
 *
 * NAMES AND UNITS. A limit of permits and a limit of one process have the same names and units. A
 * field of a configuration has the same name in C and in JSON, unless a row below has two names. A
 * duration is a doorman_time in C, in nanoseconds, and a number of seconds in JSON.
 *
 *     in C                              in JSON                       unit
 *     rate                              rate                          units a second
 *     size, limit, max_cost             size, limit, max_cost         units
 *     max_debt, max_wait                max_debt, max_wait            ns; s in JSON
 *     window, time_to_live              window, time_to_live          ns; s in JSON
 *     calendar                          window: "day", ...            minute to month, in UTC
 *     queue                             queue                         permits
 *     max_keys                          max_keys                      counters
 *     refuse_new                        overflow: "refuse"
 *     empty_at_start, full_at_start     on_restart: "empty", "full"
 *     leased                            rate: "leased", limit: "leased"
 *     refuse_unread                     on_unread: "refuse"
 *     has_NAME, without_capacity        NAME is given; capacity is absent
 *     templates                         resources
 *     reject_unmatched                  unmatched: "reject"
 *     algorithm.minimum_interval,       algorithm.parameters, with    ns; s in JSON
 *       .minimum_refresh_interval         the fields name and value
 *     algorithm.decay_factor,           the same                      fractions
 *       .reserve, .handover
 *
 * CONTENTS. Search for a tag to find its section. A section uses only doorman.h and the sections
 * before it. Other tags, and rules with other letters than P and H, are in doorman.h.
 *
 *     (the API)         from here to "the API ends here"
 *     >>limits          the limits of a configuration
 *     >>descriptors     what a descriptor of a gateway becomes
 *     >>counters        what permits store for very many keys, and the kinds of limits
 *     >>leased          units that a limit takes from a lease
 *     >>charges         what the counters offer, and how they are charged
 *     >>holds           units that stay taken until they are released, and their queues
 *     >>permits         decisions on new and on waiting requests
 *     >>hold_requests   what clients do with their holds
 *     >>state           rows of counters and bans, which a store keeps over a restart
 *     >>overrides       other figures for one key for some time, set at run time
 *     >>permit_node     all permits of a node, and the messages on them; limiters by key
 *     >>permit_handover holds that the next master of a node takes over
 *     >>permit_client   what asks servers for permits, on behalf of many callers
 *     >>permit_json     limits and messages on permits in JSON
 *     >>permit_agent    a permit client with its own thread
 *
 * MIT licence, as doorman.h.
 */
#if defined DOORMAN_IMPLEMENTATION && defined DOORMAN__IMPLEMENTED && !defined DOORMAN_PERMITS &&  \
    !defined DOORMAN__PERMITS_IMPLEMENTED
#error "doorman_permits.h: where DOORMAN_IMPLEMENTATION is defined, include it before doorman.h"
#endif
#ifndef DOORMAN_PERMITS
#define DOORMAN_PERMITS
#endif
#include "doorman.h"

#if DOORMAN_VERSION_NUMBER != 100
#error "doorman_permits.h: it needs the doorman.h of the same version, 0.1.0"
#endif

#ifndef DOORMAN_PERMITS_H
#define DOORMAN_PERMITS_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- permits, the public part --------------------------------------------------------------- */
/* A permit is a decision on one request. A lease serves a few programs that keep to what they are
 * granted. Permits serve very many keys, such as users, tenants or addresses. One process decides
 * on each request.
 *
 *     limit      a rule that a permit must satisfy. It has a name, a scope and a kind
 *     key        on whose behalf a permit is asked: 0 to 256 bytes of UTF-8, chosen by the caller
 *     item       one resource, one key and a cost. A permit has one or several items
 *     counter    the state of one limit for one value of its scope, for example for one user
 *
 * All items of a permit are granted, or none. A refused permit takes nothing from any counter.
 *
 * These rules concern the users of permits. The sections from >>counters to >>permit_client have
 * the other rules.
 *
 * P12 A window of SLIDING_WINDOW or TIERS has 16 slices. The units of the last 16 slices count. So
 *    the window covers 15/16 to 1 of its length, and never refuses what an exact window allows. The
 *    slices of SLIDING_WINDOW begin at multiples of window / 16. The slices of a tier begin at the
 *    hit that entered it while its window was empty. So no unit of that hit returns before a whole
 *    window has passed.
 *       A tier is inactive, active for `active` after the hit that entered it, or cools down for
 *    `cooldown` after that. The current tier is the active tier with the highest index. If no tier
 *    is active, there is no current tier, and the first tier is the next one. A hit counts only in
 *    the window of the current tier. What does not fit there enters the next tier. A tier that is
 *    entered again has its earlier units, as long as they are in its window. Otherwise the end of a
 *    tier would free them early: a tier of 10 units in 2 s that is active for 2 s could grant 19
 *    within 0.1 s. (Charon starts with an empty window.) A tier that cools down blocks, or is
 *    passed over if it is skippable. A tier whose `active` is 0 is passed over. One permit may pass
 *    through several tiers.
 *       Example with the tiers {limit 100, window 60, active 60} and {limit 300, window 60,
 *    active 120, cooldown 600}: at 0 s, a permit of 150 units enters tier 1 with 100 units and tier
 *    2 with 50. Tier 2 is current until 120 s. At 120 s no tier is active, so the next permit
 *    enters tier 1. When tier 1 is full, tier 2 blocks until 720 s.
 * P13 A report charges all limits of a (resource, key), except those of kind CONCURRENCY. One
 *    report charges at most max_cost. The debt of a bucket grows to at most the larger of max_debt
 *    and size / rate. A window grows to at most twice its limit. TIERS take what fits. A negative
 *    report gives units back, at most until the counter is fresh, where the limit has `refunds`.
 * P15 A changed configuration finds the counters of a key or a resource by (resource, key, name of
 *    the limit), and those of a template by (glob, name). Kind and scope must be the same. A bucket
 *    keeps what it has saved up to the new size, and counts the time since its last use at the new
 *    rate. A window of changed length starts fresh. Tiers keep their state by index. Bans
 *    stay until they end, also if their limit has no ban any more: a file that is wrong for a
 *    moment must not pardon all keys that are banned. A reset ends a ban.
 * P17 A leased limit has no amount of its own. Its amount is a lease. The permits of a server are
 *    one more holder of the resource, beside clients and other nodes. So leases and permits
 *    together never exceed the capacity. In a tree, each node decides out of its own lease. The
 *    wants of this holder follow grants and refusals (L4). Its id is "(permits)", which no other
 *    client may use.
 *       A leased TOKEN_BUCKET has the same burst as a rate of an agent (L1), and no debt. A permit
 *    may cost more than the burst, if nothing was taken for long enough. Without a lease, permits
 *    are refused with LEARNING, and retry_after is 1 s. The first permit for a resource is refused
 *    in this way, because the permits have no lease yet. A lease that was not used for a minute is
 *    released.
 *       A leased CONCURRENCY holds at most as many units as its lease has. A hold ends no later
 *    than the lease: each grant and each renewal lasts at most the rest of the lease, divided by
 *    1 + drift. If the lease shrinks below what is held, no permit is granted until the holds fit.
 *    A new master does not believe renewals of such holds, because they end with the lease of its
 *    predecessor. Permits may wait in the queue for a larger lease.
 *       A report charges at most what is saved. What does not fit raises the wants. A
 *    doorman_permits without a server has no leases, so it refuses everything.
 * P22 A client and an agent remember a refusal of a permit of one item while the refusal is valid
 *    (P5). In that time they refuse every permit with an item of the same resource and key, if its
 *    minimum is not smaller and its max_wait is not longer.
 * P23 The fallback decides in each of these cases: no server answers within the timeout; the
 *    message of the call has failed more often than there are addresses; a server refuses with
 *    UNMATCHED; 100,000 calls wait already. A refusal with LEARNING is a decision of the server:
 *    what it does not know yet may be in force.
 *       A breaker saves the callers from waiting for servers that fail. After 5 failed messages in
 *    a row the breaker opens. While it is open, the fallback decides at once. The breaker opens for
 *    1 s at first, and then for twice as long after each failure, up to `max_pause`. While servers
 *    answer that they know no master, it opens for at most 4 s, because an election ends soon. When
 *    a master answers the leases of an agent, a test of its permits is due at once, but not within
 *    1 s after the last test. The same holds for its leases when a master answers its permits.
 * P24 If the duration `prefetch` is set, a client and an agent take units ahead for a resource and
 *    key that had at least two granted permits in the last `prefetch`. They take at most what the
 *    callers used in this time, and at most half of what remains according to the last answer.
 *    Later permits are granted out of these units at once and in full, without a message. What is
 *    not used is lost at the latest twice `prefetch` after it was asked for. Units are taken ahead
 *    only for permits of one item that hold nothing and are not `equal`. A server never refuses
 *    units that are taken ahead for lack of units, because it may grant fewer, or none.
 * P25 While the kill switch is on, or with `shadow`, each permit is granted in full, and at once.
 *    A copy of the permit is sent, so that server and client count what would have been refused. */

/* Which permits share one counter of a limit. */
typedef enum doorman_scope {
    DOORMAN_PER_KEY,      /* each (resource, key) has a counter */
    DOORMAN_PER_RESOURCE, /* each resource has a counter */
    DOORMAN_PER_TEMPLATE  /* all resources of the template share one counter */
} doorman_scope;

/* A FIXED_WINDOW can follow the calendar in UTC. A week begins on Monday. */
typedef enum doorman_calendar {
    DOORMAN_NO_CALENDAR,
    DOORMAN_MINUTE,
    DOORMAN_HOUR,
    DOORMAN_DAY,
    DOORMAN_WEEK,
    DOORMAN_MONTH,
    DOORMAN_CALENDAR_COUNT
} doorman_calendar;

/* One tier of TIERS. A hit that does not fit in the tier before it enters this tier. The tier is
 * then active. After `active` the tier cools down. Its window continues in that time: P12. */
typedef struct doorman_tier {
    double limit;          /* units in a window, [0, 1e15] */
    doorman_time window;   /* required, (0, 1e8 s] */
    doorman_time active;   /* how long the tier is active, [0, 1e8 s]; 0: the tier is never
                              entered */
    doorman_time cooldown; /* how long the tier cannot be entered again, [0, 1e8 s] */
    bool skippable;        /* true: the next tier is entered while this tier cools down; false:
                              permits are refused meanwhile */
} doorman_tier;

/* The figures of a limit. Fields that the kind does not use must be 0. An override changes the
 * figures whose has_ field is true. Figures without a has_ field change if they are not 0. `window`
 * and `calendar` change together. All other figures are those of the limit. */
typedef struct doorman_figures {
    /* TOKEN_BUCKET. size and max_debt must not both be 0. */
    double rate;           /* required: units a second that the bucket gains; (0, 1e15] */
    double size;           /* units that can be saved, [0, 1e15]; worth at most 1e8 s of the rate */
    doorman_time max_debt; /* the most time in which lent units are gained back, [0, 1e8 s] */
    doorman_time max_wait; /* how long a caller may have to wait, [0, 1e8 s]. CONCURRENCY: how long
                              a permit may wait in the queue; default 0 */

    /* CONCURRENCY. `limit` below is the number of units that are held at once. */
    doorman_time time_to_live; /* how long a hold lasts that is not renewed, (0, 1e8 s]; default
                                  15 s. After it was shortened, a server that restarts within the
                                  old time learns for too short a time */
    size_t queue;              /* how many permits may wait, [0, 1,000,000] */

    /* FIXED_WINDOW, SLIDING_WINDOW */
    double limit;              /* units in a window, [0, 1e15] */
    doorman_time window;       /* required if there is no calendar, (0, 1e8 s]. If a configuration
                                  changes it, the counters start fresh */
    doorman_calendar calendar; /* only for FIXED_WINDOW; instead of window */

    /* Which fields are given, in an override. A limit needs only has_max_wait. */
    bool has_size, has_max_debt, has_queue, has_limit, has_tiers;
    bool has_max_wait; /* of a TOKEN_BUCKET; false: max_wait is max_debt */

    /* TIERS */
    const doorman_tier *tiers; /* may be NULL if tier_count is 0 */
    size_t tier_count;         /* 0 to 8; 0: everything is refused */
} doorman_figures;

/* Other figures for some keys. */
typedef struct doorman_override {
    const char *const *keys; /* required: see the field keys of doorman_permit_limit */
    size_t key_count;
    doorman_figures figures;
} doorman_override;

/* The figures of a plan: see E2 in "overrides, the public part". */
typedef struct doorman_plan {
    const char
        *name; /* required, unique in the limit: 1 to DOORMAN_PLAN_BYTES_MAX bytes of UTF-8 */
    doorman_figures figures; /* as those of an override */
} doorman_plan;

#define DOORMAN_PLANS_MAX 16      /* plans of a limit */
#define DOORMAN_PLAN_BYTES_MAX 64 /* of the name of a plan */

/* Refuses a key that keeps sending after refusals. A count of refusals begins with a refusal by the
 * limit. The count begins again with the first refusal that comes later than `window` after its
 * beginning. When the count reaches `refusals`, every permit with this (resource, key) is refused
 * for `duration`. */
typedef struct doorman_ban {
    uint32_t refusals;     /* 0: there is no ban */
    doorman_time window;   /* (0, 1e8 s] */
    doorman_time duration; /* (0, 1e8 s] */
} doorman_ban;

/* A limit of permits. The kinds are TOKEN_BUCKET, FIXED_WINDOW, SLIDING_WINDOW, CONCURRENCY and
 * TIERS. A TOKEN_BUCKET and a FIXED_WINDOW work as in doorman_limit_kind. SLIDING_WINDOW and TIERS
 * count in 16 slices of a window: see P12. The units of CONCURRENCY are held: see "holds, the
 * public part". */
struct doorman_permit_limit {
    const char *name;        /* required, unique in the template: 1 to 256 bytes of UTF-8 */
    doorman_scope per;       /* default DOORMAN_PER_KEY */
    doorman_limit_kind kind; /* required */
    const char *const *keys; /* globs; each has 1 to 256 bytes of UTF-8, without the `!`. A glob
                                with `!` before it excludes keys. A key is concerned if it matches
                                no glob with `!`, and at least one glob without `!` if there are
                                any. NULL: all keys are concerned */
    size_t key_count;        /* 0 to 10,000 */
    doorman_figures figures;
    const doorman_override *overrides; /* other figures for some keys; only for DOORMAN_PER_KEY. The
                                          first override that concerns a key is its figures */
    size_t override_count;             /* 0 to 10,000 */
    const doorman_plan *plans; /* figures of keys that have a plan (E2); only for DOORMAN_PER_KEY */
    size_t plan_count;         /* 0 to DOORMAN_PLANS_MAX */
    double warn_at;  /* a grant carries a warning above this fraction of the limit, (0, 1]; 0: no
                        warning */
    doorman_ban ban; /* only for DOORMAN_PER_KEY, not for CONCURRENCY; needs ban.refusals */
    double max_cost; /* if has_max_cost is true: the most that one permit is granted at one counter.
                        Larger minimums are refused with MAX_COST. A larger cost is cut */
    size_t max_keys; /* the most counters of the limit, and the most bans that it has set, up to
                        10,000,000; default 1,000,000. If there are more bans, the one that ends
                        first is ended early. If leased: the most leases of the permits; default
                        10,000 */
    double set_max;  /* P31: a figure that a caller brings is at most so many times that of the
                          limit, [1, 1e6]; 0: 10 */
    bool has_max_cost; /* false: one permit may be granted up to the most that the limit can ever
                          grant */
    bool shadow;       /* true: the limit decides and counts, but never refuses. It does not charge
                          what it would refuse */
    bool refuse_new;   /* true: a permit that needs one more counter is refused with MAX_KEYS.
                          false: of 8 sampled counters, the one that has used the smallest
                          fraction of its limit is evicted; of several, the one that is fresh
                          soonest. The key of that counter starts again. A counter with holds is
                          never evicted */
    bool empty_at_start; /* true: nothing is saved when the permits are created: see P16. Not for
                            TIERS and CONCURRENCY */
    bool full_at_start;  /* CONCURRENCY: true: new holds are granted while the permits learn the
                            holds of a predecessor. Other kinds: true: there is no warning that
                            counters begin fresh after a restart (G9). Not together with
                            empty_at_start */
    bool refunds;        /* true: a report may have a negative cost. Only for TOKEN_BUCKET and
                            FIXED_WINDOW */
    bool has_durable;    /* false: `durable` is not read. The configuration sets `durable` to true
                            if a counter may need a minute or more until it is fresh, or if a ban
                            lasts as long */
    bool durable; /* the counters and bans have rows, which a store keeps over a restart: see D3.
                     Not if leased, and not for CONCURRENCY */
    bool refuse_unread; /* only if durable. true: while the rows could not be read, permits are
                           refused with LEARNING. false: counters begin as after a restart without
                           a store. See doorman_permits_set_rows */

    /* The amount can be the lease that the permits of the server have: see P17. */
    bool leased;          /* only for DOORMAN_PER_RESOURCE, for a TOKEN_BUCKET without figures, and
                             for CONCURRENCY without a limit */
    bool has_priority;    /* only if leased; false: the priority is 1 */
    int priority;         /* of the permits among the holders of the lease's resource, 0 to 15 */
    uint32_t subclients;  /* only if leased: the weight of the permits among these holders, up to
                             1e9; 0: 1 */
    const char *lease_of; /* only if leased: the resource of the lease; NULL: the resource of the
                             permit. CONCURRENCY: the glob must be that of one resource, and no
                             other limit may have the same lease */
};

#define DOORMAN_LIMITS_MAX 16
#define DOORMAN_TIERS_MAX 8

/* Why a permit was refused. */
#define DOORMAN_REASONS(X)                                                                         \
    X(DOORMAN_NO_REASON, "")                                                                       \
    X(DOORMAN_REASON_RATE, "RATE")         /* the units do not fit now */                          \
    X(DOORMAN_REASON_BANNED, "BANNED")     /* the (resource, key) is banned */                     \
    X(DOORMAN_REASON_MAX_COST, "MAX_COST") /* the minimums are more than the limit ever grants */  \
    X(DOORMAN_REASON_MAX_KEYS, "MAX_KEYS") /* there is no room for one more counter */             \
    X(DOORMAN_REASON_UNMATCHED, "UNMATCHED") /* no template with limits matches the resource */    \
    X(DOORMAN_REASON_CONCURRENCY, "CONCURRENCY") /* the units are held by others */                \
    X(DOORMAN_REASON_LEARNING, "LEARNING")       /* holds, rows or a lease are not known yet */    \
    X(DOORMAN_REASON_QUEUE_FULL, "QUEUE_FULL")   /* too many permits wait */                       \
    X(DOORMAN_REASON_TIMED_OUT, "TIMED_OUT")     /* the units did not come in time */              \
    X(DOORMAN_REASON_SHARED, "SHARED")       /* a hold of the same key was released: see share */  \
    X(DOORMAN_REASON_MAX_HOLDS, "MAX_HOLDS") /* there are too many holds */                        \
    X(DOORMAN_REASON_REPEATED, "REPEATED") /* another permit or transfer has the same request_id */

#define DOORMAN__REASON_CODE(code, name) code,
typedef enum doorman_reason {
    DOORMAN_REASONS(DOORMAN__REASON_CODE) DOORMAN_REASON_COUNT
} doorman_reason;

/* Returns the name of a reason, for example "RATE". Returns "?" for an unknown reason. The string
 * is static. */
DOORMAN_API const char *doorman_reason_name(doorman_reason reason);

/* Figures that a caller brings for one limit of an item.
 *
 * P31 A gateway may know figures that the configuration does not have. What it brings with an item
 *    concerns one limit per key of kind TOKEN_BUCKET, FIXED_WINDOW or SLIDING_WINDOW, for the key
 *    of the item. Figures that it does not give are those of the limit. Each is at most set_max
 *    times that of the limit, and so is the rate that a limit and a window make together. The
 *    first of these that there is says the figures of a key: an override row (E1), the figures
 *    that a caller brings, a plan (E2), an override of the configuration, the limit.
 *       A counter remembers the figures with which a permit was granted last, until it is fresh.
 *    Permits, reports and inspections without figures use them. So if callers bring different
 *    figures for one key, the last ones count, and set_changes of the limit counts how often they
 *    have differed. What was used stays used, as in P15, except in a window of another length,
 *    which starts fresh. A row of a store does not have the figures: after a restart a counter has
 *    those of the configuration until a caller brings them again.
 *       A permit that brings figures never waits in a queue. Permit clients and agents bring none.
 */
typedef struct doorman_permit_set {
    const char *limit;       /* required: the name of the limit, once in an item */
    doorman_figures figures; /* at least one of rate and size, or of limit and window; no others */
} doorman_permit_set;

/* One item of a permit: units of one resource for one key. */
typedef struct doorman_permit_item {
    const char *resource_id; /* 1 to 256 bytes */
    const char *key;         /* 0 to 256 bytes of UTF-8; NULL means "" */
    double cost;             /* units that the item asks for, [0, 1e15]. 0: the item only looks, and
                                creates no counter */
    bool has_min;            /* false: min is cost */
    double min;              /* the item accepts this many units or more, [0, cost]. Above min it
                                gets whole units, and none of them out of a debt (P2) */
    const doorman_permit_set *sets; /* P31: figures for limits of the item; NULL: none */
    size_t set_count;               /* 0 to DOORMAN_LIMITS_MAX */
} doorman_permit_item;

struct doorman_permit_request {
    const doorman_permit_item *items; /* 1 to 100 items */
    size_t item_count;
    doorman_time max_wait; /* how long the caller can wait, [0, 1e8 s] */
    bool equal;            /* true: all items get the same whole number of units */
    bool detail;           /* true: the permit lists all limits of all items */

    /* Only for permits that hold units of CONCURRENCY: see "holds, the public part". */
    const char *client_id;     /* required for a hold: 1 to 256 bytes. In a message: NULL */
    uint64_t request_id;       /* required for a hold: 1 to 2^53 - 1, chosen by the client. Permit
                                  clients and agents: 0, or the number of the hold, which
                                  doorman_permit_client_new_hold or doorman_agent_new_hold has given
                                  out. With a number the permit may hold units, and `hold` must be
                                  NULL */
    uint64_t connection;       /* names the connection that waits; 0: none */
    doorman_time time_to_live; /* of the hold, at most that of its limits; 0: that of its limits */
    bool has_priority;         /* false: the priority is 1 */
    int priority;              /* of a permit that waits, 0 to 15; higher is earlier. A repeat with
                                  the same request_id keeps the priority of the first permit */
    bool share;                /* true: if the permit waits, it ends as SHARED when a hold of the
                                  same resource and key is released in full. Only for one item */
    uint64_t *hold;            /* only for permit clients and agents, which choose client_id: not
                                  NULL if the permit may hold units. The client chooses the number
                                  of the hold, and the call writes it here before it waits. Another
                                  thread must not read it before the call has returned, but can know
                                  a number in `request_id`. Without both, a server answers a permit
                                  on CONCURRENCY with an error, so the fallback decides (P23) */
};

/* What one item of a granted permit got. */
typedef struct doorman_permit_grant {
    double granted;           /* units, at most the cost */
    const char *limit;        /* the limit with the smallest `remaining`; NULL: no limit concerns
                                 the item, and the next two fields are 0 */
    double remaining;         /* units that this limit could still grant, without debt */
    doorman_time reset_after; /* the time until the counter of this limit is fresh again; 0 for
                                 CONCURRENCY, because holders may release at any time */
} doorman_permit_grant;

/* The state of one limit of one item. */
typedef struct doorman_permit_detail {
    size_t item_index;
    const char *limit;
    double most;      /* units: the size of a bucket, the limit of a window, or the sum of tiers */
    double used;      /* units. Of a bucket: the size minus what is saved; more than the size if
                         the bucket has a debt. Of CONCURRENCY: what is held; more than the limit
                         after the limit was lowered */
    double remaining; /* units that could be granted now, without debt */
    doorman_time reset_after; /* as in doorman_permit_grant */
    doorman_time more_after;  /* the time until one more whole unit is there, or all units are; 0:
                                 all units are there, or the kind is CONCURRENCY */
    doorman_time window; /* the time in which `most` units come back: the length of the window, or
                            size / rate of a bucket. 0: TIERS, which have several windows, and
                            CONCURRENCY */
    bool shadow;         /* the limit never refuses */
    size_t tier;         /* TIERS: the number of the current tier, from 1; 0: no tier is active */
    bool moved_up;       /* TIERS: this permit has entered a tier */
    bool refused;        /* the limit refuses this permit, or would refuse it without shadow */
    uint32_t refusals;   /* refusals that count for a ban */
    doorman_limit_kind kind; /* of the limit; not in a message */
    bool was_reset;          /* only RESET: the counter was removed; not in a message */
    const char *plan; /* the plan that the key has now, if the limit has it (E2); NULL: none. An
                         override row may hide it */
    bool set;         /* the figures are those that a caller has brought (P31) */
} doorman_permit_detail;

/* A decision. */
struct doorman_permit {
    bool granted;
    bool warning;                      /* granted, but a warn_at was passed */
    doorman_time wait;                 /* granted: how long the caller must wait before it uses the
                                          units */
    const doorman_permit_grant *items; /* granted: one for each item of the request */
    size_t item_count;

    /* Refused: the limit that refuses. Of several, the one that must be waited for longest (P4). */
    doorman_reason reason;    /* NO_REASON: a server has sent a reason that this version does not
                                 know */
    size_t item_index;        /* the item that is refused */
    const char *limit;        /* NULL: no limit has refused, for example if the reason is BANNED or
                                 UNMATCHED */
    bool has_retry_after;     /* false: waiting does not help, or holds have the units */
    doorman_time retry_after; /* the same permit could be granted then, if there are no other
                                 calls */
    doorman_time valid_for;   /* for this time the caller may refuse permits for this item by
                                 itself, if their min (or cost, without a min) is not smaller, and
                                 their max_wait is not longer */

    const doorman_permit_detail *details; /* only with `detail` of the request */
    size_t detail_count;

    /* Holds. */
    bool pending;            /* the permit waits in the queue of `limit`. It is neither granted nor
                                refused yet */
    uint64_t ticket;         /* pending: doorman_permits_next_decision gives it with the decision */
    uint64_t hold_id;        /* granted: the hold; 0: the permit holds nothing */
    const char *node;        /* of a hold: the node that has granted it; NULL: not known */
    doorman_time waited;     /* of a hold: how long the permit has waited in queues */
    doorman_time expires_in; /* of a hold: its time to live, which begins with the decision */
};

/* One entry of a REPORT, INSPECT or RESET. */
struct doorman_permit_entry {
    const char *resource_id;
    const char *key;   /* NULL means "" */
    double cost;       /* only REPORT: see doorman_permits_report */
    const char *limit; /* only INSPECT and RESET: the name of the limit; NULL: all limits */
    bool sets_ban;    /* only RESET: true: the entry sets or ends a ban, and resets no counter; then
                         `limit` must be NULL */
    doorman_time ban; /* if sets_ban is true: see doorman_permits_ban */
};

/* The result of one entry. */
struct doorman_permit_result {
    double charged;       /* REPORT: the smallest amount of all limits, see
                             doorman_permits_report. 0 if there is no room for one more
                             counter */
    size_t count;         /* RESET: counters and bans that were removed. With sets_ban: 1 if a ban
                             was set or ended */
    double held;          /* RESET: the units of CONCURRENCY that the entry means and that are held:
                             holds stay. Known for the first message_detail_max entries */
    doorman_permit state; /* INSPECT: see doorman_permits_inspect. With `limit` of the entry it has
                             only the details of that limit. RESET: the state before the reset, with
                             the details of the limits that the entry means; not in a message, not
                             with sets_ban, and only for the first message_detail_max entries */
};

typedef enum doorman_permit_event_kind {
    DOORMAN_PERMIT_GRANTED,      /* an item was granted; `amount` has the units */
    DOORMAN_PERMIT_REFUSED,      /* a limit has refused, also in shadow; or an item was refused
                                    without a limit, for example as BANNED. limit: NULL then */
    DOORMAN_PERMIT_BANNED,       /* a ban begins; `amount` has its duration in seconds. limit: NULL
                                    if doorman_permits_ban has set the ban */
    DOORMAN_PERMIT_KEY_CREATED,  /* a counter was created */
    DOORMAN_PERMIT_KEY_EVICTED,  /* a counter was removed to make room for another; `amount` has
                                    the fraction of its limit that was used, or of the refusals of a
                                    ban: 0: it offered as much as a fresh one; 1: it refused */
    DOORMAN_PERMIT_KEY_REMOVED,  /* a counter was removed, because it equals a fresh one */
    DOORMAN_PERMIT_BAN_EVICTED,  /* a ban was ended early to make room: see P20. limit: NULL if
                                    doorman_permits_ban has set the ban */
    DOORMAN_PERMIT_TIER_ENTERED, /* `amount` has the number of the tier, from 1 */
    DOORMAN_PERMIT_WAITING,      /* a permit waits in the queue of the limit */
    DOORMAN_PERMIT_HOLD_EXPIRED, /* an item of a hold has reached its end; `amount` has its units */
    DOORMAN_PERMIT_UNMATCHED,    /* no template with limits matches the resource of an item, which
                                    is granted or refused; `amount` has its cost */
    DOORMAN_PERMIT_EVENT_COUNT
} doorman_permit_event_kind;

typedef struct doorman_permit_event {
    doorman_permit_event_kind kind;
    const char *resource_id, *key, *limit; /* valid only during the call of on_event. resource_id:
                                              NULL for a counter of a template. limit: NULL if the
                                              event has none */
    doorman_reason reason;                 /* only REFUSED */
    double amount;
} doorman_permit_event;

struct doorman_permits_options {
    const doorman_config *config; /* required; must stay valid until doorman_permits_configure
                                     replaces it, or until the permits are destroyed */
    uint64_t seed[2];             /* required: random bits, as in doorman_server_options */
    size_t item_max;              /* the most items of a permit, up to 1,000,000; default 100 */
    size_t message_item_max;      /* only for a server: the most items of all permits of a message,
                                     the most entries of a message, and the most holds of a message
                                     together with their items; default 10,000 */
    size_t message_detail_max;    /* only for a server: the most permits with `detail` in a message,
                                     and the most entries of an INSPECT; default 100 */
    size_t counter_max;           /* the most counters of all limits, and the most bans, up to 1e9;
                                     default 10,000,000 */
    size_t memory_max;      /* the most bytes of all counters, bans, resources, holds and lists of
                               frequent keys, without the buckets of their tables. The resources of
                               one permit, and permits that wait, may exceed it. Default: no
                               bound */
    size_t override_max;    /* the most override rows; default 1,000,000. memory_max does not bound
                               them */
    size_t plan_max;        /* the most plan rows; the same default, also not bound */
    size_t hold_max;        /* the most holds and transfers, used transfers included: see P19 in
                               >>holds; default 1,000,000 */
    size_t client_hold_max; /* the most holds and transfers of one client; default 10,000 */
    size_t waiting_max;     /* the most permits that wait; default 10,000 */
    size_t client_waiting_max;     /* the most permits of one client that wait; default 1,000 */
    size_t connection_waiting_max; /* the most permits of one connection that wait; default 100 */
    double drift;              /* as in doorman_server_options. In a server: that of the server */
    doorman_time learns_until; /* when all holds of a predecessor have ended; 0: there was none. In
                                   a server: the server knows it */
    const char *node; /* the name of the node, for its holds; must stay valid as long as the
                         permits; may be NULL. In a server: that of the server */
    void (*on_event)(void *context, const doorman_permit_event *event); /* must not call the
                                                                           permits */
    uint32_t event_kinds; /* the kinds of events for on_event: the bits 1 << kind. 0: all */
    void *context;
};

/* A doorman_permits has the counters of all limits of a configuration, and decides on permits. One
 * thread at a time may use this object. The object reads no clock: `now` is as in doorman.h. */

/* Creates an object without counters.
 *   out       written only on OK; the caller destroys it
 *   error     may be NULL
 *   returns   OK | INVALID_ARGUMENT | OUT_OF_MEMORY | UNAVAILABLE (as doorman_server_create) */
DOORMAN_API doorman_status doorman_permits_create(doorman_permits **out,
                                                  const doorman_permits_options *options,
                                                  doorman_error *error, doorman_time now);
DOORMAN_API void doorman_permits_destroy(doorman_permits *permits); /* NULL has no effect */

/* Says what time it is, for limits of kind FIXED_WINDOW (P26): a `window` of 60 s begins at each
 * full minute of `epoch`, and not of `now`. Call it after the creation, and then about once a
 * second, because the clock of the calendar may be set. Without a call the calendar begins at `now`
 * = 0. For the permits of a server, call doorman_server_set_epoch.
 *   epoch   the time since 1970 in nanoseconds, at `now` */
DOORMAN_API void doorman_permits_set_epoch(doorman_permits *permits, doorman_time epoch,
                                           doorman_time now);

/* Uses another configuration from now on, and keeps the counters (P15).
 *   config    as in doorman_permits_options
 *   returns   OK | INVALID_ARGUMENT (NULL) | OUT_OF_MEMORY: the previous configuration stays in
 *             use
 *   cost      O(limits), and O(templates) for each resource that has counters, and for each item of
 *             each hold and of each permit that waits. Other counters are adapted when they are
 *             used next */
DOORMAN_API doorman_status doorman_permits_configure(doorman_permits *permits,
                                                     const doorman_config *config);

/* Decides on one permit (P1 to P6).
 *   request   used only during the call; checked
 *   out       written on OK; pointers in it are valid until the next call on the permits. A
 *             refusal is OK too
 *   error     may be NULL; describes an INVALID_ARGUMENT: "item[3].cost: must be ..."
 *   returns   OK | INVALID_ARGUMENT | RESOURCE_EXHAUSTED (too many items) | OUT_OF_MEMORY: no
 *             units were charged
 *   cost      O(1) for each limit of each item, and O(globs) for a limit with keys. A key that is
 *             new to a limit with overrides also needs O(overrides). A limit of CONCURRENCY needs
 *             O(log holds). If many holds end together, the call ends at most 4,352 of them
 *   source    Charon (Mitel) for tiers; Square's quota service for debt and waits */
DOORMAN_API doorman_status doorman_permits_acquire(doorman_permits *permits,
                                                   const doorman_permit_request *request,
                                                   doorman_permit *out, doorman_error *error,
                                                   doorman_time now);

/* Charges what an action has really cost, after the fact (P13).
 *   item      resource_id, key and cost; used only during the call. The cost is in units,
 *             [-1e15, 1e15]. Negative: units come back, where a limit has `refunds`
 *   charged   written on OK: the smallest amount that a limit has charged. For a negative cost:
 *             minus the smallest amount that a limit gave back
 *   returns   OK | INVALID_ARGUMENT | RESOURCE_EXHAUSTED (no room for one more counter) |
 *             OUT_OF_MEMORY */
DOORMAN_API doorman_status doorman_permits_report(doorman_permits *permits,
                                                  const doorman_permit_item *item, double *charged,
                                                  doorman_error *error, doorman_time now);

/* Reads the state of one key without counting a decision.
 *   out       written on OK, as by a permit of cost 0 with `detail`. A banned key is refused, and
 *             its limits are listed too
 *   returns   as doorman_permits_acquire */
DOORMAN_API doorman_status doorman_permits_inspect(doorman_permits *permits,
                                                   const char *resource_id, const char *key,
                                                   doorman_permit *out, doorman_error *error,
                                                   doorman_time now);

/* Makes counters fresh again. The units of CONCURRENCY are held, so they stay.
 *   limit     the name of the limit. Its counter is reset, even if other keys share it. NULL: all
 *             limits per key are reset, and a ban of the (resource, key) ends
 *   count     may be NULL; written on OK: how many counters and bans were removed
 *   returns   OK | INVALID_ARGUMENT | OUT_OF_MEMORY */
DOORMAN_API doorman_status doorman_permits_reset(doorman_permits *permits, const char *resource_id,
                                                 const char *key, const char *limit, size_t *count,
                                                 doorman_error *error);

/* Bans a (resource, key), or ends its ban. The ban replaces one that is in force. The call needs no
 * template, and no limit with a ban: every permit with this (resource, key) is refused.
 *   duration   counts from `now`, [0, 1e8 s]; 0: the ban ends
 *   returns    OK | INVALID_ARGUMENT | RESOURCE_EXHAUSTED (memory_max has no room for a ban) |
 *              OUT_OF_MEMORY. After an error, a ban of the (resource, key) is as before, or was
 *              ended early to make room
 *   cost       O(log bans), and O(limits) for each ban that must be ended early, and for each
 *              counter that must be evicted (P20). A resource that the permits do not know also
 *              needs O(templates) */
DOORMAN_API doorman_status doorman_permits_ban(doorman_permits *permits, const char *resource_id,
                                               const char *key, doorman_time duration,
                                               doorman_error *error, doorman_time now);

/* Returns when doorman_permits_update should be called next. DOORMAN_NEVER: there are no counters,
 * bans, holds or waiting permits, no override or plan row begins or ends, and resource_count is 0.
 */
DOORMAN_API doorman_time doorman_permits_due(const doorman_permits *permits);

/* Ends holds, waits and override rows whose time has come, begins rows, and removes counters that
 * equal fresh ones. One call ends at most 1,000 holds and waits, and begins and ends at most 1,000
 * rows. It decides on at most 1,000 permits that wait, and visits about 10,000 counters. So a call
 * takes some milliseconds at most. If more holds, waits or rows are due, doorman_permits_due
 * returns a time that has passed. */
DOORMAN_API void doorman_permits_update(doorman_permits *permits, doorman_time now);

typedef struct doorman_permits_info {
    size_t counter_count;      /* of all limits */
    size_t ban_count;          /* bans in force, or ended a short time ago */
    size_t resource_count;     /* resources that have counters, or had some a short time ago */
    size_t hold_count;         /* holds, transfers, and transfers that were used a short time ago */
    size_t wait_count;         /* permits that wait */
    doorman_time learns_until; /* when all limits of CONCURRENCY have learned (P16) */
    doorman_time started_at;   /* when the permits began: at creation, or at the last victory of
                                  their server. Permits that waited earlier are lost */
    uint64_t unmatched;        /* items whose resource matches no template with limits; also those
                                  that were granted */
    uint64_t banned;           /* items that were refused as BANNED */
    uint64_t bans_evicted;     /* bans that were ended early to make room (P20) */
    size_t bytes;              /* about the memory of all that memory_max bounds, of the buckets of
                                  tables, of permits that wait, and of override and plan rows */
    size_t changed_count;      /* rows that doorman_permits_next_changed would yield now */
    doorman_time changed_since; /* when the first change was made since there were none: no change
                                   that waits is older. DOORMAN_NEVER: there are none */
    uint64_t removals_lost; /* rows of removed counters that were dropped, because 100,000 waited */
    size_t override_count;  /* override rows, also those that are idle or have not begun */
    size_t override_idle_count;         /* those that are idle */
    size_t plan_count, plan_idle_count; /* the same of plan rows */
    size_t plan_max;                    /* as in the options */
} doorman_permits_info;

/* Describes the whole object.
 *   out   written in full */
DOORMAN_API void doorman_permits_read(const doorman_permits *permits, doorman_permits_info *out);

/* What one limit has decided since it is in the configuration. A template whose list of limits is
 * empty has such counts too: they count each item that the template has granted. */
typedef struct doorman_permits_limit {
    const char *identifier_glob;          /* of the template */
    const char *limit;                    /* "" if the list of limits is empty */
    const doorman_permit_limit *settings; /* with the defaults filled in. NULL if the list of limits
                                             is empty */
    double granted_units;
    uint64_t granted;                       /* grants of units with which this limit agreed */
    uint64_t refused[DOORMAN_REASON_COUNT]; /* refusals by this limit, by reason. BANNED counts at
                                               all limits of the template that have a ban */
    uint64_t shadow_refused;                /* refusals that shadow has prevented */
    uint64_t set_granted;                   /* of `granted`: the caller has brought figures (P31) */
    uint64_t set_changes; /* how often they differed from those that the counter remembered */
    uint64_t evicted;
    uint64_t evicted_in_use; /* evicted counters that had used a part of the limit */
    uint64_t bans_evicted;   /* its bans that were ended early to make room (P20) */
    uint64_t waited;         /* how often a permit has entered its queues */
    size_t waiting;          /* permits that wait in its queues now */
    size_t counter_count;    /* its counters now */
    size_t ban_count;        /* bans that it has set, in force or ended a short time ago */
} doorman_permits_limit;

/* Iterates over the limits of the configuration, in its order. The templates whose list of limits
 * is empty follow.
 *   cursor    in/out; the caller initialises it with {0}
 *   out       written on true; pointers in it are valid until the next doorman_permits_configure
 *   returns   false: there are no more limits */
DOORMAN_API bool doorman_permits_next_limit(const doorman_permits *permits, doorman_cursor *cursor,
                                            doorman_permits_limit *out);

/* Which decisions on a key are counted. */
typedef enum doorman_top_kind {
    DOORMAN_TOP_GRANTED,
    DOORMAN_TOP_REFUSED, /* also in shadow, and during a ban */
    DOORMAN_TOP_COUNT
} doorman_top_kind;

/* A key that a limit grants or refuses often. */
typedef struct doorman_permits_top {
    const char *resource_id, *key;
    uint64_t count; /* decisions. All counts are halved at each full minute of `now`, with the next
                       call on the permits that has a `now` */
    uint64_t error; /* the count is at most this much too large */
    double units;   /* what was granted; of refusals: what was asked for. Only since the key is in
                       the list, and halved like the count */
} doorman_permits_top;

/* Iterates over the (resource, key)s that one limit has granted or refused most often, the most
 * frequent first. There are at most 100. A limit per resource lists the keys too: they say who uses
 * the limit. The counts are approximate (P20).
 *   limit_index   the position of the limit in doorman_permits_next_limit, from 0
 *   cursor        in/out; the caller initialises it with {0}. A cursor is only valid until the next
 *                 call that changes the permits
 *   out           written on true; pointers in it are valid as long as the cursor
 *   returns       false: there are no more keys, or no such limit
 *   cost          O(100) */
DOORMAN_API bool doorman_permits_next_top(const doorman_permits *permits, size_t limit_index,
                                          doorman_top_kind kind, doorman_cursor *cursor,
                                          doorman_permits_top *out);

/* How far back the use of a key counts. What was used a time t ago counts exp(-t / window) of
 * itself, so a constant use of u units a second is about u * window. */
typedef enum doorman_usage_window {
    DOORMAN_USAGE_MINUTE,
    DOORMAN_USAGE_HOUR,
    DOORMAN_USAGE_DAY,
    DOORMAN_USAGE_WINDOW_COUNT
} doorman_usage_window;

/* A key that uses many units of a limit. */
typedef struct doorman_permits_usage {
    const char *resource_id, *key;
    double units; /* granted in the window. Reports of costs do not count */
    double error; /* `units` differ by at most this much, which is at most a hundredth of `total` */
    double total; /* units of all keys of the limit in the window */
} doorman_permits_usage;

/* Iterates over the (resource, key)s that have used most units of one limit, the largest first.
 * There are at most 100. A key with at least a fiftieth of `total` is among them (P20). A limit
 * has no such list if its first grant finds a quarter of memory_max in use. Times count in steps of
 * five seconds.
 *   limit_index   as in doorman_permits_next_limit, from 0
 *   cursor, out   as in doorman_permits_next_top
 *   returns       false: there are no more keys, or no such limit or window
 *   cost          O(100); O(100 * 100) for the first key */
DOORMAN_API bool doorman_permits_next_usage(doorman_permits *permits, size_t limit_index,
                                            doorman_usage_window window, doorman_cursor *cursor,
                                            doorman_permits_usage *out, doorman_time now);

/* Where an iteration over counters is. A caller may keep the three numbers, and continue with them
 * later. They have no meaning for the caller. */
typedef struct doorman_counter_cursor {
    uint64_t table, position;
    uint64_t removals; /* of tables, plus 1; 0: the iteration has not begun */
} doorman_counter_cursor;

/* A counter of a limit, or a ban. */
typedef struct doorman_permits_counter {
    bool is_ban;
    const char *identifier_glob; /* of the template; "": a ban that an administrator has set */
    const char *limit; /* the name of the limit; "": a ban that an administrator has set. NULL:
                                a counter that does not count, because its limit is gone. Such a
                                counter has no `state` */
    const char *resource_id;            /* "": the counter is per template */
    char key[DOORMAN_ID_BYTES_MAX + 1]; /* "" if the counter is not per key */
    doorman_permit_detail state;        /* not of a ban. `moved_up` and `refused` are false */
    doorman_time ban_rest;              /* of a ban: the time until it ends; 0: it has ended */
} doorman_permits_counter;

/* Iterates over all counters and bans, also those of limits that are not durable. A leased rate has
 * no counters. Any other call on the permits is allowed between two steps, so a caller can release
 * its lock there. A counter that exists during the whole iteration is visited exactly once, as it
 * is at that moment. A counter that is created or removed meanwhile is visited at most once. A
 * counter that has become fresh may be visited until it is removed (P14). The bans come first. The
 * order of the others seems random, because it is that of keyed hashes: another process, and the
 * permits after a restart, have another one. If two counters of a limit had the same 64-bit hash,
 * only one of them would be visited.
 *   limit     only counters of limits with this name, and all bans; NULL: all
 *   cursor    in/out; the caller initialises it with {0}
 *   out       written on OK; pointers in it are valid until the next call that changes the permits
 *   returns   OK | NOT_FOUND: there are no more |
 *             INVALID_ARGUMENT: the table of a limit that a configuration has removed was freed
 *             since the iteration began. The caller begins again |
 *             OUT_OF_MEMORY: the call may be repeated
 *   cost      O(1) for each counter, and O(limits) for the whole iteration */
DOORMAN_API doorman_status doorman_permits_next_counter(doorman_permits *permits, const char *limit,
                                                        doorman_counter_cursor *cursor,
                                                        doorman_permits_counter *out,
                                                        doorman_time now);

/* ---- state, the public part ------------------------------------------------------------------ */
/* A limit that is `durable` has a row for each of its counters that is not fresh, and for each of
 * its bans. So do the bans of an administrator. A store keeps the rows, so that what was used
 * before a restart is used after it. The permits know no store: the application writes and reads.
 *
 *     each second                       doorman_permits_next_changed until it returns 0, then write
 *     a batch could not be written      write the same bytes again before later rows; or
 *                                       doorman_permits_mark_changed with each of them
 *     before doorman_permits_configure  the same as each second, because the changes of a limit
 *                                       that is removed are yielded only before
 *     after a restart                   doorman_permits_set_rows with DOORMAN_ROWS_AWAITED, set the
 *                                       epoch, doorman_permits_restore with each row, and
 *                                       doorman_permits_set_rows with DOORMAN_ROWS_READ
 *
 * D2 A limit is durable if it says so, or if a counter may need a minute or more until it is fresh,
 *    or if a ban lasts as long. See `durable` of doorman_permit_limit.
 * D3 If all changes are yielded and written, the store has a row for each counter and each ban of
 *    the permits, and no others, except for rows that are fresh, and rows of limits that are not in
 *    the configuration or not durable any more. A row that replaces another has the same identity.
 *    A counter that is evicted, reset or refunded until it is fresh, and a ban that ends early, are
 *    yielded as removed. What becomes fresh as time passes is not yielded: the store may delete a
 *    row after its fresh_at. At most 100,000 removals wait to be yielded. An eviction is yielded
 *    only if fewer than 50,000 wait. The rows of the others stay in the store until they are fresh,
 *    which is only too strict.
 * D4 While rows are awaited, permits that a durable limit concerns are refused with LEARNING, and
 *    others do not wait. See doorman_permits_set_rows.
 * D5 A restored counter never offers more than the counter that was written would offer now, by
 *    the clock `epoch` (P26). The times in a row are since 1970. If a row was written later than
 *    the present epoch, the epoch moves forward to that time, as if this process had written the
 *    row. So no window that was used begins again after the clock was set back. A row of the clock
 *    follows removed rows, because the store forgets their times. What was left of a ban when it
 *    was written, minus the time since then, is left. If there is a counter already, it has used
 *    what both have used; a row that was yielded or restored before does not count twice. Refusals
 *    that count for a ban are not in a row. */

#define DOORMAN_PERMIT_ROW_VERSION 1      /* of the rows that this version writes */
#define DOORMAN_PERMIT_ROW_BYTES_MAX 4096 /* no row is longer */

/* What a row is about. The strings and the identity point into the row. */
typedef struct doorman_permit_row {
    unsigned version;        /* of the figures. Every version has the fields of this struct at the
                                same places */
    bool removed;            /* the counter or the ban is gone: the store deletes the row with this
                                identity. There are no figures */
    bool is_ban;             /* of a (resource, key), and not of a limit */
    bool is_clock;           /* only written_at has a meaning: how far the clock of P26 was. The row
                                follows removed rows, and changes that have no row any more */
    doorman_limit_kind kind; /* not of a ban */
    doorman_scope per;       /* a ban is per key */
    const char *limit;       /* its name. A ban: the limit that has set it; "": an administrator */
    const char *resource_id; /* "": the counter is per template */
    const char *key;         /* "" if the counter is not per key */
    const char *identifier_glob;   /* of the template of the limit when the row was written */
    const unsigned char *identity; /* equal for two rows if and only if they are about the same
                                      counter or ban (P15). Not for people */
    size_t identity_bytes;         /* at most 800 */
    doorman_time written_at;       /* since 1970, by the clock of P26 */
    doorman_time fresh_at;         /* since 1970: when the counter is fresh, or the ban ends. The
                                      store may delete the row then */
} doorman_permit_row;

/* Reads what a row is about, also one of a later version. The figures are not checked.
 *   row, bytes   as doorman_permits_next_changed has written it
 *   out          written on OK; valid as long as the bytes of the row
 *   error        may be NULL; names what is wrong with the row: "key: ..."
 *   returns      OK | INVALID_ARGUMENT */
DOORMAN_API doorman_status doorman_permit_row_read(const unsigned char *row, size_t bytes,
                                                   doorman_permit_row *out, doorman_error *error);

/* Yields the next row that has changed since it was yielded last. Removed ones come first. A
 * counter that changes again is yielded again. Rows of different counters come in any order, so a
 * caller that lets others use the permits between two calls stops after info.changed_count rows, or
 * later.
 *   out       room for DOORMAN_PERMIT_ROW_BYTES_MAX bytes. Every machine writes the same bytes
 *   returns   the length of the row in bytes; 0: nothing has changed, or the rows of the store are
 *             not read (doorman_permits_set_rows), or memory ran out
 *   cost      O(1), and at most one pass over one bit for each counter of durable limits for all
 *             rows together */
DOORMAN_API size_t doorman_permits_next_changed(doorman_permits *permits, unsigned char *out,
                                                doorman_time now);

/* Says that a row was yielded but not written, so that its counter or ban is yielded again, as it
 * is then. A caller that keeps the bytes and writes them again later need not call this.
 *   row, bytes   used only during the call
 *   error        may be NULL
 *   returns      OK | INVALID_ARGUMENT (as doorman_permit_row_read) | OUT_OF_MEMORY: the call may
 *                be repeated */
DOORMAN_API doorman_status doorman_permits_mark_changed(doorman_permits *permits,
                                                        const unsigned char *row, size_t bytes,
                                                        doorman_error *error);

/* Says that the store has lost its rows, so that all counters of durable limits and all bans are
 * yielded again. Each call marks some of them. Any other call on the permits is allowed between two
 * steps, so a caller can release its lock there. What exists during all steps is yielded once all
 * are marked, unless it was yielded meanwhile.
 *   permits   NULL: nothing is left
 *   cursor    in/out; the caller initialises it with {0}
 *   returns   whether some are left: the caller calls again
 *   cost      O(limits), and O(1) for about 1,000 counters and bans */
DOORMAN_API bool doorman_permits_mark_all(doorman_permits *permits, doorman_counter_cursor *cursor);

/* Restores one row (D5). Precondition: the epoch was set.
 *   row, bytes   used only during the call; checked completely
 *   error        may be NULL; says what is wrong with the row: "figures[0].level: ..."
 *   returns      OK, also if the row is fresh by now, or `removed` |
 *                INVALID_ARGUMENT: the row is malformed, or its version is later than
 *                DOORMAN_PERMIT_ROW_VERSION. Nothing has changed |
 *                NOT_FOUND: the configuration has no durable limit with this name, kind and scope
 *                for the resource. The caller keeps the row until fresh_at, and restores it after
 *                a configuration that has the limit |
 *                RESOURCE_EXHAUSTED: there is no room for one more counter or ban |
 *                OUT_OF_MEMORY: nothing has changed
 *   cost         as of a permit of one item */
DOORMAN_API doorman_status doorman_permits_restore(doorman_permits *permits,
                                                   const unsigned char *row, size_t bytes,
                                                   doorman_error *error, doorman_time now);

/* Whether the rows of a store are restored. */
typedef enum doorman_rows {
    DOORMAN_ROWS_READ,    /* the default: all limits decide, and changes are yielded */
    DOORMAN_ROWS_AWAITED, /* permits that a durable limit concerns are refused with LEARNING, also
                             those with a cost of 0 */
    DOORMAN_ROWS_UNREAD,  /* the same, but only for limits with refuse_unread. What is restored
                             later only takes away */
    DOORMAN_ROWS_COUNT
} doorman_rows;

/* Says whether the rows are restored. New permits begin with READ, and so do those of a server with
 * each victory. So a caller that has a store calls this right after doorman_server_set_master.
 *   returns   OK | INVALID_ARGUMENT */
DOORMAN_API doorman_status doorman_permits_set_rows(doorman_permits *permits, doorman_rows rows);

/* ---- overrides, the public part -------------------------------------------------------------- */
/* An override row gives one key other figures of one limit, from a beginning to an end. It is set
 * at run time, in addition to the overrides of the configuration: for example, to raise the limit
 * of a customer for a day. The permits know no store: the application keeps the rows, and why they
 * were set.
 *
 *     a person sets a row       doorman_permits_set_override or _set_plan, which say what is wrong
 *                               with it
 *     a person ends a row       doorman_permits_end_override or _end_plan
 *     after a restart, and      the epoch, doorman_permits_restore_override and _restore_plan with
 *     after each victory        each row, and then the rows of the counters
 *                               (doorman_permits_restore)
 *
 * E1 An override row concerns one limit per key and one exact key. Of the resources it concerns
 *    one, or all of the template with a glob. The figures of a row replace those of the limit, as
 *    an override of the configuration does: what the row does not give is that of the limit. The
 *    first of these that there is says the figures of a key: a row of the resource, a row of the
 *    glob, a plan (E2), an override of the configuration, the limit.
 *       A row is in force from its beginning to its end, by the clock of P26. It acts at once on
 *    all counters of its key, and on permits that wait for units of CONCURRENCY. A counter is kept,
 *    as in P15, also when the row ends: what was used under the row counts against the figures that
 *    follow. doorman_permits_after_override says what that means.
 *       A row whose limit is not in the configuration, or whose figures break a rule of that limit,
 *    is idle: it has no effect. It acts again as soon as a configuration has a limit that agrees,
 *    and ends at its end. Bans do not change.
 *       A row that adds (`add`) raises the size of a bucket or the limit of a window by some
 *    units, above whatever figures the key has otherwise, so it may be in force beside another row.
 *    While it is in force, the key gets at most so many units more than without it. An existing
 *    bucket gets the units when the row begins, and keeps what it has of them when the row ends, up
 *    to its size. A row that adds to a window ends with this window: that to a FIXED_WINDOW at the
 *    boundary, that to a SLIDING_WINDOW one length after its beginning.
 * E2 A plan is a set of figures with a name. A limit per key has up to 16 plans. A plan row says
 *    which plan a key has, for the template with a glob: the same key may be a user in one template
 *    and a tenant in another. It concerns all limits of the template that have the plan. Its other
 *    limits keep their figures for the key. What a plan does not give is that of the limit.
 *       A plan row is in force from its beginning to its end, acts at once, and keeps counters, as
 *    an override row does. Limits without plans, and limits of templates without plan rows, cost
 *    nothing more than before. A row whose plan is not in the configuration is idle, and acts again
 *    as soon as a configuration has it. A plan may change how long holds last: see P16. */

/* An override row. Its name is: resource_id or identifier_glob, limit, key, and whether it adds.
 * There is at most one row with a name. */
typedef struct doorman_override_row {
    const char *resource_id;     /* the resource that is concerned; NULL: all of a template */
    const char *identifier_glob; /* only without resource_id: the glob of the template, exactly as
                                    the configuration has it. Either of the two is required */
    const char *limit;           /* required: the name of the limit */
    const char *key;             /* exact, not a glob; NULL means "" */
    uint64_t id; /* required, not 0, unique among the rows: chosen by the application, which finds
                    by it what it knows of the row */
    doorman_figures figures; /* as those of an override of a configuration. At least one is given,
                                unless the row adds. A row has no time_to_live, because a master
                                would have to know it before it learns (P16) */
    double add; /* units, (0, 1e15]: the row adds, and `figures` are all 0. Only with resource_id,
                   and not for CONCURRENCY and TIERS. 0: the row has figures */
    doorman_time starts_at; /* since 1970, the first moment of the row; 0: at once */
    doorman_time ends_at;   /* since 1970, the first moment after the row; 0: never. Required if the
                             row adds to a TOKEN_BUCKET */
    bool wire_names;        /* errors have the names of JSON: doorman_json_read_override sets it */
} doorman_override_row;

/* A row as the permits have it. */
typedef struct doorman_override_info {
    doorman_override_row row; /* starts_at is a time. ends_at is earlier than it was set if a window
                                 ends earlier (E1) */
    char key[DOORMAN_ID_BYTES_MAX + 1]; /* row.key points to it */
    bool in_force;       /* it has begun, and is not idle. It may be hidden by another row */
    bool idle;           /* no limit of the configuration has this name, or its figures differ
                                 from what the row needs (E1) */
    const char *glob;    /* of the template whose limit is concerned; NULL: the row is idle */
    doorman_figures all; /* all figures that the row gives its key, without those of a row that
                                 adds. All 0: the row is idle, or it adds */
} doorman_override_info;

/* Sets a row, and replaces the row with the same name. If that one has added units to a bucket, the
 * bucket only gets what the new row adds more.
 *   row       used only during the call
 *   error     may be NULL; names the field: "figures.rate: must be ..."
 *   returns   OK | INVALID_ARGUMENT: a field is wrong, or breaks a rule of the limit; the limit is
 *             shared between keys or does not concern the key; the end has passed |
 *             NOT_FOUND: the configuration has no such template or limit |
 *             RESOURCE_EXHAUSTED: there are override_max rows |
 *             OUT_OF_MEMORY. After an error, a row with this name is as before
 *   cost      O(log rows), and O(permits that wait) for CONCURRENCY. Counters are adapted when they
 *             are used next. A row with new figures needs about 500 bytes, and any other about 100,
 *             beside its key */
DOORMAN_API doorman_status doorman_permits_set_override(doorman_permits *permits,
                                                        const doorman_override_row *row,
                                                        doorman_error *error, doorman_time now);

/* Sets a row that a store has kept. Precondition: the epoch was set. In contrast to
 * doorman_permits_set_override, a row that does not agree with the configuration is kept, as idle.
 * A row that has ended has no effect. A bucket gets the units of a row that adds only if the row
 * begins later: the row of the counter has them already.
 *   returns   OK | INVALID_ARGUMENT: a field is wrong by itself |
 *             RESOURCE_EXHAUSTED | OUT_OF_MEMORY
 *   cost      as doorman_permits_set_override */
DOORMAN_API doorman_status doorman_permits_restore_override(doorman_permits *permits,
                                                            const doorman_override_row *row,
                                                            doorman_error *error, doorman_time now);

/* Ends a row before its time.
 *   name      the fields of the name are read; add: not 0 means a row that adds
 *   error     may be NULL
 *   returns   OK | INVALID_ARGUMENT | NOT_FOUND: there is no such row
 *   cost      as doorman_permits_set_override */
DOORMAN_API doorman_status doorman_permits_end_override(doorman_permits *permits,
                                                        const doorman_override_row *name,
                                                        doorman_error *error, doorman_time now);

/* Finds a row by its name.
 *   name      as in doorman_permits_end_override
 *   out       written on true; pointers in it are valid until the next call that changes the
 *             permits
 *   returns   false: there is no such row
 *   cost      O(1) */
DOORMAN_API bool doorman_permits_find_override(const doorman_permits *permits,
                                               const doorman_override_row *name,
                                               doorman_override_info *out);

/* Where an iteration over rows is. A caller may keep the numbers. */
typedef struct doorman_override_cursor {
    doorman_time next_at; /* since 1970; DOORMAN_NEVER: rows without an end */
    uint64_t id;
} doorman_override_cursor;

/* Iterates over all rows, in the order in which they change next: when a row that has not begun
 * begins, or when one that has begun ends. So the first ones need attention first. Any other call
 * on the permits is allowed between two steps. A row that begins or is replaced during the
 * iteration may be visited twice, or not.
 *   cursor    in/out; the caller initialises it with {0}
 *   out       as in doorman_permits_find_override
 *   returns   false: there are no more rows
 *   cost      O(log rows) */
DOORMAN_API bool doorman_permits_next_override(const doorman_permits *permits,
                                               doorman_override_cursor *cursor,
                                               doorman_override_info *out);

/* Says what a row leaves behind when it ends: the state of a counter under the figures that follow,
 * if nothing more is used until then. For example: used 1,900 of 1,000, and more_after 5 days.
 *   name          as in doorman_permits_end_override
 *   resource_id   of the counter; NULL: that of the row
 *   out           written on OK. Its times count from the end of the row, or from `now` if the row
 *                 has no end. `used` of a window may be more than `most`
 *   returns       OK | INVALID_ARGUMENT: resource_id is missing, or of another template |
 *                 NOT_FOUND: there is no such row, or it is idle |
 *                 OUT_OF_MEMORY
 *   cost          as a permit of one item */
DOORMAN_API doorman_status doorman_permits_after_override(doorman_permits *permits,
                                                          const doorman_override_row *name,
                                                          const char *resource_id,
                                                          doorman_permit_detail *out,
                                                          doorman_error *error, doorman_time now);

/* A plan row. Its name is: identifier_glob and key. There is at most one row with a name. */
typedef struct doorman_plan_row {
    const char *identifier_glob; /* required: as in doorman_override_row */
    const char *key;             /* exact, not a glob; NULL means "" */
    const char *plan;            /* required: the name of a plan */
    uint64_t id;                 /* as in doorman_override_row; unique among the plan rows */
    doorman_time starts_at;      /* since 1970, the first moment of the row; 0: at once */
    doorman_time ends_at;        /* since 1970, the first moment after the row; 0: never */
    bool wire_names; /* errors have the names of JSON: doorman_json_read_plans sets it */
} doorman_plan_row;

/* A plan row as the permits have it. */
typedef struct doorman_plan_info {
    doorman_plan_row row;               /* starts_at is a time */
    char key[DOORMAN_ID_BYTES_MAX + 1]; /* row.key points to it */
    bool in_force; /* it has begun, and is not idle. An override row may hide it */
    bool idle;     /* no limit of the configuration has the plan */
} doorman_plan_info;

/* Gives a key a plan, and replaces the row with the same name. Permits that wait for units of
 * CONCURRENCY are served by the next doorman_permits_update, which is due at once.
 *   row       used only during the call
 *   error     may be NULL; names the field
 *   returns   OK | INVALID_ARGUMENT: a field is wrong, or the end has passed |
 *             NOT_FOUND: the configuration has no such template, or none of its limits has the
 *             plan | RESOURCE_EXHAUSTED: there are plan_max rows |
 *             OUT_OF_MEMORY. After an error, a row with this name is as before
 *   cost      O(log rows). Counters are adapted when they are used next. A row needs about 100
 *             bytes beside its key */
DOORMAN_API doorman_status doorman_permits_set_plan(doorman_permits *permits,
                                                    const doorman_plan_row *row,
                                                    doorman_error *error, doorman_time now);

/* Says what doorman_permits_set_plan would say of a row now, without the bound plan_max. So many
 * rows can be checked before the first one is set.
 *   returns   OK | INVALID_ARGUMENT | NOT_FOUND
 *   cost      O(templates) */
DOORMAN_API doorman_status doorman_permits_check_plan(doorman_permits *permits,
                                                      const doorman_plan_row *row,
                                                      doorman_error *error, doorman_time now);

/* Sets a row that a store has kept. Precondition: the epoch was set. In contrast to
 * doorman_permits_set_plan, a row whose plan is not in the configuration is kept, as idle. A row
 * that has ended has no effect.
 *   returns   OK | INVALID_ARGUMENT: a field is wrong by itself |
 *             RESOURCE_EXHAUSTED | OUT_OF_MEMORY
 *   cost      as doorman_permits_set_plan */
DOORMAN_API doorman_status doorman_permits_restore_plan(doorman_permits *permits,
                                                        const doorman_plan_row *row,
                                                        doorman_error *error, doorman_time now);

/* Ends a row before its time.
 *   name      identifier_glob and key are read
 *   error     may be NULL
 *   returns   OK | INVALID_ARGUMENT | NOT_FOUND: there is no such row
 *   cost      as doorman_permits_set_plan */
DOORMAN_API doorman_status doorman_permits_end_plan(doorman_permits *permits,
                                                    const doorman_plan_row *name,
                                                    doorman_error *error, doorman_time now);

/* Finds a row by its name.
 *   name      as in doorman_permits_end_plan
 *   out       written on true; pointers in it are valid until the next call that changes the
 *             permits
 *   returns   false: there is no such row
 *   cost      O(1) */
DOORMAN_API bool doorman_permits_find_plan(const doorman_permits *permits,
                                           const doorman_plan_row *name, doorman_plan_info *out);

/* Iterates over all plan rows, as doorman_permits_next_override does over override rows. */
DOORMAN_API bool doorman_permits_next_plan(const doorman_permits *permits,
                                           doorman_override_cursor *cursor, doorman_plan_info *out);

/* ---- holds, the public part ----------------------------------------------------------------- */
/* A hold is a granted permit on a limit of kind CONCURRENCY. Its units stay taken until they are
 * released, or until the hold ends. A hold ends after its time to live, except if it is renewed. So
 * units come back after the crash of their holder.
 *
 *     acquire ... granted: hold_id            the hold ends after time_to_live
 *             ... pending: it waits           doorman_permits_next_decision has the decision later
 *     renew                                   the hold ends later
 *     release                                 the holder keeps less, or nothing
 *     transfer, then seize                    another client takes units over
 *
 * A client measures the end of its hold from the time at which it sent the request: this time, plus
 * waited / (1 + drift), plus expires_in. The permits count the units for longer, so clocks that run
 * at different rates do no harm. The client stops using units before it sends a release or a
 * transfer. After `gone`, or after a smaller amount in a response, it may use what it had until the
 * end that it has measured.
 *
 * The right to a hold is its client_id. So a client_id must be long and random. A client repeats a
 * request with the same request_id. Then the permits do not grant, transfer or seize twice. */

/* Units of one item of a hold. */
typedef struct doorman_hold_item {
    const char *resource_id;
    const char *key; /* NULL means "" */
    double amount;   /* units */
} doorman_hold_item;

/* What a client asks about a hold. Fields that the function does not name must be 0. */
struct doorman_hold_request {
    const char *client_id;     /* required: 1 to 256 bytes */
    uint64_t id;               /* of the hold, or of the transfer that is seized */
    uint64_t request_id;       /* 1 to 2^53 - 1 */
    doorman_time time_to_live; /* at most that of the limits; 0: that of the limits */
    doorman_time timeout;      /* only for permit clients and agents: how long the caller of a
                                  transfer or a seizure waits, more than 0 */
    const double *amounts; /* units, one for each item of the hold, in the order of its permit */
    size_t amount_count;   /* 0: see the function */
    const doorman_hold_item *items; /* RENEW after a change of master: what is held */
    size_t item_count;
};

/* What a client holds after a call. */
struct doorman_hold {
    bool gone;               /* there is no such hold of this client. All other fields are 0, except
                                that a used transfer keeps its id while its source is held */
    doorman_reason reason;   /* a transfer or a seizure was refused: MAX_HOLDS, or REPEATED if the
                                request_id belongs to something else. Nothing has changed */
    uint64_t id;             /* of the hold, or of the transfer */
    const char *node;        /* the node that knows the hold; NULL: not known */
    doorman_time expires_in; /* how long the hold lasts, for its client; 0 after a release */
    const doorman_hold_item *items; /* what is held, or transferred, now */
    size_t item_count;
};

/* The functions below have these parameters and results.
 *   request   used only during the call; checked
 *   out       written on OK; pointers in it are valid until the next call on the permits
 *   error     may be NULL; describes an INVALID_ARGUMENT
 *   returns   OK, also if the hold is gone | INVALID_ARGUMENT | RESOURCE_EXHAUSTED (a renewal has
 *             more than item_max items) | OUT_OF_MEMORY: nothing has changed
 *   cost      O(log holds) for each item and limit. The call also ends at most 256 other holds, and
 *             decides on at most 256 permits that wait for units; a release on at most 512 */

/* Lets a hold end later. While the permits learn, an unknown hold is believed within the units that
 * are free, if `items` says what is held.
 *   request   client_id and id; optionally items, and time_to_live for an unknown hold */
DOORMAN_API doorman_status doorman_permits_renew(doorman_permits *permits,
                                                 const doorman_hold_request *request,
                                                 doorman_hold *out, doorman_error *error,
                                                 doorman_time now);

/* Gives units back. The amount of each item becomes the smaller of what is held and what is kept.
 * So a repeated release has no effect. A request_id also cancels a permit that waits.
 *   request   client_id, and either id or request_id; optionally amounts: what is kept. Without
 *             amounts nothing is kept
 *   cost      also O(log holds) for each permit with `share` that the call refuses */
DOORMAN_API doorman_status doorman_permits_release(doorman_permits *permits,
                                                   const doorman_hold_request *request,
                                                   doorman_hold *out, doorman_error *error,
                                                   doorman_time now);

/* Moves units of a hold into a transfer, which belongs to nobody. Its units stay taken until its
 * end, or until a client seizes them. Any client that knows its id can seize it.
 *   request   client_id, id of the hold, and request_id; optionally amounts: what is moved, and
 *             time_to_live. Without amounts all units are moved. If an amount is larger than the
 *             cost of its item, the call returns INVALID_ARGUMENT. If it is larger than what is
 *             held, all units are moved, because the holder may not know yet that it holds less. If
 *             only some units are moved, their amount is rounded down to 1/4096
 *   out       the transfer. It is gone if it was seized, or has ended, or if no units would be
 *             moved. The hold stays then */
DOORMAN_API doorman_status doorman_permits_transfer(doorman_permits *permits,
                                                    const doorman_hold_request *request,
                                                    doorman_hold *out, doorman_error *error,
                                                    doorman_time now);

/* Makes the units of a transfer a hold of the client.
 *   request   client_id, id of the transfer, and request_id of the new hold; optionally
 *             time_to_live */
DOORMAN_API doorman_status doorman_permits_seize(doorman_permits *permits,
                                                 const doorman_hold_request *request,
                                                 doorman_hold *out, doorman_error *error,
                                                 doorman_time now);

/* Removes all permits of a connection that wait. doorman_permits_next_decision returns no decision
 * on them.
 *   connection   as in doorman_permit_request, not 0
 *   returns      how many permits were removed
 *   cost         O(permits that wait) */
DOORMAN_API size_t doorman_permits_cancel(doorman_permits *permits, uint64_t connection,
                                          doorman_time now);

/* Gives the next decision on a permit that has waited. Call it after each other call on the
 * permits, until it returns false.
 *   ticket    written on true: the ticket of the pending permit
 *   out       written on true, as by doorman_permits_acquire */
DOORMAN_API bool doorman_permits_next_decision(doorman_permits *permits, uint64_t *ticket,
                                               doorman_permit *out);

/* A hold or a transfer, for people. */
typedef struct doorman_permits_hold {
    const char *client_id; /* NULL: a transfer, which belongs to nobody */
    uint64_t id;
    const char *resource_id, *key; /* of the first item */
    double amount;                 /* units of the first item */
    size_t item_count;
    doorman_time granted_at, ends_at;
} doorman_permits_hold;

/* Iterates over the holds and transfers, the longest-held first. There are at most 100 (P20).
 *   cursor    in/out; the caller initialises it with {0}. A cursor is only valid until the next
 *             call that changes the permits
 *   out       written on true; pointers in it are valid as long as the cursor
 *   returns   false: there are no more holds
 *   cost      O(100) */
DOORMAN_API bool doorman_permits_next_hold(const doorman_permits *permits, doorman_cursor *cursor,
                                           doorman_permits_hold *out);

/* Finds a hold or a transfer.
 *   out       written on true, as by doorman_permits_next_hold
 *   returns   false: there is none with this id */
DOORMAN_API bool doorman_permits_find_hold(const doorman_permits *permits, uint64_t id,
                                           doorman_permits_hold *out);

/* Ends a hold or a transfer, as if its time had come: its units are free at once, and permits that
 * wait for them are decided. Its client learns it with its next renewal. While the permits learn
 * (P16), such a renewal may bring the hold back.
 *   returns   false: there is none with this id
 *   cost      as a release */
DOORMAN_API bool doorman_permits_end_hold(doorman_permits *permits, uint64_t id, doorman_time now);

/* A permit that waits, for people. */
typedef struct doorman_permits_wait {
    const char *client_id;
    const char *resource_id, *key; /* of the item that lacks units */
    const char *limit;             /* NULL: the permit is decided at the next call */
    double cost;                   /* units of this item */
    int priority;
    doorman_time asked_at, ends_at; /* ends_at: the permit is refused then */
} doorman_permits_wait;

/* Iterates over the permits that wait, the earliest first. There are at most 100 (P20). The
 * parameters are those of doorman_permits_next_hold. */
DOORMAN_API bool doorman_permits_next_wait(const doorman_permits *permits, doorman_cursor *cursor,
                                           doorman_permits_wait *out);

/* ---- descriptors, the public part ----------------------------------------------------------- */
/* A gateway, such as Envoy, describes a request by descriptors: lists of keys and values. A
 * descriptor becomes an item of a permit. The rule W1 in the section >>descriptors says how. */

/* A key of a descriptor, and a glob for its value. */
typedef struct doorman_descriptor_match {
    const char *key;   /* required: 1 to 256 bytes of UTF-8 without control characters */
    const char *value; /* required: a glob of 0 to 256 bytes of UTF-8 without control characters */
} doorman_descriptor_match;

/* A rule of a configuration: which descriptors it matches, and which resource and key they have.
 * {name} in `resource` and `key` is replaced by the value of the entry with the key `name`, which
 * must be in the rule once. {{ and }} are braces. If there are several placeholders, `/` and `%` in
 * their values are escaped as %2F and %25. */
struct doorman_descriptor_rule {
    const char *domain;                      /* required: 1 to 256 bytes; compared as it is */
    const doorman_descriptor_match *entries; /* a descriptor has these keys, in this order */
    size_t entry_count;                      /* 1 to 16 */
    const char *resource;                    /* required: 1 to 256 bytes */
    const char *key;                         /* 0 to 256 bytes; NULL means "" */
};

#define DOORMAN_DESCRIPTOR_ENTRIES_MAX 16 /* of a rule */
#define DOORMAN_DESCRIPTOR_RULES_MAX 1000 /* of a configuration */

/* An entry of a descriptor, as a client sends it: any bytes. A pointer may be NULL if there are no
 * bytes. */
typedef struct doorman_descriptor_entry {
    const char *key;
    size_t key_bytes;
    const char *value;
    size_t value_bytes;
} doorman_descriptor_entry;

/* What a descriptor becomes. Both names are valid in an item of a permit. */
typedef struct doorman_descriptor_item {
    char resource_id[DOORMAN_ID_BYTES_MAX + 1];
    char key[DOORMAN_ID_BYTES_MAX + 1];
    bool matched; /* false: no rule matches, and the names are the default ones */
    bool hashed;  /* the resource or the key is "sha256:" and 64 digits, because it is too long, or
                     not valid, or begins with "sha256:" */
    size_t rule;  /* matched: the index of the rule */
} doorman_descriptor_item;

/* Returns the rules of a configuration for doorman_descriptors_resolve. They belong to config.
 *   config    may be NULL
 *   returns   NULL: there are none */
DOORMAN_API const doorman_descriptors *doorman_config_descriptors(const doorman_config *config);

/* Makes an item of a descriptor. Needs no memory, and any number of threads may call it.
 *   rules     may be NULL: the names are the default ones
 *   domain    required; may be empty
 *   entries   may be NULL if count is 0. A descriptor of more than 16 entries matches no rule
 *   out       written in full on OK
 *   returns   OK | INVALID_ARGUMENT (NULL). What a client sends is never an error
 *   cost      a hash of the domain and keys, a match of the values for each rule with the same
 *             domain and keys, and a copy of the values. A name that is too long is also hashed */
DOORMAN_API doorman_status doorman_descriptors_resolve(const doorman_descriptors *rules,
                                                       const char *domain,
                                                       const doorman_descriptor_entry *entries,
                                                       size_t count, doorman_descriptor_item *out);

/* ---- limiters by key, the public part ------------------------------------------------------- */
/* A map has one limit, and a limiter for each key that was used lately. A program without a server
 * can limit each of a million users with it. Idle keys are forgotten: their limiters equal new
 * ones. The map grows a little at a time, so no call pauses. One thread at a time may use a map. */
typedef struct doorman_limiter_map doorman_limiter_map;

typedef struct doorman_limiter_map_options {
    doorman_limit_options limit; /* any kind except SLIDING_LOG */
    size_t max_keys;             /* the most keys, up to 10,000,000; default 1,000,000 */
    bool refuse_new;             /* true: at max_keys, new keys are refused. false: of 8 sampled
                                    keys, the one nearest to a fresh one is forgotten, but none that
                                    holds units of CONCURRENCY */
    uint64_t seed[2]; /* random bits, needed if other people choose the keys (C8). If both numbers
                         are 0 and DOORMAN_NNG is defined, the library takes random bits from the
                         system */
} doorman_limiter_map_options;

/* Creates an empty map.
 *   out       written only on OK; the caller destroys it
 *   error     may be NULL; names the field that is wrong
 *   returns   OK | INVALID_ARGUMENT | OUT_OF_MEMORY */
DOORMAN_API doorman_status doorman_limiter_map_create(doorman_limiter_map **out,
                                                      const doorman_limiter_map_options *options,
                                                      doorman_error *error);
DOORMAN_API void doorman_limiter_map_destroy(doorman_limiter_map *map); /* NULL has no effect */

/* Takes n units of a key, as doorman_limiter_try does. A key that is new, and for which there is no
 * room or no memory, is REFUSED.
 *   key       any bytes; may be NULL if key_bytes is 0
 *   key_bytes 0 to 256; more, or a NULL key with bytes: IMPOSSIBLE
 *   cost      O(1) */
DOORMAN_API doorman_decision doorman_limiter_map_try(doorman_limiter_map *map, const void *key,
                                                     size_t key_bytes, double n,
                                                     doorman_result *out, doorman_time now);

/* Releases n units of a key of a CONCURRENCY limit, as doorman_limiter_release does.
 *   returns   as doorman_limiter_release. A key that is not known has no units in use */
DOORMAN_API doorman_status doorman_limiter_map_release(doorman_limiter_map *map, const void *key,
                                                       size_t key_bytes, double n);

/* Forgets a key. Its next call finds a new limiter.
 *   returns   whether the key was known */
DOORMAN_API bool doorman_limiter_map_reset(doorman_limiter_map *map, const void *key,
                                           size_t key_bytes);

/* Forgets idle keys, and returns how many keys are known.
 *   visits_max   about how many keys the call visits. 0: the call only counts. SIZE_MAX: the call
 *                visits all keys once. Calls of doorman_limiter_map_try visit 4 keys each, so most
 *                programs pass 0
 *   cost         O(visits_max), and at most O(keys) */
DOORMAN_API size_t doorman_limiter_map_sweep(doorman_limiter_map *map, size_t visits_max,
                                             doorman_time now);

/* ---- permit clients, the public part -------------------------------------------------------- */
/* A permit client asks servers for permits on behalf of many callers. It has no thread and no
 * clock. An agent has one already: see doorman_agent_acquire. The loop is that of doorman_upstream,
 * with one addition:
 *
 *     doorman_upstream *upstream = doorman_permit_client_upstream(client);
 *     as in the loop of doorman_upstream; and after each call on the upstream or the client
 *         while (doorman_permit_client_next(client, &context, &acquired, now))
 *             tell the caller who passed this context
 *
 * The client decides some permits by itself: see P22 to P25 in "permits, the public part". */
typedef struct doorman_permit_client doorman_permit_client;

#define DOORMAN_PERMIT_ITEMS_MAX 100 /* of one permit */

/* Says who has decided on a permit. */
typedef enum doorman_decider {
    DOORMAN_BY_SERVER,
    DOORMAN_BY_REFUSAL,  /* a server has refused the same a short time ago (P22) */
    DOORMAN_BY_FALLBACK, /* no server has decided (P23) */
    DOORMAN_BY_BYPASS,   /* the kill switch is on, or `shadow` is set (P25) */
    DOORMAN_BY_CALLER,   /* the caller has released the number of the hold before the decision, or
                            before it asked. A transfer: there is no such hold, or it has none of
                            the units */
    DOORMAN_BY_PREFETCH  /* granted out of units that were taken ahead (P24). `limit`, `remaining`
                            and `warning` are those of the last answer of a server */
} doorman_decider;

/* What a caller gets. */
typedef struct doorman_acquired {
    bool granted;
    bool warning; /* granted, but a warn_at was passed */
    doorman_decider decided_by;
    doorman_time wait; /* granted: 0, because the caller has waited already. More than 0 only if the
                          timeout has passed: the caller must wait this much longer */
    double units[DOORMAN_PERMIT_ITEMS_MAX]; /* granted: the units of each item, in their order. The
                                               rest is 0 */
    /* granted: the limit that has the fewest units left. Refused: the limit that refuses. "": there
     * is none, or it is not known */
    char limit[DOORMAN_ID_BYTES_MAX + 1];
    /* granted, or with detail: the units that are left of this limit, and the time until it is
     * fresh again */
    double remaining;
    doorman_time reset_after;
    /* With `detail` of the request, if a server has decided and `limit` has them: the figures for
     * the header RateLimit-Policy, also of a refusal. Else 0 */
    double quota;             /* units: `most` of doorman_permit_detail */
    doorman_time window;      /* as in doorman_permit_detail */
    doorman_reason reason;    /* refused; NO_REASON: no server has given a reason */
    size_t item_index;        /* refused: the item that is refused */
    bool has_retry_after;     /* refused; false: waiting does not help, or it is not known */
    doorman_time retry_after; /* refused: the same permit could be granted then */
    uint64_t hold;            /* granted: the number of the hold; 0: nothing is held, and a release
                                 is not needed */
    doorman_time ends_at;     /* of the hold, if it is not renewed */
    uint64_t transfer_id;     /* of a granted transfer; 0: none */
} doorman_acquired;

/* A hold of a permit client, as its application may use it. */
struct doorman_held {
    uint64_t hold;        /* its number */
    bool gone;            /* the hold has ended, or the server does not count it any more. The
                             client does not renew it */
    doorman_time ends_at; /* the application may use the units before this time */
    size_t item_count;
    double units[DOORMAN_PERMIT_ITEMS_MAX]; /* of each item, in the order of the permit */
};

/* Creates a permit client.
 *   out       written only on OK; the caller destroys it
 *   options   as for doorman_client_create. The default of request_timeout is 1 s
 *   error     may be NULL
 *   returns   as doorman_client_create */
DOORMAN_API doorman_status doorman_permit_client_create(doorman_permit_client **out,
                                                        const doorman_client_options *options,
                                                        doorman_error *error, doorman_time now);

/* Frees the client. Permits without a decision get none. NULL has no effect. */
DOORMAN_API void doorman_permit_client_destroy(doorman_permit_client *client);

/* Returns the upstream of the client, for the caller's loop.
 *   returns   never NULL; belongs to the client, which frees it */
DOORMAN_API doorman_upstream *doorman_permit_client_upstream(doorman_permit_client *client);

/* Adds a lane: one more upstream, which has one message of its own under way. Each lane sends one
 * permit that may wait in the queue of a server. Without a lane such a permit delays all other
 * messages of the client. There are at most DOORMAN_PERMIT_LANES_MAX lanes.
 *   out       written on OK; belongs to the client. The caller runs its loop as well
 *   returns   OK | RESOURCE_EXHAUSTED | OUT_OF_MEMORY */
#define DOORMAN_PERMIT_LANES_MAX 64
DOORMAN_API doorman_status doorman_permit_client_add_lane(doorman_permit_client *client,
                                                          doorman_upstream **out);

/* Asks for a permit. doorman_permit_client_next returns the decision later. With `hold`, the client
 * renews what is granted until it is released, or gone: see "holds of a client" below.
 *   request   used only during the call; checked. With `detail` the decision has the figures of
 *             its limit. client_id and connection have no effect
 *   timeout   the decision comes within this time, with the wait of a grant. 0 or less: the call
 *             waits for no server. If the client cannot decide by itself, the fallback decides
 *             (P23), and no message is sent
 *   context   returned with the decision
 *   error     may be NULL; describes an INVALID_ARGUMENT
 *   returns   OK | INVALID_ARGUMENT | OUT_OF_MEMORY */
DOORMAN_API doorman_status doorman_permit_client_acquire(doorman_permit_client *client,
                                                         const doorman_permit_request *request,
                                                         doorman_time timeout, void *context,
                                                         doorman_error *error, doorman_time now);

/* Reports what an action has really cost (P13). The report is sent with one of the next messages.
 * A report is lost, and counted, if no server takes it, or if 10,000 reports wait already. Units
 * that do not fit into a limit are counted too.
 *   item      resource_id, key (NULL means "") and cost, in units, [-1e15, 1e15]; used only during
 *             the call
 *   returns   OK | INVALID_ARGUMENT | OUT_OF_MEMORY */
DOORMAN_API doorman_status doorman_permit_client_report(doorman_permit_client *client,
                                                        const doorman_permit_item *item,
                                                        doorman_error *error, doorman_time now);

/* Returns the next decision.
 *   context   written on true: that of doorman_permit_client_acquire
 *   out       written in full on true
 *   returns   false: there is no decision now */
DOORMAN_API bool doorman_permit_client_next(doorman_permit_client *client, void **context,
                                            doorman_acquired *out, doorman_time now);

/* Holds of a client. A hold has a number, and belongs to the client, not to a thread. The client
 * renews a hold at a third of its life. If servers fail, the hold lasts until ends_at, and no
 * longer. The application stops using units before it releases or transfers them.
 *
 * Release, transfer and seize take a doorman_hold_request. `id` is the number of the hold, or the
 * id of the transfer that is seized. client_id, request_id and items have no effect. The results
 * are
 *   OK | INVALID_ARGUMENT | OUT_OF_MEMORY */

/* Gives out the number of a hold that does not exist yet. No other hold of the client has it. One
 * permit can have this number as its request_id. So the application knows the number before it asks
 * for the permit, and can release it at any moment:
 *   - before the permit is asked for: the permit ends at once. It is refused BY_CALLER
 *   - before the decision: the same
 *   - after it: the units are released
 * The number needs memory until its permit has ended, or until it is released. So a number that is
 * not used must be released. A number is not used if doorman_permit_client_acquire returns an error
 * for its permit.
 *     A permit is also refused BY_CALLER if the hold of its number has ended. If another permit
 * with this number waits, or holds units, doorman_permit_client_acquire returns INVALID_ARGUMENT.
 *   out       written on OK: 1 to 2^53 - 1
 *   returns   OK | INVALID_ARGUMENT | RESOURCE_EXHAUSTED (100,000 numbers have no permit yet) |
 *             OUT_OF_MEMORY */
DOORMAN_API doorman_status doorman_permit_client_new_hold(doorman_permit_client *client,
                                                          uint64_t *out);

/* Releases units of a hold. The call is safe at any moment. Before the decision on a permit, it
 * cancels the permit. If the hold is gone, was released or comes from a fallback, the call does
 * nothing. A release needs no memory.
 *   request   id; optionally amounts: what is kept, in the order of the items. An item without an
 *             amount keeps nothing */
DOORMAN_API doorman_status doorman_permit_client_release(doorman_permit_client *client,
                                                         const doorman_hold_request *request,
                                                         doorman_error *error, doorman_time now);

/* Moves units of a hold into a transfer, which another client can seize.
 * doorman_permit_client_next gives its transfer_id later. The units leave the hold at once. If the
 * server refuses the transfer, they return to the hold. Without an answer within the timeout they
 * do not return. A transfer does not survive a change of master.
 *   request   id and timeout; optionally amounts: what is moved, and time_to_live of the transfer.
 *             Without amounts all units are moved */
DOORMAN_API doorman_status doorman_permit_client_transfer(doorman_permit_client *client,
                                                          const doorman_hold_request *request,
                                                          void *context, doorman_error *error,
                                                          doorman_time now);

/* Makes the units of a transfer a hold of this client. doorman_permit_client_next gives the
 * decision later. The fallback always refuses. If the transfer is gone, the decision is a refusal
 * by the server without a reason.
 *   request   id of the transfer, and timeout; optionally time_to_live of the hold */
DOORMAN_API doorman_status doorman_permit_client_seize(doorman_permit_client *client,
                                                       const doorman_hold_request *request,
                                                       void *context, doorman_error *error,
                                                       doorman_time now);

/* Reads a hold.
 *   hold      its number
 *   out       written in full. `gone` is true if there is no such hold now. Before the decision,
 *             `gone` is false and ends_at is 0 */
DOORMAN_API void doorman_permit_client_read_hold(const doorman_permit_client *client, uint64_t hold,
                                                 doorman_held *out);

/* Returns the next hold that has become smaller or is gone without a call of the application. Call
 * it together with doorman_permit_client_next. The application may use what it had until ends_at.
 *   out       written in full on true
 *   returns   false: there is no change now */
DOORMAN_API bool doorman_permit_client_next_change(doorman_permit_client *client, doorman_held *out,
                                                   doorman_time now);

/* Turns the kill switch on or off (P25). */
DOORMAN_API void doorman_permit_client_kill_switch(doorman_permit_client *client, bool on);

/* Reads what the client has done.
 *   out   written in full */
DOORMAN_API void doorman_permit_client_read(const doorman_permit_client *client,
                                            doorman_permit_client_info *out);

/* ---- permits of a server and of an agent, the public part ------------------------------------ */

/* Returns the permits of a server, for metrics, status pages and a store. Each mastership begins
 * without counters. The server uses them for all messages on permits and holds. It also does their
 * work that is due, so the caller need not call doorman_permits_update.
 *   returns   belongs to the server, and is valid until the next call on the server; NULL: the
 *             server was not master at its last call */
DOORMAN_API doorman_permits *doorman_server_permits(doorman_server *server);

#ifdef DOORMAN_JSON
/* ---- JSON of overrides, the public part ------------------------------------------------------ */

#define DOORMAN_REASON_BYTES_MAX 1024 /* of the reason of an override row */

/* An override row in JSON, and what only an administrator's message has. The caller initialises it
 * with {0}. */
typedef struct doorman_override_message {
    doorman_override_row row; /* `id` is not read */
    doorman_time expires_in;  /* the time until the row ends, instead of row.ends_at; 0: none */
    const char *reason;       /* NULL: none. 1 to DOORMAN_REASON_BYTES_MAX bytes of UTF-8 */
    void *tree;               /* private, as the next one: has what the pointers point to */
    doorman__arena arena;
} doorman_override_message;

/* Frees the memory of a message. It may be used again. */
DOORMAN_API void doorman_override_message_uninit(doorman_override_message *message);

/* Reads a row: {"resource" or "glob", "limit", "key", "set": {figures as in a configuration} or
 * "add", "starts_at", "ends_at" or "expires_in", "reason"}. starts_at and ends_at are seconds since
 * 1970.
 *   out       written in full; valid until its uninit. The call frees what it had before
 *   text      used only during the call; it need not end with a NUL
 *   error     may be NULL; names the field with its path: "set.rate: must be ..."
 *   returns   OK | INVALID_ARGUMENT | RESOURCE_EXHAUSTED (too large) | OUT_OF_MEMORY
 *   cost      O(bytes) */
DOORMAN_API doorman_status doorman_json_read_override(doorman_override_message *out,
                                                      const char *text, size_t bytes,
                                                      doorman_error *error);

/* Writes a row as an object of JSON, with its fields as in doorman_json_read_override, with `id`,
 * and without expires_in. doorman_json_read_override makes an equal row from the text without
 * `id`.
 *   reason    NULL: none
 *   text      in/out: its text is replaced
 *   returns   OK | OUT_OF_MEMORY | INVALID_ARGUMENT (NULL) */
DOORMAN_API doorman_status doorman_json_write_override(const doorman_override_row *row,
                                                       const char *reason, doorman_buffer *text);

/* A plan row in JSON. */
typedef struct doorman_plan_entry {
    doorman_plan_row row;    /* `id` is not read */
    doorman_time expires_in; /* the time until the row ends, instead of row.ends_at; 0: none */
} doorman_plan_entry;

/* Plan rows in JSON. The caller initialises it with {0}. */
typedef struct doorman_plans_message {
    const doorman_plan_entry *plans;
    size_t plan_count;  /* at most 10,000 */
    bool is_bulk;       /* the text has a list; false: it is one row */
    const char *reason; /* as in doorman_override_message */
    void *tree;         /* private, as the next one: has what the pointers point to */
    doorman__arena arena;
} doorman_plans_message;

/* Frees the memory of a message. It may be used again. */
DOORMAN_API void doorman_plans_message_uninit(doorman_plans_message *message);

/* Reads one row: {"glob", "key", "plan", "starts_at", "ends_at" or "expires_in", "reason"}. Or
 * several rows: {"plans": [such rows without a reason], "reason"}.
 *   out       written in full on OK; valid until its uninit. The call frees what it had before
 *   text      used only during the call; it need not end with a NUL
 *   problems  out: the first `room` errors, with their paths: "plans[17].plan: must be ..."
 *   count     out: how many errors there are; may be more than room
 *   returns   OK | INVALID_ARGUMENT | RESOURCE_EXHAUSTED (too large) | OUT_OF_MEMORY
 *   cost      O(bytes) */
DOORMAN_API doorman_status doorman_json_read_plans(doorman_plans_message *out, const char *text,
                                                   size_t bytes, doorman_config_problem *problems,
                                                   size_t room, size_t *count);

/* Writes a row as an object of JSON, as doorman_json_write_override does. */
DOORMAN_API doorman_status doorman_json_write_plan(const doorman_plan_row *row, const char *reason,
                                                   doorman_buffer *text);

/* ---- JSON, the public part of messages on permits -------------------------------------------- */

/* Puts the decision on a permit that has waited into the response. Such permits are only in
 * messages whose request.may_wait was set before step 2. Step 3 must not be done while a permit of
 * `response` is pending.
 *   ticket, decision   from doorman_permits_next_decision
 *   returns            OK | INVALID_ARGUMENT (NULL) | NOT_FOUND (no permit of the response waits
 *                      with this ticket) | OUT_OF_MEMORY: step 3 then writes this error */
DOORMAN_API doorman_status doorman_json_exchange_settle(doorman_json_exchange *exchange,
                                                        uint64_t ticket,
                                                        const doorman_permit *decision);

/* Goes back to the time before step 2, if permits of the response are pending. The server has
 * forgotten them, for example because it is no longer master. Step 2 may be done again. */
DOORMAN_API void doorman_json_exchange_undo(doorman_json_exchange *exchange);
#endif /* DOORMAN_JSON */

#ifdef DOORMAN_NNG
/* Asks a server for a permit, and waits for the decision. If the permit is granted with a wait, the
 * call also waits for that time. Permits of many threads travel in one message. If no server
 * decides within the timeout, the policy in the options decides. So the call always ends in time. A
 * thread may be cancelled while it waits.
 *   request   used only during the call. With `detail` the decision has the figures of its limit. A
 *             max_wait that is longer than the timeout has the effect of the timeout
 *   timeout   0 or less: does not wait, like doorman_resource_wait: the agent or else its fallback
 *             decides, without a message; DOORMAN_NEVER: the request_timeout of the options bounds
 *             the wait for each server
 *   out       written in full on OK. A refusal is OK too
 *   error     may be NULL
 *   returns   OK | INVALID_ARGUMENT | OUT_OF_MEMORY | UNAVAILABLE (the agent is shut down, or the
 *             system has no thread) | DEADLOCK (also within on_decided)
 *   cost      at most one message. None after a refusal that is still valid (P22), for units that
 *             were taken ahead (P24), or while the servers fail (P23) */
DOORMAN_API doorman_status doorman_agent_acquire(doorman_agent *agent,
                                                 const doorman_permit_request *request,
                                                 doorman_time timeout, doorman_acquired *out,
                                                 doorman_error *error);

/* Asks for a permit like doorman_agent_acquire, but does not wait.
 *   on_decided   called once if the result is OK, in a thread of the agent. `status` is OK, or
 *                UNAVAILABLE if the agent was shut down. Only on OK, `acquired` is not NULL; it is
 *                valid only during the call. on_decided should return soon, because other decisions
 *                wait for it. It may call this function, doorman_agent_report and the functions of
 *                resources. doorman_agent_acquire and doorman_agent_stop return DEADLOCK there
 *   returns      as doorman_agent_acquire */
DOORMAN_API doorman_status doorman_agent_acquire_async(
    doorman_agent *agent, const doorman_permit_request *request, doorman_time timeout,
    void (*on_decided)(void *context, doorman_status status, const doorman_acquired *acquired),
    void *context, doorman_error *error);

/* Holds of an agent. A permit with `hold` waits for its units for at most max_wait, and then holds
 * them:
 *
 * <!-- file: examples/job_pool.c -->
 *     const doorman_permit_item item = {.resource_id = "jobs", .cost = slots};
 *     uint64_t hold = 0;
 *     const doorman_permit_request request = {
 *         .items = &item, .item_count = 1, .max_wait = max_wait, .hold = &hold};
 *     doorman_acquired out = {.granted = false};
 *     doorman_agent_acquire(p->agent, &request, max_wait + 5 * DOORMAN_SECOND, &out, NULL);
 *
 * Later, doorman_agent_release(p->agent, hold) gives the units back.
 *
 * To cancel a permit that waits, another thread releases its number. That thread cannot read `hold`
 * before the call has returned, because the call writes it. So the program takes a number first,
 * with doorman_agent_new_hold(agent, &job->number). The thread that waits asks with this number:
 *
 * <!-- file: tests/system/agent_holds_test.c -->
 *     const doorman_permit_request request = {
 *         .items = &item, .item_count = 1, .max_wait = max_wait, .request_id = job->number};
 *     job->status = doorman_agent_acquire(job->agent, &request, timeout, &job->out, NULL);
 *
 * The other thread calls doorman_agent_release(agent, job->number) at any moment. If that is before
 * the decision, `granted` is false, and decided_by is DOORMAN_BY_CALLER. If it is even before the
 * permit is asked for, the same happens, and the call returns at once. If it is after the decision,
 * the units are released. `granted` may be true then, but doorman_agent_read_hold says that the
 * hold is gone.
 *
 * A hold belongs to the agent, and not to a thread. The agent renews it in the background until it
 * is released, gone, or until the agent stops. If the thread that uses a hold ends without a
 * release, the hold stays. A thread that is cancelled in doorman_agent_acquire gets no hold.
 * doorman_agent_stop sends the releases that are left, but does not release other holds, because
 * their units may still be in use. Those holds end when their time to live has passed. */

/* Gives out the number of a hold, for the request_id of a permit: see "holds of an agent" and
 * doorman_permit_client_new_hold. A number that is not used must be released.
 *   out       written on OK
 *   returns   OK | INVALID_ARGUMENT | RESOURCE_EXHAUSTED | OUT_OF_MEMORY
 *   cost      a mutex */
DOORMAN_API doorman_status doorman_agent_new_hold(doorman_agent *agent, uint64_t *out);

/* Releases all units of a hold. Any thread may call it at any moment: before a permit is asked for
 * with a number of doorman_agent_new_hold, while it is asked for, twice, or after the hold has
 * ended. The call does not wait.
 *   hold      its number; 0 has no effect, so a permit that holds nothing needs no test
 *   returns   OK
 *   cost      a mutex */
DOORMAN_API doorman_status doorman_agent_release(doorman_agent *agent, uint64_t hold);

/* Releases some units of a hold: see doorman_permit_client_release. Otherwise it works like
 * doorman_agent_release.
 *   request   id; optionally amounts: what is kept
 *   returns   OK | INVALID_ARGUMENT */
DOORMAN_API doorman_status doorman_agent_release_part(doorman_agent *agent,
                                                      const doorman_hold_request *request,
                                                      doorman_error *error);

/* Moves units of a hold into a transfer, and waits for its transfer_id: see
 * doorman_permit_client_transfer.
 *   returns   as doorman_agent_acquire */
DOORMAN_API doorman_status doorman_agent_transfer(doorman_agent *agent,
                                                  const doorman_hold_request *request,
                                                  doorman_acquired *out, doorman_error *error);

/* Makes the units of a transfer a hold of this agent, and waits for the decision: see
 * doorman_permit_client_seize.
 *   returns   as doorman_agent_acquire */
DOORMAN_API doorman_status doorman_agent_seize(doorman_agent *agent,
                                               const doorman_hold_request *request,
                                               doorman_acquired *out, doorman_error *error);

/* Reads a hold: see doorman_permit_client_read_hold. The times are those of doorman_clock.
 *   out       written in full; after an error all fields are 0
 *   returns   OK */
DOORMAN_API doorman_status doorman_agent_read_hold(doorman_agent *agent, uint64_t hold,
                                                   doorman_held *out);

/* Reports what an action has really cost: see doorman_permit_client_report. The call does not wait.
 * doorman_agent_stop sends what is left.
 *   returns   OK | INVALID_ARGUMENT | OUT_OF_MEMORY | UNAVAILABLE (as doorman_agent_acquire) */
DOORMAN_API doorman_status doorman_agent_report(doorman_agent *agent, const char *resource_id,
                                                const char *key, double cost, doorman_error *error);
#endif /* DOORMAN_NNG */

#ifdef __cplusplus
}
#endif

#endif /* DOORMAN_PERMITS_H */

/* ==== the API ends here; what follows is only the implementation ============================= */

#ifdef DOORMAN_IMPLEMENTATION
#ifndef DOORMAN__PERMITS_IMPLEMENTED
#define DOORMAN__PERMITS_IMPLEMENTED

/* ---- >>limits ------------------------------------------------------------------------------- */
/*
 * This section checks and copies the limits of a configuration, for the section >>configuration.
 * That section has the rules: G4, G8 and G9.
 */

/* ---- limits: what is valid */

#define DOORMAN__SET_MAX 10     /* the default of set_max */
#define DOORMAN__KEYS_MAX 10000 /* globs of one list, and overrides of one limit */
#define DOORMAN__COUNTERS_MAX 10000000
#define DOORMAN__MAX_KEYS 1000000 /* the default */
#define DOORMAN__MAX_LEASES 10000 /* the default of a leased limit, because a lease needs 3 KB */
#define DOORMAN__QUEUE_MAX 1000000
#define DOORMAN__TIME_TO_LIVE (15 * DOORMAN_SECOND) /* the default */
#define DOORMAN__DURABLE (60 * DOORMAN_SECOND)      /* what lasts as long is durable by default */

/* Checks a key: 0 to 256 bytes of UTF-8. */
static bool doorman__key_valid(const char *key) {
    const char *end = (const char *)memchr(key, 0, DOORMAN_ID_BYTES_MAX + 1);
    uint32_t code = 0;
    while (end && key < end) {
        bool word =
            end - key >= 8 && doorman__word_is_ascii(doorman__word((const unsigned char *)key));
        if (word) key += 8;
        if (!word && !doorman__utf8_next(&key, end, &code)) return false;
    }
    return end != NULL;
}

#define DOORMAN__KEY_RULE "must be 0 to 256 bytes of UTF-8"

/* Where a part of a configuration is checked. `object` is the path of the part below the template,
 * with the names of C, for example "limits[2].overrides[0].figures.". */
typedef struct doorman__check {
    const doorman__config_report *report;
    struct doorman__check *parent; /* also counts the problems of this part; NULL: none */
    size_t index;                  /* of the template */
    size_t count;                  /* how many problems were reported */
    char object[112];
} doorman__check;

/* Reports a problem. The text is made like that of printf. */
static void doorman__check_add(doorman__check *check, const char *format, ...) {
    char text[512]; /* the longest text has the names of C and of JSON */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    doorman__config_report_add(check->report, check->index, check->object, text);
    for (; check; check = check->parent) check->count++;
}

/* Reports all rules that are broken. */
static void doorman__check_rules(doorman__check *check, const doorman__rule *rules, size_t count) {
    assert(check->report && check->object[sizeof check->object - 1] == 0);
    for (size_t i = 0; i < count; i++) {
        if (rules[i].broken) doorman__check_add(check, "%s", rules[i].text);
    }
}

#define DOORMAN__CHECK(check, rules)                                                               \
    doorman__check_rules((check), (rules), sizeof(rules) / sizeof *(rules))

/* Returns a check of the item of a list below a part. */
static doorman__check doorman__check_item(doorman__check *check, const char *list, size_t item) {
    doorman__check below = {.report = check->report, .parent = check, .index = check->index};
    snprintf(below.object, sizeof below.object, "%.60s%s[%zu].", check->object, list, item);
    return below;
}

/* Returns a check of a struct below a part. */
static doorman__check doorman__check_part(doorman__check *check, const char *part) {
    doorman__check below = {.report = check->report, .parent = check, .index = check->index};
    snprintf(below.object, sizeof below.object, "%.60s%.20s.", check->object, part);
    return below;
}

/* Returns whether permits may have limits of this kind. */
static bool doorman__permit_kind_valid(doorman_limit_kind kind) {
    return kind == DOORMAN_TOKEN_BUCKET || kind == DOORMAN_FIXED_WINDOW ||
           kind == DOORMAN_SLIDING_WINDOW || kind == DOORMAN_CONCURRENCY || kind == DOORMAN_TIERS;
}

static void doorman__bucket_check(doorman__check *check, const doorman_figures *all) {
    const bool rate_valid = all->rate > 0 && all->rate <= DOORMAN_AMOUNT_MAX;
    const bool size_valid = doorman__amount_valid(all->size);
    const bool debt_valid = doorman__duration_valid(all->max_debt);
    const double seconds = (double)all->max_debt / 1e9;
    const doorman__rule rules[] = {
        {!rate_valid, "rate: must be more than 0 and at most 1e15"},
        {!size_valid, "size: " DOORMAN__AMOUNT_RULE},
        {!debt_valid, "max_debt: " DOORMAN__DURATION_OR_ZERO_RULE},
        {!doorman__duration_valid(all->max_wait), "max_wait: " DOORMAN__DURATION_OR_ZERO_RULE},
        {size_valid && debt_valid && !(all->size > 0) && !all->max_debt,
         "size: must be more than 0 where max_debt is 0"},
        {size_valid && rate_valid && all->size > all->rate * 1e8,
         "size: must be worth at most 1e8 seconds of the rate"},
        {rate_valid && debt_valid && size_valid &&
             all->size + all->rate * seconds > DOORMAN_AMOUNT_MAX,
         "max_debt: must be worth at most 1e15 units, together with size"},
        {all->has_max_wait && all->max_wait > all->max_debt,
         "max_wait: must be at most max_debt, because no debt is longer"},
    };
    DOORMAN__CHECK(check, rules);
}

static void doorman__window_check(doorman__check *check, doorman_limit_kind kind,
                                  const doorman_figures *all) {
    const bool fixed = kind == DOORMAN_FIXED_WINDOW;
    const bool calendar_valid = (unsigned)all->calendar < DOORMAN_CALENDAR_COUNT;
    const bool has_calendar = calendar_valid && all->calendar;
    const bool window_valid = all->window > 0 && doorman__duration_valid(all->window);
    const doorman__rule rules[] = {
        {!doorman__amount_valid(all->limit), "limit: " DOORMAN__AMOUNT_RULE},
        {!calendar_valid, "calendar: is not a unit of the calendar"},
        {has_calendar && !fixed,
         DOORMAN__NAMES(
             "calendar: only a FIXED_WINDOW follows it",
             "window: only a FIXED_WINDOW follows the calendar; must be a number of seconds")},
        {has_calendar && fixed && all->window, "window: must be 0 with a calendar"},
        {calendar_valid && !all->calendar && !window_valid, "window: " DOORMAN__DURATION_RULE},
    };
    DOORMAN__CHECK(check, rules);
}

static void doorman__tiers_check(doorman__check *check, const doorman_figures *all) {
    const bool bounded = all->tier_count <= DOORMAN_TIERS_MAX;
    const size_t count = bounded && all->tiers ? all->tier_count : 0;
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += all->tiers[i].limit;
    const doorman__rule rules[] = {
        {!bounded, "tiers: must be a list of at most 8"},
        {all->tier_count && !all->tiers, "tiers: must not be NULL"},
        {sum > DOORMAN_AMOUNT_MAX, "tiers: the sum of their limits must be at most 1e15"},
    };
    DOORMAN__CHECK(check, rules);
    for (size_t i = 0; i < count; i++) {
        const doorman_tier *tier = &all->tiers[i];
        const bool window_valid = tier->window > 0 && doorman__duration_valid(tier->window);
        const doorman__rule tier_rules[] = {
            {!doorman__amount_valid(tier->limit), "limit: " DOORMAN__AMOUNT_RULE},
            {!window_valid, "window: " DOORMAN__DURATION_RULE},
            {!doorman__duration_valid(tier->active), "active: " DOORMAN__DURATION_OR_ZERO_RULE},
            {!doorman__duration_valid(tier->cooldown), "cooldown: " DOORMAN__DURATION_OR_ZERO_RULE},
        };
        doorman__check item = doorman__check_item(check, "tiers", i);
        DOORMAN__CHECK(&item, tier_rules);
    }
}

static void doorman__concurrency_check(doorman__check *check, const doorman_figures *all) {
    const bool life_valid = all->time_to_live > 0 && doorman__duration_valid(all->time_to_live);
    const doorman__rule rules[] = {
        {!doorman__amount_valid(all->limit), "limit: " DOORMAN__AMOUNT_RULE},
        {!life_valid, "time_to_live: " DOORMAN__DURATION_RULE},
        {all->queue > DOORMAN__QUEUE_MAX, "queue: must be from 0 to 1,000,000"},
        {!doorman__duration_valid(all->max_wait), "max_wait: " DOORMAN__DURATION_OR_ZERO_RULE},
    };
    DOORMAN__CHECK(check, rules);
}

/* Checks resolved figures. `check` is that of the limit or override that has the figures. */
static void doorman__figures_check(doorman__check *check, doorman_limit_kind kind,
                                   const doorman_figures *all) {
    assert(doorman__permit_kind_valid(kind));
    doorman__check part = doorman__check_part(check, "figures");
    if (kind == DOORMAN_TOKEN_BUCKET) {
        doorman__bucket_check(&part, all);
    } else if (kind == DOORMAN_TIERS) {
        doorman__tiers_check(&part, all);
    } else if (kind == DOORMAN_CONCURRENCY) {
        doorman__concurrency_check(&part, all);
    } else {
        doorman__window_check(&part, kind, all);
    }
}

/* Checks that figures belong to the kind, and that none has a value that its has_ field hides. Of
 * the has_ fields, a limit needs only has_max_wait, and only for a TOKEN_BUCKET. */
static void doorman__given_check(doorman__check *check, doorman_limit_kind kind,
                                 const doorman_figures *given, bool is_override) {
    enum {
        BUCKET = 1 << DOORMAN_TOKEN_BUCKET,
        TIERS = 1 << DOORMAN_TIERS,
        HOLDS = 1 << DOORMAN_CONCURRENCY,
        WINDOWS = 1 << DOORMAN_FIXED_WINDOW | 1 << DOORMAN_SLIDING_WINDOW
    };
    const struct {
        unsigned kinds; /* that have the figure */
        bool has, given;
        const char *unused, *hidden; /* NULL: there is no has_ field */
    } figures[] = {
        {BUCKET, false, !doorman__equal(given->rate, 0), "rate: only a TOKEN_BUCKET has one", NULL},
        {BUCKET, given->has_size, !doorman__equal(given->size, 0),
         "size: only a TOKEN_BUCKET has one", "size: needs has_size"},
        {BUCKET, given->has_max_debt, given->max_debt != 0, "max_debt: only a TOKEN_BUCKET has one",
         "max_debt: needs has_max_debt"},
        {BUCKET | HOLDS, given->has_max_wait, given->max_wait != 0,
         "max_wait: only a TOKEN_BUCKET and CONCURRENCY have one", "max_wait: needs has_max_wait"},
        {HOLDS, false, given->time_to_live != 0, "time_to_live: only CONCURRENCY has one", NULL},
        {HOLDS, given->has_queue, given->queue != 0, "queue: only CONCURRENCY has one",
         "queue: needs has_queue"},
        {WINDOWS | HOLDS, given->has_limit, !doorman__equal(given->limit, 0),
         "limit: only a FIXED_WINDOW, a SLIDING_WINDOW and CONCURRENCY have one",
         "limit: needs has_limit"},
        {WINDOWS, false, given->window || given->calendar,
         "window: only a FIXED_WINDOW and a SLIDING_WINDOW have one", NULL},
        {TIERS, given->has_tiers, given->tier_count != 0, "tiers: only TIERS has them",
         "tiers: needs has_tiers"},
    };
    doorman__check part = doorman__check_part(check, "figures");
    assert(doorman__permit_kind_valid(kind));
    const size_t count = sizeof figures / sizeof *figures;
    for (size_t i = 0; i < count; i++) {
        bool used = figures[i].kinds >> kind & 1;
        if (!used && (figures[i].has || figures[i].given)) {
            doorman__check_add(&part, "%s", figures[i].unused);
        }
    }
    bool bucket = kind == DOORMAN_TOKEN_BUCKET;
    for (size_t i = 0; is_override && i < count; i++) {
        bool hidden = figures[i].hidden && !figures[i].has && figures[i].given;
        if (hidden) doorman__check_add(&part, "%s", figures[i].hidden);
    }
    if (!is_override && bucket && !given->has_max_wait && given->max_wait) {
        doorman__check_add(&part, "max_wait: needs has_max_wait");
    }
}

/* Returns the figures of a limit with the defaults filled in. */
static doorman_figures doorman__figures_resolve(doorman_limit_kind kind,
                                                const doorman_figures *given) {
    doorman_figures all = *given;
    assert(kind != DOORMAN_SLIDING_LOG);
    if (kind == DOORMAN_TOKEN_BUCKET) {
        if (!all.has_max_wait) all.max_wait = all.max_debt;
        all.has_size = all.has_max_debt = all.has_max_wait = true;
    }
    const bool holds = kind == DOORMAN_CONCURRENCY;
    if (holds && !all.time_to_live) all.time_to_live = DOORMAN__TIME_TO_LIVE;
    if (holds) all.has_max_wait = true;
    all.has_queue = holds;
    all.has_limit = holds || kind == DOORMAN_FIXED_WINDOW || kind == DOORMAN_SLIDING_WINDOW;
    all.has_tiers = kind == DOORMAN_TIERS;
    return all;
}

/* Returns the figures for the keys of an override. If neither it nor the limit gives max_wait,
 * max_wait is max_debt. A longer max_wait of the limit is cut to max_debt. */
static doorman_figures doorman__override_resolve(const doorman_permit_limit *limit,
                                                 const doorman_figures *given) {
    doorman_figures all = limit->figures;
    assert(doorman__permit_kind_valid(limit->kind));
    if (given->rate > 0 || given->rate < 0) all.rate = given->rate;
    if (given->has_size) all.size = given->size;
    if (given->has_max_debt) all.max_debt = given->max_debt;
    if (given->has_max_wait) all.max_wait = given->max_wait;
    if (given->has_max_wait) all.has_max_wait = true;
    if (given->has_limit) all.limit = given->limit;
    if (given->time_to_live) all.time_to_live = given->time_to_live;
    if (given->has_queue) all.queue = given->queue;
    if (given->window || given->calendar) {
        all.window = given->window;
        all.calendar = given->calendar;
    }
    if (given->has_tiers) {
        all.tiers = given->tiers;
        all.tier_count = given->tier_count;
    }
    const bool bucket = limit->kind == DOORMAN_TOKEN_BUCKET;
    if (bucket && !given->has_max_wait && all.max_wait > all.max_debt) all.max_wait = all.max_debt;
    return doorman__figures_resolve(limit->kind, &all);
}

static void doorman__ban_check(doorman__check *check, const doorman_ban *ban) {
    const bool none = !ban->refusals && !ban->window && !ban->duration;
    const bool window_valid = ban->window > 0 && doorman__duration_valid(ban->window);
    const bool duration_valid = ban->duration > 0 && doorman__duration_valid(ban->duration);
    const doorman__rule rules[] = {
        {!none && !(ban->refusals >= 1 && ban->refusals <= 1000000000),
         "refusals: must be an integer from 1 to 1e9"},
        {!none && !window_valid, "window: " DOORMAN__DURATION_RULE},
        {!none && !duration_valid, "duration: " DOORMAN__DURATION_RULE},
    };
    doorman__check part = doorman__check_part(check, "ban");
    DOORMAN__CHECK(&part, rules);
}

/* Checks the fields of a limit, without its lists and figures. */
static void doorman__limit_fields_check(doorman__check *check, const doorman_permit_limit *limit) {
    const bool counts_units =
        limit->kind == DOORMAN_TOKEN_BUCKET || limit->kind == DOORMAN_FIXED_WINDOW;
    const bool holds = limit->kind == DOORMAN_CONCURRENCY;
    const bool says_durable = limit->has_durable && limit->durable;
    const doorman__rule rules[] = {
        {!doorman__id_valid(limit->name), "name: " DOORMAN__ID_RULE},
        {(unsigned)limit->per > DOORMAN_PER_TEMPLATE, "per: must be key, resource or template"},
        {!doorman__permit_kind_valid(limit->kind),
         "kind: must be TOKEN_BUCKET, FIXED_WINDOW, SLIDING_WINDOW, CONCURRENCY or TIERS"},
        {!(limit->warn_at >= 0 && limit->warn_at <= 1), "warn_at: must be from 0 to 1"},
        {limit->ban.refusals && limit->per != DOORMAN_PER_KEY, "ban: needs a limit per key"},
        {limit->ban.refusals && holds, "ban: CONCURRENCY has none"},
        {!limit->has_max_cost && !doorman__equal(limit->max_cost, 0),
         "max_cost: needs has_max_cost"},
        {limit->has_max_cost && !doorman__amount_valid(limit->max_cost),
         "max_cost: " DOORMAN__AMOUNT_RULE},
        {!(limit->set_max >= 1 && limit->set_max <= 1e6) && !doorman__equal(limit->set_max, 0),
         "set_max: must be from 1 to 1e6"},
        {limit->max_keys > DOORMAN__COUNTERS_MAX, "max_keys: must be from 1 to 10,000,000"},
        {limit->key_count > DOORMAN__KEYS_MAX, "keys: must be a list of at most 10,000"},
        {limit->key_count && !limit->keys, "keys: must not be NULL"},
        {limit->override_count > DOORMAN__KEYS_MAX, "overrides: must be a list of at most 10,000"},
        {limit->override_count && !limit->overrides, "overrides: must not be NULL"},
        {limit->override_count && limit->per != DOORMAN_PER_KEY,
         "overrides: needs a limit per key, because other limits share a counter between keys"},
        {limit->plan_count > DOORMAN_PLANS_MAX, "plans: must be at most 16"},
        {limit->plan_count && !limit->plans, "plans: must not be NULL"},
        {limit->plan_count && limit->per != DOORMAN_PER_KEY,
         "plans: needs a limit per key, because other limits share a counter between keys"},
        {limit->refunds && !counts_units,
         "refunds: only a TOKEN_BUCKET and a FIXED_WINDOW can take units back"},
        {limit->empty_at_start && limit->kind == DOORMAN_TIERS,
         DOORMAN__NAMES("empty_at_start: must be false for TIERS",
                        "on_restart: must be full for TIERS")},
        {limit->empty_at_start && holds,
         DOORMAN__NAMES("empty_at_start: must be false for CONCURRENCY",
                        "on_restart: must be learn or full for CONCURRENCY")},
        {limit->full_at_start && limit->empty_at_start,
         DOORMAN__NAMES("full_at_start: must be false with empty_at_start",
                        "on_restart: must be full or empty")},
        {says_durable && holds,
         "durable: CONCURRENCY has no rows, because clients say what they hold"},
        {says_durable && limit->leased, "durable: the units of a lease end with the lease"},
    };
    DOORMAN__CHECK(check, rules);
}

/* Checks the fields for leases (P17), but not which resource the lease is of. */
static void doorman__lease_fields_check(doorman__check *check, const doorman_permit_limit *limit) {
    const doorman_figures *all = &limit->figures;
    const bool leased = limit->leased, bucket = limit->kind == DOORMAN_TOKEN_BUCKET;
    const bool holds = limit->kind == DOORMAN_CONCURRENCY;
    const doorman__rule rules[] = {
        {!leased && limit->lease_of, "lease_of: only a leased limit has one"},
        {!leased && (limit->has_priority || limit->priority),
         "priority: only a leased limit has one"},
        {!leased && limit->subclients, "subclients: only a leased limit has them"},
        {leased && !bucket && !holds, "kind: only a TOKEN_BUCKET or CONCURRENCY can be leased"},
        {leased && holds && (all->has_limit || !doorman__equal(all->limit, 0)),
         "figures.limit: must be 0 if it is leased"},
        {leased && limit->full_at_start,
         DOORMAN__NAMES("full_at_start: a leased limit begins without a lease",
                        "on_restart: a leased limit begins without a lease")},
        {leased && limit->per != DOORMAN_PER_RESOURCE, "per: must be resource for a leased limit"},
        {leased && bucket && !doorman__equal(all->rate, 0),
         "figures.rate: must be 0 if it is leased"},
        {leased && bucket && (all->has_size || all->size > 0 || all->size < 0),
         "figures.size: a leased rate has none, because it saves what a lease saves"},
        {leased && bucket && (all->has_max_debt || all->max_debt),
         "figures.max_debt: a leased rate has no debt"},
        {leased && bucket && (all->has_max_wait || all->max_wait),
         "figures.max_wait: a leased rate has no debt, so no caller waits"},
        {leased && bucket && limit->warn_at > 0, "warn_at: a leased rate has none"},
        {leased && limit->refunds, "refunds: a lease takes no units back"},
        {leased && limit->empty_at_start,
         DOORMAN__NAMES("empty_at_start: a leased limit begins without a lease",
                        "on_restart: a leased limit begins without a lease")},
        {leased && limit->lease_of && !doorman__id_valid(limit->lease_of),
         "lease_of: " DOORMAN__ID_RULE},
        {leased && !limit->has_priority && limit->priority, "priority: needs has_priority"},
        {leased && (limit->priority < 0 || limit->priority > DOORMAN_PRIORITY_MAX),
         "priority: must be an integer from 0 to 15"},
        {leased && limit->subclients > DOORMAN_SUBCLIENTS_MAX,
         "subclients: must be an integer from 1 to 1e9"},
    };
    DOORMAN__CHECK(check, rules);
}

static void doorman__keys_check(doorman__check *check, const char *const *keys, size_t count) {
    for (size_t i = 0; keys && i < count && i < DOORMAN__KEYS_MAX; i++) {
        const char *glob = keys[i];
        if (glob && doorman__id_valid(glob + (glob[0] == '!'))) continue;
        doorman__check_add(check, "keys[%zu]: " DOORMAN__ID_RULE, i);
    }
}

/* Checks the overrides of a limit whose own fields are valid. The first 100 errors are enough. */
static void doorman__overrides_check(doorman__check *check, const doorman_permit_limit *limit) {
    assert(limit->override_count <= DOORMAN__KEYS_MAX);
    for (size_t i = 0; i < limit->override_count && check->count < 100; i++) {
        const doorman_override *override_ = &limit->overrides[i];
        doorman__check item = doorman__check_item(check, "overrides", i);
        bool bounded = override_->key_count >= 1 && override_->key_count <= DOORMAN__KEYS_MAX;
        if (!bounded || !override_->keys) {
            doorman__check_add(&item, "keys: must be a list of 1 to 10,000 globs");
        }
        doorman__keys_check(&item, override_->keys, override_->key_count);
        doorman__given_check(&item, limit->kind, &override_->figures, true);
        const doorman_figures all = doorman__override_resolve(limit, &override_->figures);
        if (item.count == 0) doorman__figures_check(&item, limit->kind, &all);
    }
}

static bool doorman__plan_name_valid(const char *name) {
    return doorman__id_valid(name) && strlen(name) <= DOORMAN_PLAN_BYTES_MAX;
}

#define DOORMAN__PLAN_RULE "must be 1 to 64 bytes of UTF-8 without control characters"

/* Checks the plans of a limit whose own fields are valid. */
static void doorman__plans_check(doorman__check *check, const doorman_permit_limit *limit) {
    assert(limit->plan_count <= DOORMAN_PLANS_MAX);
    for (size_t i = 0; i < limit->plan_count; i++) {
        const doorman_plan *plan = &limit->plans[i];
        doorman__check item = doorman__check_item(check, "plans", i);
        const bool valid = doorman__plan_name_valid(plan->name);
        bool twice = false;
        for (size_t j = 0; valid && j < i && !twice; j++) {
            const char *other = limit->plans[j].name;
            twice = other && strcmp(other, plan->name) == 0;
        }
        if (!valid) doorman__check_add(&item, "name: " DOORMAN__PLAN_RULE);
        if (twice) doorman__check_add(&item, "name: is that of an earlier plan");
        doorman__given_check(&item, limit->kind, &plan->figures, true);
        const doorman_figures all = doorman__override_resolve(limit, &plan->figures);
        if (item.count == 0) doorman__figures_check(&item, limit->kind, &all);
    }
}

/* Returns how long a bucket needs to gain some units; 0: it is leased, so the time is not known. */
static doorman_time doorman__rate_time(const doorman_figures *all, double units) {
    assert(units >= 0);
    if (!(all->rate > 0)) return 0;
    return (doorman_time)doorman__min(units / all->rate * 1e9, (double)DOORMAN_DURATION_MAX);
}

/* Returns how long it can take until a counter that has used everything is fresh again. */
static doorman_time doorman__figures_period(doorman_limit_kind kind, const doorman_figures *all) {
    static const int minutes[DOORMAN_CALENDAR_COUNT] = {[DOORMAN_MINUTE] = 1,
                                                        [DOORMAN_HOUR] = 60,
                                                        [DOORMAN_DAY] = 24 * 60,
                                                        [DOORMAN_WEEK] = 7 * 24 * 60,
                                                        [DOORMAN_MONTH] = 31 * 24 * 60};
    doorman_time longest = 0;
    assert((unsigned)all->calendar < DOORMAN_CALENDAR_COUNT);
    if (kind == DOORMAN_CONCURRENCY) return 0;
    if (kind == DOORMAN_TOKEN_BUCKET) return doorman__rate_time(all, all->size) + all->max_debt;
    for (size_t i = 0; kind == DOORMAN_TIERS && i < all->tier_count; i++) {
        const doorman_tier *tier = &all->tiers[i];
        if (!tier->active) continue;
        longest = doorman__later(longest, tier->window);
        longest = doorman__later(longest, tier->active + tier->cooldown);
    }
    if (kind == DOORMAN_TIERS) return longest;
    return all->calendar ? minutes[all->calendar] * DOORMAN__DURABLE : all->window;
}

/* Returns whether the counters and bans of a limit have rows (D3). Precondition: the limit is
 * valid. */
static bool doorman__limit_durable(const doorman_permit_limit *limit) {
    if (limit->has_durable) return limit->durable;
    if (limit->leased || limit->kind == DOORMAN_CONCURRENCY) return false;
    if (limit->ban.refusals && limit->ban.duration >= DOORMAN__DURABLE) return true;
    doorman_time longest = doorman__figures_period(limit->kind, &limit->figures);
    for (size_t i = 0; i < limit->override_count; i++) {
        const doorman_figures all = doorman__override_resolve(limit, &limit->overrides[i].figures);
        longest = doorman__later(longest, doorman__figures_period(limit->kind, &all));
    }
    for (size_t i = 0; i < limit->plan_count; i++) {
        const doorman_figures all = doorman__override_resolve(limit, &limit->plans[i].figures);
        longest = doorman__later(longest, doorman__figures_period(limit->kind, &all));
    }
    return longest >= DOORMAN__DURABLE;
}

/* Checks one limit. Other limits of the template do not matter. */
static void doorman__permit_limit_check(doorman__check *check, const doorman_permit_limit *limit) {
    doorman__limit_fields_check(check, limit);
    doorman__lease_fields_check(check, limit);
    doorman__keys_check(check, limit->keys, limit->key_count);
    doorman__ban_check(check, &limit->ban);
    if (!doorman__permit_kind_valid(limit->kind)) return;
    doorman__given_check(check, limit->kind, &limit->figures, false);
    const doorman_figures all = doorman__figures_resolve(limit->kind, &limit->figures);
    bool leased_rate = limit->leased && limit->kind == DOORMAN_TOKEN_BUCKET;
    if (!leased_rate) doorman__figures_check(check, limit->kind, &all);
    if (check->count == 0) doorman__overrides_check(check, limit);
    if (check->count == 0) doorman__plans_check(check, limit);
    if (check->count == 0 && limit->refuse_unread && !doorman__limit_durable(limit)) {
        doorman__check_add(check, DOORMAN__NAMES("refuse_unread: needs a durable limit",
                                                 "on_unread: needs a durable limit"));
    }
}

/* Reports all errors of the limits of one template. */
static void doorman__limits_check(const doorman_template *template_, size_t index,
                                  const doorman__config_report *report) {
    const size_t count = template_->limit_count;
    const doorman__rule rules[] = {
        {template_->without_capacity && !template_->has_limits,
         "limits: a template needs capacity or limits"},
        {template_->without_capacity && !doorman__equal(template_->capacity, 0),
         "capacity: must be 0 with without_capacity"},
        {!template_->has_limits && (count || template_->limits), "limits: needs has_limits"},
        {count > DOORMAN_LIMITS_MAX, "limits: must be a list of at most 16"},
        {count && !template_->limits, "limits: must not be NULL"},
    };
    doorman__check all = {.report = report, .index = index};
    DOORMAN__CHECK(&all, rules);
    for (size_t i = 0; template_->limits && i < count && count <= DOORMAN_LIMITS_MAX; i++) {
        const char *name = template_->limits[i].name;
        doorman__check check = doorman__check_item(&all, "limits", i);
        doorman__permit_limit_check(&check, &template_->limits[i]);
        for (size_t j = 0; name && j < i; j++) {
            const char *earlier = template_->limits[j].name;
            if (!earlier || strcmp(earlier, name) != 0) continue;
            doorman__check_add(&check, "name: equals that of limits[%zu]", j);
            break;
        }
    }
}

/* Returns the index of the template that a resource takes (G1), or template_count. */
static size_t doorman__options_find(const doorman_config_options *options,
                                    const char *resource_id) {
    size_t found = options->template_count;
    for (size_t i = options->template_count; i-- > 0;) {
        const char *glob = options->templates[i].identifier_glob;
        if (doorman__glob_match(glob, resource_id)) found = i;
    }
    for (size_t i = 0; i < options->template_count; i++) {
        if (strcmp(options->templates[i].identifier_glob, resource_id) == 0) return i;
    }
    return found;
}

/* Returns the first rule that a leased limit and an earlier leased limit break together. Two limits
 * can have one lease if they name the same resource, if both are in one template and name none, or
 * if one names a resource of the template of the other. Two rates with one lease are one holder, so
 * they must agree.
 *   own, other   the indices of their templates */
static const char *doorman__lease_pair_wrong(const doorman_config_options *options, size_t own,
                                             const doorman_permit_limit *limit, size_t other,
                                             const doorman_permit_limit *earlier) {
    const char *a = limit->lease_of, *b = earlier->lease_of;
    bool same = a && b && strcmp(a, b) == 0;
    if (!a && !b) same = own == other;
    if (a && !b) same = doorman__options_find(options, a) == other;
    if (!a && b) same = doorman__options_find(options, b) == own;
    if (!same) return NULL;
    if (own == other) return "lease_of: an earlier limit of this template has the same lease";
    const doorman_permit_limit *x = limit, *y = earlier;
    const bool both_hold = x->kind == DOORMAN_CONCURRENCY && y->kind == x->kind;
    const doorman__rule rules[] = {
        {both_hold, "lease_of: another limit has the same lease; only rates can share one"},
        {x->kind != y->kind, "kind: another limit leases the same resource as another kind"},
        {(x->has_priority ? x->priority : 1) != (y->has_priority ? y->priority : 1),
         "priority: another limit leases the same resource with another priority"},
        {(x->subclients ? x->subclients : 1) != (y->subclients ? y->subclients : 1),
         "subclients: another limit leases the same resource with others"},
    };
    size_t next = 0;
    return DOORMAN__RULE_NEXT(rules, &next);
}

/* Goes through the earlier leased limits. Returns the first rule that a leased limit breaks with
 * one of them, or NULL. */
static const char *doorman__lease_pairs_wrong(const doorman_config_options *options, size_t own,
                                              size_t index) {
    const doorman_permit_limit *limit = &options->templates[own].limits[index];
    assert(limit->leased && index < options->templates[own].limit_count);
    for (size_t i = 0; i <= own; i++) {
        const doorman_template *template_ = &options->templates[i];
        size_t count = i < own ? template_->limit_count : index;
        for (size_t j = 0; j < count; j++) {
            if (!template_->limits[j].leased) continue;
            const char *text =
                doorman__lease_pair_wrong(options, own, limit, i, &template_->limits[j]);
            if (text) return text;
        }
    }
    return NULL;
}

/* Reports a lease of a resource that has no capacity. If no template has a capacity, the
 * configuration is for a node with a parent, which gets its leases from the parent. A capacity
 * comes from no limit, so leases cannot form a cycle. */
static void doorman__lease_check(doorman__check *check, const doorman_config_options *options,
                                 size_t index) {
    const doorman_template *own = &options->templates[check->index];
    const doorman_permit_limit *limit = &own->limits[index];
    assert(limit->leased && index < own->limit_count);
    const size_t count = options->template_count;
    size_t found = check->index, first = 0;
    while (first < count && options->templates[first].without_capacity) first++;
    if (limit->lease_of) found = doorman__options_find(options, limit->lease_of);
    const bool has_capacity = first < count, unmatched = found == count;
    const bool empty = !unmatched && options->templates[found].without_capacity;
    const bool many = own->identifier_glob[strcspn(own->identifier_glob, "*?[\\")] != 0;
    const doorman__rule rules[] = {
        {has_capacity && unmatched, "lease_of: no template matches this resource"},
        {has_capacity && empty && limit->lease_of,
         "lease_of: the template of this resource has no capacity"},
        {has_capacity && empty && !limit->lease_of,
         "lease_of: is needed, because the template has no capacity"},
        {limit->kind == DOORMAN_CONCURRENCY && limit->lease_of && many,
         "lease_of: needs a template for one resource, because its units cannot be shared by "
         "several"},
    };
    DOORMAN__CHECK(check, rules);
    const char *text = doorman__lease_pairs_wrong(options, check->index, index);
    if (text) doorman__check_add(check, "%s", text);
}

/* Reports the errors of the leased limits of all templates (P17). Precondition: all templates are
 * valid. */
static void doorman__leases_of_check(const doorman_config_options *options,
                                     const doorman__config_report *report) {
    for (size_t i = 0; i < options->template_count; i++) {
        doorman__check all = {.report = report, .index = i};
        for (size_t j = 0; j < options->templates[i].limit_count; j++) {
            doorman__check check = doorman__check_item(&all, "limits", j);
            if (options->templates[i].limits[j].leased) doorman__lease_check(&check, options, j);
        }
    }
}

/* Reports the globs of resources in shadow that are not valid. */
static void doorman__shadow_check(const doorman_config_options *options,
                                  const doorman__config_report *report) {
    doorman__check check = {.report = report, .index = DOORMAN__NO_TEMPLATE};
    const doorman__rule rules[] = {
        {options->shadow_count && !options->shadow && options->shadow_count <= DOORMAN__KEYS_MAX,
         "shadow: must not be NULL"},
        {options->shadow_count > DOORMAN__KEYS_MAX, "shadow: must be a list of at most 10,000"},
    };
    DOORMAN__CHECK(&check, rules);
    for (size_t i = 0; check.count == 0 && i < options->shadow_count; i++) {
        if (doorman__id_valid(options->shadow[i])) continue;
        doorman__check_add(&check, "shadow[%zu]: " DOORMAN__ID_RULE, i);
    }
}

/* ---- limits: what is valid but causes a warning (G9) */

/* Returns the largest amount that figures could ever grant. */
static double doorman__figures_most(doorman_limit_kind kind, const doorman_figures *all) {
    if (kind == DOORMAN_TOKEN_BUCKET) return all->size + all->rate * ((double)all->max_debt / 1e9);
    if (kind != DOORMAN_TIERS) return all->limit;
    double sum = 0;
    for (size_t i = 0; i < all->tier_count; i++) {
        if (all->tiers[i].active > 0) sum += all->tiers[i].limit;
    }
    return sum;
}

/* Warns of tiers that cannot do what they say. */
static void doorman__tiers_warn(doorman__check *check, const doorman_figures *figures) {
    for (size_t i = 0; i < figures->tier_count; i++) {
        const doorman_tier *tier = &figures->tiers[i];
        doorman__check item = doorman__check_item(check, "figures.tiers", i);
        if (!tier->active) {
            doorman__check_add(&item, "active: is 0, so the tier is never entered");
        } else if (i + 1 == figures->tier_count && !(tier->limit > 0)) {
            doorman__check_add(&item, "limit: is 0, so the last tier is never entered");
        } else if (tier->window > tier->active) {
            doorman__check_add(&item, "window: is longer than active, so the tier ends first");
        } else if (tier->active % tier->window != 0) {
            doorman__check_add(&item, "window: does not divide active, so the last window is cut");
        }
    }
}

/* Warns of the figures of a limit per key that are above those of a limit that all keys share. The
 * shared limit refuses first, so such figures act rarely or never. Windows are only compared with
 * windows of the same kind and length. */
static void doorman__shared_warn(doorman__check *check, const doorman_template *template_,
                                 const doorman_permit_limit *limit, const doorman_figures *all) {
    const bool bucket = limit->kind == DOORMAN_TOKEN_BUCKET;
    if (limit->per != DOORMAN_PER_KEY || limit->kind == DOORMAN_TIERS) return;
    for (size_t i = 0; i < template_->limit_count; i++) {
        const doorman_permit_limit *shared = &template_->limits[i];
        const doorman_figures *most = &shared->figures;
        if (shared->per == DOORMAN_PER_KEY || shared->key_count || shared->shadow) continue;
        if (shared->leased || shared->kind != limit->kind) continue;
        bool comparable = all->window == most->window && all->calendar == most->calendar;
        bool above = bucket ? all->rate > most->rate : comparable && all->limit > most->limit;
        if (!above) continue;
        doorman__check_add(check, "figures.%s: is above that of limits[%zu], which all keys share",
                           bucket ? "rate" : "limit", i);
        return;
    }
}

/* Warns of the globs of a list of keys that have a `[` without a `]`. */
static void doorman__keys_warn(doorman__check *check, const char *const *keys, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (!doorman__glob_is_open(keys[i])) continue;
        doorman__check_add(check, "keys[%zu]: " DOORMAN__GLOB_OPEN, i);
    }
}

/* Returns the largest cost that a permit can ever have at a counter with these figures. */
static double doorman__limit_most(const doorman_permit_limit *limit, const doorman_figures *all) {
    double most = doorman__figures_most(limit->kind, all);
    return limit->has_max_cost ? doorman__min(most, limit->max_cost) : most;
}

/* Warns of figures that refuse each permit of cost 1, which is the default cost, for ever. A limit
 * in shadow refuses nothing. A limit of 0 for some keys is the way to refuse these keys, so for
 * some keys only a limit between 0 and 1 causes a warning.
 *   some_keys   true: the figures concern only some keys */
static void doorman__most_warn(doorman__check *check, const doorman_permit_limit *limit,
                               const doorman_figures *all, bool some_keys) {
    const double most = doorman__limit_most(limit, all);
    if (limit->shadow || limit->leased || most >= 1 || (some_keys && !(most > 0))) return;
    const char *field = "figures.limit";
    if (limit->kind == DOORMAN_TOKEN_BUCKET) field = "figures.size";
    if (limit->kind == DOORMAN_TIERS) field = "figures.tiers";
    if (most < doorman__figures_most(limit->kind, all)) field = "max_cost";
    doorman__check_add(check, "%s: %s", field,
                       most > 0
                           ? "grants less than 1, so a permit of cost 1 is always refused"
                           : "grants nothing, so every permit that costs something is refused");
}

/* Returns for how long a limit that begins empty refuses everything. */
static doorman_time doorman__empty_time(doorman_limit_kind kind, const doorman_figures *all) {
    if (kind == DOORMAN_TOKEN_BUCKET) return doorman__rate_time(all, 1);
    return doorman__figures_period(kind, all);
}

/* Returns whether a restart changes much of what a limit grants. A limit that begins empty refuses
 * everything at first (P16), which is too long if it lasts more than an hour. A quota of an hour or
 * more is granted once more. A limit with full_at_start says that this is intended. */
static bool doorman__restart_harms(const doorman_permit_limit *limit, const doorman_figures *all) {
    if (limit->shadow || limit->full_at_start) return false;
    if (limit->empty_at_start) return doorman__empty_time(limit->kind, all) > DOORMAN__LONG;
    bool is_long = doorman__figures_period(limit->kind, all) >= DOORMAN__LONG;
    return is_long && doorman__limit_most(limit, all) > 0;
}

/* Warns of a queue in which no permit may wait, of a wait without a queue, and of holds that last
 * so long that the limit learns for a long time after a restart (P16). */
static void doorman__concurrency_warn(doorman__check *check, const doorman_permit_limit *limit) {
    const doorman_figures *all = &limit->figures;
    const double life = (double)all->time_to_live / 1e9;
    if (limit->kind != DOORMAN_CONCURRENCY) return;
    if (all->queue && !all->max_wait) {
        doorman__check_add(check, "figures.queue: has no effect while max_wait is 0");
    } else if (all->max_wait && !all->queue) {
        doorman__check_add(check, "figures.max_wait: has no effect while queue is 0");
    }
    bool learns = !limit->full_at_start && !limit->leased && !limit->shadow;
    if (!learns || all->time_to_live <= DOORMAN__LONG) return;
    doorman__check_add(check,
                       "figures.time_to_live: %.10g s is long: after each restart the limit "
                       "learns, and grants nothing, for %.10g s",
                       life, life * (1 + DOORMAN__DRIFT));
}

#define DOORMAN__QUOTA_TEXT                                                                        \
    "a quota of %.10g s is kept only in memory, so it begins again after each restart and each "   \
    "change of master. A shorter window beside it bounds how much more is granted. "

/* Warns of what a restart does to a limit. */
static void doorman__restart_warn(doorman__check *check, const doorman_permit_limit *limit,
                                  const doorman_figures *all) {
    static const char *const fields[] = {[DOORMAN_TOKEN_BUCKET] = "rate",
                                         [DOORMAN_FIXED_WINDOW] = "window",
                                         [DOORMAN_SLIDING_WINDOW] = "window",
                                         [DOORMAN_TIERS] = "tiers"};
    if (!doorman__restart_harms(limit, all)) return;
    if (limit->empty_at_start) {
        const double empty = (double)doorman__empty_time(limit->kind, all) / 1e9;
        doorman__check_add(
            check,
            DOORMAN__NAMES(
                "empty_at_start: refuses every permit for up to %.10g s after each restart",
                "on_restart: empty refuses every permit for up to %.10g s after each restart"),
            empty, empty);
        return;
    }
    const double period = (double)doorman__figures_period(limit->kind, all) / 1e9;
    const char *field = fields[limit->kind];
    const doorman__config_report *const report = check->report;
    doorman__config_report durable = *report;
    assert(field);
    durable.without_store = doorman__limit_durable(limit);
    check->report = &durable;
    doorman__check_add(
        check,
        DOORMAN__NAMES("%s: " DOORMAN__QUOTA_TEXT "Set full_at_start if this is intended",
                       "%s: " DOORMAN__QUOTA_TEXT "Write on_restart: full if this is intended"),
        field, period, field, period);
    check->report = report;
}

static bool doorman__keys_exclude(const doorman_override *override_) {
    for (size_t i = 0; i < override_->key_count; i++) {
        if (override_->keys[i][0] == '!') return true;
    }
    return false;
}

/* Returns whether a key of an override is never used, because `earlier` has it, and sets *place to
 * the index of the key that hides it. The first override that has a key counts. Within one
 * override, only the same key twice is a mistake.
 *   own     the override; may be `earlier`
 *   index   of the key */
static bool doorman__key_is_hidden(const doorman_override *own, size_t index,
                                   const doorman_override *earlier, size_t *place) {
    const char *key = own->keys[index];
    assert(index < own->key_count);
    const size_t count = own == earlier ? index : earlier->key_count;
    if (own != earlier && (key[0] == '!' || doorman__keys_exclude(earlier))) return false;
    for (*place = 0; *place < count; ++*place) {
        const char *other = earlier->keys[*place];
        if (own == earlier ? !strcmp(other, key) : doorman__glob_covers(other, key)) return true;
    }
    return false;
}

/* Warns of the keys of an override that are never used.
 *   compared   in/out: how many keys of this limit were compared. At DOORMAN__COVERS_MAX the call
 *              compares no more */
static void doorman__hidden_keys_warn(doorman__check *check, const doorman_permit_limit *limit,
                                      size_t index, size_t *compared) {
    const doorman_override *own = &limit->overrides[index];
    assert(index < limit->override_count && *compared <= DOORMAN__COVERS_MAX);
    for (size_t i = 0; i < own->key_count && *compared < DOORMAN__COVERS_MAX; i++, ++*compared) {
        size_t j = 0, place = 0;
        while (j <= index && !doorman__key_is_hidden(own, i, &limit->overrides[j], &place)) j++;
        if (j > index) continue;
        doorman__check_add(check,
                           "keys[%zu]: is never used, because overrides[%zu].keys[%zu] comes first "
                           "and matches it",
                           i, j, place);
    }
}

/* Warns of the figures of an override or a plan that differ from those of their limit. */
static void doorman__given_warn(doorman__check *item, const doorman_template *template_,
                                const doorman_permit_limit *limit, const doorman_figures *given) {
    const doorman_figures *own = &limit->figures;
    const doorman_figures all = doorman__override_resolve(limit, given);
    bool same = doorman__equal(all.rate, own->rate) && doorman__equal(all.limit, own->limit);
    if (!same) doorman__shared_warn(item, template_, limit, &all);
    if (doorman__limit_most(limit, &all) < doorman__limit_most(limit, own)) {
        doorman__most_warn(item, limit, &all, true);
    }
    if (!doorman__restart_harms(limit, own)) doorman__restart_warn(item, limit, &all);
    if (given->has_tiers && given->tiers != own->tiers) doorman__tiers_warn(item, given);
}

/* Warns of the keys of an override, and of its figures. */
static void doorman__override_warn(doorman__check *check, const doorman_template *template_,
                                   const doorman_permit_limit *limit, size_t index) {
    assert(index < limit->override_count);
    const doorman_override *override_ = &limit->overrides[index];
    doorman__check item = doorman__check_item(check, "overrides", index);
    doorman__keys_warn(&item, override_->keys, override_->key_count);
    doorman__given_warn(&item, template_, limit, &override_->figures);
}

/* Makes the warnings about limits (G9). Precondition: the limits are valid. */
static void doorman__limits_warn(const doorman_template *template_, size_t index,
                                 const doorman__config_report *report) {
    doorman__check all = {.report = report, .index = index};
    for (size_t i = 0; i < template_->limit_count; i++) {
        const doorman_permit_limit *limit = &template_->limits[i];
        doorman__check check = doorman__check_item(&all, "limits", i);
        doorman__keys_warn(&check, limit->keys, limit->key_count);
        doorman__tiers_warn(&check, &limit->figures);
        doorman__most_warn(&check, limit, &limit->figures, limit->key_count > 0);
        doorman__concurrency_warn(&check, limit);
        doorman__shared_warn(&check, template_, limit, &limit->figures);
        doorman__restart_warn(&check, limit, &limit->figures);
        size_t compared = 0;
        for (size_t j = 0; j < limit->override_count; j++) {
            doorman__check item = doorman__check_item(&check, "overrides", j);
            doorman__hidden_keys_warn(&item, limit, j, &compared);
        }
        for (size_t j = 0; j < limit->override_count; j++) {
            doorman__override_warn(&check, template_, limit, j);
        }
        for (size_t j = 0; j < limit->plan_count; j++) {
            doorman__check item = doorman__check_item(&check, "plans", j);
            doorman__given_warn(&item, template_, limit, &limit->plans[j].figures);
        }
    }
}

/* ---- limits: copies */

/* How much memory the limits of a configuration need: items of each array, and bytes of strings. */
typedef struct doorman__config_size {
    size_t limits, overrides, plans, tiers, keys, string_bytes;
} doorman__config_size;

/* The limits of all templates of a configuration. Behind the struct are the limits, their
 * overrides, their plans, the tiers of all of them, the keys of limits and overrides with the globs
 * in shadow, and the strings. */
struct doorman__config_limits {
    doorman_permit_limit *limits;
};

static void doorman__config_count_keys(doorman__config_size *size, const char *const *keys,
                                       size_t count) {
    size->keys += count;
    for (size_t i = 0; i < count; i++) size->string_bytes += strlen(keys[i]) + 1;
}

/* Returns how much memory the copies of all limits need. */
static doorman__config_size doorman__limits_measure(const doorman_config_options *options) {
    doorman__config_size size = {.limits = 0};
    doorman__config_count_keys(&size, options->shadow, options->shadow_count);
    for (size_t i = 0; i < options->template_count; i++) {
        const doorman_template *template_ = &options->templates[i];
        size.limits += template_->limit_count;
        for (size_t j = 0; j < template_->limit_count; j++) {
            const doorman_permit_limit *limit = &template_->limits[j];
            size.string_bytes += strlen(limit->name) + 1;
            if (limit->lease_of) size.string_bytes += strlen(limit->lease_of) + 1;
            doorman__config_count_keys(&size, limit->keys, limit->key_count);
            size.tiers += limit->figures.tier_count;
            size.overrides += limit->override_count;
            for (size_t k = 0; k < limit->override_count; k++) {
                const doorman_override *override_ = &limit->overrides[k];
                doorman__config_count_keys(&size, override_->keys, override_->key_count);
                size.tiers += override_->figures.tier_count;
            }
            size.plans += limit->plan_count;
            for (size_t k = 0; k < limit->plan_count; k++) {
                size.string_bytes += strlen(limit->plans[k].name) + 1;
                size.tiers += limit->plans[k].figures.tier_count;
            }
        }
    }
    return size;
}

/* The next free position in each array of a configuration that is copied. */
typedef struct doorman__config_places {
    doorman_permit_limit *limit;
    doorman_override *override_;
    doorman_plan *plan;
    doorman_tier *tier;
    const char **key;
    char *string;
} doorman__config_places;

static const char **doorman__config_copy_keys(doorman__config_places *at, const char *const *keys,
                                              size_t count) {
    const char **copy = at->key;
    for (size_t i = 0; i < count; i++) *at->key++ = doorman__config_string(&at->string, keys[i]);
    return copy;
}

static void doorman__config_copy_tiers(doorman__config_places *at, doorman_figures *figures) {
    const doorman_tier *given = figures->tiers;
    assert(figures->tier_count <= DOORMAN_TIERS_MAX);
    figures->tiers = at->tier;
    for (size_t i = 0; i < figures->tier_count; i++) *at->tier++ = given[i];
}

/* Copies the plans of a limit. */
static void doorman__config_copy_plans(doorman__config_places *at, doorman_permit_limit *copy,
                                       const doorman_permit_limit *given) {
    copy->plans = at->plan;
    for (size_t i = 0; i < given->plan_count; i++) {
        doorman_plan *plan = at->plan++;
        *plan = given->plans[i];
        plan->name = doorman__config_string(&at->string, plan->name);
        doorman__config_copy_tiers(at, &plan->figures);
        plan->figures = doorman__override_resolve(copy, &plan->figures);
    }
}

/* Copies a limit, and fills in the defaults. An override and a plan get all figures. They share the
 * tiers of their limit if they have none of their own. */
static void doorman__config_copy_limit(doorman__config_places *at,
                                       const doorman_permit_limit *given) {
    doorman_permit_limit *copy = at->limit++;
    *copy = *given;
    copy->name = doorman__config_string(&at->string, given->name);
    if (given->lease_of) copy->lease_of = doorman__config_string(&at->string, given->lease_of);
    copy->keys = doorman__config_copy_keys(at, given->keys, given->key_count);
    doorman__config_copy_tiers(at, &copy->figures);
    copy->overrides = at->override_;
    for (size_t i = 0; i < given->override_count; i++) {
        doorman_override *override_ = at->override_++;
        *override_ = given->overrides[i];
        override_->keys = doorman__config_copy_keys(at, override_->keys, override_->key_count);
        doorman__config_copy_tiers(at, &override_->figures);
        override_->figures = doorman__override_resolve(copy, &override_->figures);
    }
    doorman__config_copy_plans(at, copy, given);
    copy->figures = doorman__figures_resolve(copy->kind, &copy->figures);
    if (!copy->max_keys) copy->max_keys = copy->leased ? DOORMAN__MAX_LEASES : DOORMAN__MAX_KEYS;
    if (!(copy->set_max > 0)) copy->set_max = DOORMAN__SET_MAX;
    copy->durable = doorman__limit_durable(copy);
    assert(doorman__permit_kind_valid(copy->kind) && copy->max_keys <= DOORMAN__COUNTERS_MAX);
}

static void doorman__limits_free(doorman_config *config) { DOORMAN_FREE(config->limits); }

/* Copies the limits of all templates, and fills in the defaults. Returns false if memory runs
 * out. */
static bool doorman__limits_copy(doorman_config *config, const doorman_config_options *options) {
    const doorman__config_size size = doorman__limits_measure(options);
    const size_t items_bytes = size.limits * sizeof(doorman_permit_limit) +
                               size.overrides * sizeof(doorman_override) +
                               size.plans * sizeof(doorman_plan) +
                               size.tiers * sizeof(doorman_tier) + size.keys * sizeof(char *);
    config->limits = (doorman__config_limits *)doorman__zalloc(sizeof *config->limits +
                                                               items_bytes + size.string_bytes);
    if (!config->limits) return false;
    doorman__config_places at = {.limit = (doorman_permit_limit *)(void *)(config->limits + 1)};
    config->limits->limits = at.limit;
    at.override_ = (doorman_override *)(void *)(at.limit + size.limits);
    at.plan = (doorman_plan *)(void *)(at.override_ + size.overrides);
    at.tier = (doorman_tier *)(void *)(at.plan + size.plans);
    at.key = (const char **)(void *)(at.tier + size.tiers);
    at.string = (char *)(at.key + size.keys);
    for (size_t i = 0; i < config->template_count; i++) {
        doorman_template *copy = &config->templates[i];
        const doorman_permit_limit *given = copy->limits;
        copy->limits = at.limit;
        for (size_t j = 0; j < copy->limit_count; j++) doorman__config_copy_limit(&at, &given[j]);
        if (!copy->has_limits) copy->limits = NULL;
    }
    config->shadow_count = options->shadow_count;
    config->shadow = doorman__config_copy_keys(&at, options->shadow, options->shadow_count);
    assert(at.limit == config->limits->limits + size.limits);
    assert(at.string == (char *)(config->limits + 1) + items_bytes + size.string_bytes);
    return true;
}

/* Returns the index of a limit among those of all templates. */
static size_t doorman__limit_index(const doorman_config *config,
                                   const doorman_permit_limit *limit) {
    assert(limit >= config->limits->limits);
    return (size_t)(limit - config->limits->limits);
}

/* Returns the first leased limit of a template, or limit_count (P17). */
static size_t doorman__template_first_leased(const doorman_template *template_) {
    size_t i = 0;
    assert(template_->limits || !template_->limit_count);
    while (i < template_->limit_count && !template_->limits[i].leased) i++;
    return i;
}

/* Returns the limit of a template with this name, or NULL.
 *   template_   may be NULL */
static const doorman_permit_limit *doorman__template_limit(const doorman_template *template_,
                                                           const char *name) {
    for (size_t i = 0; template_ && i < template_->limit_count; i++) {
        if (strcmp(template_->limits[i].name, name) == 0) return &template_->limits[i];
    }
    return NULL;
}

/* ---- >>descriptors -------------------------------------------------------------------------- */
/*
 * Gateways such as Envoy and Kuadrant describe a request by descriptors: lists of keys and values.
 * This section turns a descriptor into an item of a permit, by rules of the configuration, and
 * checks and copies these rules.
 *
 * W1 A rule matches a descriptor if it has the same domain, the same keys in the same order, and if
 *    each glob matches the whole value. The first rule that matches gives the resource and the key.
 *    A placeholder {entry key} in them is replaced by the value. If a text has several
 *    placeholders, `/` and `%` in the values are escaped, so that values cannot move from one
 *    placeholder to the next: %2F, %25.
 *       A descriptor that no rule matches has the resource domain/key1/key2 and the key
 *    value1/value2. `/` and `%` in the domain, keys and values are escaped in the same way. So
 *    different descriptors have different names, and limits can be written without any rule.
 *       What a client sends is never an error. A resource or key that is longer than 256 bytes, or
 *    not valid, or begins with "sha256:" is replaced by "sha256:" and 64 digits. So a client cannot
 *    choose the name that another descriptor has after its replacement.
 *
 *     domain shop, [path "/login"], [remote_address "1.2.3.4"]
 *         the rule with [path "/login"], [remote_address "*"]  --> "login", "1.2.3.4"
 *         without a rule                   --> "shop/path/remote_address", "%2Flogin/1.2.3.4"
 *
 * A hash table finds the rules with a domain and keys. Only the values of these are compared.
 */

#define DOORMAN__HASHED "sha256:"

/* ---- descriptors: SHA-256 */

/* SHA-256 (FIPS 180-4) of a text that comes in pieces. */
typedef struct doorman__sha256 {
    uint32_t state[8];
    uint64_t bytes;
    unsigned char block[64]; /* bytes % 64 of them are used */
} doorman__sha256;

static uint32_t doorman__rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void doorman__sha256_block(doorman__sha256 *hash) {
    static const uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
        0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
        0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
        0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
        0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
        0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
        0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
        0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
        0xc67178f2};
    uint32_t w[64], v[8]; /* v[0] to v[7] are a to h of the standard */
    for (int i = 0; i < 16; i++) {
        const unsigned char *at = &hash->block[4 * i];
        w[i] = (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
    }
    for (int i = 16; i < 64; i++) {
        const uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] + (doorman__rotate(a, 7) ^ doorman__rotate(a, 18) ^ a >> 3) +
               (doorman__rotate(b, 17) ^ doorman__rotate(b, 19) ^ b >> 10);
    }
    memcpy(v, hash->state, sizeof v);
    for (int i = 0; i < 64; i++) {
        const uint32_t e =
            doorman__rotate(v[4], 6) ^ doorman__rotate(v[4], 11) ^ doorman__rotate(v[4], 25);
        const uint32_t a =
            doorman__rotate(v[0], 2) ^ doorman__rotate(v[0], 13) ^ doorman__rotate(v[0], 22);
        const uint32_t first = v[7] + e + ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[i] + w[i];
        const uint32_t second = a + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(&v[1], &v[0], 7 * sizeof *v);
        v[4] += first;
        v[0] = first + second;
    }
    for (int i = 0; i < 8; i++) hash->state[i] += v[i];
}

static void doorman__sha256_start(doorman__sha256 *hash) {
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memset(hash, 0, sizeof *hash);
    memcpy(hash->state, start, sizeof start);
}

static void doorman__sha256_add(doorman__sha256 *hash, const void *data, size_t bytes) {
    const unsigned char *at = (const unsigned char *)data;
    while (bytes > 0) {
        const size_t used = hash->bytes % sizeof hash->block, room = sizeof hash->block - used;
        const size_t part = bytes < room ? bytes : room;
        memcpy(hash->block + used, at, part);
        hash->bytes += part;
        if (part == room) doorman__sha256_block(hash);
        at += part;
        bytes -= part;
    }
}

/* Writes the hash as 64 digits. */
static void doorman__sha256_end(doorman__sha256 *hash, char text[65]) {
    static const unsigned char padding[64] = {0x80};
    const uint64_t bits = hash->bytes * 8;
    unsigned char length[8];
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)(bits >> (56 - 8 * i));
    doorman__sha256_add(hash, padding, (119 - hash->bytes % 64) % 64 + 1);
    doorman__sha256_add(hash, length, sizeof length);
    assert(hash->bytes % sizeof hash->block == 0);
    for (int i = 0; i < 8; i++) snprintf(text + 8 * i, 9, "%08x", (unsigned)hash->state[i]);
}

/* ---- descriptors: texts with placeholders */

/* A piece of a resource or of a key of a rule. */
typedef struct doorman__piece {
    enum { DOORMAN__LITERAL, DOORMAN__PLACEHOLDER, DOORMAN__WRONG_BRACE } kind;
    const char *text; /* of a placeholder: the key of its entry */
    size_t bytes;
} doorman__piece;

/* Takes the next piece of a text. Returns false at the end. A literal brace is one piece. */
static bool doorman__piece_next(const char **text, doorman__piece *piece) {
    const char *at = *text;
    if (!*at) return false;
    *piece = (doorman__piece){DOORMAN__LITERAL, at, strcspn(at, "{}")};
    *text = at + piece->bytes;
    if (piece->bytes) return true;
    const size_t key_bytes = strcspn(at + 1, "{}");
    if (at[1] == at[0]) { /* {{ or }} */
        piece->bytes = 1;
        *text = at + 2;
    } else if (at[0] == '{' && key_bytes && at[1 + key_bytes] == '}') {
        *piece = (doorman__piece){DOORMAN__PLACEHOLDER, at + 1, key_bytes};
        *text = at + key_bytes + 2;
    } else {
        *piece = (doorman__piece){DOORMAN__WRONG_BRACE, at, 1};
        *text = at + 1;
    }
    return true;
}

static size_t doorman__placeholder_count(const char *text) {
    doorman__piece piece;
    size_t count = 0;
    while (doorman__piece_next(&text, &piece)) count += piece.kind == DOORMAN__PLACEHOLDER;
    return count;
}

/* ---- descriptors: names */

/* Writes a name. Its bytes go to `out` as far as they fit, or to a hash. */
typedef struct doorman__item_name {
    char *out;             /* room for DOORMAN_ID_BYTES_MAX + 1 bytes */
    size_t bytes;          /* of the whole name, although it may not fit */
    doorman__sha256 *hash; /* NULL: the bytes go to out */
} doorman__item_name;

typedef struct doorman__descriptor {
    const char *domain;
    const doorman_descriptor_entry *entries;
    size_t count;
} doorman__descriptor;

static void doorman__item_name_add(doorman__item_name *name, const char *text, size_t bytes) {
    if (bytes && name->hash) {
        doorman__sha256_add(name->hash, text, bytes);
    } else if (bytes && bytes <= DOORMAN_ID_BYTES_MAX &&
               name->bytes <= DOORMAN_ID_BYTES_MAX - bytes) {
        memcpy(name->out + name->bytes, text, bytes);
    }
    name->bytes += bytes;
}

static void doorman__item_name_add_escaped(doorman__item_name *name, const char *text,
                                           size_t bytes) {
    size_t plain = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] != '/' && text[i] != '%') continue;
        doorman__item_name_add(name, text + plain, i - plain);
        doorman__item_name_add(name, text[i] == '/' ? "%2F" : "%25", 3);
        plain = i + 1;
    }
    if (bytes > plain) doorman__item_name_add(name, text + plain, bytes - plain);
}

static bool doorman__entry_has_key(const doorman_descriptor_entry *entry, const char *key,
                                   size_t bytes) {
    return entry->key_bytes == bytes && (!bytes || memcmp(entry->key, key, bytes) == 0);
}

/* Writes a text of a rule, with the values of a descriptor in place of its placeholders. */
static void doorman__item_name_expand(doorman__item_name *name, const doorman__descriptor *from,
                                      const char *text) {
    const bool escapes = doorman__placeholder_count(text) > 1;
    doorman__piece piece;
    while (doorman__piece_next(&text, &piece)) {
        assert(piece.kind != DOORMAN__WRONG_BRACE);
        if (piece.kind == DOORMAN__LITERAL) {
            doorman__item_name_add(name, piece.text, piece.bytes);
            continue;
        }
        const doorman_descriptor_entry *entry = from->entries;
        while (!doorman__entry_has_key(entry, piece.text, piece.bytes)) entry++;
        assert(entry < from->entries + from->count);
        if (escapes) doorman__item_name_add_escaped(name, entry->value, entry->value_bytes);
        if (!escapes) doorman__item_name_add(name, entry->value, entry->value_bytes);
    }
}

/* Writes the resource or the key of a descriptor.
 *   text   of the rule that matches; NULL: no rule matches */
static void doorman__item_name_write(doorman__item_name *name, const doorman__descriptor *from,
                                     const char *text, bool is_key) {
    if (text) {
        doorman__item_name_expand(name, from, text);
        return;
    }
    if (!is_key) doorman__item_name_add_escaped(name, from->domain, strlen(from->domain));
    for (size_t i = 0; i < from->count; i++) {
        const doorman_descriptor_entry *entry = &from->entries[i];
        if (i || !is_key) doorman__item_name_add(name, "/", 1);
        if (is_key) doorman__item_name_add_escaped(name, entry->value, entry->value_bytes);
        if (!is_key) doorman__item_name_add_escaped(name, entry->key, entry->key_bytes);
    }
}

/* Returns whether a name may be used unchanged. */
static bool doorman__item_name_valid(const doorman__item_name *name, bool is_key) {
    if (name->bytes > DOORMAN_ID_BYTES_MAX || memchr(name->out, 0, name->bytes)) return false;
    name->out[name->bytes] = '\0';
    if (strncmp(name->out, DOORMAN__HASHED, strlen(DOORMAN__HASHED)) == 0) return false;
    return is_key ? doorman__key_valid(name->out) : doorman__id_valid(name->out);
}

/* Makes the resource or the key of a descriptor. Returns whether it is a hash. */
static bool doorman__descriptor_name(const doorman__descriptor *from, const char *text, bool is_key,
                                     char out[DOORMAN_ID_BYTES_MAX + 1]) {
    doorman__item_name name = {.out = out};
    doorman__item_name_write(&name, from, text, is_key);
    if (doorman__item_name_valid(&name, is_key)) return false;
    doorman__sha256 hash;
    char digits[65];
    doorman__sha256_start(&hash);
    name.hash = &hash;
    doorman__item_name_write(&name, from, text, is_key);
    doorman__sha256_end(&hash, digits);
    snprintf(out, DOORMAN_ID_BYTES_MAX + 1, DOORMAN__HASHED "%s", digits);
    return true;
}

/* ---- descriptors: finding a rule */

/* The rules of a configuration. Behind the struct are the rules, their entries, the hash table, and
 * the strings. The rules of a bucket are in the order of the configuration. */
struct doorman_descriptors {
    doorman_descriptor_rule *rules;
    size_t count;
    uint32_t mask;   /* the number of buckets minus 1 */
    uint32_t *first; /* of each bucket: the index of a rule plus 1, or 0 */
    uint32_t *next;  /* of each rule, in the same way */
};

/* Adds a text to the hash of a domain and keys. */
static uint64_t doorman__descriptor_hash(uint64_t hash, const char *text, size_t bytes) {
    return doorman__mix(hash ^ doorman__config_hash(bytes ? text : "", bytes));
}

static uint64_t doorman__descriptor_rule_hash(const doorman_descriptor_rule *rule) {
    uint64_t hash = doorman__descriptor_hash(0, rule->domain, strlen(rule->domain));
    for (size_t i = 0; i < rule->entry_count; i++) {
        const char *key = rule->entries[i].key;
        hash = doorman__descriptor_hash(hash, key, strlen(key));
    }
    return hash;
}

static bool doorman__descriptor_rule_matches(const doorman_descriptor_rule *rule,
                                             const doorman__descriptor *from) {
    if (rule->entry_count != from->count || strcmp(rule->domain, from->domain) != 0) return false;
    for (size_t i = 0; i < from->count; i++) {
        const char *key = rule->entries[i].key;
        if (!doorman__entry_has_key(&from->entries[i], key, strlen(key))) return false;
    }
    for (size_t i = 0; i < from->count; i++) {
        const doorman_descriptor_entry *entry = &from->entries[i];
        const char *value = entry->value_bytes ? entry->value : "";
        if (!doorman__glob_match_bytes(rule->entries[i].value, value, entry->value_bytes)) {
            return false;
        }
    }
    return true;
}

/* Returns the index of the first rule that matches, or the number of rules. */
static size_t doorman__descriptors_find(const doorman_descriptors *rules,
                                        const doorman__descriptor *from) {
    if (from->count > DOORMAN_DESCRIPTOR_ENTRIES_MAX) return rules->count;
    uint64_t hash = doorman__descriptor_hash(0, from->domain, strlen(from->domain));
    for (size_t i = 0; i < from->count; i++) {
        hash = doorman__descriptor_hash(hash, from->entries[i].key, from->entries[i].key_bytes);
    }
    for (uint32_t i = rules->first[hash & rules->mask]; i; i = rules->next[i - 1]) {
        assert(i <= rules->count && rules->next[i - 1] != i);
        if (doorman__descriptor_rule_matches(&rules->rules[i - 1], from)) return i - 1;
    }
    return rules->count;
}

doorman_status doorman_descriptors_resolve(const doorman_descriptors *rules, const char *domain,
                                           const doorman_descriptor_entry *entries, size_t count,
                                           doorman_descriptor_item *out) {
    if (!domain || (count && !entries) || !out) return DOORMAN_INVALID_ARGUMENT;
    for (size_t i = 0; i < count; i++) {
        const bool has_key = entries[i].key || !entries[i].key_bytes;
        const bool has_value = entries[i].value || !entries[i].value_bytes;
        if (!has_key || !has_value) return DOORMAN_INVALID_ARGUMENT;
    }
    const doorman__descriptor from = {domain, entries, count};
    const size_t found = rules ? doorman__descriptors_find(rules, &from) : 0;
    const bool matched = rules && found < rules->count;
    const doorman_descriptor_rule *rule = matched ? &rules->rules[found] : NULL;
    memset(out, 0, sizeof *out);
    out->matched = matched;
    out->rule = matched ? found : 0;
    const bool resource_hashed =
        doorman__descriptor_name(&from, rule ? rule->resource : NULL, false, out->resource_id);
    const bool key_hashed =
        doorman__descriptor_name(&from, rule ? rule->key : NULL, true, out->key);
    out->hashed = resource_hashed || key_hashed;
    return DOORMAN_OK;
}

const doorman_descriptors *doorman_config_descriptors(const doorman_config *config) {
    return config ? config->descriptors : NULL;
}

/* ---- descriptors: what is valid */

#define DOORMAN__TEXT_RULE "must be at most 256 bytes of UTF-8 without control characters"

static bool doorman__text_valid(const char *text) {
    return text && (!*text || doorman__id_valid(text));
}

/* Checks the placeholders of a text of a rule. Precondition: the entries are valid. */
static void doorman__placeholders_check(doorman__check *check, const doorman_descriptor_rule *rule,
                                        const char *field, const char *text) {
    doorman__piece piece;
    while (doorman__piece_next(&text, &piece)) {
        size_t named = 0;
        for (size_t i = 0; i < rule->entry_count; i++) {
            const char *key = rule->entries[i].key;
            named += strlen(key) == piece.bytes && memcmp(key, piece.text, piece.bytes) == 0;
        }
        if (piece.kind == DOORMAN__WRONG_BRACE) {
            doorman__check_add(check,
                               "%s: must have braces only around the key of an entry; write {{ or "
                               "}} for a brace itself",
                               field);
            return;
        }
        if (piece.kind == DOORMAN__LITERAL || named == 1) continue;
        doorman__check_add(check, "%s: {%.*s} %s", field, (int)piece.bytes, piece.text,
                           named ? "names an entry that occurs more than once"
                                 : "names no entry of the rule");
    }
}

/* Checks one entry of a rule. */
static void doorman__match_check(doorman__check *check, const doorman_descriptor_match *entry) {
    const doorman__rule rules[] = {
        {!doorman__id_valid(entry->key),
         DOORMAN__NAMES("key: " DOORMAN__ID_RULE, "[0]: " DOORMAN__ID_RULE)},
        {!doorman__text_valid(entry->value),
         DOORMAN__NAMES("value: " DOORMAN__TEXT_RULE, "[1]: " DOORMAN__TEXT_RULE)},
    };
    DOORMAN__CHECK(check, rules);
}

static void doorman__descriptor_rule_check(doorman__check *check,
                                           const doorman_descriptor_rule *rule) {
    const size_t count = rule->entry_count;
    const bool bounded = count >= 1 && count <= DOORMAN_DESCRIPTOR_ENTRIES_MAX;
    const bool key_valid = !rule->key || doorman__text_valid(rule->key);
    const doorman__rule rules[] = {
        {!doorman__id_valid(rule->domain), "domain: " DOORMAN__ID_RULE},
        {!bounded, "entries: must be a list of 1 to 16"},
        {bounded && !rule->entries, "entries: must not be NULL"},
        {!doorman__id_valid(rule->resource), "resource: " DOORMAN__ID_RULE},
        {!key_valid, "key: " DOORMAN__TEXT_RULE},
    };
    DOORMAN__CHECK(check, rules);
    for (size_t i = 0; bounded && rule->entries && i < count; i++) {
        doorman__check entry = doorman__check_item(check, "entries", i);
        doorman__match_check(&entry, &rule->entries[i]);
    }
    if (check->count) return;
    doorman__placeholders_check(check, rule, "resource", rule->resource);
    doorman__placeholders_check(check, rule, "key", rule->key ? rule->key : "");
}

static void doorman__descriptors_check(const doorman_config_options *options,
                                       const doorman__config_report *report) {
    doorman__check check = {.report = report, .index = DOORMAN__NO_TEMPLATE};
    const size_t count = options->descriptor_count;
    const bool bounded = count <= DOORMAN_DESCRIPTOR_RULES_MAX;
    const doorman__rule rules[] = {
        {count && bounded && !options->descriptors, "descriptors: must not be NULL"},
        {!bounded, "descriptors: must be a list of at most 1,000"},
    };
    DOORMAN__CHECK(&check, rules);
    for (size_t i = 0; bounded && options->descriptors && i < count; i++) {
        doorman__check rule = doorman__check_item(&check, "descriptors", i);
        doorman__descriptor_rule_check(&rule, &options->descriptors[i]);
    }
}

/* ---- descriptors: what is valid but causes a warning (G9) */

/* Returns whether a rule matches all descriptors that another one matches. May return false by
 * mistake: see doorman__glob_covers. */
static bool doorman__descriptor_rule_covers(const doorman_descriptor_rule *wide,
                                            const doorman_descriptor_rule *narrow) {
    bool covers =
        wide->entry_count == narrow->entry_count && strcmp(wide->domain, narrow->domain) == 0;
    for (size_t i = 0; covers && i < wide->entry_count; i++) {
        covers = strcmp(wide->entries[i].key, narrow->entries[i].key) == 0;
    }
    for (size_t i = 0; covers && i < wide->entry_count; i++) {
        covers = doorman__glob_covers(wide->entries[i].value, narrow->entries[i].value);
    }
    return covers;
}

/* Returns whether two placeholders of a text have no `/` between them, so that different values can
 * make the same text. */
static bool doorman__text_is_ambiguous(const char *text) {
    doorman__piece piece;
    bool has_placeholder = false, has_slash = false;
    while (doorman__piece_next(&text, &piece)) {
        if (piece.kind == DOORMAN__LITERAL) {
            has_slash = has_slash || memchr(piece.text, '/', piece.bytes);
            continue;
        }
        if (has_placeholder && !has_slash) return true;
        has_placeholder = true;
        has_slash = false;
    }
    return false;
}

#define DOORMAN__AMBIGUOUS                                                                         \
    "different values can give the same text; write / between two placeholders"

/* Makes the warnings about rules. Precondition: the rules are valid. */
static void doorman__descriptors_warn(const doorman_config_options *options,
                                      const doorman__config_report *report) {
    doorman__check check = {.report = report, .index = DOORMAN__NO_TEMPLATE};
    for (size_t i = 0; i < options->descriptor_count; i++) {
        const doorman_descriptor_rule *rule = &options->descriptors[i];
        doorman__check item = doorman__check_item(&check, "descriptors", i);
        for (size_t j = 0; j < rule->entry_count; j++) {
            doorman__check entry = doorman__check_item(&item, "entries", j);
            if (!doorman__glob_is_open(rule->entries[j].value)) continue;
            doorman__check_add(&entry, DOORMAN__NAMES("value: %s", "[1]: %s"), DOORMAN__GLOB_OPEN,
                               DOORMAN__GLOB_OPEN);
        }
        size_t hiding = 0;
        while (!doorman__descriptor_rule_covers(&options->descriptors[hiding], rule)) hiding++;
        if (hiding < i) {
            doorman__check_add(&item,
                               "entries: are never used, because descriptors[%zu] comes first and "
                               "matches them",
                               hiding);
        }
        const doorman__rule rules[] = {
            {doorman__text_is_ambiguous(rule->resource), "resource: " DOORMAN__AMBIGUOUS},
            {doorman__text_is_ambiguous(rule->key ? rule->key : ""), "key: " DOORMAN__AMBIGUOUS},
        };
        DOORMAN__CHECK(&item, rules);
    }
}

/* ---- descriptors: copies */

static void doorman__descriptors_free(doorman_descriptors *descriptors) {
    DOORMAN_FREE(descriptors);
}

/* Returns how many bytes the strings of a rule need, with a NUL each. */
static size_t doorman__descriptor_rule_measure(const doorman_descriptor_rule *rule) {
    size_t bytes = strlen(rule->domain) + strlen(rule->resource) + 3;
    bytes += strlen(rule->key ? rule->key : "");
    for (size_t i = 0; i < rule->entry_count; i++) {
        bytes += strlen(rule->entries[i].key) + strlen(rule->entries[i].value) + 2;
    }
    return bytes;
}

/* Copies a rule. A rule without a key gets the key "". */
static void doorman__descriptor_rule_copy(doorman_descriptor_rule *copy,
                                          const doorman_descriptor_rule *given,
                                          doorman_descriptor_match *entries, char **string) {
    copy->domain = doorman__config_string(string, given->domain);
    copy->resource = doorman__config_string(string, given->resource);
    copy->key = doorman__config_string(string, given->key);
    copy->entries = entries;
    copy->entry_count = given->entry_count;
    for (size_t i = 0; i < given->entry_count; i++) {
        entries[i].key = doorman__config_string(string, given->entries[i].key);
        entries[i].value = doorman__config_string(string, given->entries[i].value);
    }
}

/* Fills the hash table. The last rule is entered first, so a bucket has its rules in order. */
static void doorman__descriptors_index(doorman_descriptors *all) {
    for (size_t i = all->count; i-- > 0;) {
        uint32_t *bucket = &all->first[doorman__descriptor_rule_hash(&all->rules[i]) & all->mask];
        all->next[i] = *bucket;
        *bucket = (uint32_t)i + 1;
    }
}

/* Copies the rules of a configuration. Returns false if memory runs out. */
static bool doorman__descriptors_copy(doorman_config *config,
                                      const doorman_config_options *options) {
    const size_t count = options->descriptor_count;
    size_t entry_count = 0, string_bytes = 0, buckets = 1;
    if (!count) return true;
    for (size_t i = 0; i < count; i++) {
        entry_count += options->descriptors[i].entry_count;
        string_bytes += doorman__descriptor_rule_measure(&options->descriptors[i]);
    }
    while (buckets < count) buckets *= 2;
    doorman_descriptors *all = (doorman_descriptors *)doorman__zalloc(
        sizeof *all + count * sizeof(doorman_descriptor_rule) +
        entry_count * sizeof(doorman_descriptor_match) + (buckets + count) * sizeof(uint32_t) +
        string_bytes);
    if (!all) return false;
    all->rules = (doorman_descriptor_rule *)(void *)(all + 1);
    all->count = count;
    all->mask = (uint32_t)buckets - 1;
    doorman_descriptor_match *entries = (doorman_descriptor_match *)(void *)(all->rules + count);
    all->first = (uint32_t *)(void *)(entries + entry_count);
    all->next = all->first + buckets;
    char *const strings = (char *)(all->next + count);
    char *string = strings;
    for (size_t i = 0; i < count; i++) {
        doorman__descriptor_rule_copy(&all->rules[i], &options->descriptors[i], entries, &string);
        entries += options->descriptors[i].entry_count;
    }
    assert(string == strings + string_bytes && (void *)entries == (void *)all->first);
    doorman__descriptors_index(all);
    config->descriptors = all;
    config->descriptor_rules = all->rules;
    config->descriptor_count = count;
    return true;
}

static const doorman__config_permits doorman__permits_in_config = {
    .check_limits = doorman__limits_check,
    .check_shadow = doorman__shadow_check,
    .check_leased = doorman__leases_of_check,
    .warn_limits = doorman__limits_warn,
    .copy_limits = doorman__limits_copy,
    .free_limits = doorman__limits_free,
    .first_leased = doorman__template_first_leased,
    .check_descriptors = doorman__descriptors_check,
    .warn_descriptors = doorman__descriptors_warn,
    .copy_descriptors = doorman__descriptors_copy,
    .free_descriptors = doorman__descriptors_free,
};

/* ---- >>counters ----------------------------------------------------------------------------- */
/*
 * This section has what the permits store, and the arithmetic of each kind of limit. It is pure, as
 * all sections before >>permit_agent are: they read no clock, do no I/O and start no thread.
 *
 * A limit has the parameters, and a counter has the state. A counter belongs to a slot. A slot is
 * the table of the counters of one limit. The key of a counter in its slot is its resource and its
 * key. A place is what the permits know about one resource: its template, and the slot of each of
 * its limits. A counter that does not exist equals a fresh counter. So a refusal creates no
 * counter, and a flood of refused permits uses no memory.
 *
 *     resource "api/search" --> place --> slot of "burst"  --> counter of ("api/search", "acme")
 *                                     --> slot of "trials" --> counter of ("api/search", "")
 *
 * Counters count in grains, as those of >>limiters: a grain is 1/4096 of a unit. What the items of
 * a permit get of one counter is added up, and the sum is rounded up once. CONCURRENCY rounds each
 * item up by itself, because the items of a hold are released one by one. So a counter never counts
 * less than what was granted. `granted` is not rounded, so an item never gets more than its cost. A
 * limit is rounded up too: a limit of 1.3 grants a cost of 1.3. What a lease has is rounded down.
 * The cost of a report is rounded up, and a refund is rounded down. A bucket saves a real number of
 * units. Only a full bucket is rounded up.
 *
 * P14 A counter that equals a fresh one is removed. Each decision visits about 4 counters, and each
 *    update visits about 10,000. A table grows and shrinks by one or two buckets at a time (linear
 *    hashing, Litwin 1980), so no call pauses to rebuild it.
 *       About P15: if a resource gets another template, its counters stay in the slot of the limit
 *    that they had. So max_keys counts them there. A counter is adapted when it is used or visited
 *    next. So a counter that was full or over under the previous figures may be fresh, or may have
 *    its state again.
 * P19 Every quantity has a bound: see doorman_permits_options and doorman_permit_limit. A message
 *    beyond a bound is refused as a whole, and the error names the field. Where a new counter may
 *    take the place of another, 8 counters are sampled. The one that has used the smallest fraction
 *    of its limit is evicted, and of several the one that is fresh soonest. Refusals
 *    count as a fraction of those that a ban needs. So a counter that refuses now goes last of all.
 * P20 An administrator can ban any (resource, key), or end its ban. A ban replaces the ban that the
 *    (resource, key) has.
 *       A limit has at most max_keys bans, apart from its counters: so a flood of keys ends no ban,
 *    and a flood of bans evicts no counter. If there is one more, the ban of the limit that ends
 *    first is ended early, and counted. All bans together are at most counter_max, and use at most
 *    half of memory_max: here the ban of any limit that ends first gives way. A ban by an
 *    administrator gives way only to another ban by an administrator. If memory_max is full of
 *    counters, a ban evicts a counter of the limit that has most.
 *       Each limit counts which (resource, key)s it grants and refuses most, in two sketches. A
 *    sketch gets its memory when the limit first decides. Without memory a decision is not counted
 *    in the sketch.
 * P26 The clock `epoch` never goes back, and runs at least at 15/16 of the speed of `now`. So after
 *    `epoch` was set back, windows keep their length, and the difference disappears slowly. If
 *    windows waited for the old time, a clock that was wrong by a year would block keys for a year.
 */

/* ---- permits: a table that grows and shrinks without a pause */

/* An entry of a table begins with its node. The owner uses `tag`. */
typedef struct doorman__chain {
    struct doorman__chain *next;
    uint32_t hash, tag;
} doorman__chain;

#define DOORMAN__SEGMENT_BUCKETS 64

/* Some buckets of a table. */
typedef struct doorman__segment {
    doorman__chain **buckets;
    uint64_t marks; /* one bit for each bucket that may have a node that its owner has marked */
} doorman__segment;

/* A hash table by linear hashing (Litwin 1980). The buckets are in segments, so a new bucket moves
 * no other bucket. The table has about as many buckets as entries. If an entry is added when there
 * are at least as many entries as buckets, one bucket is split in two. When there are less than
 * half as many entries as buckets, each removal takes back up to two splits. */
typedef struct doorman__chains {
    doorman__segment *segments;
    size_t segment_capacity; /* of the array `segments` */
    size_t bucket_count, count;
    uint32_t mask; /* the smallest 2^k - 1 that is at least bucket_count - 1 */
    size_t cursor; /* the bucket that a sweep visits next */
} doorman__chains;

static doorman__chain **doorman__chains_at(const doorman__chains *nodes, size_t bucket) {
    assert(bucket < nodes->bucket_count);
    const doorman__segment *segment = &nodes->segments[bucket / DOORMAN__SEGMENT_BUCKETS];
    return &segment->buckets[bucket % DOORMAN__SEGMENT_BUCKETS];
}

/* Returns the index of the bucket of a hash. Precondition: the table has a bucket. */
static size_t doorman__chains_index(const doorman__chains *nodes, uint32_t hash) {
    size_t bucket = hash & nodes->mask;
    return bucket < nodes->bucket_count ? bucket : bucket & (nodes->mask >> 1);
}

static doorman__chain **doorman__chains_bucket(const doorman__chains *nodes, uint32_t hash) {
    return doorman__chains_at(nodes, doorman__chains_index(nodes, hash));
}

/* Marks a bucket. */
static void doorman__chains_mark(doorman__chains *nodes, size_t bucket) {
    assert(bucket < nodes->bucket_count);
    nodes->segments[bucket / DOORMAN__SEGMENT_BUCKETS].marks |=
        UINT64_C(1) << bucket % DOORMAN__SEGMENT_BUCKETS;
}

/* Removes the mark of a bucket. Returns whether there was one. */
static bool doorman__chains_unmark(doorman__chains *nodes, size_t bucket) {
    assert(bucket < nodes->bucket_count);
    uint64_t *marks = &nodes->segments[bucket / DOORMAN__SEGMENT_BUCKETS].marks;
    const uint64_t mark = UINT64_C(1) << bucket % DOORMAN__SEGMENT_BUCKETS;
    bool marked = (*marks & mark) != 0;
    *marks &= ~mark;
    return marked;
}

/* Makes room for `count` items in a growing array, as doorman__reserve does.
 *   list   the address of the pointer to the array */
static bool doorman__reserve_list(void *list, size_t *capacity, size_t count, size_t item_bytes) {
    void *items;
    memcpy(&items, list, sizeof items);
    bool room = doorman__reserve(&items, capacity, count, item_bytes);
    memcpy(list, &items, sizeof items);
    assert(!room || *capacity >= count);
    return room;
}

/* Starts to load a node into the cache. Most nodes are on two cache lines. NULL has no effect. */
static void doorman__chain_prefetch(const doorman__chain *node) {
    if (!node) return;
    __builtin_prefetch(node);
    __builtin_prefetch((const char *)node + DOORMAN__LINE_BYTES);
}

/* Adds one bucket, and moves the nodes that belong there from one other bucket. Returns false if
 * memory runs out. */
static bool doorman__chains_split(doorman__chains *nodes) {
    size_t added = nodes->bucket_count;
    if (added % DOORMAN__SEGMENT_BUCKETS == 0) {
        size_t index = added / DOORMAN__SEGMENT_BUCKETS;
        size_t bytes = DOORMAN__SEGMENT_BUCKETS * sizeof(doorman__chain *);
        if (!doorman__reserve_list(&nodes->segments, &nodes->segment_capacity, index + 1,
                                   sizeof *nodes->segments)) {
            return false;
        }
        doorman__segment *segment = &nodes->segments[index];
        *segment = (doorman__segment){.buckets = (doorman__chain **)doorman__zalloc(bytes)};
        if (!segment->buckets) return false;
    }
    nodes->bucket_count++;
    if (added == 0) return true;
    if (added > nodes->mask) nodes->mask = 2 * nodes->mask + 1;
    assert(added <= nodes->mask && added > nodes->mask >> 1);
    const size_t split = added & (nodes->mask >> 1);
    /* the next buckets are split after the next nodes were added */
    doorman__chain_prefetch(*doorman__chains_at(nodes, split + 2 < added ? split + 2 : split));
    doorman__chain **from = doorman__chains_at(nodes, split);
    doorman__chain **to = doorman__chains_at(nodes, added);
    if (nodes->segments[split / DOORMAN__SEGMENT_BUCKETS].marks >>
            split % DOORMAN__SEGMENT_BUCKETS &
        1) {
        doorman__chains_mark(nodes, added);
    }
    while (*from) {
        doorman__chain *node = *from;
        if ((node->hash & nodes->mask) == added) {
            *from = node->next;
            node->next = *to;
            *to = node;
        } else {
            from = &node->next;
        }
    }
    return true;
}

/* Removes the last bucket, and moves its nodes to the bucket from which it was split. */
static void doorman__chains_merge(doorman__chains *nodes) {
    size_t last = nodes->bucket_count - 1;
    assert(last > 0 && last <= nodes->mask);
    const size_t merged = last & (nodes->mask >> 1);
    doorman__chain **from = doorman__chains_at(nodes, last);
    doorman__chain **to = doorman__chains_at(nodes, merged);
    if (doorman__chains_unmark(nodes, last)) doorman__chains_mark(nodes, merged);
    while (*to) to = &(*to)->next;
    *to = *from;
    *from = NULL;
    nodes->bucket_count = last;
    if (last - 1 <= nodes->mask >> 1) nodes->mask >>= 1;
    if (last % DOORMAN__SEGMENT_BUCKETS == 0) {
        DOORMAN_FREE(nodes->segments[last / DOORMAN__SEGMENT_BUCKETS].buckets);
    }
}

/* Returns a number with the lowest bit as the highest one. */
static uint32_t doorman__reverse_bits(uint32_t bits) {
    bits = (bits & 0x55555555) << 1 | (bits >> 1 & 0x55555555);
    bits = (bits & 0x33333333) << 2 | (bits >> 2 & 0x33333333);
    bits = (bits & 0x0f0f0f0f) << 4 | (bits >> 4 & 0x0f0f0f0f);
    bits = (bits & 0x00ff00ff) << 8 | (bits >> 8 & 0x00ff00ff);
    return bits << 16 | bits >> 16;
}

/* Returns the bucket that an iteration over all nodes visits at a position. It visits the nodes in
 * the order of their hashes, with the lowest bit as the most significant one (as SCAN of Redis). In
 * this order, the hashes of a bucket are one range, also after a bucket was split in two, or two
 * were merged. So a position is a number that stays correct while the table grows and shrinks. Its
 * upper half is the hash in this order. Precondition: the table has a bucket.
 *
 *     hashes           0..  in this order, and one bucket that is not split:
 *     4 buckets        | 0      | 2      | 1      | 3      |
 *     3 buckets        | 0      | 2      | 1               |
 */
static size_t doorman__chains_visited(const doorman__chains *nodes, uint64_t position) {
    return doorman__chains_index(nodes, doorman__reverse_bits((uint32_t)(position >> 32)));
}

/* Returns the position behind a bucket, or 0: it was the last one. The other half of a bucket that
 * is not split is another step. */
static uint64_t doorman__chains_behind(const doorman__chains *nodes, uint64_t position) {
    const unsigned bits = (unsigned)__builtin_popcount(nodes->mask);
    return bits ? ((position >> (64 - bits)) + 1) << (64 - bits) : 0;
}

/* Frees the buckets of an empty table. */
static void doorman__chains_uninit(doorman__chains *nodes) {
    size_t last = nodes->bucket_count + DOORMAN__SEGMENT_BUCKETS - 1;
    for (size_t i = 0; i < last / DOORMAN__SEGMENT_BUCKETS; i++) {
        DOORMAN_FREE(nodes->segments[i].buckets);
    }
    DOORMAN_FREE(nodes->segments);
    *nodes = (doorman__chains){.segments = NULL};
}

static void doorman__chains_free_all(doorman__chains *nodes) {
    for (size_t i = 0; i < nodes->bucket_count; i++) {
        doorman__chain *node = *doorman__chains_at(nodes, i);
        for (doorman__chain *next = NULL; node; node = next) {
            next = node->next;
            DOORMAN_FREE(node);
        }
    }
    doorman__chains_uninit(nodes);
}

static size_t doorman__chains_bytes(const doorman__chains *nodes) {
    size_t last = nodes->bucket_count + DOORMAN__SEGMENT_BUCKETS - 1;
    size_t buckets = last / DOORMAN__SEGMENT_BUCKETS * DOORMAN__SEGMENT_BUCKETS;
    return nodes->segment_capacity * sizeof *nodes->segments + buckets * sizeof(void *);
}

/* Returns false if memory runs out. A table that has a bucket needs no memory, because its lists
 * can get longer. */
static bool doorman__chains_add(doorman__chains *nodes, doorman__chain *node, uint32_t hash) {
    if (nodes->count >= nodes->bucket_count && !doorman__chains_split(nodes) &&
        nodes->bucket_count == 0) {
        return false;
    }
    doorman__chain **bucket = doorman__chains_bucket(nodes, hash);
    node->hash = hash;
    node->next = *bucket;
    *bucket = node;
    nodes->count++;
    assert(nodes->bucket_count);
    return true;
}

static void doorman__chains_remove(doorman__chains *nodes, doorman__chain *node) {
    doorman__chain **at = doorman__chains_bucket(nodes, node->hash);
    assert(nodes->count > 0);
    while (*at != node) {
        assert(*at); /* the node is in the table */
        at = &(*at)->next;
    }
    *at = node->next;
    nodes->count--;
    if (nodes->count % 1024 == 0) {
        /* glibc keeps small blocks that were freed in lists, and joins all of them when a program
         * asks for a large block. After a million removals that takes 150 ms. So one removal in
         * 1,024 asks for a large block, and joins what was freed since the last time. */
        void *volatile block = DOORMAN_MALLOC(4096); /* compilers leave out a block without use */
        DOORMAN_FREE(block);
    }
    if (nodes->count == 0) {
        size_t cursor = nodes->cursor;
        doorman__chains_uninit(nodes);
        nodes->cursor = cursor;
    }
    for (int i = 0; i < 2 && nodes->count < nodes->bucket_count / 2; i++) {
        doorman__chains_merge(nodes);
    }
}

/* Returns the first node of the list for a hash, or NULL. The caller compares hashes and keys. */
static doorman__chain *doorman__chains_first(const doorman__chains *nodes, uint32_t hash) {
    return nodes->bucket_count ? *doorman__chains_bucket(nodes, hash) : NULL;
}

/* What is loaded into the cache ahead of use. To find a counter, the CPU waits for memory twice:
 * for the bucket, and then for the first node of its list. */
typedef enum doorman__ahead { DOORMAN__AHEAD_BUCKET, DOORMAN__AHEAD_NODE } doorman__ahead;

/* Precondition for DOORMAN__AHEAD_NODE: the bucket was loaded ahead. */
static void doorman__chains_prefetch(const doorman__chains *nodes, uint32_t hash,
                                     doorman__ahead what) {
    if (!nodes->bucket_count) return;
    doorman__chain **bucket = doorman__chains_bucket(nodes, hash);
    if (what == DOORMAN__AHEAD_BUCKET) __builtin_prefetch(bucket);
    if (what == DOORMAN__AHEAD_NODE) doorman__chain_prefetch(*bucket);
}

#define DOORMAN__EVICT_SAMPLES 8
#define DOORMAN__EVICT_BUCKETS 16

/* Returns whether a node was sampled already. A bucket may be drawn twice. */
static bool doorman__samples_have(doorman__chain *const *samples, size_t count,
                                  const doorman__chain *node) {
    for (size_t i = 0; i < count; i++) {
        if (samples[i] == node) return true;
    }
    return false;
}

/* Samples 8 different nodes for an eviction, or all if the table has fewer. Returns how many nodes
 * were sampled.
 *     The buckets are drawn one by one. So a list loses nodes in proportion to its length, and
 * stays short. If neighbouring buckets were taken, full and empty parts of the table would lose
 * equally many nodes. Under a flood of new keys, some lists would then grow without a bound. */
static size_t doorman__chains_sample(const doorman__chains *nodes, uint64_t *random,
                                     doorman__chain *out[DOORMAN__EVICT_SAMPLES]) {
    size_t buckets[DOORMAN__EVICT_BUCKETS], count = 0, last = 0;
    if (!nodes->bucket_count) return 0;
    for (size_t i = 0; i < DOORMAN__EVICT_BUCKETS; i++) {
        last = buckets[i] = (size_t)(doorman__random(random) % nodes->bucket_count);
        __builtin_prefetch(doorman__chains_at(nodes, last));
    }
    for (size_t i = 0; i < DOORMAN__EVICT_BUCKETS; i++) {
        doorman__chain_prefetch(*doorman__chains_at(nodes, buckets[i]));
    }
    /* if the buckets that were drawn have too few nodes, the buckets behind the last one follow */
    const size_t most = DOORMAN__EVICT_BUCKETS + nodes->bucket_count;
    const size_t wanted =
        nodes->count < DOORMAN__EVICT_SAMPLES ? nodes->count : DOORMAN__EVICT_SAMPLES;
    for (size_t i = 0; i < most && count < wanted; i++) {
        if (i >= DOORMAN__EVICT_BUCKETS && ++last >= nodes->bucket_count) last = 0;
        size_t bucket = i < DOORMAN__EVICT_BUCKETS ? buckets[i] : last;
        doorman__chain *node = *doorman__chains_at(nodes, bucket);
        for (; node && count < wanted; node = node->next) {
            if (!doorman__samples_have(out, count, node)) out[count++] = node;
        }
    }
    return count;
}

/* ---- permits: time */

/* The times of one call, and the times at which the permits were created. */
typedef struct doorman__moment {
    doorman_time now, epoch;
    doorman_time ahead; /* how far `epoch` is ahead of the caller's epoch */
    doorman_time rest;  /* less than 16 ns of `now` that have not slowed `epoch` down yet */
    doorman_time start, start_epoch;
    doorman_time given, given_at; /* the caller's epoch at `given_at` */
    bool has_given;               /* the caller has set the epoch; otherwise it begins at `now` =
                                     0 */
} doorman__moment;

#define DOORMAN__EPOCH_MAX INT64_C(8000000000000000000) /* the year 2223 */

/* Notes the caller's epoch at `now`. The first one also says when the permits began. */
static void doorman__moment_set_epoch(doorman__moment *at, doorman_time epoch, doorman_time now) {
    at->given = doorman__earlier(doorman__later(epoch, 0), DOORMAN__EPOCH_MAX);
    at->given_at = doorman__later(now, at->now);
    if (!at->has_given) {
        at->start_epoch = doorman__later(at->given - (at->given_at - at->start), 0);
    }
    at->has_given = true;
}

/* Moves the clocks of the permits (P26). `now` does not go back either. */
static void doorman__moment_move(doorman__moment *at, doorman_time now) {
    now = doorman__later(now, doorman__later(at->now, at->given_at));
    doorman_time given = doorman__after(at->given, now - at->given_at);
    doorman_time passed = now - at->now, slow = passed + at->rest;
    if (given > DOORMAN__EPOCH_MAX) given = DOORMAN__EPOCH_MAX;
    passed -= slow / 16;
    doorman_time least =
        at->epoch > DOORMAN__EPOCH_MAX - passed ? DOORMAN__EPOCH_MAX : at->epoch + passed;
    at->now = now;
    at->rest = slow % 16;
    at->epoch = given > least ? given : least;
    at->ahead = at->epoch - given;
    assert(at->ahead >= 0 && at->rest >= 0 && at->rest < 16);
}

/* D5: moves the epoch forward to a time that a row has, if it is earlier. */
static void doorman__moment_reach(doorman__moment *at, doorman_time epoch) {
    assert(epoch <= DOORMAN__EPOCH_MAX);
    if (epoch <= at->epoch) return;
    at->ahead += epoch - at->epoch;
    at->epoch = epoch;
}

/* Returns the time since 1970 of a time `now`, and the reverse. Both may be before the permits
 * began. */
static doorman_time doorman__moment_epoch_of(const doorman__moment *at, doorman_time now) {
    return at->epoch - (at->now - now);
}
static doorman_time doorman__moment_now_of(const doorman__moment *at, doorman_time epoch) {
    return at->now - (at->epoch - epoch);
}

/* Returns how long `now` must run until the epoch has moved by `rest`. If the epoch is ahead, it
 * runs at 15/16 of the speed until the caller's clock has caught up. */
static doorman_time doorman__moment_delay(const doorman__moment *at, doorman_time rest) {
    assert(at->rest < 16 && at->ahead >= 0);
    if (rest <= 0) return 0;
    doorman_time slow = rest + (rest - 1) / 15;
    while (slow - (slow + at->rest) / 16 < rest) slow++;
    return doorman__earlier(slow, doorman__after(rest, at->ahead));
}

#define DOORMAN__DAY (86400 * DOORMAN_SECOND)

/* Returns the day since 1970 on which a month begins. Months count from January 1970. From Howard
 * Hinnant, "chrono-compatible low-level date algorithms" (2013): years begin in March, so that the
 * leap day is the last day of a year. */
static int64_t doorman__month_day(int64_t month) {
    int64_t from_march = month + 1970 * 12 - 2, year = from_march / 12, of_year = from_march % 12;
    int64_t century = year / 100;
    int64_t leap_days = year / 4 - century + century / 4;
    return year * 365 + leap_days + (153 * of_year + 2) / 5 - 719468;
}

typedef struct doorman__span {
    doorman_time begin, end; /* since 1970; the end does not belong to the window */
} doorman__span;

static doorman__span doorman__span_of_month(doorman_time epoch) {
    int64_t day = epoch / DOORMAN__DAY;
    int64_t month = day * 4800 / 146097; /* 400 years; the guess is wrong by at most one */
    while (doorman__month_day(month) > day) month--;
    assert(doorman__month_day(month) <= day);
    while (doorman__month_day(month + 1) <= day) month++;
    return (doorman__span){doorman__month_day(month) * DOORMAN__DAY,
                           doorman__month_day(month + 1) * DOORMAN__DAY};
}

/* Returns the window of a FIXED_WINDOW that contains a time. */
static doorman__span doorman__span_at(const doorman_figures *figures, doorman_time epoch) {
    static const doorman_time lengths[] = {
        [DOORMAN_MINUTE] = 60 * DOORMAN_SECOND,
        [DOORMAN_HOUR] = 3600 * DOORMAN_SECOND,
        [DOORMAN_DAY] = DOORMAN__DAY,
        [DOORMAN_WEEK] = 7 * DOORMAN__DAY,
        [DOORMAN_MONTH] = 0,
    };
    if (figures->calendar == DOORMAN_MONTH) return doorman__span_of_month(epoch);
    doorman_time length = figures->calendar ? lengths[figures->calendar] : figures->window;
    /* 1 January 1970 was a Thursday, and a week begins on Monday */
    doorman_time shift = figures->calendar == DOORMAN_WEEK ? 3 * DOORMAN__DAY : 0;
    doorman_time begin = (epoch + shift) / length * length - shift;
    return (doorman__span){begin, begin + length};
}

/* Returns a number for a window. Windows of different lengths that end at the same time have
 * different numbers. */
static uint64_t doorman__span_id(doorman__span span) {
    return (uint64_t)span.end ^ doorman__mix((uint64_t)(span.end - span.begin));
}

/* ---- permits: slices of a window (P12) */

#define DOORMAN__SLICES 16

/* A ring is 17 words: the index of the slice that was charged last, and the units of 16 slices. */
#define DOORMAN__RING_WORDS (DOORMAN__SLICES + 1)

/* Returns the index of the slice that contains a time. Times and slices count from the same
 * beginning. */
static uint64_t doorman__slice_at(doorman_time time, doorman_time window) {
    assert(window > 0);
    uint64_t t = (uint64_t)time, w = (uint64_t)window;
    return t / w * DOORMAN__SLICES + t % w * DOORMAN__SLICES / w;
}

static doorman_time doorman__slice_begin(uint64_t slice, doorman_time window) {
    uint64_t w = (uint64_t)window, part = slice % DOORMAN__SLICES * w;
    uint64_t whole = slice / DOORMAN__SLICES;
    if (whole > (uint64_t)(DOORMAN_NEVER / 2) / w) return DOORMAN_NEVER / 2;
    return (doorman_time)(whole * w + (part + DOORMAN__SLICES - 1) / DOORMAN__SLICES);
}

/* Returns the units that count in the slice `now`. */
static uint64_t doorman__ring_sum(const uint64_t *ring, uint64_t now) {
    uint64_t sum = 0, last = ring[0];
    for (uint64_t back = 0; back < DOORMAN__SLICES && back <= last; back++) {
        uint64_t slice = last - back;
        if (slice + DOORMAN__SLICES <= now) break;
        sum += ring[1 + slice % DOORMAN__SLICES];
    }
    return sum;
}

static void doorman__ring_add(uint64_t *ring, uint64_t now, uint64_t units) {
    uint64_t last = ring[0];
    assert(now >= last);
    uint64_t steps = now - last < DOORMAN__SLICES ? now - last : DOORMAN__SLICES;
    for (uint64_t i = 0; i < steps; i++) ring[1 + (now - i) % DOORMAN__SLICES] = 0;
    ring[0] = now;
    ring[1 + now % DOORMAN__SLICES] += units;
}

/* Returns the slice in which the next units of the ring return, after the slice `now`. Returns 0 if
 * the ring has no units then. */
static uint64_t doorman__ring_next(const uint64_t *ring, uint64_t now) {
    uint64_t last = ring[0], first = last >= DOORMAN__SLICES - 1 ? last - DOORMAN__SLICES + 1 : 0;
    for (uint64_t slice = first; slice <= last; slice++) {
        bool counts = slice + DOORMAN__SLICES > now;
        if (counts && ring[1 + slice % DOORMAN__SLICES]) return slice + DOORMAN__SLICES;
    }
    return 0;
}

/* Returns the slice in which the last units of the ring return, or 0 if the ring is empty. */
static uint64_t doorman__ring_end(const uint64_t *ring, uint64_t now) {
    uint64_t slice = ring[0];
    for (size_t i = 0; i < DOORMAN__SLICES && slice + DOORMAN__SLICES > now; i++, slice--) {
        if (ring[1 + slice % DOORMAN__SLICES]) return slice + DOORMAN__SLICES;
        if (!slice) break;
    }
    return 0;
}

/* ---- permits: the arithmetic of each kind */
/*
 * The state of a counter is an array of words:
 *     TOKEN_BUCKET     the level in units, as the bits of a double; when it had this level
 *     FIXED_WINDOW     a number for its window; the units of that window
 *     SLIDING_WINDOW   the length of the window; the time at which its slices begin to count, which
 *                      is 0 except after a restore (D5); a ring
 *     TIERS            for each tier: when it was entered, the length of its window (0: it was
 *                      never entered), when the slices of its window begin, and a ring
 *     CONCURRENCY      the units that are held; the address of its queue, or 0
 * A state says for which window it is. So a state stays correct when the figures change. Functions
 * with _init or _charge in their name change the state, with their helpers. The others only read
 * it.
 *
 * A bucket does not store paid_until, as the bucket of >>limiters does. If the rate changes, the
 * saved units stay, and only the time since the last use counts at the new rate (P15).
 */

#define DOORMAN__SLIDING_WORDS (2 + DOORMAN__RING_WORDS)
#define DOORMAN__TIER_WORDS (3 + DOORMAN__RING_WORDS)

/* More units than any sum of minimums that a counter accepts. Their grains fit into 63 bits. */
#define DOORMAN__SUM_MAX (2 * DOORMAN_AMOUNT_MAX)

/* Rounds down what is available: a lease, or what a bucket has gained. */
static uint64_t doorman__grains_floor(double units) {
    return units > 0 ? (uint64_t)(doorman__min(units, DOORMAN__SUM_MAX) * DOORMAN__UNIT) : 0;
}

/* Rounds costs and limits up, so a limit of 1.3 grants a cost of 1.3. A sum of costs has a rounding
 * error, which does not count: a hundred times 0.05 is 5. */
static uint64_t doorman__grains_ceil(double units) {
    double grains = doorman__min(units, DOORMAN__SUM_MAX) * DOORMAN__UNIT;
    uint64_t whole = (uint64_t)grains;
    return whole + (grains - (double)whole > grains * 1.5e-14);
}

static double doorman__grains_units(uint64_t grains) { return (double)grains / DOORMAN__UNIT; }

static size_t doorman__state_words(doorman_limit_kind kind, const doorman_figures *figures) {
    if (kind == DOORMAN_SLIDING_WINDOW) return DOORMAN__SLIDING_WORDS;
    return kind == DOORMAN_TIERS ? figures->tier_count * DOORMAN__TIER_WORDS : 2;
}

#define DOORMAN__STATE_WORDS_MAX (DOORMAN_TIERS_MAX * DOORMAN__TIER_WORDS)

/* ---- permits: token bucket */

static void doorman__level_write(uint64_t *state, double level, doorman_time at) {
    assert(level <= DOORMAN__SUM_MAX); /* also not NaN */
    memcpy(&state[0], &level, sizeof level);
    state[1] = (uint64_t)at;
}

/* Returns the level at a time. A negative level is a debt. */
static double doorman__level_at(const doorman_figures *figures, const uint64_t *state,
                                doorman_time time) {
    double level, gained = (double)(time - (doorman_time)state[1]) * figures->rate / 1e9;
    memcpy(&level, &state[0], sizeof level);
    return doorman__min(figures->size, level + gained);
}

/* Returns the units that the bucket lends. */
static double doorman__lent(const doorman_figures *figures) {
    return figures->rate * ((double)figures->max_debt / 1e9);
}

/* Returns the grains that a bucket has at a level, together with `lent` units. A full bucket is
 * rounded up like any limit. */
static uint64_t doorman__level_grains(const doorman_figures *figures, double level, double lent) {
    bool full = level >= figures->size;
    return full ? doorman__grains_ceil(level + lent) : doorman__grains_floor(level + lent);
}

/* Returns how long it takes to gain a number of units, rounded up. */
static doorman_time doorman__gain_time(const doorman_figures *figures, double units) {
    if (!(units > 0)) return 0;
    double time = units / figures->rate * 1e9;
    if (time >= (double)(4 * DOORMAN_DURATION_MAX)) return 4 * DOORMAN_DURATION_MAX;
    return (doorman_time)time + ((double)(doorman_time)time < time);
}

/* Returns the first time from `from` on at which the level is at least `level`. The first guess may
 * be wrong by some nanoseconds, because doubles are rounded. */
static doorman_time doorman__level_reached(const doorman_figures *figures, const uint64_t *state,
                                           double level, doorman_time from) {
    double missing = level - doorman__level_at(figures, state, from);
    assert(figures->rate > 0);
    if (missing <= 0) return from;
    doorman_time low = 0, high = 1;
    doorman_time guess = doorman__gain_time(figures, missing);
    while (doorman__level_at(figures, state, from + guess) < level) {
        low = guess;
        guess += high;
        high *= 2;
        if (guess > 5 * DOORMAN_DURATION_MAX) return DOORMAN_NEVER;
    }
    doorman_time step = 1;
    while (guess - step > low && doorman__level_at(figures, state, from + guess - step) >= level) {
        guess -= step;
        step *= 2;
    }
    low = doorman__later(low, guess - step);
    while (guess - low > 1) { /* the level is too low at `low`, and sufficient at `guess` */
        doorman_time middle = low + (guess - low) / 2;
        bool reached = doorman__level_at(figures, state, from + middle) >= level;
        if (reached) guess = middle;
        if (!reached) low = middle;
    }
    return from + guess;
}

/* Returns the grains that a bucket offers, and sets *wait to the time that the bucket needs to pay
 * its debt. */
static uint64_t doorman__bucket_offer(const doorman_figures *figures, const uint64_t *state,
                                      doorman_time max_wait, doorman_time *wait, doorman_time now) {
    double level = doorman__level_at(figures, state, now);
    *wait = doorman__gain_time(figures, -level);
    if (*wait > max_wait || *wait > figures->max_wait) return 0;
    return doorman__level_grains(figures, level, doorman__lent(figures));
}

/* Returns when a bucket offers `grains`. */
static doorman_time doorman__bucket_fits_at(const doorman_figures *figures, const uint64_t *state,
                                            uint64_t grains, doorman_time max_wait,
                                            doorman_time now) {
    doorman_time most = doorman__earlier(max_wait, figures->max_wait), wait = 0;
    double owed = figures->rate * ((double)most / 1e9);
    double level = doorman__grains_units(grains) - doorman__lent(figures);
    level = doorman__min(level, figures->size);
    doorman_time at = doorman__level_reached(figures, state, doorman__max(level, -owed), now);
    /* rounding may leave the offer below `grains` for some nanoseconds */
    for (int i = 0; i < 64 && at < DOORMAN_NEVER; i++) {
        if (doorman__bucket_offer(figures, state, max_wait, &wait, at) >= grains) break;
        at += i < 16 ? 1 : (doorman_time)1 << (i - 16);
    }
    return at;
}

/* ---- permits: tiers (P12) */

typedef enum doorman__phase { DOORMAN__INACTIVE, DOORMAN__ACTIVE, DOORMAN__COOLING } doorman__phase;

static const uint64_t *doorman__tier_state(const uint64_t *state, size_t index) {
    return state + index * DOORMAN__TIER_WORDS;
}

static doorman__phase doorman__tier_phase(const doorman_tier *tier, const uint64_t *words,
                                          doorman_time time) {
    doorman_time entered = (doorman_time)words[0];
    if (!words[1] || time >= entered + tier->active + tier->cooldown) return DOORMAN__INACTIVE;
    return time < entered + tier->active ? DOORMAN__ACTIVE : DOORMAN__COOLING;
}

/* Returns the index of the current tier, or -1 if no tier is active. */
static int doorman__tiers_current(const doorman_figures *figures, const uint64_t *state,
                                  doorman_time time) {
    assert(figures->tier_count <= DOORMAN_TIERS_MAX);
    int i = (int)figures->tier_count - 1;
    while (i >= 0 && doorman__tier_phase(&figures->tiers[i], doorman__tier_state(state, (size_t)i),
                                         time) != DOORMAN__ACTIVE) {
        i--;
    }
    return i;
}

/* Returns the slice of the window of a tier that contains a time. */
static uint64_t doorman__tier_slice(const doorman_tier *tier, const uint64_t *words,
                                    doorman_time time) {
    return doorman__slice_at(time - (doorman_time)words[2], tier->window);
}

/* Returns the units in the window of a tier, also if the tier has ended. A window of changed length
 * starts fresh. */
static uint64_t doorman__tier_used(const doorman_tier *tier, const uint64_t *words,
                                   doorman_time time) {
    if (words[1] != (uint64_t)tier->window) return 0;
    return doorman__ring_sum(words + 3, doorman__tier_slice(tier, words, time));
}

static uint64_t doorman__tier_room(const doorman_tier *tier, const uint64_t *words,
                                   doorman_time time) {
    uint64_t used = doorman__tier_used(tier, words, time);
    uint64_t most = doorman__grains_ceil(tier->limit);
    return used < most ? most - used : 0;
}

/* Returns the index of the next tier behind `index` that can be entered. Returns tier_count if
 * there is none, or if a tier that cools down blocks. */
static size_t doorman__tiers_next(const doorman_figures *figures, const uint64_t *state, int index,
                                  doorman_time time) {
    assert(index >= -1 && index < (int)figures->tier_count);
    for (size_t i = (size_t)index + 1; i < figures->tier_count; i++) { /* index may be -1 */
        const doorman_tier *tier = &figures->tiers[i];
        if (!tier->active) continue;
        doorman__phase phase = doorman__tier_phase(tier, doorman__tier_state(state, i), time);
        if (phase == DOORMAN__INACTIVE) return i;
        if (!tier->skippable) break;
    }
    return figures->tier_count;
}

static uint64_t doorman__tiers_offer(const doorman_figures *figures, const uint64_t *state,
                                     doorman_time time) {
    int current = doorman__tiers_current(figures, state, time);
    size_t tier = current >= 0 ? (size_t)current : doorman__tiers_next(figures, state, -1, time);
    uint64_t sum = 0;
    while (tier < figures->tier_count) {
        sum += doorman__tier_room(&figures->tiers[tier], doorman__tier_state(state, tier), time);
        tier = doorman__tiers_next(figures, state, (int)tier, time);
    }
    return sum;
}

/* Starts a window of a tier. */
static void doorman__tier_begin(const doorman_tier *tier, uint64_t *words, doorman_time begin) {
    assert(tier->window > 0);
    memset(words + 3, 0, DOORMAN__RING_WORDS * sizeof *words);
    words[1] = (uint64_t)tier->window;
    words[2] = (uint64_t)begin;
}

/* Charges tiers. Precondition: they offer `grains`. Returns the number of the tier that was entered
 * last, from 1, or 0. The window of a tier that is entered continues if some of its units still
 * count. Otherwise a new one begins with this hit. A window of changed length starts fresh. */
static size_t doorman__tiers_charge(const doorman_figures *figures, uint64_t *state,
                                    uint64_t grains, doorman_time now) {
    int current = doorman__tiers_current(figures, state, now);
    size_t entered = 0;
    while (grains > 0) {
        if (current >= 0) {
            const doorman_tier *tier = &figures->tiers[current];
            uint64_t *words = state + (size_t)current * DOORMAN__TIER_WORDS;
            uint64_t room = doorman__tier_room(tier, words, now);
            uint64_t taken = grains < room ? grains : room;
            bool changed = words[1] != (uint64_t)tier->window;
            if (changed) doorman__tier_begin(tier, words, (doorman_time)words[0]);
            doorman__ring_add(words + 3, doorman__tier_slice(tier, words, now), taken);
            grains -= taken;
        }
        if (!grains) break;
        size_t next = doorman__tiers_next(figures, state, current, now);
        assert(next < figures->tier_count);
        if (next >= figures->tier_count) break;
        const doorman_tier *tier = &figures->tiers[next];
        uint64_t *words = state + next * DOORMAN__TIER_WORDS;
        if (!doorman__tier_used(tier, words, now)) doorman__tier_begin(tier, words, now);
        words[0] = (uint64_t)now;
        current = (int)next;
        entered = next + 1;
    }
    return entered;
}

/* Returns the first time after `time` at which the offer of a tier may change. */
static doorman_time doorman__tier_change(const doorman_tier *tier, const uint64_t *words,
                                         doorman_time time) {
    doorman_time entered = (doorman_time)words[0], end = entered + tier->active;
    doorman_time change = DOORMAN_NEVER;
    if (!words[1]) return change;
    if (end > time) change = end;
    if (end <= time && end + tier->cooldown > time) change = end + tier->cooldown;
    if (words[1] != (uint64_t)tier->window) return change;
    uint64_t slice = doorman__ring_next(words + 3, doorman__tier_slice(tier, words, time));
    if (!slice) return change;
    doorman_time begin = (doorman_time)words[2] + doorman__slice_begin(slice, tier->window);
    return doorman__earlier(change, begin);
}

/* Returns when tiers offer `grains`. Between two changes the offer is constant. */
static doorman_time doorman__tiers_fit_at(const doorman_figures *figures, const uint64_t *state,
                                          uint64_t grains, doorman_time now) {
    doorman_time time = now;
    while (time < DOORMAN_NEVER && doorman__tiers_offer(figures, state, time) < grains) {
        doorman_time change = DOORMAN_NEVER;
        for (size_t i = 0; i < figures->tier_count; i++) {
            const uint64_t *words = doorman__tier_state(state, i);
            change =
                doorman__earlier(change, doorman__tier_change(&figures->tiers[i], words, time));
        }
        assert(change > time);
        time = change;
    }
    return time;
}

/* ---- permits: windows */

/* Returns the units that a fresh FIXED_WINDOW has used (P16). */
static uint64_t doorman__fixed_fresh(const doorman_permit_limit *limit,
                                     const doorman_figures *figures, doorman__span span,
                                     const doorman__moment *at) {
    bool used_up = limit->empty_at_start && span.begin <= at->start_epoch;
    return used_up ? doorman__grains_ceil(figures->limit) : 0;
}

/* Returns the slice of a SLIDING_WINDOW that contains a time, and when a slice begins. */
static uint64_t doorman__sliding_slice(const doorman_figures *figures, const uint64_t *state,
                                       doorman_time time) {
    return doorman__slice_at(time - (doorman_time)state[1], figures->window);
}
static doorman_time doorman__sliding_begin(const doorman_figures *figures, const uint64_t *state,
                                           uint64_t slice) {
    return (doorman_time)state[1] + doorman__slice_begin(slice, figures->window);
}

static uint64_t doorman__sliding_used(const doorman_figures *figures, const uint64_t *state,
                                      doorman_time time) {
    if (state[0] != (uint64_t)figures->window) return 0;
    return doorman__ring_sum(state + 2, doorman__sliding_slice(figures, state, time));
}

/* Returns when a SLIDING_WINDOW has room for `grains`. */
static doorman_time doorman__sliding_fits_at(const doorman_figures *figures, const uint64_t *state,
                                             uint64_t grains, doorman_time now) {
    uint64_t most = doorman__grains_ceil(figures->limit);
    doorman_time time = now;
    if (grains > most) return DOORMAN_NEVER;
    while (doorman__sliding_used(figures, state, time) > most - grains) {
        uint64_t now_slice = doorman__sliding_slice(figures, state, time);
        uint64_t slice = doorman__ring_next(state + 2, now_slice);
        assert(slice > 0);
        time = doorman__sliding_begin(figures, state, slice);
    }
    return time;
}

/* ---- permits: all kinds */

/* What a state and its figures are, for the functions of all kinds. */
typedef struct doorman__meter {
    const doorman_permit_limit *limit;
    const doorman_figures *figures; /* of the limit, or of an override */
    uint64_t *state;
} doorman__meter;

/* Makes a fresh state. */
static void doorman__meter_init(const doorman__meter *meter, const doorman__moment *at) {
    assert(meter->limit->kind != DOORMAN_SLIDING_LOG);
    const doorman_figures *figures = meter->figures;
    const bool empty = meter->limit->empty_at_start;
    doorman_limit_kind kind = meter->limit->kind;
    memset(meter->state, 0, doorman__state_words(kind, figures) * sizeof *meter->state);
    if (kind == DOORMAN_TOKEN_BUCKET) {
        doorman__level_write(meter->state, empty ? 0 : figures->size, empty ? at->start : at->now);
    } else if (kind == DOORMAN_FIXED_WINDOW) {
        doorman__span span = doorman__span_at(figures, at->epoch);
        meter->state[0] = doorman__span_id(span);
        meter->state[1] = doorman__fixed_fresh(meter->limit, figures, span, at);
    } else if (kind == DOORMAN_SLIDING_WINDOW) {
        meter->state[0] = (uint64_t)figures->window;
        if (!empty) return;
        uint64_t slice = doorman__slice_at(at->start, figures->window);
        doorman__ring_add(meter->state + 2, slice, doorman__grains_ceil(figures->limit));
    }
}

/* Returns the grains of a limit of units. What a lease has is not rounded up. */
static uint64_t doorman__limit_grains(const doorman_permit_limit *limit, double units) {
    return limit->leased ? doorman__grains_floor(units) : doorman__grains_ceil(units);
}

static uint64_t doorman__meter_used(const doorman__meter *meter, const doorman__moment *at) {
    if (meter->limit->kind == DOORMAN_CONCURRENCY) return meter->state[0];
    if (meter->limit->kind == DOORMAN_FIXED_WINDOW) {
        const doorman__span span = doorman__span_at(meter->figures, at->epoch);
        if (meter->state[0] == doorman__span_id(span)) return meter->state[1];
        return doorman__fixed_fresh(meter->limit, meter->figures, span, at);
    }
    return doorman__sliding_used(meter->figures, meter->state, at->now);
}

/* Returns the grains that the counter offers, and sets *wait (P3). */
static uint64_t doorman__meter_offer(const doorman__meter *meter, doorman_time max_wait,
                                     doorman_time *wait, const doorman__moment *at) {
    *wait = 0;
    if (meter->limit->kind == DOORMAN_TOKEN_BUCKET) {
        return doorman__bucket_offer(meter->figures, meter->state, max_wait, wait, at->now);
    }
    if (meter->limit->kind == DOORMAN_TIERS) {
        return doorman__tiers_offer(meter->figures, meter->state, at->now);
    }
    uint64_t most = doorman__limit_grains(meter->limit, meter->figures->limit);
    uint64_t used = doorman__meter_used(meter, at);
    return used < most ? most - used : 0;
}

/* Returns the grains that the counter offers without debt. */
static uint64_t doorman__meter_saved(const doorman__meter *meter, const doorman__moment *at) {
    doorman_time wait = 0;
    if (meter->limit->kind == DOORMAN_TOKEN_BUCKET) {
        double level = doorman__level_at(meter->figures, meter->state, at->now);
        if (meter->limit->leased || level <= 0) return doorman__grains_floor(level);
        return doorman__level_grains(meter->figures, level, 0);
    }
    return doorman__meter_offer(meter, 0, &wait, at);
}

/* Returns the units that are left without debt. */
static double doorman__meter_left(const doorman__meter *meter, const doorman__moment *at) {
    if (meter->limit->kind != DOORMAN_TOKEN_BUCKET) {
        double most = doorman__figures_most(meter->limit->kind, meter->figures);
        return doorman__min(most, doorman__grains_units(doorman__meter_saved(meter, at)));
    }
    return doorman__max(0, doorman__level_at(meter->figures, meter->state, at->now));
}

/* Returns how long it takes until the counter offers `grains`. Precondition: it offers less now,
 * and its limit is at least `grains`. Returns 0 for CONCURRENCY, because holders may release at any
 * time. */
static doorman_time doorman__meter_delay(const doorman__meter *meter, uint64_t grains,
                                         doorman_time max_wait, const doorman__moment *at) {
    const doorman_figures *figures = meter->figures;
    doorman_time time = DOORMAN_NEVER;
    if (meter->limit->kind == DOORMAN_FIXED_WINDOW) {
        doorman__span span = doorman__span_at(figures, at->epoch);
        return doorman__moment_delay(at, span.end - at->epoch);
    }
    if (meter->limit->kind == DOORMAN_TOKEN_BUCKET) {
        time = doorman__bucket_fits_at(figures, meter->state, grains, max_wait, at->now);
    } else if (meter->limit->kind == DOORMAN_TIERS) {
        time = doorman__tiers_fit_at(figures, meter->state, grains, at->now);
    } else {
        time = doorman__sliding_fits_at(figures, meter->state, grains, at->now);
    }
    return time < DOORMAN_NEVER ? time - at->now : DOORMAN_NEVER;
}

/* Adds grains to a window, or takes them out if `grains` is negative. */
static void doorman__fixed_charge(const doorman__meter *meter, int64_t grains,
                                  const doorman__moment *at) {
    assert(meter->limit->kind == DOORMAN_FIXED_WINDOW);
    uint64_t used = doorman__meter_used(meter, at);
    uint64_t less = grains < 0 ? (uint64_t)-grains : 0;
    meter->state[0] = doorman__span_id(doorman__span_at(meter->figures, at->epoch));
    meter->state[1] = grains >= 0 ? used + (uint64_t)grains : used - (less < used ? less : used);
}

/* Takes grains out of a bucket, or gives them back if `grains` is negative. What rounding has added
 * to a full bucket is no debt. */
static void doorman__bucket_charge(const doorman_figures *figures, uint64_t *state, int64_t grains,
                                   doorman_time now) {
    assert(figures->size >= 0 && figures->max_debt >= 0);
    double before = doorman__level_at(figures, state, now), least = 0 - doorman__lent(figures);
    double level = before - (double)grains / DOORMAN__UNIT, excess = least - level;
    if (before >= figures->size && excess > 0 && excess < 1 / DOORMAN__UNIT) level = least;
    doorman__level_write(state, doorman__min(level, figures->size), now);
}

/* Charges a counter. Returns the number of the tier that was entered, or 0.
 *   grains   negative: gives units back; only for TOKEN_BUCKET and FIXED_WINDOW */
static size_t doorman__meter_charge(const doorman__meter *meter, int64_t grains,
                                    const doorman__moment *at) {
    const doorman_figures *figures = meter->figures;
    uint64_t *state = meter->state;
    switch (meter->limit->kind) {
    case DOORMAN_TOKEN_BUCKET: doorman__bucket_charge(figures, state, grains, at->now); return 0;
    case DOORMAN_FIXED_WINDOW: doorman__fixed_charge(meter, grains, at); return 0;
    case DOORMAN_SLIDING_WINDOW:
        assert(grains >= 0);
        if (state[0] != (uint64_t)figures->window) {
            memset(state, 0, DOORMAN__SLIDING_WORDS * sizeof *state);
            state[0] = (uint64_t)figures->window;
        }
        doorman__ring_add(state + 2, doorman__sliding_slice(figures, state, at->now),
                          (uint64_t)grains);
        return 0;
    case DOORMAN_TIERS:
        assert(grains >= 0);
        return doorman__tiers_charge(figures, state, (uint64_t)grains, at->now);
    case DOORMAN_CONCURRENCY:
        assert(grains >= 0);
        state[0] += (uint64_t)grains;
        return 0;
    case DOORMAN_SLIDING_LOG:
    default: assert(false); return 0;
    }
}

static doorman_time doorman__tiers_reset_after(const doorman_figures *figures,
                                               const uint64_t *state, doorman_time now) {
    doorman_time end = now;
    for (size_t i = 0; i < figures->tier_count; i++) {
        const uint64_t *words = doorman__tier_state(state, i);
        const doorman_tier *tier = &figures->tiers[i];
        if (doorman__tier_phase(tier, words, now) != DOORMAN__INACTIVE) {
            end = doorman__later(end, (doorman_time)words[0] + tier->active + tier->cooldown);
        }
        if (!doorman__tier_used(tier, words, now)) continue;
        uint64_t last = doorman__ring_end(words + 3, doorman__tier_slice(tier, words, now));
        doorman_time empty = (doorman_time)words[2] + doorman__slice_begin(last, tier->window);
        end = doorman__later(end, empty);
    }
    return end - now;
}

/* Returns the time until the counter is fresh. */
static doorman_time doorman__meter_reset_after(const doorman__meter *meter,
                                               const doorman__moment *at) {
    const doorman_figures *figures = meter->figures;
    const uint64_t *state = meter->state;
    if (meter->limit->kind == DOORMAN_TOKEN_BUCKET) {
        double missing = figures->size - doorman__level_at(figures, state, at->now);
        return doorman__gain_time(figures, missing);
    }
    if (meter->limit->kind == DOORMAN_TIERS) {
        return doorman__tiers_reset_after(figures, state, at->now);
    }
    if (meter->limit->kind == DOORMAN_CONCURRENCY) return 0; /* holders may release at any time */
    if (doorman__meter_used(meter, at) == 0) return 0;
    if (meter->limit->kind == DOORMAN_FIXED_WINDOW) {
        doorman__span span = doorman__span_at(figures, at->epoch);
        return doorman__moment_delay(at, span.end - at->epoch);
    }
    uint64_t last = doorman__ring_end(state + 2, doorman__sliding_slice(figures, state, at->now));
    return doorman__sliding_begin(figures, state, last) - at->now;
}

/* Returns the time until the counter has one more whole unit, or all of its units. Returns 0 if it
 * has all of its units, and for CONCURRENCY. */
static doorman_time doorman__meter_more_after(const doorman__meter *meter,
                                              const doorman__moment *at) {
    const doorman_figures *figures = meter->figures;
    if (meter->limit->kind == DOORMAN_TOKEN_BUCKET) {
        double level = doorman__level_at(figures, meter->state, at->now);
        double next = (double)((int64_t)doorman__max(level, 0) + 1);
        return doorman__gain_time(figures, doorman__min(next, figures->size) - level);
    }
    const uint64_t unit = (uint64_t)DOORMAN__UNIT, saved = doorman__meter_saved(meter, at);
    double limit = doorman__figures_most(meter->limit->kind, figures);
    uint64_t most = doorman__limit_grains(meter->limit, limit);
    uint64_t next = (saved / unit + 1) * unit;
    if (saved >= most) return 0;
    return doorman__meter_delay(meter, next < most ? next : most, 0, at);
}

/* Returns whether the counter equals a fresh one (P14). */
static bool doorman__meter_fresh(const doorman__meter *meter, const doorman__moment *at) {
    const doorman_figures *figures = meter->figures;
    if (meter->limit->kind == DOORMAN_CONCURRENCY) return !meter->state[0] && !meter->state[1];
    if (meter->limit->kind == DOORMAN_FIXED_WINDOW) {
        doorman__span span = doorman__span_at(figures, at->epoch);
        uint64_t used = doorman__meter_used(meter, at);
        return used == doorman__fixed_fresh(meter->limit, figures, span, at);
    }
    if (meter->limit->kind == DOORMAN_TOKEN_BUCKET) {
        return doorman__level_at(figures, meter->state, at->now) >= figures->size;
    }
    if (doorman__meter_reset_after(meter, at) > 0) return false;
    if (meter->limit->kind != DOORMAN_SLIDING_WINDOW || !meter->limit->empty_at_start) return true;
    uint64_t start = doorman__slice_at(at->start, figures->window);
    return start + DOORMAN__SLICES <= doorman__slice_at(at->now, figures->window);
}

/* ---- permits: which counter is meant */

#define DOORMAN__NO_PLACE UINT32_MAX

/* Names a counter of a slot, or a (resource, key). */
typedef struct doorman__identity {
    const char *key;
    size_t key_bytes;
    uint64_t hash; /* of the resource and the key. A table uses the lower 32 bits */
    uint32_t tag;  /* the index of the place, or DOORMAN__NO_PLACE */
} doorman__identity;

/* ---- permits: the most frequent keys (P20) */
/*
 * A sketch counts keys in bounded memory ("space-saving", Metwally, Agrawal and El Abbadi 2005). It
 * has 100 entries. A key without an entry takes over an entry with the smallest count, and the
 * count continues from there. So a count is too large by at most the count that its entry had then.
 * A key with more than a hundredth of all decisions has an entry. Counts are halved at each full
 * minute, so the sketch shows the last minutes.
 *
 * A hand goes round the entries and finds the smallest count, like the hand of a clock in page
 * replacement. No count is below `least`. The hand stops at the next entry whose count is `least`.
 * After a full turn without one, `least` becomes the smallest count that the hand has met. Most
 * keys are rare, so most entries have the smallest count, and the hand moves by one or two. It
 * never moves by more than 200.
 */

#define DOORMAN__TOP_ENTRIES 100
#define DOORMAN__TOP_HEADS 128
#define DOORMAN__TOP_NONE 0xff
#define DOORMAN__TOP_AGE (60 * DOORMAN_SECOND) /* counts are halved after this time */

typedef struct doorman__top_entry {
    uint64_t hash; /* of the resource and the key; 64 bits identify them */
    double units, error;
    char *text;          /* the id of the resource, and the key; each ends with a NUL. NULL: the
                            entry was never used */
    uint16_t text_bytes; /* the allocated bytes of `text` */
    uint8_t next;        /* the next entry with the same head, or DOORMAN__TOP_NONE */
} doorman__top_entry;

typedef struct doorman__top {
    uint64_t ages; /* the ages that had passed since `now` = 0 when the counts were last halved */
    size_t hand;
    uint8_t heads[DOORMAN__TOP_HEADS];
    double least;
    double counts[DOORMAN__TOP_ENTRIES]; /* of decisions: integers */
    doorman__top_entry entries[DOORMAN__TOP_ENTRIES];
} doorman__top;

/* Precondition: `top` is zeros. */
static void doorman__top_init(doorman__top *top, doorman_time now) {
    top->ages = (uint64_t)(now / DOORMAN__TOP_AGE);
    memset(top->heads, DOORMAN__TOP_NONE, sizeof top->heads);
}

/* Returns NULL if memory runs out. */
static doorman__top *doorman__top_create(doorman_time now) {
    doorman__top *top = (doorman__top *)doorman__zalloc(sizeof *top);
    if (top) doorman__top_init(top, now);
    return top;
}

static size_t doorman__top_bytes(const doorman__top *top) {
    size_t bytes = sizeof *top;
    for (size_t i = 0; i < DOORMAN__TOP_ENTRIES; i++) bytes += top->entries[i].text_bytes;
    return bytes;
}

static void doorman__top_uninit(doorman__top *top) {
    for (size_t i = 0; i < DOORMAN__TOP_ENTRIES; i++) DOORMAN_FREE(top->entries[i].text);
}

static void doorman__top_destroy(doorman__top *top) {
    if (!top) return;
    doorman__top_uninit(top);
    DOORMAN_FREE(top);
}

/* Halves a count of decisions some times, and rounds down. */
static double doorman__top_halve(double count, unsigned halvings) {
    return (double)((uint64_t)count >> halvings);
}

/* Returns how many times the counts must be halved now. */
static unsigned doorman__top_halvings(const doorman__top *top, doorman_time now) {
    uint64_t ages = (uint64_t)(now / DOORMAN__TOP_AGE);
    uint64_t passed = ages > top->ages ? ages - top->ages : 0;
    return passed < 63 ? (unsigned)passed : 63;
}

static void doorman__top_age(doorman__top *top, doorman_time now) {
    unsigned halvings = doorman__top_halvings(top, now);
    assert(halvings < 64);
    if (!halvings) return;
    for (size_t i = 0; i < DOORMAN__TOP_ENTRIES; i++) {
        top->counts[i] = doorman__top_halve(top->counts[i], halvings);
        top->entries[i].error = doorman__top_halve(top->entries[i].error, halvings);
        top->entries[i].units /= (double)(UINT64_C(1) << halvings);
    }
    top->least = doorman__top_halve(top->least, halvings);
    top->ages = (uint64_t)(now / DOORMAN__TOP_AGE);
}

/* Returns the index of an entry with the smallest count. */
static size_t doorman__top_rarest(doorman__top *top) {
    double met = top->counts[top->hand];
    for (size_t steps = 0;; steps++) {
        assert(steps <= 2 * DOORMAN__TOP_ENTRIES);
        if (steps == DOORMAN__TOP_ENTRIES) top->least = met;
        top->hand = top->hand + 1 < DOORMAN__TOP_ENTRIES ? top->hand + 1 : 0;
        double count = top->counts[top->hand];
        assert(count >= top->least);
        if (count <= top->least) return top->hand;
        if (count < met) met = count;
    }
}

static size_t doorman__top_find(const doorman__top *top, uint64_t hash) {
    uint8_t at = top->heads[hash % DOORMAN__TOP_HEADS];
    while (at != DOORMAN__TOP_NONE && top->entries[at].hash != hash) at = top->entries[at].next;
    return at;
}

/* Gives an entry to another key. Precondition: text_bytes of the entry suffice. */
static void doorman__top_replace(doorman__top *top, size_t index, const char *id,
                                 const doorman__identity *key) {
    doorman__top_entry *entry = &top->entries[index];
    uint8_t *at = &top->heads[entry->hash % DOORMAN__TOP_HEADS];
    while (*at != DOORMAN__TOP_NONE && *at != index) at = &top->entries[*at].next;
    if (*at == index) *at = entry->next; /* an entry that was never used is in no list */
    size_t bytes = strlen(id) + 1;
    assert(bytes + key->key_bytes + 1 <= entry->text_bytes);
    memcpy(entry->text, id, bytes);
    memcpy(entry->text + bytes, key->key, key->key_bytes + 1);
    entry->hash = key->hash;
    entry->units = 0;
    entry->error = top->counts[index];
    entry->next = top->heads[key->hash % DOORMAN__TOP_HEADS];
    top->heads[key->hash % DOORMAN__TOP_HEADS] = (uint8_t)index;
}

/* Returns whether an entry is before another in the order of the list. */
static bool doorman__top_before(const doorman__top *top, size_t one, size_t other) {
    double a = top->counts[one], b = top->counts[other];
    return a > b || (a >= b && one < other);
}

/* Returns the index of the entry that follows another in the order of the list. Returns
 * DOORMAN__TOP_NONE after the last one.
 *   last   DOORMAN__TOP_NONE: the first entry is wanted */
static size_t doorman__top_next(const doorman__top *top, size_t last) {
    size_t best = DOORMAN__TOP_NONE;
    for (size_t i = 0; i < DOORMAN__TOP_ENTRIES; i++) {
        if (last != DOORMAN__TOP_NONE && !doorman__top_before(top, last, i)) continue;
        if (best == DOORMAN__TOP_NONE || doorman__top_before(top, i, best)) best = i;
    }
    return best;
}

/* ---- permits: the keys that use most units */
/*
 * The units of a key are counted like decisions, in three windows, and each grant costs one step in
 * one sketch only. A sketch has the units of the present slice of five seconds. When the next slice
 * begins, its counts are added to the sketches of the windows, whose counts then become smaller by
 * a factor for each slice that has passed (a decayed count: Cormode, Korn and Tirthapura 2008;
 * adding sketches: Agarwal and others, "Mergeable summaries", 2012). So a grant takes a look-up in
 * 128 lists, as that of `granted`, and once in five seconds a limit adds at most 300 counts.
 *
 * Error. N is the sum of the units in a window, each with its factor.
 *     too small   a slice adds each count less its smallest count, which is what a key may have had
 *                 that is not in the sketch, or no longer: at most a hundredth of the units of the
 *                 slice. `missing` is the sum of that over all slices, with their factors: N / 100
 *     too large   a key that takes over an entry of a window gets its count too, the smallest of
 *                 100 counts: N / 100 at most
 * A key with more than N / 50 is in the sketch: without its missing units it still has more than
 * the smallest count. With at most 100 keys all counts are exact.
 */

#define DOORMAN__UNITS_SLICE (5 * DOORMAN_SECOND)

typedef struct doorman__units_window {
    doorman__top top;
    double missing, total;
} doorman__units_window;

typedef struct doorman__units_top {
    uint64_t slice;    /* the number of the present slice since `now` = 0 */
    double total;      /* units of the present slice */
    doorman__top part; /* of the present slice */
    doorman__units_window sums[DOORMAN_USAGE_WINDOW_COUNT];
} doorman__units_top;

/* Returns NULL if memory runs out. */
static doorman__units_top *doorman__units_top_create(doorman_time now) {
    doorman__units_top *usage = (doorman__units_top *)doorman__zalloc(sizeof *usage);
    if (!usage) return NULL;
    usage->slice = (uint64_t)(now / DOORMAN__UNITS_SLICE);
    doorman__top_init(&usage->part, now);
    for (size_t i = 0; i < DOORMAN_USAGE_WINDOW_COUNT; i++) {
        doorman__top_init(&usage->sums[i].top, now);
    }
    return usage;
}

static size_t doorman__units_top_bytes(const doorman__units_top *usage) {
    size_t bytes = sizeof *usage - sizeof usage->part + doorman__top_bytes(&usage->part);
    for (size_t i = 0; i < DOORMAN_USAGE_WINDOW_COUNT; i++) {
        bytes += doorman__top_bytes(&usage->sums[i].top) - sizeof usage->part;
    }
    return bytes;
}

static void doorman__units_top_destroy(doorman__units_top *usage) {
    if (!usage) return;
    doorman__top_uninit(&usage->part);
    for (size_t i = 0; i < DOORMAN_USAGE_WINDOW_COUNT; i++) {
        doorman__top_uninit(&usage->sums[i].top);
    }
    DOORMAN_FREE(usage);
}

/* Returns the factor of a window after some slices. */
static double doorman__units_top_factor(doorman_usage_window window, uint64_t slices) {
    /* exp(-5 s / window) */
    static const double factors[DOORMAN_USAGE_WINDOW_COUNT] = {
        0.9200444146293233, 0.9986120751709083, 0.9999421313040873};
    double factor = 1, power = factors[window];
    for (; slices; slices >>= 1, power *= power) {
        if (slices & 1) factor *= power;
    }
    return factor;
}

/* Lets time pass. */
static void doorman__units_window_age(doorman__units_window *sum, double factor) {
    for (size_t i = 0; i < DOORMAN__TOP_ENTRIES; i++) {
        sum->top.counts[i] *= factor;
        sum->top.entries[i].error *= factor;
    }
    sum->top.least *= factor;
    sum->missing *= factor;
    sum->total *= factor;
}

/* Makes a sketch empty. Its entries keep their keys and texts. */
static void doorman__top_clear(doorman__top *top) {
    for (size_t i = 0; i < DOORMAN__TOP_ENTRIES; i++) top->counts[i] = top->entries[i].error = 0;
    top->least = 0;
}

static double doorman__top_least(const doorman__top *top) {
    double least = top->counts[0];
    for (size_t i = 1; i < DOORMAN__TOP_ENTRIES; i++) {
        if (top->counts[i] < least) least = top->counts[i];
    }
    return least;
}

/* ---- permits: slots, places and counters */

/* A counter is followed by its state, and then by its key, without a NUL. Holds point to counters
 * of CONCURRENCY. Such a counter never moves, and stays until it is fresh. */
typedef struct doorman__counter {
    doorman__chain node; /* tag: the index of its place, or DOORMAN__NO_PLACE */
    uint16_t generation; /* of the configuration for which `override_` is right */
    uint16_t override_;  /* 0: the figures of the limit; else the index of the override plus 1 */
    uint16_t key_bytes;
    uint8_t words; /* of the state, with those of DOORMAN__HAS_SET and DOORMAN__COUNTS_REFUSALS */
    uint8_t flags;
} doorman__counter;

#define DOORMAN__COUNTS_REFUSALS 1 /* the state ends with a count of refusals, and its beginning */
#define DOORMAN__IN_USE 2          /* a charge of the present call points to the counter */
#define DOORMAN__LEASED_UNITS 4    /* CONCURRENCY: the limit is leased */
#define DOORMAN__CHANGED 8         /* a row must be yielded (D3). The bucket has a mark */
#define DOORMAN__STORED 16         /* a store has a row, or may have one */
#define DOORMAN__HAS_SET 32        /* behind the state is a word with figures of a caller (P31) */

/* The table of the counters of one limit, and what the limit has counted. The two strings are
 * behind the struct, because a slot may outlive its configuration. */
typedef struct doorman__slot {
    const doorman_permit_limit *limit; /* doorman__open_limit: of a template whose list of limits is
                                          empty. NULL: the limit is not in the configuration any
                                          more, or the slot is that of the bans */
    const char *glob, *name;
    doorman_scope per;
    doorman_limit_kind kind;
    doorman__chains nodes;
    uint32_t glob_hash, name_hash;
    uint8_t overridden;         /* DOORMAN__BY_...: see >>overrides */
    doorman__chains next_nodes; /* only while a configuration changes, for CONCURRENCY */
    doorman__timers bans;       /* the ends of the bans that the limit has set. The slot of the bans
                                   has the ends of the bans by an administrator */
    size_t references;          /* by places */
    doorman_time longest;      /* CONCURRENCY: how long a hold may last in any configuration so far;
                                   0: the holds are not learned */
    doorman_time learns_until; /* CONCURRENCY */
    doorman_permits_limit totals;
    doorman__top *tops[DOORMAN_TOP_COUNT]; /* NULL: nothing was counted yet */
    doorman__units_top *usage;             /* the same */
} doorman__slot;

#define DOORMAN__BY_RESOURCE                                                                       \
    1                      /* since the last configuration, the limit has had a row of a resource */
#define DOORMAN__BY_GLOB 2 /* the same for a row of its glob */
#define DOORMAN__BY_PLAN 4 /* the same for a plan row of its glob, and the limit has plans */

/* A ban is a counter of the slot of the bans. It has this struct instead of a state. */
typedef struct doorman__ban {
    doorman__timer end;  /* in the heap `bans` of `slot` */
    doorman__slot *slot; /* of the limit that has set it */
} doorman__ban;

#define DOORMAN__BAN_WORDS ((sizeof(doorman__ban) + 7) / 8)

/* A slot of a place. A counter that is older than `since` does not count: after the counter was
 * used, a configuration did not have this limit for the resource. */
typedef struct doorman__place_slot {
    doorman__slot *slot;
    uint32_t since; /* the generation of the configuration with which the place got the slot */
} doorman__place_slot;

/* What the permits know about one resource. The id is behind the struct. */
typedef struct doorman__place {
    doorman__chain node; /* tag: the index in doorman_permits.places */
    uint64_t hash;       /* of the id */
    uint32_t generation;
    bool shadow;                       /* a glob of `shadow` of the configuration matches */
    const doorman_template *template_; /* NULL: no template with limits matches */
    doorman__place_slot *slots;        /* one for each limit of the template */
    size_t slot_count;
    size_t counter_count; /* counters and bans with this place */
    size_t hold_count;    /* items of holds, and of permits that wait, with this place */
} doorman__place;

/* P31: figures that callers have brought for one limit. Counters with the same ones share them. */
typedef struct doorman__set {
    doorman__chain node;
    const doorman_permit_limit *limit; /* of the configuration `generation` */
    doorman_limit_kind kind;
    uint32_t generation;
    size_t references; /* by counters, and by charges of the present call */
    bool fits;         /* the figures agree with the rules of the limit */
    doorman_figures given;
    doorman_figures all; /* given, and those of the limit; only if they fit */
} doorman__set;

typedef struct doorman__charge doorman__charge;
typedef struct doorman__want doorman__want;
typedef struct doorman__hold doorman__hold;
typedef struct doorman__hold_queue doorman__hold_queue;
typedef struct doorman__wait doorman__wait;
typedef struct doorman__hold_item doorman__hold_item;

/* The permits that wait for units of one counter. The turns are ordered by priority and arrival. */
struct doorman__hold_queue {
    doorman__counter *counter; /* NULL: the permits wait for no counter, only for their decision */
    doorman__slot *slot;
    doorman__timers turns;
    size_t expected; /* only while a configuration changes: how many permits the queue will get */
    doorman__hold_queue *next_ready;
    bool ready; /* the first permit must be decided on, or the queue is empty */
};

typedef struct doorman__permit_lease doorman__permit_lease;

/* The leases of the permits: see >>leased. */
typedef struct doorman__permit_leases {
    doorman_client *client; /* has a resource for each lease. NULL: there is no server */
    doorman__chains table;  /* by the id of the resource */
    doorman_time sweep_at;  /* when to look for leases that are not used any more */
    bool has_gauges;        /* a configuration has had leased limits of CONCURRENCY */
} doorman__permit_leases;

/* A row that says that a counter or a ban was removed. The bytes of the row are behind the
 * struct. */
typedef struct doorman__removal {
    struct doorman__removal *next;
    size_t bytes;
} doorman__removal;

/* What must be yielded as rows: see D3 and >>state. */
typedef struct doorman__changes {
    size_t count;       /* of counters and bans that are CHANGED */
    doorman_time since; /* when the first change was made since there were none */
    doorman__removal *first, *last;
    size_t removal_count;
    uint64_t removals_lost;
    bool clock_due; /* the row of the clock must be yielded, because that of a counter is not */
    size_t slot, segment; /* where the next row is looked for */
    doorman_rows rows;
} doorman__changes;

/* A list of holds, in the order in which they were added. */
typedef struct doorman__hold_list {
    doorman__hold *first, *last;
    size_t count;
} doorman__hold_list;

/* All holds, and all permits that wait: see >>holds. */
typedef struct doorman__holds {
    doorman__hold_list granted; /* HELD and TRANSFERRED */
    doorman__hold_list spent;
    doorman__hold_list waiting;
    doorman__chains by_id;      /* of the lists `granted` and `spent` */
    doorman__chains by_request; /* by client and request_id */
    doorman__chains by_key;     /* waiting permits with `share`, by resource and key */
    doorman__chains owners;     /* clients with holds, and connections with waiting permits */
    doorman__timers ends;       /* of holds and of waits */
    doorman__hold_queue *first_ready, *last_ready;
    doorman__wait *first_decision, *last_decision;
    doorman__wait *given;            /* the decision that doorman_permits_next_decision gave last */
    uint64_t ids, arrivals, tickets; /* how many were given */
    doorman_time learns_until;
    doorman_time longest;      /* how long a hold may last in any configuration so far; 0: no hold
                                  is learned */
    doorman_time mixed_until;  /* holds of earlier configurations may last until then */
    doorman_time next_learned; /* when the next limit has learned; DOORMAN_NEVER: all have */
    bool configured;           /* the configuration has a limit of kind CONCURRENCY */
    bool stuck;                /* memory ran out when a queue was served */
    doorman__hold_queue loose; /* permits that no CONCURRENCY limit concerns any more */
    doorman_hold_item *items;  /* of the last result, and their capacity */
    size_t item_capacity;

    doorman__hold_item *made; /* the items of a hold that is made, and their capacity */
    size_t made_capacity;
} doorman__holds;

/* What rows concern: one limit of a resource or of a template (E1), or all limits of a template
 * that have a plan (E2). Two strings are behind the struct: the resource or the glob, and the name
 * of the limit, or "". */
typedef struct doorman__override_scope {
    doorman__chain node; /* tag: a doorman__row_kind */
    doorman__slot *slot; /* of the limit; NULL: the configuration does not have it, or OF_PLAN */
    const doorman_template *template_; /* only OF_PLAN: NULL: the configuration does not have it */
    size_t references;                 /* by figures */
    bool has_holds;                    /* CONCURRENCY is concerned, so permits may wait */
} doorman__override_scope;

typedef enum doorman__row_kind {
    DOORMAN__OF_RESOURCE,
    DOORMAN__OF_GLOB,
    DOORMAN__OF_PLAN
} doorman__row_kind;

/* What rows of one scope give. Rows with equal figures, or the same plan, share them. The tiers are
 * behind the struct, or the name of the plan. */
typedef struct doorman__override_figures {
    doorman__chain node;
    doorman__override_scope *scope;
    size_t references; /* by rows */
    double add;        /* not 0: only one row has the figures, and `all` is made at each use */
    bool idle;         /* there is no limit, or the figures break a rule of it */
    const char *plan;  /* of a plan row, which has no `given`; else NULL */
    doorman_figures given;
    doorman_figures all; /* given, and those of the limit; only if not idle */
} doorman__override_figures;

/* An override row or a plan row. Its key is behind the struct. Rows are in a table, by resource or
 * glob, limit and key, and in a treap, by the time at which they change next. */
typedef struct doorman__override_row {
    doorman__chain node; /* tag: the bytes of the key, and DOORMAN__BEGUN */
    struct doorman__override_row *left, *right;
    doorman__override_figures *figures;
    uint64_t id;
    doorman_time starts_at, ends_at; /* since 1970; DOORMAN_NEVER: no end */
} doorman__override_row;

#define DOORMAN__BEGUN 0x10000u /* what is due at the beginning of the row was done */

typedef struct doorman__overrides {
    doorman__chains rows, figures, scopes;
    struct doorman__row_order {
        doorman__override_row *root; /* of the treap */
        size_t count, idle_count;
    } orders[2]; /* of override rows, and of plan rows */
    bool wakes;  /* permits that wait must be decided on, because plan rows have changed */
    size_t bytes;
} doorman__overrides;

typedef struct doorman__row_order doorman__row_order;

struct doorman_permits {
    doorman_permits_options options;
    const doorman_config *config;
    uint32_t generation;
    bool overridden; /* since the last configuration, a limit has had an override or plan row */
    doorman__moment at;
    uint64_t random, empty_hash; /* empty_hash: the hash of the key "" */
    doorman__slot **slots;       /* all slots; the first one is that of the bans */
    size_t slot_count, slot_capacity;
    uint64_t slot_removals;    /* how many slots were freed: each moves another one */
    doorman__slot **own_slots; /* one for each limit of the configuration, then one for each
                                  template whose list of limits is empty */
    size_t own_count;
    doorman__slot **open_slots; /* behind own_slots, one for each template; NULL: its list of limits
                                   is not empty */
    doorman__chains place_table;
    doorman__place **places; /* NULL: a free index */
    size_t place_count, place_capacity;
    uint32_t *free_places;
    size_t free_count, free_capacity;
    size_t sweep_slot; /* the index of the slot that a sweep visits next */
    size_t counter_count;
    size_t node_bytes;             /* of the counters, the bans and the resources */
    size_t ban_bytes;              /* of the bans; a part of node_bytes */
    size_t name_bytes, plan_bytes; /* of the configuration: see doorman__permits_measure */
    size_t limits_most;            /* the same */
    size_t top_bytes;              /* of the sketches */
    uint64_t unmatched, banned, bans_evicted;
    doorman_time updated_at;
    doorman__holds holds;
    doorman__permit_leases leases;
    doorman__changes changes;
    doorman__overrides overrides;
    doorman__chains sets; /* P31 */

    /* The present call. */
    doorman__charge *charges;
    size_t charge_count, charge_capacity;
    doorman__want *wants;
    size_t want_capacity;
    doorman_permit_grant *grants;
    size_t grant_capacity;
    doorman_permit_detail *details;
    size_t detail_count, detail_capacity;
    int32_t charge_heads[256]; /* finds the charges of one counter; -1: none */
};

/* The limit of a slot of a template whose list of limits is empty. Such a slot only counts. */
static const doorman_permit_limit doorman__open_limit = {.name = ""};

static doorman__slot *doorman__permits_own_slot(const doorman_permits *permits,
                                                const doorman_permit_limit *limit) {
    return permits->own_slots[doorman__limit_index(permits->config, limit)];
}

static doorman__slot *doorman__permits_bans(const doorman_permits *permits) {
    return permits->slots[0];
}

static uint64_t *doorman__counter_state(doorman__counter *counter) {
    return (uint64_t *)(void *)(counter + 1);
}

static doorman__ban *doorman__counter_ban(doorman__counter *counter) {
    assert(counter->words == DOORMAN__BAN_WORDS);
    return (doorman__ban *)(void *)doorman__counter_state(counter);
}

static char *doorman__counter_key(doorman__counter *counter) {
    return (char *)(doorman__counter_state(counter) + counter->words);
}

static bool doorman__limit_is_leased_rate(const doorman_permit_limit *limit) {
    return limit->leased && limit->kind == DOORMAN_TOKEN_BUCKET;
}

/* ---- holds: what is stored (see >>holds) */

/* Returns a pointer without `const`, for an object that the caller may change. */
static void *doorman__mutable(const void *object) {
    void *own;
    memcpy(&own, &object, sizeof own);
    return own;
}

/* A client with holds or waiting permits, or a connection with waiting permits. The name is behind
 * the struct, and ends with a NUL. */
typedef struct doorman__owner {
    doorman__chain node;  /* tag: whether it is a connection */
    uint64_t request_max; /* the largest request_id of its holds, also of those that have ended */
    size_t hold_count, wait_count, name_bytes;
} doorman__owner;

typedef enum doorman__hold_state {
    DOORMAN__NEW,         /* in no list yet, or not any more */
    DOORMAN__WAITING,     /* in the queue of a counter */
    DOORMAN__HELD,        /* its units belong to its owner */
    DOORMAN__TRANSFERRED, /* its units belong to nobody */
    DOORMAN__SPENT        /* a transfer without units. It remembers its request_id */
} doorman__hold_state;

/* One item of a hold. */
struct doorman__hold_item {
    doorman__place *place;
    const char *key;
    double cost, min; /* what the permit has asked for, in units */
    double amount;    /* what is held, in units */
};

/* Units of one item that one counter counts. */
typedef struct doorman__take {
    doorman__counter *counter;
    uint64_t grains; /* 1/4096 of a unit */
    size_t index;    /* of the item of the hold */
} doorman__take;

/* The takes of a hold. Most holds have one take, which needs no memory of its own. */
typedef struct doorman__takes {
    doorman__take one;   /* only if capacity <= 1 */
    doorman__take *list; /* only if capacity > 1, otherwise NULL */
    uint32_t count, capacity;
    doorman_time time_to_live; /* the smallest of the limits; DOORMAN_NEVER: there are none */
} doorman__takes;

/* What a hold needs only while its permit waits, and then the decision. Room for the grants of the
 * items is behind the struct. */
struct doorman__wait {
    doorman__chain by_key; /* only with `share` */
    doorman__timer turn;
    doorman__hold *hold; /* NULL: the permit is decided */
    doorman__hold_queue *queue;
    doorman__hold_queue *next_queue; /* only while a configuration changes */
    doorman__owner *connection;      /* NULL: none */
    doorman_time asked_at, max_wait;
    doorman_time rank; /* its `at` in the turns of all queues */
    uint64_t need;     /* the grains that the counter of the queue must have */
    size_t item;       /* the first item that needs this counter */
    bool equal, detail, share;

    doorman__wait *next; /* in the list of decisions */
    uint64_t ticket;
    doorman_permit permit;
    doorman_permit_detail *details;
};

/* A hold, a transfer, or a permit that waits. The items and their keys are behind the struct. What
 * a search reads is at the beginning, on one cache line. */
struct doorman__hold {
    doorman__chain by_id, by_request;
    uint64_t id;           /* 0 while it waits */
    uint64_t request_id;   /* 0: there is none */
    doorman__owner *owner; /* of a transfer: the client that has transferred */
    doorman__hold_state state;
    bool is_handed;                 /* its end was handed over, and is later than before (D8) */
    doorman__timer end;             /* of the hold, or of the wait */
    doorman__hold *earlier, *later; /* in its list */
    uint64_t seized;                /* the transfer from which the hold was made, or 0 */
    doorman_time granted_at;
    doorman_time asked_time_to_live; /* 0: that of the limits */
    doorman__hold *source;           /* of a transfer; NULL: the source has ended */
    doorman__hold *transfers;        /* out of this hold; the first of a list */
    doorman__hold *next_transfer;
    doorman__takes takes;
    doorman__takes next_takes; /* only while a configuration changes */
    doorman__wait *wait;       /* NULL: it does not wait */
    size_t bytes, item_count;
};

static doorman__hold_item *doorman__hold_items(const doorman__hold *hold) {
    return (doorman__hold_item *)doorman__mutable(hold + 1);
}

static doorman__take *doorman__takes_at(doorman__takes *takes, size_t index) {
    assert(index < takes->capacity);
    return takes->list ? &takes->list[index] : &takes->one;
}

/* Returns the queue of a counter of CONCURRENCY, or NULL. */
static doorman__hold_queue *doorman__counter_queue(doorman__counter *counter) {
    doorman__hold_queue *queue;
    memcpy(&queue, &doorman__counter_state(counter)[1], sizeof queue);
    return queue;
}

/* P16: returns whether the holds of a predecessor are not known yet. */
static bool doorman__permits_learns(const doorman_permits *permits,
                                    const doorman_permit_limit *limit) {
    if (permits->at.now >= permits->holds.learns_until) return false;
    if (limit->full_at_start || limit->leased) return false;
    return permits->at.now < doorman__permits_own_slot(permits, limit)->learns_until;
}

/* ---- permits: figures that callers bring (P31) */

static const char *doorman__set_wrong_kind(const doorman_permit_limit *limit) {
    const bool bucket = limit->kind == DOORMAN_TOKEN_BUCKET;
    const bool window =
        limit->kind == DOORMAN_FIXED_WINDOW || limit->kind == DOORMAN_SLIDING_WINDOW;
    const doorman__rule rules[] = {
        {limit->leased, "the limit is leased, so its figures are those of the lease"},
        {limit->kind == DOORMAN_CONCURRENCY,
         "the limit is of kind CONCURRENCY, whose holds outlive the permit"},
        {!bucket && !window, "the limit is of kind TIERS, whose figures are a list"},
        {limit->per != DOORMAN_PER_KEY,
         "needs a limit per key, because other limits share a counter between keys"},
    };
    size_t next = 0;
    return DOORMAN__RULE_NEXT(rules, &next);
}

/* Returns the figure that is more than set_max times that of the limit, and sets *most to the
 * bound. Returns NULL if there is none.
 *   all   the figures, with those of the limit */
static const char *doorman__set_beyond(const doorman_permit_limit *limit,
                                       const doorman_figures *all, double *most) {
    const double times = limit->set_max * (1 + 1e-9);
    const doorman_figures *own = &limit->figures;
    *most = limit->set_max * own->rate;
    if (all->rate > times * own->rate) return "rate";
    *most = limit->set_max * own->size;
    if (all->size > times * own->size) return "size";
    *most = limit->set_max * own->limit;
    if (all->limit > times * own->limit) return "limit";
    if (!all->window || all->window == own->window) return NULL;
    const double share = (double)all->window / (double)own->window;
    *most = limit->set_max * own->limit * share; /* in the window that the caller brings */
    return all->limit > times * own->limit * share ? "limit" : NULL;
}

/* Returns the figures of a caller with those of the limit. */
static doorman_figures doorman__set_all(const doorman_permit_limit *limit,
                                        const doorman_figures *given) {
    doorman_figures all = doorman__override_resolve(limit, given);
    if (!given->window) {
        all.window = limit->figures.window;
        all.calendar = limit->figures.calendar;
    }
    return all;
}

/* Finds the figures for the present configuration. */
static void doorman__set_resolve(doorman__set *set, const doorman_permit_limit *limit,
                                 uint32_t generation) {
    double most;
    set->limit = limit;
    set->generation = generation;
    set->all = doorman__set_all(limit, &set->given);
    set->fits = limit->kind == set->kind && !doorman__set_wrong_kind(limit) &&
                !(set->given.window && limit->figures.calendar) &&
                !doorman__set_beyond(limit, &set->all, &most);
}

static bool doorman__set_equal(const doorman_figures *a, const doorman_figures *b) {
    return doorman__equal(a->rate, b->rate) && a->has_size == b->has_size &&
           doorman__equal(a->size, b->size) && a->has_limit == b->has_limit &&
           doorman__equal(a->limit, b->limit) && a->window == b->window;
}

/* Returns the figures that a caller brings, with one more reference. Returns NULL if memory runs
 * out. Figures that a counter remembers already need no memory. */
static doorman__set *doorman__set_enter(doorman_permits *permits, const doorman_permit_limit *limit,
                                        const doorman_figures *given) {
    const double figures[] = {given->rate, given->size, given->limit, (double)given->window};
    const uint32_t hash = (uint32_t)doorman__hash_bytes(
        permits->options.seed, (const unsigned char *)figures, sizeof figures);
    doorman__chain *node = doorman__chains_first(&permits->sets, hash);
    for (; node; node = node->next) {
        doorman__set *set = (doorman__set *)(void *)node;
        const bool present = set->limit == limit && set->generation == permits->generation;
        if (node->hash != hash || !present || !doorman__set_equal(&set->given, given)) continue;
        set->references++;
        return set;
    }
    doorman__set *set = (doorman__set *)doorman__zalloc(sizeof *set);
    if (!set) return NULL;
    set->given = *given;
    set->kind = limit->kind;
    set->references = 1;
    doorman__set_resolve(set, limit, permits->generation);
    if (!doorman__chains_add(&permits->sets, &set->node, hash)) {
        DOORMAN_FREE(set);
        return NULL;
    }
    permits->node_bytes += sizeof *set;
    return set;
}

/* Takes back a reference. NULL has no effect. */
static void doorman__set_leave(doorman_permits *permits, doorman__set *set) {
    if (!set) return;
    assert(set->references > 0);
    if (--set->references > 0) return;
    assert(permits->node_bytes >= sizeof *set);
    permits->node_bytes -= sizeof *set;
    doorman__chains_remove(&permits->sets, &set->node);
    DOORMAN_FREE(set);
}

static uint64_t *doorman__counter_set_word(doorman__counter *counter) {
    const size_t behind = counter->flags & DOORMAN__COUNTS_REFUSALS ? 3 : 1;
    assert(counter->flags & DOORMAN__HAS_SET && counter->words >= behind);
    return doorman__counter_state(counter) + counter->words - behind;
}

/* Returns the figures that a counter remembers; NULL: none. */
static doorman__set *doorman__counter_set(doorman__counter *counter) {
    doorman__set *set = NULL;
    if (counter->flags & DOORMAN__HAS_SET) {
        memcpy(&set, doorman__counter_set_word(counter), sizeof set);
    }
    return set;
}

/* Lets a counter that has room remember other figures. NULL: none. */
static void doorman__counter_remember(doorman_permits *permits, doorman__counter *counter,
                                      doorman__set *set) {
    doorman__set *before = doorman__counter_set(counter);
    if (set) set->references++;
    memcpy(doorman__counter_set_word(counter), &set, sizeof set);
    doorman__set_leave(permits, before);
}

/* Returns the figures that a caller has brought for a counter, if they fit the limit that it has
 * now; else NULL. */
static const doorman_figures *doorman__counter_brought(const doorman_permits *permits,
                                                       const doorman_permit_limit *limit,
                                                       doorman__counter *counter) {
    doorman__set *set = doorman__counter_set(counter);
    if (!set) return NULL;
    if (set->limit != limit || set->generation != permits->generation) {
        doorman__set_resolve(set, limit, permits->generation);
    }
    return set->fits ? &set->all : NULL;
}

/* ---- permits: the parts of a counter */

/* Returns the two words that count refusals for a ban: the count, and when it began. */
static uint64_t *doorman__counter_refusals(doorman__counter *counter) {
    assert(counter->flags & DOORMAN__COUNTS_REFUSALS);
    return doorman__counter_state(counter) + counter->words - 2;
}

static size_t doorman__counter_bytes(const doorman__counter *counter) {
    return sizeof *counter + counter->words * sizeof(uint64_t) + counter->key_bytes;
}

static const char *doorman__place_id(const doorman__place *place) {
    return (const char *)(place + 1);
}

/* Returns the identity of a (resource, key). Hashes of resources and of keys cannot be predicted,
 * so neither can their sum. The factor makes ("a", "b") differ from ("b", "a"). */
static doorman__identity doorman__identity_of(const doorman_permits *permits,
                                              const doorman__place *place, const char *key) {
    size_t bytes = strlen(key);
    uint64_t hash = doorman__hash_bytes(permits->options.seed, (const unsigned char *)key, bytes);
    return (doorman__identity){key, bytes, 3 * place->hash + hash, place->node.tag};
}

/* Returns the identity of the counter that a limit has for a (resource, key). */
static doorman__identity doorman__limit_identity(const doorman_permits *permits,
                                                 const doorman_permit_limit *limit,
                                                 const doorman__place *place,
                                                 const doorman__identity *of_key) {
    const uint64_t hash = permits->empty_hash;
    if (limit->per == DOORMAN_PER_KEY) return *of_key;
    if (limit->per == DOORMAN_PER_TEMPLATE)
        return (doorman__identity){"", 0, hash, DOORMAN__NO_PLACE};
    return (doorman__identity){"", 0, 3 * place->hash + hash, place->node.tag};
}

static doorman__counter *doorman__counter_find(const doorman__chains *nodes,
                                               const doorman__identity *wanted) {
    const uint32_t hash = (uint32_t)wanted->hash;
    doorman__chain *node = doorman__chains_first(nodes, hash);
    for (; node; node = node->next) {
        if (node->hash != hash || node->tag != wanted->tag) continue;
        doorman__counter *counter = (doorman__counter *)(void *)node;
        if (counter->key_bytes != wanted->key_bytes) continue;
        if (!memcmp(doorman__counter_key(counter), wanted->key, wanted->key_bytes)) return counter;
    }
    return NULL;
}

static doorman__counter *doorman__slot_find(const doorman__slot *slot,
                                            const doorman__identity *wanted) {
    return doorman__counter_find(&slot->nodes, wanted);
}

/* Raises an event, if the application wants its kind. */
static void doorman__permits_event(const doorman_permits *permits, doorman_permit_event event) {
    if (!(permits->options.event_kinds >> event.kind & 1)) return;
    permits->options.on_event(permits->options.context, &event);
}

static doorman__place *doorman__permits_place_of(const doorman_permits *permits, uint32_t tag) {
    return tag == DOORMAN__NO_PLACE ? NULL : permits->places[tag];
}

/* Returns the bytes of a ban, with its entry in the heap of its limit. */
static size_t doorman__ban_bytes(size_t key_bytes) {
    return sizeof(doorman__counter) + DOORMAN__BAN_WORDS * sizeof(uint64_t) + key_bytes +
           sizeof(doorman__timer_entry);
}

/* Takes a ban out of the heap of its limit. The last one frees the heap. */
static void doorman__ban_leave(doorman__ban *ban) {
    doorman__timers *ends = &ban->slot->bans;
    assert(ban->end.position);
    doorman__timer_clear(ends, &ban->end);
    if (ends->count) return;
    doorman__timers_uninit(ends);
    *ends = (doorman__timers){.heap = NULL};
}

/* Sets the end of a ban in the heap of a slot. Precondition: the heap has room. */
static void doorman__ban_enter(doorman__ban *ban, doorman__slot *slot, doorman_time end) {
    assert(!ban->end.position || ban->slot);
    if (ban->end.position && ban->slot != slot) doorman__ban_leave(ban);
    ban->slot = slot;
    doorman__timer_set(&slot->bans, &ban->end, doorman__earlier(end, DOORMAN_NEVER - 1));
}

/* ---- permits: changes that a store must have (D3) */
/*
 * A row has a header, which is the same for all versions, and figures. Numbers have the byte order
 * of little-endian machines, and strings end with a NUL.
 *
 *     offset  bytes
 *      0       1    the version
 *      1       1    1: the counter or the ban was removed
 *      2       2    the length of the identity
 *      4       8    written_at
 *     12       8    fresh_at
 *     20            the identity: one letter for the kind, one for the scope, and three strings:
 *                   the limit, "" for a ban; the resource, or the glob of a limit per template; the
 *                   key. The strings of the clock are empty
 *                   the glob; the name of the limit; the figures: see >>state
 */

#define DOORMAN__PERMIT_ROW_HEADER 20
#define DOORMAN__PERMIT_ROW_BAN 'x' /* in place of the kind; so is the next one */
#define DOORMAN__PERMIT_ROW_CLOCK 'c'

/* The letters of kinds and scopes in rows. They never change. */
static const char doorman__kind_letters[] = {[DOORMAN_TOKEN_BUCKET] = 'b',
                                             [DOORMAN_FIXED_WINDOW] = 'w',
                                             [DOORMAN_SLIDING_WINDOW] = 's',
                                             [DOORMAN_TIERS] = 't'};
static const char doorman__scope_letters[] = {
    [DOORMAN_PER_KEY] = 'k', [DOORMAN_PER_RESOURCE] = 'r', [DOORMAN_PER_TEMPLATE] = 't'};

/* Returns the number of the lowest bit that is set. Precondition: there is one. */
static size_t doorman__lowest_mark(uint64_t bits) {
    assert(bits);
    return (size_t)__builtin_ctzll(bits);
}

/* Writes a string with a NUL, and returns the end. */
static unsigned char *doorman__le_write_text(unsigned char *to, const char *text, size_t bytes) {
    assert(bytes <= DOORMAN_ID_BYTES_MAX);
    memcpy(to, text, bytes);
    to[bytes] = 0;
    return to + bytes + 1;
}

/* Writes what is before the identity of a row, and returns its end. `fresh_at` is the present epoch
 * until doorman__permit_row_set_fresh. */
static unsigned char *doorman__permit_row_times(const doorman_permits *permits,
                                                unsigned char *row) {
    memset(row, 0, DOORMAN__PERMIT_ROW_HEADER);
    row[0] = DOORMAN_PERMIT_ROW_VERSION;
    (void)doorman__le_write(row + 4, (uint64_t)permits->at.epoch, 8);
    return doorman__le_write(row + 12, (uint64_t)permits->at.epoch, 8);
}

/* Writes the header of a row about a counter or a ban, and returns its end. */
static unsigned char *doorman__permit_row_begin(const doorman_permits *permits,
                                                const doorman__slot *slot,
                                                doorman__counter *counter, bool removed,
                                                unsigned char *row) {
    const bool is_ban = slot == permits->slots[0];
    const doorman__slot *of = is_ban ? doorman__counter_ban(counter)->slot : slot;
    const char *limit = is_ban ? "" : slot->name, *resource_id = slot->glob;
    if (counter->node.tag != DOORMAN__NO_PLACE) {
        resource_id = doorman__place_id(permits->places[counter->node.tag]);
    }
    const char kind = is_ban ? DOORMAN__PERMIT_ROW_BAN : doorman__kind_letters[slot->kind];
    unsigned char *at = doorman__permit_row_times(permits, row);
    assert(kind);
    *at++ = (unsigned char)kind;
    *at++ = (unsigned char)doorman__scope_letters[is_ban ? DOORMAN_PER_KEY : slot->per];
    at = doorman__le_write_text(at, limit, strlen(limit));
    at = doorman__le_write_text(at, resource_id, strlen(resource_id));
    at = doorman__le_write_text(at, doorman__counter_key(counter), counter->key_bytes);
    size_t identity_bytes = (size_t)(at - row) - DOORMAN__PERMIT_ROW_HEADER;
    at = doorman__le_write_text(at, of->glob, strlen(of->glob));
    at = doorman__le_write_text(at, of->name, strlen(of->name));
    row[1] = removed;
    (void)doorman__le_write(row + 2, identity_bytes, 2);
    return at;
}

static void doorman__permit_row_set_fresh(unsigned char *row, doorman_time fresh_at) {
    (void)doorman__le_write(row + 12, (uint64_t)fresh_at, 8);
}

/* Notes that a counter or a ban has changed. */
static void doorman__permits_mark(doorman_permits *permits, doorman__slot *slot,
                                  doorman__counter *counter) {
    if (counter->flags & DOORMAN__CHANGED) return;
    counter->flags |= DOORMAN__CHANGED;
    doorman__chains_mark(&slot->nodes, doorman__chains_index(&slot->nodes, counter->node.hash));
    doorman__changes *changes = &permits->changes;
    if (!changes->count++ && !changes->removal_count) changes->since = permits->at.now;
}

/* Notes that no row of a counter or a ban must be yielded. The mark of its bucket stays. */
static void doorman__permits_unmark(doorman_permits *permits, doorman__counter *counter) {
    if (!(counter->flags & DOORMAN__CHANGED)) return;
    counter->flags &= (uint8_t)~DOORMAN__CHANGED;
    assert(permits->changes.count > 0);
    permits->changes.count--;
}

#define DOORMAN__REMOVALS_MAX 100000 /* that wait to be yielded */

/* Lets a row of a removed counter or ban be yielded. Returns false if memory runs out. */
static bool doorman__permits_add_removal(doorman_permits *permits, const unsigned char *row,
                                         size_t bytes) {
    doorman__changes *changes = &permits->changes;
    doorman__removal *removal = (doorman__removal *)DOORMAN_MALLOC(sizeof *removal + bytes);
    if (!removal) return false;
    *removal = (doorman__removal){.bytes = bytes};
    memcpy(removal + 1, row, bytes);
    if (!changes->count && !changes->removal_count) changes->since = permits->at.now;
    changes->removal_count++;
    if (changes->last) changes->last->next = removal;
    if (!changes->first) changes->first = removal;
    changes->last = removal;
    return true;
}

/* Lets the store delete the row of a counter or a ban, which is removed next. If there is no room,
 * the row stays in the store until it is fresh, which is only too strict.
 *   most   how many removals may wait */
static void doorman__permits_forget_row(doorman_permits *permits, const doorman__slot *slot,
                                        doorman__counter *counter, size_t most) {
    unsigned char row[DOORMAN_PERMIT_ROW_BYTES_MAX];
    permits->changes.clock_due = true;
    if (!(counter->flags & DOORMAN__STORED)) return;
    size_t bytes = (size_t)(doorman__permit_row_begin(permits, slot, counter, true, row) - row);
    bool added =
        permits->changes.removal_count < most && doorman__permits_add_removal(permits, row, bytes);
    permits->changes.removals_lost += !added;
}

/* Removes a counter or a ban from its slot, and frees it. */
static void doorman__permits_remove(doorman_permits *permits, doorman__slot *slot,
                                    doorman__counter *counter) {
    assert(!(counter->flags & DOORMAN__IN_USE));
    doorman__place *place = doorman__permits_place_of(permits, counter->node.tag);
    bool is_ban = slot == doorman__permits_bans(permits);
    size_t bytes = doorman__counter_bytes(counter);
    doorman__permits_unmark(permits, counter);
    doorman__chains_remove(&slot->nodes, &counter->node);
    doorman__set_leave(permits, doorman__counter_set(counter));
    if (is_ban) {
        bytes = doorman__ban_bytes(counter->key_bytes);
        doorman__ban_leave(doorman__counter_ban(counter));
        permits->ban_bytes -= bytes;
    } else {
        permits->counter_count--;
    }
    assert(permits->node_bytes >= bytes);
    permits->node_bytes -= bytes;
    if (place) {
        assert(place->counter_count > 0);
        place->counter_count--;
    }
    DOORMAN_FREE(counter);
}

/* Writes the key of a counter, with a NUL. */
static const char *doorman__counter_copy_key(doorman__counter *counter,
                                             char key[DOORMAN_ID_BYTES_MAX + 1]) {
    assert(counter->key_bytes <= DOORMAN_ID_BYTES_MAX);
    memcpy(key, doorman__counter_key(counter), counter->key_bytes);
    key[counter->key_bytes] = 0;
    return key;
}

/* Removes a counter or a ban, and raises an event.
 *   about   the kind of the event, its limit and its amount */
static void doorman__permits_drop_as(doorman_permits *permits, doorman__slot *slot,
                                     doorman__counter *counter, doorman_permit_event about) {
    const doorman__place *place = doorman__permits_place_of(permits, counter->node.tag);
    char key[DOORMAN_ID_BYTES_MAX + 1];
    if (permits->options.event_kinds >> about.kind & 1) {
        about.resource_id = place ? doorman__place_id(place) : NULL;
        about.key = doorman__counter_copy_key(counter, key);
        doorman__permits_event(permits, about);
    }
    doorman__permits_remove(permits, slot, counter);
}

/* Removes a counter, and raises an event. */
static void doorman__permits_drop(doorman_permits *permits, doorman__slot *slot,
                                  doorman__counter *counter) {
    const doorman_permit_event about = {.kind = DOORMAN_PERMIT_KEY_REMOVED, .limit = slot->name};
    assert(slot != doorman__permits_bans(permits));
    doorman__permits_drop_as(permits, slot, counter, about);
}

/* ---- permits: places */

/* Returns whether a slot has the identity of a limit, except for the glob. */
static bool doorman__slot_is(const doorman__slot *slot, const doorman_permit_limit *limit) {
    return slot->kind == limit->kind && slot->per == limit->per &&
           strcmp(slot->name, limit->name) == 0;
}

/* Returns the slot for a limit of a place. If the place had a slot for a limit with the same name,
 * kind and scope, the place keeps that slot, so that its counters stay (P15). The slot is that of
 * the limit itself if the place has no counters, and for CONCURRENCY and limits per template. */
static doorman__place_slot doorman__place_slot_for(const doorman_permits *permits,
                                                   const doorman__place *place,
                                                   const doorman_permit_limit *limit) {
    doorman__slot *own = doorman__permits_own_slot(permits, limit);
    for (size_t i = 0; i < place->slot_count; i++) {
        const doorman__place_slot *last = &place->slots[i];
        bool same = limit->per == DOORMAN_PER_TEMPLATE ? last->slot == own
                                                       : doorman__slot_is(last->slot, limit);
        /* counters of holds are always in the slot of the limit itself */
        bool stays = place->counter_count && limit->kind != DOORMAN_CONCURRENCY;
        if (same && (last->slot == own || stays)) return *last;
    }
    return (doorman__place_slot){own, permits->generation};
}

/* Returns the template of a resource, or NULL if it has no limits. */
static const doorman_template *doorman__permits_template(const doorman_permits *permits,
                                                         const char *resource_id) {
    const doorman_template *found = doorman_config_find(permits->config, resource_id);
    return found && found->has_limits ? found : NULL;
}

static size_t doorman__place_bytes(const doorman__place *place) {
    size_t slots = place->slots ? (place->slot_count + 1) * sizeof *place->slots : 0;
    return sizeof *place + strlen(doorman__place_id(place)) + 1 + slots;
}

/* Gives back the references of a place to its slots, and frees its list of slots. */
static void doorman__place_leave(doorman__place *place) {
    for (size_t i = 0; i < place->slot_count; i++) {
        assert(place->slots[i].slot->references > 0);
        place->slots[i].slot->references--;
    }
    DOORMAN_FREE(place->slots);
    place->slots = NULL;
    place->slot_count = 0;
}

/* Finds the template and the slots of a place again after a change of configuration. Returns false
 * if memory runs out; the place is then as before. */
static bool doorman__place_resolve(doorman_permits *permits, doorman__place *place) {
    if (place->generation == permits->generation) return true;
    const char *id = doorman__place_id(place);
    const doorman_template *template_ = doorman__permits_template(permits, id);
    size_t count = template_ ? template_->limit_count : 0;
    doorman__place_slot *slots =
        (doorman__place_slot *)doorman__zalloc((count + 1) * sizeof *slots);
    if (!slots) return false;
    for (size_t i = 0; i < count; i++) {
        slots[i] = doorman__place_slot_for(permits, place, &template_->limits[i]);
    }
    for (size_t i = 0; i < count; i++) slots[i].slot->references++;
    permits->node_bytes -= doorman__place_bytes(place);
    doorman__place_leave(place);
    place->slots = slots;
    place->slot_count = count;
    permits->node_bytes += doorman__place_bytes(place);
    place->template_ = template_;
    place->shadow = false;
    for (size_t i = 0; i < permits->config->shadow_count && !place->shadow; i++) {
        place->shadow = doorman__glob_match(permits->config->shadow[i], id);
    }
    place->generation = permits->generation;
    return true;
}

static doorman__place *doorman__permits_find_place(const doorman_permits *permits,
                                                   const char *resource_id) {
    uint64_t hash = doorman__hash(permits->options.seed, resource_id);
    doorman__chain *node = doorman__chains_first(&permits->place_table, (uint32_t)hash);
    for (; node; node = node->next) {
        doorman__place *place = (doorman__place *)(void *)node;
        if (place->hash == hash && strcmp(doorman__place_id(place), resource_id) == 0) return place;
    }
    return NULL;
}

/* Makes room for one more place, and for its index when it is free again. */
static bool doorman__permits_reserve_place(doorman_permits *permits) {
    const size_t count = permits->place_count + 1;
    if (permits->free_count) return true;
    return doorman__reserve_list(&permits->places, &permits->place_capacity, count,
                                 sizeof *permits->places) &&
           doorman__reserve_list(&permits->free_places, &permits->free_capacity, count,
                                 sizeof *permits->free_places);
}

static void doorman__place_free(doorman_permits *permits, doorman__place *place) {
    assert(permits->node_bytes >= doorman__place_bytes(place));
    permits->node_bytes -= doorman__place_bytes(place);
    doorman__place_leave(place);
    DOORMAN_FREE(place);
}

/* Adds a place with its present template. Returns NULL if memory runs out. */
static doorman__place *doorman__permits_add_place(doorman_permits *permits,
                                                  const char *resource_id) {
    size_t bytes = strlen(resource_id) + 1;
    if (!doorman__permits_reserve_place(permits)) return NULL;
    doorman__place *place = (doorman__place *)doorman__zalloc(sizeof *place + bytes);
    if (!place) return NULL;
    memcpy(place + 1, resource_id, bytes);
    permits->node_bytes += doorman__place_bytes(place);
    place->generation = permits->generation - 1;
    place->hash = doorman__hash(permits->options.seed, resource_id);
    if (!doorman__place_resolve(permits, place) ||
        !doorman__chains_add(&permits->place_table, &place->node, (uint32_t)place->hash)) {
        doorman__place_free(permits, place);
        return NULL;
    }
    size_t index = permits->place_count;
    if (permits->free_count) index = permits->free_places[--permits->free_count];
    if (index == permits->place_count) permits->place_count++;
    place->node.tag = (uint32_t)index;
    permits->places[index] = place;
    assert(index < permits->place_capacity && permits->place_count <= permits->place_capacity);
    return place;
}

static void doorman__permits_remove_place(doorman_permits *permits, doorman__place *place) {
    assert(place->counter_count == 0 && place->hold_count == 0);
    assert(permits->places[place->node.tag] == place);
    assert(permits->free_count < permits->free_capacity);
    permits->places[place->node.tag] = NULL;
    permits->free_places[permits->free_count++] = place->node.tag;
    doorman__chains_remove(&permits->place_table, &place->node);
    doorman__place_free(permits, place);
}

/* Finds or adds a place, with its present template. Returns NULL if memory runs out. */
static doorman__place *doorman__permits_place(doorman_permits *permits, const char *resource_id) {
    doorman__place *place = doorman__permits_find_place(permits, resource_id);
    if (!place) return doorman__permits_add_place(permits, resource_id);
    return doorman__place_resolve(permits, place) ? place : NULL;
}

/* ---- permits: which figures a key has */

/* Returns whether a list of globs concerns a key: see doorman_permit_limit. */
static bool doorman__keys_concern(const char *const *keys, size_t count, const char *key) {
    bool found = false, needed = false;
    for (size_t i = 0; i < count; i++) {
        bool excludes = keys[i][0] == '!';
        needed = needed || !excludes;
        if (found && !excludes) continue;
        bool matches = doorman__glob_match(keys[i] + excludes, key);
        if (matches && excludes) return false;
        found = found || matches;
    }
    return found || !needed;
}

/* Returns the index of the first override for a key plus 1, or 0 if there is none. */
static uint16_t doorman__limit_override(const doorman_permit_limit *limit, const char *key) {
    for (size_t i = 0; i < limit->override_count; i++) {
        const doorman_override *override_ = &limit->overrides[i];
        if (doorman__keys_concern(override_->keys, override_->key_count, key)) {
            return (uint16_t)(i + 1);
        }
    }
    return 0;
}

static const doorman_figures *doorman__limit_figures(const doorman_permit_limit *limit,
                                                     uint16_t override_) {
    assert(override_ <= limit->override_count);
    return override_ ? &limit->overrides[override_ - 1].figures : &limit->figures;
}

/* ---- permits: which override rows and which plan a key has (E1, E2)
 *
 * A decision looks for rows only if a limit has had one since the last configuration, and then only
 * in the limits that had. The rows that are in force are found by the clock. So a row acts from its
 * first moment to its last, and a counter does not remember which row it has. */

static const char *doorman__override_scope_text(const doorman__override_scope *scope) {
    return (const char *)(scope + 1);
}

static const char *doorman__override_key(const doorman__override_row *row) {
    return (const char *)(row + 1);
}

static size_t doorman__override_key_bytes(const doorman__override_row *row) {
    return row->node.tag & (DOORMAN__BEGUN - 1);
}

/* Returns the hash of a row. `scope` is the hash of its resource or glob. */
static uint32_t doorman__override_hash(uint32_t scope, uint32_t limit, uint32_t key) {
    return 3 * scope + 5 * limit + key;
}

/* The figures that rows give to a key. */
typedef struct doorman__overriding {
    doorman__override_figures *figures, *adds; /* NULL: there is no row */
} doorman__overriding;

/* Finds the rows in force of a resource, or of the glob of a limit.
 *   resource_id   NULL: of the glob
 *   hash          of the rows */
static void doorman__overriding_find(const doorman_permits *permits, const doorman__slot *slot,
                                     const char *resource_id, uint32_t hash,
                                     const doorman__identity *identity, doorman__overriding *out) {
    const doorman_time epoch = permits->at.epoch;
    const doorman__chain *node = doorman__chains_first(&permits->overrides.rows, hash);
    for (; node; node = node->next) {
        const doorman__override_row *row = (const doorman__override_row *)(const void *)node;
        if (node->hash != hash || doorman__override_key_bytes(row) != identity->key_bytes) continue;
        doorman__override_figures *figures = row->figures;
        const doorman__override_scope *scope = figures->scope;
        const doorman__row_kind kind = resource_id ? DOORMAN__OF_RESOURCE : DOORMAN__OF_GLOB;
        if (figures->idle || scope->slot != slot || scope->node.tag != kind) continue;
        if (epoch < row->starts_at || epoch >= row->ends_at) continue;
        if (memcmp(doorman__override_key(row), identity->key, identity->key_bytes) != 0) continue;
        if (resource_id && strcmp(doorman__override_scope_text(scope), resource_id) != 0) continue;
        if (figures->add > 0) out->adds = figures;
        if (!(figures->add > 0)) out->figures = figures;
    }
}

#define DOORMAN__PLAN_HASH 0 /* in place of the hash of a limit, for plan rows */

/* The key of a limit of a template, for its plan. */
typedef struct doorman__plan_key {
    const char *glob;
    const char *key; /* without a NUL */
    size_t key_bytes;
    uint32_t glob_hash, key_hash;
} doorman__plan_key;

/* Returns the plan that a key has now, if the limit has it; else NULL. There is at most one row of
 * a key and a glob. It does not matter which configuration the rows are resolved for. */
static const doorman_plan *doorman__limit_plan(const doorman_permits *permits,
                                               const doorman_permit_limit *limit,
                                               const doorman__plan_key *of) {
    const doorman_time epoch = permits->at.epoch;
    const uint32_t hash = doorman__override_hash(of->glob_hash, DOORMAN__PLAN_HASH, of->key_hash);
    const doorman__chain *node = doorman__chains_first(&permits->overrides.rows, hash);
    for (; node; node = node->next) {
        const doorman__override_row *row = (const doorman__override_row *)(const void *)node;
        if (node->hash != hash || doorman__override_key_bytes(row) != of->key_bytes) continue;
        const doorman__override_scope *scope = row->figures->scope;
        if (scope->node.tag != DOORMAN__OF_PLAN) continue;
        if (epoch < row->starts_at || epoch >= row->ends_at) continue;
        if (memcmp(doorman__override_key(row), of->key, of->key_bytes) != 0) continue;
        if (strcmp(doorman__override_scope_text(scope), of->glob) != 0) continue;
        for (size_t i = 0; i < limit->plan_count; i++) {
            if (strcmp(limit->plans[i].name, row->figures->plan) == 0) return &limit->plans[i];
        }
    }
    return NULL;
}

/* Returns the plan of the key of a counter: see doorman__limit_plan. Precondition: the limit has
 * had plan rows.
 *   place   of the counter */
static const doorman_plan *doorman__counter_plan(const doorman_permits *permits,
                                                 const doorman__slot *slot,
                                                 const doorman_permit_limit *limit,
                                                 const doorman__place *place,
                                                 const doorman__identity *identity) {
    assert(slot->overridden & DOORMAN__BY_PLAN);
    const doorman__plan_key of = {.glob = slot->glob,
                                  .key = identity->key,
                                  .key_bytes = identity->key_bytes,
                                  .glob_hash = slot->glob_hash,
                                  .key_hash = (uint32_t)identity->hash - 3 * (uint32_t)place->hash};
    return doorman__limit_plan(permits, limit, &of);
}

/* Returns figures with some units more in a bucket or a window, as far as the rules allow. */
static doorman_figures doorman__figures_plus(doorman_limit_kind kind, const doorman_figures *own,
                                             double add) {
    doorman_figures all = *own;
    assert(add > 0);
    if (kind == DOORMAN_TOKEN_BUCKET) {
        const double lent = own->rate * ((double)own->max_debt / 1e9);
        const double most = doorman__min(own->rate * 1e8, DOORMAN_AMOUNT_MAX - lent);
        all.size = doorman__max(own->size, doorman__min(own->size + add, most));
    } else {
        all.limit = doorman__min(own->limit + add, DOORMAN_AMOUNT_MAX);
    }
    return all;
}

/* Returns the figures of a key of a limit that has had rows.
 *   otherwise   what the key has without rows
 *   brought     `otherwise` is from a caller (P31), which goes before a plan
 *   identity    of the counter of the key */
static const doorman_figures *doorman__overriding_figures(const doorman_permits *permits,
                                                          const doorman_permit_limit *limit,
                                                          const doorman_figures *otherwise,
                                                          bool brought,
                                                          const doorman__identity *identity) {
    const doorman__slot *slot = doorman__permits_own_slot(permits, limit);
    doorman__overriding found = {NULL, NULL};
    const doorman__place *place = doorman__permits_place_of(permits, identity->tag);
    assert(place && slot->per == DOORMAN_PER_KEY);
    const uint32_t of_place = (uint32_t)place->hash;
    const uint32_t of_key = (uint32_t)identity->hash - 3 * of_place;
    if (slot->overridden & DOORMAN__BY_RESOURCE) {
        const uint32_t hash = doorman__override_hash(of_place, slot->name_hash, of_key);
        doorman__overriding_find(permits, slot, doorman__place_id(place), hash, identity, &found);
    }
    if (!found.figures && slot->overridden & DOORMAN__BY_GLOB) {
        const uint32_t hash = doorman__override_hash(slot->glob_hash, slot->name_hash, of_key);
        doorman__overriding_find(permits, slot, NULL, hash, identity, &found);
    }
    const doorman_figures *figures = found.figures ? &found.figures->all : otherwise;
    if (!found.figures && !brought && slot->overridden & DOORMAN__BY_PLAN) {
        const doorman_plan *plan = doorman__counter_plan(permits, slot, limit, place, identity);
        if (plan) figures = &plan->figures;
    }
    if (!found.adds) return figures;
    found.adds->all = doorman__figures_plus(slot->kind, figures, found.adds->add);
    return &found.adds->all;
}

/* Returns whether a limit has had rows since the last configuration. */
static bool doorman__limit_overridden(const doorman_permits *permits,
                                      const doorman_permit_limit *limit) {
    return permits->overridden && doorman__permits_own_slot(permits, limit)->overridden;
}

/* Returns the figures of a key.
 *   override_   of the configuration: see doorman__limit_figures
 *   brought     by a caller (P31); NULL: none
 *   identity    of the counter of the key */
static const doorman_figures *doorman__key_figures(const doorman_permits *permits,
                                                   const doorman_permit_limit *limit,
                                                   uint16_t override_,
                                                   const doorman_figures *brought,
                                                   const doorman__identity *identity) {
    const doorman_figures *own = brought ? brought : doorman__limit_figures(limit, override_);
    if (!doorman__limit_overridden(permits, limit)) return own;
    return doorman__overriding_figures(permits, limit, own, brought != NULL, identity);
}

static doorman__identity doorman__counter_identity(doorman__counter *counter) {
    return (doorman__identity){doorman__counter_key(counter), counter->key_bytes,
                               counter->node.hash, counter->node.tag};
}

/* Returns the figures of a counter. Precondition: the counter is adapted. */
static const doorman_figures *doorman__counter_figures(const doorman_permits *permits,
                                                       const doorman_permit_limit *limit,
                                                       doorman__counter *counter) {
    const doorman_figures *brought = doorman__counter_brought(permits, limit, counter);
    if (!permits->overridden && brought) return brought;
    if (!permits->overridden) return doorman__limit_figures(limit, counter->override_);
    const doorman__identity identity = doorman__counter_identity(counter);
    return doorman__key_figures(permits, limit, counter->override_, brought, &identity);
}

/* ---- permits: creating and adapting counters */

/* Allocates a counter with a zero state. Returns NULL if memory runs out. */
static doorman__counter *doorman__counter_create(const doorman__identity *identity, size_t words,
                                                 uint8_t flags) {
    size_t key_bytes = identity->key_bytes;
    size_t all = words + (flags & DOORMAN__COUNTS_REFUSALS ? 2 : 0);
    if (flags & DOORMAN__HAS_SET) all++;
    doorman__counter *counter =
        (doorman__counter *)doorman__zalloc(sizeof *counter + all * sizeof(uint64_t) + key_bytes);
    if (!counter) return NULL;
    assert(all <= UINT8_MAX && key_bytes <= DOORMAN_ID_BYTES_MAX);
    counter->words = (uint8_t)all;
    counter->flags = flags;
    counter->key_bytes = (uint16_t)key_bytes;
    memcpy(doorman__counter_key(counter), identity->key, key_bytes);
    return counter;
}

/* Creates a counter or a ban in its slot. Returns NULL if memory runs out. */
static doorman__counter *doorman__permits_add(doorman_permits *permits, doorman__slot *slot,
                                              const doorman__identity *identity, size_t words,
                                              uint8_t flags) {
    doorman__place *place = doorman__permits_place_of(permits, identity->tag);
    doorman__counter *counter = doorman__counter_create(identity, words, flags);
    if (!counter) return NULL;
    counter->node.tag = identity->tag;
    if (!doorman__chains_add(&slot->nodes, &counter->node, (uint32_t)identity->hash)) {
        DOORMAN_FREE(counter);
        return NULL;
    }
    size_t bytes = doorman__counter_bytes(counter);
    if (slot == doorman__permits_bans(permits)) {
        bytes = doorman__ban_bytes(counter->key_bytes);
        permits->ban_bytes += bytes;
    } else {
        permits->counter_count++;
    }
    permits->node_bytes += bytes;
    assert(permits->ban_bytes <= permits->node_bytes);
    if (place) place->counter_count++;
    return counter;
}

static uint8_t doorman__limit_flags(const doorman_permit_limit *limit) {
    return limit->ban.refusals ? DOORMAN__COUNTS_REFUSALS : 0;
}

/* Returns the words of the state. */
static size_t doorman__counter_words(const doorman__counter *counter) {
    const size_t refusals = counter->flags & DOORMAN__COUNTS_REFUSALS ? 2 : 0;
    const size_t set = counter->flags & DOORMAN__HAS_SET ? 1 : 0;
    assert(counter->words >= refusals + set);
    return counter->words - refusals - set;
}

/* Gives a counter the number of words that its figures need now, and room for what the flags say.
 * The words that the state keeps do not change. Returns the counter, which may have moved, or NULL
 * if memory runs out. */
static doorman__counter *doorman__counter_resize(doorman_permits *permits, doorman__slot *slot,
                                                 doorman__counter *counter, size_t words,
                                                 uint8_t flags) {
    const uint8_t counted = counter->flags & DOORMAN__COUNTS_REFUSALS;
    const uint8_t parts = counter->flags & (DOORMAN__COUNTS_REFUSALS | DOORMAN__HAS_SET);
    const size_t before = doorman__counter_words(counter);
    if (before == words && flags == parts) return counter;
    const doorman__identity identity = doorman__counter_identity(counter);
    doorman__counter *other = doorman__permits_add(permits, slot, &identity, words, flags);
    if (!other) return NULL;
    size_t kept = before < words ? before : words;
    memcpy(doorman__counter_state(other), doorman__counter_state(counter), kept * sizeof(uint64_t));
    if (flags & counted) {
        memcpy(doorman__counter_refusals(other), doorman__counter_refusals(counter),
               2 * sizeof(uint64_t));
    }
    if (flags & DOORMAN__HAS_SET) {
        doorman__counter_remember(permits, other, doorman__counter_set(counter));
    }
    other->flags |= counter->flags & DOORMAN__STORED;
    if (counter->flags & DOORMAN__CHANGED) doorman__permits_mark(permits, slot, other);
    doorman__permits_remove(permits, slot, counter);
    return other;
}

/* Adapts a counter to the present configuration. `limit` is the limit that the counter has now.
 * Another override than before may apply to its key, or another row (E1). A SLIDING_WINDOW of
 * changed length becomes fresh. With empty_at_start it is used up in its first window (P16).
 * Returns NULL if memory runs out. */
static doorman__counter *doorman__counter_adapt(doorman_permits *permits, doorman__slot *slot,
                                                const doorman_permit_limit *limit,
                                                doorman__counter *counter) {
    uint16_t generation = (uint16_t)permits->generation;
    bool known = counter->generation == generation && counter->override_ <= limit->override_count;
    if (known && !doorman__limit_overridden(permits, limit)) return counter;
    char key[DOORMAN_ID_BYTES_MAX + 1];
    uint16_t override_ = counter->override_;
    if (!known) override_ = doorman__limit_override(limit, doorman__counter_copy_key(counter, key));
    const doorman__identity identity = doorman__counter_identity(counter);
    const doorman_figures *figures = doorman__key_figures(
        permits, limit, override_, doorman__counter_brought(permits, limit, counter), &identity);
    size_t words = doorman__state_words(limit->kind, figures);
    const uint8_t flags = doorman__limit_flags(limit) | (counter->flags & DOORMAN__HAS_SET);
    counter = doorman__counter_resize(permits, slot, counter, words, flags);
    if (!counter) return NULL;
    counter->override_ = override_;
    counter->generation = generation;
    const doorman__meter meter = {limit, figures, doorman__counter_state(counter)};
    /* TIERS without tiers has no state */
    if (limit->kind == DOORMAN_SLIDING_WINDOW && meter.state[0] != (uint64_t)figures->window) {
        doorman__meter_init(&meter, &permits->at);
    }
    /* the limit may be durable only since this configuration */
    bool unknown = !known && limit->durable && !(counter->flags & DOORMAN__STORED);
    if (unknown) doorman__permits_mark(permits, slot, counter);
    return counter;
}

/* Returns whether a counter is from a time before the place got the slot. Generations wrap around,
 * so only their difference has a meaning. */
static bool doorman__counter_stale(const doorman__counter *counter, uint32_t since) {
    return (uint16_t)(counter->generation - since) >= 0x8000;
}

/* Returns the limit of a counter in the present configuration. Returns NULL if there is none, or if
 * memory runs out (*failed). */
static const doorman_permit_limit *doorman__counter_limit(doorman_permits *permits,
                                                          const doorman__slot *slot,
                                                          const doorman__counter *counter,
                                                          bool *failed) {
    doorman__place *place = doorman__permits_place_of(permits, counter->node.tag);
    if (!place) return slot->limit;
    if (!doorman__place_resolve(permits, place)) {
        *failed = true;
        return NULL;
    }
    for (size_t i = 0; i < place->slot_count; i++) {
        if (place->slots[i].slot != slot) continue;
        bool stale = doorman__counter_stale(counter, place->slots[i].since);
        return stale ? NULL : &place->template_->limits[i];
    }
    return NULL;
}

static doorman__meter doorman__counter_meter(const doorman_permits *permits,
                                             const doorman_permit_limit *limit,
                                             doorman__counter *counter) {
    return (doorman__meter){limit, doorman__counter_figures(permits, limit, counter),
                            doorman__counter_state(counter)};
}

/* Returns whether refusals of a counter still count for a ban. */
static bool doorman__counter_counts(doorman__counter *counter, const doorman_permit_limit *limit,
                                    doorman_time now) {
    if (!(counter->flags & DOORMAN__COUNTS_REFUSALS)) return false;
    const uint64_t *refusals = doorman__counter_refusals(counter);
    return refusals[0] && now <= doorman__after((doorman_time)refusals[1], limit->ban.window);
}

/* ---- permits: removing counters that equal fresh ones (P14) */

#define DOORMAN__CALL_VISITS 4
#define DOORMAN__UPDATE_VISITS 10000

/* Removes a ban that has ended, and a counter that equals a fresh one or that no limit uses. */
static void doorman__permits_visit(doorman_permits *permits, doorman__slot *slot,
                                   doorman__counter *counter) {
    bool failed = false;
    if (slot == doorman__permits_bans(permits)) {
        if (doorman__counter_ban(counter)->end.at > permits->at.now) return;
        /* a ban that was made shorter may have a row that ends later */
        bool known = !(counter->flags & DOORMAN__CHANGED);
        if (!known) doorman__permits_forget_row(permits, slot, counter, DOORMAN__REMOVALS_MAX);
        doorman__permits_remove(permits, slot, counter);
        return;
    }
    const doorman_permit_limit *limit = doorman__counter_limit(permits, slot, counter, &failed);
    if (failed) return;
    assert(limit || slot->kind != DOORMAN_CONCURRENCY);
    /* a limit that has become leased does not use its counters any more */
    if (limit && !doorman__limit_is_leased_rate(limit)) {
        counter = doorman__counter_adapt(permits, slot, limit, counter);
        if (!counter) return;
        const doorman__meter meter = doorman__counter_meter(permits, limit, counter);
        bool fresh = doorman__meter_fresh(&meter, &permits->at) &&
                     !doorman__counter_counts(counter, limit, permits->at.now);
        if (!fresh) return;
        /* if it has no change to yield, its last row is fresh too; else a refund may have made only
         * the counter fresh */
        bool known = !(counter->flags & DOORMAN__CHANGED);
        if (!known) doorman__permits_forget_row(permits, slot, counter, DOORMAN__REMOVALS_MAX);
    }
    doorman__permits_drop(permits, slot, counter);
}

/* Starts to load the counters of later buckets into the cache: first the buckets, then the first
 * counters of their lists, then the second ones. What is loaded is used two calls later. So the CPU
 * does not wait for memory, also if a call is short. */
static void doorman__chains_prefetch_later(const doorman__chains *nodes) {
    const size_t step = (size_t)2 * DOORMAN__CALL_VISITS, soon = nodes->cursor + step;
    if (soon + 2 * step >= nodes->bucket_count) return;
    __builtin_prefetch(doorman__chains_at(nodes, soon + 2 * step));
    doorman__chain_prefetch(*doorman__chains_at(nodes, soon + step));
    const doorman__chain *first = *doorman__chains_at(nodes, soon);
    if (first) doorman__chain_prefetch(first->next);
}

static void doorman__permits_free_tops(doorman_permits *permits, doorman__slot *slot) {
    for (size_t i = 0; i < DOORMAN_TOP_COUNT; i++) {
        assert(permits->top_bytes <= permits->options.memory_max);
        if (slot->tops[i]) permits->top_bytes -= doorman__top_bytes(slot->tops[i]);
        doorman__top_destroy(slot->tops[i]);
        slot->tops[i] = NULL;
    }
    if (slot->usage) permits->top_bytes -= doorman__units_top_bytes(slot->usage);
    doorman__units_top_destroy(slot->usage);
    slot->usage = NULL;
}

static void doorman__permits_free_slot(doorman_permits *permits, size_t index) {
    doorman__slot *slot = permits->slots[index];
    assert(!slot->limit && slot->nodes.count == 0 && slot->references == 0 && index > 0);
    assert(slot->bans.count == 0);
    doorman__permits_free_tops(permits, slot);
    doorman__chains_uninit(&slot->nodes);
    DOORMAN_FREE(slot);
    permits->slots[index] = permits->slots[--permits->slot_count];
    permits->slot_removals++;
    permits->changes.slot = permits->changes.segment = 0; /* a slot has moved */
}

/* Moves the sweep to the next slot. A slot whose limit is gone is freed when it is empty. */
static void doorman__permits_next_slot(doorman_permits *permits) {
    doorman__slot *slot = permits->slots[permits->sweep_slot];
    slot->nodes.cursor = 0;
    assert(permits->sweep_slot < permits->slot_count);
    bool gone = permits->sweep_slot > 0 && !slot->limit && !slot->references &&
                !slot->nodes.count && !slot->bans.count;
    if (gone) {
        doorman__permits_free_slot(permits, permits->sweep_slot);
    } else {
        permits->sweep_slot++;
    }
    if (permits->sweep_slot >= permits->slot_count) permits->sweep_slot = 0;
}

/* Removes places without counters, bans and holds. Visits at most `visits` buckets. */
static void doorman__permits_sweep_places(doorman_permits *permits, size_t visits) {
    doorman__chains *nodes = &permits->place_table;
    if (visits > nodes->bucket_count) visits = nodes->bucket_count;
    for (size_t i = 0; i < visits && nodes->bucket_count > 0; i++) {
        if (nodes->cursor >= nodes->bucket_count) nodes->cursor = 0;
        doorman__chain *node = *doorman__chains_at(nodes, nodes->cursor++);
        for (doorman__chain *next = NULL; node; node = next) {
            next = node->next;
            doorman__place *place = (doorman__place *)(void *)node;
            if (place->counter_count || place->hold_count) continue;
            doorman__permits_remove_place(permits, place);
        }
    }
}

/* Visits about `visits` counters: always whole buckets. */
static void doorman__permits_sweep_counters(doorman_permits *permits, size_t visits) {
    size_t all = permits->slot_count + 4 * (permits->counter_count + 1);
    all += 4 * doorman__permits_bans(permits)->nodes.count;
    size_t steps = 4 * visits + 16 < all ? 4 * visits + 16 : all;
    for (size_t visited = 0; visited < visits && steps > 0; steps--) {
        doorman__slot *slot = permits->slots[permits->sweep_slot];
        if (slot->nodes.cursor >= slot->nodes.bucket_count) {
            doorman__permits_next_slot(permits);
            continue;
        }
        doorman__chains_prefetch_later(&slot->nodes);
        doorman__chain *node = *doorman__chains_at(&slot->nodes, slot->nodes.cursor++);
        for (doorman__chain *next = NULL; node; node = next, visited++) {
            next = node->next;
            doorman__permits_visit(permits, slot, (doorman__counter *)(void *)node);
        }
    }
}

/* ---- permits: room for one more counter */

/* Returns the larger of two fractions: what a counter has used of its limit, and its refusals of
 * those that a ban needs. 0: it offers as much as a fresh one; 1: it refuses one unit now. */
static double doorman__counter_use(const doorman_permits *permits,
                                   const doorman_permit_limit *limit, doorman__counter *counter) {
    const doorman__meter meter = doorman__counter_meter(permits, limit, counter);
    const uint64_t unit = (uint64_t)DOORMAN__UNIT;
    double refused = 0, used = 1;
    assert(!doorman__limit_is_leased_rate(limit));
    if (doorman__counter_counts(counter, limit, permits->at.now)) {
        double refusals = (double)doorman__counter_refusals(counter)[0];
        refused = doorman__min(1, refusals / limit->ban.refusals);
    }
    /* in its first window, a counter that equals a fresh one may be used up (P16) */
    if (limit->empty_at_start && doorman__meter_fresh(&meter, &permits->at)) return refused;
    doorman_time wait = 0;
    uint64_t most = doorman__limit_grains(limit, doorman__figures_most(limit->kind, meter.figures));
    uint64_t offer = doorman__meter_offer(&meter, DOORMAN_NEVER, &wait, &permits->at);
    uint64_t least = most < unit ? most : unit;
    if (offer && offer >= least) {
        used = offer < most ? (double)(most - offer) / (double)most : 0;
    }
    return doorman__max(used, refused);
}

/* A counter that may be evicted. */
typedef struct doorman__victim {
    doorman__counter *counter;         /* NULL: there is none */
    const doorman_permit_limit *limit; /* NULL: the limit is gone, or does not use the counter */
    double use;                        /* see doorman__counter_use */
    doorman_time rest;                 /* until the counter equals a fresh one */
} doorman__victim;

/* Adapts a counter to its present limit, and returns what decides whether the counter is evicted.
 * The result has no counter if a hold or the present call points to the counter, or if memory runs
 * out. */
static doorman__victim doorman__permits_candidate(doorman_permits *permits, doorman__slot *slot,
                                                  doorman__counter *counter) {
    bool failed = false;
    const doorman__victim none = {NULL, NULL, 0, 0};
    if (counter->flags & DOORMAN__IN_USE) return none;
    const doorman_permit_limit *limit = doorman__counter_limit(permits, slot, counter, &failed);
    if (failed || (!limit && slot->kind == DOORMAN_CONCURRENCY)) return none;
    if (!limit || doorman__limit_is_leased_rate(limit)) {
        return (doorman__victim){counter, NULL, 0, 0};
    }
    counter = doorman__counter_adapt(permits, slot, limit, counter);
    if (!counter) return none;
    const doorman__meter meter = doorman__counter_meter(permits, limit, counter);
    const bool holds = limit->kind == DOORMAN_CONCURRENCY; /* holds may point to the counter */
    if (holds && !doorman__meter_fresh(&meter, &permits->at)) return none;
    double use = holds ? 0 : doorman__counter_use(permits, limit, counter);
    return (doorman__victim){counter, limit, use, 0};
}

/* Returns the counter that is nearest to a fresh one, among 8 that are sampled: first one without a
 * limit, then the one that is used least, then the one that is fresh soonest. All counters of one
 * window of the calendar are fresh at the same time, so the time alone does not tell them apart. */
static doorman__victim doorman__permits_victim(doorman_permits *permits, doorman__slot *slot) {
    doorman__chain *samples[DOORMAN__EVICT_SAMPLES];
    doorman__victim best = {NULL, NULL, 2, DOORMAN_NEVER};
    size_t count = doorman__chains_sample(&slot->nodes, &permits->random, samples);
    for (size_t i = 0; i < count; i++) {
        doorman__victim next =
            doorman__permits_candidate(permits, slot, (doorman__counter *)(void *)samples[i]);
        if (!next.counter || next.use > best.use) continue;
        if (!next.limit) return next;
        const doorman__meter meter = doorman__counter_meter(permits, next.limit, next.counter);
        next.rest = doorman__meter_reset_after(&meter, &permits->at);
        bool counts = doorman__counter_counts(next.counter, next.limit, permits->at.now);
        if (counts) next.rest = doorman__later(next.rest, next.limit->ban.window);
        if (next.use < best.use || next.rest < best.rest) best = next;
    }
    return best;
}

/* Evicts a counter. Returns false if there is none. */
static bool doorman__permits_evict(doorman_permits *permits, doorman__slot *slot) {
    const doorman__victim victim = doorman__permits_victim(permits, slot);
    if (!victim.counter) return false;
    assert(!(victim.counter->flags & DOORMAN__IN_USE));
    slot->totals.evicted++;
    slot->totals.evicted_in_use += victim.use > 0;
    const doorman_permit_event about = {
        .kind = DOORMAN_PERMIT_KEY_EVICTED, .limit = slot->name, .amount = victim.use};
    doorman__permits_forget_row(permits, slot, victim.counter, DOORMAN__REMOVALS_MAX / 2);
    doorman__permits_drop_as(permits, slot, victim.counter, about);
    return true;
}

static size_t doorman__permits_bytes(const doorman_permits *permits) {
    size_t bytes = permits->node_bytes + permits->top_bytes;
    bytes += doorman__chains_bytes(&permits->place_table) + permits->overrides.bytes;
    bytes += doorman__chains_bytes(&permits->sets);
    bytes += doorman__chains_bytes(&permits->overrides.rows);
    bytes += doorman__chains_bytes(&permits->overrides.figures);
    bytes += doorman__chains_bytes(&permits->overrides.scopes);
    for (size_t i = 0; i < permits->slot_count; i++) {
        bytes += doorman__chains_bytes(&permits->slots[i]->nodes);
    }
    return bytes;
}

/* Returns whether memory_max allows `bytes` more bytes. */
static bool doorman__permits_has_memory(const doorman_permits *permits, size_t bytes) {
    size_t most = permits->options.memory_max, used = permits->node_bytes + permits->top_bytes;
    return used <= most && bytes <= most - used;
}

/* Ends early the ban of a limit that would end first. Returns false if there is none.
 *   slot   of the limit; or the slot of the bans, for the bans by an administrator */
static bool doorman__permits_evict_ban(doorman_permits *permits, doorman__slot *slot) {
    doorman__timer *first = doorman__timers_first(&slot->bans);
    if (!first) return false;
    doorman__slot *bans = doorman__permits_bans(permits);
    doorman__ban *ban = DOORMAN__WITHIN(doorman__ban, end, first);
    doorman__counter *counter = (doorman__counter *)(void *)ban - 1;
    assert(ban->slot == slot);
    bool ended = first->at <= permits->at.now;
    slot->totals.bans_evicted += !ended;
    permits->bans_evicted += !ended;
    doorman__permits_forget_row(permits, bans, counter, DOORMAN__REMOVALS_MAX / 2);
    if (ended) {
        doorman__permits_remove(permits, bans, counter);
    } else {
        const doorman_permit_event about = {.kind = DOORMAN_PERMIT_BAN_EVICTED,
                                            .limit = slot == bans ? NULL : slot->name};
        doorman__permits_drop_as(permits, bans, counter, about);
    }
    return true;
}

/* Ends early the ban that would end first among the bans of all limits. */
static bool doorman__permits_evict_any_ban(doorman_permits *permits) {
    size_t found = 0;
    doorman_time least = DOORMAN_NEVER;
    doorman__slot *bans = doorman__permits_bans(permits);
    if (bans->nodes.count == bans->bans.count) return false;
    for (size_t i = 1; i < permits->slot_count; i++) {
        doorman_time due = doorman__timers_due(&permits->slots[i]->bans);
        if (due < least) found = i;
        least = doorman__earlier(least, due);
    }
    return found && doorman__permits_evict_ban(permits, permits->slots[found]);
}

/* Returns whether there is room for one more counter of `bytes` bytes (P19). */
static bool doorman__permits_has_room(const doorman_permits *permits, const doorman__slot *slot,
                                      const doorman_permit_limit *limit, size_t bytes) {
    return slot->nodes.count < limit->max_keys &&
           permits->counter_count < permits->options.counter_max &&
           doorman__permits_has_memory(permits, bytes);
}

/* Makes room for one more counter of `bytes` bytes. Returns false if a bound forbids it (P19). */
static bool doorman__permits_make_room(doorman_permits *permits, doorman__slot *slot,
                                       const doorman_permit_limit *limit, size_t bytes) {
    for (int i = 0; i < 64; i++) {
        if (doorman__permits_has_room(permits, slot, limit, bytes)) return true;
        bool has_memory = doorman__permits_has_memory(permits, bytes);
        if (limit->refuse_new) return false;
        bool done = doorman__permits_evict(permits, slot) ||
                    (!has_memory && doorman__permits_evict_any_ban(permits));
        if (!done) return false;
    }
    return false;
}

/* ---- >>leased ------------------------------------------------------------------------------- */
/*
 * A leased limit of permits takes its amount from a lease (P17). The permits of a server are a
 * holder like any other. They have a client with the id "(permits)", which asks the server in the
 * same process. So what >>client and >>leases promise is also true for permits: leases and permits
 * together never exceed the capacity. At a node with a parent, this holder is a part of what the
 * node asks its parent for.
 *
 *     permit --> limit --> doorman__permit_lease --> doorman_client_resource --> doorman__rate
 *                                                    "(permits)" asks doorman__server_handle_in
 *
 * A lease is open as long as it is in the table. It is opened by the first refusal, and closed when
 * no permit has used it for a minute. Several limits of TOKEN_BUCKET may use one lease, if they are
 * in different templates.
 *
 * Evaluating a permit only looks at the rate. So a permit that another limit refuses takes nothing
 * of the lease, and shows no demand for it. A grant takes units of the rate. A refusal by the lease
 * is counted by the rate, so the wants grow (L4).
 *
 * The client looks for refusals every 0.2 s. The server does the work of the client in its loop,
 * and after each message on permits. So a busy limit does not wait for the loop.
 *
 * Loss of mastership. When a server stops being master, it forgets its leases, and decides on no
 * permits any more. A crash has the same effect. A new master begins without a lease of the
 * permits. While it learns a resource, no holder gets more than it had, so no holder gets the part
 * of the lost lease. Learning ends when all leases of the predecessor have ended (R8), also that of
 * its permits. So the capacity is not exceeded. A rate has no units that outlast its lease. A hold
 * does not outlast its lease either.
 *
 * Holds. A leased CONCURRENCY has an ordinary counter, with its queue. Its limit is what the gauge
 * of the lease allows now. One lease belongs to one counter. So the units in use of the gauge are
 * the units of the counter. They are copied to the gauge at each grant, and before the client makes
 * a request. Between two copies the gauge may have too many units in use, but never too few. So a
 * claim includes all that is held (R3).
 *     A hold ends at most at the end of the lease under which it was granted or renewed last. That
 * lease has committed at least what is held. If a new lease commits less than what is held, the
 * older allowance covers the rest until its end, so no hold is prolonged then. The units come back
 * by releases, or at the ends.
 *     When a lease has changed, all queues of leased limits are ready, and are served next.
 *
 * This client never sees a server that is not master, because the leases are cleared then. The
 * client sees no failure either: a request fails only without memory, and is repeated (K2).
 */

#define DOORMAN__LEASE_IDLE                                                                        \
    (60 * DOORMAN_SECOND)         /* after this time without use a lease is closed */
#define DOORMAN__LEASE_REQUESTS 8 /* the most requests of one call of doorman__leased_work */

struct doorman__permit_lease {
    doorman__chain node;
    doorman_client_resource *resource;
    doorman_time used_at;    /* the last grant or refusal */
    uint32_t place;          /* of a gauge: the index of the place whose permits use it */
    doorman_figures figures; /* of the last doorman__leased_meter or doorman__leased_figures */
};

static doorman_status doorman__leased_init(doorman_permits *permits, const uint64_t seed[2]) {
    static const char *const addresses[] = {"in this process"};
    const doorman_client_options options = {.client_id = DOORMAN__PERMITS_HOLDER,
                                            .addresses = addresses,
                                            .address_count = 1,
                                            .seed = doorman__hash(seed, "leases") | 1};
    return doorman_client_create(&permits->leases.client, &options, NULL, permits->at.now);
}

static doorman_resource_kind doorman__leased_kind(const doorman_permit_limit *limit) {
    return limit->kind == DOORMAN_CONCURRENCY ? DOORMAN_GAUGE : DOORMAN_RATE;
}

/* Returns the resource whose lease a leased limit uses. */
static const char *doorman__leased_id(const doorman_permit_limit *limit,
                                      const doorman__place *place) {
    assert(limit->leased);
    return limit->lease_of ? limit->lease_of : doorman__place_id(place);
}

/* Finds the lease that a leased limit uses for a place. A lease of the other kind is from an
 * earlier configuration. Such a lease cannot be used, and is closed after a minute without use.
 * Each counter of CONCURRENCY has a lease of its own: the configuration is refused otherwise. */
static doorman__permit_lease *doorman__leased_find(const doorman_permits *permits,
                                                   const doorman_permit_limit *limit,
                                                   const doorman__place *place) {
    const char *id = doorman__leased_id(limit, place);
    const uint32_t hash = (uint32_t)doorman__hash(permits->options.seed, id);
    doorman__chain *node = doorman__chains_first(&permits->leases.table, hash);
    for (; node; node = node->next) {
        doorman__permit_lease *lease = (doorman__permit_lease *)(void *)node;
        if (node->hash != hash || strcmp(lease->resource->resource_id, id) != 0) continue;
        return lease->resource->kind == doorman__leased_kind(limit) ? lease : NULL;
    }
    return NULL;
}

/* Returns whether no more leases may be opened (P19). */
static bool doorman__leased_is_full(const doorman_permits *permits,
                                    const doorman_permit_limit *limit) {
    const size_t bytes = sizeof(doorman__permit_lease) + sizeof(doorman_client_resource);
    return permits->leases.table.count >= limit->max_keys ||
           !doorman__permits_has_memory(permits, bytes + DOORMAN_ID_BYTES_MAX);
}

static size_t doorman__leased_bytes(const doorman__permit_lease *lease) {
    return sizeof *lease + sizeof *lease->resource + strlen(lease->resource->resource_id) + 1;
}

/* Opens a lease. Returns NULL if there is no server, no room, or no memory. Then the next refusal
 * tries again. */
static doorman__permit_lease *doorman__leased_open(doorman_permits *permits,
                                                   const doorman_permit_limit *limit,
                                                   const doorman__place *place) {
    doorman__permit_leases *leases = &permits->leases;
    const char *id = doorman__leased_id(limit, place);
    const uint32_t hash = (uint32_t)doorman__hash(permits->options.seed, id);
    const doorman_resource_options options = {.resource_id = id,
                                              .kind = doorman__leased_kind(limit),
                                              .has_priority = limit->has_priority,
                                              .priority = limit->priority,
                                              .wants_initial = 1, /* for what was refused */
                                              .fallback = DOORMAN_PESSIMISTIC};
    if (!leases->client || doorman__leased_is_full(permits, limit)) return NULL;
    doorman__permit_lease *lease = (doorman__permit_lease *)doorman__zalloc(sizeof *lease);
    if (!lease) return NULL;
    doorman_status status =
        doorman_client_open(&lease->resource, leases->client, &options, NULL, permits->at.now);
    bool open = status == DOORMAN_OK;
    if (!open || !doorman__chains_add(&leases->table, &lease->node, hash)) {
        if (open) doorman_client_close(lease->resource, permits->at.now);
        DOORMAN_FREE(lease);
        return NULL;
    }
    lease->resource->subclients = limit->subclients;
    permits->node_bytes += doorman__leased_bytes(lease);
    assert(leases->table.count <= limit->max_keys);
    return lease;
}

/* Closes a lease. The client releases it with its next request. */
static void doorman__leased_close(doorman_permits *permits, doorman__permit_lease *lease) {
    assert(permits->node_bytes >= doorman__leased_bytes(lease));
    permits->node_bytes -= doorman__leased_bytes(lease);
    doorman__chains_remove(&permits->leases.table, &lease->node);
    doorman_client_close(lease->resource, permits->at.now);
    DOORMAN_FREE(lease);
}

/* Forgets all leases without releasing them. */
static void doorman__leased_clear(doorman_permits *permits) {
    doorman_client *client = permits->leases.client;
    doorman__chains_free_all(&permits->leases.table);
    permits->leases.sweep_at = 0;
    if (!client) return;
    while (client->upstream.first) {
        doorman_client_resource *resource = doorman__resource_of(client->upstream.first);
        doorman__upstream_remove(&client->upstream, &resource->held);
        doorman__resource_free(resource);
    }
    doorman__upstream_forget(&client->upstream);
    assert(!client->upstream.first && !permits->leases.table.count);
}

/* Sets the priority and the subclients of a lease, which a new configuration may have changed.
 * Returns whether the lease is in force.
 *   lease   may be NULL */
static bool doorman__leased_live(const doorman_permits *permits, doorman__permit_lease *lease,
                                 const doorman_permit_limit *limit) {
    if (!lease) return false;
    lease->resource->options.priority = limit->has_priority ? limit->priority : 1;
    lease->resource->subclients = limit->subclients;
    return doorman__held_lease_live(&lease->resource->held, permits->at.now);
}

/* Returns the figures of a leased limit of CONCURRENCY, with what the lease has now. */
static const doorman_figures *doorman__leased_figures(const doorman_permits *permits,
                                                      doorman__permit_lease *lease,
                                                      const doorman_permit_limit *limit) {
    assert(limit->leased && limit->kind == DOORMAN_CONCURRENCY);
    doorman__quota quota;
    (void)doorman__allowance_read(&lease->resource->gauge.allowance, &quota, permits->at.now);
    lease->figures = limit->figures;
    lease->figures.limit = doorman__unlimited(quota.amount) ? DOORMAN_AMOUNT_MAX : quota.amount;
    return &lease->figures;
}

/* Returns the index of the limit of a place that uses a lease of a gauge, or slot_count. */
static size_t doorman__leased_limit_of_place(const doorman_permits *permits,
                                             const doorman__permit_lease *lease,
                                             const doorman__place *place) {
    size_t i = 0;
    for (; place && i < place->slot_count; i++) {
        const doorman_permit_limit *limit = &place->template_->limits[i];
        bool holds = limit->leased && limit->kind == DOORMAN_CONCURRENCY;
        if (holds && doorman__leased_find(permits, limit, place) == lease) break;
    }
    return i;
}

/* Returns how many grains may be held at a counter of a leased limit. */
static uint64_t doorman__leased_most(const doorman_permits *permits,
                                     const doorman_permit_limit *limit,
                                     const doorman__counter *counter) {
    const doorman__place *place = doorman__permits_place_of(permits, counter->node.tag);
    doorman__permit_lease *lease = doorman__leased_find(permits, limit, place);
    if (!doorman__leased_live(permits, lease, limit)) return 0;
    return doorman__grains_floor(doorman__leased_figures(permits, lease, limit)->limit);
}

/* Sets the grains in use of the gauge. */
static void doorman__leased_set_held(doorman__permit_lease *lease, uint64_t held) {
    doorman__gauge *gauge = &lease->resource->gauge;
    __atomic_store_n(&gauge->in_flight, held, __ATOMIC_SEQ_CST);
    doorman__raise(&gauge->peak, held);
}

/* Notes a grant of CONCURRENCY. */
static void doorman__leased_note_held(const doorman_permits *permits, doorman__permit_lease *lease,
                                      const doorman__place *place, uint64_t held) {
    assert(place && held > 0);
    lease->used_at = permits->at.now;
    lease->place = place->node.tag;
    doorman__leased_set_held(lease, held);
    /* any change of this count shows that the gauge is in use (L4) */
    __atomic_fetch_add(&lease->resource->gauge.usage.allowed, 1, __ATOMIC_RELAXED);
}

/* Returns how long a hold may last from now on under one lease. A lease that has committed less
 * than what is held has shrunk. Then no hold of the counter is prolonged, and each keeps its
 * end. */
static doorman_time doorman__leased_rest(const doorman_permits *permits,
                                         const doorman__permit_lease *lease, uint64_t held) {
    if (!lease || !doorman__held_lease_live(&lease->resource->held, permits->at.now)) return 0;
    const doorman__held_lease *lease_held = &lease->resource->held;
    if (doorman__grains_units(held) > lease_held->committed) return 0;
    double rest = (double)(lease_held->end - permits->at.now);
    return (doorman_time)doorman__max(0, rest / (1 + permits->options.drift) - 3);
}

/* P17: bounds the time to live of a hold by the ends of its leases. A hold whose lease is not
 * prolonged lasts as long as before. If it was handed over, it ends now for its holder: nobody
 * knows by how much its end has moved, and the lease under which it was granted has not moved. */
static doorman_time doorman__leased_life(doorman_permits *permits, doorman__hold *hold,
                                         doorman_time life) {
    doorman_time most = life;
    for (size_t i = 0; i < hold->takes.count; i++) {
        doorman__counter *counter = doorman__takes_at(&hold->takes, i)->counter;
        if (!(counter->flags & DOORMAN__LEASED_UNITS)) continue;
        const doorman__place *place = doorman__permits_place_of(permits, counter->node.tag);
        for (size_t j = 0; place && j < place->slot_count; j++) {
            const doorman_permit_limit *limit = &place->template_->limits[j];
            if (!limit->leased || limit->kind != DOORMAN_CONCURRENCY) continue;
            const doorman__identity of_key = doorman__identity_of(permits, place, "");
            if (doorman__slot_find(place->slots[j].slot, &of_key) != counter) continue;
            const doorman__permit_lease *lease = doorman__leased_find(permits, limit, place);
            const uint64_t held = doorman__counter_state(counter)[0];
            most = doorman__earlier(most, doorman__leased_rest(permits, lease, held));
        }
    }
    assert(most >= 0 && most <= life);
    if (most == life || !hold->end.position || hold->is_handed) return most;
    /* the holder may use what it has until its own end, which is no later than this */
    double rest = (double)(hold->end.at - permits->at.now) / (1 + permits->options.drift) - 3;
    return doorman__later(most, doorman__earlier(life, (doorman_time)doorman__max(0, rest)));
}

/* Returns a bucket that is like the rate now. Its state is in `room`.
 *   units   how many are wanted. If this is more than the burst, the bucket has what the rate saves
 *           for such a request (L1) */
static doorman__meter doorman__leased_meter(const doorman_permits *permits,
                                            doorman__permit_lease *lease,
                                            const doorman_permit_limit *limit, double units,
                                            uint64_t *room) {
    const doorman_time now = permits->at.now;
    const doorman__rate *rate = &lease->resource->rate;
    assert(doorman__limit_is_leased_rate(limit));
    const doorman__rate_view view = doorman__rate_look(rate, units, now);
    doorman_figures *figures = &lease->figures;
    double saved = 0;
    *figures = (doorman_figures){.rate = view.quota.amount};
    if (doorman__unlimited(view.quota.amount)) {
        saved = figures->rate = figures->size = DOORMAN_AMOUNT_MAX;
    } else if (view.quota.amount > 0) {
        const doorman__bucket bucket = doorman__quota_bucket(&view.quota, view.price);
        const int64_t level = doorman__bucket_level(&bucket, rate->paid_until, doorman__ticks(now));
        /* the factor makes up for rounding, so that a saved unit is a whole unit */
        saved = (double)(level > 0 ? level : 0) / view.quota.unit_time * (1 + 1e-12);
        figures->size = (double)bucket.saved_most / view.quota.unit_time * (1 + 1e-12);
        figures->size = doorman__min(figures->size, DOORMAN_AMOUNT_MAX);
    }
    doorman__level_write(room, doorman__min(saved, figures->size), now);
    return (doorman__meter){limit, figures, room};
}

/* Takes n units that a view has found. n may exceed the saved units by a rounding error, which
 * costs nothing. Only one thread may use the rate. */
static void doorman__rate_charge(doorman__rate *rate, double n, doorman_time now) {
    doorman__quota quota;
    (void)doorman__allowance_read(&rate->allowance, &quota, now);
    int64_t price = doorman__rate_price(&quota, n);
    if (price < 0) price = doorman__rate_large_price(rate, &quota, n);
    (void)doorman__count(&rate->usage, doorman__units(n), DOORMAN_ALLOWED, now);
    if (price < 0) return; /* the rate is unlimited */
    const doorman__bucket bucket = doorman__quota_bucket(&quota, price);
    uint64_t ticks = doorman__ticks(now);
    int64_t level = doorman__bucket_level(&bucket, rate->paid_until, ticks);
    assert(level >= 0);
    rate->paid_until = ticks - (uint64_t)(level > price ? level - price : 0);
}

/* Takes units that doorman__leased_meter has found. */
static void doorman__leased_charge(doorman_permits *permits, doorman__permit_lease *lease,
                                   double units) {
    assert(units > 0);
    lease->used_at = permits->at.now;
    doorman__rate_charge(&lease->resource->rate, units, permits->at.now);
}

/* Counts refused units, so that the wants grow. Opens the lease if there is none. */
static void doorman__leased_refuse(doorman_permits *permits, doorman__permit_lease *lease,
                                   const doorman__place *place, const doorman_permit_limit *limit,
                                   double units) {
    if (!lease) lease = doorman__leased_open(permits, limit, place);
    if (!lease) return;
    lease->used_at = permits->at.now;
    lease->place = place->node.tag;
    assert(permits->places[lease->place] == place);
    uint64_t grains = doorman__units(doorman__min(units, DOORMAN_AMOUNT_MAX));
    doorman__usage *usage = lease->resource->usage;
    if (grains) (void)doorman__count(usage, grains, DOORMAN_REFUSED, permits->at.now);
}

/* Closes the leases that were not used for a minute, and that have no units in use. */
static void doorman__leased_sweep(doorman_permits *permits) {
    doorman__permit_leases *leases = &permits->leases;
    const doorman_time now = permits->at.now;
    for (size_t i = 0; i < leases->table.bucket_count; i++) {
        doorman__chain *node = *doorman__chains_at(&leases->table, i);
        for (doorman__chain *next = NULL; node; node = next) {
            next = node->next;
            doorman__permit_lease *lease = (doorman__permit_lease *)(void *)node;
            bool idle = now - lease->used_at >= DOORMAN__LEASE_IDLE &&
                        !(doorman__resource_in_use(lease->resource) > 0);
            if (idle) doorman__leased_close(permits, lease);
        }
    }
    leases->sweep_at = doorman__after(now, DOORMAN_SECOND);
}

/* ---- >>charges ------------------------------------------------------------------------------ */
/*
 * This section asks all counters that concern a permit, and charges them. The section >>permits
 * uses it to decide.
 *
 * A decision has four steps. Only the last step charges counters.
 *     prepare    finds the counters of all limits of all items. What several items want of one
 *                counter is added up
 *     evaluate   asks each counter what it can offer
 *     decide     refuses, or divides what is offered among the items
 *     commit     creates the missing counters, and then charges all counters
 *
 * P1 All limits of all items are evaluated before anything is charged. A refusal charges nothing.
 *    What several items want of one counter is added up.
 * P2 A counter offers:
 *      TOKEN_BUCKET     what is saved (or minus what is owed), plus what max_debt lends. It offers
 *                       nothing if the debt takes longer to pay than the allowed wait. The allowed
 *                       wait is the smaller of max_wait of the limit and of the permit
 *      windows          the limit minus what is used
 *      TIERS            the room of the current tier, and of the tiers that can be entered in turn
 *      CONCURRENCY      the limit minus what is held
 *    A permit fits if each counter offers the sum of the minimums, and if its max_cost allows this
 *    sum. Above its minimum, an item gets whole units, or all of its cost if that fits. No counter
 *    grants more than max_cost to one permit. The items get the units above their minimums in their
 *    order, and never out of debt: a debt makes the next callers wait, and only what a caller
 *    cannot do without is worth that. So with size 10 and a debt of 5, a cost of 15 gets 15, and a
 *    cost of 15 with a minimum of 1 gets 10. With `equal` all items get the same whole number.
 * P3 The wait of a grant is the debt of the bucket before this permit. Of several buckets, the
 *    longest wait counts. An item that only looks does not wait.
 * P4 Every limit that refuses counts the refusal. The refusal names the limit with the longest
 *    retry_after. MAX_COST, MAX_KEYS, MAX_HOLDS and UNMATCHED have no retry_after, and are named
 *    before all others. Missing units of holds have no retry_after either, and are named after all
 *    others. After retry_after the named limit has room. If several limits refuse, a tier of
 *    another limit may have ended by then. If a ban begins with the refusal, the ban counts like a
 *    refusal of its limit that ends with the ban. A refusal without retry_after counts for no ban:
 *    it names another limit, so the caller does not know of the limit that would ban the key.
 * P5 valid_for is at most retry_after and 1 s. It is 1 s for MAX_COST, MAX_KEYS and UNMATCHED. It
 *    is 0 for a permit of several items, where a refusal counts for a ban, and where holds have the
 *    units or MAX_HOLDS refuses.
 * P6 Details list each limit of each item.
 */

/* What is decided on. */
typedef struct doorman__decision {
    const doorman_permit_request *request; /* its items are read already: see `wants` */
    doorman__hold *hold;                   /* the waiting permit; NULL: a new permit */
    doorman_time turn; /* the position that the permit has, or would get, in all queues */
    bool inspects;     /* nothing is charged */
    bool may_wait;     /* a new permit may wait */
    doorman_time now;
} doorman__decision;

/* ---- permits: one decision, prepare */

/* What a permit wants of one counter. */
struct doorman__charge {
    doorman__place *place;
    const doorman_permit_limit *limit;
    doorman__slot *slot; /* has the counter */
    doorman__slot *own; /* of the limit; counts the decision. It differs from `slot` if the resource
                           has got another template (P15) */
    doorman__counter *counter; /* NULL: it does not exist, so it equals a fresh one. A leased limit
                                  has none */
    doorman__permit_lease *lease; /* of a leased limit; NULL: there is no lease yet */
    const doorman_figures *figures;
    doorman__set *set;          /* P31: what the caller brings; NULL: nothing */
    doorman__identity identity; /* of the counter */
    uint32_t since;
    uint16_t override_;
    bool shadow, created;
    doorman_reason reason; /* not NO_REASON: the counter refuses */
    size_t first_item, item_count;
    double minimum;   /* the sum of the minimums in units, and then of what the items get */
    uint64_t need;    /* the sum of the minimums in grains, rounded up as the section says */
    uint64_t offer;   /* what the counter offers */
    uint64_t spare;   /* what is left without debt, above the minimums and above what items get */
    uint64_t granted; /* at least the sum of what the items get */
    double units;     /* the sum of what the items get, in units */
    uint64_t untaken; /* CONCURRENCY: what is taken from the counter, but by no item yet */
    doorman_time wait;
    size_t tier_entered;
    int32_t next; /* the next charge with the same head, or -1 */
};

/* One item of the permit. */
struct doorman__want {
    doorman__place *place; /* NULL: no limits */
    doorman__slot *open;   /* counts the grant if the list of limits is empty; else NULL */
    const char *resource_id, *key;
    doorman__identity identity; /* only if there is a place */
    double cost, min, granted;  /* units */
    const doorman_permit_set *sets;
    size_t set_count;
    uint64_t grains;       /* what a counter of CONCURRENCY counts for `granted` */
    bool unmatched;        /* no template with limits matches */
    bool rejected;         /* it is unmatched, and therefore refused */
    doorman_time ban_rest; /* 0: not banned */
    size_t charge_count;
    uint32_t charges[DOORMAN_LIMITS_MAX];
};

/* P31: a figure of an item, for its errors. */
typedef struct doorman__set_path {
    const char *list; /* of the items: "item" in JSON */
    size_t item, set;
    const char *limit;
    doorman_error *error;
} doorman__set_path;

/* Writes an error of figures that a caller brings.
 *   text   with the field before it, or with ": " if the error is about all figures */
static doorman_status doorman__set_fail(const doorman__set_path *path, const char *text) {
    const char *dot = text[0] == ':' ? "" : ".";
    if (strcmp(path->list, "item") == 0) {
        return doorman__fail(path->error, DOORMAN_INVALID_ARGUMENT, "item[%zu].set.%s%s%s",
                             path->item, path->limit, dot, text);
    }
    return doorman__fail(path->error, DOORMAN_INVALID_ARGUMENT, "%s[%zu].sets[%zu]%s%s%s",
                         path->list, path->item, path->set, dot, dot[0] ? "figures." : "", text);
}

/* Checks figures that a caller brings, without their limit. */
static doorman_status doorman__set_check_given(const doorman__set_path *path,
                                               const doorman_figures *given) {
    const bool of_bucket = !doorman__equal(given->rate, 0) || given->has_size;
    const bool of_window = given->has_limit || given->window;
    const doorman__rule rules[] = {
        {given->has_max_debt || given->max_debt, "max_debt: a caller does not bring it"},
        {given->has_max_wait || given->max_wait, "max_wait: a caller does not bring it"},
        {given->time_to_live != 0, "time_to_live: a caller does not bring it"},
        {given->has_queue || given->queue, "queue: a caller does not bring it"},
        {given->has_tiers || given->tier_count, "tiers: a caller does not bring them"},
        {given->calendar != 0, "window: must be a number of seconds"},
        {!given->has_size && !doorman__equal(given->size, 0), "size: needs has_size"},
        {!given->has_limit && !doorman__equal(given->limit, 0), "limit: needs has_limit"},
        {!of_bucket && !of_window, ": must have rate or size, or limit or window"},
        {of_bucket && of_window, ": must have only rate and size, or only limit and window"},
        {!doorman__equal(given->rate, 0) && !(given->rate > 0 && given->rate <= DOORMAN_AMOUNT_MAX),
         "rate: must be more than 0 and at most 1e15"},
        {!doorman__amount_valid(given->size), "size: " DOORMAN__AMOUNT_RULE},
        {!doorman__amount_valid(given->limit), "limit: " DOORMAN__AMOUNT_RULE},
        {!doorman__duration_valid(given->window), "window: " DOORMAN__DURATION_RULE},
    };
    size_t next = 0;
    const char *text = DOORMAN__RULE_NEXT(rules, &next);
    return text ? doorman__set_fail(path, text) : DOORMAN_OK;
}

/* Returns the rule of a limit that the figures break, or NULL.
 *   room   for the text */
static const char *doorman__set_wrong(const doorman_permit_limit *limit,
                                      const doorman_figures *given, char room[160]) {
    const bool bucket = limit->kind == DOORMAN_TOKEN_BUCKET;
    const char *text = doorman__set_wrong_kind(limit);
    double most = 0;
    if (text) {
        snprintf(room, 160, ": %s", text);
        return room;
    }
    if (bucket && (given->has_limit || given->window)) return ": a TOKEN_BUCKET has rate and size";
    if (!bucket && !given->has_limit && !given->window) return ": a window has limit and window";
    if (given->window && limit->figures.calendar) return "window: that of the limit is a calendar";
    const doorman_figures all = doorman__set_all(limit, given);
    const char *beyond = doorman__set_beyond(limit, &all, &most);
    if (beyond) {
        snprintf(room, 160, "%s: is at most %.15g here, which is %.15g times that of the limit",
                 beyond, most, limit->set_max);
        return room;
    }
    const bool has_too_much = all.size + doorman__lent(&all) > DOORMAN_AMOUNT_MAX;
    if (bucket && all.size > all.rate * 1e8) return "size: is worth at most 1e8 s of the rate";
    if (bucket && !(all.size > 0) && !all.max_debt) return "size: must be more than 0 without debt";
    if (bucket && has_too_much) return "rate: is worth more than 1e15 units in max_debt";
    return NULL;
}

/* Checks figures that a caller brings by the rules of their limit. */
static doorman_status doorman__set_check_limit(const doorman__set_path *path,
                                               const doorman_template *template_,
                                               const doorman_figures *given) {
    char room[160];
    for (size_t i = 0; i < template_->limit_count; i++) {
        if (strcmp(template_->limits[i].name, path->limit) != 0) continue;
        const char *text = doorman__set_wrong(&template_->limits[i], given, room);
        return text ? doorman__set_fail(path, text) : DOORMAN_OK;
    }
    return doorman__set_fail(path, ": the template of the resource has no such limit");
}

/* Checks the figures that an item brings (P31).
 *   template_   of its resource; NULL: only what does not depend on it is checked */
static doorman_status doorman__sets_check(const doorman_permit_item *item, const char *list,
                                          size_t index, const doorman_template *template_,
                                          doorman_error *error) {
    doorman__set_path path = {list, index, 0, "", error};
    if (item->set_count > DOORMAN_LIMITS_MAX || (item->set_count && !item->sets)) {
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "%s[%zu].%s: must be at most 16",
                             list, index, strcmp(list, "item") == 0 ? "set" : "sets");
    }
    for (size_t i = 0; i < item->set_count; i++) {
        const doorman_permit_set *set = &item->sets[i];
        doorman_status status = DOORMAN_OK;
        path.set = i;
        path.limit = "";
        if (!doorman__id_valid(set->limit)) {
            return doorman__set_fail(&path, ": the name of a limit " DOORMAN__ID_RULE);
        }
        path.limit = set->limit;
        for (size_t j = 0; j < i; j++) {
            if (strcmp(item->sets[j].limit, set->limit) != 0) continue;
            return doorman__set_fail(&path, ": the limit was named before");
        }
        status = doorman__set_check_given(&path, &set->figures);
        if (status == DOORMAN_OK && template_) {
            status = doorman__set_check_limit(&path, template_, &set->figures);
        }
        if (status != DOORMAN_OK) return status;
    }
    return DOORMAN_OK;
}

/* Checks an item.
 *   list   the name of the list of items; NULL: the fields of the item are arguments (C10) */
static doorman_status doorman__permit_item_check(const doorman_permit_item *item, const char *list,
                                                 size_t index, doorman_error *error) {
    const doorman__rule rules[] = {
        {!doorman__id_valid(item->resource_id), "resource_id: " DOORMAN__ID_RULE},
        {item->key && !doorman__key_valid(item->key), "key: " DOORMAN__KEY_RULE},
        {!doorman__amount_valid(item->cost), "cost: " DOORMAN__AMOUNT_RULE},
        {item->has_min && !(item->min >= 0 && item->min <= item->cost),
         "min: must be from 0 to the cost"},
        {!item->has_min && !doorman__equal(item->min, 0), "min: needs has_min"},
    };
    size_t next = 0;
    const char *text = DOORMAN__RULE_NEXT(rules, &next);
    if (!text) return DOORMAN_OK;
    if (!list) return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "%s", text);
    return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "%s[%zu].%s", list, index, text);
}

#define DOORMAN__HOLD_RULE "request_id: is needed for a limit of kind CONCURRENCY"
#define DOORMAN__REQUEST_ID_MAX ((UINT64_C(1) << 53) - 1)

/* Returns the first rule that the fields of a request break, without its items. */
static const char *doorman__permit_request_wrong(const doorman_permit_request *request) {
    const doorman__rule rules[] = {
        {!doorman__duration_valid(request->max_wait), "max_wait: " DOORMAN__DURATION_OR_ZERO_RULE},
        {request->client_id && !doorman__id_valid(request->client_id),
         "client_id: " DOORMAN__ID_RULE},
        {request->request_id && !request->client_id, "client_id: is needed with request_id"},
        {request->request_id > DOORMAN__REQUEST_ID_MAX, "request_id: must be at most 2^53 - 1"},
        {!doorman__duration_valid(request->time_to_live),
         "time_to_live: " DOORMAN__DURATION_OR_ZERO_RULE},
        {request->priority < 0 || request->priority > DOORMAN_PRIORITY_MAX,
         "priority: must be from 0 to 15"},
        {!request->has_priority && request->priority, "priority: needs has_priority"},
        {request->share && request->item_count != 1, "share: needs a permit of one item"},
    };
    size_t next = 0;
    return DOORMAN__RULE_NEXT(rules, &next);
}

/* Checks a request, and makes room for its items.
 *   list   see doorman__permit_item_check */
static doorman_status doorman__permits_check(doorman_permits *permits,
                                             const doorman_permit_request *request,
                                             const char *list, doorman_error *error) {
    size_t count = request->item_count, most = permits->options.item_max;
    if (!count || !request->items) {
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "%s: must be a list of items", list);
    }
    if (count > most) {
        return doorman__fail(error, DOORMAN_RESOURCE_EXHAUSTED, "%s: at most %zu, not %zu", list,
                             most, count);
    }
    const char *text = doorman__permit_request_wrong(request);
    if (text) return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "%s", text);
    for (size_t i = 0; i < count; i++) {
        const doorman_permit_item *item = &request->items[i];
        doorman_status status = doorman__permit_item_check(item, list, i, error);
        if (status == DOORMAN_OK && item->set_count) {
            status = doorman__sets_check(
                item, list, i, doorman__permits_template(permits, item->resource_id), error);
        }
        if (status != DOORMAN_OK) return status;
    }
    bool room = doorman__reserve_list(&permits->wants, &permits->want_capacity, count,
                                      sizeof *permits->wants) &&
                doorman__reserve_list(&permits->grants, &permits->grant_capacity, count,
                                      sizeof *permits->grants);
    return room ? DOORMAN_OK : doorman__no_memory(error);
}

/* P2, `equal`: all items get the same whole number of units. Sets the smallest and the largest
 * number that all items accept. Returns false if there is none. */
static bool doorman__wants_equal(doorman__want *wants, size_t count) {
    double least = 0, most = DOORMAN_AMOUNT_MAX;
    for (size_t i = 0; i < count; i++) {
        least = doorman__max(least, wants[i].min);
        most = doorman__min(most, wants[i].cost);
    }
    least = (double)doorman__round_up(least);
    most = (double)(int64_t)most;
    for (size_t i = 0; i < count; i++) {
        wants[i].min = least;
        wants[i].cost = most;
    }
    return least <= most;
}

static doorman_status doorman__wants_read(doorman__want *wants,
                                          const doorman_permit_request *request,
                                          doorman_error *error) {
    for (size_t i = 0; i < request->item_count; i++) {
        const doorman_permit_item *item = &request->items[i];
        wants[i] = (doorman__want){.resource_id = item->resource_id,
                                   .key = item->key ? item->key : "",
                                   .cost = item->cost,
                                   .min = item->has_min ? item->min : item->cost,
                                   .sets = item->sets,
                                   .set_count = item->set_count};
        assert(wants[i].min <= wants[i].cost);
    }
    if (!request->equal || doorman__wants_equal(wants, request->item_count)) return DOORMAN_OK;
    return doorman__fail(error, DOORMAN_INVALID_ARGUMENT,
                         "equal: no whole number is between min and cost of all items");
}

/* Returns the charge of a counter that an earlier item already has, or NULL. */
static doorman__charge *doorman__permits_same_charge(const doorman_permits *permits,
                                                     const doorman__charge *wanted) {
    const doorman__identity *other = &wanted->identity;
    int32_t at = permits->charge_heads[other->hash & 255];
    for (; at >= 0; at = permits->charges[at].next) {
        doorman__charge *charge = &permits->charges[at];
        const doorman__identity *own = &charge->identity;
        if (wanted->lease && doorman__limit_is_leased_rate(wanted->limit)) {
            if (charge->lease == wanted->lease) return charge;
            continue;
        }
        if (charge->slot == wanted->slot && own->tag == other->tag && own->hash == other->hash &&
            strcmp(own->key, other->key) == 0) {
            return charge;
        }
    }
    return NULL;
}

/* Finds the counter of a new charge, and its figures. Returns false if memory runs out. */
static bool doorman__charge_find(doorman_permits *permits, doorman__charge *charge) {
    assert(!charge->counter && charge->slot);
    if (doorman__limit_is_leased_rate(charge->limit)) {
        charge->figures = &charge->limit->figures;
        return true;
    }
    doorman__counter *counter = doorman__slot_find(charge->slot, &charge->identity);
    if (counter && charge->identity.tag != DOORMAN__NO_PLACE &&
        doorman__counter_stale(counter, charge->since)) {
        doorman__permits_drop(permits, charge->slot, counter);
        counter = NULL;
    }
    if (counter) {
        counter = doorman__counter_adapt(permits, charge->slot, charge->limit, counter);
        if (!counter) return false;
        counter->flags |= DOORMAN__IN_USE;
        charge->counter = counter;
        charge->override_ = counter->override_;
    } else {
        charge->override_ = doorman__limit_override(charge->limit, charge->identity.key);
    }
    const doorman_figures *brought =
        counter ? doorman__counter_brought(permits, charge->limit, counter) : NULL;
    charge->figures =
        doorman__key_figures(permits, charge->limit, charge->override_, brought, &charge->identity);
    if (charge->lease) {
        charge->figures = doorman__leased_figures(permits, charge->lease, charge->limit);
    }
    return true;
}

/* P31: lets a charge have the figures that an item brings for its limit, if there are any. If
 * several items do, the last ones count. Returns false if memory runs out. */
static bool doorman__charge_bring(doorman_permits *permits, const doorman__want *want,
                                  doorman__charge *charge) {
    const doorman_permit_set *set = want->sets, *end = set ? set + want->set_count : set;
    while (set != end && strcmp(set->limit, charge->limit->name) != 0) set++;
    if (set == end) return true;
    doorman__set *brought = doorman__set_enter(permits, charge->limit, &set->figures);
    if (!brought) return false;
    doorman__set_leave(permits, charge->set);
    charge->set = brought;
    assert(brought->fits);
    charge->figures = doorman__key_figures(permits, charge->limit, charge->override_, &brought->all,
                                           &charge->identity);
    return true;
}

/* Adds what an item wants of one counter. Returns false if memory runs out.
 *   given   is at the end of the charges, and not counted yet */
static bool doorman__permits_add_charge(doorman_permits *permits, size_t item,
                                        doorman__charge *given) {
    doorman__want *want = &permits->wants[item];
    doorman__charge *charge = item ? doorman__permits_same_charge(permits, given) : NULL;
    if (!charge) {
        charge = given;
        if (!doorman__charge_find(permits, charge)) return false;
        charge->first_item = item;
        int32_t *head = &permits->charge_heads[charge->identity.hash & 255];
        charge->next = *head;
        *head = (int32_t)permits->charge_count++;
    }
    charge->item_count++;
    charge->shadow = charge->shadow && given->shadow; /* only some resources may be in shadow */
    charge->minimum += want->min;
    /* the items of a hold are released one by one, so each of them is rounded up */
    bool holds = charge->limit->kind == DOORMAN_CONCURRENCY;
    uint64_t alone = charge->need + doorman__grains_ceil(want->min);
    charge->need = holds ? alone : doorman__grains_ceil(charge->minimum);
    assert(want->charge_count < DOORMAN_LIMITS_MAX);
    want->charges[want->charge_count++] = (uint32_t)(charge - permits->charges);
    return !want->set_count || doorman__charge_bring(permits, want, charge);
}

/* Adds the charges of all limits that concern an item. Returns false if memory runs out. Charges
 * move only here, between two items. */
static bool doorman__permits_add_charges(doorman_permits *permits, size_t item) {
    const doorman__want *want = &permits->wants[item];
    doorman__place *place = want->place;
    if (!doorman__reserve_list(&permits->charges, &permits->charge_capacity,
                               permits->charge_count + place->slot_count,
                               sizeof *permits->charges)) {
        return false;
    }
    for (size_t i = 0; i < place->slot_count; i++) {
        const doorman_permit_limit *limit = &place->template_->limits[i];
        if (limit->key_count && !doorman__keys_concern(limit->keys, limit->key_count, want->key)) {
            continue;
        }
        doorman__charge *charge = &permits->charges[permits->charge_count];
        memset(charge, 0, sizeof *charge);
        charge->place = place;
        charge->limit = limit;
        charge->slot = place->slots[i].slot;
        charge->since = place->slots[i].since;
        charge->own = doorman__permits_own_slot(permits, limit);
        charge->identity = doorman__limit_identity(permits, limit, place, &want->identity);
        charge->shadow = limit->shadow || place->shadow;
        if (limit->leased) charge->lease = doorman__leased_find(permits, limit, place);
        if (charge->lease && limit->kind != DOORMAN_CONCURRENCY) {
            /* P17: items with one lease share one charge. Refusals and grants of such a charge are
             * counted at the limit of the first item. */
            charge->identity.hash = (uintptr_t)charge->lease / 64;
        }
        if (!doorman__permits_add_charge(permits, item, charge)) return false;
    }
    return true;
}

static doorman__counter *doorman__permits_find_ban(const doorman_permits *permits,
                                                   const doorman__identity *of_key) {
    return doorman__slot_find(doorman__permits_bans(permits), of_key);
}

/* Starts to load the counters of a key into the cache. Shared counters are in the cache anyway. */
static void doorman__place_prefetch(const doorman__place *place, const doorman__identity *of_key,
                                    doorman__ahead what) {
    for (size_t i = 0; i < place->slot_count; i++) {
        const doorman__slot *slot = place->slots[i].slot;
        if (slot->per != DOORMAN_PER_KEY) continue;
        doorman__chains_prefetch(&slot->nodes, (uint32_t)of_key->hash, what);
    }
}

/* Starts to load the counters of a later permit into the cache. */
static void doorman__permits_prefetch(const doorman_permits *permits,
                                      const doorman_permit_request *request, doorman__ahead what) {
    for (size_t i = 0; i < request->item_count; i++) {
        const doorman_permit_item *item = &request->items[i];
        const doorman__place *place = doorman__permits_find_place(permits, item->resource_id);
        if (!place) continue;
        doorman__identity of_key = doorman__identity_of(permits, place, item->key ? item->key : "");
        doorman__place_prefetch(place, &of_key, what);
    }
}

/* Finds the place of an item. Returns false if memory runs out. */
static bool doorman__permits_locate_item(doorman_permits *permits, doorman__want *want) {
    doorman__place *place = doorman__permits_find_place(permits, want->resource_id);
    if (place && !doorman__place_resolve(permits, place)) return false;
    const doorman_template *template_ =
        place ? place->template_ : doorman__permits_template(permits, want->resource_id);
    assert(!want->place && !want->charge_count);
    if (!template_) {
        bool has_template = doorman_config_find(permits->config, want->resource_id) != NULL;
        want->unmatched = true;
        want->rejected = has_template || permits->config->reject_unmatched;
    }
    if (template_) want->open = permits->open_slots[template_ - permits->config->templates];
    if (!place && template_ && template_->limit_count) {
        place = doorman__permits_add_place(permits, want->resource_id);
        if (!place) return false;
    }
    if (!place || want->rejected) return true;
    want->place = place;
    want->identity = doorman__identity_of(permits, place, want->key);
    doorman__place_prefetch(place, &want->identity, DOORMAN__AHEAD_BUCKET);
    return true;
}

/* Finds the charges of all items. A sweep runs while their counters are loaded. The sweep removes
 * no places, because the items point to theirs.
 *   inspects   true: the limits of a banned key are evaluated too */
static bool doorman__permits_prepare(doorman_permits *permits, size_t count, bool inspects) {
    assert(count <= permits->want_capacity);
    permits->charge_count = permits->detail_count = 0;
    /* only a second item looks for the charges of the first one */
    if (count > 1) memset(permits->charge_heads, 0xff, sizeof permits->charge_heads);
    for (size_t i = 0; i < count; i++) {
        if (!doorman__permits_locate_item(permits, &permits->wants[i])) return false;
    }
    doorman__permits_sweep_counters(permits, DOORMAN__CALL_VISITS);
    for (size_t i = 0; i < count; i++) {
        const doorman__want *want = &permits->wants[i];
        if (want->place) doorman__place_prefetch(want->place, &want->identity, DOORMAN__AHEAD_NODE);
    }
    for (size_t i = 0; i < count; i++) {
        doorman__want *want = &permits->wants[i];
        if (!want->place) continue;
        doorman__counter *ban = doorman__permits_find_ban(permits, &want->identity);
        doorman_time until = ban ? doorman__counter_ban(ban)->end.at : 0;
        if (until > permits->at.now) want->ban_rest = until - permits->at.now;
        if (want->ban_rest && !inspects) continue;
        if (!doorman__permits_add_charges(permits, i)) return false;
    }
    return true;
}

/* Ends a call: its counters and places may be removed again. A call adds at most one place for each
 * item, and visits the places of four buckets for each. So refused permits with new resources do
 * not fill the memory. */
static void doorman__permits_end_call(doorman_permits *permits, size_t item_count) {
    assert(permits->charge_count <= permits->charge_capacity);
    for (size_t i = 0; i < permits->charge_count; i++) {
        doorman__counter *counter = permits->charges[i].counter;
        if (counter) counter->flags &= (uint8_t)~DOORMAN__IN_USE;
        doorman__set_leave(permits, permits->charges[i].set);
        permits->charges[i].set = NULL;
    }
    doorman__permits_sweep_places(permits, DOORMAN__CALL_VISITS * item_count);
}

/* ---- permits: one decision, evaluate */

/* Returns the meter of a charge. If there is no counter, the meter has a fresh state in `room`. A
 * leased limit has the state of its lease, or an empty state. */
static doorman__meter doorman__charge_meter(const doorman_permits *permits,
                                            const doorman__charge *charge, uint64_t *room) {
    if (charge->lease && doorman__limit_is_leased_rate(charge->limit)) {
        return doorman__leased_meter(permits, charge->lease, charge->limit, 0, room);
    }
    if (charge->lease && charge->limit->kind == DOORMAN_CONCURRENCY) {
        /* the figures are those of the lease */
        room[0] = charge->counter ? doorman__counter_state(charge->counter)[0] : 0;
        return (doorman__meter){charge->limit, charge->figures, room};
    }
    if (charge->counter) room = doorman__counter_state(charge->counter);
    doorman__meter meter = {charge->limit, charge->figures, room};
    if (charge->counter) return meter;
    doorman__meter_init(&meter, &permits->at);
    return meter;
}

/* Returns the most that a counter grants to one permit. */
static uint64_t doorman__charge_max_cost(const doorman__charge *charge) {
    double most = doorman__figures_most(charge->limit->kind, charge->figures);
    if (charge->limit->leased) most = DOORMAN_AMOUNT_MAX;
    if (charge->limit->has_max_cost) most = doorman__min(most, charge->limit->max_cost);
    return doorman__grains_ceil(doorman__min(most, DOORMAN_AMOUNT_MAX));
}

/* Sets what is left above the minimums, and refuses minimums that the counter can never grant.
 *   saved   what the counter offers without debt */
static void doorman__charge_bound(doorman__charge *charge, uint64_t saved) {
    const uint64_t max_cost = doorman__charge_max_cost(charge);
    const uint64_t most = saved < max_cost ? saved : max_cost;
    charge->spare = most > charge->need ? most - charge->need : 0;
    if (charge->need > max_cost) charge->reason = DOORMAN_REASON_MAX_COST;
}

/* P7, P16: finds how many units a counter of CONCURRENCY offers. It offers nothing while it learns,
 * and while a permit waits that comes before this one. */
static void doorman__charge_evaluate_hold(const doorman_permits *permits, doorman__charge *charge,
                                          doorman_time turn) {
    assert(charge->limit->kind == DOORMAN_CONCURRENCY && !charge->reason);
    uint64_t most = doorman__limit_grains(charge->limit, charge->figures->limit);
    uint64_t held = charge->counter ? doorman__counter_state(charge->counter)[0] : 0;
    const doorman__hold_queue *queue =
        charge->counter ? doorman__counter_queue(charge->counter) : NULL;
    bool learns = doorman__permits_learns(permits, charge->limit);
    if (charge->limit->leased) {
        learns = !doorman__leased_live(permits, charge->lease, charge->limit);
    }
    bool after = queue && doorman__timers_due(&queue->turns) < turn;
    charge->offer = held >= most || learns || after ? 0 : most - held;
    if (charge->need > charge->offer) {
        charge->reason = learns ? DOORMAN_REASON_LEARNING : DOORMAN_REASON_CONCURRENCY;
    }
    doorman__charge_bound(charge, charge->offer);
}

/* P17: finds how many units a lease offers: none if it is not in force. */
static void doorman__charge_evaluate_lease(const doorman_permits *permits,
                                           doorman__charge *charge) {
    assert(doorman__limit_is_leased_rate(charge->limit) && !charge->reason);
    uint64_t room[DOORMAN__STATE_WORDS_MAX];
    const double units = doorman__grains_units(charge->need);
    const bool live = doorman__leased_live(permits, charge->lease, charge->limit);
    if (live) {
        const doorman__meter meter =
            doorman__leased_meter(permits, charge->lease, charge->limit, units, room);
        charge->offer = doorman__meter_saved(&meter, &permits->at);
    }
    if (charge->need > charge->offer) {
        bool full = !charge->lease && doorman__leased_is_full(permits, charge->limit);
        charge->reason = live ? DOORMAN_REASON_RATE : DOORMAN_REASON_LEARNING;
        if (full) charge->reason = DOORMAN_REASON_MAX_KEYS;
    }
    doorman__charge_bound(charge, charge->offer);
}

/* Returns whether a limit refuses permits because its counters are not restored yet. */
static bool doorman__permits_awaits_rows(const doorman_permits *permits,
                                         const doorman_permit_limit *limit) {
    if (permits->changes.rows == DOORMAN_ROWS_READ || !limit->durable) return false;
    return permits->changes.rows == DOORMAN_ROWS_AWAITED || limit->refuse_unread;
}

static void doorman__charge_evaluate(const doorman_permits *permits, doorman__charge *charge,
                                     const doorman__decision *decision) {
    if (doorman__limit_is_leased_rate(charge->limit)) {
        doorman__charge_evaluate_lease(permits, charge);
        return;
    }
    if (charge->limit->kind == DOORMAN_CONCURRENCY) {
        doorman__charge_evaluate_hold(permits, charge, decision->turn);
        return;
    }
    uint64_t room[DOORMAN__STATE_WORDS_MAX];
    const doorman__meter meter = doorman__charge_meter(permits, charge, room);
    charge->offer =
        doorman__meter_offer(&meter, decision->request->max_wait, &charge->wait, &permits->at);
    const bool waits = doorman__permits_awaits_rows(permits, charge->limit);
    if (waits) {
        charge->offer = 0;
        charge->reason =
            DOORMAN_REASON_LEARNING; /* also of a cost of 0: nobody knows what is left */
    } else if (charge->need > charge->offer) {
        charge->reason = DOORMAN_REASON_RATE;
    }
    doorman__charge_bound(charge, waits ? 0 : doorman__meter_saved(&meter, &permits->at));
}

/* Returns how long it takes until the counter of a refused charge offers enough. */
static doorman_time doorman__charge_delay(const doorman_permits *permits,
                                          const doorman__charge *charge, doorman_time max_wait) {
    assert(charge->reason != DOORMAN_NO_REASON);
    if (charge->limit->leased) {
        double units = doorman__grains_units(charge->need);
        if (charge->reason == DOORMAN_REASON_LEARNING) return DOORMAN_SECOND;
        const doorman__rate *rate = &charge->lease->resource->rate;
        doorman_time retry = doorman__rate_retry_after(rate, units, permits->at.now);
        return retry == DOORMAN_NEVER ? DOORMAN_SECOND : retry; /* the lease may have grown then */
    }
    if (charge->reason == DOORMAN_REASON_LEARNING) {
        bool holds = charge->limit->kind == DOORMAN_CONCURRENCY;
        return holds ? charge->own->learns_until - permits->at.now : DOORMAN_SECOND;
    }
    uint64_t room[DOORMAN__STATE_WORDS_MAX];
    const doorman__meter meter = doorman__charge_meter(permits, charge, room);
    return doorman__meter_delay(&meter, charge->need, max_wait, &permits->at);
}

/* Evaluates all charges. Returns whether the permit fits. */
static bool doorman__permits_evaluate(doorman_permits *permits, const doorman__decision *decision) {
    bool fits = true;
    for (size_t i = 0; i < permits->charge_count; i++) {
        doorman__charge *charge = &permits->charges[i];
        doorman__charge_evaluate(permits, charge, decision);
        fits = fits && (!charge->reason || charge->shadow);
    }
    for (size_t i = 0; i < decision->request->item_count; i++) {
        const doorman__want *want = &permits->wants[i];
        fits = fits && !want->rejected && !want->ban_rest;
    }
    return fits;
}

/* ---- permits: one decision, dividing what is offered (P2) */

/* Returns how many more grains a counter counts if an item gets `granted` units instead of its
 * minimum. The sum is rounded up once. The items of a hold are each rounded up. */
static uint64_t doorman__charge_more(const doorman__charge *charge, const doorman__want *want,
                                     double granted) {
    if (charge->limit->kind == DOORMAN_CONCURRENCY) {
        return doorman__grains_ceil(granted) - doorman__grains_ceil(want->min);
    }
    uint64_t all = doorman__grains_ceil(charge->minimum + (granted - want->min));
    return all > charge->granted ? all - charge->granted : 0;
}

/* Returns how much an item gets: all of its cost if that fits. Otherwise it gets its minimum, and
 * as many whole units more as each of its counters can spare. */
static double doorman__want_share(const doorman_permits *permits, const doorman__want *want) {
    bool fits = true;
    uint64_t spare = UINT64_MAX;
    for (size_t i = 0; want->cost > want->min && i < want->charge_count; i++) {
        const doorman__charge *charge = &permits->charges[want->charges[i]];
        if (charge->shadow) continue;
        fits = fits && doorman__charge_more(charge, want, want->cost) <= charge->spare;
        if (charge->spare < spare) spare = charge->spare;
    }
    if (fits) return want->cost;
    const uint64_t whole = spare / (uint64_t)DOORMAN__UNIT;
    return doorman__min(want->cost, want->min + (double)whole);
}

/* Returns how many whole units more than the minimum each item can get, if all items get the
 * same. */
static double doorman__permits_equal_extra(const doorman_permits *permits) {
    const doorman__want *first = &permits->wants[0];
    double extra = first->cost - first->min;
    for (size_t i = 0; i < permits->charge_count; i++) {
        const doorman__charge *charge = &permits->charges[i];
        uint64_t each = charge->spare / charge->item_count / (uint64_t)DOORMAN__UNIT;
        if (!charge->shadow) extra = doorman__min(extra, (double)each);
    }
    return extra;
}

/* Gives an item its units. In shadow, a counter may have fewer to spare. */
static void doorman__want_grant(doorman_permits *permits, doorman__want *want, double granted) {
    const uint64_t most = UINT64_MAX / 2;
    want->granted = granted;
    want->grains = doorman__grains_ceil(granted);
    for (size_t i = 0; i < want->charge_count; i++) {
        doorman__charge *charge = &permits->charges[want->charges[i]];
        charge->units += granted;
        if (!(granted > want->min)) continue;
        uint64_t more = doorman__charge_more(charge, want, granted);
        assert(charge->shadow || charge->spare >= more);
        charge->spare -= more < charge->spare ? more : charge->spare;
        charge->granted = more < most - charge->granted ? charge->granted + more : most;
        charge->minimum += granted - want->min;
    }
}

/* Precondition: the permit fits. */
static void doorman__permits_divide(doorman_permits *permits, size_t count, bool equal) {
    double same = equal ? doorman__permits_equal_extra(permits) : 0;
    for (size_t i = 0; i < permits->charge_count; i++) {
        permits->charges[i].granted = permits->charges[i].need;
    }
    for (size_t i = 0; i < count; i++) {
        doorman__want *want = &permits->wants[i];
        double granted = equal ? want->min + same : doorman__want_share(permits, want);
        doorman__want_grant(permits, want, granted);
        assert(want->granted >= want->min && want->granted <= want->cost);
    }
}

/* ---- permits: one decision, commit */

/* Returns what a charge takes from its counter. In shadow, what would be refused is not charged. */
static uint64_t doorman__charge_amount(const doorman__charge *charge) {
    if (charge->reason) return 0;
    bool cut = charge->shadow && charge->granted > charge->offer;
    return cut ? charge->offer : charge->granted;
}

/* Creates the counter of a charge. Returns OUT_OF_MEMORY, or RESOURCE_EXHAUSTED if a bound forbids
 * it. */
static doorman_status doorman__charge_create(doorman_permits *permits, doorman__charge *charge) {
    const doorman_permit_limit *limit = charge->limit;
    const doorman__identity *identity = &charge->identity;
    size_t words = doorman__state_words(limit->kind, charge->figures);
    size_t bytes = sizeof(doorman__counter) + (words + 2) * sizeof(uint64_t) + identity->key_bytes;
    const uint8_t flags = doorman__limit_flags(limit) | (charge->set ? DOORMAN__HAS_SET : 0);
    assert(!charge->counter && !doorman__limit_is_leased_rate(limit));
    if (!doorman__permits_make_room(permits, charge->slot, limit, bytes)) {
        return DOORMAN_RESOURCE_EXHAUSTED;
    }
    doorman__counter *counter = doorman__permits_add(permits, charge->slot, identity, words, flags);
    if (!counter) return DOORMAN_OUT_OF_MEMORY;
    counter->generation = (uint16_t)permits->generation;
    counter->override_ = charge->override_;
    counter->flags |= DOORMAN__IN_USE | (limit->leased ? DOORMAN__LEASED_UNITS : 0);
    charge->counter = counter;
    charge->created = true;
    const doorman__meter meter = {limit, charge->figures, doorman__counter_state(counter)};
    doorman__meter_init(&meter, &permits->at);
    return DOORMAN_OK;
}

/* Removes the counters that the present call has created. */
static void doorman__permits_undo(doorman_permits *permits) {
    for (size_t i = 0; i < permits->charge_count; i++) {
        doorman__charge *charge = &permits->charges[i];
        assert(!charge->created || charge->counter);
        if (!charge->created) continue;
        charge->counter->flags &= (uint8_t)~DOORMAN__IN_USE;
        doorman__permits_remove(permits, charge->slot, charge->counter);
        charge->counter = NULL;
        charge->created = false;
    }
}

/* P31: gives the counters room for the figures that the caller brings. Returns false if memory runs
 * out. A counter with room that is not used equals one without. */
static bool doorman__permits_reserve_sets(doorman_permits *permits) {
    for (size_t i = 0; i < permits->charge_count; i++) {
        doorman__charge *charge = &permits->charges[i];
        doorman__counter *counter = charge->counter;
        if (!charge->set || !counter || counter->flags & DOORMAN__HAS_SET) continue;
        const uint8_t flags =
            (uint8_t)((counter->flags & DOORMAN__COUNTS_REFUSALS) | DOORMAN__HAS_SET);
        const uint16_t generation = counter->generation, override_ = counter->override_;
        counter->flags &= (uint8_t)~DOORMAN__IN_USE;
        doorman__counter *other = doorman__counter_resize(permits, charge->slot, counter,
                                                          doorman__counter_words(counter), flags);
        if (!other) counter->flags |= DOORMAN__IN_USE;
        if (!other) return false;
        other->flags |= DOORMAN__IN_USE;
        other->generation = generation;
        other->override_ = override_;
        charge->counter = other;
    }
    return true;
}

/* Creates the missing counters. If a bound forbids one, its charge gets a reason. */
static doorman_status doorman__permits_create_counters(doorman_permits *permits, bool *fits) {
    for (size_t i = 0; i < permits->charge_count && *fits; i++) {
        doorman__charge *charge = &permits->charges[i];
        if (charge->counter || !doorman__charge_amount(charge)) continue;
        if (doorman__limit_is_leased_rate(charge->limit)) continue;
        doorman_status status = doorman__charge_create(permits, charge);
        if (status == DOORMAN_RESOURCE_EXHAUSTED) {
            charge->reason = DOORMAN_REASON_MAX_KEYS;
            *fits = charge->shadow;
        } else if (status != DOORMAN_OK) {
            doorman__permits_undo(permits);
            return status;
        }
    }
    const bool lacks_memory = *fits && !doorman__permits_reserve_sets(permits);
    if (!*fits || lacks_memory) doorman__permits_undo(permits);
    return lacks_memory ? DOORMAN_OUT_OF_MEMORY : DOORMAN_OK;
}

static void doorman__charge_event(const doorman_permits *permits, const doorman__charge *charge,
                                  doorman_permit_event_kind kind, double amount) {
    bool shared = charge->identity.tag == DOORMAN__NO_PLACE; /* by several resources */
    const char *resource_id = shared ? NULL : doorman__place_id(charge->place);
    const doorman_permit_event event = {
        kind, resource_id, charge->identity.key, charge->limit->name, charge->reason, amount};
    doorman__permits_event(permits, event);
}

/* Raises an event about an item that no limit has decided on. */
static void doorman__want_event(const doorman_permits *permits, const doorman__want *want,
                                doorman_permit_event_kind kind, doorman_reason reason,
                                double amount) {
    const doorman_permit_event event = {kind, want->resource_id, want->key, NULL, reason, amount};
    doorman__permits_event(permits, event);
}

/* P17: counts what was refused at the lease of a charge, so that its wants grow. */
static void doorman__charge_refuse_lease(doorman_permits *permits, const doorman__charge *charge) {
    bool wanted = charge->reason == DOORMAN_REASON_RATE ||
                  charge->reason == DOORMAN_REASON_LEARNING ||
                  charge->reason == DOORMAN_REASON_CONCURRENCY;
    if (!charge->limit->leased || !wanted) return;
    doorman__leased_refuse(permits, charge->lease, charge->place, charge->limit,
                           doorman__grains_units(charge->need));
}

/* P31: lets the counter of a grant remember the figures that the caller has brought. */
static void doorman__charge_remember(doorman_permits *permits, doorman__charge *charge) {
    doorman_permits_limit *totals = &charge->own->totals;
    if (charge->granted) totals->set_granted++;
    if (!charge->counter) return; /* an item of cost 0 creates none */
    const doorman__set *before = doorman__counter_set(charge->counter);
    if (before && before != charge->set) totals->set_changes++;
    if (before != charge->set) doorman__counter_remember(permits, charge->counter, charge->set);
}

/* Charges a counter, and counts the grant. Returns whether a warning is due. */
static bool doorman__charge_commit(doorman_permits *permits, doorman__charge *charge) {
    uint64_t amount = doorman__charge_amount(charge);
    assert(charge->shadow || !charge->reason);
    doorman_permits_limit *totals = &charge->own->totals;
    if (charge->created) doorman__charge_event(permits, charge, DOORMAN_PERMIT_KEY_CREATED, 0);
    if (charge->reason) {
        totals->shadow_refused++;
        doorman__charge_event(permits, charge, DOORMAN_PERMIT_REFUSED, 0);
        doorman__charge_refuse_lease(permits, charge);
        return false;
    }
    if (charge->granted) totals->granted++;
    totals->granted_units += charge->units;
    if (charge->set) doorman__charge_remember(permits, charge);
    if (!amount) return false;
    if (doorman__limit_is_leased_rate(charge->limit)) {
        doorman__leased_charge(permits, charge->lease, doorman__grains_units(amount));
        return false;
    }
    const doorman__meter meter = {charge->limit, charge->figures,
                                  doorman__counter_state(charge->counter)};
    charge->tier_entered = doorman__meter_charge(&meter, (int64_t)amount, &permits->at);
    if (charge->limit->durable) doorman__permits_mark(permits, charge->slot, charge->counter);
    if (charge->tier_entered) {
        doorman__charge_event(permits, charge, DOORMAN_PERMIT_TIER_ENTERED,
                              (double)charge->tier_entered);
    }
    if (charge->lease) {
        doorman__leased_note_held(permits, charge->lease, charge->place, meter.state[0]);
    }
    const double warn_at = charge->limit->warn_at;
    if (!(warn_at > 0) || charge->shadow) return false;
    double most = doorman__figures_most(charge->limit->kind, charge->figures);
    double left = doorman__grains_units(doorman__meter_saved(&meter, &permits->at));
    if (charge->limit->kind == DOORMAN_TOKEN_BUCKET) {
        left = doorman__level_at(charge->figures, meter.state, permits->at.now);
        left += charge->figures->size > 0 ? 0 : most;
        most = charge->figures->size > 0 ? charge->figures->size : most;
    }
    return most - left > warn_at * most;
}

/* ---- permits: one decision, refusals and bans */

/* Evicts a counter of the limit with the most counters, among those that may evict. */
static bool doorman__permits_evict_largest(doorman_permits *permits) {
    doorman__slot *largest = NULL;
    for (size_t i = 1; i < permits->slot_count; i++) {
        doorman__slot *slot = permits->slots[i];
        bool may = slot->kind != DOORMAN_CONCURRENCY && slot->limit && !slot->limit->refuse_new;
        bool larger = slot->nodes.count > (largest ? largest->nodes.count : 0);
        if (may && larger) largest = slot;
    }
    return largest && doorman__permits_evict(permits, largest);
}

/* Makes room for one more ban. Returns false if a bound forbids it (P20).
 *   slot   of the limit that bans; or the slot of the bans, if an administrator does */
static bool doorman__permits_make_ban_room(doorman_permits *permits, doorman__slot *slot,
                                           size_t bytes) {
    const size_t all_max = permits->options.counter_max;
    const size_t bytes_max = permits->options.memory_max / 2;
    doorman__slot *bans = doorman__permits_bans(permits);
    assert(permits->ban_bytes <= permits->node_bytes);
    for (int i = 0; i < 64; i++) {
        bool own_full = slot->limit && slot->bans.count >= slot->limit->max_keys;
        bool full = bans->nodes.count >= all_max || bytes > bytes_max ||
                    permits->ban_bytes > bytes_max - bytes;
        bool has_memory = doorman__permits_has_memory(permits, bytes);
        if (!own_full && !full && has_memory) return true;
        bool done = own_full && doorman__permits_evict_ban(permits, slot);
        if (!done && !full && !own_full) done = doorman__permits_evict_largest(permits);
        if (!done) done = doorman__permits_evict_any_ban(permits);
        if (!done && slot == bans) done = doorman__permits_evict_ban(permits, slot);
        if (!done) return false;
    }
    return false;
}

/* Starts a ban, or changes its end. Returns OK, OUT_OF_MEMORY, or RESOURCE_EXHAUSTED if a bound
 * forbids it. A ban in force that a limit makes longer stays with the limit, or the administrator,
 * that has set it.
 *   slot   as in doorman__permits_make_ban_room */
static doorman_status doorman__permits_start_ban(doorman_permits *permits, doorman__slot *slot,
                                                 const doorman__identity *of_key,
                                                 doorman_time duration) {
    doorman__slot *bans = doorman__permits_bans(permits);
    assert(duration > 0);
    doorman__counter *ban = doorman__permits_find_ban(permits, of_key);
    bool in_force = ban && doorman__counter_ban(ban)->end.at > permits->at.now;
    if (in_force && slot != bans) slot = doorman__counter_ban(ban)->slot;
    if (!ban || doorman__counter_ban(ban)->slot != slot) {
        size_t bytes = doorman__ban_bytes(of_key->key_bytes);
        if (!doorman__permits_make_ban_room(permits, slot, bytes)) {
            return DOORMAN_RESOURCE_EXHAUSTED;
        }
        if (!doorman__timers_reserve(&slot->bans, slot->bans.count + 1)) {
            return DOORMAN_OUT_OF_MEMORY;
        }
        ban = doorman__permits_find_ban(permits, of_key); /* it may have been evicted */
        if (!ban) ban = doorman__permits_add(permits, bans, of_key, DOORMAN__BAN_WORDS, 0);
        if (!ban) return DOORMAN_OUT_OF_MEMORY;
    }
    doorman_time end = doorman__after(permits->at.now, duration);
    doorman__ban_enter(doorman__counter_ban(ban), slot, end);
    if (slot == bans || (slot->limit && slot->limit->durable)) {
        doorman__permits_mark(permits, bans, ban);
    }
    return DOORMAN_OK;
}

/* Counts a refusal for the ban of a limit, and bans the key when the count is complete. Returns the
 * duration of the ban if it begins now, otherwise 0. */
static doorman_time doorman__charge_count_refusal(doorman_permits *permits,
                                                  doorman__charge *charge) {
    const doorman_ban *ban = &charge->limit->ban;
    doorman_time now = permits->at.now;
    if (!ban->refusals || charge->reason != DOORMAN_REASON_RATE) return 0;
    if (!charge->counter && doorman__charge_create(permits, charge) != DOORMAN_OK) return 0;
    if (charge->created) doorman__charge_event(permits, charge, DOORMAN_PERMIT_KEY_CREATED, 0);
    uint64_t *count = doorman__counter_refusals(charge->counter);
    if (!doorman__counter_counts(charge->counter, charge->limit, now)) {
        count[0] = 0;
        count[1] = (uint64_t)now;
    }
    count[0]++;
    if (count[0] < ban->refusals) return 0;
    /* if two limits ban a key at the same time, the longer ban is in force */
    doorman__counter *other = doorman__permits_find_ban(permits, &charge->identity);
    doorman_time end = other ? doorman__counter_ban(other)->end.at : now;
    doorman_time duration = doorman__later(ban->duration, end - now);
    doorman_status status =
        doorman__permits_start_ban(permits, charge->own, &charge->identity, duration);
    if (status != DOORMAN_OK) return 0; /* there is no room; the next refusal tries again */
    count[0] = 0;
    doorman__charge_event(permits, charge, DOORMAN_PERMIT_BANNED, (double)duration / 1e9);
    return duration;
}

/* Makes room for the text of an entry of a sketch.
 *   bytes   of the text, with two NULs */
static bool doorman__permits_reserve_text(doorman_permits *permits, doorman__top_entry *entry,
                                          size_t bytes) {
    if (bytes <= entry->text_bytes) return true;
    bytes = (bytes + 31) / 32 * 32;
    assert(bytes <= UINT16_MAX);
    size_t more = bytes - entry->text_bytes;
    if (!doorman__permits_has_memory(permits, more)) return false;
    char *text = (char *)DOORMAN_REALLOC(entry->text, bytes);
    if (!text) return false;
    entry->text = text;
    entry->text_bytes = (uint16_t)bytes;
    permits->top_bytes += more;
    return true;
}

/* Returns the entry of a key, which is that of another key if it has none yet. Returns
 * DOORMAN__TOP_NONE if there is no memory. */
static size_t doorman__permits_top_entry(doorman_permits *permits, doorman__top *top,
                                         const char *resource_id, const doorman__identity *key) {
    size_t index = doorman__top_find(top, key->hash);
    if (index != DOORMAN__TOP_NONE) return index;
    index = doorman__top_rarest(top);
    const size_t bytes = strlen(resource_id) + key->key_bytes + 2;
    if (!doorman__permits_reserve_text(permits, &top->entries[index], bytes)) {
        return DOORMAN__TOP_NONE;
    }
    doorman__top_replace(top, index, resource_id, key);
    return index;
}

/* Counts a decision on the key of an item in a sketch of a limit. */
static void doorman__permits_count_key(doorman_permits *permits, doorman__slot *slot,
                                       doorman_top_kind kind, const doorman__want *want) {
    assert(kind < DOORMAN_TOP_COUNT);
    doorman__top *top = slot->tops[kind];
    if (!top) {
        if (!doorman__permits_has_memory(permits, sizeof *top)) return;
        top = slot->tops[kind] = doorman__top_create(permits->at.now);
        if (!top) return;
        permits->top_bytes += sizeof *top;
    }
    doorman__top_age(top, permits->at.now);
    size_t index = doorman__permits_top_entry(permits, top, want->resource_id, &want->identity);
    if (index == DOORMAN__TOP_NONE) return;
    top->counts[index] += 1;
    top->entries[index].units += kind == DOORMAN_TOP_GRANTED ? want->granted : want->cost;
}

/* Adds the units of a key of the present slice to a window. */
static void doorman__permits_add_usage(doorman_permits *permits, doorman__units_window *sum,
                                       const doorman__top_entry *from, double units) {
    const size_t id_bytes = strlen(from->text) + 1;
    const char *text = from->text + id_bytes;
    const doorman__identity key = {.key = text, .key_bytes = strlen(text), .hash = from->hash};
    size_t index = doorman__permits_top_entry(permits, &sum->top, from->text, &key);
    if (index == DOORMAN__TOP_NONE) {
        sum->missing += units;
    } else {
        sum->top.counts[index] += units;
    }
}

/* Adds the present slice to the windows, and begins it again. */
static void doorman__permits_merge_usage(doorman_permits *permits, doorman__units_top *usage) {
    const double least = doorman__top_least(&usage->part);
    if (!(usage->total > 0)) return;
    for (size_t i = 0; i < DOORMAN_USAGE_WINDOW_COUNT; i++) {
        doorman__units_window *sum = &usage->sums[i];
        for (size_t j = 0; j < DOORMAN__TOP_ENTRIES; j++) {
            const double units = usage->part.counts[j] - least;
            if (units > 0) {
                doorman__permits_add_usage(permits, sum, &usage->part.entries[j], units);
            }
        }
        sum->missing += least;
        sum->total += usage->total;
    }
    doorman__top_clear(&usage->part);
    usage->total = 0;
}

/* Moves a limit to the present slice. */
static void doorman__permits_roll_usage(doorman_permits *permits, doorman__units_top *usage) {
    const uint64_t slice = (uint64_t)(permits->at.now / DOORMAN__UNITS_SLICE);
    if (slice <= usage->slice) return;
    doorman__permits_merge_usage(permits, usage);
    for (int i = 0; i < DOORMAN_USAGE_WINDOW_COUNT; i++) {
        double factor = doorman__units_top_factor((doorman_usage_window)i, slice - usage->slice);
        doorman__units_window_age(&usage->sums[i], factor);
    }
    usage->slice = slice;
}

/* Counts the units that an item got of a limit. */
static void doorman__permits_count_usage(doorman_permits *permits, doorman__slot *slot,
                                         const doorman__want *want) {
    doorman__units_top *usage = slot->usage;
    if (!usage) { /* counters and bans need the memory more */
        const size_t used = permits->node_bytes + permits->top_bytes;
        if (used + sizeof *usage > permits->options.memory_max / 4) return;
        usage = slot->usage = doorman__units_top_create(permits->at.now);
        if (!usage) return;
        permits->top_bytes += sizeof *usage;
    }
    doorman__permits_roll_usage(permits, usage);
    size_t index =
        doorman__permits_top_entry(permits, &usage->part, want->resource_id, &want->identity);
    if (index == DOORMAN__TOP_NONE) return;
    usage->part.counts[index] += want->granted;
    usage->total += want->granted;
}

/* Counts a decision on the keys of all items. */
static void doorman__permits_count_keys(doorman_permits *permits, size_t count, bool granted) {
    for (size_t i = 0; i < count; i++) {
        const doorman__want *want = &permits->wants[i];
        if (want->unmatched) { /* the resource may be a typing error */
            permits->unmatched++;
            doorman__want_event(permits, want, DOORMAN_PERMIT_UNMATCHED, DOORMAN_NO_REASON,
                                want->cost);
        }
        for (size_t j = 0; j < want->charge_count; j++) {
            const doorman__charge *charge = &permits->charges[want->charges[j]];
            doorman_top_kind kind = charge->reason ? DOORMAN_TOP_REFUSED : DOORMAN_TOP_GRANTED;
            bool counts = charge->reason || (granted && want->granted > 0);
            if (counts) doorman__permits_count_key(permits, charge->own, kind, want);
            bool uses = counts && kind == DOORMAN_TOP_GRANTED;
            if (uses) doorman__permits_count_usage(permits, charge->own, want);
        }
    }
}

/* Counts what an item got, if the list of limits is empty. */
static void doorman__want_count_open(doorman_permits *permits, doorman__want *want) {
    if (!want->open || !(want->granted > 0)) return;
    want->open->totals.granted++;
    want->open->totals.granted_units += want->granted;
    if (!want->place) {
        const doorman__place none = {.hash =
                                         doorman__hash(permits->options.seed, want->resource_id),
                                     .node = {.tag = DOORMAN__NO_PLACE}};
        want->identity = doorman__identity_of(permits, &none, want->key);
    }
    doorman__permits_count_key(permits, want->open, DOORMAN_TOP_GRANTED, want);
    doorman__permits_count_usage(permits, want->open, want);
}

/* Counts the refusal of an item that is banned, also at all limits that can ban. */
static void doorman__want_count_ban(doorman_permits *permits, const doorman__want *want) {
    assert(want->place && want->ban_rest > 0);
    const doorman_template *template_ = want->place->template_;
    permits->banned++;
    for (size_t i = 0; template_ && i < template_->limit_count; i++) {
        const doorman_permit_limit *limit = &template_->limits[i];
        doorman__slot *own = doorman__permits_own_slot(permits, limit);
        if (!limit->ban.refusals) continue;
        own->totals.refused[DOORMAN_REASON_BANNED]++;
        doorman__permits_count_key(permits, own, DOORMAN_TOP_REFUSED, want);
    }
    doorman__want_event(permits, want, DOORMAN_PERMIT_REFUSED, DOORMAN_REASON_BANNED, 0);
}

/* A candidate for the refusal that is named (P4). */
typedef struct doorman__refusal {
    doorman_reason reason;
    size_t item;
    const char *limit;
    doorman_time delay;
} doorman__refusal;

static bool doorman__reason_waits(doorman_reason reason) {
    return reason == DOORMAN_REASON_RATE || reason == DOORMAN_REASON_BANNED ||
           reason == DOORMAN_REASON_LEARNING;
}

/* Returns whether a permit with this reason lacked units that holds have. When these units are
 * released is not known. */
static bool doorman__reason_holds(doorman_reason reason) {
    return reason == DOORMAN_REASON_CONCURRENCY || reason == DOORMAN_REASON_QUEUE_FULL ||
           reason == DOORMAN_REASON_TIMED_OUT || reason == DOORMAN_REASON_SHARED;
}

/* Returns 0 for missing units of holds, 1 if waiting helps, and 2 if it does not help. */
static int doorman__reason_rank(doorman_reason reason) {
    return doorman__reason_holds(reason) ? 0 : doorman__reason_waits(reason) ? 1 : 2;
}

/* Keeps the one of two refusals that the permit names. A refusal that waiting does not help comes
 * first, then the longest one, and last one that lacks units of holds. */
static void doorman__refusal_add(doorman__refusal *best, doorman__refusal given) {
    int best_rank = doorman__reason_rank(best->reason), rank = doorman__reason_rank(given.reason);
    bool better = rank > best_rank || (rank == 1 && best_rank == 1 && given.delay > best->delay);
    assert(given.reason != DOORMAN_NO_REASON);
    if (best->reason == DOORMAN_NO_REASON || better) *best = given;
}

/* Finds the refusal that is named. */
static doorman__refusal doorman__permits_worst(const doorman_permits *permits, size_t count,
                                               doorman_time max_wait) {
    doorman__refusal worst = {DOORMAN_NO_REASON, 0, NULL, 0};
    for (size_t i = 0; i < count; i++) {
        const doorman__want *want = &permits->wants[i];
        doorman__refusal unmatched = {DOORMAN_REASON_UNMATCHED, i, NULL, 0};
        doorman__refusal banned = {DOORMAN_REASON_BANNED, i, NULL, want->ban_rest};
        if (want->rejected) doorman__refusal_add(&worst, unmatched);
        if (want->ban_rest) doorman__refusal_add(&worst, banned);
    }
    for (size_t i = 0; i < permits->charge_count; i++) {
        const doorman__charge *charge = &permits->charges[i];
        if (!charge->reason || charge->shadow) continue;
        doorman__refusal given = {charge->reason, charge->first_item, charge->limit->name, 0};
        bool waits = doorman__reason_waits(charge->reason);
        if (waits) given.delay = doorman__charge_delay(permits, charge, max_wait);
        doorman__refusal_add(&worst, given);
    }
    assert(worst.reason != DOORMAN_NO_REASON);
    return worst;
}

/* P5: for how long the caller may refuse by itself. */
static doorman_time doorman__permits_valid_for(const doorman_permits *permits, size_t count,
                                               const doorman__refusal *worst) {
    assert(worst->reason != DOORMAN_NO_REASON);
    const bool tells_time = doorman__reason_waits(worst->reason);
    if (count > 1) return 0;
    for (size_t i = 0; tells_time && i < permits->charge_count; i++) {
        const doorman__charge *charge = &permits->charges[i];
        bool counts = charge->limit->ban.refusals && charge->reason == DOORMAN_REASON_RATE;
        if (counts && !charge->shadow) return 0;
    }
    if (doorman__reason_holds(worst->reason)) return 0;
    bool soon = worst->reason == DOORMAN_REASON_MAX_HOLDS;
    if (!tells_time) return soon ? 0 : DOORMAN_SECOND;
    return doorman__earlier(worst->delay, DOORMAN_SECOND);
}

/* Counts all refusals of a permit, and names one. */
static void doorman__permits_refuse(doorman_permits *permits, size_t count, doorman_time max_wait,
                                    bool inspects, doorman_permit *out) {
    doorman__refusal worst = doorman__permits_worst(permits, count, max_wait);
    out->reason = worst.reason;
    out->item_index = worst.item;
    out->limit = worst.limit;
    out->has_retry_after = doorman__reason_waits(worst.reason);
    out->retry_after = worst.delay;
    out->valid_for = doorman__permits_valid_for(permits, count, &worst);
    for (size_t i = 0; i < permits->charge_count && !inspects; i++) {
        doorman__charge *charge = &permits->charges[i];
        if (!charge->reason) continue;
        doorman_permits_limit *totals = &charge->own->totals;
        if (charge->shadow) totals->shadow_refused++;
        if (!charge->shadow) totals->refused[charge->reason]++;
        doorman__charge_event(permits, charge, DOORMAN_PERMIT_REFUSED, 0);
        doorman__charge_refuse_lease(permits, charge);
        if (charge->shadow || !out->has_retry_after) continue; /* no ban counts it (P4) */
        doorman_time ban = doorman__charge_count_refusal(permits, charge);
        if (ban <= out->retry_after) continue;
        out->reason = DOORMAN_REASON_RATE; /* the ban begins now, and lasts longest */
        out->item_index = charge->first_item;
        out->limit = charge->limit->name;
        out->retry_after = ban;
    }
    for (size_t i = 0; i < count && !inspects; i++) {
        const doorman__want *want = &permits->wants[i];
        if (want->ban_rest) doorman__want_count_ban(permits, want);
        if (!want->rejected) continue;
        doorman__want_event(permits, want, DOORMAN_PERMIT_REFUSED, DOORMAN_REASON_UNMATCHED, 0);
    }
}

/* ---- permits: one decision, the result */

/* Describes what the items got. An inspection raises no events. */
static void doorman__permits_fill_grants(doorman_permits *permits, size_t count, bool inspects,
                                         doorman_permit *out) {
    assert(count <= permits->grant_capacity);
    for (size_t i = 0; i < count; i++) {
        const doorman__want *want = &permits->wants[i];
        doorman_permit_grant *grant = &permits->grants[i];
        *grant = (doorman_permit_grant){.granted = want->granted};
        for (size_t j = 0; j < want->charge_count; j++) {
            const doorman__charge *charge = &permits->charges[want->charges[j]];
            if (charge->shadow) continue;
            uint64_t room[DOORMAN__STATE_WORDS_MAX];
            const doorman__meter meter = doorman__charge_meter(permits, charge, room);
            double left = doorman__meter_left(&meter, &permits->at);
            if (grant->limit && left >= grant->remaining) continue;
            grant->limit = charge->limit->name;
            grant->remaining = left;
            grant->reset_after = doorman__meter_reset_after(&meter, &permits->at);
        }
        const doorman_permit_event event = {.kind = DOORMAN_PERMIT_GRANTED,
                                            .resource_id = want->resource_id,
                                            .key = want->key,
                                            .limit = grant->limit,
                                            .amount = grant->granted};
        if (!inspects) doorman__permits_event(permits, event);
    }
    out->items = permits->grants;
    out->item_count = count;
}

/* Returns the time in which all units of a limit come back; 0 for TIERS and CONCURRENCY. */
static doorman_time doorman__figures_window(doorman_limit_kind kind, const doorman_figures *figures,
                                            doorman_time epoch) {
    if (kind == DOORMAN_TOKEN_BUCKET) return doorman__gain_time(figures, figures->size);
    if (kind != DOORMAN_FIXED_WINDOW) return figures->window;
    const doorman__span span = doorman__span_at(figures, epoch);
    return span.end - span.begin;
}

static doorman_permit_detail doorman__charge_detail(const doorman_permits *permits,
                                                    const doorman__charge *charge, size_t item) {
    uint64_t room[DOORMAN__STATE_WORDS_MAX];
    const doorman__meter meter = doorman__charge_meter(permits, charge, room);
    const doorman_figures *figures = meter.figures;
    const doorman_limit_kind kind = charge->limit->kind;
    const double saved = doorman__meter_left(&meter, &permits->at);
    doorman_permit_detail detail = {
        .item_index = item,
        .limit = charge->limit->name,
        .kind = kind,
        .most = doorman__figures_most(kind, figures),
        .remaining = saved,
        .reset_after = doorman__meter_reset_after(&meter, &permits->at),
        .more_after = doorman__meter_more_after(&meter, &permits->at),
        .window = doorman__figures_window(kind, figures, permits->at.epoch),
        .shadow = charge->shadow,
    };
    if (kind == DOORMAN_TOKEN_BUCKET) detail.most = figures->size;
    detail.used = doorman__max(0, detail.most - saved);
    if (kind == DOORMAN_TOKEN_BUCKET) {
        detail.used = figures->size - doorman__level_at(figures, meter.state, permits->at.now);
    } else if (kind == DOORMAN_CONCURRENCY) {
        detail.used = doorman__grains_units(meter.state[0]);
    } else if (kind == DOORMAN_TIERS) {
        detail.tier = (size_t)doorman__tiers_current(figures, meter.state, permits->at.now) + 1;
    }
    detail.moved_up = charge->tier_entered > 0;
    detail.refused = charge->reason != DOORMAN_NO_REASON;
    if (charge->limit->plan_count && charge->own->overridden & DOORMAN__BY_PLAN) {
        const doorman_plan *plan = doorman__counter_plan(permits, charge->own, charge->limit,
                                                         charge->place, &charge->identity);
        if (plan) detail.plan = plan->name;
    }
    bool counts =
        charge->counter && doorman__counter_counts(charge->counter, charge->limit, permits->at.now);
    if (counts) detail.refusals = (uint32_t)doorman__counter_refusals(charge->counter)[0];
    const doorman__set *set = charge->set;
    if (!set && charge->counter) set = doorman__counter_set(charge->counter);
    detail.set = set && figures == &set->all;
    return detail;
}

static bool doorman__permits_reserve_details(doorman_permits *permits, size_t count) {
    size_t all = 0;
    for (size_t i = 0; i < count; i++) all += permits->wants[i].charge_count;
    return doorman__reserve_list(&permits->details, &permits->detail_capacity, all,
                                 sizeof *permits->details);
}

static void doorman__permits_fill_details(doorman_permits *permits, size_t count,
                                          doorman_permit *out) {
    size_t next = 0;
    for (size_t i = 0; i < count; i++) {
        const doorman__want *want = &permits->wants[i];
        for (size_t j = 0; j < want->charge_count; j++) {
            const doorman__charge *charge = &permits->charges[want->charges[j]];
            permits->details[next++] = doorman__charge_detail(permits, charge, i);
        }
    }
    assert(next <= permits->detail_capacity);
    out->details = permits->details;
    out->detail_count = next;
}

/* ---- >>holds -------------------------------------------------------------------------------- */
/*
 * A hold is a granted permit with units of CONCURRENCY. One object is a permit that waits, then a
 * hold, and so on:
 *
 *     state        its units          event                               next state
 *     WAITING      none               fits, and all other limits agree    HELD
 *                                     refused, too late, cancelled        (freed)
 *     HELD         of its owner       renewed, or released in part        HELD
 *                                     released, moved in full, end        (freed)
 *     TRANSFERRED  of nobody          seized, end                         SPENT
 *     SPENT        none               its source is freed                 (freed)
 *
 * A transfer whose source is freed already becomes (freed) instead of SPENT.
 *
 * A hold has a list of takes. A take points to a counter. It says how many units the counter counts
 * for this hold, and for which item. These are invariants:
 *     units    the units of a counter are the sum of the takes that point to it
 *     bound    no call raises the units of a counter above the limit. Exceptions: a limit in
 *              shadow, and a changed configuration, which counts what is held already
 *     queue    if a queue is not ready, its first permit does not fit its counter
 *     ends     each hold with units has an end, and each waiting permit has one too. All of them
 *              are in one heap
 *
 * P7 A permit that lacks only units of CONCURRENCY waits in the queue of the first counter that
 *    lacks room. A queue is ordered by priority, then by arrival. A permit fits a counter only if
 *    no permit waits there that comes before it. When the first permit of a queue fits its counter,
 *    the permit is decided again. It is then granted, refused, or moved to another queue. It keeps
 *    its arrival when it moves. Rates are charged with the grant. One call moves at most 64 permits
 *    and decides on at most 256, or 1,000 in an update. A release does so twice: before and after
 *    its units come back. The remaining queues stay ready, and no new permit overtakes them.
 *       The time in queues, plus the wait of P3, is at most max_wait of the permit. A permit leaves
 *    the queue of a limit at the latest max_wait of this limit after its arrival. A wait has ended
 *    when now >= its end.
 *       If memory runs out while a queue is served, an update tries again after one second.
 * P8 The end of a hold is the time of the decision, plus (1 + drift) times its time to live. An end
 *    never moves back. A release says what is kept, and not what comes back. So a release that
 *    arrives again, or after a later one, has no effect.
 * Repeats (P9). A repeated acquire with the same client_id, request_id and items renews the hold.
 *    If the permit waits, the repeat takes over its position, priority, `share` and `equal`: the
 *    earlier ticket is refused as REPEATED, and the wait counts from the repeat. So the client can
 *    compute the end of the hold from the time at which it sent the repeat. A repeat on another
 *    connection that already has connection_waiting_max waiting permits is refused as QUEUE_FULL.
 *    The earlier permit continues to wait. A repeat that may not wait ends the wait, and is decided
 *    like a new permit. Other items with the same request_id are refused as REPEATED, and so is a
 *    permit with the request_id of a transfer. A request_id that is released cancels a waiting
 *    permit, which is then refused as TIMED_OUT.
 *       A transfer stays known after it was used, for as long as its source is held. Otherwise a
 *    late copy of the request would take units from the source a second time. The client that holds
 *    the source would still use these units.
 * P10 A full release of a hold refuses the waiting permits of the same resource and key that have
 *    `share`, as SHARED: the work is done, and its result is there. An end, a transfer and a
 *    partial release do not. A hold that ends has lost its holder, and the work is perhaps not
 *    done. So the next permit that waits is granted, and its caller does the work. The release of
 *    that hold answers the other permits.
 * P11 A transfer is counted until it ends. It can only be seized. A repeated seizure by the same
 *    client returns the same hold.
 * Configurations (P15). A changed configuration counts all holds again, in new counters. So the
 *    call costs O(holds). Bounds on counters do not apply, and there are no events. Waiting permits
 *    enter the queue of the first limit that concerns them, and are decided again.
 * Learning (P16). A limit learns for as long as a hold of the predecessor that concerns it may
 *    last: its longest time to live in any configuration so far, with the drift. Meanwhile it
 *    refuses new permits as LEARNING, or lets them wait. A renewal of an unknown hold is believed,
 *    within what is free, if all limits of CONCURRENCY that concern it learn: a hold ends with the
 *    shortest time to live of its limits.
 *       A change of the configuration can let another limit count a hold. So if the predecessor
 *    ended soon after such a change, all limits learn for the longest time to live of all limits.
 *    Soon means within this time. If the configuration changes while a limit learns, all limits
 *    learn until the last of them has learned. No configuration shortens the learning.
 * Bounds (P19). A client has at most client_hold_max holds and transfers, used transfers included.
 * Many ends at once. A call ends at most 256 holds and waits, an update 1,000. The rest stays due.
 *    If an acquire lacks units, it also ends up to 4,096 of the rest, 256 at a time, and stops when
 *    it fits. So 4,352 holds may end together, and the next acquire sees all their units. If more
 *    end, an acquire may be refused until updates have ended them. No call takes more than some
 *    milliseconds.
 */

/* ---- holds: clients and connections */

static doorman__owner *doorman__owner_find(const doorman_permits *permits, const void *name,
                                           size_t bytes, bool connection) {
    const doorman__chains *owners = &permits->holds.owners;
    uint32_t hash =
        (uint32_t)doorman__hash_bytes(permits->options.seed, (const unsigned char *)name, bytes);
    doorman__chain *node = doorman__chains_first(owners, hash);
    for (; node; node = node->next) {
        doorman__owner *owner = (doorman__owner *)(void *)node;
        bool same = node->hash == hash && node->tag == connection && owner->name_bytes == bytes;
        if (same && memcmp(owner + 1, name, bytes) == 0) return owner;
    }
    return NULL;
}

/* Finds or adds an owner. Returns NULL if memory runs out. */
static doorman__owner *doorman__owner_get(doorman_permits *permits, const void *name, size_t bytes,
                                          bool connection) {
    doorman__owner *owner = doorman__owner_find(permits, name, bytes, connection);
    if (owner) return owner;
    assert(bytes > 0 && bytes <= DOORMAN_ID_BYTES_MAX);
    owner = (doorman__owner *)doorman__zalloc(sizeof *owner + bytes + 1);
    if (!owner) return NULL;
    memcpy(owner + 1, name, bytes);
    owner->name_bytes = bytes;
    owner->node.tag = connection;
    uint32_t hash =
        (uint32_t)doorman__hash_bytes(permits->options.seed, (const unsigned char *)name, bytes);
    if (!doorman__chains_add(&permits->holds.owners, &owner->node, hash)) {
        DOORMAN_FREE(owner);
        return NULL;
    }
    permits->node_bytes += sizeof *owner + bytes + 1;
    return owner;
}

/* Frees an owner that has nothing. NULL has no effect. */
static void doorman__owner_leave(doorman_permits *permits, doorman__owner *owner) {
    if (!owner || owner->hold_count || owner->wait_count) return;
    assert(permits->node_bytes >= sizeof *owner + owner->name_bytes + 1);
    permits->node_bytes -= sizeof *owner + owner->name_bytes + 1;
    doorman__chains_remove(&permits->holds.owners, &owner->node);
    DOORMAN_FREE(owner);
}

static const char *doorman__owner_name(const doorman__owner *owner) {
    return (const char *)(owner + 1);
}

/* ---- holds: finding them */

static uint32_t doorman__hold_id_hash(const doorman_permits *permits, uint64_t id) {
    return (uint32_t)doorman__hash_number(permits->options.seed, id);
}

static uint32_t doorman__hold_request_hash(const doorman_permits *permits,
                                           const doorman__owner *owner, uint64_t request_id) {
    uint64_t hash = doorman__hash_number(permits->options.seed, request_id);
    return (uint32_t)hash + 3 * owner->node.hash;
}

static doorman__hold *doorman__holds_find(const doorman_permits *permits, uint64_t id) {
    uint32_t hash = doorman__hold_id_hash(permits, id);
    doorman__chain *node = doorman__chains_first(&permits->holds.by_id, hash);
    for (; node; node = node->next) {
        doorman__hold *hold = DOORMAN__WITHIN(doorman__hold, by_id, node);
        if (node->hash == hash && hold->id == id) return hold;
    }
    return NULL;
}

static doorman__hold *doorman__holds_find_request(const doorman_permits *permits,
                                                  const char *client_id, uint64_t request_id) {
    if (!client_id || !request_id) return NULL;
    const doorman__owner *owner = doorman__owner_find(permits, client_id, strlen(client_id), false);
    if (!owner) return NULL;
    uint32_t hash = doorman__hold_request_hash(permits, owner, request_id);
    if (request_id > owner->request_max) { /* it is new, and may be added soon */
        doorman__chains_prefetch(&permits->holds.by_request, hash, DOORMAN__AHEAD_BUCKET);
        return NULL;
    }
    doorman__chain *node = doorman__chains_first(&permits->holds.by_request, hash);
    for (; node; node = node->next) {
        doorman__hold *hold = DOORMAN__WITHIN(doorman__hold, by_request, node);
        bool same = node->hash == hash && hold->request_id == request_id;
        if (same && hold->owner == owner) return hold;
    }
    return NULL;
}

/* Returns the id with a number. Ids cannot be guessed. A server hashes the numbers of its leases
 * with the same seed. So the number is inverted. Otherwise the ids of its own leases would tell a
 * client the ids of the transfers of others. */
static uint64_t doorman__holds_id(const doorman_permits *permits, uint64_t number) {
    return doorman__hash_number(permits->options.seed, ~number) >> 11;
}

/* Gives an id to a new hold. */
static uint64_t doorman__holds_new_id(doorman_permits *permits) {
    uint64_t id = 0;
    while (!id || doorman__holds_find(permits, id)) {
        id = doorman__holds_id(permits, ++permits->holds.ids);
    }
    assert(id <= DOORMAN__REQUEST_ID_MAX);
    return id;
}

/* With many holds, a call spends most of its time waiting for memory. The following functions start
 * to load what the call needs, so that the CPU waits once for several cache lines.
 *
 * Loads where the next id will be entered. */
static void doorman__holds_prefetch_id(const doorman_permits *permits, doorman__ahead what) {
    uint64_t id = doorman__holds_id(permits, permits->holds.ids + 1);
    doorman__chains_prefetch(&permits->holds.by_id, doorman__hold_id_hash(permits, id), what);
}

static void doorman__hold_prefetch_lines(const doorman__hold *hold) {
    const char *line = (const char *)hold;
    const size_t bytes = hold ? sizeof *hold + sizeof(doorman__hold_item) : 0;
    for (size_t at = 0; at < bytes; at += DOORMAN__LINE_BYTES) __builtin_prefetch(line + at);
}

/* Loads the neighbours of a hold in its list and in the heap. */
static void doorman__hold_prefetch_neighbours(const doorman_permits *permits,
                                              const doorman__hold *hold) {
    const doorman__timers *ends = &permits->holds.ends;
    size_t position = hold->end.position;
    if (hold->earlier) __builtin_prefetch(&hold->earlier->later);
    if (hold->later) __builtin_prefetch(&hold->later->earlier);
    __builtin_prefetch(&ends->heap[position / 2]);
    __builtin_prefetch(&ends->heap[position]);
    if (2 * position < ends->count) __builtin_prefetch(&ends->heap[2 * position]);
}

/* ---- holds: states */

static doorman__hold_list *doorman__holds_list(doorman_permits *permits,
                                               doorman__hold_state state) {
    if (state == DOORMAN__NEW) return NULL;
    if (state == DOORMAN__WAITING) return &permits->holds.waiting;
    return state == DOORMAN__SPENT ? &permits->holds.spent : &permits->holds.granted;
}

static void doorman__hold_unlink(doorman__hold_list *list, doorman__hold *hold) {
    assert(list->count > 0);
    *(hold->earlier ? &hold->earlier->later : &list->first) = hold->later;
    *(hold->later ? &hold->later->earlier : &list->last) = hold->earlier;
    list->count--;
}

static void doorman__hold_append(doorman__hold_list *list, doorman__hold *hold) {
    assert(list->last ? !list->last->later : !list->count);
    hold->earlier = list->last;
    hold->later = NULL;
    *(list->last ? &list->last->later : &list->first) = hold;
    list->last = hold;
    list->count++;
}

/* Moves a hold to another state. No other function writes the state. */
static void doorman__hold_enter(doorman_permits *permits, doorman__hold *hold,
                                doorman__hold_state state) {
    doorman__hold_list *from = doorman__holds_list(permits, hold->state);
    doorman__hold_list *to = doorman__holds_list(permits, state);
    assert(state != hold->state);
    assert(state != DOORMAN__WAITING || hold->state == DOORMAN__NEW);
    assert(state != DOORMAN__SPENT || hold->state == DOORMAN__TRANSFERRED);
    assert(hold->state != DOORMAN__HELD || state == DOORMAN__NEW);
    if (from != to && from) doorman__hold_unlink(from, hold);
    if (from != to && to) doorman__hold_append(to, hold);
    if (hold->state == DOORMAN__WAITING) hold->owner->wait_count--;
    if (state == DOORMAN__WAITING) hold->owner->wait_count++;
    /* HELD, TRANSFERRED and SPENT are counted */
    hold->owner->hold_count += state >= DOORMAN__HELD;
    hold->owner->hold_count -= hold->state >= DOORMAN__HELD;
    hold->state = state;
}

/* ---- holds: queues */

/* Notes that the first permit of a queue must be decided on. NULL has no effect. */
static void doorman__hold_queue_wake(doorman_permits *permits, doorman__hold_queue *queue) {
    doorman__holds *holds = &permits->holds;
    if (!queue || queue->ready) return;
    assert(!holds->first_ready == !holds->last_ready);
    queue->ready = true;
    queue->next_ready = NULL;
    *(holds->last_ready ? &holds->last_ready->next_ready : &holds->first_ready) = queue;
    holds->last_ready = queue;
}

/* Frees the queue of a counter, if the queue is empty and not ready. */
static void doorman__hold_queue_free_empty(doorman_permits *permits, doorman__hold_queue *queue) {
    if (queue->turns.count || queue->ready || !queue->counter) return;
    assert(doorman__counter_queue(queue->counter) == queue);
    doorman__counter_state(queue->counter)[1] = 0;
    doorman__timers_uninit(&queue->turns);
    DOORMAN_FREE(queue);
    permits->node_bytes -= sizeof *queue;
}

/* Notes that the first queue of the list waits for units again. An empty queue is freed. */
static void doorman__hold_queue_rest(doorman_permits *permits, doorman__hold_queue *queue) {
    doorman__holds *holds = &permits->holds;
    assert(holds->first_ready == queue && queue->ready);
    holds->first_ready = queue->next_ready;
    if (!holds->first_ready) holds->last_ready = NULL;
    queue->ready = false;
    doorman__hold_queue_free_empty(permits, queue);
}

/* Finds or makes the queue of a counter, with room for one more permit. Returns NULL if memory runs
 * out. */
static doorman__hold_queue *doorman__hold_queue_get(doorman_permits *permits, doorman__slot *slot,
                                                    doorman__counter *counter) {
    doorman__hold_queue *queue = doorman__counter_queue(counter);
    if (queue) {
        assert(queue->counter == counter && queue->slot == slot);
        size_t count = queue->turns.count + queue->expected + 1;
        return doorman__timers_reserve(&queue->turns, count) ? queue : NULL;
    }
    queue = (doorman__hold_queue *)doorman__zalloc(sizeof *queue);
    if (!queue || !doorman__timers_reserve(&queue->turns, 1)) {
        DOORMAN_FREE(queue);
        return NULL;
    }
    queue->counter = counter;
    queue->slot = slot;
    memcpy(&doorman__counter_state(counter)[1], &queue, sizeof queue);
    permits->node_bytes += sizeof *queue;
    return queue;
}

static doorman__wait *doorman__turn_wait(doorman__timer *turn) {
    return DOORMAN__WITHIN(doorman__wait, turn, turn);
}

/* Put a waiting permit into its queue, and take it out. */
static void doorman__turn_set(doorman__wait *wait) {
    assert(!wait->turn.position && wait->hold->state == DOORMAN__WAITING);
    doorman__timer_set(&wait->queue->turns, &wait->turn, wait->rank);
    if (wait->queue->slot) wait->queue->slot->totals.waiting++;
}

static void doorman__turn_clear(doorman__wait *wait) {
    assert(!wait->queue->slot || wait->queue->slot->totals.waiting > 0);
    doorman__timer_clear(&wait->queue->turns, &wait->turn);
    if (wait->queue->slot) wait->queue->slot->totals.waiting--;
}

/* Removes a waiting permit from its queue. */
static void doorman__hold_queue_leave(doorman_permits *permits, doorman__wait *wait) {
    assert(wait->turn.position > 0 && wait->turn.position <= wait->queue->turns.count);
    bool first = doorman__timers_first(&wait->queue->turns) == &wait->turn;
    doorman__turn_clear(wait);
    if (first) doorman__hold_queue_wake(permits, wait->queue);
    wait->queue = NULL;
}

/* ---- holds: creating and freeing */

/* Returns how many holds and transfers there are, used transfers included. */
static size_t doorman__holds_count(const doorman_permits *permits) {
    return permits->holds.granted.count + permits->holds.spent.count;
}

/* Gives memory of the heap back after many holds have ended. */
static void doorman__holds_trim(doorman_permits *permits) {
    doorman__timers *ends = &permits->holds.ends;
    size_t half = ends->capacity / 2;
    if (ends->capacity <= 1024 || ends->count >= half / 2) return;
    void *heap = DOORMAN_REALLOC(ends->heap, half * sizeof *ends->heap);
    if (!heap) return;
    ends->heap = (doorman__timer_entry *)heap;
    ends->capacity = half;
    assert(ends->count <= ends->capacity);
}

/* Ensures that a table has a bucket, so that an addition cannot fail. */
static bool doorman__chains_ready(doorman__chains *nodes) {
    return nodes->bucket_count > 0 || doorman__chains_split(nodes);
}

/* Returns whether one more hold of `bytes` bytes is within the bounds (P19). */
static bool doorman__holds_has_room(const doorman_permits *permits, const char *client_id,
                                    size_t bytes) {
    const doorman__owner *owner = doorman__owner_find(permits, client_id, strlen(client_id), false);
    return doorman__holds_count(permits) < permits->options.hold_max &&
           (!owner || owner->hold_count < permits->options.client_hold_max) &&
           doorman__permits_has_memory(permits, bytes);
}

/* Copies the items to the memory behind a hold. */
static void doorman__hold_fill(doorman__hold *hold, const doorman__hold_item *items) {
    doorman__hold_item *own = doorman__hold_items(hold);
    char *key = (char *)(own + hold->item_count);
    for (size_t i = 0; i < hold->item_count; i++) {
        size_t bytes = strlen(items[i].key) + 1;
        own[i] = items[i];
        memcpy(key, items[i].key, bytes);
        own[i].key = key;
        own[i].place->hold_count++;
        key += bytes;
    }
    assert(key == (char *)hold + hold->bytes);
}

static size_t doorman__hold_items_bytes(const doorman__hold_item *items, size_t count) {
    size_t bytes = sizeof(doorman__hold) + count * sizeof *items;
    for (size_t i = 0; i < count; i++) bytes += strlen(items[i].key) + 1;
    return bytes;
}

/* Makes a hold that has no units yet. Everything that it needs later is reserved, except for takes.
 * Returns NULL if memory runs out.
 *   request_id   0: the hold is not found by its request */
static doorman__hold *doorman__hold_create(doorman_permits *permits, const char *client_id,
                                           uint64_t request_id, const doorman__hold_item *items,
                                           size_t count) {
    doorman__holds *holds = &permits->holds;
    size_t bytes = doorman__hold_items_bytes(items, count);
    size_t ends = holds->granted.count + holds->waiting.count + 1;
    bool room = doorman__timers_reserve(&holds->ends, ends) &&
                doorman__chains_ready(&holds->by_id) && doorman__chains_ready(&holds->by_request);
    doorman__hold *hold = room ? (doorman__hold *)doorman__zalloc(bytes) : NULL;
    if (!hold) return NULL;
    hold->owner = doorman__owner_get(permits, client_id, strlen(client_id), false);
    if (!hold->owner) {
        DOORMAN_FREE(hold);
        return NULL;
    }
    hold->bytes = bytes;
    hold->item_count = count;
    hold->request_id = request_id;
    doorman__hold_fill(hold, items);
    permits->node_bytes += bytes;
    if (!request_id) return hold;
    uint32_t hash = doorman__hold_request_hash(permits, hold->owner, request_id);
    if (request_id > hold->owner->request_max) hold->owner->request_max = request_id;
    bool added = doorman__chains_add(&holds->by_request, &hold->by_request, hash);
    assert(added);
    (void)added;
    return hold;
}

/* Gives a hold an id. Precondition: it was created in this call, or the table has a bucket. */
static void doorman__hold_name(doorman_permits *permits, doorman__hold *hold, uint64_t id) {
    assert(!hold->id && id);
    hold->id = id;
    bool added = doorman__chains_add(&permits->holds.by_id, &hold->by_id,
                                     doorman__hold_id_hash(permits, id));
    assert(added);
    (void)added;
}

static void doorman__hold_destroy(doorman_permits *permits, doorman__hold *hold);

/* Separates a hold from its transfers. A used transfer is not needed any more. */
static void doorman__hold_drop_transfers(doorman_permits *permits, doorman__hold *hold) {
    for (doorman__hold *next = NULL, *transfer = hold->transfers; transfer; transfer = next) {
        next = transfer->next_transfer;
        assert(transfer->source == hold);
        transfer->source = NULL;
        if (transfer->state == DOORMAN__SPENT) doorman__hold_destroy(permits, transfer);
    }
    hold->transfers = NULL;
}

/* Frees a hold. Precondition: it has no takes, is in no queue, and is no transfer of a hold. */
static void doorman__hold_destroy(doorman_permits *permits, doorman__hold *hold) {
    assert(!hold->takes.count && !hold->wait && !hold->source);
    doorman__hold_drop_transfers(permits, hold);
    if (hold->state != DOORMAN__NEW) doorman__hold_enter(permits, hold, DOORMAN__NEW);
    doorman__timer_clear(&permits->holds.ends, &hold->end);
    if (hold->id) doorman__chains_remove(&permits->holds.by_id, &hold->by_id);
    if (hold->request_id) doorman__chains_remove(&permits->holds.by_request, &hold->by_request);
    for (size_t i = 0; i < hold->item_count; i++) {
        doorman__place *place = doorman__hold_items(hold)[i].place;
        assert(place->hold_count > 0);
        place->hold_count--;
    }
    doorman__owner_leave(permits, hold->owner);
    permits->node_bytes -= hold->bytes;
    DOORMAN_FREE(hold->takes.list);
    DOORMAN_FREE(hold);
    doorman__holds_trim(permits);
}

/* ---- holds: units */

/* Adds a take. Precondition: the list has room. */
static void doorman__takes_add(doorman__takes *takes, doorman__counter *counter, uint64_t grains,
                               size_t index, doorman_time time_to_live) {
    assert(takes->count < takes->capacity && grains > 0);
    *doorman__takes_at(takes, takes->count++) = (doorman__take){counter, grains, index};
    takes->time_to_live = doorman__earlier(takes->time_to_live, time_to_live);
}

/* Makes room for takes. A new list has no time to live yet. */
static bool doorman__takes_reserve(doorman__takes *takes, size_t count) {
    assert(!takes->list && !takes->count);
    takes->time_to_live = DOORMAN_NEVER;
    takes->capacity = 0;
    if (count > 1) takes->list = (doorman__take *)doorman__zalloc(count * sizeof *takes->list);
    if (count > 1 && !takes->list) return false;
    takes->capacity = (uint32_t)count;
    return true;
}

/* Lets a hold keep at most `keep` of one item. What it had above that goes to `to`, or comes
 * back if `to` is NULL. */
static void doorman__hold_cut(doorman_permits *permits, doorman__hold *hold, size_t index,
                              double keep, doorman__hold *to) {
    doorman__hold_item *item = &doorman__hold_items(hold)[index];
    if (keep >= item->amount) return;
    if (to) doorman__hold_items(to)[index].amount = item->amount - keep;
    item->amount = keep;
    doorman__takes *takes = &hold->takes;
    uint64_t most = doorman__grains_ceil(keep);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < takes->count; i++) {
        doorman__take take = *doorman__takes_at(takes, i);
        uint64_t less = take.index == index && take.grains > most ? take.grains - most : 0;
        uint64_t *state = doorman__counter_state(take.counter);
        assert(state[0] >= take.grains);
        if (less && to) {
            doorman__takes_add(&to->takes, take.counter, less, index, takes->time_to_live);
        } else if (less) {
            state[0] -= less;
            doorman__hold_queue_wake(permits, doorman__counter_queue(take.counter));
        }
        take.grains -= less;
        if (take.grains) *doorman__takes_at(takes, kept++) = take;
    }
    takes->count = kept;
}

/* Gives all units of a hold back. */
static void doorman__hold_return(doorman_permits *permits, doorman__hold *hold) {
    for (size_t i = 0; i < hold->takes.count; i++) {
        const doorman__take *take = doorman__takes_at(&hold->takes, i);
        uint64_t *state = doorman__counter_state(take->counter);
        assert(state[0] >= take->grains);
        state[0] -= take->grains;
        doorman__hold_queue_wake(permits, doorman__counter_queue(take->counter));
    }
    hold->takes.count = 0;
    for (size_t i = 0; i < hold->item_count; i++) doorman__hold_items(hold)[i].amount = 0;
}

static bool doorman__hold_has_units(const doorman__hold *hold) {
    for (size_t i = 0; i < hold->item_count; i++) {
        if (doorman__hold_items(hold)[i].amount > 0) return true;
    }
    return false;
}

/* Ends a transfer whose units are gone: it stays known while its source is held. */
static void doorman__transfer_spend(doorman_permits *permits, doorman__hold *transfer) {
    assert(transfer->state == DOORMAN__TRANSFERRED && !transfer->takes.count);
    doorman__timer_clear(&permits->holds.ends, &transfer->end);
    if (!transfer->source) {
        doorman__hold_destroy(permits, transfer);
        return;
    }
    doorman__hold_enter(permits, transfer, DOORMAN__SPENT);
    DOORMAN_FREE(transfer->takes.list);
    transfer->takes = (doorman__takes){.list = NULL};
}

/* Returns the time to live of a hold: the one that was asked for, but at most that of its
 * limits. */
static doorman_time doorman__hold_time_to_live(const doorman__hold *hold) {
    doorman_time most = doorman__earlier(hold->takes.time_to_live, DOORMAN_DURATION_MAX);
    doorman_time asked = hold->asked_time_to_live;
    return asked && asked < most ? asked : most;
}

/* P8: moves the end of a hold, but never back. Returns the time to live. */
static doorman_time doorman__hold_extend(doorman_permits *permits, doorman__hold *hold) {
    doorman_time life = doorman__hold_time_to_live(hold);
    if (permits->leases.has_gauges) life = doorman__leased_life(permits, hold, life);
    doorman_time longer = life + doorman__scale(life, permits->options.drift) + 1;
    doorman_time end = doorman__after(permits->at.now, longer);
    if (!hold->end.position || end > hold->end.at) {
        doorman__timer_set(&permits->holds.ends, &hold->end, end);
    }
    assert(hold->end.position && hold->end.at >= permits->at.now);
    return life;
}

/* Starts a hold or a transfer whose takes are complete. Returns the time to live.
 *   id   0: a new one is made */
static doorman_time doorman__hold_start(doorman_permits *permits, doorman__hold *hold,
                                        doorman__hold_state state, uint64_t id) {
    assert(hold->takes.count > 0 || state == DOORMAN__TRANSFERRED || hold->seized);
    doorman__hold_name(permits, hold, id ? id : doorman__holds_new_id(permits));
    doorman__hold_enter(permits, hold, state);
    hold->granted_at = permits->at.now;
    doorman__holds_prefetch_id(permits, DOORMAN__AHEAD_BUCKET);
    return doorman__hold_extend(permits, hold);
}

/* ---- holds: decisions on permits that have waited */

static void doorman__wait_free(doorman__wait *wait) {
    if (!wait) return;
    DOORMAN_FREE(wait->details);
    DOORMAN_FREE(wait);
}

/* Makes the record of a wait. Returns NULL if memory runs out. */
static doorman__wait *doorman__wait_create(doorman_permits *permits, size_t item_count) {
    size_t bytes = sizeof(doorman__wait) + item_count * sizeof(doorman_permit_grant);
    doorman__wait *wait = (doorman__wait *)doorman__zalloc(bytes);
    if (wait) wait->ticket = ++permits->holds.tickets;
    return wait;
}

/* Adds a decision to those that doorman_permits_next_decision gives. */
static void doorman__wait_decided(doorman_permits *permits, doorman__wait *wait) {
    doorman__holds *holds = &permits->holds;
    assert(!wait->hold && !wait->queue);
    wait->next = NULL;
    *(holds->last_decision ? &holds->last_decision->next : &holds->first_decision) = wait;
    holds->last_decision = wait;
}

/* Removes the connection, if any, from a permit that waits. */
static void doorman__wait_disconnect(doorman_permits *permits, doorman__wait *wait) {
    assert(!wait->connection || wait->connection->wait_count > 0);
    if (wait->connection) wait->connection->wait_count--;
    doorman__owner_leave(permits, wait->connection);
    wait->connection = NULL;
}

/* Lets a connection wait for a permit, instead of the previous one. Returns false if memory runs
 * out; nothing has changed then.
 *   connection   0: there is none */
static bool doorman__wait_connect(doorman_permits *permits, doorman__wait *wait,
                                  uint64_t connection) {
    doorman__owner *owner = NULL;
    if (connection) owner = doorman__owner_get(permits, &connection, sizeof connection, true);
    if (connection && !owner) return false;
    if (owner) owner->wait_count++;
    doorman__wait_disconnect(permits, wait);
    wait->connection = owner;
    return true;
}

/* Ends the wait of a permit. The permit is NEW then. Returns the record. */
static doorman__wait *doorman__hold_end_wait(doorman_permits *permits, doorman__hold *hold) {
    doorman__wait *wait = hold->wait;
    assert(hold->state == DOORMAN__WAITING && wait->hold == hold);
    doorman__hold_queue_leave(permits, wait);
    if (wait->share) doorman__chains_remove(&permits->holds.by_key, &wait->by_key);
    doorman__wait_disconnect(permits, wait);
    doorman__timer_clear(&permits->holds.ends, &hold->end);
    doorman__hold_enter(permits, hold, DOORMAN__NEW);
    wait->hold = NULL;
    hold->wait = NULL;
    return wait;
}

/* Refuses a permit that waits, for a reason that no counter gives. */
static void doorman__hold_refuse(doorman_permits *permits, doorman__hold *hold,
                                 doorman_reason reason) {
    assert(hold->state == DOORMAN__WAITING && reason != DOORMAN_NO_REASON);
    doorman__slot *slot = hold->wait->queue->slot;
    const doorman__hold_item *item = &doorman__hold_items(hold)[hold->wait->item];
    doorman__wait *wait = doorman__hold_end_wait(permits, hold);
    const char *limit = slot && slot->limit ? slot->limit->name : NULL;
    wait->permit = (doorman_permit){.reason = reason, .item_index = wait->item, .limit = limit};
    if (slot) slot->totals.refused[reason]++;
    const doorman_permit_event event = {
        DOORMAN_PERMIT_REFUSED, doorman__place_id(item->place), item->key, limit, reason, 0};
    doorman__permits_event(permits, event);
    doorman__wait_decided(permits, wait);
    doorman__hold_destroy(permits, hold);
}

/* Copies a decision that was made now to the record of its wait. Without memory the details are
 * left out. */
static void doorman__wait_keep(doorman__wait *wait, const doorman_permit *permit) {
    assert(!wait->details && !permit->pending);
    doorman_permit_grant *grants = (doorman_permit_grant *)(void *)(wait + 1);
    wait->permit = *permit;
    wait->permit.items = permit->item_count ? grants : NULL;
    if (permit->item_count) memcpy(grants, permit->items, permit->item_count * sizeof *grants);
    wait->permit.details = NULL;
    wait->permit.detail_count = 0;
    if (!permit->detail_count) return;
    size_t bytes = permit->detail_count * sizeof *permit->details;
    wait->details = (doorman_permit_detail *)DOORMAN_MALLOC(bytes);
    if (!wait->details) return;
    memcpy(wait->details, permit->details, bytes);
    wait->permit.details = wait->details;
    wait->permit.detail_count = permit->detail_count;
}

/* ---- holds: granting */

/* Returns how many takes the permit would have, and sets `untaken` of all charges. */
static size_t doorman__permits_count_takes(doorman_permits *permits, size_t count) {
    size_t takes = 0;
    for (size_t i = 0; i < permits->charge_count; i++) {
        doorman__charge *charge = &permits->charges[i];
        bool holds = charge->limit->kind == DOORMAN_CONCURRENCY;
        charge->untaken = holds ? doorman__charge_amount(charge) : 0;
    }
    for (size_t i = 0; i < count; i++) {
        const doorman__want *want = &permits->wants[i];
        for (size_t j = 0; j < want->charge_count; j++) {
            takes += permits->charges[want->charges[j]].untaken > 0 && want->grains > 0;
        }
    }
    return takes;
}

/* Fills the items of a new hold from the items of the permit. Returns NULL if memory runs out. */
static doorman__hold_item *doorman__permits_items(doorman_permits *permits, size_t count) {
    void *items = permits->holds.made;
    bool room =
        doorman__reserve(&items, &permits->holds.made_capacity, count, sizeof(doorman__hold_item));
    permits->holds.made = (doorman__hold_item *)items;
    for (size_t i = 0; room && i < count; i++) {
        const doorman__want *want = &permits->wants[i];
        doorman__place *place =
            want->place ? want->place : doorman__permits_place(permits, want->resource_id);
        permits->holds.made[i] = (doorman__hold_item){place, want->key, want->cost, want->min, 0};
        room = place != NULL;
    }
    return room ? permits->holds.made : NULL;
}

/* Lets each charge refuse from which the hold would take units, because there is no room for it. */
static void doorman__permits_no_hold(doorman_permits *permits, bool *fits) {
    for (size_t i = 0; i < permits->charge_count; i++) {
        doorman__charge *charge = &permits->charges[i];
        if (!charge->untaken) continue;
        charge->reason = DOORMAN_REASON_MAX_HOLDS;
        *fits = *fits && charge->shadow;
    }
    if (!*fits) doorman__permits_undo(permits);
}

/* Makes the hold of a permit that fits, without units. Sets *out to NULL if the permit takes no
 * units of CONCURRENCY, or if a bound forbids the hold. On failure, the counters that were created
 * are removed. */
static doorman_status doorman__permits_reserve_hold(doorman_permits *permits,
                                                    const doorman__decision *decision,
                                                    doorman__hold **out, bool *fits) {
    const doorman_permit_request *request = decision->request;
    doorman__hold *hold = decision->hold;
    size_t takes = doorman__permits_count_takes(permits, request->item_count);
    *out = NULL;
    if (!takes) return DOORMAN_OK;
    const doorman__hold_item *items =
        hold ? doorman__hold_items(hold) : doorman__permits_items(permits, request->item_count);
    size_t bytes = items && !hold ? doorman__hold_items_bytes(items, request->item_count) : 0;
    if (items && !doorman__holds_has_room(permits, request->client_id, bytes)) {
        doorman__permits_no_hold(permits, fits);
        return DOORMAN_OK;
    }
    if (items && !hold) {
        hold = doorman__hold_create(permits, request->client_id, request->request_id, items,
                                    request->item_count);
    }
    bool made = items && hold && doorman__chains_ready(&permits->holds.by_id) &&
                doorman__takes_reserve(&hold->takes, takes);
    if (made) {
        assert(!hold->takes.count && hold->takes.capacity == takes);
        *out = hold;
        return DOORMAN_OK;
    }
    if (hold && !decision->hold) doorman__hold_destroy(permits, hold);
    doorman__permits_undo(permits);
    return DOORMAN_OUT_OF_MEMORY;
}

/* Gives a hold the units that its permit was granted. A permit that has waited waits no longer.
 *   id   0: a new one is made */
static void doorman__hold_grant(doorman_permits *permits, doorman__hold *hold,
                                const doorman_permit_request *request, uint64_t id,
                                doorman_permit *out) {
    assert(hold->state == (hold->wait ? DOORMAN__WAITING : DOORMAN__NEW));
    for (size_t i = 0; i < hold->item_count; i++) {
        const doorman__want *want = &permits->wants[i];
        doorman__hold_items(hold)[i].amount = want->granted;
        for (size_t j = 0; j < want->charge_count; j++) {
            doorman__charge *charge = &permits->charges[want->charges[j]];
            uint64_t grains = want->grains < charge->untaken ? want->grains : charge->untaken;
            if (!grains) continue;
            charge->untaken -= grains;
            doorman__takes_add(&hold->takes, charge->counter, grains, i,
                               charge->figures->time_to_live);
        }
    }
    if (hold->wait) {
        out->waited = permits->at.now - hold->wait->asked_at;
        (void)doorman__hold_end_wait(permits, hold);
    }
    hold->asked_time_to_live = request->time_to_live;
    out->expires_in = doorman__hold_start(permits, hold, DOORMAN__HELD, id);
    out->hold_id = hold->id;
    out->node = permits->options.node;
}

/* ---- >>permits ------------------------------------------------------------------------------ */
/*
 * This section decides on permits: new ones, those that wait in a queue, and repeated ones.
 *
 * P9 Permits without holds are not idempotent. A request whose response is lost may have charged
 *    units. So a repeated request may be refused too early, but is never granted too often.
 * P16 With empty_at_start nothing is saved when the permits are created: a bucket has what it has
 *    gained since then, and a window that contains this time is used up. When a server becomes
 *    master, its permits have no counters and no bans, until rows are restored (D5). While it
 *    learns, it decides as usual on permits that would hold no units. The rest of P16 is in
 *    >>holds.
 * P18 Every decision raises events, and is counted by limit and reason. A template whose list of
 *    limits is empty grants everything, and counts it. An item whose resource matches no template
 *    with limits is counted too, and raises an event, also if it is granted.
 */

/* ---- holds: waiting (P7) */

/* Returns the first counter that lacks room, if only units of CONCURRENCY are missing. Otherwise
 * returns NULL. */
static doorman__charge *doorman__permits_lacking(doorman_permits *permits, size_t count) {
    doorman__charge *first = NULL;
    for (size_t i = 0; i < count; i++) {
        if (permits->wants[i].rejected || permits->wants[i].ban_rest) return NULL;
    }
    for (size_t i = 0; i < permits->charge_count; i++) {
        doorman__charge *charge = &permits->charges[i];
        if (charge->shadow || !charge->reason) continue;
        bool lacks = charge->limit->kind == DOORMAN_CONCURRENCY &&
                     (charge->reason == DOORMAN_REASON_CONCURRENCY ||
                      charge->reason == DOORMAN_REASON_LEARNING);
        if (!lacks) return NULL;
        if (!first) first = charge;
    }
    return first;
}

/* Returns whether one more permit of a connection may wait.
 *   connection   0: there is none
 *   repeated     the waiting permit that the new one replaces; NULL: none */
static bool doorman__connection_has_room(const doorman_permits *permits, uint64_t connection,
                                         const doorman__wait *repeated) {
    const doorman__owner *owner =
        connection ? doorman__owner_find(permits, &connection, sizeof connection, true) : NULL;
    return !owner || owner->wait_count < permits->options.connection_waiting_max ||
           (repeated && repeated->connection == owner);
}

/* Returns whether a bound on waiting permits is reached. A permit that moves is counted already. */
static bool doorman__permits_queue_full(const doorman_permits *permits,
                                        const doorman__decision *decision,
                                        const doorman__charge *charge) {
    assert(charge->limit->kind == DOORMAN_CONCURRENCY);
    const doorman_permit_request *request = decision->request;
    const doorman_permits_options *options = &permits->options;
    const doorman__hold_queue *queue =
        charge->counter ? doorman__counter_queue(charge->counter) : NULL;
    if (queue && queue->turns.count >= charge->figures->queue) return true;
    if (decision->hold) return false;
    const doorman__owner *owner =
        doorman__owner_find(permits, request->client_id, strlen(request->client_id), false);
    return permits->holds.waiting.count >= options->waiting_max ||
           (owner && owner->wait_count >= options->client_waiting_max) ||
           !doorman__connection_has_room(permits, request->connection, NULL);
}

/* Puts a waiting permit into a queue. Its time is over when it has waited as long as the permit and
 * the limit allow. Precondition: the queue has room. */
static void doorman__wait_enter(doorman_permits *permits, doorman__wait *wait,
                                doorman__hold_queue *queue, const doorman__charge *charge) {
    assert(wait->hold->wait == wait && queue->slot == charge->slot);
    if (wait->queue) doorman__hold_queue_leave(permits, wait);
    wait->queue = queue;
    wait->need = charge->need;
    wait->item = charge->first_item;
    doorman__turn_set(wait);
    doorman_time most = doorman__earlier(wait->max_wait, charge->figures->max_wait);
    doorman__timer_set(&permits->holds.ends, &wait->hold->end,
                       doorman__after(wait->asked_at, most));
    charge->own->totals.waited++;
    doorman__charge_event(permits, charge, DOORMAN_PERMIT_WAITING, 0);
}

/* Lets a new permit wait, in no queue yet. */
static void doorman__hold_begin_wait(doorman_permits *permits, doorman__hold *hold,
                                     doorman__wait *wait, const doorman__decision *decision) {
    assert(!hold->wait && !wait->queue);
    const doorman_permit_request *request = decision->request;
    wait->hold = hold;
    wait->asked_at = permits->at.now;
    wait->max_wait = request->max_wait;
    wait->rank = decision->turn;
    wait->equal = request->equal;
    wait->detail = request->detail;
    wait->share = request->share;
    hold->wait = wait;
    hold->asked_time_to_live = request->time_to_live;
    doorman__hold_enter(permits, hold, DOORMAN__WAITING);
    permits->holds.arrivals++;
}

/* Makes a permit that waits, in no queue yet. Returns NULL if memory runs out. */
static doorman__hold *doorman__permits_new_wait(doorman_permits *permits,
                                                const doorman__decision *decision) {
    const doorman_permit_request *request = decision->request;
    const size_t count = request->item_count;
    doorman__holds *holds = &permits->holds;
    const doorman__hold_item *items = doorman__permits_items(permits, count);
    doorman__hold *hold =
        items ? doorman__hold_create(permits, request->client_id, request->request_id, items, count)
              : NULL;
    if (!hold) return NULL;
    doorman__wait *wait = doorman__wait_create(permits, count);
    bool made = wait && doorman__wait_connect(permits, wait, request->connection);
    if (made && request->share) {
        const doorman__identity of_key =
            doorman__identity_of(permits, items[0].place, items[0].key);
        made = doorman__chains_add(&holds->by_key, &wait->by_key, (uint32_t)of_key.hash);
    }
    if (!made) {
        if (wait) doorman__wait_disconnect(permits, wait);
        doorman__wait_free(wait);
        doorman__hold_destroy(permits, hold);
        return NULL;
    }
    doorman__hold_begin_wait(permits, hold, wait, decision);
    return hold;
}

static void doorman__permit_pending(const doorman__hold *hold, const char *limit,
                                    doorman_permit *out) {
    assert(hold->state == DOORMAN__WAITING && hold->wait->queue);
    memset(out, 0, sizeof *out);
    out->pending = true;
    out->ticket = hold->wait->ticket;
    out->item_index = hold->wait->item;
    out->limit = limit;
}

/* Creates the counter and the queue in which a permit will wait. Sets *out to NULL if a bound
 * forbids it. On failure, a counter that was created is removed. */
static doorman_status doorman__permits_make_queue(doorman_permits *permits, doorman__charge *charge,
                                                  doorman__hold_queue **out) {
    doorman_status status = charge->counter ? DOORMAN_OK : doorman__charge_create(permits, charge);
    *out = NULL;
    if (status == DOORMAN_OK) doorman__charge_refuse_lease(permits, charge);
    if (status == DOORMAN_RESOURCE_EXHAUSTED) {
        charge->reason = DOORMAN_REASON_MAX_KEYS;
        return DOORMAN_OK;
    }
    if (status != DOORMAN_OK) return status;
    assert(charge->counter);
    *out = doorman__hold_queue_get(permits, charge->slot, charge->counter);
    if (*out) return DOORMAN_OK;
    doorman__permits_undo(permits);
    return DOORMAN_OUT_OF_MEMORY;
}

/* P31: returns whether a permit brings figures. A hold that waits does not keep them. */
static bool doorman__request_brings(const doorman_permit_request *request) {
    for (size_t i = 0; i < request->item_count; i++) {
        if (request->items[i].set_count) return true;
    }
    return false;
}

/* Lets a permit that does not fit wait, if it may wait. Sets out->pending if it waits now. */
static doorman_status doorman__permits_wait(doorman_permits *permits,
                                            const doorman__decision *decision,
                                            doorman_permit *out) {
    const doorman_permit_request *request = decision->request;
    doorman__hold *hold = decision->hold;
    doorman__charge *charge = doorman__permits_lacking(permits, request->item_count);
    doorman__hold_queue *queue = NULL;
    out->pending = false;
    if (!charge) return DOORMAN_OK;
    assert(!hold || hold->state == DOORMAN__WAITING);
    doorman_time waited = hold ? permits->at.now - hold->wait->asked_at : 0;
    doorman_time most = hold ? hold->wait->max_wait : request->max_wait;
    most = doorman__earlier(most, charge->figures->max_wait);
    bool waits = hold || (decision->may_wait && !doorman__request_brings(request));
    if (!waits || !charge->figures->queue || waited >= most) return DOORMAN_OK;
    bool stays = hold && charge->counter && hold->wait->queue->counter == charge->counter;
    if (!stays && doorman__permits_queue_full(permits, decision, charge)) {
        charge->reason = DOORMAN_REASON_QUEUE_FULL;
        return DOORMAN_OK;
    }
    doorman_status status = doorman__permits_make_queue(permits, charge, &queue);
    if (status != DOORMAN_OK || !queue) return status;
    if (!hold) hold = doorman__permits_new_wait(permits, decision);
    if (!hold) {
        doorman__hold_queue_free_empty(permits, queue);
        doorman__permits_undo(permits);
        return DOORMAN_OUT_OF_MEMORY;
    }
    if (charge->created) doorman__charge_event(permits, charge, DOORMAN_PERMIT_KEY_CREATED, 0);
    if (stays) hold->wait->need = charge->need;
    if (!stays) doorman__wait_enter(permits, hold->wait, queue, charge);
    doorman__permit_pending(hold, charge->limit->name, out);
    return DOORMAN_OK;
}

/* Returns whether a permit asks for units of CONCURRENCY. */
static bool doorman__permits_needs_hold(const doorman_permits *permits, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const doorman__want *want = &permits->wants[i];
        for (size_t j = 0; want->cost > 0 && j < want->charge_count; j++) {
            const doorman__charge *charge = &permits->charges[want->charges[j]];
            if (charge->limit->kind == DOORMAN_CONCURRENCY) return true;
        }
    }
    return false;
}

/* Finds what a decision needs. Returns OUT_OF_MEMORY, or INVALID_ARGUMENT if the permit lacks a
 * request_id that it needs. */
static doorman_status doorman__permits_find(doorman_permits *permits,
                                            const doorman__decision *decision) {
    const doorman_permit_request *request = decision->request;
    const size_t count = request->item_count;
    bool room = doorman__permits_prepare(permits, count, decision->inspects) &&
                (!request->detail || doorman__permits_reserve_details(permits, count));
    if (!room) return DOORMAN_OUT_OF_MEMORY;
    bool holds = !decision->inspects && doorman__permits_needs_hold(permits, count);
    return holds && !request->request_id ? DOORMAN_INVALID_ARGUMENT : DOORMAN_OK;
}

/* Divides what is offered, and creates what the grant needs. On failure, nothing remains.
 *   out    becomes the hold, or NULL if the permit needs none
 *   fits   becomes false if a bound forbids the grant */
static doorman_status doorman__permits_reserve(doorman_permits *permits,
                                               const doorman__decision *decision,
                                               doorman__hold **out, bool *fits) {
    doorman__permits_divide(permits, decision->request->item_count, decision->request->equal);
    doorman_status status = doorman__permits_create_counters(permits, fits);
    if (status != DOORMAN_OK || !*fits || decision->inspects) return status;
    assert(permits->charge_count <= permits->charge_capacity);
    return doorman__permits_reserve_hold(permits, decision, out, fits);
}

/* Charges all counters of a permit that fits. This step cannot fail. */
static void doorman__permits_commit(doorman_permits *permits, const doorman_permit_request *request,
                                    doorman__hold *hold, doorman_permit *result) {
    for (size_t i = 0; i < permits->charge_count; i++) {
        doorman__charge *charge = &permits->charges[i];
        assert(!charge->reason || charge->shadow);
        if (doorman__charge_commit(permits, charge)) result->warning = true;
        bool waits = charge->granted > 0 && !charge->shadow;
        if (waits) result->wait = doorman__later(result->wait, charge->wait);
    }
    if (hold) doorman__hold_grant(permits, hold, request, 0, result);
    for (size_t i = 0; i < request->item_count; i++) {
        doorman__want_count_open(permits, &permits->wants[i]);
    }
}

/* Decides on a permit whose wants are read. The permit is granted, refused, or pending then.
 * Returns INVALID_ARGUMENT if it needs a request_id and has none. */
static doorman_status doorman__permits_decide(doorman_permits *permits,
                                              const doorman__decision *decision,
                                              doorman_permit *out) {
    const doorman_permit_request *request = decision->request;
    const size_t count = request->item_count;
    const bool inspects = decision->inspects;
    doorman__hold *hold = NULL;
    doorman_permit result;
    memset(&result, 0, sizeof result);
    doorman_status status = doorman__permits_find(permits, decision);
    if (status != DOORMAN_OK) return status;
    bool fits = doorman__permits_evaluate(permits, decision);
    if (fits) status = doorman__permits_reserve(permits, decision, &hold, &fits);
    if (!fits && status == DOORMAN_OK && !inspects) {
        status = doorman__permits_wait(permits, decision, &result);
    }
    if (status != DOORMAN_OK) return status;
    if (!result.pending) {
        result.granted = fits;
        if (fits && !inspects) doorman__permits_commit(permits, request, hold, &result);
        if (!inspects) doorman__permits_count_keys(permits, count, fits);
        if (fits) doorman__permits_fill_grants(permits, count, inspects, &result);
        if (!fits) doorman__permits_refuse(permits, count, request->max_wait, inspects, &result);
        if (request->detail) doorman__permits_fill_details(permits, count, &result);
    }
    assert(!result.granted || !result.pending);
    *out = result;
    return DOORMAN_OK;
}

/* ---- holds: serving queues (P7) */

#define DOORMAN__SERVE_MOVES 64
#define DOORMAN__CALL_ENDS 256
#define DOORMAN__LACKING_ROUNDS 16
#define DOORMAN__UPDATE_ENDS 1000

/* Returns whether the first permit of a queue may fit its counter now. */
static bool doorman__hold_queue_fits(const doorman_permits *permits,
                                     const doorman__hold_queue *queue, const doorman__wait *wait) {
    if (!queue->counter) return true;
    const doorman_permit_limit *limit = queue->slot->limit;
    assert(limit); /* a change of configuration makes new queues */
    if (doorman__permits_learns(permits, limit)) return false;
    double most = doorman__counter_figures(permits, limit, queue->counter)->limit;
    uint64_t held = doorman__counter_state(queue->counter)[0], all = doorman__grains_ceil(most);
    if (limit->leased) all = doorman__leased_most(permits, limit, queue->counter);
    return held <= all && wait->need <= all - held;
}

/* Makes the wants of a permit that waits. */
static void doorman__hold_wants(doorman_permits *permits, const doorman__hold *hold) {
    assert(hold->item_count <= permits->want_capacity);
    for (size_t i = 0; i < hold->item_count; i++) {
        const doorman__hold_item *item = &doorman__hold_items(hold)[i];
        permits->wants[i] = (doorman__want){.resource_id = doorman__place_id(item->place),
                                            .key = item->key,
                                            .cost = item->cost,
                                            .min = item->min};
    }
}

/* Decides again on a permit that waits. It is pending, or decided, afterwards. Returns false if
 * memory runs out; the permit still waits then. */
static bool doorman__hold_decide(doorman_permits *permits, doorman__hold *hold) {
    doorman__wait *wait = hold->wait;
    assert(hold->state == DOORMAN__WAITING && wait->hold == hold);
    const doorman_permit_request request = {.item_count = hold->item_count,
                                            .max_wait =
                                                wait->max_wait - (permits->at.now - wait->asked_at),
                                            .equal = wait->equal,
                                            .detail = wait->detail,
                                            .client_id = doorman__owner_name(hold->owner),
                                            .request_id = hold->request_id,
                                            .time_to_live = hold->asked_time_to_live};
    doorman_permit result = {.pending = false};
    doorman__hold_wants(permits, hold);
    const doorman__decision decision = {.request = &request, .hold = hold, .turn = wait->rank};
    doorman_status status = doorman__permits_decide(permits, &decision, &result);
    doorman__permits_end_call(permits, request.item_count);
    if (status != DOORMAN_OK || result.pending) return status == DOORMAN_OK;
    if (hold->state == DOORMAN__WAITING) { /* refused, or granted without units */
        (void)doorman__hold_end_wait(permits, hold);
        doorman__hold_destroy(permits, hold);
    }
    doorman__wait_keep(wait, &result);
    doorman__wait_decided(permits, wait);
    return true;
}

/* Decides on the first permits of the queues that are ready. */
static void doorman__holds_serve(doorman_permits *permits, size_t decisions) {
    doorman__holds *holds = &permits->holds;
    size_t moves = DOORMAN__SERVE_MOVES;
    holds->stuck = false;
    while (holds->first_ready && decisions > 0 && moves > 0) {
        doorman__hold_queue *queue = holds->first_ready;
        assert(queue->ready);
        doorman__timer *turn = doorman__timers_first(&queue->turns);
        doorman__hold *hold = turn ? doorman__turn_wait(turn)->hold : NULL;
        if (!hold || !doorman__hold_queue_fits(permits, queue, hold->wait)) {
            doorman__hold_queue_rest(permits, queue);
            continue;
        }
        decisions--;
        if (hold->end.at <= permits->at.now) {
            doorman__hold_refuse(permits, hold, DOORMAN_REASON_TIMED_OUT);
            continue;
        }
        if (!doorman__hold_decide(permits, hold)) {
            holds->stuck = true;
            return;
        }
        if (doorman__timers_first(&queue->turns) == turn) {
            doorman__hold_queue_rest(permits, queue); /* it still does not fit */
        } else if (turn->position) {
            moves--; /* the permit waits in another queue */
        }
    }
}

/* ---- holds: ends */

static void doorman__hold_expire(doorman_permits *permits, doorman__hold *hold) {
    assert(hold->state == DOORMAN__HELD || hold->state == DOORMAN__TRANSFERRED);
    for (size_t i = 0; i < hold->item_count; i++) {
        const doorman__hold_item *item = &doorman__hold_items(hold)[i];
        if (!(item->amount > 0)) continue;
        const doorman_permit_event event = {.kind = DOORMAN_PERMIT_HOLD_EXPIRED,
                                            .resource_id = doorman__place_id(item->place),
                                            .key = item->key,
                                            .amount = item->amount};
        doorman__permits_event(permits, event);
    }
    doorman__hold_return(permits, hold);
    if (hold->state == DOORMAN__TRANSFERRED) {
        doorman__transfer_spend(permits, hold);
    } else {
        doorman__hold_destroy(permits, hold);
    }
}

/* Ends at most `most` holds and waits whose time has come. */
static void doorman__holds_end_due(doorman_permits *permits, size_t most) {
    const doorman__timers *ends = &permits->holds.ends;
    for (size_t i = 0; i < most && doorman__timers_due(ends) <= permits->at.now; i++) {
        doorman__hold *hold = DOORMAN__WITHIN(doorman__hold, end, doorman__timers_first(ends));
        assert(hold->state != DOORMAN__NEW && hold->state != DOORMAN__SPENT);
        if (hold->state == DOORMAN__WAITING) {
            doorman__hold_refuse(permits, hold, DOORMAN_REASON_TIMED_OUT);
        } else {
            doorman__hold_expire(permits, hold);
        }
    }
}

/* Finds when the next limit has learned. */
static void doorman__holds_find_learned(doorman_permits *permits) {
    doorman_time next = DOORMAN_NEVER;
    bool learns = permits->at.now < permits->holds.learns_until;
    for (size_t i = 0; learns && i < permits->slot_count; i++) {
        doorman_time until = permits->slots[i]->learns_until;
        if (until > permits->at.now) next = doorman__earlier(next, until);
    }
    assert(next >= permits->at.now);
    permits->holds.next_learned = next;
}

/* Ends at most `most` holds and waits whose time has come, and serves the queues. */
static void doorman__holds_settle(doorman_permits *permits, size_t most) {
    doorman__holds *holds = &permits->holds;
    if (permits->at.now >= holds->next_learned) {
        doorman__holds_find_learned(permits);
        doorman__hold *hold = holds->waiting.first;
        for (; hold; hold = hold->later) doorman__hold_queue_wake(permits, hold->wait->queue);
    }
    doorman__holds_end_due(permits, most);
    doorman__holds_serve(permits, most);
}

/* Returns when the holds must be updated next. */
static doorman_time doorman__holds_due(const doorman_permits *permits) {
    const doorman__holds *holds = &permits->holds;
    doorman_time due = doorman__timers_due(&holds->ends);
    if (holds->waiting.count) due = doorman__earlier(due, holds->next_learned);
    if (!holds->first_ready) return due;
    doorman_time again = holds->stuck ? doorman__after(permits->updated_at, DOORMAN_SECOND) : 0;
    return doorman__earlier(due, again);
}

/* ---- holds: a repeated permit (P9) */

/* Returns whether a permit has the items of a hold. */
static bool doorman__hold_same(const doorman_permits *permits, const doorman__hold *hold,
                               size_t count) {
    if (hold->item_count != count) return false;
    for (size_t i = 0; i < count; i++) {
        const doorman__hold_item *item = &doorman__hold_items(hold)[i];
        const doorman__want *want = &permits->wants[i];
        bool same = doorman__equal(item->cost, want->cost) &&
                    doorman__equal(item->min, want->min) && strcmp(item->key, want->key) == 0 &&
                    strcmp(doorman__place_id(item->place), want->resource_id) == 0;
        if (!same) return false;
    }
    return true;
}

/* Describes a hold that its permit has renewed. */
static void doorman__hold_regrant(doorman_permits *permits, doorman__hold *hold,
                                  doorman_permit *out) {
    assert(hold->state == DOORMAN__HELD && hold->item_count <= permits->grant_capacity);
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < hold->item_count; i++) {
        permits->grants[i] = (doorman_permit_grant){.granted = doorman__hold_items(hold)[i].amount};
    }
    out->granted = true;
    out->items = permits->grants;
    out->item_count = hold->item_count;
    out->hold_id = hold->id;
    out->node = permits->options.node;
    out->expires_in = doorman__hold_extend(permits, hold);
}

/* Lets a repeat take over the position of a waiting permit. The earlier ticket is refused. */
static doorman_status doorman__hold_take_over(doorman_permits *permits, doorman__hold *hold,
                                              const doorman_permit_request *request,
                                              doorman_permit *out) {
    doorman__wait *wait = hold->wait, *earlier = doorman__wait_create(permits, 0);
    assert(hold->state == DOORMAN__WAITING && wait->queue);
    if (!earlier || !doorman__wait_connect(permits, wait, request->connection)) {
        doorman__wait_free(earlier);
        return DOORMAN_OUT_OF_MEMORY;
    }
    uint64_t ticket = earlier->ticket;
    earlier->ticket = wait->ticket;
    wait->ticket = ticket;
    earlier->permit = (doorman_permit){.reason = DOORMAN_REASON_REPEATED};
    doorman__wait_decided(permits, earlier);
    const doorman__hold_queue *queue = wait->queue;
    const doorman_permit_limit *limit = queue->slot ? queue->slot->limit : NULL;
    doorman_time most = request->max_wait;
    if (limit) {
        const doorman_figures *figures = doorman__counter_figures(permits, limit, queue->counter);
        most = doorman__earlier(most, figures->max_wait);
    }
    wait->asked_at = permits->at.now;
    wait->max_wait = request->max_wait;
    wait->detail = request->detail;
    hold->asked_time_to_live = request->time_to_live;
    doorman__timer_set(&permits->holds.ends, &hold->end, doorman__after(wait->asked_at, most));
    doorman__permit_pending(hold, limit ? limit->name : NULL, out);
    return DOORMAN_OK;
}

/* Decides on a permit whose client and request_id are known already. Returns false if they are
 * not. */
static bool doorman__permits_repeat(doorman_permits *permits, const doorman__decision *decision,
                                    doorman_permit *out, doorman_status *status) {
    const doorman_permit_request *request = decision->request;
    doorman__hold *hold =
        doorman__holds_find_request(permits, request->client_id, request->request_id);
    *status = DOORMAN_OK;
    if (hold && hold->state == DOORMAN__HELD && hold->end.at <= permits->at.now) {
        doorman__hold_expire(permits, hold);
        hold = NULL;
    }
    if (!hold) return false;
    assert(hold->state != DOORMAN__NEW && hold->request_id == request->request_id);
    bool same = !hold->seized && doorman__hold_same(permits, hold, request->item_count);
    bool may_wait = request->max_wait > 0 && decision->may_wait;
    if (same && hold->state == DOORMAN__WAITING && !may_wait) {
        doorman__hold_refuse(permits, hold, DOORMAN_REASON_REPEATED);
        return false;
    }
    bool has_room = doorman__connection_has_room(permits, request->connection, hold->wait);
    *out = (doorman_permit){.pending = false};
    if (same && hold->state == DOORMAN__HELD) {
        doorman__hold_regrant(permits, hold, out);
    } else if (same && hold->state == DOORMAN__WAITING && has_room) {
        *status = doorman__hold_take_over(permits, hold, request, out);
    } else {
        bool waits = same && hold->state == DOORMAN__WAITING; /* a transfer has another request */
        out->reason = waits ? DOORMAN_REASON_QUEUE_FULL : DOORMAN_REASON_REPEATED;
        doorman__want_event(permits, permits->wants, DOORMAN_PERMIT_REFUSED, out->reason, 0);
    }
    return true;
}

/* Checks a request, and reads what its items want. */
static doorman_status doorman__permits_check_whole(doorman_permits *permits,
                                                   const doorman_permit_request *request,
                                                   const char *list, doorman_error *error) {
    doorman_status status = doorman__permits_check(permits, request, list, error);
    if (status != DOORMAN_OK) return status;
    return doorman__wants_read(permits->wants, request, error);
}

/* Returns whether a permit lacks only units of CONCURRENCY. Charges nothing. */
static bool doorman__permits_lacks_units(doorman_permits *permits,
                                         const doorman__decision *decision) {
    const size_t count = decision->request->item_count;
    (void)doorman__wants_read(permits->wants, decision->request, NULL);
    bool lacks = doorman__permits_prepare(permits, count, false) &&
                 !doorman__permits_evaluate(permits, decision) &&
                 doorman__permits_lacking(permits, count);
    doorman__permits_end_call(permits, count);
    return lacks;
}

/* Settles holds before a decision. If many holds end together, the units that the permit needs may
 * belong to a hold whose end the call leaves for later. So a permit that lacks units ends more
 * holds. */
static void doorman__holds_settle_for(doorman_permits *permits, const doorman__decision *decision) {
    const doorman_permit_request *request = decision->request;
    const doorman__timers *ends = &permits->holds.ends;
    doorman__holds_settle(permits, DOORMAN__CALL_ENDS);
    for (int i = 0; i < DOORMAN__LACKING_ROUNDS; i++) {
        bool late = request->request_id && doorman__timers_due(ends) <= permits->at.now;
        if (!late || !doorman__permits_lacks_units(permits, decision)) break;
        doorman__holds_end_due(permits, DOORMAN__CALL_ENDS);
    }
    (void)doorman__wants_read(permits->wants, request, NULL); /* decisions on others used them */
}

/* Decides on the request that doorman__permits_check_whole has checked last. Sets the turn of the
 * decision. */
static doorman_status doorman__permits_run_checked(doorman_permits *permits,
                                                   doorman__decision *decision,
                                                   doorman_permit *out) {
    const doorman_permit_request *request = decision->request;
    const int priority = request->has_priority ? request->priority : 1;
    const doorman_time before = (doorman_time)(DOORMAN_PRIORITY_MAX - priority) << 58;
    doorman_status status = DOORMAN_OK;
    assert(request->item_count <= permits->want_capacity);
    doorman__moment_move(&permits->at, decision->now);
    decision->turn = before + (doorman_time)permits->holds.arrivals + 1;
    if (doorman__holds_due(permits) <= permits->at.now) {
        doorman__holds_settle_for(permits, decision);
    }
    if (!decision->inspects && request->request_id) {
        doorman__holds_prefetch_id(permits, DOORMAN__AHEAD_NODE);
        if (doorman__permits_repeat(permits, decision, out, &status)) return status;
    }
    status = doorman__permits_decide(permits, decision, out);
    doorman__permits_end_call(permits, request->item_count);
    return status;
}

static doorman_status doorman__permits_run(doorman_permits *permits, doorman__decision *decision,
                                           doorman_permit *out, doorman_error *error) {
    const char *list = decision->inspects ? NULL : "items"; /* an inspection has arguments (C10) */
    doorman_status status = doorman__permits_check_whole(permits, decision->request, list, error);
    if (status != DOORMAN_OK) return status;
    status = doorman__permits_run_checked(permits, decision, out);
    if (status == DOORMAN_INVALID_ARGUMENT) return doorman__fail(error, status, DOORMAN__HOLD_RULE);
    return status == DOORMAN_OUT_OF_MEMORY ? doorman__no_memory(error) : status;
}

doorman_status doorman_permits_acquire(doorman_permits *permits,
                                       const doorman_permit_request *request, doorman_permit *out,
                                       doorman_error *error, doorman_time now) {
    if (!permits) return doorman__missing(error, "permits");
    if (!request) return doorman__missing(error, "request");
    if (!out) return doorman__missing(error, "out");
    doorman__decision decision = {.request = request, .may_wait = true, .now = now};
    return doorman__permits_run(permits, &decision, out, error);
}

doorman_status doorman_permits_inspect(doorman_permits *permits, const char *resource_id,
                                       const char *key, doorman_permit *out, doorman_error *error,
                                       doorman_time now) {
    if (!permits) return doorman__missing(error, "permits");
    if (!resource_id) return doorman__missing(error, "resource_id");
    if (!out) return doorman__missing(error, "out");
    const doorman_permit_item item = {.resource_id = resource_id, .key = key};
    const doorman_permit_request request = {.items = &item, .item_count = 1, .detail = true};
    doorman__decision decision = {.request = &request, .inspects = true, .now = now};
    return doorman__permits_run(permits, &decision, out, error);
}

/* ---- permits: reports (P13) */

/* Returns the largest amount that a report may charge to a counter. */
static uint64_t doorman__report_room(const doorman__meter *meter, const doorman__moment *at) {
    const doorman_figures *figures = meter->figures;
    if (meter->limit->kind == DOORMAN_TOKEN_BUCKET) {
        double debt = doorman__max(doorman__lent(figures), figures->size);
        return doorman__grains_floor(doorman__level_at(figures, meter->state, at->now) + debt);
    }
    if (meter->limit->kind == DOORMAN_TIERS) {
        return doorman__tiers_offer(figures, meter->state, at->now);
    }
    uint64_t most = 2 * doorman__grains_ceil(figures->limit);
    uint64_t used = doorman__meter_used(meter, at);
    return used < most ? most - used : 0;
}

/* Returns the largest amount that a report may give back to a counter. */
static uint64_t doorman__report_refund(const doorman__meter *meter, const doorman__moment *at) {
    if (!meter->limit->refunds) return 0;
    if (meter->limit->kind == DOORMAN_FIXED_WINDOW) return doorman__meter_used(meter, at);
    double level = doorman__level_at(meter->figures, meter->state, at->now);
    return doorman__grains_floor(meter->figures->size - level);
}

/* P17: returns the largest amount that a report may charge to a lease. A lease has no debt. */
static uint64_t doorman__leased_report_room(const doorman_permits *permits,
                                            const doorman__charge *charge, double cost) {
    uint64_t room[DOORMAN__STATE_WORDS_MAX];
    if (!doorman__leased_live(permits, charge->lease, charge->limit)) return 0;
    const doorman__meter meter =
        doorman__leased_meter(permits, charge->lease, charge->limit, cost, room);
    uint64_t saved = doorman__meter_saved(&meter, &permits->at);
    uint64_t max_cost = doorman__charge_max_cost(charge);
    return max_cost < saved ? max_cost : saved;
}

/* P17: charges a report to a lease. What the lease does not have counts as demand. */
static void doorman__leased_charge_report(doorman_permits *permits, const doorman__charge *charge,
                                          int64_t grains, double cost) {
    double taken = (double)grains / DOORMAN__UNIT;
    if (grains > 0) doorman__leased_charge(permits, charge->lease, taken);
    if (!(cost - taken > 0.5 / DOORMAN__UNIT)) return;
    doorman__leased_refuse(permits, charge->lease, charge->place, charge->limit, cost - taken);
}

/* Returns the grains of a report that one counter takes; negative for a refund. */
static int64_t doorman__charge_reported(const doorman_permits *permits,
                                        const doorman__charge *charge, double cost) {
    uint64_t grains = cost < 0 ? doorman__grains_floor(-cost) : doorman__grains_ceil(cost);
    uint64_t room[DOORMAN__STATE_WORDS_MAX];
    const doorman__meter meter = doorman__charge_meter(permits, charge, room);
    uint64_t most = 0;
    if (charge->limit->leased) {
        most = cost < 0 ? 0 : doorman__leased_report_room(permits, charge, cost);
    } else if (cost < 0) {
        most = doorman__report_refund(&meter, &permits->at);
    } else {
        uint64_t max_cost = doorman__charge_max_cost(charge);
        most = doorman__report_room(&meter, &permits->at);
        if (max_cost < most) most = max_cost;
    }
    if (grains > most) grains = most;
    return cost < 0 ? -(int64_t)grains : (int64_t)grains;
}

/* Charges a report to all counters of an item, or to none. */
static doorman_status doorman__permits_charge_report(doorman_permits *permits, double cost,
                                                     double *charged) {
    int64_t amounts[DOORMAN_LIMITS_MAX] = {0}, least = 0;
    bool first = true;
    if (!doorman__permits_prepare(permits, 1, true)) return DOORMAN_OUT_OF_MEMORY;
    assert(permits->charge_count <= DOORMAN_LIMITS_MAX);
    for (size_t i = 0; i < permits->charge_count; i++) {
        doorman__charge *charge = &permits->charges[i];
        if (charge->limit->kind == DOORMAN_CONCURRENCY) continue;
        amounts[i] = doorman__charge_reported(permits, charge, cost);
        bool smaller = cost < 0 ? amounts[i] > least : amounts[i] < least;
        if (first || smaller) least = amounts[i];
        first = false;
        if (!amounts[i] || charge->counter) continue;
        if (doorman__limit_is_leased_rate(charge->limit)) continue;
        doorman_status status = doorman__charge_create(permits, charge);
        if (status == DOORMAN_OK) continue;
        doorman__permits_undo(permits);
        return status;
    }
    for (size_t i = 0; i < permits->charge_count; i++) {
        doorman__charge *charge = &permits->charges[i];
        if (doorman__limit_is_leased_rate(charge->limit)) {
            doorman__leased_charge_report(permits, charge, amounts[i], cost);
            continue;
        }
        if (!amounts[i]) continue;
        if (charge->created) doorman__charge_event(permits, charge, DOORMAN_PERMIT_KEY_CREATED, 0);
        const doorman__meter meter =
            doorman__counter_meter(permits, charge->limit, charge->counter);
        (void)doorman__meter_charge(&meter, amounts[i], &permits->at);
        if (charge->limit->durable) doorman__permits_mark(permits, charge->slot, charge->counter);
    }
    *charged = doorman__min((double)least / DOORMAN__UNIT, doorman__max(cost, 0));
    return DOORMAN_OK;
}

static doorman_status doorman__reported_cost_check(double cost, doorman_error *error) {
    if (doorman__amount_valid(cost < 0 ? -cost : cost)) return DOORMAN_OK;
    return doorman__fail(error, DOORMAN_INVALID_ARGUMENT,
                         "cost: must be a finite number from -1e15 to 1e15");
}

/* Checks a key that an application names, and reads it as an item of a permit. */
static doorman_status doorman__permits_check_key(doorman_permits *permits, const char *resource_id,
                                                 const char *key, doorman_error *error) {
    if (!permits) return doorman__missing(error, "permits");
    if (!resource_id) return doorman__missing(error, "resource_id");
    const doorman_permit_item item = {.resource_id = resource_id, .key = key};
    const doorman_permit_request request = {.items = &item, .item_count = 1};
    return doorman__permits_check_whole(permits, &request, NULL, error);
}

doorman_status doorman_permits_report(doorman_permits *permits, const doorman_permit_item *item,
                                      double *charged, doorman_error *error, doorman_time now) {
    if (!item) return doorman__missing(error, "item");
    doorman_status status =
        doorman__permits_check_key(permits, item->resource_id, item->key, error);
    if (status == DOORMAN_OK && !charged) status = doorman__missing(error, "charged");
    if (status == DOORMAN_OK) status = doorman__reported_cost_check(item->cost, error);
    if (status != DOORMAN_OK) return status;
    doorman__moment_move(&permits->at, now);
    double all = 0;
    status = doorman__permits_charge_report(permits, item->cost, &all);
    doorman__permits_end_call(permits, 1);
    if (status == DOORMAN_OK) *charged = all;
    if (status == DOORMAN_OUT_OF_MEMORY) return doorman__no_memory(error);
    if (status == DOORMAN_OK) return status;
    return doorman__fail(error, status, "there is no room for one more counter");
}

/* ---- permits: reset */

/* Ends a ban. Returns 1 if it was in force, otherwise 0. */
static size_t doorman__permits_reset_ban(doorman_permits *permits,
                                         const doorman__identity *of_key) {
    doorman__counter *ban = doorman__permits_find_ban(permits, of_key);
    bool in_force = ban && doorman__counter_ban(ban)->end.at > permits->at.now;
    if (!ban) return 0;
    doorman__slot *bans = doorman__permits_bans(permits);
    /* a ban that was made shorter may have a row that ends later */
    bool known = !in_force && !(ban->flags & DOORMAN__CHANGED);
    if (!known) doorman__permits_forget_row(permits, bans, ban, DOORMAN__REMOVALS_MAX);
    doorman__permits_remove(permits, bans, ban);
    return in_force ? 1 : 0;
}

/* Removes the counter of one limit. Returns how many counters were removed. */
static size_t doorman__permits_reset_limit(doorman_permits *permits, const doorman__place *place,
                                           size_t index, const doorman__identity *of_key) {
    assert(index < place->slot_count);
    const doorman_permit_limit *limit = &place->template_->limits[index];
    doorman__slot *slot = place->slots[index].slot;
    const doorman__identity identity = doorman__limit_identity(permits, limit, place, of_key);
    doorman__counter *counter = doorman__slot_find(slot, &identity);
    if (!counter || limit->kind == DOORMAN_CONCURRENCY) return 0; /* its units are still held */
    doorman__permits_forget_row(permits, slot, counter, DOORMAN__REMOVALS_MAX);
    doorman__permits_drop(permits, slot, counter);
    return 1;
}

/* Returns whether a reset means a limit.
 *   name   NULL: it means all limits per key */
static bool doorman__reset_means(const doorman_permit_limit *limit, const char *name) {
    return name ? strcmp(limit->name, name) == 0 : limit->per == DOORMAN_PER_KEY;
}

doorman_status doorman_permits_reset(doorman_permits *permits, const char *resource_id,
                                     const char *key, const char *limit, size_t *count,
                                     doorman_error *error) {
    doorman_status status = doorman__permits_check_key(permits, resource_id, key, error);
    if (status != DOORMAN_OK) return status;
    doorman__place *place = doorman__permits_place(permits, resource_id);
    size_t removed = 0;
    if (!place) return doorman__no_memory(error);
    const doorman__identity of_key = doorman__identity_of(permits, place, key ? key : "");
    for (size_t i = 0; i < place->slot_count; i++) {
        if (!doorman__reset_means(&place->template_->limits[i], limit)) continue;
        removed += doorman__permits_reset_limit(permits, place, i, &of_key);
    }
    if (!limit) removed += doorman__permits_reset_ban(permits, &of_key);
    if (count) *count = removed;
    return DOORMAN_OK;
}

/* ---- permits: bans by an administrator (P20) */

doorman_status doorman_permits_ban(doorman_permits *permits, const char *resource_id,
                                   const char *key, doorman_time duration, doorman_error *error,
                                   doorman_time now) {
    doorman_status status = doorman__permits_check_key(permits, resource_id, key, error);
    if (status != DOORMAN_OK) return status;
    if (!doorman__duration_valid(duration)) {
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT,
                             "duration: " DOORMAN__DURATION_OR_ZERO_RULE);
    }
    doorman__moment_move(&permits->at, now);
    doorman__place *place = doorman__permits_place(permits, resource_id);
    if (!place) return doorman__no_memory(error);
    key = key ? key : "";
    const doorman__identity of_key = doorman__identity_of(permits, place, key);
    if (!duration) {
        (void)doorman__permits_reset_ban(permits, &of_key);
        return DOORMAN_OK;
    }
    status = doorman__permits_start_ban(permits, doorman__permits_bans(permits), &of_key, duration);
    if (status == DOORMAN_OUT_OF_MEMORY) return doorman__no_memory(error);
    if (status != DOORMAN_OK) return doorman__fail(error, status, "there is no room for a ban");
    const doorman_permit_event event = {.kind = DOORMAN_PERMIT_BANNED,
                                        .resource_id = resource_id,
                                        .key = key,
                                        .reason = DOORMAN_REASON_BANNED,
                                        .amount = (double)duration / 1e9};
    doorman__permits_event(permits, event);
    return DOORMAN_OK;
}

/* ---- >>hold_requests ------------------------------------------------------------------------ */
/*
 * What clients do with their holds. The section >>holds has the rules.
 */

/* ---- holds: what clients ask */

/* What a request must have. */
typedef enum doorman__hold_needs {
    DOORMAN__NEEDS_ID,
    DOORMAN__NEEDS_ONE, /* exactly one of the two */
    DOORMAN__NEEDS_BOTH,
    DOORMAN__NEEDS_NOTHING
} doorman__hold_needs;

/* Goes through the rules that a request breaks. */
static const char *doorman__hold_request_wrong(const doorman_hold_request *request,
                                               doorman__hold_needs needs, size_t *next) {
    const bool one = needs == DOORMAN__NEEDS_ONE;
    const bool needs_id = needs == DOORMAN__NEEDS_ID || needs == DOORMAN__NEEDS_BOTH;
    const doorman__rule rules[] = {
        {!doorman__id_valid(request->client_id), "client_id: " DOORMAN__ID_RULE},
        {needs_id && !request->id, "id: is missing"},
        {request->id > DOORMAN__REQUEST_ID_MAX, "id: must be at most 2^53 - 1"},
        {needs == DOORMAN__NEEDS_BOTH && !request->request_id, "request_id: is missing"},
        {one && !request->id == !request->request_id,
         "id: exactly one of id and request_id must be given"},
        {request->request_id > DOORMAN__REQUEST_ID_MAX, "request_id: must be at most 2^53 - 1"},
        {!doorman__duration_valid(request->time_to_live),
         "time_to_live: " DOORMAN__DURATION_OR_ZERO_RULE},
        {request->amount_count && !request->amounts, "amounts: must not be NULL"},
        {request->item_count && !request->items, "items: must not be NULL"},
    };
    return DOORMAN__RULE_NEXT(rules, next);
}

static doorman_status doorman__hold_request_check(const doorman_hold_request *request,
                                                  doorman__hold_needs needs, doorman_error *error) {
    size_t next = 0;
    const char *text = doorman__hold_request_wrong(request, needs, &next);
    if (text) return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "%s", text);
    for (size_t i = 0; i < request->amount_count; i++) {
        if (doorman__amount_valid(request->amounts[i])) continue;
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "amounts[%zu]: " DOORMAN__AMOUNT_RULE,
                             i);
    }
    return DOORMAN_OK;
}

static bool doorman__hold_is_transfer(const doorman__hold *hold) {
    return hold->state == DOORMAN__TRANSFERRED || hold->state == DOORMAN__SPENT;
}

/* Returns whether a request has one amount for each item of its hold, or none. Without such a hold
 * any number is right, because the request has no effect. A permit that waits is checked like a
 * hold, because an earlier request of the same message may grant it. */
static bool doorman__hold_amounts_right(const doorman_permits *permits, const char *client_id,
                                        const doorman_hold_request *request) {
    if (!request->amount_count) return true;
    const doorman__hold *hold =
        request->id ? doorman__holds_find(permits, request->id)
                    : doorman__holds_find_request(permits, client_id, request->request_id);
    if (!hold || doorman__hold_is_transfer(hold)) return true;
    if (strcmp(doorman__owner_name(hold->owner), client_id) != 0) return true;
    return request->amount_count == hold->item_count;
}

/* Returns whether a transfer moves at most what each item has asked for. More was never held. Less
 * may be held now: a late release, or a new master that had no room, may have taken units that the
 * holder still has. So that is no error. Without such a hold, or if the transfer is repeated, the
 * amounts have no effect. What was asked for is not known of a hold that was learned. One grain
 * more is accepted, because an amount is rounded on its way. */
static bool doorman__transfer_amounts_right(const doorman_permits *permits, const char *client_id,
                                            const doorman_hold_request *request) {
    const doorman__hold *hold = doorman__holds_find(permits, request->id);
    if (!hold || hold->state != DOORMAN__HELD || hold->item_count != request->amount_count ||
        !hold->request_id || strcmp(doorman__owner_name(hold->owner), client_id) != 0 ||
        doorman__holds_find_request(permits, client_id, request->request_id)) {
        return true;
    }
    for (size_t i = 0; i < request->amount_count; i++) {
        double most = doorman__hold_items(hold)[i].cost + 1 / DOORMAN__UNIT;
        if (request->amounts[i] > most) return false;
    }
    return true;
}

/* Makes room for the items of a result. */
static bool doorman__holds_reserve_items(doorman_permits *permits, size_t count) {
    void *items = permits->holds.items;
    bool room =
        doorman__reserve(&items, &permits->holds.item_capacity, count, sizeof(doorman_hold_item));
    permits->holds.items = (doorman_hold_item *)items;
    return room;
}

/* Describes what is held. The resources and keys are valid until the next call, because places and
 * keys are only freed by a call. Precondition: there is room for the items. */
static void doorman__hold_describe(doorman_permits *permits, const doorman__hold *hold,
                                   doorman_time expires_in, doorman_hold *out) {
    assert(hold->item_count <= permits->holds.item_capacity);
    for (size_t i = 0; i < hold->item_count; i++) {
        const doorman__hold_item *item = &doorman__hold_items(hold)[i];
        permits->holds.items[i] =
            (doorman_hold_item){doorman__place_id(item->place), item->key, item->amount};
    }
    *out = (doorman_hold){.id = hold->id,
                          .node = permits->options.node,
                          .expires_in = expires_in,
                          .items = permits->holds.items,
                          .item_count = hold->item_count};
}

/* Says that a hold is gone.
 *   id   not 0 for a used transfer */
static doorman_status doorman__hold_gone(uint64_t id, doorman_hold *out) {
    *out = (doorman_hold){.gone = true, .id = id};
    return DOORMAN_OK;
}

/* Refuses a transfer or a seizure; nothing has changed. */
static doorman_status doorman__hold_refused(doorman_reason reason, doorman_hold *out) {
    *out = (doorman_hold){.reason = reason};
    return DOORMAN_OK;
}

/* Lets a hold or a transfer end later, and describes it. */
static doorman_status doorman__hold_renew(doorman_permits *permits, doorman__hold *hold,
                                          doorman_hold *out, doorman_error *error) {
    assert(hold->state == DOORMAN__HELD || hold->state == DOORMAN__TRANSFERRED);
    if (!doorman__holds_reserve_items(permits, hold->item_count)) return doorman__no_memory(error);
    doorman__hold_describe(permits, hold, doorman__hold_extend(permits, hold), out);
    return DOORMAN_OK;
}

/* Returns the hold with an id, if it belongs to the client and has not ended. */
static doorman__hold *doorman__holds_of(doorman_permits *permits, const char *client_id,
                                        uint64_t id) {
    doorman__hold *hold = doorman__holds_find(permits, id);
    if (!hold || hold->state != DOORMAN__HELD) return NULL;
    doorman__hold_prefetch_lines(hold);
    if (hold->request_id) {
        doorman__chains_prefetch(&permits->holds.by_request, hold->by_request.hash,
                                 DOORMAN__AHEAD_BUCKET);
    }
    if (strcmp(doorman__owner_name(hold->owner), client_id) != 0) return NULL;
    doorman__hold_prefetch_neighbours(permits, hold);
    if (hold->end.at > permits->at.now) return hold;
    doorman__hold_expire(permits, hold);
    return NULL;
}

/* Returns the amount that a request has for an item. */
static double doorman__hold_amount(const doorman_hold_request *request, size_t index) {
    return index < request->amount_count ? request->amounts[index] : 0;
}

/* ---- holds: renewing, and learning what is held (P16) */

static doorman_status doorman__hold_items_check(const doorman_permits *permits,
                                                const doorman_hold_request *request,
                                                doorman_error *error) {
    const size_t most = permits->options.item_max;
    if (request->item_count > most) {
        return doorman__fail(error, DOORMAN_RESOURCE_EXHAUSTED, "items: at most %zu", most);
    }
    for (size_t i = 0; i < request->item_count; i++) {
        const doorman_hold_item *item = &request->items[i];
        const doorman__rule rules[] = {
            {!doorman__id_valid(item->resource_id), "resource_id: " DOORMAN__ID_RULE},
            {item->key && !doorman__key_valid(item->key), "key: " DOORMAN__KEY_RULE},
            {!doorman__amount_valid(item->amount), "amount: " DOORMAN__AMOUNT_RULE},
        };
        size_t next = 0;
        const char *text = DOORMAN__RULE_NEXT(rules, &next);
        if (!text) continue;
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "items[%zu].%s", i, text);
    }
    return DOORMAN_OK;
}

/* Makes the request for a permit on what a predecessor has granted. An item accepts any amount up
 * to what is said to be held. Returns false if memory runs out. */
static bool doorman__holds_read_claim(doorman_permits *permits,
                                      const doorman_hold_request *request) {
    void *wants = permits->wants;
    size_t count = request->item_count;
    bool room = doorman__reserve(&wants, &permits->want_capacity, count, sizeof *permits->wants);
    permits->wants = (doorman__want *)wants;
    for (size_t i = 0; room && i < count; i++) {
        const doorman_hold_item *item = &request->items[i];
        permits->wants[i] = (doorman__want){.resource_id = item->resource_id,
                                            .key = item->key ? item->key : "",
                                            .cost = item->amount};
    }
    return room;
}

/* P16: returns whether all limits that concern a hold learn. If one has learned, the hold has
 * ended, because it ends with the shortest time to live of its limits. */
static bool doorman__permits_all_learn(const doorman_permits *permits) {
    for (size_t i = 0; i < permits->charge_count; i++) {
        const doorman__charge *charge = &permits->charges[i];
        if (charge->limit->kind != DOORMAN_CONCURRENCY || charge->limit->leased) continue;
        if (permits->at.now >= charge->own->learns_until) return false;
    }
    return true;
}

/* Divides what is free among the items, in their order. Rates are not charged: the predecessor has
 * charged them. Nothing is free at a leased limit, because its holds have ended (P17). Limits in
 * shadow only bound what their counters can count. */
static void doorman__holds_believe(doorman_permits *permits, size_t count) {
    for (size_t i = 0; i < permits->charge_count; i++) {
        doorman__charge *charge = &permits->charges[i];
        double limit = charge->limit->leased ? 0 : charge->figures->limit;
        uint64_t most = doorman__grains_ceil(charge->shadow ? DOORMAN__SUM_MAX : limit);
        uint64_t held = charge->counter ? doorman__counter_state(charge->counter)[0] : 0;
        bool bound = charge->limit->kind == DOORMAN_CONCURRENCY;
        charge->reason = DOORMAN_NO_REASON;
        charge->spare = !bound ? UINT64_MAX : held < most ? most - held : 0;
        charge->granted = charge->offer = 0;
    }
    for (size_t i = 0; i < count; i++) {
        doorman__want *want = &permits->wants[i];
        want->grains = doorman__grains_ceil(want->cost);
        for (size_t j = 0; j < want->charge_count; j++) {
            const doorman__charge *charge = &permits->charges[want->charges[j]];
            if (charge->spare < want->grains) want->grains = charge->spare;
        }
        want->granted = doorman__min(want->cost, doorman__grains_units(want->grains));
        for (size_t j = 0; j < want->charge_count; j++) {
            doorman__charge *charge = &permits->charges[want->charges[j]];
            if (charge->limit->kind != DOORMAN_CONCURRENCY) continue;
            assert(charge->spare >= want->grains);
            charge->spare -= want->grains;
            charge->offer = charge->granted += want->grains;
        }
    }
}

/* Makes a hold with the id that its client has named. Sets *out to NULL if a limit has learned, if
 * nothing is free, or if a bound forbids it. */
static doorman_status doorman__holds_learn(doorman_permits *permits,
                                           const doorman_hold_request *request,
                                           doorman__hold **out) {
    assert(permits->at.now < permits->holds.learns_until);
    const doorman_permit_request permit = {.item_count = request->item_count,
                                           .client_id = request->client_id,
                                           .time_to_live = request->time_to_live};
    doorman_permit result = {.pending = false};
    bool fits = true;
    *out = NULL;
    if (!doorman__holds_read_claim(permits, request)) return DOORMAN_OUT_OF_MEMORY;
    if (!doorman__permits_prepare(permits, request->item_count, true)) return DOORMAN_OUT_OF_MEMORY;
    if (!doorman__permits_all_learn(permits)) return DOORMAN_OK;
    doorman__holds_believe(permits, request->item_count);
    doorman_status status = doorman__permits_create_counters(permits, &fits);
    if (status != DOORMAN_OK || !fits) return status;
    const doorman__decision decision = {.request = &permit};
    status = doorman__permits_reserve_hold(permits, &decision, out, &fits);
    if (!*out) doorman__permits_undo(permits); /* also if only limits in shadow have no room */
    if (!*out) return status;
    for (size_t i = 0; i < permits->charge_count; i++) {
        doorman__charge *charge = &permits->charges[i];
        uint64_t amount = doorman__charge_amount(charge); /* 0: there is no room for the counter */
        if (!amount) continue;
        doorman__counter_state(charge->counter)[0] += amount;
        if (charge->created) doorman__charge_event(permits, charge, DOORMAN_PERMIT_KEY_CREATED, 0);
    }
    doorman__hold_grant(permits, *out, &permit, request->id, &result);
    return DOORMAN_OK;
}

static doorman_status doorman__holds_renew(doorman_permits *permits,
                                           const doorman_hold_request *request, doorman_hold *out,
                                           doorman_error *error) {
    doorman__hold *hold = doorman__holds_of(permits, request->client_id, request->id);
    if (hold) return doorman__hold_renew(permits, hold, out, error);
    bool learns = permits->at.now < permits->holds.learns_until && request->item_count &&
                  !doorman__holds_find(permits, request->id);
    if (!learns) return doorman__hold_gone(0, out);
    if (!doorman__holds_reserve_items(permits, request->item_count)) {
        return doorman__no_memory(error);
    }
    doorman_status status = doorman__holds_learn(permits, request, &hold);
    doorman__permits_end_call(permits, request->item_count);
    if (status != DOORMAN_OK) return doorman__no_memory(error);
    return hold ? doorman__hold_renew(permits, hold, out, error) : doorman__hold_gone(0, out);
}

/* ---- holds: releasing, and sharing results (P10) */

/* Refuses the permits that wait for the work of a hold that was released. */
static void doorman__holds_share(doorman_permits *permits, const doorman__hold_item *item) {
    doorman__chains *nodes = &permits->holds.by_key;
    if (!nodes->count) return;
    const doorman__identity of_key = doorman__identity_of(permits, item->place, item->key);
    doorman__chain *node = doorman__chains_first(nodes, (uint32_t)of_key.hash);
    for (doorman__chain *next = NULL; node; node = next) {
        next = node->next;
        doorman__hold *hold = DOORMAN__WITHIN(doorman__wait, by_key, node)->hold;
        assert(hold->state == DOORMAN__WAITING && hold->wait->share);
        const doorman__hold_item *other = doorman__hold_items(hold);
        bool same = other->place == item->place && strcmp(other->key, item->key) == 0;
        if (!same) continue;
        doorman__hold_refuse(permits, hold, DOORMAN_REASON_SHARED);
        next = doorman__chains_first(nodes, (uint32_t)of_key.hash); /* the lists may have changed */
    }
}

/* Releases units of a hold. */
static void doorman__hold_release(doorman_permits *permits, doorman__hold *hold,
                                  const doorman_hold_request *request, doorman_hold *out) {
    assert(hold->state == DOORMAN__HELD);
    for (size_t i = 0; i < hold->item_count; i++) {
        doorman__hold_cut(permits, hold, i, doorman__hold_amount(request, i), NULL);
    }
    doorman__hold_describe(permits, hold, 0, out);
    if (doorman__hold_has_units(hold)) return;
    for (size_t i = 0; i < hold->item_count; i++) {
        doorman__holds_share(permits, &doorman__hold_items(hold)[i]);
    }
    *out = (doorman_hold){.id = hold->id};
    doorman__hold_destroy(permits, hold);
}

static doorman_status doorman__holds_release(doorman_permits *permits,
                                             const doorman_hold_request *request, doorman_hold *out,
                                             doorman_error *error) {
    const char *client_id = request->client_id;
    doorman__hold *hold = doorman__holds_find_request(permits, client_id, request->request_id);
    bool waits = hold && hold->state == DOORMAN__WAITING;
    if (!waits) hold = doorman__holds_of(permits, client_id, hold ? hold->id : request->id);
    if (waits) {
        doorman__hold_refuse(permits, hold, DOORMAN_REASON_TIMED_OUT);
        *out = (doorman_hold){.gone = false};
    } else if (!hold) {
        (void)doorman__hold_gone(0, out);
    } else {
        bool room = doorman__holds_reserve_items(permits, hold->item_count);
        if (!room) return doorman__no_memory(error);
        doorman__hold_release(permits, hold, request, out);
    }
    doorman__holds_serve(permits, DOORMAN__CALL_ENDS);
    return DOORMAN_OK;
}

/* ---- holds: transferring and seizing (P11) */

/* Makes a copy of a hold without units, and with room for its takes. Returns OK,
 * RESOURCE_EXHAUSTED or OUT_OF_MEMORY. */
static doorman_status doorman__hold_copy(doorman_permits *permits, const doorman__hold *hold,
                                         const doorman_hold_request *request, doorman__hold **out) {
    assert(hold->state == DOORMAN__HELD || hold->state == DOORMAN__TRANSFERRED);
    const doorman__hold_item *items = doorman__hold_items(hold);
    size_t bytes = doorman__hold_items_bytes(items, hold->item_count);
    if (!doorman__holds_reserve_items(permits, hold->item_count)) return DOORMAN_OUT_OF_MEMORY;
    if (!doorman__holds_has_room(permits, request->client_id, bytes)) {
        return DOORMAN_RESOURCE_EXHAUSTED;
    }
    doorman__hold *copy = doorman__hold_create(permits, request->client_id, request->request_id,
                                               items, hold->item_count);
    if (!copy) return DOORMAN_OUT_OF_MEMORY;
    for (size_t i = 0; i < copy->item_count; i++) doorman__hold_items(copy)[i].amount = 0;
    copy->asked_time_to_live = request->time_to_live;
    *out = copy;
    if (doorman__takes_reserve(&copy->takes, hold->takes.count)) return DOORMAN_OK;
    doorman__hold_destroy(permits, copy);
    return DOORMAN_OUT_OF_MEMORY;
}

/* Turns the status of doorman__hold_copy into an answer: RESOURCE_EXHAUSTED becomes a refusal. */
static doorman_status doorman__hold_copied(doorman_status status, doorman_hold *out,
                                           doorman_error *error) {
    if (status == DOORMAN_OUT_OF_MEMORY) return doorman__no_memory(error);
    if (status == DOORMAN_OK) return DOORMAN_OK;
    return doorman__hold_refused(DOORMAN_REASON_MAX_HOLDS, out);
}

/* Answers a transfer that was made already. */
static doorman_status doorman__transfer_repeat(doorman_permits *permits, doorman__hold *transfer,
                                               doorman_hold *out, doorman_error *error) {
    bool ended = transfer->state == DOORMAN__SPENT || transfer->end.at <= permits->at.now;
    return ended ? doorman__hold_gone(transfer->id, out)
                 : doorman__hold_renew(permits, transfer, out, error);
}

/* Returns how many of `amount` units a request moves. If it moves only some, they are rounded down
 * to whole grains, so that both holds are counted in full. */
static double doorman__hold_moved(const doorman_hold_request *request, size_t index,
                                  double amount) {
    double asked = doorman__hold_amount(request, index);
    if (!request->amount_count || asked >= amount) return amount;
    return doorman__grains_units(doorman__grains_floor(asked));
}

/* Moves units into a new transfer. Precondition: some units are moved. */
static void doorman__hold_transfer(doorman_permits *permits, doorman__hold *hold,
                                   doorman__hold *transfer, const doorman_hold_request *request,
                                   doorman_hold *out) {
    assert(hold->state == DOORMAN__HELD && transfer->state == DOORMAN__NEW);
    for (size_t i = 0; i < hold->item_count; i++) {
        double amount = doorman__hold_items(hold)[i].amount;
        double moved = doorman__hold_moved(request, i, amount);
        doorman__hold_cut(permits, hold, i, amount - moved, transfer);
    }
    transfer->takes.time_to_live = hold->takes.time_to_live;
    transfer->source = hold;
    transfer->next_transfer = hold->transfers;
    hold->transfers = transfer;
    doorman_time life = doorman__hold_start(permits, transfer, DOORMAN__TRANSFERRED, 0);
    doorman__hold_describe(permits, transfer, life, out);
    if (!doorman__hold_has_units(hold)) doorman__hold_destroy(permits, hold);
}

/* Returns whether a request moves units of a hold. */
static bool doorman__hold_moves(const doorman__hold *hold, const doorman_hold_request *request) {
    for (size_t i = 0; i < hold->item_count; i++) {
        double amount = doorman__hold_items(hold)[i].amount;
        if (doorman__hold_moved(request, i, amount) > 0) return true;
    }
    return false;
}

#define DOORMAN__TRANSFER_RULE "must be at most what the item of the hold has asked for"

/* Moves units of a hold, at most what is held. Precondition: the amounts were checked. */
static doorman_status doorman__holds_move(doorman_permits *permits,
                                          const doorman_hold_request *request, doorman_hold *out,
                                          doorman_error *error) {
    doorman__hold *made =
        doorman__holds_find_request(permits, request->client_id, request->request_id);
    if (made && doorman__hold_is_transfer(made)) {
        return doorman__transfer_repeat(permits, made, out, error);
    }
    if (made) return doorman__hold_refused(DOORMAN_REASON_REPEATED, out);
    doorman__hold *hold = doorman__holds_of(permits, request->client_id, request->id);
    if (!hold || !doorman__hold_moves(hold, request)) return doorman__hold_gone(0, out);
    doorman_status status = doorman__hold_copy(permits, hold, request, &made);
    if (status == DOORMAN_OK) doorman__hold_transfer(permits, hold, made, request, out);
    return doorman__hold_copied(status, out, error);
}

/* Returns the transfer with an id, if it has not ended. */
static doorman__hold *doorman__holds_transfer(doorman_permits *permits, uint64_t id) {
    doorman__hold *transfer = doorman__holds_find(permits, id);
    if (!transfer || transfer->state != DOORMAN__TRANSFERRED) return NULL;
    if (transfer->end.at > permits->at.now) return transfer;
    doorman__hold_expire(permits, transfer);
    return NULL;
}

/* Moves all units of a transfer into a new hold. */
static void doorman__hold_seize(doorman_permits *permits, doorman__hold *transfer,
                                doorman__hold *hold, doorman_hold *out) {
    assert(transfer->state == DOORMAN__TRANSFERRED && hold->state == DOORMAN__NEW);
    for (size_t i = 0; i < transfer->item_count; i++) {
        doorman__hold_cut(permits, transfer, i, 0, hold);
    }
    hold->takes.time_to_live = transfer->takes.time_to_live;
    hold->seized = transfer->id;
    doorman_time life = doorman__hold_start(permits, hold, DOORMAN__HELD, 0);
    doorman__hold_describe(permits, hold, life, out);
    doorman__transfer_spend(permits, transfer);
}

static doorman_status doorman__holds_seize(doorman_permits *permits,
                                           const doorman_hold_request *request, doorman_hold *out,
                                           doorman_error *error) {
    doorman__hold *made =
        doorman__holds_find_request(permits, request->client_id, request->request_id);
    if (made && made->seized != request->id) {
        return doorman__hold_refused(DOORMAN_REASON_REPEATED, out);
    }
    if (made) made = doorman__holds_of(permits, request->client_id, made->id);
    if (made) return doorman__hold_renew(permits, made, out, error);
    doorman__hold *transfer = doorman__holds_transfer(permits, request->id);
    if (!transfer) return doorman__hold_gone(0, out);
    doorman_status status = doorman__hold_copy(permits, transfer, request, &made);
    if (status == DOORMAN_OK) doorman__hold_seize(permits, transfer, made, out);
    return doorman__hold_copied(status, out, error);
}

/* ---- holds: calls */

/* What a client asks about a hold. */
typedef struct doorman__hold_call {
    doorman_method method; /* RENEW to SEIZE */
    const doorman_hold_request *request;
    doorman_hold *out;
    bool in_message; /* its amounts were checked with the whole message */
    doorman_time now;
} doorman__hold_call;

static doorman__hold_needs doorman__method_needs(doorman_method method) {
    if (method == DOORMAN_RENEW) return DOORMAN__NEEDS_ID;
    return method == DOORMAN_RELEASE ? DOORMAN__NEEDS_ONE : DOORMAN__NEEDS_BOTH;
}

/* Checks what a client asks, and does it. */
static doorman_status doorman__holds_call(doorman_permits *permits, const doorman__hold_call *call,
                                          doorman_error *error) {
    assert(call->method >= DOORMAN_RENEW && call->method <= DOORMAN_SEIZE);
    static doorman_status (*const functions[])(doorman_permits *, const doorman_hold_request *,
                                               doorman_hold *, doorman_error *) = {
        doorman__holds_renew, doorman__holds_release, doorman__holds_move, doorman__holds_seize};
    const doorman_hold_request *request = call->request;
    if (!permits) return doorman__missing(error, "permits");
    if (!request) return doorman__missing(error, "request");
    if (!call->out) return doorman__missing(error, "out");
    const bool renews = call->method == DOORMAN_RENEW;
    const bool transfers = call->method == DOORMAN_TRANSFER && !call->in_message;
    doorman_status status =
        doorman__hold_request_check(request, doorman__method_needs(call->method), error);
    if (status == DOORMAN_OK && renews) status = doorman__hold_items_check(permits, request, error);
    if (status != DOORMAN_OK) return status;
    doorman__moment_move(&permits->at, call->now);
    doorman__holds_settle(permits, DOORMAN__CALL_ENDS);
    const char *rule = NULL;
    if (!doorman__hold_amounts_right(permits, request->client_id, request)) {
        rule = "must be one for each item of the hold";
    } else if (transfers &&
               !doorman__transfer_amounts_right(permits, request->client_id, request)) {
        rule = DOORMAN__TRANSFER_RULE;
    }
    if (rule) return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "amounts: %s", rule);
    return functions[call->method - DOORMAN_RENEW](permits, request, call->out, error);
}

doorman_status doorman_permits_renew(doorman_permits *permits, const doorman_hold_request *request,
                                     doorman_hold *out, doorman_error *error, doorman_time now) {
    const doorman__hold_call call = {
        .method = DOORMAN_RENEW, .request = request, .out = out, .now = now};
    return doorman__holds_call(permits, &call, error);
}

doorman_status doorman_permits_release(doorman_permits *permits,
                                       const doorman_hold_request *request, doorman_hold *out,
                                       doorman_error *error, doorman_time now) {
    const doorman__hold_call call = {
        .method = DOORMAN_RELEASE, .request = request, .out = out, .now = now};
    return doorman__holds_call(permits, &call, error);
}

doorman_status doorman_permits_transfer(doorman_permits *permits,
                                        const doorman_hold_request *request, doorman_hold *out,
                                        doorman_error *error, doorman_time now) {
    const doorman__hold_call call = {
        .method = DOORMAN_TRANSFER, .request = request, .out = out, .now = now};
    return doorman__holds_call(permits, &call, error);
}

doorman_status doorman_permits_seize(doorman_permits *permits, const doorman_hold_request *request,
                                     doorman_hold *out, doorman_error *error, doorman_time now) {
    const doorman__hold_call call = {
        .method = DOORMAN_SEIZE, .request = request, .out = out, .now = now};
    return doorman__holds_call(permits, &call, error);
}

/* ---- holds: cancelling, decisions and lists */

size_t doorman_permits_cancel(doorman_permits *permits, uint64_t connection, doorman_time now) {
    if (!permits) return 0;
    doorman__moment_move(&permits->at, now);
    doorman__owner *owner = doorman__owner_find(permits, &connection, sizeof connection, true);
    size_t count = 0, left = owner ? owner->wait_count : 0;
    doorman__hold *hold = permits->holds.waiting.first;
    for (doorman__hold *next = NULL; hold && count < left; hold = next) {
        next = hold->later;
        if (hold->wait->connection != owner) continue;
        doorman__wait_free(doorman__hold_end_wait(permits, hold));
        doorman__hold_destroy(permits, hold);
        count++;
    }
    assert(count == left);
    doorman__holds_settle(permits, DOORMAN__CALL_ENDS);
    return count;
}

bool doorman_permits_next_decision(doorman_permits *permits, uint64_t *ticket,
                                   doorman_permit *out) {
    if (!permits || !ticket || !out) return false;
    doorman__holds *holds = &permits->holds;
    doorman__wait_free(holds->given);
    doorman__wait *wait = holds->given = holds->first_decision;
    if (!wait) return false;
    assert(!wait->hold && !wait->queue);
    holds->first_decision = wait->next;
    if (!holds->first_decision) holds->last_decision = NULL;
    *ticket = wait->ticket;
    *out = wait->permit;
    return true;
}

#define DOORMAN__LISTED_HOLDS 100

/* Returns the next hold of a list, or NULL at the end. */
static const doorman__hold *doorman__hold_list_next(const doorman__hold_list *list,
                                                    doorman_cursor *cursor) {
    const doorman__hold *hold = list->first;
    for (uint64_t i = 0; hold && i < cursor->position; i++) hold = hold->later;
    cursor->at_end = !hold || cursor->position >= DOORMAN__LISTED_HOLDS;
    if (cursor->at_end) return NULL;
    cursor->position++;
    return hold;
}

static void doorman__hold_show(const doorman__hold *hold, doorman_permits_hold *out) {
    bool held = hold->state == DOORMAN__HELD;
    const doorman__hold_item *first = doorman__hold_items(hold);
    *out = (doorman_permits_hold){.client_id = held ? doorman__owner_name(hold->owner) : NULL,
                                  .id = hold->id,
                                  .resource_id = doorman__place_id(first->place),
                                  .key = first->key,
                                  .amount = first->amount,
                                  .item_count = hold->item_count,
                                  .granted_at = hold->granted_at,
                                  .ends_at = hold->end.at};
}

bool doorman_permits_next_hold(const doorman_permits *permits, doorman_cursor *cursor,
                               doorman_permits_hold *out) {
    if (!permits || !cursor || !out) return false;
    const doorman__hold *hold = doorman__hold_list_next(&permits->holds.granted, cursor);
    if (hold) doorman__hold_show(hold, out);
    return hold != NULL;
}

/* Returns the hold or the transfer with an id, if it has units. */
static doorman__hold *doorman__holds_find_granted(const doorman_permits *permits, uint64_t id) {
    doorman__hold *hold = id ? doorman__holds_find(permits, id) : NULL;
    bool has_units = hold && (hold->state == DOORMAN__HELD || hold->state == DOORMAN__TRANSFERRED);
    return has_units ? hold : NULL;
}

bool doorman_permits_find_hold(const doorman_permits *permits, uint64_t id,
                               doorman_permits_hold *out) {
    if (!permits || !out) return false;
    const doorman__hold *hold = doorman__holds_find_granted(permits, id);
    if (hold) doorman__hold_show(hold, out);
    return hold != NULL;
}

bool doorman_permits_end_hold(doorman_permits *permits, uint64_t id, doorman_time now) {
    if (!permits) return false;
    doorman__moment_move(&permits->at, now);
    doorman__holds_settle(permits, DOORMAN__CALL_ENDS);
    doorman__hold *hold = doorman__holds_find_granted(permits, id);
    if (!hold) return false;
    doorman__hold_expire(permits, hold);
    doorman__holds_settle(permits, DOORMAN__CALL_ENDS);
    return true;
}

bool doorman_permits_next_wait(const doorman_permits *permits, doorman_cursor *cursor,
                               doorman_permits_wait *out) {
    if (!permits || !cursor || !out) return false;
    const doorman__hold *hold = doorman__hold_list_next(&permits->holds.waiting, cursor);
    if (!hold) return false;
    const doorman__wait *wait = hold->wait;
    const doorman__hold_item *item = &doorman__hold_items(hold)[wait->item];
    const doorman__slot *slot = wait->queue ? wait->queue->slot : NULL;
    *out = (doorman_permits_wait){.client_id = doorman__owner_name(hold->owner),
                                  .resource_id = doorman__place_id(item->place),
                                  .key = item->key,
                                  .limit = slot && slot->limit ? slot->limit->name : NULL,
                                  .cost = item->cost,
                                  .priority = DOORMAN_PRIORITY_MAX - (int)(wait->rank >> 58),
                                  .asked_at = wait->asked_at,
                                  .ends_at = hold->end.at};
    return true;
}

/* ---- holds: a changed configuration (P15) */

/* Finds or makes the counter of a limit in the new table of its slot. Returns NULL if memory runs
 * out. */
static doorman__counter *doorman__recount_counter(doorman_permits *permits, doorman__slot *slot,
                                                  const doorman_permit_limit *limit,
                                                  const doorman__identity *identity) {
    assert(slot->kind == DOORMAN_CONCURRENCY && limit->kind == DOORMAN_CONCURRENCY);
    doorman__counter *counter = doorman__counter_find(&slot->next_nodes, identity);
    if (counter) return counter;
    counter = doorman__counter_create(identity, 2, 0);
    if (!counter) return NULL;
    if (limit->leased) counter->flags |= DOORMAN__LEASED_UNITS;
    counter->node.tag = identity->tag;
    counter->generation = (uint16_t)(permits->generation + 1);
    counter->override_ = doorman__limit_override(limit, identity->key);
    if (doorman__chains_add(&slot->next_nodes, &counter->node, (uint32_t)identity->hash)) {
        return counter;
    }
    DOORMAN_FREE(counter);
    return NULL;
}

/* A new configuration, and its slots: see own_slots of doorman_permits. */
typedef struct doorman__recount {
    const doorman_config *config;
    doorman__slot **own;
} doorman__recount;

/* Returns the limits of an item, and how many there are. */
static const doorman_permit_limit *doorman__recount_limits(const doorman__recount *recount,
                                                           const doorman__hold_item *item,
                                                           size_t *count) {
    const doorman_template *found =
        doorman_config_find(recount->config, doorman__place_id(item->place));
    *count = found && found->has_limits ? found->limit_count : 0;
    return *count ? found->limits : NULL;
}

/* Returns how long a hold lasts by the new configuration, for which rows are not resolved yet. An
 * override row gives no such time, but it hides what a plan gives. */
static doorman_time doorman__recount_life(const doorman_permits *permits,
                                          const doorman__recount *recount,
                                          const doorman_permit_limit *limit,
                                          const doorman__hold_item *item, uint16_t override_) {
    const doorman_time life = doorman__limit_figures(limit, override_)->time_to_live;
    if (!limit->plan_count || !permits->overrides.orders[1].count) return life;
    const doorman__slot *slot = recount->own[doorman__limit_index(recount->config, limit)];
    const doorman__identity identity = doorman__identity_of(permits, item->place, item->key);
    const uint32_t of_place = (uint32_t)item->place->hash;
    const doorman__plan_key of = {.glob = slot->glob,
                                  .key = identity.key,
                                  .key_bytes = identity.key_bytes,
                                  .glob_hash = slot->glob_hash,
                                  .key_hash = (uint32_t)identity.hash - 3 * of_place};
    const doorman_plan *plan = doorman__limit_plan(permits, limit, &of);
    return plan ? plan->figures.time_to_live : life;
}

/* Returns whether a limit counts the units that a key holds. */
static bool doorman__limit_holds(const doorman_permit_limit *limit, const char *key) {
    if (limit->kind != DOORMAN_CONCURRENCY) return false;
    return !limit->key_count || doorman__keys_concern(limit->keys, limit->key_count, key);
}

/* Returns the new counter of a limit for an item. Returns NULL if memory runs out. */
static doorman__counter *doorman__recount_item(doorman_permits *permits,
                                               const doorman__recount *recount,
                                               const doorman_permit_limit *limit,
                                               const doorman__hold_item *item) {
    doorman__slot *slot = recount->own[doorman__limit_index(recount->config, limit)];
    const doorman__identity of_key = doorman__identity_of(permits, item->place, item->key);
    const doorman__identity identity =
        doorman__limit_identity(permits, limit, item->place, &of_key);
    return doorman__recount_counter(permits, slot, limit, &identity);
}

/* Counts a hold in the new counters. The sum of several old counters may be larger than a counter
 * can count. The new counter then counts up to its maximum. Returns false if memory runs out. */
static bool doorman__recount_hold(doorman_permits *permits, const doorman__recount *recount,
                                  doorman__hold *hold) {
    size_t all = 0, count = 0;
    const uint64_t most = doorman__grains_floor(DOORMAN__SUM_MAX);
    const doorman__hold_item *items = doorman__hold_items(hold);
    for (size_t i = 0; i < hold->item_count; i++) {
        const doorman_permit_limit *limits = doorman__recount_limits(recount, &items[i], &count);
        for (size_t j = 0; items[i].amount > 0 && j < count; j++) {
            all += doorman__limit_holds(&limits[j], items[i].key);
        }
    }
    if (!doorman__takes_reserve(&hold->next_takes, all)) return false;
    for (size_t i = 0; i < hold->item_count; i++) {
        const doorman_permit_limit *limits = doorman__recount_limits(recount, &items[i], &count);
        for (size_t j = 0; items[i].amount > 0 && j < count; j++) {
            if (!doorman__limit_holds(&limits[j], items[i].key)) continue;
            doorman__counter *counter =
                doorman__recount_item(permits, recount, &limits[j], &items[i]);
            if (!counter) return false;
            const doorman_time life =
                doorman__recount_life(permits, recount, &limits[j], &items[i], counter->override_);
            uint64_t *state = doorman__counter_state(counter);
            uint64_t units = doorman__grains_ceil(items[i].amount);
            if (units > most - state[0]) units = most - state[0];
            if (!units) continue; /* the counter cannot count more */
            assert(state[0] < most);
            state[0] += units;
            doorman__takes_add(&hold->next_takes, counter, units, i, life);
        }
    }
    /* a hold without limits lasts as long as before */
    if (!hold->next_takes.count) hold->next_takes.time_to_live = hold->takes.time_to_live;
    return true;
}

/* Chooses the new queue of a waiting permit: that of the first limit that concerns it. Returns
 * false if memory runs out. */
static bool doorman__recount_wait(doorman_permits *permits, const doorman__recount *recount,
                                  doorman__hold *hold) {
    assert(hold->state == DOORMAN__WAITING && !hold->wait->next_queue);
    doorman__wait *wait = hold->wait;
    doorman__hold_queue *queue = &permits->holds.loose;
    for (size_t i = 0; i < hold->item_count && !queue->slot; i++) {
        const doorman__hold_item *item = &doorman__hold_items(hold)[i];
        size_t count = 0;
        const doorman_permit_limit *limits = doorman__recount_limits(recount, item, &count);
        for (size_t j = 0; j < count && !queue->slot; j++) {
            if (!(item->cost > 0) || !doorman__limit_holds(&limits[j], item->key)) continue;
            doorman__counter *counter = doorman__recount_item(permits, recount, &limits[j], item);
            doorman__slot *slot = recount->own[doorman__limit_index(recount->config, &limits[j])];
            queue = counter ? doorman__hold_queue_get(permits, slot, counter) : NULL;
            if (!queue) return false;
        }
    }
    bool room = doorman__timers_reserve(&queue->turns, queue->expected + queue->turns.count + 1);
    if (room) queue->expected++;
    wait->next_queue = room ? queue : NULL;
    return room;
}

/* Frees the counters of a table, with their queues. */
static void doorman__recount_free(doorman_permits *permits, doorman__chains *nodes) {
    for (size_t i = 0; i < nodes->bucket_count; i++) {
        doorman__chain *node = *doorman__chains_at(nodes, i);
        for (; node; node = node->next) {
            doorman__hold_queue *queue = doorman__counter_queue((doorman__counter *)(void *)node);
            if (!queue) continue;
            assert(!queue->turns.count);
            doorman__timers_uninit(&queue->turns);
            DOORMAN_FREE(queue);
            permits->node_bytes -= sizeof *queue;
        }
    }
    doorman__chains_free_all(nodes);
}

/* Adds the counters of a table to the sums over all counters, or subtracts them. */
static void doorman__recount_sums(doorman_permits *permits, const doorman__chains *nodes,
                                  bool adds) {
    for (size_t i = 0; i < nodes->bucket_count; i++) {
        doorman__chain *node = *doorman__chains_at(nodes, i);
        for (; node; node = node->next) {
            assert(adds || permits->counter_count > 0);
            doorman__place *place = doorman__permits_place_of(permits, node->tag);
            size_t bytes = doorman__counter_bytes((doorman__counter *)(void *)node);
            permits->counter_count = adds ? permits->counter_count + 1 : permits->counter_count - 1;
            permits->node_bytes = adds ? permits->node_bytes + bytes : permits->node_bytes - bytes;
            if (place)
                place->counter_count = adds ? place->counter_count + 1 : place->counter_count - 1;
        }
    }
}

/* Counts all holds in new counters. Returns false if memory runs out. The old counters stay in use
 * until doorman__holds_recounted. */
static bool doorman__holds_recount(doorman_permits *permits, const doorman_config *config,
                                   doorman__slot **own) {
    const doorman__recount recount = {config, own};
    doorman__holds *holds = &permits->holds;
    bool counted = true;
    for (doorman__hold *hold = holds->granted.first; hold && counted; hold = hold->later) {
        doorman__hold_prefetch_lines(hold->later);
        counted = doorman__recount_hold(permits, &recount, hold);
    }
    for (doorman__hold *hold = holds->waiting.first; hold && counted; hold = hold->later) {
        counted = doorman__recount_wait(permits, &recount, hold);
    }
    if (counted) return true;
    for (doorman__hold *hold = holds->granted.first; hold; hold = hold->later) {
        DOORMAN_FREE(hold->next_takes.list);
        hold->next_takes = (doorman__takes){.list = NULL};
    }
    for (doorman__hold *hold = holds->waiting.first; hold; hold = hold->later) {
        hold->wait->next_queue = NULL;
    }
    for (size_t i = 0; i < permits->slot_count; i++) {
        doorman__recount_free(permits, &permits->slots[i]->next_nodes);
    }
    holds->loose.expected = 0;
    return false;
}

/* Replaces the counters of holds by the new ones. All queues are ready then. */
static void doorman__holds_recounted(doorman_permits *permits) {
    doorman__holds *holds = &permits->holds;
    for (doorman__hold *hold = holds->waiting.first; hold; hold = hold->later) {
        doorman__turn_clear(hold->wait);
    }
    holds->first_ready = holds->last_ready = NULL;
    holds->loose.ready = false;
    for (size_t i = 0; i < permits->slot_count; i++) {
        doorman__slot *slot = permits->slots[i];
        if (slot->kind != DOORMAN_CONCURRENCY) continue;
        doorman__recount_sums(permits, &slot->nodes, false);
        doorman__recount_free(permits, &slot->nodes);
        slot->nodes = slot->next_nodes;
        slot->next_nodes = (doorman__chains){.segments = NULL};
        doorman__recount_sums(permits, &slot->nodes, true);
    }
    for (doorman__hold *hold = holds->granted.first; hold; hold = hold->later) {
        doorman__hold_prefetch_lines(hold->later);
        DOORMAN_FREE(hold->takes.list);
        hold->takes = hold->next_takes;
        hold->next_takes = (doorman__takes){.list = NULL};
    }
    for (doorman__hold *hold = holds->waiting.first; hold; hold = hold->later) {
        doorman__wait *wait = hold->wait;
        wait->queue = wait->next_queue;
        assert(wait->queue);
        wait->next_queue = NULL;
        wait->need = 0; /* it is decided again */
        wait->queue->expected = 0;
        doorman__turn_set(wait);
        doorman__hold_queue_wake(permits, wait->queue);
    }
}

/* Returns the name of a limit in a configuration, or NULL. */
static const char *doorman__config_limit_name(const doorman_config *config, const char *name) {
    for (size_t i = 0; name && i < config->template_count; i++) {
        const doorman_template *template_ = &config->templates[i];
        for (size_t j = 0; j < template_->limit_count; j++) {
            if (strcmp(template_->limits[j].name, name) == 0) return template_->limits[j].name;
        }
    }
    return NULL;
}

/* Returns the name of a plan in a configuration, or NULL. */
static const char *doorman__config_plan_name(const doorman_config *config, const char *name) {
    for (size_t i = 0; name && i < config->template_count; i++) {
        const doorman_template *template_ = &config->templates[i];
        for (size_t j = 0; j < template_->limit_count; j++) {
            const doorman_permit_limit *limit = &template_->limits[j];
            for (size_t k = 0; k < limit->plan_count; k++) {
                if (strcmp(limit->plans[k].name, name) == 0) return limit->plans[k].name;
            }
        }
    }
    return NULL;
}

/* Lets the decisions that nobody has taken yet point to the names of a new configuration. A limit
 * that is not there any more becomes NULL. */
static void doorman__holds_rename(doorman_permits *permits, const doorman_config *config) {
    for (doorman__wait *wait = permits->holds.first_decision; wait; wait = wait->next) {
        assert(!wait->hold);
        doorman_permit_grant *grants = (doorman_permit_grant *)(void *)(wait + 1);
        wait->permit.limit = doorman__config_limit_name(config, wait->permit.limit);
        for (size_t i = 0; i < wait->permit.item_count; i++) {
            grants[i].limit = doorman__config_limit_name(config, grants[i].limit);
        }
        size_t kept = 0;
        for (size_t i = 0; i < wait->permit.detail_count; i++) {
            doorman_permit_detail *detail = &wait->details[i];
            detail->limit = doorman__config_limit_name(config, detail->limit);
            detail->plan = doorman__config_plan_name(config, detail->plan);
            if (detail->limit) wait->details[kept++] = *detail;
        }
        wait->permit.detail_count = kept;
    }
}

/* Frees all holds, waits and decisions. The counters are freed by the caller. */
static void doorman__holds_clear(doorman_permits *permits) {
    doorman__holds *holds = &permits->holds;
    while (holds->waiting.first) {
        doorman__hold *hold = holds->waiting.first;
        doorman__wait_free(doorman__hold_end_wait(permits, hold));
        doorman__hold_destroy(permits, hold);
    }
    while (holds->granted.first) {
        /* the source of a transfer is before it in the list, so the first one has no source */
        doorman__hold *hold = holds->granted.first;
        assert(hold->state != DOORMAN__NEW);
        doorman__hold_return(permits, hold);
        doorman__hold_destroy(permits, hold);
    }
    while (holds->first_ready) doorman__hold_queue_rest(permits, holds->first_ready);
    for (doorman__wait *next = NULL, *wait = holds->first_decision; wait; wait = next) {
        next = wait->next;
        doorman__wait_free(wait);
    }
    doorman__wait_free(holds->given);
    holds->first_decision = holds->last_decision = holds->given = NULL;
}

/* Frees the memory of the tables. Precondition: there are no holds. */
static void doorman__holds_uninit(doorman__holds *holds) {
    assert(!holds->granted.count && !holds->spent.count && !holds->waiting.count);
    doorman__chains_uninit(&holds->by_id);
    doorman__chains_uninit(&holds->by_request);
    doorman__chains_uninit(&holds->by_key);
    doorman__chains_uninit(&holds->owners);
    doorman__timers_uninit(&holds->ends);
    doorman__timers_uninit(&holds->loose.turns);
    DOORMAN_FREE(holds->items);
    DOORMAN_FREE(holds->made);
}

/* ---- >>state -------------------------------------------------------------------------------- */
/*
 * Rows of counters and bans, which a store keeps over a restart. The public part has the rules D3
 * and D5, and >>counters has the header of a row and notes what has changed.
 *
 * A change sets a flag in its counter, and a bit for its bucket in the table of its limit. So it
 * costs no memory, and a counter that is removed needs no care. The next row is found by the bits:
 * 64 of them are one word, so a million counters are 16,000 words. A removed counter leaves its row
 * in a list.
 *
 * The figures follow the header of a row. Times are since 1970.
 *     ban              what is left of it
 *     TOKEN_BUCKET     the level, as the bits of a double; when it had this level
 *     FIXED_WINDOW     begin and end of the window; its grains
 *     SLIDING_WINDOW   a ring: the length of the window; the begin of the last slice that has
 *                      units; the grains of 16 slices, the last one first
 *     TIERS            one byte: how many tiers follow; for each tier: when it was entered, and a
 *                      ring whose length is 0 if the tier was never entered
 *
 * A restored ring keeps the begin of its slices: the time from which its slices count is set so
 * that its last slice has the index 16. So units return exactly when they would have returned, also
 * after many restarts.
 */

/* ---- state: reading the header of a row */

/* What is left of a row. */
typedef struct doorman__permit_row_rest {
    const unsigned char *at, *end;
    bool short_; /* the row has ended too early */
} doorman__permit_row_rest;

static uint64_t doorman__permit_row_number(doorman__permit_row_rest *rest, size_t bytes) {
    assert(bytes <= 8 && rest->at <= rest->end);
    rest->short_ = rest->short_ || (size_t)(rest->end - rest->at) < bytes;
    if (rest->short_) return 0;
    rest->at += bytes;
    return doorman__le_read(rest->at - bytes, bytes);
}

static doorman_time doorman__permit_row_time(doorman__permit_row_rest *rest) {
    return (doorman_time)doorman__permit_row_number(rest, 8);
}

/* Returns a string of at most 256 bytes, or "" if there is none. */
static const char *doorman__permit_row_string(doorman__permit_row_rest *rest) {
    const size_t left = (size_t)(rest->end - rest->at), most = DOORMAN_ID_BYTES_MAX + 1;
    const void *end = rest->short_ ? NULL : memchr(rest->at, 0, left < most ? left : most);
    const char *text = (const char *)rest->at;
    rest->short_ = !end;
    if (!end) return "";
    rest->at = (const unsigned char *)end + 1;
    return text;
}

/* Returns the index of a letter, or `count` if there is none. */
static size_t doorman__letter_index(const char *letters, size_t count, unsigned char letter) {
    size_t i = 0;
    while (i < count && (!letters[i] || (unsigned char)letters[i] != letter)) i++;
    return i;
}

/* Returns the first rule that the header of a row breaks, or NULL.
 *   of_limit, of_resource   the strings of the identity */
static const char *doorman__permit_row_wrong(const doorman_permit_row *row, const char *of_limit,
                                             const char *of_resource) {
    const bool counts = !row->is_ban && !row->is_clock;
    const bool shares = counts && row->per == DOORMAN_PER_TEMPLATE;
    const bool empty = !of_resource[0] && !row->limit[0] && !row->key[0];
    const doorman__rule rules[] = {
        {!row->version, "version: must not be 0"},
        {!counts && row->per != DOORMAN_PER_KEY, "per: must be key without a limit"},
        {!counts && of_limit[0], "limit: must be empty in the identity of a ban"},
        {row->is_clock && (row->removed || !empty), "key: the clock has none"},
        {(counts || row->limit[0]) && !doorman__id_valid(row->limit), "limit: " DOORMAN__ID_RULE},
        {counts && strcmp(of_limit, row->limit) != 0, "limit: must be the same twice"},
        {!row->is_clock && !doorman__id_valid(of_resource), "resource_id: " DOORMAN__ID_RULE},
        {!doorman__key_valid(row->key), "key: " DOORMAN__KEY_RULE},
        {row->per != DOORMAN_PER_KEY && row->key[0], "key: needs a counter per key"},
        {!doorman__key_valid(row->identifier_glob), "identifier_glob: " DOORMAN__KEY_RULE},
        {shares && strcmp(of_resource, row->identifier_glob) != 0,
         "identifier_glob: must be the same twice"},
        {row->written_at < 0 || row->written_at > DOORMAN__EPOCH_MAX,
         "written_at: must be a time from 1970 to 2223"},
        {row->fresh_at < row->written_at, "fresh_at: must not be before written_at"},
    };
    size_t next = 0;
    return DOORMAN__RULE_NEXT(rules, &next);
}

/* Reads the header of a row, and leaves the figures in `rest`. Returns what is wrong, or NULL. */
static const char *doorman__permit_row_parse(const unsigned char *bytes, size_t count,
                                             doorman_permit_row *out,
                                             doorman__permit_row_rest *rest) {
    *rest = (doorman__permit_row_rest){.at = bytes, .end = bytes + count};
    if (count > DOORMAN_PERMIT_ROW_BYTES_MAX) return "bytes: must be at most 4,096";
    *out = (doorman_permit_row){.version = (unsigned)doorman__permit_row_number(rest, 1)};
    const uint64_t removed = doorman__permit_row_number(rest, 1);
    out->removed = removed > 0;
    out->identity_bytes = (size_t)doorman__permit_row_number(rest, 2);
    out->written_at = doorman__permit_row_time(rest);
    out->fresh_at = doorman__permit_row_time(rest);
    out->identity = rest->at;
    const unsigned char kind = (unsigned char)doorman__permit_row_number(rest, 1);
    const unsigned char per = (unsigned char)doorman__permit_row_number(rest, 1);
    const char *of_limit = doorman__permit_row_string(rest);
    const char *of_resource = doorman__permit_row_string(rest);
    out->key = doorman__permit_row_string(rest);
    const size_t identity_bytes = (size_t)(rest->at - out->identity);
    out->identifier_glob = doorman__permit_row_string(rest);
    out->limit = doorman__permit_row_string(rest);
    if (rest->short_) return "bytes: the row ends within its header";
    if (removed > 1) return "removed: must be 0 or 1";
    if (identity_bytes != out->identity_bytes) return "identity_bytes: differs from the identity";
    const size_t kinds = sizeof doorman__kind_letters, scopes = sizeof doorman__scope_letters;
    const size_t index = doorman__letter_index(doorman__kind_letters, kinds, kind);
    const size_t scope = doorman__letter_index(doorman__scope_letters, scopes, per);
    out->is_ban = kind == DOORMAN__PERMIT_ROW_BAN;
    out->is_clock = kind == DOORMAN__PERMIT_ROW_CLOCK;
    if (index == kinds && !out->is_ban && !out->is_clock) return "kind: is not known";
    if (scope == scopes) return "per: is not known";
    if (index < kinds) out->kind = (doorman_limit_kind)index;
    out->per = (doorman_scope)scope;
    out->resource_id = out->per == DOORMAN_PER_TEMPLATE ? "" : of_resource;
    return doorman__permit_row_wrong(out, of_limit, of_resource);
}

doorman_status doorman_permit_row_read(const unsigned char *row, size_t bytes,
                                       doorman_permit_row *out, doorman_error *error) {
    if (!row) return doorman__missing(error, "row");
    if (!out) return doorman__missing(error, "out");
    doorman_permit_row read = {.version = 0};
    doorman__permit_row_rest rest;
    const char *wrong = doorman__permit_row_parse(row, bytes, &read, &rest);
    if (wrong) return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "%s", wrong);
    *out = read;
    return DOORMAN_OK;
}

/* ---- state: figures of a row */

/* The units of a window with slices. In a row the times are since 1970; in a ring that is restored
 * they are those of `now`. */
typedef struct doorman__row_ring {
    doorman_time window;              /* 0: there was none */
    doorman_time begin;               /* of the last slice */
    uint64_t grains[DOORMAN__SLICES]; /* the last slice first */
} doorman__row_ring;

/* The figures of a row, by kind. */
typedef struct doorman__row_figures {
    doorman_time rest; /* of a ban */
    double level;      /* TOKEN_BUCKET, at the time `at` */
    doorman_time at;
    doorman__span span; /* FIXED_WINDOW */
    uint64_t used;
    size_t ring_count; /* of tiers; of a SLIDING_WINDOW: 1 */
    doorman_time entered[DOORMAN_TIERS_MAX];
    doorman__row_ring rings[DOORMAN_TIERS_MAX];
} doorman__row_figures;

#define DOORMAN__ROW_GRAINS_MAX (UINT64_C(1) << 63) /* more than any counter has */

static doorman__row_ring doorman__row_ring_of(doorman_time window, doorman_time origin,
                                              const uint64_t *ring, const doorman__moment *at) {
    const uint64_t last = ring[0], now = doorman__slice_at(at->now - origin, window);
    doorman_time begin = origin + doorman__slice_begin(last, window);
    doorman__row_ring out = {.window = window, .begin = doorman__moment_epoch_of(at, begin)};
    assert(last <= now);
    for (uint64_t back = 0; back < DOORMAN__SLICES && back <= last; back++) {
        if (last - back + DOORMAN__SLICES <= now) break;
        out.grains[back] = ring[1 + (last - back) % DOORMAN__SLICES];
    }
    return out;
}

static unsigned char *doorman__row_ring_write(unsigned char *to, const doorman__row_ring *ring) {
    to = doorman__le_write(to, (uint64_t)ring->window, 8);
    to = doorman__le_write(to, (uint64_t)ring->begin, 8);
    for (size_t i = 0; i < DOORMAN__SLICES; i++) to = doorman__le_write(to, ring->grains[i], 8);
    return to;
}

static unsigned char *doorman__tiers_write(unsigned char *to, const doorman__meter *meter,
                                           const doorman__moment *at) {
    const size_t count = meter->figures->tier_count;
    *to++ = (unsigned char)count;
    for (size_t i = 0; i < count; i++) {
        const uint64_t *words = doorman__tier_state(meter->state, i);
        const doorman_time window = (doorman_time)words[1];
        doorman__row_ring ring = {.window = 0};
        doorman_time entered = 0;
        if (window) {
            ring = doorman__row_ring_of(window, (doorman_time)words[2], words + 3, at);
            entered = doorman__moment_epoch_of(at, (doorman_time)words[0]);
        }
        to = doorman__le_write(to, (uint64_t)entered, 8);
        to = doorman__row_ring_write(to, &ring);
    }
    return to;
}

/* Writes the figures of a counter, and returns their end. */
static unsigned char *doorman__figures_write(unsigned char *to, const doorman__meter *meter,
                                             const doorman__moment *at) {
    const doorman_limit_kind kind = meter->limit->kind;
    const uint64_t *state = meter->state;
    if (kind == DOORMAN_TOKEN_BUCKET) {
        doorman_time time = doorman__moment_epoch_of(at, (doorman_time)state[1]);
        to = doorman__le_write(to, state[0], 8);
        return doorman__le_write(to, (uint64_t)time, 8);
    }
    if (kind == DOORMAN_FIXED_WINDOW) {
        const doorman__span span = doorman__span_at(meter->figures, at->epoch);
        to = doorman__le_write(to, (uint64_t)span.begin, 8);
        to = doorman__le_write(to, (uint64_t)span.end, 8);
        return doorman__le_write(to, doorman__meter_used(meter, at), 8);
    }
    if (kind == DOORMAN_TIERS) return doorman__tiers_write(to, meter, at);
    assert(kind == DOORMAN_SLIDING_WINDOW);
    const doorman__row_ring ring =
        doorman__row_ring_of((doorman_time)state[0], (doorman_time)state[1], state + 2, at);
    return doorman__row_ring_write(to, &ring);
}

/* Returns whether a time of a row is valid. It may be before 1970 if nobody has set the epoch. */
static bool doorman__row_time_valid(doorman_time time, doorman_time written_at) {
    return time >= -4 * DOORMAN_DURATION_MAX && time <= written_at;
}

/* Reads a ring. Returns what is wrong with it, or NULL. */
static const char *doorman__row_ring_read(doorman__permit_row_rest *rest, doorman_time written_at,
                                          doorman__row_ring *out) {
    uint64_t sum = 0;
    bool valid = true;
    out->window = doorman__permit_row_time(rest);
    out->begin = doorman__permit_row_time(rest);
    for (size_t i = 0; i < DOORMAN__SLICES; i++) {
        out->grains[i] = doorman__permit_row_number(rest, 8);
        valid = valid && out->grains[i] <= DOORMAN__ROW_GRAINS_MAX - sum;
        if (valid) sum += out->grains[i];
    }
    if (!valid) return "grains: are too many";
    if (!doorman__duration_valid(out->window)) return "window: " DOORMAN__DURATION_OR_ZERO_RULE;
    if (!doorman__row_time_valid(out->begin, written_at)) return "begin: must be before written_at";
    return out->window || !sum ? NULL : "grains: need a window";
}

static const char *doorman__tiers_read(doorman__permit_row_rest *rest, doorman_time written_at,
                                       doorman__row_figures *out) {
    out->ring_count = (size_t)doorman__permit_row_number(rest, 1);
    if (out->ring_count > DOORMAN_TIERS_MAX) return "tiers: must be at most 8";
    for (size_t i = 0; i < out->ring_count; i++) {
        out->entered[i] = doorman__permit_row_time(rest);
        const char *wrong = doorman__row_ring_read(rest, written_at, &out->rings[i]);
        if (wrong) return wrong;
        if (!doorman__row_time_valid(out->entered[i], written_at)) {
            return "entered: must be before written_at";
        }
    }
    return NULL;
}

/* Reads the figures of a row. Returns what is wrong with them, or NULL. */
static const char *doorman__figures_read(const doorman_permit_row *row,
                                         doorman__permit_row_rest *rest,
                                         doorman__row_figures *out) {
    const doorman_time written_at = row->written_at;
    *out = (doorman__row_figures){.ring_count = 0};
    if (row->is_ban) {
        out->rest = doorman__permit_row_time(rest);
        bool valid = out->rest > 0 && doorman__duration_valid(out->rest);
        return valid ? NULL : "rest: " DOORMAN__DURATION_RULE;
    }
    if (row->kind == DOORMAN_TIERS) return doorman__tiers_read(rest, written_at, out);
    if (row->kind == DOORMAN_SLIDING_WINDOW) {
        const char *wrong = doorman__row_ring_read(rest, written_at, &out->rings[0]);
        out->ring_count = 1;
        return wrong || out->rings[0].window ? wrong : "window: " DOORMAN__DURATION_RULE;
    }
    if (row->kind == DOORMAN_TOKEN_BUCKET) {
        const uint64_t level = doorman__permit_row_number(rest, 8);
        memcpy(&out->level, &level, sizeof level);
        out->at = doorman__permit_row_time(rest);
        bool valid = out->level >= -DOORMAN__SUM_MAX && out->level <= DOORMAN__SUM_MAX;
        if (!valid) return "level: must be a number from -2e15 to 2e15";
        return doorman__row_time_valid(out->at, written_at) ? NULL
                                                            : "at: must be before written_at";
    }
    out->span.begin = doorman__permit_row_time(rest);
    out->span.end = doorman__permit_row_time(rest);
    out->used = doorman__permit_row_number(rest, 8);
    if (!doorman__row_time_valid(out->span.begin, written_at)) {
        return "begin: must be before written_at";
    }
    bool valid = out->span.end > written_at && out->span.end - written_at <= DOORMAN_DURATION_MAX;
    if (!valid) return "end: must be after written_at";
    return out->used <= DOORMAN__ROW_GRAINS_MAX ? NULL : "used: is too much";
}

/* Reads a whole row of this version. */
static doorman_status doorman__permit_row_check(const unsigned char *bytes, size_t count,
                                                doorman_permit_row *row,
                                                doorman__row_figures *figures,
                                                doorman_error *error) {
    doorman__permit_row_rest rest;
    const char *wrong = doorman__permit_row_parse(bytes, count, row, &rest);
    if (!wrong && row->version > DOORMAN_PERMIT_ROW_VERSION) {
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT,
                             "version: %u is later than %u, which this version reads", row->version,
                             (unsigned)DOORMAN_PERMIT_ROW_VERSION);
    }
    if (!wrong && !row->removed && !row->is_clock) {
        wrong = doorman__figures_read(row, &rest, figures);
        if (rest.short_) wrong = "bytes: the row ends within its figures";
    }
    if (!wrong && rest.at != rest.end) wrong = "bytes: something follows the row";
    return wrong ? doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "%s", wrong) : DOORMAN_OK;
}

/* ---- state: yielding changes (D3) */

static size_t doorman__changes_count(const doorman__changes *changes) {
    return changes->count + changes->removal_count;
}

/* Takes the first removal out of the list. Returns the length of its row; 0: there is none. */
static size_t doorman__changes_take_removal(doorman__changes *changes, unsigned char *out) {
    doorman__removal *first = changes->first;
    if (!first) return 0;
    const size_t bytes = first->bytes;
    assert(changes->removal_count > 0 && bytes <= DOORMAN_PERMIT_ROW_BYTES_MAX);
    memcpy(out, first + 1, bytes);
    changes->first = first->next;
    if (!changes->first) changes->last = NULL;
    changes->removal_count--;
    DOORMAN_FREE(first);
    return bytes;
}

/* Forgets all changes, because the permits forget their counters. */
static void doorman__changes_clear(doorman__changes *changes) {
    unsigned char row[DOORMAN_PERMIT_ROW_BYTES_MAX];
    while (doorman__changes_take_removal(changes, row)) continue;
    changes->count = changes->slot = changes->segment = 0;
    changes->clock_due = false;
}

/* Finds the next counter or ban that has changed, and its slot. Returns NULL if there is none. */
static doorman__counter *doorman__changes_find(doorman_permits *permits, doorman__slot **slot) {
    doorman__changes *changes = &permits->changes;
    while (changes->count) {
        *slot = permits->slots[changes->slot];
        doorman__chains *nodes = &(*slot)->nodes;
        const size_t first = changes->segment * DOORMAN__SEGMENT_BUCKETS;
        if (first >= nodes->bucket_count) {
            changes->segment = 0;
            changes->slot = changes->slot + 1 < permits->slot_count ? changes->slot + 1 : 0;
            continue;
        }
        const uint64_t marks = nodes->segments[changes->segment].marks;
        if (!marks) {
            changes->segment++;
            continue;
        }
        const size_t bucket = first + doorman__lowest_mark(marks);
        doorman__chain *node = *doorman__chains_at(nodes, bucket);
        for (; node; node = node->next) {
            doorman__counter *counter = (doorman__counter *)(void *)node;
            if (counter->flags & DOORMAN__CHANGED) return counter;
        }
        (void)doorman__chains_unmark(nodes, bucket);
    }
    return NULL;
}

/* Writes the row of the clock, if it is due. Returns its length, or 0. */
static size_t doorman__changes_yield_clock(doorman_permits *permits, unsigned char *out) {
    static const unsigned char rest[] = {DOORMAN__PERMIT_ROW_CLOCK, 'k', 0, 0, 0, 0, 0};
    const size_t identity_bytes = sizeof rest - 2; /* without the glob and the name */
    if (!permits->changes.clock_due) return 0;
    permits->changes.clock_due = false;
    unsigned char *end = doorman__permit_row_times(permits, out);
    memcpy(end, rest, sizeof rest);
    (void)doorman__le_write(out + 2, identity_bytes, 2);
    return (size_t)(end - out) + sizeof rest;
}

/* Yields a counter or a ban that has no units left: the store deletes its row, if it has one. */
static size_t doorman__changes_yield_fresh(doorman_permits *permits, const doorman__slot *slot,
                                           doorman__counter *counter, unsigned char *out) {
    permits->changes.clock_due = true;
    if (!(counter->flags & DOORMAN__STORED)) return 0;
    counter->flags &= (uint8_t)~DOORMAN__STORED;
    return (size_t)(doorman__permit_row_begin(permits, slot, counter, true, out) - out);
}

/* Writes the row of a ban. Returns its length, or 0 if there is nothing to write. */
static size_t doorman__changes_yield_ban(doorman_permits *permits, doorman__slot *bans,
                                         doorman__counter *counter, unsigned char *out) {
    const doorman_time rest = doorman__counter_ban(counter)->end.at - permits->at.now;
    doorman__permits_unmark(permits, counter);
    if (rest <= 0) return doorman__changes_yield_fresh(permits, bans, counter, out);
    unsigned char *end = doorman__permit_row_begin(permits, bans, counter, false, out);
    end = doorman__le_write(end, (uint64_t)doorman__earlier(rest, DOORMAN_DURATION_MAX), 8);
    doorman__permit_row_set_fresh(out, doorman__after(permits->at.epoch, rest));
    counter->flags |= DOORMAN__STORED;
    return (size_t)(end - out);
}

/* Writes the row of a counter. Returns its length, or 0 if there is nothing to write.
 *   failed   set to true if memory runs out: the counter stays changed */
static size_t doorman__changes_yield_counter(doorman_permits *permits, doorman__slot *slot,
                                             doorman__counter *counter, unsigned char *out,
                                             bool *failed) {
    const doorman__moment *at = &permits->at;
    const doorman_permit_limit *limit = doorman__counter_limit(permits, slot, counter, failed);
    if (*failed) return 0;
    if (!limit || !limit->durable) {
        doorman__permits_unmark(permits, counter);
        return 0;
    }
    counter = doorman__counter_adapt(permits, slot, limit, counter);
    *failed = !counter;
    if (!counter) return 0;
    doorman__permits_unmark(permits, counter);
    const doorman__meter meter = doorman__counter_meter(permits, limit, counter);
    doorman_time rest = doorman__meter_reset_after(&meter, at);
    if (limit->kind == DOORMAN_TOKEN_BUCKET && doorman__limit_overridden(permits, limit)) {
        /* after an override row, a bucket may need longer */
        const doorman_figures *configured = doorman__limit_figures(limit, counter->override_);
        const doorman__meter after = {limit, configured, meter.state};
        rest = doorman__later(rest, doorman__meter_reset_after(&after, at));
    }
    if (rest <= 0) return doorman__changes_yield_fresh(permits, slot, counter, out);
    doorman_time fresh_at = doorman__after(at->epoch, rest);
    if (limit->kind == DOORMAN_FIXED_WINDOW) {
        fresh_at = doorman__span_at(meter.figures, at->epoch).end;
    }
    unsigned char *end = doorman__permit_row_begin(permits, slot, counter, false, out);
    end = doorman__figures_write(end, &meter, at);
    doorman__permit_row_set_fresh(out, fresh_at);
    counter->flags |= DOORMAN__STORED;
    assert(end - out <= DOORMAN_PERMIT_ROW_BYTES_MAX);
    return (size_t)(end - out);
}

size_t doorman_permits_next_changed(doorman_permits *permits, unsigned char *out,
                                    doorman_time now) {
    if (!permits || !out || permits->changes.rows != DOORMAN_ROWS_READ) return 0;
    doorman__moment_move(&permits->at, now);
    size_t bytes = doorman__changes_take_removal(&permits->changes, out);
    bool failed = false;
    while (!bytes && !failed) {
        doorman__slot *slot = NULL;
        doorman__counter *counter = doorman__changes_find(permits, &slot);
        if (!counter) return doorman__changes_yield_clock(permits, out);
        bytes = slot == doorman__permits_bans(permits)
                    ? doorman__changes_yield_ban(permits, slot, counter, out)
                    : doorman__changes_yield_counter(permits, slot, counter, out, &failed);
    }
    return bytes;
}

/* ---- state: restoring figures (D5) */

/* How a row is added to a counter. */
typedef enum doorman__restoring {
    DOORMAN__ALONE, /* there is no counter */
    DOORMAN__ADDED, /* the counter has used its units since the row was written */
    DOORMAN__LARGER /* the row may be about the same units as the counter */
} doorman__restoring;

/* Returns what is used after a restore. */
static uint64_t doorman__grains_restored(uint64_t own, uint64_t given, doorman__restoring how) {
    if (how == DOORMAN__ALONE) return given;
    if (how == DOORMAN__LARGER) return own > given ? own : given;
    return given < DOORMAN__ROW_GRAINS_MAX - own ? own + given : DOORMAN__ROW_GRAINS_MAX;
}

/* Gives a ring the slices of a row.
 *   origin   written: the time from which the slices of the ring count */
static void doorman__ring_set(uint64_t *origin, uint64_t *ring, const doorman__row_ring *given) {
    assert(given->window > 0);
    *origin = (uint64_t)(given->begin - given->window);
    ring[0] = DOORMAN__SLICES; /* it begins one window after the origin */
    for (size_t back = 0; back < DOORMAN__SLICES; back++) {
        ring[1 + (DOORMAN__SLICES - back) % DOORMAN__SLICES] = given->grains[back];
    }
}

/* Moves the units of a ring to later slices. The last of these slices begins now, so no unit
 * returns earlier. Slices that have ended are left out. */
static doorman__row_ring doorman__row_ring_shift(const doorman__row_ring *from, doorman_time now) {
    doorman__row_ring out = {.window = from->window, .begin = now};
    for (size_t i = 0; i < DOORMAN__SLICES; i++) {
        doorman_time before = from->window / DOORMAN__SLICES * (doorman_time)i +
                              from->window % DOORMAN__SLICES * (doorman_time)i / DOORMAN__SLICES;
        doorman_time age = now - (from->begin - before);
        if (age >= from->window) continue;
        assert(age >= 0);
        out.grains[doorman__slice_at(age, from->window)] += from->grains[i];
    }
    return out;
}

/* Adds the ring of a row to a ring with the same window. */
static void doorman__ring_restore(uint64_t *origin, uint64_t *ring, const doorman__row_ring *given,
                                  doorman__restoring how, const doorman__moment *at) {
    doorman__row_ring sum = *given;
    sum.begin = doorman__moment_now_of(at, given->begin);
    if (at->now - sum.begin >= 2 * given->window) {
        sum = (doorman__row_ring){.window = given->window, .begin = at->now};
    }
    if (how != DOORMAN__ALONE) {
        doorman__row_ring own =
            doorman__row_ring_of(given->window, (doorman_time)*origin, ring, at);
        own.begin = doorman__moment_now_of(at, own.begin);
        own = doorman__row_ring_shift(&own, at->now);
        sum = doorman__row_ring_shift(&sum, at->now);
        uint64_t room = DOORMAN__ROW_GRAINS_MAX;
        for (size_t i = 0; i < DOORMAN__SLICES; i++) {
            uint64_t all = doorman__grains_restored(own.grains[i], sum.grains[i], how);
            sum.grains[i] = all < room ? all : room;
            room -= sum.grains[i];
        }
    }
    doorman__ring_set(origin, ring, &sum);
}

/* Restores a bucket. A bucket that owes more than it gains in 1e8 s owes so much. */
static void doorman__bucket_restore(const doorman__meter *meter, const doorman__row_figures *row,
                                    doorman__restoring how, const doorman__moment *at) {
    const doorman_figures *figures = meter->figures;
    const double least = -figures->rate * ((double)DOORMAN_DURATION_MAX / 1e9);
    uint64_t given[2];
    doorman__level_write(given, doorman__max(row->level, least),
                         doorman__moment_now_of(at, row->at));
    if (how == DOORMAN__ALONE) {
        memcpy(meter->state, given, sizeof given);
        return;
    }
    const double own = doorman__level_at(figures, meter->state, at->now);
    double level = doorman__level_at(figures, given, at->now);
    if (how == DOORMAN__ADDED) level -= doorman__max(0, figures->size - own);
    level = doorman__max(doorman__min(level, own), least);
    doorman__level_write(meter->state, level, at->now);
}

/* Restores tiers. Tiers of a counter that exists keep their phases, but a tier cools down as
 * in the row. */
static void doorman__tiers_restore(const doorman__meter *meter, const doorman__row_figures *row,
                                   doorman__restoring how, const doorman__moment *at) {
    for (size_t i = 0; i < row->ring_count && i < meter->figures->tier_count; i++) {
        const doorman__row_ring *ring = &row->rings[i];
        const doorman_tier *tier = &meter->figures->tiers[i];
        uint64_t *words = meter->state + i * DOORMAN__TIER_WORDS;
        if (!ring->window) continue;
        const doorman_time entered = doorman__moment_now_of(at, row->entered[i]);
        const uint64_t given[2] = {(uint64_t)entered, (uint64_t)ring->window};
        const doorman__phase phase = doorman__tier_phase(tier, given, at->now);
        const bool first = !words[1];
        bool keeps = how != DOORMAN__ALONE && phase == DOORMAN__ACTIVE;
        if (doorman__tier_phase(tier, words, at->now) == DOORMAN__INACTIVE && !keeps) {
            words[0] = (uint64_t)entered;
        } else if (first) {
            words[0] = (uint64_t)(at->now - tier->active - tier->cooldown);
        }
        if (first) words[1] = (uint64_t)ring->window;
        if (words[1] != (uint64_t)ring->window) continue;
        doorman__ring_restore(&words[2], words + 3, ring, first ? DOORMAN__ALONE : how, at);
    }
}

/* Adds the figures of a row to a state of the same kind. A window of changed length starts fresh
 * (P15). */
static void doorman__meter_restore(const doorman__meter *meter, const doorman__row_figures *row,
                                   doorman__restoring how, const doorman__moment *at) {
    const doorman_limit_kind kind = meter->limit->kind;
    uint64_t *state = meter->state;
    if (kind == DOORMAN_TOKEN_BUCKET) {
        doorman__bucket_restore(meter, row, how, at);
    } else if (kind == DOORMAN_TIERS) {
        doorman__tiers_restore(meter, row, how, at);
    } else if (kind == DOORMAN_FIXED_WINDOW) {
        const uint64_t id = doorman__span_id(doorman__span_at(meter->figures, at->epoch));
        if (doorman__span_id(row->span) != id) return;
        state[1] = doorman__grains_restored(doorman__meter_used(meter, at), row->used, how);
        state[0] = id;
    } else if (state[0] == (uint64_t)row->rings[0].window) {
        assert(kind == DOORMAN_SLIDING_WINDOW);
        doorman__ring_restore(&state[1], state + 2, &row->rings[0], how, at);
    }
}

/* ---- state: finding what a row is about */

/* The counter that a row is about. */
typedef struct doorman__row_target {
    const doorman_permit_limit *limit; /* NULL: the configuration has none */
    doorman__slot *slot;
    doorman__counter *counter; /* NULL: there is none */
    doorman__identity identity;
} doorman__row_target;

static const doorman_template *doorman__permits_row_template(const doorman_permits *permits,
                                                             const doorman_permit_row *row) {
    const doorman_config *config = permits->config;
    if (row->is_ban || row->per != DOORMAN_PER_TEMPLATE) {
        return doorman__permits_template(permits, row->resource_id);
    }
    size_t index = doorman__config_same(config, row->identifier_glob, 0);
    return index < config->template_count ? &config->templates[index] : NULL;
}

/* Finds the counter of a row (P15). Returns false if memory runs out. */
static bool doorman__permits_row_find(doorman_permits *permits, const doorman_permit_row *row,
                                      doorman__row_target *out) {
    *out = (doorman__row_target){.limit = NULL};
    const doorman_template *template_ = doorman__permits_row_template(permits, row);
    const doorman_permit_limit *limit = doorman__template_limit(template_, row->limit);
    if (!limit || limit->kind != row->kind || limit->per != row->per) return true;
    doorman__place *place = NULL;
    uint32_t since = 0;
    doorman__identity of_key = {.tag = DOORMAN__NO_PLACE};
    out->slot = doorman__permits_own_slot(permits, limit);
    if (limit->per != DOORMAN_PER_TEMPLATE) {
        place = doorman__permits_place(permits, row->resource_id);
        if (!place) return false;
        const size_t index = (size_t)(limit - template_->limits);
        assert(place->template_ == template_ && index < place->slot_count);
        out->slot = place->slots[index].slot;
        since = place->slots[index].since;
        of_key = doorman__identity_of(permits, place, row->key);
    }
    out->identity = doorman__limit_identity(permits, limit, place, &of_key);
    out->counter = doorman__slot_find(out->slot, &out->identity);
    if (out->counter && place && doorman__counter_stale(out->counter, since)) {
        doorman__permits_drop(permits, out->slot, out->counter);
        out->counter = NULL;
    }
    if (out->counter) {
        out->counter = doorman__counter_adapt(permits, out->slot, limit, out->counter);
        if (!out->counter) return false;
    }
    out->limit = limit;
    return true;
}

/* Finds the ban of a row, or NULL. */
static doorman__counter *doorman__permits_row_ban(const doorman_permits *permits,
                                                  const doorman_permit_row *row) {
    const doorman__place *place = doorman__permits_find_place(permits, row->resource_id);
    if (!place) return NULL;
    const doorman__identity of_key = doorman__identity_of(permits, place, row->key);
    return doorman__permits_find_ban(permits, &of_key);
}

doorman_status doorman_permits_mark_changed(doorman_permits *permits, const unsigned char *row,
                                            size_t bytes, doorman_error *error) {
    doorman_permit_row read = {.version = 0};
    doorman__row_target target = {.slot = NULL};
    if (!permits) return doorman__missing(error, "permits");
    doorman_status status = doorman_permit_row_read(row, bytes, &read, error);
    if (status != DOORMAN_OK) return status;
    if (read.is_clock) {
        permits->changes.clock_due = true;
        return DOORMAN_OK;
    }
    if (read.is_ban) {
        target.slot = doorman__permits_bans(permits);
        target.counter = doorman__permits_row_ban(permits, &read);
    } else if (!doorman__permits_row_find(permits, &read, &target)) {
        return doorman__no_memory(error);
    }
    if (target.counter) {
        target.counter->flags |= DOORMAN__STORED; /* so it is yielded, also if it is fresh */
        doorman__permits_mark(permits, target.slot, target.counter);
        return DOORMAN_OK;
    }
    permits->changes.clock_due = true;
    if (!read.is_ban && !target.limit) return DOORMAN_OK; /* the limit may come back */
    /* what ended in the meantime may have an older row, which ends later */
    unsigned char removal[DOORMAN_PERMIT_ROW_BYTES_MAX];
    const char *end = read.limit + strlen(read.limit) + 1; /* of the header */
    bytes = (size_t)((const unsigned char *)end - row);
    memcpy(removal, row, bytes);
    removal[1] = 1;
    bool added = doorman__permits_add_removal(permits, removal, bytes);
    return added ? DOORMAN_OK : doorman__no_memory(error);
}

#define DOORMAN__MARK_BUCKETS 1024 /* of one step: some tenths of a millisecond */

/* Marks the nodes of one bucket. */
static void doorman__permits_mark_bucket(doorman_permits *permits, doorman__slot *slot,
                                         size_t bucket) {
    doorman__chain *node = *doorman__chains_at(&slot->nodes, bucket);
    for (; node; node = node->next) {
        doorman__permits_mark(permits, slot, (doorman__counter *)(void *)node);
    }
}

bool doorman_permits_mark_all(doorman_permits *permits, doorman_counter_cursor *cursor) {
    if (!permits || !cursor) return false;
    const uint64_t removals = permits->slot_removals + 1; /* each has moved a table */
    if (cursor->removals != removals) *cursor = (doorman_counter_cursor){.removals = removals};
    permits->changes.clock_due = true;
    for (size_t left = DOORMAN__MARK_BUCKETS; left && cursor->table < permits->slot_count;) {
        doorman__slot *slot = permits->slots[cursor->table];
        const bool is_bans = slot == doorman__permits_bans(permits);
        const bool has_rows = is_bans || (slot->limit && slot->limit->durable);
        if (has_rows && slot->nodes.bucket_count) {
            const size_t bucket = doorman__chains_visited(&slot->nodes, cursor->position);
            doorman__permits_mark_bucket(permits, slot, bucket);
            cursor->position = doorman__chains_behind(&slot->nodes, cursor->position);
            left--;
        } else {
            cursor->position = 0;
        }
        if (!cursor->position) cursor->table++;
    }
    return cursor->table < permits->slot_count;
}

/* ---- state: restoring rows */

static doorman_status doorman__restore_full(doorman_error *error) {
    return doorman__fail(error, DOORMAN_RESOURCE_EXHAUSTED,
                         "there is no room for one more: raise max_keys of the limit");
}

/* Creates the counter of a row, if it is not fresh. */
static doorman_status doorman__restore_new(doorman_permits *permits, doorman__row_target *target,
                                           const doorman__row_figures *figures,
                                           doorman_error *error) {
    uint64_t state[DOORMAN__STATE_WORDS_MAX];
    const doorman_permit_limit *limit = target->limit;
    const doorman__identity *identity = &target->identity;
    const uint16_t override_ = doorman__limit_override(limit, identity->key);
    const doorman_figures *own = doorman__key_figures(permits, limit, override_, NULL, identity);
    const doorman__meter meter = {limit, own, state};
    doorman__meter_init(&meter, &permits->at);
    doorman__meter_restore(&meter, figures, DOORMAN__ALONE, &permits->at);
    if (doorman__meter_fresh(&meter, &permits->at)) return DOORMAN_OK;
    const size_t words = doorman__state_words(limit->kind, meter.figures);
    const size_t bytes =
        sizeof(doorman__counter) + (words + 2) * sizeof(uint64_t) + identity->key_bytes;
    if (!doorman__permits_has_room(permits, target->slot, limit, bytes)) {
        return doorman__restore_full(error); /* it evicts no counter, whose row would be removed */
    }
    doorman__counter *counter =
        doorman__permits_add(permits, target->slot, identity, words, doorman__limit_flags(limit));
    if (!counter) return doorman__no_memory(error);
    counter->generation = (uint16_t)permits->generation;
    counter->override_ = override_;
    counter->flags |= DOORMAN__STORED;
    memcpy(doorman__counter_state(counter), state, words * sizeof *state);
    return DOORMAN_OK;
}

static doorman_status doorman__restore_counter(doorman_permits *permits,
                                               const doorman_permit_row *row,
                                               const doorman__row_figures *figures,
                                               doorman_error *error) {
    doorman__row_target target;
    if (!doorman__permits_row_find(permits, row, &target)) return doorman__no_memory(error);
    if (!target.limit || !target.limit->durable) {
        return doorman__fail(error, DOORMAN_NOT_FOUND, "limit: no durable limit has this name");
    }
    doorman__moment_reach(&permits->at, row->written_at);
    doorman__counter *counter = target.counter;
    if (!counter) return doorman__restore_new(permits, &target, figures, error);
    if (counter->flags & DOORMAN__STORED) return DOORMAN_OK; /* it has all that the row says */
    /* what is missing at the start was not used */
    const bool empty = target.limit->empty_at_start;
    const doorman__meter meter = doorman__counter_meter(permits, target.limit, counter);
    doorman__meter_restore(&meter, figures, empty ? DOORMAN__LARGER : DOORMAN__ADDED, &permits->at);
    counter->flags |= DOORMAN__STORED;
    doorman__permits_mark(permits, target.slot, counter);
    return DOORMAN_OK;
}

/* Restores a ban. A ban that is in force ends at its end or at that of the row, whichever is
 * later. */
static doorman_status doorman__restore_ban(doorman_permits *permits, const doorman_permit_row *row,
                                           doorman_time rest, doorman_error *error) {
    doorman__moment_reach(&permits->at, row->written_at);
    rest -= permits->at.epoch - row->written_at;
    if (rest <= 0) return DOORMAN_OK;
    doorman__place *place = doorman__permits_place(permits, row->resource_id);
    if (!place) return doorman__no_memory(error);
    const doorman_permit_limit *limit = doorman__template_limit(place->template_, row->limit);
    const bool by_limit = limit && limit->ban.refusals;
    doorman__slot *slot =
        by_limit ? doorman__permits_own_slot(permits, limit) : doorman__permits_bans(permits);
    const doorman__identity of_key = doorman__identity_of(permits, place, row->key);
    doorman__counter *ban = doorman__permits_find_ban(permits, &of_key);
    const bool known = ban != NULL;
    if (ban) rest = doorman__later(rest, doorman__counter_ban(ban)->end.at - permits->at.now);
    doorman_status status = doorman__permits_start_ban(permits, slot, &of_key, rest);
    if (status == DOORMAN_OUT_OF_MEMORY) return doorman__no_memory(error);
    if (status != DOORMAN_OK) return doorman__restore_full(error);
    ban = doorman__permits_find_ban(permits, &of_key);
    assert(ban);
    ban->flags |= DOORMAN__STORED;
    if (!known) doorman__permits_unmark(permits, ban);
    return DOORMAN_OK;
}

doorman_status doorman_permits_restore(doorman_permits *permits, const unsigned char *row,
                                       size_t bytes, doorman_error *error, doorman_time now) {
    doorman_permit_row read = {.version = 0};
    doorman__row_figures figures = {0};
    if (!permits) return doorman__missing(error, "permits");
    if (!row) return doorman__missing(error, "row");
    doorman_status status = doorman__permit_row_check(row, bytes, &read, &figures, error);
    if (status != DOORMAN_OK || read.removed) return status;
    doorman__moment_move(&permits->at, now);
    if (read.is_clock) {
        doorman__moment_reach(&permits->at, read.written_at);
        return DOORMAN_OK;
    }
    status = read.is_ban ? doorman__restore_ban(permits, &read, figures.rest, error)
                         : doorman__restore_counter(permits, &read, &figures, error);
    doorman__permits_sweep_places(permits, DOORMAN__CALL_VISITS); /* the row may be fresh */
    return status;
}

doorman_status doorman_permits_set_rows(doorman_permits *permits, doorman_rows rows) {
    if (!permits || (unsigned)rows >= DOORMAN_ROWS_COUNT) return DOORMAN_INVALID_ARGUMENT;
    permits->changes.rows = rows;
    return DOORMAN_OK;
}

/* ---- >>overrides ----------------------------------------------------------------------------- */
/*
 * Override rows and plan rows, which are set at run time. The public part has the rules E1 and E2,
 * and >>counters finds the rows of a key. What is said of override rows is true for both.
 *
 *     scope      one limit of a resource, or of the template with a glob. It knows the slot of the
 *                limit in the present configuration. Of plan rows: all limits of a template
 *     figures    what rows of a scope give, resolved for that limit. Equal ones are shared, so a
 *                million rows with a few different figures need about 100 bytes each
 *                What plan rows of a scope give is the name of a plan. A decision looks for it
 *                among the plans of its limit
 *     row        one key of a scope, with its beginning and its end
 *
 *     state of a row    meaning                      event                next state
 *     ahead             it begins at starts_at       beginning            begun
 *                                                    ended, replaced      (freed)
 *     begun             it ends at ends_at           end, ended, replaced (freed)
 *
 * Decisions look at the clock, and not at the state. So the state is only about what a beginning
 * and an end must do at once: give units to a bucket, wake permits that wait, and free the row.
 * Rows are ordered by the time of their next event in a treap (Aragon and Seidel 1989), whose
 * priorities are the hashes of the rows. A heap would need more memory, and could not list the rows
 * in order. Override rows and plan rows have a treap each, so that each can be listed alone.
 */

/* ---- overrides: the treap */

/* Returns when the next event of a row is. */
static doorman_time doorman__override_due(const doorman__override_row *row) {
    return row->node.tag & DOORMAN__BEGUN ? row->ends_at : row->starts_at;
}

/* Returns whether a row is before another in the treap. The address only decides between rows with
 * the same id. */
static bool doorman__override_before(const doorman__override_row *one,
                                     const doorman__override_row *other) {
    const doorman_time a = doorman__override_due(one), b = doorman__override_due(other);
    if (a != b) return a < b;
    return one->id != other->id ? one->id < other->id : (uintptr_t)one < (uintptr_t)other;
}

/* Returns the order that has a row, or will have it. */
static doorman__row_order *doorman__override_order(doorman__overrides *all,
                                                   const doorman__override_row *row) {
    return &all->orders[row->figures->plan != NULL];
}

static void doorman__overrides_enter(doorman__overrides *all, doorman__override_row *row) {
    doorman__row_order *order = doorman__override_order(all, row);
    doorman__override_row **at = &order->root;
    while (*at && (*at)->node.hash >= row->node.hash) {
        at = doorman__override_before(*at, row) ? &(*at)->right : &(*at)->left;
    }
    /* what is below is split in two: before and after the row */
    doorman__override_row *rest = *at, **before = &row->left, **after = &row->right;
    *at = row;
    while (rest) {
        doorman__override_row ***side = doorman__override_before(rest, row) ? &before : &after;
        doorman__override_row **next = side == &before ? &rest->right : &rest->left;
        **side = rest;
        *side = next;
        rest = *next;
    }
    *before = *after = NULL;
    order->count++;
}

static void doorman__overrides_leave(doorman__overrides *all, doorman__override_row *row) {
    doorman__row_order *order = doorman__override_order(all, row);
    doorman__override_row **at = &order->root;
    while (*at != row) {
        assert(*at); /* the row is in the treap */
        at = doorman__override_before(*at, row) ? &(*at)->right : &(*at)->left;
    }
    doorman__override_row *left = row->left, *right = row->right;
    while (left && right) {
        const bool takes_left = left->node.hash >= right->node.hash;
        *at = takes_left ? left : right;
        at = takes_left ? &left->right : &right->left;
        if (takes_left) left = *at;
        if (!takes_left) right = *at;
    }
    *at = left ? left : right;
    assert(order->count > 0);
    order->count--;
}

static doorman__override_row *doorman__order_first(const doorman__row_order *order) {
    doorman__override_row *row = order->root;
    while (row && row->left) row = row->left;
    return row;
}

/* Returns the row of either kind that changes first, or NULL. */
static doorman__override_row *doorman__overrides_first(const doorman__overrides *all) {
    doorman__override_row *one = doorman__order_first(&all->orders[0]);
    doorman__override_row *other = doorman__order_first(&all->orders[1]);
    if (!one || !other) return one ? one : other;
    return doorman__override_due(one) <= doorman__override_due(other) ? one : other;
}

/* Returns the first row whose event is after a position, or NULL. */
static const doorman__override_row *doorman__order_after(const doorman__row_order *order,
                                                         const doorman_override_cursor *position) {
    const doorman__override_row *row = order->root, *found = NULL;
    while (row) {
        const doorman_time due = doorman__override_due(row);
        const bool later =
            due != position->next_at ? due > position->next_at : row->id > position->id;
        if (later) found = row;
        row = later ? row->left : row->right;
    }
    return found;
}

/* ---- overrides: scopes and figures */

static const char *doorman__override_scope_limit(const doorman__override_scope *scope) {
    const char *text = doorman__override_scope_text(scope);
    return text + strlen(text) + 1;
}

/* Returns the template that a name means, or NULL. */
static const doorman_template *doorman__override_template(const doorman_permits *permits,
                                                          bool is_glob, const char *text) {
    if (!is_glob) return doorman__permits_template(permits, text);
    const doorman_config *config = permits->config;
    for (size_t i = 0; i < config->template_count; i++) {
        const doorman_template *template_ = &config->templates[i];
        if (strcmp(template_->identifier_glob, text) != 0) continue;
        return template_->has_limits ? template_ : NULL;
    }
    return NULL;
}

/* Finds the limits of a template that plan rows concern. */
static void doorman__plan_scope_resolve(doorman_permits *permits, doorman__override_scope *scope,
                                        const doorman_template *template_) {
    scope->template_ = template_;
    for (size_t i = 0; template_ && i < template_->limit_count; i++) {
        const doorman_permit_limit *limit = &template_->limits[i];
        if (!limit->plan_count) continue;
        doorman__permits_own_slot(permits, limit)->overridden |= DOORMAN__BY_PLAN;
        permits->overridden = true;
        if (limit->kind == DOORMAN_CONCURRENCY) scope->has_holds = true;
    }
}

/* Returns whether a limit of a template has a plan.
 *   template_   may be NULL */
static bool doorman__template_has_plan(const doorman_template *template_, const char *plan) {
    for (size_t i = 0; template_ && i < template_->limit_count; i++) {
        const doorman_permit_limit *limit = &template_->limits[i];
        for (size_t j = 0; j < limit->plan_count; j++) {
            if (strcmp(limit->plans[j].name, plan) == 0) return true;
        }
    }
    return false;
}

/* Finds the limit of a scope in the present configuration. */
static void doorman__override_scope_resolve(doorman_permits *permits,
                                            doorman__override_scope *scope) {
    const bool is_glob = scope->node.tag != DOORMAN__OF_RESOURCE;
    const char *text = doorman__override_scope_text(scope);
    const doorman_template *template_ = doorman__override_template(permits, is_glob, text);
    scope->slot = NULL;
    scope->has_holds = false;
    if (scope->node.tag == DOORMAN__OF_PLAN) {
        doorman__plan_scope_resolve(permits, scope, template_);
        return;
    }
    const doorman_permit_limit *limit =
        doorman__template_limit(template_, doorman__override_scope_limit(scope));
    if (!limit || limit->per != DOORMAN_PER_KEY) return;
    scope->slot = doorman__permits_own_slot(permits, limit);
    scope->has_holds = limit->kind == DOORMAN_CONCURRENCY;
    scope->slot->overridden |= is_glob ? DOORMAN__BY_GLOB : DOORMAN__BY_RESOURCE;
    permits->overridden = true;
}

/* Returns all figures that a row gives. The figures of a configured limit do not say any more
 * whether max_wait was given, so a max_wait that equals max_debt counts as not given. */
static doorman_figures doorman__override_all(const doorman_permit_limit *limit,
                                             const doorman_figures *given) {
    doorman_permit_limit own = {.kind = limit->kind, .figures = limit->figures};
    own.figures.has_max_wait = own.figures.max_wait != own.figures.max_debt;
    return doorman__override_resolve(&own, given);
}

/* Checks the figures of a row, or what it adds, by the rules of its limit. */
static void doorman__override_check(doorman__check *check, const doorman_permit_limit *limit,
                                    const doorman_figures *given, double add) {
    const bool can_add = limit->kind != DOORMAN_CONCURRENCY && limit->kind != DOORMAN_TIERS;
    const doorman__rule rules[] = {
        {limit->leased, "limit: is leased, so its figures are those of the lease"},
        {!limit->leased && limit->per != DOORMAN_PER_KEY,
         "limit: needs a limit per key, because other limits share a counter between keys"},
        {add > 0 && !can_add, "add: only a TOKEN_BUCKET, a FIXED_WINDOW and a SLIDING_WINDOW have "
                              "units that can be added to"},
    };
    DOORMAN__CHECK(check, rules);
    if (check->count || add > 0) return;
    doorman__given_check(check, limit->kind, given, true);
    if (check->count) return;
    const doorman_figures all = doorman__override_all(limit, given);
    doorman__figures_check(check, limit->kind, &all);
}

static void doorman__override_ignore(const doorman__config_report *report, size_t index,
                                     const char *object, const char *text) {
    (void)report, (void)index, (void)object, (void)text;
}

/* Resolves figures for the limit of their scope. */
static void doorman__override_figures_resolve(doorman__overrides *all,
                                              doorman__override_figures *figures) {
    const doorman__config_report report = {.add = doorman__override_ignore};
    doorman__check check = {.report = &report};
    const doorman__slot *slot = figures->scope->slot;
    doorman__row_order *order = &all->orders[figures->plan != NULL];
    if (figures->idle) order->idle_count -= figures->references;
    if (slot) doorman__override_check(&check, slot->limit, &figures->given, figures->add);
    figures->idle = !slot || check.count;
    if (figures->plan) {
        figures->idle = !doorman__template_has_plan(figures->scope->template_, figures->plan);
    }
    if (figures->idle) order->idle_count += figures->references;
    figures->all = (doorman_figures){.rate = 0};
    if (figures->idle || figures->plan || figures->add > 0) return;
    figures->all = doorman__override_all(slot->limit, &figures->given);
}

/* Resolves all rows after a change of the configuration. */
static void doorman__overrides_configure(doorman_permits *permits) {
    doorman__overrides *all = &permits->overrides;
    permits->overridden = false;
    for (size_t i = 0; i < permits->slot_count; i++) permits->slots[i]->overridden = 0;
    for (size_t i = 0; i < all->scopes.bucket_count; i++) {
        doorman__chain *node = *doorman__chains_at(&all->scopes, i);
        for (; node; node = node->next) {
            doorman__override_scope_resolve(permits, (doorman__override_scope *)(void *)node);
        }
    }
    for (size_t i = 0; i < all->figures.bucket_count; i++) {
        doorman__chain *node = *doorman__chains_at(&all->figures, i);
        for (; node; node = node->next) {
            doorman__override_figures_resolve(all, (doorman__override_figures *)(void *)node);
        }
    }
}

/* The name of a row. */
typedef struct doorman__override_name {
    const char *text, *limit, *key; /* text: the resource or the glob; limit: "" of a plan row */
    doorman__row_kind kind;
    bool adds;
    uint32_t text_hash, limit_hash, key_hash;
} doorman__override_name;

static doorman__override_name doorman__override_name_of(const doorman_permits *permits,
                                                        const doorman_override_row *row) {
    const uint64_t *seed = permits->options.seed;
    doorman__override_name name = {.kind =
                                       row->resource_id ? DOORMAN__OF_RESOURCE : DOORMAN__OF_GLOB,
                                   .limit = row->limit,
                                   .key = row->key ? row->key : "",
                                   .adds = !doorman__equal(row->add, 0)};
    name.text = row->resource_id ? row->resource_id : row->identifier_glob;
    name.text_hash = (uint32_t)doorman__hash(seed, name.text);
    name.limit_hash = (uint32_t)doorman__hash(seed, name.limit);
    name.key_hash = (uint32_t)doorman__hash(seed, name.key);
    return name;
}

static bool doorman__override_scope_is(const doorman__override_scope *scope,
                                       const doorman__override_name *name) {
    return scope->node.tag == name->kind &&
           strcmp(doorman__override_scope_text(scope), name->text) == 0 &&
           strcmp(doorman__override_scope_limit(scope), name->limit) == 0;
}

/* Finds a row, or returns NULL. */
static doorman__override_row *doorman__override_find(const doorman_permits *permits,
                                                     const doorman__override_name *name) {
    const size_t bytes = strlen(name->key);
    const uint32_t hash = doorman__override_hash(name->text_hash, name->limit_hash, name->key_hash);
    doorman__chain *node = doorman__chains_first(&permits->overrides.rows, hash);
    for (; node; node = node->next) {
        doorman__override_row *row = (doorman__override_row *)(void *)node;
        const bool same = node->hash == hash && doorman__override_key_bytes(row) == bytes &&
                          !memcmp(doorman__override_key(row), name->key, bytes) &&
                          (row->figures->add > 0) == name->adds;
        if (same && doorman__override_scope_is(row->figures->scope, name)) return row;
    }
    return NULL;
}

/* Finds or makes a scope. Returns NULL if memory runs out. */
static doorman__override_scope *doorman__override_scope_get(doorman_permits *permits,
                                                            const doorman__override_name *name) {
    doorman__overrides *all = &permits->overrides;
    const uint32_t hash = doorman__override_hash(name->text_hash, name->limit_hash, name->kind);
    doorman__chain *node = doorman__chains_first(&all->scopes, hash);
    for (; node; node = node->next) {
        doorman__override_scope *scope = (doorman__override_scope *)(void *)node;
        if (node->hash == hash && doorman__override_scope_is(scope, name)) return scope;
    }
    const size_t bytes = strlen(name->text) + 1, limit_bytes = strlen(name->limit) + 1;
    doorman__override_scope *scope =
        (doorman__override_scope *)doorman__zalloc(sizeof *scope + bytes + limit_bytes);
    if (!scope) return NULL;
    memcpy(scope + 1, name->text, bytes);
    memcpy((char *)(scope + 1) + bytes, name->limit, limit_bytes);
    scope->node.tag = name->kind;
    if (!doorman__chains_add(&all->scopes, &scope->node, hash)) {
        DOORMAN_FREE(scope);
        return NULL;
    }
    all->bytes += sizeof *scope + bytes + limit_bytes;
    doorman__override_scope_resolve(permits, scope);
    return scope;
}

static void doorman__override_scope_release(doorman_permits *permits,
                                            doorman__override_scope *scope) {
    doorman__overrides *all = &permits->overrides;
    if (scope->references) return;
    all->bytes -= sizeof *scope + strlen(doorman__override_scope_text(scope)) + 1 +
                  strlen(doorman__override_scope_limit(scope)) + 1;
    doorman__chains_remove(&all->scopes, &scope->node);
    DOORMAN_FREE(scope);
}

/* Returns whether figures are equal. Precondition: fields that are not given are 0. */
static bool doorman__figures_equal(const doorman_figures *a, const doorman_figures *b) {
    bool same = doorman__equal(a->rate, b->rate) && doorman__equal(a->size, b->size) &&
                a->max_debt == b->max_debt && a->max_wait == b->max_wait &&
                a->time_to_live == b->time_to_live && a->queue == b->queue &&
                doorman__equal(a->limit, b->limit) && a->window == b->window &&
                a->calendar == b->calendar && a->has_size == b->has_size &&
                a->has_max_debt == b->has_max_debt && a->has_queue == b->has_queue &&
                a->has_limit == b->has_limit && a->has_tiers == b->has_tiers &&
                a->has_max_wait == b->has_max_wait && a->tier_count == b->tier_count;
    for (size_t i = 0; same && i < a->tier_count; i++) {
        const doorman_tier *one = &a->tiers[i], *other = &b->tiers[i];
        same = doorman__equal(one->limit, other->limit) && one->window == other->window &&
               one->active == other->active && one->cooldown == other->cooldown &&
               one->skippable == other->skippable;
    }
    return same;
}

/* Hashes the figures that rows mostly differ in. */
static uint32_t doorman__figures_hash(const doorman_permits *permits, const void *scope,
                                      const doorman_figures *given) {
    double amounts[4] = {given->rate, given->size, given->limit, (double)given->window};
    if (given->tier_count) amounts[3] = given->tiers[0].limit;
    uint64_t hash = doorman__hash_number(permits->options.seed, (uint64_t)(uintptr_t)scope);
    for (size_t i = 0; i < sizeof amounts / sizeof *amounts; i++) {
        uint64_t bits;
        memcpy(&bits, &amounts[i], sizeof bits);
        hash = doorman__hash_number(permits->options.seed, hash + bits);
    }
    return (uint32_t)hash;
}

/* What a row gives: figures, units or a plan. */
typedef struct doorman__override_content {
    const doorman_figures *figures; /* NULL: a plan */
    double add;
    const char *plan; /* NULL: none */
} doorman__override_content;

static uint32_t doorman__content_hash(const doorman_permits *permits,
                                      const doorman__override_scope *scope,
                                      const doorman__override_content *content) {
    if (!content->plan) return doorman__figures_hash(permits, scope, content->figures);
    const uint64_t *seed = permits->options.seed;
    const uint64_t hash = doorman__hash(seed, content->plan);
    return (uint32_t)doorman__hash_number(seed, hash + (uint64_t)(uintptr_t)scope);
}

/* Returns how many bytes are behind figures: tiers, or the name of a plan. */
static size_t doorman__content_bytes(const doorman__override_content *content) {
    if (content->plan) return strlen(content->plan) + 1;
    return content->figures->tier_count * sizeof(doorman_tier);
}

static size_t doorman__override_figures_bytes(const doorman__override_figures *figures) {
    const doorman__override_content content = {&figures->given, figures->add, figures->plan};
    return sizeof *figures + doorman__content_bytes(&content);
}

/* Finds figures that a row may share, or returns NULL. */
static doorman__override_figures *
doorman__override_figures_find(doorman_permits *permits, const doorman__override_scope *scope,
                               const doorman__override_content *content, uint32_t hash) {
    if (content->add > 0) return NULL;
    doorman__chain *node = doorman__chains_first(&permits->overrides.figures, hash);
    for (; node; node = node->next) {
        doorman__override_figures *other = (doorman__override_figures *)(void *)node;
        if (node->hash != hash || other->scope != scope || other->add > 0) continue;
        /* all figures of a scope are of the same kind */
        if (content->plan ? !strcmp(other->plan, content->plan)
                          : doorman__figures_equal(&other->given, content->figures)) {
            return other;
        }
    }
    return NULL;
}

/* Finds or makes figures. Returns NULL if memory runs out. */
static doorman__override_figures *
doorman__override_figures_get(doorman_permits *permits, doorman__override_scope *scope,
                              const doorman__override_content *content) {
    doorman__overrides *all = &permits->overrides;
    const uint32_t hash = doorman__content_hash(permits, scope, content);
    doorman__override_figures *figures =
        doorman__override_figures_find(permits, scope, content, hash);
    if (figures) return figures;
    const size_t bytes = doorman__content_bytes(content);
    figures = (doorman__override_figures *)doorman__zalloc(sizeof *figures + bytes);
    if (!figures) return NULL;
    if (content->plan) {
        figures->plan = (const char *)memcpy(figures + 1, content->plan, bytes);
    } else {
        if (bytes) memcpy(figures + 1, content->figures->tiers, bytes);
        figures->given = *content->figures;
        figures->given.tiers = (const doorman_tier *)(const void *)(figures + 1);
    }
    figures->add = content->add;
    figures->scope = scope;
    if (!doorman__chains_add(&all->figures, &figures->node, hash)) {
        DOORMAN_FREE(figures);
        return NULL;
    }
    scope->references++;
    all->bytes += doorman__override_figures_bytes(figures);
    doorman__override_figures_resolve(all, figures);
    return figures;
}

static void doorman__override_figures_release(doorman_permits *permits,
                                              doorman__override_figures *figures) {
    doorman__overrides *all = &permits->overrides;
    doorman__override_scope *scope = figures->scope;
    if (figures->references) return;
    all->bytes -= doorman__override_figures_bytes(figures);
    doorman__chains_remove(&all->figures, &figures->node);
    DOORMAN_FREE(figures);
    assert(scope->references > 0);
    scope->references--;
    doorman__override_scope_release(permits, scope);
}

/* ---- overrides: rows */

/* Lets a row have other figures.
 *   figures   NULL: none */
static void doorman__override_give(doorman_permits *permits, doorman__override_row *row,
                                   doorman__override_figures *figures) {
    doorman__override_figures *before = row->figures;
    doorman__overrides *all = &permits->overrides;
    row->figures = figures;
    if (figures) figures->references++;
    if (figures && figures->idle) all->orders[figures->plan != NULL].idle_count++;
    if (!before) return;
    assert(before->references > 0);
    before->references--;
    if (before->idle) all->orders[before->plan != NULL].idle_count--;
    doorman__override_figures_release(permits, before);
}

/* Makes a row that is in the table, but has no figures yet. Returns NULL if memory runs out. */
static doorman__override_row *doorman__override_create(doorman_permits *permits,
                                                       const doorman__override_name *name) {
    const size_t bytes = strlen(name->key);
    const uint32_t hash = doorman__override_hash(name->text_hash, name->limit_hash, name->key_hash);
    doorman__override_row *row =
        (doorman__override_row *)doorman__zalloc(sizeof(doorman__override_row) + bytes);
    if (!row) return NULL;
    memcpy(row + 1, name->key, bytes);
    row->node.tag = (uint32_t)bytes;
    if (!doorman__chains_add(&permits->overrides.rows, &row->node, hash)) {
        DOORMAN_FREE(row);
        return NULL;
    }
    permits->overrides.bytes += sizeof *row + bytes;
    return row;
}

/* Frees a row that is in the table and in the treap. */
static void doorman__override_free(doorman_permits *permits, doorman__override_row *row) {
    doorman__overrides *all = &permits->overrides;
    doorman__overrides_leave(all, row);
    doorman__chains_remove(&all->rows, &row->node);
    all->bytes -= sizeof *row + doorman__override_key_bytes(row);
    doorman__override_give(permits, row, NULL);
    DOORMAN_FREE(row);
}

/* Frees all rows. */
static void doorman__overrides_clear(doorman_permits *permits) {
    doorman__overrides *all = &permits->overrides;
    doorman__chains_free_all(&all->rows);
    doorman__chains_free_all(&all->figures);
    doorman__chains_free_all(&all->scopes);
    *all = (doorman__overrides){.bytes = 0};
}

/* Decides again on the permits that wait for units of limits that have had rows. */
static void doorman__overrides_wake(doorman_permits *permits) {
    for (doorman__hold *hold = permits->holds.waiting.first; hold; hold = hold->later) {
        doorman__hold_queue *queue = hold->wait->queue;
        if (queue && queue->slot && queue->slot->overridden) {
            doorman__hold_queue_wake(permits, queue);
        }
    }
}

/* Finds the counter of a key and its limit, as the configuration has them now. The counter is
 * adapted. Returns false if memory runs out.
 *   out   its charge; without a counter, if there is none. Without a limit, if the slot is not that
 *         of a limit of the resource */
static bool doorman__override_charge(doorman_permits *permits, doorman__slot *own,
                                     const char *resource_id, const char *key,
                                     doorman__charge *out) {
    *out = (doorman__charge){.own = own, .place = doorman__permits_place(permits, resource_id)};
    if (!out->place) return false;
    for (size_t i = 0; i < out->place->slot_count && !out->limit; i++) {
        const doorman_permit_limit *limit = &out->place->template_->limits[i];
        if (doorman__permits_own_slot(permits, limit) != own) continue;
        out->limit = limit;
        out->slot = out->place->slots[i].slot;
        out->since = out->place->slots[i].since;
    }
    if (!out->limit) return true;
    out->identity = doorman__identity_of(permits, out->place, key);
    out->shadow = out->limit->shadow || out->place->shadow;
    const bool found = doorman__charge_find(permits, out);
    if (out->counter) out->counter->flags &= (uint8_t)~DOORMAN__IN_USE;
    return found;
}

/* Gives units to an existing bucket. The row is in force, so there is room for them. Without memory
 * the bucket gets none. */
static void doorman__override_pour(doorman_permits *permits, const doorman__override_row *row,
                                   double units) {
    char key[DOORMAN_ID_BYTES_MAX + 1];
    doorman__charge charge;
    const doorman__override_scope *scope = row->figures->scope;
    const size_t bytes = doorman__override_key_bytes(row);
    if (!(units > 0) || row->figures->idle || scope->slot->kind != DOORMAN_TOKEN_BUCKET) return;
    memcpy(key, doorman__override_key(row), bytes);
    key[bytes] = 0;
    const char *resource_id = doorman__override_scope_text(scope);
    if (!doorman__permits_find_place(permits, resource_id)) return; /* it has no counter */
    if (!doorman__override_charge(permits, scope->slot, resource_id, key, &charge)) return;
    if (!charge.limit || !charge.counter) return;
    uint64_t *state = doorman__counter_state(charge.counter);
    const doorman_figures *figures = charge.figures;
    const double most = figures->size - units;
    const double level = doorman__level_at(figures, state, permits->at.now);
    const double more = doorman__min(level, doorman__max(most, 0)) + units;
    doorman__level_write(state, doorman__min(more, figures->size), permits->at.now);
    if (charge.limit->durable) doorman__permits_mark(permits, charge.slot, charge.counter);
}

/* Does what the beginning of a row must do at once.
 *   units   what a bucket gets */
static void doorman__override_begin(doorman_permits *permits, doorman__override_row *row,
                                    double units) {
    assert(!(row->node.tag & DOORMAN__BEGUN));
    doorman__overrides_leave(&permits->overrides, row);
    row->node.tag |= DOORMAN__BEGUN;
    doorman__overrides_enter(&permits->overrides, row);
    doorman__override_pour(permits, row, units);
}

/* Returns when the first row begins or ends. */
static doorman_time doorman__overrides_due(const doorman_permits *permits) {
    if (permits->overrides.wakes) return permits->at.now;
    const doorman__override_row *row = doorman__overrides_first(&permits->overrides);
    const doorman_time due = row ? doorman__override_due(row) : DOORMAN_NEVER;
    if (due == DOORMAN_NEVER) return DOORMAN_NEVER;
    const doorman_time delay = doorman__moment_delay(&permits->at, due - permits->at.epoch);
    return doorman__after(permits->at.now, delay);
}

#define DOORMAN__UPDATE_OVERRIDES 1000

/* Begins and ends the rows that are due, up to a bound. */
static void doorman__overrides_work(doorman_permits *permits) {
    bool wakes = permits->overrides.wakes;
    permits->overrides.wakes = false;
    for (int i = 0; i < DOORMAN__UPDATE_OVERRIDES; i++) {
        doorman__override_row *row = doorman__overrides_first(&permits->overrides);
        if (!row || doorman__override_due(row) > permits->at.epoch) break;
        wakes = wakes || row->figures->scope->has_holds;
        if (row->ends_at <= permits->at.epoch) {
            doorman__override_free(permits, row);
        } else {
            doorman__override_begin(permits, row, row->figures->add);
        }
    }
    if (wakes) doorman__overrides_wake(permits);
}

/* ---- overrides: checks */

/* Where the first problem of a row is written. */
typedef struct doorman__override_report {
    doorman__config_report report; /* the first field */
    doorman_error *error;
    bool wire_names;
    bool has_problem;
} doorman__override_report;

/* Writes a problem, if it is the first one. In JSON the figures are in the object "set". */
static void doorman__override_problem(const doorman__config_report *report, size_t index,
                                      const char *object, const char *text) {
    static const char figures[] = "figures.";
    doorman__override_report *own = (doorman__override_report *)report->context;
    const char *second = strchr(text, '\n');
    (void)index;
    if (own->has_problem) return;
    own->has_problem = true;
    if (own->wire_names && second) text = second + 1;
    const int bytes = (int)strcspn(text, "\n");
    const bool renames = own->wire_names && strncmp(object, figures, sizeof figures - 1) == 0;
    const char *rest = renames ? object + sizeof figures - 1 : object;
    (void)doorman__fail(own->error, DOORMAN_INVALID_ARGUMENT, "%s%s%.*s", renames ? "set." : "",
                        rest, bytes, text);
}

static bool doorman__figures_given(const doorman_figures *given) {
    return !doorman__equal(given->rate, 0) || given->has_size || given->has_max_debt ||
           given->has_max_wait || given->has_queue || given->has_limit || given->has_tiers ||
           given->time_to_live || given->window || given->calendar;
}

/* Returns whether a time since 1970 is valid. */
static bool doorman__epoch_valid(doorman_time time) {
    return time >= 0 && time <= DOORMAN__EPOCH_MAX;
}

/* Checks the name of a row. */
static void doorman__override_name_check(doorman__check *check, const doorman_override_row *row) {
    const bool both = row->resource_id && row->identifier_glob;
    const bool has_glob = row->identifier_glob && !row->resource_id;
    const doorman__rule rules[] = {
        {both, DOORMAN__NAMES("identifier_glob: must be NULL with resource_id",
                              "glob: must not be given with resource")},
        {!has_glob && !doorman__id_valid(row->resource_id),
         DOORMAN__NAMES("resource_id: " DOORMAN__ID_RULE ", or NULL with identifier_glob",
                        "resource: " DOORMAN__ID_RULE ", or absent with glob")},
        {has_glob && !doorman__id_valid(row->identifier_glob),
         DOORMAN__NAMES("identifier_glob: " DOORMAN__ID_RULE, "glob: " DOORMAN__ID_RULE)},
        {!doorman__id_valid(row->limit), "limit: " DOORMAN__ID_RULE},
        {row->key && !doorman__key_valid(row->key), "key: " DOORMAN__KEY_RULE},
    };
    DOORMAN__CHECK(check, rules);
}

/* Checks what does not depend on a limit. */
static void doorman__override_row_check(doorman__check *check, const doorman_override_row *row) {
    const doorman_figures *given = &row->figures;
    const bool adds = !doorman__equal(row->add, 0), has = doorman__figures_given(given);
    const bool add_valid = doorman__amount_valid(row->add) && (row->add > 0 || !adds);
    const bool tiers_valid =
        given->tier_count <= DOORMAN_TIERS_MAX && (given->tiers || !given->tier_count);
    const bool ends_valid = doorman__epoch_valid(row->ends_at);
    doorman__override_name_check(check, row);
    const doorman__rule rules[] = {
        {!row->id, "id: must not be 0"},
        {!add_valid, "add: must be more than 0 and at most 1e15"},
        {adds && has, DOORMAN__NAMES("add: must be 0 with figures", "add: must not be given with "
                                                                    "set")},
        {adds && !row->resource_id, "add: needs a resource, because each resource of a template "
                                    "has counters of its own"},
        {!adds && !has,
         DOORMAN__NAMES("figures: must have at least one", "set: must have at least one figure")},
        {!doorman__epoch_valid(row->starts_at), "starts_at: must be a time since 1970"},
        {!ends_valid, "ends_at: must be a time since 1970"},
        {ends_valid && row->ends_at && row->ends_at <= row->starts_at,
         "ends_at: must be later than starts_at"},
    };
    const doorman__rule figure_rules[] = {
        {given->time_to_live != 0, "time_to_live: a row has none, because a server that restarts "
                                   "would not know it in time"},
        {!tiers_valid, "tiers: must be a list of at most 8"},
    };
    doorman__check figures = doorman__check_part(check, "figures");
    DOORMAN__CHECK(check, rules);
    DOORMAN__CHECK(&figures, figure_rules);
}

/* Finds the limit that a row names. Returns NULL, with an error, if there is none. */
static const doorman_permit_limit *doorman__override_limit(const doorman_permits *permits,
                                                           const doorman_override_row *row,
                                                           doorman_error *error) {
    const bool is_glob = !row->resource_id, wire = row->wire_names;
    const char *text = is_glob ? row->identifier_glob : row->resource_id;
    const doorman_template *template_ = doorman__override_template(permits, is_glob, text);
    const doorman_permit_limit *limit = doorman__template_limit(template_, row->limit);
    if (limit) return limit;
    if (!template_ && is_glob) {
        (void)doorman__fail(error, DOORMAN_NOT_FOUND, "%s: no template with limits has this glob",
                            wire ? "glob" : "identifier_glob");
    } else if (!template_) {
        (void)doorman__fail(error, DOORMAN_NOT_FOUND,
                            "%s: no template with limits matches this resource",
                            wire ? "resource" : "resource_id");
    } else {
        (void)doorman__fail(error, DOORMAN_NOT_FOUND, "limit: the template \"%s\" has no such one",
                            template_->identifier_glob);
    }
    return NULL;
}

/* ---- overrides: setting and ending rows */

/* Returns the figures that a row adds to: those of another row, or of the configuration. */
static const doorman_figures *doorman__override_base(const doorman_permits *permits,
                                                     const doorman_permit_limit *limit,
                                                     const doorman__override_name *name) {
    const doorman__slot *own = doorman__permits_own_slot(permits, limit);
    doorman__override_name other = *name;
    assert(limit->per == DOORMAN_PER_KEY);
    other.adds = false;
    for (int i = 0; i < 2; i++) {
        const doorman__override_row *row = doorman__override_find(permits, &other);
        if (row && !row->figures->idle) return &row->figures->all;
        other.kind = DOORMAN__OF_GLOB;
        other.text = own->glob;
        other.text_hash = own->glob_hash;
    }
    const doorman__plan_key of = {.glob = own->glob,
                                  .key = name->key,
                                  .key_bytes = strlen(name->key),
                                  .glob_hash = own->glob_hash,
                                  .key_hash = name->key_hash};
    const doorman_plan *plan = doorman__limit_plan(permits, limit, &of);
    if (plan) return &plan->figures;
    return doorman__limit_figures(limit, doorman__limit_override(limit, name->key));
}

/* Returns when a row ends: at its end, or at that of the window that it adds to. */
static doorman_time doorman__override_end(const doorman_permits *permits,
                                          const doorman_permit_limit *limit,
                                          const doorman__override_name *name,
                                          const doorman_override_row *row) {
    const doorman_time end = row->ends_at ? row->ends_at : DOORMAN_NEVER;
    if (!name->adds || !limit || limit->per != DOORMAN_PER_KEY) return end;
    const doorman_figures *figures = doorman__override_base(permits, limit, name);
    if (limit->kind == DOORMAN_FIXED_WINDOW) {
        return doorman__earlier(end, doorman__span_at(figures, row->starts_at).end);
    }
    if (limit->kind != DOORMAN_SLIDING_WINDOW) return end;
    return doorman__earlier(end, doorman__after(row->starts_at, figures->window));
}

/* Checks what depends on the limit, for a row that a person sets. */
static void doorman__override_set_check(doorman__check *check, const doorman_permits *permits,
                                        const doorman_permit_limit *limit,
                                        const doorman_override_row *row) {
    const char *key = row->key ? row->key : "";
    const bool adds = row->add > 0;
    const doorman__rule rules[] = {
        {row->ends_at && row->ends_at <= permits->at.epoch, "ends_at: has passed"},
        {limit->key_count && !doorman__keys_concern(limit->keys, limit->key_count, key),
         "key: the limit does not concern this key"},
        {adds && limit->kind == DOORMAN_TOKEN_BUCKET && !row->ends_at,
         DOORMAN__NAMES("ends_at: a row that adds to a TOKEN_BUCKET needs an end",
                        "expires_in: a row that adds to a TOKEN_BUCKET needs an end")},
    };
    doorman__override_check(check, limit, &row->figures, row->add);
    DOORMAN__CHECK(check, rules);
}

/* Enters a row that is valid, with the times and the id of `given`. A row that replaces one that
 * has begun adds only what it adds more.
 *   restored   a bucket has what a row adds already, if the row has begun */
static doorman_status doorman__override_store(doorman_permits *permits,
                                              const doorman__override_name *name,
                                              const doorman__override_content *content,
                                              const doorman_override_row *given, bool restored) {
    doorman__overrides *all = &permits->overrides;
    doorman__override_row *row = doorman__override_find(permits, name);
    const size_t most = content->plan ? permits->options.plan_max : permits->options.override_max;
    if (!row && all->orders[content->plan != NULL].count >= most) return DOORMAN_RESOURCE_EXHAUSTED;
    doorman__override_scope *scope = doorman__override_scope_get(permits, name);
    if (!scope) return DOORMAN_OUT_OF_MEMORY;
    doorman__override_figures *figures = doorman__override_figures_get(permits, scope, content);
    if (!figures) {
        doorman__override_scope_release(permits, scope);
        return DOORMAN_OUT_OF_MEMORY;
    }
    const bool replaces = row != NULL;
    if (!row) row = doorman__override_create(permits, name);
    if (!row) {
        doorman__override_figures_release(permits, figures);
        return DOORMAN_OUT_OF_MEMORY;
    }
    const bool has_begun = row->node.tag & DOORMAN__BEGUN;
    double units = content->add - (has_begun ? row->figures->add : 0);
    if (replaces) doorman__overrides_leave(all, row);
    doorman__override_give(permits, row, figures);
    row->node.tag &= ~DOORMAN__BEGUN;
    row->id = given->id;
    row->starts_at = given->starts_at;
    row->ends_at = given->ends_at;
    doorman__overrides_enter(all, row);
    if (restored && row->starts_at <= permits->at.epoch) units = 0;
    if (row->starts_at <= permits->at.epoch) {
        doorman__override_begin(permits, row, units);
    }
    return DOORMAN_OK;
}

/* Serves permits that wait, after a row was set or ended.
 *   has_holds   the row concerns limits of CONCURRENCY */
static void doorman__overrides_changed(doorman_permits *permits, bool has_holds) {
    if (!has_holds) return;
    doorman__overrides_wake(permits);
    doorman__holds_settle(permits, DOORMAN__CALL_ENDS);
}

static doorman_status doorman__override_set(doorman_permits *permits,
                                            const doorman_override_row *given, bool restored,
                                            doorman_error *error) {
    doorman_override_row row = *given;
    doorman__override_report report = {
        .report = {.add = doorman__override_problem}, .error = error, .wire_names = row.wire_names};
    report.report.context = &report;
    doorman__check check = {.report = &report.report};
    if (!row.starts_at) row.starts_at = permits->at.epoch;
    if (!restored) row.starts_at = doorman__later(row.starts_at, permits->at.epoch);
    doorman__override_row_check(&check, given);
    if (check.count) return DOORMAN_INVALID_ARGUMENT;
    doorman_error ignored;
    const doorman_permit_limit *limit =
        doorman__override_limit(permits, &row, restored ? &ignored : error);
    if (!limit && !restored) return DOORMAN_NOT_FOUND;
    if (!restored) doorman__override_set_check(&check, permits, limit, &row);
    if (check.count) return DOORMAN_INVALID_ARGUMENT;
    const doorman__override_name name = doorman__override_name_of(permits, &row);
    row.ends_at = doorman__override_end(permits, limit, &name, &row);
    if (row.ends_at <= permits->at.epoch) return DOORMAN_OK; /* only of a row that is restored */
    const doorman__override_content content = {&row.figures, row.add, NULL};
    const doorman_status status = doorman__override_store(permits, &name, &content, &row, restored);
    if (status == DOORMAN_OUT_OF_MEMORY) return doorman__no_memory(error);
    if (status != DOORMAN_OK) {
        return doorman__fail(error, status, "there are %zu override rows already",
                             permits->options.override_max);
    }
    doorman__overrides_changed(permits, limit && limit->kind == DOORMAN_CONCURRENCY);
    return DOORMAN_OK;
}

doorman_status doorman_permits_set_override(doorman_permits *permits,
                                            const doorman_override_row *row, doorman_error *error,
                                            doorman_time now) {
    if (!permits) return doorman__missing(error, "permits");
    if (!row) return doorman__missing(error, "row");
    doorman__moment_move(&permits->at, now);
    return doorman__override_set(permits, row, false, error);
}

doorman_status doorman_permits_restore_override(doorman_permits *permits,
                                                const doorman_override_row *row,
                                                doorman_error *error, doorman_time now) {
    if (!permits) return doorman__missing(error, "permits");
    if (!row) return doorman__missing(error, "row");
    doorman__moment_move(&permits->at, now);
    return doorman__override_set(permits, row, true, error);
}

/* Finds a row by the name that an application gives. Returns NULL, with an error, if there is
 * none. */
static doorman__override_row *doorman__override_named(const doorman_permits *permits,
                                                      const doorman_override_row *name,
                                                      doorman_error *error,
                                                      doorman_status *status) {
    doorman__override_report report = {.report = {.add = doorman__override_problem},
                                       .error = error,
                                       .wire_names = name->wire_names};
    report.report.context = &report;
    doorman__check check = {.report = &report.report};
    *status = DOORMAN_INVALID_ARGUMENT;
    doorman__override_name_check(&check, name);
    if (check.count) return NULL;
    const doorman__override_name wanted = doorman__override_name_of(permits, name);
    doorman__override_row *row = doorman__override_find(permits, &wanted);
    *status = DOORMAN_OK;
    if (!row) *status = doorman__fail(error, DOORMAN_NOT_FOUND, "there is no such override row");
    return row;
}

doorman_status doorman_permits_end_override(doorman_permits *permits,
                                            const doorman_override_row *name, doorman_error *error,
                                            doorman_time now) {
    doorman_status status = DOORMAN_OK;
    if (!permits) return doorman__missing(error, "permits");
    if (!name) return doorman__missing(error, "name");
    doorman__moment_move(&permits->at, now);
    doorman__override_row *row = doorman__override_named(permits, name, error, &status);
    if (!row) return status;
    const bool has_holds = row->figures->scope->has_holds;
    doorman__override_free(permits, row);
    doorman__overrides_changed(permits, has_holds);
    return DOORMAN_OK;
}

/* ---- overrides: reading rows */

static void doorman__override_describe(const doorman_permits *permits,
                                       const doorman__override_row *row,
                                       doorman_override_info *out) {
    const doorman__override_figures *figures = row->figures;
    const doorman__override_scope *scope = figures->scope;
    const char *text = doorman__override_scope_text(scope);
    const bool has_end = row->ends_at < DOORMAN_NEVER;
    const doorman_time epoch = permits->at.epoch;
    *out = (doorman_override_info){.idle = figures->idle, .all = figures->all};
    out->row = (doorman_override_row){.limit = doorman__override_scope_limit(scope),
                                      .id = row->id,
                                      .figures = figures->given,
                                      .add = figures->add,
                                      .starts_at = row->starts_at,
                                      .ends_at = has_end ? row->ends_at : 0};
    const bool is_glob = scope->node.tag == DOORMAN__OF_GLOB;
    *(is_glob ? &out->row.identifier_glob : &out->row.resource_id) = text;
    memcpy(out->key, doorman__override_key(row), doorman__override_key_bytes(row));
    out->key[doorman__override_key_bytes(row)] = 0;
    out->row.key = out->key;
    out->in_force = !figures->idle && row->starts_at <= epoch && epoch < row->ends_at;
    if (!figures->idle) out->glob = scope->slot->glob;
    if (figures->add > 0) out->all = (doorman_figures){.rate = 0};
}

bool doorman_permits_find_override(const doorman_permits *permits, const doorman_override_row *name,
                                   doorman_override_info *out) {
    doorman_status status = DOORMAN_OK;
    if (!permits || !name || !out) return false;
    const doorman__override_row *row = doorman__override_named(permits, name, NULL, &status);
    if (row) doorman__override_describe(permits, row, out);
    return row != NULL;
}

bool doorman_permits_next_override(const doorman_permits *permits, doorman_override_cursor *cursor,
                                   doorman_override_info *out) {
    if (!permits || !cursor || !out) return false;
    const doorman__override_row *row = doorman__order_after(&permits->overrides.orders[0], cursor);
    if (!row) return false;
    *cursor = (doorman_override_cursor){doorman__override_due(row), row->id};
    doorman__override_describe(permits, row, out);
    return true;
}

/* A copy of a counter. The state has room for all figures, and the key is behind it. */
typedef struct doorman__counter_copy {
    doorman__counter counter;
    uint64_t state[DOORMAN__STATE_WORDS_MAX];
    char key[DOORMAN_ID_BYTES_MAX + 1];
} doorman__counter_copy;

/* Lets a charge have a copy of its counter, which is adapted to the figures of the charge. */
static void doorman__override_copy(doorman__charge *charge, doorman__counter_copy *copy,
                                   const doorman__moment *at) {
    doorman__counter *counter = charge->counter;
    const size_t words = doorman__counter_words(counter);
    assert(words <= DOORMAN__STATE_WORDS_MAX);
    copy->counter.node = counter->node;
    copy->counter.override_ = counter->override_;
    copy->counter.key_bytes = counter->key_bytes;
    memcpy(copy->state, doorman__counter_state(counter), words * sizeof *copy->state);
    memcpy(copy->key, doorman__counter_key(counter), counter->key_bytes);
    charge->counter = &copy->counter;
    const doorman__meter meter = {charge->limit, charge->figures, copy->state};
    const bool fresh = charge->limit->kind == DOORMAN_SLIDING_WINDOW &&
                       copy->state[0] != (uint64_t)charge->figures->window;
    if (fresh) doorman__meter_init(&meter, at);
}

/* Describes a counter as it is at the end of a row, which the caller has left out of account.
 *   present   a charge of the counter as it is now */
static doorman_permit_detail doorman__override_after(doorman_permits *permits,
                                                     const doorman__charge *present,
                                                     doorman_time end) {
    const doorman__moment before = permits->at;
    doorman__counter_copy copy = {.counter = {.words = DOORMAN__STATE_WORDS_MAX}};
    doorman__charge charge = *present;
    doorman__moment *at = &permits->at;
    if (end < DOORMAN_NEVER && end > at->epoch) {
        at->now = doorman__after(at->now, doorman__moment_delay(at, end - at->epoch));
        at->epoch = end;
    }
    const doorman_figures *brought =
        charge.counter ? doorman__counter_brought(permits, charge.limit, charge.counter) : NULL;
    charge.figures =
        doorman__key_figures(permits, charge.limit, charge.override_, brought, &charge.identity);
    if (charge.counter) doorman__override_copy(&charge, &copy, at);
    doorman_permit_detail detail = doorman__charge_detail(permits, &charge, 0);
    const doorman_limit_kind kind = charge.limit->kind;
    if (charge.counter && (kind == DOORMAN_FIXED_WINDOW || kind == DOORMAN_SLIDING_WINDOW)) {
        const doorman__meter meter = {charge.limit, charge.figures, copy.state};
        detail.used = doorman__grains_units(doorman__meter_used(&meter, at)); /* may be more */
    }
    permits->at = before;
    return detail;
}

doorman_status doorman_permits_after_override(doorman_permits *permits,
                                              const doorman_override_row *name,
                                              const char *resource_id, doorman_permit_detail *out,
                                              doorman_error *error, doorman_time now) {
    doorman_status status = DOORMAN_OK;
    if (!permits) return doorman__missing(error, "permits");
    if (!name) return doorman__missing(error, "name");
    if (!out) return doorman__missing(error, "out");
    if (!resource_id) resource_id = name->resource_id;
    if (!resource_id) return doorman__missing(error, "resource_id");
    doorman__moment_move(&permits->at, now);
    doorman__override_row *row = doorman__override_named(permits, name, error, &status);
    if (!row) return status;
    if (row->figures->idle) return doorman__fail(error, DOORMAN_NOT_FOUND, "the row is idle");
    const bool same = !name->resource_id || strcmp(name->resource_id, resource_id) == 0;
    doorman__charge charge = {.limit = NULL};
    doorman__slot *slot = row->figures->scope->slot;
    const char *key = name->key ? name->key : "";
    if (same && !doorman__override_charge(permits, slot, resource_id, key, &charge)) {
        return doorman__no_memory(error);
    }
    if (!charge.limit) {
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT,
                             "resource_id: the row does not concern this resource");
    }
    const doorman_time end = row->ends_at;
    row->ends_at = 0; /* without it */
    *out = doorman__override_after(permits, &charge, end);
    row->ends_at = end;
    doorman__permits_sweep_places(permits, DOORMAN__CALL_VISITS);
    return DOORMAN_OK;
}

/* ---- overrides: plan rows (E2) */

/* Checks the name of a plan row. */
static void doorman__plan_name_check(doorman__check *check, const doorman_plan_row *row) {
    const doorman__rule rules[] = {
        {!doorman__id_valid(row->identifier_glob),
         DOORMAN__NAMES("identifier_glob: " DOORMAN__ID_RULE, "glob: " DOORMAN__ID_RULE)},
        {row->key && !doorman__key_valid(row->key), "key: " DOORMAN__KEY_RULE},
    };
    DOORMAN__CHECK(check, rules);
}

/* Checks what does not depend on the configuration. */
static void doorman__plan_row_check(doorman__check *check, const doorman_plan_row *row) {
    const bool ends_valid = doorman__epoch_valid(row->ends_at);
    const doorman__rule rules[] = {
        {!row->id, "id: must not be 0"},
        {!doorman__plan_name_valid(row->plan), "plan: " DOORMAN__PLAN_RULE},
        {!doorman__epoch_valid(row->starts_at), "starts_at: must be a time since 1970"},
        {!ends_valid, "ends_at: must be a time since 1970"},
        {ends_valid && row->ends_at && row->ends_at <= row->starts_at,
         "ends_at: must be later than starts_at"},
    };
    doorman__plan_name_check(check, row);
    DOORMAN__CHECK(check, rules);
}

static doorman__override_name doorman__plan_name_of(const doorman_permits *permits,
                                                    const doorman_plan_row *row) {
    const uint64_t *seed = permits->options.seed;
    doorman__override_name name = {.kind = DOORMAN__OF_PLAN,
                                   .text = row->identifier_glob,
                                   .limit = "",
                                   .limit_hash = DOORMAN__PLAN_HASH,
                                   .key = row->key ? row->key : ""};
    name.text_hash = (uint32_t)doorman__hash(seed, name.text);
    name.key_hash = (uint32_t)doorman__hash(seed, name.key);
    return name;
}

/* Checks that the configuration has the plan of a row. Returns OK or NOT_FOUND. */
static doorman_status doorman__plan_find_check(const doorman_permits *permits,
                                               const doorman_plan_row *row, doorman_error *error) {
    const doorman_template *template_ =
        doorman__override_template(permits, true, row->identifier_glob);
    if (!template_) {
        return doorman__fail(error, DOORMAN_NOT_FOUND, "%s: no template with limits has this glob",
                             row->wire_names ? "glob" : "identifier_glob");
    }
    if (doorman__template_has_plan(template_, row->plan)) return DOORMAN_OK;
    return doorman__fail(error, DOORMAN_NOT_FOUND,
                         "plan: no limit of the template \"%s\" has such a plan",
                         row->identifier_glob);
}

/* Checks a row by itself. Writes the first problem. */
static bool doorman__plan_check(const doorman_plan_row *row, bool by_name, doorman_error *error) {
    doorman__override_report report = {.report = {.add = doorman__override_problem},
                                       .error = error,
                                       .wire_names = row->wire_names};
    report.report.context = &report;
    doorman__check check = {.report = &report.report};
    if (by_name) doorman__plan_name_check(&check, row);
    if (!by_name) doorman__plan_row_check(&check, row);
    return check.count == 0;
}

static doorman_status doorman__plan_check_alone(const doorman_plan_row *row, doorman_error *error) {
    return doorman__plan_check(row, false, error) ? DOORMAN_OK : DOORMAN_INVALID_ARGUMENT;
}

/* Checks a row that a person sets. */
static doorman_status doorman__plan_set_check(const doorman_permits *permits,
                                              const doorman_plan_row *row, doorman_error *error) {
    doorman_status status = doorman__plan_check_alone(row, error);
    if (status == DOORMAN_OK) status = doorman__plan_find_check(permits, row, error);
    if (status != DOORMAN_OK || !row->ends_at || row->ends_at > permits->at.epoch) return status;
    return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "ends_at: has passed");
}

static doorman_status doorman__plan_set(doorman_permits *permits, const doorman_plan_row *row,
                                        bool restored, doorman_error *error) {
    const doorman_time epoch = permits->at.epoch;
    const doorman_status valid = restored ? doorman__plan_check_alone(row, error)
                                          : doorman__plan_set_check(permits, row, error);
    if (valid != DOORMAN_OK) return valid;
    doorman_override_row times = {.id = row->id,
                                  .starts_at = row->starts_at ? row->starts_at : epoch,
                                  .ends_at = row->ends_at ? row->ends_at : DOORMAN_NEVER};
    if (!restored) times.starts_at = doorman__later(times.starts_at, epoch);
    if (times.ends_at <= epoch) return DOORMAN_OK; /* only of a row that is restored */
    const doorman__override_name name = doorman__plan_name_of(permits, row);
    const doorman__override_content content = {.plan = row->plan};
    const doorman_status status =
        doorman__override_store(permits, &name, &content, &times, restored);
    if (status == DOORMAN_OUT_OF_MEMORY) return doorman__no_memory(error);
    if (status != DOORMAN_OK) {
        return doorman__fail(error, status, "there are %zu plan rows already",
                             permits->options.plan_max);
    }
    permits->overrides.wakes |= doorman__override_find(permits, &name)->figures->scope->has_holds;
    return DOORMAN_OK;
}

doorman_status doorman_permits_set_plan(doorman_permits *permits, const doorman_plan_row *row,
                                        doorman_error *error, doorman_time now) {
    if (!permits) return doorman__missing(error, "permits");
    if (!row) return doorman__missing(error, "row");
    doorman__moment_move(&permits->at, now);
    return doorman__plan_set(permits, row, false, error);
}

doorman_status doorman_permits_check_plan(doorman_permits *permits, const doorman_plan_row *row,
                                          doorman_error *error, doorman_time now) {
    if (!permits) return doorman__missing(error, "permits");
    if (!row) return doorman__missing(error, "row");
    doorman__moment_move(&permits->at, now);
    return doorman__plan_set_check(permits, row, error);
}

doorman_status doorman_permits_restore_plan(doorman_permits *permits, const doorman_plan_row *row,
                                            doorman_error *error, doorman_time now) {
    if (!permits) return doorman__missing(error, "permits");
    if (!row) return doorman__missing(error, "row");
    doorman__moment_move(&permits->at, now);
    return doorman__plan_set(permits, row, true, error);
}

/* Finds a row by the name that an application gives. Returns NULL, with an error, if there is
 * none. */
static doorman__override_row *doorman__plan_named(const doorman_permits *permits,
                                                  const doorman_plan_row *name,
                                                  doorman_error *error, doorman_status *status) {
    *status = DOORMAN_INVALID_ARGUMENT;
    if (!doorman__plan_check(name, true, error)) return NULL;
    const doorman__override_name wanted = doorman__plan_name_of(permits, name);
    doorman__override_row *row = doorman__override_find(permits, &wanted);
    *status = DOORMAN_OK;
    if (!row) *status = doorman__fail(error, DOORMAN_NOT_FOUND, "the key has no plan row");
    return row;
}

doorman_status doorman_permits_end_plan(doorman_permits *permits, const doorman_plan_row *name,
                                        doorman_error *error, doorman_time now) {
    doorman_status status = DOORMAN_OK;
    if (!permits) return doorman__missing(error, "permits");
    if (!name) return doorman__missing(error, "name");
    doorman__moment_move(&permits->at, now);
    doorman__override_row *row = doorman__plan_named(permits, name, error, &status);
    if (!row) return status;
    permits->overrides.wakes |= row->figures->scope->has_holds;
    doorman__override_free(permits, row);
    return DOORMAN_OK;
}

static void doorman__plan_describe(const doorman_permits *permits, const doorman__override_row *row,
                                   doorman_plan_info *out) {
    const doorman__override_figures *figures = row->figures;
    const doorman_time epoch = permits->at.epoch;
    const size_t bytes = doorman__override_key_bytes(row);
    *out = (doorman_plan_info){.idle = figures->idle};
    memcpy(out->key, doorman__override_key(row), bytes);
    out->key[bytes] = 0;
    out->row = (doorman_plan_row){.identifier_glob = doorman__override_scope_text(figures->scope),
                                  .key = out->key,
                                  .plan = figures->plan,
                                  .id = row->id,
                                  .starts_at = row->starts_at,
                                  .ends_at = row->ends_at < DOORMAN_NEVER ? row->ends_at : 0};
    out->in_force = !figures->idle && row->starts_at <= epoch && epoch < row->ends_at;
}

bool doorman_permits_find_plan(const doorman_permits *permits, const doorman_plan_row *name,
                               doorman_plan_info *out) {
    doorman_status status = DOORMAN_OK;
    if (!permits || !name || !out) return false;
    const doorman__override_row *row = doorman__plan_named(permits, name, NULL, &status);
    if (row) doorman__plan_describe(permits, row, out);
    return row != NULL;
}

bool doorman_permits_next_plan(const doorman_permits *permits, doorman_override_cursor *cursor,
                               doorman_plan_info *out) {
    if (!permits || !cursor || !out) return false;
    const doorman__override_row *row = doorman__order_after(&permits->overrides.orders[1], cursor);
    if (!row) return false;
    *cursor = (doorman_override_cursor){doorman__override_due(row), row->id};
    doorman__plan_describe(permits, row, out);
    return true;
}

/* ---- >>permit_node -------------------------------------------------------------------------- */
/*
 * The object that has all permits of a node, the messages on permits, and their leases. The section
 * >>server reaches it through the table doorman__permits_in_server.
 */

/* ---- permits: the whole object */

#define DOORMAN__REASON_NAME(code, name) name,
static const char *const doorman__reason_names[] = {DOORMAN_REASONS(DOORMAN__REASON_NAME)};

const char *doorman_reason_name(doorman_reason reason) {
    return (unsigned)reason < DOORMAN_REASON_COUNT ? doorman__reason_names[reason] : "?";
}

/* Makes a slot without counters. Returns NULL if memory runs out. */
static doorman__slot *doorman__slot_create(const doorman_permits *permits,
                                           const doorman_template *template_,
                                           const doorman_permit_limit *limit) {
    const char *glob = template_ ? template_->identifier_glob : "";
    const char *name = limit ? limit->name : "";
    size_t glob_bytes = strlen(glob) + 1, name_bytes = strlen(name) + 1;
    doorman__slot *slot =
        (doorman__slot *)doorman__zalloc(sizeof(doorman__slot) + glob_bytes + name_bytes);
    if (!slot) return NULL;
    char *strings = (char *)(slot + 1);
    memcpy(strings, glob, glob_bytes);
    memcpy(strings + glob_bytes, name, name_bytes);
    slot->glob = strings;
    slot->name = strings + glob_bytes;
    slot->glob_hash = (uint32_t)doorman__hash(permits->options.seed, glob);
    slot->name_hash = (uint32_t)doorman__hash(permits->options.seed, name);
    if (limit) slot->per = limit->per;
    if (limit) slot->kind = limit->kind;
    return slot;
}

/* Returns the slot that a limit had in the previous configuration, or NULL.
 *   limit   NULL: the list of limits is empty */
static doorman__slot *doorman__permits_old_slot(const doorman_permits *permits,
                                                const doorman_template *template_, size_t place,
                                                const doorman_permit_limit *limit) {
    const doorman_config *config = permits->config;
    if (!config) return NULL;
    place = doorman__config_same(config, template_->identifier_glob, place);
    if (place >= config->template_count) return NULL;
    const doorman_template *old = &config->templates[place];
    if (!limit) return permits->open_slots[place];
    for (size_t i = 0; i < old->limit_count; i++) {
        doorman__slot *slot = doorman__permits_own_slot(permits, &old->limits[i]);
        if (doorman__slot_is(slot, limit)) return slot;
    }
    return NULL;
}

/* Adds a slot. Returns NULL if memory runs out. */
static doorman__slot *doorman__permits_add_slot(doorman_permits *permits,
                                                const doorman_template *template_,
                                                const doorman_permit_limit *limit) {
    void *slots = permits->slots;
    bool room = doorman__reserve(&slots, &permits->slot_capacity, permits->slot_count + 1,
                                 sizeof(doorman__slot *));
    permits->slots = (doorman__slot **)slots;
    doorman__slot *slot = room ? doorman__slot_create(permits, template_, limit) : NULL;
    if (slot) permits->slots[permits->slot_count++] = slot;
    if (slot && slot->kind == DOORMAN_CONCURRENCY) slot->learns_until = permits->holds.learns_until;
    assert(permits->slot_count <= permits->slot_capacity);
    return slot;
}

static bool doorman__template_is_open(const doorman_template *template_) {
    return template_->has_limits && !template_->limit_count;
}

/* Finds or makes the slots of a template. Returns false if memory runs out.
 *   own    has the slots of limits
 *   open   has the slots of templates whose list of limits is empty */
static bool doorman__permits_make_template_slots(doorman_permits *permits,
                                                 const doorman_config *config, size_t index,
                                                 doorman__slot **own, doorman__slot **open) {
    const doorman_template *template_ = &config->templates[index];
    size_t count = doorman__template_is_open(template_) ? 1 : template_->limit_count;
    for (size_t i = 0; i < count; i++) {
        const doorman_permit_limit *limit = template_->limit_count ? &template_->limits[i] : NULL;
        doorman__slot *slot = doorman__permits_old_slot(permits, template_, index, limit);
        if (!slot) slot = doorman__permits_add_slot(permits, template_, limit);
        *(limit ? &own[doorman__limit_index(config, limit)] : &open[index]) = slot;
        if (!slot) return false;
    }
    return true;
}

/* Returns how many limits a configuration has, and how many templates with an empty list. */
static size_t doorman__config_slots(const doorman_config *config, size_t *limit_count) {
    size_t open = 0;
    *limit_count = 0;
    for (size_t i = 0; i < config->template_count; i++) {
        *limit_count += config->templates[i].limit_count;
        open += doorman__template_is_open(&config->templates[i]);
    }
    return *limit_count + open;
}

/* Finds or makes the slots of all limits of a configuration: see own_slots and open_slots of
 * doorman_permits. Counts the holds in them. On failure, the slots that were made are freed. */
static doorman__slot **doorman__permits_make_slots(doorman_permits *permits,
                                                   const doorman_config *config) {
    size_t limits = 0, count = doorman__config_slots(config, &limits);
    size_t before = permits->slot_count;
    doorman__slot **own =
        (doorman__slot **)doorman__zalloc((count + config->template_count + 1) * sizeof *own);
    bool made = own != NULL;
    for (size_t i = 0; made && i < config->template_count; i++) {
        made = doorman__permits_make_template_slots(permits, config, i, own, own + count);
    }
    for (size_t i = 0; made && i < config->template_count; i++) {
        if (own[count + i]) own[limits++] = own[count + i];
    }
    assert(!made || limits == count);
    if (made && doorman__holds_recount(permits, config, own)) return own;
    DOORMAN_FREE(own);
    while (permits->slot_count > before) DOORMAN_FREE(permits->slots[--permits->slot_count]);
    return NULL;
}

/* Returns how many bytes a text takes in JSON, without its quotes. Control characters are written
 * as \u and four digits. */
static size_t doorman__quoted_bytes(const char *text) {
    size_t bytes = 0;
    for (const unsigned char *at = (const unsigned char *)text; *at; at++) {
        bool control = *at < 0x20 || *at == 0x7f || (*at == 0xc2 && at[1] < 0xa0);
        bytes += control ? 6 : *at == '"' || *at == '\\' ? 2 : 1;
    }
    return bytes;
}

/* Notes the length of the longest name of a limit and of a plan, and the most limits of a template.
 * So a message
 * whose response would be too large can be refused before anything is decided. */
static void doorman__permits_measure(doorman_permits *permits, const doorman_config *config) {
    permits->name_bytes = permits->plan_bytes = permits->limits_most = 0;
    for (size_t i = 0; i < config->template_count; i++) {
        const doorman_template *template_ = &config->templates[i];
        if (template_->limit_count > permits->limits_most) {
            permits->limits_most = template_->limit_count;
        }
        for (size_t j = 0; j < template_->limit_count; j++) {
            size_t bytes = doorman__quoted_bytes(template_->limits[j].name);
            if (bytes > permits->name_bytes) permits->name_bytes = bytes;
            for (size_t k = 0; k < template_->limits[j].plan_count; k++) {
                const size_t more = doorman__quoted_bytes(template_->limits[j].plans[k].name);
                if (more > permits->plan_bytes) permits->plan_bytes = more;
            }
        }
    }
}

/* Returns how long a hold of a limit may last: the longest time to live of its figures,
 * overrides and plans, plus the drift, but at least the learning_mode_duration of the template. */
static doorman_time doorman__limit_longest(const doorman_permits *permits,
                                           const doorman_template *template_,
                                           const doorman_permit_limit *limit) {
    doorman_time life = limit->figures.time_to_live;
    for (size_t i = 0; i < limit->override_count; i++) {
        life = doorman__later(life, limit->overrides[i].figures.time_to_live);
    }
    for (size_t i = 0; i < limit->plan_count; i++) {
        life = doorman__later(life, limit->plans[i].figures.time_to_live);
    }
    life += doorman__scale(life, permits->options.drift) + 1;
    if (!template_->algorithm.has_learning_mode_duration) return life;
    return doorman__later(life, template_->algorithm.learning_mode_duration);
}

/* Notes how long holds may last in a configuration. Keeps the longest time of all configurations so
 * far, because their holds may still exist. If an operator restarts with a shorter time to live,
 * learning_mode_duration says for how long holds of the previous file may last. Precondition:
 * own_slots are those of `config`. */
static void doorman__holds_note_life(doorman_permits *permits, const doorman_config *config) {
    const doorman_time before = permits->holds.longest;
    const bool changes = config != permits->config && before;
    permits->holds.configured = false;
    if (changes) permits->holds.mixed_until = doorman__after(permits->at.now, before);
    for (size_t i = 0; i < config->template_count; i++) {
        const doorman_template *template_ = &config->templates[i];
        for (size_t j = 0; j < template_->limit_count; j++) {
            const doorman_permit_limit *limit = &template_->limits[j];
            bool holds = limit->kind == DOORMAN_CONCURRENCY;
            permits->holds.configured = permits->holds.configured || holds;
            permits->leases.has_gauges = permits->leases.has_gauges || (holds && limit->leased);
            if (!holds || limit->leased) continue;
            doorman__slot *slot = permits->own_slots[doorman__limit_index(config, limit)];
            assert(slot->kind == DOORMAN_CONCURRENCY);
            doorman_time longest = doorman__limit_longest(permits, template_, limit);
            slot->longest = doorman__later(slot->longest, longest);
            permits->holds.longest = doorman__later(permits->holds.longest, longest);
        }
    }
}

/* Lets all limits learn until the last of them has learned. A changed configuration may let another
 * limit count a hold that is not known yet. */
static void doorman__holds_keep_learning(doorman_permits *permits) {
    for (size_t i = 0; i < permits->own_count; i++) {
        doorman__slot *slot = permits->own_slots[i];
        if (slot->kind == DOORMAN_CONCURRENCY) slot->learns_until = permits->holds.learns_until;
    }
    doorman__holds_find_learned(permits);
}

doorman_status doorman_permits_configure(doorman_permits *permits, const doorman_config *config) {
    if (!permits || !config) return DOORMAN_INVALID_ARGUMENT;
    doorman__slot **own = doorman__permits_make_slots(permits, config);
    if (!own) return DOORMAN_OUT_OF_MEMORY;
    size_t limits = 0, count = doorman__config_slots(config, &limits);
    for (size_t i = 0; i < permits->slot_count; i++) permits->slots[i]->limit = NULL;
    for (size_t i = 0; i < count; i++) {
        assert(own[i]);
        own[i]->limit = i < limits ? &config->limits->limits[i] : &doorman__open_limit;
    }
    DOORMAN_FREE(permits->own_slots);
    permits->own_slots = own;
    permits->own_count = count;
    permits->open_slots = own + count;
    doorman__holds_recounted(permits);
    doorman__holds_rename(permits, config);
    doorman__holds_note_life(permits, config);
    if (permits->at.now < permits->holds.learns_until) doorman__holds_keep_learning(permits);
    permits->config = config;
    permits->generation++;
    doorman__permits_measure(permits, config);
    doorman__overrides_configure(permits);
    for (size_t i = 0; i < permits->place_count; i++) {
        /* without memory the place is adapted when it is used next */
        if (permits->places[i]) (void)doorman__place_resolve(permits, permits->places[i]);
    }
    return DOORMAN_OK;
}

static doorman_status doorman__permits_check_options(doorman_permits_options *own,
                                                     doorman_error *error) {
    const char *wrong = NULL;
    if (!own->item_max) own->item_max = 100;
    if (!own->counter_max) own->counter_max = DOORMAN__COUNTERS_MAX;
    if (!own->memory_max) own->memory_max = SIZE_MAX;
    if (!own->message_item_max) own->message_item_max = 10000;
    if (!own->message_detail_max) own->message_detail_max = 100;
    if (!own->override_max) own->override_max = 1000000;
    if (!own->plan_max) own->plan_max = 1000000;
    if (!own->hold_max) own->hold_max = 1000000;
    if (!own->client_hold_max) own->client_hold_max = 10000;
    if (!own->waiting_max) own->waiting_max = 10000;
    if (!own->client_waiting_max) own->client_waiting_max = 1000;
    if (!own->connection_waiting_max) own->connection_waiting_max = 100;
    if (own->event_kinds >> DOORMAN_PERMIT_EVENT_COUNT) wrong = "event_kinds: has an unknown kind";
    if (!own->event_kinds) own->event_kinds = UINT32_MAX;
    if (!own->on_event) own->event_kinds = 0;
    if (!(own->drift >= 0 && own->drift <= 1)) wrong = "drift: must be from 0 to 1";
    if (own->drift <= 0) own->drift = DOORMAN__DRIFT;
    if (!own->config) wrong = "config: must not be NULL";
    if (own->item_max > 1000000) wrong = "item_max: must be at most 1,000,000";
    if (own->counter_max > 1000000000) wrong = "counter_max: must be at most 1e9";
    bool has_seed = own->seed[0] || own->seed[1];
#ifdef DOORMAN_NNG
    if (!wrong && !has_seed && !doorman__random_bits(own->seed, sizeof own->seed)) {
        return doorman__fail(error, DOORMAN_UNAVAILABLE, "seed: the system has no random bits");
    }
#else
    if (!has_seed) wrong = "seed: must not be 0, but random bits that are new for each process";
#endif
    return wrong ? doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "%s", wrong) : DOORMAN_OK;
}

/* Starts the clocks. The caller's epoch stays. Precondition: there are no counters. */
static void doorman__permits_restart(doorman_permits *permits, doorman_time now) {
    assert(!permits->counter_count && !permits->place_table.count);
    doorman__moment *at = &permits->at;
    *at = (doorman__moment){.now = now,
                            .start = now,
                            .given = at->given,
                            .given_at = at->given_at,
                            .has_given = at->has_given};
    doorman__moment_move(at, now);
    at->start_epoch = at->epoch;
    permits->updated_at = now;
    permits->changes.rows = DOORMAN_ROWS_READ;
    permits->holds.learns_until = permits->options.learns_until;
    permits->holds.next_learned = permits->options.learns_until;
}

/* P16: lets the permits learn the holds of a predecessor that had this configuration, or an earlier
 * one. */
static void doorman__permits_learn(doorman_permits *permits, doorman_time predecessor_gone_at) {
    doorman__holds *holds = &permits->holds;
    bool mixed = predecessor_gone_at < holds->mixed_until;
    assert(!holds->granted.count && !holds->waiting.count);
    holds->learns_until = 0;
    for (size_t i = 0; i < permits->own_count; i++) {
        doorman__slot *slot = permits->own_slots[i];
        doorman_time longest = slot->longest && mixed ? holds->longest : slot->longest;
        slot->learns_until = longest ? doorman__after(predecessor_gone_at, longest) : 0;
        holds->learns_until = doorman__later(holds->learns_until, slot->learns_until);
    }
    doorman__holds_find_learned(permits);
}

doorman_status doorman_permits_create(doorman_permits **out, const doorman_permits_options *options,
                                      doorman_error *error, doorman_time now) {
    if (!out) return doorman__missing(error, "out");
    if (!options) return doorman__missing(error, "options");
    doorman_permits_options own = *options;
    doorman_status status = doorman__permits_check_options(&own, error);
    if (status != DOORMAN_OK) return status;
    doorman_permits *permits = (doorman_permits *)doorman__zalloc(sizeof *permits);
    if (!permits) return doorman__no_memory(error);
    permits->options = own;
    permits->random = own.seed[0] ^ own.seed[1];
    permits->empty_hash = doorman__hash(own.seed, "");
    permits->at.given = doorman__later(now, 0);
    permits->at.given_at = now;
    doorman__permits_restart(permits, now);
    if (!doorman__permits_add_slot(permits, NULL, NULL) ||
        doorman_permits_configure(permits, own.config) != DOORMAN_OK) {
        doorman_permits_destroy(permits);
        return doorman__no_memory(error);
    }
    *out = permits;
    return DOORMAN_OK;
}

/* Removes all counters, bans, holds, leases, places and lists of frequent keys. Counts of decisions
 * stay. Slots of limits that are no longer in the configuration are freed. The first slot is that
 * of the bans. */
static void doorman__permits_clear(doorman_permits *permits) {
    doorman__changes_clear(&permits->changes);
    doorman__overrides_clear(permits);
    doorman__holds_clear(permits);
    doorman__leased_clear(permits);
    for (size_t i = 0; i < permits->place_count; i++) {
        if (permits->places[i]) doorman__place_leave(permits->places[i]);
        if (permits->places[i]) DOORMAN_FREE(permits->places[i]->slots);
    }
    doorman__chains_free_all(&permits->place_table);
    permits->place_count = permits->free_count = 0;
    for (size_t i = permits->slot_count; i-- > 0;) {
        doorman__slot *slot = permits->slots[i];
        doorman__chains_free_all(&slot->nodes);
        doorman__timers_uninit(&slot->bans);
        slot->bans = (doorman__timers){.heap = NULL};
        doorman__permits_free_tops(permits, slot);
        if (i > 0 && !slot->limit) doorman__permits_free_slot(permits, i);
    }
    doorman__chains_free_all(&permits->sets);
    permits->sweep_slot = 0;
    assert(!permits->place_table.count && !permits->holds.granted.count);
    permits->counter_count = permits->node_bytes = permits->ban_bytes = 0;
}

void doorman_permits_destroy(doorman_permits *permits) {
    if (!permits) return;
    doorman__permits_clear(permits);
    doorman__holds_uninit(&permits->holds);
    doorman_client_destroy(permits->leases.client);
    for (size_t i = 0; i < permits->slot_count; i++) DOORMAN_FREE(permits->slots[i]);
    DOORMAN_FREE(permits->slots);
    DOORMAN_FREE(permits->own_slots);
    DOORMAN_FREE(permits->places);
    DOORMAN_FREE(permits->free_places);
    DOORMAN_FREE(permits->charges);
    DOORMAN_FREE(permits->wants);
    DOORMAN_FREE(permits->grants);
    DOORMAN_FREE(permits->details);
    DOORMAN_FREE(permits);
}

void doorman_permits_set_epoch(doorman_permits *permits, doorman_time epoch, doorman_time now) {
    if (permits) doorman__moment_set_epoch(&permits->at, epoch, now);
}

doorman_time doorman_permits_due(const doorman_permits *permits) {
    if (!permits) return DOORMAN_NEVER;
    bool empty = !permits->place_table.count && !permits->counter_count;
    doorman_time due = empty ? DOORMAN_NEVER : doorman__after(permits->updated_at, DOORMAN_SECOND);
    due = doorman__earlier(due, doorman__overrides_due(permits));
    return doorman__earlier(due, doorman__holds_due(permits));
}

void doorman_permits_update(doorman_permits *permits, doorman_time now) {
    if (!permits) return;
    doorman__moment_move(&permits->at, now);
    permits->updated_at = permits->at.now;
    doorman__overrides_work(permits);
    doorman__holds_settle(permits, DOORMAN__UPDATE_ENDS);
    doorman__permits_sweep_places(permits, DOORMAN__UPDATE_VISITS);
    doorman__permits_sweep_counters(permits, DOORMAN__UPDATE_VISITS);
}

void doorman_permits_read(const doorman_permits *permits, doorman_permits_info *out) {
    if (!out) return;
    memset(out, 0, sizeof *out);
    if (!permits) return;
    *out = (doorman_permits_info){.counter_count = permits->counter_count,
                                  .ban_count = doorman__permits_bans(permits)->nodes.count,
                                  .resource_count = permits->place_table.count,
                                  .hold_count = doorman__holds_count(permits),
                                  .wait_count = permits->holds.waiting.count,
                                  .learns_until = permits->holds.learns_until,
                                  .started_at = permits->at.start,
                                  .unmatched = permits->unmatched,
                                  .banned = permits->banned,
                                  .bans_evicted = permits->bans_evicted,
                                  .bytes = doorman__permits_bytes(permits),
                                  .changed_count = doorman__changes_count(&permits->changes),
                                  .changed_since = permits->changes.since,
                                  .removals_lost = permits->changes.removals_lost,
                                  .override_count = permits->overrides.orders[0].count,
                                  .override_idle_count = permits->overrides.orders[0].idle_count,
                                  .plan_count = permits->overrides.orders[1].count,
                                  .plan_idle_count = permits->overrides.orders[1].idle_count,
                                  .plan_max = permits->options.plan_max};
    if (!out->changed_count) out->changed_since = DOORMAN_NEVER;
}

bool doorman_permits_next_limit(const doorman_permits *permits, doorman_cursor *cursor,
                                doorman_permits_limit *out) {
    if (!permits || !cursor || !out) return false;
    cursor->at_end = cursor->position >= permits->own_count;
    if (cursor->at_end) return false;
    const doorman__slot *slot = permits->own_slots[cursor->position++];
    *out = slot->totals;
    out->identifier_glob = slot->glob;
    out->limit = slot->name;
    out->settings = slot->limit == &doorman__open_limit ? NULL : slot->limit;
    out->counter_count = slot->nodes.count;
    out->ban_count = slot->bans.count;
    return true;
}

bool doorman_permits_next_top(const doorman_permits *permits, size_t limit_index,
                              doorman_top_kind kind, doorman_cursor *cursor,
                              doorman_permits_top *out) {
    if (!permits || !cursor || !out) return false;
    const doorman__top *top = NULL;
    bool known = limit_index < permits->own_count && (unsigned)kind < DOORMAN_TOP_COUNT;
    if (known) top = permits->own_slots[limit_index]->tops[kind];
    size_t last = cursor->position ? (size_t)cursor->position - 1 : DOORMAN__TOP_NONE;
    size_t next = top ? doorman__top_next(top, last) : DOORMAN__TOP_NONE;
    unsigned halvings = top ? doorman__top_halvings(top, permits->at.now) : 0;
    double count = next == DOORMAN__TOP_NONE ? 0 : doorman__top_halve(top->counts[next], halvings);
    cursor->at_end = !(count > 0);
    if (cursor->at_end) return false;
    const doorman__top_entry *entry = &top->entries[next];
    cursor->position = next + 1;
    *out = (doorman_permits_top){entry->text, entry->text + strlen(entry->text) + 1,
                                 (uint64_t)count, (uint64_t)entry->error >> halvings,
                                 entry->units / (double)(UINT64_C(1) << halvings)};
    return true;
}

bool doorman_permits_next_usage(doorman_permits *permits, size_t limit_index,
                                doorman_usage_window window, doorman_cursor *cursor,
                                doorman_permits_usage *out, doorman_time now) {
    if (!permits || !cursor || !out) return false;
    bool known = limit_index < permits->own_count && (unsigned)window < DOORMAN_USAGE_WINDOW_COUNT;
    doorman__units_top *usage = known ? permits->own_slots[limit_index]->usage : NULL;
    cursor->at_end = !usage;
    if (!usage) return false;
    if (!cursor->position) {
        doorman__moment_move(&permits->at, now);
        doorman__permits_roll_usage(permits, usage);
        doorman__permits_merge_usage(permits, usage);
    }
    const doorman__units_window *sum = &usage->sums[window];
    size_t last = cursor->position ? (size_t)cursor->position - 1 : DOORMAN__TOP_NONE;
    size_t next = doorman__top_next(&sum->top, last);
    cursor->at_end = next == DOORMAN__TOP_NONE || sum->top.counts[next] < 1 / DOORMAN__UNIT;
    if (cursor->at_end) return false;
    const doorman__top_entry *entry = &sum->top.entries[next];
    cursor->position = next + 1;
    *out = (doorman_permits_usage){.resource_id = entry->text,
                                   .key = entry->text + strlen(entry->text) + 1,
                                   .units = sum->top.counts[next],
                                   .error = doorman__max(entry->error, sum->missing),
                                   .total = sum->total};
    return true;
}

/* ---- permits: all counters */
/*
 * An iteration visits the counters of a table in the order of doorman__chains_visited. A table
 * knows only 32 bits of a hash. The other bits decide between counters that have these in common.
 * They are calculated from the key.
 */

static uint64_t doorman__counter_position(const doorman_permits *permits,
                                          doorman__counter *counter) {
    const doorman__place *place = doorman__permits_place_of(permits, counter->node.tag);
    const unsigned char *key = (const unsigned char *)doorman__counter_key(counter);
    uint64_t hash = doorman__hash_bytes(permits->options.seed, key, counter->key_bytes);
    if (place) hash += 3 * place->hash;
    assert((uint32_t)hash == counter->node.hash);
    return (uint64_t)doorman__reverse_bits((uint32_t)hash) << 32 | hash >> 32;
}

/* Returns the first counter of a table from a position on, or NULL.
 *   position   in/out: of the counter */
static doorman__counter *doorman__counters_from(const doorman_permits *permits,
                                                const doorman__chains *nodes, uint64_t *position) {
    while (nodes->bucket_count) {
        const size_t bucket = doorman__chains_visited(nodes, *position);
        doorman__counter *best = NULL;
        uint64_t best_position = UINT64_MAX;
        doorman__chain *node = *doorman__chains_at(nodes, bucket);
        for (; node; node = node->next) {
            doorman__counter *counter = (doorman__counter *)(void *)node;
            const uint64_t own = doorman__counter_position(permits, counter);
            if (own < *position || (best && own >= best_position)) continue;
            best = counter;
            best_position = own;
        }
        if (best) {
            *position = best_position;
            return best;
        }
        const uint64_t next = doorman__chains_behind(nodes, *position);
        if (!next) return NULL;
        assert(next > *position);
        *position = next;
    }
    return NULL;
}

static void doorman__ban_describe(const doorman_permits *permits, doorman__counter *counter,
                                  doorman_permits_counter *out) {
    const doorman__ban *ban = doorman__counter_ban(counter);
    out->is_ban = true;
    out->identifier_glob = ban->slot->glob;
    out->limit = ban->slot->name;
    out->ban_rest = doorman__later(ban->end.at - permits->at.now, 0);
}

/* Describes a counter, which may move. Returns false if memory runs out. */
static bool doorman__counter_describe(doorman_permits *permits, doorman__slot *slot,
                                      doorman__counter *counter, doorman_permits_counter *out) {
    bool failed = false;
    const doorman_permit_limit *limit = doorman__counter_limit(permits, slot, counter, &failed);
    if (failed) return false;
    if (!limit || doorman__limit_is_leased_rate(limit)) return true;
    counter = doorman__counter_adapt(permits, slot, limit, counter);
    if (!counter) return false;
    doorman__charge charge = {.limit = limit, .slot = slot, .counter = counter};
    charge.place = doorman__permits_place_of(permits, counter->node.tag);
    charge.own = doorman__permits_own_slot(permits, limit);
    charge.identity = doorman__counter_identity(counter);
    charge.shadow = limit->shadow || (charge.place && charge.place->shadow);
    charge.figures = doorman__counter_figures(permits, limit, counter);
    if (limit->leased) charge.lease = doorman__leased_find(permits, limit, charge.place);
    if (charge.lease) {
        charge.figures = doorman__leased_figures(permits, charge.lease, limit);
    }
    out->identifier_glob = charge.own->glob;
    out->limit = charge.own->name;
    out->state = doorman__charge_detail(permits, &charge, 0);
    return true;
}

doorman_status doorman_permits_next_counter(doorman_permits *permits, const char *limit,
                                            doorman_counter_cursor *cursor,
                                            doorman_permits_counter *out, doorman_time now) {
    if (!permits || !cursor || !out) return DOORMAN_INVALID_ARGUMENT;
    const uint64_t removals = permits->slot_removals + 1;
    if (!cursor->removals) cursor->removals = removals;
    if (cursor->removals != removals) return DOORMAN_INVALID_ARGUMENT;
    doorman__moment_move(&permits->at, now);
    for (; cursor->table < permits->slot_count; cursor->table++, cursor->position = 0) {
        doorman__slot *slot = permits->slots[cursor->table];
        const bool is_bans = slot == doorman__permits_bans(permits);
        if (limit && !is_bans && strcmp(slot->name, limit) != 0) continue;
        doorman__counter *counter =
            doorman__counters_from(permits, &slot->nodes, &cursor->position);
        if (!counter) continue;
        const doorman__place *place = doorman__permits_place_of(permits, counter->node.tag);
        *out = (doorman_permits_counter){.identifier_glob = slot->glob};
        (void)doorman__counter_copy_key(counter, out->key);
        out->resource_id = place ? doorman__place_id(place) : "";
        if (is_bans) {
            doorman__ban_describe(permits, counter, out);
        } else if (!doorman__counter_describe(permits, slot, counter, out)) {
            return DOORMAN_OUT_OF_MEMORY;
        }
        if (cursor->position++ == UINT64_MAX) cursor->table++;
        return DOORMAN_OK;
    }
    return DOORMAN_NOT_FOUND;
}

/* ---- permits: messages */
/*
 * A server answers messages on permits with the functions of this part. A message is checked as a
 * whole before anything is decided. So an error answers the whole message, and nothing of it has
 * taken effect. There is one exception: if memory runs out during the decisions, some units may
 * have been charged (P9). A repeated message may be refused too early, but is never granted too
 * often.
 *
 * The decisions of the permits are only valid until the next call. So the response has copies in an
 * arena, also of the names of limits.
 */

/* Writes the error of an item of a message, with its path. */
static doorman_status doorman__message_fail(doorman_error *error, doorman_status status,
                                            const char *list, size_t index, const char *text) {
    if (status == DOORMAN_OUT_OF_MEMORY) return doorman__no_memory(error);
    return doorman__fail(error, status, "%s[%zu].%s", list, index, text);
}

/* Checks whether a permit that asks for units of CONCURRENCY has a request_id, before anything of
 * the message is decided. */
static doorman_status doorman__permits_check_request_id(const doorman_permits *permits,
                                                        const doorman_permit_request *permit,
                                                        doorman_error *error) {
    if (permit->request_id || !permits->holds.configured) return DOORMAN_OK;
    for (size_t i = 0; i < permit->item_count; i++) {
        const doorman_permit_item *item = &permit->items[i];
        const doorman_template *found = doorman__permits_template(permits, item->resource_id);
        for (size_t j = 0; found && item->cost > 0 && j < found->limit_count; j++) {
            if (!doorman__limit_holds(&found->limits[j], item->key ? item->key : "")) continue;
            return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, DOORMAN__HOLD_RULE);
        }
    }
    return DOORMAN_OK;
}

static doorman_status doorman__permits_check_acquire(doorman_permits *permits,
                                                     const doorman_request *request,
                                                     doorman_error *error) {
    const doorman_permits_options *options = &permits->options;
    const char *list = doorman__name(request, "permits", "permit");
    size_t items = 0, details = 0;
    for (size_t i = 0; i < request->permit_count; i++) {
        doorman_permit_request own = request->permits[i];
        const doorman_permit_request *permit = &own;
        own.client_id = request->holder_id;
        doorman_error below; /* only set after a failure */
        doorman_status status = doorman__permits_check_whole(
            permits, permit, doorman__name(request, "items", "item"), &below);
        if (status == DOORMAN_OK)
            status = doorman__permits_check_request_id(permits, permit, &below);
        if (status != DOORMAN_OK) {
            return doorman__message_fail(error, status, list, i, below.text);
        }
        items += permit->item_count;
        details += permit->detail;
    }
    if (items > options->message_item_max) {
        return doorman__fail(error, DOORMAN_RESOURCE_EXHAUSTED,
                             "%s: at most %zu items in a message, not %zu", list,
                             options->message_item_max, items);
    }
    if (details <= options->message_detail_max) return DOORMAN_OK;
    return doorman__fail(error, DOORMAN_RESOURCE_EXHAUSTED,
                         "%s: at most %zu permits with detail in a message, not %zu", list,
                         options->message_detail_max, details);
}

static doorman_status doorman__permits_check_entries(const doorman_permits *permits,
                                                     const doorman_request *request,
                                                     doorman_error *error) {
    const bool reports = request->method == DOORMAN_REPORT;
    const bool resets = request->method == DOORMAN_RESET;
    const bool inspects = request->method == DOORMAN_INSPECT;
    const size_t most =
        inspects ? permits->options.message_detail_max : permits->options.message_item_max;
    const char *list = doorman__name(request, "entries", "entry");
    if (request->entry_count > most) {
        return doorman__fail(error, DOORMAN_RESOURCE_EXHAUSTED, "%s: at most %zu, not %zu", list,
                             most, request->entry_count);
    }
    for (size_t i = 0; i < request->entry_count; i++) {
        const doorman_permit_entry *entry = &request->entries[i];
        const bool bans = resets && entry->sets_ban;
        const doorman__rule rules[] = {
            {!doorman__id_valid(entry->resource_id), "resource_id: " DOORMAN__ID_RULE},
            {entry->key && !doorman__key_valid(entry->key), "key: " DOORMAN__KEY_RULE},
            {reports && !doorman__amount_valid(entry->cost < 0 ? -entry->cost : entry->cost),
             "cost: must be a finite number from -1e15 to 1e15"},
            {bans && (entry->ban < 0 || entry->ban > DOORMAN_DURATION_MAX),
             "ban: " DOORMAN__DURATION_OR_ZERO_RULE},
            {bans && entry->limit, "limit: must be absent beside a ban"},
            {!resets && entry->sets_ban, "ban: only in a reset"},
        };
        size_t next = 0;
        const char *text = DOORMAN__RULE_NEXT(rules, &next);
        if (text) return doorman__message_fail(error, DOORMAN_INVALID_ARGUMENT, list, i, text);
    }
    return DOORMAN_OK;
}

static bool doorman__method_has_holds(doorman_method method) {
    return method >= DOORMAN_RENEW && method <= DOORMAN_SEIZE;
}

static doorman_status doorman__permits_check_holds(const doorman_permits *permits,
                                                   const doorman_request *request,
                                                   doorman_error *error) {
    const size_t most = permits->options.message_item_max;
    const char *list = doorman__name(request, "holds", "entry");
    size_t items = 0;
    for (size_t i = 0; i < request->hold_count; i++) {
        doorman_hold_request own = request->holds[i];
        doorman_error below; /* only set after a failure */
        own.client_id = request->holder_id;
        doorman_status status =
            doorman__hold_request_check(&own, doorman__method_needs(request->method), &below);
        if (status == DOORMAN_OK) status = doorman__hold_items_check(permits, &own, &below);
        if (status != DOORMAN_OK) {
            return doorman__message_fail(error, status, list, i, below.text);
        }
        items += own.item_count + 1;
    }
    if (items <= most) return DOORMAN_OK;
    return doorman__fail(error, DOORMAN_RESOURCE_EXHAUSTED, "%s: at most %zu %s and items, not %zu",
                         list, most, doorman__name(request, "holds", "entries"), items);
}

/* Checks a whole message. An INSPECT or RESET comes from a person, so it needs no client_id. */
static doorman_status doorman__permits_check_message(doorman_permits *permits,
                                                     const doorman_request *request,
                                                     doorman_error *error) {
    bool acquires = request->method == DOORMAN_ACQUIRE;
    bool holds = doorman__method_has_holds(request->method);
    bool needs_id = acquires || holds || request->method == DOORMAN_REPORT;
    if (request->is_server) {
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "%s",
                             doorman__name(request,
                                           "is_server: must be false in a message on permits",
                                           "server_id: must be a client_id"));
    }
    if ((needs_id || request->holder_id) && !doorman__id_valid(request->holder_id)) {
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "%s: " DOORMAN__ID_RULE,
                             doorman__name(request, "holder_id", "client_id"));
    }
    if (holds) return doorman__permits_check_holds(permits, request, error);
    return acquires ? doorman__permits_check_acquire(permits, request, error)
                    : doorman__permits_check_entries(permits, request, error);
}

static bool doorman__permits_is_banned(const doorman_permits *permits, const char *resource_id,
                                       const char *key) {
    const doorman__place *place = doorman__permits_find_place(permits, resource_id);
    if (!place) return false;
    const doorman__identity of_key = doorman__identity_of(permits, place, key ? key : "");
    doorman__counter *ban = doorman__permits_find_ban(permits, &of_key);
    return ban && doorman__counter_ban(ban)->end.at > permits->at.now;
}

/* Checks the amounts that a message has for the items of its holds. */
static doorman_status doorman__permits_check_amounts(const doorman_permits *permits,
                                                     const doorman_request *request,
                                                     doorman_error *error) {
    const char *list = doorman__name(request, "holds", "entry");
    const char *field = request->method == DOORMAN_RELEASE ? "keep" : "amount";
    for (size_t i = 0; i < request->hold_count; i++) {
        const doorman_hold_request *hold = &request->holds[i];
        const char *rule = NULL;
        if (!doorman__hold_amounts_right(permits, request->holder_id, hold)) {
            rule = "must have one amount for each item of the hold";
        } else if (request->method == DOORMAN_TRANSFER &&
                   !doorman__transfer_amounts_right(permits, request->holder_id, hold)) {
            rule = DOORMAN__TRANSFER_RULE;
        }
        if (!rule) continue;
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "%s[%zu].%s: %s", list, i,
                             doorman__name(request, "amounts", field), rule);
    }
    return DOORMAN_OK;
}

/* Checks the amounts of holds, and that the entries of an INSPECT or RESET mean something: a typing
 * error would otherwise look like a key without counters. A ban needs no limit. Only a master knows
 * which keys are banned. */
static doorman_status doorman__permits_check_limits(const doorman_permits *permits,
                                                    const doorman_request *request,
                                                    doorman_error *error) {
    doorman_status status = doorman__permits_check_amounts(permits, request, error);
    if (status != DOORMAN_OK) return status;
    if (request->method != DOORMAN_INSPECT && request->method != DOORMAN_RESET) return DOORMAN_OK;
    for (size_t i = 0; i < request->entry_count; i++) {
        const doorman_permit_entry *entry = &request->entries[i];
        const doorman_template *found = doorman__permits_template(permits, entry->resource_id);
        const char *text = NULL;
        if (entry->sets_ban) continue;
        if (!found) {
            text = "resource_id: no template with limits matches this resource";
        } else if (!found->limit_count) {
            text = "resource_id: the list of limits of its template is empty";
        } else if (entry->limit && !doorman__template_limit(found, entry->limit)) {
            text = "limit: the template of this resource has no limit with this name";
        }
        bool has_limits = found && found->limit_count;
        if (!text || (!has_limits && !entry->limit &&
                      doorman__permits_is_banned(permits, entry->resource_id, entry->key))) {
            continue;
        }
        return doorman__message_fail(error, DOORMAN_INVALID_ARGUMENT,
                                     doorman__name(request, "entries", "entry"), i, text);
    }
    return DOORMAN_OK;
}

/* Copies bytes. Returns NULL if memory runs out. */
static void *doorman__arena_copy(doorman__arena *arena, const void *from, size_t bytes) {
    void *copy = doorman__arena_take(arena, bytes);
    if (copy && bytes) memcpy(copy, from, bytes);
    return copy;
}

/* Copies the name of a limit. Returns false if memory runs out. */
static bool doorman__permit_keep_name(doorman__arena *arena, const char **name) {
    if (!*name) return true;
    *name = (const char *)doorman__arena_copy(arena, *name, strlen(*name) + 1);
    return *name != NULL;
}

/* Copies what a decision points to. Returns false if memory runs out. */
static bool doorman__permit_keep(doorman__arena *arena, doorman_permit *permit) {
    doorman_permit_grant *items =
        (doorman_permit_grant *)doorman__arena_take(arena, permit->item_count * sizeof *items);
    doorman_permit_detail *details =
        (doorman_permit_detail *)doorman__arena_take(arena, permit->detail_count * sizeof *details);
    if (!items || !details || !doorman__permit_keep_name(arena, &permit->limit)) return false;
    for (size_t i = 0; i < permit->item_count; i++) {
        items[i] = permit->items[i];
        if (!doorman__permit_keep_name(arena, &items[i].limit)) return false;
    }
    for (size_t i = 0; i < permit->detail_count; i++) {
        details[i] = permit->details[i];
        if (!doorman__permit_keep_name(arena, &details[i].limit)) return false;
        if (!doorman__permit_keep_name(arena, &details[i].plan)) return false;
    }
    permit->items = items;
    permit->details = details;
    return true;
}

static doorman_status doorman__permits_answer_acquire(doorman_permits *permits,
                                                      const doorman_request *request,
                                                      doorman_response *response,
                                                      doorman__arena *arena) {
    size_t count = request->permit_count;
    doorman_permit *decided = (doorman_permit *)doorman__arena_take(arena, count * sizeof *decided);
    if (!decided) return DOORMAN_OUT_OF_MEMORY;
    for (size_t i = 0; i < count; i++) {
        const doorman_permit_request *next = &request->permits[i + 1];
        if (i + 2 < count) doorman__permits_prefetch(permits, next + 1, DOORMAN__AHEAD_BUCKET);
        if (i + 1 < count) doorman__permits_prefetch(permits, next, DOORMAN__AHEAD_NODE);
        doorman_permit_request own = request->permits[i];
        const doorman_permit_request *permit = &own;
        own.client_id = request->holder_id;
        own.connection = request->connection;
        /* all permits are checked, and the items of the last one are read */
        if (count > 1) (void)doorman__wants_read(permits->wants, permit, NULL);
        doorman__decision decision = {
            .request = permit, .may_wait = request->may_wait, .now = permits->at.now};
        doorman_status status = doorman__permits_run_checked(permits, &decision, &decided[i]);
        if (status != DOORMAN_OK) return status;
        if (!doorman__permit_keep(arena, &decided[i])) return DOORMAN_OUT_OF_MEMORY;
    }
    response->permits = decided;
    response->permit_count = count;
    return DOORMAN_OK;
}

/* Returns whether a key has a counter of a limit of its resource. */
static bool doorman__permits_has_counter(doorman_permits *permits,
                                         const doorman_permit_entry *entry, const char *limit) {
    const doorman__place *place = doorman__permits_find_place(permits, entry->resource_id);
    for (size_t i = 0; place && i < place->slot_count; i++) {
        const doorman_permit_limit *each = &place->template_->limits[i];
        if (strcmp(each->name, limit) != 0) continue;
        doorman__identity key = doorman__identity_of(permits, place, entry->key ? entry->key : "");
        key = doorman__limit_identity(permits, each, place, &key);
        return doorman__slot_find(place->slots[i].slot, &key) != NULL;
    }
    return false;
}

/* Reads the state of a key, with the details of the limits that an INSPECT or a RESET means. */
static doorman_status doorman__permits_answer_state(doorman_permits *permits,
                                                    const doorman_permit_entry *entry, bool resets,
                                                    doorman_permit *state, doorman__arena *arena) {
    const doorman_template *template_ = doorman__permits_template(permits, entry->resource_id);
    doorman_status status = doorman_permits_inspect(permits, entry->resource_id, entry->key, state,
                                                    NULL, permits->at.now);
    if (status != DOORMAN_OK) return status;
    assert(state->detail_count <= permits->detail_capacity);
    size_t kept = 0;
    for (size_t i = 0; i < state->detail_count; i++) {
        doorman_permit_detail detail = permits->details[i];
        const doorman_permit_limit *limit = doorman__template_limit(template_, detail.limit);
        bool some = resets || entry->limit;
        if (some && !(limit && doorman__reset_means(limit, entry->limit))) continue;
        detail.was_reset = resets && detail.kind != DOORMAN_CONCURRENCY &&
                           doorman__permits_has_counter(permits, entry, detail.limit);
        permits->details[kept++] = detail;
    }
    state->detail_count = kept;
    return doorman__permit_keep(arena, state) ? DOORMAN_OK : DOORMAN_OUT_OF_MEMORY;
}

/* Sets or ends a ban. A ban for which there is no room has no effect. */
static doorman_status doorman__permits_answer_ban(doorman_permits *permits,
                                                  const doorman_permit_entry *entry,
                                                  doorman_permit_result *out) {
    bool banned = doorman__permits_is_banned(permits, entry->resource_id, entry->key);
    doorman_status status = doorman_permits_ban(permits, entry->resource_id, entry->key, entry->ban,
                                                NULL, permits->at.now);
    out->count = status == DOORMAN_OK && (entry->ban || banned);
    return status == DOORMAN_RESOURCE_EXHAUSTED ? DOORMAN_OK : status;
}

/* Answers an entry of a REPORT, an INSPECT or a RESET. If there is no room for a counter that a
 * report needs, the report has no effect. */
static doorman_status doorman__permits_answer_entry(doorman_permits *permits,
                                                    const doorman_request *request, size_t index,
                                                    doorman_permit_result *out,
                                                    doorman__arena *arena) {
    const doorman_permit_entry *entry = &request->entries[index];
    const bool resets = request->method == DOORMAN_RESET;
    doorman_status status = DOORMAN_OK;
    memset(out, 0, sizeof *out);
    if (request->method == DOORMAN_REPORT) {
        const doorman_permit_item item = {
            .resource_id = entry->resource_id, .key = entry->key, .cost = entry->cost};
        status = doorman_permits_report(permits, &item, &out->charged, NULL, permits->at.now);
        return status == DOORMAN_RESOURCE_EXHAUSTED ? DOORMAN_OK : status;
    }
    if (resets && entry->sets_ban) return doorman__permits_answer_ban(permits, entry, out);
    if (!resets || index < permits->options.message_detail_max) {
        status = doorman__permits_answer_state(permits, entry, resets, &out->state, arena);
    }
    if (status != DOORMAN_OK || !resets) return status;
    for (size_t i = 0; i < out->state.detail_count; i++) {
        const doorman_permit_detail *detail = &out->state.details[i];
        if (detail->kind == DOORMAN_CONCURRENCY) out->held += detail->used;
    }
    return doorman_permits_reset(permits, entry->resource_id, entry->key, entry->limit, &out->count,
                                 NULL);
}

static doorman_status doorman__permits_answer_entries(doorman_permits *permits,
                                                      const doorman_request *request,
                                                      doorman_response *response,
                                                      doorman__arena *arena) {
    size_t count = request->entry_count;
    doorman_permit_result *results =
        (doorman_permit_result *)doorman__arena_take(arena, count * sizeof *results);
    if (!results) return DOORMAN_OUT_OF_MEMORY;
    for (size_t i = 0; i < count; i++) {
        doorman_status status =
            doorman__permits_answer_entry(permits, request, i, &results[i], arena);
        if (status != DOORMAN_OK) return status;
    }
    response->results = results;
    response->result_count = count;
    return DOORMAN_OK;
}

/* Copies what a result points to. Returns false if memory runs out. */
static bool doorman__hold_keep(doorman__arena *arena, doorman_hold *hold) {
    doorman_hold_item *items = (doorman_hold_item *)doorman__arena_copy(
        arena, hold->items, hold->item_count * sizeof *items);
    if (!items) return false;
    for (size_t i = 0; i < hold->item_count; i++) {
        if (!doorman__permit_keep_name(arena, &items[i].resource_id)) return false;
        if (!doorman__permit_keep_name(arena, &items[i].key)) return false;
    }
    hold->items = items;
    return true;
}

static doorman_status doorman__permits_answer_holds(doorman_permits *permits,
                                                    const doorman_request *request,
                                                    doorman_response *response,
                                                    doorman__arena *arena) {
    size_t count = request->hold_count;
    doorman_hold *results = (doorman_hold *)doorman__arena_take(arena, count * sizeof *results);
    if (!results) return DOORMAN_OUT_OF_MEMORY;
    for (size_t i = 0; i < count; i++) {
        doorman_hold_request own = request->holds[i];
        own.client_id = request->holder_id;
        const doorman__hold_call call = {.method = request->method,
                                         .request = &own,
                                         .out = &results[i],
                                         .in_message = true,
                                         .now = permits->at.now};
        doorman_status status = doorman__holds_call(permits, &call, NULL);
        if (status != DOORMAN_OK) return status;
        if (!doorman__hold_keep(arena, &results[i])) return DOORMAN_OUT_OF_MEMORY;
    }
    response->holds = results;
    response->hold_count = count;
    return DOORMAN_OK;
}

/* ---- permits: the leases of the permits of a server */

/* Sets the units in use of the gauge of a lease, and the units that permits wait for. If the limit
 * is not leased any more, changes nothing: its holds end no later than the lease. */
static void doorman__leased_sync_one(doorman_permits *permits, doorman__permit_lease *lease) {
    assert(lease->resource->kind == DOORMAN_GAUGE);
    const doorman__place *place = doorman__permits_place_of(permits, lease->place);
    doorman__counter *counter = NULL;
    size_t at = doorman__leased_limit_of_place(permits, lease, place);
    if (place && place->counter_count && at == place->slot_count) return;
    if (place && at < place->slot_count) {
        const doorman__identity of_key = doorman__identity_of(permits, place, "");
        counter = doorman__slot_find(place->slots[at].slot, &of_key);
    }
    doorman__leased_set_held(lease, counter ? doorman__counter_state(counter)[0] : 0);
    const doorman__hold_queue *queue = counter ? doorman__counter_queue(counter) : NULL;
    uint64_t waiting = 0;
    for (size_t i = 0; queue && i < queue->turns.count; i++) {
        waiting += doorman__turn_wait(queue->turns.heap[i].timer)->need;
    }
    doorman__waiting_set(&lease->resource->waiting, waiting, permits->at.now);
    if (waiting) lease->used_at = permits->at.now;
}

/* Sets the units in use of all gauges, before the client claims them (R3). */
static void doorman__leased_sync(doorman_permits *permits) {
    const doorman__chains *table = &permits->leases.table;
    for (size_t i = 0; permits->leases.has_gauges && i < table->bucket_count; i++) {
        doorman__chain *node = *doorman__chains_at(table, i);
        for (; node; node = node->next) {
            doorman__permit_lease *lease = (doorman__permit_lease *)(void *)node;
            if (lease->resource->kind == DOORMAN_GAUGE) doorman__leased_sync_one(permits, lease);
        }
    }
}

/* Lets the queues be served after a lease has changed. */
static void doorman__leased_wake(doorman_permits *permits) {
    doorman__hold *hold = permits->leases.has_gauges ? permits->holds.waiting.first : NULL;
    for (; hold; hold = hold->later) {
        const doorman__counter *counter = hold->wait->queue->counter;
        if (!counter || !(counter->flags & DOORMAN__LEASED_UNITS)) continue;
        doorman__hold_queue_wake(permits, hold->wait->queue);
    }
}

static doorman_time doorman__leased_due(const doorman_permits *permits) {
    const doorman__permit_leases *leases = &permits->leases;
    doorman_time due =
        leases->client ? doorman_upstream_due(&leases->client->upstream) : DOORMAN_NEVER;
    return leases->table.count ? doorman__earlier(due, leases->sweep_at) : due;
}

/* Answers a request of the permits. */
static void doorman__leased_exchange(doorman_server *server, const doorman_request *request) {
    doorman_upstream *upstream = &server->permits->leases.client->upstream;
    doorman_response response;
    assert(server->is_master && !server->asks_itself);
    server->asks_itself = true;
    doorman_status status = doorman__server_handle_in(server, request, &response, NULL, NULL);
    server->asks_itself = false;
    if (status == DOORMAN_OK) {
        (void)doorman_upstream_response(upstream, request->sequence, &response, server->now);
    } else {
        doorman_upstream_failed(upstream, request->sequence, server->now);
    }
}

/* Does the work that is due for the leases of the permits. */
static void doorman__leased_work(doorman_server *server) {
    doorman_permits *permits = server->permits;
    if (!server->is_master || doorman__leased_due(permits) > server->now) return;
    doorman__moment_move(&permits->at, server->now);
    doorman__leased_sync(permits);
    if (permits->leases.sweep_at <= server->now) doorman__leased_sweep(permits);
    doorman_upstream *upstream = &permits->leases.client->upstream;
    for (int i = 0; i < DOORMAN__LEASE_REQUESTS; i++) {
        doorman_request request;
        if (!doorman_upstream_request(upstream, &request, server->now)) return;
        doorman__leased_exchange(server, &request);
        doorman__leased_wake(permits);
    }
}

/* ---- permits: what a server does with them */

/* Creates the permits. They live as long as the server, so that a victory needs no memory and
 * cannot fail. A node with a parent that has no configuration refuses all permits. */
static doorman_status doorman__permit_node_create(doorman_server *server,
                                                  const doorman_server_options *options,
                                                  doorman_error *error) {
    doorman_permits_options permits = {.item_max = 0};
    const doorman_config_options refuses = {.reject_unmatched = true};
    doorman_status status = DOORMAN_OK;
    if (options->permits) permits = *options->permits;
    permits.config = options->config;
    memcpy(permits.seed, options->seed, sizeof permits.seed);
    permits.drift = server->options.drift;
    permits.node = server->node;
    permits.learns_until = 0; /* see doorman__permits_restart */
    if (!permits.config) status = doorman_config_create(&server->own_config, &refuses, error);
    if (!permits.config) permits.config = server->own_config;
    if (status != DOORMAN_OK) return status;
    doorman_error below = {0};
    status = doorman_permits_create(&server->permits, &permits, &below, server->now);
    if (status == DOORMAN_OK) status = doorman__leased_init(server->permits, options->seed);
    if (status == DOORMAN_OK) return status;
    return doorman__fail(error, status, "permits.%s", below.text);
}

static void doorman__permit_node_destroy(doorman_server *server) {
    doorman_permits_destroy(server->permits);
    doorman_config_destroy(server->own_config);
}

static doorman_status doorman__permit_node_configure(doorman_server *server,
                                                     const doorman_config *config) {
    doorman__moment_move(&server->permits->at, server->now);
    return doorman_permits_configure(server->permits, config);
}

static void doorman__permit_node_start(doorman_server *server) {
    doorman__permits_restart(server->permits, server->now);
    doorman__permits_learn(server->permits, server->predecessor_gone_at);
}

static void doorman__permit_node_stop(doorman_server *server) {
    doorman__permits_clear(server->permits);
}

static void doorman__permit_node_set_epoch(doorman_server *server, doorman_time epoch) {
    doorman_permits_set_epoch(server->permits, epoch, server->now);
}

/* Checks a message, and answers it if the server is master, also while it learns. The response is
 * in the arena. */
static doorman_status doorman__permit_node_answer(doorman_server *server,
                                                  const doorman_request *request,
                                                  doorman_response *response, doorman__arena *arena,
                                                  doorman_error *error) {
    doorman_permits *permits = server->permits;
    doorman_response decided = doorman__server_start_response(server, request);
    doorman_status status = doorman__permits_check_message(permits, request, error);
    if (status == DOORMAN_OK && server->is_master) {
        status = doorman__permits_check_limits(permits, request, error);
    }
    if (status == DOORMAN_OK && server->is_master) {
        arena->current = arena->first; /* the last response ends; its memory is used again */
        arena->used = 0;
        doorman__moment_move(&permits->at, server->now);
        status = request->method == DOORMAN_ACQUIRE
                     ? doorman__permits_answer_acquire(permits, request, &decided, arena)
                 : doorman__method_has_holds(request->method)
                     ? doorman__permits_answer_holds(permits, request, &decided, arena)
                     : doorman__permits_answer_entries(permits, request, &decided, arena);
        if (status == DOORMAN_OUT_OF_MEMORY) (void)doorman__no_memory(error);
    }
    if (status == DOORMAN_OK) *response = decided;
    doorman__leased_work(server);
    return status;
}

static doorman_time doorman__permit_node_due(const doorman_server *server) {
    return doorman__earlier(doorman_permits_due(server->permits),
                            doorman__leased_due(server->permits));
}

static void doorman__permit_node_work(doorman_server *server) {
    if (server->is_master && doorman_permits_due(server->permits) <= server->now) {
        doorman_permits_update(server->permits, server->now);
    }
    doorman__leased_work(server);
}

doorman_permits *doorman_server_permits(doorman_server *server) {
    if (!server) return NULL;
    return server->is_master ? server->permits : NULL;
}

static const doorman__server_permits doorman__permits_in_server = {
    .create = doorman__permit_node_create,
    .destroy = doorman__permit_node_destroy,
    .configure = doorman__permit_node_configure,
    .start = doorman__permit_node_start,
    .stop = doorman__permit_node_stop,
    .set_epoch = doorman__permit_node_set_epoch,
    .answer = doorman__permit_node_answer,
    .due = doorman__permit_node_due,
    .work = doorman__permit_node_work,
};

/* ---- permits: limiters by key */

/* An entry of a map. Its key is behind the struct. tag: how many bytes the key has. */
typedef struct doorman__entry {
    doorman__chain node;
    doorman_limiter limiter;
} doorman__entry;

struct doorman_limiter_map {
    doorman_limiter_map_options options;
    doorman_limit limit;
    doorman__chains nodes;
    uint64_t random;
    doorman_time now; /* does not go back */
};

doorman_status doorman_limiter_map_create(doorman_limiter_map **out,
                                          const doorman_limiter_map_options *options,
                                          doorman_error *error) {
    if (!out) return doorman__missing(error, "out");
    if (!options) return doorman__missing(error, "options");
    doorman_limit limit;
    memset(&limit, 0, sizeof limit);
    doorman_status status = doorman_limit_init(&limit, &options->limit, error);
    if (status != DOORMAN_OK) return status;
    if (limit.kind == DOORMAN_SLIDING_LOG) {
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "kind: must not be SLIDING_LOG");
    }
    if (options->max_keys > DOORMAN__COUNTERS_MAX) {
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT,
                             "max_keys: must be at most 10,000,000");
    }
    doorman_limiter_map *map = (doorman_limiter_map *)doorman__zalloc(sizeof *map);
    if (!map) return doorman__no_memory(error);
    map->options = *options;
    map->limit = limit;
    if (!map->options.max_keys) map->options.max_keys = DOORMAN__MAX_KEYS;
#ifdef DOORMAN_NNG
    bool has_seed = options->seed[0] || options->seed[1];
    if (!has_seed) (void)doorman__random_bits(map->options.seed, sizeof map->options.seed);
#endif
    map->random = map->options.seed[0] ^ map->options.seed[1];
    *out = map;
    return DOORMAN_OK;
}

void doorman_limiter_map_destroy(doorman_limiter_map *map) {
    if (!map) return;
    doorman__chains_free_all(&map->nodes);
    DOORMAN_FREE(map);
}

/* A key that is looked up. */
typedef struct doorman__map_key {
    const void *bytes;
    size_t count;
    uint32_t hash;
} doorman__map_key;

/* Returns false if the key is not valid, or if there is no map. */
static bool doorman__map_key_read(const doorman_limiter_map *map, const void *key, size_t key_bytes,
                                  doorman__map_key *out) {
    if (!map || key_bytes > DOORMAN_ID_BYTES_MAX || (!key && key_bytes)) return false;
    uint64_t hash = doorman__hash_bytes(map->options.seed, (const unsigned char *)key, key_bytes);
    *out = (doorman__map_key){key, key_bytes, (uint32_t)hash};
    return true;
}

static doorman__entry *doorman__map_find(const doorman_limiter_map *map,
                                         const doorman__map_key *key) {
    doorman__chain *node = doorman__chains_first(&map->nodes, key->hash);
    for (; node; node = node->next) {
        if (node->hash != key->hash || node->tag != key->count) continue;
        doorman__entry *entry = (doorman__entry *)(void *)node;
        if (!key->count || memcmp(entry + 1, key->bytes, key->count) == 0) return entry;
    }
    return NULL;
}

static void doorman__map_remove(doorman_limiter_map *map, doorman__entry *entry) {
    assert(map->nodes.count > 0);
    doorman__chains_remove(&map->nodes, &entry->node);
    DOORMAN_FREE(entry);
}

/* Returns how near an entry is to a new one: 0 if it equals one, DOORMAN_NEVER if units are in
 * use. */
static doorman_time doorman__map_distance(const doorman_limiter_map *map,
                                          const doorman__entry *entry) {
    const uint64_t *words = entry->limiter.state.words;
    if (map->limit.kind == DOORMAN_CONCURRENCY) return words[0] ? DOORMAN_NEVER : 0;
    return doorman__limit_look(&map->limit, words, 0, map->now).reset_after;
}

/* Forgets idle keys. Visits about `visits` keys, and no bucket twice. */
static void doorman__map_sweep(doorman_limiter_map *map, size_t visits) {
    doorman__chains *nodes = &map->nodes;
    size_t most = visits < nodes->bucket_count / 2 ? 2 * visits : nodes->bucket_count;
    for (size_t visited = 0, steps = 0; visited < visits && steps < most; steps++) {
        if (!nodes->bucket_count) return; /* the last key was forgotten */
        if (nodes->cursor >= nodes->bucket_count) nodes->cursor = 0;
        doorman__chain *node = *doorman__chains_at(nodes, nodes->cursor++);
        for (doorman__chain *next = NULL; node; node = next, visited++) {
            next = node->next;
            doorman__entry *entry = (doorman__entry *)(void *)node;
            if (doorman__map_distance(map, entry) <= 0) doorman__map_remove(map, entry);
        }
    }
}

/* Forgets the entry that is nearest to a new one, among 8 that are sampled. */
static bool doorman__map_evict(doorman_limiter_map *map) {
    doorman__chain *samples[DOORMAN__EVICT_SAMPLES];
    doorman__entry *best = NULL;
    doorman_time least = DOORMAN_NEVER;
    size_t count = doorman__chains_sample(&map->nodes, &map->random, samples);
    for (size_t i = 0; i < count; i++) {
        doorman__entry *entry = (doorman__entry *)(void *)samples[i];
        doorman_time distance = doorman__map_distance(map, entry);
        if (distance >= least) continue;
        least = distance;
        best = entry;
    }
    if (best) doorman__map_remove(map, best);
    return best != NULL;
}

/* Adds an entry with a limiter. Returns NULL if there is no room or no memory. */
static doorman__entry *doorman__map_add(doorman_limiter_map *map, const doorman__map_key *key,
                                        const doorman_limiter *limiter) {
    bool full = map->nodes.count >= map->options.max_keys;
    if (full && (map->options.refuse_new || !doorman__map_evict(map))) return NULL;
    assert(map->nodes.count < map->options.max_keys);
    doorman__entry *entry = (doorman__entry *)doorman__zalloc(sizeof *entry + key->count);
    if (!entry) return NULL;
    if (key->count) memcpy(entry + 1, key->bytes, key->count);
    entry->limiter = *limiter;
    entry->node.tag = (uint32_t)key->count;
    if (doorman__chains_add(&map->nodes, &entry->node, key->hash)) return entry;
    DOORMAN_FREE(entry);
    return NULL;
}

static doorman_decision doorman__map_refuse(doorman_result *out, const doorman_limit *limit,
                                            doorman_decision decision) {
    doorman_time retry_after = decision == DOORMAN_IMPOSSIBLE ? DOORMAN_NEVER : DOORMAN_SECOND;
    if (out) {
        *out = (doorman_result){
            .decision = decision, .limit = limit->amount, .retry_after = retry_after};
    }
    return decision;
}

doorman_decision doorman_limiter_map_try(doorman_limiter_map *map, const void *key,
                                         size_t key_bytes, double n, doorman_result *out,
                                         doorman_time now) {
    doorman__map_key of_key;
    if (!map) return doorman__impossible(out);
    if (!doorman__map_key_read(map, key, key_bytes, &of_key)) {
        return doorman__map_refuse(out, &map->limit, DOORMAN_IMPOSSIBLE);
    }
    now = map->now = doorman__later(map->now, now);
    doorman__map_sweep(map, 4);
    doorman__entry *entry = doorman__map_find(map, &of_key);
    doorman_limiter limiter = {.state = {.words = {0, 0}}};
    (void)doorman_limiter_init(&limiter, &map->limit, NULL, now);
    doorman_result result;
    if (entry) limiter = entry->limiter;
    doorman_decision decision = doorman_limiter_try(&limiter, &map->limit, n, &result, now);
    bool keeps = decision == DOORMAN_ALLOWED && n > 0;
    if (keeps && entry) entry->limiter = limiter;
    if (keeps && !entry && !doorman__map_add(map, &of_key, &limiter)) {
        return doorman__map_refuse(out, &map->limit, DOORMAN_REFUSED);
    }
    if (out) *out = result;
    return decision;
}

doorman_status doorman_limiter_map_release(doorman_limiter_map *map, const void *key,
                                           size_t key_bytes, double n) {
    doorman__map_key of_key;
    if (!doorman__map_key_read(map, key, key_bytes, &of_key)) return DOORMAN_INVALID_ARGUMENT;
    doorman__entry *entry = doorman__map_find(map, &of_key);
    doorman_limiter unused = {.state = {.words = {0, 0}}};
    return doorman_limiter_release(entry ? &entry->limiter : &unused, &map->limit, n);
}

bool doorman_limiter_map_reset(doorman_limiter_map *map, const void *key, size_t key_bytes) {
    doorman__map_key of_key;
    if (!doorman__map_key_read(map, key, key_bytes, &of_key)) return false;
    doorman__entry *entry = doorman__map_find(map, &of_key);
    if (entry) doorman__map_remove(map, entry);
    return entry != NULL;
}

size_t doorman_limiter_map_sweep(doorman_limiter_map *map, size_t visits_max, doorman_time now) {
    if (!map) return 0;
    map->now = doorman__later(map->now, now);
    doorman__map_sweep(map, visits_max);
    return map->nodes.count;
}

/* ---- >>permit_handover ---------------------------------------------------------------------- */
/*
 * A master that stops as planned hands its holds over with its leases (D8). The section >>handover
 * writes the bytes, and reaches this section through the table doorman__permits_in_handover.
 *
 * For the proof of P8 to P16 both masters are one that stood still in between:
 *    - The bytes have all holds and transfers, also those that are used, with their ids and request
 *      ids. So a repeated request has the same answer as before (P9, P11). A transfer that was
 *      forgotten could take units from its source a second time.
 *    - A hold ends when its rest has passed once more, with the drift, from the time of reading.
 *      This is never earlier than what its holder was told.
 *    - The next master counts the holds under its own configuration, like a master that loads it
 *      (P15). So a limit that is new needs no learning, and a smaller one may be exceeded until
 *      holds end. If the last master was still learning, all limits of CONCURRENCY of the next one
 *      learn for the rest of that time.
 *    - A hold of a leased limit stays counted until its end. It is not prolonged before the permits
 *      have a lease again that covers it (P17): until then a renewal lets it end for its holder.
 *    - Permits that wait are not handed over. Their callers ask again. A permit that was decided,
 *      but whose decision was not given, has its hold, which the repeated request finds (P9).
 *
 * The bytes of a hold, in the form of >>handover. A hold comes before its transfers:
 *
 *     hold        text     the client
 *                 1        0: a hold; 1: a transfer; 2: a transfer without units
 *                 8 8      the id, the request_id
 *                 8        of a hold: the transfer that it has seized, or 0; of a transfer: its
 *                          source, or 0 if that has ended
 *                 8        the rest until its end
 *                 8 8      the time to live that was asked for, or 0; that of its limits
 *                 4        the number of items, which follow
 *     item        text     the resource
 *                 text     the key
 *                 8 8 8    what was asked for, the least of it, what is held
 */

/* ---- permits: handing holds over */

static void doorman__handover_add_hold(doorman__handover_writer *out, const doorman__hold *hold,
                                       doorman_time now) {
    const doorman__hold *source = hold->source;
    const bool is_spent = hold->state == DOORMAN__SPENT;
    assert(hold->state >= DOORMAN__HELD && (source || !is_spent));
    doorman__handover_add_text(out, doorman__owner_name(hold->owner));
    doorman__handover_add_number(out, (uint64_t)hold->state - DOORMAN__HELD, 1);
    doorman__handover_add_number(out, hold->id, 8);
    doorman__handover_add_number(out, hold->request_id, 8);
    doorman__handover_add_number(out, source ? source->id : hold->seized, 8);
    doorman__handover_add_rest(out, is_spent ? now : hold->end.at, now);
    doorman_time life = doorman__earlier(hold->takes.time_to_live, DOORMAN_DURATION_MAX);
    doorman__handover_add_number(out, (uint64_t)hold->asked_time_to_live, 8);
    doorman__handover_add_number(out, (uint64_t)life, 8);
    doorman__handover_add_number(out, hold->item_count, 4);
    for (size_t i = 0; i < hold->item_count; i++) {
        const doorman__hold_item *item = &doorman__hold_items(hold)[i];
        doorman__handover_add_text(out, doorman__place_id(item->place));
        doorman__handover_add_text(out, item->key);
        doorman__handover_add_amount(out, item->cost);
        doorman__handover_add_amount(out, item->min);
        doorman__handover_add_amount(out, item->amount);
    }
}

/* Adds all holds in the order of their lists, in which each is behind its source. */
static void doorman__permit_handover_hand_over(doorman_server *server,
                                               doorman__handover_writer *out) {
    doorman_permits *permits = server->permits;
    const doorman__holds *holds = &permits->holds;
    const doorman_time now = server->now;
    doorman__moment_move(&permits->at, now);
    doorman__holds_end_due(permits, SIZE_MAX); /* so each hold that is left has a rest */
    doorman__handover_add_number(out, 'P', 1);
    doorman__handover_add_rest(out, holds->learns_until, now);
    doorman__handover_add_number(out, (uint64_t)holds->longest, 8);
    doorman__handover_add_number(out, doorman__holds_count(permits), 8);
    for (const doorman__hold *hold = holds->granted.first; hold; hold = hold->later) {
        doorman__handover_add_hold(out, hold, now);
    }
    for (const doorman__hold *hold = holds->spent.first; hold; hold = hold->later) {
        doorman__handover_add_hold(out, hold, now);
    }
}

/* ---- permits: taking holds over */

static bool doorman__permit_handover_has_holds(const doorman_server *server) {
    const doorman_permits *permits = server->permits;
    return doorman__holds_count(permits) > 0 || permits->holds.waiting.count > 0;
}

/* Takes a number of 8 bytes that is at most `most`. */
static uint64_t doorman__handover_take_bounded(doorman__handover_reader *in, uint64_t most) {
    uint64_t number = doorman__handover_take_number(in, 8);
    if (number <= most) return number;
    doorman__handover_fail(in, DOORMAN_INVALID_ARGUMENT, "a number is not valid");
    return 0;
}

/* A hold as it is in the bytes. Its items are in `made` of the holds. */
typedef struct doorman__handed_hold {
    const char *client_id;
    doorman__hold_state state;
    uint64_t id, request_id, origin;
    doorman_time end, asked_time_to_live, time_to_live;
    size_t item_count;
} doorman__handed_hold;

/* Takes an item of a hold, with its place. */
static void doorman__handover_take_item(doorman__handover_reader *in, bool is_spent,
                                        doorman__hold_item *out) {
    const char *resource_id = doorman__handover_take_id(in);
    out->key = doorman__handover_take_text(in);
    out->cost = doorman__handover_take_amount(in);
    out->min = doorman__handover_take_amount(in);
    out->amount = doorman__handover_take_amount(in);
    if (!doorman__key_valid(out->key) || out->min > out->cost || (is_spent && out->amount > 0)) {
        doorman__handover_fail(in, DOORMAN_INVALID_ARGUMENT, "an item of a hold is not valid");
    }
    if (in->wrong) return;
    out->place = doorman__permits_place(in->server->permits, resource_id);
    if (!out->place) doorman__handover_fail(in, DOORMAN_OUT_OF_MEMORY, "out of memory");
}

static void doorman__handover_take_hold(doorman__handover_reader *in, doorman__handed_hold *out) {
    doorman_permits *permits = in->server->permits;
    out->client_id = doorman__handover_take_id(in);
    out->state = (doorman__hold_state)(DOORMAN__HELD + doorman__handover_take_choice(in, 1, 2));
    out->id = doorman__handover_take_bounded(in, DOORMAN__REQUEST_ID_MAX);
    out->request_id = doorman__handover_take_bounded(in, DOORMAN__REQUEST_ID_MAX);
    out->origin = doorman__handover_take_bounded(in, DOORMAN__REQUEST_ID_MAX);
    out->end = doorman__handover_take_rest(in, false);
    const uint64_t longest = (uint64_t)DOORMAN_DURATION_MAX;
    out->asked_time_to_live = (doorman_time)doorman__handover_take_bounded(in, longest);
    out->time_to_live = (doorman_time)doorman__handover_take_bounded(in, longest);
    out->item_count = (size_t)doorman__handover_take_number(in, 4);
    if (out->item_count > permits->options.item_max) {
        doorman__handover_fail(in, DOORMAN_RESOURCE_EXHAUSTED, "more items than item_max");
    } else if (!out->id || !out->item_count || (!out->request_id && out->state != DOORMAN__HELD)) {
        doorman__handover_fail(in, DOORMAN_INVALID_ARGUMENT, "a hold is not valid");
    }
    if (in->wrong) return;
    void *items = permits->holds.made;
    bool room = doorman__reserve(&items, &permits->holds.made_capacity, out->item_count,
                                 sizeof(doorman__hold_item));
    permits->holds.made = (doorman__hold_item *)items;
    if (!room) doorman__handover_fail(in, DOORMAN_OUT_OF_MEMORY, "out of memory");
    for (size_t i = 0; i < out->item_count && !in->wrong; i++) {
        doorman__handover_take_item(in, out->state == DOORMAN__SPENT, &permits->holds.made[i]);
    }
}

/* Makes a hold without units and without an end. Returns NULL after a fault.
 *   source   out: of a transfer; NULL: it has none */
static doorman__hold *doorman__handover_make_hold(doorman__handover_reader *in,
                                                  const doorman__handed_hold *handed,
                                                  doorman__hold **source) {
    doorman_permits *permits = in->server->permits;
    const doorman__hold_item *items = permits->holds.made;
    const bool is_transfer = handed->state != DOORMAN__HELD;
    *source = is_transfer ? doorman__holds_find(permits, handed->origin) : NULL;
    const bool needs_source = is_transfer && (handed->origin || handed->state == DOORMAN__SPENT);
    if (needs_source && (!*source || (*source)->state != DOORMAN__HELD)) {
        doorman__handover_fail(in, DOORMAN_INVALID_ARGUMENT, "a transfer has no source");
    } else if (doorman__holds_find(permits, handed->id) ||
               doorman__holds_find_request(permits, handed->client_id, handed->request_id)) {
        doorman__handover_fail(in, DOORMAN_INVALID_ARGUMENT, "a hold occurs twice");
    } else if (!doorman__holds_has_room(permits, handed->client_id,
                                        doorman__hold_items_bytes(items, handed->item_count))) {
        doorman__handover_fail(in, DOORMAN_RESOURCE_EXHAUSTED,
                               "more holds than hold_max, or more of one client than "
                               "client_hold_max, or more bytes than memory_max");
    }
    if (in->wrong) return NULL;
    doorman__hold *hold = doorman__hold_create(permits, handed->client_id, handed->request_id,
                                               items, handed->item_count);
    if (!hold) doorman__handover_fail(in, DOORMAN_OUT_OF_MEMORY, "out of memory");
    return hold;
}

/* Restores a hold, except for its takes. */
static void doorman__handover_restore_hold(doorman__handover_reader *in,
                                           const doorman__handed_hold *handed) {
    doorman_permits *permits = in->server->permits;
    doorman__hold *source = NULL, *hold = doorman__handover_make_hold(in, handed, &source);
    if (!hold) return;
    doorman__hold_name(permits, hold, handed->id);
    const bool is_held = handed->state == DOORMAN__HELD;
    doorman__hold_enter(permits, hold, is_held ? DOORMAN__HELD : DOORMAN__TRANSFERRED);
    hold->is_handed = true;
    hold->seized = is_held ? handed->origin : 0;
    hold->granted_at = permits->at.now;
    hold->asked_time_to_live = handed->asked_time_to_live;
    hold->takes.time_to_live = handed->time_to_live;
    if (source) {
        hold->source = source;
        hold->next_transfer = source->transfers;
        source->transfers = hold;
    }
    if (handed->state == DOORMAN__SPENT) {
        doorman__hold_enter(permits, hold, DOORMAN__SPENT);
    } else {
        doorman__timer_set(&permits->holds.ends, &hold->end, handed->end);
    }
}

/* Takes the part of the permits. */
static void doorman__permit_handover_take_over(doorman__handover_reader *in) {
    doorman__handed_hold handed;
    if (in->has_permits) {
        doorman__handover_fail(in, DOORMAN_INVALID_ARGUMENT, "the permits occur twice");
    }
    in->has_permits = true;
    doorman__moment_move(&in->server->permits->at, in->server->now);
    in->learns_until = doorman__handover_take_rest(in, false);
    in->longest = (doorman_time)doorman__handover_take_bounded(in, 3 * DOORMAN_DURATION_MAX);
    uint64_t count = doorman__handover_take_number(in, 8);
    for (uint64_t i = 0; i < count && !in->wrong; i++) {
        doorman__handover_take_hold(in, &handed);
        if (!in->wrong) doorman__handover_restore_hold(in, &handed);
    }
}

/* Counts the holds, as for a configuration that is new. The last master may have had another one:
 * so if this server loses its mastership soon, all limits then learn for the longest time. */
static void doorman__permit_handover_finish(doorman__handover_reader *in) {
    doorman_permits *permits = in->server->permits;
    doorman__holds *holds = &permits->holds;
    if (!in->has_permits) return;
    if (doorman_permits_configure(permits, permits->config) != DOORMAN_OK) {
        doorman__handover_fail(in, DOORMAN_OUT_OF_MEMORY, "out of memory");
        return;
    }
    doorman_time until = doorman__after(permits->at.now, in->longest);
    holds->mixed_until = doorman__later(holds->mixed_until, until);
    holds->longest = doorman__later(holds->longest, in->longest);
    holds->learns_until = in->learns_until;
    doorman__holds_keep_learning(permits);
}

static void doorman__permit_handover_drop(doorman_server *server) {
    doorman__holds_clear(server->permits);
}

static const doorman__handover_permits doorman__permits_in_handover = {
    .hand_over = doorman__permit_handover_hand_over,
    .has_holds = doorman__permit_handover_has_holds,
    .take_over = doorman__permit_handover_take_over,
    .finish = doorman__permit_handover_finish,
    .drop = doorman__permit_handover_drop,
};

/* ---- >>permit_client ------------------------------------------------------------------------ */
/*
 * A permit client asks servers for permits on behalf of many callers. It is passive, like a client.
 * Its upstream has the address (K3), the states of a request, and the check of a response (R2), but
 * no held leases.
 *
 * P21 Permits travel in batches. While one message is under way, the next one fills. So a single
 *    caller waits for one round trip, and many callers share one. A message has at most
 *    DOORMAN__MESSAGE_ITEMS items and DOORMAN__MESSAGE_TEXT bytes of text, and only calls of one
 *    kind. The kinds alternate. A server answers a message when all its permits are decided. So a
 *    permit that may wait for units of CONCURRENCY travels alone, in a lane beside the messages of
 *    the client. Without lanes it travels alone among the other messages of the client, and the
 *    next message waits until it is decided.
 * About P22: the time begins when the message was sent, which is before the server decided. So a
 *    refusal never lasts longer than the server allows. The client remembers at most
 *    DOORMAN__REFUSALS_MAX refusals, the newest ones. An idle client forgets them when all have
 *    ended.
 * About P23: a message has failed if it has no valid response of a master, and no new redirect. Its
 *    permits are sent again, each time to the next address. A client with three addresses gives a
 *    permit up after four failures. After the first failure the permit travels alone, so that a
 *    permit that a server refuses to read harms no other permit. A message whose answer was lost
 *    may have charged units. So such a permit may be refused too early, but is never granted too
 *    often. The first message after the time of an open breaker is a test. If it fails, the breaker
 *    opens again.
 * About P24: the client keeps a stock for each (resource, key) that was used a short time ago. The
 *    stock counts the use in four slices of the time `prefetch`. So it knows the use of the last
 *    3/4 of this time, or more. After a grant that leaves at most half of this use in stock, the
 *    client queues a permit that no caller waits for. That permit asks for the missing units with a
 *    minimum of 0. So it is never refused for lack of units, and no ban counts it. If its message
 *    fails, it is not sent again, because it may have charged units.
 *       Units that were taken ahead are lost at the latest twice `prefetch` after their message was
 *    sent. So they never last longer than twice `prefetch` after the server has charged them. A
 *    stock has at most two lots of units with different ends. Costs are rounded up as servers do
 *    it, and a permit gets no more out of the stock than a server has granted to one permit,
 *    because a limit may have a max_cost. A key that is banned loses its stock. The client keeps at
 *    most DOORMAN__STOCKS_MAX stocks, those that were used last. An idle client forgets them.
 *
 * A call is a permit, a report or a request about a hold, from its beginning to its result. Only
 * doorman__call_move changes its state, except that the action of a hold becomes NEW when it ends:
 *
 *   state    meaning                          event                                next state
 *   NEW      not in a list                    is local, or the breaker is open     -> DECIDED
 *                                             is the result of a transfer          -> WAITING
 *                                             otherwise                            -> QUEUED
 *   QUEUED   waits for a message              is in a message                      -> SENT
 *                                             times out, or the breaker opens      -> DECIDED
 *   SENT     is in the message under way      has an answer, or times out          -> DECIDED
 *                                             is granted with a wait               -> WAITING
 *                                             the message fails or is redirected   -> QUEUED
 *   WAITING  waits as the server has told     the wait or the timeout ends         -> DECIDED
 *   DECIDED  its caller has no result yet     its caller takes the result          (freed)
 *
 * The upstream of the client, not that of a lane, has the state of the breaker. BACKING_OFF: the
 * breaker is open. REQUESTED after 5 failures: the message under way is the test. Otherwise: the
 * breaker is closed.
 */

/* With the longest names of limits, a response with this many items and bytes of text fits in 4
 * MiB. P19 would allow 10,000 items. */
#define DOORMAN__MESSAGE_ITEMS ((size_t)4000)
#define DOORMAN__MESSAGE_TEXT ((size_t)256 << 10)
#define DOORMAN__REFUSALS_MAX ((size_t)10000)
#define DOORMAN__STOCKS_MAX ((size_t)10000)
#define DOORMAN__CALLS_MAX ((size_t)100000) /* the fallback decides on further permits */
#define DOORMAN__REPORTS_MAX ((size_t)10000)

/* A message waits at least this long for its response, even if its callers have less time. So a
 * caller that is in a hurry does not make a server look as if it had failed. */
#define DOORMAN__MESSAGE_WAIT_MIN (DOORMAN_SECOND / 10)

#define DOORMAN__BREAKER_FAILURES 5U
#define DOORMAN__BREAKER_DOUBLINGS 12U      /* 1 s << 12 is more than 3600 s */
#define DOORMAN__BREAKER_DOUBLINGS_ALIVE 2U /* while servers answer: up to 4 s */
#define DOORMAN__BREAKER_MAX (30 * DOORMAN_SECOND)

/* What a call asks. Each kind has a queue and a method. */
typedef enum doorman__call_kind {
    DOORMAN__CALL_PERMIT,
    DOORMAN__CALL_REPORT,
    DOORMAN__CALL_RENEWAL,
    DOORMAN__CALL_RELEASE,
    DOORMAN__CALL_TRANSFER,
    DOORMAN__CALL_SEIZURE,
    DOORMAN__CALL_WAIT, /* a permit that may wait in the queue of a server */
    DOORMAN__CALL_KIND_COUNT
} doorman__call_kind;

typedef enum doorman__call_state {
    DOORMAN__CALL_NEW,
    DOORMAN__CALL_QUEUED,
    DOORMAN__CALL_SENT,
    DOORMAN__CALL_WAITING,
    DOORMAN__CALL_DECIDED,
    DOORMAN__CALL_STATE_COUNT
} doorman__call_state;

/* A list. Each member contains its own link, so adding one never fails. */
typedef struct doorman__list_link {
    struct doorman__list_link *previous, *next;
} doorman__list_link;

typedef struct doorman__list {
    doorman__list_link *first, *last;
    size_t count;
} doorman__list;

/* A permit, a report or a request about a hold. Its items and their texts are behind the struct.
 * The key of an item is directly behind the NUL of its resource_id. */
typedef struct doorman__call {
    doorman__list_link link; /* in the list of its state; not while NEW or SENT */
    doorman_permit_client *client;
    doorman__timer timer; /* when it times out, or when its wait ends */
    doorman__call_state state;
    doorman__call_kind kind;
    bool attended;   /* a caller wants the result */
    bool alone;      /* it is in a message of its own */
    bool prefetches; /* it takes units ahead, for the stock of its item (P24) */
    size_t failures;
    struct doorman__batch *batch; /* SENT: whose message it is in; else NULL */
    size_t position;              /* SENT: its index in the message */
    doorman_time sent_max_wait;
    doorman_time waits_until;          /* WAIT: when max_wait ends; 0: it was not sent yet */
    struct doorman__client_hold *hold; /* NULL: the call concerns no hold */
    struct doorman__call *peer;        /* of a transfer: the call that has its result, and the other
                                          way round */
    doorman_hold_request hold_request; /* TRANSFER, SEIZURE */
    size_t text_bytes;
    void *context;
    doorman_time deadline;
    doorman_permit_request request; /* of a report: one item */
    doorman_status status;          /* UNAVAILABLE: an agent was shut down */
    doorman_acquired acquired;
} doorman__call;

/* What a client remembers of a (resource, key) begins with this struct. */
typedef struct doorman__known {
    doorman__link link;
    doorman__list_link order; /* in the order in which they were kept: see doorman__known_keep */
    doorman_time until;       /* when it is forgotten */
    char *text;               /* the resource and the key, behind the struct */
    size_t text_bytes;
} doorman__known;

typedef struct doorman__known_table {
    doorman__table table;
    doorman__list order;
    doorman_time end; /* everything is forgotten at this time */
} doorman__known_table;

/* A refusal that is still valid (P22). */
typedef struct doorman__known_refusal {
    doorman__known known;
    double min;
    doorman_time max_wait, retry_at; /* retry_at NEVER: not known */
    doorman_reason reason;
    char limit[DOORMAN_ID_BYTES_MAX + 1];
} doorman__known_refusal;

/* Units that were taken ahead at one time. They are lost at `until`. */
typedef struct doorman__lot {
    double units;
    doorman_time until;
} doorman__lot;

#define DOORMAN__USE_SLICES 4

/* The use of a resource and key, and the units that were taken ahead for it (P24). No lot lasts
 * longer than the stock. */
typedef struct doorman__stock {
    doorman__known known;
    bool asking; /* a call that takes units ahead is queued or under way */
    bool warning;
    int64_t slice; /* the number of the current slice since time 0 */
    double units_used[DOORMAN__USE_SLICES];
    size_t times_used[DOORMAN__USE_SLICES];
    doorman__lot lots[2]; /* the one that ends earlier is first */
    double granted_most;  /* the most units that a server has granted to one permit */
    double remaining;     /* this field and the next two are those of the last answer */
    doorman_time reset_at;
    char limit[DOORMAN_ID_BYTES_MAX + 1];
} doorman__stock;

/* A hold of the application: see "permit client: holds". */
typedef enum doorman__client_hold_state {
    DOORMAN__HOLD_NEW,
    DOORMAN__HOLD_ASKED,
    DOORMAN__HOLD_IN_USE,
    DOORMAN__HOLD_ENDING
} doorman__client_hold_state;

typedef struct doorman__client_hold {
    doorman__link link; /* by number */
    doorman__list_link all, change;
    doorman_permit_client *client;
    doorman__timer timer; /* see doorman__client_hold_plan */
    doorman__client_hold_state state;
    uint64_t number;      /* the request_id on the wire */
    uint64_t id;          /* chosen by the server; 0: not known */
    doorman__call *call;  /* asks for the hold; NULL: its caller has the result */
    doorman__call action; /* the renewal or the release */
    doorman_time begin, life, end, renew_at, give_up_at;
    size_t transfers;  /* how many have no answer yet */
    bool was_sent;     /* a server may know the hold */
    bool asking;       /* a message that asks for the hold is under way */
    bool must_release; /* the server may count more than `amounts` */
    bool claims;       /* the next renewal says what is held */
    bool changed;      /* the application does not know yet that the hold is smaller or gone */
    doorman_hold_item *items; /* owned, with their texts behind them; NULL: not known */
    double *amounts;          /* behind the items: what the application may use */
    size_t item_count, text_bytes;
} doorman__client_hold;

/* A call in a message under way. */
typedef struct doorman__sent {
    doorman__call *call;        /* NULL: the call has its result already */
    doorman__client_hold *hold; /* the hold that the message asks for; NULL: none */
} doorman__sent;

/* What a message has for a call. All calls of a message have the same kind. */
typedef union doorman__sent_item {
    doorman_permit_request permit;
    doorman_permit_entry entry;
    doorman_hold_request hold;
} doorman__sent_item;

/* The messages of a client or of a lane. One message at a time is under way. A lane sends one
 * permit at a time, which may wait in the queue of a server. It follows the redirects of its own
 * message. See doorman__lane_begin for the first address of each message. */
typedef struct doorman__batch {
    doorman_upstream upstream;
    doorman_permit_client *client;
    doorman__sent *sent; /* the calls of the message */
    void *items;         /* permits, entries or holds, with room as for a doorman__sent_item */
    size_t capacity, item_capacity, count;
    doorman__call_kind kind; /* of the last message */
} doorman__batch;

/* One message with one permit that may wait in the queue of a server. */
typedef struct doorman__permit_lane {
    doorman__batch batch; /* points to the other fields */
    doorman__sent sent;
    doorman__sent_item item;
} doorman__permit_lane;

struct doorman_permit_client {
    doorman__batch main;
    char client_id[DOORMAN_ID_BYTES_MAX + 1];
    doorman_permit_policy policy; /* `local` is not used */
    bool kill_switch;
    doorman_time message_timeout; /* the longest time to wait for a response */
    doorman_limiter_map *local;   /* NULL: the fallback is not FAIL_LOCAL */
    uint64_t hash_key[2], local_key[2];

    doorman__list queues[DOORMAN__CALL_KIND_COUNT], waiting, decided; /* of calls */
    doorman__timers timers;
    size_t call_count;   /* in all states, with the actions of holds */
    size_t action_count; /* actions of holds that are queued or under way */

    doorman__permit_lane *lanes[DOORMAN_PERMIT_LANES_MAX];
    size_t lane_count;
    doorman__table holds;
    doorman__timers hold_timers;
    doorman__list all_holds, changes;
    size_t new_hold_count; /* holds without a permit */
    uint64_t hold_number;  /* the last number that was given out */
    uint64_t number_count; /* how many numbers were given out */

    doorman__known_table refusals, stocks;
    size_t prefetch_count; /* calls that take units ahead */
    doorman_permit_client_info counts;
};

/* ---- permit client: its calls */

/* Adds a link behind another one; NULL: as the first one. */
static void doorman__list_insert(doorman__list *list, doorman__list_link *previous,
                                 doorman__list_link *link) {
    assert(!link->previous && !link->next && list->first != link);
    link->previous = previous;
    link->next = previous ? previous->next : list->first;
    *(previous ? &previous->next : &list->first) = link;
    *(link->next ? &link->next->previous : &list->last) = link;
    list->count++;
}

static void doorman__list_remove(doorman__list *list, doorman__list_link *link) {
    assert(list->count > 0 && (link->previous || list->first == link));
    *(link->previous ? &link->previous->next : &list->first) = link->next;
    *(link->next ? &link->next->previous : &list->last) = link->previous;
    link->previous = link->next = NULL;
    list->count--;
}

/* Returns the call of a link, or NULL. */
static doorman__call *doorman__call_at(doorman__list_link *link) {
    return link ? DOORMAN__WITHIN(doorman__call, link, link) : NULL;
}

static doorman__list *doorman__call_list(const doorman__call *call) {
    doorman_permit_client *client = call->client;
    if (call->state == DOORMAN__CALL_QUEUED) return &client->queues[call->kind];
    if (call->state == DOORMAN__CALL_WAITING) return &client->waiting;
    return call->state == DOORMAN__CALL_DECIDED ? &client->decided : NULL;
}

/* Moves a call to another state. A call that returns to its queue becomes the first one there,
 * because it has waited longest. */
static void doorman__call_move(doorman__call *call, doorman__call_state state) {
    static const unsigned legal[DOORMAN__CALL_STATE_COUNT] = {
        [DOORMAN__CALL_NEW] =
            1U << DOORMAN__CALL_QUEUED | 1U << DOORMAN__CALL_WAITING | 1U << DOORMAN__CALL_DECIDED,
        [DOORMAN__CALL_QUEUED] = 1U << DOORMAN__CALL_SENT | 1U << DOORMAN__CALL_DECIDED,
        [DOORMAN__CALL_SENT] =
            1U << DOORMAN__CALL_QUEUED | 1U << DOORMAN__CALL_WAITING | 1U << DOORMAN__CALL_DECIDED,
        [DOORMAN__CALL_WAITING] = 1U << DOORMAN__CALL_DECIDED,
        [DOORMAN__CALL_DECIDED] = 0};
    doorman__call_state last = call->state;
    doorman__list *from = doorman__call_list(call);
    assert(last < DOORMAN__CALL_STATE_COUNT && legal[last] >> state & 1U);
    (void)legal;
    if (from) doorman__list_remove(from, &call->link);
    if (last == DOORMAN__CALL_SENT) {
        assert(call->batch->sent[call->position].call == call);
        call->batch->sent[call->position].call = NULL;
        call->batch = NULL;
    }
    call->state = state;
    doorman__list *to = doorman__call_list(call);
    bool returns = last == DOORMAN__CALL_SENT && state == DOORMAN__CALL_QUEUED;
    if (to) doorman__list_insert(to, returns ? NULL : to->last, &call->link);
}

/* Returns the bytes of a resource and a key, with both NULs. */
static size_t doorman__pair_bytes(const char *resource_id, const char *key) {
    return strlen(resource_id) + strlen(key ? key : "") + 2;
}

/* Copies a resource and a key, and points to the copies. Returns the byte behind them. */
static char *doorman__pair_copy(char *to, const char **resource_id, const char **key) {
    const char *from_key = *key ? *key : "";
    size_t id_bytes = strlen(*resource_id) + 1, key_bytes = strlen(from_key) + 1;
    *resource_id = (char *)memcpy(to, *resource_id, id_bytes);
    *key = (char *)memcpy(to + id_bytes, from_key, key_bytes);
    return to + id_bytes + key_bytes;
}

/* Makes a call with a copy of the request. Returns NULL if memory runs out. */
static doorman__call *doorman__call_create(doorman_permit_client *client,
                                           const doorman_permit_request *request, void *context) {
    size_t text_bytes = 0, item_bytes = request->item_count * sizeof(doorman_permit_item);
    for (size_t i = 0; i < request->item_count; i++) {
        text_bytes += doorman__pair_bytes(request->items[i].resource_id, request->items[i].key);
    }
    doorman__call *call = (doorman__call *)doorman__zalloc(sizeof *call + item_bytes + text_bytes);
    if (!call) return NULL;
    doorman_permit_item *items = (doorman_permit_item *)(void *)(call + 1);
    char *text = (char *)(items + request->item_count);
    for (size_t i = 0; i < request->item_count; i++) {
        items[i] = request->items[i];
        text = doorman__pair_copy(text, &items[i].resource_id, &items[i].key);
    }
    assert(text == (char *)(call + 1) + item_bytes + text_bytes);
    call->client = client;
    call->request = *request;
    call->request.items = items;
    call->request.client_id = NULL;
    call->request.request_id = call->request.connection = 0;
    call->request.hold = NULL;
    call->text_bytes = text_bytes;
    call->context = context;
    call->attended = true;
    call->deadline = DOORMAN_NEVER;
    return call;
}

/* Ends the connection of a pair of calls. Returns the other call; NULL: there was none. */
static doorman__call *doorman__call_part(doorman__call *call) {
    doorman__call *peer = call->peer;
    if (peer) peer->peer = NULL;
    call->peer = NULL;
    return peer;
}

/* Lets the hold and the peer of a call forget the call. */
static void doorman__call_forget(doorman__call *call) {
    if (call->hold && call->hold->call == call) call->hold->call = NULL;
    doorman__call_part(call);
}

/* Removes a call from the client, and frees it. The action of a hold is a part of the hold, and can
 * be used again. */
static void doorman__call_free(doorman__call *call) {
    doorman_permit_client *client = call->client;
    doorman__list *list = doorman__call_list(call);
    assert(client->call_count > 0 && call->state != DOORMAN__CALL_SENT);
    if (list) doorman__list_remove(list, &call->link);
    doorman__timer_clear(&client->timers, &call->timer);
    client->call_count--;
    doorman__call_forget(call);
    if (!call->hold || call != &call->hold->action) {
        DOORMAN_FREE(call);
        return;
    }
    assert(client->action_count > 0);
    call->state = DOORMAN__CALL_NEW;
    client->action_count--;
}

/* Notes that `acquired` has the result of a call. A peer does not change this result any more. */
static void doorman__call_settle(doorman__call *call) {
    doorman__timer_clear(&call->client->timers, &call->timer);
    doorman__call_part(call);
    doorman__call_move(call, DOORMAN__CALL_DECIDED);
}

/* Ends a call. If nobody waits for its result, the call is freed. */
static void doorman__call_finish(doorman__call *call) {
    doorman__call_settle(call);
    if (!call->attended) doorman__call_free(call);
}

/* Ends the other call of a pair, if there is one. */
static void doorman__call_finish_peer(doorman__call *call) {
    doorman__call *peer = doorman__call_part(call);
    assert(!peer || peer->state == DOORMAN__CALL_WAITING);
    if (peer) doorman__call_finish(peer);
}

/* Makes room for one more call in the timers and in the message, so that nothing later needs
 * memory. A transfer has two calls, and a hold has an action.
 *   holds   the call concerns a hold */
static bool doorman__permit_client_reserve(doorman_permit_client *client, bool holds) {
    size_t all = client->call_count + client->all_holds.count + 2 * holds + 1;
    size_t count = all < DOORMAN__MESSAGE_ITEMS ? all : DOORMAN__MESSAGE_ITEMS;
    doorman__batch *batch = &client->main;
    void *sent = batch->sent;
    bool room =
        doorman__timers_reserve(&client->timers, all) &&
        doorman__timers_reserve(&client->hold_timers, client->all_holds.count + holds) &&
        doorman__reserve(&sent, &batch->capacity, count, sizeof *batch->sent) &&
        doorman__reserve(&batch->items, &batch->item_capacity, count, sizeof(doorman__sent_item));
    batch->sent = (doorman__sent *)sent;
    assert(!room || (batch->capacity >= count && batch->item_capacity >= count));
    return room;
}

/* ---- permit client: checks */

/* Returns the least number of units that an item accepts. With `equal` this is a whole number, the
 * same for all items. */
static double doorman__request_minimum(const doorman_permit_request *request, size_t index) {
    double least = 0;
    size_t end = request->equal ? request->item_count : index + 1;
    for (size_t i = request->equal ? 0 : index; i < end; i++) {
        const doorman_permit_item *item = &request->items[i];
        least = doorman__max(least, item->has_min ? item->min : item->cost);
    }
    return request->equal ? (double)doorman__round_up(least) : least;
}

static doorman_status doorman__policy_check(const doorman_permit_policy *policy,
                                            doorman_error *error) {
    const struct doorman_limit_options *local = policy->local;
    size_t next = 0;
    bool is_local = policy->fallback == DOORMAN_FAIL_LOCAL;
    const doorman__rule rules[] = {
        {(unsigned)policy->fallback > DOORMAN_FAIL_LOCAL,
         "fallback: must be FAIL_OPEN, FAIL_CLOSED or FAIL_LOCAL"},
        {is_local && !local, "local: must not be NULL for FAIL_LOCAL"},
        {!is_local && local, "local: must be NULL, except for FAIL_LOCAL"},
        {local && (local->kind == DOORMAN_SLIDING_LOG || local->kind == DOORMAN_CONCURRENCY),
         "local.kind: must be TOKEN_BUCKET, FIXED_WINDOW or SLIDING_WINDOW"},
        {local && local->max_debt, "local.max_debt: must be 0"},
        {!(policy->drift >= 0 && policy->drift <= 1), "drift: must be from 0 to 1"},
        {policy->prefetch &&
             (policy->prefetch < DOORMAN_SECOND / 1000 || policy->prefetch > 60 * DOORMAN_SECOND),
         "prefetch: must be 0, or from 1 ms to 60 s"},
        {policy->max_pause &&
             (policy->max_pause < DOORMAN_SECOND || policy->max_pause > 3600 * DOORMAN_SECOND),
         "max_pause: must be 0, or from 1 s to 3600 s"}};
    const char *text = DOORMAN__RULE_NEXT(rules, &next);
    if (!text) return DOORMAN_OK;
    return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "permits.%s", text);
}

/* ---- permit client: what it remembers of a resource and key */

static uint64_t doorman__item_hash(const uint64_t key[2], const doorman_permit_item *item) {
    const void *text = item->resource_id;
    return doorman__hash_bytes(key, (const unsigned char *)text,
                               doorman__pair_bytes(item->resource_id, item->key));
}

/* Returns what is known of an item of a call, or NULL. */
static doorman__known *doorman__known_find(const doorman__known_table *known,
                                           const doorman_permit_item *item, uint64_t hash) {
    size_t bytes = doorman__pair_bytes(item->resource_id, item->key);
    doorman__link *link = doorman__table_first(&known->table, hash);
    for (; link; link = doorman__table_same(link->next, hash)) {
        doorman__known *found = DOORMAN__WITHIN(doorman__known, link, link);
        if (found->text_bytes == bytes && !memcmp(found->text, item->resource_id, bytes)) {
            return found;
        }
    }
    return NULL;
}

/* Makes an object that begins with a doorman__known. The caller must pass it to
 * doorman__known_keep. Returns NULL if memory runs out. */
static doorman__known *doorman__known_add(doorman__known_table *known, size_t object_bytes,
                                          const doorman_permit_item *item, uint64_t hash) {
    size_t bytes = doorman__pair_bytes(item->resource_id, item->key);
    assert(known->table.count == known->order.count);
    doorman__known *made = (doorman__known *)doorman__zalloc(object_bytes + bytes);
    if (!made) return NULL;
    made->text = (char *)memcpy((char *)made + object_bytes, item->resource_id, bytes);
    made->text_bytes = bytes;
    doorman__table_add(&known->table, &made->link, hash);
    doorman__list_insert(&known->order, known->order.last, &made->order);
    return made;
}

/* Keeps an object until a time, and moves it to the end of the order. */
static void doorman__known_keep(doorman__known_table *known, doorman__known *object,
                                doorman_time until) {
    doorman__list_remove(&known->order, &object->order);
    doorman__list_insert(&known->order, known->order.last, &object->order);
    object->until = until;
    known->end = doorman__later(known->end, until);
}

static void doorman__known_forget(doorman__known_table *known, doorman__known *object) {
    doorman__table_remove(&known->table, &object->link);
    doorman__list_remove(&known->order, &object->order);
    assert(known->table.count == known->order.count);
    DOORMAN_FREE(object);
}

/* Returns the object that was kept the longest time ago, if its time has passed or the table is
 * full; else NULL. */
static doorman__known *doorman__known_oldest(const doorman__known_table *known, size_t most,
                                             doorman_time now) {
    if (!known->order.first) return NULL;
    doorman__known *oldest = DOORMAN__WITHIN(doorman__known, order, known->order.first);
    return oldest->until <= now || known->table.count >= most ? oldest : NULL;
}

/* Returns when all objects can be forgotten, so that an idle client has none. */
static doorman_time doorman__known_due(const doorman__known_table *known) {
    return known->order.first ? known->end : DOORMAN_NEVER;
}

/* ---- permit client: refusals that are still valid (P22) */

/* Forgets the oldest refusals if they have ended, and one more if the table is full. */
static void doorman__known_refusals_forget(doorman_permit_client *client, doorman_time now) {
    doorman__known *oldest;
    while ((oldest = doorman__known_oldest(&client->refusals, DOORMAN__REFUSALS_MAX, now))) {
        doorman__known_forget(&client->refusals, oldest);
    }
}

static void doorman__limit_name_copy(char to[DOORMAN_ID_BYTES_MAX + 1], const char *name) {
    snprintf(to, DOORMAN_ID_BYTES_MAX + 1, "%s", name ? name : "");
}

/* Remembers the refusal of a call. A newer refusal of the same resource and key replaces it. If
 * memory runs out, nothing is remembered. */
static void doorman__known_refusal_remember(const doorman__call *call, const doorman_permit *permit,
                                            doorman_time sent_at, doorman_time now) {
    doorman_permit_client *client = call->client;
    doorman_time until = doorman__after(sent_at, permit->valid_for);
    assert(!permit->granted && sent_at <= now);
    if (call->request.item_count != 1 || until <= now) return;
    doorman__known_refusals_forget(client, now);
    const doorman_permit_item *item = call->request.items;
    uint64_t hash = doorman__item_hash(client->hash_key, item);
    doorman__known *known = doorman__known_find(&client->refusals, item, hash);
    if (!known)
        known = doorman__known_add(&client->refusals, sizeof(doorman__known_refusal), item, hash);
    if (!known) return;
    doorman__known_keep(&client->refusals, known, until);
    doorman__known_refusal *refusal = (doorman__known_refusal *)known;
    refusal->min = doorman__request_minimum(&call->request, 0);
    refusal->max_wait = call->sent_max_wait;
    refusal->retry_at =
        permit->has_retry_after ? doorman__after(now, permit->retry_after) : DOORMAN_NEVER;
    refusal->reason = permit->reason;
    doorman__limit_name_copy(refusal->limit, permit->limit);
}

/* Returns a valid refusal of an item of the call, or NULL.
 *   index   out: the item */
static const doorman__known_refusal *doorman__known_refusal_of(const doorman__call *call,
                                                               size_t *index, doorman_time now) {
    const doorman_permit_client *client = call->client;
    const doorman_permit_request *request = &call->request;
    for (size_t i = 0; client->refusals.table.count && i < request->item_count; i++) {
        const doorman_permit_item *item = &request->items[i];
        const doorman__known *known = doorman__known_find(
            &client->refusals, item, doorman__item_hash(client->hash_key, item));
        const doorman__known_refusal *refusal = (const doorman__known_refusal *)known;
        *index = i;
        if (known && now < known->until && request->max_wait <= refusal->max_wait &&
            doorman__request_minimum(request, i) >= refusal->min) {
            return refusal;
        }
    }
    return NULL;
}

/* ---- permit client: holds */
/*
 * The client gives each hold a number, which is the request_id on the wire. So a repeated request
 * gets the same hold (P9). An application may take a number before it asks for the permit. Then
 * each thread that knows the number can cancel the permit at any time. A hold of the client is in
 * one of four states:
 *
 *   state    meaning                          event                               next state
 *   NEW      no permit has its number yet     a permit or a seizure asks for it   -> ASKED
 *                                             is released                         (freed)
 *   ASKED    its permit has no decision yet   a server has granted it             -> IN_USE
 *                                             otherwise, or it is released        -> ENDING
 *   IN_USE   the application may use it       is released or transferred in full  -> ENDING
 *                                             is gone, or ends                    -> ENDING
 *   ENDING   the application does not use it  nothing is left to do               (freed)
 *
 * The client does not remember numbers of holds that it has freed. Numbers are given out in order,
 * so it knows which ones it has given out. If such a number has no hold any more, it was released,
 * or its hold has ended. A permit that asks with this number ends as released.
 *
 * The end of a hold is the time at which the client sent the message, plus waited / (1 + drift),
 * plus expires_in (P8). An end never moves back.
 *
 * The `action` of a hold is its renewal or its release. At most one of them is queued or under way.
 * When the first renewal is due, the client renews all holds that are past half of the time to
 * theirs. So renewals travel together. A renewal names the id alone. If the server answers `gone`,
 * it may be a new master. The client then says at once what it holds (P16). The hold is gone if the
 * server answers `gone` to this too.
 *
 * Nothing leaks while a server answers. The client releases units that a server may count and the
 * application does not use. This happens after a timeout, a release, a decision that comes too
 * late, and the end of the hold. The client repeats the release until a server has answered. If a
 * message that asked for the hold ends later with a grant or without an answer, the client releases
 * again. The client stops one time to live after the end of the hold. If the hold was never in use,
 * it stops when the hold has been ENDING for DOORMAN__RELEASE_TIME.
 *
 * A release, a renewal or a transfer that is repeated does no harm. A release names what is
 * kept, and a transfer has a request_id. A transfer is repeated until it has an answer, even after
 * its caller's timeout. A release waits for the transfers of the same hold.
 */
#define DOORMAN__RELEASE_TIME (60 * DOORMAN_SECOND)
#define DOORMAN__RENEWAL_GAP (DOORMAN_SECOND / 100) /* between two renewals, at least */
#define DOORMAN__NEW_HOLDS_MAX ((size_t)100000)     /* numbers without a permit */

static doorman__client_hold *doorman__client_hold_find(const doorman_permit_client *client,
                                                       uint64_t number) {
    uint64_t hash = doorman__hash_number(client->hash_key, number);
    doorman__link *link = doorman__table_first(&client->holds, hash);
    for (; link; link = doorman__table_same(link->next, hash)) {
        doorman__client_hold *hold = DOORMAN__WITHIN(doorman__client_hold, link, link);
        if (hold->number == number) return hold;
    }
    return NULL;
}

static bool doorman__client_hold_is_empty(const doorman__client_hold *hold) {
    for (size_t i = 0; i < hold->item_count; i++) {
        if (hold->amounts[i] > 0) return false;
    }
    return true;
}

/* Copies the items of a hold, which has none yet. Returns false if memory runs out, or if there are
 * no items. */
static bool doorman__client_hold_set_items(doorman__client_hold *hold,
                                           const doorman_hold_item *items, size_t count) {
    size_t bytes = 0, item_bytes = count * (sizeof *hold->items + sizeof *hold->amounts);
    assert(!hold->items && !hold->item_count && count <= DOORMAN_PERMIT_ITEMS_MAX);
    if (!count) return false;
    for (size_t i = 0; i < count; i++) {
        bytes += doorman__pair_bytes(items[i].resource_id, items[i].key);
    }
    hold->items = (doorman_hold_item *)doorman__zalloc(item_bytes + bytes);
    if (!hold->items) return false;
    hold->amounts = (double *)(void *)(hold->items + count);
    hold->item_count = count;
    hold->text_bytes = bytes;
    char *text = (char *)(hold->amounts + count);
    for (size_t i = 0; i < count; i++) {
        hold->amounts[i] = items[i].amount;
        hold->items[i] = items[i];
        text = doorman__pair_copy(text, &hold->items[i].resource_id, &hold->items[i].key);
    }
    assert(text == (char *)hold->items + item_bytes + bytes);
    return true;
}

/* Gives out the next number. The numbers are 1 to 2^53 - 1, and then start again. No client makes
 * that many holds, so no two holds have the same number. */
static uint64_t doorman__client_number(doorman_permit_client *client) {
    client->hold_number = client->hold_number % DOORMAN__REQUEST_ID_MAX + 1;
    client->number_count++;
    return client->hold_number;
}

/* Returns whether a number was given out. */
static bool doorman__client_number_is_known(const doorman_permit_client *client, uint64_t number) {
    if (!number || number > DOORMAN__REQUEST_ID_MAX) return false;
    uint64_t age = client->hold_number + DOORMAN__REQUEST_ID_MAX - number;
    return age % DOORMAN__REQUEST_ID_MAX < client->number_count;
}

/* Makes a hold with a number and without a permit. Returns NULL if memory runs out. */
static doorman__client_hold *doorman__client_hold_create(doorman_permit_client *client) {
    doorman__client_hold *hold = (doorman__client_hold *)doorman__zalloc(sizeof *hold);
    if (!hold) return NULL;
    hold->client = hold->action.client = client;
    hold->action.hold = hold;
    hold->number = doorman__client_number(client);
    doorman__list_insert(&client->all_holds, client->all_holds.last, &hold->all);
    doorman__table_add(&client->holds, &hold->link,
                       doorman__hash_number(client->hash_key, hold->number));
    client->new_hold_count++;
    assert(client->holds.count == client->all_holds.count);
    return hold;
}

/* Lets a permit, or a seizure, ask for a NEW hold. Returns false if memory runs out; then the hold
 * is still NEW. Precondition: doorman__permit_client_reserve has succeeded.
 *   request   NULL: a seizure, whose items are not known yet */
static bool doorman__client_hold_ask(doorman__client_hold *hold,
                                     const doorman_permit_request *request) {
    doorman_hold_item items[DOORMAN_PERMIT_ITEMS_MAX] = {{.resource_id = NULL}};
    assert(hold->state == DOORMAN__HOLD_NEW && hold->client->new_hold_count > 0);
    for (size_t i = 0; request && i < request->item_count; i++) {
        items[i].resource_id = request->items[i].resource_id;
        items[i].key = request->items[i].key;
    }
    if (request && !doorman__client_hold_set_items(hold, items, request->item_count)) return false;
    hold->state = DOORMAN__HOLD_ASKED;
    hold->client->new_hold_count--;
    return true;
}

/* Sets whether the application has to learn of a change. */
static void doorman__client_hold_set_changed(doorman__client_hold *hold, bool changed) {
    doorman__list *changes = &hold->client->changes;
    assert(changes->count <= hold->client->all_holds.count);
    if (hold->changed == changed) return;
    hold->changed = changed;
    if (changed) {
        doorman__list_insert(changes, changes->last, &hold->change);
    } else {
        doorman__list_remove(changes, &hold->change);
    }
}

/* Separates a hold from the call that has asked for it. */
static void doorman__client_hold_detach(doorman__client_hold *hold) {
    if (!hold->call) return;
    assert(hold->call->hold == hold);
    hold->call->hold = NULL;
    hold->call = NULL;
}

static void doorman__client_hold_destroy(doorman__client_hold *hold) {
    doorman_permit_client *client = hold->client;
    assert(hold->action.state == DOORMAN__CALL_NEW && !hold->action.timer.position);
    doorman__client_hold_detach(hold);
    doorman__client_hold_set_changed(hold, false);
    doorman__timer_clear(&client->hold_timers, &hold->timer);
    doorman__table_remove(&client->holds, &hold->link);
    doorman__list_remove(&client->all_holds, &hold->all);
    client->new_hold_count -= hold->state == DOORMAN__HOLD_NEW;
    DOORMAN_FREE(hold->items);
    DOORMAN_FREE(hold);
}

/* Puts the renewal or the release of a hold into its queue. */
static void doorman__client_hold_act(doorman__client_hold *hold, doorman__call_kind kind) {
    doorman__call *action = &hold->action;
    assert(action->state == DOORMAN__CALL_NEW && !action->attended);
    assert(kind == DOORMAN__CALL_RENEWAL || kind == DOORMAN__CALL_RELEASE);
    action->kind = kind;
    action->request.item_count = hold->item_count;
    action->text_bytes = hold->text_bytes;
    hold->client->call_count++;
    hold->client->action_count++;
    doorman__call_move(action, DOORMAN__CALL_QUEUED);
}

/* Does what a hold needs next, or plans when to look at it. May free the hold. */
static void doorman__client_hold_plan(doorman__client_hold *hold, doorman_time now) {
    doorman__call *action = &hold->action;
    bool ending = hold->state == DOORMAN__HOLD_ENDING, over = ending && now >= hold->give_up_at;
    if (over) hold->must_release = false;
    /* a release names what is kept, so it must not overtake a transfer of the rest */
    bool stays = action->kind == DOORMAN__CALL_RELEASE && !hold->transfers;
    bool obsolete = stays ? over : ending || hold->must_release;
    if (action->state == DOORMAN__CALL_QUEUED && obsolete) doorman__call_finish(action);
    if (action->state == DOORMAN__CALL_NEW && hold->must_release && !hold->transfers) {
        doorman__client_hold_act(hold, DOORMAN__CALL_RELEASE);
    }
    bool idle = action->state == DOORMAN__CALL_NEW;
    if (ending && idle && !hold->must_release && !hold->asking && !hold->transfers &&
        !hold->changed) {
        doorman__client_hold_destroy(hold);
        return;
    }
    doorman_time at = ending && !over ? hold->give_up_at : DOORMAN_NEVER;
    if (hold->state == DOORMAN__HOLD_IN_USE) {
        bool renews = idle && !doorman__client_hold_is_empty(hold);
        at = renews ? doorman__earlier(hold->end, hold->renew_at) : hold->end;
    }
    doorman__timer_set(&hold->client->hold_timers, &hold->timer, at);
}

/* Ends a hold that its application no longer uses. */
static void doorman__client_hold_end(doorman__client_hold *hold, bool must_release,
                                     doorman_time now) {
    bool in_use = hold->state == DOORMAN__HOLD_IN_USE;
    assert(hold->state == DOORMAN__HOLD_ASKED || in_use);
    doorman__client_hold_detach(hold);
    hold->state = DOORMAN__HOLD_ENDING;
    hold->must_release = must_release;
    hold->give_up_at =
        in_use ? doorman__after(hold->end, hold->life) : doorman__after(now, DOORMAN__RELEASE_TIME);
}

/* Ends a call that gets no hold, and the hold that it asked for. If the call was sent, a server may
 * still grant the hold. */
static void doorman__call_end_ask(doorman__call *call, doorman_time now) {
    doorman__client_hold *hold = call->hold;
    assert(!hold || hold->state == DOORMAN__HOLD_ASKED);
    if (hold) doorman__client_hold_end(hold, hold->was_sent, now);
    doorman__call_finish(call);
    if (hold) doorman__client_hold_plan(hold, now);
}

/* P8: sets the end of a hold that a server has granted or renewed.
 *   begin   the time from which the client counts the life */
static void doorman__client_hold_extend(doorman__client_hold *hold, doorman_time begin,
                                        doorman_time life, doorman_time now) {
    assert(hold->state == DOORMAN__HOLD_ASKED || hold->state == DOORMAN__HOLD_IN_USE);
    hold->begin = begin;
    hold->life = life;
    hold->end = doorman__later(hold->end, doorman__after(begin, life));
    hold->renew_at = doorman__later(doorman__after(begin, life / 3), now + DOORMAN__RENEWAL_GAP);
}

/* Ends a hold that the application has not released. If the application has transferred all units,
 * there is nothing to tell. */
static void doorman__client_hold_lose(doorman__client_hold *hold, bool must_release,
                                      doorman_time now) {
    assert(hold->state == DOORMAN__HOLD_IN_USE);
    doorman__client_hold_end(hold, must_release, now);
    if (doorman__client_hold_is_empty(hold)) return;
    hold->client->counts.holds_lost++;
    doorman__client_hold_set_changed(hold, true);
}

/* Queues the renewals of all holds that are past half of the time to their renewal. */
static void doorman__client_holds_renew(doorman_permit_client *client, doorman_time now) {
    for (doorman__list_link *at = client->all_holds.first; at; at = at->next) {
        doorman__client_hold *hold = DOORMAN__WITHIN(doorman__client_hold, all, at);
        doorman_time half = doorman__after(hold->begin, hold->life / 6);
        bool due = half <= now || hold->renew_at <= now;
        if (hold->state != DOORMAN__HOLD_IN_USE || hold->action.state != DOORMAN__CALL_NEW)
            continue;
        if (!due || hold->end <= now || doorman__client_hold_is_empty(hold)) continue;
        doorman__client_hold_act(hold, DOORMAN__CALL_RENEWAL);
        doorman__timer_set(&client->hold_timers, &hold->timer, hold->end);
    }
}

/* Ends and renews the holds whose time has come. */
static void doorman__client_holds_work(doorman_permit_client *client, doorman_time now) {
    while (doorman__timers_due(&client->hold_timers) <= now) {
        doorman__timer *first = doorman__timers_first(&client->hold_timers);
        doorman__client_hold *hold = DOORMAN__WITHIN(doorman__client_hold, timer, first);
        bool in_use = hold->state == DOORMAN__HOLD_IN_USE;
        assert(in_use || hold->state == DOORMAN__HOLD_ENDING);
        if (in_use && hold->end > now) {
            doorman__client_holds_renew(client, now);
            continue;
        }
        if (in_use) doorman__client_hold_lose(hold, true, now);
        doorman__client_hold_plan(hold, now);
    }
}

/* Ends a transfer, and the call that has its result. */
static void doorman__transfer_end(doorman__call *call, doorman_time now) {
    doorman__client_hold *hold = call->hold;
    assert(call->kind == DOORMAN__CALL_TRANSFER && hold->transfers > 0);
    hold->transfers--;
    doorman__call_finish_peer(call);
    doorman__call_finish(call);
    bool used = hold->state == DOORMAN__HOLD_IN_USE;
    if (used && !hold->transfers && doorman__client_hold_is_empty(hold)) {
        doorman__client_hold_end(hold, hold->must_release, now);
    }
    doorman__client_hold_plan(hold, now);
}

/* Grants a call the minimum of each item, or in full the cost of each item. */
static void doorman__call_grant(doorman__call *call, bool in_full) {
    call->acquired.granted = true;
    for (size_t i = 0; i < call->request.item_count; i++) {
        call->acquired.units[i] =
            in_full ? call->request.items[i].cost : doorman__request_minimum(&call->request, i);
    }
}

/* ---- permit client: units taken ahead (P24) */

static doorman__stock *doorman__stock_find(const doorman_permit_client *client,
                                           const doorman_permit_item *item) {
    if (!client->stocks.table.count) return NULL;
    uint64_t hash = doorman__item_hash(client->hash_key, item);
    return (doorman__stock *)doorman__known_find(&client->stocks, item, hash);
}

/* Keeps a stock, which is used or filled now, for twice the time `prefetch`. */
static void doorman__stock_keep(doorman_permit_client *client, doorman__stock *stock,
                                doorman_time now) {
    doorman_time until = doorman__after(now, 2 * client->policy.prefetch);
    doorman__known_keep(&client->stocks, &stock->known, until);
}

static double doorman__stock_units(const doorman__stock *stock) {
    assert(stock->lots[0].units >= 0 && stock->lots[1].units >= 0);
    return stock->lots[0].units + stock->lots[1].units;
}

static void doorman__stock_forget(doorman_permit_client *client, doorman__stock *stock) {
    client->counts.lapsed += doorman__stock_units(stock);
    doorman__known_forget(&client->stocks, &stock->known);
}

/* Forgets the stocks whose time has passed, and one more if the table is full. */
static void doorman__stocks_forget(doorman_permit_client *client, doorman_time now) {
    doorman__known *oldest;
    while ((oldest = doorman__known_oldest(&client->stocks, DOORMAN__STOCKS_MAX, now))) {
        doorman__stock_forget(client, (doorman__stock *)oldest);
    }
}

/* Returns the stock of an item, which is new if there is none. Returns NULL if memory runs out. */
static doorman__stock *doorman__stock_open(doorman_permit_client *client,
                                           const doorman_permit_item *item, doorman_time now) {
    doorman__stock *stock = doorman__stock_find(client, item);
    if (stock) return stock;
    doorman__stocks_forget(client, now);
    uint64_t hash = doorman__item_hash(client->hash_key, item);
    return (doorman__stock *)doorman__known_add(&client->stocks, sizeof *stock, item, hash);
}

/* Loses the units whose time has passed. */
static void doorman__stock_lapse(doorman_permit_client *client, doorman__stock *stock,
                                 doorman_time now) {
    for (int i = 0; i < 2; i++) {
        if (stock->lots[i].until > now) continue;
        client->counts.lapsed += stock->lots[i].units;
        stock->lots[i].units = 0;
    }
}

static void doorman__stock_use(doorman_permit_client *client, doorman__stock *stock, double units,
                               doorman_time now) {
    int64_t number = now / (client->policy.prefetch / DOORMAN__USE_SLICES);
    assert(units >= 0 && number >= stock->slice);
    for (int64_t i = 1; i <= number - stock->slice && i <= DOORMAN__USE_SLICES; i++) {
        size_t place = (size_t)((stock->slice + i) % DOORMAN__USE_SLICES);
        stock->units_used[place] = 0;
        stock->times_used[place] = 0;
    }
    stock->slice = number;
    stock->units_used[number % DOORMAN__USE_SLICES] += units;
    stock->times_used[number % DOORMAN__USE_SLICES]++;
    doorman__stock_keep(client, stock, now);
}

/* Returns how many units to take ahead now: whole units, or 0. */
static double doorman__stock_missing(const doorman__stock *stock) {
    double used = 0, stored = doorman__stock_units(stock);
    size_t times = 0;
    for (int i = 0; i < DOORMAN__USE_SLICES; i++) {
        used += stock->units_used[i];
        times += stock->times_used[i];
    }
    if (stock->asking || times < 2 || stored > used / 2) return 0;
    return (double)(int64_t)doorman__min(used - stored, stock->remaining / 2);
}

/* Takes units ahead, if the stock has few and the key is used often. If memory runs out, none are
 * taken. Precondition: doorman__stock_use was called at this time. */
static void doorman__stock_refill(doorman_permit_client *client, doorman__stock *stock,
                                  const doorman_permit_item *item) {
    const doorman_permit_item ahead = {.resource_id = item->resource_id,
                                       .key = item->key,
                                       .cost = doorman__stock_missing(stock),
                                       .has_min = true};
    const doorman_permit_request request = {.items = &ahead, .item_count = 1};
    const doorman_upstream *upstream = &client->main.upstream;
    bool full = client->queues[DOORMAN__CALL_PERMIT].count >= DOORMAN__CALLS_MAX;
    bool fails = upstream->failures >= DOORMAN__BREAKER_FAILURES;
    if (ahead.cost < 1 || full || fails) return;
    if (!doorman__permit_client_reserve(client, false)) return;
    doorman__call *call = doorman__call_create(client, &request, NULL);
    if (!call) return;
    assert(!stock->asking);
    call->attended = false;
    call->prefetches = true;
    stock->asking = true;
    client->call_count++;
    client->prefetch_count++;
    doorman__call_move(call, DOORMAN__CALL_QUEUED);
}

static void doorman__prefetch_end(doorman__call *call) {
    doorman__stock *stock = doorman__stock_find(call->client, call->request.items);
    assert(call->prefetches && !call->attended && call->client->prefetch_count > 0);
    if (stock) stock->asking = false;
    call->client->prefetch_count--;
    doorman__call_finish(call);
}

/* Returns whether the units of a permit may be taken ahead. */
static bool doorman__call_uses_stock(const doorman__call *call) {
    const doorman_permit_request *request = &call->request;
    return call->client->policy.prefetch && call->kind == DOORMAN__CALL_PERMIT && call->attended &&
           !call->hold && request->item_count == 1 && !request->equal && request->items->cost > 0;
}

/* Grants a permit out of the stock. Returns false if this is not possible. */
static bool doorman__stock_spend(doorman__call *call, doorman_time now) {
    doorman_permit_client *client = call->client;
    const doorman_permit_item *item = call->request.items;
    doorman__stock *stock =
        doorman__call_uses_stock(call) ? doorman__stock_find(client, item) : NULL;
    if (!stock) return false;
    doorman__stock_lapse(client, stock, now);
    double cost = doorman__grains_units(doorman__grains_ceil(item->cost));
    if (cost > doorman__stock_units(stock)) return false;
    if (item->cost > stock->granted_most) return false;
    double first = doorman__min(cost, stock->lots[0].units);
    stock->lots[0].units -= first;
    stock->lots[1].units -= cost - first;
    assert(stock->lots[0].units >= 0 && stock->lots[1].units >= 0);
    doorman_acquired *acquired = &call->acquired;
    doorman__call_grant(call, true);
    acquired->decided_by = DOORMAN_BY_PREFETCH;
    acquired->warning = stock->warning;
    acquired->remaining = stock->remaining;
    acquired->reset_after = doorman__later(stock->reset_at - now, 0);
    doorman__limit_name_copy(acquired->limit, stock->limit);
    client->counts.prefetch_granted++;
    client->call_count++;
    doorman__call_settle(call);
    doorman__stock_use(client, stock, cost, now);
    doorman__stock_refill(client, stock, item);
    return true;
}

/* Stores the units that a server has granted ahead. If both lots have units, the new units end with
 * the second lot, which is earlier than they have to. If such a grant has a wait, no caller waits,
 * so the units are lost. The units of a stock that was forgotten are lost too. */
static void doorman__stock_receive(const doorman__call *call, doorman__stock *stock,
                                   const doorman_permit *permit, doorman_time sent_at,
                                   doorman_time now) {
    doorman_permit_client *client = call->client;
    double units = doorman__min(permit->items->granted, call->request.items->cost);
    assert(call->prefetches && permit->granted && units >= 0);
    client->counts.prefetched += units;
    if (!stock || permit->wait > 0) {
        client->counts.lapsed += units;
        return;
    }
    doorman__stock_lapse(client, stock, now);
    if (!(stock->lots[0].units > 0)) {
        stock->lots[0] = stock->lots[1];
        stock->lots[1].units = 0;
    }
    doorman__lot *lot = &stock->lots[stock->lots[0].units > 0];
    if (!(lot->units > 0)) lot->until = doorman__after(sent_at, 2 * client->policy.prefetch);
    lot->units += units;
    doorman__stock_lapse(client, stock, now);
    doorman__stock_keep(client, stock, now);
}

/* Learns from the decision of a server on a permit of a caller, or on units that are taken
 * ahead. */
static void doorman__stock_learn(const doorman__call *call, const doorman_permit *permit,
                                 doorman_time sent_at, doorman_time now) {
    doorman_permit_client *client = call->client;
    const doorman_permit_item *item = call->request.items;
    doorman__stock *stock = NULL;
    if (!permit->granted) {
        stock = doorman__stock_find(client, &item[permit->item_index]);
        if (stock) stock->remaining = 0;
        if (stock && permit->reason == DOORMAN_REASON_BANNED) doorman__stock_forget(client, stock);
        return;
    }
    if (call->prefetches) {
        stock = doorman__stock_find(client, item);
        doorman__stock_receive(call, stock, permit, sent_at, now);
    } else if (doorman__call_uses_stock(call)) {
        stock = doorman__stock_open(client, item, now);
    }
    if (!stock) return;
    const doorman_permit_grant *grant = permit->items;
    stock->warning = permit->warning;
    stock->remaining = grant->remaining;
    stock->reset_at = doorman__after(now, grant->reset_after);
    doorman__limit_name_copy(stock->limit, grant->limit);
    if (call->prefetches) return;
    stock->granted_most = doorman__max(stock->granted_most, grant->granted);
    doorman__stock_lapse(client, stock, now);
    doorman__stock_use(client, stock, grant->granted, now);
    doorman__stock_refill(client, stock, item);
}

/* ---- permit client: decisions without a server */

/* Returns whether the local limiters allow all items. If one refuses, the units of the items before
 * it stay taken. */
static bool doorman__call_is_local(doorman__call *call, doorman_time now) {
    doorman_permit_client *client = call->client;
    for (size_t i = 0; i < call->request.item_count; i++) {
        const doorman_permit_item *item = &call->request.items[i];
        const uint64_t key[2] = {doorman__item_hash(client->hash_key, item),
                                 doorman__item_hash(client->local_key, item)};
        doorman_result result;
        doorman_decision decision =
            doorman_limiter_map_try(client->local, key, sizeof key,
                                    doorman__request_minimum(&call->request, i), &result, now);
        if (decision == DOORMAN_ALLOWED) continue;
        call->acquired.item_index = i;
        call->acquired.has_retry_after = result.retry_after != DOORMAN_NEVER;
        if (call->acquired.has_retry_after) call->acquired.retry_after = result.retry_after;
        return false;
    }
    return true;
}

/* P23: decides on a permit without a server. A report is lost. A permit that no caller waits for
 * gets no decision. */
static void doorman__call_fall_back(doorman__call *call, doorman_time now) {
    doorman_permit_client *client = call->client;
    doorman_acquired *acquired = &call->acquired;
    doorman_permit_fallback fallback = client->policy.fallback;
    assert(call->state != DOORMAN__CALL_DECIDED && call->kind != DOORMAN__CALL_TRANSFER);
    if (call->prefetches) {
        doorman__prefetch_end(call);
        return;
    }
    acquired->decided_by = DOORMAN_BY_FALLBACK;
    if (call->kind == DOORMAN__CALL_REPORT) client->counts.lost++;
    if (call->kind == DOORMAN__CALL_SEIZURE) fallback = DOORMAN_FAIL_CLOSED;
    if (call->attended) {
        bool granted = fallback == DOORMAN_FAIL_OPEN;
        if (fallback == DOORMAN_FAIL_LOCAL) granted = doorman__call_is_local(call, now);
        if (granted) doorman__call_grant(call, false);
        (*(granted ? &client->counts.fallback_granted : &client->counts.fallback_refused))++;
    }
    if (fallback == DOORMAN_FAIL_CLOSED && client->main.upstream.state == DOORMAN__BACKING_OFF) {
        acquired->has_retry_after = true;
        acquired->retry_after = doorman__later(client->main.upstream.retry_at - now, 0);
    }
    doorman__call_end_ask(call, now);
}

static void doorman__call_refuse(doorman__call *call, size_t index,
                                 const doorman__known_refusal *refusal, doorman_time now) {
    doorman_permit_client *client = call->client;
    doorman_acquired *acquired = &call->acquired;
    assert(call->state == DOORMAN__CALL_NEW && now < refusal->known.until);
    acquired->decided_by = DOORMAN_BY_REFUSAL;
    acquired->reason = refusal->reason;
    acquired->item_index = index;
    acquired->has_retry_after = refusal->retry_at != DOORMAN_NEVER;
    if (acquired->has_retry_after) {
        acquired->retry_after = doorman__later(refusal->retry_at - now, 0);
    }
    doorman__limit_name_copy(acquired->limit, refusal->limit);
    client->counts.refused_locally++;
    if (!call->attended) client->counts.bypassed++;
    doorman__call_end_ask(call, now);
}

/* Returns whether no new call may wait for a message: the breaker is open, or its test is under
 * way. */
static bool doorman__breaker_is_open(const doorman_permit_client *client, doorman_time now) {
    const doorman_upstream *upstream = &client->main.upstream;
    if (upstream->state == DOORMAN__BACKING_OFF) return now < upstream->retry_at;
    return upstream->state == DOORMAN__REQUESTED && upstream->failures >= DOORMAN__BREAKER_FAILURES;
}

/* Sets the kind and the hold of a new call.
 *   hold   NULL: none */
static void doorman__call_set_hold(doorman__call *call, doorman__call_kind kind,
                                   doorman__client_hold *hold) {
    assert(call->state == DOORMAN__CALL_NEW && !call->hold);
    call->kind = kind;
    call->alone = kind == DOORMAN__CALL_WAIT;
    call->hold = hold;
    if (!hold) return;
    assert(!hold->call && hold->state == DOORMAN__HOLD_ASKED);
    hold->call = call;
    call->request.request_id = hold->number;
}

/* Puts a new call into its queue, or decides on it at once. Returns whether it is in its queue, so
 * that it is not freed yet. */
static bool doorman__call_start(doorman__call *call, doorman_time now) {
    doorman_permit_client *client = call->client;
    const doorman__known_refusal *refusal = NULL;
    bool is_report = call->kind == DOORMAN__CALL_REPORT;
    size_t index = 0, most = is_report ? DOORMAN__REPORTS_MAX : DOORMAN__CALLS_MAX;
    bool full = client->queues[call->kind].count >= most;
    client->call_count++;
    if (!is_report) refusal = doorman__known_refusal_of(call, &index, now);
    /* UNMATCHED is no decision: the server has no limits for the resource */
    if (refusal && refusal->reason != DOORMAN_REASON_UNMATCHED) {
        doorman__call_refuse(call, index, refusal, now);
        return false;
    }
    if (refusal || full || doorman__breaker_is_open(client, now)) {
        doorman__call_fall_back(call, now);
        return false;
    }
    doorman__call_move(call, DOORMAN__CALL_QUEUED);
    doorman__timer_set(&client->timers, &call->timer, call->deadline);
    return true;
}

/* ---- permit client: its messages */

/* Puts a call whose message has no valid response of a master back into its queue, or ends the
 * call. */
static void doorman__call_return(doorman__call *call, bool failed, doorman_time now) {
    assert(call->state == DOORMAN__CALL_SENT);
    if (call->kind == DOORMAN__CALL_RENEWAL || call->kind == DOORMAN__CALL_RELEASE) {
        doorman__client_hold *hold = call->hold;
        hold->must_release = hold->must_release || call->kind == DOORMAN__CALL_RELEASE;
        doorman__call_finish(call);
        doorman__client_hold_plan(hold, now);
        return;
    }
    doorman__call_move(call, DOORMAN__CALL_QUEUED);
    if (call->kind == DOORMAN__CALL_TRANSFER) {
        if (now >= call->hold->end) doorman__transfer_end(call, now);
    } else if (failed && call->prefetches) {
        doorman__prefetch_end(call);
    } else if (failed) {
        call->alone = true;
        bool gives_up = ++call->failures > call->client->main.upstream.address_count;
        if (gives_up) doorman__call_fall_back(call, now);
    }
}

/* Takes a call out of a message that has no valid response of a master. A server may have granted
 * the hold that the call asks for. */
static void doorman__sent_return(doorman__sent *sent, bool failed, doorman_time now) {
    doorman__client_hold *hold = sent->hold;
    sent->hold = NULL;
    if (sent->call) doorman__call_return(sent->call, failed, now);
    assert(!sent->call);
    if (!hold) return;
    hold->asking = false;
    if (!hold->call && hold->state == DOORMAN__HOLD_ASKED) {
        doorman__client_hold_end(hold, hold->was_sent, now);
    }
    if (hold->state == DOORMAN__HOLD_ENDING) hold->must_release = now < hold->give_up_at;
    doorman__client_hold_plan(hold, now);
}

/* Takes all calls out of a message that has no valid response of a master. Goes from the last call
 * to the first one, because each becomes the first of its queue.
 *   failed   false: the message was redirected, or the client is destroyed */
static void doorman__batch_return(doorman__batch *batch, bool failed, doorman_time now) {
    assert(batch->count <= batch->capacity);
    for (size_t i = batch->count; i-- > 0;) doorman__sent_return(&batch->sent[i], failed, now);
    batch->count = 0;
}

/* Opens the breaker. The fallback decides on the permits, reports and seizures in the queues. The
 * callers of transfers get their results. Requests about holds stay in their queues. */
static void doorman__breaker_open(doorman_permit_client *client, doorman_time now) {
    doorman_upstream *upstream = &client->main.upstream;
    assert(upstream->failures >= DOORMAN__BREAKER_FAILURES && !client->main.count);
    unsigned doublings = upstream->failures - DOORMAN__BREAKER_FAILURES;
    doorman_time most = client->policy.max_pause ? client->policy.max_pause : DOORMAN__BREAKER_MAX;
    doorman_time pause = doorman__earlier(DOORMAN_SECOND << doublings, most);
    doorman__upstream_move(upstream, DOORMAN__BACKING_OFF);
    upstream->retry_at = doorman__after(now, pause);
    client->counts.pauses++;
    static const doorman__call_kind kinds[] = {DOORMAN__CALL_PERMIT, DOORMAN__CALL_WAIT,
                                               DOORMAN__CALL_REPORT, DOORMAN__CALL_SEIZURE};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        doorman__list_link *const *first = &client->queues[kinds[i]].first;
        while (*first) doorman__call_fall_back(doorman__call_at(*first), now);
    }
    doorman__list_link *at = client->queues[DOORMAN__CALL_TRANSFER].first;
    for (; at; at = at->next) doorman__call_finish_peer(doorman__call_at(at));
}

/* Ends a message that has failed. The breaker counts only the messages of the client.
 *   alive   a server has answered that it knows no master */
static void doorman__batch_fail(doorman__batch *batch, bool alive, doorman_time now) {
    doorman_upstream *upstream = &batch->upstream;
    assert(upstream->state == DOORMAN__REQUESTED);
    unsigned most = DOORMAN__BREAKER_FAILURES +
                    (alive ? DOORMAN__BREAKER_DOUBLINGS_ALIVE : DOORMAN__BREAKER_DOUBLINGS);
    if (batch == &batch->client->main) {
        upstream->failures = upstream->failures < most ? upstream->failures + 1 : most;
        upstream->redirect[0] = 0;
        upstream->address_index = (upstream->address_index + 1) % upstream->address_count;
    }
    upstream->failure_count++;
    upstream->redirects = 0;
    doorman__batch_return(batch, true, now);
    if (upstream->failures >= DOORMAN__BREAKER_FAILURES) {
        doorman__breaker_open(batch->client, now);
    } else {
        doorman__upstream_move(upstream, DOORMAN__READY);
    }
}

/* Returns how many items the message, or its response, has for a call. How many a seizure brings is
 * not known. */
static size_t doorman__call_items(const doorman__call *call) {
    bool seizes = call->kind == DOORMAN__CALL_SEIZURE;
    return seizes ? DOORMAN_PERMIT_ITEMS_MAX : call->request.item_count;
}

/* Returns whether a call fits in the message that has `items` and `bytes` already. */
static bool doorman__batch_fits(const doorman__batch *batch, const doorman__call *call,
                                size_t items, size_t bytes) {
    if (batch->count == 0) return true;
    if (call->alone || batch->sent[0].call->alone) return false;
    return batch->count < batch->capacity &&
           items + doorman__call_items(call) <= DOORMAN__MESSAGE_ITEMS &&
           bytes + call->text_bytes <= DOORMAN__MESSAGE_TEXT;
}

/* Prepares a permit for a message. Its max_wait in the message is at most what is left of the
 * timeout. For a permit that may queue, some of this time is left for the answer, and the wait at
 * an earlier server counts. */
static void doorman__permit_put(doorman__call *call, doorman_permit_request *to, doorman_time now) {
    doorman_time rest = doorman__later(call->deadline - now, 0);
    if (call->kind == DOORMAN__CALL_WAIT) {
        rest -= doorman__earlier(rest / 4, DOORMAN_SECOND);
        if (!call->waits_until) call->waits_until = doorman__after(now, call->request.max_wait);
        rest = doorman__earlier(rest, doorman__later(call->waits_until - now, 0));
    }
    *to = call->request;
    to->max_wait = call->sent_max_wait = doorman__earlier(call->request.max_wait, rest);
}

static doorman_hold_request doorman__hold_put(doorman__call *call) {
    doorman__client_hold *hold = call->hold;
    doorman_hold_request request = {.id = hold->id};
    if (call->kind == DOORMAN__CALL_TRANSFER || call->kind == DOORMAN__CALL_SEIZURE) {
        return call->hold_request;
    }
    assert(call == &hold->action);
    if (call->kind == DOORMAN__CALL_RELEASE) {
        hold->must_release = false;
        if (!hold->id) request.request_id = hold->number;
        bool keeps = hold->state == DOORMAN__HOLD_IN_USE;
        request.amounts = keeps ? hold->amounts : NULL;
        request.amount_count = keeps ? hold->item_count : 0;
    } else if (hold->claims) {
        for (size_t i = 0; i < hold->item_count; i++) hold->items[i].amount = hold->amounts[i];
        request.items = hold->items;
        request.item_count = hold->item_count;
    }
    return request;
}

/* Puts a call into a message. Returns until when the message should wait for its answer. */
static doorman_time doorman__batch_put(doorman__batch *batch, doorman__call *call,
                                       doorman_time now) {
    size_t place = batch->count++;
    const doorman_permit_item *item = call->request.items;
    doorman__client_hold *hold = call->hold;
    bool asks = hold && hold->call == call;
    assert(place < batch->capacity && place < batch->item_capacity && !call->batch);
    doorman__call_move(call, DOORMAN__CALL_SENT);
    call->batch = batch;
    call->position = place;
    batch->sent[place] = (doorman__sent){.call = call, .hold = asks ? hold : NULL};
    if (asks) hold->asking = hold->was_sent = true;
    if (call->kind == DOORMAN__CALL_PERMIT || call->kind == DOORMAN__CALL_WAIT) {
        doorman__permit_put(call, &((doorman_permit_request *)batch->items)[place], now);
        return call->deadline;
    }
    if (call->kind == DOORMAN__CALL_REPORT) {
        ((doorman_permit_entry *)batch->items)[place] = (doorman_permit_entry){
            .resource_id = item->resource_id, .key = item->key, .cost = item->cost};
    } else {
        ((doorman_hold_request *)batch->items)[place] = doorman__hold_put(call);
    }
    return doorman__after(now, batch->client->message_timeout);
}

/* Fills a message with calls of one kind. Returns how long to wait for the response: until the last
 * caller times out, within bounds. The bound is longer for a permit that may wait at the server,
 * which is alone in its message. */
static doorman_time doorman__batch_fill(doorman__batch *batch, const doorman__list *from,
                                        doorman_time now) {
    doorman_time last = now, most = batch->client->message_timeout;
    size_t items = 0, bytes = 0, details = 0;
    assert(batch->count == 0 && from->first);
    while (from->first) {
        doorman__call *call = doorman__call_at(from->first);
        if (!doorman__batch_fits(batch, call, items, bytes)) break;
        /* a server takes 100 permits with detail in a message, and bounds its response */
        if (call->request.detail) details += doorman__call_items(call);
        if (details > DOORMAN_PERMIT_ITEMS_MAX && batch->count) break;
        items += doorman__call_items(call);
        bytes += call->text_bytes;
        last = doorman__later(last, doorman__batch_put(batch, call, now));
    }
    if (batch->kind == DOORMAN__CALL_WAIT) {
        most = doorman__after(most, ((doorman_permit_request *)batch->items)->max_wait);
    }
    return doorman__earlier(most, doorman__later(last - now, DOORMAN__MESSAGE_WAIT_MIN));
}

/* Ends the calls and holds whose time has come, and renews holds. Forgets the refusals, or the
 * stocks, when all of them have ended. */
static void doorman__permit_client_work(doorman_permit_client *client, doorman_time now) {
    now = doorman__upstream_now(&client->main.upstream, now);
    doorman__client_holds_work(client, now);
    while (doorman__timers_due(&client->timers) <= now) {
        doorman__timer *first = doorman__timers_first(&client->timers);
        doorman__call *call = DOORMAN__WITHIN(doorman__call, timer, first);
        if (call->state == DOORMAN__CALL_WAITING) {
            doorman__call_finish(call);
        } else {
            client->counts.timed_out++;
            doorman__call_fall_back(call, now);
        }
    }
    if (doorman__known_due(&client->refusals) <= now) doorman__known_refusals_forget(client, now);
    if (doorman__known_due(&client->stocks) <= now) doorman__stocks_forget(client, now);
}

static void doorman__batch_work(doorman_upstream *upstream, doorman_time now) {
    doorman__permit_client_work(DOORMAN__WITHIN(doorman__batch, upstream, upstream)->client, now);
}

/* Returns the next queue with calls for a message, or KIND_COUNT. In the messages of the client,
 * the kinds alternate. Permits that may wait travel in lanes, if there are lanes. */
static doorman__call_kind doorman__queue_next(const doorman__batch *batch) {
    const doorman_permit_client *client = batch->client;
    bool is_lane = batch != &client->main;
    for (int i = 1; i <= DOORMAN__CALL_KIND_COUNT; i++) {
        int kind = ((int)batch->kind + i) % DOORMAN__CALL_KIND_COUNT;
        bool waits = kind == DOORMAN__CALL_WAIT;
        if (is_lane ? !waits : waits && client->lane_count) continue;
        if (client->queues[kind].first) return (doorman__call_kind)kind;
    }
    return DOORMAN__CALL_KIND_COUNT;
}

static doorman_time doorman__batch_due(const doorman_upstream *upstream) {
    const doorman__batch *batch = DOORMAN__WITHIN_CONST(doorman__batch, upstream, upstream);
    const doorman_permit_client *client = batch->client;
    const doorman_upstream *main = &client->main.upstream;
    doorman_time due = DOORMAN_NEVER;
    if (upstream == main) { /* a lane does not wake up for the work of the client */
        if (client->decided.first) return 0;
        due = doorman__earlier(doorman__timers_due(&client->timers),
                               doorman__timers_due(&client->hold_timers));
        due = doorman__earlier(due, doorman__known_due(&client->refusals));
        due = doorman__earlier(due, doorman__known_due(&client->stocks));
    }
    if (upstream->state == DOORMAN__REQUESTED) {
        return doorman__earlier(due, doorman__upstream_due(upstream));
    }
    if (doorman__queue_next(batch) == DOORMAN__CALL_KIND_COUNT) return due;
    if (main->state == DOORMAN__BACKING_OFF) return doorman__earlier(due, main->retry_at);
    return doorman__breaker_is_open(client, main->now) ? due : 0;
}

/* Gives the next message of a lane its address: the one that the client uses now, or another one if
 * the permit has failed before. */
static void doorman__lane_begin(doorman__batch *lane, const doorman__call *call) {
    doorman_upstream *upstream = &lane->upstream;
    const doorman_upstream *main = &lane->client->main.upstream;
    size_t failed = call->failures % main->address_count;
    assert(lane->capacity == 1 && call->kind == DOORMAN__CALL_WAIT);
    upstream->address_index = (main->address_index + failed) % main->address_count;
    memcpy(upstream->redirect, failed ? "" : main->redirect, failed ? 1 : sizeof main->redirect);
}

static bool doorman__batch_request(doorman_upstream *upstream, doorman_request *out,
                                   doorman_time now) {
    static const doorman_method methods[DOORMAN__CALL_KIND_COUNT] = {
        [DOORMAN__CALL_PERMIT] = DOORMAN_ACQUIRE,    [DOORMAN__CALL_REPORT] = DOORMAN_REPORT,
        [DOORMAN__CALL_RENEWAL] = DOORMAN_RENEW,     [DOORMAN__CALL_RELEASE] = DOORMAN_RELEASE,
        [DOORMAN__CALL_TRANSFER] = DOORMAN_TRANSFER, [DOORMAN__CALL_SEIZURE] = DOORMAN_SEIZE,
        [DOORMAN__CALL_WAIT] = DOORMAN_ACQUIRE};
    doorman__batch *batch = DOORMAN__WITHIN(doorman__batch, upstream, upstream);
    doorman_permit_client *client = batch->client;
    now = doorman__upstream_now(&client->main.upstream, now);
    if (upstream->state == DOORMAN__REQUESTED) {
        if (now < doorman__upstream_due(upstream)) return false;
        doorman__batch_fail(batch, false, now);
    }
    doorman__call_kind kind = doorman__queue_next(batch);
    if (kind == DOORMAN__CALL_KIND_COUNT || doorman__breaker_is_open(client, now)) return false;
    const doorman__list *queue = &client->queues[kind];
    if (batch != &client->main && !upstream->redirects) {
        doorman__lane_begin(batch, doorman__call_at(queue->first));
    }
    batch->kind = kind;
    upstream->method = methods[kind];
    upstream->timeout = doorman__batch_fill(batch, queue, now);
    upstream->sent_at = now;
    doorman__upstream_move(upstream, DOORMAN__REQUESTED);
    client->counts.messages++;
    *out = (doorman_request){.method = upstream->method,
                             .holder_id = client->client_id,
                             .address = doorman__upstream_address(upstream),
                             .sequence = ++upstream->sequence};
    assert(batch->count > 0);
    if (upstream->method == DOORMAN_ACQUIRE) {
        out->permits = (const doorman_permit_request *)batch->items;
        out->permit_count = batch->count;
    } else if (upstream->method == DOORMAN_REPORT) {
        out->entries = (const doorman_permit_entry *)batch->items;
        out->entry_count = batch->count;
    } else {
        out->holds = (const doorman_hold_request *)batch->items;
        out->hold_count = batch->count;
    }
    return true;
}

/* ---- permit client: a response */

/* Checks the decision on a permit. If its call has its result already, its hold may still follow
 * the decision. If both are NULL, nothing reads the decision. */
static bool doorman__decision_valid(const doorman_permit *permit, const doorman__sent *sent) {
    if (!sent->call && !sent->hold) return true;
    if (permit->detail_count && !permit->details) return false;
    size_t count = sent->call ? sent->call->request.item_count : sent->hold->item_count;
    if (!permit->granted) {
        return (unsigned)permit->reason < DOORMAN_REASON_COUNT && permit->item_index < count &&
               doorman__duration_valid(permit->valid_for) &&
               (!permit->has_retry_after || doorman__duration_valid(permit->retry_after));
    }
    if (permit->item_count != count || !permit->items || !doorman__duration_valid(permit->wait) ||
        !doorman__duration_valid(permit->waited) || !doorman__duration_valid(permit->expires_in)) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        const doorman_permit_grant *grant = &permit->items[i];
        if (!doorman__amount_valid(grant->granted) || !doorman__amount_valid(grant->remaining) ||
            grant->reset_after < 0) {
            return false;
        }
    }
    return true;
}

/* Checks the result of a request about a hold. A server must describe what a client has seized.
 *   call   may be NULL */
static bool doorman__hold_result_valid(const doorman_hold *result, const doorman__call *call,
                                       doorman_method method) {
    bool renews = call && call->kind == DOORMAN__CALL_RENEWAL, seizes = method == DOORMAN_SEIZE;
    if (result->gone) return true;
    if ((unsigned)result->reason >= DOORMAN_REASON_COUNT ||
        !doorman__duration_valid(result->expires_in) ||
        result->item_count > DOORMAN_PERMIT_ITEMS_MAX || (result->item_count && !result->items) ||
        (renews && result->item_count != call->hold->item_count)) {
        return false;
    }
    bool moved = !result->reason && (seizes || method == DOORMAN_TRANSFER);
    if (moved && (!result->id || (seizes && !result->item_count))) return false;
    for (size_t i = 0; i < result->item_count; i++) {
        const doorman_hold_item *item = &result->items[i];
        if (!doorman__amount_valid(item->amount)) return false;
        if (seizes && moved && !doorman__id_valid(item->resource_id)) return false;
    }
    return true;
}

static bool doorman__decisions_valid(const doorman__batch *batch,
                                     const doorman_response *response) {
    if (response->method != batch->upstream.method) return false;
    if (!doorman__response_lists_given(response)) return false;
    if (response->method == DOORMAN_REPORT) return response->result_count == batch->count;
    bool acquires = response->method == DOORMAN_ACQUIRE;
    size_t count = acquires ? response->permit_count : response->hold_count;
    if (count != batch->count) return false;
    for (size_t i = 0; i < count; i++) {
        const doorman__sent *sent = &batch->sent[i];
        if (acquires
                ? !doorman__decision_valid(&response->permits[i], sent)
                : !doorman__hold_result_valid(&response->holds[i], sent->call, response->method)) {
            return false;
        }
    }
    return true;
}

/* Copies a grant. Of all items, the limit with the fewest units left is copied. */
static void doorman__acquired_grant(doorman_acquired *acquired, const doorman_permit *permit) {
    const doorman_permit_grant *least = NULL;
    acquired->granted = true;
    acquired->warning = permit->warning;
    for (size_t i = 0; i < permit->item_count; i++) {
        const doorman_permit_grant *grant = &permit->items[i];
        acquired->units[i] = grant->granted;
        if (grant->limit && (!least || grant->remaining < least->remaining)) least = grant;
    }
    if (!least) return;
    doorman__limit_name_copy(acquired->limit, least->limit);
    acquired->remaining = least->remaining;
    acquired->reset_after = least->reset_after;
}

/* Copies the figures of the limit that the result names. */
static void doorman__acquired_figures(doorman_acquired *acquired, const doorman_permit *permit) {
    for (size_t i = 0; i < permit->detail_count; i++) {
        const doorman_permit_detail *detail = &permit->details[i];
        bool same_item = permit->granted || detail->item_index == permit->item_index;
        if (!same_item || detail->shadow || !detail->limit) continue;
        if (strcmp(detail->limit, acquired->limit) != 0) continue;
        if (acquired->quota > 0 && detail->remaining >= acquired->remaining) continue;
        acquired->quota = detail->most;
        acquired->window = detail->window;
        acquired->remaining = detail->remaining;
        acquired->reset_after = detail->reset_after;
    }
}

/* Processes the decision of a server. A wait begins when the response comes. It ends with the
 * timeout of the caller at the latest.
 *   sent_at   when the message was sent */
static void doorman__call_decide(doorman__call *call, const doorman_permit *permit,
                                 doorman_time sent_at, doorman_time now) {
    doorman_permit_client *client = call->client;
    assert(call->state == DOORMAN__CALL_SENT && sent_at <= now);
    doorman_acquired *acquired = &call->acquired;
    if (!permit->granted) {
        doorman__known_refusal_remember(call, permit, sent_at, now);
    }
    if (client->policy.prefetch) doorman__stock_learn(call, permit, sent_at, now);
    if (call->prefetches) {
        doorman__prefetch_end(call);
        return;
    }
    if (!permit->granted && permit->reason == DOORMAN_REASON_UNMATCHED) {
        doorman__call_fall_back(call, now);
        return;
    }
    acquired->decided_by = DOORMAN_BY_SERVER;
    (*(permit->granted ? &client->counts.granted : &client->counts.refused))++;
    if (permit->granted) {
        doorman__acquired_grant(acquired, permit);
        acquired->hold = call->hold ? call->hold->number : 0;
        acquired->ends_at = call->hold ? call->hold->end : 0;
    } else {
        acquired->reason = permit->reason;
        acquired->item_index = permit->item_index;
        acquired->has_retry_after = permit->has_retry_after;
        if (permit->has_retry_after) acquired->retry_after = permit->retry_after;
        doorman__limit_name_copy(acquired->limit, permit->limit);
        if (!call->attended) client->counts.bypassed++;
    }
    if (call->request.detail) doorman__acquired_figures(acquired, permit);
    doorman_time ready = permit->granted ? doorman__after(now, permit->wait) : now;
    doorman_time end = doorman__earlier(ready, call->deadline);
    acquired->wait = ready - end;
    if (end <= now || !call->attended) {
        doorman__call_finish(call);
    } else {
        doorman__call_move(call, DOORMAN__CALL_WAITING);
        doorman__timer_set(&client->timers, &call->timer, end);
    }
}

/* Processes the decision on a hold. A hold that the client cannot use is released again. Returns
 * whether the hold may be used.
 *   id      0: it is not granted
 *   begin   as for doorman__client_hold_extend */
static bool doorman__ask_decide(doorman__client_hold *hold, uint64_t id, doorman_time begin,
                                doorman_time life, doorman_time now) {
    assert(hold->asking && hold->state != DOORMAN__HOLD_NEW);
    assert(hold->state != DOORMAN__HOLD_IN_USE);
    hold->asking = false;
    if (id) hold->id = id;
    if (id && hold->state == DOORMAN__HOLD_ASKED) {
        doorman__client_hold_extend(hold, begin, life, now);
        if (hold->end > now) {
            hold->state = DOORMAN__HOLD_IN_USE;
            return true;
        }
    }
    if (hold->state == DOORMAN__HOLD_ASKED) doorman__client_hold_end(hold, id != 0, now);
    hold->must_release = id && now < hold->give_up_at;
    return false;
}

/* Processes the decision on a permit.
 *   sent   the call, the hold or both may be NULL */
static void doorman__permit_decide(doorman__sent sent, const doorman_permit *permit,
                                   doorman_time sent_at, doorman_time now) {
    uint64_t id = permit->granted ? permit->hold_id : 0;
    doorman__client_hold *hold = sent.hold;
    if (hold) {
        double drift = hold->client->policy.drift > 0 ? hold->client->policy.drift : DOORMAN__DRIFT;
        doorman_time waited = (doorman_time)((double)permit->waited / (1 + drift));
        doorman_time begin = doorman__after(sent_at, waited);
        bool used = doorman__ask_decide(hold, id, begin, permit->expires_in, now);
        for (size_t i = 0; used && i < hold->item_count; i++) {
            hold->amounts[i] = permit->items[i].granted;
        }
        if (sent.call && id && !used) { /* it has ended already */
            doorman__call_fall_back(sent.call, now);
            sent.call = NULL;
        }
    }
    if (sent.call) doorman__call_decide(sent.call, permit, sent_at, now);
    if (hold) doorman__client_hold_plan(hold, now);
}

/* Processes the answer to a renewal or a release. A release that finds no hold may have reached a
 * new master. The next renewal then says what is held. */
static void doorman__action_decide(doorman__call *action, const doorman_hold *result,
                                   doorman_time now) {
    doorman__client_hold *hold = action->hold;
    bool releases = action->kind == DOORMAN__CALL_RELEASE;
    assert(action == &hold->action && action->state == DOORMAN__CALL_SENT);
    doorman__call_finish(action);
    bool renewed =
        !releases && hold->state == DOORMAN__HOLD_IN_USE && !doorman__client_hold_is_empty(hold);
    if (releases && result->gone) {
        hold->renew_at = now;
    } else if (renewed && !result->gone) {
        hold->claims = false;
        doorman__client_hold_extend(hold, hold->client->main.upstream.sent_at, result->expires_in,
                                    now);
        for (size_t i = 0; i < hold->item_count; i++) {
            if (result->items[i].amount >= hold->amounts[i]) continue;
            hold->amounts[i] = result->items[i].amount;
            doorman__client_hold_set_changed(hold, true);
        }
    } else if (renewed && hold->claims) {
        doorman__client_hold_lose(hold, false, now);
    } else if (renewed) {
        hold->claims = true;
        hold->renew_at = now;
    }
    doorman__client_hold_plan(hold, now);
}

static void doorman__transfer_decide(doorman__call *call, const doorman_hold *result,
                                     doorman_time now) {
    doorman__client_hold *hold = call->hold;
    bool used = hold->state == DOORMAN__HOLD_IN_USE;
    assert(call->state == DOORMAN__CALL_SENT && hold->transfers > 0);
    if (result->reason && used && call->peer) {
        for (size_t i = 0; i < hold->item_count; i++) {
            hold->amounts[i] += call->hold_request.amounts[i];
        }
    } else if (result->reason) {
        hold->must_release = true;
    }
    if (call->peer) {
        doorman_acquired *acquired = &call->peer->acquired;
        acquired->decided_by = DOORMAN_BY_SERVER;
        acquired->granted = !result->gone && !result->reason;
        acquired->reason = result->reason;
        if (acquired->granted) {
            acquired->transfer_id = result->id;
            acquired->ends_at =
                doorman__after(call->client->main.upstream.sent_at, result->expires_in);
            memcpy(acquired->units, call->hold_request.amounts,
                   hold->item_count * sizeof *acquired->units);
        }
    }
    doorman__transfer_end(call, now);
}

/* Ends a seizure. The call may be NULL. */
static void doorman__seizure_decide(doorman__sent sent, const doorman_hold *result,
                                    doorman_time now) {
    doorman__client_hold *hold = sent.hold;
    doorman_permit_client *client = hold->client;
    bool granted = !result->gone && !result->reason;
    assert(!sent.call || sent.call->kind == DOORMAN__CALL_SEIZURE);
    if (granted && hold->state == DOORMAN__HOLD_ASKED &&
        !doorman__client_hold_set_items(hold, result->items, result->item_count)) {
        doorman__client_hold_end(hold, true, now);
    }
    bool used = doorman__ask_decide(hold, granted ? result->id : 0, client->main.upstream.sent_at,
                                    result->expires_in, now);
    if (sent.call) {
        doorman_acquired *acquired = &sent.call->acquired;
        acquired->decided_by = DOORMAN_BY_SERVER;
        acquired->granted = used;
        acquired->reason = result->reason;
        acquired->hold = used ? hold->number : 0;
        acquired->ends_at = used ? hold->end : 0;
        if (used) memcpy(acquired->units, hold->amounts, hold->item_count * sizeof *hold->amounts);
        (*(used ? &client->counts.granted : &client->counts.refused))++;
        doorman__call_finish(sent.call);
    }
    doorman__client_hold_plan(hold, now);
}

/* Processes the result of one call of a message. The call is NULL if it has its result already. */
static void doorman__result_process(doorman__batch *batch, size_t place,
                                    const doorman_response *response, doorman_time now) {
    doorman_permit_client *client = batch->client;
    const doorman__sent sent = batch->sent[place];
    batch->sent[place].hold = NULL;
    if (response->method == DOORMAN_ACQUIRE) {
        doorman__permit_decide(sent, &response->permits[place], batch->upstream.sent_at, now);
    } else if (response->method == DOORMAN_REPORT) {
        double rest = sent.call->request.items[0].cost - response->results[place].charged;
        if (rest > 0) client->counts.uncharged += rest;
        client->counts.reported++;
        doorman__call_finish(sent.call);
    } else if (response->method == DOORMAN_TRANSFER) {
        doorman__transfer_decide(sent.call, &response->holds[place], now);
    } else if (response->method == DOORMAN_SEIZE) {
        doorman__seizure_decide(sent, &response->holds[place], now);
    } else {
        doorman__action_decide(sent.call, &response->holds[place], now);
    }
    assert(!batch->sent[place].call);
}

/* Processes a response. Calls that have timed out meanwhile are not in the message any more. */
static doorman_status doorman__batch_response(doorman_upstream *upstream, uint64_t sequence,
                                              const doorman_response *response, doorman_time now) {
    doorman__batch *batch = DOORMAN__WITHIN(doorman__batch, upstream, upstream);
    now = doorman__upstream_now(&batch->client->main.upstream, now);
    if (upstream->state != DOORMAN__REQUESTED || sequence != upstream->sequence)
        return DOORMAN_STALE;
    if (!response->is_master && doorman__upstream_redirect(upstream, response->master_address)) {
        doorman__upstream_move(upstream, DOORMAN__READY);
        doorman__batch_return(batch, false, now);
        return DOORMAN_OK;
    }
    if (!response->is_master || !doorman__decisions_valid(batch, response)) {
        doorman__batch_fail(batch, !response->is_master, now);
        return response->is_master ? DOORMAN_INVALID_ARGUMENT : DOORMAN_OK;
    }
    upstream->failures = upstream->redirects = 0;
    doorman__upstream_move(upstream, DOORMAN__READY);
    for (size_t i = 0; i < batch->count; i++) doorman__result_process(batch, i, response, now);
    batch->count = 0;
    return DOORMAN_OK;
}

static void doorman__batch_failed(doorman_upstream *upstream, uint64_t sequence, doorman_time now) {
    doorman__batch *batch = DOORMAN__WITHIN(doorman__batch, upstream, upstream);
    now = doorman__upstream_now(&batch->client->main.upstream, now);
    if (upstream->state != DOORMAN__REQUESTED || sequence != upstream->sequence) return;
    doorman__batch_fail(batch, false, now);
}

static const doorman__upstream_calls doorman__batch_calls = {
    doorman__batch_due, doorman__batch_work, doorman__batch_request, doorman__batch_response,
    doorman__batch_failed};

static void doorman__lane_free(doorman__permit_lane *lane) {
    doorman__upstream_uninit(&lane->batch.upstream);
    DOORMAN_FREE(lane);
}

doorman_status doorman_permit_client_add_lane(doorman_permit_client *client,
                                              doorman_upstream **out) {
    if (!client || !out) return DOORMAN_INVALID_ARGUMENT;
    const char *addresses[DOORMAN__ADDRESSES_MAX];
    const doorman_upstream *main = &client->main.upstream;
    if (client->lane_count == DOORMAN_PERMIT_LANES_MAX) return DOORMAN_RESOURCE_EXHAUSTED;
    doorman__permit_lane *lane = (doorman__permit_lane *)doorman__zalloc(sizeof *lane);
    if (!lane) return DOORMAN_OUT_OF_MEMORY;
    doorman__batch *batch = &lane->batch;
    *batch = (doorman__batch){.upstream = {.calls = &doorman__batch_calls},
                              .client = client,
                              .sent = &lane->sent,
                              .items = &lane->item,
                              .capacity = 1,
                              .item_capacity = 1};
    for (size_t i = 0; i < main->address_count; i++) addresses[i] = main->addresses[i];
    doorman_status status = doorman__upstream_init(&batch->upstream, client->client_id, addresses,
                                                   main->address_count, NULL);
    if (status != DOORMAN_OK) {
        doorman__lane_free(lane);
        return status;
    }
    client->lanes[client->lane_count++] = lane;
    *out = &batch->upstream;
    return DOORMAN_OK;
}

/* ---- permit client: the calls of the application */

static doorman_status doorman__permit_client_start(doorman_permit_client *client,
                                                   const doorman_client_options *options,
                                                   doorman_error *error, doorman_time now) {
    uint64_t random = ~options->seed;
    memcpy(client->client_id, options->client_id, strlen(options->client_id) + 1);
    client->policy = options->permits;
    client->policy.local = NULL;
    client->message_timeout = options->request_timeout ? options->request_timeout : DOORMAN_SECOND;
    for (int i = 0; i < 2; i++) client->hash_key[i] = doorman__random(&random);
    for (int i = 0; i < 2; i++) client->local_key[i] = doorman__random(&random);
    client->main.client = client;
    client->main.upstream.calls = &doorman__batch_calls;
    client->main.upstream.now = doorman__later(now, 0);
    client->main.kind = DOORMAN__CALL_WAIT;
    if (options->permits.local) {
        doorman_limiter_map_options local = {.limit = *options->permits.local};
        for (int i = 0; i < 2; i++) local.seed[i] = doorman__random(&random);
        doorman_status status = doorman_limiter_map_create(&client->local, &local, error);
        if (status != DOORMAN_OK) return status;
    }
    client->hold_number = doorman__random(&random) % DOORMAN__REQUEST_ID_MAX;
    return doorman__upstream_init(&client->main.upstream, client->client_id, options->addresses,
                                  options->address_count, error);
}

doorman_status doorman_permit_client_create(doorman_permit_client **out,
                                            const doorman_client_options *options,
                                            doorman_error *error, doorman_time now) {
    if (!out) return doorman__missing(error, "out");
    if (!options) return doorman__missing(error, "options");
    doorman_client_options own = *options;
#ifdef DOORMAN_NNG
    if (!own.seed && !doorman__random_bits(&own.seed, sizeof own.seed)) {
        return doorman__fail(error, DOORMAN_UNAVAILABLE, "the system has no random bits");
    }
#endif
    const char *wrong = doorman__client_check(&own);
    if (wrong) return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "%s", wrong);
    doorman_status status = doorman__policy_check(&own.permits, error);
    if (status != DOORMAN_OK) return status;
    doorman_permit_client *client = (doorman_permit_client *)doorman__zalloc(sizeof *client);
    if (!client) return doorman__no_memory(error);
    status = doorman__permit_client_start(client, &own, error, now);
    if (status == DOORMAN_OK) {
        *out = client;
    } else {
        doorman_permit_client_destroy(client);
    }
    return status;
}

static void doorman__calls_free(const doorman__list *calls) {
    while (calls->first) doorman__call_free(doorman__call_at(calls->first));
}

void doorman_permit_client_destroy(doorman_permit_client *client) {
    if (!client) return;
    doorman_time now = client->main.upstream.now;
    doorman__batch_return(&client->main, false, now);
    for (size_t i = 0; i < client->lane_count; i++) {
        doorman__batch_return(&client->lanes[i]->batch, false, now);
    }
    for (int i = 0; i < DOORMAN__CALL_KIND_COUNT; i++) doorman__calls_free(&client->queues[i]);
    doorman__calls_free(&client->waiting);
    doorman__calls_free(&client->decided);
    assert(client->call_count == 0 && client->timers.count == 0 && client->action_count == 0);
    for (doorman__list_link *at; (at = client->all_holds.first);) {
        doorman__client_hold_destroy(DOORMAN__WITHIN(doorman__client_hold, all, at));
    }
    assert(client->new_hold_count == 0 && client->changes.count == 0);
    while (client->lane_count) doorman__lane_free(client->lanes[--client->lane_count]);
    doorman__table_uninit(&client->holds);
    doorman__timers_uninit(&client->hold_timers);
    doorman__known_refusals_forget(client, DOORMAN_NEVER);
    doorman__table_uninit(&client->refusals.table);
    doorman__stocks_forget(client, DOORMAN_NEVER);
    doorman__table_uninit(&client->stocks.table);
    doorman__timers_uninit(&client->timers);
    doorman_limiter_map_destroy(client->local);
    doorman__upstream_uninit(&client->main.upstream);
    DOORMAN_FREE(client->main.sent);
    DOORMAN_FREE(client->main.items);
    DOORMAN_FREE(client);
}

doorman_upstream *doorman_permit_client_upstream(doorman_permit_client *client) {
    if (!client) return NULL;
    return &client->main.upstream;
}

/* What an application asks. */
typedef struct doorman__ask {
    doorman__call_kind kind;              /* PERMIT, TRANSFER or SEIZURE */
    const doorman_permit_request *permit; /* of a PERMIT */
    const doorman_hold_request *hold;     /* of the others */
    doorman_time timeout;                 /* of a PERMIT */
    void *context;
} doorman__ask;

/* Checks the number that the caller of a permit has chosen.
 *   released   out: the number was released, or its hold has ended */
static doorman_status doorman__hold_number_check(const doorman_permit_client *client,
                                                 const doorman_permit_request *request,
                                                 bool *released, doorman_error *error) {
    uint64_t number = request->request_id;
    *released = false;
    if (!number) return DOORMAN_OK;
    const doorman__client_hold *hold = doorman__client_hold_find(client, number);
    bool in_use =
        hold && (hold->state == DOORMAN__HOLD_ASKED || hold->state == DOORMAN__HOLD_IN_USE);
    const doorman__rule rules[] = {
        {request->hold != NULL, "hold: must be NULL if request_id is given"},
        {!doorman__client_number_is_known(client, number),
         "request_id: must be 0, or a number that new_hold has given out"},
        {in_use, "request_id: is the number of another permit"},
    };
    size_t next = 0;
    const char *text = DOORMAN__RULE_NEXT(rules, &next);
    if (text) return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "%s", text);
    *released = !hold || hold->state != DOORMAN__HOLD_NEW;
    return DOORMAN_OK;
}

/* Checks a permit as strictly as a server does, because an error concerns a whole message. */
static doorman_status doorman__acquire_check(const doorman_permit_request *request,
                                             doorman_error *error) {
    size_t count = request->item_count, next = 0;
    const doorman__rule rules[] = {
        {!count || count > DOORMAN_PERMIT_ITEMS_MAX || !request->items,
         "items: must be a list of 1 to 100 items"},
    };
    const char *text = DOORMAN__RULE_NEXT(rules, &next);
    doorman_permit_request own = *request;
    own.client_id = NULL; /* the client sets it, and the request_id */
    own.request_id = 0;
    if (!text) text = doorman__permit_request_wrong(&own);
    if (text) return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "%s", text);
    for (size_t i = 0; i < count; i++) {
        doorman_status status = doorman__permit_item_check(&request->items[i], "items", i, error);
        if (status != DOORMAN_OK) return status;
        if (!request->items[i].set_count) continue;
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT,
                             "items[%zu].sets: a permit client brings no figures", i);
    }
    double least = doorman__request_minimum(request, 0); /* with `equal`: of all items */
    for (size_t i = 0; request->equal && i < count; i++) {
        if (request->items[i].cost >= least) continue;
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT,
                             "equal: no whole number is between min and cost of all items");
    }
    return DOORMAN_OK;
}

/* Checks what an application asks about a hold. A release has no timeout. */
static doorman_status doorman__client_hold_check(const doorman_hold_request *request,
                                                 doorman__call_kind kind, doorman_error *error) {
    const doorman_hold_request own = {.client_id = "-",
                                      .id = request->id,
                                      .time_to_live = request->time_to_live,
                                      .amounts = request->amounts,
                                      .amount_count = request->amount_count};
    if (kind != DOORMAN__CALL_RELEASE && request->timeout <= 0) {
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "timeout: must be more than 0");
    }
    doorman_status status = doorman__hold_request_check(&own, DOORMAN__NEEDS_NOTHING, error);
    if (status != DOORMAN_OK || kind != DOORMAN__CALL_SEIZURE || request->id) return status;
    return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "id: is missing");
}

/* P25: grants a permit in full, and sends a copy that no caller waits for. The hold belongs to the
 * copy. So the client renews the hold if a server grants it. If memory runs out, no copy is
 * sent. */
static void doorman__call_bypass(doorman__call *call, doorman_time now) {
    doorman_permit_client *client = call->client;
    doorman__client_hold *hold = call->hold;
    assert(call->attended && call->state == DOORMAN__CALL_NEW);
    doorman__call *copy = doorman__call_create(client, &call->request, NULL);
    client->call_count++;
    doorman__call_grant(call, true);
    call->acquired.decided_by = DOORMAN_BY_BYPASS;
    call->acquired.hold = hold ? hold->number : 0;
    if (hold) doorman__client_hold_detach(hold);
    doorman__call_finish(call);
    if (!copy || !doorman__permit_client_reserve(client, hold != NULL)) {
        if (hold) doorman__client_hold_destroy(hold);
        DOORMAN_FREE(copy);
        return;
    }
    copy->attended = false;
    copy->deadline = call->deadline;
    doorman__call_set_hold(copy, call->kind, hold);
    (void)doorman__call_start(copy, now);
}

/* Refuses a call, because its caller has released the hold. */
static void doorman__call_revoke(doorman__call *call) {
    memset(&call->acquired, 0, sizeof call->acquired);
    call->acquired.decided_by = DOORMAN_BY_CALLER;
    if (call->state != DOORMAN__CALL_DECIDED) doorman__call_finish(call);
}

/* Starts a permit. Returns NULL if memory runs out.
 *   released   the number that its caller has chosen was released */
static doorman__call *doorman__permit_start(doorman_permit_client *client, const doorman__ask *ask,
                                            bool released, doorman_time now) {
    const doorman_permit_request *request = ask->permit;
    bool holds = !released && (request->hold || request->request_id), chosen = request->request_id;
    bool waits = holds && request->max_wait > 0;
    doorman__call *call = doorman__call_create(client, request, ask->context);
    doorman__client_hold *hold = NULL;
    if (!call) return NULL;
    if (holds) {
        hold = chosen ? doorman__client_hold_find(client, request->request_id)
                      : doorman__client_hold_create(client);
        if (!hold || !doorman__client_hold_ask(hold, request)) {
            if (hold && !chosen) doorman__client_hold_destroy(hold);
            DOORMAN_FREE(call);
            return NULL;
        }
    }
    doorman__call_set_hold(call, waits ? DOORMAN__CALL_WAIT : DOORMAN__CALL_PERMIT, hold);
    if (hold && request->hold) *request->hold = hold->number;
    call->deadline = doorman__after(now, ask->timeout > 0 ? ask->timeout : client->message_timeout);
    if (released) {
        client->call_count++;
        doorman__call_revoke(call);
    } else if (client->policy.shadow || client->kill_switch) {
        doorman__call_bypass(call, now);
    } else if (!doorman__stock_spend(call, now)) {
        bool queued = doorman__call_start(call, now);
        if (queued && ask->timeout <= 0) {
            client->counts.timed_out++;
            doorman__call_fall_back(call, now);
        }
    }
    return call;
}

/* Takes units out of a hold, for a transfer. Returns whether there were some.
 *   moved   out: the units of each item */
static bool doorman__client_hold_take(doorman__client_hold *hold,
                                      const doorman_hold_request *request, double *moved) {
    bool moves = false;
    assert(hold->state == DOORMAN__HOLD_IN_USE);
    for (size_t i = 0; i < hold->item_count; i++) {
        double asked = request->amount_count ? doorman__hold_amount(request, i) : hold->amounts[i];
        moved[i] = doorman__min(asked, hold->amounts[i]);
        hold->amounts[i] -= moved[i];
        moves = moves || moved[i] > 0;
    }
    return moves;
}

/* Starts a transfer with two calls. The call that is returned gets the result. The other one
 * travels, and has an amount for each item of the hold behind it. Returns NULL if memory runs
 * out. */
static doorman__call *doorman__transfer_start(doorman_permit_client *client,
                                              const doorman__ask *ask, doorman_time now) {
    const doorman_permit_request none = {.item_count = 0};
    doorman__client_hold *hold = doorman__client_hold_find(client, ask->hold->id);
    size_t count = hold ? hold->item_count : 0;
    doorman__call *result = doorman__call_create(client, &none, ask->context);
    doorman__call *call = (doorman__call *)doorman__zalloc(sizeof *call + count * sizeof(double));
    if (!result || !call) {
        DOORMAN_FREE(result);
        DOORMAN_FREE(call);
        return NULL;
    }
    double *moved = (double *)(void *)(call + 1);
    client->call_count++;
    if (!hold || hold->state != DOORMAN__HOLD_IN_USE ||
        !doorman__client_hold_take(hold, ask->hold, moved)) {
        DOORMAN_FREE(call);
        doorman__call_revoke(result);
        return result;
    }
    client->call_count++;
    *call = (doorman__call){.client = client,
                            .kind = DOORMAN__CALL_TRANSFER,
                            .request.item_count = count,
                            .text_bytes = hold->text_bytes,
                            .hold = hold,
                            .peer = result,
                            .hold_request = {.id = hold->id,
                                             .request_id = doorman__client_number(client),
                                             .time_to_live = ask->hold->time_to_live,
                                             .amounts = moved,
                                             .amount_count = count}};
    result->peer = call;
    result->acquired.decided_by = DOORMAN_BY_FALLBACK;
    result->deadline = doorman__after(now, ask->hold->timeout);
    hold->transfers++;
    doorman__call_move(call, DOORMAN__CALL_QUEUED);
    doorman__call_move(result, DOORMAN__CALL_WAITING);
    doorman__timer_set(&client->timers, &result->timer, result->deadline);
    doorman__client_hold_plan(hold, now);
    return result;
}

static doorman__call *doorman__seizure_start(doorman_permit_client *client, const doorman__ask *ask,
                                             doorman_time now) {
    const doorman_permit_request none = {.item_count = 0};
    doorman__call *call = doorman__call_create(client, &none, ask->context);
    doorman__client_hold *hold = call ? doorman__client_hold_create(client) : NULL;
    if (!hold) {
        DOORMAN_FREE(call);
        return NULL;
    }
    (void)doorman__client_hold_ask(hold, NULL);
    doorman__call_set_hold(call, DOORMAN__CALL_SEIZURE, hold);
    call->hold_request = (doorman_hold_request){
        .id = ask->hold->id, .request_id = hold->number, .time_to_live = ask->hold->time_to_live};
    call->deadline = doorman__after(now, ask->hold->timeout);
    (void)doorman__call_start(call, now);
    return call;
}

/* Starts what an application asks.
 *   out   written on OK: the call. If it is not DECIDED, doorman__permit_client_work or a response
 *         decides on it later */
static doorman_status doorman__permit_client_ask(doorman_permit_client *client,
                                                 const doorman__ask *ask, doorman__call **out,
                                                 doorman_error *error, doorman_time now) {
    bool released = false;
    if (!client) return doorman__missing(error, "client");
    if (!ask->permit && !ask->hold) return doorman__missing(error, "request");
    doorman_status status = ask->permit ? doorman__acquire_check(ask->permit, error)
                                        : doorman__client_hold_check(ask->hold, ask->kind, error);
    if (status == DOORMAN_OK && ask->permit) {
        status = doorman__hold_number_check(client, ask->permit, &released, error);
    }
    if (status != DOORMAN_OK) return status;
    now = doorman__upstream_now(&client->main.upstream, now);
    bool holds = ask->hold || ask->permit->hold || ask->permit->request_id;
    if (!doorman__permit_client_reserve(client, holds)) return doorman__no_memory(error);
    if (ask->permit) {
        *out = doorman__permit_start(client, ask, released, now);
    } else if (ask->kind == DOORMAN__CALL_TRANSFER) {
        *out = doorman__transfer_start(client, ask, now);
    } else {
        *out = doorman__seizure_start(client, ask, now);
    }
    return *out ? DOORMAN_OK : doorman__no_memory(error);
}

doorman_status doorman_permit_client_acquire(doorman_permit_client *client,
                                             const doorman_permit_request *request,
                                             doorman_time timeout, void *context,
                                             doorman_error *error, doorman_time now) {
    doorman__call *call;
    const doorman__ask ask = {.permit = request, .timeout = timeout, .context = context};
    return doorman__permit_client_ask(client, &ask, &call, error, now);
}

doorman_status doorman_permit_client_report(doorman_permit_client *client,
                                            const doorman_permit_item *item, doorman_error *error,
                                            doorman_time now) {
    if (!client) return doorman__missing(error, "client");
    if (!item) return doorman__missing(error, "item");
    if (!item->resource_id) return doorman__missing(error, "resource_id");
    const doorman_permit_item place = {.resource_id = item->resource_id, .key = item->key};
    const doorman_permit_request request = {.items = &place, .item_count = 1};
    doorman_status status = doorman__permit_item_check(&place, NULL, 0, error);
    if (status == DOORMAN_OK) status = doorman__reported_cost_check(item->cost, error);
    if (status != DOORMAN_OK) return status;
    now = doorman__upstream_now(&client->main.upstream, now);
    if (!doorman__permit_client_reserve(client, false)) return doorman__no_memory(error);
    doorman__call *call = doorman__call_create(client, &request, NULL);
    if (!call) return doorman__no_memory(error);
    ((doorman_permit_item *)(void *)(call + 1))->cost = item->cost;
    call->kind = DOORMAN__CALL_REPORT;
    call->attended = false;
    (void)doorman__call_start(call, now);
    return DOORMAN_OK;
}

bool doorman_permit_client_next(doorman_permit_client *client, void **context,
                                doorman_acquired *out, doorman_time now) {
    if (!client || !context || !out) return false;
    doorman__permit_client_work(client, now);
    doorman__call *call = doorman__call_at(client->decided.first);
    if (!call) return false;
    *context = call->context;
    *out = call->acquired;
    doorman__call_free(call);
    return true;
}

/* ---- permit client: the holds of the application */

doorman_status doorman_permit_client_new_hold(doorman_permit_client *client, uint64_t *out) {
    if (!client || !out) return DOORMAN_INVALID_ARGUMENT;
    if (client->new_hold_count >= DOORMAN__NEW_HOLDS_MAX) return DOORMAN_RESOURCE_EXHAUSTED;
    const doorman__client_hold *hold = doorman__client_hold_create(client);
    if (!hold) return DOORMAN_OUT_OF_MEMORY;
    *out = hold->number;
    return DOORMAN_OK;
}

doorman_status doorman_permit_client_release(doorman_permit_client *client,
                                             const doorman_hold_request *request,
                                             doorman_error *error, doorman_time now) {
    if (!client) return doorman__missing(error, "client");
    if (!request) return doorman__missing(error, "request");
    doorman_status status = doorman__client_hold_check(request, DOORMAN__CALL_RELEASE, error);
    if (status != DOORMAN_OK) return status;
    doorman__client_hold *hold = doorman__client_hold_find(client, request->id);
    if (!hold) return DOORMAN_OK;
    now = doorman__upstream_now(&client->main.upstream, now);
    if (hold->state == DOORMAN__HOLD_NEW) {
        doorman__client_hold_destroy(hold);
        return DOORMAN_OK;
    }
    doorman__client_hold_set_changed(hold, false);
    doorman__call *call = hold->call;
    if (hold->state == DOORMAN__HOLD_ASKED) {
        doorman__client_hold_end(hold, hold->was_sent, now);
    } else if (hold->state == DOORMAN__HOLD_IN_USE) {
        for (size_t i = 0; i < hold->item_count; i++) {
            hold->amounts[i] = doorman__min(hold->amounts[i], doorman__hold_amount(request, i));
        }
        hold->must_release = true;
        if (doorman__client_hold_is_empty(hold)) doorman__client_hold_end(hold, true, now);
    }
    if (call && hold->state == DOORMAN__HOLD_ENDING) doorman__call_revoke(call);
    doorman__client_hold_plan(hold, now);
    return DOORMAN_OK;
}

doorman_status doorman_permit_client_transfer(doorman_permit_client *client,
                                              const doorman_hold_request *request, void *context,
                                              doorman_error *error, doorman_time now) {
    doorman__call *call;
    const doorman__ask ask = {.kind = DOORMAN__CALL_TRANSFER, .hold = request, .context = context};
    return doorman__permit_client_ask(client, &ask, &call, error, now);
}

doorman_status doorman_permit_client_seize(doorman_permit_client *client,
                                           const doorman_hold_request *request, void *context,
                                           doorman_error *error, doorman_time now) {
    doorman__call *call;
    const doorman__ask ask = {.kind = DOORMAN__CALL_SEIZURE, .hold = request, .context = context};
    return doorman__permit_client_ask(client, &ask, &call, error, now);
}

/* Describes a hold for the application.
 *   hold   NULL: there is none */
static void doorman__client_hold_describe(const doorman__client_hold *hold, doorman_held *out) {
    memset(out, 0, sizeof *out);
    out->gone = !hold || hold->state == DOORMAN__HOLD_ENDING;
    if (!hold) return;
    assert(hold->item_count <= DOORMAN_PERMIT_ITEMS_MAX);
    out->hold = hold->number;
    out->ends_at = hold->end;
    out->item_count = hold->item_count;
    for (size_t i = 0; i < hold->item_count; i++) out->units[i] = hold->amounts[i];
}

void doorman_permit_client_read_hold(const doorman_permit_client *client, uint64_t hold,
                                     doorman_held *out) {
    if (!out) return;
    doorman__client_hold_describe(client ? doorman__client_hold_find(client, hold) : NULL, out);
    out->hold = hold;
}

bool doorman_permit_client_next_change(doorman_permit_client *client, doorman_held *out,
                                       doorman_time now) {
    if (!client || !out) return false;
    doorman__permit_client_work(client, now);
    if (!client->changes.first) return false;
    doorman__client_hold *hold =
        DOORMAN__WITHIN(doorman__client_hold, change, client->changes.first);
    assert(hold->changed);
    doorman__client_hold_describe(hold, out);
    doorman__client_hold_set_changed(hold, false);
    doorman__client_hold_plan(hold, client->main.upstream.now);
    return true;
}

/* Ends a permit that a caller waits for. With the status OK it is granted in full (P25), or as a
 * server has granted it already. If a message asks for its hold then, the hold is kept when a
 * server grants it. The kill switch concerns only permits.
 *   call   NULL: none */
static void doorman__call_end(doorman__call *call, doorman_status status) {
    if (!call || !call->attended) return;
    bool permits = call->kind == DOORMAN__CALL_PERMIT || call->kind == DOORMAN__CALL_WAIT;
    if (status == DOORMAN_OK && (!permits || call->peer)) return;
    doorman__client_hold *hold = call->hold;
    doorman_time now = call->client->main.upstream.now;
    assert(call->state != DOORMAN__CALL_NEW && call->state != DOORMAN__CALL_DECIDED);
    call->status = status;
    if (status == DOORMAN_OK && call->state != DOORMAN__CALL_WAITING) {
        call->acquired.decided_by = DOORMAN_BY_BYPASS;
        doorman__call_grant(call, true);
    }
    if (hold && status == DOORMAN_OK && call->state != DOORMAN__CALL_QUEUED) {
        call->acquired.hold = hold->number;
        doorman__client_hold_detach(hold);
    } else if (hold) {
        bool in_use = hold->state == DOORMAN__HOLD_IN_USE;
        doorman__client_hold_end(hold, in_use || hold->was_sent, now);
    }
    doorman__call_finish(call);
    if (hold) doorman__client_hold_plan(hold, now);
}

static void doorman__calls_end(const doorman__list *calls, doorman_status status) {
    for (doorman__list_link *at = calls->first, *next = NULL; at; at = next) {
        next = at->next;
        doorman__call_end(doorman__call_at(at), status);
    }
}

/* Ends all permits that callers wait for. With a status other than OK, also all seizures and
 * transfers. */
static void doorman__permit_client_end_all(doorman_permit_client *client, doorman_status status) {
    for (size_t i = 0; i < client->main.count; i++) {
        doorman__call_end(client->main.sent[i].call, status);
    }
    for (size_t i = 0; i < client->lane_count; i++) {
        doorman__call_end(client->lanes[i]->sent.call, status);
    }
    doorman__calls_end(&client->waiting, status);
    doorman__calls_end(&client->queues[DOORMAN__CALL_PERMIT], status);
    doorman__calls_end(&client->queues[DOORMAN__CALL_WAIT], status);
    doorman__calls_end(&client->queues[DOORMAN__CALL_SEIZURE], status);
}

void doorman_permit_client_kill_switch(doorman_permit_client *client, bool on) {
    if (!client) return;
    if (on) doorman__permit_client_end_all(client, DOORMAN_OK);
    client->kill_switch = on;
}

void doorman_permit_client_read(const doorman_permit_client *client,
                                doorman_permit_client_info *out) {
    if (!out) return;
    memset(out, 0, sizeof *out);
    if (!client) return;
    const doorman_upstream *upstream = &client->main.upstream;
    *out = client->counts;
    out->failures = upstream->failure_count;
    out->waiting_count =
        client->call_count - client->action_count - client->prefetch_count - client->decided.count;
    out->hold_count = client->all_holds.count;
    out->is_pausing = doorman__breaker_is_open(client, upstream->now);
}

#ifdef DOORMAN_JSON
/* ---- >>permit_json -------------------------------------------------------------------------- */
/*
 * This section has the tables of fields of limits and of messages on permits, for the section
 * >>json.
 */

/* ---- permit JSON: limits */

static const char *const doorman__limit_kinds[] = {[DOORMAN_TOKEN_BUCKET - 1] = "TOKEN_BUCKET",
                                                   [DOORMAN_FIXED_WINDOW - 1] = "FIXED_WINDOW",
                                                   [DOORMAN_SLIDING_WINDOW - 1] = "SLIDING_WINDOW",
                                                   [DOORMAN_CONCURRENCY - 1] = "CONCURRENCY",
                                                   [DOORMAN_TIERS - 1] = "TIERS"};
static const char *const doorman__scopes[] = {"key", "resource", "template"};
static const char *const doorman__overflows[] = {"evict", "refuse"};
static const char *const doorman__starts[] = {"full", "empty"};
static const char *const doorman__unread[] = {"grant", "refuse"};
static const char *const doorman__hold_starts[] = {"learn", "full"};
static const char *const doorman__calendars[] = {"minute", "hour", "day", "week", "month"};

static const doorman__row doorman__ban_rows[] = {
    DOORMAN__ROW_BOUNDED("refusals", UINT32, NEEDED, doorman_ban, refusals, 1, 1000000000),
    DOORMAN__ROW(DURATION, REQUIRED, doorman_ban, window),
    DOORMAN__ROW(DURATION, REQUIRED, doorman_ban, duration),
    {0},
};
static const doorman__row doorman__tier_rows[] = {
    DOORMAN__ROW(AMOUNT, REQUIRED, doorman_tier, limit),
    DOORMAN__ROW(DURATION, REQUIRED, doorman_tier, window),
    DOORMAN__ROW(SECONDS, REQUIRED, doorman_tier, active),
    DOORMAN__ROW(SECONDS, OPTIONAL, doorman_tier, cooldown),
    DOORMAN__ROW(BOOL, OPTIONAL, doorman_tier, skippable),
    {0},
};

/* Reads a window: seconds, or a unit of the calendar. */
static void doorman__read_window(const doorman__field *field, void *out) {
    static const doorman__row calendar = {.type = DOORMAN__JSON_CHOICE,
                                          .at = offsetof(doorman_figures, calendar),
                                          .names = doorman__calendars,
                                          .least = DOORMAN_MINUTE,
                                          .most = DOORMAN_CALENDAR_COUNT - 1};
    static const doorman__row window = DOORMAN__ROW(DURATION, OPTIONAL, doorman_figures, window);
    doorman__read_value(field, cJSON_IsString(field->value) ? &calendar : &window, out);
}

static void doorman__put_window(doorman__writer *out, const void *from) {
    const doorman_figures *all = (const doorman_figures *)from;
    if (all->window) doorman__put(out, "%,'window':%t", all->window);
    if (all->calendar) doorman__put(out, "%,'window':%s", doorman__calendars[all->calendar - 1]);
}

static const doorman__row doorman__figure_rows[] = {
    DOORMAN__ROW(RATE, OR_STRING, doorman_figures, rate),
    DOORMAN__ROW_HAS(AMOUNT, doorman_figures, size),
    DOORMAN__ROW_HAS(SECONDS, doorman_figures, max_debt),
    DOORMAN__ROW_HAS(SECONDS, doorman_figures, max_wait),
    {DOORMAN__FIELD("limit", AMOUNT, OR_STRING, doorman_figures, limit),
     .has = offsetof(doorman_figures, has_limit)},
    DOORMAN__ROW(DURATION, OPTIONAL, doorman_figures, time_to_live),
    {DOORMAN__FIELD("queue", SIZE, OPTIONAL, doorman_figures, queue),
     .has = offsetof(doorman_figures, has_queue), .most = DOORMAN__QUEUE_MAX},
    DOORMAN__ROW_OTHER("window", OPTIONAL, doorman__read_window, doorman__put_window),
    {DOORMAN__LIST("tiers", OPTIONAL, doorman_figures, tiers, tier_count, doorman__tier_rows),
     .has = offsetof(doorman_figures, has_tiers)},
    {0},
};

/* Reads the strings in place of a rate and of a limit. Returns whether one of them is "leased".
 *   key   the field that may be leased; NULL: none */
static bool doorman__read_leased(const doorman__field *object, const char *key) {
    static const char *const keys[] = {"rate", "limit"};
    bool leased = false;
    for (size_t i = 0; i < 2; i++) {
        doorman__field field = doorman__field_of(object, keys[i], strlen(keys[i]));
        if (!cJSON_IsString(field.value)) continue;
        bool allowed = key && strcmp(key, keys[i]) == 0;
        leased = allowed;
        if (allowed && strcmp(field.value->valuestring, "leased") == 0) continue;
        doorman__read_fail(&field,
                           allowed ? "must be a number, or \"leased\"" : "must be a number");
    }
    return leased;
}

static void doorman__read_override(const doorman__field *object, void *out) {
    (void)doorman__read_leased(object, NULL);
    (void)out;
}

/* A plan has figures, and its name is the key of the object. */
static const doorman__row doorman__plan_rows[] = {
    DOORMAN__ROW_INLINE(doorman_plan, figures, doorman__figure_rows),
    DOORMAN__ROW_CALL(doorman__read_override, NULL),
    {0},
};

/* Reads the plans of a limit: an object whose keys are their names. */
static void doorman__read_plans(const doorman__field *field, void *out) {
    doorman_permit_limit *limit = (doorman_permit_limit *)out;
    if (!field->value) return;
    if (!cJSON_IsObject(field->value)) {
        doorman__read_fail(field, "must be an object");
        return;
    }
    size_t count = (size_t)cJSON_GetArraySize(field->value);
    if (count > DOORMAN_PLANS_MAX) {
        doorman__read_fail(field, "must have at most 16 plans");
        return;
    }
    doorman_plan *plan =
        (doorman_plan *)doorman__read_room(field->reader, count * sizeof *limit->plans);
    if (!plan) return;
    limit->plans = plan;
    limit->plan_count = count;
    for (const cJSON *value = field->value->child; value; value = value->next, plan++) {
        const doorman__field item = doorman__member(field, value);
        plan->name = value->string;
        if (!doorman__plan_name_valid(plan->name)) {
            doorman__read_fail(&item, "the name of a plan " DOORMAN__PLAN_RULE);
        }
        doorman__read_fields(&item, doorman__plan_rows, plan);
    }
}

static void doorman__put_plans(doorman__writer *out, const void *from) {
    const doorman_permit_limit *limit = (const doorman_permit_limit *)from;
    if (!limit->plan_count) return;
    doorman__put(out, "%,'plans':{");
    for (size_t i = 0; i < limit->plan_count; i++) {
        doorman__put(out, "%,%s:{", limit->plans[i].name);
        doorman__put_rows(out, doorman__plan_rows, &limit->plans[i]);
        doorman__put(out, "}");
    }
    doorman__put(out, "}");
}

static const doorman__row doorman__override_rows[] = {
    DOORMAN__ROW_LIST("keys", REQUIRED, doorman_override, keys, key_count, doorman__string_rows),
    DOORMAN__ROW_INLINE(doorman_override, figures, doorman__figure_rows),
    DOORMAN__ROW_CALL(doorman__read_override, NULL),
    {0},
};

/* Reads how counters begin after a restart. */
static void doorman__read_start_of_limit(const doorman__field *field, void *out) {
    doorman_permit_limit *limit = (doorman_permit_limit *)out;
    bool holds = limit->kind == DOORMAN_CONCURRENCY;
    const char *const *names = holds ? doorman__hold_starts : doorman__starts;
    int chosen = doorman__read_name(field, names, 2, false);
    limit->full_at_start = chosen >= 0 && chosen == holds;
    limit->empty_at_start = chosen == 1 && !holds;
}

static void doorman__put_start_of_limit(doorman__writer *out, const void *from) {
    const doorman_permit_limit *limit = (const doorman_permit_limit *)from;
    if (limit->empty_at_start) doorman__put(out, ",'on_restart':%s", "empty");
    if (limit->full_at_start) doorman__put(out, ",'on_restart':%s", "full");
}

/* Checks what depends on the kind of a limit. */
static void doorman__read_limit_rest(const doorman__field *object, void *out) {
    static const char *const needed[][2] = {[DOORMAN_TOKEN_BUCKET] = {"rate", "size"},
                                            [DOORMAN_FIXED_WINDOW] = {"limit", "window"},
                                            [DOORMAN_SLIDING_WINDOW] = {"limit", "window"},
                                            [DOORMAN_CONCURRENCY] = {"limit"},
                                            [DOORMAN_TIERS] = {"tiers"}};
    doorman_permit_limit *limit = (doorman_permit_limit *)out;
    doorman__field keys = doorman__field_of(object, "keys", 4);
    if (cJSON_IsArray(keys.value) && !keys.value->child) {
        doorman__read_fail(&keys, "must not be empty; without keys, all keys are concerned");
    }
    bool holds = limit->kind == DOORMAN_CONCURRENCY;
    limit->leased = doorman__read_leased(object, holds ? "limit" : "rate");
    if (limit->leased) limit->figures.has_limit = false;
    for (size_t i = 0; i < (limit->leased ? 1 : 2); i++) {
        const char *key = needed[limit->kind][i];
        doorman__field field = doorman__field_of(object, key ? key : "", key ? strlen(key) : 0);
        if (key && !field.value) doorman__read_fail(&field, "is missing");
    }
}

static void doorman__put_leased(doorman__writer *out, const doorman_permit_limit *limit) {
    const doorman_figures *all = &limit->figures;
    doorman__put(out, limit->kind == DOORMAN_CONCURRENCY ? ",'limit':%s" : ",'rate':%s", "leased");
    if (all->time_to_live) doorman__put(out, ",'time_to_live':%t", all->time_to_live);
    if (all->queue) doorman__put(out, ",'queue':%n", (double)all->queue);
    if (all->max_wait) doorman__put(out, ",'max_wait':%t", all->max_wait);
}

/* Writes the figures of a limit, without those that are the default. */
static void doorman__put_figures(doorman__writer *out, const doorman_permit_limit *limit) {
    doorman_figures all = limit->figures; /* and what to write */
    all.has_size = limit->kind == DOORMAN_TOKEN_BUCKET;
    all.has_max_debt = all.max_debt > 0;
    all.has_max_wait = all.has_max_wait && all.max_wait != all.max_debt;
    all.has_tiers = limit->kind == DOORMAN_TIERS;
    all.has_limit = !all.has_size && !all.has_tiers;
    all.has_queue = all.queue > 0;
    doorman__put_rows(out, doorman__figure_rows, &all);
}

static void doorman__put_amounts_of_limit(doorman__writer *out, const void *from) {
    const doorman_permit_limit *limit = (const doorman_permit_limit *)from;
    if (limit->leased) doorman__put_leased(out, limit);
    if (!limit->leased) doorman__put_figures(out, limit);
}

static void doorman__put_max_keys(doorman__writer *out, const void *from) {
    const doorman_permit_limit *limit = (const doorman_permit_limit *)from;
    size_t usual = limit->leased ? DOORMAN__MAX_LEASES : DOORMAN__MAX_KEYS;
    bool is_usual = !limit->max_keys || limit->max_keys == usual;
    if (!is_usual) doorman__put(out, ",'max_keys':%n", (double)limit->max_keys);
}

static const doorman__row doorman__limit_rows[] = {
    DOORMAN__ROW(STRING, REQUIRED, doorman_permit_limit, name),
    DOORMAN__ROW_CHOICE("per", OPTIONAL, doorman_permit_limit, per, doorman__scopes),
    DOORMAN__ROW_LIST("keys", OPTIONAL, doorman_permit_limit, keys, key_count,
                      doorman__string_rows),
    {DOORMAN__FIELD("kind", CHOICE, REQUIRED, doorman_permit_limit, kind),
     .names = doorman__limit_kinds, .least = DOORMAN_TOKEN_BUCKET, .most = DOORMAN_TIERS},
    {.type = DOORMAN__JSON_INLINE,
     .at = offsetof(doorman_permit_limit, figures),
     .below = doorman__figure_rows,
     .put = doorman__put_amounts_of_limit},
    DOORMAN__ROW(STRING, OPTIONAL, doorman_permit_limit, lease_of),
    DOORMAN__ROW_HAS(PRIORITY, doorman_permit_limit, priority),
    DOORMAN__ROW_BOUNDED("subclients", UINT32, OPTIONAL, doorman_permit_limit, subclients, 1,
                         1000000000),
    DOORMAN__ROW_LIST("overrides", OPTIONAL, doorman_permit_limit, overrides, override_count,
                      doorman__override_rows),
    DOORMAN__ROW_OTHER("plans", OPTIONAL, doorman__read_plans, doorman__put_plans),
    DOORMAN__ROW(BOOL, OPTIONAL, doorman_permit_limit, shadow),
    DOORMAN__ROW(FRACTION, OPTIONAL, doorman_permit_limit, warn_at),
    DOORMAN__ROW_OBJECT("ban", doorman_permit_limit, ban, doorman__ban_rows),
    DOORMAN__ROW_HAS(AMOUNT, doorman_permit_limit, max_cost),
    {DOORMAN__FIELD("set_max", NUMBER, OPTIONAL, doorman_permit_limit, set_max),
     .usual = DOORMAN__SET_MAX},
    {DOORMAN__FIELD("max_keys", SIZE, OPTIONAL, doorman_permit_limit, max_keys), .least = 1,
     .most = DOORMAN__COUNTERS_MAX, .put = doorman__put_max_keys},
    {DOORMAN__FIELD("overflow", FLAG, OPTIONAL, doorman_permit_limit, refuse_new),
     .names = doorman__overflows, .most = 2},
    DOORMAN__ROW_OTHER("on_restart", OPTIONAL, doorman__read_start_of_limit,
                       doorman__put_start_of_limit),
    DOORMAN__ROW(BOOL, OPTIONAL, doorman_permit_limit, refunds),
    DOORMAN__ROW_HAS(BOOL, doorman_permit_limit, durable),
    {DOORMAN__FIELD("on_unread", FLAG, OPTIONAL, doorman_permit_limit, refuse_unread),
     .names = doorman__unread, .most = 2},
    DOORMAN__ROW_CALL(doorman__read_limit_rest, NULL),
    {0},
};

static const doorman__row doorman__limits_row = {
    DOORMAN__LIST("limits", OPTIONAL, doorman_template, limits, limit_count, doorman__limit_rows),
    .has = offsetof(doorman_template, has_limits)};

/* ---- permit JSON: rules for descriptors */

/* Reads an entry: a list of a key and a glob. */
static void doorman__read_match(const doorman__field *pair, doorman_descriptor_match *out) {
    if (doorman__list_count(pair) != 2) {
        doorman__read_fail(pair, "must be a list of a key, and a glob for its value");
        return;
    }
    doorman__field item = doorman__read_list(pair);
    for (; item.value; doorman__next(&item)) {
        const char **to = item.index == 0 ? &out->key : &out->value;
        doorman__read_string(&item, to);
        if (!cJSON_IsString(item.value)) *to = "";
    }
}

static void doorman__read_entries(const doorman__field *list, void *out) {
    doorman_descriptor_rule *rule = (doorman_descriptor_rule *)out;
    const size_t count = doorman__list_count(list);
    if (cJSON_IsArray(list->value) && (!count || count > DOORMAN_DESCRIPTOR_ENTRIES_MAX)) {
        doorman__read_fail(list, "must be a list of 1 to 16");
    }
    doorman__field item = doorman__read_list(list);
    doorman_descriptor_match *entries =
        (doorman_descriptor_match *)doorman__read_room(list->reader, count * sizeof *entries);
    if (!entries) return;
    rule->entries = entries;
    rule->entry_count = count;
    for (; item.value; doorman__next(&item)) doorman__read_match(&item, &entries[item.index]);
}

static void doorman__put_entries(doorman__writer *out, const void *from) {
    const doorman_descriptor_rule *rule = (const doorman_descriptor_rule *)from;
    doorman__put(out, "%,'entries':[");
    for (size_t i = 0; i < rule->entry_count; i++) {
        doorman__put(out, "%,[%s,%s]", rule->entries[i].key, rule->entries[i].value);
    }
    doorman__put(out, "]");
}

static const doorman__row doorman__descriptor_rule_rows[] = {
    DOORMAN__ROW(STRING, REQUIRED, doorman_descriptor_rule, domain),
    DOORMAN__ROW_OTHER("entries", NEEDED, doorman__read_entries, doorman__put_entries),
    DOORMAN__ROW(STRING, REQUIRED, doorman_descriptor_rule, resource),
    DOORMAN__ROW(TEXT, OPTIONAL, doorman_descriptor_rule, key),
    {0},
};

static const doorman__row doorman__descriptors_row = {
    DOORMAN__LIST("descriptors", OPTIONAL, doorman_config_options, descriptors, descriptor_count,
                  doorman__descriptor_rule_rows),
    .most = DOORMAN_DESCRIPTOR_RULES_MAX};

/* ---- permit JSON: override rows */

/* Reads a time since 1970. */
static void doorman__read_epoch(const doorman__field *field, doorman_time *out) {
    if (!field->value) return;
    const double most = (double)DOORMAN__EPOCH_MAX / 1e9;
    const double seconds = field->value->valuedouble;
    if (cJSON_IsNumber(field->value) && seconds > 0 && seconds <= most) {
        *out = (doorman_time)(seconds * 1e9);
    } else {
        doorman__read_fail(field, "must be a time in seconds since 1970");
    }
}

static void doorman__read_starts_at(const doorman__field *field, void *out) {
    doorman__read_epoch(field, &((doorman_override_message *)out)->row.starts_at);
}

static void doorman__read_ends_at(const doorman__field *field, void *out) {
    doorman__read_epoch(field, &((doorman_override_message *)out)->row.ends_at);
}

static void doorman__read_reason_text(const doorman__field *field, const char **out) {
    doorman__read_string(field, out);
    if (!*out) return;
    const size_t bytes = strlen(*out);
    if (!bytes || bytes > DOORMAN_REASON_BYTES_MAX) {
        doorman__read_fail(field, "must have 1 to 1,024 bytes of UTF-8");
    }
}

static void doorman__read_reason(const doorman__field *field, void *out) {
    doorman__read_reason_text(field, &((doorman_override_message *)out)->reason);
}

/* Refuses two ends. */
static void doorman__refuse_two_ends(const doorman__field *object, doorman_time expires_in,
                                     doorman_time ends_at) {
    if (!expires_in || !ends_at) return;
    doorman__field field = doorman__field_of(object, "expires_in", strlen("expires_in"));
    doorman__read_fail(&field, "must not be given with ends_at");
}

static void doorman__read_ends(const doorman__field *object, void *out) {
    const doorman_override_message *message = (const doorman_override_message *)out;
    doorman__refuse_two_ends(object, message->expires_in, message->row.ends_at);
}

static const doorman__row doorman__override_set_rows[] = {
    {.type = DOORMAN__JSON_INLINE, .below = doorman__figure_rows},
    DOORMAN__ROW_CALL(doorman__read_override, NULL),
    {0},
};
static const doorman__row doorman__override_message_rows[] = {
    DOORMAN__ROW_AS("resource", STRING, OPTIONAL, doorman_override_message, row.resource_id),
    DOORMAN__ROW_AS("glob", STRING, OPTIONAL, doorman_override_message, row.identifier_glob),
    DOORMAN__ROW_AS("limit", STRING, REQUIRED, doorman_override_message, row.limit),
    DOORMAN__ROW_AS("key", STRING, REQUIRED, doorman_override_message, row.key),
    DOORMAN__ROW_OBJECT("set", doorman_override_message, row.figures, doorman__override_set_rows),
    DOORMAN__ROW_AS("add", RATE, OPTIONAL, doorman_override_message, row.add),
    DOORMAN__ROW_OTHER("starts_at", OPTIONAL, doorman__read_starts_at, NULL),
    DOORMAN__ROW_OTHER("ends_at", OPTIONAL, doorman__read_ends_at, NULL),
    DOORMAN__ROW(DURATION, OPTIONAL, doorman_override_message, expires_in),
    DOORMAN__ROW_OTHER("reason", OPTIONAL, doorman__read_reason, NULL),
    DOORMAN__ROW_CALL(doorman__read_ends, NULL),
    {0},
};

void doorman_override_message_uninit(doorman_override_message *message) {
    if (!message) return;
    doorman__arena_uninit(&message->arena);
    cJSON_Delete((cJSON *)message->tree);
    *message = (doorman_override_message){.tree = NULL};
}

doorman_status doorman_json_read_override(doorman_override_message *out, const char *text,
                                          size_t bytes, doorman_error *error) {
    if (!out) return doorman__missing(error, "out");
    if (!text && bytes) return doorman__missing(error, "text");
    doorman_override_message_uninit(out);
    doorman_config_problem first = {0};
    doorman__problems problems = {text, bytes, &first, 1, 0};
    doorman__reader reader = {.problems = &problems};
    const doorman__field root = doorman__read_start(&reader, text, bytes);
    doorman_override_message read = {.row = {.wire_names = true}};
    if (reader.status == DOORMAN_OK) {
        doorman__read_fields(&root, doorman__override_message_rows, &read);
    }
    if (reader.status != DOORMAN_OK) {
        if (error && problems.count) *error = first.error;
        reader.error = error;
        return doorman__read_end(&reader);
    }
    *out = read;
    out->tree = reader.tree;
    out->arena = reader.arena;
    return DOORMAN_OK;
}

doorman_status doorman_json_write_override(const doorman_override_row *row, const char *reason,
                                           doorman_buffer *text) {
    if (!row || !text) return DOORMAN_INVALID_ARGUMENT;
    doorman__writer out = doorman__put_start(text);
    out.is_exact = true;
    doorman__put(&out, "{'id':%i", row->id);
    if (row->resource_id) doorman__put(&out, ",'resource':%s", row->resource_id);
    if (row->identifier_glob) doorman__put(&out, ",'glob':%s", row->identifier_glob);
    doorman__put(&out, ",'limit':%s,'key':%s", row->limit ? row->limit : "",
                 row->key ? row->key : "");
    if (row->add > 0) {
        doorman__put(&out, ",'add':%x", row->add);
    } else {
        doorman__put(&out, ",'set':");
        doorman__put_fields(&out, doorman__figure_rows, &row->figures);
    }
    if (row->starts_at) doorman__put(&out, ",'starts_at':%t", row->starts_at);
    if (row->ends_at) doorman__put(&out, ",'ends_at':%t", row->ends_at);
    if (reason) doorman__put(&out, ",'reason':%s", reason);
    doorman__put(&out, "}");
    return doorman__put_end(&out);
}

/* ---- permit JSON: plan rows */

static void doorman__read_plan_starts_at(const doorman__field *field, void *out) {
    doorman__read_epoch(field, &((doorman_plan_entry *)out)->row.starts_at);
}

static void doorman__read_plan_ends_at(const doorman__field *field, void *out) {
    doorman__read_epoch(field, &((doorman_plan_entry *)out)->row.ends_at);
}

static void doorman__read_plan_rest(const doorman__field *object, void *out) {
    doorman_plan_entry *entry = (doorman_plan_entry *)out;
    entry->row.wire_names = true;
    doorman__refuse_two_ends(object, entry->expires_in, entry->row.ends_at);
}

static void doorman__read_plans_reason(const doorman__field *field, void *out) {
    doorman__read_reason_text(field, &((doorman_plans_message *)out)->reason);
}

static const doorman__row doorman__plan_entry_rows[] = {
    DOORMAN__ROW_AS("glob", STRING, REQUIRED, doorman_plan_entry, row.identifier_glob),
    DOORMAN__ROW_AS("key", STRING, REQUIRED, doorman_plan_entry, row.key),
    DOORMAN__ROW_AS("plan", STRING, REQUIRED, doorman_plan_entry, row.plan),
    DOORMAN__ROW_OTHER("starts_at", OPTIONAL, doorman__read_plan_starts_at, NULL),
    DOORMAN__ROW_OTHER("ends_at", OPTIONAL, doorman__read_plan_ends_at, NULL),
    DOORMAN__ROW(DURATION, OPTIONAL, doorman_plan_entry, expires_in),
    DOORMAN__ROW_CALL(doorman__read_plan_rest, NULL),
    {0},
};

/* The text of one row: the fields of its message, and those of the row. */
typedef struct doorman__plan_single {
    doorman_plans_message message;
    doorman_plan_entry entry;
} doorman__plan_single;

static const doorman__row doorman__plan_single_rows[] = {
    DOORMAN__ROW_INLINE(doorman__plan_single, entry, doorman__plan_entry_rows),
    DOORMAN__ROW_OTHER("reason", OPTIONAL, doorman__read_plans_reason, NULL),
    {0},
};
static const doorman__row doorman__plans_rows[] = {
    {DOORMAN__LIST("plans", REQUIRED, doorman_plans_message, plans, plan_count,
                   doorman__plan_entry_rows),
     .most = 10000},
    DOORMAN__ROW_OTHER("reason", OPTIONAL, doorman__read_plans_reason, NULL),
    {0},
};

void doorman_plans_message_uninit(doorman_plans_message *message) {
    if (!message) return;
    doorman__arena_uninit(&message->arena);
    cJSON_Delete((cJSON *)message->tree);
    *message = (doorman_plans_message){.tree = NULL};
}

/* Reads either form. */
static void doorman__read_plans_message(const doorman__field *root, doorman_plans_message *out) {
    doorman__reader *reader = root->reader;
    const doorman__field list = doorman__field_of(root, "plans", strlen("plans"));
    out->is_bulk = list.value != NULL;
    if (out->is_bulk) {
        doorman__read_fields(root, doorman__plans_rows, out);
        if (cJSON_IsArray(list.value) && !list.value->child) {
            doorman__read_fail(&list, "must have at least one plan");
        }
        return;
    }
    doorman__plan_single *single =
        (doorman__plan_single *)doorman__read_room(reader, sizeof *single);
    if (!single) return;
    doorman__read_fields(root, doorman__plan_single_rows, single);
    out->reason = single->message.reason;
    out->plans = &single->entry;
    out->plan_count = 1;
}

doorman_status doorman_json_read_plans(doorman_plans_message *out, const char *text, size_t bytes,
                                       doorman_config_problem *problems, size_t room,
                                       size_t *count) {
    if (count) *count = 0;
    if (!out || !count || (room && !problems) || (!text && bytes)) return DOORMAN_INVALID_ARGUMENT;
    doorman_plans_message_uninit(out);
    doorman_error error = {0};
    doorman__problems list = {text, bytes, problems, room, 0};
    doorman__reader reader = {.problems = &list};
    const doorman__field root = doorman__read_start(&reader, text, bytes);
    doorman_plans_message read = {.tree = NULL};
    if (reader.status == DOORMAN_OK) doorman__read_plans_message(&root, &read);
    *count = list.count;
    if (reader.status != DOORMAN_OK) {
        reader.error = &error;
        return doorman__read_end(&reader);
    }
    *out = read;
    out->tree = reader.tree;
    out->arena = reader.arena;
    return DOORMAN_OK;
}

doorman_status doorman_json_write_plan(const doorman_plan_row *row, const char *reason,
                                       doorman_buffer *text) {
    if (!row || !text) return DOORMAN_INVALID_ARGUMENT;
    doorman__writer out = doorman__put_start(text);
    doorman__put(&out, "{'id':%i,'glob':%s,'key':%s,'plan':%s", row->id,
                 row->identifier_glob ? row->identifier_glob : "", row->key ? row->key : "",
                 row->plan ? row->plan : "");
    if (row->starts_at) doorman__put(&out, ",'starts_at':%t", row->starts_at);
    if (row->ends_at) doorman__put(&out, ",'ends_at':%t", row->ends_at);
    if (reason) doorman__put(&out, ",'reason':%s", reason);
    doorman__put(&out, "}");
    return doorman__put_end(&out);
}

/* ---- permit JSON: requests */

/* The figures that a caller brings for a limit (P31). The name of the limit is the key of the
 * object. */
static const doorman__row doorman__set_rows[] = {
    DOORMAN__ROW_INLINE(doorman_permit_set, figures, doorman__figure_rows),
    DOORMAN__ROW_CALL(doorman__read_override, NULL),
    {0},
};

/* Refuses fields that are not figures: a figure that a caller has misspelled would otherwise be
 * that of the limit. */
static void doorman__read_set(const doorman__field *item, doorman_permit_set *set) {
    set->limit = item->value->string;
    if (!cJSON_IsObject(item->value)) {
        doorman__read_fail(item, "must be an object");
        return;
    }
    for (const cJSON *value = item->value->child; value; value = value->next) {
        if (doorman__key_known(doorman__set_rows, value->string)) continue;
        const doorman__field field = doorman__member(item, value);
        doorman__read_fail(&field, "is not a figure");
    }
    doorman__read_fields(item, doorman__set_rows, set);
}

static void doorman__read_sets(const doorman__field *field, void *out) {
    doorman_permit_item *item = (doorman_permit_item *)out;
    if (!field->value) return;
    if (!cJSON_IsObject(field->value)) {
        doorman__read_fail(field, "must be an object");
        return;
    }
    const size_t count = (size_t)cJSON_GetArraySize(field->value);
    if (count > DOORMAN_LIMITS_MAX) {
        doorman__read_fail(field, "must have at most 16 limits");
        return;
    }
    doorman_permit_set *set =
        (doorman_permit_set *)doorman__read_room(field->reader, count * sizeof *set);
    if (!set || !count) return;
    item->sets = set;
    item->set_count = count;
    for (const cJSON *value = field->value->child; value; value = value->next, set++) {
        const doorman__field below = doorman__member(field, value);
        doorman__read_set(&below, set);
    }
}

static void doorman__put_sets(doorman__writer *out, const void *from) {
    const doorman_permit_item *item = (const doorman_permit_item *)from;
    if (!item->set_count) return;
    doorman__put(out, "%,'set':{");
    for (size_t i = 0; i < item->set_count; i++) {
        doorman__put(out, "%,%s:{", item->sets[i].limit);
        doorman__put_rows(out, doorman__set_rows, &item->sets[i]);
        doorman__put(out, "}");
    }
    doorman__put(out, "}");
}

static const doorman__row doorman__item_rows[] = {
    DOORMAN__ROW(STRING, REQUIRED, doorman_permit_item, resource_id),
    DOORMAN__ROW(TEXT, OPTIONAL, doorman_permit_item, key),
    {DOORMAN__FIELD("cost", AMOUNT, OPTIONAL, doorman_permit_item, cost), .usual = 1},
    DOORMAN__ROW_HAS(NUMBER, doorman_permit_item, min),
    DOORMAN__ROW_OTHER("set", OPTIONAL, doorman__read_sets, doorman__put_sets),
    {0},
};
static const doorman__row doorman__permit_request_rows[] = {
    DOORMAN__ROW(SECONDS, OPTIONAL, doorman_permit_request, max_wait),
    DOORMAN__ROW(BOOL, OPTIONAL, doorman_permit_request, equal),
    DOORMAN__ROW(BOOL, OPTIONAL, doorman_permit_request, detail),
    DOORMAN__ROW(ID, OPTIONAL, doorman_permit_request, request_id),
    DOORMAN__ROW(DURATION, OPTIONAL, doorman_permit_request, time_to_live),
    {DOORMAN__FIELD("priority", PRIORITY, OPTIONAL, doorman_permit_request, priority),
     .has = offsetof(doorman_permit_request, has_priority), .usual = 1},
    DOORMAN__ROW(BOOL, OPTIONAL, doorman_permit_request, share),
    DOORMAN__ROW_LIST("item", REQUIRED, doorman_permit_request, items, item_count,
                      doorman__item_rows),
    {0},
};

/* The entries of a report have a cost. Other entries may name a limit. */
#define DOORMAN__ENTRY                                                                             \
    DOORMAN__ROW(STRING, REQUIRED, doorman_permit_entry, resource_id),                             \
        DOORMAN__ROW(TEXT, OPTIONAL, doorman_permit_entry, key)
static const doorman__row doorman__report_entry_rows[] = {
    DOORMAN__ENTRY, DOORMAN__ROW(NUMBER, REQUIRED, doorman_permit_entry, cost), {0}};
static const doorman__row doorman__inspect_entry_rows[] = {
    DOORMAN__ENTRY, DOORMAN__ROW(STRING, OPTIONAL, doorman_permit_entry, limit), {0}};
static const doorman__row doorman__reset_entry_rows[] = {
    DOORMAN__ENTRY,
    DOORMAN__ROW(STRING, OPTIONAL, doorman_permit_entry, limit),
    {DOORMAN__FIELD("ban", SECONDS, OPTIONAL, doorman_permit_entry, ban),
     .has = offsetof(doorman_permit_entry, sets_ban)},
    {0},
};

static const doorman__row doorman__hold_item_rows[] = {
    DOORMAN__ROW(STRING, REQUIRED, doorman_hold_item, resource_id),
    DOORMAN__ROW(STRING, ALWAYS, doorman_hold_item, key),
    DOORMAN__ROW(AMOUNT, REQUIRED, doorman_hold_item, amount),
    {0},
};
static const doorman__row doorman__renew_rows[] = {
    DOORMAN__ROW(ID, NEEDED, doorman_hold_request, id),
    DOORMAN__ROW(DURATION, OPTIONAL, doorman_hold_request, time_to_live),
    DOORMAN__ROW_LIST("item", OPTIONAL, doorman_hold_request, items, item_count,
                      doorman__hold_item_rows),
    {0},
};
static const doorman__row doorman__amount_rows[] = {{.type = DOORMAN__JSON_AMOUNT}, {0}};

static const doorman__row doorman__release_rows[] = {
    DOORMAN__ROW(ID, OPTIONAL, doorman_hold_request, id),
    DOORMAN__ROW(ID, OPTIONAL, doorman_hold_request, request_id),
    DOORMAN__ROW_LIST("keep", OPTIONAL, doorman_hold_request, amounts, amount_count,
                      doorman__amount_rows),
    {0},
};
static const doorman__row doorman__transfer_rows[] = {
    DOORMAN__ROW(ID, NEEDED, doorman_hold_request, id),
    DOORMAN__ROW(ID, NEEDED, doorman_hold_request, request_id),
    DOORMAN__ROW(DURATION, OPTIONAL, doorman_hold_request, time_to_live),
    DOORMAN__ROW_LIST("amount", OPTIONAL, doorman_hold_request, amounts, amount_count,
                      doorman__amount_rows),
    {0},
};
static const doorman__row doorman__seize_rows[] = {
    DOORMAN__ROW_AS("transfer_id", ID, NEEDED, doorman_hold_request, id),
    DOORMAN__ROW(ID, NEEDED, doorman_hold_request, request_id),
    DOORMAN__ROW(DURATION, OPTIONAL, doorman_hold_request, time_to_live),
    {0},
};

/* The content of requests. Values that the server checks are not checked here. */
#define DOORMAN__CLIENT(flags)                                                                     \
    DOORMAN__ROW_AS("client_id", STRING, flags, doorman_request, holder_id)
#define DOORMAN__ENTRIES(rows)                                                                     \
    DOORMAN__ROW_LIST("entry", REQUIRED, doorman_request, entries, entry_count, rows)
#define DOORMAN__HOLDS(rows)                                                                       \
    DOORMAN__ROW_LIST("entry", REQUIRED, doorman_request, holds, hold_count, rows)
static const doorman__row doorman__permit_requests[][3] = {
    {DOORMAN__CLIENT(NEEDED), DOORMAN__ROW_LIST("permit", REQUIRED, doorman_request, permits,
                                                permit_count, doorman__permit_request_rows)},
    {DOORMAN__CLIENT(NEEDED), DOORMAN__ENTRIES(doorman__report_entry_rows)},
    {DOORMAN__CLIENT(OPTIONAL), DOORMAN__ENTRIES(doorman__inspect_entry_rows)},
    {DOORMAN__CLIENT(OPTIONAL), DOORMAN__ENTRIES(doorman__reset_entry_rows)},
    {DOORMAN__CLIENT(NEEDED), DOORMAN__HOLDS(doorman__renew_rows)},
    {DOORMAN__CLIENT(NEEDED), DOORMAN__HOLDS(doorman__release_rows)},
    {DOORMAN__CLIENT(NEEDED), DOORMAN__HOLDS(doorman__transfer_rows)},
    {DOORMAN__CLIENT(NEEDED), DOORMAN__HOLDS(doorman__seize_rows)},
};

/* ---- permit JSON: responses */
/*
 * A newer server may know more decisions and reasons. A decision that this version does not know
 * counts as a refusal. A reason that it does not know is DOORMAN_NO_REASON.
 *
 * Durations are exact to a nanosecond, so they are not rounded. Units of `granted` and `charged`
 * are exact too. What people read has at most six decimals: `remaining` is rounded down, and `used`
 * is rounded up. So no client believes that more is left than there is.
 */

/* Returns an amount with at most six decimals, rounded down. An amount of 1e9 or more is rounded to
 * an integer. */
static double doorman__six_decimals(double amount) {
    if (!(amount > 0)) return 0;
    if (amount >= DOORMAN__INTEGER_MAX) return amount;
    if (amount >= 1e9) return (double)(uint64_t)amount;
    double down = (double)(uint64_t)(amount * 1e6) / 1e6;
    return down <= amount ? down : doorman__max(0, down - 1e-6);
}

/* As doorman__six_decimals, but rounded up. */
static double doorman__six_decimals_up(double amount) {
    double down = doorman__six_decimals(amount);
    assert(down >= 0);
    if (down >= amount) return down;
    if (amount >= 1e9) return down + 1;
    return (double)((uint64_t)(down * 1e6 + 0.5) + 1) / 1e6;
}

static const doorman__row doorman__detail_rows[] = {
    DOORMAN__ROW_AS("name", STRING, REQUIRED, doorman_permit_detail, limit),
    DOORMAN__ROW_AS("limit", NUMBER, ALWAYS, doorman_permit_detail, most),
    DOORMAN__ROW(NUMBER, ALWAYS, doorman_permit_detail, used),
    DOORMAN__ROW(NUMBER, ALWAYS, doorman_permit_detail, remaining),
    DOORMAN__ROW(SECONDS, ALWAYS, doorman_permit_detail, reset_after),
    DOORMAN__ROW(SECONDS, OPTIONAL, doorman_permit_detail, window),
    DOORMAN__ROW_BOUNDED("tier", SIZE, LENIENT, doorman_permit_detail, tier, 0, DOORMAN_TIERS_MAX),
    DOORMAN__ROW(BOOL, OPTIONAL, doorman_permit_detail, moved_up),
    DOORMAN__ROW(BOOL, OPTIONAL, doorman_permit_detail, shadow),
    DOORMAN__ROW(BOOL, OPTIONAL, doorman_permit_detail, refused),
    DOORMAN__ROW_BOUNDED("refusals", UINT32, LENIENT, doorman_permit_detail, refusals, 0,
                         UINT32_MAX),
    DOORMAN__ROW(STRING, OPTIONAL, doorman_permit_detail, plan),
    DOORMAN__ROW(BOOL, OPTIONAL, doorman_permit_detail, set),
    {0},
};

/* Reads the list `limits` of an item or of an inspection. `details` has room for it behind the
 * details of the items before it. */
static void doorman__read_permit_details(const doorman__field *object, size_t item_index,
                                         doorman_permit_detail *details, doorman_permit *out) {
    doorman__field list = doorman__field_of(object, "limits", 6);
    doorman__field item = doorman__read_list(&list);
    for (; item.value; doorman__next(&item)) {
        doorman_permit_detail *next = &details[out->detail_count++];
        next->item_index = item_index;
        doorman__read_fields(&item, doorman__detail_rows, next);
    }
    out->details = details;
}

/* Writes the list `limits` of one item. The details of a permit are in the order of its items. */
static void doorman__put_permit_details(doorman__writer *out, const doorman_permit *permit,
                                        size_t item_index, size_t *next) {
    doorman__put(out, "%,'limits':[");
    while (*next < permit->detail_count && permit->details[*next].item_index == item_index) {
        doorman_permit_detail detail = permit->details[(*next)++];
        detail.used = doorman__six_decimals_up(detail.used);
        detail.remaining = doorman__six_decimals(detail.remaining);
        doorman__put(out, "%,");
        doorman__put_fields(out, doorman__detail_rows, &detail);
    }
    doorman__put(out, "]");
}

/* Why a permit is refused, without the item. */
#define DOORMAN__REASON_ROW(struct_, flags_)                                                       \
    {                                                                                              \
        DOORMAN__FIELD("reason", CHOICE, LENIENT | (flags_), struct_, reason),                     \
            .names = doorman__reason_names, .most = DOORMAN_REASON_COUNT                           \
    }
static const doorman__row doorman__reason_rows[] = {
    DOORMAN__ROW(STRING, OPTIONAL, doorman_permit, limit),
    DOORMAN__REASON_ROW(doorman_permit, DOORMAN__JSON_ALWAYS),
    DOORMAN__ROW_HAS(SECONDS, doorman_permit, retry_after),
    {0},
};
static const doorman__row doorman__refusal_rows[] = {
    {.type = DOORMAN__JSON_INLINE, .below = doorman__reason_rows},
    DOORMAN__ROW_BOUNDED("item_index", SIZE, LENIENT, doorman_permit, item_index, 0,
                         DOORMAN__JSON_VALUES_MAX),
    DOORMAN__ROW(SECONDS, OPTIONAL, doorman_permit, valid_for),
    {0},
};
static const doorman__row doorman__hold_of_permit_rows[] = {
    DOORMAN__ROW_AS("id", ID, NEEDED, doorman_permit, hold_id),
    DOORMAN__ROW(STRING, OPTIONAL, doorman_permit, node),
    DOORMAN__ROW(SECONDS, ALWAYS, doorman_permit, waited),
    DOORMAN__ROW(SECONDS, REQUIRED, doorman_permit, expires_in),
    {0},
};
static const doorman__row doorman__granted_rows[] = {
    DOORMAN__ROW(SECONDS, OPTIONAL, doorman_permit, wait),
    DOORMAN__ROW(BOOL, OPTIONAL, doorman_permit, warning),
    {DOORMAN__KEY("hold", OBJECT, OPTIONAL), .below = doorman__hold_of_permit_rows},
    {0},
};
static const doorman__row doorman__grant_rows[] = {
    DOORMAN__ROW(AMOUNT, REQUIRED, doorman_permit_grant, granted),
    DOORMAN__ROW(STRING, OPTIONAL, doorman_permit_grant, limit),
    DOORMAN__ROW(NUMBER, OPTIONAL, doorman_permit_grant, remaining),
    DOORMAN__ROW(SECONDS, OPTIONAL, doorman_permit_grant, reset_after),
    {0},
};

static void doorman__read_permit(const doorman__field *decision, void *out) {
    doorman_permit *permit = (doorman_permit *)out;
    const doorman__field *object = decision->parent;
    const char *text = "";
    doorman__read_string(decision, &text);
    permit->granted = strcmp(text, "GRANTED") == 0;
    doorman__read_rows(object, permit->granted ? doorman__granted_rows : doorman__refusal_rows,
                       permit);
    size_t detail_count = 0;
    doorman__field list = doorman__field_of(object, "item", 4);
    for (doorman__field item = doorman__read_list(&list); item.value; doorman__next(&item)) {
        doorman__field limits = doorman__field_of(&item, "limits", 6);
        detail_count += doorman__list_count(&limits);
    }
    size_t count = permit->granted ? doorman__list_count(&list) : 0;
    doorman_permit_detail *details =
        (doorman_permit_detail *)doorman__read_room(object->reader, detail_count * sizeof *details);
    doorman_permit_grant *grants =
        (doorman_permit_grant *)doorman__read_room(object->reader, count * sizeof *grants);
    if (!details || !grants) return;
    for (doorman__field item = doorman__read_list(&list); item.value; doorman__next(&item)) {
        doorman__read_permit_details(&item, item.index, details, permit);
        if (count) doorman__read_fields(&item, doorman__grant_rows, &grants[item.index]);
        if (!count) doorman__read_fields(&item, doorman__no_rows, NULL);
    }
    assert(permit->detail_count <= detail_count);
    permit->items = grants;
    permit->item_count = count;
}

static const doorman__row doorman__permit_rows[] = {
    DOORMAN__ROW_OTHER("decision", NEEDED, doorman__read_permit, NULL),
    {0},
};

static void doorman__put_permit_items(doorman__writer *out, const doorman_permit *permit,
                                      size_t item_count, bool detail) {
    size_t next = 0;
    doorman__put(out, ",'item':[");
    for (size_t i = 0; i < item_count; i++) {
        doorman__put(out, "%,{");
        if (permit->granted) {
            const doorman_permit_grant *grant = &permit->items[i];
            doorman__put(out, "'granted':%n", grant->granted);
            if (grant->limit) {
                doorman__put(out, ",'limit':%s,'remaining':%n,'reset_after':%t", grant->limit,
                             doorman__six_decimals(grant->remaining), grant->reset_after);
            }
        }
        if (detail) doorman__put_permit_details(out, permit, i, &next);
        doorman__put(out, "}");
    }
    doorman__put(out, "]");
}

/* Writes a permit. A refusal names an item of the request. */
static void doorman__put_permit(doorman__writer *out, const doorman_permit *permit,
                                const doorman_permit_request *request) {
    const doorman_permit_item *item = &request->items[permit->item_index];
    assert(permit->item_index < request->item_count || request->item_count == 0);
    if (permit->granted) {
        doorman__put(out, "%,{'decision':%s", "GRANTED");
        doorman__put_rows(out, doorman__granted_rows, permit);
    } else {
        doorman__put(out, "%,{'decision':%s,'resource_id':%s", "REFUSED", item->resource_id);
        if (item->key && item->key[0]) doorman__put(out, ",'key':%s", item->key);
        if (permit->item_index) {
            doorman__put(out, ",'item_index':%i", (uint64_t)permit->item_index);
        }
        doorman__put_rows(out, doorman__reason_rows, permit);
        doorman__put(out, ",'valid_for':%t", permit->valid_for);
    }
    if (permit->granted || request->detail) {
        doorman__put_permit_items(out, permit, request->item_count, request->detail);
    }
    doorman__put(out, "}");
}

static void doorman__put_permits(doorman__writer *out, const void *from) {
    const doorman_response *response = (const doorman_response *)from;
    assert(response->permit_count == out->request->permit_count);
    doorman__put(out, "'permit':[");
    for (size_t i = 0; i < response->permit_count; i++) {
        doorman__put_permit(out, &response->permits[i], &out->request->permits[i]);
    }
    doorman__put(out, "]");
}

/* Reads whether an entry of an inspection is granted, and the details. */
static void doorman__read_inspected(const doorman__field *object, void *out) {
    doorman_permit *state = &((doorman_permit_result *)out)->state;
    assert(state->detail_count == 0);
    doorman__field limits = doorman__field_of(object, "limits", 6);
    size_t bytes = doorman__list_count(&limits) * sizeof(doorman_permit_detail);
    state->granted = !doorman__field_of(object, "reason", 6).value;
    doorman_permit_detail *details =
        (doorman_permit_detail *)doorman__read_room(object->reader, bytes);
    if (details) doorman__read_permit_details(object, 0, details, state);
}

static void doorman__put_inspected(doorman__writer *out, const void *from) {
    const doorman_permit *state = &((const doorman_permit_result *)from)->state;
    size_t next = 0;
    if (!state->granted) doorman__put_rows(out, doorman__reason_rows, state);
    doorman__put_permit_details(out, state, 0, &next);
}

static const doorman__row doorman__charged_rows[] = {
    DOORMAN__ROW(NUMBER, ALWAYS, doorman_permit_result, charged),
    DOORMAN__ROW_CALL(doorman__read_inspected, NULL),
    {0},
};
static const doorman__row doorman__count_rows[] = {
    {DOORMAN__FIELD("count", SIZE, LENIENT | DOORMAN__JSON_ALWAYS, doorman_permit_result, count),
     .most = 1000000000},
    DOORMAN__ROW(NUMBER, LENIENT, doorman_permit_result, held),
    DOORMAN__ROW_CALL(doorman__read_inspected, NULL),
    {0},
};
static const doorman__row doorman__inspected_rows[] = {
    {.type = DOORMAN__JSON_INLINE,
     .at = offsetof(doorman_permit_result, state),
     .below = doorman__reason_rows,
     .put = doorman__put_inspected},
    DOORMAN__ROW_CALL(doorman__read_inspected, NULL),
    {0},
};

/* What is held after a request. If the hold is gone, or the request was refused, only these rows
 * are written. */
static const doorman__row doorman__lost_rows[] = {
    DOORMAN__ROW(BOOL, OPTIONAL, doorman_hold, gone),
    DOORMAN__REASON_ROW(doorman_hold, DOORMAN__JSON_OPTIONAL),
    {0},
};
static const doorman__row doorman__amount_of_item_rows[] = {
    {.type = DOORMAN__JSON_AMOUNT, .at = offsetof(doorman_hold_item, amount)},
    {0},
};
#define DOORMAN__LOST                                                                              \
    { .type = DOORMAN__JSON_INLINE, .below = doorman__lost_rows }
#define DOORMAN__HELD_AMOUNTS                                                                      \
    DOORMAN__ROW_LIST("amount", ALWAYS, doorman_hold, items, item_count,                           \
                      doorman__amount_of_item_rows)
static const doorman__row doorman__renewed_rows[] = {
    DOORMAN__LOST,
    DOORMAN__ROW(SECONDS, ALWAYS, doorman_hold, expires_in),
    DOORMAN__HELD_AMOUNTS,
    {0}};
static const doorman__row doorman__released_rows[] = {DOORMAN__LOST, DOORMAN__HELD_AMOUNTS, {0}};
static const doorman__row doorman__transferred_rows[] = {
    DOORMAN__LOST,
    DOORMAN__ROW_AS("transfer_id", ID, ALWAYS, doorman_hold, id),
    DOORMAN__ROW(SECONDS, ALWAYS, doorman_hold, expires_in),
    DOORMAN__HELD_AMOUNTS,
    {0},
};
static const doorman__row doorman__seized_rows[] = {
    DOORMAN__LOST,
    DOORMAN__ROW(ID, ALWAYS, doorman_hold, id),
    DOORMAN__ROW(STRING, OPTIONAL, doorman_hold, node),
    DOORMAN__ROW(SECONDS, ALWAYS, doorman_hold, expires_in),
    DOORMAN__ROW_LIST("item", ALWAYS, doorman_hold, items, item_count, doorman__hold_item_rows),
    {0},
};

static void doorman__put_holds(doorman__writer *out, const void *from) {
    static const doorman__row *const rows[] = {doorman__renewed_rows, doorman__released_rows,
                                               doorman__transferred_rows, doorman__seized_rows};
    const doorman_response *response = (const doorman_response *)from;
    assert(doorman__method_has_holds(response->method));
    doorman__put(out, "'entry':[");
    for (size_t i = 0; i < response->hold_count; i++) {
        const doorman_hold *hold = &response->holds[i];
        bool is_lost = hold->gone || hold->reason;
        doorman__put(out, "%,");
        doorman__put_fields(
            out, is_lost ? doorman__lost_rows : rows[response->method - DOORMAN_RENEW], hold);
    }
    doorman__put(out, "]");
}

#define DOORMAN__RESULTS(rows)                                                                     \
    { DOORMAN__ROW_LIST("entry", REQUIRED, doorman_response, results, result_count, rows) }
#define DOORMAN__HOLDS_AFTER(rows)                                                                 \
    {                                                                                              \
        {                                                                                          \
            DOORMAN__LIST("entry", REQUIRED, doorman_response, holds, hold_count, rows),           \
                .put = doorman__put_holds                                                          \
        }                                                                                          \
    }
static const doorman__row doorman__permit_responses[][2] = {
    {{DOORMAN__LIST("permit", REQUIRED, doorman_response, permits, permit_count,
                    doorman__permit_rows),
      .put = doorman__put_permits}},
    DOORMAN__RESULTS(doorman__charged_rows),
    DOORMAN__RESULTS(doorman__inspected_rows),
    DOORMAN__RESULTS(doorman__count_rows),
    DOORMAN__HOLDS_AFTER(doorman__renewed_rows),
    DOORMAN__HOLDS_AFTER(doorman__released_rows),
    DOORMAN__HOLDS_AFTER(doorman__transferred_rows),
    DOORMAN__HOLDS_AFTER(doorman__seized_rows),
};

/* Returns the most bytes that the response to a permit takes. `name` is what the name of a limit
 * takes, and `limits` is how many limits a template has at most. */
static size_t doorman__permit_reply_bytes(const doorman_permit_request *permit, size_t name,
                                          size_t limits) {
    size_t granted = 200, refused = 220 + name, longest = 0;
    for (size_t i = 0; i < permit->item_count; i++) {
        const char *id = permit->items[i].resource_id, *key = permit->items[i].key;
        size_t bytes = doorman__quoted_bytes(id) + (key ? doorman__quoted_bytes(key) : 0);
        if (bytes > longest) longest = bytes;
        granted += 150 + name;
    }
    size_t bytes = granted > refused + longest ? granted : refused + longest;
    if (permit->detail) bytes += permit->item_count * (20 + limits * (300 + name));
    return bytes;
}

/* Returns the most bytes that the response to an entry on a hold takes. */
static size_t doorman__hold_reply_bytes(const doorman_permits *permits,
                                        const doorman_request *request,
                                        const doorman_hold_request *entry) {
    const doorman__hold *hold =
        entry->id ? doorman__holds_find(permits, entry->id)
                  : doorman__holds_find_request(permits, request->holder_id, entry->request_id);
    size_t bytes = 120 + 32 * (hold ? hold->item_count : entry->item_count);
    for (size_t i = 0; hold && request->method == DOORMAN_SEIZE && i < hold->item_count; i++) {
        const doorman__hold_item *item = &doorman__hold_items(hold)[i];
        bytes += 48 + doorman__quoted_bytes(doorman__place_id(item->place));
        bytes += doorman__quoted_bytes(item->key);
    }
    return bytes;
}

/* Refuses a message whose response could be too large, before the server decides. */
static doorman_status doorman__permits_reply_check(const doorman_permits *permits,
                                                   const doorman_request *request,
                                                   doorman_error *error) {
    size_t limits = permits->limits_most;
    size_t name = permits->name_bytes + (permits->plan_bytes ? permits->plan_bytes + 20 : 0);
    size_t each = request->method == DOORMAN_INSPECT ? 100 + limits * (300 + name) : 60;
    size_t bytes = 1024 + request->entry_count * each;
    for (size_t i = 0; i < request->hold_count; i++) {
        bytes += doorman__hold_reply_bytes(permits, request, &request->holds[i]);
    }
    for (size_t i = 0; i < request->permit_count && bytes <= DOORMAN_MESSAGE_BYTES_MAX; i++) {
        bytes += doorman__permit_reply_bytes(&request->permits[i], name, limits);
    }
    if (bytes <= DOORMAN_MESSAGE_BYTES_MAX) return DOORMAN_OK;
    return doorman__fail(error, DOORMAN_RESOURCE_EXHAUSTED,
                         "%s: the response could be larger than 4 MiB; send less in one message",
                         request->method == DOORMAN_ACQUIRE ? "permit" : "entry");
}

/* ---- permit JSON: an exchange */

/* Returns a permit of the response that waits with this ticket, or NULL.
 *   ticket   0: any permit that waits */
static doorman_permit *doorman__exchange_pending(const doorman_json_exchange *exchange,
                                                 uint64_t ticket) {
    const doorman_response *response = &exchange->response;
    bool acquires = exchange->request.method == DOORMAN_ACQUIRE && response->is_master;
    if (exchange->state != DOORMAN__EXCHANGE_DECIDED || !acquires) return NULL;
    for (size_t i = 0; i < response->permit_count; i++) {
        /* the arena of the exchange has the permits, so they may be changed */
        doorman_permit *permit = (doorman_permit *)doorman__mutable(&response->permits[i]);
        if (permit->pending && (!ticket || permit->ticket == ticket)) return permit;
    }
    return NULL;
}

doorman_status doorman_json_exchange_settle(doorman_json_exchange *exchange, uint64_t ticket,
                                            const doorman_permit *decision) {
    if (!exchange || !decision) return DOORMAN_INVALID_ARGUMENT;
    doorman_permit *permit = doorman__exchange_pending(exchange, ticket);
    if (!permit) return DOORMAN_NOT_FOUND;
    assert(permit->pending && exchange->state == DOORMAN__EXCHANGE_DECIDED);
    *permit = *decision;
    if (doorman__permit_keep(&exchange->arena, permit)) return DOORMAN_OK;
    return doorman__exchange_fail(exchange, DOORMAN_OUT_OF_MEMORY,
                                  "out of memory; units may have been charged"); /* P9 */
}

void doorman_json_exchange_undo(doorman_json_exchange *exchange) {
    if (!exchange) return;
    if (!doorman__exchange_pending(exchange, 0)) return;
    doorman__exchange_move(exchange, DOORMAN__EXCHANGE_READ, DOORMAN_OK);
}

static bool doorman__exchange_is_pending(const doorman_json_exchange *exchange) {
    return doorman__exchange_pending(exchange, 0) != NULL;
}

/* P31: refuses a request whose permits bring figures. */
static doorman_status doorman__permits_refuse_figures(const doorman_request *request,
                                                      doorman_error *error) {
    for (size_t i = 0; i < request->permit_count; i++) {
        const doorman_permit_request *permit = &request->permits[i];
        for (size_t j = 0; j < permit->item_count; j++) {
            if (!permit->items[j].set_count) continue;
            return doorman__fail(error, DOORMAN_NOT_FOUND,
                                 "acquire.permit[%zu].item[%zu].set: send it over HTTP, as POST "
                                 "/v1/acquire with a token of the role figures",
                                 i, j);
        }
    }
    return DOORMAN_OK;
}

static const doorman__json_permits doorman__permits_in_json = {
    .limits = &doorman__limits_row,
    .descriptors = &doorman__descriptors_row,
    .requests = doorman__permit_requests,
    .responses = doorman__permit_responses,
    .check_reply = doorman__permits_reply_check,
    .is_pending = doorman__exchange_is_pending,
    .refuse_figures = doorman__permits_refuse_figures,
};
#endif /* DOORMAN_JSON */

#ifdef DOORMAN_NNG
/* ---- >>permit_agent ------------------------------------------------------------------------- */
/*
 * An agent has a permit client with a mutex, a thread and a connection of their own. So a slow
 * response with leases does not delay a permit, and many permits do not delay a lease. The thread
 * starts with the first permit, report, transfer or seizure, so an agent without permits does not
 * have it. The thread repeats these steps:
 *
 *   1. Parse the response that has come, without the mutex.
 *   2. Pass it to the client, and take the next message and all decisions from the client.
 *   3. Send the message, without the mutex. Then tell the callers their decisions.
 *   4. Sleep until the client is due or something has changed.
 *
 * The message goes first, so that the server works while the callers wake up.
 *
 * A caller that waits sleeps on its own condition variable with its own mutex. With one mutex for
 * all, 64 callers that wake up together would wait for each other. A caller also watches its
 * timeout, in case the thread is late. A caller is counted in `callers` until it no longer uses the
 * agent, and doorman_agent_stop waits until none is left.
 */

/* The permits of an agent. The mutex guards all fields that change, except the atomic ones. While
 * the thread runs, only it uses the transports. */
struct doorman__agent_permits {
    doorman_agent *agent;
    pthread_mutex_t mutex;
    pthread_cond_t wake; /* wakes the thread */
    pthread_t thread;
    bool has_thread;
    bool closed;               /* new calls return at once */
    bool wakeup;               /* the thread must run again before it sleeps */
    doorman_time sleeps_until; /* when the thread wakes up; 0: it is awake */
    doorman_time stop_by;      /* when the thread ends at the latest; NEVER: it is not stopping */
    doorman__pause pause;
    doorman_permit_client *client;
    /* the first one is that of the client, the others are those of its lanes */
    doorman_transport *transports[DOORMAN_PERMIT_LANES_MAX + 1];
    size_t transport_count;
    bool lanes_failed; /* memory has run out for a lane, so no more lanes are added */
    void (*on_hold_changed)(void *context, const doorman_held *held);
    void *context;
    doorman_error last_error;
    doorman_time last_error_at;       /* 0: no message has failed */
    size_t callers;                   /* threads that wait for a permit; atomic */
    struct doorman__acquirer *unused; /* the structs of threads that waited before; atomic */
};

/* What gets the decision of a call. */
typedef struct doorman__receiver {
    void (*on_decided)(void *context, doorman_status status, const doorman_acquired *acquired);
    void *context;
    doorman__call *call; /* NULL: the thread has taken the call from the client. The mutex of the
                            permits guards this field */
    bool is_allocated;   /* freed after on_decided */
} doorman__receiver;

/* A thread that waits for a decision. Its agent uses the struct again for other threads, and frees
 * it when the agent stops. So a late signal to the condition variable does no harm. */
typedef struct doorman__acquirer {
    struct doorman__acquirer *next; /* in the list of unused structs */
    doorman__receiver receiver;
    doorman__agent_permits *permits;
    doorman_acquired *out;
    doorman_time end;
    struct timespec until; /* see doorman__acquirer_wait */
    pthread_cond_t wake;
    pthread_mutex_t mutex; /* guards the two fields below, and *out */
    bool decided;
    doorman_status status;
} doorman__acquirer;

static void doorman__agent_permits_on_wakeup(void *context) {
    doorman__agent_permits *permits = (doorman__agent_permits *)context;
    pthread_mutex_lock(&permits->mutex);
    permits->wakeup = true;
    pthread_cond_signal(&permits->wake);
    pthread_mutex_unlock(&permits->mutex);
}

/* Returns whether a permit waits for a lane, and no lane is free. */
static bool doorman__agent_permits_needs_lane(const doorman__agent_permits *permits) {
    const doorman_permit_client *client = permits->client;
    size_t idle = 0;
    for (size_t i = 0; i < client->lane_count; i++) {
        idle += client->lanes[i]->batch.upstream.state != DOORMAN__REQUESTED;
    }
    return !permits->lanes_failed && permits->transport_count <= DOORMAN_PERMIT_LANES_MAX &&
           client->queues[DOORMAN__CALL_WAIT].count > idle;
}

/* Returns when the client or a lane is due. */
static doorman_time doorman__agent_permits_due(const doorman__agent_permits *permits) {
    const doorman_permit_client *client = permits->client;
    doorman_time due = doorman_upstream_due(&client->main.upstream);
    if (doorman__agent_permits_needs_lane(permits)) return 0;
    for (size_t i = 0; i < client->lane_count; i++) {
        due = doorman__earlier(due, doorman_upstream_due(&client->lanes[i]->batch.upstream));
    }
    return due;
}

/* Adds a lane with a transport of its own. If memory runs out, permits wait for the lanes that are
 * there. Without lanes they travel among the other messages. */
static void doorman__agent_permits_add_lane(doorman__agent_permits *permits) {
    doorman_permit_client *client = permits->client;
    char *const *pem = permits->transports[0]->pem;
    const doorman_tls tls = {.authority = pem[0], .certificate = pem[1], .key = pem[2]};
    doorman_transport_options options = {.on_wakeup = doorman__agent_permits_on_wakeup,
                                         .context = permits,
                                         .tls = pem[0] ? &tls : NULL};
    doorman_transport **lane = &permits->transports[permits->transport_count];
    assert(permits->transport_count > 0 && permits->transport_count <= DOORMAN_PERMIT_LANES_MAX);
    doorman_status status = doorman_permit_client_add_lane(client, &options.upstream);
    if (status == DOORMAN_OK) {
        status = doorman__transport_create(lane, &options);
        if (status != DOORMAN_OK) doorman__lane_free(client->lanes[--client->lane_count]);
    }
    permits->lanes_failed = status != DOORMAN_OK;
    if (permits->lanes_failed) return;
    (*lane)->fails_early = true;
    permits->transport_count++;
}

/* Unlocks the mutex. Wakes the thread if the client is due before the thread would wake up. The
 * mutex is unlocked first, so that the thread need not wait for it. */
static void doorman__agent_permits_unlock(doorman__agent_permits *permits) {
    bool expedites = doorman__agent_permits_due(permits) < permits->sleeps_until;
    assert(!permits->sleeps_until || permits->has_thread);
    if (expedites) {
        permits->wakeup = true;
        permits->sleeps_until = 0;
    }
    pthread_mutex_unlock(&permits->mutex);
    if (expedites) pthread_cond_signal(&permits->wake);
}

/* Takes all decided calls from the client. Their receivers can no longer give up the calls. */
static doorman__list doorman__agent_permits_take(doorman__agent_permits *permits,
                                                 doorman_time now) {
    doorman_permit_client *client = permits->client;
    doorman__permit_client_work(client, now);
    doorman__list calls = client->decided;
    assert(client->call_count >= calls.count);
    memset(&client->decided, 0, sizeof client->decided);
    client->call_count -= calls.count;
    for (doorman__list_link *at = calls.first; at; at = at->next) {
        doorman__call *call = doorman__call_at(at);
        doorman__receiver *receiver = (doorman__receiver *)call->context;
        assert(!call->timer.position && (receiver->is_allocated || receiver->call == call));
        receiver->call = NULL;
        doorman__call_forget(call); /* the thread frees the call later */
        call->hold = NULL;
    }
    return calls;
}

/* Tells the receivers of calls their decisions. The mutex is not locked. */
static void doorman__agent_permits_tell(const doorman__list *calls) {
    for (doorman__list_link *at = calls->first; at;) {
        doorman__call *call = doorman__call_at(at);
        doorman__receiver *receiver = (doorman__receiver *)call->context;
        bool is_allocated = receiver->is_allocated, done = call->status == DOORMAN_OK;
        at = at->next;
        receiver->on_decided(receiver->context, call->status, done ? &call->acquired : NULL);
        if (is_allocated) DOORMAN_FREE(receiver);
        DOORMAN_FREE(call);
    }
}

/* Returns whether the thread still has reports or releases to send, and a server that takes
 * them. */
static bool doorman__agent_permits_has_to_wait(const doorman__agent_permits *permits,
                                               doorman_time now) {
    const doorman_permit_client *client = permits->client;
    const doorman_upstream *upstream = &client->main.upstream;
    bool sends = upstream->state == DOORMAN__REQUESTED &&
                 (upstream->method == DOORMAN_REPORT || upstream->method == DOORMAN_RELEASE);
    return now < permits->stop_by && upstream->failures == 0 &&
           (sends || client->queues[DOORMAN__CALL_REPORT].first ||
            client->queues[DOORMAN__CALL_RELEASE].first);
}

static void doorman__agent_permits_sleep(doorman__agent_permits *permits, doorman_time now) {
    doorman_time due = doorman__agent_permits_due(permits);
    assert(permits->has_thread && !permits->sleeps_until);
    due = doorman__earlier(due, permits->stop_by);
    /* A message has timed out, but nng has not ended it yet. */
    if (due <= now) due = now + DOORMAN_SECOND / 1000;
    permits->sleeps_until = due;
    doorman__condition_wait(&permits->wake, &permits->mutex, due, now);
    permits->sleeps_until = 0;
}

/* Tells the application of holds that are gone or smaller. The mutex is locked, except while the
 * application is told. */
static void doorman__agent_permits_tell_holds(doorman__agent_permits *permits, doorman_time now) {
    doorman_held held;
    while (permits->client->changes.first) {
        if (!doorman_permit_client_next_change(permits->client, &held, now)) break;
        if (!permits->on_hold_changed) continue;
        pthread_mutex_unlock(&permits->mutex);
        permits->on_hold_changed(permits->context, &held);
        pthread_mutex_lock(&permits->mutex);
    }
}

/* An agent has two parts with an upstream each: leases and permits. Called with each result of the
 * other part. Returns whether the thread of this part must run. */
static bool doorman__pause_end(doorman__pause *pause, const doorman_transport_result *result) {
    bool answered = result->has_ended && result->status == DOORMAN_OK && result->is_master;
    if (!answered || !__atomic_load_n(&pause->lasts, __ATOMIC_SEQ_CST)) return false;
    return !__atomic_exchange_n(&pause->ends, true, __ATOMIC_SEQ_CST);
}

/* Makes the message of a transport that is due. Keeps the error text if the last one has failed.
 * Returns whether there is a message. */
static bool doorman__agent_permits_update(doorman__agent_permits *permits,
                                          doorman_transport *transport, doorman_time now) {
    doorman_transport_result result;
    bool made = doorman_transport_update(transport, &result, now);
    doorman_agent *agent = permits->agent;
    if (doorman__pause_end(&agent->pause, &result)) doorman__agent_notify(agent);
    if (result.error.text[0] && !result.is_probe) {
        doorman__error_keep(&permits->last_error, result.address, &result.error);
        permits->last_error_at = now;
    }
    return made;
}

static void *doorman__agent_permits_main(void *context) {
    doorman__agent_permits *permits = (doorman__agent_permits *)context;
    bool made[DOORMAN_PERMIT_LANES_MAX + 1] = {false}; /* a message, by each transport */
    pthread_mutex_lock(&permits->mutex);
    for (;;) {
        pthread_mutex_unlock(&permits->mutex);
        for (size_t i = 0; i < permits->transport_count; i++) {
            (void)doorman__transport_parse(permits->transports[i]);
        }
        pthread_mutex_lock(&permits->mutex);
        doorman_time now = doorman_clock();
        permits->wakeup = false;
        if (permits->closed) doorman__permit_client_end_all(permits->client, DOORMAN_UNAVAILABLE);
        doorman__pause_check(&permits->pause, &permits->client->main.upstream);
        while (doorman__agent_permits_needs_lane(permits)) doorman__agent_permits_add_lane(permits);
        bool some = false;
        for (size_t i = 0; i < permits->transport_count; i++) {
            made[i] = doorman__agent_permits_update(permits, permits->transports[i], now);
            some = some || made[i];
        }
        doorman__list calls = doorman__agent_permits_take(permits, now);
        doorman__pause_note(&permits->pause, &permits->client->main.upstream);
        pthread_mutex_unlock(&permits->mutex);
        for (size_t i = 0; i < permits->transport_count; i++) {
            if (made[i]) doorman_transport_send(permits->transports[i]);
        }
        doorman__agent_permits_tell(&calls);
        pthread_mutex_lock(&permits->mutex);
        doorman__agent_permits_tell_holds(permits, now);
        if (some || calls.first || permits->wakeup) continue;
        now = doorman_clock();
        bool stops = permits->stop_by != DOORMAN_NEVER;
        if (stops && !doorman__agent_permits_has_to_wait(permits, now)) break;
        doorman__agent_permits_sleep(permits, now);
    }
    pthread_mutex_unlock(&permits->mutex);
    return NULL;
}

/* Returns whether the caller is on_decided or on_hold_changed. Precondition: the mutex is locked,
 * because the first call that needs the thread sets has_thread and thread under it. */
static bool doorman__agent_permits_is_own_thread(const doorman__agent_permits *permits) {
    return permits->has_thread && pthread_equal(pthread_self(), permits->thread);
}

static doorman_status doorman__agent_call_fail(doorman_error *error, doorman_status status) {
    const char *text = "the agent is that of the parent process";
    if (status == DOORMAN_DEADLOCK) text = doorman__status_text(status);
    return doorman__fail(error, status, "%s", text);
}

/* Begins a call that uses the permits. If the result is OK, the mutex is locked. */
static doorman_status doorman__agent_permits_lock(doorman_agent *agent, doorman_error *error) {
    doorman_status status = doorman__agent_check_call(agent);
    if (status != DOORMAN_OK) return doorman__agent_call_fail(error, status);
    pthread_mutex_lock(&agent->permits->mutex);
    return DOORMAN_OK;
}

/* Begins a call that needs the thread. If the result is OK, the mutex is locked, and the thread
 * runs. */
static doorman_status doorman__agent_permits_begin(doorman_agent *agent, doorman_error *error) {
    doorman__agent_permits *permits = agent->permits;
    doorman_status status = doorman__agent_permits_lock(agent, error);
    if (status != DOORMAN_OK) return status;
    if (permits->closed) {
        status = doorman__fail(error, DOORMAN_UNAVAILABLE, "the agent is shut down");
    } else if (!permits->has_thread) {
        permits->has_thread =
            doorman__thread_start(&permits->thread, doorman__agent_permits_main, permits);
        if (!permits->has_thread) {
            status = doorman__fail(error, DOORMAN_UNAVAILABLE, "cannot start a thread");
        }
    }
    if (status != DOORMAN_OK) pthread_mutex_unlock(&permits->mutex);
    return status;
}

/* ---- permit agent: a thread that waits for a permit */

/* The thread of the permits calls this function. The mutex is unlocked first, so that the thread
 * that wakes up need not wait for it. */
static void doorman__acquirer_on_decided(void *context, doorman_status status,
                                         const doorman_acquired *acquired) {
    doorman__acquirer *acquirer = (doorman__acquirer *)context;
    pthread_mutex_lock(&acquirer->mutex);
    assert(!acquirer->decided && (acquired != NULL) == (status == DOORMAN_OK));
    if (acquired) *acquirer->out = *acquired;
    acquirer->status = status;
    acquirer->decided = true;
    pthread_mutex_unlock(&acquirer->mutex);
    pthread_cond_signal(&acquirer->wake);
}

/* Ends the call of this thread now, unless the thread of the permits has taken the call. The mutex
 * of the acquirer is not locked.
 *   gives_up   the result is not wanted */
static void doorman__acquirer_end_call(doorman__acquirer *acquirer, bool gives_up) {
    doorman__agent_permits *permits = acquirer->permits;
    doorman_permit_client *client = permits->client;
    pthread_mutex_lock(&permits->mutex);
    doorman__call *call = acquirer->receiver.call;
    if (call) {
        if (!gives_up && call->state != DOORMAN__CALL_DECIDED)
            doorman__permit_client_work(client, doorman__later(doorman_clock(), acquirer->end));
        assert(call->attended && !acquirer->decided); /* this thread frees the call */
        if (gives_up && call->hold) {
            const doorman_hold_request release = {.id = call->hold->number};
            (void)doorman_permit_client_release(client, &release, NULL, doorman_clock());
        }
        if (call->state != DOORMAN__CALL_DECIDED) doorman__call_settle(call);
        *acquirer->out = call->acquired;
        acquirer->decided = true;
        acquirer->receiver.call = NULL;
        doorman__call_free(call);
    }
    pthread_mutex_unlock(&permits->mutex);
}

/* Waits for the decision, which the thread of the permits is about to tell. A thread that is
 * cancelled here would leave the mutex locked, and the thread of the permits would wait for ever.
 * So the cancellation waits until the call has returned. */
static void doorman__acquirer_join(doorman__acquirer *acquirer) {
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    pthread_mutex_lock(&acquirer->mutex);
    while (!acquirer->decided) pthread_cond_wait(&acquirer->wake, &acquirer->mutex);
    pthread_mutex_unlock(&acquirer->mutex);
    pthread_setcancelstate(before, NULL);
}

/* Takes an unused acquirer, or makes one. Precondition: the mutex of the permits is locked. So only
 * one thread at a time takes from the list, while others add to it. */
static doorman__acquirer *doorman__acquirer_begin(doorman_agent *agent, doorman_acquired *out) {
    doorman__agent_permits *permits = agent->permits;
    doorman__acquirer *acquirer = __atomic_load_n(&permits->unused, __ATOMIC_ACQUIRE);
    while (acquirer && !__atomic_compare_exchange_n(&permits->unused, &acquirer, acquirer->next,
                                                    true, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE)) {
    }
    if (!acquirer) {
        acquirer = (doorman__acquirer *)doorman__zalloc(sizeof *acquirer);
        bool done = acquirer && pthread_mutex_init(&acquirer->mutex, NULL) == 0;
        if (!done || pthread_cond_init(&acquirer->wake, &agent->monotonic) != 0) {
            if (done) pthread_mutex_destroy(&acquirer->mutex);
            DOORMAN_FREE(acquirer);
            return NULL;
        }
        acquirer->permits = permits;
        acquirer->receiver.on_decided = doorman__acquirer_on_decided;
        acquirer->receiver.context = acquirer;
    }
    assert(acquirer->permits == permits && !acquirer->receiver.call);
    __atomic_add_fetch(&permits->callers, 1, __ATOMIC_RELAXED);
    acquirer->decided = false;
    acquirer->status = DOORMAN_OK;
    acquirer->out = out;
    return acquirer;
}

/* After this call the agent may be gone. */
static void doorman__acquirer_finish(doorman__acquirer *acquirer) {
    doorman__agent_permits *permits = acquirer->permits;
    assert(!acquirer->receiver.call);
    acquirer->next = __atomic_load_n(&permits->unused, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&permits->unused, &acquirer->next, acquirer, true,
                                        __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
    }
    __atomic_sub_fetch(&permits->callers, 1, __ATOMIC_RELEASE);
}

/* Runs if the thread is cancelled. The mutex of the acquirer is locked. */
static void doorman__acquirer_cancel(void *context) {
    doorman__acquirer *acquirer = (doorman__acquirer *)context;
    pthread_mutex_unlock(&acquirer->mutex);
    doorman__acquirer_end_call(acquirer, true);
    doorman__acquirer_join(acquirer);
    doorman__agent_permits *permits = acquirer->permits;
    const doorman_hold_request release = {.id = acquirer->out->hold};
    if (acquirer->status == DOORMAN_OK && release.id) {
        pthread_mutex_lock(&permits->mutex);
        (void)doorman_permit_client_release(permits->client, &release, NULL, doorman_clock());
        doorman__agent_permits_unlock(permits);
    }
    doorman__acquirer_finish(acquirer);
}

/* Waits for the decision until the timeout. If the thread is cancelled, a cleanup handler ends the
 * call. `until` is not in the frame of a function that is called here. AddressSanitizer would still
 * guard such a frame when the cleanup handler runs. */
static void doorman__acquirer_wait(doorman__acquirer *acquirer) {
    doorman_time now;
    pthread_mutex_lock(&acquirer->mutex);
    pthread_cleanup_push(doorman__acquirer_cancel, acquirer);
    while (!acquirer->decided && (now = doorman_clock()) < acquirer->end) {
        doorman_time nap = doorman__earlier(acquirer->end - now, DOORMAN__NAP_MAX);
        acquirer->until = doorman__monotonic_end(nap);
        (void)pthread_cond_timedwait(&acquirer->wake, &acquirer->mutex, &acquirer->until);
    }
    pthread_cleanup_pop(0);
    bool decided = acquirer->decided;
    pthread_mutex_unlock(&acquirer->mutex);
    if (decided) return;
    doorman__acquirer_end_call(acquirer, false);
    doorman__acquirer_join(acquirer);
}

/* Adds the call. A call that is decided already ends here. */
static doorman_status doorman__acquirer_add(doorman__acquirer *acquirer, doorman__ask *ask,
                                            doorman_error *error) {
    doorman__call *call = NULL;
    ask->context = &acquirer->receiver;
    doorman_status status =
        doorman__permit_client_ask(acquirer->permits->client, ask, &call, error, doorman_clock());
    if (status != DOORMAN_OK) return status;
    assert(call->attended && !acquirer->decided && !acquirer->receiver.call);
    acquirer->end = call->deadline;
    if (call->state != DOORMAN__CALL_DECIDED) {
        acquirer->receiver.call = call;
        return DOORMAN_OK;
    }
    *acquirer->out = call->acquired;
    acquirer->decided = true;
    doorman__call_free(call);
    return DOORMAN_OK;
}

static doorman_status doorman__agent_ask_and_wait(doorman_agent *agent, doorman__ask *ask,
                                                  doorman_acquired *out, doorman_error *error) {
    if (!agent) return doorman__missing(error, "agent");
    if (!ask->permit && !ask->hold) return doorman__missing(error, "request");
    if (!out) return doorman__missing(error, "out");
    doorman_status status = doorman__agent_permits_begin(agent, error);
    if (status != DOORMAN_OK) return status;
    doorman__agent_permits *permits = agent->permits;
    doorman__acquirer *acquirer = NULL;
    if (doorman__agent_permits_is_own_thread(permits)) {
        status = doorman__agent_call_fail(error, DOORMAN_DEADLOCK);
    } else if (!(acquirer = doorman__acquirer_begin(agent, out))) {
        status = doorman__no_memory(error);
    } else {
        status = doorman__acquirer_add(acquirer, ask, error);
    }
    bool waits = status == DOORMAN_OK && !acquirer->decided;
    doorman__agent_permits_unlock(permits);
    if (waits) {
        doorman__acquirer_wait(acquirer);
        status = acquirer->status;
    }
    if (acquirer) doorman__acquirer_finish(acquirer);
    return status;
}

doorman_status doorman_agent_acquire(doorman_agent *agent, const doorman_permit_request *request,
                                     doorman_time timeout, doorman_acquired *out,
                                     doorman_error *error) {
    doorman__ask ask = {.permit = request, .timeout = timeout};
    return doorman__agent_ask_and_wait(agent, &ask, out, error);
}

doorman_status doorman_agent_transfer(doorman_agent *agent, const doorman_hold_request *request,
                                      doorman_acquired *out, doorman_error *error) {
    doorman__ask ask = {.kind = DOORMAN__CALL_TRANSFER, .hold = request};
    return doorman__agent_ask_and_wait(agent, &ask, out, error);
}

doorman_status doorman_agent_seize(doorman_agent *agent, const doorman_hold_request *request,
                                   doorman_acquired *out, doorman_error *error) {
    doorman__ask ask = {.kind = DOORMAN__CALL_SEIZURE, .hold = request};
    return doorman__agent_ask_and_wait(agent, &ask, out, error);
}

doorman_status doorman_agent_release_part(doorman_agent *agent, const doorman_hold_request *request,
                                          doorman_error *error) {
    if (!agent) return doorman__missing(error, "agent");
    if (!request) return doorman__missing(error, "request");
    doorman_status status = doorman__agent_permits_lock(agent, error);
    if (status != DOORMAN_OK) return status;
    doorman__agent_permits *permits = agent->permits;
    status = doorman_permit_client_release(permits->client, request, error, doorman_clock());
    doorman__agent_permits_unlock(permits);
    return status;
}

doorman_status doorman_agent_release(doorman_agent *agent, uint64_t hold) {
    const doorman_hold_request request = {.id = hold};
    if (!agent) return DOORMAN_INVALID_ARGUMENT;
    return hold ? doorman_agent_release_part(agent, &request, NULL) : DOORMAN_OK;
}

doorman_status doorman_agent_new_hold(doorman_agent *agent, uint64_t *out) {
    if (!agent || !out) return DOORMAN_INVALID_ARGUMENT;
    doorman_status status = doorman__agent_permits_lock(agent, NULL);
    if (status != DOORMAN_OK) return status;
    status = doorman_permit_client_new_hold(agent->permits->client, out);
    pthread_mutex_unlock(&agent->permits->mutex);
    return status;
}

doorman_status doorman_agent_read_hold(doorman_agent *agent, uint64_t hold, doorman_held *out) {
    if (out) memset(out, 0, sizeof *out);
    if (!agent || !out) return DOORMAN_INVALID_ARGUMENT;
    doorman_status status = doorman__agent_permits_lock(agent, NULL);
    if (status != DOORMAN_OK) return status;
    doorman_permit_client_read_hold(agent->permits->client, hold, out);
    pthread_mutex_unlock(&agent->permits->mutex);
    return DOORMAN_OK;
}

doorman_status doorman_agent_acquire_async(
    doorman_agent *agent, const doorman_permit_request *request, doorman_time timeout,
    void (*on_decided)(void *context, doorman_status status, const doorman_acquired *acquired),
    void *context, doorman_error *error) {
    if (!agent) return doorman__missing(error, "agent");
    if (!request) return doorman__missing(error, "request");
    if (!on_decided) return doorman__missing(error, "on_decided");
    doorman__call *call = NULL;
    doorman_status status = doorman__agent_permits_begin(agent, error);
    if (status != DOORMAN_OK) return status;
    doorman__receiver *receiver = (doorman__receiver *)doorman__zalloc(sizeof *receiver);
    if (receiver) {
        *receiver =
            (doorman__receiver){.on_decided = on_decided, .context = context, .is_allocated = true};
        const doorman__ask ask = {.permit = request, .timeout = timeout, .context = receiver};
        status =
            doorman__permit_client_ask(agent->permits->client, &ask, &call, error, doorman_clock());
    } else {
        status = doorman__no_memory(error);
    }
    if (status != DOORMAN_OK) DOORMAN_FREE(receiver);
    /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): the call owns the receiver */
    doorman__agent_permits_unlock(agent->permits);
    return status;
}

doorman_status doorman_agent_report(doorman_agent *agent, const char *resource_id, const char *key,
                                    double cost, doorman_error *error) {
    if (!agent) return doorman__missing(error, "agent");
    if (!resource_id) return doorman__missing(error, "resource_id");
    const doorman_permit_item item = {.resource_id = resource_id, .key = key, .cost = cost};
    doorman_status status = doorman__agent_permits_begin(agent, error);
    if (status != DOORMAN_OK) return status;
    status = doorman_permit_client_report(agent->permits->client, &item, error, doorman_clock());
    doorman__agent_permits_unlock(agent->permits);
    return status;
}

/* ---- permit agent: when the agent starts and stops */

static doorman_status doorman__agent_permits_create(doorman_agent *agent,
                                                    const doorman_client_options *options,
                                                    doorman_error *error) {
    doorman__agent_permits *permits = (doorman__agent_permits *)doorman__zalloc(sizeof *permits);
    assert(!agent->permits);
    if (!permits || pthread_mutex_init(&permits->mutex, NULL) != 0 ||
        pthread_cond_init(&permits->wake, &agent->monotonic) != 0) {
        DOORMAN_FREE(permits);
        return doorman__no_memory(error);
    }
    agent->permits = permits;
    permits->agent = agent;
    permits->stop_by = DOORMAN_NEVER;
    permits->on_hold_changed = options->permits.on_hold_changed;
    permits->context = options->permits.context;
    doorman_client_options own = *options;
    own.client_id = agent->client->client_id;
    own.tls = NULL; /* only the transport uses it */
    doorman_status status =
        doorman_permit_client_create(&permits->client, &own, error, doorman_clock());
    if (status != DOORMAN_OK) return status;
    const doorman_transport_options transport = {
        .upstream = doorman_permit_client_upstream(permits->client),
        .on_wakeup = doorman__agent_permits_on_wakeup,
        .context = permits,
        .tls = options->tls};
    status = doorman_transport_create(&permits->transports[0], &transport);
    if (status != DOORMAN_OK) return doorman__no_memory(error);
    permits->transports[0]->fails_early = true;
    permits->transport_count = 1;
    return DOORMAN_OK;
}

/* Ends all calls, and allows no new calls.
 *   stop_by   when the thread ends at the latest; 0: it does not end yet */
static void doorman__agent_permits_close(doorman_agent *agent, doorman_time stop_by) {
    doorman__agent_permits *permits = agent->permits;
    pthread_mutex_lock(&permits->mutex);
    permits->closed = true;
    if (stop_by) permits->stop_by = stop_by;
    permits->wakeup = true;
    pthread_cond_signal(&permits->wake);
    pthread_mutex_unlock(&permits->mutex);
}

/* Waits for the thread, and for the callers, which have been told that the agent stops. */
static void doorman__agent_permits_join(doorman_agent *agent) {
    doorman__agent_permits *permits = agent->permits;
    const struct timespec pause = {.tv_nsec = (long)DOORMAN__SLICE_PAUSE};
    if (permits->has_thread) pthread_join(permits->thread, NULL);
    while (__atomic_load_n(&permits->callers, __ATOMIC_ACQUIRE) > 0) (void)nanosleep(&pause, NULL);
}

static void doorman__agent_permits_free(doorman_agent *agent) {
    doorman__agent_permits *permits = agent->permits;
    assert(__atomic_load_n(&permits->callers, __ATOMIC_RELAXED) == 0);
    for (doorman__acquirer *acquirer = permits->unused, *next; acquirer; acquirer = next) {
        next = acquirer->next;
        pthread_cond_destroy(&acquirer->wake);
        pthread_mutex_destroy(&acquirer->mutex);
        DOORMAN_FREE(acquirer);
    }
    for (size_t i = 0; i < permits->transport_count; i++) {
        doorman_transport_destroy(permits->transports[i]);
    }
    doorman_permit_client_destroy(permits->client);
    pthread_cond_destroy(&permits->wake);
    pthread_mutex_destroy(&permits->mutex);
    DOORMAN_FREE(permits);
}

/* Called with each result of a request for leases. */
static void doorman__agent_permits_note_result(doorman_agent *agent,
                                               const doorman_transport_result *result) {
    doorman__agent_permits *permits = agent->permits;
    if (doorman__pause_end(&permits->pause, result)) doorman__agent_permits_on_wakeup(permits);
}

/* Returns whether the calling thread is that of the permits. */
static bool doorman__agent_permits_is_called(doorman_agent *agent) {
    doorman__agent_permits *permits = agent->permits;
    pthread_mutex_lock(&permits->mutex);
    bool own_thread = doorman__agent_permits_is_own_thread(permits);
    pthread_mutex_unlock(&permits->mutex);
    return own_thread;
}

/* Adds what is known of the permits. Of two last errors, the later one stays. */
static void doorman__agent_permits_read(doorman_agent *agent, doorman_agent_info *out) {
    doorman__agent_permits *permits = agent->permits;
    pthread_mutex_lock(&permits->mutex);
    if (permits->last_error_at > out->last_error_at) {
        out->last_error = permits->last_error;
        out->last_error_at = permits->last_error_at;
    }
    doorman_permit_client_read(permits->client, &out->permits);
    pthread_mutex_unlock(&permits->mutex);
}

static void doorman__agent_permits_set_kill_switch(doorman_agent *agent, bool on) {
    doorman__agent_permits *permits = agent->permits;
    pthread_mutex_lock(&permits->mutex);
    doorman_permit_client_kill_switch(permits->client, on);
    doorman__agent_permits_unlock(permits);
}

static const doorman__agent_permit_calls doorman__permits_in_agent = {
    .create = doorman__agent_permits_create,
    .free = doorman__agent_permits_free,
    .note_result = doorman__agent_permits_note_result,
    .close = doorman__agent_permits_close,
    .is_own_thread = doorman__agent_permits_is_called,
    .join = doorman__agent_permits_join,
    .read = doorman__agent_permits_read,
    .set_kill_switch = doorman__agent_permits_set_kill_switch,
};
#endif /* DOORMAN_NNG */

#endif /* DOORMAN__PERMITS_IMPLEMENTED */
#endif /* DOORMAN_IMPLEMENTATION */

/* MIT licence: the text at the end of doorman.h is also for this header. */
