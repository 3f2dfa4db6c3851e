/* doorman_server, part SHARDS: forwards messages to the nodes that decide for their keys (N4). Only
 * this folder and the page of shards include this file. */
#ifndef DOORMAN_SERVER_FORWARD_H
#define DOORMAN_SERVER_FORWARD_H

#include "../link/link.h"
#include "../shards/shards.h"

/* ---- >>marks -------------------------------------------------------------------------------- */

/* A message to another node begins with {"METHOD":{"forwarded":"MARK",. The mark has the time, the
 * number of the message and a hash. The hash is made with the secret of the cluster, from the time,
 * the number, the method and the rest of the message. So no client can claim that its rights were
 * checked. */
#define MARK_BYTES 50
#define MARK_HEAD_BYTES 128 /* of all up to the comma, with a final 0 */
#define MARK_SECONDS 300    /* how much the clocks of two nodes may differ */

/* What a mark is made of. */
struct mark_source {
    uint64_t secret[2];
    uint64_t number; /* another one for each message, so that no two marks are equal */
    int64_t now;     /* seconds since 1970 */
};

/* Writes the beginning of a message. Returns its length in bytes.
 *   rest   what follows the comma */
size_t server_mark_write(char out[MARK_HEAD_BYTES], const struct mark_source *source,
                         const char *method, const doorman_buffer *rest);

enum mark_result { MARK_NONE, MARK_RIGHT, MARK_WRONG };

/* Checks the mark of a message. */
enum mark_result server_mark_check(const char *text, size_t bytes, const uint64_t secret[2],
                                   int64_t now);

/* ---- >>nodes --------------------------------------------------------------------------------- */

#define FORWARD_NODE_MAX 1024                /* questions to one node at the same time */
#define FORWARD_JOB_MAX 8192                 /* messages at the same time */
#define FORWARD_BYTES_MAX ((size_t)64 << 20) /* of their texts */
#define FORWARD_SECOND DOORMAN_SECOND        /* how long a message tries again */

struct forward_job;

/* A node that was asked, as this process knows it. Only forward_destroy frees nodes. */
struct forward_node {
    struct forward_node *next;
    char name[DOORMAN_ID_BYTES_MAX + 1];
    char
        master[DOORMAN_ID_BYTES_MAX + 1]; /* where a process said that its master is; "": nowhere */
    size_t at;                            /* the address to try, if there is no `master` */
    size_t asked;                         /* questions under way */
    doorman_time broken_until;            /* nothing is sent before this time; 0: it works */
    counter sent, failed, full, nanoseconds; /* messages; messages that no process has answered;
                                                messages that were not sent, because too many were
                                                under way; the sum of the times until an answer */
};

/* One message to one node. */
struct forward_question {
    struct link_question link; /* the first member, so that both have one address */
    struct forward_node *node;
    struct forward_job *job;
    size_t tries;    /* how many processes of the node were asked before */
    size_t *indexes; /* the entries of the job */
    size_t count;
};

/* ---- >>jobs --------------------------------------------------------------------------------- */

struct forward_entry {
    size_t shard;
    size_t node;             /* its index in the map, while the node is asked */
    bool is_done, is_failed; /* is_failed: its node was not asked, or did not answer */
    bool is_everywhere;      /* a release by request_id alone: any node may have the permit */
    cJSON *answer;           /* NULL: that of this process, or none */
};

/* One message of a client. */
struct forward_job {
    struct forward_job *next;
    struct waiter *waiter; /* NULL: there is an asker */
    struct forward_asker asker;
    doorman_method method;
    bool is_body;   /* the text is only the inner object */
    bool has_reply; /* this process has decided a part */
    char *text;     /* of the message */
    size_t bytes;
    cJSON *root, *tree; /* the inner object, if it was read. `tree` is a part of `root` */
    size_t asked;       /* questions under way */
    doorman_time ends_at, due, pause, wait; /* wait: of its permits */
    char failure[160];                      /* why a node was not asked or did not answer; "":
                                               all did */
    char *whole; /* the answer of one node to the whole message; NULL: none */
    size_t whole_bytes;
    char *error; /* an error that a node has found in the message; NULL: none */
    size_t error_bytes;
    size_t count;
    struct forward_entry entries[];
};

static inline const char *server_forward_list(const struct forward_job *job) {
    return job->method == DOORMAN_ACQUIRE ? "permit" : "entry";
}

/* Makes the message to one node, for some entries of a job. Returns NULL if memory runs out. */
nng_msg *server_forward_message(struct forward_job *job, const size_t *indexes, size_t count,
                                const struct mark_source *source);

enum forward_result {
    FORWARD_TAKEN,    /* each entry has its answer, or is MOVED and not done */
    FORWARD_LATER,    /* the process cannot decide now, or its answer makes no sense */
    FORWARD_REDIRECT, /* it is not the master */
    FORWARD_WRONG     /* it has found an error in the message */
};

/* Takes the answer to a question.
 *   master   out: on REDIRECT the address of the master; "": not known */
enum forward_result server_forward_take(const struct forward_question *question,
                                        char master[DOORMAN_ID_BYTES_MAX + 1]);

/* Writes the whole answer to a job. The caller frees it; NULL: out of memory.
 *   is_body   only the inner object, unless it is an error */
char *server_forward_write(struct forward_job *job, bool is_body, doorman_status *status);

/* ---- >>the part ----------------------------------------------------------------------------- */

struct forward {
    struct service *service;
    pthread_t thread;
    bool is_started; /* constant while others use the part */
    bool has_thread;
    uint64_t secret[2];

    doorman_time nudged_at; /* when this part last woke the thread of shards. The lock of the
                               service guards it */
    counter marks_wrong, received;

    struct lock lock; /* guards what follows */
    bool has_lock;
    pthread_cond_t wake;
    bool is_called; /* the thread must look again */
    struct link_pool pool;
    doorman_shard_map *map;       /* the one that this process has read last */
    struct forward_job *later;    /* jobs that try again */
    struct forward_job *finished; /* jobs whose answers must be written */
    size_t job_count, byte_count; /* of jobs until they are answered */
    uint64_t last_mark;           /* the number of the last mark */
    struct forward_node *nodes;
};

/* What pages show of the messages to one node. */
struct forward_figures {
    uint64_t sent, failed, full, nanoseconds;
    bool is_known;  /* a message was for the node */
    bool is_broken; /* no process of it has answered the last one */
};

/* Writes the figures of each node of a map to which this process has sent a message. `out` has an
 * element for each node of the map. Those of the other nodes stay as they are. */
void server_forward_read(struct service *service, const doorman_shard_map *map,
                         struct forward_figures *out);

/* Reads how many messages have come with a right mark, and how many with a wrong one. */
void server_forward_read_marks(const struct service *service, uint64_t *received, uint64_t *wrong);

/* Lets the thread look again. Precondition: the lock is held. */
static inline void server_forward_call(struct forward *forward) {
    assert(server_lock_is_held(&forward->lock));
    forward->is_called = true;
    pthread_cond_signal(&forward->wake);
}

#endif
