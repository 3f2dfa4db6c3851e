/* doorman_server, part SHARDS: one key space on many nodes (N1 to N9). The library has the map, the
 * rows and the mover; this part does what the mover says, with the map in a key of etcd and the
 * rows of moves in a Redis. Only the files of this folder, server/forward/forward.h and
 * server/admin/cluster.c include this file. */
#ifndef DOORMAN_SERVER_SHARDS_H
#define DOORMAN_SERVER_SHARDS_H

#include "../etcd/etcd.h"
#include "../state/state.h"

/* ---- >>the map in etcd ---------------------------------------------------------------------- */

/* A connection to the key that has the map, and what was read last. While the thread of the part
 * runs, only this thread uses it. A stop cancels its call. */
struct shard_key {
    struct etcd etcd;
    const char *name;
    doorman_shard_map *map;   /* NULL: the key did not exist, or was not read */
    uint64_t revision;        /* of the key; 0: it does not exist */
    char error[PROBLEM_TEXT]; /* why the last call failed */
};

/* Reads the key, linearizably.
 *   returns   false: etcd does not answer, the value is no map, the key of a map that was read is
 *             gone, or memory has run out; see `error`. `map` is as before */
bool server_shard_key_read(struct shard_key *key);

/* Reads the secret that only the processes of the cluster know, or makes it. It is in the key
 * NAME/secret.
 *   returns   false: etcd does not answer, or the value is no secret, see `error` */
bool server_shard_key_secret(struct shard_key *key, uint64_t secret[2]);

/* What must be true when the map is changed. In addition, nobody may have changed the map since it
 * was read. */
struct shard_conditions {
    const char *election_key; /* of this node; NULL: any process may make the change */
    uint64_t epoch;           /* the mastership of this process */
    const char *gone_key;     /* the election key of a node without a process that is master; NULL:
                                 none */
    uint64_t gone_epoch;      /* of its last mastership: there must be no later one */
};

enum shard_write {
    SHARD_WRITTEN,
    SHARD_UNSURE /* the key was changed, a condition did not hold, etcd did not answer, or memory
                    has run out. The change may still be made */
};

/* Changes the map in one transaction. After SHARD_WRITTEN, key->map is the new one.
 *   map   valid; its epoch is one more than that of the last one */
enum shard_write server_shard_key_write(struct shard_key *key, const doorman_shard_map *map,
                                        const struct shard_conditions *conditions);

/* Reads whether a node has a master, and the epoch of its last mastership.
 *   epoch     out; NULL: it is not read
 *   returns   false: etcd does not answer */
bool server_shard_key_find_master(struct shard_key *key, const char *election_key, bool *has_master,
                                  uint64_t *epoch);

/* A copy of a map that can be changed. Its texts belong to the map that was copied. */
struct shard_edit {
    doorman_shard_map map;
    doorman_shard owners[DOORMAN_SHARDS_MAX];
    doorman_shard_node nodes[DOORMAN_SHARD_NODES_MAX];
};

/* Begins a change: copies the map, and raises the epoch of the copy by one. */
void server_shard_edit(struct shard_edit *edit, const doorman_shard_map *map);

/* ---- >>the part ----------------------------------------------------------------------------- */

enum shard_change_kind {
    SHARD_MOVE,      /* one shard to a node */
    SHARD_DRAIN,     /* all shards of a node to the others */
    SHARD_REBALANCE, /* equally many shards for each node with a master */
    SHARD_FORCE,     /* as DRAIN, of a node that has no master */
    SHARD_REMOVE,    /* a node that has no shards leaves the map */
    SHARD_CHANGE_COUNT
};

/* What an operator wants. */
struct shard_change {
    enum shard_change_kind kind;
    size_t shard;                        /* MOVE */
    char node[DOORMAN_ID_BYTES_MAX + 1]; /* not REBALANCE */
    size_t moves;                        /* out: how many shards move */
    char error[PROBLEM_TEXT];            /* out: why it is refused; "": it is done */
    bool is_unsure;                      /* out: it may still be done, after `error` */
};

/* The change on its way from the thread of pages to the thread of the part.
 *
 *     state     who has it             event                      next
 *     NONE      nobody                 an operator wants one      WAITS
 *     WAITS     the thread of pages    the other thread is ready  RUNS
 *                                      its time is over           NONE, refused
 *     RUNS      the thread of shards   it is done                 DONE
 *                                      its time is over           LEFT, unsure
 *     LEFT      the thread of shards   it is done                 NONE
 *     DONE      the thread of pages    it is read                 NONE */
enum change_state { CHANGE_NONE, CHANGE_WAITS, CHANGE_RUNS, CHANGE_LEFT, CHANGE_DONE };

/* What this process knows of the master of a node. */
struct shard_master {
    char node[DOORMAN_ID_BYTES_MAX + 1]; /* "": there are no more */
    bool is_known;                       /* etcd has answered at the last look */
    bool has_master;
    doorman_time since; /* when this process first saw that the node has none */
};

struct shards {
    struct service *service;
    struct shard_key key;
    struct store *notes;     /* of the cluster; see "the notes of the cluster" */
    bool has_notes;          /* they were read in this mastership */
    bool has_adopted;        /* no notes are left in the node's own store, in this mastership */
    uint64_t notes_revision; /* of what was read last; 0: none was written */
    uint64_t notes_late;     /* the id of a note that may arrive late; 0: none */
    doorman_time trim_at;    /* when to look next for notes that have ended */
    doorman_time masters_at; /* when to look next which nodes have a master */
    doorman_time notes_at;   /* when the notes were looked at last */
    struct store_place place;
    struct store *store; /* for the rows of moves; NULL: not open yet */
    doorman_shard_mover *mover;
    const char *node; /* the name of this node in the map */
    pthread_t thread;
    uint64_t secret[2]; /* of the cluster; constant after the start */
    bool is_started;
    bool has_swept;               /* this mastership has forgotten shards of others */
    bool has_taken_own;           /* it has taken the shards that the node owned when it began */
    bool has_failed;              /* something has failed since shards_work began */
    uint64_t victory, mastership; /* the mastership that the thread works for; its epoch */
    uint64_t flush_wanted;        /* the flush that writes the rows that were taken; 0: none */
    doorman_time closed_at;       /* when the shard that is given was closed */
    doorman_time give_at;         /* when the next one may be given */
    unsigned char *part;          /* a copy of the rows that are written */
    size_t part_capacity;

    /* The lock of the service guards these. */
    pthread_cond_t changed, finished;
    bool stops;
    uint64_t victories, epoch; /* how many masterships have begun; the epoch of the last one */
    doorman_shard_map *map;    /* a copy for other threads; NULL: none yet */
    unsigned char states[DOORMAN_SHARDS_MAX]; /* a doorman_shard_state for each shard */
    struct shard_master masters[DOORMAN_SHARD_NODES_MAX];
    struct shard_change change;
    enum change_state change_state;
    struct state_call *call;                         /* waits for the thread; NULL: none */
    struct trouble trouble;                          /* why the map, the store or a move fails */
    uint64_t moved_out, moved_in, forced, rows_lost; /* shards; rows without room or limit */
};

/* Returns whether this process is part of a cluster. */
static inline bool server_shards_on(const struct service *service) {
    return service->settings->shards != NULL;
}

/* Finds which nodes have a master, at most once a second. Only the thread of the part calls
 * this. */
void server_shards_find_masters(struct shards *shards);

/* Returns what is known of the master of a node. Precondition: the lock is held. */
struct shard_master server_shards_master(const struct shards *shards, const char *node);

/* Does what an operator wants. Waits until the thread of the part has done it, for a minute at
 * most. Precondition: the lock is not held. Only the thread of pages calls this. */
void server_shards_change(struct service *service, struct shard_change *change);

/* Carries a change out. Only the thread of the part calls this. */
void server_shards_carry_out(struct shards *shards, struct shard_change *change);

/* These functions write the rows of a shard for its next owner, read what its last owner has
 * written, and forget the rows. Each returns false if its work is not done, for example because the
 * mastership has ended. shards->trouble names the failures of the store.
 *   move      the number of the move; 0: there is nothing to take
 *   is_lost   set to true if the rows of the move are gone */
bool server_shard_give(struct shards *shards, size_t shard, uint64_t move);
bool server_shard_take(struct shards *shards, size_t shard, uint64_t move, bool *is_lost);
bool server_shard_drop(struct shards *shards, size_t shard); /* or DOORMAN_SHARDS_AWAY */

/* Reads the rows in the store of a node without a master, and writes them as if the node had moved
 * each of its shards. Returns false after a failure. */
bool server_shard_give_for(struct shards *shards, size_t node, uint64_t move);

/* Returns the store of the node, in the mastership that the thread works for, or NULL after a
 * failure: see shards->trouble. Only the thread of the part calls this, and uses the store. */
struct store *server_shards_store(struct shards *shards);

/* Notes that something has failed, for logs and pages. */
void server_shards_fail(struct shards *shards, const char *what, const char *error);
void server_shards_work_again(struct shards *shards);

/* ---- >>the notes of the cluster ------------------------------------------------------------- */

/* Overrides and plans hold for a key wherever it is decided, so they are notes that all nodes
 * share, in etcd: KEY/notes/override/ID and KEY/notes/plan/ID, where KEY is that of --shards. Every
 * master knows all these notes, also for keys of other nodes. So a move carries no notes.
 *
 *    - Any master writes them. The first write of an act succeeds only if nobody has written
 *      since the writer has read all. Otherwise the writer reads again, checks its act again, and
 *      tries again. So if two acts come at the same time, one sees the other. An act of more than
 *      STORE_NOTES_MAX notes needs several writes. If another node writes between them, the rest is
 *      written without a check: of two rows with one name, the one with the larger id counts.
 *    - The id of a row comes from the revision of the last write before it. So ids grow in the
 *      order of the writes, and no two acts have the same id.
 *    - Each master looks whether somebody has written: twice a second, or more often while shards
 *      move. If so, it reads all notes. A new master reads them before it takes its first shard.
 *      While etcd does not answer, a master keeps the notes that it has read.
 *    - A node that had no --shards before has notes in its own store. Its new master moves them
 *      into etcd (server/admin/adopt.c).
 *    - The audit of an act is in the store of the node that was asked. So the node first writes the
 *      row of the act with "known": false, then the notes, and then the row without "known". */

/* Lets the parts read the notes, unless this mastership has read and adopted all, and none has
 * changed. Returns false after a failure: see server_store_error. Only the thread of the part calls
 * this. */
bool server_shard_notes_follow(struct shards *shards);

/* Runs the call that waits, if there is one. Only the thread of the part calls this. */
void server_shard_notes_run_call(struct shards *shards);

/* Works like server_state_call, but the call runs on the thread of the part and gets the notes of
 * the cluster. */
enum call_result server_shards_call(struct service *service, struct state_call *call,
                                    char why[CALL_TEXT]);

/* Reads what other processes have written to the notes of the cluster. The next write of this
 * process succeeds only if no other process has written since. Only a function that
 * server_shards_call runs may call this.
 *   revision   out: of the last write
 *   returns    false: etcd does not answer, see server_store_error */
bool server_shards_refresh(struct service *service, uint64_t *revision);

/* Remembers that a note may arrive late, because etcd did not answer when it was written. Only a
 * function that server_shards_call runs may call this. */
void server_shards_note_late(struct service *service, uint64_t id);

/* Returns the permits of the mastership that the thread works for, or NULL if it has ended.
 * Precondition: the lock is held. */
doorman_permits *server_shards_permits(const struct shards *shards);

#endif
