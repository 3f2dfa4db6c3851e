/*
 * A deterministic simulator of whole Doorman systems, over the public API of doorman.h alone: the
 * servers and clients are the real state machines, while clocks, network, processes and elections
 * are simulated in one thread. The same seed gives the same run, to the last bit.
 *
 *   sim_dice.c       random numbers; tests/fuzz has dice of its own in their place
 *   sim_world.c      time, clocks, processes and their elections, clients
 *   sim_network.c    messages between those who ask and the processes that they ask
 *   sim_check.c      what must hold at every event, and the shares that must come out
 *   sim_scenarios.c  the scenarios of the design document, and their tables
 *   sim_faults.c     random systems and faults, and how a failure is made smaller
 *   sim.c            the command line
 *
 * There are nodes, each with the processes that elect its master, and clients, which ask a node by
 * the addresses of its processes. The nodes form one tree or several: a root has a configuration,
 * the processes of any other node ask those of its parent, as clients do.
 */
#ifndef SIM_H
#define SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "doorman.h"

#define SIM_NODES 13
#define SIM_PROCESSES 39 /* of all nodes */
#define SIM_CLIENTS 45
#define SIM_RESOURCES 3
#define SIM_LEVELS 4    /* of a tree */
#define SIM_VERSIONS 32 /* of the configuration, in one run */
#define SIM_NOTES 30    /* told of a failure: the last events before it */
#define SIM_JOBS 64     /* processes that share the runs */
#define SIM_COVERS 96   /* leases of one holder that have not ended, each smaller than the last */
#define SIM_RECOUNT 64  /* every so many events what the checks remember is held against all */
#define SIM_NONE SIZE_MAX
#define SIM_BURST (5 * DOORMAN_SECOND) /* of rates */

/* Rates of local clocks, in parts of 1,000 of the simulated one: 2 % apart at most. */
#define SIM_RATE_MIN 990
#define SIM_RATE_MAX 1010

/* Kinds of faults: each has its own dice, so that one can be left out and the others stay. */
#define SIM_FAULTS(X)                                                                              \
    X(LOSS, "loss", "messages are lost")                                                           \
    X(DOUBLE, "double", "messages come twice")                                                     \
    X(DELAY, "delay", "messages are late by up to 10 s, and overtake one another")                 \
    X(PARTITION, "partition", "some clients and processes cannot reach the others")                \
    X(KILL, "kill", "processes die, and start again")                                              \
    X(FREEZE, "freeze", "processes stand still, their messages lost or late")                      \
    X(STALL, "stall", "clients stand still, their messages lost or late")                          \
    X(RESIGN, "resign", "a master gives up, and another one is elected at once")                   \
    X(GAP, "gap", "a master gives up, and nobody is elected for a while")                          \
    X(EXILE, "exile", "processes cannot reach the election")                                       \
    X(CLOCK, "clock", "clocks go at different rates")                                              \
    X(RELOAD, "reload", "another configuration")                                                   \
    X(SPIKE, "spike", "clients want more, or less")                                                \
    X(DIE, "die", "clients die, and come back under the same id")                                  \
    X(ROAM, "roam", "clients go from one node to another, and say what they hold of the first")    \
    X(CLOSE, "close", "resources are released, and opened again")                                  \
    X(HOLD, "hold", "gauges hold on to what is in flight")                                         \
    X(ABANDON, "abandon", "resources are closed with units in flight")                             \
    X(CARELESS, "careless", "clients name no lease, or the one before the last")                   \
    X(CUT, "cut", "the capacity falls, several times in a row, and sometimes rises")               \
    X(WHOLE, "whole", "resources are in whole units, or change to that and back")

#define SIM_FAULT_CODE(code, name, text) SIM_##code,
typedef enum sim_fault { SIM_FAULTS(SIM_FAULT_CODE) SIM_FAULT_COUNT } sim_fault;

typedef struct sim_world sim_world;
typedef struct sim_event sim_event;
typedef void (*sim_handler)(sim_world *world, const sim_event *event);

/* Who asks: a client, or a process of a node with a parent. */
typedef struct sim_party {
    bool is_process;
    size_t index;
} sim_party;

/* A message, copied deeply: what it points to is its own, or a name of the world's. Immutable, so
 * that a copy on the network is one reference more. */
typedef struct sim_message {
    size_t references;
    sim_party asker; /* who asked, */
    uint64_t life;   /* in which of its lives, */
    size_t process;  /* and whom */
    uint64_t sequence;
    doorman_time sent_at; /* by the clock of who asked */
    doorman_request request;
    doorman_response response;
    const char *path[SIM_LEVELS];
    doorman_ask asks[SIM_RESOURCES];
    doorman_answer answers[SIM_RESOURCES];
    doorman_algorithm algorithms[SIM_RESOURCES];
    doorman_demand *demands; /* of all asks */
    doorman_terms *terms;    /* of all answers */
} sim_message;

struct sim_event {
    doorman_time at;
    uint64_t sequence; /* of two events at one time the one that was planned first comes first */
    sim_handler handler;
    size_t who, what; /* a process or client, and a resource or kind of fault */
    uint64_t life;    /* of whom it is for; those of an earlier life are void */
    double amount;
    sim_message *message;
};

/* A clock: a linear function of the simulated time. */
typedef struct sim_clock {
    doorman_time offset;
    int64_t rate; /* per mille */
} sim_clock;

/* What a client or a process runs on. */
typedef struct sim_machine {
    sim_clock clock;
    uint64_t life;            /* of what runs on it: how often it has been started */
    uint64_t wake;            /* of its wake-ups only the one planned last counts */
    doorman_time still_until; /* stands still; 0: it does not */
    bool aside;               /* on the other side of a partition */
} sim_machine;

/* What one configuration says of one resource. */
typedef struct sim_rules {
    bool matched; /* there is a template */
    bool whole;   /* in whole units */
    double capacity;
    doorman_algorithm algorithm;
} sim_rules;

typedef struct sim_version {
    doorman_config *config;
    sim_rules rules[SIM_RESOURCES];
    doorman_time used_at[SIM_RESOURCES]; /* it was in force for the resource then, last, */
    doorman_time kept_at[SIM_RESOURCES]; /* and what was given under it was given again then */
} sim_version;

/* The largest sums of one resource that are right, and what keeps them so: sim_check.c. */
typedef struct sim_limit {
    double leases, amount;         /* of leases, and of what is in use */
    bool fresh;                    /* the amounts hold, */
    size_t version;                /* while this configuration is in force, */
    doorman_time until, pause_max; /* until then, if no more time than this is between two checks */
    uint32_t used, kept;           /* versions that each check until then notes so, as bits */
} sim_limit;

typedef struct sim_process {
    char address[32];
    size_t node;
    sim_machine machine;
    doorman_server *server;                 /* NULL: dead */
    size_t version;                         /* of the configuration, at a root */
    bool exiled;                            /* cannot reach the election */
    uint64_t seen_term;                     /* it saw the end of this mastership, */
    doorman_time seen_gone;                 /* then, by its clock */
    doorman_time learned_at[SIM_RESOURCES]; /* by its clock, at the last look */
} sim_process;

typedef struct sim_node {
    char name[32];
    size_t parent; /* SIM_NONE: a root */
    size_t root;   /* of its tree */
    size_t level;  /* 0: a root */
    size_t first_process, process_count;
    size_t master;                /* who has the key of the election; SIM_NONE: nobody */
    doorman_time key_until;       /* when it falls, unless it is renewed */
    doorman_time vacant_until;    /* nobody is elected before */
    uint64_t term;                /* masterships so far */
    double held[SIM_RESOURCES];   /* in use by leases from this node and those below it, */
    double leases[SIM_RESOURCES]; /* and what these leases allow */
} sim_node;

/* What a granter counts for a holder, and until when, by the holder's clock. */
typedef struct sim_cover {
    double amount;
    doorman_time end;
} sim_cover;

/* A resource of a client. */
typedef struct sim_use {
    doorman_resource *resource; /* NULL: closed */
    uint64_t named_lease;       /* by the last request that named one, */
    uint64_t earlier_lease;     /* and by one before that */
    bool gauge;                 /* else a rate */
    size_t node;                /* that gave the last lease */
    double wants;
    bool follows; /* of a rate: its wants follow its use, and not `wants`, until the faults end */
    int priority;
    uint64_t opening;             /* counts the gauges that it had; units are in flight in one */
    bool leased;                  /* at the last look */
    sim_cover covers[SIM_COVERS]; /* of its leases, that of the last one first */
    size_t cover_count;
    double abandoned;             /* in flight since it was closed, */
    doorman_time abandoned_until; /* under a lease until then */
    double owed;                  /* came back while it was closed, and nobody could be told */
    double held;                  /* in use, at the last look, */
    double lease;                 /* what its lease allows, */
    size_t held_of;               /* a lease of this node */
    doorman_time seen_at;         /* the last look, by the client's clock; capacity since, */
    double capacity, peak;        /* and at most since it was opened */
    double budget, passed;        /* of a rate: units that may have passed since then, and have */
} sim_use;

typedef struct sim_client {
    char id[32];
    size_t node;  /* whom it asks, */
    size_t other; /* and, where clients roam, also */
    sim_machine machine;
    double careless;        /* how likely one of its requests is to name a wrong lease, */
    bool names_earlier;     /* the one before the last; else none */
    doorman_client *client; /* NULL: dead */
    sim_use uses[SIM_RESOURCES];
} sim_client;

struct sim_world {
    doorman_time now, end; /* of the faults */
    sim_event *heap;
    size_t event_count, event_capacity;
    uint64_t planned, happened;
    uint64_t hash;                        /* of all that has happened */
    uint64_t dice, seed;                  /* for all that is no fault, */
    uint64_t fault_dice[SIM_FAULT_COUNT]; /* and for each kind of fault */
    double intensity[SIM_FAULT_COUNT];    /* in [0, 1]; 0: does not happen */

    doorman_time latency; /* of a message, at most, unless it is delayed by a fault */
    doorman_time ttl;     /* of the election's key */
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
    size_t version_count, version; /* the newest, and the one in force */
    bool kept[SIM_RESOURCES];      /* a child that learns was just given what it had (R7) */

    /* Checks look again only at what can have changed: at the uses of a client that was touched,
     * or whose time has come, and at the limits when the state of a process has changed. */
    doorman_time checked_at; /* the last check */
    sim_limit limits[SIM_RESOURCES];
    doorman_time look_at[SIM_RESOURCES][SIM_CLIENTS]; /* 0: touched */
    doorman_time first_look_at[SIM_RESOURCES];        /* at most the earliest of them */

    bool cuts;           /* the diet of this run: see sim_faults.c */
    doorman_time hold;   /* of a gauge's units, at most */
    bool verbose, quiet; /* prints all notes; takes none */
    char notes[SIM_NOTES][200];
    uint64_t note_count;
    char failure[300]; /* "": none */
};

/* ---- sim_dice.c */

uint64_t sim_random(uint64_t *dice);

/* ---- sim_world.c */

double sim_unit(uint64_t *dice);                    /* in [0, 1) */
uint64_t sim_below(uint64_t *dice, uint64_t count); /* in [0, count) */
size_t sim_pick(uint64_t *dice, size_t count);      /* the same, of things */
double sim_between(uint64_t *dice, double low, double high);
doorman_time sim_time_between(uint64_t *dice, doorman_time low, doorman_time high);
bool sim_strikes(sim_world *world, sim_fault fault, double probability);

doorman_time sim_local(const sim_clock *clock, doorman_time at);
doorman_time sim_global(const sim_clock *clock, doorman_time local);

void sim_init(sim_world *world, uint64_t seed);
void sim_uninit(sim_world *world);
void sim_plan(sim_world *world, doorman_time at, sim_event event);
void sim_run(sim_world *world, doorman_time end);
#define SIM_FORMAT(at) __attribute__((format(printf, at, at + 1)))
void sim_note(sim_world *world, const char *format, ...) SIM_FORMAT(2);
void sim_fail(sim_world *world, const char *format, ...) SIM_FORMAT(2);
void sim_mix(sim_world *world, uint64_t bits);
void sim_mix_amount(sim_world *world, double amount);

size_t sim_add_node(sim_world *world, size_t parent, size_t process_count);
void sim_add_resource(sim_world *world);
size_t sim_resource_index(const sim_world *world, const char *resource_id);
sim_client *sim_add_client(sim_world *world, size_t node, sim_clock clock);
void sim_add_version(sim_world *world, const sim_rules *rules);
void sim_load(sim_world *world, size_t process); /* the configuration in force */
void sim_start_process(sim_world *world, size_t process);
void sim_kill_process(sim_world *world, size_t process);
void sim_freeze_process(sim_world *world, size_t process, doorman_time until);
void sim_resign(sim_world *world, size_t node, doorman_time vacant_until);
void sim_start_client(sim_world *world, size_t client);
void sim_kill_client(sim_world *world, size_t client);
void sim_stall_client(sim_world *world, size_t client, doorman_time until);
void sim_open(sim_world *world, size_t client, size_t resource);
void sim_close(sim_world *world, size_t client, size_t resource);
void sim_want(sim_world *world, size_t client, size_t resource, double wants);
bool sim_leased(const sim_world *world, size_t client, size_t resource,
                doorman_resource_info *info);
bool sim_is_root(const sim_world *world, const sim_process *process);

/* ---- sim_network.c */

sim_message *sim_message_keep(sim_message *message); /* one reference more; NULL is fine */
void sim_message_drop(sim_message *message);
void sim_carry_client(sim_world *world, size_t client);
void sim_carry_process(sim_world *world, size_t process);

/* ---- sim_check.c */

void sim_take_lease(sim_world *world, size_t client, size_t resource, const doorman_lease *lease,
                    doorman_time sent_at, bool renewed);
void sim_check_answers(sim_world *world, const sim_message *asked, const sim_message *answered);
void sim_look(sim_world *world, size_t process);
void sim_check_books(sim_world *world, size_t process);
void sim_check_sums(sim_world *world);
void sim_check_settled(sim_world *world);
size_t sim_first_version(sim_world *world);
/* Must be called whenever something has called the client or its limiters, or changed its uses. */
void sim_touch_client(sim_world *world, size_t client);
/* Must be called whenever a process starts, ends, stops, goes on or loads a configuration. */
void sim_touch_processes(sim_world *world);

/* ---- sim_scenarios.c and sim_faults.c */

int sim_scenarios(uint64_t seeds, const char *folder, uint64_t jobs);

/* How large a system may be: an option of the command line, and the least that it can be. */
#define SIM_BOUNDS(X)                                                                              \
    X(LEVELS, "--levels", 1)                                                                       \
    X(NODES, "--nodes", 1)                                                                         \
    X(CLIENTS, "--clients", 2)                                                                     \
    X(RESOURCES, "--resources", 1)                                                                 \
    X(SECONDS, "--seconds", 1) /* of the part with faults */

#define SIM_BOUND_CODE(code, option, least) SIM_MOST_##code,
typedef enum sim_bound { SIM_BOUNDS(SIM_BOUND_CODE) SIM_BOUND_COUNT } sim_bound;

typedef struct sim_story {
    const char *program; /* for the command that replays it */
    uint64_t seed;
    bool allowed[SIM_FAULT_COUNT];  /* faults that may happen */
    bool favoured[SIM_FAULT_COUNT]; /* those that do, as hard as they can */
    size_t most[SIM_BOUND_COUNT];
    bool verbose, shrink;
    bool quiet; /* without notes, which take time; who fails is run again with them */
} sim_story;

int sim_faults(const sim_story *story, uint64_t seeds, uint64_t jobs);
const char *sim_fault_name(size_t fault);
const char *sim_bound_option(size_t bound);
size_t sim_bound_least(size_t bound);

#endif
