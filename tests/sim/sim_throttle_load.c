/* A simulated server with workers, its clients, and simulated time: see sim_throttle.h. */
#include "sim_throttle.h"

#include <math.h>
#include <stdlib.h>

enum {
    CHUNK = 4096, /* requests in one block of memory, so that requests never move */
    CLIENTS = 20, /* each has a retry budget */
    USERS = 10000,
    TIME_STEPS = 100000 /* of the histogram of times to answer: 0.1 ms */
};

#define BURST_INTERVAL (200 * SIM_MILLISECOND)
#define TIME_STEP (SIM_MILLISECOND / 10)
#define RETRY_PAUSE (100 * SIM_MILLISECOND)
#define SLOWNESS 5

typedef enum event_kind {
    FRESH,   /* the next request of the open load */
    BURST,   /* the next burst */
    ARRIVES, /* a retry, or the next call of a task */
    DONE,    /* a worker has done its work */
    TIMEOUT  /* a client does not wait any longer */
} event_kind;

typedef struct event {
    doorman_time at;
    uint64_t order; /* of events at the same time */
    event_kind kind;
    uint32_t request;
} event;

typedef struct totals {
    double work; /* nanoseconds of a worker, answered in time */
    uint64_t arrived, refused, high, high_answered, tasks, tasks_answered, answered;
    uint64_t of_class[2], of_class_answered[2];
    uint64_t slow_tries, slow_first_tries;
    doorman_time longest_wait;
    uint32_t times[TIME_STEPS + 1];
} totals;

/* First tries that arrived in a slot of time, and how many of them succeeded in the end. */
typedef struct slot {
    uint32_t tries, successes;
} slot;

struct sim_throttle_world {
    const sim_throttle_load *load;
    sim_policy policy;
    doorman_time now, from, until; /* requests that arrive from `from` until `until` count */
    uint64_t order, random, random_service;
    event *events; /* a heap; the earliest is the first */
    size_t event_count, event_capacity;
    sim_throttle_request **chunks;
    size_t chunk_count;
    uint32_t unused; /* the first request that is free */
    doorman_retry_budget budgets[CLIENTS];
    slot *slots;
    size_t slot_count;
    totals totals;
};

static void *no_null(void *memory) {
    if (!memory) abort();
    return memory;
}

/* ---- random numbers */

static double random_unit(uint64_t *state) { /* (0, 1] */
    return ((double)(sim_random(state) >> 11) + 1) / 9007199254740992.0;
}

static doorman_time random_exponential(uint64_t *state, double mean) {
    return (doorman_time)(-log(random_unit(state)) * mean) + 1;
}

static uint32_t random_below(uint64_t *state, uint32_t bound) {
    return (uint32_t)(sim_random(state) % bound);
}

static doorman_time random_service(sim_throttle_world *world, uint8_t *class_id) {
    *class_id = 0;
    if (world->load->service == SIM_CONSTANT) return SIM_MEAN_SERVICE;
    if (world->load->service == SIM_EXPONENTIAL) {
        return random_exponential(&world->random_service, (double)SIM_MEAN_SERVICE);
    }
    *class_id = random_unit(&world->random_service) <= 0.05;
    return (*class_id ? 105 : 5) * SIM_MILLISECOND;
}

/* ---- events */

static bool is_before(const event *a, const event *b) {
    return a->at < b->at || (a->at == b->at && a->order < b->order);
}

static void plan(sim_throttle_world *world, event_kind kind, uint32_t request, doorman_time at) {
    if (world->event_count == world->event_capacity) {
        world->event_capacity = 2 * world->event_capacity + 1024;
        world->events =
            no_null(realloc(world->events, world->event_capacity * sizeof *world->events));
    }
    event added = {at, ++world->order, kind, request};
    size_t i = world->event_count++;
    for (; i > 0 && is_before(&added, &world->events[(i - 1) / 2]); i = (i - 1) / 2) {
        world->events[i] = world->events[(i - 1) / 2];
    }
    world->events[i] = added;
}

static event take_event(sim_throttle_world *world) {
    event first = world->events[0], last = world->events[--world->event_count];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < world->event_count; i = child) {
        if (child + 1 < world->event_count &&
            is_before(&world->events[child + 1], &world->events[child])) {
            child++;
        }
        if (!is_before(&world->events[child], &last)) break;
        world->events[i] = world->events[child];
    }
    world->events[i] = last;
    return first;
}

/* ---- requests */

sim_throttle_request *sim_throttle_request_at(sim_throttle_world *world, uint32_t index) {
    return &world->chunks[index / CHUNK][index % CHUNK];
}

static void add_chunk(sim_throttle_world *world) {
    size_t count = world->chunk_count++;
    world->chunks = no_null(realloc(world->chunks, world->chunk_count * sizeof *world->chunks));
    world->chunks[count] = no_null(malloc(CHUNK * sizeof **world->chunks));
    for (size_t i = CHUNK; i-- > 0;) {
        sim_throttle_request *request = &world->chunks[count][i];
        request->index = (uint32_t)(count * CHUNK + i);
        request->next = world->unused;
        world->unused = request->index;
    }
}

static sim_throttle_request *add_request(sim_throttle_world *world) {
    if (world->unused == SIM_THROTTLE_NONE) add_chunk(world);
    sim_throttle_request *request = sim_throttle_request_at(world, world->unused);
    world->unused = request->next;
    *request = (sim_throttle_request){.index = request->index};
    return request;
}

/* Ends one use of a request, by the server or by the time-out of its client. */
static void release(sim_throttle_world *world, sim_throttle_request *request) {
    if (--request->uses > 0) return;
    request->next = world->unused;
    world->unused = request->index;
}

static slot *slot_of(sim_throttle_world *world, doorman_time at) {
    size_t index = (size_t)(at / SIM_SLOT);
    return &world->slots[index < world->slot_count ? index : world->slot_count - 1];
}

static bool counts(const sim_throttle_world *world, const sim_throttle_request *request) {
    return request->first_at >= world->from && request->first_at < world->until;
}

static bool is_slow(const sim_throttle_world *world) {
    doorman_time from = world->load->slow_from;
    return world->now >= from && world->now < from + world->load->slow_for;
}

/* ---- clients */

/* Notes that a try has failed. The client tries again, if it may. */
static void fail(sim_throttle_world *world, sim_throttle_request *failed, doorman_time after) {
    const sim_throttle_load *load = world->load;
    failed->awaited = false;
    if (!load->retries || failed->tries == SIM_TRIES) return;
    if (load->budget && !doorman_retry_budget_retry(&world->budgets[failed->client])) return;
    sim_throttle_request *request = add_request(world);
    request->first_at = failed->first_at;
    request->client = failed->client;
    request->tries = (uint16_t)(failed->tries + 1);
    request->criticality = failed->criticality;
    double pause = (double)RETRY_PAUSE * (0.5 + random_unit(&world->random));
    plan(world, ARRIVES, request->index, world->now + (after ? after : (doorman_time)pause));
}

void sim_throttle_refused(sim_throttle_world *world, uint32_t index, doorman_time retry_after) {
    sim_throttle_request *request = sim_throttle_request_at(world, index);
    if (counts(world, request)) world->totals.refused++;
    if (request->awaited) fail(world, request, retry_after);
    release(world, request);
}

static void arrive(sim_throttle_world *world, sim_throttle_request *request) {
    request->at = world->now;
    request->service = random_service(world, &request->class_id);
    request->awaited = true;
    request->uses = 1;
    if (counts(world, request)) {
        world->totals.arrived++;
        world->totals.high += request->criticality > 0;
        world->totals.of_class[request->class_id]++;
    }
    if (is_slow(world)) {
        world->totals.slow_tries++;
        world->totals.slow_first_tries += request->tries == 1;
    }
    if (world->load->retries) {
        request->uses++;
        plan(world, TIMEOUT, request->index, world->now + SIM_PATIENCE);
    }
    sim_policy_offer(&world->policy, request, world->now);
}

/* Lets the first try of a client arrive, or the first call of a task. */
static void arrive_first(sim_throttle_world *world) {
    sim_throttle_request *request = add_request(world);
    request->first_at = world->now;
    request->tries = request->calls = 1;
    request->client = random_below(&world->random, CLIENTS);
    request->user = random_below(&world->random, USERS);
    request->criticality = random_unit(&world->random) <= world->load->high;
    slot_of(world, world->now)->tries++;
    doorman_retry_budget_first_try(&world->budgets[request->client]);
    if (counts(world, request)) world->totals.tasks++;
    arrive(world, request);
}

/* Notes that a client has its answer in time. */
static void succeed(sim_throttle_world *world, const sim_throttle_request *request) {
    bool counted = counts(world, request);
    slot_of(world, request->first_at)->successes++;
    if (counted) {
        world->totals.high_answered += request->criticality > 0;
        world->totals.of_class_answered[request->class_id]++;
    }
    if (!world->load->tasks) return;
    if (request->calls == SIM_CALLS) {
        world->totals.tasks_answered += counted;
        return;
    }
    sim_throttle_request *next = add_request(world);
    next->first_at = request->first_at;
    next->tries = 1;
    next->calls = (uint16_t)(request->calls + 1);
    next->user = request->user;
    plan(world, ARRIVES, next->index,
         world->now + random_exponential(&world->random, (double)SIM_MILLISECOND));
}

/* ---- the server */

static void start_work(sim_throttle_world *world) {
    const sim_throttle_load *load = world->load;
    while (world->policy.running < load->workers) {
        uint32_t index = sim_policy_next(&world->policy, world->now);
        if (index == SIM_THROTTLE_NONE) return;
        const sim_throttle_request *request = sim_throttle_request_at(world, index);
        doorman_time wait = world->now - request->at;
        if (wait > world->totals.longest_wait) world->totals.longest_wait = wait;
        plan(world, DONE, index, world->now + request->service * (is_slow(world) ? SLOWNESS : 1));
    }
}

static void end_work(sim_throttle_world *world, sim_throttle_request *request) {
    doorman_time time = world->now - request->at;
    sim_policy_finish(&world->policy, request, world->now);
    if (counts(world, request)) {
        world->totals.answered++;
        world->totals.times[time / TIME_STEP < TIME_STEPS ? time / TIME_STEP : TIME_STEPS]++;
    }
    if (time <= SIM_PATIENCE && world->now >= world->from) {
        world->totals.work += (double)request->service;
    }
    if (request->awaited && time <= SIM_PATIENCE) succeed(world, request);
    request->awaited = false;
    release(world, request);
}

/* ---- a run */

/* Returns how many requests, or tasks, arrive in a nanosecond, without the bursts. */
static double open_rate(const sim_throttle_load *load) {
    double rate = load->load * (double)load->workers / (double)SIM_MEAN_SERVICE;
    if (load->tasks) rate /= SIM_CALLS;
    return rate - (double)load->burst / (double)BURST_INTERVAL;
}

static void handle(sim_throttle_world *world, const event *happens) {
    sim_throttle_request *request =
        happens->kind < ARRIVES ? NULL : sim_throttle_request_at(world, happens->request);
    switch (happens->kind) {
    case FRESH:
        arrive_first(world);
        plan(world, FRESH, 0,
             world->now + random_exponential(&world->random, 1 / open_rate(world->load)));
        break;
    case BURST:
        for (size_t i = 0; i < world->load->burst; i++) arrive_first(world);
        plan(world, BURST, 0, world->now + BURST_INTERVAL);
        break;
    case ARRIVES: arrive(world, request); break;
    case DONE: end_work(world, request); break;
    case TIMEOUT:
        if (request->awaited) fail(world, request, 0);
        release(world, request);
        break;
    }
}

static void run(sim_throttle_world *world) {
    while (world->now < world->load->length) {
        doorman_time due = sim_policy_due(&world->policy);
        if (due <= world->events[0].at) {
            world->now = due;
            sim_policy_update(&world->policy, due);
            continue;
        }
        event happens = take_event(world);
        world->now = happens.at;
        handle(world, &happens);
        /* All requests of a burst arrive before the first one starts. */
        start_work(world);
    }
}

static double ratio(double part, double all) { return all > 0 ? part / all : 0; }

static double percentile99(const totals *all) {
    uint64_t left = all->answered / 100;
    size_t i = TIME_STEPS;
    if (!all->answered) return INFINITY;
    for (; i > 0 && all->times[i] <= left; i--) left -= all->times[i];
    return (double)((doorman_time)(i + 1) * TIME_STEP) / (double)DOORMAN_SECOND;
}

/* Returns which part of the first tries in some slots led to an answer in time. */
static double successes(const sim_throttle_world *world, doorman_time from, doorman_time length) {
    slot all = {0, 0};
    for (doorman_time at = from; at < from + length; at += SIM_SLOT) {
        all.tries += world->slots[at / SIM_SLOT].tries;
        all.successes += world->slots[at / SIM_SLOT].successes;
    }
    return ratio(all.successes, all.tries);
}

static double recovery(const sim_throttle_world *world) {
    const sim_throttle_load *load = world->load;
    doorman_time end = load->slow_from + load->slow_for, at = end;
    double before = successes(world, world->from, load->slow_from - world->from);
    while (at + DOORMAN_SECOND <= world->until &&
           successes(world, at, DOORMAN_SECOND) < 0.98 * before) {
        at += SIM_SLOT;
    }
    if (at + DOORMAN_SECOND > world->until) return INFINITY;
    return (double)(at - end) / (double)DOORMAN_SECOND;
}

static sim_throttle_result result_of(const sim_throttle_world *world) {
    const totals *all = &world->totals;
    const sim_throttle_load *load = world->load;
    double work = (double)load->workers * (double)(load->length - world->from);
    double short_part = ratio((double)all->of_class_answered[0], (double)all->of_class[0]);
    double long_part = ratio((double)all->of_class_answered[1], (double)all->of_class[1]);
    return (sim_throttle_result){
        .goodput = all->work / work,
        .p99 = percentile99(all),
        .answered = ratio((double)all->high_answered, (double)all->high),
        .refused = ratio((double)all->refused, (double)all->arrived),
        .wait = (double)all->longest_wait / (double)DOORMAN_SECOND,
        .tries = ratio((double)all->slow_tries, (double)all->slow_first_tries),
        .evenness = ratio(fmin(long_part, short_part), fmax(long_part, short_part)),
        .tasks = ratio((double)all->tasks_answered, (double)all->tasks),
        .recovery = load->slow_for ? recovery(world) : 0,
    };
}

static void start(sim_throttle_world *world) {
    const sim_throttle_load *load = world->load;
    world->from = (load->slow_for ? load->slow_from : load->length) / 10;
    world->until = load->length - DOORMAN_SECOND;
    world->random = load->seed;
    world->random_service = load->seed + 1;
    world->unused = SIM_THROTTLE_NONE;
    world->slot_count = (size_t)(load->length / SIM_SLOT) + 1;
    world->slots = no_null(calloc(world->slot_count, sizeof *world->slots));
    for (size_t i = 0; i < CLIENTS; i++) doorman_retry_budget_init(&world->budgets[i]);
    sim_policy_start(&world->policy, load, world);
    plan(world, FRESH, 0, 0);
    if (load->burst) plan(world, BURST, 0, 0);
}

sim_throttle_result sim_throttle_run(const sim_throttle_load *load) {
    sim_throttle_world *world = no_null(calloc(1, sizeof *world));
    world->load = load;
    start(world);
    run(world);
    sim_throttle_result result = result_of(world);
    sim_policy_stop(&world->policy);
    for (size_t i = 0; i < world->chunk_count; i++) free(world->chunks[i]);
    free(world->chunks);
    free(world->slots);
    free(world->events);
    free(world);
    return result;
}
