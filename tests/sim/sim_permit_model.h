/*
 * What a doorman_permit_client must do, written a second time and as simply as possible: see
 * sim_permit_model.c. It only reads the public types of the headers.
 */
#ifndef SIM_PERMIT_MODEL_H
#define SIM_PERMIT_MODEL_H

#include "sim_permits.h"

/* FREE: the ask is not in use. DECIDED: the client must give the result to the caller now. */
typedef enum sim_ask_state {
    SIM_ASK_FREE,
    SIM_ASK_QUEUED,
    SIM_ASK_SENT,
    SIM_ASK_WAITING,
    SIM_ASK_DECIDED
} sim_ask_state;

/* A refusal that a client may repeat (P22). */
typedef struct sim_refusal {
    double min;
    doorman_time max_wait, until;
    doorman_time until_global; /* the latest end, by simulated time */
    doorman_time retry_at;     /* DOORMAN_NEVER: it is not known */
    doorman_reason reason;
    const char *limit;
} sim_refusal;

/* A permit or a report that an application has asked its client for, or the copy of a permit that
 * a client has granted by itself (P25). */
typedef struct sim_ask {
    sim_ask_state state;
    uint64_t serial; /* in the order of asking; also the context */
    bool is_report, is_copy, is_alone;
    sim_wanted wanted;     /* of a report: one item */
    doorman_time deadline; /* of a permit */
    size_t failures;
    size_t place; /* SENT: in the message */

    /* DECIDED or WAITING: what the caller must get. */
    doorman_decider decider;
    doorman_permit permit; /* BY_SERVER */
    doorman_permit_grant grants[SIM_ITEMS];
    doorman_time until;  /* WAITING */
    doorman_time beyond; /* the part of the wait that is beyond the timeout */
    sim_refusal refusal; /* BY_REFUSAL */
    size_t item_index;   /* of the refusal */
} sim_ask;

#define SIM_ASKS SIM_PERMITS

/* The local limiter of one resource and key: a bucket. */
typedef struct sim_local_limit {
    double level;
    doorman_time at;
} sim_local_limit;

typedef struct sim_model {
    sim_world *world;
    const char *name;
    bool open; /* the client runs */
    doorman_permit_policy policy;
    bool kill_switch;
    size_t processes[2 * SIM_PROCESSES]; /* its addresses */
    size_t process_count, process_index;
    size_t redirect; /* SIM_NONE: there is none */
    doorman_time request_timeout;
    sim_wanted last; /* the last permit that was asked for */
    uint64_t serial;
    sim_ask asks[SIM_ASKS];

    bool is_requested, is_pausing; /* a message is under way; the breaker has opened */
    doorman_method method;         /* of the last message */
    sim_ask *message[SIM_PERMITS]; /* NULL: the ask has a result */
    size_t message_count;
    doorman_time sent_at, due; /* of the message under way */
    doorman_time pause_end;
    unsigned failures, redirects; /* in a row */

    sim_refusal refusals[SIM_PLACES][SIM_KEYS];
    double local_rate, local_size; /* with FAIL_LOCAL */
    sim_local_limit locals[SIM_PLACES][SIM_KEYS];
    doorman_time resumed_at; /* when the client last began to run again after it stood still */
    doorman_permit_client_info counts;
} sim_model;

/* Returns an ask that is free, or NULL. */
sim_ask *sim_model_free_ask(sim_model *model);
/* sim_model_before_X and sim_model_after_X must be called before and after the client's call X. */
void sim_model_before_acquire(sim_model *model, sim_ask *ask, doorman_time now);
void sim_model_before_report(sim_model *model, sim_ask *ask, doorman_time now);
void sim_model_before_kill_switch(sim_model *model, bool on);
void sim_model_before_request(sim_model *model, doorman_time now);
void sim_model_after_request(sim_model *model, const doorman_request *request, size_t process,
                             doorman_time now);
/* Returns the status that the client must return. */
doorman_status sim_model_before_response(sim_model *model, bool is_stale, const sim_reply *reply,
                                         doorman_time now);
void sim_model_before_failed(sim_model *model, doorman_time now);
void sim_model_before_next(sim_model *model, doorman_time now);
/* Must be called for each decision. */
void sim_model_decision(sim_model *model, uint64_t serial, const doorman_acquired *acquired,
                        doorman_time now);
/* Must be called after the last decision. */
void sim_model_check(sim_model *model, const doorman_permit_client_info *info, doorman_time now);

#endif
