/* The first bytes choose the options of a throttle. Each of the next triples of bytes is a call on
 * it. The array `requests` keeps the state of each request. After each call, the counters, the
 * queues and the bounds are compared with a recount. At the end all requests end. */
#define DOORMAN_STATIC /* compiles in less time */
#define DOORMAN_IMPLEMENTATION
#include "fuzz.h"

#include "doorman_throttle.h"

#include <limits.h>

#define CALLS 400      /* at most */
#define IDS 64         /* few, so that ids are used again */
#define OPTION_BYTES 6 /* at the start of the input */
#define MILLISECOND (DOORMAN_SECOND / 1000)

typedef enum request_state { ENDED, WAITS, RUNS } request_state;

/* What the test knows of the request with one id. */
typedef struct request {
    request_state state;
    unsigned criticality;
    unsigned unread; /* refusals of this id that nobody has read */
    doorman_time arrived, deadline;
} request;

typedef struct throttle_world {
    doorman_throttle *throttle;
    doorman_throttle_options options;
    request requests[IDS];
    doorman_time now; /* the latest time that a call has passed */
} throttle_world;

static const double costs[] = {1, 0, 0.3, 25, 1000, 1e15, 1.1e15, -1, NAN, INFINITY, 2, 7};
static const doorman_time steps[] = {
    0, 0, 1, MILLISECOND, 30 * MILLISECOND, DOORMAN_SECOND, 3600 * DOORMAN_SECOND, -DOORMAN_SECOND};

static size_t count_of(const throttle_world *world, request_state state) {
    size_t count = 0;
    for (size_t i = 0; i < IDS; i++) count += world->requests[i].state == state;
    return count;
}

/* ---- the recount ---- */

/* The costs of the requests that wait, counted again: their sum, and the largest one. */
typedef struct recount {
    double sum, largest;
} recount;

/* Checks that the list of one cohort is in order of arrival, and adds its costs to `all`. */
static void check_cohort(const throttle_world *world, unsigned level, unsigned number,
                         recount *all) {
    const doorman_throttle *throttle = world->throttle;
    const doorman__cohort *cohort = &throttle->cohorts[level][number];
    uint32_t at = cohort->list.first;
    uint64_t last = 0;
    size_t count = 0;
    for (; at != DOORMAN__NO_SLOT; at = throttle->slots[at].next[DOORMAN__BY_COHORT]) {
        const doorman__queued *slot = &throttle->slots[at];
        must(slot->state == DOORMAN__QUEUED_WAITS && slot->number > last);
        must(slot->criticality == level && slot->cohort == number);
        must(world->requests[slot->id % IDS].state == WAITS);
        last = slot->number;
        all->sum += slot->cost;
        all->largest = fmax(all->largest, slot->cost);
        count++;
    }
    must(count == cohort->count && (count > 0 || !cohort->newest_first));
    must((count > 0) == (throttle->used_cohorts[level] >> number & 1));
    must(count == 0 || throttle->used_criticalities >> level & 1);
}

static void check_heap(const doorman_throttle *throttle) {
    for (size_t i = 0; i < throttle->heap_count; i++) {
        const doorman__queued *slot = &throttle->slots[throttle->heap[i]];
        must(slot->heap_index == i && slot->state == DOORMAN__QUEUED_WAITS);
        must(i == 0 || throttle->slots[throttle->heap[(i - 1) / 2]].half_at <= slot->half_at);
    }
}

static void check(const throttle_world *world) {
    doorman_throttle_counters counters;
    uint64_t refused = 0;
    recount all = {0, 0};
    double bound = world->options.queue_cost;
    doorman_throttle_read(world->throttle, &counters);
    for (unsigned i = 0; i < DOORMAN_CRITICALITIES * DOORMAN__COHORTS; i++) {
        check_cohort(world, i / DOORMAN__COHORTS, i % DOORMAN__COHORTS, &all);
    }
    check_heap(world->throttle);
    for (int i = 0; i < DOORMAN_THROTTLE_REASON_COUNT; i++) refused += counters.refused[i];
    must(counters.offered == counters.waiting + counters.started + refused);
    must(counters.started == counters.running + counters.finished);
    must(counters.waiting == count_of(world, WAITS) && counters.running == count_of(world, RUNS));
    must(counters.waiting <= world->options.queue_max);
    must(counters.running <= world->options.concurrency);
    must(fabs(counters.waiting_cost - all.sum) <= 1e-9 * fmax(1e15, bound));
    must(all.sum <= all.largest + bound * (1 + 1e-9) + 1e6);
    must(counters.mean_service >= 0 && fuzz_amount(counters.mean_cost));
    must(doorman_throttle_due(world->throttle) > world->now);
}

/* ---- the calls ---- */

static void check_wait(const throttle_world *world, doorman_time retry_after) {
    doorman_throttle_counters counters;
    doorman_throttle_read(world->throttle, &counters);
    must(retry_after >= 50 * MILLISECOND);
    must(!world->options.max_wait || retry_after <= 150 * MILLISECOND + 2 * counters.max_wait);
}

/* Reads up to `at_most` refusals. Refusals that are not read keep their slots. */
static void read_refusals(throttle_world *world, unsigned at_most) {
    doorman_throttle_refusal refusal;
    for (unsigned i = 0; i < at_most; i++) {
        if (!doorman_throttle_next_refused(world->throttle, &refusal)) break;
        must(world->requests[refusal.id].unread-- > 0);
        must(refusal.reason == DOORMAN_THROTTLE_WAITED ||
             refusal.reason == DOORMAN_THROTTLE_DISPLACED);
        check_wait(world, refusal.retry_after);
    }
}

/* Finds what the last call has refused. The new refusals are the last ones of the list.
 *   level   only requests of a criticality below this may have been displaced */
static void note_refusals(throttle_world *world, unsigned level) {
    const doorman_throttle *throttle = world->throttle;
    uint32_t at = throttle->refusals.first;
    size_t known = 0;
    for (size_t i = 0; i < IDS; i++) known += world->requests[i].unread;
    for (; at != DOORMAN__NO_SLOT; at = throttle->slots[at].next[DOORMAN__BY_AGE]) {
        const doorman__queued *slot = &throttle->slots[at];
        request *own = &world->requests[slot->id];
        if (known) {
            known--;
            continue;
        }
        must(own->state == WAITS);
        must(slot->reason != DOORMAN_THROTTLE_DISPLACED || own->criticality < level);
        own->state = ENDED;
        own->unread++;
    }
}

static void offer(throttle_world *world, unsigned op, unsigned value, unsigned more,
                  doorman_time now) {
    char user[4];
    snprintf(user, sizeof user, "%u", more % 10);
    doorman_throttle_request offered = {.id = value % IDS,
                                        .class_id = more % 6,
                                        .criticality = op / 16 + (more == 255),
                                        .user = more % 3 ? user : NULL};
    if (value > 128) offered.deadline = now + steps[more % 8];
    request *own = &world->requests[offered.id];
    doorman_throttle_refusal refusal;
    doorman_throttle_result result =
        doorman_throttle_offer(world->throttle, &offered, &refusal, now);
    note_refusals(world, offered.criticality + 1);
    if (result == DOORMAN_THROTTLE_REFUSED) {
        must(refusal.id == offered.id && refusal.reason != DOORMAN_THROTTLE_WAITED);
        check_wait(world, refusal.retry_after);
        return;
    }
    must(own->state == ENDED);
    *own = (request){WAITS, offered.criticality, own->unread, world->now, offered.deadline};
}

/* Starts the next request. Checks that it has the highest criticality, and has not waited too
 * long. */
static void next(throttle_world *world, doorman_time now) {
    uint64_t id = IDS;
    bool started = doorman_throttle_next(world->throttle, &id, now);
    note_refusals(world, 0);
    if (!started) return;
    request *own = &world->requests[id];
    must(own->state == WAITS);
    must(!own->deadline || world->now - own->arrived <= (own->deadline - own->arrived) / 2);
    for (size_t i = 0; i < IDS; i++) {
        const request *other = &world->requests[i];
        must(other->state != WAITS || other->criticality <= own->criticality);
    }
    own->state = RUNS;
}

static void call(throttle_world *world, unsigned op, unsigned value, unsigned more) {
    doorman_time now = world->now + steps[value % 8];
    if (now < 0) now = 0;
    if (op % 8 >= 4) now = world->now;
    if (now > world->now) world->now = now;
    switch (op % 8) {
    case 0: doorman_throttle_update(world->throttle, now); break;
    case 1:
    case 2:
        if (doorman_throttle_finish(world->throttle, more % IDS, costs[value % 12], now)) {
            must(world->requests[more % IDS].state == RUNS);
            world->requests[more % IDS].state = ENDED;
        } else {
            must(world->requests[more % IDS].state != RUNS);
        }
        break;
    case 3:
    case 4: next(world, now); break;
    default: offer(world, op, value, more, now); break;
    }
    note_refusals(world, DOORMAN_CRITICALITIES);
    read_refusals(world, more > 200 ? 1 : UINT_MAX);
    check(world);
}

/* Ends all requests, and checks that nothing is left. */
static void drain(throttle_world *world) {
    doorman_throttle_counters counters;
    for (size_t id = 0; id < IDS; id++) {
        doorman_throttle_finish(world->throttle, id, 1, world->now);
        note_refusals(world, 0);
        if (world->requests[id].state == RUNS) world->requests[id].state = ENDED;
    }
    world->now += 2 * DOORMAN_DURATION_MAX;
    doorman_throttle_update(world->throttle, world->now);
    note_refusals(world, 0);
    read_refusals(world, UINT_MAX);
    check(world);
    doorman_throttle_read(world->throttle, &counters);
    must(counters.waiting == 0 && counters.running == 0 && counters.waiting_cost <= 0);
    must(doorman_throttle_due(world->throttle) == DOORMAN_NEVER);
    must(count_of(world, ENDED) == IDS);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const double bounds[] = {10, 0.5, 100, 1e15};
    static const double rates[] = {0, 1, 1000, 1e15};
    if (bytes < OPTION_BYTES) return 0;
    throttle_world world = {.now = DOORMAN_SECOND,
                            .options = {.queue_cost = bounds[data[0] % 4],
                                        .queue_max = 1 + (size_t)data[1] % 20,
                                        .concurrency = 1 + (size_t)data[2] % 8,
                                        .rate = rates[data[3] % 4],
                                        .max_wait = data[4] * MILLISECOND,
                                        .class_max = 1 + (size_t)data[5] % 6,
                                        .seed = {data[0], data[1]}}};
    must(doorman_throttle_create(&world.throttle, &world.options, NULL) == DOORMAN_OK);
    doorman_throttle_update(world.throttle, world.now);
    for (size_t i = OPTION_BYTES; i + 2 < bytes && i < 3 * CALLS; i += 3) {
        call(&world, data[i], data[i + 1], data[i + 2]);
    }
    drain(&world);
    doorman_throttle_destroy(world.throttle);
    return 0;
}
