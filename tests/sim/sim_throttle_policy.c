/* The policies of a simulated server: see sim_throttle.h. */
#include "sim_throttle.h"

#include <assert.h>
#include <stdlib.h>

#define NAME_OF(code, name) name,
const char *sim_policy_name(sim_policy_kind kind) {
    static const char *const names[] = {SIM_POLICIES(NAME_OF)};
    return names[kind];
}

/* ---- a queue */

static void push(sim_throttle_queue *queue, uint32_t request) {
    if (queue->count == queue->capacity) {
        size_t capacity = queue->capacity ? 2 * queue->capacity : 1024;
        uint32_t *items = malloc(capacity * sizeof *items);
        if (!items) abort();
        for (size_t i = 0; i < queue->count; i++) {
            items[i] = queue->items[(queue->first + i) & (queue->capacity - 1)];
        }
        free(queue->items);
        *queue = (sim_throttle_queue){.items = items, .count = queue->count, .capacity = capacity};
    }
    queue->items[(queue->first + queue->count++) & (queue->capacity - 1)] = request;
}

/* Removes the oldest request. Precondition: the queue is not empty. */
static uint32_t pop_oldest(sim_throttle_queue *queue) {
    uint32_t request = queue->items[queue->first];
    queue->first = (queue->first + 1) & (queue->capacity - 1);
    queue->count--;
    return request;
}

static uint32_t pop_newest(sim_throttle_queue *queue) {
    return queue->items[(queue->first + --queue->count) & (queue->capacity - 1)];
}

static const sim_throttle_request *at(const sim_policy *policy, uint32_t index) {
    return sim_throttle_request_at(policy->world, index);
}

/* ---- FIFO: without a bound, with a bound of 100 ms of work, and with a fixed concurrency */

/* Returns how many requests may wait. With a fixed concurrency, at most two requests for each
 * worker are in the server. */
static size_t fifo_bound(const sim_policy *policy) {
    if (policy->kind == SIM_UNBOUNDED) return SIZE_MAX;
    if (policy->kind == SIM_BOUNDED) return 10 * policy->workers;
    return 2 * policy->workers - policy->running;
}

static void fifo_offer(sim_policy *policy, const sim_throttle_request *request) {
    if (policy->queues[0].count < fifo_bound(policy)) {
        push(&policy->queues[0], request->index);
    } else {
        sim_throttle_refused(policy->world, request->index, 0);
    }
}

static uint32_t fifo_next(sim_policy *policy) {
    return policy->queues[0].count ? pop_oldest(&policy->queues[0]) : SIM_THROTTLE_NONE;
}

/* ---- CoDel in the form of folly: the least delay of each interval of 100 ms says whether the
 * server is overloaded. While it is overloaded, a request that has waited longer than 10 ms is
 * refused when its turn comes. */

enum { CODEL_TARGET_MS = 5, CODEL_INTERVAL_MS = 100 };

static bool codel_refuses(sim_policy *policy, doorman_time delay, doorman_time now) {
    if (now > policy->interval_end) {
        policy->overloaded = policy->least_delay > CODEL_TARGET_MS * SIM_MILLISECOND;
        policy->least_delay = delay;
        policy->interval_end = now + CODEL_INTERVAL_MS * SIM_MILLISECOND;
    } else if (delay < policy->least_delay) {
        policy->least_delay = delay;
    }
    return policy->overloaded && delay > 2 * CODEL_TARGET_MS * SIM_MILLISECOND;
}

static uint32_t codel_next(sim_policy *policy, doorman_time now) {
    while (policy->queues[0].count) {
        uint32_t request = pop_oldest(&policy->queues[0]);
        if (!codel_refuses(policy, now - at(policy, request)->at, now)) return request;
        sim_throttle_refused(policy->world, request, 0);
    }
    return SIM_THROTTLE_NONE;
}

/* ---- the form of "Fail at Scale" (Maurer): a request may wait for 100 ms, or for 5 ms if the
 * queue has held requests for 100 ms. In this state the newest goes first. Here the highest
 * criticality goes first too. The original has no criticalities. */

static bool maurer_is_overloaded(const sim_policy *policy, doorman_time now) {
    return policy->last_empty < now - CODEL_INTERVAL_MS * SIM_MILLISECOND;
}

static size_t maurer_waiting(const sim_policy *policy) {
    return policy->queues[0].count + policy->queues[1].count;
}

static void maurer_offer(sim_policy *policy, sim_throttle_request *request, doorman_time now) {
    if (!maurer_waiting(policy)) policy->last_empty = now;
    doorman_time wait = maurer_is_overloaded(policy, now) ? CODEL_TARGET_MS : CODEL_INTERVAL_MS;
    request->expires = now + wait * SIM_MILLISECOND;
    push(&policy->queues[request->criticality > 0], request->index);
}

/* Refuses the requests that have waited too long, the oldest first. */
static void maurer_update(sim_policy *policy, sim_throttle_queue *queue, doorman_time now) {
    while (queue->count && now > at(policy, queue->items[queue->first])->expires) {
        sim_throttle_refused(policy->world, pop_oldest(queue), 0);
    }
}

static uint32_t maurer_next(sim_policy *policy, doorman_time now) {
    uint32_t request = SIM_THROTTLE_NONE;
    for (int level = 1; level >= 0 && request == SIM_THROTTLE_NONE; level--) {
        sim_throttle_queue *queue = &policy->queues[level];
        maurer_update(policy, queue, now);
        while (queue->count && request == SIM_THROTTLE_NONE) {
            request = maurer_is_overloaded(policy, now) ? pop_newest(queue) : pop_oldest(queue);
            if (now <= at(policy, request)->expires) break;
            sim_throttle_refused(policy->world, request, 0);
            request = SIM_THROTTLE_NONE;
        }
    }
    if (!maurer_waiting(policy)) policy->last_empty = now;
    return request;
}

/* ---- Doorman's throttle. The cost is the CPU time in milliseconds, which does not depend on a
 * slow dependency. */

static doorman_throttle *doorman_start(const sim_throttle_load *load) {
    const doorman_throttle_options options = {.queue_cost = 100 * (double)load->workers,
                                              .concurrency = load->workers,
                                              .seed = {load->seed, 1}};
    doorman_throttle *throttle = NULL;
    if (doorman_throttle_create(&throttle, &options, NULL) != DOORMAN_OK) abort();
    return throttle;
}

static void doorman_read_refused(sim_policy *policy) {
    doorman_throttle_refusal refusal;
    while (doorman_throttle_next_refused(policy->throttle, &refusal)) {
        sim_throttle_refused(policy->world, (uint32_t)refusal.id, refusal.retry_after);
    }
}

static void doorman_offer(sim_policy *policy, const sim_throttle_request *request,
                          doorman_time now) {
    char user[16];
    doorman_throttle_refusal refusal;
    doorman_throttle_request offered = {
        .id = request->index, .class_id = request->class_id, .criticality = request->criticality};
    if (!policy->no_deadlines) offered.deadline = now + SIM_PATIENCE;
    if (policy->users) {
        snprintf(user, sizeof user, "%u", request->user);
        offered.user = user;
    }
    if (doorman_throttle_offer(policy->throttle, &offered, &refusal, now) ==
        DOORMAN_THROTTLE_REFUSED) {
        sim_throttle_refused(policy->world, request->index, refusal.retry_after);
    }
    doorman_read_refused(policy);
}

static uint32_t doorman_next(sim_policy *policy, doorman_time now) {
    uint64_t id = SIM_THROTTLE_NONE;
    bool starts = doorman_throttle_next(policy->throttle, &id, now);
    doorman_read_refused(policy);
    return starts ? (uint32_t)id : SIM_THROTTLE_NONE;
}

static void doorman_finish(sim_policy *policy, const sim_throttle_request *request,
                           doorman_time now) {
    double cost = (double)request->service / (double)SIM_MILLISECOND;
    if (!doorman_throttle_finish(policy->throttle, request->index, cost, now)) abort();
    doorman_read_refused(policy);
}

/* ---- any policy */

void sim_policy_start(sim_policy *policy, const sim_throttle_load *load,
                      sim_throttle_world *world) {
    *policy = (sim_policy){.kind = load->policy,
                           .world = world,
                           .workers = load->workers,
                           .users = load->users,
                           .no_deadlines = load->no_deadlines};
    if (load->policy == SIM_DOORMAN) policy->throttle = doorman_start(load);
}

void sim_policy_stop(sim_policy *policy) {
    free(policy->queues[0].items);
    free(policy->queues[1].items);
    doorman_throttle_destroy(policy->throttle);
}

void sim_policy_offer(sim_policy *policy, sim_throttle_request *request, doorman_time now) {
    if (policy->kind == SIM_DOORMAN) {
        doorman_offer(policy, request, now);
    } else if (policy->kind == SIM_MAURER) {
        maurer_offer(policy, request, now);
    } else if (policy->kind == SIM_CODEL) {
        push(&policy->queues[0], request->index);
    } else {
        fifo_offer(policy, request);
    }
}

uint32_t sim_policy_next(sim_policy *policy, doorman_time now) {
    uint32_t request = policy->kind == SIM_DOORMAN  ? doorman_next(policy, now)
                       : policy->kind == SIM_MAURER ? maurer_next(policy, now)
                       : policy->kind == SIM_CODEL  ? codel_next(policy, now)
                                                    : fifo_next(policy);
    if (request != SIM_THROTTLE_NONE) policy->running++;
    return request;
}

void sim_policy_finish(sim_policy *policy, const sim_throttle_request *request, doorman_time now) {
    policy->running--;
    if (policy->kind == SIM_DOORMAN) doorman_finish(policy, request, now);
}

doorman_time sim_policy_due(const sim_policy *policy) {
    return policy->kind == SIM_DOORMAN ? doorman_throttle_due(policy->throttle) : DOORMAN_NEVER;
}

void sim_policy_update(sim_policy *policy, doorman_time now) {
    doorman_throttle_update(policy->throttle, now);
    doorman_read_refused(policy);
}
