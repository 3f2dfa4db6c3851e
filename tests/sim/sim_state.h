/* Counters and bans that last, in a simulated system: see sim_state.c. */
#ifndef SIM_STATE_H
#define SIM_STATE_H

#include "sim_account.h"

#define SIM_STATE_LIMITS 7
#define SIM_STATE_PLACES 6
#define SIM_STATE_KEYS 3
#define SIM_STATE_COUNTERS (SIM_STATE_LIMITS * SIM_STATE_KEYS)
#define SIM_STATE_BANS (SIM_STATE_PLACES * SIM_STATE_KEYS)
#define SIM_STATE_CLOCK (SIM_STATE_COUNTERS + SIM_STATE_BANS)
#define SIM_SETTLE_RESOURCE "reserved"
#define SIM_SETTLE_LIMIT "lr"
#define SIM_SETTLE_SLOTS 8                   /* requests of a node at once */
#define SIM_SETTLE_REQUESTS 512              /* rows of them in a run */
#define SIM_SETTLE_ROW (SIM_STATE_CLOCK + 1) /* of the counter; those of requests follow */
#define SIM_STATE_ROWS                                                                             \
    (SIM_SETTLE_ROW + 1 + SIM_SETTLE_REQUESTS) /* what a store can have rows of */
#define SIM_STATE_ROW_BYTES 1024               /* no row of the simulated limits is longer */
#define SIM_STATE_BATCH 5                      /* rows of one batch */
#define SIM_ACT_RESOURCE "raised"
#define SIM_ACT_KINDS 2 /* override rows, and plan rows */
#define SIM_ACT_KEYS 3

extern const char *const sim_state_places[SIM_STATE_PLACES];
extern const char *const sim_state_keys[SIM_STATE_KEYS];
extern const char *const sim_state_names[SIM_STATE_LIMITS];

/* What a limit is in all configurations that have it. */
typedef struct sim_state_limit {
    size_t place;
    sim_definition definition;
} sim_state_limit;

/* The clocks of the permits of one process, as P26 says. */
typedef struct sim_state_clock {
    doorman_time now, epoch, rest;
    doorman_time given, given_at; /* the time of day that the server was given last, and when */
} sim_state_clock;

/* What the account knows about a counter, or about a ban. */
typedef struct sim_state_item {
    sim_counter counter;
    doorman_time ban_until; /* by the clock `now` of its process; 0: there is none */
    bool is_stored;         /* a row of it has been yielded or restored, and not deleted */
    bool is_gone; /* the process still has a counter of an earlier configuration, which is not used
                     any more */
} sim_state_item;

/* A row, and what the account said about its counter when the row was yielded. */
typedef struct sim_state_row {
    size_t index; /* of the counter, the ban or the clock */
    bool removed; /* the store deletes the row */
    unsigned char bytes[SIM_STATE_ROW_BYTES];
    size_t byte_count; /* 0: the store has no row */
    sim_state_item item;
    sim_state_clock at;
    size_t change_count; /* changes that the row has, of this mastership */
    bool has_lapsed;     /* by the clock `now` of the master its counter is fresh */
} sim_state_row;

/* What the simulator knows about the permits of one process while it is master. */
typedef struct sim_state_account {
    bool is_open;
    doorman_rows rows;
    sim_state_clock at;
    sim_state_item items[SIM_STATE_ROWS];
    doorman_time *changes[SIM_STATE_ROWS]; /* when each item has changed, by simulated time */
    size_t change_count[SIM_STATE_ROWS], change_capacity[SIM_STATE_ROWS];
    doorman_time kept_at; /* all changes before this time are in the store */
} sim_state_account;

/* An override row or a plan row: see sim_state_acts.c. */
typedef struct sim_act_row {
    uint64_t id; /* 0: there is none */
    double most; /* the limit that it gives its key */
    doorman_time starts_at, ends_at;
} sim_act_row;

typedef struct sim_act_rows {
    sim_act_row rows[SIM_ACT_KINDS][SIM_ACT_KEYS];
} sim_act_rows;

typedef enum sim_state_step {
    SIM_STATE_IDLE, /* not master, or another master has the store */
    SIM_STATE_CLAIMING,
    SIM_STATE_READING,
    SIM_STATE_WRITING
} sim_state_step;

typedef struct sim_state_process {
    sim_state_account account;
    doorman_time offset; /* of its clock of the time of day */
    doorman_time until;  /* the end of its mastership, by its clock */
    uint64_t term;       /* of its mastership, or of the last one */
    sim_state_step step;
    bool was_read;         /* it has read all rows since it became master */
    bool reads_again;      /* the configuration has other durable limits */
    doorman_time late_at;  /* when permits no longer wait for the rows */
    doorman_time stop_at;  /* when it gives up a planned stop; 0: it does not stop */
    uint64_t call_number;  /* of the call under way; answers to others are ignored */
    uint64_t write_number; /* of its last batch */
    sim_state_row *rows;   /* taken, and not written yet */
    size_t row_count, row_capacity;
    size_t sent_count;      /* rows in the batch under way */
    bool are_of_old_limits; /* some were taken before the last configuration */
    size_t next_row;        /* to read */
    doorman_time round_began_at;
    bool took_all;     /* the round has taken all changes */
    sim_act_rows acts; /* the rows that it must know */
    bool rereads_acts; /* the store did not answer an act */
} sim_state_process;

/* A call of a process to the store of its node. */
typedef struct sim_state_call {
    size_t process;
    sim_state_step step;
    uint64_t term, number, write_number;
    size_t first;        /* READING: the first row to return */
    sim_state_row *rows; /* WRITING: the batch. READING: what was read */
    size_t row_count, next_row;
    bool is_refused;   /* a later term has claimed the store */
    sim_act_rows acts; /* READING from the first row */
} sim_state_call;

/* The store of a node. */
typedef struct sim_state_store {
    sim_state_row rows[SIM_STATE_ROWS];
    uint64_t term, write_number; /* the last term that has claimed it, and its last batch */
    doorman_time gone_until;
    sim_act_rows acts;
    sim_state_row copy[SIM_STATE_ROWS]; /* an older copy */
    sim_act_rows acts_copy;
    uint64_t copy_term;
} sim_state_store;

/* A request that reserves units: see sim_settle.c. */
typedef struct sim_settle_slot {
    uint64_t request_id;
    double reserved, cost; /* reserved: 0: there is none */
    doorman_time within;   /* it must be settled within this time */
    bool settled;
    bool late;    /* the reservation had ended when it was settled */
    bool unknown; /* its settlement did not know the reservation */
    bool is_lost; /* a crash has perhaps forgotten the reservation */
    bool maybe;   /* a crash has perhaps forgotten the settlement */
    doorman_time reserved_at, settled_at;
    doorman_time passed; /* of the ledger, when it was reserved or settled */
} sim_settle_slot;

typedef struct sim_settle_ledger {
    sim_settle_slot slots[SIM_SETTLE_SLOTS];
    double done_least, done_most; /* of requests that are forgotten */
    bool is_unknown;              /* the store was replaced */
    doorman_time kept_at;         /* all changes before this time are in the store */
    doorman_time opened_at;       /* when the present mastership began */
    doorman_time passed; /* the most time that can have passed for the masters. When the time of day
                            is set back and forward, each move forward counts */
    doorman_time seen_at, epoch; /* at the last look, and the time of day of the master then */
} sim_settle_ledger;

struct sim_states {
    sim_settle_ledger ledgers[SIM_NODES];
    uint64_t settle_requests, settle_random;
    uint64_t act_count, act_random;
    sim_state_limit limits[SIM_STATE_LIMITS];
    unsigned present[SIM_VERSIONS]; /* the limits of each configuration, as bits */
    sim_state_process processes[SIM_PROCESSES];
    sim_state_store stores[SIM_NODES];
    sim_state_call *calls;
    size_t call_count, call_capacity;
    sim_world *world;
    bool resets; /* a reset is under way, which removes counters */
    uint64_t random;
};

/* ---- sim_state.c */

doorman_time sim_state_local(const sim_world *world, size_t process);
doorman_permits *sim_state_permits(const sim_world *world, size_t process);
bool sim_state_is_present(const sim_world *world, size_t process, size_t limit);
/* Returns the index of the limit of a counter. */
size_t sim_state_limit_of(size_t index);
bool sim_state_is_counter(size_t index);
/* Compares all counters of a process with its account. */
void sim_state_check_all(sim_world *world, size_t process);
void sim_state_restart(sim_world *world, size_t process, bool is_planned);

/* ---- sim_state_account.c */

void sim_state_account_open(sim_world *world, size_t process);
void sim_state_account_close(sim_state_account *account);
/* Moves the clocks of an account to the present time. */
sim_state_account *sim_state_account_move(sim_world *world, size_t process);
void sim_state_account_configure(sim_world *world, size_t process, unsigned before);
/* Fails if a decision is wrong, and charges the account if it is a grant. */
void sim_state_account_permit(sim_world *world, size_t process, size_t place, size_t key,
                              double cost, const doorman_permit *permit);
void sim_state_account_report(sim_world *world, size_t process, size_t place, size_t key,
                              double charged);
void sim_state_account_reset(sim_world *world, size_t process, size_t place, size_t key);
void sim_state_account_ban(sim_world *world, size_t process, size_t place, size_t key,
                           doorman_time duration);
/* Compares what a process says about a resource and a key with the account. */
void sim_state_account_inspect(sim_world *world, size_t process, size_t place, size_t key,
                               const doorman_permit *permit);
void sim_state_account_removed(sim_world *world, size_t process, const doorman_permit_event *event);
/* Notes that a row was yielded, and fills in what it is about. */
void sim_state_account_yielded(sim_world *world, size_t process, sim_state_row *row);
/* Must be called when a row that was yielded is marked as changed. */
void sim_state_account_marked(sim_world *world, size_t process, const sim_state_row *row);
/* Returns what doorman_permits_restore must have returned. Must be called after it. */
doorman_status sim_state_account_restore(sim_world *world, size_t process,
                                         const sim_state_row *row);
/* Must be called when a process has taken all its changes. */
void sim_state_account_took_all(sim_world *world, size_t process);
/* D3: fails if the store of a node lacks a change that its master has made before `since`. */
void sim_state_account_check_kept(sim_world *world, size_t process, doorman_time since);

void sim_state_row_copy(sim_state_row *to, const sim_state_row *from);
void sim_state_row_clear(sim_state_row *row);

/* ---- sim_settle.c */

void sim_settle_load(sim_world *world, size_t process);
void sim_settle_opened(sim_world *world, size_t process);
void sim_settle_kept(sim_world *world, size_t process, doorman_time since);
void sim_settle_put_back(sim_world *world, size_t node);

/* ---- sim_state_acts.c */

/* Makes the template of SIM_ACT_RESOURCE. The limit must stay valid as long as the template. */
void sim_acts_define(doorman_template *template_, doorman_permit_limit *limit);
void sim_acts_opened(sim_world *world, size_t process);
/* Gives a process the rows of its store, and ends its other rows. */
void sim_acts_restore(sim_world *world, size_t process, const sim_act_rows *rows);
void sim_acts_load(sim_world *world, size_t process);
void sim_acts_tick(sim_world *world, size_t process);

/* ---- sim_state_store.c: a process and its store */

/* Must be called when a process has become master. The process claims the store, and reads it. */
void sim_state_begin(sim_world *world, size_t process);
void sim_state_end(sim_world *world, size_t process);
/* Begins a planned stop: the process writes what is left, and ends. */
void sim_state_stop(sim_world *world, size_t process);
/* Takes all changes, because some limits may be gone with the next configuration. */
void sim_state_take_all(sim_world *world, size_t process);
void sim_state_read_again(sim_world *world, size_t process);
/* Must be called from time to time. */
void sim_state_tick(sim_world *world, size_t process);
void sim_state_store_clear(sim_state_store *store);

/* ---- store_fences.h, which mutants change */

bool sim_state_is_refused(const sim_state_store *store, const sim_state_call *call);
bool sim_state_is_late(const sim_state_store *store, const sim_state_call *call);

#endif
