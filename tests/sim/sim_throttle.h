/*
 * A simulated server with a queue in front of its workers: see sim_throttle.c.
 *
 *   sim_throttle.c          the figures, their goals, and the table
 *   sim_throttle_load.c     the server, its clients, and simulated time
 *   sim_throttle_feedback.c a capacity that follows the reports of overloaded servers
 *   sim_throttle_policy.c   the policies that decide which requests the server works on
 *
 * A policy takes a request or refuses it, and gives the requests to workers. The policies are the
 * real throttle of doorman_throttle.h, and other policies to compare it with.
 */
#ifndef SIM_THROTTLE_H
#define SIM_THROTTLE_H

#include "sim.h"

#define SIM_MILLISECOND (DOORMAN_SECOND / 1000)
#define SIM_MEAN_SERVICE (10 * SIM_MILLISECOND)
#define SIM_PATIENCE (200 * SIM_MILLISECOND) /* after it, the answer to a request is useless */
#define SIM_SLOT (50 * SIM_MILLISECOND)      /* successes are counted for each slot of time */
#define SIM_TRIES 3                          /* of a client that tries again */
#define SIM_CALLS 3                          /* of a task */

/* The policies, with the names that the table and the picture have. */
#define SIM_POLICIES(X)                                                                            \
    X(DOORMAN, "Doorman")                                                                          \
    X(UNBOUNDED, "none")                                                                           \
    X(BOUNDED, "FIFO")                                                                             \
    X(CONCURRENCY, "conc.")                                                                        \
    X(CODEL, "CoDel")                                                                              \
    X(MAURER, "Maurer")

#define SIM_POLICY_CODE(code, name) SIM_##code,
typedef enum sim_policy_kind { SIM_POLICIES(SIM_POLICY_CODE) SIM_POLICY_COUNT } sim_policy_kind;

/* How long a request needs a worker: 10 ms on average. Bimodal: 5 % of the requests need 105 ms,
 * and the others 5 ms. */
typedef enum sim_service {
    SIM_EXPONENTIAL,
    SIM_BIMODAL,
    SIM_CONSTANT,
    SIM_SERVICE_COUNT
} sim_service;

/* What a run simulates. */
typedef struct sim_throttle_load {
    sim_policy_kind policy;
    sim_service service;
    size_t workers;
    double load;            /* requests that arrive, as a multiple of what the workers can do */
    double high;            /* the part of the requests with the highest criticality */
    size_t burst;           /* requests of the load that arrive at once every 200 ms */
    doorman_time length;    /* simulated time */
    doorman_time slow_from; /* the dependency is five times slower for slow_for */
    doorman_time slow_for;
    bool retries, budget; /* clients try again; and they have a retry budget */
    bool tasks;           /* a user makes SIM_CALLS calls, one after another. All must succeed */
    bool users;           /* the server knows the users */
    bool no_deadlines;    /* the server does not know when an answer becomes useless */
    uint64_t seed;
} sim_throttle_load;

/* What a run shows. Parts are from 0 to 1. */
typedef struct sim_throttle_result {
    double goodput;  /* work that was answered in time, as a part of what the workers can do */
    double p99;      /* seconds from the arrival to the answer, in time or late */
    double answered; /* the part of the requests of highest criticality, answered in time */
    double refused;  /* the part of all requests that were refused */
    double wait;     /* the longest time in seconds that a request waited before it started */
    double tries;    /* for each first try, while the dependency is slow */
    double evenness; /* the parts of the long and of the short requests that were answered in time:
                        the smaller part divided by the larger one; bimodal service only */
    double tasks;    /* the part of the tasks that succeeded */
    double recovery; /* seconds from the end of the slow time to the first second in which 98 %
                        succeed of what succeeded before; infinity if there is none */
} sim_throttle_result;

/* One try of a client, or one call of a task. */
typedef struct sim_throttle_request {
    uint32_t index;        /* its index among all requests */
    uint32_t next;         /* of the next free request, or SIM_THROTTLE_NONE */
    doorman_time first_at; /* when the first try arrived */
    doorman_time at;       /* when this try arrived */
    doorman_time service;  /* without the slow dependency */
    doorman_time expires;  /* the end of its wait, for policies that set it at the arrival */
    uint32_t client, user;
    uint16_t tries, calls;
    uint8_t criticality, class_id;
    uint8_t uses; /* by the server, and by the time-out of its client */
    bool awaited; /* the client waits for it */
} sim_throttle_request;

#define SIM_THROTTLE_NONE UINT32_MAX

/* Requests that wait, in order of arrival. */
typedef struct sim_throttle_queue {
    uint32_t *items; /* a ring */
    size_t first, count, capacity;
} sim_throttle_queue;

typedef struct sim_throttle_world sim_throttle_world;

/* The state of one policy. Each policy uses some of the fields. */
typedef struct sim_policy {
    sim_policy_kind kind;
    sim_throttle_world *world;
    size_t workers, running;
    sim_throttle_queue queues[2]; /* by criticality; policies that ignore it use the first one */
    doorman_time interval_end, least_delay, last_empty;
    bool overloaded;
    doorman_throttle *throttle;
    bool users, no_deadlines;
} sim_policy;

/* ---- sim_throttle_load.c */

sim_throttle_result sim_throttle_run(const sim_throttle_load *load);
sim_throttle_request *sim_throttle_request_at(sim_throttle_world *world, uint32_t index);
/* Must be called for each request that a policy refuses. If retry_after is 0, the client chooses
 * when to retry. */
void sim_throttle_refused(sim_throttle_world *world, uint32_t index, doorman_time retry_after);

/* ---- sim_throttle_policy.c */

const char *sim_policy_name(sim_policy_kind kind);
void sim_policy_start(sim_policy *policy, const sim_throttle_load *load, sim_throttle_world *world);
void sim_policy_stop(sim_policy *policy);
/* Offers a request to the policy, which may refuse it or other requests. */
void sim_policy_offer(sim_policy *policy, sim_throttle_request *request, doorman_time now);
/* Returns the request that a free worker should start, or SIM_THROTTLE_NONE. */
uint32_t sim_policy_next(sim_policy *policy, doorman_time now);
void sim_policy_finish(sim_policy *policy, const sim_throttle_request *request, doorman_time now);
/* Returns when sim_policy_update must be called, to refuse what has waited too long. */
doorman_time sim_policy_due(const sim_policy *policy);
void sim_policy_update(sim_policy *policy, doorman_time now);

/* ---- sim_throttle_feedback.c */

enum { SIM_FEEDBACK_INTERVALS = 100, SIM_FEEDBACK_SAMPLES = 4 /* in an interval */ };

/* Times are in refresh intervals, and infinite if the event does not happen. */
typedef struct sim_feedback {
    double settles;  /* from the loss of half of the capacity until clients use 45 to 52 %, for a
                        whole interval */
    double swing;    /* the largest part that they use from then on, less the smallest */
    double recovers; /* from the recovery until clients use 95 % */
    double use[SIM_FEEDBACK_INTERVALS * SIM_FEEDBACK_SAMPLES]; /* parts of the capacity */
} sim_feedback;

/* Runs the feedback of a capacity from servers.
 *   with_parent   the clients and the servers ask a node below the root */
sim_feedback sim_feedback_run(doorman_handover handover, bool with_parent, uint64_t seed);

/* ---- sim_throttle.c */

/* Prints the table and writes the data of the picture. Returns 1 if Doorman misses a goal or a file
 * cannot be written, otherwise 0.
 *   seconds   the simulated time of each run of a server with 16 workers; smaller servers run
 *             longer, for as many requests */
int sim_throttle(uint64_t seconds, uint64_t seed, const char *folder);

#endif
