/* Holds in a simulated system: see sim_holds.c. */
#ifndef SIM_HOLDS_H
#define SIM_HOLDS_H

#include "sim.h"

#define SIM_HOLD_ITEMS 2
#define SIM_HOLD_LIMITS 4
#define SIM_HOLD_PLACES 3
#define SIM_HOLD_KEYS 3
#define SIM_HOLD_JOBS 6                  /* of one client */
#define SIM_HOLD_LIE (SIM_HOLD_JOBS + 1) /* instead of a job: a false claim */
#define SIM_HOLD_LANES 3    /* of an agent; the first one is the upstream of the client */
#define SIM_HOLD_NOTED 64   /* the last holds of an agent */
#define SIM_HOLD_BATCH 64   /* parts of a message of an agent */
#define SIM_HOLD_WAITS 256  /* permits that wait at one process */
#define SIM_HOLD_DRIFT 0.05 /* the default of a server */

extern const char *const sim_hold_places[SIM_HOLD_PLACES];
extern const char *const sim_hold_keys[SIM_HOLD_KEYS];

/* An item of a permit: what it asks for, and the least that it accepts. */
typedef struct sim_hold_item {
    size_t place, key;
    double cost, min;
} sim_hold_item;

/* A message of a client, or a part of a message of an agent. */
typedef struct sim_hold_call {
    doorman_method method;
    size_t count;      /* the parts of the message; they follow each other */
    bool from_agent;   /* a doorman_permit_client has sent it */
    size_t lane;       /* of an agent */
    uint64_t sequence; /* of a message of an agent */
    size_t client, job, process;
    uint64_t incarnation, serial; /* of the client; of the job */
    doorman_time sent_at;         /* by the clock of the client */
    uint64_t request_id, id;
    size_t item_count;
    sim_hold_item items[SIM_HOLD_ITEMS];
    double amounts[SIM_HOLD_ITEMS]; /* RENEW: held; RELEASE: kept; TRANSFER: moved */
    doorman_time max_wait, time_to_live;
    int priority;
    bool share, equal, detail, connected;
} sim_hold_call;

/* A response to a message. */
typedef struct sim_hold_reply {
    size_t call;
    bool is_master;
    size_t master; /* SIM_NONE: the process does not know it */
    bool granted, gone;
    doorman_reason reason;
    uint64_t id;
    doorman_time waited, expires_in;
    size_t item_count;
    double amounts[SIM_HOLD_ITEMS];
    doorman_hold_item items[SIM_HOLD_ITEMS]; /* only in an answer that is not to an acquire */
} sim_hold_reply;

/* Units that a server has granted, as its responses say. A transfer, and the hold that seizes it,
 * are as old as the hold from which they come. */
typedef struct sim_hold_grant {
    uint64_t id, source; /* source: the id of the hold from which a transfer comes; 0: none */
    uint64_t number;     /* in the order of the grants */
    size_t version;      /* the configuration that granted */
    size_t client;
    size_t call; /* the first one that was answered with it */
    uint64_t request_id, mastership;
    bool is_transfer, released;
    doorman_time ends_at; /* by the clock of the process; the server may forget it then */
} sim_hold_grant;

/* A permit that waits at a process. */
typedef struct sim_hold_wait {
    uint64_t ticket, arrival;
    size_t call;
    doorman_time asked_at; /* by the clock of the process */
} sim_hold_wait;

typedef struct sim_hold_process {
    uint64_t mastership; /* counts the masterships of all processes; 0: not master */
    doorman_time until;  /* the end of the mastership, by the clock of the process */
    sim_hold_wait waits[SIM_HOLD_WAITS];
    size_t wait_count;
    size_t shared;  /* permits that were refused as SHARED by the last call */
    uint64_t ticks; /* the number of the last planned tick */
} sim_hold_process;

/* GIVING: the units are not used any more, and a release or a transfer is under way. */
typedef enum sim_hold_state {
    SIM_HOLD_FREE,
    SIM_HOLD_ASKING,
    SIM_HOLD_SEIZING,
    SIM_HOLD_HOLDING,
    SIM_HOLD_GIVING
} sim_hold_state;

/* A job of a client: something that it does with units. */
typedef struct sim_hold_job {
    sim_hold_state state;
    uint64_t serial; /* counts the jobs; answers to earlier ones are ignored */
    uint64_t request_id, id;
    sim_hold_call ask; /* what it sends, and sends again */
    unsigned patience; /* how many times it is sent again */
    doorman_time again_at;

    /* HOLDING. The holder uses `amounts` until `end`, and `later` after that, until `later_end`. */
    double amounts[SIM_HOLD_ITEMS], later[SIM_HOLD_ITEMS];
    doorman_time end, later_end;
    doorman_time life;     /* the time to live, as the last response has it */
    doorman_time leave_at; /* when it releases or transfers */
    bool renews;
} sim_hold_job;

/* The request_id (`number`) and the id of a hold, from a response that the client has accepted. */
typedef struct sim_hold_noted {
    uint64_t number, id;
} sim_hold_noted;

typedef struct sim_holder {
    doorman_permit_client *agent; /* NULL: the holder sends its messages by itself */
    doorman_upstream *lanes[SIM_HOLD_LANES];
    size_t lane_count;
    sim_hold_noted noted[SIM_HOLD_NOTED];
    size_t noted_count;
    sim_hold_job jobs[SIM_HOLD_JOBS];
    uint64_t request_ids;
    size_t process; /* to which it sends */
    double pace;    /* seconds between two jobs */
    double neglect; /* probability that it does not renew */
    uint64_t ticks;
} sim_holder;

/* A limit of the configurations. The kind and the scope are the same in all of them. */
typedef struct sim_hold_limit {
    bool is_rate;
    doorman_scope per;
} sim_hold_limit;

/* The figures of the limits in one configuration. */
typedef struct sim_hold_version {
    bool present[SIM_HOLD_LIMITS];
    doorman_figures figures[SIM_HOLD_LIMITS];
    bool full_at_start[SIM_HOLD_LIMITS];
} sim_hold_version;

struct sim_holds {
    sim_hold_limit limits[SIM_HOLD_LIMITS];
    size_t limit_count;
    sim_hold_version versions[SIM_VERSIONS];
    bool whole; /* costs are whole units */
    sim_hold_process processes[SIM_PROCESSES];
    sim_holder holders[SIM_CLIENTS];
    sim_hold_call *calls;
    size_t call_count, call_capacity;
    sim_hold_reply *replies;
    size_t reply_count, reply_capacity;
    sim_hold_grant *grants;
    size_t grant_count, grant_capacity;
    uint64_t masterships, arrivals, grant_number;
    uint64_t random;
};

/* ---- sim_holds.c */

/* Adds a call that is not sent. Returns its index. */
size_t sim_holds_add_call(sim_world *world, const sim_hold_call *call);
/* Adds the parts of a message, and sends it. It may be lost, copied or late. */
void sim_holds_send(sim_world *world, const sim_hold_call *calls, size_t count);
/* Returns the longest time that a permit may wait under the configurations so far. */
doorman_time sim_hold_longest_wait(const sim_world *world, const sim_hold_call *call);
doorman_time sim_hold_local(const sim_world *world, size_t process);

/* ---- sim_hold_client.c */

void sim_holder_start(sim_world *world, size_t client);
void sim_holder_reply(sim_world *world, const sim_hold_reply *reply);
void sim_holder_draw_ask(sim_world *world, sim_hold_call *ask);
/* Ends a job. Later answers to it are ignored. */
void sim_holder_end_job(sim_hold_job *job);
/* Lets a job use at most `keep`. */
void sim_holder_keep(sim_hold_job *job, const double *keep);
/* Passes a transfer on to random clients.
 *   call   the index of the call that describes what was transferred */
void sim_holder_pass_on(sim_world *world, size_t call, uint64_t transfer_id);

/* ---- sim_hold_agent.c: holders that use a doorman_permit_client */

void sim_agent_start(sim_world *world, size_t client);
void sim_agent_stop(sim_world *world, size_t client);
void sim_agent_ask(sim_world *world, size_t client, sim_hold_job *job);
void sim_agent_seize(sim_world *world, size_t client, sim_hold_job *job, uint64_t transfer_id);
/* Does what a job has to do now. */
void sim_agent_step_job(sim_world *world, size_t client, sim_hold_job *job);
/* Sends what the client has to send now, and takes its decisions. */
void sim_agent_step(sim_world *world, size_t client);
void sim_agent_reply(sim_world *world, const sim_hold_reply *replies);
void sim_agent_check_idle(sim_world *world, size_t client);
/* Returns the units that a job uses now. */
double sim_hold_in_use(const sim_world *world, size_t client, const sim_hold_job *job, size_t item);

/* ---- sim_hold_account.c */

/* Must be called for each response of a process that is master, even if it is lost later. */
void sim_hold_account_reply(sim_world *world, size_t process, const sim_hold_reply *reply);
/* Must be called when a process has taken over the holds of a mastership.
 *   handed_at   when they were handed over, by the clock of the process that has done it */
void sim_hold_account_take_over(sim_world *world, size_t process, uint64_t mastership,
                                doorman_time handed_at);
/* Must be called after each change of what clients use. */
void sim_hold_account_check(sim_world *world);
/* Returns by how many units the fullest counter of a message exceeds its limit; 0: none does. */
double sim_hold_account_excess(const sim_world *world, size_t process, size_t index);
/* Must be called after the decisions of a call were taken.
 *   first, count   the responses of the call; 0, 0 if it is an update */
void sim_hold_account_shared(sim_world *world, size_t process, size_t first, size_t count);
/* Must be called after a process has given all its decisions. */
void sim_hold_account_waits(sim_world *world, size_t process);

#endif
