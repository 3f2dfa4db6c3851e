/* doorman_server, part GRPC: what its files share.
 *
 * One thread, the loop, has all connections and streams, so they need no lock. Other threads give
 * it answers in struct grpc_master, and the main thread gives it orders in struct grpc. Each of
 * these two structs has a lock for that. */
#ifndef DOORMAN_SERVER_GRPC_H
#define DOORMAN_SERVER_GRPC_H

#include "../http/http.h"
#include "../tls/tls.h"
#include "grpc_scan.h"
#include "quota.h"

#define GRPC_MESSAGE_MAX ((size_t)1 << 20)        /* bytes */
#define GRPC_HEALTH_MESSAGE_MAX ((size_t)4 << 10) /* of the health check, which needs no token */
#define GRPC_HEADERS_MAX ((size_t)16 << 10)       /* names and values, and 32 bytes a field */
#define GRPC_STREAM_MAX 100                       /* of one connection */
#define GRPC_CONNECTION_DEFAULT 1024
#define GRPC_PREFIX 5                        /* bytes before a message */
#define GRPC_TEXT_MAX 240                    /* of the text of an error */
#define GRPC_PATIENCE (10 * DOORMAN_SECOND)  /* how long a peer may take to send or to read */
#define GRPC_BUFFERED_MAX ((size_t)64 << 20) /* bytes of all requests that are not complete */
#define GRPC_BUFFERED_OPEN_MAX (GRPC_BUFFERED_MAX / 2) /* the same, for health checks */
#define GRPC_UNREAD_MAX ((size_t)512 << 10) /* bytes of answers that one peer has not taken */

#define GRPC_SPARE_MAX 64 /* buffers that are kept for the next streams */

#define GRPC_BUDGET_MAX 2000.0 /* frames that ask nothing: see grpc_budget.c */

/* The codes of gRPC, and their names. A code without a name is never sent. */
#define GRPC_CODES(CODE)                                                                           \
    CODE(OK, 0)                                                                                    \
    CODE(CANCELLED, 1)                                                                             \
    CODE(INVALID_ARGUMENT, 3)                                                                      \
    CODE(DEADLINE_EXCEEDED, 4)                                                                     \
    CODE(NOT_FOUND, 5)                                                                             \
    CODE(PERMISSION_DENIED, 7)                                                                     \
    CODE(RESOURCE_EXHAUSTED, 8)                                                                    \
    CODE(FAILED_PRECONDITION, 9)                                                                   \
    CODE(UNIMPLEMENTED, 12)                                                                        \
    CODE(INTERNAL, 13)                                                                             \
    CODE(UNAVAILABLE, 14)                                                                          \
    CODE(UNAUTHENTICATED, 16)

enum grpc_code {
#define GRPC_CODE(name, number) GRPC_##name = (number),
    GRPC_CODES(GRPC_CODE)
#undef GRPC_CODE
        GRPC_CODE_COUNT = 17
};

enum grpc_method {
    GRPC_SHOULD_RATE_LIMIT,
    GRPC_CHECK_RATE_LIMIT,
    GRPC_REPORT,
    GRPC_RESERVE,
    GRPC_COMMIT,
    GRPC_STREAM_QUOTAS,
    GRPC_HEALTH_CHECK,
    GRPC_HEALTH_WATCH,
    GRPC_UNKNOWN_METHOD,
    GRPC_METHOD_COUNT
};

/* Why a connection was ended, for metrics. */
enum grpc_ending {
    GRPC_END_PEER,      /* the peer has closed it, or the network has failed */
    GRPC_END_HANDSHAKE, /* of TLS */
    GRPC_END_PROTOCOL,  /* what the peer sends is not HTTP/2 */
    GRPC_END_FLOOD,     /* too many frames that ask nothing */
    GRPC_END_SLOW,      /* the peer has not completed its first request in GRPC_PATIENCE, or has
                           not read anything for as long */
    GRPC_END_CROWDED,   /* others needed the connection */
    GRPC_END_STOP,      /* the process stops */
    GRPC_END_COUNT
};

/* Atomic counters, for metrics. */
struct grpc_counters {
    counter requests[GRPC_METHOD_COUNT][GRPC_CODE_COUNT];
    counter endings[GRPC_END_COUNT];
    counter accepted, connections, streams; /* the last two are gauges */
    counter forwarded;                      /* questions to the master, and to other nodes */
    counter descriptors, hashed, limits_ignored, unmatched;
    counter quota_streams, quota_buckets, quota_resources; /* gauges */
    counter quota_ended_streams, quota_ended_committed;    /* gauges; streams, requests a second */
    counter quota_assignments, quota_abandoned, quota_refused, quota_unmatched;
};

/* How a call ends. */
struct grpc_status {
    enum grpc_code code;
    char text[GRPC_TEXT_MAX]; /* "": none */
};

/* Sets a status, and returns false. */
__attribute__((format(printf, 3, 4))) bool
server_grpc_fail(struct grpc_status *status, enum grpc_code code, const char *format, ...);

/* ---- memory (grpc_memory.c) ----------------------------------------------------------------- */

#define GRPC_MEMORY_SIZES 64 /* lists of free pieces */

struct grpc_piece;

struct grpc_memory {
    struct grpc_piece *free[GRPC_MEMORY_SIZES];
    size_t kept; /* bytes of all free pieces */
};

/* Returns a piece; NULL: out of memory. */
void *server_grpc_memory_take(struct grpc_memory *memory, size_t bytes);
void server_grpc_memory_give(struct grpc_memory *memory, void *piece); /* NULL: no effect */

/* Makes a piece larger, as realloc does.
 *   needed   bytes */
void *server_grpc_memory_grow(struct grpc_memory *memory, void *piece, size_t needed);

/* Frees what is kept. Precondition: all pieces were given back. */
void server_grpc_memory_free(struct grpc_memory *memory);

/* ---- calls (grpc_call.c, grpc_permit.c, grpc_reserve.c) ------------------------------------- */

/* What a permit says of one descriptor: the limit that refuses it, or the one with the fewest
 * units left. */
struct grpc_outcome {
    bool is_over, has_limit, has_reset;
    char name[DOORMAN_ID_BYTES_MAX + 1];
    double most, remaining;
    doorman_time window, reset; /* window 0: not known */
};

/* The field `limit` of a descriptor. */
struct grpc_wanted {
    double requests, seconds; /* seconds 0: of no unit */
};

struct grpc_descriptor {
    doorman_descriptor_item item; /* its names */
    double hits;
    bool is_refund;          /* the hits are given back */
    bool is_unmatched;       /* no template with limits has the resource, so no item asks for it */
    bool has_wanted, brings; /* it has the field `limit`; `set` has its figures */
    struct grpc_wanted wanted;                /* if has_wanted */
    doorman_permit_set set;                   /* if it brings figures (P31) */
    char set_limit[DOORMAN_ID_BYTES_MAX + 1]; /* set.limit points to it */
    struct grpc_outcome outcome;
};

/* The steps of a call. Each one is a request to the server object, here or at the master:
 *
 *     step     request                                        next step
 *     PERMIT   ACQUIRE: one item for each descriptor that     PERMIT again, without descriptors
 *              has limits, as one permit                      that are unmatched. REPORT, if it
 *                                                             is granted and there are refunds.
 *                                                             Else DONE
 *     SETTLE   SETTLE: what a Commit says of a reservation    REPORT, if it is refused. But if the
 *                                                             reason is LEARNING or SHARDS, the
 *                                                             call fails. Else DONE
 *     REPORT   REPORT: refunds, or all hits of Report and     DONE
 *              Commit
 */
enum grpc_step { GRPC_STEP_PERMIT, GRPC_STEP_SETTLE, GRPC_STEP_REPORT, GRPC_STEP_DONE };

#define GRPC_RESERVATION_ID 48 /* bytes, with the NUL */

/* The reservation of a Reserve or a Commit. */
struct grpc_reservation {
    doorman_time ttl;
    uint64_t number;  /* the request_id of the permit */
    char holder[16];  /* the client_id of the permit */
    bool is_made;     /* Reserve: the permit is granted */
    bool is_released; /* Commit: the reservation was still there */
};

struct grpc_call {
    struct service *service;
    struct grpc_counters *counters;
    doorman_json_exchange *exchange; /* of the loop */
    enum grpc_method method;
    enum grpc_step step;
    bool is_over;      /* the permit is refused */
    bool is_forwarded; /* the master or other nodes decide */
    bool is_away;      /* other nodes decide */
    bool may_bring;    /* the token has the role figures */
    bool brings;       /* an item has figures */
    bool has_fields;
    struct limit_fields *fields; /* of the descriptor that decides; NULL without --grpc-headers */
    doorman_request request;     /* of the step */
    doorman_permit_request permit;
    doorman_settle_request settle;
    struct grpc_reservation reservation;
    size_t holds_at; /* Reserve: the first descriptor that would need a hold; the count: none */
    doorman_permit_item *items; /* these three arrays have room for all descriptors */
    doorman_permit_entry *entries;
    size_t *places; /* the descriptor of each item or entry */
    char domain[DOORMAN_ID_BYTES_MAX + 1];
    size_t descriptor_count;
    struct grpc_descriptor descriptors[];
};

struct grpc;

/* Reads a message. The caller gives the call back to the memory of the loop.
 *   returns   NULL: the status says why, for example because the message is not valid */
struct grpc_call *server_grpc_call_read(struct grpc *grpc, enum grpc_method method,
                                        struct grpc_bytes message, struct grpc_status *status);

/* Turns the field `limit` of each descriptor into figures, and counts the fields that it ignores.
 * Precondition: the lock of the service is held.
 *   may       the peer may bring figures
 *   returns   true: an item has figures, so the caller must prepare the call again */
bool server_grpc_figures_bring(struct grpc_call *call, bool may);

/* Leaves all figures out, and counts them as ignored. The caller must prepare the call again. */
void server_grpc_figures_drop(struct grpc_call *call);

/* Returns the seconds of a unit of the protocol, or 0. */
double server_grpc_unit_seconds(uint32_t unit);

/* Makes the request of the step. Leaves out a step that has nothing to ask. */
void server_grpc_call_prepare(struct grpc_call *call);

/* Adds the response, with its prefix. */
void server_grpc_call_write(const struct grpc_call *call, struct text *out);

/* Adds the prefix of a message: its flag, and its length in bytes. */
void server_grpc_add_prefix(struct text *out, size_t bytes);

/* Begins a reservation.
 *   has_ttl   false: seconds and nanos are 0
 *   returns   false: the status says why */
bool server_grpc_reserve_start(struct grpc_reservation *out, bool has_ttl, int64_t seconds,
                               int32_t nanos, struct grpc_status *status);

/* Writes the id of a reservation. */
void server_grpc_reserve_id(const struct grpc_call *call, char id[GRPC_RESERVATION_ID]);

/* Reads the id of a reservation, and which descriptors had limits.
 *   returns   false: it is not an id of this server, and nothing has changed */
bool server_grpc_reserve_read_id(struct grpc_call *call, const uint8_t *bytes, size_t count);

/* Returns the first descriptor whose resource has a limit of kind CONCURRENCY, or the count of
 * descriptors.
 *   config   may be NULL; the lock that keeps it is held */
size_t server_grpc_call_find_holds(const struct grpc_call *call, const doorman_config *config);

/* Sets the status of a call that would need a hold, and returns false. The protocols have no holds,
 * so nobody would release it. */
bool server_grpc_call_refuse_holds(const struct grpc_call *call, size_t place,
                                   struct grpc_status *status);

enum grpc_decided {
    GRPC_DECIDED,   /* the call is done */
    GRPC_ELSEWHERE, /* another process is the master */
    GRPC_AWAY,      /* another node decides for a key */
    GRPC_FAILED     /* the status says why */
};

/* Lets the server object of this process decide.
 *   peer     for the log
 *   master   out: on ELSEWHERE the address of the master; "": not known */
enum grpc_decided server_grpc_call_decide(struct grpc_call *call, const struct peer *peer,
                                          struct grpc_status *status,
                                          char master[DOORMAN_ID_BYTES_MAX + 1]);

/* Takes the response to the request of the step, and prepares the next step. Precondition: the
 * lock of the service is held.
 *   returns   false: the call has failed */
bool server_grpc_call_take(struct grpc_call *call, const doorman_response *response,
                           struct grpc_status *status);

/* ---- the master (grpc_master.c) ------------------------------------------------------------- */

struct grpc_master; /* the link to another process that is the master */
struct grpc_question;

struct grpc_master *server_grpc_master_create(struct service *service, int wake);

/* Ends all questions. No callback runs after this call. */
void server_grpc_master_destroy(struct grpc_master *master);

/* Uses this address from now on. "": there is no other master. */
void server_grpc_master_set(struct grpc_master *master, const char *address);

/* Notes that the files of TLS have changed. Any thread may call this. */
void server_grpc_master_note_tls(struct grpc_master *master);

/* Returns whether the link has a connection. */
bool server_grpc_master_is_reached(struct grpc_master *master);

/* Sends the questions of a turn of the loop, and ends those whose connection was lost. */
void server_grpc_master_tend(struct grpc_master *master);

/* Sends the request of the call's step, with the next call of server_grpc_master_tend or later.
 *   owner     server_grpc_master_next returns it
 *   timeout   more than 0
 *   returns   NULL: the status says why */
struct grpc_question *server_grpc_master_ask(struct grpc_master *master,
                                             const struct grpc_call *call, void *owner,
                                             doorman_time timeout, struct grpc_status *status);

/* Asks the other nodes that decide on the call, with service->forwards->ask. The parameters and the
 * result are as in server_grpc_master_ask. */
struct grpc_question *server_grpc_master_forward(struct grpc_master *master,
                                                 const struct grpc_call *call, void *owner,
                                                 doorman_time timeout, struct grpc_status *status);

/* Forgets the owner of a question. The owner then gets no answer. */
void server_grpc_master_forget(struct grpc_question *question);

/* The answer to a question. */
struct grpc_answer {
    struct grpc_question *question;
    void *owner;      /* NULL: the owner was forgotten */
    int result;       /* 0, or an error of nng; NNG_EAGAIN: ask again */
    const char *text; /* lasts until server_grpc_master_end */
    size_t bytes;
};

/* Takes the next answer.
 *   returns   false: there is no answer now */
bool server_grpc_master_next(struct grpc_master *master, struct grpc_answer *out);

/* Ends the question of an answer. */
void server_grpc_master_end(struct grpc_master *master, const struct grpc_answer *answer);

/* Reads an answer, and gives it to its call.
 *   returns   false: the call has failed */
bool server_grpc_master_read(struct grpc_call *call, const struct grpc_answer *answer,
                             struct grpc_status *status);

/* ---- connections and streams (grpc_connection.c, grpc_stream.c) ----------------------------- */

struct grpc_connection;

/* A stream is one request:
 *
 *     state      meaning                                             next
 *     READING    the request is not complete                         ASKING, WATCHING, QUOTA,
 *                                                                    ANSWERING
 *     ASKING     the master decides, or other nodes                  ASKING, ANSWERING
 *     WATCHING   Watch: an answer follows each change                ANSWERING, at a drain or at
 *                                                                    its deadline
 *     QUOTA      quotas: reports and assignments follow one another  ANSWERING
 *     ANSWERING  the response is on its way, until nghttp2 closes the stream
 */
enum grpc_stream_state {
    GRPC_STREAM_READING,
    GRPC_STREAM_ASKING,
    GRPC_STREAM_WATCHING,
    GRPC_STREAM_QUOTA,
    GRPC_STREAM_ANSWERING
};

struct grpc_stream {
    struct grpc_connection *connection;
    struct grpc_stream *next, *previous; /* of the connection */
    int32_t id;
    enum grpc_stream_state state;
    enum grpc_method method;
    bool is_head, is_post, is_grpc, is_ended;   /* the head is complete; the verb and the type are
                                                 right; the peer has sent all */
    doorman_time started_at, state_at, timeout; /* timeout: of the client; DOORMAN_NEVER: none */
    size_t header_bytes;
    struct token_identity token;
    struct text in, out;
    size_t out_sent, unread; /* unread: the bytes of `out` in connection->unread */
    struct grpc_status status;
    struct grpc_call *call;
    struct grpc_question *question;
    int serving;                           /* Watch: the last value that was sent; 0: none */
    char domain[DOORMAN_ID_BYTES_MAX + 1]; /* quotas: of the first message; "": none yet */
    struct quota_stream *quota;            /* NULL: not open */
    doorman_time filled_at;                /* quotas: when `out` was filled */
};

struct grpc {
    struct service *service;
    struct grpc_counters counters;
    struct grpc_master *master;
    struct quotas *quotas;
    bool is_master;                /* at the last look */
    bool has_quotas;               /* this process is master, and has begun them */
    uint64_t quota_mastership;     /* how often the process had become master when they began */
    struct grpc_connection *first; /* the list of connections */
    size_t connection_count, ended_count, limit; /* ended: not freed yet, but counted */
    size_t buffered;                             /* bytes of requests that are not complete */
    struct grpc_memory memory;
    doorman_json_exchange exchange; /* what other parts see of the present call: its request and its
                                       error, but no response */
    doorman_buffer spares[GRPC_SPARE_MAX]; /* empty buffers for the next streams */
    size_t spare_count;
    int epoll, listener, wake;
    bool is_listening; /* the loop looks at the listener */
    bool is_draining;
    bool is_drained, was_drained; /* a drain of the process (E11), and at the look before */
    bool was_reached;             /* the link to the master had a connection at the last wakeup */
    int serving;                  /* what Health says: 1 or 2 */
    doorman_time looked_at, ticked_at, now;
    doorman_time ends_at; /* when the loop ends; 0: it does not end yet */
    char address[320];    /* with the real port */
    pthread_t thread;
    bool has_thread;
    bool has_lock;
    struct lock lock;       /* guards the members below */
    struct tls_server *tls; /* NULL: no TLS */
    bool drains, ends;      /* orders of the main thread */
};

/* Fields that are only needed until the head of a request is complete. A connection reads one head
 * at a time, so it has one such struct, and its streams have none. */
struct grpc_head {
    char authorization[HTTP_AUTHORIZATION_MAX];
    char client[QUOTA_CLIENT_MAX + 1]; /* x-doorman-client; "": none */
};

struct grpc_connection {
    struct grpc *grpc;
    struct grpc_connection *next, *previous;
    int socket; /* -1: a test has no socket */
    struct tls_session *tls;
    bool is_shaking;                               /* the TLS handshake is not complete */
    bool is_writing;                               /* the handshake waits until it can write */
    bool has_called;                               /* a request was complete */
    bool is_proved;                                /* the same, and it had a right token, or the
                                                      server has no tokens */
    bool is_closing;                               /* it ends when all is sent */
    bool has_ended;                                /* the loop frees it */
    void *session;                                 /* nghttp2_session */
    doorman_time accepted_at, idle_at, stalled_at; /* stalled_at: 0: nothing waits to be sent */
    struct grpc_head head;
    struct grpc_stream *heading; /* whose head or trailers nghttp2 reads; NULL: none */
    uint8_t out[16 << 10];
    size_t out_bytes, out_sent;
    const uint8_t *rest; /* of nghttp2: what did not fit into `out` */
    size_t rest_bytes;
    double budget; /* of frames that ask nothing */
    doorman_time budget_at;
    uint32_t events; /* of epoll */
    struct grpc_stream *streams;
    size_t stream_count;
    size_t unread;         /* bytes of answers of calls whose streams are not closed */
    char peer[PEER_BYTES]; /* for the log */
};

/* Makes a connection of a socket.
 *   returns   NULL: out of memory */
struct grpc_connection *server_grpc_connection_create(struct grpc *grpc, int socket,
                                                      struct tls_session *tls);
void server_grpc_connection_destroy(struct grpc_connection *connection);

/* Ends a connection. The loop frees it later. */
void server_grpc_connection_end(struct grpc_connection *connection, enum grpc_ending why);

/* Gives bytes of the peer to nghttp2. */
void server_grpc_connection_feed(struct grpc_connection *connection, const uint8_t *bytes,
                                 size_t count);

/* Fills the buffer `out` with what nghttp2 wants to send. Returns whether there is any. */
bool server_grpc_connection_fill(struct grpc_connection *connection);

/* Returns whether nothing will be sent or received any more. */
bool server_grpc_connection_is_over(const struct grpc_connection *connection);

/* Tells the peer to send no more requests, and ends its streams of Watch and of quotas. */
void server_grpc_connection_drain(struct grpc_connection *connection);

/* Takes some of the budget of frames that ask nothing. Without budget the connection ends. */
void server_grpc_connection_charge(struct grpc_connection *connection, double frames);

/* Does what is due for the streams of a connection. */
void server_grpc_streams_tick(struct grpc_connection *connection);

/* Bytes that a peer has sent. */
struct grpc_text {
    const char *bytes;
    size_t count;
};

struct grpc_stream *server_grpc_stream_open(struct grpc_connection *connection, int32_t id);
void server_grpc_stream_close(struct grpc_stream *stream);
void server_grpc_spares_free(struct grpc *grpc); /* the buffers kept for the next streams */
void server_grpc_stream_header(struct grpc_stream *stream, struct grpc_text name,
                               struct grpc_text value);
void server_grpc_stream_head_end(struct grpc_stream *stream);
void server_grpc_stream_data(struct grpc_stream *stream, const uint8_t *bytes, size_t count);
void server_grpc_stream_end(struct grpc_stream *stream); /* the request is complete */
void server_grpc_stream_answer(struct grpc_stream *stream, const struct grpc_answer *answer);
void server_grpc_stream_drain(struct grpc_stream *stream);

/* ---- health (grpc_health.c) ----------------------------------------------------------------- */

/* Looks whether this process can answer. Sets is_master, is_drained and serving of `grpc`, and the
 * address of the master. */
void server_grpc_look(struct grpc *grpc);

/* Adds the answer of a health check.
 *   watches   true: an unknown service gets an answer too, not an error
 *   returns   false: the status says why */
bool server_grpc_health_answer(struct grpc *grpc, struct grpc_stream *stream, bool watches);

/* ---- quotas (grpc_quota.c) ------------------------------------------------------------------ */

/* Makes the state machine. Returns false if memory runs out. */
bool server_grpc_quotas_create(struct grpc *grpc);

/* Ends quotas if the mastership in which they began has ended, and begins them if this process is
 * master. When they end, stream->quota becomes NULL for each stream, which must then end itself. */
void server_grpc_quotas_look(struct grpc *grpc);

/* Opens a stream. Returns false and sets the status if this process cannot serve it. */
bool server_grpc_quota_open(struct grpc_stream *stream);
void server_grpc_quota_close(struct grpc_stream *stream); /* no effect if it has no quotas */

/* Takes a message of reports, without its prefix.
 *   returns   false: the status says why it is not valid */
bool server_grpc_quota_take(struct grpc_stream *stream, const uint8_t *bytes, size_t count);

/* Asks for the leases that are due. */
void server_grpc_quotas_work(struct grpc *grpc);

/* Replaces `out` by the actions of a stream. Precondition: all of `out` has been sent. Returns
 * whether there are any. */
bool server_grpc_quota_write(struct grpc_stream *stream);

/* ---- names (grpc_names.c) ------------------------------------------------------------------- */

enum grpc_method server_grpc_method_find(const char *path, size_t bytes);
bool server_grpc_service_is_known(const char *name, size_t bytes);
const char *server_grpc_method_name(enum grpc_method method);
const char *server_grpc_code_name(enum grpc_code code); /* NULL: it is never sent */
const char *server_grpc_ending_name(enum grpc_ending ending);

#endif
