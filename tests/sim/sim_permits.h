/* Permits in a simulated system: see sim_permits.c. */
#ifndef SIM_PERMITS_H
#define SIM_PERMITS_H

#include "sim_account.h"

#define SIM_PERMITS 64 /* the most in one message */
#define SIM_EVENTS 4096

/* A permit that a caller asks for. request.items is not set: see sim_request_of. */
typedef struct sim_wanted {
    doorman_permit_request request;
    doorman_permit_item items[SIM_ITEMS];
} sim_wanted;

/* An entry of a report, an inspection or a reset. */
typedef struct sim_entry {
    size_t place, key;
    doorman_permit_entry entry;
} sim_entry;

/* A message of a client. Some messages repeat a permit that was refused, exactly when its
 * `retry_after` has passed. */
typedef struct sim_call {
    size_t client;
    uint64_t incarnation;
    bool batched;      /* a doorman_permit_client has made it; otherwise the load itself */
    uint64_t sequence; /* batched */
    size_t process;
    bool answered; /* not batched */
    doorman_method method;
    size_t count;        /* of permits, or of entries */
    sim_wanted *permits; /* ACQUIRE */
    sim_entry *entries;  /* other methods */
    double decided;      /* the units that processes have granted for it */
} sim_call;

typedef struct sim_reply {
    size_t call;
    bool is_master;
    size_t master; /* SIM_NONE: the process does not know it */
    double granted;
    doorman_time decided_at; /* by simulated time */
    doorman_permit *permits; /* of a batched ACQUIRE */
} sim_reply;

typedef struct sim_permit_process {
    sim_account account;
    doorman_time offset;          /* of its clock of the time of day */
    doorman_time epoch, epoch_at; /* what the server was given last */
    doorman_time until;           /* the end of its mastership, by its clock */
} sim_permit_process;

typedef struct sim_loader {
    size_t process; /* to which it sends */
    double pace;    /* seconds between two messages */
} sim_loader;

struct sim_permits {
    sim_permit_version versions[SIM_VERSIONS];
    sim_permit_process processes[SIM_PROCESSES];
    sim_loader loaders[SIM_CLIENTS];
    sim_call *calls;
    size_t call_count, call_capacity;
    sim_reply *replies;
    size_t reply_count, reply_capacity;
    uint64_t random; /* of the load */
};

/* ---- sim_permits.c */

/* Adds a message with room for `count` permits or entries. Returns its index. Pointers to earlier
 * messages are not valid any more. */
size_t sim_add_call(sim_world *world, doorman_method method, size_t count);
doorman_permit_request sim_request_of(const sim_wanted *wanted);
/* Sends a message. It may be lost, copied or late. */
void sim_send_call(sim_world *world, size_t call);
/* Lets a message arrive at its process at the time `at`. */
void sim_plan_call(sim_world *world, size_t call, doorman_time at);

/* ---- sim_permit_load.c */

void sim_draw_permit(sim_wanted *wanted, uint64_t *random);
/* Must be called when a process has refused a permit of a message, with retry_after. */
void sim_load_refused(sim_world *world, size_t call, size_t permit, doorman_time after);
void sim_load_start(sim_world *world, size_t client);
void sim_load_reply(sim_world *world, const sim_reply *reply);

/* ---- sim_permit_client.c. A client that stands still gets its messages late or never. */

void sim_permit_client_start(sim_world *world, size_t client);
void sim_permit_client_stop(sim_world *world, size_t client);
/* Does the work that is due, and plans the next step. */
void sim_permit_client_step(sim_world *world, size_t client);
/* Lets an application ask for permits or report units, and sometimes turn the kill switch. */
void sim_permit_client_ask(sim_world *world, size_t client, uint64_t *random);
void sim_permit_client_reply(sim_world *world, const sim_reply *reply);
void sim_permit_client_failed(sim_world *world, const sim_call *call);
/* Stops a client that was idle for a while. Fails if permits wait in it, or it has too much
 * memory. */
void sim_permit_client_check_idle(sim_world *world, size_t client);

/* ---- sim_definition.c */

/* Draws a configuration.
 *   before   the configuration before it; may be NULL
 *   alone    all templates have limits and no capacity, as in a node with a parent */
void sim_draw_definitions(sim_permit_version *version, const sim_permit_version *before, bool alone,
                          uint64_t *random);
doorman_config *sim_create_config(sim_permit_version *version);
/* Adds a configuration to the log. */
void sim_log_definitions(sim_world *world, const sim_permit_version *version);

#endif
