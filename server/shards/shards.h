/* doorman_server, part SHARDS: one key space on many nodes (N1 to N9). The library has the map, the
 * rows and the mover; this part does what the mover says, with the map in a key of etcd and the
 * rows of moves in a Redis. Only the files of this folder and server/forward/forward.h include this
 * file. */
#ifndef DOORMAN_SERVER_SHARDS_H
#define DOORMAN_SERVER_SHARDS_H

#include "../etcd/etcd.h"
#include "../state/store.h"

/* ---- >>the map in etcd ---------------------------------------------------------------------- */

/* A connection to the key that has the map, and what was read last. While the thread of the part
 * runs, only this thread uses it. */
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

/* Reads the secret of the cluster, which only its processes know, or makes it. It is in the key
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

/* Changes the map in one transaction. `map` is the new one after SHARD_WRITTEN.
 *   map   as valid; its epoch is one more than that of the last one */
enum shard_write server_shard_key_write(struct shard_key *key, const doorman_shard_map *map,
                                        const struct shard_conditions *conditions);

/* Reads whether a node has a master, and the epoch of its last mastership.
 *   epoch     out; NULL: it is not read
 *   returns   false: etcd does not answer */
bool server_shard_key_find_master(struct shard_key *key, const char *election_key, bool *has_master,
                                  uint64_t *epoch);

/* A copy of a map that can be changed. Its texts belong to the map. */
struct shard_edit {
    doorman_shard_map map;
    doorman_shard owners[DOORMAN_SHARDS_MAX];
    doorman_shard_node nodes[DOORMAN_SHARD_NODES_MAX];
};

/* Begins a change. The epoch of the new map is one more. */
void server_shard_edit(struct shard_edit *edit, const doorman_shard_map *map);

/* ---- >>the part ----------------------------------------------------------------------------- */

enum shard_change_kind {
    SHARD_MOVE,      /* one shard to a node */
    SHARD_DRAIN,     /* all shards of a node to the others */
    SHARD_REBALANCE, /* equally many shards for each node */
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

struct shards {
    struct service *service;
    struct shard_key key;
    struct store_place place;
    struct store *store; /* for the rows of moves; NULL: not open yet */
    doorman_shard_mover *mover;
    const char *node; /* the name of this node in the map */
    pthread_t thread;
    uint64_t secret[2];           /* of the cluster; constant after the start */
    bool is_started, has_swept;   /* has_swept: this mastership has forgotten shards of others */
    bool has_failed;              /* something has failed since the map was last read */
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
    struct shard_change change;
    enum change_state change_state;
    struct trouble trouble;                          /* why the map, the store or a move fails */
    uint64_t moved_out, moved_in, forced, rows_lost; /* shards; rows that had no room */
};

/* Returns whether this process has shards. */
static inline bool server_shards_on(const struct service *service) {
    return service->settings->shards != NULL;
}

/* Does what an operator wants. Waits until the thread of the part has done it, at most a minute.
 * Precondition: the lock is not held. Only the thread of pages calls this. */
void server_shards_change(struct service *service, struct shard_change *change);

/* Carries a change out. Only the thread of the part calls this. */
void server_shards_carry_out(struct shards *shards, struct shard_change *change);

/* The rows of a shard on their way from one node to another. Each returns false after a failure,
 * and when the mastership has ended. shards->trouble names the failures of the store.
 *   move      the number of the move; 0: there is nothing to take
 *   is_lost   set to true if the rows of the move are gone */
bool server_shard_give(struct shards *shards, size_t shard, uint64_t move);
bool server_shard_take(struct shards *shards, size_t shard, uint64_t move, bool *is_lost);
bool server_shard_drop(struct shards *shards, size_t shard); /* or DOORMAN_SHARDS_AWAY */

/* Writes rows that the store of a node without a master has, as the rows of a move of each of its
 * shards. Returns false after a failure. */
bool server_shard_give_for(struct shards *shards, size_t node, uint64_t move);

/* Notes that something has failed, for logs and pages. */
void server_shards_fail(struct shards *shards, const char *what, const char *error);
void server_shards_work_again(struct shards *shards);

/* Returns the permits of the mastership that the thread works for, or NULL if it has ended.
 * Precondition: the lock is held. */
doorman_permits *server_shards_permits(const struct shards *shards);

#endif
