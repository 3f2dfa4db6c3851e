/* Shards that move between nodes, in a simulated system: see sim_shards.c. */
#ifndef SIM_SHARDS_H
#define SIM_SHARDS_H

#include "sim.h"

#define SHARDS_NODES 8
#define SHARDS_PROCESSES (2 * SHARDS_NODES)
#define SHARDS_MOST 16   /* shards */
#define SHARDS_PLACES 10 /* resources */
#define SHARDS_KEYS 12
#define SHARDS_CLIENTS 6
#define SHARDS_COUNTERS (2 * SHARDS_PLACES * SHARDS_KEYS) /* a counter and a ban of each key */
#define SHARDS_TASKS 48
#define SHARDS_HOLDS 64
#define SHARDS_ITEMS 2

#define SHARDS_LASTING 1     /* the second of two buckets, and durable */
#define SHARDS_SLIDING 4     /* its reservations give back what was not settled */
#define SHARDS_BY_RESOURCE 5 /* all its keys are in one shard */
#define SHARDS_HOLD 6        /* CONCURRENCY */
#define SHARDS_MIXED 7       /* this place and the next ones are only in exact runs */

typedef enum shards_kind {
    SHARDS_ACQUIRE,
    SHARDS_RESERVE,
    SHARDS_SETTLE,
    SHARDS_REPORT,
    SHARDS_REPORT_ONCE,
    SHARDS_BAN,
    SHARDS_RESET,
    SHARDS_GET_HOLD,
    SHARDS_RENEW,
    SHARDS_RELEASE,
    SHARDS_TRANSFER,
    SHARDS_SEIZE
} shards_kind;

/* What a client asks. */
typedef struct shards_call {
    shards_kind kind;
    size_t client, item_count;
    size_t place[SHARDS_ITEMS], key[SHARDS_ITEMS];
    double cost[SHARDS_ITEMS];
    uint64_t request_id, id;
    doorman_time duration; /* settle_within, max_wait, or of a ban */
} shards_call;

/* An answer. */
typedef struct shards_answer {
    bool away;    /* the process is not master, or has not read its store */
    bool pending; /* never sent */
    bool granted, gone;
    doorman_reason reason;
    uint64_t id;
    double amount;   /* granted, charged, or held */
    double returned; /* SETTLE */
    uint64_t ticket; /* of a permit that is pending */
    doorman_time waited, expires_in;
} shards_answer;

/* A call that a client repeats until it is decided or given up. */
typedef struct shards_task {
    bool used;
    uint64_t number;
    shards_call call;
    doorman_time next_at;
    unsigned attempts;
    size_t node, turn;
} shards_task;

typedef struct shards_message {
    doorman_time at;
    bool used, is_answer;
    uint64_t number; /* of the task */
    size_t task, process;
    shards_call call;
    shards_answer answer;
    doorman_time sent_at; /* by the clock of the client */
} shards_message;

/* A hold, as its client knows it. */
typedef struct shards_hold {
    bool used;
    shards_call call;
    uint64_t id;
    double amount;
    doorman_time until, renew_at; /* by the clock of the client */
} shards_hold;

/* A decision of a process, and which of its items were lost in a crash (V8). */
typedef struct shards_op {
    doorman_time at;
    uint64_t number;
    shards_call call;
    bool lost[SHARDS_ITEMS];
} shards_op;

/* A doorman_permits that never fails, and that gets the calls that were decided for one shard. */
typedef struct shards_single {
    doorman_permits *permits;
    shards_op *ops;
    size_t op_count, op_capacity;
} shards_single;

/* A permit that waits. */
typedef struct shards_wait {
    bool used;
    size_t process;
    uint64_t ticket, single_ticket, incarnation;
    bool single_decided;
    shards_message message;
    shards_answer answer, single;
} shards_wait;

#define SHARDS_WAITS 64

/* A row of a store. */
typedef struct shards_row {
    unsigned char *bytes;
    size_t byte_count;
    const unsigned char *identity;
    size_t identity_bytes;
    bool removed, is_counter; /* is_counter: a counter or a ban */
    size_t shard;             /* only of a counter */
    doorman_time fresh_at;
} shards_row;

typedef struct shards_rows {
    shards_row *list;
    size_t count, capacity;
} shards_rows;

/* The store of a node. */
typedef struct shards_store {
    uint64_t term, number; /* of the last write */
    shards_rows rows;
    uint64_t upto[SHARDS_COUNTERS]; /* of each counter: the last decision that it has */
    doorman_time gone_until;
} shards_store;

/* The rows of a shard that were written for its next owner. */
typedef struct shards_move {
    size_t shard;
    uint64_t move, term, attempt;
    unsigned char *text; /* each part after its length */
    size_t bytes, count; /* count: of the pieces that were written */
    bool is_whole;
    uint64_t upto[SHARDS_COUNTERS];
} shards_move;

typedef struct shards_map {
    uint64_t epoch;
    doorman_shard owners[SHARDS_MOST];
    size_t node_count;
} shards_map;

typedef enum shards_io {
    SHARDS_CLAIM,
    SHARDS_READ,
    SHARDS_WRITE,
    SHARDS_READ_MAP,
    SHARDS_CHANGE_MAP,
    SHARDS_WRITE_MOVE,
    SHARDS_READ_MOVE
} shards_io;

/* A call of a process to its store, to the rows of moves, or to etcd. */
typedef struct shards_access {
    bool used, is_applied, is_answered;
    bool is_late; /* its answer is lost, or comes too late */
    shards_io io;
    size_t process;
    uint64_t incarnation, term, number;
    doorman_time apply_at, answer_at; /* answer_at: when the answer comes, or is given up */
    bool is_refused;
    doorman_shard_action action;
    bool settles[SHARDS_MOST];
    shards_rows rows;    /* to write, or that were read */
    shards_map map;      /* that was read */
    unsigned char *text; /* a piece of the rows of a move, or all of them */
    size_t bytes, index;
    bool is_last;
    uint64_t attempt;
    uint64_t upto[SHARDS_COUNTERS];
} shards_access;

#define SHARDS_ACCESSES 1024

typedef struct shards_process {
    size_t node;
    bool alive, is_master;
    uint64_t incarnation, term;
    doorman_time starts_at, paused_until, exiled_until;
    sim_clock clock;
    doorman_time until;      /* the end of its mastership, by its clock */
    doorman_time renewed_at; /* by true time */
    doorman_permits *permits;
    doorman_shard_mover *mover;

    /* its store */
    shards_io step;
    bool is_busy, was_read, is_fenced;
    uint64_t number; /* of the access under way */
    doorman_time next_at;
    shards_rows rows; /* taken, and not written */
    uint64_t takes, round_takes, stored_takes;

    /* its mover */
    bool acts, has_map;
    bool finds;                 /* it looks for the keys of a shard before it gives the shard */
    bool is_first[SHARDS_MOST]; /* the first map has said that the node owns it */
    bool knows[SHARDS_MOST];    /* it has taken the shard, and has not forgotten it */
    uint64_t move_number, attempt;
    doorman_time move_at, find_at;
    doorman_shard_action action;
    unsigned char *text; /* of the shard that is given */
    size_t bytes, written, pieces;
    uint64_t stored[SHARDS_COUNTERS]; /* what was read from the store has these decisions */
    uint64_t taken[SHARDS_COUNTERS];  /* what was taken has these */
    uint64_t round[SHARDS_COUNTERS];  /* the rows that are written have these */
    doorman_time watch_at, update_at;
} shards_process;

typedef struct shards_election {
    size_t master; /* SIM_NONE: none */
    uint64_t term;
    doorman_time until; /* by true time: after this no process believes that it is master */
} shards_election;

/* The move of a shard whose node is dead. */
typedef struct shards_force {
    bool used, is_written;
    size_t shard, from, target;
    uint64_t epoch, term;
    doorman_time at;
} shards_force;

typedef struct shards_client {
    sim_clock clock;
    char name[24];
    shards_map map;
} shards_client;

typedef struct shards_world {
    uint64_t seed, random, fault_random, steps, hash;
    doorman_time now, step, time_to_live;
    bool on[SIM_FAULT_COUNT];
    bool faulty; /* faults still happen */
    bool exact;  /* no process loses anything */
    bool counts; /* clocks run alike, so grants are compared */
    bool quiet;  /* no new requests */
    bool verbose;
    doorman_config *config, *single_config; /* of all nodes, and of the account */
    double unit_rate;                       /* new calls a second */
    doorman_shards shards;
    size_t node_count, process_count, client_count, key_count, place_count;
    double slots; /* the limit of holds */
    shards_map map;
    shards_election elections[SHARDS_NODES];
    bool dead[SHARDS_NODES]; /* all processes are gone for a while */
    doorman_time dead_until[SHARDS_NODES];
    shards_store stores[SHARDS_NODES];
    shards_move *moves;
    size_t move_count, move_capacity;
    shards_force force;
    shards_process processes[SHARDS_PROCESSES];
    shards_access accesses[SHARDS_ACCESSES];
    shards_client clients[SHARDS_CLIENTS];
    shards_task tasks[SHARDS_TASKS];
    shards_hold holds[SHARDS_HOLDS];
    shards_message *messages;
    size_t message_count, message_capacity;
    shards_wait waits[SHARDS_WAITS];
    doorman_time reset_until[SHARDS_PLACES][SHARDS_KEYS]; /* a reservation from before the last
                                                             reset of a window may be open */
    shards_single singles[SHARDS_MOST];
    uint64_t *ids; /* pairs: of the cluster, and of the single permits */
    size_t id_count, id_capacity;
    uint64_t *forgotten; /* request_ids of reservations and reports that a crash has forgotten */
    size_t forgotten_count, forgotten_capacity;
    uint64_t requests, accessed, op_number, task_number;
    uint64_t decisions, moved, moves_done, forced, masterships, losses, crashes, refused_writes;
    char failure[512];
} shards_world;

/* ---- sim_shards.c */

void sim_shards_fail(shards_world *world, const char *format, ...) SIM_FORMAT(2);
void sim_shards_log(const shards_world *world, const char *format, ...) SIM_FORMAT(2);
bool sim_shards_chance(shards_world *world, double probability);
/* Returns whether a fault happens now. */
bool sim_shards_fault(shards_world *world, sim_fault fault, double probability);
doorman_time sim_shards_between(shards_world *world, doorman_time low, doorman_time high);
doorman_time sim_shards_local(const shards_process *process, doorman_time now);
doorman_time sim_shards_epoch(const shards_world *world);
/* Returns whether a process is master, as far as it knows. */
bool sim_shards_is_master(const shards_world *world, const shards_process *process);
void sim_shards_crash(shards_world *world, size_t process);
/* Returns whether the limit of a place before SHARDS_MIXED is durable. */
bool sim_shards_is_durable(size_t place);
size_t sim_shards_shard_of(const shards_world *world, size_t place, size_t key);
/* Makes room for one more entry of a list. */
void *sim_shards_grow(void *list, size_t count, size_t *capacity, size_t bytes);

extern const char *const sim_shards_places[SHARDS_PLACES];
extern const char *const sim_shards_keys[SHARDS_KEYS];

/* ---- sim_shards_node.c: a process, its store and its mover */

void sim_shards_begin(shards_world *world, size_t process);
void sim_shards_end(shards_world *world, size_t process);
void sim_shards_work(shards_world *world, size_t process);
/* Applies the accesses that are due, and answers them. */
void sim_shards_access(shards_world *world);
/* Continues the move of a shard of a dead node. */
void sim_shards_force(shards_world *world);
void sim_shards_rows_clear(shards_rows *rows);
/* Fails if the node knows something of a shard that it does not own. */
void sim_shards_check_known(shards_world *world, size_t process);
void sim_shards_uninit(shards_world *world);

/* ---- sim_shards_load.c: what clients do */

void sim_shards_load(shards_world *world);
/* Lets a process handle a call. */
void sim_shards_handle(shards_world *world, size_t process, const shards_message *message);
/* Takes the decisions on permits that have waited. */
void sim_shards_drain(shards_world *world, size_t process);
/* Fails if clients, each by its own clock, use more units of holds than the limit. */
void sim_shards_check_holds(shards_world *world);
/* Calls the permits. Fails and returns false if they do not accept the call. */
bool sim_shards_do(shards_world *world, doorman_permits *permits, const shards_call *call,
                   shards_answer *out, doorman_time now);
/* Answers a call. */
void sim_shards_send(shards_world *world, const shards_message *message,
                     const shards_answer *answer);

/* ---- sim_shards_account.c: what one node would decide */

void sim_shards_account_open(shards_world *world);
void sim_shards_account_close(shards_world *world);
size_t sim_shards_counter(size_t place, size_t key, bool is_ban);
/* Must be called when a process has decided. Fails if the account differs. */
void sim_shards_account(shards_world *world, size_t process, const shards_message *message,
                        const shards_answer *answer, uint64_t ticket);
/* Must be called when a permit that has waited is decided. */
void sim_shards_account_decided(shards_world *world, shards_wait *wait);
/* Must be called when a node begins to decide for a shard. `upto` has, for each counter, the last
 * decision that the node knows. The node has perhaps forgotten later decisions. */
void sim_shards_account_taken(shards_world *world, size_t shard, const uint64_t *upto);
/* Compares all counters of a shard. Must be called only in exact runs. */
void sim_shards_account_inspect(shards_world *world, size_t process, size_t shard);
void sim_shards_account_update(shards_world *world, size_t shard);

/* ---- shards_fences.h, which mutants change */

/* Returns whether a store takes a write: D9. */
bool sim_shards_store_takes(shards_store *store, const shards_access *access);
/* Returns whether a transaction changes the map: its process is master, and the epoch is right. */
bool sim_shards_map_changes(const shards_world *world, const shards_access *access);
/* Returns whether a move takes a piece of its rows. */
bool sim_shards_move_takes(const shards_move *move, const shards_access *access);

int sim_shards(const sim_run_options *options, uint64_t seeds, uint64_t jobs);

#endif
