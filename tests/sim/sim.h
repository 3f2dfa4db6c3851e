/*
 * A deterministic simulator of whole Doorman systems. Of the headers it uses only the public API.
 * Servers and clients are the real state machines; clocks, network, processes and stores are
 * simulated in one thread. The same seed gives the same run, to the last bit.
 *
 *   sim_random.c         random numbers; tests/fuzz replaces this file with its own
 *   sim_world.c          time, clocks, processes, clients
 *   sim_election.c       elections, and the store of each node
 *   sim_network.c        messages between clients or child nodes and the processes that answer them
 *   sim_check.c          invariants at every event, and the exact shares at the end
 *   sim_overload.c       capacity that follows reports of overload
 *   sim_scenarios.c      the scenarios of the design document, and their tables
 *   sim_faults.c         random systems and faults, and how a failing run is shrunk
 *   sim_permits.c        permits: processes, messages, time of day, configurations
 *   sim_permit_load.c    what the clients of permits ask for
 *   sim_permit_client.c  clients with a doorman_permit_client
 *   sim_permit_model.c   what a doorman_permit_client must do
 *   sim_account.c        an account of the permits of each mastership
 *   sim_decision.c       checks each decision against the account
 *   sim_counter.c        what one counter of permits offers
 *   sim_definition.c     random configurations of permits
 *   sim_holds.c          holds: processes, messages, configurations, permits that wait
 *   sim_hold_client.c    the holders
 *   sim_hold_agent.c     holders with a doorman_permit_client
 *   sim_hold_account.c   an account of the units in use
 *   sim_state*.c         counters and bans that last, in stores with faults: see sim_state.c
 *   sim_load.c           what clients with leases use
 *   sim_leased*.c        leased permits, which share resources with leases: see sim_leased.c
 *   sim_quota.c          clients like Envoy, whose leases are quotas
 *   sim_shards*.c        shards that move between nodes: see sim_shards.c
 *   sim_throttle*.c      a server with more requests than it can do: see sim_throttle.h
 *   sim.c                the command line
 *
 * A system has nodes and clients. Each node has processes, which elect its master. Each client
 * sends requests to the processes of a node. The nodes form one or more trees. The processes of a
 * root have a configuration. The processes of any other node send requests to the processes of its
 * parent, as clients do.
 *
 * Apart from runs with quotas, shards, the throttle or fair limits, a run has one of these: leases;
 * permits; holds; leases and leased permits; permits that last in stores. Runs with leases use the
 * files of the list above up to sim_faults.c, and sim_load.c.
 */
#ifndef SIM_H
#define SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* sim.c defines DOORMAN_MALLOC, DOORMAN_REALLOC and DOORMAN_FREE as these. */
void *sim_allocate(void *old, size_t bytes);
void sim_free(void *memory);
/* Returns how many blocks are allocated now. */
size_t sim_block_count(void);

#include "doorman_permits.h"
#include "doorman_throttle.h"

#define SIM_NODES 13
#define SIM_PROCESSES 39 /* in all nodes together */
#define SIM_CLIENTS 45
#define SIM_RESOURCES 3
#define SIM_LEVELS 4     /* levels of a tree */
#define SIM_VERSIONS 32  /* configurations in one run */
#define SIM_LOG_LINES 30 /* the last lines of the log before a failure, which are printed with it */
#define SIM_JOBS 64      /* processes that share the runs */
#define SIM_COMMITMENTS 96 /* live leases of one holder, each larger than the newer ones */
#define SIM_RECOUNT_INTERVAL                                                                       \
    64 /* events between two comparisons of cached checks with a full recount */
#define SIM_NONE SIZE_MAX
#define SIM_STORE_LEASES 64            /* store leases of one node that have not ended */
#define SIM_BURST (5 * DOORMAN_SECOND) /* burst of every rate */
#define SIM_PARTS 10                   /* parts of time whose reports count */
#define SIM_SPANS 48                   /* spans of time with sums of leases */
#define SIM_PEAKS 16 /* amounts that were in force, each larger than the later ones */

/* Rates of local clocks, in parts per 1,000 of simulated time. */
#define SIM_RATE_MIN 990
#define SIM_RATE_MAX 1010

/* Kinds of faults. Each kind has its own random numbers, so that leaving one kind out does not
 * change the others. */
#define SIM_FAULTS(X)                                                                              \
    X(LOSS, "loss", "messages are lost")                                                           \
    X(DOUBLE, "double", "messages arrive twice")                                                   \
    X(DELAY, "delay", "messages are up to 10 s late, and overtake one another")                    \
    X(PARTITION, "partition", "some clients and processes cannot reach the others")                \
    X(KILL, "kill", "processes die and are started again")                                         \
    X(FREEZE, "freeze", "processes stand still, their messages lost or late")                      \
    X(STALL, "stall", "clients stand still, their messages lost or late")                          \
    X(RESIGN, "resign", "a master resigns, and another one is elected at once")                    \
    X(GAP, "gap", "a master resigns, and no master is elected for a while")                        \
    X(EXILE, "exile", "processes cannot reach the election")                                       \
    X(CLOCK, "clock", "clocks run at different rates")                                             \
    X(RELOAD, "reload", "a new configuration is loaded")                                           \
    X(SPIKE, "spike", "clients want more or less")                                                 \
    X(DIE, "die", "clients die and come back under the same id")                                   \
    X(ROAM, "roam", "clients change to another node, and report their lease from the first")       \
    X(CLOSE, "close", "resources are closed and opened again")                                     \
    X(HOLD, "hold", "units of gauges stay in flight for long")                                     \
    X(ABANDON, "abandon", "resources are closed with units in flight")                             \
    X(CARELESS, "careless", "clients name no lease, or the one before the last")                   \
    X(CUT, "cut", "the capacity falls, several times in a row, and sometimes rises")               \
    X(WHOLE, "whole", "resources are in whole units, or change to that and back")                  \
    X(TIME, "time", "permits only: the time of day is set back or forward")                        \
    X(OVERLOAD, "overload", "the capacity follows reports of overload, true ones and wrong ones")  \
    X(HANDOVER, "handover", "a master that resigns hands its leases over to the next one")         \
    X(CRASH, "crash", "state only: a process dies before or after a batch is written")             \
    X(SLOW, "slow", "state only: a store is up to 6 s late")                                       \
    X(GONE, "gone", "state only: a store cannot be reached for a while")                           \
    X(OLD, "old", "state only: a store is replaced by an older copy of itself")                    \
    X(STOP, "stop", "state only: a master stops as planned")                                       \
    X(MARK, "mark", "what a master has handed over is found too late, or is found twice")

#define SIM_FAULT_CODE(code, name, text) SIM_##code,
typedef enum sim_fault { SIM_FAULTS(SIM_FAULT_CODE) SIM_FAULT_COUNT } sim_fault;

/* What a run with stores counts: see sim_state.c. */
#define SIM_COUNTS(X)                                                                              \
    X(MASTERSHIPS, "masterships")                                                                  \
    X(STOPS, "planned stops")                                                                      \
    X(ROWS_WRITTEN, "rows written")                                                                \
    X(ROWS_READ, "rows read")                                                                      \
    X(BATCHES_REFUSED, "batches of old masters refused")                                           \
    X(LATE, "readings that took too long")
#define SIM_COUNT_CODE(code, name) SIM_##code,
typedef enum sim_count { SIM_COUNTS(SIM_COUNT_CODE) SIM_COUNT_COUNT } sim_count;

typedef struct sim_world sim_world;
typedef struct sim_event sim_event;
typedef struct sim_permits sim_permits;
typedef struct sim_holds sim_holds;
typedef struct sim_states sim_states;
typedef struct sim_leased_run sim_leased_run;
typedef void (*sim_handler)(sim_world *world, const sim_event *event);

/* The sender of a request: a client, or a process of a node that has a parent. */
typedef struct sim_sender {
    bool is_process;
    size_t index;
} sim_sender;

/* A message, copied deeply: its pointers, except request.address, lead to memory that it owns, or
 * to names that the world owns. It does not change after it was sent, so a copy on the network only
 * adds a reference. */
typedef struct sim_message {
    size_t references;
    sim_sender sender;    /* the sender of the request */
    uint64_t incarnation; /* the incarnation of the sender's machine */
    size_t process;       /* the receiver of the request */
    uint64_t sequence;
    doorman_time sent_at; /* by the sender's clock */
    doorman_request request;
    doorman_response response;
    const char *path[SIM_LEVELS];
    doorman_capacity_request request_items[SIM_RESOURCES];
    doorman_capacity_response response_items[SIM_RESOURCES];
    doorman_algorithm algorithms[SIM_RESOURCES];
    doorman_demand *demands; /* of all request items */
    doorman_terms *terms;    /* of all response items */
} sim_message;

struct sim_event {
    doorman_time at;
    uint64_t sequence; /* events at the same time run in the order of planning */
    sim_handler handler;
    size_t actor, target; /* the index of a process or client; a number for the handler */
    uint64_t incarnation; /* a number of the actor: if it has changed, the event is dropped */
    union {
        double amount;
        int64_t lease; /* the store lease of a call of an election, or of its answer */
    };
    uint64_t term; /* the term in an answer of an election; another number for others */
    sim_message *message;
};

/* A clock: a linear function of simulated time. */
typedef struct sim_clock {
    doorman_time offset;
    int64_t rate; /* in parts per 1,000 */
} sim_clock;

/* The machine that a client or a process runs on. */
typedef struct sim_machine {
    sim_clock clock;
    uint64_t incarnation; /* how often its client or process has been started */
    uint64_t wakeup; /* number of the last wake-up that was planned; earlier ones are ignored */
    doorman_time paused_until; /* 0: it is running; otherwise it is paused until then */
    bool other_side;           /* on the other side of a partition */
} sim_machine;

/* The rules of one configuration for one resource. */
typedef struct sim_rules {
    bool matched; /* a template matches the resource */
    bool whole;   /* leases are whole units */
    double capacity;
    doorman_overload overload;
    doorman_algorithm algorithm;
} sim_rules;

typedef struct sim_version {
    doorman_config *config;
    sim_rules rules[SIM_RESOURCES];
    doorman_time drains[SIM_RESOURCES];    /* simulated time for which leases can outlast it */
    doorman_time drain_max[SIM_RESOURCES]; /* the longest of these times, up to this version */
    doorman_time used_at[SIM_RESOURCES];   /* when it was last in force for the resource */
    doorman_time kept_at[SIM_RESOURCES];   /* when its leases could last be repeated */
} sim_version;

/* The largest sums that are allowed for one resource, and how long these bounds stay valid: see
 * sim_check.c. */
typedef struct sim_limit {
    double leases, amount; /* of leases; of units in use */
    bool valid;            /* the amounts are valid while all of the following holds */
    size_t version;        /* this configuration is in force */
    doorman_time until,
        check_interval_max;    /* now <= until; the last check is at most check_interval_max ago */
    doorman_time learns_until; /* some server learns the resource until then */
    uint32_t used, kept; /* as bits: versions that each check until then marks as used, kept */
} sim_limit;

/* What a client or a node must report with its next request. */
typedef struct sim_pending {
    doorman_overload_report sum; /* its interval is not used */
    doorman_time since;          /* by its clock: the reports are about the time since then */
    bool some;                   /* there is something to report */
    bool uncertain;              /* it may have forgotten some of it */
} sim_pending;

/* The reports that arrived in a quarter of a refresh interval. */
typedef struct sim_report_part {
    int64_t number;
    doorman_time from, until; /* the time that the reports are about */
    doorman_overload_report sum;
} sim_report_part;

/* The smallest and the largest sum of the leases in a span of time. */
typedef struct sim_span {
    doorman_time from; /* until the next span */
    double low, high;
} sim_span;

/* A model of a resource whose capacity follows reports, in a process of a root. Times are by the
 * clock of this process. */
typedef struct sim_followed {
    bool follows; /* a report has arrived; otherwise the configured capacity is in force */
    bool may_cut, must_cut;   /* what the last report may and must cause */
    unsigned calm;            /* steps since the last overload */
    double low, high;         /* bounds of the capacity in force, before it is rounded down */
    double cut_low, cut_high; /* the same after a cut */
    double configured, least;
    double has; /* the sum of the leases, when last observed */
    doorman_time interval, cut_at, step_at;
    size_t part_count, span_count;
    sim_report_part parts[SIM_PARTS];
    sim_span spans[SIM_SPANS];
} sim_followed;

/* An amount that was in force at a root, and until when leases granted under it may last. */
typedef struct sim_peak {
    double amount;
    doorman_time end;
} sim_peak;

typedef struct sim_peaks {
    sim_peak list[SIM_PEAKS];
    size_t count;
} sim_peaks;

typedef struct sim_process {
    char address[32];
    size_t node;
    sim_machine machine;
    doorman_server *server;                 /* NULL: the process is dead */
    size_t version;                         /* of its configuration; with leases only of the root */
    bool exiled;                            /* it cannot reach the store of the election */
    doorman_election election;              /* begins when the process starts or has resigned */
    uint64_t election_number;               /* counts the elections of this process */
    doorman_election_state election_state;  /* the state that was applied last */
    uint64_t looked_term;                   /* the term in which it last looked for a handover */
    char master[32];                        /* the address that was applied last; "": none */
    doorman_time learned_at[SIM_RESOURCES]; /* by its clock: the end of learning */
    sim_pending pending[SIM_RESOURCES];     /* only if its node has a parent */
    sim_followed followed[SIM_RESOURCES];   /* only in a root */
    double in_force[SIM_RESOURCES];         /* only in a root: the capacity, when last observed */
    double granted[SIM_RESOURCES][SIM_CLIENTS + SIM_NODES]; /* the last lease of each holder */
} sim_process;

/* A store lease, like a lease of etcd: see sim_election.c. */
typedef struct sim_store_lease {
    int64_t id;
    doorman_time end; /* by simulated time */
} sim_store_lease;

/* What a master that resigned has handed over, in the store of its node. */
typedef struct sim_handover {
    unsigned char *bytes; /* NULL: nothing */
    size_t count, capacity;
    bool is_cut;                                            /* the store has lost the end of it */
    uint64_t term;                                          /* of the master that has handed over */
    uint64_t holds_mastership;                              /* its number in the account of holds */
    doorman_time handed_at;                                 /* by its clock */
    double granted[SIM_RESOURCES][SIM_CLIENTS + SIM_NODES]; /* as in its process */
} sim_handover;

/* The store in which the processes of a node elect their master. */
typedef struct sim_store {
    sim_handover handover;
    sim_store_lease leases[SIM_STORE_LEASES];
    uint64_t grant_count;      /* store leases granted so far */
    int64_t key;               /* the store lease of the key; 0: there is no key */
    uint64_t term;             /* how often the key has been created */
    doorman_time vacant_until; /* no key is created before this time */
} sim_store;

typedef struct sim_node {
    char name[32];
    size_t parent; /* SIM_NONE: this is a root */
    size_t root;   /* the root of its tree */
    size_t level;  /* 0: this is a root */
    size_t first_process, process_count;
    sim_store store;                /* for the election of its master */
    double in_use[SIM_RESOURCES];   /* in use under leases of this node and of the nodes below it */
    double leases[SIM_RESOURCES];   /* the sum of these leases */
    sim_peaks peaks[SIM_RESOURCES]; /* only of a root */
} sim_node;

/* An amount that a granter has committed for a holder, and its end by the holder's clock. */
typedef struct sim_commitment {
    double amount;
    doorman_time end;
} sim_commitment;

/* One resource of a client. */
typedef struct sim_usage {
    doorman_client_resource *resource; /* NULL: closed */
    uint64_t named_lease;              /* the lease named by the last request that named one */
    uint64_t earlier_lease;            /* the lease named before that */
    bool gauge;                        /* a gauge; otherwise a rate */
    size_t node;                       /* the node that gave the last lease */
    double wants;
    bool follows_use; /* of a rate: until the faults end, wants follow use, not `wants` */
    int priority;
    uint64_t
        generation; /* counts the gauges opened so far; units in flight belong to one of them */
    bool leased;    /* when last observed */
    sim_commitment commitments[SIM_COMMITMENTS]; /* of its leases, newest first */
    size_t commitment_count;
    double abandoned;             /* units in flight when it was closed and not back yet */
    doorman_time abandoned_until; /* the end of the lease that covers them */
    double returned_units;        /* while it was closed; released after it is opened again */
    double in_use;                /* units that count as in use, when last observed */
    double lease;                 /* the capacity of its lease, when last observed */
    size_t in_use_node;           /* the node of that lease */
    doorman_time observed_at;     /* when last observed, by the client's clock */
    double capacity, peak;  /* the capacity, when last observed; the largest since it was opened */
    double largest;         /* of a rate: the largest request since it was opened */
    double budget, granted; /* of a rate, since it was opened: units its capacity gave; granted */
    sim_pending pending;    /* what its next request reports */
} sim_usage;

typedef struct sim_client {
    char id[32];
    size_t node;  /* the node to which it sends requests */
    size_t other; /* a second node, for clients that roam; otherwise the same node */
    sim_machine machine;
    double careless;          /* probability that a request names a wrong lease */
    bool names_earlier_lease; /* it names the lease before the last; otherwise it names none */
    doorman_client *client;   /* NULL: the client is dead */
    sim_usage usages[SIM_RESOURCES];
} sim_client;

struct sim_world {
    doorman_time now, end; /* end: when the faults end */
    sim_event *heap;
    size_t event_count, event_capacity;
    uint64_t scheduled_count, handled_count;
    uint64_t hash;                          /* of everything that has happened */
    uint64_t random, seed;                  /* random numbers for everything else */
    uint64_t election_random;               /* random numbers for elections */
    uint64_t fault_random[SIM_FAULT_COUNT]; /* random numbers for each kind of fault */
    double intensity[SIM_FAULT_COUNT];      /* in [0, 1]; 0: the fault does not happen */
    uint64_t strikes[SIM_FAULT_COUNT];      /* how often each kind of fault has happened */
    uint64_t counts[SIM_COUNT_COUNT];

    doorman_time latency; /* the longest time a message takes when no fault delays it */
    doorman_time ttl;     /* of the store leases of elections */
    bool partitioned;
    sim_node nodes[SIM_NODES];
    size_t node_count;
    sim_process processes[SIM_PROCESSES];
    size_t process_count;
    sim_client clients[SIM_CLIENTS];
    size_t client_count;
    char resources[SIM_RESOURCES][32];
    size_t resource_count;
    sim_version versions[SIM_VERSIONS];
    size_t version_count, version; /* number of versions; the version in force */
    bool kept[SIM_RESOURCES];      /* a child that learns has just had its lease repeated (R7) */

    /* A check computes again only what can have changed. It observes what a client uses if an event
     * may have changed that, or if the time of the next observation has come. It computes a limit
     * if the last one is no longer valid: see "limits" in sim_check.c. */
    doorman_time checked_at; /* when the last check was made */
    sim_limit limits[SIM_RESOURCES];
    doorman_time observe_at[SIM_RESOURCES][SIM_CLIENTS]; /* next observation; 0: now */
    doorman_time first_observe_at[SIM_RESOURCES];        /* at or before the earliest of them */

    sim_permits *permits;   /* NULL: the run has no permits */
    sim_holds *holds;       /* NULL: the run has no holds */
    sim_states *states;     /* NULL: the run has no stores */
    sim_leased_run *leased; /* NULL: the run has no leased permits */
    bool cuts;              /* this run has a schedule of cuts: see sim_faults.c */
    bool follows;           /* in this run capacities follow reports: see sim_overload.c */
    doorman_time burst_until[SIM_RESOURCES]; /* the resource is overloaded until then */
    doorman_time hold;   /* the longest time for which a gauge's units are held */
    bool verbose, quiet; /* verbose: prints the whole log; quiet: keeps none */
    char log_lines[SIM_LOG_LINES][200];
    uint64_t log_count;
    char failure[300]; /* "": no failure */
};

/* ---- sim_random.c */

uint64_t sim_random(uint64_t *state);

/* ---- sim_world.c */

double sim_unit(uint64_t *random);                    /* in [0, 1) */
uint64_t sim_below(uint64_t *random, uint64_t count); /* in [0, count) */
size_t sim_pick(uint64_t *random, size_t count);      /* an index in [0, count) */
double sim_between(uint64_t *random, double low, double high);
doorman_time sim_time_between(uint64_t *random, doorman_time low, doorman_time high);
bool sim_fault_occurs(sim_world *world, sim_fault fault, double probability);

doorman_time sim_local(const sim_clock *clock, doorman_time at);
doorman_time sim_global(const sim_clock *clock, doorman_time local);

void sim_init(sim_world *world, uint64_t seed);
void sim_uninit(sim_world *world);
void sim_schedule(sim_world *world, doorman_time at, sim_event event);
void sim_run(sim_world *world, doorman_time end);
#define SIM_FORMAT(at) __attribute__((format(printf, at, at + 1)))
void sim_log(sim_world *world, const char *format, ...) SIM_FORMAT(2);
void sim_fail(sim_world *world, const char *format, ...) SIM_FORMAT(2);
void sim_hash(sim_world *world, uint64_t bits);
void sim_hash_amount(sim_world *world, double amount);

size_t sim_add_node(sim_world *world, size_t parent, size_t process_count);
void sim_add_resource(sim_world *world);
size_t sim_resource_index(const sim_world *world, const char *resource_id);
sim_client *sim_add_client(sim_world *world, size_t node, sim_clock clock);
void sim_add_version(sim_world *world, const sim_rules *rules);
void sim_load_config(sim_world *world, size_t process); /* loads the configuration in force */
void sim_start_process(sim_world *world, size_t process);
void sim_kill_process(sim_world *world, size_t process);
void sim_pause_process(sim_world *world, size_t process, doorman_time until);
void sim_start_client(sim_world *world, size_t client);
void sim_kill_client(sim_world *world, size_t client);
void sim_pause_client(sim_world *world, size_t client, doorman_time until);
void sim_open(sim_world *world, size_t client, size_t resource);
void sim_close(sim_world *world, size_t client, size_t resource);
void sim_set_wants(sim_world *world, size_t client, size_t resource, double wants);
bool sim_leased(const sim_world *world, size_t client, size_t resource,
                doorman_resource_info *info);
bool sim_is_root(const sim_world *world, const sim_process *process);

/* ---- sim_election.c */

/* Begins the election of a process that has just started. */
void sim_begin_election(sim_world *world, size_t process);

/* Deletes from a store what a master has handed over. */
void sim_drop_handover(sim_store *store);
/* Return whether a master may use what was handed over. They are in store_fences.h. */
bool sim_handover_is_next(const sim_handover *handover, uint64_t term);
bool sim_handover_is_new(const sim_process *process, uint64_t term);
/* Makes the master of a node resign. No process is elected before `vacant_until`. */
void sim_resign(sim_world *world, size_t node, doorman_time vacant_until);
size_t sim_key_holder(sim_world *world, size_t node);

/* ---- sim_load.c */

/* Takes everything that a gauge has left, or a part of it, for some time. */
void sim_use_gauge(sim_world *world, const sim_event *event);
/* Tries to take what the capacity gives in a random time of up to 10 s, in one or several parts.
 * That is often more than the rate can grant. */
void sim_use_rate(sim_world *world, const sim_event *event);

/* ---- sim_network.c */

/* Schedules `event`, the arrival of a message. The message may be lost, copied or late.
 *   random   chooses the latency
 *   passes   false: a partition is between sender and receiver */
void sim_transmit(sim_world *world, uint64_t *random, sim_event event, bool passes);
/* Returns whether no partition is between a client and a process. */
bool sim_reaches(const sim_world *world, size_t client, size_t process);
sim_message *sim_message_retain(sim_message *message); /* adds a reference; NULL is allowed */
void sim_message_release(sim_message *message);
void sim_step_client(sim_world *world, size_t client);
void sim_step_process(sim_world *world, size_t process);
/* Sends a report of a client to a process of its node, in a message of its own. */
void sim_send_report(sim_world *world, size_t client, size_t resource,
                     const doorman_overload_report *report);

/* ---- sim_check.c */

void sim_record_lease(sim_world *world, size_t client, size_t resource, const doorman_lease *lease,
                      doorman_time sent_at, bool renewed);
void sim_check_response(sim_world *world, const sim_message *request, const sim_message *reply);
void sim_observe_learning(sim_world *world, size_t process);
void sim_check_resources(sim_world *world, size_t process);
void sim_check_sums(sim_world *world);
void sim_check_settled(sim_world *world);
/* Sets `drains` and `drain_max` of a version. Must be called in the order of the versions. */
void sim_find_drains(sim_world *world, size_t version);
size_t sim_first_version(sim_world *world);
/* Must be called after any call that may change the client, its limiters or its uses. */
void sim_invalidate_client(sim_world *world, size_t client);
/* Must be called whenever a process starts, dies, freezes, thaws or loads a configuration. */
void sim_invalidate_processes(sim_world *world);

/* ---- sim_overload.c. Without world->follows these functions have no effect. */

void sim_overload_draw(sim_world *world, sim_rules *rules, bool first);
void sim_overload_inject(sim_world *world, uint64_t *random); /* makes a report */
bool sim_overload_is_valid(const doorman_overload_report *report);
/* Must be called when a process or a client has made a request (sent), before and after a process
 * handles a message (before, handled), when it has taken over leases (forget), after it has done
 * what is due (stepped), and after it has loaded a configuration (configured). */
void sim_overload_sent(sim_world *world, const sim_message *message);
void sim_overload_before(sim_world *world, size_t process);
void sim_overload_handled(sim_world *world, size_t process, const sim_message *message,
                          const doorman_response *response);
void sim_overload_forget(sim_process *process);
void sim_overload_stepped(sim_world *world, size_t process);
void sim_overload_configured(sim_world *world, size_t process);
/* Must be called at each check. `learns`: some server learns, so leases may be repeated. */
void sim_overload_check(sim_world *world, size_t resource, bool learns);
/* Returns the largest capacity under which leases that may still last were granted. Without
 * `of_leases`, capacities under which units in use may have been taken count too. */
double sim_overload_peak(const sim_world *world, size_t root, size_t resource, bool of_leases);
void sim_overload_check_settled(sim_world *world, size_t process);

/* ---- sim_permits.c. The functions up to check_idle are only for runs with permits. */

void sim_permits_set_up(sim_world *world);
void sim_permits_tear_down(sim_world *world);
void sim_permits_add_client(sim_world *world, size_t client);
bool sim_permits_add_version(sim_world *world, uint64_t *random); /* false: there are too many */
void sim_permits_restart_client(sim_world *world, size_t client);
void sim_permit_client_resume(sim_world *world, size_t client);
void sim_permits_set_clock(sim_world *world, uint64_t *random);
void sim_permits_check_idle(sim_world *world);

/* Must be called when a process starts, dies, is elected, is no longer master, or has loaded a
 * configuration. These functions have no effect in a run without permits. */
void sim_permits_fill_options(sim_world *world, size_t process, doorman_server_options *options,
                              doorman_permits_options *permits);
void sim_permits_started(sim_world *world, size_t process);
void sim_permits_died(sim_world *world, size_t process);
void sim_permits_elected(sim_world *world, size_t process, doorman_time until);
void sim_permits_configured(sim_world *world, size_t process);

/* ---- sim_holds.c. The functions up to check_idle are only for runs with holds. */

void sim_holds_set_up(sim_world *world);
void sim_holds_tear_down(sim_world *world);
void sim_holds_reload(sim_world *world, uint64_t *random);
void sim_holds_restart_client(sim_world *world, size_t client);
void sim_holds_close(sim_world *world, uint64_t *random);
void sim_holds_check_idle(sim_world *world);

/* Must be called at the same events as the functions of sim_permits.c above. In a run without holds
 * these functions have no effect. */
void sim_holds_fill_options(sim_world *world, size_t process, doorman_server_options *options);
void sim_holds_started(sim_world *world, size_t process);
void sim_holds_died(sim_world *world, size_t process);
void sim_holds_elected(sim_world *world, size_t process, doorman_time until);
/* Must be called before a master hands over, and after the next one has taken over. */
void sim_holds_hand_over(sim_world *world, size_t process, sim_handover *handover);
void sim_holds_take_over(sim_world *world, size_t process, const sim_handover *handover);
void sim_holds_configured(sim_world *world, size_t process);

/* ---- sim_state.c. The functions up to check_idle are only for runs with stores. */

void sim_states_set_up(sim_world *world);
void sim_states_start(sim_world *world); /* clients begin to ask */
void sim_states_tear_down(sim_world *world);
bool sim_states_add_version(sim_world *world, uint64_t *random); /* false: there are too many */
void sim_states_set_clock(sim_world *world, uint64_t *random);
void sim_states_stop(sim_world *world, uint64_t *random);
void sim_states_lose_store(sim_world *world, uint64_t *random);
void sim_states_put_back(sim_world *world, uint64_t *random);
void sim_states_check_idle(sim_world *world);

/* Must be called at the same events as the functions of sim_permits.c above, and
 * sim_states_before_configuration before a process loads a configuration. In a run without stores
 * these functions have no effect. */
void sim_states_fill_options(sim_world *world, size_t process, doorman_server_options *options,
                             doorman_permits_options *permits);
void sim_states_started(sim_world *world, size_t process);
void sim_states_died(sim_world *world, size_t process);
void sim_states_elected(sim_world *world, size_t process, const doorman_mastership *mastership);
void sim_states_before_configuration(sim_world *world, size_t process);
void sim_states_configured(sim_world *world, size_t process);

/* ---- sim_scenarios.c and sim_faults.c */

int sim_scenarios(uint64_t seeds, const char *folder, uint64_t jobs);

/* Bounds on the size of a system: the command-line option of each, and its smallest value. */
#define SIM_BOUNDS(X)                                                                              \
    X(LEVELS, "--levels", 1)                                                                       \
    X(NODES, "--nodes", 1)                                                                         \
    X(CLIENTS, "--clients", 2)                                                                     \
    X(RESOURCES, "--resources", 1)                                                                 \
    X(SECONDS, "--seconds", 1) /* of the part with faults */

#define SIM_BOUND_CODE(code, option, minimum) SIM_MAX_##code,
typedef enum sim_bound { SIM_BOUNDS(SIM_BOUND_CODE) SIM_BOUND_COUNT } sim_bound;

/* ---- sim_leased.c, sim_leased_user.c and sim_leased_check.c. In a run without leased permits,
 * these functions have no effect, or are not called. */

void sim_leased_set_up(sim_world *world);
/* Draws the limits. Must be called after all resources were added, and before any process. */
void sim_leased_draw(sim_world *world);
void sim_leased_tear_down(sim_world *world);
/* Adds the limits to the templates of a root. Returns the number of templates.
 *   limits   room for one limit for each resource; the templates point to it */
size_t sim_leased_fill_templates(const sim_world *world, doorman_template *templates, size_t count,
                                 doorman_permit_limit *limits);
void sim_leased_fill_options(sim_world *world, size_t process, doorman_server_options *options);
void sim_leased_died(sim_world *world, size_t process);
void sim_leased_elected(sim_world *world, size_t process, doorman_time until);
/* Must be called before a process handles or makes a request (before), and after each call of its
 * server (stepped). */
void sim_leased_before(sim_world *world, size_t process);
void sim_leased_stepped(sim_world *world, size_t process);
void sim_leased_add_client(sim_world *world, size_t client);
void sim_leased_client_died(sim_world *world, size_t client);
/* Returns whether the sums of a resource may have changed since the last call. */
bool sim_leased_changed(sim_world *world, size_t resource);
/* Observes all processes again. */
void sim_leased_refresh(sim_world *world);
void sim_leased_add_up(sim_world *world, size_t resource);
/* Returns the units that permits of a node may take, or still hold. Nodes below it do not count. */
double sim_leased_units(const sim_world *world, size_t node, size_t resource);
/* Makes all clients stop asking for permits. */
void sim_leased_pause(sim_world *world);
/* Makes all clients want no leases, and ask for permits of one unit. */
void sim_leased_ask_all(sim_world *world);
/* Fails the run if a client has got no permits since sim_leased_ask_all, although there is room. */
void sim_leased_check_granted(sim_world *world);

typedef struct sim_run_options {
    const char *program; /* printed in the command that replays the run */
    uint64_t seed;
    bool allowed[SIM_FAULT_COUNT];  /* faults that may happen */
    bool favoured[SIM_FAULT_COUNT]; /* faults that happen at full intensity */
    size_t maximum[SIM_BOUND_COUNT];
    bool permits, holds; /* the runs have permits, or holds, not leases */
    bool leased;         /* the runs have leases and leased permits */
    bool state;          /* the runs have permits that last */
    bool verbose, shrink;
    bool quiet; /* keeps no log, which is faster; a run that fails is repeated with a log */
} sim_run_options;

int sim_faults(const sim_run_options *options, uint64_t seeds, uint64_t jobs);

/* Runs every `step`-th seed, beginning with number `first`. Returns whether a promise is broken. */
typedef bool sim_seeds_function(const sim_run_options *options, uint64_t first, uint64_t seeds,
                                uint64_t step);

/* Shares the seeds among processes, for runs that have no sim_world. Returns whether one of the
 * processes has found a broken promise. */
bool sim_in_processes(sim_seeds_function *run, const sim_run_options *options, uint64_t seeds,
                      uint64_t jobs);

/* Prints what keys get of a fair limit (P29), and of the same limit if it grants in the order of
 * arrival. Writes the data of a picture to the folder. Returns 1 if it cannot, or if a promise is
 * broken. */
int sim_fair(uint64_t seed, const char *folder);
/* Prints only the first promise that is broken. Returns 1 if there is one. */
int sim_fair_quick(uint64_t seed);
const char *sim_fault_name(size_t fault);
const char *sim_bound_option(size_t bound);
size_t sim_bound_minimum(size_t bound);

#endif
