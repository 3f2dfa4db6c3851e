/* doorman_server, part SHARDS: forwards messages to the nodes that decide for their keys (N4). Only
 * this folder and the page of shards include this file. */
#ifndef DOORMAN_SERVER_FORWARD_H
#define DOORMAN_SERVER_FORWARD_H

#include "../shards/shards.h"

/* ---- >>marks -------------------------------------------------------------------------------- */

/* A message to another node begins with {"METHOD":{"forwarded":"MARK",. The mark has the time, a
 * random number and a hash, with the secret of the cluster, of both, of the method and of the rest
 * of the message. So no client can claim that its rights were checked already. */
#define MARK_BYTES 50
#define MARK_HEAD_BYTES 128 /* of all up to the comma, with a final 0 */
#define MARK_SECONDS 300    /* how much the clocks of two nodes may differ */

/* Writes the beginning of a message. Returns its bytes.
 *   rest   what follows the comma
 *   now    seconds since 1970 */
size_t server_mark_write(char out[MARK_HEAD_BYTES], const char *method, const uint64_t secret[2],
                         const doorman_buffer *rest, int64_t now);

enum mark_result { MARK_NONE, MARK_RIGHT, MARK_WRONG };

/* Checks the mark of a message. */
enum mark_result server_mark_check(const char *text, size_t bytes, const uint64_t secret[2],
                                   int64_t now);

/* ---- >>batches ------------------------------------------------------------------------------ */

/* Several messages travel as {"batch":{"bytes":[LENGTH,...],"messages":[MESSAGE,...]}}, and so do
 * their answers. Each message has its own mark, and its answer has the same place. */

/* Begins a batch: append messages to it, with a comma after each. Returns NULL if memory has run
 * out. */
nng_msg *server_batch_open(void);

/* Ends a batch. nng_msg_insert of nng 1.5.2 can write beyond the memory of a message, so the head
 * goes into room that server_batch_open has left for it.
 *   bytes     of each message
 *   returns   false: memory has run out */
bool server_batch_close(nng_msg *text, const size_t *bytes, size_t count);

/* Finds the messages of a batch.
 *   out       room for FORWARD_JOINED_MAX
 *   returns   how many there are; 0: the text is no batch */
size_t server_batch_split(const char *text, size_t bytes, struct forward_span *out);

/* ---- >>links -------------------------------------------------------------------------------- */

#define FORWARD_NODE_MAX 1024                /* questions to one node at the same time */
#define FORWARD_JOB_MAX 8192                 /* messages at the same time */
#define FORWARD_BYTES_MAX ((size_t)64 << 20) /* of their texts */
#define FORWARD_SECOND DOORMAN_SECOND        /* how long a message tries again */

struct forward_link;
struct forward_job;

/* Another node, as this process knows it. Nodes are never freed before the end. */
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
    struct forward_question *next; /* in its batch */
    struct forward_batch *batch;
    doorman_time started_at;
    int result;       /* 0, or an error of nng */
    const char *text; /* the answer, in the message of the batch */
    size_t bytes;

    /* For the owner. */
    struct forward_node *node;
    struct forward_job *job;
    size_t tries;
    size_t *indexes; /* the entries of the job */
    size_t count;
};

/* Questions that travel as one. A batch has an aio and a context of its link, and keeps them for
 * later questions.
 *
 *     state     meaning                         event                 next
 *     IDLE      in the list of its link         a message is sent     QUEUED
 *                                               the link closes       (freed)
 *     QUEUED    it waits for others             its turn              SENDING
 *                                               it joins another one  IDLE
 *     SENDING   nng has the message             it was sent           WAITING, DONE
 *     WAITING   the node has not answered       answer, error         DONE
 *     DONE      not all questions have ended    the last one ends     IDLE
 */
enum batch_state { BATCH_IDLE, BATCH_QUEUED, BATCH_SENDING, BATCH_WAITING, BATCH_DONE };

struct forward_batch {
    struct forward_link *link;
    struct forward_batch *next, *next_of_link;
    enum batch_state state; /* threads of nng write it from SENDING to DONE */
    bool is_alone;          /* other questions do not wait for it, and do not join it */
    bool is_sent;           /* from SENDING to the end of the last question */
    nng_ctx context;
    nng_aio *aio;
    doorman_time ends_at;
    nng_msg *message; /* what it sends while it is QUEUED, then the answer; NULL: none */
    struct forward_question *questions;
    size_t count, left; /* left: questions that have not ended */
};

struct forward_link {
    struct forward *forward;
    struct forward_link *next;
    char address[DOORMAN_ID_BYTES_MAX + 1];
    nng_socket socket;
    bool has_socket;
    struct forward_batch *all, *idle;
    struct forward_batch *queue, **queue_end; /* the first one is the oldest */
    size_t queue_count, queue_bytes;
    size_t sent_count; /* batches that were sent and have not ended, without those alone */
    doorman_time used_at;
    int pipe_count; /* atomic */
    bool is_lost;   /* atomic: a connection has ended */
};

/* The functions on links and questions need the lock of the part, if they do not say otherwise. */

/* Prepares to send a message to an address. It goes with the next call of server_forward_flush, or
 * later with other messages.
 *   message    the call takes it on success
 *   is_alone   its answer may come late, so other messages must not wait for it
 *   returns    NULL: it cannot be sent */
struct forward_question *server_forward_send(struct forward *forward, const char *address,
                                             nng_msg *message, doorman_time timeout, bool is_alone);

/* Sends what should wait no longer. */
void server_forward_flush(struct forward *forward);

/* Frees a question after its end. */
void server_forward_end(struct forward_question *question);

/* Ends the questions of connections that were lost. Returns the links that are not used, which the
 * caller closes. */
struct forward_link *server_forward_tend(struct forward *forward, doorman_time now);

/* Closes links without questions. Precondition: the lock is not held, because nng waits for its
 * callbacks. */
void server_forward_close_links(struct forward_link *links);

/* ---- >>jobs --------------------------------------------------------------------------------- */

struct forward_entry {
    size_t shard;
    size_t node;             /* of the map, while it is asked */
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
                                const uint64_t secret[2]);

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

    /* Takes the answers of a batch. Threads of nng call this, without the lock. */
    void (*take_batch)(struct forward *forward, const struct forward_batch *batch);
    doorman_time nudged_at; /* when the thread of shards was last woken. The lock of the service
                               guards it */
    counter marks_wrong, received;

    struct lock lock; /* guards what follows */
    bool has_lock;
    pthread_cond_t wake;
    bool stops, is_called;  /* is_called: the thread must look again */
    doorman_shard_map *map; /* the one that this process has read last */
    struct forward_link *links;
    struct forward_job *later;    /* jobs that try again */
    struct forward_job *finished; /* jobs whose answers must be written */
    size_t job_count, byte_count; /* of jobs until they are answered */
    struct forward_node *nodes;
};

/* What pages show of the messages to one node. */
struct forward_figures {
    uint64_t sent, failed, full, nanoseconds;
    bool is_known;  /* a message was for the node */
    bool is_broken; /* no process of it has answered the last one */
};

/* Reads the figures of each node of a map. */
void server_forward_read(struct service *service, const doorman_shard_map *map,
                         struct forward_figures *out);

/* Reads how many messages of other nodes have come, and how many had a wrong mark. */
void server_forward_read_marks(const struct service *service, uint64_t *received, uint64_t *wrong);

/* Lets the thread look again. Precondition: the lock is held. */
static inline void server_forward_call(struct forward *forward) {
    forward->is_called = true;
    pthread_cond_signal(&forward->wake);
}

#endif
