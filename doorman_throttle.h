/*
 * doorman_throttle.h, version 0.2.0: which requests a loaded server takes, and in which order. It
 * also has the retry budget of a client.
 *
 * DO THIS
 *
 *     In one C file, before any other include:
 *
 *         #define DOORMAN_IMPLEMENTATION
 *         #include "doorman_throttle.h"
 *
 *     The header includes doorman.h, which must be in the same folder and have the same version.
 *     That C file then has the implementation of doorman.h too. Without DOORMAN_STATIC, no other
 *     file may define DOORMAN_IMPLEMENTATION. If the program has permits too, that C file includes
 *     doorman_permits.h first. Other files include the header without DOORMAN_IMPLEMENTATION. A
 *     program that uses other macros of doorman.h (for JSON, nng, memory, DOORMAN_STATIC) defines
 *     them as there. Without them the throttle needs only the C standard library.
 *
 * THE THROTTLE
 *
 * A throttle is a bounded queue in front of the work of a server. It decides which requests the
 * server takes, and in which order. So the server keeps its latency when more requests arrive than
 * it can answer. The section >>throttle states the rules H1 to H6, H9, H10 and H12.
 *
 * A worked example. A server has 16 workers. A request costs 1 ms of CPU time, which is the unit of
 * cost. So the server can do 16 units in a millisecond, and 1,600 units in 100 ms:
 *
 *     doorman_throttle_options options = {.queue_cost = 1600, .concurrency = 16};
 *
 *     a request arrives   doorman_throttle_offer. If it returns DOORMAN_THROTTLE_REFUSED, the
 *                         server responds with `retry_after`
 *     a worker is free    doorman_throttle_next returns the id of the request to work on
 *     the work is done    doorman_throttle_finish with the cost that was measured
 *     after each call     doorman_throttle_next_refused until it returns false. The server responds
 *                         to these requests with `retry_after`
 *     at doorman_throttle_due   doorman_throttle_update, and then doorman_throttle_next
 *
 * What happens when 2,000 requests arrive at once, and the work of each takes 1 ms:
 *
 *     0 ms     1,600 requests are taken, 320 of these with a warning, and 400 are refused: FULL.
 *              The 16 workers start the oldest 16
 *     1 ms     they finish, and the workers start the next 16. A request of criticality 5 arrives
 *     2 ms     it goes first, and 15 of the oldest requests start beside it
 *     51 ms    the oldest has waited more than half of 100 ms, so now the newest go first
 *     100 ms   the last one starts. If the work took longer than 1 ms, what is left after this
 *              would have waited too long, and would be refused: WAITED. Each client would have to
 *              try again after 50 to 150 ms
 *
 * The throttle has an effect only if the caller calls doorman_throttle_next just before a worker
 * starts, or sets `concurrency`. The throttle needs no listener for events: each call returns what
 * happens to its request. doorman_throttle_next_refused returns what happens to other requests, and
 * doorman_throttle_read returns all counters. Only one thread at a time may use a throttle.
 *
 * THE API. The documentation of each function is above its declaration.
 *
 *     throttle       doorman_throttle_create  _destroy  _offer  _next  _finish  _update  _due
 *                    _next_refused  _read  _report
 *     retry budget   doorman_retry_budget_init  _first_try  _retry
 *
 * ERRORS, THREADS, TIME AND MEMORY are as in doorman.h. A throttle allocates memory only when it is
 * created. A NULL throttle or request is refused: doorman_throttle_offer returns
 * DOORMAN_THROTTLE_REFUSED. doorman_throttle_report makes a report of overload for
 * doorman_resource_report_overload. With such reports, the capacity of a resource follows what its
 * servers can do (H11 in doorman.h).
 *
 * MIT licence, as doorman.h.
 */
#include "doorman.h"

#if DOORMAN_VERSION_NUMBER != 200
#error "doorman_throttle.h: it needs the doorman.h of the same version, 0.2.0"
#endif

#ifndef DOORMAN_THROTTLE_H
#define DOORMAN_THROTTLE_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct doorman_throttle doorman_throttle;

#define DOORMAN_CRITICALITIES 16

/* Why a request is refused. */
typedef enum doorman_throttle_reason {
    DOORMAN_THROTTLE_FULL,        /* the queue has no room for it (H2, H4) */
    DOORMAN_THROTTLE_DISPLACED,   /* a request that goes before it needed its room (H4) */
    DOORMAN_THROTTLE_WAITED,      /* it has waited too long (H5) */
    DOORMAN_THROTTLE_LATE,        /* its deadline had passed when it arrived (H5) */
    DOORMAN_THROTTLE_BAD_REQUEST, /* its criticality is above 15, its id is in use, or an argument
                                     is NULL */
    DOORMAN_THROTTLE_REASON_COUNT
} doorman_throttle_reason;

typedef enum doorman_throttle_result {
    DOORMAN_THROTTLE_TAKEN,
    DOORMAN_THROTTLE_WARNED, /* taken, and the queue is nearly full (H9) */
    DOORMAN_THROTTLE_REFUSED
} doorman_throttle_result;

typedef struct doorman_throttle_options {
    double queue_cost;     /* required: the queue is full when the predicted costs of the requests
                              that wait reach this sum, in units of cost, (0, 1e15]. A useful value
                              is the cost that the server handles in 100 ms */
    size_t queue_max;      /* the most requests that wait, 1 to 1,000,000; default 10,000 */
    size_t concurrency;    /* the most requests that are worked on at once, 1 to 1,000,000; default
                              10,000. A useful value is one to two times the number of workers */
    double rate;           /* units of cost that start in a second, (0, 1e15]; default: no limit */
    double initial_cost;   /* the predicted cost before any request has finished, (0, 1e15]; default
                              1 */
    doorman_time max_wait; /* how long a request may wait, at most 1e8 s; default: 100 ms, or ten
                              mean service times if that is longer */
    double warn_at;        /* the part of the queue above which a request is taken with a warning,
                              (0, 1]; default 0.8 */
    size_t class_max;      /* the most classes with a cost of their own, 1 to 1,000,000; default
                              1,024. Further classes have the mean cost of all requests */
    uint64_t seed[2];      /* random bits, for the cohorts of users and for retry_after. Other
                              people must not know them */
} doorman_throttle_options;

typedef struct doorman_throttle_request {
    uint64_t id;           /* chosen by the caller. No other request that waits or is worked on may
                              have this id */
    uint64_t class_id;     /* what kind of work it is. Requests whose costs differ much should have
                              different classes */
    unsigned criticality;  /* 0 to 15; the highest goes first */
    const char *user;      /* the user that it belongs to. Only used during the call. Users are in 8
                              groups that change each hour, and a lower group goes first (H6). So
                              under overload some users are served in full, and others are not.
                              NULL: none; it goes with the first group, before most users of the
                              same criticality */
    doorman_time deadline; /* when its answer becomes useless, on the clock of `now`; 0: never. The
                              request waits for at most half of the time until then */
} doorman_throttle_request;

typedef struct doorman_throttle_refusal {
    uint64_t id;
    doorman_throttle_reason reason;
    doorman_time retry_after; /* how long the client should wait before it tries again */
} doorman_throttle_refusal;

/* What a throttle has counted since it was created, and its present state. */
typedef struct doorman_throttle_counters {
    uint64_t offered;  /* calls of doorman_throttle_offer with a request */
    uint64_t warned;   /* requests that were taken with a warning */
    uint64_t started;  /* requests that doorman_throttle_next has returned */
    uint64_t finished; /* requests that doorman_throttle_finish has ended */
    uint64_t refused[DOORMAN_THROTTLE_REASON_COUNT];
    size_t waiting;            /* requests that wait now */
    size_t running;            /* requests that are worked on now */
    double waiting_cost;       /* the sum of the predicted costs of the requests that wait now */
    double mean_cost;          /* the mean cost of all classes; initial_cost if none has finished */
    doorman_time mean_service; /* the mean time from next to finish; 0 if none has finished */
    doorman_time max_wait;     /* how long a request may wait now (H5) */
} doorman_throttle_counters;

/* Creates a throttle. All memory is allocated here (H12).
 *   out       written only on OK; the caller destroys it
 *   options   used only during the call
 *   error     may be NULL; names the field that is wrong
 *   returns   OK | INVALID_ARGUMENT | OUT_OF_MEMORY
 *   cost      about 100 bytes for each of queue_max and concurrency, and for each class at most 100
 */
DOORMAN_API doorman_status doorman_throttle_create(doorman_throttle **out,
                                                   const doorman_throttle_options *options,
                                                   doorman_error *error);
DOORMAN_API void doorman_throttle_destroy(doorman_throttle *throttle); /* NULL has no effect */

/* Takes a request into the queue, or refuses it. The call can refuse other requests: see
 * doorman_throttle_next_refused.
 *   request   used only during the call
 *   refusal   may be NULL; written only if the call returns REFUSED.
 *             doorman_throttle_next_refused does not return this refusal again
 *   cost      O(log queue_max), and for each other request that is refused O(1), or
 *             O(log queue_max) if it has a deadline
 *   source    DAGOR (WeChat, 2018) for the criticality and the cohorts */
DOORMAN_API doorman_throttle_result doorman_throttle_offer(doorman_throttle *throttle,
                                                           const doorman_throttle_request *request,
                                                           doorman_throttle_refusal *refusal,
                                                           doorman_time now);

/* Starts the request that the server should work on now. The caller must end it with
 * doorman_throttle_finish.
 *   id        written only if the call returns true
 *   returns   false if no request waits, or `concurrency` or `rate` allows no more work
 *   cost      O(log queue_max), and for each request that is refused as much as by
 *             doorman_throttle_offer
 *   source    "Fail at Scale" (Maurer, 2015) for the rule that the newest goes first. Here the age
 *             of the oldest decides when it applies (H6) */
DOORMAN_API bool doorman_throttle_next(doorman_throttle *throttle, uint64_t *id, doorman_time now);

/* Ends a request that doorman_throttle_next has returned.
 *   cost      what the work has cost, in units of cost, [0, 1e15]. The prediction learns nothing
 *             from another number, for example NaN
 *   returns   false if no request of this id is worked on; then no request ends */
DOORMAN_API bool doorman_throttle_finish(doorman_throttle *throttle, uint64_t id, double cost,
                                         doorman_time now);

/* Refuses the requests that have waited too long. doorman_throttle_next_refused returns them. */
DOORMAN_API void doorman_throttle_update(doorman_throttle *throttle, doorman_time now);

/* Returns when the caller must call doorman_throttle_update, and then doorman_throttle_next. Each
 * call with a time makes the result stale.
 *   returns   a time, or DOORMAN_NEVER */
DOORMAN_API doorman_time doorman_throttle_due(const doorman_throttle *throttle);

/* Returns the requests that earlier calls have refused, one by one. A refused request keeps its
 * memory in the throttle until this function has returned it. If no such memory is free, the
 * throttle refuses every request. So after every call of another function, call
 * doorman_throttle_next_refused until it returns false.
 *   out       written only if the call returns true */
DOORMAN_API bool doorman_throttle_next_refused(doorman_throttle *throttle,
                                               doorman_throttle_refusal *out);

/* Reads the counters, as of the last call with a time.
 *   out       written in full */
DOORMAN_API void doorman_throttle_read(const doorman_throttle *throttle,
                                       doorman_throttle_counters *out);

/* Makes a report for doorman_resource_report_overload: what the throttle has counted since the last
 * report. The first report counts from the first call with a time.
 *   target    overload_target of doorman_resource_info. From now on, a request is late if it starts
 *             after a longer wait; 0: no request is late, as before the first report
 *   out       written in full. If no time has passed since the last report, all fields are 0, and
 *             the next report has what was counted */
DOORMAN_API void doorman_throttle_report(doorman_throttle *throttle, doorman_time target,
                                         doorman_overload_report *out, doorman_time now);

/* The retry budget of a client (H10). After n first tries, it has allowed at most 10 + n / 10
 * retries. So retries cannot keep a server overloaded. The caller provides the memory. Only one
 * thread at a time may use a budget. */
typedef struct doorman_retry_budget {
    uint32_t tenths; /* tokens, in tenths: 0 to 100 */
} doorman_retry_budget;

/* Fills the budget: it has 10 tokens. So a client can retry its first failures. */
DOORMAN_API void doorman_retry_budget_init(doorman_retry_budget *budget);

/* Adds 0.1 token. Call it at each first try. First tries are never held back. */
DOORMAN_API void doorman_retry_budget_first_try(doorman_retry_budget *budget);

/* Takes one token for a retry.
 *   returns   false if there is less than one token; then the client must not retry */
DOORMAN_API bool doorman_retry_budget_retry(doorman_retry_budget *budget);

#ifdef __cplusplus
}
#endif

#endif /* DOORMAN_THROTTLE_H */

/* ==== the API ends here; what follows is only the implementation ============================= */

#ifdef DOORMAN_IMPLEMENTATION
#ifndef DOORMAN__THROTTLE_IMPLEMENTED
#define DOORMAN__THROTTLE_IMPLEMENTED

/* ---- >>throttle ----------------------------------------------------------------------------- */
/*
 * A throttle is a pure state machine: it reads no clock, does no I/O and starts no thread. The
 * rules have the numbers of their specification, in which H7 and H8 were dropped. H11 concerns the
 * feedback from servers, and is not part of this section.
 *
 * H1 A request is offered, and then it is taken or refused. A request that was taken waits, until
 *    doorman_throttle_next starts it or the throttle refuses it. A request that was started ends
 *    with doorman_throttle_finish.
 * H2 The cost of a request is predicted from its class: a moving average, in which the newest cost
 *    has the weight max(1/n, 0.02). Here n counts the requests of the class that have finished. If
 *    no request of a class has finished, the mean of all classes counts. The queue is bounded by
 *    the sum of the predicted costs and by the number of requests. There is room while the sum is
 *    below its bound, so one request can pass the bound. Otherwise an expensive request might never
 *    find enough room, because cheap requests fill it again and again.
 * H3 At most `concurrency` requests are worked on at once. With `rate`, a bucket of tokens limits
 *    the predicted cost that starts. The bucket holds 0.1 s of the rate. A request starts if the
 *    bucket has its cost, or is full. The bucket can be in debt after this. `finish` adds the
 *    predicted cost to the bucket, and subtracts the actual cost.
 * H4 If there is no room for a request, requests that would go after it (H6) are refused until
 *    there is room, the last one first. If there would not be enough room even without all of
 *    these, only the request that arrives is refused.
 * H5 A request may wait for at most max_wait, and for at most half of the time from its arrival to
 *    its deadline. At exactly this limit it can still start. The next call with a later time
 *    refuses it. If max_wait follows the mean service time, its present value counts for all
 *    requests that wait.
 * H6 The highest criticality goes first. In a criticality the lowest cohort goes first. In a cohort
 *    the oldest goes first. But once the oldest has waited more than half of the time that H5
 *    allows it, the newest goes first, until the cohort is empty. The cohort of a user is a keyed
 *    hash of the user and of the hour of `now`. It is computed once, at the offer. So a request
 *    that waits keeps its cohort when the hour ends, and the requests of one user can be in two
 *    cohorts for at most max_wait.
 * H9 If the queue is above the part `warn_at` of one of its two bounds (H2), a request is taken
 *    with a warning. retry_after is max(max_wait, 100 ms), multiplied by a random factor from 0.5
 *    to 1.5.
 * H10 Each first try of a client adds 0.1 token. At most 10 tokens are kept. Each retry takes one.
 * H12 Everything is bounded, and no memory is allocated after `create`.
 *
 * Each request has a slot. Slots never move, so lists and the heap name them by their index. A slot
 * that waits is in up to four structures:
 *     the table of ids      finds a request at `finish`; running requests stay in it
 *     the queue of its cohort   16 * 8 lists in order of arrival. Bitmaps show which are not empty
 *     the list of ages      all requests that wait, in order of arrival. max_wait is the same for
 *                           all, so the first one reaches it first, even if max_wait changes
 *     the heap of limits    only requests with a deadline, by the time until which it lets them
 *                           wait (H5)
 * A slot that is refused is in the list of refusals until the caller has read it. There is one slot
 * more than queue_max + concurrency. So a request that displaces others finds a free slot, if all
 * refusals were read.
 *
 * While the newest of a cohort goes first and the queue is full, a request that arrives for the
 * cohort can displace its oldest. So an expensive request has a chance too, and requests that are
 * too old are refused early. `make sim THROTTLE=1` shows this.
 *
 * Sums of costs are doubles. They are at most queue_cost plus the cost of one request. They become
 * exactly 0 when the queue empties, so rounding errors do not add up.
 */
enum {
    DOORMAN__COHORTS = 8,
    DOORMAN__BY_COHORT = 0, /* the links of a slot in the list of its cohort */
    DOORMAN__BY_AGE = 1     /* the links of a slot in all other lists */
};

#define DOORMAN__NO_SLOT UINT32_MAX
#define DOORMAN__THROTTLE_COUNT_MAX ((size_t)1000000)
#define DOORMAN__THROTTLE_WAIT (DOORMAN_SECOND / 10)

typedef enum doorman__queued_state {
    DOORMAN__QUEUED_FREE,
    DOORMAN__QUEUED_WAITS,
    DOORMAN__QUEUED_RUNS,
    DOORMAN__QUEUED_REFUSED
} doorman__queued_state;

typedef struct doorman__queued {
    uint64_t id, class_id;
    uint64_t number;      /* counts the requests that were taken; the newest has the largest */
    double cost;          /* predicted */
    doorman_time since;   /* when it arrived; while it runs: when it started */
    doorman_time half_at; /* when half of the time to its deadline has passed; NEVER: none */
    doorman_time retry_after;
    uint32_t previous[2], next[2]; /* by list: DOORMAN__BY_COHORT, DOORMAN__BY_AGE */
    uint32_t next_id;              /* in its bucket of the table of ids */
    uint32_t heap_index;           /* DOORMAN__NO_SLOT: not in the heap */
    uint8_t criticality, cohort, state, reason;
    bool late; /* it had waited longer than `target` when it started */
} doorman__queued;

typedef struct doorman__queued_list {
    uint32_t first, last;
} doorman__queued_list;

/* The requests of one criticality and cohort that wait. */
typedef struct doorman__cohort {
    doorman__queued_list list;
    size_t count;
    double cost;
    bool newest_first; /* a former oldest had waited more than half of its limit (H6) */
} doorman__cohort;

/* An average that follows changes (H2). */
typedef struct doorman__average {
    uint64_t count;
    double mean;
} doorman__average;

typedef struct doorman__class {
    uint64_t id;
    doorman__average cost; /* count 0: this place of the table is free */
} doorman__class;

struct doorman_throttle {
    doorman_throttle_options options;
    doorman_time now;
    uint64_t random;
    doorman__queued *slots;
    uint32_t *buckets; /* the table of ids */
    uint32_t *heap;
    doorman__class *classes; /* a table with open addressing */
    size_t bucket_mask, class_mask, class_count, heap_count;
    doorman__cohort cohorts[DOORMAN_CRITICALITIES][DOORMAN__COHORTS];
    unsigned used_criticalities;                  /* bit i: criticality i has requests that wait */
    unsigned used_cohorts[DOORMAN_CRITICALITIES]; /* bit i: cohort i has requests that wait */
    doorman__queued_list ages, refusals, unused;
    doorman__average cost, service; /* of all classes; the service time is in nanoseconds */
    double tokens;                  /* of `rate` */
    uint64_t number;
    doorman_throttle_counters counters;
    doorman_time target;              /* that of the last report; DOORMAN_NEVER: no request is
                                         late */
    uint64_t late;                    /* requests that have finished and were late */
    doorman_time reported_at;         /* the last report, or else the first call; before any call:
                                         DOORMAN_NEVER */
    doorman_overload_report reported; /* the sums up to reported_at */
};

/* ---- throttle: lists, the table of ids, the heap of limits */

static void doorman__queued_push(doorman_throttle *throttle, doorman__queued_list *list, int by,
                                 uint32_t index) {
    doorman__queued *slot = &throttle->slots[index];
    assert((list->first == DOORMAN__NO_SLOT) == (list->last == DOORMAN__NO_SLOT));
    slot->previous[by] = list->last;
    slot->next[by] = DOORMAN__NO_SLOT;
    if (list->last == DOORMAN__NO_SLOT)
        list->first = index;
    else
        throttle->slots[list->last].next[by] = index;
    list->last = index;
}

static void doorman__queued_remove(doorman_throttle *throttle, doorman__queued_list *list, int by,
                                   uint32_t index) {
    uint32_t previous = throttle->slots[index].previous[by];
    uint32_t next = throttle->slots[index].next[by];
    assert((previous == DOORMAN__NO_SLOT) == (list->first == index));
    assert((next == DOORMAN__NO_SLOT) == (list->last == index));
    if (previous == DOORMAN__NO_SLOT)
        list->first = next;
    else
        throttle->slots[previous].next[by] = next;
    if (next == DOORMAN__NO_SLOT)
        list->last = previous;
    else
        throttle->slots[next].previous[by] = previous;
}

static uint32_t *doorman__throttle_bucket(const doorman_throttle *throttle, uint64_t id) {
    return &throttle->buckets[doorman__mix(id ^ throttle->options.seed[0]) & throttle->bucket_mask];
}

static uint32_t doorman__throttle_find(const doorman_throttle *throttle, uint64_t id) {
    uint32_t index = *doorman__throttle_bucket(throttle, id);
    while (index != DOORMAN__NO_SLOT && throttle->slots[index].id != id) {
        index = throttle->slots[index].next_id;
    }
    return index;
}

static void doorman__throttle_forget_id(doorman_throttle *throttle, uint32_t index) {
    uint32_t *from = doorman__throttle_bucket(throttle, throttle->slots[index].id);
    while (*from != index) {
        assert(*from != DOORMAN__NO_SLOT);
        from = &throttle->slots[*from].next_id;
    }
    *from = throttle->slots[index].next_id;
}

static void doorman__deadlines_put(doorman_throttle *throttle, size_t at, uint32_t index) {
    assert(at < throttle->heap_count);
    throttle->heap[at] = index;
    throttle->slots[index].heap_index = (uint32_t)at;
}

/* Moves a slot up or down from the position `at`, until the heap is in order. */
static void doorman__deadlines_move(doorman_throttle *throttle, size_t at, uint32_t index) {
    const doorman__queued *slots = throttle->slots;
    const uint32_t *heap = throttle->heap;
    doorman_time limit = slots[index].half_at;
    assert(at < throttle->heap_count && throttle->heap_count <= throttle->options.queue_max);
    while (at > 0 && slots[heap[(at - 1) / 2]].half_at > limit) {
        doorman__deadlines_put(throttle, at, heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (size_t child; (child = 2 * at + 1) < throttle->heap_count; at = child) {
        bool right = child + 1 < throttle->heap_count &&
                     slots[heap[child + 1]].half_at < slots[heap[child]].half_at;
        if (right) child++;
        if (slots[heap[child]].half_at >= limit) break;
        doorman__deadlines_put(throttle, at, heap[child]);
    }
    doorman__deadlines_put(throttle, at, index);
}

static void doorman__deadlines_remove(doorman_throttle *throttle, uint32_t index) {
    size_t at = throttle->slots[index].heap_index;
    if (at == DOORMAN__NO_SLOT) return;
    assert(throttle->heap[at] == index && throttle->heap_count > 0);
    uint32_t last = throttle->heap[--throttle->heap_count];
    throttle->slots[index].heap_index = DOORMAN__NO_SLOT;
    if (last != index) doorman__deadlines_move(throttle, at, last);
}

/* ---- throttle: costs, service times and the rate */

static void doorman__average_add(doorman__average *average, double value) {
    average->count++;
    average->mean += (value - average->mean) * doorman__max(1 / (double)average->count, 0.02);
}

/* Returns the place of a class, or the free place at which it can be added. */
static doorman__class *doorman__throttle_class(const doorman_throttle *throttle, uint64_t id) {
    size_t at = (size_t)doorman__mix(id ^ throttle->options.seed[1]) & throttle->class_mask;
    while (throttle->classes[at].cost.count && throttle->classes[at].id != id) {
        at = (at + 1) & throttle->class_mask;
    }
    return &throttle->classes[at];
}

static double doorman__throttle_mean_cost(const doorman_throttle *throttle) {
    return throttle->cost.count ? throttle->cost.mean : throttle->options.initial_cost;
}

static double doorman__throttle_predict(const doorman_throttle *throttle, uint64_t class_id) {
    const doorman__class *known = doorman__throttle_class(throttle, class_id);
    return known->cost.count ? known->cost.mean : doorman__throttle_mean_cost(throttle);
}

static void doorman__throttle_learn(doorman_throttle *throttle, uint64_t class_id, double cost) {
    doorman__class *known = doorman__throttle_class(throttle, class_id);
    doorman__average_add(&throttle->cost, cost);
    if (!known->cost.count && throttle->class_count == throttle->options.class_max) return;
    if (!known->cost.count) throttle->class_count++;
    known->id = class_id;
    doorman__average_add(&known->cost, cost);
    assert(throttle->class_count <= throttle->options.class_max);
}

static doorman_time doorman__throttle_max_wait(const doorman_throttle *throttle) {
    if (throttle->options.max_wait) return throttle->options.max_wait;
    double wait = doorman__max(10 * throttle->service.mean, (double)DOORMAN__THROTTLE_WAIT);
    return (doorman_time)doorman__min(wait, (double)DOORMAN_DURATION_MAX);
}

static double doorman__throttle_burst(const doorman_throttle *throttle) {
    return throttle->options.rate / 10;
}

/* Moves the clock, and adds the tokens of the time that has passed. If `now` is earlier than
 * before, the clock stands still. */
static void doorman__throttle_advance(doorman_throttle *throttle, doorman_time now) {
    if (throttle->reported_at == DOORMAN_NEVER) throttle->reported_at = doorman__later(now, 0);
    if (now <= throttle->now) return;
    double seconds = (double)(now - throttle->now) / (double)DOORMAN_SECOND;
    throttle->tokens = doorman__min(throttle->tokens + seconds * throttle->options.rate,
                                    doorman__throttle_burst(throttle));
    throttle->now = now;
}

/* ---- throttle: refusals, and the end of waiting */

static doorman_time doorman__throttle_retry_after(doorman_throttle *throttle) {
    doorman_time wait =
        doorman__later(doorman__throttle_max_wait(throttle), DOORMAN__THROTTLE_WAIT);
    return doorman__scale(wait, 0.5 + doorman__random_unit(&throttle->random));
}

/* Returns until when a request that waits can start (H5). */
static doorman_time doorman__throttle_limit(const doorman_throttle *throttle, uint32_t index) {
    const doorman__queued *slot = &throttle->slots[index];
    return doorman__earlier(doorman__after(slot->since, doorman__throttle_max_wait(throttle)),
                            slot->half_at);
}

/* Returns whether the newest request of a cohort goes first (H6). Precondition: the cohort is not
 * empty. */
static bool doorman__newest_first(const doorman_throttle *throttle, const doorman__cohort *cohort) {
    assert(cohort->list.first != DOORMAN__NO_SLOT);
    doorman_time since = throttle->slots[cohort->list.first].since;
    doorman_time limit = doorman__throttle_limit(throttle, cohort->list.first) - since;
    return cohort->newest_first || throttle->now - since > limit / 2;
}

/* Takes a slot that waits out of all queues. The slot stays in the table of ids. */
static void doorman__throttle_dequeue(doorman_throttle *throttle, uint32_t index) {
    const doorman__queued *slot = &throttle->slots[index];
    unsigned level = slot->criticality;
    doorman__cohort *cohort = &throttle->cohorts[level][slot->cohort];
    assert(slot->state == DOORMAN__QUEUED_WAITS && cohort->count > 0);
    assert(throttle->counters.waiting >= cohort->count);
    if (index == cohort->list.first) cohort->newest_first = doorman__newest_first(throttle, cohort);
    doorman__queued_remove(throttle, &cohort->list, DOORMAN__BY_COHORT, index);
    doorman__queued_remove(throttle, &throttle->ages, DOORMAN__BY_AGE, index);
    doorman__deadlines_remove(throttle, index);
    throttle->counters.waiting--;
    throttle->counters.waiting_cost -= slot->cost;
    cohort->cost -= slot->cost;
    if (--cohort->count == 0) {
        *cohort = (doorman__cohort){.list = cohort->list};
        throttle->used_cohorts[level] &= ~(1u << slot->cohort);
        if (!throttle->used_cohorts[level]) throttle->used_criticalities &= ~(1u << level);
    }
    if (throttle->counters.waiting == 0) throttle->counters.waiting_cost = 0;
    assert((cohort->count == 0) == (cohort->list.first == DOORMAN__NO_SLOT));
}

static void doorman__throttle_refuse(doorman_throttle *throttle, uint32_t index,
                                     doorman_throttle_reason reason) {
    doorman__queued *slot = &throttle->slots[index];
    doorman__throttle_dequeue(throttle, index);
    doorman__throttle_forget_id(throttle, index);
    slot->state = DOORMAN__QUEUED_REFUSED;
    slot->reason = (uint8_t)reason;
    slot->retry_after = doorman__throttle_retry_after(throttle);
    throttle->counters.refused[reason]++;
    doorman__queued_push(throttle, &throttle->refusals, DOORMAN__BY_AGE, index);
}

/* Moves the clock, and refuses what has waited too long (H5). Each refusal is O(1), or O(log n) for
 * a request with a deadline. */
static void doorman__throttle_work(doorman_throttle *throttle, doorman_time now) {
    doorman__throttle_advance(throttle, now);
    while (throttle->ages.first != DOORMAN__NO_SLOT &&
           throttle->now > doorman__throttle_limit(throttle, throttle->ages.first)) {
        doorman__throttle_refuse(throttle, throttle->ages.first, DOORMAN_THROTTLE_WAITED);
    }
    while (throttle->heap_count && throttle->now > throttle->slots[throttle->heap[0]].half_at) {
        doorman__throttle_refuse(throttle, throttle->heap[0], DOORMAN_THROTTLE_WAITED);
    }
}

/* ---- throttle: how a request is taken */

/* Returns the index of the lowest bit that is set. Precondition: a bit is set. */
static unsigned doorman__lowest_bit(unsigned bits) {
    assert(bits);
    unsigned bit = 0;
    while (!(bits & 1u)) {
        bits >>= 1;
        bit++;
    }
    return bit;
}

static unsigned doorman__highest_bit(unsigned bits) {
    assert(bits);
    unsigned bit = 0;
    while (bits >>= 1) bit++;
    return bit;
}

/* Returns whether the queue has room beside `count` requests whose costs have the sum `sum`. The
 * cost of the request that arrives does not count, so the sum can then pass the bound (H2). */
static bool doorman__throttle_has_room(const doorman_throttle *throttle, size_t count, double sum) {
    const doorman_throttle_options *options = &throttle->options;
    return count == 0 || (count < options->queue_max && sum < options->queue_cost);
}

/* Returns whether a request of a criticality and a cohort goes before the request that goes last.
 * Sets *index to the slot of the request that goes last. Precondition: a request waits. */
static bool doorman__throttle_last(const doorman_throttle *throttle, unsigned level,
                                   unsigned cohort, uint32_t *index) {
    unsigned last_level = doorman__lowest_bit(throttle->used_criticalities);
    unsigned last_cohort = doorman__highest_bit(throttle->used_cohorts[last_level]);
    const doorman__cohort *last = &throttle->cohorts[last_level][last_cohort];
    bool newest_first = doorman__newest_first(throttle, last);
    *index = newest_first ? last->list.first : last->list.last;
    if (last_level != level) return last_level < level;
    return last_cohort == cohort ? newest_first : last_cohort > cohort;
}

/* Adds the counts and the costs of the first `cohorts` cohorts of a criticality. Their requests go
 * before the request that arrives. */
static void doorman__throttle_add_cohorts(const doorman_throttle *throttle, unsigned level,
                                          unsigned cohorts, size_t *count, double *sum) {
    if (!throttle->used_cohorts[level]) return;
    for (unsigned i = 0; i < cohorts; i++) {
        *count += throttle->cohorts[level][i].count;
        *sum += throttle->cohorts[level][i].cost;
    }
}

/* Returns whether there would be room for a request if all requests that go after it were
 * refused. */
static bool doorman__throttle_can_have_room(const doorman_throttle *throttle, unsigned level,
                                            unsigned cohort) {
    const doorman__cohort *own = &throttle->cohorts[level][cohort];
    bool goes_first = own->count && doorman__newest_first(throttle, own);
    size_t count = 0;
    double sum = 0;
    doorman__throttle_add_cohorts(throttle, level, goes_first ? cohort : cohort + 1, &count, &sum);
    for (unsigned i = level + 1; i < DOORMAN_CRITICALITIES; i++) {
        doorman__throttle_add_cohorts(throttle, i, DOORMAN__COHORTS, &count, &sum);
    }
    return doorman__throttle_has_room(throttle, count, sum);
}

/* Makes room for a request, if the requests that go after it take enough room (H4). Returns whether
 * there is room. */
static bool doorman__throttle_make_room(doorman_throttle *throttle, unsigned level,
                                        unsigned cohort) {
    const doorman_throttle_counters *counters = &throttle->counters;
    if (throttle->unused.first == DOORMAN__NO_SLOT) return false; /* refusals were not read */
    if (doorman__throttle_has_room(throttle, counters->waiting, counters->waiting_cost))
        return true;
    if (!doorman__throttle_can_have_room(throttle, level, cohort)) return false;
    do {
        uint32_t last;
        /* If no request goes after this one, rounding has made the two sums differ, and there is
         * room. */
        if (!doorman__throttle_last(throttle, level, cohort, &last)) break;
        doorman__throttle_refuse(throttle, last, DOORMAN_THROTTLE_DISPLACED);
    } while (!doorman__throttle_has_room(throttle, counters->waiting, counters->waiting_cost));
    return true;
}

static unsigned doorman__throttle_cohort(const doorman_throttle *throttle, const char *user) {
    if (!user) return 0;
    uint64_t hour = (uint64_t)(throttle->now / (3600 * DOORMAN_SECOND));
    const uint64_t key[2] = {throttle->options.seed[0], throttle->options.seed[1] ^ hour};
    return (unsigned)(doorman__hash(key, user) % DOORMAN__COHORTS);
}

/* Precondition: doorman__throttle_make_room returned true. */
static void doorman__throttle_enqueue(doorman_throttle *throttle,
                                      const doorman_throttle_request *request, unsigned cohort) {
    uint32_t index = throttle->unused.first, *bucket;
    doorman__queued *slot = &throttle->slots[index];
    unsigned level = request->criticality;
    double cost = doorman__throttle_predict(throttle, request->class_id);
    doorman__cohort *to = &throttle->cohorts[level][cohort];
    assert(slot->state == DOORMAN__QUEUED_FREE);
    doorman__queued_remove(throttle, &throttle->unused, DOORMAN__BY_AGE, index);
    bucket = doorman__throttle_bucket(throttle, request->id);
    *slot = (doorman__queued){.id = request->id,
                              .class_id = request->class_id,
                              .number = ++throttle->number,
                              .cost = cost,
                              .since = throttle->now,
                              .half_at = DOORMAN_NEVER,
                              .next_id = *bucket,
                              .heap_index = DOORMAN__NO_SLOT,
                              .criticality = (uint8_t)level,
                              .cohort = (uint8_t)cohort,
                              .state = DOORMAN__QUEUED_WAITS};
    *bucket = index;
    doorman__queued_push(throttle, &to->list, DOORMAN__BY_COHORT, index);
    doorman__queued_push(throttle, &throttle->ages, DOORMAN__BY_AGE, index);
    throttle->used_criticalities |= 1u << level;
    throttle->used_cohorts[level] |= 1u << cohort;
    to->count++;
    to->cost += cost;
    throttle->counters.waiting++;
    throttle->counters.waiting_cost += cost;
    if (!request->deadline) return;
    slot->half_at = throttle->now + (request->deadline - throttle->now) / 2;
    doorman__deadlines_move(throttle, throttle->heap_count++, index);
}

/* Returns false, and writes the reason, if the request is refused. */
static bool doorman__throttle_take(doorman_throttle *throttle,
                                   const doorman_throttle_request *request,
                                   doorman_throttle_reason *reason) {
    *reason = DOORMAN_THROTTLE_BAD_REQUEST;
    if (request->criticality >= DOORMAN_CRITICALITIES) return false;
    if (doorman__throttle_find(throttle, request->id) != DOORMAN__NO_SLOT) return false;
    *reason = DOORMAN_THROTTLE_LATE;
    if (request->deadline && request->deadline <= throttle->now) return false;
    *reason = DOORMAN_THROTTLE_FULL;
    unsigned cohort = doorman__throttle_cohort(throttle, request->user);
    if (!doorman__throttle_make_room(throttle, request->criticality, cohort)) return false;
    doorman__throttle_enqueue(throttle, request, cohort);
    return true;
}

doorman_throttle_result doorman_throttle_offer(doorman_throttle *throttle,
                                               const doorman_throttle_request *request,
                                               doorman_throttle_refusal *refusal,
                                               doorman_time now) {
    if (!throttle || !request) {
        if (refusal) *refusal = (doorman_throttle_refusal){0, DOORMAN_THROTTLE_BAD_REQUEST, 0};
        return DOORMAN_THROTTLE_REFUSED;
    }
    const doorman_throttle_options *options = &throttle->options;
    doorman_throttle_counters *counters = &throttle->counters;
    doorman_throttle_reason reason;
    doorman__throttle_work(throttle, now);
    counters->offered++;
    if (!doorman__throttle_take(throttle, request, &reason)) {
        counters->refused[reason]++;
        doorman_time retry_after = doorman__throttle_retry_after(throttle);
        if (refusal) *refusal = (doorman_throttle_refusal){request->id, reason, retry_after};
        return DOORMAN_THROTTLE_REFUSED;
    }
    assert(counters->waiting <= options->queue_max);
    bool warned = counters->waiting_cost > options->warn_at * options->queue_cost ||
                  (double)counters->waiting > options->warn_at * (double)options->queue_max;
    if (warned) counters->warned++;
    return warned ? DOORMAN_THROTTLE_WARNED : DOORMAN_THROTTLE_TAKEN;
}

/* ---- throttle: how a request starts and ends */

/* Returns the request that goes first (H6). Precondition: a request waits. */
static uint32_t doorman__throttle_first(const doorman_throttle *throttle) {
    unsigned level = doorman__highest_bit(throttle->used_criticalities);
    unsigned cohort = doorman__lowest_bit(throttle->used_cohorts[level]);
    const doorman__cohort *first = &throttle->cohorts[level][cohort];
    return doorman__newest_first(throttle, first) ? first->list.last : first->list.first;
}

/* Returns how many tokens a request needs to start (H3). */
static double doorman__throttle_need(const doorman_throttle *throttle, uint32_t index) {
    return doorman__min(throttle->slots[index].cost, doorman__throttle_burst(throttle));
}

bool doorman_throttle_next(doorman_throttle *throttle, uint64_t *id, doorman_time now) {
    if (!throttle || !id) return false;
    doorman__throttle_work(throttle, now);
    doorman_throttle_counters *counters = &throttle->counters;
    if (!counters->waiting || counters->running == throttle->options.concurrency) return false;
    uint32_t index = doorman__throttle_first(throttle);
    doorman__queued *slot = &throttle->slots[index];
    bool limited = throttle->options.rate > 0;
    if (limited && throttle->tokens < doorman__throttle_need(throttle, index)) return false;
    if (limited) throttle->tokens -= slot->cost;
    doorman__throttle_dequeue(throttle, index);
    slot->state = DOORMAN__QUEUED_RUNS;
    slot->late = throttle->now - slot->since > throttle->target;
    slot->since = throttle->now;
    counters->started++;
    counters->running++;
    assert(counters->running <= throttle->options.concurrency);
    *id = slot->id;
    return true;
}

static void doorman__throttle_free(doorman_throttle *throttle, uint32_t index) {
    throttle->slots[index].state = DOORMAN__QUEUED_FREE;
    doorman__queued_push(throttle, &throttle->unused, DOORMAN__BY_AGE, index);
}

bool doorman_throttle_finish(doorman_throttle *throttle, uint64_t id, double cost,
                             doorman_time now) {
    if (!throttle) return false;
    doorman__throttle_work(throttle, now);
    uint32_t index = doorman__throttle_find(throttle, id);
    if (index == DOORMAN__NO_SLOT) return false;
    const doorman__queued *slot = &throttle->slots[index];
    if (slot->state != DOORMAN__QUEUED_RUNS) return false;
    doorman_time service = doorman__earlier(throttle->now - slot->since, DOORMAN_DURATION_MAX);
    doorman__average_add(&throttle->service, (double)service);
    if (doorman__amount_valid(cost)) {
        throttle->tokens =
            doorman__min(throttle->tokens + slot->cost - cost, doorman__throttle_burst(throttle));
        doorman__throttle_learn(throttle, slot->class_id, cost);
    }
    doorman__throttle_forget_id(throttle, index);
    doorman__throttle_free(throttle, index);
    assert(throttle->counters.running > 0);
    throttle->counters.running--;
    throttle->counters.finished++;
    throttle->late += slot->late;
    return true;
}

void doorman_throttle_update(doorman_throttle *throttle, doorman_time now) {
    if (!throttle) return;
    doorman__throttle_work(throttle, now);
}

/* Returns when the rate allows the first request to start, if only the rate holds it back.
 * Otherwise returns DOORMAN_NEVER. */
static doorman_time doorman__throttle_starts_at(const doorman_throttle *throttle) {
    assert(throttle->counters.waiting > 0);
    if (throttle->counters.running == throttle->options.concurrency) return DOORMAN_NEVER;
    double missing =
        doorman__throttle_need(throttle, doorman__throttle_first(throttle)) - throttle->tokens;
    if (!(throttle->options.rate > 0 && missing > 0)) return DOORMAN_NEVER;
    double wait = missing / throttle->options.rate * (double)DOORMAN_SECOND + 1;
    wait = doorman__min(wait, (double)DOORMAN_DURATION_MAX);
    return doorman__after(throttle->now, (doorman_time)wait);
}

doorman_time doorman_throttle_due(const doorman_throttle *throttle) {
    if (!throttle) return DOORMAN_NEVER;
    if (!throttle->counters.waiting) return DOORMAN_NEVER;
    doorman_time limit = doorman__throttle_limit(throttle, throttle->ages.first);
    if (throttle->heap_count) {
        limit = doorman__earlier(limit, throttle->slots[throttle->heap[0]].half_at);
    }
    return doorman__earlier(doorman__after(limit, 1), doorman__throttle_starts_at(throttle));
}

bool doorman_throttle_next_refused(doorman_throttle *throttle, doorman_throttle_refusal *out) {
    if (!throttle || !out) return false;
    uint32_t index = throttle->refusals.first;
    if (index == DOORMAN__NO_SLOT) return false;
    const doorman__queued *slot = &throttle->slots[index];
    assert(slot->state == DOORMAN__QUEUED_REFUSED);
    *out = (doorman_throttle_refusal){slot->id, (doorman_throttle_reason)slot->reason,
                                      slot->retry_after};
    doorman__queued_remove(throttle, &throttle->refusals, DOORMAN__BY_AGE, index);
    doorman__throttle_free(throttle, index);
    return true;
}

void doorman_throttle_read(const doorman_throttle *throttle, doorman_throttle_counters *out) {
    if (!out) return;
    memset(out, 0, sizeof *out);
    if (!throttle) return;
    *out = throttle->counters;
    out->mean_cost = doorman__throttle_mean_cost(throttle);
    out->mean_service = (doorman_time)throttle->service.mean;
    out->max_wait = doorman__throttle_max_wait(throttle);
}

/* A BAD_REQUEST is a mistake of the caller, and does not count as arrived. A report with the
 * interval 0 keeps the counts for the next report. */
void doorman_throttle_report(doorman_throttle *throttle, doorman_time target,
                             doorman_overload_report *out, doorman_time now) {
    if (!out) return;
    memset(out, 0, sizeof *out);
    if (!throttle) return;
    const doorman_throttle_counters *counters = &throttle->counters;
    const doorman_overload_report *last = &throttle->reported;
    uint64_t bad = counters->refused[DOORMAN_THROTTLE_BAD_REQUEST], refused = 0;
    doorman__throttle_work(throttle, now);
    throttle->target = target ? target : DOORMAN_NEVER;
    *out = (doorman_overload_report){.interval = throttle->now - throttle->reported_at};
    if (!out->interval) return;
    for (int i = 0; i < DOORMAN_THROTTLE_REASON_COUNT; i++) refused += counters->refused[i];
    const doorman_overload_report sum = {.arrived = (double)(counters->offered - bad),
                                         .finished = (double)counters->finished,
                                         .refused = (double)(refused - bad),
                                         .late = (double)throttle->late};
    *out = (doorman_overload_report){.interval = out->interval,
                                     .arrived = sum.arrived - last->arrived,
                                     .finished = sum.finished - last->finished,
                                     .refused = sum.refused - last->refused,
                                     .late = sum.late - last->late};
    throttle->reported = sum;
    throttle->reported_at = throttle->now;
}

/* ---- throttle: create and destroy */

/* Sets the defaults. Returns the text of the first rule that is broken, or NULL. */
static const char *doorman__throttle_check(doorman_throttle_options *own) {
    if (!own->queue_max) own->queue_max = 10000;
    if (!own->concurrency) own->concurrency = 10000;
    if (!own->class_max) own->class_max = 1024;
    if (doorman__equal(own->warn_at, 0)) own->warn_at = 0.8;
    if (doorman__equal(own->initial_cost, 0)) own->initial_cost = 1;
    const doorman__rule rules[] = {
        {!(doorman__amount_valid(own->queue_cost) && own->queue_cost > 0),
         "queue_cost: must be more than 0 and at most 1e15"},
        {own->queue_max > DOORMAN__THROTTLE_COUNT_MAX, "queue_max: must be at most 1,000,000"},
        {own->concurrency > DOORMAN__THROTTLE_COUNT_MAX, "concurrency: must be at most 1,000,000"},
        {own->class_max > DOORMAN__THROTTLE_COUNT_MAX, "class_max: must be at most 1,000,000"},
        {!doorman__amount_valid(own->rate), "rate: " DOORMAN__AMOUNT_RULE},
        {!doorman__amount_valid(own->initial_cost), "initial_cost: " DOORMAN__AMOUNT_RULE},
        {own->max_wait < 0 || own->max_wait > DOORMAN_DURATION_MAX,
         "max_wait: " DOORMAN__DURATION_OR_ZERO_RULE},
        {!(own->warn_at > 0 && own->warn_at <= 1), "warn_at: must be from 0 to 1"},
    };
    size_t next = 0;
    return DOORMAN__RULE_NEXT(rules, &next);
}

static size_t doorman__power_of_two(size_t least) {
    size_t power = 1;
    while (power < least) power *= 2;
    return power;
}

/* Returns false if memory runs out. */
static bool doorman__throttle_allocate(doorman_throttle *throttle, size_t slots) {
    const doorman_throttle_options *options = &throttle->options;
    size_t buckets = doorman__power_of_two(slots);
    size_t classes = doorman__power_of_two(2 * options->class_max);
    throttle->bucket_mask = buckets - 1;
    throttle->class_mask = classes - 1;
    throttle->slots = (doorman__queued *)doorman__zalloc(slots * sizeof *throttle->slots);
    throttle->buckets = (uint32_t *)DOORMAN_MALLOC(buckets * sizeof *throttle->buckets);
    throttle->heap = (uint32_t *)doorman__zalloc(options->queue_max * sizeof *throttle->heap);
    throttle->classes = (doorman__class *)doorman__zalloc(classes * sizeof *throttle->classes);
    if (throttle->buckets) memset(throttle->buckets, 0xff, buckets * sizeof *throttle->buckets);
    return throttle->slots && throttle->buckets && throttle->heap && throttle->classes;
}

static void doorman__throttle_start(doorman_throttle *throttle, size_t slots) {
    const doorman__queued_list none = {DOORMAN__NO_SLOT, DOORMAN__NO_SLOT};
    for (unsigned i = 0; i < DOORMAN_CRITICALITIES; i++) {
        for (unsigned j = 0; j < DOORMAN__COHORTS; j++) throttle->cohorts[i][j].list = none;
    }
    throttle->ages = throttle->refusals = throttle->unused = none;
    for (size_t i = 0; i < slots; i++) doorman__throttle_free(throttle, (uint32_t)i);
    throttle->random = doorman__hash(throttle->options.seed, "retry_after");
    throttle->tokens = doorman__throttle_burst(throttle);
    throttle->target = throttle->reported_at = DOORMAN_NEVER;
}

doorman_status doorman_throttle_create(doorman_throttle **out,
                                       const doorman_throttle_options *options,
                                       doorman_error *error) {
    if (!out) return doorman__missing(error, "out");
    if (!options) return doorman__missing(error, "options");
    doorman_throttle_options own = *options;
    const char *wrong = doorman__throttle_check(&own);
    if (wrong) return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "%s", wrong);
    doorman_throttle *throttle = (doorman_throttle *)doorman__zalloc(sizeof *throttle);
    if (!throttle) return doorman__no_memory(error);
    throttle->options = own;
    size_t slots = own.queue_max + own.concurrency + 1;
    if (!doorman__throttle_allocate(throttle, slots)) {
        doorman_throttle_destroy(throttle);
        return doorman__no_memory(error);
    }
    doorman__throttle_start(throttle, slots);
    *out = throttle;
    return DOORMAN_OK;
}

void doorman_throttle_destroy(doorman_throttle *throttle) {
    if (!throttle) return;
    DOORMAN_FREE(throttle->slots);
    DOORMAN_FREE(throttle->buckets);
    DOORMAN_FREE(throttle->heap);
    DOORMAN_FREE(throttle->classes);
    DOORMAN_FREE(throttle);
}

/* ---- throttle: the retry budget of a client (H10) */

enum { DOORMAN__RETRY_TENTHS = 100 };

void doorman_retry_budget_init(doorman_retry_budget *budget) {
    if (!budget) return;
    budget->tenths = DOORMAN__RETRY_TENTHS;
}

void doorman_retry_budget_first_try(doorman_retry_budget *budget) {
    if (!budget) return;
    assert(budget->tenths <= DOORMAN__RETRY_TENTHS);
    if (budget->tenths < DOORMAN__RETRY_TENTHS) budget->tenths++;
}

bool doorman_retry_budget_retry(doorman_retry_budget *budget) {
    if (!budget) return false;
    assert(budget->tenths <= DOORMAN__RETRY_TENTHS);
    if (budget->tenths < 10) return false;
    budget->tenths -= 10;
    return true;
}

#endif /* DOORMAN__THROTTLE_IMPLEMENTED */
#endif /* DOORMAN_IMPLEMENTATION */

/* MIT licence: the text at the end of doorman.h is also for this header. */
