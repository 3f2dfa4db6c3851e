/* Leased permits in a simulated tree: see sim_leased.c. */
#ifndef SIM_LEASED_H
#define SIM_LEASED_H

#include "sim.h"

#define SIM_LEASED_JOBS 6                     /* of one client */
#define SIM_LEASED_WAITS 96                   /* permits that wait at one process */
#define SIM_LEASED_STAY (15 * DOORMAN_SECOND) /* the longest use of a hold */
#define SIM_LEASED_LIFE (12 * DOORMAN_SECOND) /* the longest time to live of a hold */

/* A message of a client about a permit for one resource. */
typedef struct sim_leased_call {
    doorman_method method; /* ACQUIRE, RENEW or RELEASE */
    size_t client, job, process, resource;
    uint64_t incarnation, serial; /* of the client; of the job */
    uint64_t request_id, id;      /* id: of the hold */
    double cost;
    doorman_time max_wait, sent_at; /* sent_at: by the clock of the client */
} sim_leased_call;

/* A response to a message. */
typedef struct sim_leased_reply {
    size_t call;
    bool is_master;
    size_t master; /* SIM_NONE: the process does not know it */
    bool granted, gone;
    uint64_t id, mastership;
    doorman_time waited, expires_in;
} sim_leased_reply;

typedef struct sim_leased_wait {
    uint64_t ticket;
    size_t call;
    uint64_t arrival;
    doorman_time asked_at; /* by the clock of the process */
} sim_leased_wait;

/* What the permits of a process may use, and have used, of one resource. */
typedef struct sim_leased_amount {
    double units;             /* of the lease, when last observed */
    double peak;              /* the largest since the mastership began */
    double budget;            /* of a rate: the units that the lease has given since then */
    double granted;           /* of a rate: the units that permits have taken since then */
    double largest;           /* of a rate: the largest permit */
    doorman_time observed_at; /* by the clock of the process */
} sim_leased_amount;

typedef struct sim_leased_process {
    uint64_t mastership; /* counts the masterships of all processes; 0: not master */
    doorman_time until;  /* the end of the mastership, by the clock of the process */
    sim_leased_amount amounts[SIM_RESOURCES];
    sim_leased_wait waits[SIM_LEASED_WAITS];
    size_t wait_count;
} sim_leased_process;

typedef enum sim_leased_state {
    SIM_LEASED_FREE,
    SIM_LEASED_ASKING,
    SIM_LEASED_HOLDING
} sim_leased_state;

/* What a client does with a hold. */
typedef struct sim_leased_job {
    sim_leased_state state;
    uint64_t serial; /* counts the jobs; answers to earlier ones are ignored */
    size_t resource;
    double cost;
    uint64_t request_id, id;
    unsigned patience; /* how many times it asks again */
    doorman_time max_wait, again_at;
    size_t process;      /* HOLDING: it has granted the hold */
    uint64_t mastership; /* of that process */
    doorman_time end;    /* by the clock of the client */
    doorman_time leave_at;
    bool renews;
} sim_leased_job;

/* A client that asks for permits. */
typedef struct sim_leased_user {
    sim_leased_job jobs[SIM_LEASED_JOBS];
    size_t process; /* to which it sends */
    double pace;    /* seconds between two permits */
    uint64_t request_ids;
    /* permits since the last call of sim_leased_ask_all */
    size_t granted[SIM_RESOURCES], refused[SIM_RESOURCES];
} sim_leased_user;

struct sim_leased_run {
    bool holds[SIM_RESOURCES]; /* the limit is CONCURRENCY; otherwise TOKEN_BUCKET */
    bool apart;                /* permits are for p0, p1, p2, and use the leases of r0, r1, r2 */
    char places[SIM_RESOURCES][8];
    doorman_figures figures[SIM_RESOURCES];
    uint32_t subclients[SIM_RESOURCES];
    doorman_config *child; /* of all nodes with a parent */
    bool asks, all;        /* clients ask for permits; only for one unit at a time */
    sim_leased_process processes[SIM_PROCESSES];
    sim_leased_user users[SIM_CLIENTS];
    bool changed[SIM_RESOURCES]; /* since the last sums */
    sim_leased_call *calls;
    size_t call_count, call_capacity;
    sim_leased_reply *replies;
    size_t reply_count, reply_capacity;
    uint64_t masterships, arrivals, random;
};

/* ---- sim_leased.c */

void sim_leased_send(sim_world *world, const sim_leased_call *call);

/* ---- sim_leased_user.c */

void sim_leased_user_start(sim_world *world, size_t client);
void sim_leased_user_reply(sim_world *world, const sim_leased_reply *reply);

/* ---- sim_leased_check.c */

/* Must be called after each call of a process that is master. */
void sim_leased_observe(sim_world *world, size_t process);
/* Must be called when permits have taken units of a rate. */
void sim_leased_granted(sim_world *world, size_t process, size_t resource, double units);
void sim_leased_check_waits(sim_world *world, size_t process);

#endif
