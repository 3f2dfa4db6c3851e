/* The core of doorman_server: the structs and functions that its files share. The comment at the
 * top of doorman_server.c lists the files. A file that needs the core includes this header, or a
 * header that does so, before the headers of the system. Functions that several files use start
 * with server_.
 *
 * This is the interface of the core, and the only header of the core that parts include. A part is
 * left out unless its macro is defined, such as DOORMAN_SERVER_HTTP: see server/core/parts.h. */

#ifndef DOORMAN_SERVER_H
#define DOORMAN_SERVER_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* getopt_long, sigtimedwait, memmem, strcasestr */
#endif
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cjson/cJSON.h>
#include <nng/nng.h>
#include <nng/supplemental/tls/tls.h>

#define DOORMAN_JSON
#define DOORMAN_NNG /* for the transport, the clock and random bits */
#include "../doorman_permits.h"

/* CONTINUE: the process continues. Any other value is an exit code, and the process ends (V7). */
enum exit_status {
    CONTINUE = -1,
    EXIT_OK = 0,
    EXIT_ERROR = 1,
    EXIT_USAGE = 2,
    EXIT_UNWRITTEN = 3 /* stopped as planned, but the last changes are not in the store */
};

/* The exit code of a planned stop: EXIT_OK, or what a part has set. Only the main thread and the
 * handler of SIGALRM use it. */
extern volatile sig_atomic_t server_stop_code;

/* ---- >>flags -------------------------------------------------------------------------------- */

enum {
#define FLAG(code, name, argument, variable, part, place, help) FLAG_##code,
#include "core/flags.h"
#undef FLAG
    FLAG_COUNT
};
#define ADDRESS_MAX 16 /* addresses per flag; the library also takes at most 16 parents */
#define LISTEN_DEFAULT "tcp://127.0.0.1:15000"
#define ETCD_EXAMPLE "http://127.0.0.1:2379"
#define TTL_MIN 2 /* seconds; etcd grants no shorter lease */
#define TTL_MAX 3600
#define ETCD_KEY_BYTES_MAX DOORMAN_ID_BYTES_MAX /* the election key is the default node name */
#define HTTP_DEFAULT "127.0.0.1:15050"

/* Prints why the process ends, as one line on standard error, and returns the status (V7). */
__attribute__((format(printf, 2, 3))) enum exit_status
server_fatal_error(enum exit_status exit_status, const char *format, ...);
#define server_usage_error(...) server_fatal_error(EXIT_USAGE, __VA_ARGS__)

const char *server_flag_name(int flag); /* without the two hyphens */

/* Returns the name of the part that a flag needs and this server lacks; NULL: there is none. */
const char *server_flag_lacks(int flag);

const char *server_status_text(doorman_status status);

enum log_level { LEVEL_DEBUG, LEVEL_INFO, LEVEL_WARNING, LEVEL_ERROR, LEVEL_COUNT };

struct addresses {
    char *items[ADDRESS_MAX];
    size_t count;
};

/* The values of the flags and the environment. Only the strings in struct addresses are copies. */
struct settings {
    bool given[FLAG_COUNT];
    const char *config, *id, *node, *advertise;
    const char *config_key, *election_key; /* keys of etcd; NULL: none */
    const char *config_cache;              /* NULL: none */
    bool config_in_store;                  /* --config store: */
    const char *etcd_ca, *etcd_cert, *etcd_key;
    const char *etcd_user, *etcd_password_file;
    int election_ttl;                               /* seconds */
    const char *http, *http_advertise, *http_token; /* http "off": no HTTP */
    const char *http_health;                        /* NULL: none */
    const char *grpc;                               /* NULL: none */
    size_t grpc_connection_max;
    bool grpc_headers;
    const char *events, *event_sample, *event_keys; /* NULL: no events; the defaults */
    const char *tls_cert, *tls_key, *tls_ca;
    const char *state, *state_password_file; /* NULL: nothing lasts */
    const char *state_ca, *state_cert, *state_key;
    const char *shards;                                           /* a key of etcd; NULL: none */
    const char *replace_at;                                       /* NULL: the default */
    size_t state_interval, state_wait;                            /* seconds */
    size_t resource_max, holder_max, message_max, connection_max; /* 0: the default */
    struct addresses listen, parents, etcd;
    enum log_level log_level;
    bool check_config;
};

/* Returns whether an address has a scheme of nng that uses TLS. */
static inline bool server_url_wants_tls(const char *url) {
    return strncmp(url, "tls+", 4) == 0 || strncmp(url, "wss", 3) == 0;
}

static inline bool server_addresses_want_tls(const struct addresses *addresses) {
    bool wanted = false;
    for (size_t i = 0; i < addresses->count; i++) {
        wanted = wanted || server_url_wants_tls(addresses->items[i]);
    }
    return wanted;
}

bool server_http_is_on(const struct settings *settings);

/* ---- >>log ---------------------------------------------------------------------------------- */

#define LOG_END ((const char *)0) /* ends the list of pairs */

/* Logs a message with pairs of key and value. All arguments are strings. LOG_END ends the pairs. */
__attribute__((sentinel)) void server_log(const struct settings *settings, enum log_level level,
                                          const char *message, ...);

/* A counter that all threads share. Atomic access needs an alignment of 8 bytes, which 32-bit x86
 * does not have by default. */
typedef uint64_t counter __attribute__((aligned(8)));

static inline void server_counter_add(counter *count, uint64_t more) {
    __atomic_fetch_add(count, more, __ATOMIC_RELAXED);
}

const counter *server_lost_line_count(void); /* log lines that could not be written */

/* ---- >>state -------------------------------------------------------------------------------- */

/* Memory goes back to the system after this many leases have ended. These leases use some MB. */
#define TRIM_LEASES 10000

/* The kinds of messages, for metrics and warnings. */
enum {
    MESSAGE_DISCOVERY,
    MESSAGE_GET_CAPACITY,
    MESSAGE_GET_SERVER_CAPACITY,
    MESSAGE_RELEASE_CAPACITY,
    MESSAGE_REPORT_OVERLOAD,
    MESSAGE_ACQUIRE,
    MESSAGE_REPORT,
    MESSAGE_INSPECT,
    MESSAGE_RESET,
    MESSAGE_RENEW,
    MESSAGE_RELEASE,
    MESSAGE_TRANSFER,
    MESSAGE_SEIZE,
    MESSAGE_SETTLE,
    MESSAGE_UNKNOWN, /* a message that could not be read */
    MESSAGE_KIND_COUNT
};

/* The sender of a message. */
struct peer {
    nng_pipe pipe;     /* for a message over nng */
    const char *token; /* the name of its token; "" or NULL: none */
    const char *text;  /* HOST:PORT, for a message over HTTP or gRPC; NULL: it came over nng */
};

#include "core/lock.h"
#include "core/waiter.h"
#include "core/batches.h"
#include "core/forwarder.h"
#include "core/loop.h"

/* A worker receives a request, handles it, sends the response, and receives the next request. There
 * are more workers than nng threads, so that a worker is ready to receive even while each of these
 * threads handles a request. */
#define WORKER_COUNT 32

struct worker {
    struct service *service;
    nng_ctx context;
    nng_aio *aio;
    bool sending;
    bool retires;        /* another worker receives in its place */
    struct worker *next; /* in the list of idle workers */
    nng_msg *message;    /* the request that it handles */
    doorman_json_exchange exchange;
    struct waiter waiter;
};

static inline struct worker *server_worker_of(struct waiter *waiter) {
    return (struct worker *)(void *)((char *)waiter - offsetof(struct worker, waiter));
}

/* The sender of the message that the server decides at this moment. */
struct sender {
    const struct peer *peer; /* NULL: no message is being decided */
    bool is_server;          /* the sender is a child node */
    bool has_shared_id;      /* the message shows that two processes use the id of the sender */
};

/* A message that the server has answered, or has passed to other nodes. */
struct message_report {
    const doorman_json_exchange *exchange; /* after its last step */
    const struct peer *peer;
    bool was_read; /* the message could be read, so exchange->request has its method */
    doorman_status status;
    doorman_time duration; /* from the arrival of the message to its response */
    const char *client;    /* the id of the holder; "" or NULL: not known. Only for debug lines */
};

/* A problem that lasts, such as a parent that cannot be reached. Pages and JSON show it. */
struct trouble {
    doorman_time since; /* 0: there is no problem */
    uint64_t count;     /* how often it was noticed since then */
    char reason[sizeof(doorman_error)];
};

/* Counts that a problem was noticed, and sets its reason. The problem starts now if there was
 * none. */
static inline void server_trouble_set(struct trouble *trouble, const char *reason,
                                      doorman_time now) {
    if (trouble->since == 0) trouble->since = now, trouble->count = 0;
    trouble->count++;
    snprintf(trouble->reason, sizeof trouble->reason, "%s", reason);
}

/* A problem as text: its duration in seconds, and how often it was noticed. */
struct trouble_text {
    char seconds[32], count[24];
};

static inline struct trouble_text server_trouble_text(const struct trouble *trouble,
                                                      doorman_time now) {
    struct trouble_text text = {.seconds = ""};
    double seconds = (double)(now - trouble->since) / (double)DOORMAN_SECOND;
    snprintf(text.seconds, sizeof text.seconds, "%.1f", seconds);
    snprintf(text.count, sizeof text.count, "%" PRIu64, trouble->count);
    return text;
}

/* What is known about the parent. */
struct parent_state {
    doorman_time answered_at;                    /* 0: it has not answered yet */
    doorman_time retry_at;                       /* after a failure: when the next request is due */
    bool has_no_master;                          /* the problem is that it has no known master */
    char redirect[DOORMAN_ID_BYTES_MAX + 1];     /* where it has redirected to last; "": nowhere */
    char address[DOORMAN_ID_BYTES_MAX + 1];      /* that was asked last; "": none */
    char http_address[DOORMAN_ID_BYTES_MAX + 1]; /* of its pages, as it says; "": not known */
    struct trouble trouble;                      /* why the last request failed */
    doorman_time shared_at; /* when the parent last said that another process uses the node's name;
                               0: never */
};

/* The link to the parent. While its thread runs, only this thread uses the transport. The lock of
 * the service guards wakes_at, has_new_tls and state. */
struct parent_link {
    pthread_t thread;
    bool started;
    pthread_cond_t wake;
    doorman_transport *transport;
    doorman_time wakes_at; /* when the thread wakes up to do what is due; 0: it is awake */
    bool has_new_tls;      /* service->pem has changed since the transport copied it */
    struct parent_state state;
};

#define BUCKET_COUNT 12 /* of the histogram of durations */

/* The kinds of failed authentications: of requests over HTTP or gRPC, of connections over TLS, and
 * of connections over nng. */
enum {
    FAILED_TOKEN_MISSING,
    FAILED_TOKEN_WRONG,
    FAILED_ROLE,        /* the token is right, but has a role that is too small */
    FAILED_CERTIFICATE, /* the peer has no certificate that --tls-ca has signed */
    FAILED_HANDSHAKE,
    FAILED_NNG_HANDSHAKE, /* nng does not say whether the certificate was the reason */
    FAILED_COUNT
};

/* The acts of administration, and their names in the audit and in metrics. */
#define ACT_KINDS(ACT)                                                                             \
    ACT(OVERRIDE, "override")                                                                      \
    ACT(OVERRIDE_END, "end_override")                                                              \
    ACT(RESET, "reset")                                                                            \
    ACT(BAN, "ban")                                                                                \
    ACT(BAN_END, "end_ban")                                                                        \
    ACT(PLAN, "plan")                                                                              \
    ACT(PLAN_END, "end_plan")                                                                      \
    ACT(CONFIG, "config")                                                                          \
    ACT(ROLLBACK, "rollback")                                                                      \
    ACT(UNDO, "undo")                                                                              \
    ACT(DRAIN, "drain")                                                                            \
    ACT(UNDRAIN, "undrain")                                                                        \
    ACT(HOLD_END, "hold_end")                                                                      \
    ACT(RESERVATION_END, "reservation_end")                                                        \
    ACT(SHARDS, "shards")

enum act_kind {
#define ACT_OF_KIND(code, name) ACT_##code,
    ACT_KINDS(ACT_OF_KIND)
#undef ACT_OF_KIND
        ACT_KIND_COUNT
};

/* Counters for the metrics. Each counter is atomic. Two counters that are read together may differ
 * by requests in progress. */
struct counters {
    counter requests[MESSAGE_KIND_COUNT][DOORMAN_STATUS_COUNT];
    counter buckets[MESSAGE_KIND_COUNT][BUCKET_COUNT + 1]; /* the last one has no upper bound */
    counter nanoseconds[MESSAGE_KIND_COUNT];
    counter parent[DOORMAN_STATUS_COUNT];
    counter unmatched;
    counter shared_id[2]; /* of clients, and of child nodes */
    counter authentication_failures[FAILED_COUNT];
    counter acts[ACT_KIND_COUNT];                         /* acts that are in the store */
    counter etcd_errors[ADDRESS_MAX];                     /* failed tries, by member of etcd */
    counter master_changes[DOORMAN_ELECTION_STATE_COUNT]; /* changes of the master, by the new
                                                              state of this process */
};

#include "core/drain.h"
#include "core/load.h"

/* The contents of the files that the flags --tls-... name. NULL: the flag is not given. */
struct pem {
    char *certificate, *key, *authority;
};

/* The file descriptors of the process at the last look of server/process/replace.c, and how often
 * it has replaced itself because they leaked. */
struct descriptors {
    size_t open, leaked, limit; /* leaked: the peer has left, and nothing closes them */
    struct trouble trouble;     /* the leak, with the reason why the process keeps running */
    uint64_t replacement_count;
    doorman_time replaced_at; /* the last time; only if replacement_count > 0 */
};

/* Why a server learns. */
enum learning_cause {
    LEARNING_OF_MASTER,       /* this process has become master */
    LEARNING_OF_CONFIGURATION /* a new configuration has new templates, or longer leases */
};

/* The certificates whose ends are shown: of --tls-cert, and of --tls-ca. */
enum { CERTIFICATE_OWN, CERTIFICATE_AUTHORITY, CERTIFICATE_COUNT };

/* What is known about the election. Only the part ETCD writes it. */
struct election_status {
    struct trouble no_master;      /* why the node has no master; only with an election */
    struct trouble last_loss;      /* when and why this process lost its mastership */
    struct trouble etcd;           /* why the last call to etcd failed */
    doorman_time etcd_answered_at; /* 0: it has not answered yet */
    doorman_time master_until; /* until then this process is master, if etcd does not answer; 0: it
                                  is not master by an election */
    int64_t lease; /* of etcd, which holds the election key; only while this process is master */
};

#define PERMIT_PARTS_MAX 4

struct service {
    const struct settings *settings;
    const struct server_part *message_parts[4]; /* those with `message`; NULL ends the list */
    /* What parts keep: see SERVER_PART_STATE. NULL: the server was built without the part. */
    struct memory *memory;
    struct warnings *warnings;
    struct reports *reports;
    struct unmatched *unmatched; /* descriptors without a template */
    struct watch *watch;
    struct ipc_probe *ipc_probe;
    struct replace *replace;
    struct tls_watch *tls_watch;
    struct election *election;
    struct lock_hold *longest_hold;
    struct grpc *grpc;
    struct events *events; /* what happens, for subscribers */
    struct shards *shards;
    struct forward *forward;
    const char *id, *node, *advertise;
    doorman_time started_at;
    struct pem pem;                                /* `lock` guards it while workers run */
    nng_tls_config *tls;                           /* NULL: none; used only by the main thread */
    nng_tls_config *last_tls;                      /* the one before `tls`; NULL: none */
    const char *http_address;                      /* where HTTP listens; NULL: it is off */
    struct http *http;                             /* NULL: off */
    struct health *health;                         /* NULL: none */
    unsigned http_health_port;                     /* where it listens; 0: nowhere */
    struct tokens *tokens;                         /* NULL: HTTP needs no token */
    char http_advertise[DOORMAN_ID_BYTES_MAX + 1]; /* "": others cannot reach HTTP. Set once, with
                                                      the lock held */
    struct history *history;                       /* NULL: HTTP is off */
    struct limit_history *limit_history;           /* NULL: HTTP is off */
    struct counters counters;
    size_t connection_count; /* nng connections; atomic */
    size_t probe_count;      /* see server_listen_again; atomic */
    nng_socket socket;
    char *urls[ADDRESS_MAX];             /* the bound addresses, with real ports instead of 0 */
    nng_listener listeners[ADDRESS_MAX]; /* those of `urls` */
    size_t url_count;
    struct worker workers[WORKER_COUNT];
    unsigned sending_count;               /* workers that send and do not retire; atomic */
    struct waiting *waiting;              /* NULL: permits never wait */
    const struct waiting_calls *waits;    /* of the part that lets permits wait; NULL: none */
    const struct forward_calls *forwards; /* of the part that asks other nodes; NULL: none */
    const struct batch_calls *batches;    /* of the part with links; NULL: none */
    const struct loop_calls *loop;        /* of the loop that runs; NULL: none */
    const struct tls_calls *tls_calls;    /* TLS for HTTP and gRPC; NULL: the build has none */
    const struct server_part *permit_parts[PERMIT_PARTS_MAX]; /* for events of permits */
    size_t permit_part_count;
    struct lock config_lock; /* held while a configuration is destroyed. A thread that holds it can
                                use `config` without `lock` */
    struct lock lock;        /* guards all members below while workers run */
    doorman_config *config;
    doorman_server *server;
    struct sender sender;
    int64_t certificate_ends[CERTIFICATE_COUNT]; /* seconds since 1970; 0: not known */
    uint64_t ended_lease_count; /* leases that ended since memory was last returned */
    bool stopping;
    struct drain drain;
    bool replaces; /* the process stops to run its program again; only the main thread uses it */
    struct descriptors descriptors;
    struct config_load last_load;
    struct parent_link parent_link;
    struct children *children; /* NULL: none */
    struct election_status election_status;
    char master_http[DOORMAN_ID_BYTES_MAX +
                     1];                     /* of another process that is master; "": not known */
    struct notify *notify;                   /* NULL: systemd does not ask for notifications */
    struct state *state;                     /* the thread that writes --state; NULL: none */
    const struct state_status *state_status; /* its status, for pages; NULL: none */
    struct notes *notes;                     /* acts in etcd; NULL: they are not kept there */
    struct admin *admin;                     /* acts of administration */
    struct override_form *override_form;     /* the form for other figures of a key */
    struct versions *versions;               /* of the configuration */
    struct config_writer *config_writer;     /* writes it to its key of etcd */
};

/* Notes why files were not loaded. Precondition: the lock is not held.
 *   reason   "": nothing is wrong */
static inline void server_note_failure(struct service *service, enum load_failure failure,
                                       const char *reason) {
    server_lock(&service->lock);
    snprintf(service->last_load.failures[failure], PROBLEM_TEXT, "%s", reason);
    server_unlock(&service->lock);
}

/* Wakes the thread of the parent link if the next request to the parent is due before the thread
 * would wake up (T4). Precondition: the lock is held. */
static inline void server_expedite_parent(struct service *service) {
    struct parent_link *link = &service->parent_link;
    assert(server_lock_is_held(&service->lock));
    if (doorman_upstream_due(doorman_server_upstream(service->server)) < link->wakes_at) {
        link->wakes_at = 0;
        pthread_cond_signal(&link->wake);
    }
}

/* Returns whether messages are refused, because their changes would be lost. Precondition: the lock
 * is held. */
static inline bool server_pauses(const struct service *service) {
    assert(server_lock_is_held(&service->lock));
    const enum drain_phase phase = service->drain.phase;
    return service->stopping || phase == DRAIN_PAUSED || phase == DRAIN_LEAVING;
}

/* Returns whether acts of administration are kept: in the store of --state, or in etcd. */
static inline bool server_keeps_acts(const struct service *service) {
    return service->state || service->notes;
}

#include "core/part.h"

/* Moves a drain to a phase, and tells the parts. Precondition: the lock is held. */
void server_drain_move(struct service *service, enum drain_phase phase);

/* Calls a drain off. This process stays master. Precondition: the lock is held.
 *   why   a phrase for the log and for administrators */
void server_drain_call_off(struct service *service, const char *why);

/* Makes what the parts keep. server_free_states frees it, also after a failure. */
enum exit_status server_make_states(struct service *service);
void server_free_states(struct service *service);

/* Calls server_make_states, and loads the first configuration. If that fails, prints why.
 *   problems   written in full: the warnings about it, or why it cannot be loaded */
enum exit_status server_load_config(struct service *service, struct config_problems *problems);

/* Stops the service and frees it, also after an incomplete start. */
void server_end(struct service *service);

/* Loads the configuration again. */
void server_reload_config(struct service *service);

/* Puts a configuration into force, and logs this change and the warnings. If the configuration is
 * invalid, only logs the errors (V1).
 *   config   the function takes ownership; NULL: the configuration could not be loaded */
void server_apply_config(struct service *service, doorman_config *config,
                         const struct config_problems *problems);

/* Writes a hash of a configuration. Equal configurations have equal hashes, even if their files
 * have different layouts. Writes "" if memory runs out, or if there is no configuration.
 *   config   NULL: none */
void server_config_hash(const doorman_config *config, char hash[CONFIG_HASH_BYTES]);

/* Tells the parts that a message was answered, or passed to other nodes. */
void server_note_message(struct service *service, const struct message_report *report);

/* Tells the parts whether the server object learns. Precondition: the lock is held. */
void server_note_learning(struct service *service, enum learning_cause cause, doorman_time now);

/* Loads the files of a group again, in the parts that use them. Returns whether they are valid. */
bool server_load_files(struct service *service, enum file_group group, bool is_quiet);

/* Tells the parts that service->tls is a new one. */
void server_note_tls(struct service *service);

/* Writes the reply of a message that is decided, and reports the message.
 *   was_read, duration   as in struct message_report */
doorman_status server_finish_message(struct service *service, doorman_json_exchange *exchange,
                                     const struct peer *peer, bool was_read, doorman_time duration);

/* Listens a second time at an address of service->urls. The first listener stays open, so that its
 * connections stay. A connection of this process to its own ipc:// address is closed when nng has
 * started it, and counted in service->probe_count. Only the main thread may call it.
 *   returns   nng's error, or 0 */
int server_listen_again(struct service *service, size_t index);

/* Handles a message from nng or HTTP. Its permits may wait. Its reply is in waiter->exchange, and
 * is empty if memory runs out.
 *   returns   false: the message waits, or other nodes decide. Another thread may have answered it
 *             already, so the caller must not use the waiter */
bool server_handle_message(struct service *service, struct waiter *waiter, const char *text,
                           size_t bytes);

/* Whether other threads may delete the JSON trees that this thread makes. The part MEMORY reads it.
 * When a tree is deleted, the variable must have the value that it had when the tree was made. Each
 * file that includes this header defines the variable, and the linker keeps one definition. */
__attribute__((weak)) _Thread_local bool server_shares_memory;

/* Starts to receive the next message. */
void server_worker_receive(struct worker *worker);
void server_worker_step(void *worker); /* the callback of its aio */

#endif
