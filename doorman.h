/*
 * doorman.h, version 0.2.0: rate limiting for many processes, by leases. Two more headers include
 * this one, and work alone or together: doorman_permits.h and doorman_throttle.h.
 *
 * LEASES. Many processes use a resource whose capacity is limited, such as queries per second on a
 * database, or open transactions. Each process asks a server for a share, and gets a LEASE: an
 * amount that it may use for a limited time. The process limits itself to that amount, and needs no
 * further message to the server while it has the lease.
 *
 * PERMITS. A server grants or refuses a PERMIT for each request, by rules for each of very many
 * keys. A granted permit is a HOLD if its units stay taken until they are released or its time
 * ends. A program with permits includes doorman_permits.h in place of this header. In any other
 * program, the fields of messages and configurations that are for permits must be empty.
 *
 * THROTTLE. A loaded server decides which requests it takes: see doorman_throttle.h.
 *
 * DO THIS
 *
 *     In one C file, before any other include:
 *
 *         #define DOORMAN_IMPLEMENTATION
 *         #define DOORMAN_JSON      // messages and configurations as JSON; needs cJSON
 *         #define DOORMAN_NNG       // a client with its own thread; needs JSON, nng, POSIX threads
 *         #include "doorman.h"
 *
 *     Each other file that includes the header defines the same macros, except
 *     DOORMAN_IMPLEMENTATION. Without JSON and NNG the header needs only the C standard library.
 *     The implementation compiles as C11 with gcc and clang. The public part also compiles as C99
 *     and C++11. Link with -lcjson for JSON, and with -lnng -pthread for NNG.
 *
 *     A C++ program needs one C file with the implementation. In C++, initialise a struct with
 *     `= {}`, and then assign its fields: `doorman_client_options options = {};
 *     options.client_id = "me";`. Designated initialisers of C++20 make g++ -Wextra warn.
 *
 * AN EXAMPLE, from examples/rate_client.c. The program limits its queries to its share.
 * examples/library_only.c has a server and three clients in one process, without a network.
 *
 * <!-- file: examples/rate_client.c -->
 *     const char *addresses[] = {argc > 1 ? argv[1] : "tcp://127.0.0.1:15000"};
 *     doorman_client_options options = {.addresses = addresses, .address_count = 1};
 *     doorman_resource_options database = {
 *         .resource_id = "db/orders",
 *         .wants = 400,
 *         .has_safe_capacity = true,
 *         .safe_capacity = 10,
 *     };
 *     doorman_agent *agent = NULL;
 *     doorman_resource *resource = NULL;
 *     doorman_error error = {0};
 *     if (doorman_agent_start(&agent, &options, &error) != DOORMAN_OK ||
 *         doorman_resource_open(&resource, agent, &database, &error) != DOORMAN_OK) {
 *         fprintf(stderr, "rate_client: %s\n", error.text);
 *         doorman_agent_stop(agent);
 *         return 1;
 *     }
 *
 *     for (int second = 1; second <= 10; second++) {
 *         int queries = 0;
 *         doorman_time end = doorman_clock() + DOORMAN_SECOND;
 *         for (doorman_time now; (now = doorman_clock()) < end;) {
 *             if (doorman_resource_wait(resource, 1, end - now) == DOORMAN_OK) queries++;
 *         }
 *         doorman_resource_info info;
 *         doorman_resource_read(resource, &info);
 *         printf("%2d s: %5d queries, %s of %g a second\n", second, queries,
 *                info.leased ? "a lease" : "without a lease, the safe capacity", info.capacity);
 *     }
 *
 *     doorman_agent_stop(agent);
 *
 * CONCEPTS
 *
 *     resource        what is limited. Its users choose its id, for example "db/orders"
 *     capacity        how much of a resource there is, from 0 to 1e15. A rate has units per second,
 *                     for example requests. A gauge has units in use, for example connections
 *     template        the settings of all resources whose ids match a glob
 *     server          a process that grants leases
 *     node            one or more servers with a common name. One server is the master and answers
 *                     requests. The other servers respond with the address of the master. Nodes
 *                     form a tree: each node except the root has a parent
 *     client          a process that uses resources
 *     holder          a client, or a node that has leases on behalf of its clients. It has an id
 *     wants           how much a holder asks for
 *     has             how much a holder may use under its lease
 *     committed       how much the server counts as used by a holder, at least what the holder has.
 *                     After a smaller lease it falls when the holder confirms that lease, or else
 *                     within two lease lengths
 *     subclients      the number of clients that a holder represents. For a client the number is 1
 *     learning        what a new master does until the leases of its predecessor have ended: it
 *                     grants each holder only what the holder says it has, and what others give
 *                     back. A holder without a lease receives TRY_LATER, and uses its fallback
 *     fallback        what a client may use of a resource without a lease: see doorman_fallback
 *     safe capacity   the capacity of the fallback DOORMAN_SAFE
 *
 *     This is the life of a lease, on the clocks of holder and server:
 *
 *         holder   asks ........ accepts: may use it until `expires_in` after it asked
 *                     \         /                            |  refresh: asks again well before
 *         server       decides .                             |
 *                      commits it for (1 + drift) * expires_in, from when it decided
 *
 *     The sections >>client, >>upstream and >>election list the states of a resource, of a held
 *     lease and of an election.
 *
 * WHAT IT IS NOT
 *
 *     A lease does not protect a resource from clients that cheat. Each client must limit itself to
 *     its lease. If clients may cheat, use permits, and let a gateway ask for them. Doorman
 *     promises that the sum of the leases does not exceed the capacity, except after a cut of the
 *     capacity, until the older leases have ended. What clients use without a lease is not part of
 *     this sum. The promise needs an algorithm that divides the capacity, CONFIRMED handover and
 *     full learning, which are defaults, and clocks whose rates differ by at most the drift (5 %).
 *
 * MACROS that you may define before you include the header
 *
 *     DOORMAN_IMPLEMENTATION   includes the implementation. Define it in exactly one C file, unless
 *                              you define DOORMAN_STATIC
 *     DOORMAN_STATIC           makes all functions static. Every file that includes the header must
 *                              then define DOORMAN_IMPLEMENTATION too
 *     DOORMAN_JSON             adds the functions of the section >>json
 *     DOORMAN_NNG              adds the functions of the section >>nng
 *     DOORMAN_MALLOC(bytes), DOORMAN_REALLOC(pointer, bytes), DOORMAN_FREE(pointer)
 *                              allocate and free memory. The defaults are malloc, realloc and free.
 *                              Define all three or none
 *     NDEBUG                   removes assertions. Assertions find mistakes of this library. They
 *                              never check the arguments of a call
 *
 *     Define them before the first include of the header. With DOORMAN_NNG the implementation needs
 *     POSIX names: with -std=c11, include doorman.h or define _DEFAULT_SOURCE before the first
 *     system header. Otherwise the compiler reports an error.
 *
 * MEMORY
 *
 *     Each create function has a destroy function. A doorman_limiter and a doorman_election are in
 *     the caller's memory, which the library never frees. Arguments, and the memory that they point
 *     to, are used only during the call, except where a comment says otherwise. Pointers in a
 *     result stay valid until the next call on the object that returned them. A call that returns a
 *     status, and runs out of memory, returns OUT_OF_MEMORY and changes nothing, except where a
 *     comment says otherwise.
 *
 * ERRORS
 *
 *     A call that can fail returns a doorman_status. DOORMAN_OK is 0. After an error the object and
 *     the outputs are as before, except where a comment says otherwise. A doorman_error describes
 *     the error. If an argument or a field is wrong, the text begins with its name: `key: must be 0
 *     to 256 bytes of UTF-8`, or `templates[2].limits[0].figures.rate: must be ...`. The field
 *     `path_bytes` of the error says where the name ends. A field has its name in C if the caller
 *     has passed it in C, and its name in JSON if it was read from JSON. Missing capacity is not an
 *     error: a function whose name ends in `_try` returns a doorman_decision, not a status, and a
 *     doorman_resource_info says whether a resource has a lease.
 *
 *     A pointer or a callback may be NULL only where a comment says so. There is one exception, the
 *     calls that end an object: _destroy, _uninit, _close, _shutdown, _stop and _resign accept
 *     NULL, and do nothing. Every other call checks the pointers that it needs. If one of them is
 *     NULL, a call that returns a status returns INVALID_ARGUMENT, and a try returns
 *     DOORMAN_IMPOSSIBLE. A call whose result is the time of the next call, or a delay, returns
 *     DOORMAN_NEVER. Any other call does nothing, and returns false, 0, NULL or NO_MASTER. In each
 *     of these cases an `out` that is documented as written in full is filled with zeros, with
 *     three exceptions: a doorman_result is IMPOSSIBLE, a doorman_election_call is due
 *     DOORMAN_NEVER, and doorman_permit_client_read_hold says that the hold is gone.
 *
 * THREADS AND TIME
 *
 *     Any thread may use an agent and its resources. A child process must not use an agent of its
 *     parent process. Only one thread at a time may use a server, or a client with its upstream and
 *     its resources, so threads that share one need a lock. Any number of threads may use one
 *     limiter or one configuration without a lock, and may call doorman_client_try and
 *     doorman_client_release without a lock.
 *
 *     Only the sections >>nng and >>permit_agent read a clock. All other public functions that
 *     depend on time take `now` as the last parameter. `now` is a time in nanoseconds, on any clock
 *     that never goes back. If the clock does go back, the library behaves as if the clock stood
 *     still. But a limiter without a server does not store the latest `now`, so a try with an
 *     earlier `now` may count at that earlier time. A thread should read the clock just before its
 *     try. A lease has ended when now >= its end. The same calls with the same `now` and seeds have
 *     the same results on every machine; 32-bit x86 needs -msse2 -mfpmath=sse for this. Use a clock
 *     that keeps running while the machine is suspended, or leases last too long. A function whose
 *     name ends in `_due` returns when the caller must call the object again.
 *
 * SOURCES. The protocol, the tree, learning and the names are from the design document "Global
 * Distributed Client Side Rate Limiting" (YouTube, 2016). Comments name other sources.
 *
 * THE API, by group. The documentation of each function is above its declaration.
 *
 *     status         doorman_status_name
 *     configuration  doorman_config_create  _destroy  _read  _fits  _find
 *     shares         doorman_shares
 *     messages       doorman_method_name  doorman_lease_reason_name
 *     upstream       doorman_upstream_due  _request  _response  _failed
 *     server         doorman_server_create  _destroy  _configure  _set_master  _set_epoch
 *                    _handle  _upstream  _next_resource  _next_lease  _lease_count  _find
 *                    _learns_until  _hand_over  _take_over
 *     election       doorman_election_init  _next  _answered  _mastership  _abstain  _resign
 *     client         doorman_client_create  _destroy  _upstream  _open  _close  _set_wants
 *                    _report_overload  _read  _try  _release
 *     estimates      doorman_estimate_create  _destroy  _add
 *     limiters       doorman_limit_init    doorman_limiter_init  _try  _delay  _release
 *     JSON           doorman_json_config  _check_config  _write_config  _serve  _request
 *                    _response    doorman_json_exchange_read  _decide  _write  _uninit
 *                    doorman_buffer_uninit
 *     agent          doorman_agent_start  _shutdown  _stop  _read_info  _kill_switch
 *                    doorman_resource_open  _close  _try  _wait  _release  _delay  _set_wants
 *                    _report_overload  _read    doorman_clock
 *     transport      doorman_transport_create  _destroy  _set_tls  _update  _send
 *
 *     There are three ways to use the library:
 *     an application  calls doorman_agent_start and doorman_resource_open, and doorman_resource_try
 *                     or _wait each time before it uses the resource: see the example
 *     a node          calls doorman_json_config, doorman_server_create and _set_master, and for
 *                     each message doorman_json_serve. With a parent it needs a doorman_transport,
 *                     and with several processes a doorman_election, which says which of them is
 *                     master. doorman_server.c is such a program
 *     a test          creates servers and clients, which read no clock and use no network. It sets
 *                     the time, and passes the messages between them
 *
 * LIMITS
 *
 *     ids, addresses  1 to 256 bytes of UTF-8 without control characters
 *     amounts         0 to 1e15, in multiples of 2^-48 of a unit. Most limiters count in 1/4096 of
 *                     a unit
 *     priorities      0 to 15
 *     durations       0 to 1e8 seconds, which is about three years
 *     a message       at most 4 MiB, 32 levels of nesting, and 200,000 values
 *     a client        1 to 16 addresses of servers
 *     a server        10,000 templates, 1,000,000 resources, 10,000,000 holders of one resource,
 *                     100,000 resources of one client. The options can change these four limits
 *
 * CONTENTS. Search for a tag to find its section. The comment that opens a section states its
 * rules. The rules have numbers (T7, R4, ...), and tests quote these numbers. A section uses only
 * the sections before it. `make lint` checks this.
 *
 *     (the API)         from here to "the API ends here"
 *     >>basics          status, memory, random numbers, ids, hash table, timers, exact sums
 *     >>configuration   globs, templates, and which template a resource gets
 *     >>shares          the algorithms, and the index that makes them fast
 *     >>leases          the leases of one resource; how capacity moves between holders, and why
 *     >>upstream        which requests a client or node makes, when, and to which address
 *     >>overload        capacity that follows what overloaded servers report
 *     >>server          a node: mastership, learning, how a request is answered
 *     >>handover        what a master that stops gives to the next one
 *     >>election        which process of a node is master
 *     >>limiters        how an application takes units of a resource, or of a limit of its own
 *     >>client          the resources of an application, their fallbacks, and wants that follow use
 *     >>json            the wire protocol
 *     >>nng             a client with its own thread, and the transport of clients and nodes
 *
 *     Other sections are in doorman_permits.h (>>limits to >>permit_agent, with the rules P, N, E,
 *     W and D1 to D5) and in doorman_throttle.h (>>throttle, with the rules H except H11).
 *
 * MIT licence, at the end of the file.
 */
#if defined DOORMAN_IMPLEMENTATION && defined __cplusplus
#error "doorman.h: DOORMAN_IMPLEMENTATION needs C: define it in a .c file, and only include here"
#undef DOORMAN_IMPLEMENTATION /* avoids a second error */
#endif
#if defined DOORMAN_IMPLEMENTATION && defined DOORMAN_NNG && !defined _DEFAULT_SOURCE
#define _DEFAULT_SOURCE /* makes system headers declare POSIX names, also with -std=c11 */
#endif

/* If a file includes the header several times, only the first include declares anything. So the
 * macros that add a section must be defined before the first include. */
#if defined DOORMAN_NNG && !defined DOORMAN_JSON
#error "doorman.h: DOORMAN_NNG needs DOORMAN_JSON"
#endif
#ifdef DOORMAN_H
#if defined DOORMAN_JSON && !defined DOORMAN__DECLARES_JSON
#error "doorman.h: define DOORMAN_JSON before the first include of doorman.h"
#endif
#if defined DOORMAN_NNG && !defined DOORMAN__DECLARES_NNG
#error "doorman.h: define DOORMAN_NNG before the first include of doorman.h"
#endif
#if defined DOORMAN_STATIC && !defined DOORMAN__DECLARES_STATIC
#error "doorman.h: define DOORMAN_STATIC before the first include of doorman.h"
#endif
#endif

#ifndef DOORMAN_H
#define DOORMAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef DOORMAN_STATIC
#define DOORMAN__DECLARES_STATIC
#define DOORMAN_API static __attribute__((unused))
#else
#define DOORMAN_API extern
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define DOORMAN_VERSION "0.2.0"
#define DOORMAN_VERSION_NUMBER 200 /* 10,000 * major + 100 * minor + patch; equal in all headers */

/* ---- basics, the public part -------------------------------------------------------------- */

/* A point in time or a duration, in nanoseconds, at least 0. Any clock that never goes back is
 * sufficient. A program should use a clock that keeps running while the machine is suspended, for
 * example doorman_clock. */
typedef int64_t doorman_time;

#define DOORMAN_SECOND INT64_C(1000000000)
#define DOORMAN_NEVER INT64_MAX
#define DOORMAN_DURATION_MAX (INT64_C(100000000) * DOORMAN_SECOND) /* about three years */
#define DOORMAN_UNLIMITED (-1.0)                                   /* no limit */
#define DOORMAN_AMOUNT_MAX 1e15
#define DOORMAN_ID_BYTES_MAX 256
#define DOORMAN_UNIT_BYTES_MAX 32
#define DOORMAN_REFUSED_BODY_BYTES_MAX 4096
#define DOORMAN_PRIORITY_MAX 15
#define DOORMAN_SUBCLIENTS_MAX 1e9
#define DOORMAN_MESSAGE_BYTES_MAX ((size_t)4 << 20)

/* The results of calls. Each row has the code, its name, and a text that explains the code. */
#define DOORMAN_STATUSES(X)                                                                        \
    X(DOORMAN_OK, "OK", "done")                                                                    \
    X(DOORMAN_INVALID_ARGUMENT, "INVALID_ARGUMENT", "an argument or a message is invalid")         \
    X(DOORMAN_NOT_FOUND, "NOT_FOUND", "no such method")                                            \
    X(DOORMAN_RESOURCE_EXHAUSTED, "RESOURCE_EXHAUSTED", "a limit would be exceeded")               \
    X(DOORMAN_UNAVAILABLE, "UNAVAILABLE", "unavailable: stopping, or not reachable")               \
    X(DOORMAN_STALE, "STALE", "not the response to the latest request; dropped")                   \
    X(DOORMAN_TIMED_OUT, "TIMED_OUT", "the timeout has passed")                                    \
    X(DOORMAN_OUT_OF_MEMORY, "OUT_OF_MEMORY", "out of memory; nothing has changed")                \
    X(DOORMAN_DEADLOCK, "DEADLOCK", "a call from on_change would wait for itself")

#define DOORMAN__STATUS_CODE(code, name, text) code,
typedef enum doorman_status {
    DOORMAN_STATUSES(DOORMAN__STATUS_CODE) DOORMAN_STATUS_COUNT
} doorman_status;

/* Returns the name of a status, for example "TIMED_OUT". DOORMAN_STATUSES has a text that explains
 * each status.
 *   status    any number
 *   returns   a static string, never NULL; "UNKNOWN" for a number that is not a status */
DOORMAN_API const char *doorman_status_name(doorman_status status);

/* Describes an error, for example "templates[2].capacity: must be ...". A call that fails fills in
 * its doorman_error. The caller may pass NULL instead of a doorman_error. `= {0}` makes one without
 * a text. */
typedef struct doorman_error {
    char text[512];
    size_t path_bytes; /* how many bytes of the text are the path of the field or argument. Two
                          bytes follow, ": ", and then the rule. 0: there is no path */
} doorman_error;

/* ---- configuration, the public part ------------------------------------------------------- */

/* The kinds of algorithm. Each row has a kind and its name in a configuration. FAIR_SHARE is the
 * default. The kinds before STATIC divide the capacity among the holders. */
#define DOORMAN_KINDS(X)                                                                           \
    X(DOORMAN_FAIR_SHARE, "FAIR_SHARE")                                                            \
    X(DOORMAN_PROPORTIONAL_SHARE, "PROPORTIONAL_SHARE")                                            \
    X(DOORMAN_PRIORITY_SHARE, "PRIORITY_SHARE")                                                    \
    X(DOORMAN_STATIC_SHARE, "STATIC")                                                              \
    X(DOORMAN_NO_ALGORITHM, "NO_ALGORITHM")

#define DOORMAN__KIND_CODE(kind, name) kind,
typedef enum doorman_kind { DOORMAN_KINDS(DOORMAN__KIND_CODE) DOORMAN_KIND_COUNT } doorman_kind;
#define DOORMAN_KIND_DIVIDES(kind) ((kind) < DOORMAN_STATIC_SHARE)

/* How capacity moves from one holder to another. First the server grants a holder a smaller lease
 * than before. CONFIRMED, the default: the server waits until the holder confirms the smaller
 * lease, or until the old lease ends. After that the server grants the difference to other holders.
 * IMMEDIATE: the server grants the difference to other holders at once. So the leases can exceed
 * the capacity until the first holder has received its smaller lease. */
typedef enum doorman_handover { DOORMAN_CONFIRMED, DOORMAN_IMMEDIATE } doorman_handover;

/* How one resource is shared. If a field is 0 and its comment names a default, the default is used.
 * A value that would have no effect is refused. An example is a minimum_interval while
 * has_minimum_interval is false. Another example is a reserve for another kind than
 * PRIORITY_SHARE. */
typedef struct doorman_algorithm {
    doorman_kind kind;                     /* default FAIR_SHARE */
    doorman_handover handover;             /* default CONFIRMED */
    doorman_time lease_length;             /* how long a lease lasts; default 60 s */
    doorman_time refresh_interval;         /* how often a holder should renew; default: the smaller
                                              of 16 s and a third of lease_length */
    bool has_learning_mode_duration;       /* false: a new master learns until the leases of its
                                              predecessor have ended (R8) */
    doorman_time learning_mode_duration;   /* how long a new master learns; 0: it does not learn */
    bool has_minimum_interval;             /* false: the minimum interval is 5 s */
    doorman_time minimum_interval;         /* a holder that asks again within this time gets its
                                              last lease again (S3); 0: it gets a new lease */
    doorman_time minimum_refresh_interval; /* a lower bound of the refresh interval: for a holder of
                                              a node with a parent, for a holder that should ask
                                              again early (R12), and for a lease that cannot be
                                              extended (S6); default 1 s */
    double decay_factor;                   /* at each level of the tree the refresh interval is
                                              multiplied by this factor; in (0, 1]; default 0.5 */
    /* Only for PRIORITY_SHARE: a fraction of the capacity, from 0 to 1; default 0. The algorithm
     * first shares this fraction fairly among all holders. Then it shares the rest by priority.
     * Example: the capacity is 100, and the reserve is 0.2. Five holders of the priorities 2, 2, 1,
     * 1, 0 want 100 each. Each holder gets 4, and the two holders of priority 2 get 40 more
     * each. */
    double reserve;
} doorman_algorithm;

/* Lets the capacity follow what servers behind a resource (such as databases) report: see H11. */
typedef struct doorman_overload {
    doorman_time target; /* a request that has waited longer than this is late; at most 1e8 s. 0:
                            reports have no effect, and the capacity stays as configured */
    double capacity_min; /* reports never lower the capacity below this amount, [0, capacity] */
} doorman_overload;

/* These types are for permits: see doorman_permits.h. */
typedef struct doorman_permit_limit doorman_permit_limit;
typedef struct doorman_descriptor_rule doorman_descriptor_rule;
typedef struct doorman_descriptors doorman_descriptors;

typedef struct doorman_template {
    const char *identifier_glob; /* required: a shell glob, 1 to 256 bytes of UTF-8 */
    const char *description;     /* a text for people; default "" */
    const char *unit;            /* for people: what the capacity counts, for example "queries/s";
                                    up to 32 bytes of UTF-8; default "" */
    const char *refused_body;    /* what gateways send to a client that is refused: up to 4096
                                    bytes of UTF-8; default "": they send what they usually send.
                                    Needs has_limits */
    bool without_capacity;       /* true: the template has only limits, and its resources have no
                                    leases; capacity must be 0. Needs has_limits */
    double capacity;             /* in the resource's units, [0, 1e15] */
    bool has_safe_capacity;      /* false: the safe capacity is the capacity divided by the number
                                    of known subclients */
    double safe_capacity;        /* [0, 1e15], or DOORMAN_UNLIMITED */
    doorman_overload overload;   /* only for algorithms that divide the capacity */
    bool whole;                  /* true: leases are whole units; gauges need this */
    bool has_algorithm;          /* false: the algorithm of the template "*" is used, or the
                                    defaults (G3) */
    doorman_algorithm algorithm;
    bool has_limits;        /* false: permits for these resources are refused as UNMATCHED */
    bool shard_by_resource; /* only with shard_count. true: all keys of a resource are in one shard.
                               false: the hash of each key chooses its shard (N1) */
    const doorman_permit_limit *limits; /* may be NULL if limit_count is 0: with has_limits all
                                           permits are then granted and counted */
    size_t limit_count;                 /* 0 to 16 */
} doorman_template;

#define DOORMAN_SHARDS_MAX 1024 /* the most shards of a configuration */

typedef struct doorman_config_options {
    const doorman_template *templates; /* used only during the call */
    size_t template_count;
    size_t template_max;   /* the most templates; default 10,000 */
    bool reject_unmatched; /* true: requests for resources without a template are refused; false:
                              they get what they ask for */
    const char *const *shadow; /* all limits of the resources that these globs match are in shadow:
                                  see doorman_permit_limit. May be NULL if shadow_count is 0 */
    size_t shadow_count;
    const doorman_descriptor_rule *descriptors; /* the first rule that matches a descriptor applies.
                                                   May be NULL if descriptor_count is 0 */
    size_t descriptor_count;                    /* 0 to 1,000 */
    size_t shard_count; /* into how many shards the keys of permits are divided (N1); 0 to 1,024. 0:
                           one node decides for all keys */
} doorman_config_options;

/* A checked configuration. It never changes, so any number of servers and threads may share it. */
typedef struct doorman_config doorman_config;

/* Checks templates and makes a configuration from them. If one field is wrong, the call refuses all
 * templates (G4).
 *   out       written only on OK; the caller destroys it
 *   options   used only during the call
 *   error     may be NULL. If a field is wrong, the text names the first wrong field and the rule
 *             that this field breaks. After OK it has the first warning (G9), or is empty. The text
 *             also says how many more errors or warnings there are
 *   returns   OK | INVALID_ARGUMENT | RESOURCE_EXHAUSTED (more than template_max templates) |
 *             OUT_OF_MEMORY
 *   cost      O(templates^2)
 *   source    the fields are those of ResourceRepository in the design document */
DOORMAN_API doorman_status doorman_config_create(doorman_config **out,
                                                 const doorman_config_options *options,
                                                 doorman_error *error);

/* Frees a configuration. No server may use the configuration afterwards. NULL has no effect. */
DOORMAN_API void doorman_config_destroy(doorman_config *config);

/* Writes options from which doorman_config_create makes an equal configuration.
 *   out    written in full. The templates are in the order in which they were given, and have the
 *          defaults filled in. They belong to config
 *   cost   O(1) */
DOORMAN_API void doorman_config_read(const doorman_config *config, doorman_config_options *out);

/* Finds the template of a resource (G1).
 *   returns   NULL: no template matches, or an argument is missing or not valid. The template
 *             belongs to config, and has the defaults filled in
 *   cost      the literal start of a glob is the part before its first * ? [ or \. One hash lookup
 *             for each length of a literal start, and one match for each glob whose literal start
 *             begins the id */
DOORMAN_API const doorman_template *doorman_config_find(const doorman_config *config,
                                                        const char *resource_id);

/* Checks whether a node can use a configuration (G8).
 *   has_parent   whether the node has a parent
 *   error        may be NULL; names the first wrong field
 *   returns      OK | INVALID_ARGUMENT: the node has a parent, and a template has a capacity; or
 *                the node has no parent, a limit is leased, and no template has a capacity
 *   cost         O(limits of all templates) */
DOORMAN_API doorman_status doorman_config_fits(const doorman_config *config, bool has_parent,
                                               doorman_error *error);

/* ---- shares, the public part -------------------------------------------------------------- */

/* What a client, or a group of a node's clients, wants. */
typedef struct doorman_demand {
    double wants;      /* [0, 1e15] */
    double subclients; /* the weight: an integer in [1, 1e9]; 0 means 1 */
    int priority;      /* 0 to 15; a higher number is more important */
} doorman_demand;

#define DOORMAN_ANY_PRIORITY (-1)

/* Terms say what each demand of one priority gets:
 *   target = min(wants, level * subclients) + slope * max(0, wants - level * subclients) */
typedef struct doorman_terms {
    int priority; /* the terms are for demands of this priority; DOORMAN_ANY_PRIORITY: they are for
                     all demands */
    double level, slope;
} doorman_terms;

#define DOORMAN_TERMS_MAX (DOORMAN_PRIORITY_MAX + 1)

/* Shares a capacity among demands. The call needs no server, so a program can try an algorithm with
 * it. Amounts are real numbers. A server also rounds amounts if leases are whole units.
 *   algorithm    NULL means FAIR_SHARE. Only kind and reserve have an effect. All fields are
 *                checked
 *   capacity     in the resource's units, [0, 1e15]
 *   demands      used only during the call; may be NULL if demand_count is 0
 *   amounts      NULL, or an array of demand_count numbers. Written on OK: the share of each
 *                demand, in [0, wants]
 *   terms        NULL, or an array of DOORMAN_TERMS_MAX elements. Written on OK: the terms that
 *                give these amounts, highest priority first
 *   terms_count  written on OK: how many elements of `terms` were written. PRIORITY_SHARE writes
 *                one element for each priority that a demand has. The other kinds of algorithm
 *                write one element. May be NULL if terms is NULL
 *   error        may be NULL; describes the error: "demands[3].wants: must be ..."
 *   returns      OK | INVALID_ARGUMENT | OUT_OF_MEMORY
 *   cost         O(demands log demands) */
DOORMAN_API doorman_status doorman_shares(const doorman_algorithm *algorithm, double capacity,
                                          const doorman_demand *demands, size_t demand_count,
                                          double *amounts, doorman_terms *terms,
                                          size_t *terms_count, doorman_error *error);

/* ---- messages: what the wire says, as structs ---------------------------------------------- */
/* If a message is an argument, its pointers are used only during the call. Pointers in a message
 * that an object returns stay valid until the next call on that object. */

/* Why a lease is less than what its holder wants. S14 defines each reason. The value 0 means that
 * there is no reason: the holder was granted at least 0.999 of its wants, or the server is of an
 * earlier version without reasons. No rule for a holder depends on it. */
typedef enum doorman_lease_reason {
    DOORMAN_LEASE_SHARE = 300, /* the lease is the holder's share. No other enum has the value
                                  300 */
    DOORMAN_LEASE_CUT,         /* the capacity was cut, and older leases do not fit into it yet */
    DOORMAN_LEASE_RESERVED,    /* a part of the share is still committed for other holders */
    DOORMAN_LEASE_LEARNING     /* the granter or the holder learns, so the lease does not follow the
                                  target yet */
} doorman_lease_reason;

/* Returns the name of a reason on the wire, for example "SHARE". Returns "" for 0, and "?" for an
 * unknown reason. The string is static. */
DOORMAN_API const char *doorman_lease_reason_name(doorman_lease_reason reason);

/* A lease in a message: `has` of a request, or `gets` of a response. */
typedef struct doorman_lease {
    uint64_t id;                   /* 1 to 2^53; 0 means no lease */
    const char *node;              /* the name of the node whose master granted the lease */
    double capacity;               /* in `gets`: what the holder may use; in `has`: what the holder
                                      still has */
    double committed;              /* only in `gets`: the part of the holder's claim that stays
                                      committed, but at least capacity (R5) */
    doorman_time expires_in;       /* in `gets`: from the grant of the lease to its end; in `has`:
                                      from the request to the end of the lease */
    doorman_time refresh_interval; /* only in `gets`: after this time the holder should renew */
    doorman_lease_reason reason;   /* only in `gets`: why the lease is less than the wants in the
                                      request (S14); 0: it is not less */
} doorman_lease;

/* What servers behind a resource have counted in an interval (H11). doorman_throttle_report makes
 * such a report. */
typedef struct doorman_overload_report {
    doorman_time interval; /* how long the servers have counted, at most 1e8 s; 0: there is no
                              report */
    double arrived;        /* requests. All counts are in [0, 1e15] */
    double finished;       /* requests that were answered */
    double refused;        /* requests that were refused, for any reason */
    double late;           /* answered requests that had waited longer than overload_target */
} doorman_overload_report;

typedef struct doorman_capacity_request {
    const char *resource_id;
    doorman_lease has;           /* the last lease that the holder received; id 0: the holder has no
                                    lease */
    double outstanding;          /* the units that the holder is using. They can exceed
                                    has.capacity. The server commits nothing for them beyond the
                                    leases of the holder (R5), except for a node while the server
                                    learns (R6) */
    const doorman_demand *wants; /* a client sends one demand; a node sends one for each group of
                                    its clients */
    size_t wants_count;
    bool learning; /* only if the holder is a node: the node does not know all its own holders
                      yet */
    doorman_overload_report overload; /* what the holder, or the holders of a node, have counted
                                         since the last request */
} doorman_capacity_request;

typedef enum doorman_outcome {
    DOORMAN_GRANTED = 200, /* no value of a doorman_status, so a wrong comparison is never true */
    DOORMAN_TRY_LATER,     /* the server learns, or has no lease from its parent */
    DOORMAN_UNMATCHED,     /* no template matches, and reject_unmatched is true; or the template has
                              no capacity */
    DOORMAN_FULL           /* a limit of the server would be exceeded (C7) */
} doorman_outcome;

typedef struct doorman_capacity_response {
    const char *resource_id;
    doorman_outcome outcome;
    bool learning;      /* the server learns, or the server has no lease because its parent
                           learns */
    doorman_lease gets; /* if the outcome is not GRANTED, only refresh_interval is set */
    bool has_safe_capacity;
    double safe_capacity;
    doorman_time overload_target;       /* see doorman_overload; 0: reports have no effect */
    bool whole;                         /* leases of this resource are whole units */
    const doorman_algorithm *algorithm; /* only for a holder that is a node: how the node shares;
                                           NULL: the kind of algorithm is unknown */
    const doorman_terms *terms;         /* only for a holder that is a node: the terms of all shares
                                           of this resource */
    size_t terms_count;
    const char *description, *unit; /* only for a holder that is a node: the texts for people;
                                       NULL: none */
    bool has_learn_for;             /* true: the holder is a node that learns */
    doorman_time learn_for; /* if has_learn_for is true: how long the node must still learn */
} doorman_capacity_response;

typedef enum doorman_method {
    DOORMAN_DISCOVERY,
    DOORMAN_GET_CAPACITY, /* if is_server is true, the message is GetServerCapacity */
    DOORMAN_RELEASE_CAPACITY,
    DOORMAN_REPORT_OVERLOAD, /* reports what servers behind resources have counted (H11) */
    DOORMAN_ACQUIRE,         /* asks for decisions on permits */
    DOORMAN_REPORT,          /* charges what actions have really cost */
    DOORMAN_INSPECT,         /* reads the limits of keys */
    DOORMAN_RESET,           /* makes counters fresh, or sets or ends bans */
    DOORMAN_RENEW,           /* lets holds end later */
    DOORMAN_RELEASE,         /* gives units of holds back */
    DOORMAN_TRANSFER,        /* moves units of holds into transfers */
    DOORMAN_SEIZE,           /* makes transfers holds of the client */
    DOORMAN_SETTLE,          /* says what reservations have really cost */
    DOORMAN_METHOD_COUNT
} doorman_method;

/* Returns the name of a method on the wire, for example "get_capacity". With is_server the name of
 * DOORMAN_GET_CAPACITY is "get_server_capacity". Returns "?" for an unknown method. The string is
 * static. */
DOORMAN_API const char *doorman_method_name(doorman_method method, bool is_server);

/* The parts of messages on permits: see doorman_permits.h. */
typedef struct doorman_permit_request doorman_permit_request;
typedef struct doorman_permit_entry doorman_permit_entry;
typedef struct doorman_permit doorman_permit;
typedef struct doorman_permit_result doorman_permit_result;
typedef struct doorman_hold_request doorman_hold_request;
typedef struct doorman_hold doorman_hold;
typedef struct doorman_held doorman_held;
typedef struct doorman_settle_request doorman_settle_request;
typedef struct doorman_settlement doorman_settlement;
typedef struct doorman_shard_map doorman_shard_map;

/* Private: see "an arena" in the section >>basics. */
typedef struct doorman__arena {
    struct doorman__chunk *first, *current;
    size_t used;        /* bytes of `current` */
    bool borrows_names; /* true: the data may have pointers to names of the configuration, so it is
                           not used after a change of the configuration */
} doorman__arena;

typedef struct doorman_request {
    doorman_method method;
    bool is_server; /* true: the holder is a node. A node and a client may have the same id. Must be
                       false in a message on permits */
    const char *holder_id;   /* may be NULL in a DISCOVERY, INSPECT or RESET */
    const char *const *path; /* only if the holder is a node: the name of the node, and the names of
                                the nodes on the longest path below it */
    size_t path_count;
    const doorman_capacity_request *items; /* of a RELEASE_CAPACITY, only resource_id and has.id are
                                              used; of a REPORT_OVERLOAD, only resource_id and
                                              overload */
    size_t item_count;
    const char *address;      /* not on the wire: the address to which the request must be sent */
    uint64_t sequence;        /* not on the wire: matches a response to its request */
    const char *http_address; /* only if the holder is a node: the address of its status page over
                                 HTTP, not checked; NULL: not known. An upstream leaves it NULL. The
                                 sender of the request may set it, to at most 256 bytes */
    const doorman_permit_request *permits; /* only ACQUIRE */
    size_t permit_count;                   /* may be 0 */
    const doorman_permit_entry *entries;   /* only REPORT, INSPECT, RESET */
    size_t entry_count;                    /* may be 0 */
    const doorman_hold_request *holds;     /* only RENEW, RELEASE, TRANSFER, SEIZE. Their client_id
                                              is NULL: holder_id is used */
    size_t hold_count;                     /* may be 0 */
    const doorman_settle_request *settles; /* only SETTLE. Their client_id is NULL: holder_id is
                                              used */
    size_t settle_count;                   /* may be 0 */
    bool has_map_epoch;                    /* only DISCOVERY: asks for the map of shards (N9) */
    uint64_t map_epoch; /* only with has_map_epoch: the epoch of the map that the sender knows; 0:
                           the sender knows none */
    bool may_wait; /* not on the wire: permits of an ACQUIRE may be pending. The owner of the server
                      then takes decisions from doorman_permits_next_decision */
    uint64_t connection; /* not on the wire: see doorman_permit_request */
    bool wire_names;     /* not on the wire. true: an error names the fields of this request as they
                            are called on the wire, such as "permit[0].item[0].key". A request that
                            is read from JSON has it. false: "permits[0].items[0].key" */
} doorman_request;

typedef struct doorman_response {
    doorman_method method;
    bool is_server;
    bool is_master;                         /* false: the request had no effect, and there are no
                                               items */
    bool shared_id;                         /* only for a node: another process seems to use the
                                               name of the node too. A doorman_server leaves it
                                               false */
    const char *master_address;             /* the address of the master; NULL: not known */
    const char *http_address;               /* the address of the master over HTTP, not checked;
                                               NULL: not known. A doorman_server leaves it NULL */
    const doorman_capacity_response *items; /* only for GET_CAPACITY and REPORT_OVERLOAD: the
                                               responses, in the order of the items of the request.
                                               After a REPORT_OVERLOAD, only resource_id and
                                               overload_target have a meaning */
    size_t item_count;
    const doorman_permit *permits; /* only for ACQUIRE: the decisions, in the order of the
                                      request */
    size_t permit_count;
    const doorman_permit_result *results; /* only for REPORT, INSPECT, RESET: the results, in the
                                             order of the entries of the request */
    size_t result_count;
    const doorman_hold *holds; /* only for RENEW, RELEASE, TRANSFER, SEIZE: in the order of the
                                  request */
    size_t hold_count;
    const doorman_settlement *settlements; /* only for SETTLE: in the order of the request */
    size_t settlement_count;
    uint64_t map_epoch; /* only for messages on permits: the epoch of the server's map of shards; 0:
                           the server has none */
    const doorman_shard_map *map; /* only for DISCOVERY: a later map than that of the request; NULL:
                                     the server has no later map, or was not asked */
} doorman_response;

/* ---- upstream, the public part ------------------------------------------------------------- */

/* The part of a client or a server that makes requests. It decides which leases to ask for, when,
 * and at which address. It also processes the responses. The client or server owns its upstream and
 * frees it. A doorman_permit_client has an upstream too, which asks for permits. The loop below
 * works for a client, a node with a parent, and a root. The upstream of a root has work to do, but
 * nothing to send.
 *
 *     doorman_upstream *upstream = doorman_client_upstream(client);  (or doorman_server_upstream)
 *     until the end
 *         wait for the first of these: the time doorman_upstream_due(upstream), a response to the
 *             last request, the failure of that request, or a call on the client or the server
 *         if a response has come
 *             doorman_upstream_response(upstream, request.sequence, &response, now)
 *         else if the request has failed
 *             doorman_upstream_failed(upstream, request.sequence, now)
 *         if (doorman_upstream_request(upstream, &request, now))
 *             send the request to request.address
 *
 * At most one request of an upstream is under way. When doorman_upstream_request returns true, the
 * previous request has ended. If no response to it has come, close its connection, because a later
 * response would be STALE. To release all leases of a client, close all its resources, and run the
 * loop until doorman_upstream_due returns DOORMAN_NEVER. examples/event_loop.c has such a loop. */
typedef struct doorman_upstream doorman_upstream;

/* Returns when to call doorman_upstream_request next.
 *   returns   a time; DOORMAN_NEVER: nothing is due until another call is made. The time is valid
 *             until the next call on the upstream, its client or its server. doorman_client_try and
 *             doorman_client_release do not change it. While the wants of a resource follow its
 *             use, the time is at most 0.2 s ahead. So doorman_upstream_request soon learns how
 *             many units limiters have refused
 *   cost      O(1) */
DOORMAN_API doorman_time doorman_upstream_due(const doorman_upstream *upstream);

/* Does the work that is due, and then makes the next request if one is due. If the timeout of the
 * last request has passed without a response, the call counts that request as failed. The work is:
 *     client   estimates wants from use, and removes expired leases from the limiters
 *     server   removes expired leases and frees their memory, reports leases of the node that have
 *              ended (on_event), removes counters of permits that equal new counters, and ends a
 *              mastership whose time has passed. Responses depend on this work only if more than
 *              1,000 leases of a resource expire together (S2), or if the server is at a limit (C7,
 *              P19). One call visits at most 10,000 resources and expired leases together, which
 *              takes some milliseconds. The call that ends a mastership drops all resources and
 *              leases at once. If more work is left, the upstream is due again at once
 *
 *   out       written in full. Pointers in out are valid until the next call on the upstream
 *   returns   true: send this request to out->address. false: there is nothing to send now, and
 *             out->sequence is 0. The call also returns false if a node runs out of memory for the
 *             request. In this case the node tries again after 1 s. The request of a client needs
 *             no memory
 *   cost      O(1) if nothing is due. O(log resources) for each resource in the request. A request
 *             of a client has at most 500 resources, and a request of a node has at most 1,000. A
 *             client also needs O(log resources) for each resource that is due. A resource is due
 *             at the end of its lease. If its wants follow use, the resource is also due every
 *             tenth of its window (a gauge in use can be due more often), and soon after units were
 *             refused (see "How soon a lease follows demand"). After units were refused, the client
 *             visits all its resources once, which takes some nanoseconds for each resource */
DOORMAN_API bool doorman_upstream_request(doorman_upstream *upstream, doorman_request *out,
                                          doorman_time now);

/* Processes the response to the request with this sequence. Only a response to the last request is
 * accepted, and only once (R2).
 *   response  used only during the call. An invalid response changes no lease, and counts as a
 *             failed request
 *   returns   OK | STALE (dropped) | INVALID_ARGUMENT (the response is invalid) */
DOORMAN_API doorman_status doorman_upstream_response(doorman_upstream *upstream, uint64_t sequence,
                                                     const doorman_response *response,
                                                     doorman_time now);

/* Reports that the request with this sequence got no response. The upstream tries the next address.
 * If all addresses have failed, it backs off first. The call has no effect unless this request is
 * under way. */
DOORMAN_API void doorman_upstream_failed(doorman_upstream *upstream, uint64_t sequence,
                                         doorman_time now);

/* ---- server, the public part --------------------------------------------------------------- */

typedef enum doorman_event_kind {
    DOORMAN_EVENT_UNMATCHED,     /* a request for a resource without a template, or whose template
                                    has no capacity */
    DOORMAN_EVENT_UNKNOWN_CLAIM, /* a holder names a lease that the server does not know */
    DOORMAN_EVENT_EXCESS_CLAIM,  /* a holder claims more than it was granted */
    DOORMAN_EVENT_EXPIRED,       /* a lease expired; or a holder that got no lease has not asked
                                    again, and the amount is 0 */
    DOORMAN_EVENT_FULL,          /* a limit of the server was reached (C7) */
    DOORMAN_EVENT_UNKNOWN_KIND,  /* the parent names a kind of algorithm that this node does not
                                    know */
    DOORMAN_EVENT_SHARED_ID,     /* two processes seem to use one id, so each of them uses the whole
                                    lease */
    DOORMAN_EVENT_UNCONFIRMED,   /* a request of a holder that does not confirm its leases: S11 */
    DOORMAN_EVENT_LEASE_ENDED,   /* the lease of this node has ended, and its parent has not renewed
                                    it. holder_id is the name of this node */
    DOORMAN_EVENT_OVERLOADED,    /* reports have lowered the capacity in force (H11). holder_id has
                                    sent the last report; the amount is the new capacity */
    DOORMAN_EVENT_CHILD_ENDED,   /* the last lease of a child node has expired: S13. holder_id is
                                    the name of the node */
    DOORMAN_EVENT_COUNT
} doorman_event_kind;

typedef struct doorman_event {
    doorman_event_kind kind;
    const char *resource_id, *holder_id; /* valid only during the call of on_event */
    double amount;                       /* in the resource's units: the wants, the claim, or the
                                            amount of the lease */
} doorman_event;

/* The decisions on permits: see doorman_permits.h. */
typedef struct doorman_permits doorman_permits;
typedef struct doorman_permits_options doorman_permits_options;

typedef struct doorman_server doorman_server;

typedef struct doorman_server_options {
    const char *node; /* required: the name of this node in the tree */
    /* Required for a root. The templates of a node with a parent must have only limits, because the
     * node's capacities come from its parent. Such a node refuses all permits if config is NULL.
     * The configuration must stay valid until doorman_server_configure replaces it, or until the
     * server is destroyed. */
    const doorman_config *config;
    const char *const *parents; /* NULL for a root; else 1 to 16 addresses of the parent, tried in
                                   turn */
    size_t parent_count;
    doorman_time request_timeout; /* for requests to the parent; default 5 s. Must be 0 for a
                                     root */
    /* Required: random bits that are new for each process. Hash tables and lease ids use these
     * bits. With the same seed, lease ids would repeat after a restart. If both numbers are 0 and
     * DOORMAN_NNG is defined, the library takes random bits from the system. */
    uint64_t seed[2];
    double drift;                   /* how much the rates of two clocks may differ, in (0, 1];
                                       default 0.05 */
    size_t resource_max;            /* the most resources of the server; default 1,000,000 */
    size_t holder_max;              /* the most holders of one resource; default 10,000,000 */
    size_t resource_max_per_holder; /* the most resources of one client; default 100,000. A child
                                       node has no such limit */
    void (*on_event)(void *context, const doorman_event *event); /* must not call the server */
    /* Called when the server stops being master, because the time of its mastership has passed or
     * doorman_server_set_master has ended the mastership. The server still has its leases. With
     * this server, on_mastership_end may call only doorman_server_permits and
     * doorman_server_hand_over. Only this server may take over what is handed over here, and only
     * if it is the next master. May be NULL */
    void (*on_mastership_end)(void *context, doorman_server *server, doorman_time now);
    void *context;
    const doorman_permits_options *permits; /* the bounds and the listener of permits; used only
                                               during the call. The config and the seed in them have
                                               no effect. NULL: the defaults. Must be NULL in a
                                               program without doorman_permits.h */
} doorman_server_options;

/* Creates a server. The server is not master yet.
 *   out       written only on OK; the caller destroys it
 *   options   used only during the call, except `config`
 *   error     may be NULL; describes the error
 *   returns   OK | INVALID_ARGUMENT | OUT_OF_MEMORY | UNAVAILABLE (the seed is 0, and the system
 *             has no random bits) */
DOORMAN_API doorman_status doorman_server_create(doorman_server **out,
                                                 const doorman_server_options *options,
                                                 doorman_error *error, doorman_time now);
DOORMAN_API void doorman_server_destroy(doorman_server *server); /* NULL has no effect */

/* Uses another configuration from now on. A lease is dropped only if its resource has no template
 * with a capacity any more (G5). The counters of permits stay too (P15).
 *   config    must stay valid until a later call of this function returns OK, or until
 *             doorman_server_destroy
 *   returns   OK | INVALID_ARGUMENT (NULL, or doorman_config_fits refuses it) | OUT_OF_MEMORY.
 *             After an error the previous configuration stays in use
 *   cost      O(resources * templates). A resource that loses its template also needs O(holders log
 *             holders). A template whose glob is new or gone, or was at another index, also needs
 *             O(templates) */
DOORMAN_API doorman_status doorman_server_configure(doorman_server *server,
                                                    const doorman_config *config, doorman_time now);

typedef struct doorman_mastership {
    const char *address;           /* the address of the master, 1 to 256 bytes; required if this
                                      server is master. NULL: not known */
    doorman_time until;            /* this server is master until this time. DOORMAN_NEVER: no end
                                      is known. `now` or earlier: this server is not master */
    doorman_time predecessor_gone; /* a time by which the previous master had certainly stopped; 0:
                                      that time is `now` */
    uint64_t term; /* the number of this mastership, as the store of the election counts the
                      masterships of the node; 0: not counted. The server does not use it. An
                      application with a store of its own sends this number with each write, so that
                      the store can refuse the writes of an earlier master */
} doorman_mastership;

/* Sets whether this server is master, and what the address of the master is. A server that becomes
 * master starts to learn. If the server is master already, the call only sets `until` and the
 * address. A server that stops being master deletes all leases that it knows. A server also stops
 * being master when `until` passes.
 *   mastership   used only during the call
 *   returns      OK | INVALID_ARGUMENT (the address is not valid)
 *   cost         O(templates) if the server becomes master; O(holders log holders + counters of
 *                permits) if it stops being master; else O(1) */
DOORMAN_API doorman_status doorman_server_set_master(doorman_server *server,
                                                     const doorman_mastership *mastership,
                                                     doorman_time now);

/* Receives a part of what a server hands over.
 *   context   the context of the call that has this function as an argument
 *   bytes     valid during the call
 *   returns   false: the bytes could not be stored */
typedef bool doorman_write(void *context, const void *bytes, size_t count);

/* Hands the leases of a master over to the next master of its node, for a stop that is planned. In
 * one step the server writes all its leases and stops being master (D8). The next master then need
 * not learn. Before doorman_server_set_master can make this server master again, it must be called
 * once with an `until` that has passed. So the caller can first store the bytes where the next
 * master finds them, and then leave the election. The bytes are the same on every machine. They
 * include the holds of permits, but not the counters, which are in the rows of a store (see
 * doorman_permits_next_changed). Permits that wait end without a decision.
 *   write     is called with one part after the other; must not call the server
 *   context   for `write`
 *   returns   OK | INVALID_ARGUMENT (NULL) | UNAVAILABLE: the server is not master, or `write` has
 *             returned false. After an error nothing has changed, and what was written must not be
 *             used
 *   cost      O(holders log holders + holds). A million holders, or holds, are about 100 MB */
DOORMAN_API doorman_status doorman_server_hand_over(doorman_server *server, doorman_write *write,
                                                    void *context, doorman_time now);

/* Takes over what the last master has handed over. Call it right after the server has become
 * master, only if no other process was master in between, and never twice with the same bytes.
 * Otherwise the server would use old leases, which have changed since. If the call fails, the
 * server learns, as without the call.
 *   bytes     used only during the call; checked
 *   error     may be NULL; describes the error
 *   returns   OK | INVALID_ARGUMENT: the bytes are damaged or of another version; or the server is
 *             not master, or has leases or holds already | NOT_FOUND: the bytes are of another node
 *             | RESOURCE_EXHAUSTED: a limit of the options is smaller than that of the last master
 *             | OUT_OF_MEMORY
 *   cost      O(holders log holders + holds log holds) */
DOORMAN_API doorman_status doorman_server_take_over(doorman_server *server,
                                                    const unsigned char *bytes, size_t count,
                                                    doorman_error *error, doorman_time now);

/* Sets the time of the calendar, for limits of kind FIXED_WINDOW (P26). Call it before the server
 * becomes master, and then about once a second, because somebody may set the clock of the machine.
 * Without a call the calendar begins at `now` = 0.
 *   epoch   the time since 1970 in nanoseconds, at `now` */
DOORMAN_API void doorman_server_set_epoch(doorman_server *server, doorman_time epoch,
                                          doorman_time now);

/* Answers one request. A call that returns an error changes nothing, with one exception: if memory
 * runs out in a message on permits, some of its units may have been charged (P9). So a limit may
 * refuse a repeat of the message too early, but never grants too much.
 *   request   used only during the call; checked
 *   response  written only on OK; pointers in it are valid until the next call on the server
 *   error     may be NULL; describes the error
 *   returns   OK (also if this server is not master: see doorman_response) | INVALID_ARGUMENT |
 *             NOT_FOUND | RESOURCE_EXHAUSTED (a bound of doorman_permits_options) | OUT_OF_MEMORY
 *   cost      O(1) for each resource in the request if its renewal changes nothing, else O(log
 *             holders). A resource that is new, or that no template matches, also needs
 *             O(templates)
 *   source    design document, "Processing the GetCapacity RPC". Two differences: leases have ids,
 *             and capacity moves between holders only after a confirmation */
DOORMAN_API doorman_status doorman_server_handle(doorman_server *server,
                                                 const doorman_request *request,
                                                 doorman_response *response, doorman_error *error,
                                                 doorman_time now);

/* Returns the upstream of the server, for the caller's loop: see doorman_upstream. A root also has
 * an upstream.
 *   returns   never NULL; belongs to the server, which frees it */
DOORMAN_API doorman_upstream *doorman_server_upstream(doorman_server *server);

typedef struct doorman_server_resource {
    const char *resource_id;
    const doorman_template *settings; /* with the defaults filled in. A node with a parent has the
                                         settings of its parent */
    double capacity;                  /* in a root: that of the template, or less after reports of
                                         overload (H11); else that of the node's own lease */
    bool leased;                      /* only for a node with a parent: true: the node has a
                                         lease */
    doorman_time lease_end;           /* if `leased` is true: the end of the node's lease */
    doorman_time lease_length;        /* only for a node with a parent: the time from the last
                                         response with a lease to the end of that lease; 0: the node
                                         has had no lease */
    doorman_outcome outcome;          /* only for a node with a parent: the last outcome from the
                                         parent; 0: none yet */
    doorman_lease_reason reason;      /* if `leased` is true: why the node's own lease is less than
                                         what the node wanted (S14); 0: it is not less */
    double has;                       /* sum of the leases, in the resource's units */
    double committed;                 /* sum of the committed amounts, at least has */
    double wants;                     /* sum of what the holders want */
    double subclients;                /* sum of the subclients of the holders */
    size_t holder_count;
    size_t unconfirmed_count; /* holders that do not confirm their leases: see S11 */
    uint64_t expired_count;   /* leases that have expired since the server added the resource */
    bool divides_capacity;    /* true: the leases are parts of the capacity; false: the kind is
                                 STATIC or NO_ALGORITHM */
    bool is_learning;         /* true: the server learns what the holders have */
    doorman_time learned_at;  /* when the server stops learning; DOORMAN_NEVER: not known yet */
    /* By how much `has` exceeds what the node may have in force at this moment, in the resource's
     * units. 0 if the leases fit, or if divides_capacity is false. S12 says what the node may have.
     * After a cut, the older, larger capacity counts until the leases from before the cut have
     * ended. So a cut alone causes no overshoot. With `immediate` handover the parent of a node
     * does not wait for that end, so a cut of the node's lease can cause an overshoot. The
     * overshoot includes only what this server has granted or taken over. So it includes neither
     * what clients use without a lease, nor leases of an earlier master that no holder has claimed.
     * If two processes use one id, each of them uses the whole lease, but the overshoot includes
     * the lease once. */
    double overshoot;
    bool has_safe_capacity;
    double safe_capacity;
    double configured_capacity; /* in a root: what `capacity` would be without reports of overload
                                   (H11); in a node with a parent: `capacity` */
    doorman_overload_report overload; /* the sum of the last reports; interval 0: there are none, or
                                         the node has a parent */
    doorman_time overload_cut_at;     /* when reports have lowered the capacity last; 0: never */
} doorman_server_resource;

typedef struct doorman_server_lease {
    const char *holder_id;
    bool is_server;
    bool shared;      /* true: two processes seem to use the id: see DOORMAN_EVENT_SHARED_ID */
    bool unconfirmed; /* true: the holder does not confirm its leases: see S11 */
    double has;       /* the amount of the lease, in the resource's units */
    double committed; /* the committed amount of the holder, at least has */
    double wants;
    double subclients;
    int priority;
    doorman_lease_reason reason; /* why `has` is less than `wants`, as the last response with a
                                    lease said (S14); 0: it is not less, or there was no lease
                                    yet */
    doorman_time granted_at;     /* when the holder's last lease was granted */
    doorman_time expires_at;     /* the server keeps `committed` for the holder until this time */
} doorman_server_lease;

/* The position of an iteration. The caller initialises the cursor with {0}, and need not free it. A
 * caller may store `position`, and later continue the iteration with a cursor {position, false}.
 * The position is valid only for the same function and the same object. */
typedef struct doorman_cursor {
    uint64_t position; /* a number without a meaning for the caller */
    bool at_end;       /* private */
} doorman_cursor;

/* These functions iterate over the resources, or over the leases of one resource. Expired leases
 * are left out. Any other call on the server is allowed between two steps, so a caller can release
 * its lock there. An element is a resource or a lease. An element that exists during the whole
 * iteration is visited exactly once. An element that is added or removed during the iteration is
 * visited at most once. Elements come in the order of keyed hashes of their ids. This order seems
 * random, and is the same in each iteration. If two ids had the same 64-bit hash, only one of them
 * would be visited.
 *   cursor    in/out
 *   out       written on true; pointers in it are valid until the next call on the server
 *   returns   false: there are no more elements
 *   cost      O(1) for each step, on average */
DOORMAN_API bool doorman_server_next_resource(doorman_server *server, doorman_cursor *cursor,
                                              doorman_server_resource *out, doorman_time now);
DOORMAN_API bool doorman_server_next_lease(doorman_server *server, const char *resource_id,
                                           doorman_cursor *cursor, doorman_server_lease *out,
                                           doorman_time now);

/* Describes one resource.
 *   out       written on true; pointers in it are valid until the next call on the server
 *   returns   false: no holder has asked for this resource, or all its holders are gone
 *   cost      O(1) */
DOORMAN_API bool doorman_server_find(doorman_server *server, const char *resource_id,
                                     doorman_server_resource *out, doorman_time now);

/* Returns for how many resources a holder has a lease, or has asked for a lease but has none yet
 * (S4, T4). Leases that have ended count until the server removes them (S2).
 *   is_server   true: the holder is a node
 *   cost        O(1) */
DOORMAN_API size_t doorman_server_lease_count(const doorman_server *server, const char *holder_id,
                                              bool is_server);

/* Returns when the server stops learning (R8), which is when its last resource stops learning. For
 * a root, resources count even if no holder has asked for them yet. Templates without a capacity,
 * and templates whose kind of algorithm does not divide the capacity, need no learning and do not
 * count. A node with a parent knows when a resource stops learning only after its parent has
 * answered for this resource.
 *   returns   a time after `now`; or 0: the server does not learn, or is not master
 *   cost      O(templates) for a root; O(1) for a node with a parent */
DOORMAN_API doorman_time doorman_server_learns_until(const doorman_server *server,
                                                     doorman_time now);

/* ---- election, the public part -------------------------------------------------------------- */

/* An election decides which process of a node is master (V2). It needs a store that all processes
 * of the node reach, for example etcd. The store has a key for the node. It also has leases of its
 * own, each with a time to live (TTL). They are called store leases here. The store deletes the key
 * when the store lease of the key ends. The election does not call the store. The owner of the
 * election makes the calls, and reports the answers:
 *
 *     doorman_election_init(&election, &options, &error, now)
 *     until the process ends
 *         if (doorman_election_next(&election, &call, now))
 *             make the call, with a time limit
 *             doorman_election_answered(&election, call.sequence, &answer (or NULL), now)
 *             doorman_election_mastership(&election, &mastership, now)
 *             doorman_server_set_master(server, &mastership, now)
 *         else
 *             wait until call.due
 *
 * At the end the owner calls doorman_election_resign, passes the mastership to the server, and
 * makes the last call to the store, if there is one. server/etcd/election.c has such a loop. */
typedef struct doorman_election_options {
    const char *address; /* required: the address of this process for clients and other nodes */
    doorman_time ttl;    /* how long a store lease lasts without renewal: at least 1 s, default 10
                            s */
} doorman_election_options;

typedef enum doorman_election_state {
    DOORMAN_NO_MASTER, /* no master is known */
    DOORMAN_STANDBY,   /* another process is master */
    DOORMAN_MASTER,    /* this process is master */
    DOORMAN_RESIGNED,  /* this process has left the election */
    DOORMAN_ELECTION_STATE_COUNT
} doorman_election_state;

typedef enum doorman_election_call_kind {
    DOORMAN_NO_CALL,
    DOORMAN_GRANT_LEASE,  /* grant a store lease with this TTL */
    DOORMAN_KEEP_ALIVE,   /* renew this store lease: from now on it lasts for its whole TTL */
    DOORMAN_READ_KEY,     /* read the key */
    DOORMAN_CREATE_KEY,   /* if the key does not exist: create the key with this address and store
                             lease */
    DOORMAN_REVOKE_LEASE, /* end this store lease, and so delete its key */
    DOORMAN_ELECTION_CALL_COUNT
} doorman_election_call_kind;

typedef struct doorman_election_call {
    doorman_election_call_kind kind;
    uint64_t sequence;   /* matches an answer to its call; 0 for NO_CALL */
    int64_t lease;       /* KEEP_ALIVE, CREATE_KEY, REVOKE_LEASE: the id of the store lease */
    doorman_time ttl;    /* GRANT_LEASE: the TTL to request */
    const char *address; /* CREATE_KEY: the value of the key; belongs to the election */
    doorman_time due;    /* NO_CALL: when to ask for the next call. DOORMAN_NEVER: ask after the
                            answer to the call under way; or never, after a resignation */
} doorman_election_call;

/* What the store has answered. */
typedef struct doorman_election_answer {
    int64_t lease;       /* GRANT_LEASE: the id of the new store lease. READ_KEY: the id of the
                            store lease of the key. The id of a store lease is never 0 */
    doorman_time ttl;    /* GRANT_LEASE, KEEP_ALIVE: for how long the store keeps the store lease
                            from now on; 0: the store lease does not exist */
    bool exists;         /* READ_KEY: the key exists */
    const char *address; /* READ_KEY: the address in the key; NULL: it cannot be read */
    bool created;        /* CREATE_KEY: this call has created the key */
    uint64_t term;       /* READ_KEY, CREATE_KEY: how often the key has been created, including this
                            call; 0: the store does not count this */
} doorman_election_answer;

/* The election of one process. It is in the caller's memory, and its fields are private. Only one
 * thread at a time may use it. */
typedef struct doorman_election {
    char address[DOORMAN_ID_BYTES_MAX + 1]; /* the address of this process */
    char master[DOORMAN_ID_BYTES_MAX + 1];  /* STANDBY: the address of the master; "": not known */
    doorman_time ttl;                       /* the TTL to request */
    doorman_time now;                       /* the latest time that the election knows */
    doorman_election_state state;           /* only doorman__election_move changes it */
    doorman_time until;                     /* when STANDBY or MASTER ends, unless a poll renews
                                               it */
    doorman_time predecessor_gone;          /* see doorman_mastership */
    uint64_t term;                          /* the term of the last mastership */
    doorman_election_call_kind step;        /* the call that comes next, or that is under way */
    bool under_way;                         /* the call `step` has been made, and its answer has not
                                               come */
    uint64_t sequence;                      /* the sequence of the last call */
    doorman_time sent_at;                   /* when the last call was made */
    doorman_time poll_at;                   /* when the last poll began */
    doorman_time due;                       /* when the next poll begins */
    int64_t lease;                          /* the store lease; 0: none */
    doorman_time lease_until;               /* when a mastership that depends on this store lease
                                               ends */
    uint64_t vacant_term;                   /* the term of the last key, if the key was missing
                                               after that term; 0: unknown */
    doorman_time vacant_at;                 /* when the key was first missing after that term */
    bool abstains;                          /* this process does not stand, since `abstains_at` */
    doorman_time abstains_at;
} doorman_election;

/* Initialises an election. The election is due at once, and needs no uninit.
 *   election   written only on OK
 *   options    used only during the call
 *   error      may be NULL; names the field that is wrong
 *   returns    OK | INVALID_ARGUMENT
 *   cost       O(1), as for all functions of an election */
DOORMAN_API doorman_status doorman_election_init(doorman_election *election,
                                                 const doorman_election_options *options,
                                                 doorman_error *error, doorman_time now);

/* Returns the next call to the store. At most one call is under way. A poll makes one to four
 * calls, one after the other.
 *   out       written in full
 *   returns   true: make this call, and report its answer. false: ask again at out->due */
DOORMAN_API bool doorman_election_next(doorman_election *election, doorman_election_call *out,
                                       doorman_time now);

/* Reports the answer to the call with this sequence. The answer can change the mastership. The
 * owner must also report a call that gets no answer, so each call needs a time limit. A call
 * without an answer may have taken effect. The next poll finds this out.
 *   answer    used only during the call; NULL: the store did not answer
 *   returns   OK | STALE (not the answer to the call under way; dropped) */
DOORMAN_API doorman_status doorman_election_answered(doorman_election *election, uint64_t sequence,
                                                     const doorman_election_answer *answer,
                                                     doorman_time now);

/* Returns the state, and the mastership for doorman_server_set_master. A state whose time has
 * passed counts as NO_MASTER.
 *   out       written in full; its address is valid until the next call on the election */
DOORMAN_API doorman_election_state doorman_election_mastership(const doorman_election *election,
                                                               doorman_mastership *out,
                                                               doorman_time now);

/* Leaves the election. The state is RESIGNED from now on. After this function, pass the result of
 * doorman_election_mastership to the server. If doorman_election_next then returns a call to the
 * store, make this last call. If this process was master, the last call deletes the key, so another
 * process can become master at once. Without the last call, the key lasts until its TTL has passed.
 * The answer to a call that was made before this function is STALE. */
DOORMAN_API void doorman_election_resign(doorman_election *election, doorman_time now);

/* Sets whether this process may become master. If it may not, it ceases to be master, gives its
 * store lease back, and keeps reading who is master. After this function, pass the result of
 * doorman_election_mastership to the server, and continue the loop. If the process could become
 * master before, and now may not, the answer to a call under way becomes STALE. After
 * doorman_election_resign the function has no effect.
 *   abstains   true: this process may not become master; false: it may, as at the start */
DOORMAN_API void doorman_election_abstain(doorman_election *election, bool abstains,
                                          doorman_time now);

/* ---- decisions, the public part ------------------------------------------------------------- */

typedef enum doorman_decision {
    DOORMAN_ALLOWED = 100, /* no value of a doorman_status, so a wrong comparison is never true */
    DOORMAN_REFUSED,       /* the units may not be used now */
    DOORMAN_IMPOSSIBLE /* never: n, the number of units, is negative, NaN, or more than the limiter
                          can ever allow */
} doorman_decision;

/* A decision, and the values that a program needs for the HTTP headers RateLimit and
 * Retry-After. */
typedef struct doorman_result {
    doorman_decision decision;
    double limit;      /* the limit in force: units per second, units in a window, or units at once;
                          or DOORMAN_UNLIMITED */
    double remaining;  /* units that are left after this call, without units that a bucket could
                          lend; or DOORMAN_UNLIMITED */
    doorman_time wait; /* ALLOWED: how long the caller must wait before it uses the units; 0 if the
                          limiter has no max_debt. REFUSED, IMPOSSIBLE: 0 */
    /* ALLOWED: 0. REFUSED: after this time the same call can be allowed, if no other caller takes
     * units. For a rate, this is the time until enough units are saved, or until a larger lease
     * that is expected would have saved them. A larger lease is expected if the resource has no
     * lease, if its lease can never allow n units, or if its wants follow use and the last lease
     * met them. For a gauge, this is the time until another lease is expected. If the wants of a
     * gauge follow use, and the server could not give n units for two windows, the client asks for
     * n units again after ten windows. In this case retry_after is at least the time until the
     * client asks. If the next lease is not larger, the call is refused again. Round the time up to
     * whole seconds for the header Retry-After. DOORMAN_NEVER: the decision is IMPOSSIBLE, no
     * change is expected, or units of a CONCURRENCY limit must be released first. */
    doorman_time retry_after;
    doorman_time reset_after; /* the time until all units are available again, if there are no other
                                 calls. A gauge and CONCURRENCY: 0, because the time is not known */
} doorman_result;

/* ---- client, the public part --------------------------------------------------------------- */

/* How much a resource may use while it has no lease. */
typedef enum doorman_fallback {
    DOORMAN_SAFE,        /* the last safe capacity that a server has sent; before the first one, the
                            safe capacity in the options */
    DOORMAN_PESSIMISTIC, /* the resource may use nothing */
    DOORMAN_OPTIMISTIC   /* the resource may use all its wants */
} doorman_fallback;

/* Certificates and keys for addresses that need TLS, such as tls+tcp://HOST:PORT. All fields are
 * texts in PEM. */
typedef struct doorman_tls {
    const char *authority; /* required: the authority that has signed the certificates of the
                              servers. A certificate must be for the host in the address of its
                              server. With nng 1.5.2 and Mbed TLS 2.28 (Debian 12) the host must be
                              a name. With nng 1.10.1 and Mbed TLS 3.6 (Debian 13) it can also be an
                              IP address */
    const char *certificate, *key; /* the certificate and key of this process; NULL: none */
} doorman_tls;

/* What a permit gets if no server decides on it: see doorman_permits.h. */
typedef enum doorman_permit_fallback {
    DOORMAN_FAIL_OPEN,   /* the permit is granted: each item gets its minimum */
    DOORMAN_FAIL_CLOSED, /* the permit is refused */
    DOORMAN_FAIL_LOCAL   /* limiters of this process decide, one for each resource and key. A grant
                            gives each item its minimum */
} doorman_permit_fallback;

/* How a client treats its permits. */
typedef struct doorman_permit_policy {
    doorman_permit_fallback fallback; /* default FAIL_OPEN */
    /* FAIL_LOCAL: required, the limit of each resource and key: a TOKEN_BUCKET without max_debt, a
     * FIXED_WINDOW or a SLIDING_WINDOW. Used only during the call. Other fallbacks: NULL */
    const struct doorman_limit_options *local;
    bool shadow;  /* true: each permit is granted at once. It is also sent, to count refusals */
    double drift; /* as in doorman_server_options, and at least that of the servers; default 0.05 */
    /* How far ahead the client takes units for keys that are used often (P24): from 1 ms to 60 s;
     * default 0: never. Set it only for limits of kind TOKEN_BUCKET. The client does not know the
     * kinds. So use another client, without prefetch, for resources whose limits are windows or
     * TIERS. The cost: in any time t, a process may use what the limit allows in t + 2 * prefetch.
     * It learns of a ban or a lower limit up to 2 * prefetch later. Units that it does not use are
     * lost to others. The client needs about 500 bytes for each of at most 10,000 keys */
    doorman_time prefetch;
    doorman_time max_pause; /* the longest time for which the breaker opens (P23): from 1 s to
                               3600 s; default 30 s */
    bool report_once;       /* true: each report has a request_id, so it counts once, also if it is
                               sent again (P28). A server remembers a report for 10 minutes, and by
                               default at most 100,000 request_ids of a client. What it cannot
                               remember counts each time */
    /* Only for an agent: called if a hold has become smaller or is gone without a call of the
     * application. The rules of on_decided apply. NULL: the agent makes no such call */
    void (*on_hold_changed)(void *context, const doorman_held *held);
    void *context;
} doorman_permit_policy;

/* What a permit client has done. */
typedef struct doorman_permit_client_info {
    size_t waiting_count;        /* permits and reports without a result */
    uint64_t granted, refused;   /* by a server */
    uint64_t refused_locally;    /* by the client, without a message (P22) */
    uint64_t prefetch_granted;   /* permits granted out of units taken ahead (P24) */
    double prefetched;           /* units that servers have granted ahead */
    double lapsed;               /* of `prefetched`: units that were lost before a permit used them.
                                    They are counted when the client notices */
    uint64_t fallback_granted;   /* permits that the fallback has granted (P23) */
    uint64_t fallback_refused;   /* permits that the fallback has refused (P23) */
    uint64_t bypassed;           /* refusals that the kill switch or `shadow` has prevented */
    uint64_t timed_out;          /* permits without a decision within their timeout */
    uint64_t reported, lost;     /* reports that a server has answered; reports that were given
                                    up */
    double uncharged;            /* units of answered reports that did not fit into a limit (P13) */
    uint64_t settled, unsettled; /* settles that a server has counted; settles that were refused or
                                    given up (P27) */
    uint64_t messages, failures; /* messages that were sent; those of them that have failed */
    uint64_t pauses;             /* how often the breaker has opened (P23) */
    size_t hold_count;           /* holds that the client keeps or asks for, or still has to
                                    release, and numbers of new_hold that no permit has yet */
    uint64_t holds_lost;         /* holds that ended or were gone before their release */
    bool is_pausing;    /* the breaker is open: no server is asked now. With a map of shards: the
                           breaker of at least one node is open, and that node is not asked */
    uint64_t moved;     /* how often a call was refused because its shard was moving, or
                                    had moved (N9) */
    uint64_t map_epoch; /* the epoch of the map of shards; 0: the client knows none */
} doorman_permit_client_info;

typedef struct doorman_client_options {
    const char *client_id; /* required; no other client may have the same id */
    /* Required: 1 to 16 addresses, tried in turn. doorman_agent_start lists the forms of address
     * that an agent accepts. A client without a thread also accepts any other text. But no text may
     * begin or end with a space. If an address begins with tcp://, tcp4:// or tcp6://, with tls+
     * and one of these, or with ws:// or wss://, it must not contain a space, and its port, if it
     * has one, must be from 1 to 65535. doorman_request.address is one of these addresses, or the
     * address of a master that a server has sent. The address of a master may have a scheme that
     * none of these addresses has. */
    const char *const *addresses;
    size_t address_count;
    uint64_t seed;                 /* required: a random number that is new for each client. If
                                      `seed` is 0 and DOORMAN_NNG is defined, the library takes
                                      random bits from the system */
    doorman_time request_timeout;  /* at least 1 ms; default 5 s, but 1 s for permits */
    const doorman_tls *tls;        /* only for an agent; required if an address needs TLS */
    doorman_permit_policy permits; /* only for an agent and a doorman_permit_client */
} doorman_client_options;

typedef struct doorman_client doorman_client;

/* A resource of a client without a thread. Only one thread at a time may use the resource, except
 * for doorman_client_try and doorman_client_release. A resource of an agent has another type,
 * doorman_resource, because any thread may use it. */
typedef struct doorman_client_resource doorman_client_resource;

typedef struct doorman_resource_info doorman_resource_info;

/* Whether the units of a resource are counted per second or at once. */
typedef enum doorman_resource_kind {
    DOORMAN_RATE, /* units per second, for example requests */
    DOORMAN_GAUGE /* units at once, for example connections; the application must release them */
} doorman_resource_kind;

/* If a field is 0 and its comment names a default, the default is used. A field that would have no
 * effect is refused:
 *     - a value without its has_ field, except for a wants_minimum above 0
 *     - wants_minimum, wants_initial or window, if wants is set
 *     - a burst of a gauge, or `burst` together with burst_units
 *     - a safe capacity, if the fallback is not SAFE
 * A context without on_change is accepted. */
typedef struct doorman_resource_options {
    const char *resource_id;    /* required */
    doorman_resource_kind kind; /* default RATE */
    bool has_priority;          /* false: the priority is 1 */
    int priority;
    /* If `wants` is 0, the wants follow use, within the bounds of wants_minimum, wants_maximum and
     * wants_initial. The use consists of the units that were allowed, that were refused, and that
     * callers waited for, all within the last window (L4). While the server has no more to grant,
     * wants are at most about eight times what the resource has. This bound is needed because a
     * single caller can retry many times. */
    double wants;
    bool has_wants_minimum;    /* true: wants_minimum is given, even if it is 0 */
    double wants_minimum;      /* the wants of an idle resource; default 1 for a rate, and 0 for a
                                  gauge. With 0, the first call after an idle time needs a request
                                  to the server: a try is refused, and a wait takes a moment */
    double wants_maximum;      /* the upper bound of all wants, also of wants that are set; default
                                  1e15 */
    double wants_initial;      /* the lower bound of wants during the first window; default
                                  wants_minimum */
    doorman_time window;       /* how long an attempt counts as use; at least 10 ms; default 10 s */
    doorman_time burst;        /* only for a rate: how much time a rate saves (see
                                  doorman_resource_try); at least 1 us; default 0.1 s */
    double burst_units;        /* only for a rate: the burst in units; 0: `burst` is used instead */
    doorman_fallback fallback; /* default SAFE */
    bool has_safe_capacity;    /* false: the safe capacity is 0. SAFE then allows nothing before a
                                  server has sent a lease or a safe capacity */
    double safe_capacity;      /* used until a server sends a safe capacity; may be
                                  DOORMAN_UNLIMITED */
    bool shadow;               /* true: shadow mode, to test a limit. Attempts that would otherwise
                                  be refused are allowed, and count as excess. No call waits, and
                                  delays are 0. An n that is not an amount is still IMPOSSIBLE */
    /* Called when `leased`, `outcome`, `learning`, `reason`, `capacity` or `gauge_is_divided` has
     * changed. info is valid only during the call. on_change runs within a call on the client, its
     * upstream, the agent or a resource, or in the agent's thread. That call or thread waits for
     * on_change, so on_change should return soon. on_change may call the functions that try,
     * release and delay, for any resource. Other calls on a client are forbidden. Other calls on an
     * agent return DEADLOCK and do nothing. on_change must not wait for a thread that makes such
     * calls. */
    void (*on_change)(void *context, const doorman_resource_info *info);
    void *context;
} doorman_resource_options;

/* Creates a client. A client has no thread. The caller runs the loop of doorman_upstream.
 *   out       written only on OK; the caller destroys it
 *   options   used only during the call
 *   error     may be NULL; describes the error
 *   returns   OK | INVALID_ARGUMENT | OUT_OF_MEMORY | with DOORMAN_NNG: UNAVAILABLE (the system has
 *             no random bits) */
DOORMAN_API doorman_status doorman_client_create(doorman_client **out,
                                                 const doorman_client_options *options,
                                                 doorman_error *error, doorman_time now);

/* Frees the client and its resources, including open resources. The call releases no lease at the
 * server. To release the leases, close all resources before this call, and run the loop of
 * doorman_upstream until nothing is due. NULL has no effect. */
DOORMAN_API void doorman_client_destroy(doorman_client *client);

/* Returns the upstream of the client, for the caller's loop: see doorman_upstream.
 *   returns   never NULL; belongs to the client, which frees it */
DOORMAN_API doorman_upstream *doorman_client_upstream(doorman_client *client);

/* Opens a resource. If the resource is open already, the call returns the same resource, and the
 * options of the first opening stay in force. If the new options differ, the call still returns OK,
 * and `error` names the first field that differs. In this case `options_differ` of
 * doorman_resource_info is true until the last close. If no field differs, `error` is "". Another
 * `kind` is refused.
 *   out       written only on OK
 *   options   used only during the call
 *   error     may be NULL; also written on OK
 *   returns   OK | INVALID_ARGUMENT (also for another `kind` while the resource is open or has
 *             units in use) | OUT_OF_MEMORY
 *   cost      O(log resources of the client) */
DOORMAN_API doorman_status doorman_client_open(doorman_client_resource **out,
                                               doorman_client *client,
                                               const doorman_resource_options *options,
                                               doorman_error *error, doorman_time now);

/* Ends one opening of a resource. After the last close the caller must not use the resource any
 * more, and the upstream releases the lease at the server. The lease of a gauge with units in use
 * is not released. Such a lease ends when its time has passed. */
DOORMAN_API void doorman_client_close(doorman_client_resource *resource, doorman_time now);

/* Sets the wants, in the resource's units. After this call the wants do not follow use.
 *   returns   OK | INVALID_ARGUMENT (not in [0, wants_maximum]) */
DOORMAN_API doorman_status doorman_client_set_wants(doorman_client_resource *resource, double wants,
                                                    doorman_time now);

/* Counters of the units of all attempts on a resource since it was created. The counters count in
 * 1/4096 of a unit, and start again from 0 after 2^52 units. Above 2^41 units a double rounds the
 * counts. */
typedef struct doorman_counts {
    double allowed;      /* units that were allowed; exact with any number of threads */
    double refused;      /* units that were refused. This is an estimate if many threads are refused
                            at once: a thread that is interrupted while it counts may remove what
                            other threads have counted */
    double excess;       /* units that were allowed only because of shadow mode or the kill
                            switch */
    uint64_t waits;      /* calls that had to wait and have returned, also calls that timed out */
    doorman_time waited; /* the sum of the waiting times of the calls in `waits` */
    uint64_t over_released; /* only for a gauge: releases of more units than were in use, which is a
                               mistake of the application. They have released nothing */
} doorman_counts;

struct doorman_resource_info {
    const char *resource_id; /* valid until the last close */
    doorman_resource_kind kind;
    bool leased;             /* true: the resource has a lease. false: the fallback is in force */
    double capacity;         /* the capacity in force; DOORMAN_UNLIMITED: a safe capacity without a
                                limit */
    double wants;            /* how much the resource wants */
    double in_use;           /* only for a gauge: units that are not released yet */
    doorman_time expires_at; /* if `leased` is true: the end of the lease */
    doorman_lease_reason reason; /* if `leased` is true: why the lease is less than what the
                                    resource wanted when it asked (S14). 0: it is not less, or the
                                    server is older and sends no reasons */
    doorman_outcome outcome; /* if has_outcome is true: the outcome in the last response. UNMATCHED
                                and FULL need an operator */
    bool has_outcome;        /* true: a server has responded */
    bool learning;           /* true: the last response says that the server learns. Until the
                                server has learned, leases grow only by what other holders give
                                back */
    bool has_safe_capacity;  /* true: a server has sent a safe capacity */
    double safe_capacity;    /* if has_safe_capacity is true: the last safe capacity from a server,
                                or DOORMAN_UNLIMITED */
    bool whole;              /* true: leases are whole units, because the template says so */
    doorman_time overload_target; /* from the last response: a request that waits longer than this
                                     at the servers behind the resource is late; 0: reports of
                                     overload have no effect. See doorman_client_report_overload */
    bool gauge_is_divided; /* true: the leases of this gauge are not whole units, so even one unit
                              may never be allowed. Without a lease, false for a caller of _read,
                              and for on_change what it was */
    doorman_fallback fallback;
    doorman_counts counts;
    uint64_t refresh_failures; /* how many requests of the client had no useful response */
    bool options_differ;       /* true: a later opening had other options, which are not in force */
};

/* Reports what a server behind the resource has counted, so that the capacity of the resource
 * follows what the server can do (H11). Report at least once in each refresh interval.
 * doorman_throttle_report makes such a report. Reports are added up, and the next request for
 * capacity of this resource sends the sum. If the request is lost, the sum is lost too. The report
 * has no effect while overload_target of doorman_resource_info is 0. Rule H11 assumes that holders
 * of leases send all the requests. If the requests of others alone overload the servers, the
 * capacity falls to capacity_min. A client that only reports sets its wants to 0, so that it takes
 * no capacity.
 *   report    an interval of 0 has no effect
 *   returns   OK | INVALID_ARGUMENT (a number that is out of range) */
DOORMAN_API doorman_status doorman_client_report_overload(doorman_client_resource *resource,
                                                          const doorman_overload_report *report,
                                                          doorman_time now);

/* Reads the state of a resource.
 *   out   written in full */
DOORMAN_API void doorman_client_read(const doorman_client_resource *resource,
                                     doorman_resource_info *out, doorman_time now);

/* These functions work like doorman_resource_try and doorman_resource_release. Any number of
 * threads may call them at once, also during other calls on the client. */
DOORMAN_API doorman_decision doorman_client_try(doorman_client_resource *resource, double n,
                                                doorman_result *out, doorman_time now);
DOORMAN_API doorman_status doorman_client_release(doorman_client_resource *resource, double n);

/* ---- estimates, the public part ------------------------------------------------------------- */

/* Estimates from counts of use how much of a rate a holder should want (L4). The resources of a
 * client have such an estimate inside. A program that asks for leases on behalf of others, and
 * knows only what they have counted, creates an estimate for each of them. */
typedef struct doorman_estimate doorman_estimate;

typedef struct doorman_estimate_options {
    double minimum;      /* the wants without use, [0, 1e15] units per second */
    doorman_time window; /* how long use counts; 10 ms to 1e8 s; default 10 s */
} doorman_estimate_options;

/* What was counted since the last call, and what the holder may use. All amounts are in
 * [0, 1e15]. */
typedef struct doorman_estimate_counts {
    double allowed, refused; /* units */
    double capacity;         /* what the holder may use, or the safe capacity if that is larger */
    bool exhausted;          /* the last response has granted less than was wanted */
} doorman_estimate_counts;

/* Creates an estimate. The counts of the first doorman_estimate_add begin at `now`.
 *   out       the caller must destroy it
 *   error     may be NULL
 *   returns   OK | INVALID_ARGUMENT | OUT_OF_MEMORY */
DOORMAN_API doorman_status doorman_estimate_create(doorman_estimate **out,
                                                   const doorman_estimate_options *options,
                                                   doorman_error *error, doorman_time now);
DOORMAN_API void doorman_estimate_destroy(doorman_estimate *estimate); /* NULL has no effect */

/* Adds counts, and returns the wants in units per second. Counts take effect at most once per tenth
 * of the window, and are kept until then. Counts that are not valid count as 0.
 *   counts    NULL: nothing was counted
 *   cost      O(1) */
DOORMAN_API double doorman_estimate_add(doorman_estimate *estimate,
                                        const doorman_estimate_counts *counts, doorman_time now);

/* ---- limiters, the public part -------------------------------------------------------------- */

/* Private: an alignment of 8 bytes, for 64-bit values that several threads use. 32-bit x86 aligns
 * such values to 4 bytes by default. With 4 bytes a value could lie in two cache lines, and an
 * access to it would not be atomic. */
#ifdef __GNUC__
#define DOORMAN__ALIGNED __attribute__((aligned(8)))
#else
#define DOORMAN__ALIGNED
#endif
typedef uint64_t DOORMAN__ALIGNED doorman__shared; /* private */

/* ---- limiters without a server -------------------------------------------------------------- */
/* A limiter of one process, without a lease. No other process shares the limit.
 *
 *     doorman_limit     the kind and the figures, checked once. A limit has 64 bytes, and any
 *                       number of limiters can share it
 *     doorman_limiter   the state of one limiter, for example of one user or connection. A limiter
 *                       has 16 bytes
 *
 * Both are in the caller's memory, and their fields are private. After doorman_limit_init a limit
 * never changes. Any number of threads may use one limiter at once, without a lock. Amounts are
 * real numbers. An example with 10 units a second and bursts of 50:
 *
 *     doorman_limit_options options = {
 *         .kind = DOORMAN_TOKEN_BUCKET, .rate = 10, .size = 50};
 *     doorman_limit limit;       doorman_limit_init(&limit, &options, &error)
 *     doorman_limiter limiter;   doorman_limiter_init(&limiter, &limit, NULL, now)
 *                                doorman_limiter_try(&limiter, &limit, 1, NULL, now)
 *
 * TOKEN_BUCKET: a bucket that holds at most `size` units. It is full at first, and gains `rate`
 * units each second. With max_debt the bucket also lends the units that it will gain within
 * max_debt, so the bucket can have a debt. Each caller must wait until the debt from before its
 * call is paid back. The field `wait` of the result has this time. A bucket has three uses:
 *
 *     token bucket      only size is set. Unused units are saved for a burst
 *     leaky bucket      only max_debt is set. The bucket is a queue. It has room for the units that
 *                       the bucket gains in the time max_debt. Units leave the queue evenly. An
 *                       allowed caller is in the queue, and may continue after `wait`
 *     bucket with debt  size and max_debt are set. A caller that finds no debt may take more units
 *                       than the bucket has, and continues at once. The next callers wait. Example
 *                       with 10 units a second, a size of 5 units and a max_debt of 1 s: at 0 s a
 *                       caller takes 15 units and continues at once. The next caller waits 1 s
 *
 *   promise   at most size + rate * t units in any time t, if all callers wait as long as `wait`
 *             says. With max_debt the bucket may exceed this bound by the n of one caller. Times
 *             are counted in steps of 1/256 ns. In such a step, a rate above 2.56e11 units/s gains
 *             more than one unit. So the bucket may exceed this bound by what it gains in a few
 *             steps. A leaky bucket has no other burst
 *   drawback  a full bucket allows a burst of its size at once, and another burst after a pause.
 *             After a loan of many units all later callers wait. A queue that is full of old
 *             requests refuses or delays new requests
 *   cost      one compare-and-swap
 *   source    GCRA (ITU-T I.371); the debt is as in Guava's RateLimiter and in Square's quota
 *             service
 *
 * FIXED_WINDOW: at most `limit` units in each window. Windows begin at multiples of `window`.
 *   promise   at most `limit` units in each of its windows. Units are counted in 1/4096, rounded up
 *   drawback  twice the limit may be allowed within a moment: once at the end of a window, and
 *             again at the beginning of the next window
 *   cost      a division, and one compare-and-swap
 *
 * SLIDING_WINDOW: counts all units that were allowed in the present window, and a percentage of the
 * units that were allowed in the window before it. This percentage falls evenly from 100 % to 0 %
 * during the present window. Example with a limit of 7 a minute: 5 units were allowed in the last
 * minute, and 3 units in this minute. When 30 % of this minute has passed, the window counts
 * 3 + 5 * 70 % = 6.5 units. At that time another half unit fits, but another whole unit does not.
 *   promise   at most `limit` units in any window, if the requests of the last window came evenly.
 *             Units are counted in 1/4096, rounded up
 *   drawback  if the requests of the last window did not come evenly, nearly twice the limit may be
 *             allowed, or an attempt within the limit may be refused
 *   cost      two divisions, and one compare-and-swap
 *
 * SLIDING_LOG: remembers the times of the last attempts, also of refused attempts. Example with 2
 * units a minute: attempts at 1:00:01 and 1:00:30 are allowed. The attempt at 1:00:50 is the third
 * in a minute, so it is refused and remembered. At 1:01:40 only the refused attempt is less than a
 * minute old, so one more attempt is allowed.
 *   promise   at most `limit` units in any window, exactly. n is rounded up to whole units
 *   memory    8 bytes for each unit of the limit, besides the limiter
 *   drawback  a caller that keeps retrying stays refused, because refused attempts are remembered
 *   cost      one locked instruction for a try, and one for each unit
 *
 * CONCURRENCY: at most `limit` units at once. The caller must release the units that a try has
 * allowed.
 *   promise   at most `limit` units at any moment. Units are counted in 1/4096, rounded up
 *   drawback  units that a caller never releases are lost
 *   cost      one compare-and-swap for a try, and one for a release */
typedef enum doorman_limit_kind {
    DOORMAN_TOKEN_BUCKET = 1,
    DOORMAN_FIXED_WINDOW,
    DOORMAN_SLIDING_WINDOW,
    DOORMAN_SLIDING_LOG, /* only for a doorman_limiter */
    DOORMAN_CONCURRENCY,
    DOORMAN_TIERS /* only for a doorman_permit_limit */
} doorman_limit_kind;

/* The names and units are those of doorman_figures. Fields that the kind does not use must be 0. */
typedef struct doorman_limit_options {
    doorman_limit_kind kind; /* required */

    /* TOKEN_BUCKET. size and max_debt must not both be 0. The time in which the bucket gains
     * `size`, and max_debt, must together be at most 1e7 s. */
    double rate;           /* required: units a second that the bucket gains; (0, 1e15] */
    double size;           /* units that can be saved; [0, 1e15] */
    doorman_time max_debt; /* the most time in which lent units are gained back. n units need n /
                              rate seconds, rounded up */
    bool has_max_wait;     /* false: callers may wait as long as max_debt allows */
    doorman_time max_wait; /* an attempt is refused if its caller would have to wait longer than
                              this time, [0, 1e8 s]; 0: no caller waits */

    /* FIXED_WINDOW, SLIDING_WINDOW, SLIDING_LOG, CONCURRENCY */
    double limit;        /* units in a window, [0, 1e8]. SLIDING_LOG: a whole number of units in a
                            window, [1, 1e8]. CONCURRENCY: units at once, [0, 1e15] */
    doorman_time window; /* required, (0, 1e8 s]; not for CONCURRENCY */
} doorman_limit_options;

/* Private: the most that a bucket saves, the most that it lends, and the longest wait. All three
 * are in 1/256 ns. A number of units is given as the time in which the bucket gains them. */
typedef struct DOORMAN__ALIGNED doorman__bucket {
    int64_t saved_most, debt_most, wait_most;
} doorman__bucket;

typedef struct DOORMAN__ALIGNED doorman_limit {
    doorman_limit_kind kind; /* 0: the limit is not initialised */
    double amount;           /* units per second, units in a window, or units at once */
    double unit_time;        /* TOKEN_BUCKET: the time in which the bucket gains one unit, in 1/256
                                ns */
    doorman__bucket bucket;
    uint64_t most; /* `amount` in 1/4096 of a unit; SLIDING_LOG: `amount` in whole units */
    doorman_time window;
} doorman_limit;

/* An element of the array of a SLIDING_LOG: the time at which one unit was asked for. */
typedef doorman_time DOORMAN__ALIGNED doorman_arrival;

typedef struct DOORMAN__ALIGNED doorman_limiter {
    union {
        doorman__shared
            words[2]; /* TOKEN_BUCKET: see paid_until in L1; FIXED_WINDOW, SLIDING_WINDOW: the units
                         of one or two windows; CONCURRENCY: units in use */
        struct {
            uint64_t next;
            doorman_arrival *arrivals;
        } log;
    } state;
} doorman_limiter;

/* Checks options and makes a limit of them.
 *   limit     written only on OK. The limit is in the caller's memory, and needs no uninit
 *   options   used only during the call
 *   error     may be NULL; names the field that is wrong
 *   returns   OK | INVALID_ARGUMENT */
DOORMAN_API doorman_status doorman_limit_init(doorman_limit *limit,
                                              const doorman_limit_options *options,
                                              doorman_error *error);

/* Initialises a limiter. All later calls on the limiter must pass the same limit.
 *   arrivals   SLIDING_LOG: room for `limit` arrivals, at an address that is a multiple of 8.
 *              Variables of this type and memory from malloc have such an address. The room must
 *              stay valid while the limiter is used. Other kinds: NULL
 *   returns    OK | INVALID_ARGUMENT (`arrivals` is wrong, or the limit is not initialised)
 *   cost       O(1); SLIDING_LOG: O(limit) */
DOORMAN_API doorman_status doorman_limiter_init(doorman_limiter *limiter,
                                                const doorman_limit *limit,
                                                doorman_arrival *arrivals, doorman_time now);

/* Takes n units if they may be used now. An n of 0 is always allowed, and takes nothing.
 *   out       written in full. Required if callers of this limit may have to wait, else it may be
 *             NULL
 *   returns   ALLOWED | REFUSED | IMPOSSIBLE: n is more than the limiter ever allows, negative, or
 *             NaN; or `out` is missing; or the limit, or the limiter of a SLIDING_LOG, is not
 *             initialised, for example zeroed
 *   cost      no lock and no system call. The comment of doorman_limit_kind has the cost of each
 *             kind. With `out`, a SLIDING_LOG also needs O(log limit) */
DOORMAN_API doorman_decision doorman_limiter_try(doorman_limiter *limiter,
                                                 const doorman_limit *limit, double n,
                                                 doorman_result *out, doorman_time now);

/* Returns how long it takes until n units would be allowed, if there are no other calls. The call
 * takes no units. A caller may sleep for that time and try again. The limiter does not queue
 * callers.
 *   returns   0: n units would be allowed now | DOORMAN_NEVER: a try would be IMPOSSIBLE, or other
 *             units must be released first (CONCURRENCY) */
DOORMAN_API doorman_time doorman_limiter_delay(const doorman_limiter *limiter,
                                               const doorman_limit *limit, double n,
                                               doorman_time now);

/* Releases n units of a CONCURRENCY limit. n must be the n of an allowed try.
 *   returns   OK | INVALID_ARGUMENT (n is not an amount, or is more than the units in use; or the
 *             limit is of another kind): nothing has changed
 *   cost      one compare-and-swap */
DOORMAN_API doorman_status doorman_limiter_release(doorman_limiter *limiter,
                                                   const doorman_limit *limit, double n);

#ifdef DOORMAN_JSON
#define DOORMAN__DECLARES_JSON
/* ---- JSON, the public part ------------------------------------------------------------------ */

/* A text that grows as needed. The caller initialises the buffer with zeros, and may use it again.
 * `text` ends with a NUL that `bytes` does not count. */
typedef struct doorman_buffer {
    char *text;
    size_t bytes, capacity;
} doorman_buffer;

/* Frees the text. The buffer is empty after that, and may be used again. */
DOORMAN_API void doorman_buffer_uninit(doorman_buffer *buffer);

/* Makes a configuration from JSON text, as doorman_config_create does from structs.
 *   out       written only on OK; the caller destroys it
 *   text      used only during the call; it need not end with a NUL
 *   error     as for doorman_config_create. The text begins with the position of the field, for
 *             example "line 3, column 7: resources[0].capacity: must be ..."
 *   returns   as doorman_config_create; also INVALID_ARGUMENT (not JSON, an unknown key, a wrong
 *             value) and RESOURCE_EXHAUSTED (the text is too large, or nested too deeply) */
DOORMAN_API doorman_status doorman_json_config(doorman_config **out, const char *text, size_t bytes,
                                               doorman_error *error);

/* An error of a configuration, or a warning about it. */
typedef struct doorman_config_problem {
    size_t line, column; /* where the field begins, from 1; 0: there is no position. A column is one
                            character. A field of an object begins at its key. A missing field has
                            the position of the object that should contain it */
    doorman_error error; /* the path of the field, and the rule that it breaks */
    bool without_store;  /* true: the warning does not apply if a store keeps the rows of permits */
} doorman_config_problem;

/* A list of errors or warnings. */
typedef struct doorman_config_problems {
    doorman_config_problem *items; /* the first `room` problems; may be NULL if room is 0 */
    size_t room;
    size_t count; /* out: how many there are; may be more than room */
} doorman_config_problems;

/* Makes a configuration like doorman_json_config, and lists all errors that it finds. A text that
 * is not JSON has one error, because nothing behind the error can be read. If a field of a template
 * is unknown, missing or of a wrong type or value, the other rules are not checked for this
 * template. The rules on shards and leased limits are checked only if no template has an error.
 * Warnings are listed only if there is no error.
 *   out        written only on OK; the caller destroys it. NULL: the call only checks the text
 *   text       used only during the call; it need not end with a NUL
 *   problems   receives the errors, in the order of the templates; after OK the warnings. After an
 *              error `count` is at least 1, or 0 if `text` or `items` is missing. May be NULL
 *   returns    as doorman_json_config
 *   cost       as doorman_json_config, plus O(bytes) for each element of `items` */
DOORMAN_API doorman_status doorman_json_check_config(doorman_config **out, const char *text,
                                                     size_t bytes,
                                                     doorman_config_problems *problems);

/* Writes a configuration as JSON text, with one line for each template. doorman_config_read returns
 * the options of a doorman_config. The text always has the kind, the lease length, the refresh
 * interval and the list `parameters` of each algorithm, and each time_to_live that the options
 * have. The text leaves out any other field whose value is the default. Numbers have as few digits
 * as possible.
 *     If doorman_config_create accepts the options, doorman_json_config makes an equal
 * configuration from the text. Durations of more than 26 days are exact only if they are whole
 * seconds. Bytes of a description that are not UTF-8 are replaced by U+FFFD. doorman_json_config
 * refuses a text that is larger than V5 allows.
 *   options   used only during the call; not checked. template_max has no effect
 *   text      in/out: its text is replaced
 *   returns   OK | OUT_OF_MEMORY
 *   cost      O(bytes of the text) */
DOORMAN_API doorman_status doorman_json_write_config(const doorman_config_options *options,
                                                     doorman_buffer *text);

/* Serves one message: parses the text, calls doorman_server_handle and writes the reply. If the
 * message is wrong, the reply describes the error. Over nng a message is one request, and over HTTP
 * it is the body of a POST to /v1.
 *   reply     in/out: its text is replaced
 *   epoch     the seconds since 1970 at `now`. The reply uses them in the field expiry_time, which
 *             is only for people. 0: the reply does not have this field
 *   returns   the status in the reply; after OUT_OF_MEMORY the reply may be empty */
DOORMAN_API doorman_status doorman_json_serve(doorman_server *server, const char *text,
                                              size_t bytes, doorman_buffer *reply, int64_t epoch,
                                              doorman_time now);

/* Private: see >>json. */
typedef enum doorman__exchange_state {
    DOORMAN__EXCHANGE_EMPTY,
    DOORMAN__EXCHANGE_READ,
    DOORMAN__EXCHANGE_DECIDED,
    DOORMAN__EXCHANGE_FAILED,
    DOORMAN__EXCHANGE_WRITTEN
} doorman__exchange_state;

/* Serves one message in three steps, for a server that several threads share. The caller needs the
 * lock of the server only for the second step. Each message in progress needs an exchange of its
 * own. The caller initialises the struct with zeros, and may use it for one message after another.
 * The exchange keeps its memory for responses and replies until _uninit. */
typedef struct doorman_json_exchange {
    doorman_request request; /* if _read has returned OK: the parsed message. Its pointers are valid
                                until _write */
    bool has_method; /* set by _read, even if _read fails: the message has a method that exists,
                        which is in request.method and request.is_server */
    doorman_buffer reply;      /* valid from _write to the next _read */
    doorman_response response; /* if _decide has returned OK: the response. The caller may set its
                                  http_address before _write, to at most 256 bytes of a URL */
    doorman_error error;       /* if a step has failed, and memory did not run out: what is wrong */
    bool forbids_administration; /* the caller may set it before _read: INSPECT and RESET are
                                    refused, because anybody may have sent the message. _uninit sets
                                    it to false */
    bool forbids_figures;        /* the caller may set it before _read: permits that bring figures
                                    are refused (P31) */

    /* Private. */
    bool is_body; /* the text has only the inner object, without the method, and so has the reply */
    doorman__exchange_state state;
    doorman_status status;
    struct cJSON *tree;
    doorman__arena message; /* what `request` points to */
    void *kept;
    size_t kept_bytes;
    doorman__arena arena; /* the decisions on permits */
    char node[DOORMAN_ID_BYTES_MAX + 1], master[DOORMAN_ID_BYTES_MAX + 1];
} doorman_json_exchange;

/* Frees all memory of an exchange, after any step. The exchange may be used again. */
DOORMAN_API void doorman_json_exchange_uninit(doorman_json_exchange *exchange);

/* Step 1: reads a message, and allocates the memory for a response on leases. The call drops the
 * previous message of the exchange.
 *   method    NULL: the text is a whole message, {"METHOD": {...}}. Otherwise the name of the
 *             method, such as "get_capacity", used only during the call. With a method the text is
 *             only the inner object, and so is the reply, unless the reply is an error. Over HTTP a
 *             path such as /v1/get_capacity has the method
 *   text      used only during the call. A message of more than DOORMAN_MESSAGE_BYTES_MAX is
 *             refused before it is read. For such a message the caller may pass NULL, and need not
 *             receive the whole message
 *   returns   OK | a status that says what is wrong with the message, NOT_FOUND if there is no such
 *             method. _write then writes the error
 *   cost      O(bytes), about 0.85 us for each resource, and about 0.3 us for each permit; and
 *             O(keys log keys) for an object with more than 16 keys */
DOORMAN_API doorman_status doorman_json_exchange_read(doorman_json_exchange *exchange,
                                                      const char *method, const char *text,
                                                      size_t bytes);

/* Step 2: lets the server answer the message. If the message is wrong, or step 2 has been done
 * already, the call only returns the status of the exchange.
 *   server    the caller holds its lock
 *   returns   OK | a status of doorman_server_handle | the status of step 1, if the message is
 *             wrong | INVALID_ARGUMENT (step 1 was left out)
 *   cost      that of doorman_server_handle, about 0.2 us for each resource, and about 0.4 us for
 *             each permit */
DOORMAN_API doorman_status doorman_json_exchange_decide(doorman_json_exchange *exchange,
                                                        doorman_server *server, doorman_time now);

/* Step 3: writes the reply: the response, or the error. If step 2 was left out, the reply says
 * UNAVAILABLE. A server that is stopping leaves step 2 out. A second call for the same message has
 * no effect.
 *   epoch, returns   as doorman_json_serve
 *   cost             O(bytes), about 0.28 us for each resource, and about 0.2 us for each permit */
DOORMAN_API doorman_status doorman_json_exchange_write(doorman_json_exchange *exchange,
                                                       int64_t epoch);

/* Writes a request as JSON text.
 *   request   used only during the call
 *   text      in/out: its text is replaced
 *   returns   OK | OUT_OF_MEMORY | INVALID_ARGUMENT (a message on permits, in a program without
 *             doorman_permits.h)
 *   cost      O(bytes of the text) */
DOORMAN_API doorman_status doorman_json_request(const doorman_request *request,
                                                doorman_buffer *text);

/* Parses the response to the request with this sequence, and passes it to
 * doorman_upstream_response. If the text is not a valid response, the request counts as failed.
 *   text      used only during the call
 *   returns   OK | STALE | INVALID_ARGUMENT or RESOURCE_EXHAUSTED (error says why) | OUT_OF_MEMORY
 *             (nothing was done; the caller may pass the same text again) */
DOORMAN_API doorman_status doorman_json_response(doorman_upstream *upstream, uint64_t sequence,
                                                 const char *text, size_t bytes,
                                                 doorman_error *error, doorman_time now);
#endif /* DOORMAN_JSON */

#ifdef DOORMAN_NNG
#define DOORMAN__DECLARES_NNG
/* ---- agent and resources, the public part --------------------------------------------------- */

/* A client with a clock, a thread and a connection of its own. The first permit, report, settle,
 * transfer or seizure starts a second thread with a second connection. The agent opens one more
 * connection for each permit that waits in the queue of a server, at most 64 at once. With a map of
 * shards it also opens one for each node. Any thread may call the functions of an agent and its
 * resources. Only doorman_resource_wait and doorman_agent_acquire, _transfer, _seize, _settle and
 * _stop can block. If n units may be used now, and no other call waits or has just waited,
 * doorman_resource_wait takes them and returns at once.
 *
 * Each function of an agent or a resource that returns a status can also return
 *   DEADLOCK      if it is called within an on_change of this agent. The call does nothing.
 *                 doorman_resource_release is allowed within an on_change
 *   UNAVAILABLE   if a child process calls it for an agent of its parent process. The call does
 *                 nothing. In the child process all attempts on the agent's resources are REFUSED,
 *                 because the leases belong to the parent. The child must not free the agent */
typedef struct doorman_agent doorman_agent;

/* A resource of an agent: a rate or a gauge. The resource belongs to the agent. */
typedef struct doorman_resource doorman_resource;

/* Returns the time on the clock of agents. This clock is CLOCK_BOOTTIME if the system has it, else
 * CLOCK_MONOTONIC. */
DOORMAN_API doorman_time doorman_clock(void);

/* Starts an agent. The servers need not run yet.
 *   out       written only on OK
 *   options   as for doorman_client_create, with two differences. Without a client_id the agent
 *             uses "HOST:PID:" and 64 random bits. An address must have one of the forms
 *             tcp://HOST:PORT, tls+tcp://HOST:PORT, ipc://PATH, inproc://NAME, ws://HOST:PORT/PATH
 *             or wss://HOST:PORT/PATH. tls+tcp and wss need the field `tls`. tcp4 and tcp6 are tcp
 *             with IPv4 or IPv6 alone, and unix is another name of ipc
 *   error     may be NULL
 *   returns   OK | INVALID_ARGUMENT | OUT_OF_MEMORY | UNAVAILABLE (the system has no thread or no
 *             random bits, or nng does not work because of a fork). nng does not work in a child
 *             process if the parent has used nng before the fork. Agents and transports use nng */
DOORMAN_API doorman_status doorman_agent_start(doorman_agent **out,
                                               const doorman_client_options *options,
                                               doorman_error *error);

/* The first of two steps to stop an agent. Calls of doorman_resource_wait and of
 * doorman_agent_acquire, _transfer, _seize and _settle that are in progress return UNAVAILABLE.
 * Later calls of these functions, and of doorman_resource_open, doorman_agent_acquire_async and
 * doorman_agent_report, return UNAVAILABLE at once. All other calls work as before. Any thread may
 * call doorman_agent_shutdown, any number of times. Threads that wait without a timeout can be
 * stopped like this:
 *
 *     each thread     while (doorman_resource_wait(resource, 1, DOORMAN_NEVER) == DOORMAN_OK)
 *                         act();
 *     main thread     doorman_agent_shutdown(agent);
 *                     pthread_join(...);              for each thread
 *                     doorman_agent_stop(agent);
 *
 *   returns   OK */
DOORMAN_API doorman_status doorman_agent_shutdown(doorman_agent *agent);

/* The second of two steps to stop an agent. The call also does the first step, if this was not done
 * before. The call releases all leases, except the leases of gauges with units in use. To release
 * leases, the call waits at most a second for the server. In the same second the agent sends the
 * reports and settles that are left. The call does not wait if no server can be reached, or if no
 * request is under way and nothing can be released or sent. At the end the call closes the sockets
 * of its connections, and waits at most another half second for each of them. Then the call frees
 * the agent and its resources. No other thread may use the agent or its resources during the call
 * or later, with one exception: a thread may already be blocked in doorman_resource_wait, or in
 * doorman_agent_acquire, _transfer, _seize or _settle. NULL has no effect.
 *   returns   OK | DEADLOCK or UNAVAILABLE (see doorman_agent; nothing is freed) */
DOORMAN_API doorman_status doorman_agent_stop(doorman_agent *agent);

/* The state of an agent, for logs and health checks. */
typedef struct doorman_agent_info {
    char client_id[DOORMAN_ID_BYTES_MAX + 1];
    char address[DOORMAN_ID_BYTES_MAX + 1]; /* the address for the present request, or else for the
                                               next request */
    bool connected;                         /* nng has a connection to `address` */
    /* true: the last request had no useful response, or nng cannot connect for the present request.
     * If a server refuses connections, the agent notices this within 0.2 s after nng has tried to
     * connect. If the network does not respond at all, `failing` becomes true when the request
     * fails: when it times out, or after 2 s if the agent has several addresses. */
    bool failing;
    doorman_error last_error;   /* the error of the last request that failed or could not connect at
                                   first, also of a message on permits; "": no error */
    doorman_time last_error_at; /* the time of last_error on doorman_clock; 0: no error */
    doorman_time next_refresh;  /* if a request is under way: when the request times out. Otherwise:
                                   when the next request is sent. DOORMAN_NEVER: no request is
                                   planned */
    doorman_permit_client_info permits;
} doorman_agent_info;

/* Reads the state of an agent.
 *   out       written in full; after an error all fields are 0
 *   returns   OK
 *   cost      a mutex */
DOORMAN_API doorman_status doorman_agent_read_info(doorman_agent *agent, doorman_agent_info *out);

/* Turns the kill switch on or off. While the switch is on, all attempts on the agent's resources
 * are allowed and counted, and no call waits. The switch also affects resources that are opened
 * later. The agent renews its leases as usual. All permits are granted at once, and the agent still
 * sends them (P25).
 *   returns   OK */
DOORMAN_API doorman_status doorman_agent_kill_switch(doorman_agent *agent, bool on);

/* Opens a resource. If the resource is open already, the call returns the same resource, and the
 * options of the first opening stay in force. If the new options differ, the call still returns OK,
 * and `error` names the first field that differs. In this case `options_differ` of
 * doorman_resource_info is true until the last close. If no field differs, `error` is "". Another
 * `kind` is refused.
 *   out       written only on OK
 *   options   used only during the call. The agent's thread may call on_change
 *   error     may be NULL; also written on OK
 *   returns   OK | INVALID_ARGUMENT (also for another `kind` while the resource is open or has
 *             units in use) | OUT_OF_MEMORY | UNAVAILABLE (the agent is shut down)
 *   cost      a mutex, and O(log resources of the agent) */
DOORMAN_API doorman_status doorman_resource_open(doorman_resource **out, doorman_agent *agent,
                                                 const doorman_resource_options *options,
                                                 doorman_error *error);

/* Ends one opening of a resource. After the last close the caller must not use the resource any
 * more. Calls that wait for units of the resource return UNAVAILABLE. 0.1 s after the last close,
 * the agent releases the lease, unless the resource is open again. The lease of a gauge with units
 * in use is not released. Such a lease ends when its time has passed.
 *   returns   OK */
DOORMAN_API doorman_status doorman_resource_close(doorman_resource *resource);

/* Takes n units if they may be used now.
 *
 * A rate allows at most rate * (t + burst) units in any time t (L1). The time of n units is n /
 * rate. If it is longer than the burst, it replaces the burst for this call. Example: at 100 units
 * a second, a call with n = 20 is allowed at the latest 0.2 s after the last units were taken. Let
 * b be burst_units, but at least 1. With burst_units, at most rate * t + b units are allowed in any
 * time t, and an n of more than b is IMPOSSIBLE. An unlimited capacity allows any n. A rate starts
 * with nothing saved. The time of one unit is rounded up to 1/256 ns. Therefore calls with n = 1
 * get at most 2.56e11 units in a second, and a rate of about 1e8 units a second is up to 0.04 % too
 * slow. A rate below 2.8e-8 units a second, which is one unit in 407 days, allows no whole unit.
 *
 * A gauge allows n units only if its units in use, including these n, fit into its capacity. If the
 * capacity falls below the units in use, nothing new is allowed until enough units are released.
 * The caller must release the same n. Units are counted in 1/4096, rounded up. A gauge needs leases
 * of whole units, so its template must have "whole": true. If its template does not have this,
 * `gauge_is_divided` of doorman_resource_info is true while the gauge has a lease.
 *
 *   n         [0, 1e15]; 0 is always allowed
 *   out       NULL for the fastest call; else written in full
 *   returns   ALLOWED | REFUSED | IMPOSSIBLE: n can never be allowed. For a gauge, n is more than
 *             the largest possible capacity. For a rate, n is more than b, or the time of n units
 *             at the largest possible capacity is more than 208 days. The largest possible capacity
 *             is the larger of two numbers: the capacity in force, and the most that the resource
 *             can want (the wants that are set, or wants_maximum if the wants follow use). Units
 *             that are not allowed count as refused
 *   cost      no lock and no system call except a read of the clock; if the units are allowed, one
 *             compare-and-swap (two at a new peak of a gauge) and one atomic addition. With `out`
 *             the call also reads the state a second time and makes up to three divisions
 *   source    a rate: GCRA (ITU-T I.371), with saved time instead of a bucket of cells */
DOORMAN_API doorman_decision doorman_resource_try(doorman_resource *resource, double n,
                                                  doorman_result *out);

/* Waits until n units may be used, and takes them. Waiters are served in the order of their
 * arrival. A call of doorman_resource_try does not wait behind the waiters. So a series of small
 * attempts can starve a waiter that needs many units. Waiters can also starve an attempt that needs
 * many units. A waiter sees a change of the lease at once. Callers that wait for units of a rate
 * return one by one at about that rate, as long as less than an eighth of the burst has been saved.
 * This pacing also applies to new calls. It ends when no paced call has returned for half a burst.
 * If a thread wakes too late, the delay is compensated gradually. If the present lease is too small
 * for n, the call waits for a larger lease. A thread may be cancelled while it waits.
 *   n         [0, 1e15], in the resource's units
 *   timeout   0 or less: does not wait; DOORMAN_NEVER: waits as long as necessary
 *   returns   OK | TIMED_OUT (nothing is taken) | RESOURCE_EXHAUSTED (n is IMPOSSIBLE: see
 *             doorman_resource_try) | INVALID_ARGUMENT (n) | UNAVAILABLE (the agent is shut down,
 *             or the resource is closed) | OUT_OF_MEMORY
 *   cost      that of about two attempts, if the call need not wait. A call that waits needs a
 *             mutex, and O(waiters of the agent) */
DOORMAN_API doorman_status doorman_resource_wait(doorman_resource *resource, double n,
                                                 doorman_time timeout);

/* Releases n units of a gauge, and wakes a call that waits for units. on_change may call this
 * function.
 *   returns   OK | INVALID_ARGUMENT (n is not an amount, or is more than the units in use; or the
 *             resource is a rate): nothing has changed. If n is more than the units in use,
 *             over_released of doorman_counts counts the call
 *   cost      a compare-and-swap; a mutex if callers wait */
DOORMAN_API doorman_status doorman_resource_release(doorman_resource *resource, double n);

/* Returns the `retry_after` that a refused attempt to take n units would have now. The call takes
 * no units and counts nothing.
 *   returns   0: n units would be allowed now | DOORMAN_NEVER: n is IMPOSSIBLE, or no change is
 *             expected
 *   cost      as doorman_resource_try */
DOORMAN_API doorman_time doorman_resource_delay(const doorman_resource *resource, double n);

/* Sets the wants, in the resource's units. After this call the wants do not follow use.
 *   returns   OK | INVALID_ARGUMENT (not in [0, wants_maximum]) */
DOORMAN_API doorman_status doorman_resource_set_wants(doorman_resource *resource, double wants);

/* Does what doorman_client_report_overload does, for a resource of an agent. */
DOORMAN_API doorman_status doorman_resource_report_overload(doorman_resource *resource,
                                                            const doorman_overload_report *report);

/* Reads the state of a resource.
 *   out       written in full; after an error all fields are 0
 *   returns   OK
 *   cost      a mutex */
DOORMAN_API doorman_status doorman_resource_read(const doorman_resource *resource,
                                                 doorman_resource_info *out);

/* ---- transport, the public part -------------------------------------------------------------- */

/* Sends the requests of an upstream over one connection, one after the other, and receives the
 * responses. Each agent has a transport already. A node with a parent needs a transport of its own.
 * A transport has no thread. A thread of the caller runs this loop:
 *
 *     with the lock that guards the upstream and its owner
 *         bool made = doorman_transport_update(transport, &result, now)
 *     without the lock
 *         if (made) doorman_transport_send(transport)
 *         else wait until doorman_upstream_due(upstream), or until on_wakeup is called
 */
typedef struct doorman_transport doorman_transport;

typedef struct doorman_transport_options {
    doorman_upstream *upstream; /* required; must outlive the transport */
    /* Required: called when doorman_transport_update has a result to return, and at most once
     * before that for each request. The call may come from any thread, and may come within
     * doorman_transport_send. on_wakeup may take the lock, but must not call a function of the
     * transport. */
    void (*on_wakeup)(void *context);
    void *context;
    const doorman_tls *tls; /* required if an address needs TLS */
    /* The address of this node's status page over HTTP, for the requests to the parent. NULL or "":
     * not known. Only doorman_transport_update reads the text, so the text may change while the
     * lock is held. The text must outlive the transport. */
    const char *http_address;
    /* true: while the upstream has nothing to request, the transport sends probes. A probe is a
     * DISCOVERY. So even before its first request the caller learns whether a server answers. The
     * first probe is sent at once, and each further probe a minute after the last result. After a
     * failure, or without a connection, the next probe is sent after 5 s. A caller that sets
     * `probes` calls doorman_transport_update about once a second. */
    bool probes;
} doorman_transport_options;

/* Creates a transport. The transport connects when there is a request to send.
 *   out       written only on OK; the caller destroys it
 *   options   used only during the call, like the texts of tls
 *   returns   OK | INVALID_ARGUMENT (tls has no authority, or a certificate or key alone) |
 *             OUT_OF_MEMORY | UNAVAILABLE (after a fork, see doorman_agent_start) */
DOORMAN_API doorman_status doorman_transport_create(doorman_transport **out,
                                                    const doorman_transport_options *options);

/* Ends the connection, and waits until a call of on_wakeup in progress has returned. The caller
 * must not hold the lock. NULL has no effect.
 *   cost   usually less than 1 ms, and up to 0.5 s while nng closes the socket. If nng needs more
 *          time, the process keeps a thread and the socket until nng has closed the socket */
DOORMAN_API void doorman_transport_destroy(doorman_transport *transport);

/* Replaces the certificates, for example when a program has renewed their files. A request in
 * progress keeps its connection. The next request to an address that needs TLS opens a new
 * connection with the new certificates. Only the thread that calls doorman_transport_send may call
 * this function.
 *   tls       the texts are used only during the call. The function does not check them: if they
 *             are not valid PEM, requests fail
 *   returns   OK | INVALID_ARGUMENT (as doorman_transport_create) | OUT_OF_MEMORY (the last
 *             certificates stay in force)
 *   cost      a copy of the texts; the call does not wait. The next request to an address that
 *             needs TLS takes one more connection and one more TLS handshake */
DOORMAN_API doorman_status doorman_transport_set_tls(doorman_transport *transport,
                                                     const doorman_tls *tls);

/* How a request ended. */
typedef struct doorman_transport_result {
    bool has_ended; /* true: a request has ended since the last update. false: all other fields are
                       zero */
    /* OK | UNAVAILABLE (no connection, or no response in time) | another status of
     * doorman_json_response (the response was invalid) */
    doorman_status status;
    doorman_error error;                         /* why the request failed; "": it did not fail */
    char address[DOORMAN_ID_BYTES_MAX + 1];      /* the address to which the request was sent */
    char http_address[DOORMAN_ID_BYTES_MAX + 1]; /* the address of a parent's status page over HTTP,
                                                    from its response; not checked; "": not known */
    bool shared_id; /* the parent says that another process seems to use the node's name too */
    bool is_probe;  /* true: the request was a probe, so `http_address` is "" */
    bool is_master; /* the server that has answered is the master */
    char redirect[DOORMAN_ID_BYTES_MAX + 1]; /* the address of the master, from the response of a
                                                server that is not the master; "": the request
                                                failed, is_master is true, or the server does not
                                                know the master */
    doorman_time retry_at;                   /* after a failure: when the transport sends the next
                                                request or probe */
} doorman_transport_result;

/* If a request has ended, passes its response or its failure to the upstream. If no request is in
 * progress, fetches the next request. The call uses doorman_upstream_request, which also does the
 * work of the client or server.
 *   out       how the last request ended, if it has ended since the last update; may be NULL
 *   returns   true: doorman_transport_send must be called next */
DOORMAN_API bool doorman_transport_update(doorman_transport *transport,
                                          doorman_transport_result *out, doorman_time now);

/* Sends the request that doorman_transport_update has fetched, and connects first if needed. The
 * call may wait for threads of nng, so the caller must not hold the lock. A later
 * doorman_transport_update returns the result. */
DOORMAN_API void doorman_transport_send(doorman_transport *transport);
#endif /* DOORMAN_NNG */

#ifdef __cplusplus
}
#endif

#endif /* DOORMAN_H */

/* ==== the API ends here; what follows is only the implementation ============================= */

#ifdef DOORMAN_IMPLEMENTATION
#ifndef DOORMAN__IMPLEMENTED
#define DOORMAN__IMPLEMENTED

#include <assert.h>
#include <float.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef DOORMAN_NNG
#include <sys/random.h>
#endif

#if defined DOORMAN_MALLOC || defined DOORMAN_REALLOC || defined DOORMAN_FREE
#if !defined DOORMAN_MALLOC || !defined DOORMAN_REALLOC || !defined DOORMAN_FREE
#error "doorman.h: define all of DOORMAN_MALLOC, DOORMAN_REALLOC and DOORMAN_FREE, or none"
#endif
#else
#define DOORMAN_MALLOC(bytes) malloc(bytes)
#define DOORMAN_REALLOC(pointer, bytes) realloc(pointer, bytes)
#define DOORMAN_FREE(pointer) free(pointer)
#endif

/* ---- >>basics ------------------------------------------------------------------------------- */
/*
 * All other sections use this section: status codes, time, memory, random numbers, ids, the hash
 * table, timers and the exact sum. This section does not know about leases.
 *
 * C1 Before >>nng, each public function that depends on time has a parameter `now`, and no section
 *    reads a clock, does I/O, starts a thread or has global state. Random numbers come only from a
 *    seed. With DOORMAN_NNG, random bits of the system replace a seed of 0, except in a throttle
 *    and in a map of shards. Apart from that, the same calls with the same seeds give the same
 *    results on every machine.
 * C2 Only one thread at a time may use a server. Only one thread at a time may use a client and its
 *    resources, except for doorman_client_try and doorman_client_release. The caller provides the
 *    lock. Any number of threads may use a limiter at once.
 * C3 An option that has a default, and is zero, has that default. Each create function has a
 *    destroy function.
 * C4 Memory is allocated with DOORMAN_MALLOC and _REALLOC, and freed with _FREE. A call that
 *    returns a status, and runs out of memory, returns OUT_OF_MEMORY and leaves the state
 *    unchanged. The exceptions are P9 and a reply in JSON: the server has decided already if memory
 *    runs out while the reply is written.
 * C5 Ids, amounts, priorities, durations and pointers are checked where they enter the library. A
 *    wrong request changes nothing. A wrong response counts as a failed request, and changes no
 *    lease. Asserts check only for mistakes of this library.
 * C6 The implementation compiles as C11. The public part compiles as C99 and C++11 too. gcc and
 *    clang give no warnings.
 * C8 Hash tables of ids from the network are keyed with a seed from the options.
 * C9 Sums of capacity are exact. When all holders have left a resource, its sum is exactly 0.
 * C10 The text of an error names fields as the caller knows them. Arguments and structs have the
 *    names of C. What was read from JSON has the names of the wire: a configuration that
 *    doorman_json_config has made, and a request with `wire_names`. Where the two names differ, the
 *    code has both, in DOORMAN__NAMES or doorman__name.
 */

const char *doorman_status_name(doorman_status status) {
#define DOORMAN__STATUS_NAME(code, name, text) name,
    static const char *const names[] = {DOORMAN_STATUSES(DOORMAN__STATUS_NAME)};
    return (unsigned)status < DOORMAN_STATUS_COUNT ? names[status] : "UNKNOWN";
}

/* Returns how many bytes of an error text are the path: see doorman_error. Returns 0 if the text
 * does not begin with a path. A path has names of fields or arguments, dots and indexes. */
static size_t doorman__path_bytes(const char *text) {
    const size_t bytes = strspn(text, "abcdefghijklmnopqrstuvwxyz_.[]0123456789");
    return text[bytes] == ':' && text[bytes + 1] == ' ' ? bytes : 0;
}

/* Writes the error text, and returns the status, so that one statement reports an error. */
static doorman_status doorman__fail(doorman_error *error, doorman_status status, const char *format,
                                    ...) {
    if (error) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(error->text, sizeof error->text, format, arguments);
        va_end(arguments);
        error->path_bytes = doorman__path_bytes(error->text);
    }
    return status;
}

static void doorman__error_clear(doorman_error *error) {
    error->text[0] = 0; /* the rest need not be cleared */
    error->path_bytes = 0;
}

static doorman_status doorman__missing(doorman_error *error, const char *name) {
    return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "%s: must not be NULL", name);
}

static doorman_status doorman__no_memory(doorman_error *error) {
    return doorman__fail(error, DOORMAN_OUT_OF_MEMORY, "out of memory");
}

/* Adds a duration to a time. The sum is at most DOORMAN_NEVER, and does not overflow. */
static doorman_time doorman__after(doorman_time time, doorman_time duration) {
    return time > DOORMAN_NEVER - duration ? DOORMAN_NEVER : time + duration;
}

static doorman_time doorman__earlier(doorman_time a, doorman_time b) { return a < b ? a : b; }
static doorman_time doorman__later(doorman_time a, doorman_time b) { return a > b ? a : b; }
static double doorman__min(double a, double b) { return a < b ? a : b; }
static double doorman__max(double a, double b) { return a > b ? a : b; }
static bool doorman__equal(double a, double b) { return a <= b && a >= b; }

/* Scales a duration by a factor in [0, 2]. */
static doorman_time doorman__scale(doorman_time duration, double factor) {
    return (doorman_time)((double)duration * factor);
}

/* Returns whether a number is an amount: a number from 0 to 1e15. NaN is not an amount. */
static bool doorman__amount_valid(double amount) {
    return amount >= 0 && amount <= DOORMAN_AMOUNT_MAX;
}

/* This part of doorman__reserve is a function of its own, so that compilers inline the rest. */
__attribute__((noinline)) static bool doorman__grow(void *array, size_t *capacity, size_t count,
                                                    size_t item_bytes) {
    void *items = NULL;
    memcpy(&items, array, sizeof items);
    assert(count > *capacity && item_bytes > 0 && (items || *capacity == 0));
    size_t larger = *capacity < 8 ? 8 : *capacity;
    while (larger < count) {
        if (larger > SIZE_MAX / 2) return false;
        larger *= 2;
    }
    if (larger > SIZE_MAX / item_bytes) return false;
    void *larger_items = DOORMAN_REALLOC(items, larger * item_bytes);
    if (!larger_items) return false;
    memcpy(array, &larger_items, sizeof larger_items);
    *capacity = larger;
    return true;
}

/* Makes room for `count` items in a growing array. The capacity doubles, so the amortised cost of
 * an append is O(1). If memory runs out, returns false and leaves the array unchanged.
 *   array   the address of the pointer to the items, which have any type */
static bool doorman__reserve(void *array, size_t *capacity, size_t count, size_t item_bytes) {
    return count <= *capacity || doorman__grow(array, capacity, count, item_bytes);
}

/* Writes a number as bytes that are the same on every machine: the lowest byte first. Returns a
 * pointer behind them. */
static unsigned char *doorman__le_write(unsigned char *to, uint64_t number, size_t bytes) {
    assert(bytes <= 8);
    for (size_t i = 0; i < bytes; i++) *to++ = (unsigned char)(number >> (8 * i));
    return to;
}

static uint64_t doorman__le_read(const unsigned char *from, size_t bytes) {
    uint64_t number = 0;
    assert(bytes <= 8);
    for (size_t i = 0; i < bytes; i++) number |= (uint64_t)from[i] << (8 * i);
    return number;
}

static void *doorman__zalloc(size_t bytes) {
    void *memory = DOORMAN_MALLOC(bytes);
    if (memory) memset(memory, 0, bytes);
    return memory;
}

/* An arena has the memory for the parts of one message or configuration. The parts never move, and
 * are freed together. An arena can keep its chunks for the next message. The bytes of a chunk are
 * behind its struct. */
typedef struct doorman__chunk {
    struct doorman__chunk *next;
    size_t bytes;
} doorman__chunk;

static void doorman__arena_uninit(doorman__arena *arena) {
    for (doorman__chunk *chunk = arena->first, *next = NULL; chunk; chunk = next) {
        next = chunk->next;
        DOORMAN_FREE(chunk);
    }
    *arena = (doorman__arena){.first = NULL};
}

#if defined DOORMAN_PERMITS || defined DOORMAN_JSON
#define DOORMAN__CHUNK_BYTES ((size_t)2048)

/* Continues in the next chunk that has room, or in a new chunk. A new chunk has at least twice the
 * bytes of the current chunk, so a message needs few chunks. Returns false if memory runs out. */
static bool doorman__arena_grow(doorman__arena *arena, size_t bytes) {
    doorman__chunk *last = arena->current;
    size_t larger = last ? 2 * last->bytes : DOORMAN__CHUNK_BYTES;
    while (last && last->next) {
        last = last->next;
        if (last->bytes < bytes) continue;
        arena->current = last;
        arena->used = 0;
        return true;
    }
    if (larger < bytes) larger = bytes;
    doorman__chunk *chunk = (doorman__chunk *)DOORMAN_MALLOC(sizeof *chunk + larger);
    if (!chunk) return false;
    *chunk = (doorman__chunk){.bytes = larger};
    if (last) last->next = chunk;
    if (!last) arena->first = chunk;
    arena->current = chunk;
    arena->used = 0;
    return true;
}

/* Returns memory that is aligned to 8 bytes and not initialised. Returns NULL if memory runs
 * out. */
static inline void *doorman__arena_take(doorman__arena *arena, size_t bytes) {
    if (bytes > SIZE_MAX / 4) return NULL;
    bytes = (bytes + 7) / 8 * 8;
    bool fits = arena->current && arena->current->bytes - arena->used >= bytes;
    if (!fits && !doorman__arena_grow(arena, bytes)) return NULL;
    void *memory = (char *)(arena->current + 1) + arena->used;
    arena->used += bytes;
    assert(arena->used <= arena->current->bytes);
    return memory;
}
#endif

static char *doorman__copy(const char *text) {
    size_t bytes = strlen(text) + 1;
    char *copy = (char *)DOORMAN_MALLOC(bytes);
    if (copy) memcpy(copy, text, bytes);
    return copy;
}

/* Mixes all bits of a number, as splitmix64 does (Steele, Lea and Flood 2014). The function is a
 * bijection. */
static uint64_t doorman__mix(uint64_t x) {
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static uint64_t doorman__random(uint64_t *state) {
    *state += UINT64_C(0x9e3779b97f4a7c15);
    return doorman__mix(*state);
}

/* Returns a random number, uniform in [0, 1). */
static double doorman__random_unit(uint64_t *state) {
    return (double)(doorman__random(state) >> 11) * (1.0 / 9007199254740992.0);
}

/* Decodes one UTF-8 character and moves *text past the character. Returns false for invalid UTF-8,
 * for a character that could be encoded in fewer bytes, and for a surrogate. */
static bool doorman__utf8_next(const char **text, const char *end, uint32_t *code) {
    const unsigned char *at = (const unsigned char *)*text;
    size_t left = (size_t)(end - *text);
    size_t more = *at < 0x80 ? 0 : *at < 0xe0 ? 1 : *at < 0xf0 ? 2 : 3;
    static const uint32_t smallest[] = {0, 0x80, 0x800, 0x10000};
    if ((*at >= 0x80 && *at < 0xc2) || *at > 0xf4 || more >= left) return false;
    uint32_t value = more ? *at & (0x3fu >> more) : *at;
    for (size_t i = 1; i <= more; i++) {
        if ((at[i] & 0xc0) != 0x80) return false;
        value = value << 6 | (at[i] & 0x3fu);
    }
    if (value < smallest[more] || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) {
        return false;
    }
    *code = value;
    *text += more + 1;
    return true;
}

/* Reads eight bytes, the lowest byte first. Compilers turn this into one load instruction. */
static inline uint64_t doorman__word(const unsigned char *data) {
    unsigned char at[8];
    /* cppcheck-suppress bufferAccessOutOfBounds ; cppcheck does not see all eight bytes */
    memcpy(at, data, sizeof at);
    return (uint64_t)at[0] | (uint64_t)at[1] << 8 | (uint64_t)at[2] << 16 | (uint64_t)at[3] << 24 |
           (uint64_t)at[4] << 32 | (uint64_t)at[5] << 40 | (uint64_t)at[6] << 48 |
           (uint64_t)at[7] << 56;
}

/* Returns whether eight bytes are printable ASCII. Adding 1 sets the top bit of a byte of 0x7f.
 * Adding 0x60 sets the top bit of a byte that is at least 0x20. */
static inline bool doorman__word_is_ascii(uint64_t word) {
    const uint64_t each = UINT64_C(0x0101010101010101), tops = each << 7;
    return ((word | (word + each)) & tops) == 0 && ((word + 0x60 * each) & tops) == tops;
}

/* Returns a pointer to the first byte that is not printable ASCII. This is usually the NUL at the
 * end. */
static const char *doorman__ascii_end(const char *text, const char *end) {
    while (end - text >= 8 && doorman__word_is_ascii(doorman__word((const unsigned char *)text))) {
        text += 8;
    }
    while (*text >= 0x20 && *text < 0x7f) text++;
    return text;
}

/* Checks an id of a resource, holder or node, or an address (C5). NULL is not a valid id. */
static bool doorman__id_valid(const char *id) {
    if (!id || !*id) return false;
    const char *end = (const char *)memchr(id, 0, DOORMAN_ID_BYTES_MAX + 1);
    if (!end) return false;
    for (id = doorman__ascii_end(id, end); id < end; id = doorman__ascii_end(id, end)) {
        uint32_t code = 0;
        if (!doorman__utf8_next(&id, end, &code)) return false;
        if (code < 0xa0) return false; /* all other characters below 0xa0 are control characters */
    }
    return true;
}
#define DOORMAN__ID_RULE "must be 1 to 256 bytes of UTF-8 without control characters"
#define DOORMAN__AMOUNT_RULE "must be a finite number from 0 to 1e15"

/* Copies a text for people into `room` bytes. A text that does not fit is cut off between two
 * characters. A control character, and a byte that is not UTF-8, becomes a space. So JSON escapes
 * only quotes and backslashes, and needs at most two bytes for each byte of the copy. NULL is
 * copied as an empty text. */
static void doorman__text_copy(char *to, size_t room, const char *text) {
    size_t bytes = 0;
    if (!text) text = "";
    const char *end = (const char *)memchr(text, 0, room + 3);
    if (!end) end = text + room + 3; /* the rest cannot fit */
    while (text < end) {
        const char *from = text;
        uint32_t code = 0;
        const unsigned char *bytes_of = (const unsigned char *)text;
        bool word = end - text >= 8 && doorman__word_is_ascii(doorman__word(bytes_of));
        bool plain = word || doorman__utf8_next(&text, end, &code);
        if (word) text += 8;
        if (!plain) text++;
        plain = word || (plain && code >= 0x20 && (code < 0x7f || code >= 0xa0));
        size_t count = plain ? (size_t)(text - from) : 1;
        if (word && bytes + count >= room) count = room - 1 - bytes;
        if (bytes + count >= room) break;
        memcpy(to + bytes, plain ? from : " ", count);
        bytes += count;
    }
    assert(bytes < room);
    to[bytes] = 0;
}

/* SipHash-1-3 (Aumasson and Bernstein 2012). An attacker who does not know the key cannot choose
 * ids with equal hashes. Therefore hash tables of ids from the network stay fast (C8). */
#define DOORMAN__ROTATE(x, bits) ((x) << (bits) | (x) >> (64 - (bits)))

static inline void doorman__sip_round(uint64_t v[4]) {
    v[0] += v[1];
    v[2] += v[3];
    v[1] = DOORMAN__ROTATE(v[1], 13) ^ v[0];
    v[3] = DOORMAN__ROTATE(v[3], 16) ^ v[2];
    v[0] = DOORMAN__ROTATE(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = DOORMAN__ROTATE(v[1], 17) ^ v[2];
    v[3] = DOORMAN__ROTATE(v[3], 21) ^ v[0];
    v[2] = DOORMAN__ROTATE(v[2], 32);
}

static inline void doorman__sip_take(uint64_t v[4], uint64_t word) {
    v[3] ^= word;
    doorman__sip_round(v);
    v[0] ^= word;
}

static uint64_t doorman__hash_bytes(const uint64_t key[2], const unsigned char *data,
                                    size_t bytes) {
    uint64_t v[4] = {key[0] ^ UINT64_C(0x736f6d6570736575), key[1] ^ UINT64_C(0x646f72616e646f6d),
                     key[0] ^ UINT64_C(0x6c7967656e657261), key[1] ^ UINT64_C(0x7465646279746573)};
    uint64_t last = (uint64_t)bytes << 56;
    for (; bytes >= 8; bytes -= 8, data += 8) doorman__sip_take(v, doorman__word(data));
    for (size_t i = 0; i < bytes; i++) last |= (uint64_t)data[i] << (8 * i);
    doorman__sip_take(v, last);
    v[2] ^= 0xff;
    for (int i = 0; i < 3; i++) doorman__sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

static uint64_t doorman__hash(const uint64_t key[2], const char *text) {
    return doorman__hash_bytes(key, (const unsigned char *)text, strlen(text));
}

/* An attacker without the key cannot guess a hash from earlier hashes. */
static uint64_t doorman__hash_number(const uint64_t key[2], uint64_t number) {
    unsigned char data[8];
    for (int i = 0; i < 8; i++) data[i] = (unsigned char)(number >> (8 * i));
    return doorman__hash_bytes(key, data, sizeof data);
}

/* A hash table with a list of entries for each bucket. Each entry contains its own link, so adding
 * an entry never fails. If there is no memory for a larger array of buckets, the lists get longer.
 * While entries are added, a table of more than four entries has about two to four buckets for each
 * entry, and after removals up to eight. So more than three of four lookups find the entry at the
 * start of its list. The upper bits of a hash choose the bucket, so the buckets are always in the
 * order of the hashes. So a hash is a position for an iteration, and stays valid while the table
 * changes. */
typedef struct doorman__link {
    struct doorman__link *next;
    uint64_t hash;
} doorman__link;

typedef struct doorman__table {
    doorman__link **buckets;
    size_t bucket_count; /* a power of two; 0: `buckets` is NULL, and all entries are in `single` */
    unsigned shift;      /* bucket_count is 2^(64 - shift) */
    size_t count;
    doorman__link *single;
} doorman__table;

static doorman__link **doorman__table_bucket(doorman__table *table, uint64_t hash) {
    return table->buckets ? &table->buckets[hash >> table->shift] : &table->single;
}

static void doorman__table_resize(doorman__table *table, size_t bucket_count) {
    assert(bucket_count >= 2 && (bucket_count & (bucket_count - 1)) == 0);
    size_t bytes = bucket_count * sizeof *table->buckets;
    doorman__link **buckets = (doorman__link **)doorman__zalloc(bytes);
    if (!buckets) return;
    size_t old_count = table->buckets ? table->bucket_count : 1;
    unsigned shift = 64;
    for (size_t count = bucket_count; count > 1; count /= 2) shift--;
    for (size_t i = 0; i < old_count; i++) {
        doorman__link *link = table->buckets ? table->buckets[i] : table->single;
        while (link) {
            doorman__link *next = link->next;
            doorman__link **bucket = &buckets[link->hash >> shift];
            link->next = *bucket;
            *bucket = link;
            link = next;
        }
    }
    DOORMAN_FREE(table->buckets);
    table->buckets = buckets;
    table->bucket_count = bucket_count;
    table->shift = shift;
    table->single = NULL;
}

static void doorman__table_add(doorman__table *table, doorman__link *link, uint64_t hash) {
    if (table->count >= 4 && table->count >= table->bucket_count / 2) {
        doorman__table_resize(table, table->bucket_count ? table->bucket_count * 2 : 8);
    }
    doorman__link **bucket = doorman__table_bucket(table, hash);
    assert(*bucket != link);
    link->hash = hash;
    link->next = *bucket;
    *bucket = link;
    table->count++;
}

static void doorman__table_remove(doorman__table *table, doorman__link *link) {
    doorman__link **at = doorman__table_bucket(table, link->hash);
    assert(table->count > 0);
    while (*at != link) {
        assert(*at); /* the link is in the table */
        at = &(*at)->next;
    }
    *at = link->next;
    table->count--;
    if (table->bucket_count > 8 && table->count < table->bucket_count / 8) {
        doorman__table_resize(table, table->bucket_count / 4);
    }
}

/* Returns the first link with this hash from `link` on, or NULL. The caller compares the ids. */
static doorman__link *doorman__table_same(doorman__link *link, uint64_t hash) {
    while (link && link->hash != hash) link = link->next;
    return link;
}

static doorman__link *doorman__table_first(const doorman__table *table, uint64_t hash) {
    return doorman__table_same(
        table->buckets ? table->buckets[hash >> table->shift] : table->single, hash);
}

/* Returns the link with the smallest hash that is at least `hash`, or NULL if all hashes are
 * smaller. The cost is O(1) on average, because there are at most eight buckets for each link. */
static doorman__link *doorman__table_from(const doorman__table *table, uint64_t hash) {
    size_t count = table->buckets ? table->bucket_count : 1;
    size_t place = table->buckets ? (size_t)(hash >> table->shift) : 0;
    doorman__link *first = NULL;
    assert(place < count);
    for (size_t i = place; i < count && !first; i++) {
        doorman__link *link = table->buckets ? table->buckets[i] : table->single;
        for (; link; link = link->next) {
            if (link->hash >= hash && (!first || link->hash < first->hash)) first = link;
        }
    }
    return first;
}

static void doorman__table_fetch(doorman__table *table, uint64_t hash) {
    __builtin_prefetch(doorman__table_bucket(table, hash));
}

static void doorman__table_uninit(doorman__table *table) { DOORMAN_FREE(table->buckets); }

/* A binary heap of timers finds the object that is due next. Each timer is a field of its object.
 * Setting, moving or removing a timer takes O(log n). Reading the first timer takes O(1). Timers
 * with equal times keep the order in which they were set, so no object starves. The heap has copies
 * of the times, so a search in the heap reads no object. doorman__timers_reserve allocates the
 * memory before a timer is set, so setting a timer never fails. */
typedef struct doorman__timer {
    doorman_time at;
    size_t position; /* the position in the heap, plus 1; 0: the timer is not set */
} doorman__timer;

typedef struct doorman__timer_entry {
    doorman_time at;
    uint64_t order; /* the heap's counter when the timer was set */
    doorman__timer *timer;
} doorman__timer_entry;

typedef struct doorman__timers {
    doorman__timer_entry *heap; /* entry i is not due after its children, 2 * i + 1 and 2 * i + 2 */
    size_t count, capacity;
    uint64_t order;
} doorman__timers;

static bool doorman__timers_reserve(doorman__timers *timers, size_t count) {
    return doorman__reserve(&timers->heap, &timers->capacity, count, sizeof *timers->heap);
}

static void doorman__timers_uninit(doorman__timers *timers) { DOORMAN_FREE(timers->heap); }

static doorman__timer *doorman__timers_first(const doorman__timers *timers) {
    /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): a timer leaves the heap before it is freed */
    return timers->count ? timers->heap[0].timer : NULL;
}

static doorman_time doorman__timers_due(const doorman__timers *timers) {
    return timers->count ? timers->heap[0].at : DOORMAN_NEVER;
}

static bool doorman__timer_before(const doorman__timer_entry *a, const doorman__timer_entry *b) {
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static void doorman__timers_put(doorman__timers *timers, size_t at, doorman__timer_entry entry) {
    assert(at < timers->count && timers->count <= timers->capacity);
    timers->heap[at] = entry;
    entry.timer->position = at + 1;
}

/* Puts an entry into the heap. The position `at` must be free. From there the entry moves up or
 * down until the heap is in order. */
static void doorman__timers_sift(doorman__timers *timers, size_t at, doorman__timer_entry entry) {
    const doorman__timer_entry *heap = timers->heap;
    for (size_t above; at > 0; at = above) {
        above = (at - 1) / 2;
        if (!doorman__timer_before(&entry, &heap[above])) break;
        doorman__timers_put(timers, at, heap[above]);
    }
    for (size_t below; (below = 2 * at + 1) < timers->count; at = below) {
        bool right =
            below + 1 < timers->count && doorman__timer_before(&heap[below + 1], &heap[below]);
        if (right) below++;
        if (!doorman__timer_before(&heap[below], &entry)) break;
        doorman__timers_put(timers, at, heap[below]);
    }
    doorman__timers_put(timers, at, entry);
}

static void doorman__timer_clear(doorman__timers *timers, doorman__timer *timer) {
    if (!timer->position) return;
    size_t at = timer->position - 1;
    assert(at < timers->count && timers->heap[at].timer == timer);
    const doorman__timer_entry last = timers->heap[--timers->count];
    if (last.timer != timer) doorman__timers_sift(timers, at, last);
    timer->position = 0;
}

/* Sets a timer. DOORMAN_NEVER clears it. A timer that is set to the same time again keeps its
 * order. */
static void doorman__timer_set(doorman__timers *timers, doorman__timer *timer, doorman_time at) {
    if (timer->position && timer->at == at) return;
    if (at == DOORMAN_NEVER) {
        doorman__timer_clear(timers, timer);
        return;
    }
    assert(timer->position || timers->count < timers->capacity);
    assert(!timer->position || timers->heap[timer->position - 1].timer == timer);
    timer->at = at;
    const doorman__timer_entry entry = {at, ++timers->order, timer};
    doorman__timers_sift(timers, timer->position ? timer->position - 1 : timers->count++, entry);
    assert(timers->heap[timer->position - 1].timer == timer);
}

/* Returns a pointer to the object that contains `part`, such as a timer or a link, as `field`. */
#define DOORMAN__WITHIN(type, field, part)                                                         \
    ((type *)(void *)((unsigned char *)(part)-offsetof(type, field)))
#define DOORMAN__WITHIN_CONST(type, field, part)                                                   \
    ((const type *)(const void *)((const unsigned char *)(part)-offsetof(type, field)))

/* An exact sum of amounts (C9). It is a number of 128 bits, and 48 of these bits are behind the
 * binary point. The sum is the same, to the last bit, in whatever order amounts are added and
 * subtracted. So the sum shows exactly whether the leases exceed the capacity. The amounts are
 * multiples of 2^-48 of a unit. Every double of at least 32 is such a multiple. */
typedef struct doorman__total {
    uint64_t high, low;
} doorman__total;

#define DOORMAN__FRACTION 281474976710656.0 /* 2^48 */

static double doorman__floor(double amount) {
    if (amount >= 32) return amount;
    assert(amount >= 0);
    return (double)(uint64_t)(amount * DOORMAN__FRACTION) / DOORMAN__FRACTION;
}

static double doorman__ceil(double amount) {
    double floor = doorman__floor(amount);
    return floor < amount ? floor + 1 / DOORMAN__FRACTION : floor;
}

/* Converts an amount, rounded down to a multiple of 2^-48. */
static doorman__total doorman__total_of(double amount) {
    assert(amount >= 0 && amount < 65536 * DOORMAN__FRACTION); /* 2^64: it fits into 64 bits */
    uint64_t whole = (uint64_t)amount;
    uint64_t part = (uint64_t)((amount - (double)whole) * DOORMAN__FRACTION);
    return (doorman__total){whole >> 16, whole << 48 | part};
}

static bool doorman__total_less(doorman__total a, doorman__total b) {
    return a.high < b.high || (a.high == b.high && a.low < b.low);
}

static void doorman__total_add(doorman__total *total, double amount) {
    doorman__total more = doorman__total_of(amount);
    total->low += more.low;
    total->high += more.high + (total->low < more.low);
    assert(!doorman__total_less(*total, more));
}

static void doorman__total_subtract(doorman__total *total, double amount) {
    doorman__total less = doorman__total_of(amount);
    assert(!doorman__total_less(*total, less));
    total->high -= less.high + (total->low < less.low);
    total->low -= less.low;
}

static void doorman__total_replace(doorman__total *total, double last, double next) {
    doorman__total_subtract(total, last);
    doorman__total_add(total, next);
}

static double doorman__total_value(doorman__total total) {
    return (double)total.high * 65536.0 + (double)total.low / DOORMAN__FRACTION;
}

/* Returns the next smaller double. Precondition: value is more than 0. A subtraction of doubles
 * could return the same number on 32-bit x86, which rounds twice. */
static double doorman__next_below(double value) {
    assert(value > 0);
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits--;
    memcpy(&value, &bits, sizeof bits);
    return value;
}

/* Returns the sum as a double. The result is rounded down, and is at most 1e15. */
static double doorman__total_floor(doorman__total total) {
    double value = doorman__total_value(total);
    if (value >= DOORMAN_AMOUNT_MAX) return DOORMAN_AMOUNT_MAX;
    while (doorman__total_less(total, doorman__total_of(value))) value = doorman__next_below(value);
    assert(value >= 0);
    return value;
}

/* Returns the sum as a double. The result is rounded up, and is at most 1e15. */
static double doorman__total_ceil(doorman__total total) {
    double value = doorman__total_value(total);
    if (value >= DOORMAN_AMOUNT_MAX) return DOORMAN_AMOUNT_MAX;
    while (doorman__total_less(doorman__total_of(value), total)) {
        value += value * DBL_EPSILON; /* adds one or two units of the last bit */
    }
    return value;
}

/* Returns the free part of a capacity, max(0, capacity - total), rounded down. */
static double doorman__total_left(doorman__total total, double capacity) {
    doorman__total all = doorman__total_of(capacity);
    if (!doorman__total_less(total, all)) return 0;
    doorman__total left = {all.high - total.high - (all.low < total.low), all.low - total.low};
    return doorman__total_floor(left);
}

#ifdef DOORMAN_NNG
/* Fills an array with random bits of the system. Returns false if the system has no random bits. */
static bool doorman__random_bits(void *out, size_t bytes) {
    unsigned char *at = (unsigned char *)out;
    while (bytes > 0) {
        size_t part = bytes < 256 ? bytes : 256; /* the maximum of getentropy */
        if (getentropy(at, part) != 0) return false;
        at += part;
        bytes -= part;
    }
    return true;
}
#endif

/* ---- >>configuration ------------------------------------------------------------------------ */
/*
 * This section checks and stores the templates, and finds the template of a resource. A
 * configuration is checked when it is made, and never changes after that. So in every configuration
 * each field is in its range, and the defaults are filled in.
 *
 * G1 A resource takes the template whose glob equals the id of the resource. If there is no such
 *    template, the resource takes the first template whose glob matches the id.
 * G2 If no template matches a resource, its holders get what they ask for. But if reject_unmatched
 *    is true, they are refused. A template without capacity has no leases, so holders that ask for
 *    a lease are refused too.
 * G3 A template without an algorithm takes the algorithm of the template `*`, or the defaults if
 *    the template `*` has no algorithm or does not exist.
 * G4 If one field is wrong, the whole configuration is refused. An error text names the field. The
 *    checks continue after an error, so that one call can list several errors.
 * G6 The refresh interval is more than 0 and at most the lease length. If there is a template `*`,
 *    it is the last template.
 * G8 A node with a parent gets its capacities from the parent. So its configuration has only
 *    limits. If a node has no parent, and none of its templates has a capacity, no limit may be
 *    leased (P17).
 * G9 If learning_mode_duration is shorter than the longest lease, the configuration is accepted
 *    with a warning: after a change of master the leases may exceed the capacity (R8). The longest
 *    lease lasts for the lease length plus the default drift. A template with `immediate` handover,
 *    STATIC or NO_ALGORITHM causes no such warning, because its leases may exceed the capacity in
 *    any case. These also cause a warning:
 *      - a glob with a `[` that has no `]`
 *      - a refresh interval that equals the lease length
 *      - a lease length above an hour
 *      - an empty list of templates
 *      - a safe capacity above the capacity
 *      - empty_at_start, if the limit then refuses permits of cost 1 for more than an hour
 *      - a quota of an hour or more (a window, a tier with its cooldown, or a bucket that needs so
 *        long to fill), because only a store keeps it over a restart. With full_at_start or
 *        `shadow` such a quota causes no warning
 *      - a time to live above an hour, if the limit learns (P16)
 *      - a template, or a key of an override, that an earlier template or key hides (only 1,000
 *        templates, and 1,000 keys of each limit, are compared)
 *      - a safe capacity, `whole` or an algorithm, in a template without capacity
 *      - limits that cannot act: see doorman__limits_warn
 *      - a rule for descriptors that an earlier rule hides, or whose text is ambiguous: see
 *        doorman__descriptors_warn
 *    A warning about an algorithm names the template that has it, not the templates that take it
 *    (G3).
 *
 * >>server defines G5 (reloading) and C7 (the limits of a server).
 * >>json defines G7 (named parameters).
 */

/* ---- configuration: globs */

/* Decodes one character of valid UTF-8, and moves *text past the character. */
static uint32_t doorman__character(const char **text) {
    uint32_t code = 0;
    size_t bytes = 1;
    while (bytes < 4 && (*text)[bytes]) bytes++;
    (void)doorman__utf8_next(text, *text + bytes, &code);
    return code;
}

/* Returns 1 if a bracket of a glob, such as `[a-z]` or `[!a]`, contains the character, else 0.
 * *glob must point behind the `[`, and is moved behind the `]`. Returns -1 if there is no `]`. A
 * `[` without a `]` is an ordinary character, as in the shell. */
static int doorman__glob_bracket(const char **glob, uint32_t character) {
    const char *at = *glob;
    bool negated = *at == '!' || *at == '^', found = false;
    if (negated) at++;
    for (bool first = true; *at && (first || *at != ']'); first = false) {
        if (*at == '\\' && at[1]) at++;
        uint32_t low = doorman__character(&at), high = low;
        if (*at == '-' && at[1] && at[1] != ']') {
            at++;
            if (*at == '\\' && at[1]) at++;
            high = doorman__character(&at);
        }
        found = found || (low <= character && character <= high);
    }
    if (!*at) return -1;
    *glob = at + 1;
    return found != negated;
}

/* Decodes one character of any text that ends at `end`, and moves *text past it. A byte that is not
 * UTF-8 counts as a character of its own, with a number above 0x10ffff, the largest in UTF-8. */
static uint32_t doorman__any_character(const char **text, const char *end) {
    assert(*text < end);
    uint32_t code = 0;
    if (doorman__utf8_next(text, end, &code)) return code;
    return 0x110000u + (unsigned char)*(*text)++;
}

/* Returns whether one element of a glob matches the character at *id. The element is a character, a
 * `?` or a bracket. The caller handles `*`. On a match, moves *glob past the element and *id past
 * the character. *open starts as NULL. The function sets *open to the first bracket that has no
 * end. Brackets behind that bracket have no end either, so they are not searched again. */
static bool doorman__glob_step(const char **glob, const char **id, const char *end,
                               const char **open) {
    const char *pattern = *glob, *text = *id;
    if (text == end || !*pattern) return false;
    uint32_t character = doorman__any_character(&text, end);
    uint32_t element = doorman__character(&pattern);
    bool matches = false;
    if (element == '?') {
        matches = true;
    } else if (element == '[' && (!*open || pattern < *open)) {
        int inside = doorman__glob_bracket(&pattern, character);
        if (inside < 0) *open = pattern;
        matches = inside < 0 ? character == '[' : inside;
    } else {
        if (element == '\\' && *pattern) element = doorman__character(&pattern);
        matches = element == character;
    }
    if (!matches) return false;
    *glob = pattern;
    *id = text;
    return true;
}

/* Returns whether a shell glob matches a whole text of any bytes. `*` matches `/` too. When a match
 * fails, the last `*` takes one more character, and the match is tried again from there. An earlier
 * `*` need not take more, because the last `*` can take those characters. So the cost is
 * O(glob * bytes). */
static bool doorman__glob_match_bytes(const char *glob, const char *id, size_t bytes) {
    const char *star = NULL, *resume = NULL, *open = NULL;
    const char *const end = id + bytes;
    for (;;) {
        if (*glob == '*') {
            star = ++glob;
            resume = id;
        } else if (!*glob && id == end) {
            return true;
        } else if (!doorman__glob_step(&glob, &id, end, &open)) {
            if (!star || resume == end) return false;
            (void)doorman__any_character(&resume, end);
            glob = star;
            id = resume;
        }
    }
}

static bool doorman__glob_match(const char *glob, const char *id) {
    return doorman__glob_match_bytes(glob, id, strlen(id));
}

/* ---- configuration: what is valid */

static bool doorman__safe_capacity_valid(double amount) {
    return doorman__amount_valid(amount) || doorman__equal(amount, DOORMAN_UNLIMITED);
}

static bool doorman__unlimited(double amount) { return amount < 0; }

static bool doorman__duration_valid(doorman_time duration) {
    return duration >= 0 && duration <= DOORMAN_DURATION_MAX;
}

#define DOORMAN__LEASE_LENGTH (60 * DOORMAN_SECOND) /* the default */
#define DOORMAN__DRIFT 0.05                         /* the default */

/* Returns a copy of an algorithm, with the defaults for durations and a decay_factor that are not
 * given. A learning_mode_duration that is not given has no fixed default (R8), so it stays as it
 * is. */
static doorman_algorithm doorman__algorithm_resolve(const doorman_algorithm *given) {
    doorman_algorithm all = *given;
    if (!all.lease_length) all.lease_length = DOORMAN__LEASE_LENGTH;
    if (!all.refresh_interval) {
        all.refresh_interval = doorman__earlier(16 * DOORMAN_SECOND,
                                                all.lease_length / 3 + (all.lease_length % 3 != 0));
    }
    if (!all.has_minimum_interval) all.minimum_interval = 5 * DOORMAN_SECOND;
    all.has_minimum_interval = true;
    if (!all.minimum_refresh_interval) all.minimum_refresh_interval = DOORMAN_SECOND;
    if (all.decay_factor <= 0) all.decay_factor = 0.5;
    return all;
}

/* Returns whether the holders divide the capacity, so that their leases are parts of it. */
static bool doorman__divides_capacity(const doorman_algorithm *algorithm) {
    return DOORMAN_KIND_DIVIDES(algorithm->kind);
}

#define DOORMAN__DURATION_RULE "must be more than 0 and at most 1e8 seconds"
#define DOORMAN__HOUR_RULE "must be more than 0 and at most an hour"
#define DOORMAN__DURATION_OR_ZERO_RULE "must be from 0 to 1e8 seconds"

/* The server and the reader of JSON use these two texts. They are objects, because gcc stores all
 * literals of a function together. With literals in place of these objects, a client would link all
 * literals of the server's function. */
static const char doorman__duration_rule[] = DOORMAN__DURATION_RULE;
static const char doorman__lease_id_rule[] = "must be an integer from 1 to 2^53";

/* The text of an error whose field has one name in C, and another name in JSON. See C10. */
#define DOORMAN__NAMES(in_c, in_json) in_c "\n" in_json

/* A rule, and whether it is broken. The text has the field and the rule: see DOORMAN__NAMES. */
typedef struct doorman__rule {
    bool broken;
    const char *text;
} doorman__rule;

/* Returns the text of the first broken rule from *next on, and moves *next behind that rule.
 * Returns NULL if there is no such rule. */
static const char *doorman__rule_next(const doorman__rule *rules, size_t count, size_t *next) {
    while (*next < count) {
        const doorman__rule *rule = &rules[(*next)++];
        if (rule->broken) return rule->text;
    }
    return NULL;
}

#define DOORMAN__RULE_NEXT(rules, next)                                                            \
    doorman__rule_next((rules), sizeof(rules) / sizeof *(rules), (next))

static doorman_status doorman__rules_check(const doorman__rule *rules, size_t count,
                                           doorman_error *error) {
    size_t next = 0;
    const char *wrong = doorman__rule_next(rules, count, &next);
    return wrong ? doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "%s", wrong) : DOORMAN_OK;
}

#define DOORMAN__RULES_CHECK(rules, error)                                                         \
    doorman__rules_check((rules), sizeof(rules) / sizeof *(rules), (error))

/* Goes through the rules that an algorithm breaks, as doorman__rule_next does. */
static const char *doorman__algorithm_wrong(const doorman_algorithm *algorithm, size_t *next) {
    const doorman_algorithm all = doorman__algorithm_resolve(algorithm);
    const bool lease_valid = doorman__duration_valid(algorithm->lease_length);
    const bool refresh_valid = doorman__duration_valid(algorithm->refresh_interval);
    const doorman__rule rules[] = {
        {(unsigned)algorithm->kind >= DOORMAN_KIND_COUNT, "kind: is not a kind of algorithm"},
        {(unsigned)algorithm->handover > DOORMAN_IMMEDIATE,
         "handover: must be confirmed or immediate"},
        {!lease_valid, "lease_length: " DOORMAN__DURATION_RULE},
        {!refresh_valid, "refresh_interval: " DOORMAN__DURATION_RULE},
        {lease_valid && refresh_valid && all.refresh_interval > all.lease_length,
         "refresh_interval: must be at most the lease_length"},
        {!doorman__duration_valid(algorithm->learning_mode_duration),
         "learning_mode_duration: " DOORMAN__DURATION_OR_ZERO_RULE},
        {!doorman__duration_valid(algorithm->minimum_interval),
         "minimum_interval: " DOORMAN__DURATION_OR_ZERO_RULE},
        {!doorman__duration_valid(algorithm->minimum_refresh_interval),
         "minimum_refresh_interval: " DOORMAN__DURATION_RULE},
        {!(algorithm->decay_factor >= 0 && algorithm->decay_factor <= 1),
         "decay_factor: must be more than 0 and at most 1"},
        {!(algorithm->reserve >= 0 && algorithm->reserve <= 1), "reserve: must be from 0 to 1"},
    };
    return DOORMAN__RULE_NEXT(rules, next);
}

/* Goes through the fields of an algorithm that have a value without an effect. Settings from a
 * parent are not checked, because the parent may know more fields. */
static const char *doorman__algorithm_unused(const doorman_algorithm *algorithm, size_t *next) {
    const doorman__rule rules[] = {
        {!algorithm->has_learning_mode_duration && algorithm->learning_mode_duration,
         "learning_mode_duration: needs has_learning_mode_duration"},
        {!algorithm->has_minimum_interval && algorithm->minimum_interval,
         "minimum_interval: needs has_minimum_interval"},
        {algorithm->reserve > 0 && algorithm->kind != DOORMAN_PRIORITY_SHARE,
         "reserve: only PRIORITY_SHARE has one"},
    };
    return DOORMAN__RULE_NEXT(rules, next);
}

/* Returns whether the algorithm of a template has a value although has_algorithm is false. */
static bool doorman__template_hides_algorithm(const doorman_template *template_) {
    const doorman_algorithm *given = &template_->algorithm;
    bool has_durations = given->lease_length || given->refresh_interval ||
                         given->minimum_refresh_interval || given->has_learning_mode_duration ||
                         given->has_minimum_interval;
    bool has_algorithm = has_durations || given->kind != DOORMAN_FAIR_SHARE ||
                         given->handover != DOORMAN_CONFIRMED || given->decay_factor > 0 ||
                         given->reserve > 0;
    return !template_->has_algorithm && has_algorithm;
}

/* Returns whether an amount is not an integer. DOORMAN_UNLIMITED counts as an integer. */
static bool doorman__divides(double amount) { return amount > (double)(int64_t)amount; }

static bool doorman__unit_valid(const char *unit) {
    return !unit || !*unit || (doorman__id_valid(unit) && strlen(unit) <= DOORMAN_UNIT_BYTES_MAX);
}

/* Checks a refused_body. It may have several lines, for example of HTML or JSON. */
static bool doorman__refused_body_valid(const char *text) {
    const char *end = text ? text + strlen(text) : NULL;
    uint32_t code = 0;
    if (text && end - text > DOORMAN_REFUSED_BODY_BYTES_MAX) return false;
    while (text && text < end) {
        if (!doorman__utf8_next(&text, end, &code)) return false;
    }
    return true;
}

#define DOORMAN__WHOLE_RULE "must be an integer, since \"whole\" is true"

/* Goes through the rules that a template breaks by itself, except those of its algorithm and its
 * limits. */
static const char *doorman__template_wrong(const doorman_template *template_, bool last,
                                           size_t *next) {
    const double capacity = template_->capacity, safe = template_->safe_capacity;
    const bool has_safe = template_->has_safe_capacity, whole = template_->whole;
    const bool id_valid = doorman__id_valid(template_->identifier_glob);
    const bool capacity_valid = doorman__amount_valid(capacity);
    const bool safe_valid = !has_safe || doorman__safe_capacity_valid(safe);
    const double least = template_->overload.capacity_min;
    const doorman__rule rules[] = {
        {!id_valid, "identifier_glob: " DOORMAN__ID_RULE},
        {id_valid && !last && strcmp(template_->identifier_glob, "*") == 0,
         "identifier_glob: \"*\" must be the last template: none after it is used"},
        {!capacity_valid, "capacity: " DOORMAN__AMOUNT_RULE},
        {!safe_valid, "safe_capacity: must be -1 (unlimited), or a finite number from 0 to 1e15"},
        {whole && capacity_valid && doorman__divides(capacity), "capacity: " DOORMAN__WHOLE_RULE},
        {whole && has_safe && safe_valid && doorman__divides(safe),
         "safe_capacity: " DOORMAN__WHOLE_RULE},
        {!has_safe && !doorman__equal(safe, 0), "safe_capacity: needs has_safe_capacity"},
        {!doorman__unit_valid(template_->unit),
         "unit: must be at most 32 bytes of UTF-8 without control characters"},
        {!doorman__refused_body_valid(template_->refused_body),
         "refused_body: must be at most 4096 bytes of UTF-8"},
        {template_->refused_body && *template_->refused_body && !template_->has_limits,
         DOORMAN__NAMES("refused_body: needs has_limits", "refused_body: needs limits")},
        {doorman__template_hides_algorithm(template_), "algorithm: needs has_algorithm"},
        {!doorman__duration_valid(template_->overload.target),
         "overload.target: " DOORMAN__DURATION_RULE},
        {!(least >= 0) || (capacity_valid && least > capacity),
         "overload.capacity_min: must be from 0 to the capacity"},
        {least > 0 && !template_->overload.target, "overload.target: is missing"},
        {template_->overload.target && template_->without_capacity,
         "overload: needs capacity, because reports change it"},
    };
    return DOORMAN__RULE_NEXT(rules, next);
}

#define DOORMAN__TEMPLATE_MAX 10000 /* the default */
#define DOORMAN__NO_TEMPLATE SIZE_MAX

/* Receives the errors of a configuration, or the warnings about it.
 *   index    which template; DOORMAN__NO_TEMPLATE: the problem is about all templates
 *   object   the part of the template that has the field: "", "algorithm." or "limits[2].figures."
 *   text     the field and its rule: "capacity: must be ..."; may be made by DOORMAN__NAMES */
typedef struct doorman__config_report {
    void (*add)(const struct doorman__config_report *report, size_t index, const char *object,
                const char *text);
    void *context;
    bool without_store; /* see doorman_config_problem */
} doorman__config_report;

static void doorman__config_report_add(const doorman__config_report *report, size_t index,
                                       const char *object, const char *text) {
    report->add(report, index, object, text);
}

static void doorman__config_report_format(const doorman__config_report *report, size_t index,
                                          const char *object, const char *format, ...) {
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    doorman__config_report_add(report, index, object, text);
}

/* Without doorman_permits.h the tables of functions for permits stay empty. */
#ifdef DOORMAN_PERMITS /* doorman_permits.h defines it */
#define DOORMAN__HAS_PERMITS true
#else
#define DOORMAN__HAS_PERMITS false
#endif
#define DOORMAN__NO_PERMITS "this program has no permits: see doorman_permits.h"

/* The functions of doorman_permits.h that this section calls. */
typedef struct doorman__config_permits {
    void (*check_limits)(const doorman_template *template_, size_t index,
                         const doorman__config_report *report);
    void (*check_shadow)(const doorman_config_options *options,
                         const doorman__config_report *report);
    void (*check_shards)(const doorman_config_options *options,
                         const doorman__config_report *report);
    void (*check_leased)(const doorman_config_options *options,
                         const doorman__config_report *report);
    void (*warn_limits)(const doorman_template *template_, size_t index,
                        const doorman__config_report *report);
    bool (*copy_limits)(doorman_config *config, const doorman_config_options *options);
    void (*free_limits)(doorman_config *config);
    /* the index of the first limit that is leased, or limit_count (P17) */
    size_t (*first_leased)(const doorman_template *template_);
    void (*check_descriptors)(const doorman_config_options *options,
                              const doorman__config_report *report);
    void (*warn_descriptors)(const doorman_config_options *options,
                             const doorman__config_report *report);
    bool (*copy_descriptors)(doorman_config *config, const doorman_config_options *options);
    void (*free_descriptors)(doorman_descriptors *descriptors); /* may be NULL */
} doorman__config_permits;
static const doorman__config_permits doorman__permits_in_config;

static void doorman__limits_refuse(const doorman_template *template_, size_t index,
                                   const doorman__config_report *report) {
    const char *text = "without_capacity: " DOORMAN__NO_PERMITS;
    if (template_->has_limits || template_->limit_count) text = "limits: " DOORMAN__NO_PERMITS;
    if (template_->has_limits || template_->limit_count || template_->without_capacity) {
        doorman__config_report_add(report, index, "", text);
    }
}

static void doorman__config_check_shards(const doorman_config_options *options,
                                         const doorman__config_report *report) {
    if (DOORMAN__HAS_PERMITS) {
        doorman__permits_in_config.check_shards(options, report);
    } else if (options->shard_count) {
        doorman__config_report_add(
            report, DOORMAN__NO_TEMPLATE, "",
            DOORMAN__NAMES("shard_count: " DOORMAN__NO_PERMITS, "shards: " DOORMAN__NO_PERMITS));
    }
}

static void doorman__config_check_shadow(const doorman_config_options *options,
                                         const doorman__config_report *report) {
    if (DOORMAN__HAS_PERMITS) {
        doorman__permits_in_config.check_shadow(options, report);
    } else if (options->shadow_count) {
        doorman__config_report_add(report, DOORMAN__NO_TEMPLATE, "",
                                   "shadow: " DOORMAN__NO_PERMITS);
    }
}

static void doorman__config_check_descriptors(const doorman_config_options *options,
                                              const doorman__config_report *report) {
    if (DOORMAN__HAS_PERMITS) {
        doorman__permits_in_config.check_descriptors(options, report);
    } else if (options->descriptor_count) {
        doorman__config_report_add(report, DOORMAN__NO_TEMPLATE, "",
                                   "descriptors: " DOORMAN__NO_PERMITS);
    }
}

/* Checks that no earlier template has the same glob as the template with this index. */
static void doorman__template_check_glob(const doorman_config_options *options, size_t index,
                                         const doorman__config_report *report) {
    const char *glob = options->templates[index].identifier_glob;
    for (size_t i = 0; glob && i < index; i++) {
        const char *earlier = options->templates[i].identifier_glob;
        if (!earlier || strcmp(earlier, glob) != 0) continue;
        doorman__config_report_format(
            report, index, "",
            DOORMAN__NAMES(
                "identifier_glob: equals that of templates[%zu], so it would never be used",
                "identifier_glob: equals that of resources[%zu], so it would never be used"),
            i, i);
        return;
    }
}

/* Returns whether a glob has a `[` without a `]`. Precondition: the glob is valid UTF-8. */
static bool doorman__glob_is_open(const char *glob) {
    while (*glob) {
        uint32_t character = doorman__character(&glob);
        if (character == '\\' && *glob) (void)doorman__character(&glob);
        if (character == '[' && doorman__glob_bracket(&glob, 'x') < 0) return true;
    }
    return false;
}

#define DOORMAN__GLOB_OPEN                                                                         \
    "a [ has no ], so it is an ordinary character; write \\[ if this is intended"

#define DOORMAN__LONG (3600 * DOORMAN_SECOND) /* longer leases and windows cause warnings (G9) */

#define DOORMAN__COVERS_MAX                                                                        \
    1000 /* templates, and keys in the overrides of one limit, that are
                                    compared with earlier ones */

/* Returns whether the glob `wide` matches all that the glob `narrow` matches. May return false by
 * mistake if `wide` has a `?`, or if one of the globs has brackets or escapes. If the result is
 * true, the literal characters of `wide` match equal characters of `narrow`, and the `*` of `wide`
 * match all the rest of `narrow`, also its wildcards. */
static bool doorman__glob_covers(const char *wide, const char *narrow) {
    if (strcmp(wide, narrow) == 0) return true;
    return !wide[strcspn(wide, "?[\\")] && !narrow[strcspn(narrow, "[\\")] &&
           doorman__glob_match(wide, narrow);
}

/* Warns of fields that only leases use. The algorithm of "*" causes no warning, because other
 * templates may use it (G3). */
static void doorman__without_capacity_warn(const doorman_template *template_, size_t index,
                                           bool last, const doorman__config_report *report) {
    if (!template_->without_capacity) return;
    if (template_->has_safe_capacity || template_->whole) {
        doorman__config_report_add(report, index, "",
                                   template_->has_safe_capacity
                                       ? "safe_capacity: has no effect without capacity"
                                       : "whole: has no effect without capacity");
    }
    bool lends = last && strcmp(template_->identifier_glob, "*") == 0;
    if (template_->has_algorithm && !lends) {
        doorman__config_report_add(report, index, "", "algorithm: has no effect without capacity");
    }
}

/* H11: adds an error if a template has `overload`, but its kind of algorithm does not divide the
 * capacity. Reports of overload could not change such a capacity. A template without an algorithm
 * has the algorithm of the template "*" (G3). */
static void doorman__template_check_overload(const doorman_config_options *options, size_t index,
                                             const doorman__config_report *report) {
    const doorman_template *template_ = &options->templates[index];
    const doorman_template *last = &options->templates[options->template_count - 1];
    bool inherits = !template_->has_algorithm && doorman__id_valid(last->identifier_glob) &&
                    strcmp(last->identifier_glob, "*") == 0;
    const doorman_algorithm *algorithm = inherits ? &last->algorithm : &template_->algorithm;
    if (!template_->overload.target || doorman__divides_capacity(algorithm)) return;
    doorman__config_report_add(report, index, "",
                               DOORMAN__NAMES("overload.target: must be 0, because the kind of "
                                              "algorithm does not divide the capacity",
                                              "overload: must be absent, because its kind of "
                                              "algorithm does not divide the capacity"));
}

static void doorman__template_check(const doorman_config_options *options, size_t index,
                                    const doorman__config_report *report) {
    assert(index < options->template_count);
    const doorman_template *template_ = &options->templates[index];
    const doorman_algorithm *algorithm = &template_->algorithm;
    bool last = index + 1 == options->template_count;
    const char *text = NULL;
    for (size_t next = 0; (text = doorman__template_wrong(template_, last, &next)) != NULL;) {
        doorman__config_report_add(report, index, "", text);
    }
    for (size_t next = 0; (text = doorman__algorithm_wrong(algorithm, &next)) != NULL;) {
        doorman__config_report_add(report, index, "algorithm.", text);
    }
    for (size_t next = 0; (text = doorman__algorithm_unused(algorithm, &next)) != NULL;) {
        doorman__config_report_add(report, index, "algorithm.", text);
    }
    if (DOORMAN__HAS_PERMITS) doorman__permits_in_config.check_limits(template_, index, report);
    if (!DOORMAN__HAS_PERMITS) doorman__limits_refuse(template_, index, report);
    doorman__template_check_overload(options, index, report);
    doorman__template_check_glob(options, index, report);
}

/* Keeps the first problem that is reported, and counts all problems. */
typedef struct doorman__first_problem {
    doorman_error *error; /* may be NULL */
    size_t count;
} doorman__first_problem;

static void doorman__first_problem_add(const doorman__config_report *report, size_t index,
                                       const char *object, const char *text) {
    doorman__first_problem *first = (doorman__first_problem *)report->context;
    if (first->count++ > 0) return;
    const int bytes = (int)strcspn(text, "\n"); /* the names of C: see DOORMAN__NAMES */
    char template_[40] = "";
    if (index != DOORMAN__NO_TEMPLATE) {
        snprintf(template_, sizeof template_, "templates[%zu].", index);
    }
    (void)doorman__fail(first->error, DOORMAN_OK, "%s%s%.*s", template_, object, bytes, text);
}

/* Adds the number of further errors or warnings, `count` - 1, to an error. A count of 0 clears the
 * error. */
static void doorman__error_end(doorman_error *error, size_t count) {
    if (!error) return;
    if (count == 0) doorman__error_clear(error);
    size_t used = strlen(error->text);
    if (count < 2) return;
    snprintf(error->text + used, sizeof error->text - used, " (and %zu more)", count - 1);
}

static doorman_status doorman__config_check(const doorman_config_options *options,
                                            doorman_error *error) {
    size_t most = options->template_max ? options->template_max : DOORMAN__TEMPLATE_MAX;
    if (options->template_count && !options->templates) {
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "templates: must not be NULL");
    }
    if (options->template_count > most) {
        return doorman__fail(error, DOORMAN_RESOURCE_EXHAUSTED, "templates: at most %zu, not %zu",
                             most, options->template_count);
    }
    doorman__first_problem first = {error, 0};
    const doorman__config_report report = {doorman__first_problem_add, &first, false};
    for (size_t i = 0; i < options->template_count; i++) {
        doorman__template_check(options, i, &report);
    }
    doorman__config_check_shadow(options, &report);
    doorman__config_check_descriptors(options, &report);
    doorman__config_check_shards(options, &report);
    if (DOORMAN__HAS_PERMITS && !first.count) {
        doorman__permits_in_config.check_leased(options, &report);
    }
    doorman__error_end(error, first.count);
    return first.count ? DOORMAN_INVALID_ARGUMENT : DOORMAN_OK;
}

/* ---- configuration: what is valid but causes a warning (G9) */

/* Warns of leases that can end before they are renewed, or that may outlast the learning of a new
 * master. Warns of leases longer than an hour, because a holder that has failed keeps its lease
 * until the end. */
static void doorman__algorithm_warn(const doorman_algorithm *given, size_t index,
                                    const doorman__config_report *report) {
    const doorman_algorithm all = doorman__algorithm_resolve(given);
    const doorman_time length = all.lease_length;
    const doorman_time longest = length + doorman__scale(length, DOORMAN__DRIFT);
    const double longest_seconds = (double)length * (1 + DOORMAN__DRIFT) / 1e9;
    if (all.refresh_interval == length) {
        doorman__config_report_add(
            report, index, "algorithm.",
            "refresh_interval: equals the lease_length, so a lease can end before "
            "its holder has renewed it");
    }
    bool learns = doorman__divides_capacity(&all) && all.handover == DOORMAN_CONFIRMED;
    if (learns && all.has_learning_mode_duration && all.learning_mode_duration < longest) {
        doorman__config_report_format(
            report, index, "algorithm.",
            "learning_mode_duration: %g s is shorter than the longest lease, %g s with clock "
            "drift: after a change of master, more than the capacity may be in use",
            (double)all.learning_mode_duration / 1e9, longest_seconds);
    }
    if (length > DOORMAN__LONG) {
        doorman__config_report_format(
            report, index, "algorithm.",
            "lease_length: %g s is long: the capacity of a holder that has failed stays reserved, "
            "and a new master learns, for up to %g s",
            (double)length / 1e9, longest_seconds);
    }
}

/* Warns of a safe capacity above the capacity: with it, a single client without a lease can exceed
 * the capacity. DOORMAN_UNLIMITED causes no warning. */
static void doorman__safe_capacity_warn(const doorman_template *template_, size_t index,
                                        const doorman__config_report *report) {
    const bool unlimited =
        template_->has_algorithm && template_->algorithm.kind == DOORMAN_NO_ALGORITHM;
    const double safe = template_->safe_capacity, capacity = template_->capacity;
    if (!template_->has_safe_capacity || template_->without_capacity || unlimited) return;
    if (safe <= capacity) return;
    doorman__config_report_format(
        report, index, "",
        "safe_capacity: %.15g is above the capacity %.15g, so one client without a lease can "
        "exceed the capacity",
        safe, capacity);
}

/* Warns of a template that no resource gets, because an earlier glob covers its glob. A glob
 * without wildcards causes no warning: it is the id of one resource, which takes this template even
 * if an earlier glob matches the id (G1). */
static void doorman__hidden_template_warn(const doorman_config_options *options, size_t index,
                                          const doorman__config_report *report) {
    const doorman_template *all = options->templates;
    const char *glob = all[index].identifier_glob;
    size_t i = 0;
    if (index >= DOORMAN__COVERS_MAX || !glob[strcspn(glob, "*?[\\")]) return;
    while (i < index && !doorman__glob_covers(all[i].identifier_glob, glob)) i++;
    if (i == index) return;
    doorman__config_report_format(
        report, index, "",
        DOORMAN__NAMES(
            "identifier_glob: is never used, because templates[%zu] comes first and matches it",
            "identifier_glob: is never used, because resources[%zu] comes first and matches it"),
        i, i);
}

/* Reports all warnings. Precondition: the configuration is valid. */
static void doorman__config_warn(const doorman_config_options *options,
                                 const doorman__config_report *report) {
    if (options->template_count == 0) {
        doorman__config_report_add(
            report, DOORMAN__NO_TEMPLATE, "",
            options->reject_unmatched
                ? DOORMAN__NAMES("templates: is empty, so all requests are refused",
                                 "resources: is empty, so all requests are refused")
                : DOORMAN__NAMES("templates: is empty, so nothing is limited",
                                 "resources: is empty, so nothing is limited"));
    }
    for (size_t i = 0; i < options->template_count; i++) {
        const doorman_template *template_ = &options->templates[i];
        if (doorman__glob_is_open(template_->identifier_glob)) {
            doorman__config_report_add(report, i, "", "identifier_glob: " DOORMAN__GLOB_OPEN);
        }
        if (template_->has_algorithm) doorman__algorithm_warn(&template_->algorithm, i, report);
        doorman__hidden_template_warn(options, i, report);
        doorman__safe_capacity_warn(template_, i, report);
        if (DOORMAN__HAS_PERMITS) doorman__permits_in_config.warn_limits(template_, i, report);
        doorman__without_capacity_warn(template_, i, i + 1 == options->template_count, report);
    }
    if (DOORMAN__HAS_PERMITS) doorman__permits_in_config.warn_descriptors(options, report);
}

/* ---- configuration: making one, and finding a template in it */

typedef struct doorman__config_limits doorman__config_limits; /* of permits: see >>limits */

/* One hash table finds a template by its whole glob. The other table finds templates by the literal
 * start of their globs, the part before the first of the characters * ? [ \. Most globs need not be
 * compared, because a given id does not begin with their literal start. The tables contain nothing
 * from the network, so they need no seed. */
struct doorman_config {
    doorman_template *templates;
    size_t template_count;
    char *strings; /* all globs and texts, each ended by a NUL */
    doorman__config_limits *limits;
    size_t shadow_count;
    const char **shadow;                             /* the globs, in the memory of `limits` */
    doorman_descriptors *descriptors;                /* NULL: there are no rules */
    const doorman_descriptor_rule *descriptor_rules; /* the rules, in the memory of `descriptors` */
    size_t descriptor_count;
    size_t shard_count;
    bool reject_unmatched;
    bool wire_names;      /* true: the configuration was read from JSON (C10) */
    doorman__link *links; /* two for each template: for its glob, and for its literal start */
    doorman__table globs, starts;
    bool start_bytes[DOORMAN_ID_BYTES_MAX + 1]; /* true at n: a literal start has n bytes */
};

/* Copies a string to *at and moves *at behind the copy. */
static const char *doorman__config_string(char **at, const char *text) {
    char *copy = *at;
    size_t bytes = strlen(text ? text : "") + 1;
    memcpy(copy, text ? text : "", bytes);
    *at += bytes;
    return copy;
}

static uint64_t doorman__config_hash(const char *text, size_t bytes) {
    static const uint64_t key[2] = {0, 0};
    return doorman__hash_bytes(key, (const unsigned char *)text, bytes);
}

static void doorman__config_index(doorman_config *config) {
    for (size_t i = 0; i < config->template_count; i++) {
        const char *glob = config->templates[i].identifier_glob;
        size_t start = strcspn(glob, "*?[\\");
        assert(start <= DOORMAN_ID_BYTES_MAX);
        doorman__link *links = &config->links[2 * i];
        assert(!links[0].next && !links[1].next);
        doorman__table_add(&config->globs, &links[0], doorman__config_hash(glob, strlen(glob)));
        doorman__table_add(&config->starts, &links[1], doorman__config_hash(glob, start));
        config->start_bytes[start] = true;
    }
}

static size_t doorman__config_measure(const doorman_config_options *options) {
    size_t bytes = 0;
    for (size_t i = 0; i < options->template_count; i++) {
        const doorman_template *template_ = &options->templates[i];
        const char *description = template_->description;
        bytes += strlen(template_->identifier_glob) + 1;
        bytes += strlen(description ? description : "") + 1;
        bytes += strlen(template_->unit ? template_->unit : "") + 1;
        bytes += strlen(template_->refused_body ? template_->refused_body : "") + 1;
    }
    return bytes;
}

/* Returns the algorithm for templates that have no algorithm of their own (G3). */
static doorman_algorithm doorman__config_common_algorithm(const doorman_config_options *options) {
    const doorman_algorithm defaults = {.reserve = 0};
    if (!options->template_count) return defaults;
    const doorman_template *last = &options->templates[options->template_count - 1];
    bool lends = last->has_algorithm && strcmp(last->identifier_glob, "*") == 0;
    return lends ? last->algorithm : defaults;
}

static void doorman__config_copy(doorman_config *config, const doorman_config_options *options) {
    const doorman_algorithm common = doorman__config_common_algorithm(options);
    char *string = config->strings;
    for (size_t i = 0; i < config->template_count; i++) {
        doorman_template *copy = &config->templates[i];
        *copy = options->templates[i];
        copy->identifier_glob = doorman__config_string(&string, copy->identifier_glob);
        copy->description = doorman__config_string(&string, copy->description);
        copy->unit = doorman__config_string(&string, copy->unit);
        copy->refused_body = doorman__config_string(&string, copy->refused_body);
        copy->algorithm =
            doorman__algorithm_resolve(copy->has_algorithm ? &copy->algorithm : &common);
        copy->has_algorithm = true;
    }
    assert(string == config->strings + doorman__config_measure(options));
}

/* Precondition: the options are valid. Returns NULL if memory runs out. */
static doorman_config *doorman__config_make(const doorman_config_options *options) {
    size_t count = options->template_count;
    doorman_config *config = (doorman_config *)doorman__zalloc(sizeof *config);
    if (!config) return NULL;
    config->template_count = count;
    config->reject_unmatched = options->reject_unmatched;
    config->shard_count = options->shard_count;
    /* No array is empty, because the result of an allocation of 0 bytes may be NULL. */
    config->templates =
        (doorman_template *)doorman__zalloc((count + 1) * sizeof *config->templates);
    config->strings = (char *)doorman__zalloc(doorman__config_measure(options) + 1);
    config->links = (doorman__link *)doorman__zalloc((2 * count + 1) * sizeof *config->links);
    if (config->templates && config->strings && config->links) {
        doorman__config_copy(config, options);
        doorman__config_index(config);
        if (!DOORMAN__HAS_PERMITS) return config;
        if (doorman__permits_in_config.copy_limits(config, options) &&
            doorman__permits_in_config.copy_descriptors(config, options)) {
            return config;
        }
    }
    doorman_config_destroy(config);
    return NULL;
}

doorman_status doorman_config_create(doorman_config **out, const doorman_config_options *options,
                                     doorman_error *error) {
    if (!out) return doorman__missing(error, "out");
    if (!options) return doorman__missing(error, "options");
    doorman_status status = doorman__config_check(options, error);
    if (status != DOORMAN_OK) return status;
    doorman_config *config = doorman__config_make(options);
    if (!config) return doorman__no_memory(error);
    doorman__first_problem first = {error, 0};
    const doorman__config_report report = {doorman__first_problem_add, &first, false};
    doorman__config_warn(options, &report);
    doorman__error_end(error, first.count);
    *out = config;
    return DOORMAN_OK;
}

void doorman_config_destroy(doorman_config *config) {
    if (!config) return;
    DOORMAN_FREE(config->templates);
    DOORMAN_FREE(config->strings);
    DOORMAN_FREE(config->links);
    if (DOORMAN__HAS_PERMITS) {
        doorman__permits_in_config.free_limits(config);
        doorman__permits_in_config.free_descriptors(config->descriptors);
    }
    doorman__table_uninit(&config->globs);
    doorman__table_uninit(&config->starts);
    DOORMAN_FREE(config);
}

/* Returns the index of the template that a link belongs to. */
static size_t doorman__config_place(const doorman_config *config, const doorman__link *link) {
    assert(link >= config->links && link < config->links + 2 * config->template_count);
    return (size_t)(link - config->links) / 2;
}

/* Looks at the templates whose literal start is the first `bytes` bytes of the id. Returns the
 * index of the first of them that matches the id. Returns `known` if `known` is smaller, or if none
 * of them matches. */
static size_t doorman__config_first(const doorman_config *config, const char *id, size_t bytes,
                                    size_t known) {
    assert(known <= config->template_count);
    uint64_t hash = doorman__config_hash(id, bytes);
    doorman__link *link = doorman__table_first(&config->starts, hash);
    for (; link; link = doorman__table_same(link->next, hash)) {
        size_t place = doorman__config_place(config, link);
        if (place > known) continue;
        if (doorman__glob_match(config->templates[place].identifier_glob, id)) known = place;
    }
    return known;
}

const doorman_template *doorman_config_find(const doorman_config *config, const char *resource_id) {
    if (!config || !doorman__id_valid(resource_id)) return NULL;
    size_t bytes = strlen(resource_id), found = config->template_count;
    uint64_t hash = doorman__config_hash(resource_id, bytes);
    doorman__link *link = doorman__table_first(&config->globs, hash);
    for (; link; link = doorman__table_same(link->next, hash)) {
        size_t place = doorman__config_place(config, link);
        const doorman_template *equal = &config->templates[place];
        if (strcmp(equal->identifier_glob, resource_id) == 0) return equal;
    }
    for (size_t start = 0; start <= bytes; start++) {
        if (!config->start_bytes[start]) continue;
        found = doorman__config_first(config, resource_id, start, found);
    }
    return found < config->template_count ? &config->templates[found] : NULL;
}

/* Returns the template of a resource for leases. A template without capacity has no leases. */
static const doorman_template *doorman__config_find_capacity(const doorman_config *config,
                                                             const char *resource_id) {
    const doorman_template *found = doorman_config_find(config, resource_id);
    return found && !found->without_capacity ? found : NULL;
}

void doorman_config_read(const doorman_config *config, doorman_config_options *out) {
    if (!out) return;
    memset(out, 0, sizeof *out);
    if (!config) return;
    *out = (doorman_config_options){.templates = config->templates,
                                    .template_count = config->template_count,
                                    .template_max = config->template_count,
                                    .reject_unmatched = config->reject_unmatched,
                                    .shadow = config->shadow,
                                    .shadow_count = config->shadow_count,
                                    .descriptors = config->descriptor_rules,
                                    .descriptor_count = config->descriptor_count,
                                    .shard_count = config->shard_count};
}

doorman_status doorman_config_fits(const doorman_config *config, bool has_parent,
                                   doorman_error *error) {
    if (!config) return doorman__missing(error, "config");
    const char *templates = config->wire_names ? "resources" : "templates";
    const size_t count = config->template_count;
    size_t first = 0;
    while (first < count && config->templates[first].without_capacity) first++;
    if (has_parent && first < count) {
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT,
                             "%s[%zu].%s, because a node with a parent gets its capacities from "
                             "the parent. Only limits are allowed",
                             templates, first,
                             config->wire_names ? "capacity: must be absent"
                                                : "without_capacity: must be true");
    }
    const bool checks = DOORMAN__HAS_PERMITS && !has_parent && first == count;
    for (size_t i = 0; checks && i < count; i++) {
        size_t leased = doorman__permits_in_config.first_leased(&config->templates[i]);
        if (leased == config->templates[i].limit_count) continue;
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT,
                             "%s[%zu].limits[%zu]: cannot be leased, because the node has no "
                             "parent, and no template has a capacity",
                             templates, i, leased);
    }
    return DOORMAN_OK;
}

/* The algorithm for a resource that no template matches (G2). */
static const doorman_algorithm doorman__unmatched = {.kind = DOORMAN_NO_ALGORITHM,
                                                     .lease_length = DOORMAN__LEASE_LENGTH,
                                                     .refresh_interval = 16 * DOORMAN_SECOND,
                                                     .has_minimum_interval = true,
                                                     .minimum_interval = 5 * DOORMAN_SECOND,
                                                     .minimum_refresh_interval = DOORMAN_SECOND,
                                                     .decay_factor = 0.5};

/* Returns whether there is a template `*`. It matches every resource, and is the last (G6). */
static bool doorman__config_matches_all(const doorman_config *config) {
    size_t count = config->template_count;
    return count && strcmp(config->templates[count - 1].identifier_glob, "*") == 0;
}

/* Returns the longest possible lease. A lease without a template has the default length. */
static doorman_time doorman__config_longest_lease(const doorman_config *config) {
    doorman_time longest = doorman__config_matches_all(config) ? 0 : DOORMAN__LEASE_LENGTH;
    for (size_t i = 0; i < config->template_count; i++) {
        longest = doorman__later(longest, config->templates[i].algorithm.lease_length);
    }
    assert(longest > 0);
    return longest;
}

/* Returns the index of the template with this glob, or template_count if there is none. Tries the
 * index `place` first, because a template seldom moves to another index. */
static size_t doorman__config_same(const doorman_config *config, const char *glob, size_t place) {
    size_t count = config->template_count;
    if (place < count && strcmp(config->templates[place].identifier_glob, glob) == 0) return place;
    for (place = 0; place < count; place++) {
        if (strcmp(config->templates[place].identifier_glob, glob) == 0) break;
    }
    return place;
}

/* ---- >>shares ------------------------------------------------------------------------------- */
/*
 * This section shares a capacity among demands. A demand is what a client, or a group of a node's
 * clients, wants (w), with a priority and a weight (s). The weight is the number of subclients. All
 * demands of one priority form a band. Each kind of algorithm computes terms: a level and a slope.
 * The terms give the share of each demand, which is its target:
 *
 *     target(w, s) = min(w, level * s) + slope * max(0, w - level * s)
 *
 * So a renewal needs only two numbers to compute its target, for any number of holders. These are
 * examples of each kind of algorithm:
 *
 *   FAIR_SHARE          With capacity 120 and wants 1000, 50, 10, the level is 60. The targets are
 *                       60, 50, 10. With capacity 160 and wants 100, 50, 45, 10, the level is 55.
 *                       The targets are 55, 50, 45, 10. With capacity 120, wants 1000, 500, 200 and
 *                       weights 6, 4, 2, the level is 10. The targets are 60, 40, 20.
 *   PROPORTIONAL_SHARE  With capacity 120 and wants 1000, 50, 10, the equal part of each holder is
 *                       40. The third holder does not want 30 of its part. The other holders want
 *                       960 and 10 more than their parts, so the slope is 30 / (960 + 10). The
 *                       targets are 69.69, 40.31, 10.
 *   PRIORITY_SHARE      The capacity is 120. One holder of priority 2 wants 100, and two holders of
 *                       priority 1 want 50 each. The band of priority 2 gets 100. The level of the
 *                       band of priority 1 is 10. The targets are 100, 10, 10. With a reserve of
 *                       0.5, the three holders first share 60, so each holder gets 20. The band of
 *                       priority 1 keeps its 40. The band of priority 2 gets 120 - 40. The targets
 *                       are 80, 20, 20.
 *   STATIC              The level is the capacity. The capacity is for each client, and is not
 *                       divided.
 *   NO_ALGORITHM        The slope is 1. Every holder gets what it wants.
 *
 * The algorithms need sums of wants and of subclients. An index computes such a sum in O(log n).
 * For each priority the index has a B+tree of demands (Bayer and McCreight 1972). The demands are
 * in the order of their wants per subclient. Each inner node stores the sums of each child: the
 * wants, the subclients and the number of all demands below the child. When a child changes, its
 * sums are computed again from the entries of the child. So no rounding error remains after a large
 * demand has left, and the sums of an empty index are exactly 0 (C9). The index stores copies of
 * demands, and equal demands are one entry with a count. So nothing points into the index. A band
 * with one demand takes 40 bytes.
 *
 * A node of the B+tree has many entries, so a search reads a few groups of adjacent cache lines. In
 * a binary tree a search would wait for about twenty separate cache lines. The table compares a
 * treap, which is a binary tree, with B+trees. The table shows the nanoseconds that one change of a
 * demand takes on one core of an AMD EPYC, in indexes of 1,000 to 1,000,000 demands. A change is an
 * insertion, a removal and a search for the level. The last column shows the bytes that the index
 * needs for each demand. The lease entry of the holder needs 8 more bytes for its demand.
 *
 *                         of 1,000   of 10,000   of 100,000   of 1,000,000   bytes
 *     treap                    298         453          980           3880      40
 *     B+tree of width 16       302         430          992           2440   31
 *     B+tree of width 24       311         426          862           1780   28-30
 *     B+tree of width 32       319         424          803           1560   26-28
 *     B+tree of width 40       323         420          824           1480   25-27
 *
 * A1 A target differs from the exact solution by at most one part in 10^9, or by at most the last
 *    bit of the capacity. If the kind divides the capacity, the sum of its targets exceeds the
 *    capacity only by such rounding errors, or by a little more with the terms of a parent (T2).
 *    Neither makes the sum of the leases exceed the capacity, because a lease is also at most what
 *    is free (R5).
 * A2 For every kind of algorithm, a change of a demand costs O(log n), where n is the number of
 *    holders. A renewal that changes nothing costs lookups in hash tables and a read of the terms.
 * A3 A new kind of algorithm needs one function, one row in DOORMAN_KINDS, and one row in
 *    doorman__solvers. The rows of kinds that divide the capacity are before the row of STATIC.
 *    Only the checks of a configuration also depend on the kind. T2 (in a tree) and A5 (turns for
 *    whole units) assume that a kind leaves no capacity unused while a holder wants more.
 *    CONTRIBUTING.md says what another kind needs.
 * A4 No holder gets more than it wants, except a child that learns (R7). If leases are whole units
 *    (A5, see >>leases), the wants are rounded up first.
 */

/* A demand as the index stores it. `count` is the number of equal demands in one entry. */
typedef struct doorman__demand {
    double wants;
    uint32_t subclients, count;
} doorman__demand;

typedef struct doorman__sums {
    double wants;
    uint64_t subclients, count; /* `count` is the number of demands. Sums of integers are exact */
} doorman__sums;

#define DOORMAN__WIDTH 32
#define DOORMAN__LINE_BYTES 64 /* the size of a cache line on most machines */

typedef struct doorman__node {
    uint16_t height; /* 0: a leaf */
    uint16_t count;  /* the number of demands or children; at least 1 */
    uint16_t room;   /* the maximum of count: DOORMAN__WIDTH, or less in a leaf that is the root */
} doorman__node;

typedef struct doorman__leaf {
    doorman__node node; /* must be first */
    doorman__demand demands[];
} doorman__leaf;

typedef struct doorman__inner {
    doorman__node node;                   /* must be first */
    doorman__demand keys[DOORMAN__WIDTH]; /* keys[i] is after child i - 1, and not after child i */
    doorman__sums sums[DOORMAN__WIDTH];   /* for each child: the sums of all demands below it */
    doorman__node *below[DOORMAN__WIDTH];
} doorman__inner;

typedef struct doorman__index {
    doorman__node *bands[DOORMAN_PRIORITY_MAX + 1]; /* NULL: no demand of this priority */
    uint64_t subclients;
    /* nodes for the next insertion; below[0] of a spare inner node is the next spare inner node */
    doorman__node *spare_leaf, *spare_inner;
} doorman__index;

static doorman__leaf *doorman__as_leaf(doorman__node *node) {
    assert(node->height == 0);
    return (doorman__leaf *)(void *)node;
}

static doorman__inner *doorman__as_inner(doorman__node *node) {
    assert(node->height > 0);
    return (doorman__inner *)(void *)node;
}

/* Returns the demands of a leaf, or the keys of an inner node. */
static const doorman__demand *doorman__node_demands(const doorman__node *node) {
    return node->height ? ((const doorman__inner *)(const void *)node)->keys
                        : ((const doorman__leaf *)(const void *)node)->demands;
}

static bool doorman__node_full(const doorman__node *node) { return node->count == node->room; }

/* Returns the wants per subclient. Most demands have one subclient. For such demands the function
 * makes no division, because a division takes as long as ten other steps. */
static double doorman__demand_ratio(const doorman__demand *demand) {
    return demand->subclients == 1 ? demand->wants : demand->wants / demand->subclients;
}

static bool doorman__demand_before(const doorman__demand *a, const doorman__demand *b) {
    double ratio_a = doorman__demand_ratio(a), ratio_b = doorman__demand_ratio(b);
    if (ratio_a < ratio_b || ratio_a > ratio_b) return ratio_a < ratio_b;
    if (a->subclients != b->subclients) return a->subclients < b->subclients;
    return a->wants < b->wants;
}

/* Returns how many demands or keys of a node are not after `demand`. A binary search counts the
 * demands with at most the wants per subclient of `demand`. The second loop subtracts the demands
 * that have equal wants per subclient and are after `demand`. The binary search has no branch that
 * depends on the data, because half of such branches would be mispredicted. */
static size_t doorman__node_upto(const doorman__node *node, const doorman__demand *demand) {
    const doorman__demand *demands = doorman__node_demands(node), *at = demands;
    double ratio = doorman__demand_ratio(demand);
    for (size_t left = node->count; left > 0;) {
        size_t half = (left + 1) / 2;
        bool upto = doorman__demand_ratio(&at[half - 1]) <= ratio;
        at += upto ? half : 0;
        left -= half;
    }
    while (at > demands && doorman__demand_before(demand, at - 1)) at--;
    return (size_t)(at - demands);
}

/* Returns the index of the child in which `demand` is stored. If `demand` is new, this is the child
 * for its insertion. The caller reads the demands or keys of the child next. In a large tree they
 * are not in the cache, so all their cache lines are prefetched at once. */
static size_t doorman__inner_place(const doorman__inner *inner, const doorman__demand *demand) {
    size_t upto = doorman__node_upto(&inner->node, demand), at = upto ? upto - 1 : 0;
    assert(at < inner->node.count);
    const char *below = (const char *)inner->below[at];
    size_t bytes = sizeof(doorman__leaf) + DOORMAN__WIDTH * sizeof(doorman__demand);
    for (size_t i = 0; i < bytes; i += DOORMAN__LINE_BYTES) __builtin_prefetch(below + i);
    return at;
}

static doorman__sums doorman__demand_sums(const doorman__demand *demand) {
    return (doorman__sums){demand->wants * demand->count,
                           (uint64_t)demand->subclients * demand->count, demand->count};
}

static void doorman__sums_add(doorman__sums *sums, doorman__sums more) {
    sums->wants += more.wants;
    sums->subclients += more.subclients;
    sums->count += more.count;
}

/* Returns the sums of one child or one demand of a node. */
static doorman__sums doorman__node_sums_at(const doorman__node *node, size_t at) {
    return node->height ? ((const doorman__inner *)(const void *)node)->sums[at]
                        : doorman__demand_sums(&doorman__node_demands(node)[at]);
}

/* Returns the sums of all demands below a node, or zeros for NULL. Each addition to a sum waits for
 * the last addition, so the loop adds up two sums in parallel. */
static doorman__sums doorman__node_sums(const doorman__node *node) {
    doorman__sums all = {0, 0, 0}, odd = {0, 0, 0};
    if (!node) return all;
    size_t at = 0;
    for (; at + 1 < node->count; at += 2) {
        doorman__sums_add(&all, doorman__node_sums_at(node, at));
        doorman__sums_add(&odd, doorman__node_sums_at(node, at + 1));
    }
    if (at < node->count) doorman__sums_add(&all, doorman__node_sums_at(node, at));
    doorman__sums_add(&all, odd);
    return all;
}

/* Copies `count` entries of a node to a position in another node, or in the same node. */
static void doorman__node_move(doorman__node *to, size_t to_at, doorman__node *from, size_t from_at,
                               size_t count) {
    assert(to->height == from->height);
    assert(to_at + count <= to->room && from_at + count <= from->room);
    if (to->height == 0) {
        memmove(&doorman__as_leaf(to)->demands[to_at], &doorman__as_leaf(from)->demands[from_at],
                count * sizeof(doorman__demand));
        return;
    }
    doorman__inner *target = doorman__as_inner(to), *source = doorman__as_inner(from);
    memmove(&target->keys[to_at], &source->keys[from_at], count * sizeof *source->keys);
    memmove(&target->sums[to_at], &source->sums[from_at], count * sizeof *source->sums);
    memmove(&target->below[to_at], &source->below[from_at], count * sizeof *source->below);
}

/* Makes the position `at` free. The entries from `at` on move up by one. */
static void doorman__node_open(doorman__node *node, size_t at) {
    assert(at <= node->count && node->count < node->room);
    doorman__node_move(node, at + 1, node, at, node->count - at);
    node->count++;
}

static void doorman__node_close(doorman__node *node, size_t at) {
    assert(at < node->count);
    node->count--;
    doorman__node_move(node, at, node, at + 1, node->count - at);
}

/* Resizes a leaf, or makes one if `leaf` is NULL. If memory runs out, returns NULL. */
static doorman__node *doorman__leaf_grow(doorman__node *leaf, size_t room) {
    size_t count = leaf ? leaf->count : 0;
    assert(count < room && room <= DOORMAN__WIDTH);
    leaf = (doorman__node *)DOORMAN_REALLOC(leaf,
                                            sizeof(doorman__leaf) + room * sizeof(doorman__demand));
    if (leaf) *leaf = (doorman__node){.count = (uint16_t)count, .room = (uint16_t)room};
    return leaf;
}

static void doorman__index_drop_spares(doorman__index *index) {
    DOORMAN_FREE(index->spare_leaf);
    index->spare_leaf = NULL;
    while (index->spare_inner) {
        doorman__node *spare = index->spare_inner;
        index->spare_inner = doorman__as_inner(spare)->below[0];
        DOORMAN_FREE(spare);
    }
}

/* Adds a spare node of this height, for a split. Returns false if memory runs out. */
static bool doorman__index_add_spare(doorman__index *index, size_t height) {
    if (height == 0) {
        assert(!index->spare_leaf);
        index->spare_leaf = doorman__leaf_grow(NULL, DOORMAN__WIDTH);
        return index->spare_leaf != NULL;
    }
    doorman__inner *inner = (doorman__inner *)DOORMAN_MALLOC(sizeof *inner);
    if (!inner) return false;
    inner->node = (doorman__node){.height = (uint16_t)height, .room = DOORMAN__WIDTH};
    inner->below[0] = index->spare_inner;
    index->spare_inner = &inner->node;
    return true;
}

static doorman__node *doorman__index_take_spare(doorman__index *index, size_t height) {
    doorman__node **spare = height ? &index->spare_inner : &index->spare_leaf, *node = *spare;
    assert(node);
    *spare = height ? doorman__as_inner(node)->below[0] : NULL;
    node->height = (uint16_t)height;
    return node;
}

/* Allocates the memory that the insertion of a demand needs. That insertion must be the next change
 * of the index. A root that is a full leaf, but smaller than WIDTH, grows. Each full node on the
 * way to the leaf will be split, and needs a spare node. A full root needs a second spare node, for
 * the new root. If memory runs out, returns false and leaves the index unchanged. */
static bool doorman__index_reserve(doorman__index *index, int band, const doorman__demand *demand) {
    assert(band >= 0 && band <= DOORMAN_PRIORITY_MAX);
    assert(doorman__amount_valid(demand->wants) && demand->subclients > 0);
    doorman__node **root = &index->bands[band], *node = *root;
    doorman__index_drop_spares(index);
    if (!node) return (index->spare_leaf = doorman__leaf_grow(NULL, 2)) != NULL;
    if (node->room < DOORMAN__WIDTH) {
        if (doorman__node_full(node)) node = doorman__leaf_grow(node, (size_t)node->room * 2);
        if (node) *root = node;
        return node != NULL;
    }
    bool done = !doorman__node_full(node) || doorman__index_add_spare(index, node->height + 1u);
    while (done) {
        if (doorman__node_full(node)) done = doorman__index_add_spare(index, node->height);
        if (node->height == 0) break;
        doorman__inner *inner = doorman__as_inner(node);
        node = inner->below[doorman__inner_place(inner, demand)];
    }
    if (!done) doorman__index_drop_spares(index);
    return done;
}

/* Makes a node the child of another node, at a free position. */
static void doorman__inner_set(doorman__inner *inner, size_t at, doorman__node *node) {
    assert(at < inner->node.count && inner->node.height == node->height + 1);
    inner->below[at] = node;
    inner->keys[at] = doorman__node_demands(node)[0];
    inner->sums[at] = doorman__node_sums(node);
}

/* Splits a full child. The upper half of the child moves to a new node beside it. */
static void doorman__inner_split(doorman__index *index, doorman__inner *inner, size_t at) {
    doorman__node *full = inner->below[at];
    assert(doorman__node_full(full) && full->room == DOORMAN__WIDTH);
    doorman__node *half = doorman__index_take_spare(index, full->height);
    half->count = full->count / 2;
    full->count = (uint16_t)(full->count - half->count);
    doorman__node_move(half, 0, full, full->count, half->count);
    inner->sums[at] = doorman__node_sums(full);
    doorman__node_open(&inner->node, at + 1);
    doorman__inner_set(inner, at + 1, half);
}

/* Inserts a demand below a node. Full nodes are split on the way down, so the parent of a node that
 * is split has room for the new node. */
static void doorman__node_insert(doorman__index *index, doorman__node *node,
                                 const doorman__demand *demand) {
    assert(!doorman__node_full(node));
    if (node->height == 0) {
        doorman__demand *demands = doorman__as_leaf(node)->demands;
        size_t at = doorman__node_upto(node, demand);
        if (at && !doorman__demand_before(&demands[at - 1], demand)) {
            demands[at - 1].count++;
            return;
        }
        doorman__node_open(node, at);
        demands[at] = *demand;
        demands[at].count = 1;
        return;
    }
    doorman__inner *inner = doorman__as_inner(node);
    size_t at = doorman__inner_place(inner, demand);
    if (doorman__node_full(inner->below[at])) {
        doorman__inner_split(index, inner, at);
        at = doorman__inner_place(inner, demand);
    }
    if (doorman__demand_before(demand, &inner->keys[at])) inner->keys[at] = *demand;
    doorman__node_insert(index, inner->below[at], demand);
    inner->sums[at] = doorman__node_sums(inner->below[at]);
}

/* Inserts a demand. Precondition: doorman__index_reserve has succeeded for this demand. */
static void doorman__index_insert(doorman__index *index, int band, const doorman__demand *demand) {
    doorman__node **root = &index->bands[band];
    if (!*root) *root = doorman__index_take_spare(index, 0);
    if (doorman__node_full(*root)) {
        doorman__node *above = doorman__index_take_spare(index, (*root)->height + 1u);
        doorman__inner *top = doorman__as_inner(above);
        top->node.count = 1;
        doorman__inner_set(top, 0, *root);
        doorman__inner_split(index, top, 0);
        *root = &top->node;
    }
    doorman__node_insert(index, *root, demand);
    index->subclients += demand->subclients;
    assert(index->subclients >= demand->subclients);
}

/* Joins two neighbouring children if at least a quarter of the joined node stays free, because a
 * fuller node would soon split again. Returns whether it has joined them. */
static bool doorman__inner_join(doorman__inner *inner, size_t at) {
    if (at + 1 >= inner->node.count) return false;
    doorman__node *left = inner->below[at], *right = inner->below[at + 1];
    if (left->count + right->count > DOORMAN__WIDTH * 3 / 4) return false;
    doorman__node_move(left, left->count, right, 0, right->count);
    left->count = (uint16_t)(left->count + right->count);
    inner->sums[at] = doorman__node_sums(left);
    DOORMAN_FREE(right);
    doorman__node_close(&inner->node, at + 1);
    return true;
}

static void doorman__node_remove(doorman__node *node, const doorman__demand *demand) {
    if (node->height == 0) {
        size_t upto = doorman__node_upto(node, demand), at = upto - 1;
        assert(upto);
        doorman__demand *own = &doorman__as_leaf(node)->demands[at];
        assert(!doorman__demand_before(own, demand));
        if (--own->count == 0) doorman__node_close(node, at);
        return;
    }
    doorman__inner *inner = doorman__as_inner(node);
    size_t at = doorman__inner_place(inner, demand);
    doorman__node *below = inner->below[at];
    doorman__node_remove(below, demand);
    inner->sums[at] = doorman__node_sums(below);
    if (below->count == 0) {
        DOORMAN_FREE(below);
        doorman__node_close(node, at);
    } else if (below->count < DOORMAN__WIDTH / 2 && !doorman__inner_join(inner, at) && at) {
        (void)doorman__inner_join(inner, at - 1);
    }
}

static void doorman__index_remove(doorman__index *index, int band, const doorman__demand *demand) {
    doorman__node *root = index->bands[band];
    assert(root && index->subclients >= demand->subclients);
    doorman__node_remove(root, demand);
    while (root && root->count <= (root->height ? 1 : 0)) {
        doorman__node *below = root->count ? doorman__as_inner(root)->below[0] : NULL;
        DOORMAN_FREE(root);
        root = below;
    }
    index->bands[band] = root;
    index->subclients -= demand->subclients;
}

static void doorman__node_free(doorman__node *node) {
    assert(node->count > 0 && node->count <= node->room);
    for (size_t i = 0; node->height && i < node->count; i++) {
        doorman__node_free(doorman__as_inner(node)->below[i]);
    }
    DOORMAN_FREE(node);
}

static void doorman__index_uninit(doorman__index *index) {
    doorman__index_drop_spares(index);
    for (int band = 0; band <= DOORMAN_PRIORITY_MAX; band++) {
        if (index->bands[band]) doorman__node_free(index->bands[band]);
    }
}

/* Adds to `all` each demand below a node if its wants per subclient are in (low, high]. `most` is
 * an upper bound of the wants per subclient below the node. At most two children are partly inside
 * the range, so the function descends into at most two children. */
static void doorman__node_between(const doorman__node *node, double most, double low, double high,
                                  doorman__sums *all) {
    const doorman__demand *demands = doorman__node_demands(node);
    for (size_t i = 0; i < node->count; i++) {
        double least = doorman__demand_ratio(&demands[i]);
        double last = node->height == 0       ? least
                      : i + 1u == node->count ? most
                                              : doorman__demand_ratio(&demands[i + 1]);
        if (least > high) break;
        if (last <= low) continue;
        if (least > low && last <= high) {
            doorman__sums_add(all, doorman__node_sums_at(node, i));
        } else {
            const doorman__inner *inner = (const doorman__inner *)(const void *)node;
            doorman__node_between(inner->below[i], last, low, high, all);
        }
    }
}

/* Returns the sums of the demands of a band, for wants per subclient in (low, high]. */
static doorman__sums doorman__band_between(const doorman__node *root, double low, double high) {
    doorman__sums all = {0, 0, 0};
    if (root) doorman__node_between(root, DOORMAN_AMOUNT_MAX, low, high, &all);
    return all;
}

/* The struct says what a band takes at a level. A demand is satisfied if its wants per subclient
 * are at most the level. All satisfied demands together take `satisfied`. Every other demand is
 * cut, and takes level * subclients. `cut_subclients` and `cut_wants` are the sums of the
 * subclients and of the wants of the cut demands. */
typedef struct doorman__cut {
    double satisfied, cut_subclients, cut_wants;
} doorman__cut;

static doorman__cut doorman__band_cut(const doorman__node *root, double level) {
    doorman__sums above = doorman__band_between(root, level, DOORMAN_AMOUNT_MAX);
    return (doorman__cut){doorman__band_between(root, -1, level).wants, (double)above.subclients,
                          above.wants};
}
/* Returns the level at which the targets of a band sum to `capacity`. Precondition: the band wants
 * more than `capacity`. The search finds the first demand that is cut at the level. Each step takes
 * a key of an inner node, or a demand of a leaf, and tries its wants per subclient as the level. At
 * that level all demands to the left of this key or demand are satisfied, and all others are cut,
 * or want exactly the level per subclient. */
static double doorman__band_level(const doorman__node *root, double capacity) {
    const doorman__sums all = doorman__node_sums(root);
    double satisfied = 0;
    uint64_t above = all.subclients;
    assert(capacity >= 0 && all.wants >= capacity);
    for (const doorman__node *node = root; node;) {
        const doorman__demand *demands = doorman__node_demands(node);
        size_t at = 0, last = node->height ? node->count - 1u : node->count;
        for (; at < last; at++) {
            doorman__sums sums = doorman__node_sums_at(node, at);
            double ratio = doorman__demand_ratio(&demands[node->height ? at + 1 : at]);
            double below = satisfied + sums.wants;
            if (below + ratio * (double)(above - sums.subclients) > capacity) break;
            satisfied = below;
            above -= sums.subclients;
        }
        node = node->height ? ((const doorman__inner *)(const void *)node)->below[at] : NULL;
    }
    return above ? doorman__max(0, (capacity - satisfied) / (double)above) : DOORMAN_AMOUNT_MAX;
}

static double doorman__index_wants(const doorman__index *index) {
    double sum = 0;
    for (int band = 0; band <= DOORMAN_PRIORITY_MAX; band++) {
        sum += doorman__node_sums(index->bands[band]).wants;
    }
    return sum;
}

static doorman__cut doorman__index_cut(const doorman__index *index, double level) {
    doorman__cut all = {0, 0, 0};
    for (int band = 0; band <= DOORMAN_PRIORITY_MAX; band++) {
        doorman__cut cut = doorman__band_cut(index->bands[band], level);
        all.satisfied += cut.satisfied;
        all.cut_subclients += cut.cut_subclients;
        all.cut_wants += cut.cut_wants;
    }
    return all;
}

/* Returns the level at which all bands together take `capacity`. Precondition: the bands want more
 * than `capacity`. If there are several bands, Newton's method finds the level, and starts at 0.
 * What the bands take is a concave function of the level, so no step goes beyond the solution. The
 * gap is the part of the capacity that is not taken yet, and the slope is the number of subclients
 * whose demands are cut. Each step divides the product of gap and slope by at least four. Usually
 * fewer than ten steps are enough. */
static double doorman__index_level(const doorman__index *index, double capacity) {
    const doorman__node *some = NULL;
    size_t bands = 0;
    for (int band = 0; band <= DOORMAN_PRIORITY_MAX; band++) {
        if (!index->bands[band]) continue;
        some = index->bands[band];
        bands++;
    }
    assert(bands > 0);
    if (bands == 1) return doorman__band_level(some, capacity);
    double level = 0;
    for (int step = 0; step < 128; step++) {
        doorman__cut cut = doorman__index_cut(index, level);
        double left = capacity - cut.satisfied - level * cut.cut_subclients;
        double next = cut.cut_subclients > 0 ? level + left / cut.cut_subclients : level;
        if (!(next > level)) break;
        level = next;
    }
    return level;
}

/* Each kind of algorithm has a function of this type. The function writes the terms, highest
 * priority first, and returns their number. The function must not divide by `subclients` of the
 * index if there are no demands, because `subclients` is then 0.
 *   capacity   what the holders share: the capacity minus the leases of children that learn (R7) */
typedef size_t doorman__solver(const doorman_algorithm *algorithm, double capacity,
                               const doorman__index *index, doorman_terms *terms);

static size_t doorman__solve_none(const doorman_algorithm *algorithm, double capacity,
                                  const doorman__index *index, doorman_terms *terms) {
    (void)algorithm, (void)capacity, (void)index;
    terms[0] = (doorman_terms){DOORMAN_ANY_PRIORITY, 0, 1};
    return 1;
}

static size_t doorman__solve_static(const doorman_algorithm *algorithm, double capacity,
                                    const doorman__index *index, doorman_terms *terms) {
    (void)algorithm, (void)index;
    terms[0] = (doorman_terms){DOORMAN_ANY_PRIORITY, capacity, 0};
    return 1;
}

static size_t doorman__solve_fair(const doorman_algorithm *algorithm, double capacity,
                                  const doorman__index *index, doorman_terms *terms) {
    if (doorman__index_wants(index) <= capacity) {
        return doorman__solve_none(algorithm, capacity, index, terms);
    }
    terms[0] = (doorman_terms){DOORMAN_ANY_PRIORITY, doorman__index_level(index, capacity), 0};
    return 1;
}

static size_t doorman__solve_proportional(const doorman_algorithm *algorithm, double capacity,
                                          const doorman__index *index, doorman_terms *terms) {
    if (doorman__index_wants(index) <= capacity) {
        return doorman__solve_none(algorithm, capacity, index, terms);
    }
    assert(index->subclients > 0);
    double equal = capacity / (double)index->subclients;
    doorman__cut cut = doorman__index_cut(index, equal);
    double left = capacity - cut.satisfied - equal * cut.cut_subclients;
    double excess = cut.cut_wants - equal * cut.cut_subclients;
    double slope = left <= 0 ? 0 : left < excess ? left / excess : 1;
    terms[0] = (doorman_terms){DOORMAN_ANY_PRIORITY, equal, slope};
    return 1;
}

/* First, all bands share the reserve. `floor` is the level of these shares, and `reserved` has
 * the share of each band. Then the function divides the capacity among the bands, highest priority
 * first. A band can take what is left, minus what `reserved` has for the lower bands. But a band
 * can always take its own share of the reserve. */
static size_t doorman__solve_priority(const doorman_algorithm *algorithm, double capacity,
                                      const doorman__index *index, doorman_terms *terms) {
    double reserved[DOORMAN_TERMS_MAX] = {0}, floor = 0, reserve_left = 0;
    if (algorithm->reserve > 0 && doorman__index_wants(index) > capacity * algorithm->reserve) {
        floor = doorman__index_level(index, capacity * algorithm->reserve);
    } else if (algorithm->reserve > 0) {
        floor = DOORMAN_AMOUNT_MAX;
    }
    for (int band = 0; band <= DOORMAN_PRIORITY_MAX && floor > 0; band++) {
        doorman__cut cut = doorman__band_cut(index->bands[band], floor);
        reserved[band] = cut.satisfied + floor * cut.cut_subclients;
        reserve_left += reserved[band];
    }
    size_t count = 0;
    double left = capacity;
    for (int priority = DOORMAN_PRIORITY_MAX; priority >= 0; priority--) {
        const doorman__node *band = index->bands[priority];
        double wants = doorman__node_sums(band).wants;
        if (!band) continue;
        reserve_left -= reserved[priority];
        double most = doorman__max(reserved[priority], left - doorman__max(0, reserve_left));
        if (wants <= most) {
            terms[count++] = (doorman_terms){priority, 0, 1};
            left -= wants;
        } else {
            double level = doorman__max(floor, doorman__band_level(band, most));
            terms[count++] = (doorman_terms){priority, level, 0};
            left -= most;
        }
        left = doorman__max(0, left);
    }
    assert(count <= DOORMAN_TERMS_MAX);
    return count;
}

static doorman__solver *const doorman__solvers[DOORMAN_KIND_COUNT] = {
    [DOORMAN_FAIR_SHARE] = doorman__solve_fair,
    [DOORMAN_PROPORTIONAL_SHARE] = doorman__solve_proportional,
    [DOORMAN_PRIORITY_SHARE] = doorman__solve_priority,
    [DOORMAN_STATIC_SHARE] = doorman__solve_static,
    [DOORMAN_NO_ALGORITHM] = doorman__solve_none,
};

static const doorman_terms *doorman__terms_find(const doorman_terms *terms, size_t terms_count,
                                                int priority) {
    assert(terms_count <= DOORMAN_TERMS_MAX);
    for (size_t i = 0; i < terms_count; i++) {
        if (terms[i].priority == DOORMAN_ANY_PRIORITY || terms[i].priority == priority) {
            return &terms[i];
        }
    }
    return NULL;
}

/* Returns the amount in [0, wants] that terms give to a demand, or 0 if there are no terms for its
 * priority. */
static double doorman__terms_target(const doorman_terms *terms, size_t terms_count,
                                    const doorman_demand *demand) {
    const doorman_terms *found = doorman__terms_find(terms, terms_count, demand->priority);
    if (!found) return 0;
    double subclients = demand->subclients > 0 ? demand->subclients : 1;
    double base = doorman__min(demand->wants, found->level * subclients);
    assert(base >= 0 && found->slope >= 0);
    return doorman__min(demand->wants, base + found->slope * (demand->wants - base));
}

/* Returns the sum that the terms of a parent give to all demands, or -1 if a demand has a priority
 * without terms. */
static double doorman__terms_sum(const doorman_terms *terms, size_t terms_count,
                                 const doorman__index *index) {
    double sum = 0;
    for (int band = 0; band <= DOORMAN_PRIORITY_MAX; band++) {
        const doorman__node *root = index->bands[band];
        if (!root) continue;
        const doorman_terms *found = doorman__terms_find(terms, terms_count, band);
        if (!found) return -1;
        doorman__cut cut = doorman__band_cut(root, found->level);
        double base = found->level * cut.cut_subclients;
        sum += cut.satisfied + base + found->slope * doorman__max(0, cut.cut_wants - base);
    }
    assert(sum >= 0); /* -1 has another meaning */
    return sum;
}

/* Rounds down to an integer. Doubles represent all integers up to the largest amount, 1e15. */
static double doorman__whole_floor(double amount) { return (double)(uint64_t)amount; }

static double doorman__whole_ceil(double amount) {
    double floor = doorman__whole_floor(amount);
    return floor < amount ? floor + 1 : floor;
}

/* Converts a demand to an entry of the index. If leases are whole units, the wants are rounded up,
 * because a holder that wants 2.3 units needs 3. */
static doorman__demand doorman__demand_of(const doorman_demand *demand, bool whole) {
    double subclients = demand->subclients > 0 ? demand->subclients : 1;
    double wants = whole ? doorman__whole_ceil(demand->wants) : demand->wants;
    assert(wants >= 0 && subclients <= DOORMAN_SUBCLIENTS_MAX);
    return (doorman__demand){wants, (uint32_t)subclients, 1};
}

/* Returns the field of a demand that breaks its rule, or NULL.
 *   most   the maximum of subclients; 1: the demand of a client */
static const char *doorman__demand_wrong(const doorman_demand *demand, double most,
                                         const char **rule) {
    double weight = demand->subclients;
    *rule = DOORMAN__AMOUNT_RULE;
    if (!doorman__amount_valid(demand->wants)) return "wants";
    *rule = "must be an integer from 0 to 15";
    if (demand->priority < 0 || demand->priority > DOORMAN_PRIORITY_MAX) return "priority";
    *rule = most > 1 ? "must be an integer from 1 to 1e9" : "must be 1 for a client";
    bool valid = weight >= 0 && weight <= most && weight <= (double)(uint64_t)weight;
    return valid ? NULL : "subclients";
}

static doorman_status doorman__shares_check(const doorman_algorithm *algorithm, double capacity,
                                            const doorman_demand *demands, size_t demand_count,
                                            doorman_error *error) {
    size_t next = 0, unused = 0;
    const char *wrong = algorithm ? doorman__algorithm_wrong(algorithm, &next) : NULL;
    if (algorithm && !wrong) wrong = doorman__algorithm_unused(algorithm, &unused);
    if (wrong) return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "algorithm.%s", wrong);
    if (!doorman__amount_valid(capacity)) {
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "capacity: " DOORMAN__AMOUNT_RULE);
    }
    if (demand_count && !demands) {
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "demands: must not be NULL");
    }
    for (size_t i = 0; i < demand_count; i++) {
        const char *rule = NULL;
        const char *field = doorman__demand_wrong(&demands[i], DOORMAN_SUBCLIENTS_MAX, &rule);
        if (!field) continue;
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "demands[%zu].%s: %s", i, field,
                             rule);
    }
    return DOORMAN_OK;
}

static bool doorman__index_fill(doorman__index *index, const doorman_demand *demands,
                                size_t demand_count) {
    for (size_t i = 0; i < demand_count; i++) {
        doorman__demand demand = doorman__demand_of(&demands[i], false);
        if (!doorman__index_reserve(index, demands[i].priority, &demand)) return false;
        doorman__index_insert(index, demands[i].priority, &demand);
    }
    return true;
}

doorman_status doorman_shares(const doorman_algorithm *algorithm, double capacity,
                              const doorman_demand *demands, size_t demand_count, double *amounts,
                              doorman_terms *terms, size_t *terms_count, doorman_error *error) {
    doorman_status status =
        doorman__shares_check(algorithm, capacity, demands, demand_count, error);
    if (status == DOORMAN_OK && terms && !terms_count) {
        status = doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "terms_count: must not be NULL");
    }
    if (status != DOORMAN_OK) return status;
    const doorman_algorithm defaults = {.reserve = 0};
    if (!algorithm) algorithm = &defaults;
    doorman__index index = {.spare_leaf = NULL};
    if (doorman__index_fill(&index, demands, demand_count)) {
        doorman_terms all[DOORMAN_TERMS_MAX];
        size_t count = doorman__solvers[algorithm->kind](algorithm, capacity, &index, all);
        assert(count <= DOORMAN_TERMS_MAX);
        for (size_t i = 0; amounts && i < demand_count; i++) {
            amounts[i] = doorman__terms_target(all, count, &demands[i]);
        }
        if (terms) memcpy(terms, all, count * sizeof *terms);
        if (terms_count) *terms_count = count;
    } else {
        status = doorman__no_memory(error);
    }
    doorman__index_uninit(&index);
    return status;
}

/* ---- >>leases ------------------------------------------------------------------------------- */
/*
 * A lease table has the leases of one resource. For each holder the table records the amount of the
 * lease, the end of the lease, and how much the holder may still be using. The owner of the table
 * sets the values that the table needs: the algorithm, the capacity, the amount that may be
 * committed, the time by which leases must end, the terms that the parent sent, and the time at
 * which the learning ends.
 *
 *     field         in proofs   meaning
 *     has           g           the amount of a holder's last lease
 *     committed     u           the amount that the holder may still be using; u >= g
 *     claim         x           the larger of what the holder says it has and what it says is in
 *                               use
 *     in_round      v           the amount of the holder's leases of this round (see "round")
 *     capacity      C           the amount that all leases of the resource together may have
 *     may_commit    K           for a node with a parent: what the parent has committed for this
 *                               node; K >= C
 *     end                       when the lease entry of the holder ends
 *
 * T7 The sum of the leases in force never exceeds the capacity. After a cut, the bound is the
 *    largest capacity in the last lease length (plus the drift). T7 follows from an invariant: the
 *    holders together use at most the sum of u, and each grant keeps that sum within C. After a cut
 *    in capacity (see "round"), or while the node learns (R6), the sum may be above C. The rules R1
 *    to R12 keep the invariant. R2, R3, R9 and R10 are in the section >>upstream. R7, R8, R11 and
 *    R12 are in the section >>server.
 * R1 A node never uses a lease id twice for one resource, even if its master changes or restarts. A
 *    lease id is 53 bits of a keyed hash of a counter. Each process that starts uses a new key. So
 *    two leases have the same id only with a probability of 2^-53, which is too small to matter.
 * R4 A claim lowers u only if it names the last lease that was granted to the holder. In this case
 *    no newer lease is on its way to the holder, and the holder will not accept an older lease
 *    (R2). As long as a holder names the same lease, its claims never rise, except while it learns
 *    (R7). So a late copy of a request can only claim too much, which is safe.
 *       A lease that has ended is not in force, even if its holder never confirmed a smaller lease.
 *    So when leases of a holder have ended, u falls to the largest amount that one of its other
 *    leases commits (see "age"). Without this rule, the largest lease of a holder that never
 *    confirms would stay committed for as long as the holder sends requests.
 * R5 A grant is at most the target. A grant is also at most what is free: C minus the sum of the
 *    other holders' u. There is one exception. If less than min(u, x) is free, the grant may still
 *    be up to min(u, x). This amount is already committed, because the holder may still be using
 *    it. In a node with a parent, a grant also keeps the sum of u within K. A grant raises u to at
 *    least g.
 *       The exception is for leases, not for units in use without a lease. The u of a child node
 *    can exceed what its leases commit (R6). The exception then allows only what its leases commit.
 *    While the sum of u is above C, a grant is at most the larger of two amounts: the last g of the
 *    holder, and C minus the sum of the others' g. So while the sum of all g is above C, no lease
 *    grows, even if the holder uses more than its lease. The leases of a round have a bound of
 *    their own (see "round").
 *       The response also says how much of the claim stays committed (`keep` on the wire): the
 *    larger of g and min(u, x). u can be even larger, because an earlier lease that the request
 *    does not name stays committed until it ends (R4).
 *       Only leases raise u. A report of units in use (`outstanding`) can only keep u from falling,
 *    except in a server that learns (R6). So nothing is committed for a holder whose lease has
 *    ended, even if the holder still uses units of that lease. T7 does not cover use without a
 *    lease. If reports raised u, a holder that reports too much, or a late copy of a request, would
 *    take the capacity from all others.
 * R6 A new master knows no holders, unless it takes over the leases of its predecessor (D8). So it
 *    learns until every lease that its predecessor can have granted has ended. If a holder names a
 *    lease of this node, the master grants what the holder claims, but at most what is free, and at
 *    most what the holder wants (A4). The predecessor had committed these claims, and kept their
 *    sum within C. Leases grow only by what holders have given back to this master (`spare`). A
 *    holder that names a lease of this master has accepted that lease, so the holder really had the
 *    amount of that lease. If the holder now claims less, it has given back the difference. The
 *    first claim of a holder gives back nothing, even if the holder wants less: the request may be
 *    a late copy that claims too much.
 *       If C has been cut since the claimed leases were granted, the sum of the claims can be above
 *    C. The master then grants and commits only what fits. This is safe. A holder that receives the
 *    new lease stops using its old lease. If the new lease is lost, the old lease ends before the
 *    learning ends. Until then the leases in force together never exceed the old capacity, because
 *    each grant replaces a claim, or uses what others have given back.
 *       If nothing of C is free for a claim, the holder gets a lease of 0. Then it stops using its
 *    old lease. Without the lease of 0, the holder could claim the old lease from the next master,
 *    which could grant that lease in addition to the leases that use C now. What a child node
 *    reports as outstanding is committed even if the sum of u then exceeds C (see
 *    doorman__leases_learn).
 *
 * With `immediate` handover a grant sets u to g. Capacity then moves to other holders without a
 * confirmation. The sum of the leases in force can exceed the capacity until each holder has
 * received its smaller lease, or its old lease has ended.
 *
 * Shared ids. T7 assumes that no two processes use the same id. Two processes with one id count as
 * one holder, and each uses the full share of that holder. The server cannot prevent this, but it
 * can see signs of it, because leases form chains. A new lease continues the chain of the lease
 * that its request named. In this example, `4 -> 6` means that a request names lease 4 and gets
 * lease 6:
 *
 *     one process, restarted:          none -> 1   1 -> 2   none -> 3   3 -> 4   4 -> 5
 *     its request 3 -> 4 comes twice:  none -> 3   3 -> 4   3 -> 5      4 -> 6   6 -> 7
 *     A and B:   A none -> 1   B none -> 2   A 1 -> 3   B 2 -> 4   A 3 -> 5   B 4 -> 6
 *
 * A process that does not restart continues only one chain. A copy of an old request, or a request
 * that is repeated after a lost response, starts another chain. But a process accepts only one of
 * the two responses (R2), so it continues only one of the two chains. It never continues a chain
 * from before its restart either. So the lease table stores two chains of each holder: the last
 * lease of each chain, and whether the chain has been continued. One of the chains ends with the
 * last lease of the holder. A request that continues the other chain is a sign of two processes, if
 * both chains have been continued before. In the example, A 3 -> 5 is the first sign. After a
 * restart the first request of a process names no lease, and the count of signs starts again at 0.
 * Between two restarts a single process causes at most two signs: a late copy of a request from
 * before the restart, and the next request of the process. So the server reports an id while the
 * count is above 2 (S10). A lossy network never causes such a count. A client that always names the
 * lease before its last lease is reported too.
 *     Each request that names the last lease, and gets a new one, subtracts 1/4 from the number of
 * signs. So the server detects two processes even if one process asks up to eight times as often as
 * the other. When one process stops, the report ends after at most eight renewals of the other
 * process.
 *
 * Round (R5). After a cut in capacity the sum of u can be above C. R5 still allows a grant of up to
 * min(u, x). Such a grant does not raise the sum of u, but the sum of the leases can stay above C,
 * because targets change between two grants. Example: A and B are nodes that use 150 units each
 * when C falls from 300 to 100. They do not stop using these units yet, so u is still 150 for both.
 * Their shares are in proportion to the number of their clients:
 *
 *     A has 9 clients, B 1:     A gets its target, 90
 *     A has 9 clients, B 81:    B gets its target, 90, within its u     A still has 90: 180 of 100
 *     A has 729 clients, B 81:  A gets its target, 90, within its u     B still has 90: 180 of 100
 *
 * A and B could renew their leases in this way without end. So before each grant the lease table
 * compares the sum of u with C. A round is active while the sum is above C. In a round each holder
 * has an amount v, for its leases of this round. At the start of the round v is 0. A grant raises v
 * to at least g. When u falls below v, v falls to u. A grant in a round is also at most C minus the
 * sum of the other holders' v. Units that a holder uses beyond its lease are not a part of v. Their
 * number rises only if the lease falls, because the holder starts nothing new until all its use
 * fits into its lease.
 *
 * One lease length plus the drift after the last cut, the sum of the leases is again within C. The
 * proof: let t be the time of the last cut. Let w be the part of v for leases granted since t. w
 * starts at 0, and rises and falls with v, so w <= v. Each grant since t is at most C minus the sum
 * of the others' v. So each grant is also at most C minus the sum of the others' w, and the sum of
 * w never exceeds C. One lease length after t, every lease in force was granted since t, so w
 * includes all of them. The cases in detail:
 *
 *   several cuts    A cut within a round does not restart the round. The proof needs only that v
 *                   includes all leases since the last cut. If a round restarted, v would no longer
 *                   include the leases from before the restart. These leases may still be in force.
 *   a raise         A larger C allows larger grants, and may end the round. After the round the sum
 *                   of u is within C, and R5 alone keeps the sum within C.
 *   first renewals  All v are 0 at the start. The targets sum to about C at most (A1). So while the
 *                   targets do not change, no holder is cut below its target, whatever the order of
 *                   the renewals is.
 *   nodes           In a node with a parent, C is the node's own lease, which changes with each
 *                   renewal. Each change is a cut or a raise, as in the rows above. The claim x of
 *                   a node is at least the sum of u in its own lease table. So its parent keeps at
 *                   least that sum committed for the node.
 *   learning        R6 grants at most C minus the sum of the other holders' u. Because u >= v, such
 *                   a grant is also within the bound of the round. v includes the leases that R6
 *                   grants, because an active round may last longer than the learning.
 *   frozen children R7 renews the last lease of a child that learns. v includes that lease, so
 *                   other holders get less. But the sum of v may exceed C until the child has
 *                   learned. The child learns at most until its lease entry ends. After that the
 *                   child is a holder like any other.
 *   `immediate`     A grant sets v and u to g. So only a cut can make the sum of u exceed C. The
 *                   bound of the round lowers the sum again.
 *   priorities      The targets follow the priorities. The new leases of other holders are at most
 *                   their targets. So enough capacity is left for a holder of a high priority, even
 *                   if it renews last.
 *
 * A round ends within about two lease lengths after the last cut, unless holders still use units
 * beyond their leases. By then u includes only such units and the leases of the round (see "age").
 *
 * Age (R4). A lease table divides time into steps. A new step begins when all leases that were
 * granted before the present step have ended. So only leases of two steps can be in force: the
 * present step, and the step before it. A lease entry stores the step in which its holder got the
 * last lease. `recent` is the largest amount that a lease of that step commits. When the next step
 * begins, all leases from before that step have ended, so u falls to `recent`. So an amount is
 * committed for at most two lease lengths (plus the drift) after its last grant. A lease may commit
 * more than g, because the holder may claim more than g. The u of a child that learns does not fall
 * to `recent` (R7): the child may have several masters, one after another. Each master renews
 * leases of the child's holders within the lease of the child. But the leases from all masters
 * together may exceed the lease of the child until the last master has learned.
 *     Two bits are enough for the number of a step. When two steps have begun after the last lease
 * of a holder, that lease has ended, and the step of its entry is not read again. `recent` and
 * `in_round` are floats, rounded up by at most 1.2e-7 of the amount. They save 8 bytes in each
 * entry, and there may be a million entries.
 *
 * Expiry. The owner removes ended entries in the order of `end` (S2). The entries are a list in
 * this order. All leases have the same length, so a renewed entry ends last, and moves to the end
 * of the list in O(1). Each entry needs two pointers. A heap, in which the ends could come in any
 * order, also needs two words for each entry: its position, and a pointer to it. But a renewal in a
 * heap would visit O(log n) other entries, and most of a million entries are not in the cache. The
 * buckets of a timer wheel are lists, which also need two pointers for each entry, and must be
 * searched for the entries that have ended.
 *     After a configuration that shortens leases, a renewed entry may end before older entries do.
 * So renewed entries go to a new list from then on, and no entry is added to the old list. The
 * entry that ends first is the first entry of one of these lists. In three cases an entry lasts
 * longer than it needs to, until the entry before it in the list ends: leases are shortened again
 * before the old list is empty, the node's own lease ends soon (S6), or the holder gets no lease
 * (S4, T4). The amount then stays committed for at most one lease length longer, which is safe.
 */

/* A holder that is a server reports one demand for each group of its clients (T2). */
typedef struct doorman__demand_group {
    doorman__demand demand;
    int priority;
} doorman__demand_group;

typedef struct doorman__demand_groups {
    doorman__demand_group *items;
    size_t count, capacity;
} doorman__demand_groups;

typedef struct doorman__child {
    doorman__demand_groups now;     /* the demands of the child's last request */
    doorman__demand_groups offered; /* the demands of the request that is being processed */
    /* the part of `committed` that leases commit, at least `has`. The rest is only in use (R6) */
    double leased;
    bool frozen; /* the child learns (R7), so its demands do not change and are not in the index */
    struct doorman__child *next_frozen; /* in `frozen_children` of the lease table, or NULL */
} doorman__child;

/* There may be a million lease entries, so every field is as small as possible. An entry whose
 * holder id has 32 bytes takes 136 bytes, which just fit into a block of 144 bytes of malloc. */
typedef struct doorman__lease_entry {
    doorman__link link; /* in `entries` of the table; must be the first field */
    struct doorman__lease_entry *older, *newer; /* neighbours in the order of `end`, or NULL */
    doorman_time granted_at, lease_end, end;
    double has, committed;
    float recent;      /* the most that a lease of this step commits, rounded up: see "age" */
    float in_round;    /* v, rounded up; valid only if `round` equals `round` of the table */
    uint64_t lease_id; /* 0: the holder has never had a lease */
    union {
        doorman__child *child; /* if is_server is 1 */
        double wants;          /* if is_server is 0 */
    } demand;
    unsigned round : 27;
    unsigned reason : 3;      /* the last reason (S14): see doorman__entry_reason */
    unsigned unconfirmed : 2; /* requests in a row that did not confirm, at most 3 (S11) */
    unsigned step : 2;        /* the step of the last lease, modulo 4: see "age" */
    unsigned priority : 4;    /* the priority of a client */
    unsigned indexed : 1;     /* 1: the demand of this client is in the index; 0 for a server */
    unsigned is_server : 1;
    unsigned suspicion : 4;       /* four times the number of signs: see "shared ids" */
    unsigned continued : 1;       /* 1: the chain of the last lease has been continued */
    unsigned other_continued : 1; /* 1: the other chain has been continued */
    unsigned other_lease : 10;    /* the lowest bits of the last lease id of the other chain */
    char holder_id[];
} doorman__lease_entry;

/* If leases are whole units, each request of a holder without a rotation adds a rotation, which
 * records how the holder takes turns when its target is not an integer (see "leases: whole units").
 * Resources without whole units need no memory for rotations. A rotation takes 64 bytes, and 16 to
 * 32 bytes of the table. */
typedef struct doorman__rotation {
    doorman__link link; /* in `rotations` of the table; must be the first field */
    const doorman__lease_entry *entry;
    double share;      /* the exact target at the last grant; 0: the holder takes no turns */
    double lag;        /* how far the holder is behind its share, in units * seconds */
    double service_at; /* the lease table's `service` when the lag was last updated */
    double clock_at;   /* the lease table's `clock` when the lag was last updated */
    float owed;        /* how many units the holder is owed, a whole number */
    bool is_pressing;  /* the owed units are urgent */
    bool waits;        /* the holder has at most its target rounded down, and its lag is above 0 */
    bool served;       /* the holder has had a unit since it was added or last wanted nothing */
} doorman__rotation;

/* The owner sets the first eight fields and learned_at. Pointers in these fields point to the
 * owner's memory. */
typedef struct doorman__lease_table {
    const doorman_algorithm *algorithm;
    doorman_time lease_length;         /* a copy from the last doorman__leases_set_algorithm */
    const doorman_terms *parent_terms; /* the terms that the node's parent sent last */
    size_t parent_terms_count;
    double capacity;     /* C */
    double may_commit;   /* K; DBL_MAX: no bound */
    doorman_time end_by; /* no lease may end later than this */
    bool whole;          /* leases are whole units */
    uint32_t weight;     /* the subclients of the permits of this node (P17); 0 counts as 1 */
    doorman__table entries;
    size_t unconfirmed_count; /* entries whose holders do not confirm their leases (S11) */
    doorman__lease_entry *oldest, *newest;
    doorman__lease_entry *draining; /* the oldest entry of the old list: see "expiry" */
    doorman__index index;
    doorman__total has, committed;
    doorman__total frozen;           /* the sum of the leases of frozen children (R7) */
    doorman__child *frozen_children; /* a list of the frozen children (R7) */
    doorman__sums frozen_wants;
    doorman_terms terms[DOORMAN_TERMS_MAX];
    size_t terms_count;      /* 0: the terms must be computed again */
    doorman_time learned_at; /* when the learning ends */
    doorman__total spare;    /* what holders have given back to this master; used while it learns */
    doorman__total in_round; /* the sum of v over all holders */
    /* the number of the present or the last round, modulo 2^27. Few events begin a round, so the
     * same number comes again only after years */
    unsigned round : 27;
    bool round_is_on;
    unsigned step;            /* counts the steps, modulo 4: see "age" */
    doorman_time older_end;   /* when all leases from before the present step have ended */
    doorman_time last_end;    /* when all leases have ended */
    doorman_time late_end;    /* the latest end of an entry that outlasts its lease: see "expiry" */
    doorman__table rotations; /* one for each holder if leases are whole units */
    /* the sums of `share` and of `committed` over the holders with turns */
    doorman__total rotation_shares, rotation_committed;
    doorman__total owed;
    double service, clock;    /* in seconds: see "leases: whole units" */
    size_t waiting;           /* the number of rotations whose `waits` is true */
    size_t pressing;          /* the number of rotations whose `is_pressing` is true */
    doorman_time clock_until; /* the time of the last tick; 0: the clock is stopped */
    /* when the bound of "leases: whole units" began to rise; 0: enough units are idle */
    doorman_time unmet_since;
} doorman__lease_table;

/* Returns the demands of a holder that is a server, or NULL if the holder is a client. */
static doorman__child *doorman__entry_child(const doorman__lease_entry *entry) {
    return entry->is_server ? entry->demand.child : NULL;
}

/* Returns the part of the committed amount that leases commit. Only the committed amount of a child
 * can exceed that part (R6). */
static double doorman__entry_leased(const doorman__lease_entry *entry) {
    const doorman__child *child = doorman__entry_child(entry);
    assert(!child || (child->leased >= entry->has && child->leased <= entry->committed));
    return child ? child->leased : entry->committed;
}

/* Returns why the last lease of a holder is less than what it wanted (S14). An entry stores 0 if
 * there is no reason, and otherwise the number of the reason, counted from 1. */
static doorman_lease_reason doorman__entry_reason(const doorman__lease_entry *entry) {
    assert(entry->reason <= DOORMAN_LEASE_LEARNING - DOORMAN_LEASE_SHARE + 1U);
    return (doorman_lease_reason)(entry->reason ? entry->reason + DOORMAN_LEASE_SHARE - 1U : 0);
}

static void doorman__entry_set_reason(doorman__lease_entry *entry, doorman_lease_reason reason) {
    assert(!reason || (reason >= DOORMAN_LEASE_SHARE && reason <= DOORMAN_LEASE_LEARNING));
    entry->reason = (reason ? (unsigned)reason - DOORMAN_LEASE_SHARE + 1U : 0) & 7U;
}

static doorman__lease_entry *doorman__leases_find(doorman__lease_table *leases, uint64_t hash,
                                                  const char *holder_id, bool is_server) {
    doorman__link *link = doorman__table_first(&leases->entries, hash);
    for (; link; link = doorman__table_same(link->next, hash)) {
        doorman__lease_entry *entry = (doorman__lease_entry *)(void *)link;
        if (entry->is_server == is_server && strcmp(entry->holder_id, holder_id) == 0) {
            return entry;
        }
    }
    return NULL;
}

/* Adds an entry for a holder, without a lease or wants. Returns NULL if there is no memory. */
static doorman__lease_entry *doorman__leases_add(doorman__lease_table *leases, uint64_t hash,
                                                 const char *holder_id, bool is_server) {
    assert(doorman__id_valid(holder_id));
    size_t id_bytes = strlen(holder_id) + 1;
    size_t bytes = offsetof(doorman__lease_entry, holder_id) + id_bytes;
    if (bytes < sizeof(doorman__lease_entry)) bytes = sizeof(doorman__lease_entry);
    doorman__lease_entry *entry = (doorman__lease_entry *)doorman__zalloc(bytes);
    if (!entry) return NULL;
    memcpy(entry->holder_id, holder_id, id_bytes);
    entry->is_server = is_server;
    if (is_server) {
        entry->demand.child = (doorman__child *)doorman__zalloc(sizeof(doorman__child));
        if (!entry->demand.child) {
            DOORMAN_FREE(entry);
            return NULL;
        }
    }
    doorman__table_add(&leases->entries, &entry->link, hash);
    return entry;
}

#define DOORMAN__SIGN 4U
#define DOORMAN__SUSPICION_MAX 15U

static bool doorman__entry_shared(const doorman__lease_entry *entry) {
    return entry->suspicion > 2 * DOORMAN__SIGN;
}

/* Shared ids: records the lease id that a request names, or 0 for none. Called before the request
 * gets a new lease. Returns whether the request is a sign and the count is now above 2. */
static bool doorman__entry_note_request(doorman__lease_entry *entry, uint64_t named) {
    bool last = named && named == entry->lease_id;
    bool other = named && !last && (named & 1023U) == entry->other_lease;
    bool sign = other && entry->continued && entry->other_continued;
    if (!named) entry->suspicion = 0;
    if (last) {
        entry->continued = 1;
        if (entry->suspicion) entry->suspicion--;
        return false;
    }
    entry->other_lease = (unsigned)entry->lease_id & 1023U;
    entry->other_continued = entry->continued;
    entry->continued = other;
    if (!sign) return false;
    unsigned suspicion = entry->suspicion + DOORMAN__SIGN;
    entry->suspicion =
        (suspicion < DOORMAN__SUSPICION_MAX ? suspicion : DOORMAN__SUSPICION_MAX) & 15U;
    return doorman__entry_shared(entry);
}

#define DOORMAN__UNCONFIRMED_MAX 3U

static bool doorman__entry_unconfirmed(const doorman__lease_entry *entry) {
    return entry->unconfirmed == DOORMAN__UNCONFIRMED_MAX;
}

/* S11: records whether a request confirms the last lease of the holder. Called before the claim of
 * the request lowers the amount of that lease.
 *   claim   what the request says that the holder has; less than 0: the request does not name the
 *           last lease. A slightly larger claim confirms too, as a holder may round it */
static void doorman__leases_note_claim(doorman__lease_table *leases, doorman__lease_entry *entry,
                                       double claim, doorman_time now) {
    bool confirms = claim >= 0 && claim <= entry->has * (1 + 1e-9);
    bool was = doorman__entry_unconfirmed(entry);
    if (confirms) {
        entry->unconfirmed = 0;
    } else if (!was && entry->lease_id && now < entry->lease_end) {
        entry->unconfirmed = (entry->unconfirmed + 1U) & DOORMAN__UNCONFIRMED_MAX;
    }
    assert(!was || leases->unconfirmed_count > 0);
    leases->unconfirmed_count -= was;
    leases->unconfirmed_count += doorman__entry_unconfirmed(entry);
    assert(leases->unconfirmed_count <= leases->entries.count);
}

static void doorman__leases_unlist(doorman__lease_table *leases, doorman__lease_entry *entry) {
    if (entry->older) entry->older->newer = entry->newer;
    assert(leases->oldest != entry || !entry->older);
    if (entry->newer) entry->newer->older = entry->older;
    if (leases->oldest == entry) leases->oldest = entry->newer;
    if (leases->draining == entry) leases->draining = entry->newer;
    if (leases->newest == entry) leases->newest = entry->older;
    entry->older = entry->newer = NULL;
}

/* Returns the entry that ends first, or NULL if there are no entries. */
static doorman__lease_entry *doorman__leases_first(const doorman__lease_table *leases) {
    doorman__lease_entry *oldest = leases->oldest, *draining = leases->draining;
    if (!oldest || !draining) return oldest ? oldest : draining;
    return draining->end <= oldest->end ? draining : oldest;
}

/* R9: sets the end of an entry to `end` or later (see "expiry"). The end never moves back. */
static void doorman__leases_set_end(doorman__lease_table *leases, doorman__lease_entry *entry,
                                    doorman_time end) {
    if (end <= entry->end) return;
    doorman__leases_unlist(leases, entry);
    entry->end = end;
    if (leases->newest) {
        entry->end = doorman__later(end, leases->newest->end);
        leases->newest->newer = entry;
        entry->older = leases->newest;
    } else {
        leases->oldest = entry;
    }
    leases->newest = entry;
    leases->last_end = doorman__later(leases->last_end, entry->end);
    assert(leases->oldest && !entry->newer && (!entry->older || entry->older->end <= entry->end));
}

static float doorman__float_up(double amount) {
    assert(amount >= 0); /* the next larger float has the next larger bits */
    float rounded = (float)amount;
    if (rounded >= amount) return rounded;
    uint32_t bits;
    memcpy(&bits, &rounded, sizeof bits);
    bits++;
    memcpy(&rounded, &bits, sizeof bits);
    return rounded;
}

/* Returns v of a holder. v is 0 if the holder has no lease of the present round. */
static double doorman__entry_in_round(const doorman__lease_table *leases,
                                      const doorman__lease_entry *entry) {
    return entry->round == leases->round ? entry->in_round : 0;
}

static void doorman__leases_set_in_round(doorman__lease_table *leases, doorman__lease_entry *entry,
                                         double amount) {
    assert(amount >= 0 && amount <= doorman__float_up(entry->committed));
    doorman__total_replace(&leases->in_round, doorman__entry_in_round(leases, entry),
                           doorman__float_up(amount));
    entry->round = leases->round;
    entry->in_round = doorman__float_up(amount);
}

static doorman__rotation *doorman__leases_rotation(const doorman__lease_table *leases,
                                                   const doorman__lease_entry *entry) {
    uint64_t hash = entry->link.hash;
    doorman__link *link = NULL;
    if (leases->rotations.count) link = doorman__table_first(&leases->rotations, hash);
    for (; link; link = doorman__table_same(link->next, hash)) {
        doorman__rotation *rotation = (doorman__rotation *)(void *)link;
        if (rotation->entry == entry) return rotation;
    }
    return NULL;
}

/* Sets `has` and `committed` of a holder. No other function changes these fields. */
static void doorman__leases_set_amounts(doorman__lease_table *leases, doorman__lease_entry *entry,
                                        double has, double committed) {
    assert(has >= 0 && committed >= has && committed <= DOORMAN_AMOUNT_MAX);
    doorman__child *child = doorman__entry_child(entry);
    if (child) child->leased = doorman__min(doorman__max(child->leased, has), committed);
    if (has < entry->has || has > entry->has) {
        if (child && child->frozen) {
            doorman__total_replace(&leases->frozen, entry->has, has);
            leases->terms_count = 0;
        }
        doorman__total_replace(&leases->has, entry->has, has);
        entry->has = has;
    }
    if (committed < entry->committed || committed > entry->committed) {
        const doorman__rotation *rotation = doorman__leases_rotation(leases, entry);
        if (rotation && rotation->share > 0) {
            doorman__total_replace(&leases->rotation_committed, entry->committed, committed);
        }
        doorman__total_replace(&leases->committed, entry->committed, committed);
        entry->committed = committed;
    }
    if (entry->recent > committed) entry->recent = doorman__float_up(committed);
    if (doorman__entry_in_round(leases, entry) > committed) {
        doorman__leases_set_in_round(leases, entry, committed);
    }
    assert(!doorman__total_less(leases->committed, leases->has));
}

/* Age: begins a new step when all leases from before the present step have ended. If the last lease
 * of the holder is from an earlier step, u falls to `recent`. */
static void doorman__leases_age(doorman__lease_table *leases, doorman__lease_entry *entry,
                                doorman_time now) {
    if (now >= leases->older_end) {
        leases->older_end = leases->last_end;
        leases->step = (leases->step + 1) % 4;
    }
    assert(leases->older_end <= leases->last_end);
    if (entry->step == leases->step || entry->recent >= entry->committed) return;
    doorman__leases_set_amounts(leases, entry, entry->has, entry->recent);
}

/* Begins a round when the committed sum exceeds the capacity, and ends it when the sum fits. */
static void doorman__leases_check_round(doorman__lease_table *leases) {
    doorman__total capacity = doorman__total_of(leases->capacity);
    bool exceeds = doorman__total_less(capacity, leases->committed);
    if (exceeds && !leases->round_is_on) {
        leases->round++;
        leases->in_round = (doorman__total){0, 0};
    }
    leases->round_is_on = exceeds;
    assert(leases->round_is_on || !doorman__total_less(capacity, leases->committed));
}

/* Records a new lease in the entry of its holder. `committed` is the amount that the lease commits.
 * The caller sets the end of the lease afterwards. With `immediate` handover only this lease stays
 * committed for the holder. T7: no lease raises the committed sum to an amount above the capacity.
 * The sum can already be above the capacity after a cut. The same is true while the table learns,
 * because the outstanding amounts of child nodes are then committed too. STATIC and NO_ALGORITHM
 * have no such bound. */
static void doorman__leases_commit(doorman__lease_table *leases, doorman__lease_entry *entry,
                                   double has, double committed) {
    bool immediate = leases->algorithm->handover == DOORMAN_IMMEDIATE;
    double in_round = immediate ? 0 : doorman__entry_in_round(leases, entry);
    doorman__total before = leases->committed, capacity = doorman__total_of(leases->capacity);
    assert(committed >= has);
    if (entry->step != leases->step) entry->recent = 0;
    entry->step = leases->step & 3;
    entry->recent = doorman__float_up(doorman__max(entry->recent, committed));
    doorman__leases_set_amounts(leases, entry, has,
                                immediate ? has : doorman__max(entry->committed, committed));
    assert(!doorman__divides_capacity(leases->algorithm) ||
           !doorman__total_less(capacity, leases->committed) ||
           !doorman__total_less(before, leases->committed));
    (void)before, (void)capacity;
    if (!leases->round_is_on) return;
    doorman__leases_set_in_round(leases, entry, doorman__max(in_round, has));
}

static double doorman__entry_wants(const doorman__lease_entry *entry) {
    const doorman__child *child = doorman__entry_child(entry);
    double wants = child ? 0 : entry->demand.wants;
    for (size_t i = 0; child && i < child->now.count; i++) {
        wants += child->now.items[i].demand.wants;
    }
    return doorman__min(wants, DOORMAN_AMOUNT_MAX);
}

/* ---- leases: whole units */
/*
 * A5 If `whole` is true, leases are whole units. Targets stay exact. If a target is not an integer,
 *    the holder takes turns: its lease is sometimes the target rounded down, and sometimes the
 *    target rounded up. The mean of its leases over time is nearly the target.
 *
 * Each holder with turns has a share and a lag. The share is its exact target. The lag says how far
 * the holder is behind its share, in units * seconds. `service` says for how many seconds each
 * holder should have had its whole share so far. Each second `service` grows by (sum of
 * `committed`) / (sum of the shares), over all holders with turns. The lag grows by share * (growth
 * of `service`), and falls by committed * (time passed). Therefore:
 *   - The lags sum to 0, even if only a part of the capacity is in use. The lag of a holder that
 *     leaves is added to the other lags. If the lag of a holder stays within bounds, the mean of
 *     its `committed` is in proportion to its share.
 *   - A renewal updates the lag of its holder in O(1), and visits no other holder (A2).
 *   - The lag of a holder falls with the committed amount, and not with the lease. So a holder that
 *     never confirms a cut cannot get more than its share.
 *
 * A `turn` is an amount of lag: one unit * half a lease length. A holder is owed a unit if its lag
 * is at least one turn. A new holder, or a holder that wanted nothing before, is owed a unit until
 * it has had its first unit. A unit that is in no lease is idle. Let the target of a holder be f
 * plus a fraction. These rules decide how many units the holder gets:
 *
 *   if it has more than f   It gets f in the two cases below. In all other cases it gets f + 1.
 *                           First case: more units are owed to other holders than are idle, and its
 *                           own lag is at most a bound. The bound starts at -1 turn. It rises by
 *                           one turn in each lease length while more units are owed than are idle,
 *                           until a holder gives up a unit. Then the bound starts again. If an owed
 *                           unit is urgent, the bound starts at 0, and rises by one turn in each
 *                           refresh interval. An owed unit is urgent if the holder that lacks it
 *                           has less than its target rounded down, or has not had its first unit.
 *                           Second case: its own lag is at most -2 turns, no unit is idle, and
 *                           another holder waits. A holder waits if it has at most its target
 *                           rounded down, and its lag is above 0
 *   if it has f or less     It gets f + 1 in the three cases below. In all other cases it gets f.
 *                           First case: it is owed a unit. Second case: its lag is at least half a
 *                           turn. Third case: if it got f, more units would still be idle than are
 *                           owed to others
 *
 * Like every grant, this grant is at most what is free (R5). So a unit moves from one holder to
 * another in two steps: a cut and its confirmation (R4). An idle unit that is owed to no holder
 * goes to the first holder that asks and has f or less. The lags sum to 0. So if the lag of one
 * holder is above 0, the lag of another holder is below 0. The bound of the first row rises until
 * such a holder gives up a unit.
 *
 * Example: 25 clients share 20 units, so each has a target of 0.8. Leases of 60 s are renewed every
 * 16 s. So a turn is a lag of 30. While a client has no unit, its lag rises from about -30 to +30
 * in 60 / 0.8 = 75 s. At its next renewal the client is owed a unit. It gets the unit some seconds
 * later, and keeps it for 60 / 0.2 = 300 s. 99.4 % of the units are in use.
 *
 * In a tree the target of a child is the sum of its clients' targets. This sum need not be an
 * integer, so the child takes turns too. On average, the clients of the child divide the child's
 * lease in proportion to their shares.
 */

/* Adds a rotation for a holder, unless the holder has one. Returns false if there is no memory. */
static bool doorman__rotation_reserve(doorman__lease_table *leases,
                                      const doorman__lease_entry *entry) {
    if (doorman__leases_rotation(leases, entry)) return true;
    doorman__rotation *rotation = (doorman__rotation *)doorman__zalloc(sizeof *rotation);
    assert(leases->whole);
    if (!rotation) return false;
    rotation->entry = entry;
    rotation->service_at = leases->service;
    rotation->clock_at = leases->clock;
    doorman__table_add(&leases->rotations, &rotation->link, entry->link.hash);
    return true;
}

/* Advances `clock` and `service`. Must be called before any change of shares or of committed
 * amounts. A table that learns does not decide what holders have, so its clock is stopped. */
static void doorman__leases_tick(doorman__lease_table *leases, bool learning, doorman_time now) {
    if (!leases->whole) return;
    assert(now >= leases->clock_until);
    doorman_time passed = leases->clock_until && !learning ? now - leases->clock_until : 0;
    double shares = doorman__total_value(leases->rotation_shares);
    leases->clock_until = now;
    if (shares <= 0) return;
    double seconds = (double)passed / (double)DOORMAN_SECOND;
    leases->clock += seconds;
    leases->service += seconds * (doorman__total_value(leases->rotation_committed) / shares);
}

static void doorman__rotation_settle(const doorman__lease_table *leases,
                                     doorman__rotation *rotation) {
    assert(leases->clock >= rotation->clock_at);
    if (rotation->share > 0) {
        rotation->lag += rotation->share * (leases->service - rotation->service_at) -
                         rotation->entry->committed * (leases->clock - rotation->clock_at);
    }
    rotation->service_at = leases->service;
    rotation->clock_at = leases->clock;
}

/* Sets the share of a holder. Precondition: doorman__rotation_settle has updated its lag. A share
 * of 0 means that the holder takes no turns, and its lag is added to the lags of the others. */
static void doorman__rotation_set_share(doorman__lease_table *leases, doorman__rotation *rotation,
                                        double share) {
    assert(share >= 0 && rotation->service_at >= leases->service &&
           rotation->service_at <= leases->service && rotation->clock_at >= leases->clock);
    double committed = rotation->entry->committed;
    if (rotation->share > 0) {
        doorman__total_subtract(&leases->rotation_shares, rotation->share);
        doorman__total_subtract(&leases->rotation_committed, committed);
    }
    rotation->share = share;
    if (share > 0) {
        doorman__total_add(&leases->rotation_shares, share);
        doorman__total_add(&leases->rotation_committed, committed);
        return;
    }
    double others = doorman__total_value(leases->rotation_shares);
    if (others > 0) leases->service += rotation->lag / others;
    rotation->lag = 0;
}

static void doorman__rotation_set_owed(doorman__lease_table *leases, doorman__rotation *rotation,
                                       double owed, bool is_pressing) {
    assert(owed >= 0 && leases->pressing >= rotation->is_pressing);
    leases->pressing -= rotation->is_pressing;
    doorman__total_replace(&leases->owed, rotation->owed, (float)owed);
    rotation->owed = (float)owed; /* a float stores integers up to 2^24 exactly */
    rotation->is_pressing = is_pressing;
    leases->pressing += rotation->is_pressing;
}

static void doorman__rotation_set_waits(doorman__lease_table *leases, doorman__rotation *rotation,
                                        bool waits) {
    assert(leases->waiting >= rotation->waits);
    leases->waiting -= rotation->waits;
    rotation->waits = waits;
    leases->waiting += rotation->waits;
    assert(leases->waiting <= leases->rotations.count);
}

static void doorman__rotation_end(doorman__lease_table *leases, const doorman__lease_entry *entry) {
    doorman__rotation *rotation = doorman__leases_rotation(leases, entry);
    if (!rotation) return;
    doorman__rotation_settle(leases, rotation);
    doorman__rotation_set_share(leases, rotation, 0);
    doorman__rotation_set_owed(leases, rotation, 0, false);
    doorman__rotation_set_waits(leases, rotation, false);
    doorman__table_remove(&leases->rotations, &rotation->link);
    DOORMAN_FREE(rotation);
}

/* Called after a grant. If the holder has less than `due` units, it is owed the rest. The owed
 * units are urgent if the holder has less than its target rounded down, or has not had its first
 * unit. */
static void doorman__rotation_granted(doorman__lease_table *leases, doorman__rotation *rotation,
                                      double due) {
    double has = rotation->entry->has, base = doorman__whole_floor(rotation->share);
    assert(due >= 0 && has >= doorman__whole_floor(has) && has <= doorman__whole_floor(has));
    bool is_pressing = has < due && (rotation->share <= 0 || has < base || !rotation->served);
    doorman__rotation_set_owed(leases, rotation, doorman__max(0, due - has), is_pressing);
    if (has > 0) rotation->served = true;
}

/* Returns the target of a holder with turns, in whole units. Its exact target is `base` plus a
 * fraction. The result may include a unit that the holder neither has nor is owed, but *due does
 * not. */
static double doorman__leases_take_turn(doorman__lease_table *leases, doorman__rotation *rotation,
                                        double base, double *due, doorman_time now) {
    const doorman_algorithm *algorithm = leases->algorithm;
    double has = rotation->entry->has;
    double all_owed = doorman__total_value(leases->owed);
    double owed = all_owed - (double)rotation->owed; /* to other holders */
    double idle = leases->capacity - doorman__total_value(leases->has);
    assert(owed >= 0 && base >= 0 && leases->whole);
    bool unmet = idle < owed;
    if (idle >= all_owed) {
        leases->unmet_since = 0;
    } else if (!leases->unmet_since) {
        leases->unmet_since = now;
    }
    double turn = (double)algorithm->lease_length / (double)(2 * DOORMAN_SECOND);
    doorman__rotation_set_waits(leases, rotation, has <= base && rotation->lag > 0);
    if (has > base) {
        bool urgent = leases->pressing > 0;
        doorman_time pace = urgent ? algorithm->refresh_interval : algorithm->lease_length;
        double bound = turn * (double)(now - leases->unmet_since) / (double)pace;
        if (!urgent) bound -= turn;
        bool gives_up = unmet && rotation->lag <= bound;
        if (gives_up) leases->unmet_since = now;
        bool far_ahead = leases->waiting && idle < 1 && rotation->lag <= -2 * turn;
        return *due = gives_up || far_ahead ? base : base + 1;
    }
    bool is_owed = rotation->lag >= turn || !rotation->served;
    bool spare = idle - (base - has) >= owed + 1;
    *due = is_owed ? base + 1 : base;
    return is_owed || spare || rotation->lag >= turn / 2 ? base + 1 : base;
}

/* Returns the target in whole units. The caller calls doorman__rotation_granted after the grant.
 * The holder takes no turns in two cases: its target differs from an integer only by a rounding
 * error, or the algorithm does not divide the capacity. */
static double doorman__leases_whole_target(doorman__lease_table *leases,
                                           doorman__rotation *rotation, double target, double *due,
                                           doorman_time now) {
    double play = 1e-6 + 1e-9 * target, base = doorman__whole_floor(target + play);
    assert(target >= 0 && leases->whole);
    bool turns = target - base > play && doorman__divides_capacity(leases->algorithm);
    if (doorman__entry_wants(rotation->entry) <= 0) rotation->served = false;
    doorman__rotation_set_share(leases, rotation, turns ? target : 0);
    if (turns) return doorman__leases_take_turn(leases, rotation, base, due, now);
    doorman__rotation_set_waits(leases, rotation, false);
    return *due = base;
}

/* P17: the client_id under which the permits of a node hold leases. */
#define DOORMAN__PERMITS_HOLDER "(permits)"

/* Returns the demand of a client. A client counts as one subclient, but the permits of this node
 * count as `weight`. The function compares the id, because a bit for this would make each entry
 * larger. */
static doorman__demand doorman__entry_demand(const doorman__lease_table *leases,
                                             const doorman__lease_entry *entry) {
    assert(!entry->is_server);
    bool of_permits = leases->weight && strcmp(entry->holder_id, DOORMAN__PERMITS_HOLDER) == 0;
    return (doorman__demand){entry->demand.wants, of_permits ? leases->weight : 1, entry->indexed};
}

static bool doorman__demand_same(const doorman__demand *own, int own_priority,
                                 const doorman_demand *demand, bool whole) {
    doorman__demand next = doorman__demand_of(demand, whole);
    return own->count && doorman__equal(own->wants, next.wants) &&
           own->subclients == next.subclients && own_priority == demand->priority;
}

static bool doorman__child_same(const doorman__child *child, const doorman_demand *demands,
                                size_t count, bool whole) {
    bool same = count == child->now.count && !child->frozen;
    for (size_t i = 0; same && i < count; i++) {
        const doorman__demand_group *group = &child->now.items[i];
        same = doorman__demand_same(&group->demand, group->priority, &demands[i], whole);
    }
    return same;
}

static void doorman__leases_unindex(doorman__lease_table *leases,
                                    const doorman__demand_groups *groups) {
    leases->terms_count = 0;
    for (size_t i = 0; i < groups->count; i++) {
        const doorman__demand_group *group = &groups->items[i];
        doorman__index_remove(&leases->index, group->priority, &group->demand);
    }
}

/* Removes from the index the demands that doorman__leases_offer has added. */
static void doorman__leases_retract(doorman__lease_table *leases, doorman__lease_entry *entry) {
    doorman__child *child = doorman__entry_child(entry);
    if (!child) return;
    doorman__leases_unindex(leases, &child->offered);
    child->offered.count = 0;
}

/* Adds the new demands of a child to the index. Later doorman__leases_set_demands only removes the
 * last demands, so it needs no memory. */
static bool doorman__leases_offer(doorman__lease_table *leases, doorman__lease_entry *entry,
                                  const doorman_demand *demands, size_t count) {
    doorman__demand_groups *offered = &entry->demand.child->offered;
    assert(entry->is_server && offered->count == 0);
    bool whole = leases->whole;
    bool room =
        doorman__reserve(&offered->items, &offered->capacity, count, sizeof *offered->items);
    for (size_t i = 0; i < count && room; i++) {
        doorman__demand_group group = {doorman__demand_of(&demands[i], whole), demands[i].priority};
        room = doorman__index_reserve(&leases->index, group.priority, &group.demand);
        if (!room) break;
        doorman__index_insert(&leases->index, group.priority, &group.demand);
        offered->items[offered->count++] = group;
    }
    assert(!room || offered->count == count);
    if (!room) doorman__leases_retract(leases, entry);
    return room;
}

/* Reserves memory for doorman__leases_set_demands. Until that call, or doorman__leases_retract,
 * nothing else may change the entries or the index. If memory runs out, returns false. */
static bool doorman__leases_reserve(doorman__lease_table *leases, doorman__lease_entry *entry,
                                    const doorman_demand *demands, size_t count) {
    assert(entry->is_server || count == 1);
    bool whole = leases->whole;
    if (whole && !doorman__rotation_reserve(leases, entry)) return false;
    if (entry->is_server) {
        return doorman__child_same(entry->demand.child, demands, count, whole) ||
               doorman__leases_offer(leases, entry, demands, count);
    }
    doorman__demand own = doorman__entry_demand(leases, entry);
    doorman__demand next = doorman__demand_of(demands, whole);
    return doorman__demand_same(&own, (int)entry->priority, demands, whole) ||
           doorman__index_reserve(&leases->index, demands->priority, &next);
}

/* Computes the sums of the frozen children again, so that they stay exact (C9). */
static void doorman__leases_sum_frozen(doorman__lease_table *leases) {
    leases->frozen_wants = (doorman__sums){0, 0, 0};
    for (const doorman__child *child = leases->frozen_children; child; child = child->next_frozen) {
        assert(child->frozen);
        for (size_t i = 0; i < child->now.count; i++) {
            doorman__sums_add(&leases->frozen_wants,
                              doorman__demand_sums(&child->now.items[i].demand));
        }
    }
}

/* R7: freezes a child that learns. Its demands then get no shares, and the other holders share the
 * capacity minus its lease. */
static void doorman__leases_freeze(doorman__lease_table *leases, doorman__lease_entry *entry) {
    assert(entry->is_server);
    doorman__child *child = entry->demand.child;
    if (child->frozen) return;
    assert(child->offered.count == 0);
    doorman__leases_unindex(leases, &child->now);
    doorman__total_add(&leases->frozen, entry->has);
    child->frozen = true;
    child->next_frozen = leases->frozen_children;
    leases->frozen_children = child;
    doorman__leases_sum_frozen(leases);
}

/* Ends the freeze of a child, and forgets its last demands, which are not in the index. */
static void doorman__leases_unfreeze(doorman__lease_table *leases, doorman__lease_entry *entry) {
    doorman__child *child = entry->demand.child, **at = &leases->frozen_children;
    assert(child->frozen);
    doorman__total_subtract(&leases->frozen, entry->has);
    while (*at != child) at = &(*at)->next_frozen;
    *at = child->next_frozen;
    child->frozen = false;
    child->now.count = 0;
    leases->terms_count = 0;
    doorman__leases_sum_frozen(leases);
}

/* Sets the demands of a holder. If they are unchanged, the index stays as it is (A2). */
static void doorman__leases_set_demands(doorman__lease_table *leases, doorman__lease_entry *entry,
                                        const doorman_demand *demands, size_t count) {
    doorman__child *child = doorman__entry_child(entry);
    bool whole = leases->whole;
    if (child && !doorman__child_same(child, demands, count, whole)) {
        doorman__demand_groups last = child->now;
        if (child->frozen) doorman__leases_unfreeze(leases, entry);
        doorman__leases_unindex(leases, &child->now);
        last.count = 0;
        child->now = child->offered;
        child->offered = last;
    }
    if (child) return;
    doorman__demand own = doorman__entry_demand(leases, entry);
    doorman__demand next = doorman__demand_of(demands, whole);
    if (doorman__demand_same(&own, (int)entry->priority, demands, whole)) return;
    doorman__index_insert(&leases->index, demands->priority, &next);
    if (entry->indexed) doorman__index_remove(&leases->index, (int)entry->priority, &own);
    entry->demand.wants = next.wants;
    /* entries store no subclients; only the number for the permits of this node can change */
    if (next.subclients != own.subclients) leases->weight = next.subclients;
    entry->priority = (unsigned)demands->priority & DOORMAN_PRIORITY_MAX;
    entry->indexed = true;
    leases->terms_count = 0;
    assert(entry->demand.wants >= 0 && (int)entry->priority == demands->priority);
}

static void doorman__child_destroy(doorman__child *child) {
    if (!child) return;
    assert(!child->frozen && child->offered.count == 0);
    DOORMAN_FREE(child->now.items);
    DOORMAN_FREE(child->offered.items);
    DOORMAN_FREE(child);
}

static void doorman__leases_remove(doorman__lease_table *leases, doorman__lease_entry *entry) {
    doorman__child *child = doorman__entry_child(entry);
    if (child) {
        if (child->frozen) doorman__leases_unfreeze(leases, entry);
        doorman__leases_unindex(leases, &child->now);
        doorman__leases_retract(leases, entry);
    } else if (entry->indexed) {
        doorman__demand own = doorman__entry_demand(leases, entry);
        doorman__index_remove(&leases->index, (int)entry->priority, &own);
    }
    doorman__rotation_end(leases, entry);
    doorman__leases_set_amounts(leases, entry, 0, 0);
    leases->unconfirmed_count -= doorman__entry_unconfirmed(entry);
    doorman__table_remove(&leases->entries, &entry->link);
    doorman__leases_unlist(leases, entry);
    doorman__child_destroy(child);
    DOORMAN_FREE(entry);
    leases->terms_count = 0;
    assert(leases->entries.count > 0 || (!leases->oldest && !leases->draining));
    assert(leases->unconfirmed_count <= leases->entries.count);
    /* C9: without entries the committed sum is exactly 0. */
    assert(leases->entries.count > 0 || (leases->committed.high | leases->committed.low) == 0);
}

static void doorman__leases_uninit(doorman__lease_table *leases) {
    assert(leases->entries.count == 0 && leases->rotations.count == 0);
    doorman__table_uninit(&leases->entries);
    doorman__table_uninit(&leases->rotations);
    doorman__index_uninit(&leases->index);
}

/* Begins a new list of entries (see "expiry"), unless the old list still has entries. */
static void doorman__leases_drain(doorman__lease_table *leases) {
    if (leases->draining) return;
    leases->draining = leases->oldest;
    leases->oldest = leases->newest = NULL;
    assert(!leases->draining == (leases->entries.count == 0));
}

/* Sets how the resource is shared. Must be called whenever a field of the algorithm changes. */
static void doorman__leases_set_algorithm(doorman__lease_table *leases,
                                          const doorman_algorithm *algorithm, bool whole) {
    assert((unsigned)algorithm->kind < DOORMAN_KIND_COUNT && algorithm->lease_length >= 0);
    if (algorithm->lease_length < leases->lease_length) doorman__leases_drain(leases);
    if (!whole) leases->clock_until = 0;
    leases->algorithm = algorithm;
    leases->lease_length = algorithm->lease_length;
    leases->whole = whole;
    leases->terms_count = 0;
}

/* Sets C, K, and the time by which leases must have ended. */
static void doorman__leases_set_capacity(doorman__lease_table *leases, double capacity,
                                         double may_commit, doorman_time end_by) {
    assert(capacity >= 0 && capacity <= DOORMAN_AMOUNT_MAX && may_commit >= 0);
    if (!doorman__equal(capacity, leases->capacity)) leases->terms_count = 0;
    leases->capacity = capacity;
    leases->may_commit = may_commit;
    leases->end_by = end_by;
}

static double doorman__leases_wants(const doorman__lease_table *leases) {
    return doorman__index_wants(&leases->index) + leases->frozen_wants.wants;
}

static double doorman__leases_subclients(const doorman__lease_table *leases) {
    return (double)(leases->index.subclients + leases->frozen_wants.subclients);
}

/* Uses the terms that the parent sent, if each demand has terms, and the sum of the targets exceeds
 * the capacity by at most a thousandth. Otherwise returns false. A small excess does no harm,
 * because each grant is at most what is free. If the node used its own terms instead, its level
 * would differ from the level of the rest of the tree. With a reserve the two levels might never
 * become equal again. With whole units the sum may exceed the capacity by four more units. The
 * lease of the node may be the sum rounded down, and at each level of the tree one more unit may be
 * moving between holders. Four units are enough for a tree of four levels. If the sum is below the
 * capacity, the holders divide the rest in proportion to what they still want, until the parent
 * sends new terms. Terms of a kind that divides no capacity always fit. */
static bool doorman__leases_take_parent_terms(doorman__lease_table *leases, double capacity) {
    const size_t count = leases->parent_terms_count;
    double part = 0;
    assert(count <= DOORMAN_TERMS_MAX);
    if (count == 0) return false;
    if (doorman__divides_capacity(leases->algorithm)) {
        double sum = doorman__terms_sum(leases->parent_terms, count, &leases->index);
        double most = capacity * (1 + 1e-3) + (leases->whole ? 4 : 0);
        if (sum < 0 || sum > most) return false;
        double unmet = doorman__index_wants(&leases->index) - sum;
        part = unmet > 0 ? doorman__min(1, doorman__max(0, (capacity - sum) / unmet)) : 0;
    }
    for (size_t i = 0; i < count; i++) {
        leases->terms[i] = leases->parent_terms[i];
        leases->terms[i].slope += (1 - leases->terms[i].slope) * part;
    }
    leases->terms_count = count;
    return true;
}

/* Computes the terms in force (T2): the terms of the parent if they fit into the capacity, or else
 * the node's own terms. With the terms of the parent, all clients of a tree are treated as if they
 * had one server. */
static void doorman__leases_solve(doorman__lease_table *leases) {
    const doorman_algorithm *algorithm = leases->algorithm;
    assert((unsigned)algorithm->kind < DOORMAN_KIND_COUNT);
    double capacity = doorman__total_left(leases->frozen, leases->capacity);
    if (doorman__leases_take_parent_terms(leases, capacity)) return;
    leases->terms_count =
        doorman__solvers[algorithm->kind](algorithm, capacity, &leases->index, leases->terms);
}

/* Returns the target of a holder, which may be more than what is free. The target of a frozen child
 * is its lease. */
static double doorman__leases_target(doorman__lease_table *leases,
                                     const doorman__lease_entry *entry) {
    const doorman__child *child = doorman__entry_child(entry);
    if (child && child->frozen) return entry->has;
    if (!leases->terms_count) doorman__leases_solve(leases);
    const double weight = child ? 1 : doorman__entry_demand(leases, entry).subclients;
    doorman_demand demand = {child ? 0 : entry->demand.wants, weight, (int)entry->priority};
    double target = 0;
    if (!child) target = doorman__terms_target(leases->terms, leases->terms_count, &demand);
    for (size_t i = 0; child && i < child->now.count; i++) {
        const doorman__demand_group *group = &child->now.items[i];
        demand = (doorman_demand){group->demand.wants, group->demand.subclients, group->priority};
        target += doorman__terms_target(leases->terms, leases->terms_count, &demand);
    }
    return doorman__min(target, DOORMAN_AMOUNT_MAX);
}

static double doorman__entry_subclients(const doorman__lease_table *leases,
                                        const doorman__lease_entry *entry) {
    const doorman__child *child = doorman__entry_child(entry);
    double subclients = child ? 0 : entry->indexed;
    if (!child && entry->indexed) subclients = doorman__entry_demand(leases, entry).subclients;
    for (size_t i = 0; child && i < child->now.count; i++) {
        subclients += child->now.items[i].demand.subclients;
    }
    return subclients;
}

/* Returns a capacity minus the sum of the other holders' amounts, at least 0.
 *   own   the amount of the holder in the sum */
static double doorman__left_by_others(doorman__total all, double own, double capacity) {
    doorman__total_subtract(&all, own);
    return doorman__total_left(all, capacity);
}

static double doorman__leases_free(const doorman__lease_table *leases,
                                   const doorman__lease_entry *entry) {
    return doorman__left_by_others(leases->committed, entry->committed, leases->capacity);
}

static bool doorman__leases_learning(const doorman__lease_table *leases, doorman_time now) {
    return now < leases->learned_at && doorman__divides_capacity(leases->algorithm);
}

/* Rounds an amount down to a possible lease. With whole units a lease is an integer. Without whole
 * units a lease is an amount that the sums can store exactly. */
static double doorman__leases_round_down(const doorman__lease_table *leases, double amount) {
    return leases->whole ? doorman__whole_floor(amount) : doorman__floor(amount);
}

static double doorman__leases_round_up(const doorman__lease_table *leases, double amount) {
    return leases->whole ? doorman__whole_ceil(amount) : doorman__ceil(amount);
}

/* R4: lowers u to a claim. Precondition: the holder has named its last lease. */
static void doorman__leases_confirm(doorman__lease_table *leases, doorman__lease_entry *entry,
                                    double claim) {
    assert(claim >= 0);
    double committed = doorman__min(entry->committed, doorman__leases_round_up(leases, claim));
    if (entry->has > committed) {
        doorman__total_add(&leases->spare, entry->has);
        doorman__total_subtract(&leases->spare, committed);
    }
    doorman__leases_set_amounts(leases, entry, doorman__min(entry->has, committed), committed);
}

/* Returns what the holder may still be using: min(committed, claim). With `confirmed` handover the
 * result is also at most may_commit minus what is committed for the other holders (R5). */
static double doorman__leases_held(const doorman__lease_table *leases,
                                   const doorman__lease_entry *entry, double claim) {
    double own = entry->committed, in_force = doorman__min(own, claim);
    assert(claim >= 0);
    bool confirmed = leases->algorithm->handover == DOORMAN_CONFIRMED;
    bool bound = confirmed && leases->may_commit <= DOORMAN_AMOUNT_MAX;
    if (!bound) return in_force;
    double left = doorman__left_by_others(leases->committed, own, leases->may_commit);
    return doorman__min(in_force, left);
}

/* R5: returns the largest lease that the holder may get. `in_force` is what it may still be using.
 * In a round, two more bounds apply: one for the sum of all leases, and one for the sum of v. */
static double doorman__leases_most(const doorman__lease_table *leases,
                                   const doorman__lease_entry *entry, double in_force) {
    double leased = doorman__min(in_force, doorman__entry_leased(entry));
    double most = doorman__max(doorman__leases_free(leases, entry), leased);
    assert(in_force >= 0 && in_force <= entry->committed);
    if (!leases->round_is_on) return most;
    double fits = doorman__left_by_others(leases->has, entry->has, leases->capacity);
    most = doorman__min(most, doorman__max(fits, entry->has));
    double own = doorman__entry_in_round(leases, entry);
    return doorman__min(most, doorman__left_by_others(leases->in_round, own, leases->capacity));
}

/* R5: grants a lease. Returns the committed amount for the response, at least the lease. */
static double doorman__leases_grant(doorman__lease_table *leases, doorman__lease_entry *entry,
                                    double target, double claim) {
    bool divides = doorman__divides_capacity(leases->algorithm);
    bool immediate = leases->algorithm->handover == DOORMAN_IMMEDIATE;
    assert(target >= 0 && claim >= 0);
    double in_force = doorman__leases_held(leases, entry, claim);
    doorman__leases_check_round(leases);
    double most = doorman__leases_most(leases, entry, in_force);
    double has = doorman__leases_round_down(leases, divides ? doorman__min(target, most) : target);
    double committed = immediate ? has : doorman__max(has, in_force);
    doorman__leases_commit(leases, entry, has, committed);
    assert(entry->has <= target && entry->has <= committed && committed <= DOORMAN_AMOUNT_MAX);
    return committed;
}

/* R7: renews the last lease of a child that learns. The new lease is smaller if may_commit has no
 * room for the last lease. The claim of the child confirms nothing. */
static double doorman__leases_return(doorman__lease_table *leases, doorman__lease_entry *entry) {
    assert(entry->is_server && !doorman__total_less(leases->has, doorman__total_of(entry->has)));
    double has = doorman__leases_held(leases, entry, entry->has);
    has = doorman__leases_round_down(leases, has);
    doorman__leases_freeze(leases, entry);
    doorman__leases_check_round(leases);
    doorman__leases_commit(leases, entry, has, has);
    return has;
}

/* R6: grants a lease while the lease table learns. `claim` is what the holder claims under a lease
 * of this node. The whole claim stays committed if that amount is free, even if the holder wants
 * and gets less (A4). If nothing is free, the holder gets a new lease of 0.
 *   outstanding   what a child node has committed for its own holders; 0 for a client. It is
 *                 committed even if it exceeds the capacity: a child of that node that learns may
 *                 use the amount even after the leases of the predecessor have ended (R7) */
static double doorman__leases_learn(doorman__lease_table *leases, doorman__lease_entry *entry,
                                    double target, double claim, double outstanding) {
    assert(target >= 0 && claim >= 0 && outstanding >= 0);
    double free = doorman__leases_free(leases, entry);
    double known = doorman__leases_round_down(leases, doorman__min(claim, free));
    doorman__total_add(&leases->spare, known);
    double most = doorman__min(free, doorman__total_floor(leases->spare));
    double more = doorman__leases_round_down(leases, doorman__min(target, most));
    double has = doorman__max(known, more);
    doorman__total_subtract(&leases->spare, has);
    doorman__leases_check_round(leases);
    doorman__leases_commit(leases, entry, has, has);
    bool immediate = leases->algorithm->handover == DOORMAN_IMMEDIATE;
    double committed = doorman__min(doorman__ceil(outstanding), DOORMAN_AMOUNT_MAX);
    if (committed <= entry->committed || immediate) return has;
    doorman__leases_set_amounts(leases, entry, has, committed);
    entry->recent = doorman__float_up(committed);
    return has;
}

/* ---- >>upstream ----------------------------------------------------------------------------- */
/*
 * An upstream requests leases for its owner: a client, or a server with a parent. A permit client
 * requests permits with the same struct. The upstream decides which leases to request, when, and
 * from which address. The upstream also interprets the responses. The upstream is passive. Its
 * owner passes demands to the upstream, and reads changes of leases from it:
 *
 *     a request    if (doorman__upstream_begin(upstream, now)) {
 *                      while ((held = doorman__upstream_next(upstream, now))) {
 *                          doorman__upstream_put(upstream, held, &report, now);
 *                      }
 *                      made = doorman__upstream_end(upstream, out, now);
 *                  }
 *     a response   status = doorman__upstream_accept(upstream, sequence, response, now);
 *                  while ((item = doorman__upstream_next_item(upstream, response, &held))) ...
 *     after both   while ((held = doorman__upstream_next_closed(upstream))) free it
 *
 * At most one request is under way. The upstream is in one of three states. Only
 * doorman__upstream_move changes the state:
 *
 *   state        meaning                    event                                next state
 *   READY        no request is under way    a request is made                    -> REQUESTED
 *                                           there is no memory for a request     -> BACKING_OFF
 *   REQUESTED    waits for one response     a response or a redirect comes       -> READY
 *                                           no valid response comes in time      -> BACKING_OFF
 *   BACKING_OFF  waits until retry_at       a request is made from retry_at on   -> REQUESTED
 *   REQUESTED, BACKING_OFF                  its owner is no longer master        -> READY
 *
 * A held lease belongs to a resource of the owner, and is a part of the owner's struct for that
 * resource. If its lease id is 0, the owner has no lease of that resource. Only
 * doorman__held_lease_move changes the state of a held lease:
 *
 *   state      meaning                                  event                       next state
 *   IDLE       waits until it is due                    its renewal is requested    -> REQUESTED
 *                                                       its owner closes it         -> CLOSING
 *   REQUESTED  its renewal is in the request            the request ends            -> IDLE
 *                                                       its owner closes it         -> ABANDONED
 *   ABANDONED  as REQUESTED, but its owner closed it    the request ends            -> CLOSING
 *                                                       its owner opens it again    -> REQUESTED
 *   CLOSING    waits until none of its units is in use  its release is requested    -> RELEASING
 *                                                       its owner opens it again    -> IDLE
 *   RELEASING  its release is in the request            the request ends            -> CLOSED
 *                                                       its owner opens it again    -> REOPENED
 *   REOPENED   as RELEASING, but its owner reopened it  the request ends            -> IDLE
 *                                                       its owner closes it         -> RELEASING
 *   CLOSED     in no request and in no heap             it is new: the owner adds   -> IDLE
 *                                                       it; else the owner frees it
 *   IDLE without a lease in force                       its owner closes it         -> CLOSED
 *   ABANDONED without a lease in force                  the request ends            -> CLOSED
 *   CLOSING without a lease in force                    its release is due          -> CLOSED
 *   any                                                 its owner removes it        -> CLOSED
 *
 * An owner may have very many held leases, so the upstream does not search all of them for what is
 * due. Each held lease has timers in these heaps:
 *
 *   heap      time                                           which held leases are in it
 *   dues      when to request, renew or confirm the lease    IDLE
 *   halves    when half of its refresh interval has passed   IDLE
 *   releases  when to release it                             CLOSING
 *   ends      the end of its lease                           those with a lease id, until their end
 *                                                            is noted
 *
 * A held lease is in force while it has a lease id and now < end. At other times a client uses the
 * fallback of the resource, and a server grants no lease (T4).
 *
 * K1 One request renews all held leases that are past half their refresh interval, if it has room.
 *    The request is made when the first held lease is due. A held lease becomes due at a random
 *    time: between the end of its refresh interval and 5 % later. The refresh interval is at most
 *    half of the lease, so that the renewal comes before the lease ends.
 *       In the following cases a held lease is due sooner. A new held lease is due at once. If a
 *    client's wants have changed by more than a tenth, the held lease is due when the minimum
 *    interval since its last request has passed. A client asks at once when a gauge has become idle
 *    (L4), so that others get the capacity that the gauge no longer needs. A client that was
 *    granted all its wants asks at once when its limiters refuse something and its wants have
 *    grown, because there may be more capacity (S3). A client confirms a smaller lease at once. A
 *    node confirms a smaller lease when the amounts that it has committed for its holders fit into
 *    the lease (R12). T1 has more cases for a node.
 * K2 After a failure the upstream tries its next address at once. When all addresses have failed, a
 *    round ends, and the upstream backs off for a random time between 1 s and an upper bound. After
 *    the first round the bound is 2 s. The bound doubles with each further round, up to 60 s. The
 *    bound is also at most the refresh interval. So when a server comes back, its holders ask again
 *    within about one refresh interval. If a server of the round has answered that it is not
 *    master, without an address to follow, the bound is at most 4 s, because an election ends soon.
 *    The random time is also at most a quarter of the time until the first lease ends. But the
 *    random time is never less than a second. A valid response of a master ends the series of
 *    rounds.
 * K3 The upstream follows a redirect at once, but at most five redirects in a row, and no redirect
 *    from TLS to plain text.
 * R2 The upstream accepts only the response to its last request, and accepts it once. If a lease
 *    that the request reported ends before the response comes, the response has no effect on that
 *    held lease.
 * R3 A holder limits itself to a claim before it sends the claim. The claim is the larger of two
 *    amounts: the capacity of its lease, and what is in use. A client counts its units in flight as
 *    in use. A node counts the amount that it has committed for its own holders as in use. The
 *    holder sends the capacity as `has` and what is in use as `outstanding`. When a granter
 *    receives the claim, it lowers its committed amount to the claim (R4). A new master bases its
 *    grant on `has` alone, even if `outstanding` is larger. The master does not know all leases
 *    yet, so larger leases could exceed the capacity.
 *       A holder that wants less gives capacity back before it sends the claim. While no server
 *    answers, the holder gives nothing back, because the next server that answers may be a new
 *    master. A new master would not know about the returned capacity, so no other holder would get
 *    it.
 * R9 If a holder gets a new lease from the node that granted its last lease, the end of its lease
 *    never gets earlier. The holder counts the length of a lease from the time at which the holder
 *    sent the request.
 * R10 A release names the lease that it ends. A holder releases a lease only when none of its units
 *    is in use. A holder sends the release once.
 */

/* Wants are met if the lease is at least this fraction of the wants (R12). */
#define DOORMAN__MET 0.999

typedef enum doorman__held_lease_state {
    DOORMAN__HELD_CLOSED, /* not in the upstream's list */
    DOORMAN__HELD_IDLE,
    DOORMAN__HELD_REQUESTED,
    DOORMAN__HELD_ABANDONED,
    DOORMAN__HELD_CLOSING,
    DOORMAN__HELD_RELEASING,
    DOORMAN__HELD_REOPENED,
    DOORMAN__HELD_STATE_COUNT
} doorman__held_lease_state;

typedef struct doorman__held_lease {
    struct doorman__held_lease *previous, *next; /* in the upstream's list */
    doorman__timer due;                          /* in the heap `dues` or `releases` */
    doorman__timer half, over;                   /* in the heaps `halves` and `ends` */
    doorman__held_lease_state state;
    const char *resource_id; /* in the owner's memory */

    /* The lease. */
    uint64_t lease_id; /* 0: there is no lease */
    uint64_t ended_id; /* the last lease whose end a server has noted; 0: none, or in a client */
    double capacity;
    doorman_time end;
    doorman_time length; /* from the last response with a lease to the end; 0: none came */
    double committed;    /* K: what the granter has committed for this holder */
    char node[DOORMAN_ID_BYTES_MAX + 1];

    /* These fields are from the last requested renewal. */
    double claimed;
    double requested_wants; /* the sum of the demands in that request */

    /* Each of these fields is from the last response that had a value for it. */
    bool has_outcome; /* false: no response has come yet */
    doorman_outcome outcome;
    bool granter_learns;
    bool met;   /* the lease is at least DOORMAN__MET of the wants in the request */
    bool cut;   /* the lease was smaller than the claim, so a confirmation follows (R12) */
    bool whole; /* leases are whole units */
    doorman_lease_reason reason; /* the reason in the last response with a lease (S14) */
    bool has_safe_capacity;
    double safe_capacity;
    doorman_time overload_target; /* 0: reports of overload have no effect */

    /* These fields say when to send requests: see doorman__held_lease_schedule. */
    doorman_time requested_at, refresh_interval;
    doorman_time request_at; /* when to request a renewal or a release */
    doorman_time renew_at;   /* when to request the renewal, if a closed lease is reopened */
    doorman_time confirm_at; /* when to confirm a smaller lease; NEVER: there is none to confirm */
} doorman__held_lease;

/* What servers behind a resource have counted since the last request (H11). */
typedef struct doorman__tally {
    doorman_overload_report sum; /* its interval is not used */
    doorman_time since;          /* if has_counted is true: when the counting began */
    bool has_counted;
} doorman__tally;

/* What an owner reports about one of its held leases when a request is made. */
typedef struct doorman__report {
    const doorman_demand *demands; /* one for a client, up to GROUPS_MAX for a server */
    size_t demand_count;
    double wants;          /* the sum of the demands */
    double outstanding;    /* a client: what is in use. A server: what it has committed */
    bool learning;         /* the owner does not know all its holders yet (R8) */
    doorman__tally *tally; /* the counts that the request reports, and resets; NULL: none */
} doorman__report;

/* A server reports at most this many demands for one resource (T2). */
#define DOORMAN__GROUPS_MAX (32 * (DOORMAN_PRIORITY_MAX + 1))

typedef enum doorman__upstream_state {
    DOORMAN__READY,
    DOORMAN__REQUESTED,
    DOORMAN__BACKING_OFF
} doorman__upstream_state;

#define DOORMAN__ADDRESSES_MAX 16
#define DOORMAN__REDIRECTS_MAX 5
#define DOORMAN__PATH_MAX 16

/* A request with this many items has at most 4 MiB and 200,000 values, even with the longest ids.
 * Further items wait for the next request. */
#define DOORMAN__ITEMS_MAX 1000
#define DOORMAN__ITEMS_MAX_CLIENT 500 /* lower, as an agent makes a request with its mutex locked */
#define DOORMAN__DEMANDS_MAX 20000

/* The functions that a caller's loop calls. A client, a server, and each port and lane of a permit
 * client contain an upstream, with a table of these functions. So this section does not depend on
 * the types of these objects. */
typedef struct doorman__upstream_calls {
    doorman_time (*due)(const doorman_upstream *upstream);
    void (*work)(doorman_upstream *upstream, doorman_time now); /* does what is due, except
                                                                   requests */
    /* makes a request, if one is due; `work` was called, and `out` is zeroed */
    bool (*request)(doorman_upstream *upstream, doorman_request *out, doorman_time now);
    doorman_status (*response)(doorman_upstream *upstream, uint64_t sequence,
                               const doorman_response *response, doorman_time now);
    /* is_wrong: a server has answered INVALID_ARGUMENT, so the server works */
    void (*failed)(doorman_upstream *upstream, uint64_t sequence, bool is_wrong, doorman_time now);
} doorman__upstream_calls;

struct doorman_upstream {
    const doorman__upstream_calls *calls; /* the functions of the owner */
    const char *holder_id;                /* in the owner's memory */
    bool is_server;
    const char *const *path; /* of a server: the nodes in a request (T8); in the owner's memory */
    size_t path_count;
    char *addresses[DOORMAN__ADDRESSES_MAX];
    size_t address_count, address_index;     /* a root has no addresses */
    char redirect[DOORMAN_ID_BYTES_MAX + 1]; /* the address of a redirect; "": none */
    unsigned redirects, failures;            /* `failures`: failed requests in a row */
    size_t tried_count;                      /* how many addresses have failed in this round (K2) */
    unsigned rounds;        /* the rounds in which all addresses failed, up to `rounds_max` */
    unsigned rounds_max;    /* bounds `rounds` at the end of this round */
    uint64_t failure_count; /* the number of failed requests since the start */
    /* the shortest refresh interval of the last response that granted a lease; 0: none has */
    doorman_time refresh_interval;
    bool interval_is_old; /* `refresh_interval` is from an earlier response */
    doorman__upstream_state state;
    doorman_method method; /* the method of the request under way, or else of the last request */
    uint64_t sequence, random;
    doorman_time now, sent_at, retry_at, timeout;
    doorman__held_lease *first, *last, *closed; /* the owner frees the held leases in `closed` */
    size_t held_count;
    doorman__timers dues, halves, releases, ends;

    /* The request under way. A request has one item for each of its held leases. The arrays have
     * room for the largest request of a client, so a client's requests need no further memory. */
    doorman_capacity_request *items;
    doorman__held_lease **in_request;
    size_t items_capacity, in_request_capacity, item_count;
    doorman_demand *demands; /* the demands of item 0, then those of item 1, and so on */
    size_t demands_capacity, demand_count;
    size_t processed_count; /* the number of items whose responses the owner has read */
    bool tried_both;        /* true: nothing was due for the first method */
    bool no_memory;         /* there was no memory for an item of the request */
};

const char *doorman_method_name(doorman_method method, bool is_server) {
    static const char *const names[] = {"discovery",       "get_capacity", "release_capacity",
                                        "report_overload", "acquire",      "report",
                                        "inspect",         "reset",        "renew",
                                        "release",         "transfer",     "seize",
                                        "settle"};
    bool server = is_server && method == DOORMAN_GET_CAPACITY;
    if ((unsigned)method >= DOORMAN_METHOD_COUNT) return "?";
    return server ? "get_server_capacity" : names[method];
}

static bool doorman__lease_reason_valid(doorman_lease_reason reason) {
    return !reason || (reason >= DOORMAN_LEASE_SHARE && reason <= DOORMAN_LEASE_LEARNING);
}

/* The names of the reasons, from DOORMAN_LEASE_SHARE on. */
static const char *const doorman__lease_reasons[] = {"SHARE", "CUT", "RESERVED", "LEARNING"};
#define DOORMAN__LEASE_REASON_COUNT 4

const char *doorman_lease_reason_name(doorman_lease_reason reason) {
    if (!doorman__lease_reason_valid(reason)) return "?";
    return reason ? doorman__lease_reasons[reason - DOORMAN_LEASE_SHARE] : "";
}

static void doorman__upstream_move(doorman_upstream *upstream, doorman__upstream_state state) {
    static const bool legal[3][3] = {
        [DOORMAN__READY] = {[DOORMAN__REQUESTED] = true, [DOORMAN__BACKING_OFF] = true},
        [DOORMAN__REQUESTED] = {[DOORMAN__READY] = true, [DOORMAN__BACKING_OFF] = true},
        [DOORMAN__BACKING_OFF] = {[DOORMAN__READY] = true, [DOORMAN__REQUESTED] = true}};
    assert(legal[upstream->state][state]);
    (void)legal;
    upstream->state = state;
}

static bool doorman__port_valid(const char *port, size_t bytes) {
    unsigned number = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (port[i] < '0' || port[i] > '9' || number > UINT16_MAX) return false;
        number = 10 * number + (unsigned)(port[i] - '0');
    }
    return number >= 1 && number <= UINT16_MAX;
}

/* Returns the rule that an address breaks, or NULL if the address is valid. Only an address whose
 * scheme is in the list can have a port. In "tcp://[::1]:5000" the port is 5000. */
static const char *doorman__address_fault(const char *address) {
    static const char *const schemes[] = {"tcp://",      "tcp4://",     "tcp6://", "tls+tcp://",
                                          "tls+tcp4://", "tls+tcp6://", "ws://",   "wss://"};
    if (!doorman__id_valid(address)) return DOORMAN__ID_RULE;
    size_t bytes = strlen(address);
    if (address[0] == ' ' || address[bytes - 1] == ' ') return "must not begin or end with a space";
    for (int i = 0; i < 8; i++) {
        size_t scheme = strlen(schemes[i]);
        if (strncmp(address, schemes[i], scheme) != 0) continue;
        if (strchr(address, ' ')) return "must not contain a space";
        const char *host = address + scheme, *end = host + strcspn(host, "/"), *port = end;
        while (port > host && port[-1] != ':' && port[-1] != ']') port--;
        bool has_port = port > host && port[-1] == ':';
        if (has_port && !doorman__port_valid(port, (size_t)(end - port))) {
            return "the port must be a number from 1 to 65535";
        }
    }
    return NULL;
}

static doorman_status doorman__upstream_init(doorman_upstream *upstream, const char *holder_id,
                                             const char *const *addresses, size_t address_count,
                                             doorman_error *error) {
    assert(upstream->calls);
    if (address_count < 1 || address_count > DOORMAN__ADDRESSES_MAX || !addresses) {
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "addresses: must be 1 to %d",
                             DOORMAN__ADDRESSES_MAX);
    }
    for (size_t i = 0; i < address_count; i++) {
        const char *rule = doorman__address_fault(addresses[i]);
        if (rule) {
            return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "addresses[%zu]: %s", i, rule);
        }
    }
    upstream->holder_id = holder_id;
    for (; upstream->address_count < address_count; upstream->address_count++) {
        char *copy = doorman__copy(addresses[upstream->address_count]);
        if (!copy) return doorman__no_memory(error);
        upstream->addresses[upstream->address_count] = copy;
    }
    return DOORMAN_OK;
}

/* Precondition: the owner has removed all held leases. */
static void doorman__upstream_uninit(doorman_upstream *upstream) {
    assert(!upstream->first && !upstream->closed && !upstream->held_count);
    for (size_t i = 0; i < upstream->address_count; i++) DOORMAN_FREE(upstream->addresses[i]);
    DOORMAN_FREE(upstream->items);
    DOORMAN_FREE(upstream->in_request);
    DOORMAN_FREE(upstream->demands);
    doorman__timers_uninit(&upstream->dues);
    doorman__timers_uninit(&upstream->halves);
    doorman__timers_uninit(&upstream->releases);
    doorman__timers_uninit(&upstream->ends);
}

static doorman_time doorman__upstream_now(doorman_upstream *upstream, doorman_time now) {
    return upstream->now = doorman__later(upstream->now, now);
}

static size_t doorman__upstream_items_max(const doorman_upstream *upstream) {
    return upstream->is_server ? DOORMAN__ITEMS_MAX : DOORMAN__ITEMS_MAX_CLIENT;
}

static bool doorman__upstream_reserve_demands(doorman_upstream *upstream, size_t count) {
    return doorman__reserve(&upstream->demands, &upstream->demands_capacity, count,
                            sizeof *upstream->demands);
}

static bool doorman__upstream_reserve(doorman_upstream *upstream) {
    size_t all = upstream->held_count + 1, most = doorman__upstream_items_max(upstream);
    size_t count = all < most ? all : most;
    return doorman__reserve(&upstream->items, &upstream->items_capacity, count,
                            sizeof *upstream->items) &&
           doorman__reserve(&upstream->in_request, &upstream->in_request_capacity, count,
                            sizeof(doorman__held_lease *)) &&
           (upstream->is_server || doorman__upstream_reserve_demands(upstream, count)) &&
           doorman__timers_reserve(&upstream->dues, all) &&
           doorman__timers_reserve(&upstream->halves, all) &&
           doorman__timers_reserve(&upstream->releases, all) &&
           doorman__timers_reserve(&upstream->ends, all);
}

static const char *doorman__upstream_address(const doorman_upstream *upstream) {
    return upstream->redirect[0] ? upstream->redirect
                                 : upstream->addresses[upstream->address_index];
}

/* Returns when the request under way times out, or else when the next request is due. */
static doorman_time doorman__upstream_due(const doorman_upstream *upstream) {
    if (upstream->state == DOORMAN__REQUESTED) {
        return doorman__after(upstream->sent_at, upstream->timeout);
    }
    doorman_time due = doorman__earlier(doorman__timers_due(&upstream->dues),
                                        doorman__timers_due(&upstream->releases));
    return upstream->state == DOORMAN__READY ? due : doorman__later(due, upstream->retry_at);
}

/* ---- upstream: a held lease */

static bool doorman__held_lease_live(const doorman__held_lease *held, doorman_time now) {
    return held->lease_id && now < held->end;
}

/* Returns true from the time the owner closes a held lease until it is reopened or CLOSED. */
static bool doorman__held_lease_ending(const doorman__held_lease *held) {
    return held->state == DOORMAN__HELD_ABANDONED || held->state == DOORMAN__HELD_CLOSING ||
           held->state == DOORMAN__HELD_RELEASING;
}

static bool doorman__held_lease_in_request(const doorman__held_lease *held) {
    return held->state == DOORMAN__HELD_REQUESTED || held->state == DOORMAN__HELD_ABANDONED ||
           held->state == DOORMAN__HELD_RELEASING || held->state == DOORMAN__HELD_REOPENED;
}

/* Sets the timers of a held lease from its fields. Called after these fields have changed. */
static void doorman__held_lease_set_timers(doorman_upstream *upstream, doorman__held_lease *held) {
    bool idle = held->state == DOORMAN__HELD_IDLE, closing = held->state == DOORMAN__HELD_CLOSING;
    doorman_time due = DOORMAN_NEVER, half = DOORMAN_NEVER, end = DOORMAN_NEVER;
    if (idle || closing) due = doorman__earlier(held->request_at, held->confirm_at);
    if (idle) half = doorman__after(held->requested_at, held->refresh_interval / 2);
    bool is_noted = held->ended_id == held->lease_id; /* the end of the lease was noted */
    if (held->lease_id && !is_noted && held->state != DOORMAN__HELD_CLOSED) end = held->end;
    doorman__timer_set(closing ? &upstream->releases : &upstream->dues, &held->due, due);
    doorman__timer_set(&upstream->halves, &held->half, half);
    doorman__timer_set(&upstream->ends, &held->over, end);
}

static void doorman__held_lease_move(doorman_upstream *upstream, doorman__held_lease *held,
                                     doorman__held_lease_state state) {
    enum {
        CLOSED = 1 << DOORMAN__HELD_CLOSED,
        IDLE = 1 << DOORMAN__HELD_IDLE,
        REQUESTED = 1 << DOORMAN__HELD_REQUESTED,
        ABANDONED = 1 << DOORMAN__HELD_ABANDONED,
        CLOSING = 1 << DOORMAN__HELD_CLOSING,
        RELEASING = 1 << DOORMAN__HELD_RELEASING,
        REOPENED = 1 << DOORMAN__HELD_REOPENED
    };
    static const int legal[DOORMAN__HELD_STATE_COUNT] = {
        [DOORMAN__HELD_CLOSED] = IDLE,
        [DOORMAN__HELD_IDLE] = REQUESTED | CLOSING | CLOSED,
        [DOORMAN__HELD_REQUESTED] = IDLE | ABANDONED | CLOSED,
        [DOORMAN__HELD_ABANDONED] = CLOSING | REQUESTED | CLOSED,
        [DOORMAN__HELD_CLOSING] = RELEASING | IDLE | CLOSED,
        [DOORMAN__HELD_RELEASING] = REOPENED | CLOSED,
        [DOORMAN__HELD_REOPENED] = IDLE | RELEASING | CLOSED};
    assert(legal[held->state] & 1 << state);
    (void)legal;
    bool closing = held->state == DOORMAN__HELD_CLOSING;
    doorman__timer_clear(closing ? &upstream->releases : &upstream->dues, &held->due);
    held->state = state;
    doorman__held_lease_set_timers(upstream, held);
}

static void doorman__held_lease_request_at(doorman_upstream *upstream, doorman__held_lease *held,
                                           doorman_time at) {
    held->request_at = at;
    doorman__held_lease_set_timers(upstream, held);
}

static void doorman__held_lease_confirm_at(doorman_upstream *upstream, doorman__held_lease *held,
                                           doorman_time at) {
    held->confirm_at = at;
    doorman__held_lease_set_timers(upstream, held);
}

/* Adds a held lease, due at once. Precondition: doorman__upstream_reserve has succeeded. */
static void doorman__upstream_add(doorman_upstream *upstream, doorman__held_lease *held,
                                  doorman_time now) {
    assert(held->state == DOORMAN__HELD_CLOSED && !held->previous && !held->next);
    held->previous = upstream->last;
    *(upstream->last ? &upstream->last->next : &upstream->first) = held;
    upstream->last = held;
    upstream->held_count++;
    held->request_at = now;
    held->confirm_at = DOORMAN_NEVER;
    doorman__held_lease_move(upstream, held, DOORMAN__HELD_IDLE);
}

/* Removes a held lease. The upstream will send no release for it. The owner may free it at once,
 * but if it is in the request under way, must then call doorman__upstream_forget or
 * doorman__upstream_uninit. */
static void doorman__upstream_remove(doorman_upstream *upstream, doorman__held_lease *held) {
    assert(upstream->held_count > 0);
    *(held->previous ? &held->previous->next : &upstream->first) = held->next;
    *(held->next ? &held->next->previous : &upstream->last) = held->previous;
    held->previous = held->next = NULL;
    upstream->held_count--;
    doorman__held_lease_move(upstream, held, DOORMAN__HELD_CLOSED);
    assert(!held->due.position && !held->half.position && !held->over.position);
}

/* Moves a held lease that has nothing to release to the list `closed`, for its owner to free. */
static void doorman__held_lease_finish(doorman_upstream *upstream, doorman__held_lease *held) {
    assert(doorman__held_lease_ending(held) || held->state == DOORMAN__HELD_IDLE);
    doorman__upstream_remove(upstream, held);
    held->next = upstream->closed;
    upstream->closed = held;
}

/* Returns a closed held lease for the owner to free, or NULL. After every call that can close a
 * held lease, the owner calls this function until it returns NULL. */
static doorman__held_lease *doorman__upstream_next_closed(doorman_upstream *upstream) {
    doorman__held_lease *held = upstream->closed;
    if (!held) return NULL;
    assert(held->state == DOORMAN__HELD_CLOSED);
    upstream->closed = held->next;
    held->next = NULL;
    return held;
}

/* Makes a held lease due at the latest when `minimum` has passed since requested_at. Has no effect
 * before the first response. */
static void doorman__held_lease_expedite(doorman_upstream *upstream, doorman__held_lease *held,
                                         doorman_time minimum, doorman_time now) {
    if (!held->has_outcome) return;
    assert(minimum >= 0 && held->state != DOORMAN__HELD_CLOSED);
    doorman_time soon = doorman__later(now, doorman__after(held->requested_at, minimum));
    doorman__held_lease_request_at(upstream, held, doorman__earlier(held->request_at, soon));
}

/* Makes a held lease due sooner if its owner's wants have changed by more than a tenth (K1). */
static void doorman__held_lease_wants(doorman_upstream *upstream, doorman__held_lease *held,
                                      double wants, doorman_time now) {
    if (held->whole) wants = doorman__whole_ceil(wants);
    double tenth = held->requested_wants / 10;
    bool near = wants <= held->requested_wants + tenth && wants >= held->requested_wants - tenth;
    if (near) return;
    doorman_time minimum = doorman__earlier(5 * DOORMAN_SECOND, held->refresh_interval / 2);
    doorman__held_lease_expedite(upstream, held, minimum, now);
}

/* Makes a held lease due at once if the last response granted all its wants. The minimum interval
 * does not apply, because there may be more capacity (K1). */
static void doorman__held_lease_grow(doorman_upstream *upstream, doorman__held_lease *held,
                                     doorman_time now) {
    if (held->met) doorman__held_lease_expedite(upstream, held, 0, now);
}

/* R3: lowers the lease to what its owner needs, unless requests fail. Returns whether it did. */
static bool doorman__held_lease_give_back(const doorman_upstream *upstream,
                                          doorman__held_lease *held, double needed,
                                          doorman_time now) {
    assert(needed >= 0);
    if (upstream->failures > 0 || !doorman__held_lease_live(held, now)) return false;
    if (needed >= held->capacity) return false;
    held->capacity = needed;
    return true;
}

/* Closes a held lease for its owner. If the lease is not in force, the held lease becomes CLOSED.
 * If the lease is in force, a request releases it, at the earliest at release_at, and later if
 * units of the lease are still in use. If the held lease is in the request under way, that request
 * ends before any of this happens. */
static void doorman__held_lease_close(doorman_upstream *upstream, doorman__held_lease *held,
                                      doorman_time release_at, doorman_time now) {
    assert(!doorman__held_lease_ending(held) && held->state != DOORMAN__HELD_CLOSED);
    held->confirm_at = DOORMAN_NEVER;
    held->renew_at = held->request_at;
    held->request_at = release_at;
    if (held->state == DOORMAN__HELD_IDLE && !doorman__held_lease_live(held, now)) {
        doorman__held_lease_finish(upstream, held);
    } else if (held->state == DOORMAN__HELD_IDLE) {
        doorman__held_lease_move(upstream, held, DOORMAN__HELD_CLOSING);
    } else if (held->state == DOORMAN__HELD_REQUESTED) {
        doorman__held_lease_move(upstream, held, DOORMAN__HELD_ABANDONED);
    } else {
        doorman__held_lease_move(upstream, held, DOORMAN__HELD_RELEASING);
    }
}

/* Reopens a held lease that its owner has closed. If the request under way releases the lease, the
 * held lease is due when that request has ended. If the request under way renews the lease, the
 * response says when the held lease is due next. Otherwise the held lease is due at once. */
static void doorman__held_lease_reopen(doorman_upstream *upstream, doorman__held_lease *held,
                                       doorman_time now) {
    assert(doorman__held_lease_ending(held));
    held->request_at = now;
    static const doorman__held_lease_state opened[DOORMAN__HELD_STATE_COUNT] = {
        [DOORMAN__HELD_CLOSING] = DOORMAN__HELD_IDLE,
        [DOORMAN__HELD_ABANDONED] = DOORMAN__HELD_REQUESTED,
        [DOORMAN__HELD_RELEASING] = DOORMAN__HELD_REOPENED};
    doorman__held_lease_move(upstream, held, opened[held->state]);
}

static void doorman__held_lease_end_request(doorman_upstream *upstream, doorman__held_lease *held) {
    assert(doorman__held_lease_in_request(held));
    if (!doorman__held_lease_ending(held)) {
        doorman__held_lease_move(upstream, held, DOORMAN__HELD_IDLE);
    } else if (doorman__held_lease_live(held, upstream->now)) {
        doorman__held_lease_move(upstream, held, DOORMAN__HELD_CLOSING);
    } else {
        doorman__held_lease_finish(upstream, held);
    }
}

/* ---- upstream: when a request ends */

/* Ends a request that failed, was redirected, or was a release. If a request with renewals failed
 * or was redirected, its leases become due now. In the next request, held leases that became due
 * earlier come first. So no held lease waits for ever if one request has no room for all. */
static void doorman__upstream_end_items(doorman_upstream *upstream, bool has_response) {
    for (size_t i = 0; i < upstream->item_count; i++) {
        doorman__held_lease *held = upstream->in_request[i];
        if (!has_response) held->request_at = upstream->now;
        doorman__held_lease_end_request(upstream, held);
    }
    upstream->item_count = 0;
}

static void doorman__upstream_end_failures(doorman_upstream *upstream) {
    upstream->tried_count = 0;
    upstream->failures = upstream->rounds = upstream->redirects = 0;
}

/* Removes all held leases. The upstream will send no release for them. A response to the request
 * under way will be dropped. The owner frees the held leases. */
static void doorman__upstream_forget(doorman_upstream *upstream) {
    assert(!upstream->closed);
    upstream->item_count = 0;
    while (upstream->first) doorman__upstream_remove(upstream, upstream->first);
    if (upstream->state != DOORMAN__READY) doorman__upstream_move(upstream, DOORMAN__READY);
    assert(!upstream->held_count && !upstream->first && !upstream->last);
    doorman__upstream_end_failures(upstream);
    upstream->redirect[0] = 0;
    upstream->refresh_interval = 0;
}

/* K2: after n rounds the upper bound is 2^n seconds, but at most 60 s. n is at most ROUNDS_MAX, or
 * ROUNDS_MAX_ALIVE during an election. */
#define DOORMAN__ROUNDS_MAX 6
#define DOORMAN__ROUNDS_MAX_ALIVE 2

/* Returns the earliest end of the leases in force, and clears the timers of leases that have ended.
 * In a server, doorman__server_note_ends clears these timers instead. */
static doorman_time doorman__upstream_first_end(doorman_upstream *upstream) {
    while (!upstream->is_server && doorman__timers_due(&upstream->ends) <= upstream->now) {
        doorman__timer_clear(&upstream->ends, doorman__timers_first(&upstream->ends));
    }
    return doorman__timers_due(&upstream->ends);
}

/* Returns how long to wait after a round in which all addresses failed (K2). */
static doorman_time doorman__upstream_pause(doorman_upstream *upstream) {
    doorman_time most = doorman__earlier(DOORMAN_SECOND << upstream->rounds, 60 * DOORMAN_SECOND);
    if (upstream->refresh_interval > 0) {
        most = doorman__earlier(most, upstream->refresh_interval);
    }
    most = doorman__later(most, DOORMAN_SECOND);
    assert(most >= DOORMAN_SECOND && most <= 60 * DOORMAN_SECOND);
    doorman_time spread =
        doorman__scale(most - DOORMAN_SECOND, doorman__random_unit(&upstream->random));
    doorman_time quarter = (doorman__upstream_first_end(upstream) - upstream->now) / 4;
    return doorman__later(doorman__earlier(DOORMAN_SECOND + spread, quarter), DOORMAN_SECOND);
}

/* Ends a request that has failed, and sets when to try again.
 *   rounds_max   ROUNDS_MAX, or ROUNDS_MAX_ALIVE if the server answered that it is not master */
static void doorman__upstream_back_off(doorman_upstream *upstream, unsigned rounds_max) {
    doorman__upstream_move(upstream, DOORMAN__BACKING_OFF);
    doorman__upstream_end_items(upstream, false);
    assert(upstream->tried_count < upstream->address_count);
    bool first = upstream->tried_count == 0;
    if (first || rounds_max < upstream->rounds_max) upstream->rounds_max = rounds_max;
    if (upstream->failures < UINT16_MAX) upstream->failures++;
    upstream->failure_count++;
    upstream->tried_count++;
    upstream->redirects = 0;
    upstream->redirect[0] = 0;
    upstream->address_index = (upstream->address_index + 1) % upstream->address_count;
    upstream->retry_at = upstream->now;
    if (upstream->tried_count < upstream->address_count) return;
    bool grows = upstream->rounds < upstream->rounds_max;
    upstream->rounds = grows ? upstream->rounds + 1 : upstream->rounds_max;
    upstream->tried_count = 0;
    upstream->retry_at = doorman__after(upstream->now, doorman__upstream_pause(upstream));
}

#ifdef DOORMAN_NNG
/* Ends a pause early, because another connection to the servers has had a response. The call ends
 * no pause sooner than a second after the last request, because the next may fail too. */
static void doorman__upstream_retry_soon(doorman_upstream *upstream, doorman_time now) {
    if (upstream->state != DOORMAN__BACKING_OFF) return;
    doorman_time soon = doorman__later(now, doorman__after(upstream->sent_at, DOORMAN_SECOND));
    upstream->retry_at = doorman__earlier(upstream->retry_at, soon);
}
#endif

/* Ends a request that got no valid response. The call has no effect unless this request is under
 * way. */
static void doorman__upstream_fail(doorman_upstream *upstream, uint64_t sequence,
                                   doorman_time now) {
    doorman__upstream_now(upstream, now);
    if (upstream->state != DOORMAN__REQUESTED || sequence != upstream->sequence) return;
    doorman__upstream_back_off(upstream, DOORMAN__ROUNDS_MAX);
}

/* ---- upstream: a request */

/* Starts a request, which has either renewals or releases. If both are due, requests with renewals
 * and requests with releases alternate. Returns false if a request is under way and has not timed
 * out, if the upstream is backing off, or if nothing is due. */
static bool doorman__upstream_begin(doorman_upstream *upstream, doorman_time now) {
    now = doorman__upstream_now(upstream, now);
    upstream->tried_both = upstream->no_memory = false;
    if (upstream->state == DOORMAN__REQUESTED) {
        if (now - upstream->sent_at < upstream->timeout) return false;
        doorman__upstream_back_off(upstream, DOORMAN__ROUNDS_MAX);
    }
    if (now < doorman__upstream_due(upstream)) return false;
    assert(upstream->item_count == 0);
    bool released = upstream->method == DOORMAN_RELEASE_CAPACITY;
    upstream->method = released ? DOORMAN_GET_CAPACITY : DOORMAN_RELEASE_CAPACITY;
    upstream->demand_count = 0;
    return true;
}

/* Reserves memory for the largest item. Returns false if the request is full or memory runs out. */
static bool doorman__upstream_room(doorman_upstream *upstream) {
    if (upstream->item_count == doorman__upstream_items_max(upstream)) return false;
    size_t count = upstream->demand_count + (upstream->is_server ? DOORMAN__GROUPS_MAX : 1);
    if (count > DOORMAN__DEMANDS_MAX) return false;
    if (doorman__upstream_reserve_demands(upstream, count)) return true;
    upstream->no_memory = true;
    return false;
}

/* K1: returns the next held lease to renew, or NULL. Held leases that are due come first. If the
 * request has items, held leases that are past half their refresh interval come after them. */
static doorman__held_lease *doorman__upstream_next_renewal(doorman_upstream *upstream,
                                                           doorman_time now) {
    bool due = doorman__timers_due(&upstream->dues) <= now;
    bool half = upstream->item_count > 0 && doorman__timers_due(&upstream->halves) <= now;
    if ((!due && !half) || !doorman__upstream_room(upstream)) return NULL;
    doorman__timer *first = doorman__timers_first(due ? &upstream->dues : &upstream->halves);
    return due ? DOORMAN__WITHIN(doorman__held_lease, due, first)
               : DOORMAN__WITHIN(doorman__held_lease, half, first);
}

/* Returns the next held lease to release, or NULL. Held leases before it whose lease has ended
 * become CLOSED. */
static doorman__held_lease *doorman__upstream_next_release(doorman_upstream *upstream,
                                                           doorman_time now) {
    if (upstream->item_count == doorman__upstream_items_max(upstream)) return NULL;
    while (doorman__timers_due(&upstream->releases) <= now) {
        doorman__timer *first = doorman__timers_first(&upstream->releases);
        doorman__held_lease *held = DOORMAN__WITHIN(doorman__held_lease, due, first);
        if (doorman__held_lease_live(held, now)) return held;
        doorman__held_lease_finish(upstream, held);
    }
    return NULL;
}

/* Returns the next held lease for doorman__upstream_put, or NULL if none is left, the request is
 * full, or memory runs out. If the request is empty and its method has no such held lease, the
 * request changes to the other method, but only once. */
static doorman__held_lease *doorman__upstream_next(doorman_upstream *upstream, doorman_time now) {
    for (;;) {
        bool renews = upstream->method == DOORMAN_GET_CAPACITY;
        doorman__held_lease *held = renews ? doorman__upstream_next_renewal(upstream, now)
                                           : doorman__upstream_next_release(upstream, now);
        if (held || upstream->item_count || upstream->tried_both) return held;
        upstream->tried_both = true;
        upstream->method = renews ? DOORMAN_RELEASE_CAPACITY : DOORMAN_GET_CAPACITY;
    }
}

static void doorman__upstream_add_item(doorman_upstream *upstream, doorman__held_lease *held,
                                       const doorman_capacity_request *item) {
    assert(upstream->item_count < upstream->items_capacity);
    assert(upstream->item_count < upstream->in_request_capacity);
    upstream->in_request[upstream->item_count] = held;
    upstream->items[upstream->item_count++] = *item;
}

/* H11: adds a report to a sum. The interval of the sum does not change. */
static void doorman__overload_report_add(doorman_overload_report *sum,
                                         const doorman_overload_report *more) {
    sum->arrived += more->arrived;
    sum->finished += more->finished;
    sum->refused += more->refused;
    sum->late += more->late;
    assert(sum->arrived >= 0 && sum->late >= 0);
}

/* H11: adds a report to what was counted. The numbers of the sum are bounded, so that the sum stays
 * a valid report. */
static void doorman__tally_add(doorman__tally *tally, const doorman_overload_report *report,
                               doorman_time now) {
    assert(report->interval > 0);
    if (!tally->has_counted) *tally = (doorman__tally){.since = now, .has_counted = true};
    tally->since = doorman__earlier(tally->since, now - report->interval);
    doorman_overload_report *sum = &tally->sum;
    doorman__overload_report_add(sum, report);
    sum->arrived = doorman__min(sum->arrived, DOORMAN_AMOUNT_MAX);
    sum->finished = doorman__min(sum->finished, DOORMAN_AMOUNT_MAX);
    sum->refused = doorman__min(sum->refused, DOORMAN_AMOUNT_MAX);
    sum->late = doorman__min(sum->late, sum->finished);
    assert(sum->late >= 0);
}

/* Returns what was counted, and resets the counts. A lost request loses its report too. */
static doorman_overload_report doorman__tally_take(doorman__tally *tally, doorman_time now) {
    doorman_overload_report report = {.interval = 0};
    if (!tally || !tally->has_counted) return report;
    assert(tally->since <= now);
    report = tally->sum;
    report.interval = doorman__earlier(now - tally->since, DOORMAN_DURATION_MAX);
    tally->has_counted = false;
    return report;
}

/* R10: if no unit of the lease is in use, puts a release into the request, and clears the lease id.
 * If units are still in use, the request gets no release, and the next check is a second later, or
 * at the end of the lease. */
static void doorman__upstream_put_release(doorman_upstream *upstream, doorman__held_lease *held,
                                          double outstanding, doorman_time now) {
    if (outstanding > 0) {
        doorman_time second = doorman__after(now, DOORMAN_SECOND);
        doorman__held_lease_request_at(upstream, held, doorman__earlier(held->end, second));
        return;
    }
    const doorman_capacity_request item = {.resource_id = held->resource_id,
                                           .has = {.id = held->lease_id, .node = held->node}};
    assert(held->lease_id); /* next_release has checked that the lease is in force */
    held->lease_id = 0;
    doorman__held_lease_move(upstream, held, DOORMAN__HELD_RELEASING);
    doorman__upstream_add_item(upstream, held, &item);
}

static void doorman__upstream_put_renewal(doorman_upstream *upstream, doorman__held_lease *held,
                                          const doorman__report *report, double claim,
                                          doorman_time now) {
    doorman_capacity_request item = {.resource_id = held->resource_id,
                                     .outstanding = report->outstanding,
                                     .wants_count = report->demand_count,
                                     .learning = report->learning,
                                     .overload = doorman__tally_take(report->tally, now)};
    assert(claim >= report->outstanding);
    held->claimed = claim;
    held->requested_wants = report->wants;
    if (doorman__held_lease_live(held, now)) {
        held->committed = doorman__min(held->committed, claim);
        item.has.id = held->lease_id;
        item.has.node = held->node;
        item.has.capacity = doorman__min(claim, held->capacity); /* R3 */
        item.has.expires_in = held->end - now;
    }
    for (size_t i = 0; i < report->demand_count; i++) {
        upstream->demands[upstream->demand_count++] = report->demands[i];
    }
    assert(upstream->demand_count <= upstream->demands_capacity);
    doorman__held_lease_move(upstream, held, DOORMAN__HELD_REQUESTED);
    doorman__upstream_add_item(upstream, held, &item);
}

/* Puts the held lease from doorman__upstream_next into the request. If a held lease is due only for
 * a confirmation, but its claim has not fallen since the last request, there is nothing to confirm.
 * The request then gets no item for the held lease, and the next check is a second later. */
static void doorman__upstream_put(doorman_upstream *upstream, doorman__held_lease *held,
                                  const doorman__report *report, doorman_time now) {
    assert(report->outstanding >= 0 && report->wants >= 0);
    if (upstream->method == DOORMAN_RELEASE_CAPACITY) {
        doorman__upstream_put_release(upstream, held, report->outstanding, now);
        return;
    }
    double capacity = doorman__held_lease_live(held, now) ? held->capacity : 0;
    double claim = doorman__max(capacity, report->outstanding);
    bool confirms = now >= held->confirm_at && now < held->request_at;
    if (confirms && claim >= held->claimed) {
        doorman__held_lease_confirm_at(upstream, held, doorman__after(now, DOORMAN_SECOND));
    } else {
        doorman__upstream_put_renewal(upstream, held, report, claim, now);
    }
}

/* Completes the request that doorman__upstream_begin has started, and writes it to *out. Returns
 * false if the request has no items. If memory was missing for its first item, the upstream tries
 * again a second later. */
static bool doorman__upstream_end(doorman_upstream *upstream, doorman_request *out,
                                  doorman_time now) {
    const doorman_demand *demands = upstream->demands;
    if (!upstream->item_count && upstream->no_memory) {
        if (upstream->state == DOORMAN__READY) {
            doorman__upstream_move(upstream, DOORMAN__BACKING_OFF);
        }
        upstream->retry_at = doorman__after(now, DOORMAN_SECOND);
    }
    if (!upstream->item_count) return false;
    for (size_t i = 0; i < upstream->item_count; i++) {
        if (!upstream->items[i].wants_count) continue;
        upstream->items[i].wants = demands; /* set at the end, because the array can move */
        demands += upstream->items[i].wants_count;
    }
    doorman__upstream_move(upstream, DOORMAN__REQUESTED);
    upstream->sent_at = now;
    assert(upstream->item_count <= upstream->items_capacity && upstream->holder_id);
    *out = (doorman_request){.method = upstream->method,
                             .is_server = upstream->is_server,
                             .holder_id = upstream->holder_id,
                             .path = upstream->path,
                             .path_count = upstream->path_count,
                             .items = upstream->items,
                             .item_count = upstream->item_count,
                             .address = doorman__upstream_address(upstream),
                             .sequence = ++upstream->sequence};
    return true;
}

/* ---- upstream: a response */

/* Returns whether an address uses TLS. Its scheme may be in upper or lower case. */
static bool doorman__tls(const char *address) {
    char scheme[5] = "";
    for (int i = 0; i < 4 && address[i]; i++) {
        bool upper = address[i] >= 'A' && address[i] <= 'Z';
        scheme[i] = (char)(upper ? address[i] - 'A' + 'a' : address[i]);
    }
    return strcmp(scheme, "tls+") == 0 || strncmp(scheme, "wss", 3) == 0;
}

/* K3: stores the address of a redirect. Returns false if the redirect must not be followed. */
static bool doorman__upstream_redirect(doorman_upstream *upstream, const char *address) {
    if (!doorman__id_valid(address) || upstream->redirects >= DOORMAN__REDIRECTS_MAX) return false;
    if (doorman__tls(doorman__upstream_address(upstream)) && !doorman__tls(address)) return false;
    upstream->redirects++;
    memmove(upstream->redirect, address, strlen(address) + 1);
    return true;
}

/* Checks the fields that only servers receive. `algorithm` is NULL if this node does not know the
 * kind. */
static bool doorman__response_terms_valid(const doorman_capacity_response *item_response,
                                          bool learning) {
    if (item_response->terms_count > DOORMAN_TERMS_MAX) return false;
    if (item_response->has_learn_for != learning) return false;
    if (item_response->terms_count && !item_response->terms) return false;
    if (learning && !doorman__duration_valid(item_response->learn_for)) return false;
    for (size_t i = 0; i < item_response->terms_count; i++) {
        const doorman_terms *terms = &item_response->terms[i];
        bool slope = terms->slope >= 0 && terms->slope <= 1;
        if (terms->priority < DOORMAN_ANY_PRIORITY || terms->priority > DOORMAN_PRIORITY_MAX ||
            !doorman__amount_valid(terms->level) || !slope) {
            return false;
        }
    }
    size_t next = 0;
    return !item_response->algorithm || !doorman__algorithm_wrong(item_response->algorithm, &next);
}

static bool doorman__capacity_response_valid(const doorman_capacity_response *item_response,
                                             const doorman_capacity_request *item_request,
                                             bool is_server) {
    const doorman_lease *lease = &item_response->gets;
    const char *id = item_response->resource_id;
    doorman_time interval = lease->refresh_interval;
    bool has_safe = item_response->has_safe_capacity;
    if (!id || strcmp(id, item_request->resource_id) != 0) return false;
    if (item_response->outcome < DOORMAN_GRANTED || item_response->outcome > DOORMAN_FULL) {
        return false;
    }
    if (interval <= 0 || !doorman__duration_valid(interval)) return false;
    if (!doorman__duration_valid(item_response->overload_target)) return false;
    if (has_safe && !doorman__safe_capacity_valid(item_response->safe_capacity)) return false;
    if (item_response->outcome != DOORMAN_GRANTED) return true;
    if (is_server && !doorman__response_terms_valid(item_response, item_request->learning)) {
        return false;
    }
    return lease->id && lease->id <= UINT64_C(1) << 53 && doorman__id_valid(lease->node) &&
           doorman__amount_valid(lease->capacity) && doorman__amount_valid(lease->committed) &&
           doorman__duration_valid(lease->expires_in) && doorman__lease_reason_valid(lease->reason);
}

/* Returns whether each list of a response is given, or has the count 0. */
static bool doorman__response_lists_given(const doorman_response *response) {
    return (response->items || !response->item_count) &&
           (response->permits || !response->permit_count) &&
           (response->results || !response->result_count) &&
           (response->holds || !response->hold_count);
}

static bool doorman__response_valid(const doorman_upstream *upstream,
                                    const doorman_response *response) {
    const size_t count = upstream->item_count;
    const bool is_server = upstream->is_server;
    if (response->method != upstream->method) return false;
    if (!doorman__response_lists_given(response)) return false;
    if (upstream->method == DOORMAN_RELEASE_CAPACITY) return true;
    if (response->is_server != is_server || response->item_count != count) return false;
    for (size_t i = 0; i < count; i++) {
        const doorman_capacity_request *item_request = &upstream->items[i];
        if (!doorman__capacity_response_valid(&response->items[i], item_request, is_server)) {
            return false;
        }
    }
    return true;
}

/* Sets when to send the next request after a response. A lease that is smaller than the claim is
 * confirmed at once, and again when more units are released (R12). The refresh interval starts when
 * the response comes. That is later than the grant, so the next request does not come within the
 * minimum interval of the server. But the interval starts at the latest half a refresh interval
 * after the request, so that the renewal comes before the lease ends. */
static void doorman__held_lease_schedule(doorman_upstream *upstream, doorman__held_lease *held,
                                         doorman_time interval) {
    doorman_time now = upstream->now;
    double late = 1 + 0.05 * doorman__random_unit(&upstream->random);
    bool cut = doorman__held_lease_live(held, now) && held->capacity < held->claimed;
    bool ending = doorman__held_lease_ending(held);
    held->refresh_interval = doorman__later(interval, DOORMAN_SECOND / 100);
    doorman_time half = doorman__after(upstream->sent_at, held->refresh_interval / 2);
    held->requested_at = doorman__earlier(now, half);
    doorman_time next = doorman__scale(held->refresh_interval, late);
    doorman_time again = held->cut ? doorman__after(now, DOORMAN_SECOND) : now;
    held->renew_at = doorman__after(held->requested_at, next);
    held->request_at = ending ? doorman__later(held->request_at, now) : held->renew_at;
    held->confirm_at = cut && !ending ? again : DOORMAN_NEVER;
    held->cut = cut;
    assert(held->refresh_interval > 0 && held->requested_at <= now);
}

/* R9: stores a new lease and its K. If the old lease is in force and from the same node, the later
 * of the two ends is stored. If the old lease is from another node, the end of the new lease is
 * stored, because the new node has not committed the old lease. */
static void doorman__held_lease_replace(doorman__held_lease *held, const doorman_lease *lease,
                                        doorman_time end, doorman_time now) {
    bool renewed = doorman__held_lease_live(held, now) && strcmp(held->node, lease->node) == 0;
    held->end = doorman__later(renewed ? held->end : now, end);
    held->length = held->end - now;
    held->committed = doorman__max(lease->committed, lease->capacity);
    held->lease_id = lease->id;
    held->capacity = lease->capacity;
    memcpy(held->node, lease->node, strlen(lease->node) + 1);
    assert(held->length >= 0 && held->committed >= held->capacity);
}

/* Notes the refresh interval of a lease. The upstream keeps the shortest interval of a response
 * (K2). */
static void doorman__upstream_note_interval(doorman_upstream *upstream, doorman_time interval) {
    if (upstream->interval_is_old || interval < upstream->refresh_interval) {
        upstream->refresh_interval = interval;
    }
    upstream->interval_is_old = false;
}

/* Processes one item of a response. If the lease that the request reported has ended meanwhile, the
 * item has no effect, and the function returns false (R2). */
static bool doorman__held_lease_process_response(doorman_upstream *upstream,
                                                 doorman__held_lease *held, bool reported,
                                                 const doorman_capacity_response *item_response) {
    const doorman_lease *lease = &item_response->gets;
    bool granted = item_response->outcome == DOORMAN_GRANTED;
    if (reported && upstream->now >= held->end) {
        held->request_at = upstream->now;
        return false;
    }
    held->has_outcome = true;
    held->outcome = item_response->outcome;
    held->granter_learns = item_response->learning;
    held->met = granted && lease->capacity >= held->requested_wants * DOORMAN__MET;
    held->overload_target = item_response->overload_target;
    if (item_response->has_safe_capacity) {
        held->has_safe_capacity = true;
        held->safe_capacity = item_response->safe_capacity;
    }
    doorman_time interval = lease->refresh_interval;
    if (granted) {
        held->whole = item_response->whole;
        held->reason = lease->reason;
        doorman__held_lease_replace(
            held, lease, doorman__after(upstream->sent_at, lease->expires_in), upstream->now);
        /* The renewal must come before the lease ends. */
        interval = doorman__earlier(interval, lease->expires_in / 2);
        doorman__upstream_note_interval(upstream, interval);
    }
    doorman__held_lease_schedule(upstream, held, interval);
    return true;
}

/* Accepts a response, or refuses it (R2). After OK the owner reads its items with
 * doorman__upstream_next_item.
 *   returns   OK | STALE (the request is not under way) | INVALID_ARGUMENT (wrong response) */
static doorman_status doorman__upstream_accept(doorman_upstream *upstream, uint64_t sequence,
                                               const doorman_response *response, doorman_time now) {
    doorman__upstream_now(upstream, now);
    if (upstream->state != DOORMAN__REQUESTED || sequence != upstream->sequence)
        return DOORMAN_STALE;
    if (!response->is_master && doorman__upstream_redirect(upstream, response->master_address)) {
        doorman__upstream_move(upstream, DOORMAN__READY);
        doorman__upstream_end_items(upstream, false);
        return DOORMAN_OK;
    }
    if (!response->is_master || !doorman__response_valid(upstream, response)) {
        doorman__upstream_back_off(upstream, response->is_master ? DOORMAN__ROUNDS_MAX
                                                                 : DOORMAN__ROUNDS_MAX_ALIVE);
        return response->is_master ? DOORMAN_INVALID_ARGUMENT : DOORMAN_OK;
    }
    doorman__upstream_end_failures(upstream);
    doorman__upstream_move(upstream, DOORMAN__READY);
    upstream->interval_is_old = true;
    upstream->processed_count = 0;
    if (upstream->method == DOORMAN_RELEASE_CAPACITY) doorman__upstream_end_items(upstream, true);
    return DOORMAN_OK;
}

/* Processes items of the accepted response, up to the next item that has an effect.
 *   held      out: the held lease of the item
 *   returns   the item, or NULL if no item is left */
static const doorman_capacity_response *
doorman__upstream_next_item(doorman_upstream *upstream, const doorman_response *response,
                            doorman__held_lease **held) {
    assert(upstream->state != DOORMAN__REQUESTED);
    while (upstream->processed_count < upstream->item_count) {
        size_t i = upstream->processed_count++;
        bool reported = upstream->items[i].has.id != 0;
        *held = upstream->in_request[i];
        bool taken =
            doorman__held_lease_process_response(upstream, *held, reported, &response->items[i]);
        doorman__held_lease_end_request(upstream, *held);
        if (taken && (*held)->state != DOORMAN__HELD_CLOSED) return &response->items[i];
    }
    upstream->item_count = upstream->processed_count = 0;
    return NULL;
}

/* ---- upstream: what a caller's loop calls */

doorman_time doorman_upstream_due(const doorman_upstream *upstream) {
    return upstream ? upstream->calls->due(upstream) : DOORMAN_NEVER;
}

bool doorman_upstream_request(doorman_upstream *upstream, doorman_request *out, doorman_time now) {
    if (!out) return false;
    memset(out, 0, sizeof *out);
    if (!upstream) return false;
    upstream->calls->work(upstream, now);
    return upstream->calls->request(upstream, out, now);
}

doorman_status doorman_upstream_response(doorman_upstream *upstream, uint64_t sequence,
                                         const doorman_response *response, doorman_time now) {
    if (!upstream || !response) return DOORMAN_INVALID_ARGUMENT;
    return upstream->calls->response(upstream, sequence, response, now);
}

void doorman_upstream_failed(doorman_upstream *upstream, uint64_t sequence, doorman_time now) {
    if (upstream) upstream->calls->failed(upstream, sequence, false, now);
}

/* ---- >>overload ----------------------------------------------------------------------------- */
/*
 * The capacity of a resource can follow what the servers behind the resource report. An example is
 * a database that has lost half of its disks: clients that hold themselves to their leases then
 * send twice as much as the database can. This section computes the capacity in force of one
 * resource at a root. The section is a pure state machine: the section >>server passes it the
 * reports and the sum of the leases.
 *
 * H11 A server behind a resource reports once in each refresh interval how many requests arrived,
 *    finished, were refused, and were late (waited longer than `target`). A node adds up what it
 *    receives, and passes the sum on with its next request for capacity. So the root receives the
 *    sum of the whole tree.
 *       The reports of the last two refresh intervals are added up. The resource is overloaded if
 *    at least 20 requests arrived, and either more than 5 % of these were refused, or more than
 *    half of the finished requests were late. The root then lowers the capacity in force to
 *
 *        0.97 * (the mean sum of the leases in the time of the reports) * finished / arrived
 *
 *    if that is less than the present capacity in force. The ratio finished / arrived can exceed 1.
 *    The mean of the leases is used, and not the present capacity, because reports arrive late.
 *    With the present capacity a second report of the same time would cut again.
 *       The capacity in force grows again in steps, one step in each refresh interval, beginning
 *    one refresh interval after the last cut. There is no step while the resource is overloaded. A
 *    step is 0.5 % of the configured capacity. After ten steps without overload, each further step
 *    is twice the last step, up to 10 %. But a step is 0.5 % again if a fifth of an overload is
 *    reported: more than 1 % refused, or more than a tenth late. Then the capacity in force is near
 *    what the servers can do, and larger steps would go far beyond that before a report says so.
 *    The capacity in force is never below capacity_min or above the configured capacity. Without
 *    reports all capacity comes back.
 *       A lower capacity in force is a cut, like a lower capacity in a new configuration. Other
 *    holders get more only when leases have ended, or smaller leases are confirmed, so T7 holds. A
 *    new master begins with the configured capacity. Its clients keep the leases that they have,
 *    and the next reports cut again.
 *
 * Time is divided into parts of a quarter of a refresh interval. The reports of a part are added
 * up, and their sum counts until the part is older than two refresh intervals. So the memory does
 * not depend on the number of servers that report. A report that arrives twice counts twice, which
 * changes the ratios little.
 *
 * The state has the integral over time of the sum of the leases. The mean of this sum in the time
 * of the reports follows from the integral. From time to time the state stores the integral as a
 * mark. Between two marks the integral counts as a straight line. A resource has this state only
 * after its first report. The state then assumes that the sum of the leases was constant before.
 */
enum { DOORMAN__OVERLOAD_PARTS = 9, DOORMAN__OVERLOAD_MARKS = 20, DOORMAN__OVERLOAD_LEAST = 20 };

#define DOORMAN__OVERLOAD_SHARE 0.97
#define DOORMAN__OVERLOAD_STEP 0.005
#define DOORMAN__OVERLOAD_STEP_MAX 0.1
#define DOORMAN__OVERLOAD_NEAR 0.2 /* this part of an overload prevents large steps */
#define DOORMAN__OVERLOAD_CALM 10  /* the number of steps before steps double */

/* The reports that arrived in one part, which is a quarter of a refresh interval. */
typedef struct doorman__overload_part {
    uint64_t number;          /* the number of the part, counted from time 0 */
    doorman_time from, until; /* the time that the reports are about */
    doorman_overload_report sum;
} doorman__overload_part;

/* The integral of the leases up to a time, in units * seconds. */
typedef struct doorman__overload_mark {
    doorman_time at;
    double area;
} doorman__overload_mark;

typedef struct doorman__overload_state {
    double capacity;          /* the capacity in force */
    double configured, least; /* the bounds of `capacity` */
    doorman_time interval;    /* the refresh interval */
    doorman_time cut_at;      /* 0: never */
    doorman_time step_at;     /* when the next step is due; NEVER: all capacity is in force */
    unsigned calm;            /* steps since the last overload, bounded in doorman__overload_grow */
    doorman__overload_part parts[DOORMAN__OVERLOAD_PARTS];
    doorman__overload_mark marks[DOORMAN__OVERLOAD_MARKS]; /* a ring */
    size_t last_mark;
    doorman__overload_mark now; /* the present integral */
} doorman__overload_state;

static doorman_time doorman__overload_length(const doorman__overload_state *state) {
    return doorman__later(state->interval / 4, 1);
}

/* Returns the number, counted from time 0, of the part that contains a time. */
static uint64_t doorman__overload_number(const doorman__overload_state *state, doorman_time now) {
    return (uint64_t)now / (uint64_t)doorman__overload_length(state);
}

/* Advances the integral. Must be called before each change of the sum of the leases.
 *   leased   the sum of the leases since the last call */
static void doorman__overload_measure(doorman__overload_state *state, double leased,
                                      doorman_time now) {
    assert(leased >= 0);
    if (now <= state->now.at) return;
    double seconds = (double)(now - state->now.at) / (double)DOORMAN_SECOND;
    state->now = (doorman__overload_mark){now, state->now.area + seconds * leased};
    if (now - state->marks[state->last_mark].at < doorman__overload_length(state)) return;
    state->last_mark = (state->last_mark + 1) % DOORMAN__OVERLOAD_MARKS;
    state->marks[state->last_mark] = state->now;
}

/* Returns the integral at a time. A time before the oldest mark counts as the time of that mark. */
static doorman__overload_mark doorman__overload_mark_at(const doorman__overload_state *state,
                                                        doorman_time at) {
    doorman__overload_mark after = state->now;
    assert(state->last_mark < DOORMAN__OVERLOAD_MARKS);
    for (size_t i = 0; i < DOORMAN__OVERLOAD_MARKS; i++) {
        size_t place = (state->last_mark + DOORMAN__OVERLOAD_MARKS - i) % DOORMAN__OVERLOAD_MARKS;
        const doorman__overload_mark *before = &state->marks[place];
        if (before->at > at) {
            after = *before;
            continue;
        }
        if (after.at <= at) return after;
        double part = (double)(at - before->at) / (double)(after.at - before->at);
        return (doorman__overload_mark){at, before->area + part * (after.area - before->area)};
    }
    return after;
}

/* Returns the sum of the reports that count now. Its interval goes from *from to *until. */
static doorman_overload_report doorman__overload_sum(const doorman__overload_state *state,
                                                     doorman_time now, doorman_time *from,
                                                     doorman_time *until) {
    uint64_t number = doorman__overload_number(state, now);
    doorman_overload_report sum = {.interval = 0};
    *from = DOORMAN_NEVER;
    *until = 0;
    for (size_t i = 0; i < DOORMAN__OVERLOAD_PARTS; i++) {
        const doorman__overload_part *part = &state->parts[i];
        if (!part->sum.interval || number - part->number >= DOORMAN__OVERLOAD_PARTS) continue;
        *from = doorman__earlier(*from, part->from);
        *until = doorman__later(*until, part->until);
        doorman__overload_report_add(&sum, &part->sum);
    }
    assert(!*until || *from < *until);
    if (*until) sum.interval = *until - *from;
    return sum;
}

/* Returns whether at least 20 requests arrived, and the refused or the late requests exceed `part`
 * times the bounds of H11. */
static bool doorman__overload_is_on(const doorman_overload_report *sum, double part) {
    assert(sum->late <= sum->finished && part > 0);
    return sum->arrived >= DOORMAN__OVERLOAD_LEAST &&
           (sum->refused > part * 0.05 * sum->arrived || sum->late > part * 0.5 * sum->finished);
}

/* Adds a report. Precondition: the report is valid and has an interval. */
static void doorman__overload_add(doorman__overload_state *state,
                                  const doorman_overload_report *report, doorman_time now) {
    assert(report->interval > 0);
    uint64_t number = doorman__overload_number(state, now);
    doorman__overload_part *part = &state->parts[number % DOORMAN__OVERLOAD_PARTS];
    if (part->number != number || !part->sum.interval) {
        *part = (doorman__overload_part){.number = number, .from = DOORMAN_NEVER};
    }
    part->from = doorman__earlier(part->from, now - report->interval);
    part->until = now;
    part->sum.interval = report->interval;
    doorman__overload_report_add(&part->sum, report);
}

/* Lowers the capacity in force if the resource is overloaded. Returns whether it has changed. */
static bool doorman__overload_cut(doorman__overload_state *state, doorman_time now) {
    doorman_time from, until;
    doorman_overload_report sum = doorman__overload_sum(state, now, &from, &until);
    if (!doorman__overload_is_on(&sum, 1)) return false;
    doorman__overload_mark first = doorman__overload_mark_at(state, from);
    doorman__overload_mark last = doorman__overload_mark_at(state, until);
    if (last.at <= first.at) return false;
    double seconds = (double)(last.at - first.at) / (double)DOORMAN_SECOND;
    double leased = doorman__max((last.area - first.area) / seconds, 0);
    double target = DOORMAN__OVERLOAD_SHARE * leased * sum.finished / sum.arrived;
    target = doorman__max(target, state->least);
    if (target >= state->capacity) return false;
    assert(target >= state->least && state->least <= state->configured);
    state->capacity = target;
    state->cut_at = now;
    state->step_at = doorman__after(now, state->interval);
    state->calm = 0;
    return true;
}

/* Makes the steps that are due. Returns whether the capacity in force has changed. */
static bool doorman__overload_grow(doorman__overload_state *state, doorman_time now) {
    doorman_time from, until;
    if (now < state->step_at) return false;
    doorman_overload_report sum = doorman__overload_sum(state, now, &from, &until);
    if (doorman__overload_is_on(&sum, 1)) {
        state->calm = 0;
        state->step_at = doorman__after(now, state->interval);
        return false;
    }
    bool near = doorman__overload_is_on(&sum, DOORMAN__OVERLOAD_NEAR);
    if (near && state->calm >= DOORMAN__OVERLOAD_CALM) state->calm = DOORMAN__OVERLOAD_CALM - 1;
    while (now >= state->step_at) {
        double step = DOORMAN__OVERLOAD_STEP;
        for (unsigned i = DOORMAN__OVERLOAD_CALM; i <= state->calm; i++) step *= 2;
        step = doorman__min(step, DOORMAN__OVERLOAD_STEP_MAX) * state->configured;
        if (state->calm < 2 * DOORMAN__OVERLOAD_CALM) state->calm++;
        state->capacity = doorman__min(state->capacity + step, state->configured);
        bool full = state->capacity >= state->configured;
        state->step_at = full ? DOORMAN_NEVER : doorman__after(state->step_at, state->interval);
    }
    assert(state->capacity <= state->configured && state->step_at > now);
    return true;
}

/* Sets the bounds, from a configuration. A capacity that reports have lowered keeps its value, as
 * far as the new bounds allow it. */
static void doorman__overload_set_bounds(doorman__overload_state *state,
                                         const doorman_template *settings, doorman_time now) {
    const double configured = settings->capacity;
    const doorman_time interval = settings->algorithm.refresh_interval;
    const bool lowered = state->capacity < state->configured;
    if (interval != state->interval) memset(state->parts, 0, sizeof state->parts);
    state->interval = interval;
    state->configured = configured;
    state->least = settings->overload.capacity_min;
    state->capacity = lowered ? doorman__min(state->capacity, configured) : configured;
    state->capacity = doorman__max(state->capacity, state->least);
    assert(state->least <= state->capacity && state->capacity <= configured);
    bool full = state->capacity >= configured;
    doorman_time next = doorman__after(now, interval);
    state->step_at = full ? DOORMAN_NEVER : doorman__earlier(state->step_at, next);
}

/* Creates the overload state of a resource when its first report arrives. Returns NULL if memory
 * runs out.
 *   leased   the sum of the leases */
static doorman__overload_state *doorman__overload_create(const doorman_template *settings,
                                                         double leased, doorman_time now) {
    assert(settings->overload.target > 0);
    doorman__overload_state *state = (doorman__overload_state *)doorman__zalloc(sizeof *state);
    if (!state) return NULL;
    state->step_at = DOORMAN_NEVER;
    doorman__overload_set_bounds(state, settings, now);
    state->now.at = now - DOORMAN__OVERLOAD_MARKS * doorman__overload_length(state);
    for (size_t i = 0; i < DOORMAN__OVERLOAD_MARKS; i++) state->marks[i] = state->now;
    doorman__overload_measure(state, leased, now);
    return state;
}

/* ---- >>server ------------------------------------------------------------------------------- */
/*
 * A server is one process of a node of the tree. It has a mastership, a configuration, and a lease
 * table for each resource that a holder has asked for. In a node with a parent, the configuration
 * is only for permits. A server processes a request in three steps: it checks the whole request,
 * reserves all the memory that the request needs, and then decides. A request that fails one of the
 * first two steps changes nothing (C4, C5), apart from expired leases (S2).
 *
 * S1 A server that is not master grants nothing. Its response has only the address of the master,
 *    if the server knows this address.
 * S2 A call that grants or shows leases of a resource first removes the expired leases, but at most
 *    1,000, so that no call takes long. The other expired leases stay committed until a later call,
 *    which is safe. If the holder of such a lease asks again, that lease is removed at once.
 * S3 The minimum interval is 5 s by default, and at most half the refresh interval. It applies to a
 *    holder that names its last lease. A request within the interval gets that lease again (R11).
 *    So a holder whose wants were not met gains nothing by asking often. There are two exceptions,
 *    but not while the server or the holder learns. First, a holder that wanted nothing and now
 *    wants something gets a new lease. That lease may be 0, but with whole units a unit is then
 *    owed to the holder (A5). Second, a holder gets a new, larger lease if it was granted all its
 *    wants and now wants more, or if it has a lease of 0, or if it is a server. Servers have this
 *    exception because a server mostly asks early when its holders need more (T1). The second
 *    exception applies only if enough capacity is free for a larger lease, and not during a round
 *    (see >>leases). R5 bounds the new lease too: the holder may have given back a part of its last
 *    lease, and that part may now belong to another holder.
 * S4 While the server learns (R6), a holder that names no lease of this node gets TRY_LATER, not a
 *    lease of 0. So the holder continues to use its fallback, as if no server answered. But a
 *    holder that names a lease of 0 of this node gets a lease again, of 0 or of what others have
 *    given back. The lease was 0 because the holder wanted nothing, because the capacity was 0, or
 *    because other holders had all of it. So the holder must not use its fallback. A lease of 0
 *    commits nothing, so it is always safe. A holder that gets TRY_LATER should ask again after the
 *    usual interval, or when the learning ends if that is earlier, but at the earliest after a
 *    second or the usual interval, whichever is shorter. The server records the wants of this
 *    holder, commits nothing, and removes the lease entry if the holder does not ask again. STATIC
 *    and NO_ALGORITHM divide no capacity, so they need no learning.
 * S5 If none of S3, S4, T4, R6 and R7 applies, the algorithm gives the target of the holder. The
 *    grant is the target, but at most the larger of two amounts: what is free, and what the holder
 *    may still be using (R5).
 * S6 A lease lasts `lease_length`, but never longer than the server's own lease. The refresh
 *    interval in a response is usually at most a third of the time until the lease ends. But a
 *    server that cannot renew its own lease grants shorter and shorter leases, so all holders would
 *    ask more and more often. So the refresh interval is at least the smallest of three times:
 *    `minimum_refresh_interval`, a third of `lease_length`, and the time until the lease ends.
 *       A holder whose lease is below its target should ask again early (R12). If leases are whole
 *    units, only a holder that is owed a unit should ask again early (A5). No holder should ask
 *    early if the owed units exceed both the capacity and an eighth of the number of holders.
 * S7 The template sets the safe capacity of a client. If it sets none, the server divides the
 *    capacity by the number of known subclients, including those of the request. The server sends
 *    such a quotient only if it is not learning, the holder is a client, and the algorithm divides
 *    the capacity. A node with a parent has only as much capacity as its clients want, so the
 *    quotient may be much too small. So in such a node the safe capacity is at least the highest
 *    level that the parent sent. If leases are whole units, the safe capacity is rounded down. With
 *    more clients than units it is 0, because one unit for each client would exceed the capacity. A
 *    node with a parent does not send a 0.
 * S8 A lease entry lasts 1 + drift times as long as its lease. So the entry outlasts the lease even
 *    if the holder's clock is slower by the drift. The time that messages take does not matter,
 *    because the holder counts from the time at which it sent the request.
 * S9 A server that is not learning ignores the claim of a holder without a lease entry. on_event
 *    reports such a claim.
 * S10 The server counts signs that two processes use one id (see "shared ids" in >>leases).
 *    on_event reports each sign after which the count is above 2. While the count is above 2,
 *    doorman_server_next_lease shows the lease of that id as `shared`. Nothing else changes for
 *    this lease.
 * S11 The server counts requests in a row that do not confirm the holder's last lease, although
 *    that lease is in force. A request confirms the lease if it names the lease, and if its `has`
 *    is not larger than the lease. on_event reports the third and each further such request, and
 *    doorman_server_next_lease then shows the lease as `unconfirmed`. After a cut, the larger
 *    amount stays committed for such a holder (R4). A restart or a lost response adds only 1 to the
 *    count. A late copy of a request adds at most 2: the copy itself, and the next request, which
 *    names the lease that the copy has replaced. Nothing else changes for the lease.
 * S12 The overshoot of a resource is the amount by which its leases exceed the maximum, which is
 *    what the node may have in force at this moment. See "the maximum".
 * S13 on_event reports a child node whose last lease has expired. A node with clients renews its
 *    lease, and a node without clients releases it. So the child node has failed, or cannot reach
 *    this server.
 * S14 A lease that is less than 0.999 of what its request wants has a reason. Any other lease has
 *    none. If leases are whole units, the wants are rounded up first. The reason is the first of
 *    these that applies:
 *
 *      LEARNING   the server learns (R6), or the holder is a child node that learns and had a lease
 *                 (R7)
 *      SHARE      the kind of algorithm does not divide the capacity, so no holder gets more
 *      CUT        a round is active (see >>leases): what is committed does not fit into the
 *                 capacity, usually because the capacity was cut. Leases fall to the targets, or
 *                 wait until other holders confirm smaller leases. A new configuration, reports of
 *                 overload (H11), and a smaller lease of the node are such cuts
 *      SHARE      the lease is the target of the holder, or the whole capacity. Others want the
 *                 rest, or there is no more. If leases are whole units, the target is an integer
 *                 that changes with the turns (A5)
 *      RESERVED   the target is larger than the lease. The rest of the target is still committed
 *                 for other holders. It becomes free when these holders confirm smaller leases (R4)
 *                 or release theirs, and when their leases end
 *
 *    A request within the minimum interval gets the last lease with its reason again (R11). If that
 *    lease had no reason, because the holder wanted less then, the list above decides. RESERVED
 *    then also means that the rest waits for the end of the interval. The reason of a node's own
 *    lease comes from its parent. A node finds the reasons for its holders itself. No decision
 *    depends on a reason.
 * R8 Learning ends when all leases of a predecessor must have ended. A root learns about a resource
 *    for the lease length of its template plus the drift, counted from when the predecessor was
 *    known to be gone, and at least until the leases of earlier configurations have ended. T6 is
 *    the rule for a node with a parent. If learning_mode_duration sets a shorter time, T7 may not
 *    hold.
 * R11 A request within the minimum interval (S3) confirms a lease as any other request does (R4).
 *    The holder gets its last lease again, with the same end. The lease is smaller by what the
 *    holder has given back, and is at most what the holder now wants. What the lease has lost comes
 *    back within the interval only by an exception of S3.
 * R12 Capacity moves fast to the holders that should have it. A client confirms a smaller lease at
 *    once. A node confirms it when the amount that the node has committed for its holders fits into
 *    the lease. If a lease is below the target by more than a thousandth, its holder should ask
 *    again early: after the longer of the minimum interval and `minimum_refresh_interval`, or after
 *    its refresh interval if that is shorter. If the node asks its parent soon, a holder with unmet
 *    wants should ask again after `minimum_refresh_interval` if it has nothing, or is a server. The
 *    node asks soon if the parent last granted all that the node wanted (T1), or if the next
 *    request of the node is due within twice `minimum_refresh_interval`.
 * G5 A new configuration drops no lease of a resource that still has a template with a capacity. A
 *    resource that gets its first template begins to learn, because no lease table recorded the
 *    earlier grants. If a new configuration comes while the server learns, a resource that then
 *    matches another template learns at least as long as it would have learned before.
 * C7 Three numbers are limited: the resources, the holders of one resource, and the resources of
 *    one client. An item of a request that would exceed a limit is refused (FULL). No holder loses
 *    a lease because of a limit.
 *
 * The maximum (S12). The maximum of a resource is the largest of these amounts:
 *
 *   amount              counts
 *   the capacity        in a root: always
 *   K                   in a node with a parent: until the node's own lease has ended (plus the
 *                       drift). K is what the parent has committed for the node, at least C. After
 *                       a cut, K stays above C until the node has claimed less (R3, R12), so the
 *                       leases always fit into K
 *   an older capacity   in a root: until all leases from before the cut have ended, since T7 holds
 *                       for the largest capacity of the last lease length
 *   an older K          in a node whose parent has committed less than the node has claimed: until
 *                       the older lease of the node has ended, with the drift
 *
 * The cases in detail:
 *
 *   a lost lease        The leases end with the node's own lease (S6). Their entries last longer by
 *                       the drift (S8), and so does the parent's entry for the node. After that
 *                       time the maximum is 0.
 *   the node learns     The node grants at most C (R6). Leases of its predecessor that no holder
 *                       has claimed are not in the node's lease table.
 *   the parent learns   The parent commits what it grants, and at least what the node reports as
 *                       outstanding (R6). This may be less than the claim of the node if other
 *                       holders have claimed the rest. The older lease of the node is still in
 *                       force, so the older K counts.
 *   a child learns      The child gets its last lease again, even after a cut (R7). So older
 *                       amounts count until this lease has ended too.
 *   late entries        An entry may last longer than its lease needs (see "expiry" in >>leases).
 *                       Its amount is a part of `has` until the entry ends. So K and an older K
 *                       count at least until these entries have ended.
 *   the kind changes    Leases of STATIC and NO_ALGORITHM have no bound. So after a change from one
 *                       of these kinds, the older amount has no bound.
 *   `immediate`         The parent commits only the last lease, and grants the rest to other
 *                       holders at once. So an older K does not count.
 *
 * A resource stores two older amounts. A third amount is merged with the older amount that ends
 * last: the larger amount counts until both have ended. So an amount may count for up to one lease
 * length too long, but only after three cuts within a lease length. The maximum is only shown.
 *
 * Expiry. Calls remove expired leases first (S2). doorman__server_update removes the rest, and
 * frees memory. A heap orders all resources by the time from which the next update visits them.
 * This time is not later than the end of the lease entry that ends first, and may be earlier,
 * because a renewal does not move the resource in the heap. The next update sets the exact time. So
 * within one lease length, the updates of a resource cost O(log resources), for any number of
 * renewals.
 *
 * The tree. A server with a parent has a lease of its own for each resource: a held lease (see
 * >>upstream). The capacity of the held lease is C of the resource's lease table, and its committed
 * amount is K.
 *
 * T1 The node asks its parent for many resources in one request (K1), with the wants of its holders
 *    in groups. If the holders want more than the node's lease, and more than at its last request,
 *    the node asks as soon as the minimum interval since that request has passed. The same is true
 *    if the wants have fallen by more than a tenth. If the parent last granted all that the node
 *    wanted, a node that wants more waits only for the shorter of the minimum interval and
 *    `minimum_refresh_interval`, or not at all if it wanted nothing.
 * T2 Shares are fair across the tree. The node uses the terms of its parent if these terms fit into
 *    the node's lease. If not, the node computes its own terms. If demands have fallen since the
 *    parent computed the terms, a part of the lease may be left over. The node divides this part in
 *    proportion to what its holders still want, so that it is not idle until the next request.
 *       A group has the demands whose wants per subclient lie between two boundaries. The parent
 *    treats these demands as equal. The shares are exact unless a level lies between the two
 *    boundaries. So there are boundaries at the levels of the last response (at most five of them),
 *    and more boundaries around the first of these levels, denser near it. The level at which a
 *    reserve is shared matters only if some priority gets nothing but its part of the reserve. Then
 *    the level of that priority is the level of the reserve, so there is a boundary at that level.
 *    The amount that a group gets is a concave function of the level. So the parent overestimates
 *    this amount, and the level that the parent finds is never too high. From request to request
 *    this level approaches the exact level from below, as in Newton's method, and then stays there.
 * T3 A node with a parent uses the algorithm and the parameters that its parent sends. At each
 *    level of the tree the refresh interval is multiplied by decay_factor, but is at least
 *    `minimum_refresh_interval`.
 * T4 A node that has no lease of its own grants no lease: it answers TRY_LATER, or UNMATCHED or
 *    FULL if its parent has answered so. When a holder first asks the node for a resource, the node
 *    asks its parent for a lease at once. The holders of the node should ask again after 1 s, or
 *    after 3 to 4 s if the node cannot expect a lease soon. Each holder has its own time between 3
 *    and 4 s, because all leases end with the lease of the node. With one time for all, all holders
 *    would ask together again and again.
 * T5 All servers of a node send the name of the node as their id to the parent. So for the parent,
 *    a new master has the lease that its predecessor had.
 * T6 A new master learns until the leases of its predecessor have ended. Its requests say that it
 *    learns. The leases of the predecessor end no later than the lease that the predecessor had
 *    from the parent. So the parent sends the time until its entry for that lease ends
 *    (`learn_for`), or the time for which the parent itself still learns if that is longer. If
 *    several responses have a `learn_for`, the new master uses the earliest end. Later responses
 *    only give later ends, because the entry of the parent is then for a lease of the new master.
 *    The node releases nothing before it has learned (R10).
 * R7 While a child learns, its parent renews the last lease of the child, or grants a smaller lease
 *    if K has no room for the last lease. The claims of the child confirm nothing. The other
 *    holders share the capacity minus this lease, and the demands of the child do not count.
 * T8 A request to a parent names the node that sends it, and the nodes on the longest path below
 *    that node, at most 16 nodes in all. A server refuses a request that names its own node or its
 *    parent, because the tree then has a loop.
 * T9 A parent sends the description and the unit of a resource (texts for people) with each lease
 *    that it grants to a node. The node shows them, and sends them to its own children. At most the
 *    first 256 bytes of a description are sent.
 *
 * Why T7 holds in the whole tree. Let b(h) be what the parent of h has committed for h. While that
 * parent is gone or learns, b(h) is the amount in the last complete lease table of that parent. The
 * b of the root is its capacity. Two statements hold for every server h with the parent p. First,
 * the sum of the leases in force below h is at most b(h). Second, the sum of b over all children of
 * p is at most b(p). The proof is by induction over the levels. A grant of p keeps the sum of what
 * p has committed within K (R5). K is at most b(p): the parent of p lowers b(p) only after p has
 * limited itself to a claim (R3), or after a lease of p has ended (R4). If p restarts, b(p) does
 * not change (R7), and p grants no more than was in force. When p has learned, its lease tables are
 * complete (R6, R8). Finally, a lease that p grants is a part of the lease of p, unless p is the
 * root, and ends no later than that lease (S6, S8, R9).
 */

/* The longest time after which a holder should ask again if its node cannot expect a lease soon
 * (T4). The time of each holder is shorter by up to DEFER_SPREAD. */
#define DOORMAN__DEFER_MAX (4 * DOORMAN_SECOND)
#define DOORMAN__DEFER_SPREAD DOORMAN_SECOND

/* One update visits at most this many leases and resources, which takes some milliseconds. Any
 * other call removes at most EXPIRE_MAX expired leases of a resource (S2), and the expired lease of
 * the holder that asks. */
#define DOORMAN__UPDATE_MAX ((size_t)10000)
#define DOORMAN__EXPIRE_MAX ((size_t)1000)

/* Counts the resources of one holder of the server. */
typedef struct doorman__holder_usage {
    doorman__link link; /* the key is a hash of the holder; equal hashes count as one holder */
    size_t count;
} doorman__holder_usage;

/* An amount in the table of "the maximum" (S12). */
typedef struct doorman__maximum {
    double amount;
    doorman_time until; /* `now` or earlier: the amount no longer counts */
} doorman__maximum;

/* A resource of the server, with its lease table. */
typedef struct doorman__resource_entry {
    doorman__link link; /* in the server's table; must be the first field */
    doorman__timer due; /* in the server's heap: the latest time of the next update */
    doorman_server *server;
    const doorman_template *settings;
    struct doorman__upward *upward; /* the node's own lease of the resource; NULL: a root */
    uint64_t expired_count;
    doorman__maximum older[2];         /* older amounts of the maximum (S12), in any order */
    doorman__overload_state *overload; /* only in a root (H11); NULL: no report has arrived */
    doorman__lease_table leases;
    char resource_id[];
} doorman__resource_entry;

/* The state of the decision on one item of a request. An item asks for one resource. Only
 * doorman__item_move changes the state:
 *
 *   state      the item              event                                           next
 *   CHECKED    is valid              no template matches the resource (G2)           UNMATCHED
 *                                    a limit is reached (C7)                         FULL
 *                                    the holder has a lease entry                    FOUND
 *                                    a lease entry is added                          ADDED
 *   FOUND,     has all the memory    the node has no lease (T4)                      NO_LEASE
 *   ADDED      that it needs         the server learns (R6)                          LEARN
 *                                    none of these events (S5)                       GRANT
 *   FOUND      as above              the request comes too soon (S3)                 REPEAT
 *                                    the holder learns, and had a lease (R7)         RESTORE
 *   LEARN      is granted again      the request names no lease of this node (S4)    TRY_LATER
 *
 * The last state determines the response. REPEAT gives the last lease. LEARN, RESTORE and GRANT
 * give a new lease. UNMATCHED gives a lease of all wants, without a lease entry, unless the item is
 * refused (G2). The other states give no lease. */
typedef enum doorman__item_state {
    DOORMAN__ITEM_CHECKED,
    DOORMAN__ITEM_UNMATCHED,
    DOORMAN__ITEM_FULL,
    DOORMAN__ITEM_FOUND,
    DOORMAN__ITEM_ADDED,
    DOORMAN__ITEM_NO_LEASE,
    DOORMAN__ITEM_REPEAT,
    DOORMAN__ITEM_LEARN,
    DOORMAN__ITEM_RESTORE,
    DOORMAN__ITEM_GRANT,
    DOORMAN__ITEM_TRY_LATER,
    DOORMAN__ITEM_STATE_COUNT
} doorman__item_state;

typedef struct doorman__request_item {
    uint64_t hash;
    size_t index;
    doorman__resource_entry *resource; /* NULL: not found yet, or there is none */
    doorman__lease_entry *entry;       /* the entry of the holder; NULL: not found yet, or there is
                                          none */
    doorman__item_state state;
} doorman__request_item;

/* A node's own lease of a resource, and what its parent said about the resource. */
typedef struct doorman__upward {
    doorman__held_lease held;
    doorman__resource_entry *resource;
    doorman_template settings; /* the settings from the last response of the parent */
    doorman__tally tally;      /* the reports that the next request passes on (H11) */
    char *texts; /* the description and the unit, each ended by a NUL; NULL: both are empty */
    doorman_terms terms[DOORMAN_TERMS_MAX];
} doorman__upward;

struct doorman_server {
    doorman_upstream upstream;               /* a root has no addresses */
    const char *path[DOORMAN__PATH_MAX + 1]; /* this node, and the nodes in `below` */
    char below[DOORMAN__PATH_MAX][DOORMAN_ID_BYTES_MAX + 1]; /* the longest path below this node */
    doorman_time below_until; /* when the server forgets `below`, unless a request names it again */
    char parent[DOORMAN_ID_BYTES_MAX + 1]; /* the name of the parent node; "": no lease yet */
    doorman_server_options options;
    char node[DOORMAN_ID_BYTES_MAX + 1];
    char master[DOORMAN_ID_BYTES_MAX + 1]; /* the address of the master; "": unknown */
    doorman_time now, master_until;
    doorman_time predecessor_gone_at; /* see doorman_mastership */
    bool is_master;
    bool has_left;  /* the server has handed over, and has not heard yet that it is not master */
    bool is_ending; /* on_mastership_end runs */
    const doorman_config *config; /* NULL: a node with a parent */
    doorman_time *learned_at;     /* for each template: when the learning of a new resource ends */
    doorman_time drains_at;       /* when all leases from earlier configurations have ended */
    doorman_time
        learns_until; /* in a node with a parent: the latest end of learning that it knows */
    doorman__table resources, usages;
    doorman__timers dues;   /* the timers of the resources */
    doorman_time update_at; /* no update is due before this time, unless the mastership ends */
    uint64_t lease_count;
    doorman__request_item *request_items;
    size_t *places; /* a hash table of the items of a request; see doorman__server_check_twice */
    uint64_t holder_hash; /* a hash of the holder that sent the request */
    doorman_capacity_response *items;
    doorman_terms *terms; /* for a response to a server: DOORMAN_TERMS_MAX for each item */
    size_t request_items_capacity, places_capacity, response_items_capacity, terms_capacity;
    doorman_permits *permits;   /* has no counters while the server is not master */
    doorman_config *own_config; /* a configuration that refuses all permits. Only for a node with a
                                   parent whose options have none; else NULL */
    bool asks_itself;           /* the server answers its own permits: see >>permit_node */
    doorman__arena arena;       /* the last response to a message on permits */
};

/* The functions of the section >>permit_node that a server calls. */
typedef struct doorman__server_permits {
    doorman_status (*create)(doorman_server *server, const doorman_server_options *options,
                             doorman_error *error);
    void (*destroy)(doorman_server *server);
    doorman_status (*configure)(doorman_server *server, const doorman_config *config);
    void (*start)(doorman_server *server); /* the server becomes master; cannot fail */
    void (*stop)(doorman_server *server);  /* the server is not master any more */
    void (*set_epoch)(doorman_server *server, doorman_time epoch);
    doorman_status (*answer)(doorman_server *server, const doorman_request *request,
                             doorman_response *response, doorman__arena *arena,
                             doorman_error *error);
    /* adds the map of shards to the response to a DISCOVERY; returns false if memory runs out */
    bool (*add_map)(const doorman_server *server, const doorman_request *request,
                    doorman_response *response, doorman__arena *arena);
    doorman_time (*due)(const doorman_server *server);
    void (*work)(doorman_server *server);
} doorman__server_permits;
static const doorman__server_permits doorman__permits_in_server;

static bool doorman__request_is_of_permits(const doorman_request *request) {
    return !request->is_server && strcmp(request->holder_id, DOORMAN__PERMITS_HOLDER) == 0;
}

/* Moves a cursor past the next link, and returns that link. Returns NULL at the end. */
static doorman__link *doorman__cursor_next(doorman_cursor *cursor, const doorman__table *table) {
    doorman__link *link = cursor->at_end ? NULL : doorman__table_from(table, cursor->position);
    cursor->at_end = !link || link->hash == UINT64_MAX;
    if (!cursor->at_end) cursor->position = link->hash + 1;
    return link;
}

static doorman_time doorman__server_now(doorman_server *server, doorman_time now) {
    server->now = doorman__upstream_now(&server->upstream, doorman__later(server->now, now));
    assert(server->now >= now && server->now >= server->upstream.now);
    return server->now;
}

static bool doorman__server_is_root(const doorman_server *server) {
    return server->upstream.address_count == 0;
}

static void doorman__server_event(doorman_server *server, doorman_event_kind kind,
                                  const char *resource_id, const char *holder_id, double amount) {
    if (!server->options.on_event) return;
    doorman_event event = {kind, resource_id, holder_id, amount};
    server->options.on_event(server->options.context, &event);
}

static uint64_t doorman__holder_hash(const doorman_server *server, const char *holder_id,
                                     bool is_server) {
    return doorman__hash(server->options.seed, holder_id) ^ (is_server ? ~UINT64_C(0) : 0);
}

/* Returns how long a lease entry lasts: the length of its lease plus the drift (S8). */
static doorman_time doorman__server_bound(const doorman_server *server, doorman_time length) {
    assert(length >= 0);
    return length + doorman__scale(length, server->options.drift);
}

static doorman__holder_usage *doorman__server_usage(const doorman_server *server, uint64_t hash) {
    return (doorman__holder_usage *)(void *)doorman__table_first(&server->usages, hash);
}

/* Subtracts one from the number of a holder's resources. */
static void doorman__server_uncount(doorman_server *server, uint64_t hash) {
    doorman__holder_usage *usage = doorman__server_usage(server, hash);
    assert(usage && usage->count);
    if (--usage->count) return;
    doorman__table_remove(&server->usages, &usage->link);
    DOORMAN_FREE(usage);
}

/* Advances the measurements of a resource to the present time. Must be called before each change of
 * its leases, except in a handover, which fills a new resource. */
static void doorman__resource_tick(doorman__resource_entry *resource) {
    doorman__lease_table *leases = &resource->leases;
    doorman_time now = resource->server->now;
    doorman__leases_tick(leases, doorman__leases_learning(leases, now), now);
    if (!resource->overload) return;
    doorman__overload_measure(resource->overload, doorman__total_value(leases->has), now);
}

static void doorman__resource_remove_entry(doorman__resource_entry *resource,
                                           doorman__lease_entry *entry) {
    doorman__server_uncount(resource->server, entry->link.hash);
    doorman__resource_tick(resource);
    doorman__leases_remove(&resource->leases, entry);
}

static void doorman__resource_drop(doorman__resource_entry *resource) {
    doorman_server *server = resource->server;
    doorman__lease_table *leases = &resource->leases;
    assert(!resource->upward || resource->upward->held.state == DOORMAN__HELD_CLOSED);
    for (doorman__lease_entry *entry = NULL; (entry = doorman__leases_first(leases));) {
        doorman__resource_remove_entry(resource, entry);
    }
    doorman__timer_clear(&server->dues, &resource->due);
    doorman__table_remove(&server->resources, &resource->link);
    doorman__leases_uninit(leases);
    if (resource->upward) DOORMAN_FREE(resource->upward->texts);
    DOORMAN_FREE(resource->overload);
    DOORMAN_FREE(resource->upward);
    DOORMAN_FREE(resource);
}

/* Ensures that an update visits the resource by the time `at`. */
static void doorman__resource_update_by(doorman__resource_entry *resource, doorman_time at) {
    assert(resource->due.position);
    if (resource->due.at > at) doorman__timer_set(&resource->server->dues, &resource->due, at);
}

static doorman__upward *doorman__upward_of(doorman__held_lease *held) {
    return DOORMAN__WITHIN(doorman__upward, held, held);
}

static void doorman__server_free_closed(doorman_server *server) {
    for (doorman__held_lease *held; (held = doorman__upstream_next_closed(&server->upstream));) {
        doorman__resource_drop(doorman__upward_of(held)->resource);
    }
}

/* Reports once that a lease of this node has ended without a renewal. The end of a lease that this
 * node is releasing is not reported. */
static void doorman__server_note_end(doorman_server *server, doorman__held_lease *held) {
    bool has_ended = held->lease_id && held->end <= server->now;
    if (!has_ended || held->ended_id == held->lease_id) return;
    held->ended_id = held->lease_id;
    doorman__timer_clear(&server->upstream.ends, &held->over);
    if (doorman__held_lease_ending(held)) return;
    doorman__server_event(server, DOORMAN_EVENT_LEASE_ENDED, held->resource_id, server->node,
                          held->capacity);
}

/* Removes a resource that has no holders. A node with a parent first releases its own lease. But
 * while the node learns, it keeps a lease that is in force or requested, and the resource, because
 * the resource may have unknown holders (R10). If the node's own lease has already ended, its end
 * is reported before the resource is removed. */
static void doorman__resource_remove(doorman__resource_entry *resource) {
    assert(resource->leases.entries.count == 0);
    if (!resource->upward) {
        doorman__resource_drop(resource);
        return;
    }
    doorman_time now = resource->server->now;
    doorman__held_lease *held = &resource->upward->held;
    bool is_held = doorman__held_lease_in_request(held) || doorman__held_lease_live(held, now);
    bool stays = is_held && doorman__leases_learning(&resource->leases, now);
    if (doorman__held_lease_ending(held) || stays) return;
    doorman__server_note_end(resource->server, held);
    doorman__held_lease_close(&resource->server->upstream, held, now, now);
    doorman__server_free_closed(resource->server);
}

static void doorman__resource_expire_entry(doorman__resource_entry *resource,
                                           doorman__lease_entry *entry) {
    doorman_server *server = resource->server;
    assert(server->now >= entry->end);
    const doorman__holder_usage *usage = doorman__server_usage(server, entry->link.hash);
    doorman__server_event(server, DOORMAN_EVENT_EXPIRED, resource->resource_id, entry->holder_id,
                          entry->has);
    if (entry->is_server && entry->lease_id && usage->count == 1) {
        doorman__server_event(server, DOORMAN_EVENT_CHILD_ENDED, resource->resource_id,
                              entry->holder_id, entry->has);
    }
    if (entry->lease_id)
        resource->expired_count++; /* lease_id is 0 if the holder never had a lease here */
    doorman__resource_remove_entry(resource, entry);
}

/* S2: removes at most `most` expired entries, and returns their number. */
static size_t doorman__resource_expire(doorman__resource_entry *resource, size_t most) {
    size_t count = 0;
    for (doorman__lease_entry *entry = NULL;
         count < most && (entry = doorman__leases_first(&resource->leases)); count++) {
        if (resource->server->now < entry->end) break;
        doorman__resource_expire_entry(resource, entry);
    }
    return count;
}

/* Drops all resources, with the leases of the holders and the server's own leases. */
static void doorman__server_drop_leases(doorman_server *server) {
    doorman__upstream_forget(&server->upstream);
    for (doorman__timer *due = NULL; (due = doorman__timers_first(&server->dues));) {
        doorman__resource_entry *resource = DOORMAN__WITHIN(doorman__resource_entry, due, due);
        assert(resource->server == server);
        doorman__resource_drop(resource);
    }
    assert(server->resources.count == 0 && server->usages.count == 0);
}

static void doorman__server_resign(doorman_server *server) {
    doorman__server_drop_leases(server);
    if (server->permits) doorman__permits_in_server.stop(server);
    server->is_master = false;
    server->master[0] = 0;
    server->learns_until = 0;
}

/* Ends the mastership. on_mastership_end can hand over the leases first. */
static void doorman__server_end_mastership(doorman_server *server) {
    const doorman_server_options *options = &server->options;
    assert(server->is_master && !server->is_ending);
    if (options->on_mastership_end) {
        server->is_ending = true;
        options->on_mastership_end(options->context, server, server->now);
        server->is_ending = false;
        server->has_left = false; /* the mastership is over in any case */
    }
    if (server->is_master) doorman__server_resign(server);
}

/* Advances the time, and ends the mastership if its time has passed. */
static doorman_time doorman__server_advance(doorman_server *server, doorman_time now) {
    now = doorman__server_now(server, now);
    const bool is_over = server->is_master && now >= server->master_until;
    if (is_over && !server->is_ending) doorman__server_end_mastership(server);
    return now;
}

/* ---- server: the maximum */

/* Returns the present amount of the maximum (S12): the capacity in a root, or K in a node with a
 * parent. If the algorithm does not divide the capacity, the amount is DBL_MAX. */
static doorman__maximum doorman__resource_maximum(const doorman__resource_entry *resource) {
    const doorman__lease_table *leases = &resource->leases;
    const doorman__held_lease *held = resource->upward ? &resource->upward->held : NULL;
    doorman__maximum maximum = {leases->capacity, DOORMAN_NEVER};
    if (held) {
        maximum.amount = held->lease_id ? held->committed : 0;
        doorman_time drift = doorman__scale(leases->lease_length, resource->server->options.drift);
        maximum.until = doorman__later(doorman__after(held->end, drift), leases->late_end);
    }
    if (!doorman__divides_capacity(leases->algorithm)) maximum.amount = DBL_MAX;
    return maximum;
}

/* Stores `before`, the amount before a change, as an older amount. Does nothing if `before` has
 * ended, or if the present amount is at least as large and lasts at least as long. */
static void doorman__resource_add_older(doorman__resource_entry *resource,
                                        doorman__maximum before) {
    const doorman_server *server = resource->server;
    doorman__maximum *older = resource->older, *latest = &older[older[1].until > older[0].until];
    doorman__maximum present = doorman__resource_maximum(resource);
    bool covered = before.amount <= present.amount && before.until <= present.until;
    assert(before.amount >= 0);
    if (covered || server->now >= before.until) return;
    if (server->now >= older[0].until) {
        older[0] = before;
    } else if (server->now >= older[1].until) {
        older[1] = before;
    } else {
        latest->amount = doorman__max(latest->amount, before.amount);
        latest->until = doorman__later(latest->until, before.until);
    }
}

/* Extends the older amounts that still count: they count at least until `until`. */
static void doorman__resource_keep_older(doorman__resource_entry *resource, doorman_time until) {
    assert(until >= resource->server->now);
    for (size_t i = 0; i < 2; i++) {
        doorman__maximum *older = &resource->older[i];
        if (resource->server->now < older->until) {
            older->until = doorman__later(older->until, until);
        }
    }
}

/* S12: returns the overshoot, or 0 if it is at most a rounding error (A1): 10^-9 of the maximum.
 * Also returns 0 while leases that have ended are still a part of `has` (S2). */
static double doorman__resource_overshoot(const doorman__resource_entry *resource) {
    const doorman__lease_entry *first = doorman__leases_first(&resource->leases);
    doorman__maximum maximum = doorman__resource_maximum(resource);
    doorman_time now = resource->server->now;
    double most = now < maximum.until ? maximum.amount : 0;
    if (first && now >= first->end) return 0;
    for (size_t i = 0; i < 2; i++) {
        const doorman__maximum *older = &resource->older[i];
        if (now < older->until) most = doorman__max(most, older->amount);
    }
    double overshoot = doorman__total_value(resource->leases.has) - most;
    return overshoot > most * 1e-9 ? overshoot : 0;
}

static doorman_status doorman__server_check_options(const doorman_server_options *options,
                                                    doorman_error *error) {
    const doorman_config *config = options->config;
    const bool has_parent = options->parent_count > 0;
    doorman_error unfit = {0};
    const doorman__rule rules[] = {
        {!doorman__id_valid(options->node), "node: " DOORMAN__ID_RULE},
        {!(options->drift >= 0 && options->drift <= 1), "drift: must be from 0 to 1"},
        {!doorman__duration_valid(options->request_timeout),
         "request_timeout: " DOORMAN__DURATION_RULE},
        {!has_parent && !config, "config: must not be NULL, unless there are parents"},
        {!has_parent && options->request_timeout,
         "request_timeout: must be 0 where there are no parents"},
        {!options->seed[0] && !options->seed[1],
         "seed: must not be 0, but random bits that are new for each process"},
    };
    doorman_status status = DOORMAN__RULES_CHECK(rules, error);
    if (status != DOORMAN_OK || !config) return status;
    if (doorman_config_fits(config, has_parent, &unfit) == DOORMAN_OK) return DOORMAN_OK;
    return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "config: %s", unfit.text);
}

static void doorman__server_set_options(doorman_server *server,
                                        const doorman_server_options *options) {
    server->options = *options;
    memcpy(server->node, options->node, strlen(options->node) + 1);
    server->options.node = server->node;
    if (options->drift <= 0) server->options.drift = DOORMAN__DRIFT;
    if (!options->resource_max) server->options.resource_max = 1000000;
    if (!options->holder_max) server->options.holder_max = 10000000;
    if (!options->resource_max_per_holder) server->options.resource_max_per_holder = 100000;
    server->path[0] = server->node;
    for (size_t i = 0; i < DOORMAN__PATH_MAX; i++) server->path[i + 1] = server->below[i];
}

static const doorman__upstream_calls doorman__server_calls; /* below */

static doorman_status doorman__server_init_upstream(doorman_server *server, doorman_error *error) {
    const doorman_server_options *options = &server->options;
    doorman_upstream *upstream = &server->upstream;
    upstream->is_server = true;
    upstream->path = server->path;
    upstream->path_count = 1;
    upstream->random = doorman__hash(options->seed, "jitter");
    upstream->timeout = options->request_timeout ? options->request_timeout : 5 * DOORMAN_SECOND;
    return doorman__upstream_init(upstream, server->node, options->parents, options->parent_count,
                                  error);
}

doorman_status doorman_server_create(doorman_server **out, const doorman_server_options *options,
                                     doorman_error *error, doorman_time now) {
    if (!out) return doorman__missing(error, "out");
    if (!options) return doorman__missing(error, "options");
    doorman_server_options own = *options;
#ifdef DOORMAN_NNG
    bool has_seed = own.seed[0] || own.seed[1];
    if (!has_seed && !doorman__random_bits(own.seed, sizeof own.seed)) {
        return doorman__fail(error, DOORMAN_UNAVAILABLE, "seed: the system has no random bits");
    }
#endif
    doorman_status status = doorman__server_check_options(&own, error);
    if (status != DOORMAN_OK) return status;
    doorman_server *server = (doorman_server *)doorman__zalloc(sizeof *server);
    if (!server) return doorman__no_memory(error);
    doorman__server_set_options(server, &own);
    server->arena.borrows_names = true; /* a response is valid until the next call */
    server->upstream.calls = &doorman__server_calls;
    doorman__server_now(server, now);
    if (DOORMAN__HAS_PERMITS) {
        status = doorman__permits_in_server.create(server, &own, error);
    } else if (own.permits) {
        status = doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "permits: " DOORMAN__NO_PERMITS);
    }
    if (status == DOORMAN_OK && options->parent_count) {
        status = doorman__server_init_upstream(server, error);
    } else if (status == DOORMAN_OK) {
        status = doorman_server_configure(server, options->config, now);
    }
    if (status == DOORMAN_OUT_OF_MEMORY) (void)doorman__no_memory(error);
    if (status != DOORMAN_OK) {
        doorman_server_destroy(server);
        return status;
    }
    *out = server;
    return DOORMAN_OK;
}

void doorman_server_destroy(doorman_server *server) {
    if (!server) return;
    doorman__server_resign(server);
    doorman__upstream_uninit(&server->upstream);
    doorman__table_uninit(&server->resources);
    doorman__table_uninit(&server->usages);
    doorman__timers_uninit(&server->dues);
    DOORMAN_FREE(server->learned_at);
    DOORMAN_FREE(server->request_items);
    DOORMAN_FREE(server->places);
    DOORMAN_FREE(server->items);
    DOORMAN_FREE(server->terms);
    if (DOORMAN__HAS_PERMITS) doorman__permits_in_server.destroy(server);
    doorman__arena_uninit(&server->arena);
    DOORMAN_FREE(server);
}

/* R8: returns when the learning of a new resource ends. By this time the leases of a predecessor
 * that was gone at `gone_at` have ended, and so have the leases of earlier configurations. If
 * learning_mode_duration is set, it alone decides. */
static doorman_time doorman__server_learned_at(const doorman_server *server,
                                               const doorman_algorithm *algorithm,
                                               doorman_time gone_at) {
    if (algorithm->has_learning_mode_duration) {
        return doorman__after(gone_at, algorithm->learning_mode_duration);
    }
    doorman_time last =
        doorman__after(gone_at, doorman__server_bound(server, algorithm->lease_length));
    return doorman__later(last, server->drains_at);
}

/* R8: sets, for each template, when the learning of a new resource ends. */
static void doorman__server_begin_learning(doorman_server *server) {
    for (size_t i = 0; server->config && i < server->config->template_count; i++) {
        const doorman_algorithm *algorithm = &server->config->templates[i].algorithm;
        server->learned_at[i] =
            doorman__server_learned_at(server, algorithm, server->predecessor_gone_at);
    }
}

/* `settings` is a template of a new configuration. Returns when the learning of its new resources
 * ends. If the last configuration has a template with the same glob, the result is the end for that
 * template. While the server learns, the result may be later, because the predecessor may have had
 * the new configuration, with longer leases. Without a template with the same glob, the result is
 * the latest end for all templates of the last configuration. If a resource could match none of
 * these templates, leases without an entry may exist (G2). Then the result is at least drains_at,
 * or now plus learning_mode_duration if that is set (G5). */
static doorman_time doorman__server_inherit(const doorman_server *server,
                                            const doorman_template *settings, size_t index) {
    const doorman_config *last = server->config;
    size_t same = doorman__config_same(last, settings->identifier_glob, index);
    doorman_time length = settings->algorithm.lease_length, learned_at = 0;
    if (same < last->template_count) {
        learned_at = server->learned_at[same];
        if (!server->is_master || server->now >= learned_at) return learned_at;
        length = doorman__server_bound(server, length);
        return doorman__later(learned_at, doorman__after(server->predecessor_gone_at, length));
    }
    for (size_t i = 0; i < last->template_count; i++) {
        learned_at = doorman__later(learned_at, server->learned_at[i]);
    }
    if (doorman__config_matches_all(last) || !server->is_master) return learned_at;
    const doorman_algorithm *algorithm = &settings->algorithm;
    doorman_time gained = algorithm->has_learning_mode_duration
                              ? doorman__after(server->now, algorithm->learning_mode_duration)
                              : server->drains_at;
    return doorman__later(learned_at, gained);
}

/* A resource may match another template in a new configuration (G1) if its last template is gone,
 * or if a template that was behind it is now in front of it. Returns the latest end of the learning
 * for all such last templates, or 0 if there are none. */
static doorman_time doorman__server_inherit_moved(const doorman_server *server,
                                                  const doorman_config *config) {
    const doorman_config *last = server->config;
    doorman_time learned_at = 0;
    size_t first = SIZE_MAX; /* the lowest new index of the templates that were behind this one */
    for (size_t i = last->template_count; i-- > 0;) {
        size_t same = doorman__config_same(config, last->templates[i].identifier_glob, i);
        bool moved = same == config->template_count || same > first;
        if (moved) learned_at = doorman__later(learned_at, server->learned_at[i]);
        if (same < first) first = same;
    }
    return learned_at;
}

/* Returns the capacity in force of a root's resource. */
static double doorman__resource_capacity(const doorman__resource_entry *resource) {
    const doorman__overload_state *overload = resource->overload;
    assert(!resource->upward);
    if (!overload) return resource->settings->capacity;
    assert(overload->capacity <= resource->settings->capacity);
    return doorman__leases_round_down(&resource->leases, overload->capacity);
}

/* Returns how long a request to the resource may wait before it is late (H11). 0: reports have no
 * effect. */
static doorman_time doorman__resource_overload_target(const doorman__resource_entry *resource) {
    bool divides = doorman__divides_capacity(resource->leases.algorithm);
    return divides ? resource->settings->overload.target : 0;
}

/* H11: applies new settings to the overload state of a root's resource, if it has one. If reports
 * have no effect any more, frees the state. */
static void doorman__resource_bound(doorman__resource_entry *resource) {
    doorman__overload_state *overload = resource->overload;
    if (!overload) return;
    assert(!resource->upward);
    if (doorman__resource_overload_target(resource)) {
        doorman__overload_set_bounds(overload, resource->settings, resource->server->now);
        doorman__resource_update_by(resource, overload->step_at);
    } else {
        DOORMAN_FREE(overload);
        resource->overload = NULL;
    }
}

/* Sets the template of a root's resource, and updates the capacity in force of the resource. */
static void doorman__resource_adjust(doorman__resource_entry *resource,
                                     const doorman_template *settings) {
    doorman__lease_table *leases = &resource->leases;
    doorman__maximum before = doorman__resource_maximum(resource);
    before.until = leases->last_end;
    assert(!resource->upward && !settings->without_capacity);
    if (settings != resource->settings) {
        resource->settings = settings;
        doorman__leases_set_algorithm(leases, &settings->algorithm, settings->whole);
        doorman__resource_bound(resource);
    }
    double capacity = doorman__resource_capacity(resource);
    doorman__leases_set_capacity(leases, capacity, DBL_MAX, DOORMAN_NEVER);
    doorman__resource_add_older(resource, before);
}

/* Allocates the overload state of a root's resource, if it has none and the report needs one.
 * Returns false if memory runs out. */
static bool doorman__resource_reserve_report(doorman__resource_entry *resource,
                                             const doorman_overload_report *report) {
    bool used = report->interval && !resource->upward && !resource->overload;
    if (!used || !doorman__resource_overload_target(resource)) return true;
    double leased = doorman__total_value(resource->leases.has);
    resource->overload =
        doorman__overload_create(resource->settings, leased, resource->server->now);
    return resource->overload != NULL;
}

/* Raises the capacity in force by the steps that are due (H11). */
static void doorman__resource_grow_capacity(doorman__resource_entry *resource) {
    doorman__overload_state *overload = resource->overload;
    if (!overload || !doorman__overload_grow(overload, resource->server->now)) return;
    doorman__resource_adjust(resource, resource->settings);
}

/* H11: applies a report. A node with a parent passes the report on later. Precondition:
 * doorman__resource_reserve_report has succeeded. */
static void doorman__resource_add_report(doorman__resource_entry *resource, const char *holder_id,
                                         const doorman_overload_report *report) {
    doorman_server *server = resource->server;
    doorman__overload_state *overload = resource->overload;
    if (!report->interval || !doorman__resource_overload_target(resource)) return;
    assert(!resource->upward || !overload);
    if (resource->upward) doorman__tally_add(&resource->upward->tally, report, server->now);
    if (!overload) return;
    doorman__resource_tick(resource);
    doorman__overload_add(overload, report, server->now);
    if (!doorman__overload_cut(overload, server->now)) return;
    doorman__resource_adjust(resource, resource->settings);
    doorman__resource_update_by(resource, overload->step_at);
    doorman__server_event(server, DOORMAN_EVENT_OVERLOADED, resource->resource_id, holder_id,
                          resource->leases.capacity);
}

/* Sets the configuration of a root, for leases.
 *   learned_at   memory for a time for each template; belongs to the server from now on */
static void doorman__server_set_config(doorman_server *server, const doorman_config *config,
                                       doorman_time *learned_at) {
    doorman_time now = server->now;
    if (server->config) {
        doorman_time longest = doorman__config_longest_lease(server->config);
        doorman_time drains_at = doorman__after(now, doorman__server_bound(server, longest));
        server->drains_at = doorman__later(server->drains_at, drains_at);
    }
    doorman_time moved = server->config ? doorman__server_inherit_moved(server, config) : 0;
    for (size_t i = 0; i < config->template_count && server->config; i++) {
        learned_at[i] = doorman__server_inherit(server, &config->templates[i], i);
        learned_at[i] = doorman__later(learned_at[i], moved);
    }
    DOORMAN_FREE(server->learned_at);
    server->learned_at = learned_at;
    server->config = config;
    doorman_cursor cursor = {0};
    for (doorman__link *link; (link = doorman__cursor_next(&cursor, &server->resources));) {
        doorman__resource_entry *resource = (doorman__resource_entry *)(void *)link;
        const doorman_template *settings =
            doorman__config_find_capacity(config, resource->resource_id);
        if (!settings) {
            doorman__resource_drop(resource);
            continue;
        }
        doorman__resource_adjust(resource, settings);
        doorman_time *until = &resource->leases.learned_at;
        if (now < *until) *until = doorman__later(*until, learned_at[settings - config->templates]);
    }
}

doorman_status doorman_server_configure(doorman_server *server, const doorman_config *config,
                                        doorman_time now) {
    if (!server || !config) return DOORMAN_INVALID_ARGUMENT;
    doorman__server_advance(server, now);
    bool root = doorman__server_is_root(server);
    if (doorman_config_fits(config, !root, NULL) != DOORMAN_OK) return DOORMAN_INVALID_ARGUMENT;
    size_t bytes = (config->template_count + 1) * sizeof(doorman_time);
    doorman_time *learned_at = (doorman_time *)doorman__zalloc(bytes);
    doorman_status status = learned_at ? DOORMAN_OK : DOORMAN_OUT_OF_MEMORY;
    if (DOORMAN__HAS_PERMITS && learned_at) {
        status = doorman__permits_in_server.configure(server, config);
    }
    if (status == DOORMAN_OK && root) {
        doorman__server_set_config(server, config, learned_at);
    } else {
        DOORMAN_FREE(learned_at);
    }
    return status == DOORMAN_OK ? DOORMAN_OK : DOORMAN_OUT_OF_MEMORY;
}

void doorman_server_set_epoch(doorman_server *server, doorman_time epoch, doorman_time now) {
    if (!server) return;
    (void)doorman__server_now(server, now);
    if (DOORMAN__HAS_PERMITS) doorman__permits_in_server.set_epoch(server, epoch);
}

doorman_status doorman_server_set_master(doorman_server *server,
                                         const doorman_mastership *mastership, doorman_time now) {
    if (!server || !mastership) return DOORMAN_INVALID_ARGUMENT;
    now = doorman__server_advance(server, now);
    bool is_named = mastership->until > now, is_master = is_named && !server->has_left;
    if (mastership->address ? !doorman__id_valid(mastership->address) : is_named) {
        return DOORMAN_INVALID_ARGUMENT;
    }
    server->has_left = server->has_left && is_named;
    if (server->is_master && !is_master) doorman__server_end_mastership(server);
    size_t bytes = mastership->address ? strlen(mastership->address) : 0;
    if (bytes) memcpy(server->master, mastership->address, bytes);
    server->master[bytes] = 0;
    server->master_until = mastership->until;
    if (is_master && !server->is_master) {
        doorman_time gone_at = mastership->predecessor_gone ? mastership->predecessor_gone : now;
        server->predecessor_gone_at = gone_at;
        assert(server->resources.count == 0 && server->usages.count == 0);
        doorman__server_begin_learning(server);
        if (DOORMAN__HAS_PERMITS) doorman__permits_in_server.start(server);
    }
    server->is_master = is_master;
    return DOORMAN_OK;
}

doorman_time doorman_server_learns_until(const doorman_server *server, doorman_time now) {
    if (!server) return 0;
    doorman_time last = server->learns_until;
    now = doorman__later(server->now, now);
    for (size_t i = 0; server->config && i < server->config->template_count; i++) {
        const doorman_template *settings = &server->config->templates[i];
        if (!doorman__divides_capacity(&settings->algorithm)) continue;
        /* no holder gets a lease of a template without a capacity */
        if (!settings->without_capacity) last = doorman__later(last, server->learned_at[i]);
    }
    return server->is_master && now < server->master_until && now < last ? last : 0;
}

/* ---- server: checking a request */

/* C10: returns the name that a field has on the wire if the request was a message, or else in C. */
static const char *doorman__name(const doorman_request *request, const char *in_c,
                                 const char *on_wire) {
    return request->wire_names ? on_wire : in_c;
}

/* Returns INVALID_ARGUMENT, with an error that names a field of an item and the rule that it
 * breaks. */
static doorman_status doorman__item_wrong(const doorman_request *request, size_t index,
                                          const char *field, const char *rule,
                                          doorman_error *error) {
    return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "%s[%zu].%s: %s",
                         doorman__name(request, "items", "resource"), index, field, rule);
}

/* Checks the demands of an item. On the wire, the fields of a client's demand are fields of the
 * item itself. */
static doorman_status doorman__demands_check(const doorman_request *request, size_t index,
                                             doorman_error *error) {
    const doorman_capacity_request *item_request = &request->items[index];
    const size_t count = item_request->wants_count;
    const bool is_server = request->is_server, flat = !is_server && request->wire_names;
    const char *rule = NULL;
    _Static_assert(DOORMAN__GROUPS_MAX == 512, "the text of the rule");
    if (count > DOORMAN__GROUPS_MAX) rule = "at most 512";
    if (count && !item_request->wants) rule = "must not be NULL";
    if (!is_server && (count != 1 || !item_request->wants)) {
        rule = flat ? DOORMAN__AMOUNT_RULE : "a client must have one demand";
    }
    if (rule) return doorman__item_wrong(request, index, "wants", rule, error);
    bool weighs = is_server || doorman__request_is_of_permits(request);
    for (size_t i = 0; i < count; i++) {
        const double most = weighs ? DOORMAN_SUBCLIENTS_MAX : 1;
        const char *field = doorman__demand_wrong(&item_request->wants[i], most, &rule);
        if (!field) continue;
        char path[60];
        if (strcmp(field, "subclients") == 0) field = doorman__name(request, field, "num_clients");
        snprintf(path, sizeof path, "wants[%zu].%s", i, field);
        return doorman__item_wrong(request, index, flat ? field : path, rule, error);
    }
    return DOORMAN_OK;
}

/* T8: refuses a path that has a loop, is too long, or does not begin with the sender. */
static doorman_status doorman__server_check_path(const doorman_server *server,
                                                 const doorman_request *request,
                                                 doorman_error *error) {
    size_t most = doorman__server_is_root(server) ? DOORMAN__PATH_MAX : DOORMAN__PATH_MAX - 1;
    const char *sender = request->path_count ? request->path[0] : request->holder_id;
    if (request->path_count > most) {
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "path: more than %zu nodes: a loop?",
                             most);
    }
    for (size_t i = 0; i < request->path_count; i++) {
        const char *node = request->path[i], *rule = NULL;
        if (!doorman__id_valid(node)) {
            rule = DOORMAN__ID_RULE;
        } else if (strcmp(node, server->node) == 0) {
            rule = "is this node: a loop, it asks for itself";
        } else if (strcmp(node, server->parent) == 0) {
            rule = "is the parent of this node: a loop";
        }
        if (rule) return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "path[%zu]: %s", i, rule);
    }
    if (strcmp(sender, request->holder_id) != 0) {
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT,
                             "path[0]: must be the %s, because the first node of a path is the "
                             "sender",
                             doorman__name(request, "holder_id", "server_id"));
    }
    return DOORMAN_OK;
}

/* Returns the field of a report that breaks its rule, or NULL. */
static const char *doorman__overload_report_wrong(const doorman_overload_report *report,
                                                  const char **rule) {
    *rule = doorman__duration_rule;
    if (!doorman__duration_valid(report->interval)) return "overload.interval";
    *rule = DOORMAN__AMOUNT_RULE;
    if (!doorman__amount_valid(report->arrived)) return "overload.arrived";
    if (!doorman__amount_valid(report->finished)) return "overload.finished";
    if (!doorman__amount_valid(report->refused)) return "overload.refused";
    *rule = "must be from 0 to `finished`, because it is a part of it";
    return report->late >= 0 && report->late <= report->finished ? NULL : "overload.late";
}

/* Returns the field of a holder's claim that breaks its rule, or NULL. */
static const char *doorman__claim_wrong(const doorman_capacity_request *item_request,
                                        const char **rule) {
    const doorman_lease *has = &item_request->has;
    *rule = DOORMAN__ID_RULE;
    if (has->id && !doorman__id_valid(has->node)) return "has.node";
    *rule = DOORMAN__AMOUNT_RULE;
    if (has->id && !doorman__amount_valid(has->capacity)) return "has.capacity";
    if (!doorman__amount_valid(item_request->outstanding)) return "outstanding";
    *rule = DOORMAN__DURATION_OR_ZERO_RULE;
    return has->id && !doorman__duration_valid(has->expires_in) ? "has.expires_in" : NULL;
}

static doorman_status doorman__capacity_request_check(const doorman_request *request, size_t index,
                                                      doorman_error *error) {
    assert(index < request->item_count);
    const doorman_capacity_request *item_request = &request->items[index];
    const uint64_t id = item_request->has.id;
    const bool release = request->method == DOORMAN_RELEASE_CAPACITY;
    const bool reports = request->method == DOORMAN_REPORT_OVERLOAD;
    const char *field = NULL, *rule = doorman__lease_id_rule;
    if (id > UINT64_C(1) << 53 || (release && !id)) {
        field = release ? doorman__name(request, "has.id", "id") : "has.id";
    } else if (!release) {
        field = doorman__overload_report_wrong(&item_request->overload, &rule);
        if (!field && reports && !item_request->overload.interval) {
            field = "overload.interval", rule = "must be more than 0";
        }
        /* on the wire these are fields of the report itself */
        if (field && reports && request->wire_names) field += strlen("overload.");
        if (!field && !reports) field = doorman__claim_wrong(item_request, &rule);
    }
    if (field) return doorman__item_wrong(request, index, field, rule, error);
    return release || reports ? DOORMAN_OK : doorman__demands_check(request, index, error);
}

/* Refuses a request that names a resource twice. The function puts the items into a hash table with
 * open addressing and linear probing. The table has at least twice as many places as the request
 * has items. A place holds the index of an item plus 1. An empty place holds 0. */
static doorman_status doorman__server_check_twice(doorman_server *server,
                                                  const doorman_request *request,
                                                  doorman_error *error) {
    size_t place_count = 4;
    if (request->item_count < 2) return DOORMAN_OK;
    while (place_count < 2 * request->item_count) place_count *= 2;
    assert(place_count <= server->places_capacity);
    memset(server->places, 0, place_count * sizeof *server->places);
    for (size_t i = 0; i < request->item_count; i++) {
        const char *id = request->items[i].resource_id;
        size_t at = (size_t)server->request_items[i].hash & (place_count - 1);
        for (; server->places[at]; at = (at + 1) & (place_count - 1)) {
            size_t other = server->places[at] - 1;
            if (server->request_items[other].hash != server->request_items[i].hash) continue;
            if (strcmp(request->items[other].resource_id, id) != 0) continue;
            const char *list = doorman__name(request, "items", "resource");
            return doorman__fail(error, DOORMAN_INVALID_ARGUMENT,
                                 "%s[%zu].resource_id: the same as that of %s[%zu]", list, i, list,
                                 other);
        }
        server->places[at] = i + 1;
    }
    return DOORMAN_OK;
}

static bool doorman__server_reserve(doorman_server *server, const doorman_request *request) {
    const size_t count = request->item_count, terms = request->is_server ? count : 0;
    return doorman__reserve(&server->request_items, &server->request_items_capacity, count,
                            sizeof *server->request_items) &&
           doorman__reserve(&server->places, &server->places_capacity, 4 * count,
                            sizeof *server->places) &&
           doorman__reserve(&server->items, &server->response_items_capacity, count,
                            sizeof *server->items) &&
           doorman__reserve(&server->terms, &server->terms_capacity, terms,
                            DOORMAN_TERMS_MAX * sizeof *server->terms);
}
static doorman__resource_entry *doorman__server_find(doorman_server *server, uint64_t hash,
                                                     const char *resource_id) {
    doorman__link *link = doorman__table_first(&server->resources, hash);
    for (; link; link = doorman__table_same(link->next, hash)) {
        doorman__resource_entry *resource = (doorman__resource_entry *)(void *)link;
        if (strcmp(resource->resource_id, resource_id) == 0) return resource;
    }
    return NULL;
}

/* Checks the ids of a request, and finds the resources of its items. While later checks run, the
 * CPU can load the holder's buckets in the lease tables. */
static doorman_status doorman__server_look_up(doorman_server *server,
                                              const doorman_request *request,
                                              doorman_error *error) {
    const char *name = request->is_server ? "server_id" : "client_id";
    const char *who = doorman__name(request, "holder_id", name);
    if (!doorman__id_valid(request->holder_id)) {
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "%s: %s", who, DOORMAN__ID_RULE);
    }
    if (doorman__request_is_of_permits(request) && !server->asks_itself) {
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT,
                             "%s: must not be that of the permits of a server", who);
    }
    if (!doorman__server_reserve(server, request)) return doorman__no_memory(error);
    server->holder_hash = doorman__holder_hash(server, request->holder_id, request->is_server);
    for (size_t i = 0; i < request->item_count; i++) {
        const char *id = request->items[i].resource_id;
        if (!doorman__id_valid(id)) {
            return doorman__item_wrong(request, i, "resource_id", DOORMAN__ID_RULE, error);
        }
        uint64_t hash = doorman__hash(server->options.seed, id);
        doorman__resource_entry *resource = doorman__server_find(server, hash, id);
        if (resource) doorman__table_fetch(&resource->leases.entries, server->holder_hash);
        server->request_items[i] = (doorman__request_item){hash, i, .resource = resource};
    }
    return DOORMAN_OK;
}

static doorman_status doorman__server_check(doorman_server *server, const doorman_request *request,
                                            doorman_error *error) {
    if ((unsigned)request->method >= DOORMAN_METHOD_COUNT) {
        return doorman__fail(error, DOORMAN_NOT_FOUND, "no such method");
    }
    if (request->method == DOORMAN_DISCOVERY) return DOORMAN_OK;
    doorman_status status = doorman__server_look_up(server, request, error);
    if (status == DOORMAN_OK) status = doorman__server_check_path(server, request, error);
    for (size_t i = 0; i < request->item_count && status == DOORMAN_OK; i++) {
        status = doorman__capacity_request_check(request, i, error);
    }
    return status == DOORMAN_OK ? doorman__server_check_twice(server, request, error) : status;
}

/* ---- server: making room */

static void doorman__item_move(doorman__request_item *item, doorman__item_state state) {
#define DOORMAN__TO(name) (1U << DOORMAN__ITEM_##name)
    static const unsigned legal[DOORMAN__ITEM_STATE_COUNT] = {
        [DOORMAN__ITEM_CHECKED] =
            DOORMAN__TO(UNMATCHED) | DOORMAN__TO(FULL) | DOORMAN__TO(FOUND) | DOORMAN__TO(ADDED),
        [DOORMAN__ITEM_FOUND] = DOORMAN__TO(NO_LEASE) | DOORMAN__TO(REPEAT) | DOORMAN__TO(LEARN) |
                                DOORMAN__TO(RESTORE) | DOORMAN__TO(GRANT),
        [DOORMAN__ITEM_ADDED] = DOORMAN__TO(NO_LEASE) | DOORMAN__TO(LEARN) | DOORMAN__TO(GRANT),
        [DOORMAN__ITEM_LEARN] = DOORMAN__TO(TRY_LATER)};
    assert(legal[item->state] & 1U << state);
    (void)legal;
    item->state = state;
}

/* Called for a node with a parent. Adds the node's held lease of one resource. At first the held
 * lease has no capacity, and the lease table learns. */
static bool doorman__upward_create(doorman__resource_entry *resource) {
    doorman_upstream *upstream = &resource->server->upstream;
    assert(!doorman__server_is_root(resource->server) && !resource->upward);
    if (!doorman__upstream_reserve(upstream)) return false;
    doorman__upward *upward = (doorman__upward *)doorman__zalloc(sizeof *upward);
    if (!upward) return false;
    upward->resource = resource;
    upward->settings = (doorman_template){.identifier_glob = resource->resource_id,
                                          .description = "",
                                          .unit = "",
                                          .has_algorithm = true};
    upward->settings.algorithm = doorman__algorithm_resolve(&upward->settings.algorithm);
    upward->held.resource_id = resource->resource_id;
    doorman__upstream_add(upstream, &upward->held, resource->server->now);
    resource->upward = upward;
    resource->settings = &upward->settings;
    doorman__leases_set_algorithm(&resource->leases, &upward->settings.algorithm, false);
    resource->leases.parent_terms = upward->terms;
    resource->leases.learned_at = DOORMAN_NEVER;
    return true;
}

/* Adds a resource. `settings` is its template in a root, and NULL in a node with a parent. */
static doorman__resource_entry *doorman__server_add_resource(doorman_server *server, uint64_t hash,
                                                             const char *resource_id,
                                                             const doorman_template *settings) {
    size_t bytes = strlen(resource_id) + 1;
    if (!doorman__timers_reserve(&server->dues, server->resources.count + 1)) return NULL;
    doorman__resource_entry *resource =
        (doorman__resource_entry *)doorman__zalloc(sizeof *resource + bytes);
    if (!resource) return NULL;
    assert(!settings == !doorman__server_is_root(server));
    resource->server = server;
    memcpy(resource->resource_id, resource_id, bytes);
    if (settings) {
        doorman__lease_table *leases = &resource->leases;
        resource->settings = settings;
        doorman__leases_set_algorithm(leases, &settings->algorithm, settings->whole);
        doorman__leases_set_capacity(leases, settings->capacity, DBL_MAX, DOORMAN_NEVER);
        leases->learned_at = server->learned_at[settings - server->config->templates];
    } else if (!doorman__upward_create(resource)) {
        DOORMAN_FREE(resource);
        return NULL;
    }
    doorman__table_add(&server->resources, &resource->link, hash);
    doorman__timer_set(&server->dues, &resource->due, doorman__after(server->now, DOORMAN_SECOND));
    return resource;
}

/* Adds one to the number of a holder's resources. Returns RESOURCE_EXHAUSTED if the holder is at
 * the limit. A holder that is a server has no limit, because it acts for many clients. */
static doorman_status doorman__server_count(doorman_server *server, uint64_t hash, bool is_server) {
    size_t most = is_server ? SIZE_MAX : server->options.resource_max_per_holder;
    doorman__holder_usage *usage = doorman__server_usage(server, hash);
    if (!usage) {
        usage = (doorman__holder_usage *)doorman__zalloc(sizeof *usage);
        if (!usage) return DOORMAN_OUT_OF_MEMORY;
        doorman__table_add(&server->usages, &usage->link, hash);
    } else if (usage->count >= most) {
        return DOORMAN_RESOURCE_EXHAUSTED;
    }
    usage->count++;
    assert(usage->count == 1 || usage->count <= most);
    return DOORMAN_OK;
}

/* Finds or creates the resource of an item. If the server is a root, and no template with a
 * capacity matches, moves the item to UNMATCHED. If the server has resource_max resources already,
 * moves the item to FULL. */
static doorman_status doorman__item_find_resource(doorman_server *server,
                                                  doorman__request_item *item,
                                                  const char *resource_id) {
    assert(item->state == DOORMAN__ITEM_CHECKED);
    if (item->resource) return DOORMAN_OK;
    const bool root = doorman__server_is_root(server);
    const doorman_template *settings = NULL;
    if (root) settings = doorman__config_find_capacity(server->config, resource_id);
    if (root && !settings) {
        doorman__item_move(item, DOORMAN__ITEM_UNMATCHED);
    } else if (server->resources.count >= server->options.resource_max) {
        doorman__item_move(item, DOORMAN__ITEM_FULL);
    } else {
        item->resource = doorman__server_add_resource(server, item->hash, resource_id, settings);
        if (!item->resource) return DOORMAN_OUT_OF_MEMORY;
    }
    return DOORMAN_OK;
}

static doorman_status doorman__item_find_entry(doorman_server *server, doorman__request_item *item,
                                               const doorman_request *request) {
    doorman__lease_table *leases = &item->resource->leases;
    uint64_t holder_hash = server->holder_hash;
    doorman__resource_expire(item->resource, DOORMAN__EXPIRE_MAX);
    item->entry = doorman__leases_find(leases, holder_hash, request->holder_id, request->is_server);
    if (item->entry && server->now >= item->entry->end) {
        doorman__resource_expire_entry(item->resource, item->entry);
        item->entry = NULL;
    }
    if (item->entry) {
        __builtin_prefetch(item->entry->older); /* a renewal writes to both neighbours */
        __builtin_prefetch(item->entry->newer);
        doorman__item_move(item, DOORMAN__ITEM_FOUND);
        return DOORMAN_OK;
    }
    doorman_status status = DOORMAN_RESOURCE_EXHAUSTED;
    if (leases->entries.count < server->options.holder_max) {
        status = doorman__server_count(server, holder_hash, request->is_server);
    }
    if (status == DOORMAN_RESOURCE_EXHAUSTED) doorman__item_move(item, DOORMAN__ITEM_FULL);
    if (status != DOORMAN_OK) return status == DOORMAN_OUT_OF_MEMORY ? status : DOORMAN_OK;
    item->entry = doorman__leases_add(leases, holder_hash, request->holder_id, request->is_server);
    if (!item->entry) {
        doorman__server_uncount(server, holder_hash);
        return DOORMAN_OUT_OF_MEMORY;
    }
    doorman__item_move(item, DOORMAN__ITEM_ADDED);
    return DOORMAN_OK;
}

/* Finds or creates the resource and the lease entry of one item, and reserves memory for the
 * demands and the report of the item. */
static doorman_status doorman__item_make_room(doorman_server *server, doorman__request_item *item,
                                              const doorman_request *request) {
    assert(item->index < request->item_count);
    const doorman_capacity_request *item_request = &request->items[item->index];
    doorman_status status = doorman__item_find_resource(server, item, item_request->resource_id);
    if (status != DOORMAN_OK || !item->resource) return status;
    doorman__lease_table *leases = &item->resource->leases;
    status = doorman__item_find_entry(server, item, request);
    if (status != DOORMAN_OK) return status;
    bool room = doorman__resource_reserve_report(item->resource, &item_request->overload);
    if (room && item->entry) {
        room = doorman__leases_reserve(leases, item->entry, item_request->wants,
                                       item_request->wants_count);
    }
    if (item->state == DOORMAN__ITEM_FULL && !leases->entries.count) {
        doorman__resource_remove(item->resource);
        item->resource = NULL;
    }
    return room ? DOORMAN_OK : DOORMAN_OUT_OF_MEMORY;
}

/* Makes room for all items. If memory runs out, removes again what was created for the items. */
static doorman_status doorman__server_make_room(doorman_server *server,
                                                const doorman_request *request) {
    doorman_status status = DOORMAN_OK;
    size_t made = 0;
    assert(request->item_count <= server->request_items_capacity);
    for (; made < request->item_count && status == DOORMAN_OK; made++) {
        status = doorman__item_make_room(server, &server->request_items[made], request);
    }
    for (size_t i = 0; i < made && status != DOORMAN_OK; i++) {
        doorman__request_item *item = &server->request_items[i];
        if (!item->resource) continue;
        doorman__lease_table *leases = &item->resource->leases;
        doorman__index_drop_spares(&leases->index);
        if (item->entry) doorman__leases_retract(leases, item->entry);
        if (item->state == DOORMAN__ITEM_ADDED) {
            doorman__resource_remove_entry(item->resource, item->entry);
        }
        if (!leases->entries.count) doorman__resource_remove(item->resource);
    }
    return status;
}

/* ---- server: its own lease, from its parent */

/* S3: returns the minimum interval after the grant of a lease of this length. */
static doorman_time doorman__minimum_interval(const doorman_algorithm *algorithm,
                                              doorman_time length) {
    assert(length >= 0);
    doorman_time refresh_interval = doorman__earlier(algorithm->refresh_interval, length / 3);
    return doorman__earlier(algorithm->minimum_interval, refresh_interval / 2);
}

/* Passes the capacity, K and the end of the node's own lease to the lease table. */
static void doorman__upward_apply_lease(doorman__upward *upward) {
    doorman__lease_table *leases = &upward->resource->leases;
    const doorman__held_lease *held = &upward->held;
    assert(held->committed >= held->capacity);
    /* Rounds down, because a parent of an older version may grant a fraction of a unit. */
    double capacity = doorman__leases_round_down(leases, held->capacity);
    upward->settings.capacity = capacity;
    doorman__leases_set_capacity(leases, capacity, held->committed, held->end);
}

/* If the node has closed its own lease of the resource, reopens that lease. Returns whether the
 * node's own lease is in force. */
static bool doorman__upward_renew(doorman__upward *upward) {
    doorman_server *server = upward->resource->server;
    doorman__held_lease *held = &upward->held;
    if (doorman__held_lease_ending(held)) {
        doorman__held_lease_reopen(&server->upstream, held, server->now);
    }
    doorman__upward_apply_lease(upward);
    assert(!doorman__held_lease_ending(held));
    return doorman__held_lease_live(held, server->now);
}

/* Called when the parent has responded, and when a holder with an entry has asked for capacity.
 * Decides whether to ask the parent sooner. T1: the node asks sooner if its unmet wants have grown,
 * or if its wants have fallen by more than a tenth. R12: the node confirms a smaller lease when its
 * committed amounts fit into the lease. */
static void doorman__upward_expedite(doorman__upward *upward) {
    const doorman__lease_table *leases = &upward->resource->leases;
    doorman_upstream *upstream = &upward->resource->server->upstream;
    doorman__held_lease *held = &upward->held;
    doorman_time now = upward->resource->server->now;
    double wants = doorman__min(doorman__leases_wants(leases), DOORMAN_AMOUNT_MAX);
    double capacity = held->capacity;
    const doorman_algorithm *algorithm = &upward->settings.algorithm;
    doorman_time minimum =
        doorman__earlier(algorithm->minimum_interval, held->refresh_interval / 2);
    bool unmet = wants > capacity && wants > held->requested_wants * 1.001;
    if (unmet && held->met) {
        doorman_time pace = algorithm->minimum_refresh_interval;
        minimum = held->requested_wants > 0 ? doorman__earlier(minimum, pace) : 0;
    }
    bool idle = wants < held->requested_wants * 0.9;
    if (unmet || idle) doorman__held_lease_expedite(upstream, held, minimum, now);
    bool cut = doorman__held_lease_live(held, now) && held->claimed > capacity;
    bool fits = doorman__total_value(leases->committed) <= capacity;
    if (cut && fits && held->confirm_at == DOORMAN_NEVER) {
        doorman_time again = doorman__after(held->requested_at, DOORMAN_SECOND);
        doorman__held_lease_confirm_at(upstream, held, held->cut ? again : now);
    }
}

/* Writes the levels of the parent's terms to `levels`, each level once, and returns their number.
 * Stops after `most` levels. Leaves out levels of 0, and levels of terms with the slope 1. */
static size_t doorman__upward_levels(const doorman__upward *upward, double *levels, size_t most) {
    const doorman__lease_table *leases = &upward->resource->leases;
    size_t count = 0;
    for (size_t i = 0; i < leases->parent_terms_count && count < most; i++) {
        double level = leases->parent_terms[i].level;
        bool known = level <= 0 || leases->parent_terms[i].slope >= 1;
        for (size_t k = 0; k < count; k++)
            known = known || (levels[k] >= level && levels[k] <= level);
        if (!known) levels[count++] = level;
    }
    return count;
}

static int doorman__amount_order(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return left < right ? -1 : left > right;
}

#define DOORMAN__BAND_GROUPS 32

/* Writes the upper boundaries of the groups of one band to `bounds` in ascending order, and returns
 * their number. The boundaries are up to five levels of the parent, points around the first level,
 * and DBL_MAX. If there is no level, the points are around `mean`. */
static size_t doorman__upward_bounds(const doorman__upward *upward, double mean, double *bounds) {
    static const double steps[] = {1.01, 1.03, 1.07, 1.15, 1.3,  1.6, 2.2,
                                   4,    10,   40,   300,  5000, 1e6};
    const size_t step_count = sizeof steps / sizeof *steps;
    const size_t most = DOORMAN__BAND_GROUPS - 1 - 2 * step_count;
    size_t count = doorman__upward_levels(upward, bounds, most);
    double center = count ? bounds[0] : mean;
    for (size_t i = 0; i < step_count; i++) {
        bounds[count++] = center * steps[i];
        bounds[count++] = center / steps[i];
    }
    assert(count < DOORMAN__BAND_GROUPS);
    bounds[count++] = DBL_MAX;
    qsort(bounds, count, sizeof *bounds, doorman__amount_order);
    return count;
}

/* R7: adds the demands of frozen children, which are not in the index, to the groups. */
static void doorman__upward_add_frozen(const doorman__lease_table *leases, int band,
                                       const double *bounds, doorman__sums *groups) {
    for (const doorman__child *child = leases->frozen_children; child; child = child->next_frozen) {
        for (size_t i = 0; i < child->now.count; i++) {
            const doorman__demand_group *group = &child->now.items[i];
            size_t place = 0;
            if (group->priority != band) continue;
            while (doorman__demand_ratio(&group->demand) > bounds[place]) place++;
            assert(place < DOORMAN__BAND_GROUPS);
            doorman__sums_add(&groups[place], doorman__demand_sums(&group->demand));
        }
    }
}

/* T2: adds up the demands of one band in groups. Writes one demand for each group to `out`, and
 * returns their number. */
static size_t doorman__upward_group_band(const doorman__upward *upward, int band,
                                         doorman_demand *out) {
    const doorman__lease_table *leases = &upward->resource->leases;
    const doorman__node *root = leases->index.bands[band];
    doorman__sums all = doorman__node_sums(root), groups[DOORMAN__BAND_GROUPS] = {{0, 0, 0}};
    double bounds[DOORMAN__BAND_GROUPS], low = -1;
    double mean = all.subclients ? all.wants / (double)all.subclients : 1;
    size_t bound_count = doorman__upward_bounds(upward, mean, bounds), count = 0;
    for (size_t i = 0; i < bound_count; low = bounds[i++]) {
        groups[i] = doorman__band_between(root, low, bounds[i]);
    }
    doorman__upward_add_frozen(leases, band, bounds, groups);
    for (size_t i = 0; i < bound_count; i++) {
        if (!groups[i].subclients) continue;
        out[count++] = (doorman_demand){
            .wants = doorman__min(groups[i].wants, DOORMAN_AMOUNT_MAX),
            .subclients = doorman__min((double)groups[i].subclients, DOORMAN_SUBCLIENTS_MAX),
            .priority = band};
    }
    return count;
}

static size_t doorman__upward_group(const doorman__upward *upward, doorman_demand *out) {
    const doorman__lease_table *leases = &upward->resource->leases;
    size_t count = 0;
    for (int band = 0; band <= DOORMAN_PRIORITY_MAX; band++) {
        if (!leases->index.bands[band] && !leases->frozen_children) continue;
        count += doorman__upward_group_band(upward, band, out + count);
    }
    assert(count <= DOORMAN__GROUPS_MAX);
    return count;
}

/* R3: removes expired entries (S2), and then reports the demands and the committed amount of one
 * resource to the upstream. Unless the node learns, or its requests fail, it gives back what is
 * neither wanted by its holders nor committed for them. */
static void doorman__upward_report(doorman__upward *upward, doorman_time now) {
    doorman_upstream *upstream = &upward->resource->server->upstream;
    doorman__lease_table *leases = &upward->resource->leases;
    doorman_demand demands[DOORMAN__GROUPS_MAX];
    doorman__resource_expire(upward->resource, DOORMAN__EXPIRE_MAX);
    double wants = doorman__min(doorman__leases_wants(leases), DOORMAN_AMOUNT_MAX);
    doorman__report report = {.demands = demands,
                              .wants = wants,
                              .outstanding = doorman__total_ceil(leases->committed),
                              .learning = doorman__leases_learning(leases, now),
                              .tally = &upward->tally};
    double needed = doorman__max(wants, report.outstanding);
    if (!report.learning && doorman__held_lease_give_back(upstream, &upward->held, needed, now)) {
        doorman__upward_apply_lease(upward);
    }
    report.demand_count = doorman__upward_group(upward, demands);
    doorman__upstream_put(upstream, &upward->held, &report, now);
}

/* T3: uses the algorithm of the parent, with this node's refresh interval. */
static void doorman__upward_set_algorithm(doorman__upward *upward,
                                          const doorman_algorithm *parent_algorithm) {
    doorman_algorithm *algorithm = &upward->settings.algorithm;
    *algorithm = doorman__algorithm_resolve(parent_algorithm);
    doorman_time interval = doorman__scale(algorithm->refresh_interval, algorithm->decay_factor);
    interval = doorman__later(interval, algorithm->minimum_refresh_interval);
    algorithm->refresh_interval = doorman__earlier(interval, algorithm->lease_length);
    assert(algorithm->lease_length > 0 && algorithm->refresh_interval > 0);
}

/* R8, T6: sets the time at which the learning of the resource ends, but never to a later time than
 * before. At that time the node sends a request, so that its parent knows that the learning has
 * ended. `learn_for` includes the drift, so it is long enough even if a clock is slow. */
static void doorman__upward_learn(doorman__upward *upward, doorman_time learn_for) {
    doorman_server *server = upward->resource->server;
    doorman__lease_table *leases = &upward->resource->leases;
    doorman__held_lease *held = &upward->held;
    const doorman_algorithm *algorithm = &upward->settings.algorithm;
    doorman_time learned_at = doorman__after(server->now, learn_for);
    assert(server->is_master && learn_for >= 0);
    if (algorithm->has_learning_mode_duration) {
        doorman_time configured =
            doorman__after(server->predecessor_gone_at, algorithm->learning_mode_duration);
        learned_at = doorman__earlier(learned_at, configured);
    }
    leases->learned_at = doorman__earlier(leases->learned_at, learned_at);
    if (doorman__divides_capacity(algorithm)) {
        server->learns_until = doorman__later(server->learns_until, leases->learned_at);
    }
    doorman__resource_update_by(upward->resource, leases->learned_at);
    if (learn_for == 0) return; /* the parent did not know this node, so no old lease exists */
    doorman_time request_at = doorman__earlier(held->request_at, leases->learned_at);
    doorman__held_lease_request_at(&server->upstream, held, request_at);
}

/* Returns the amount of the maximum (S12) that counted before this response of the parent. The
 * amount is K of the lease table, or the node's last claim if that is less, because the node has
 * limited itself to the claim (R3). If the algorithm does not divide the capacity, the amount is
 * DBL_MAX. */
static doorman__maximum doorman__upward_maximum_before(const doorman__upward *upward) {
    const doorman__lease_table *leases = &upward->resource->leases;
    const doorman_server *server = upward->resource->server;
    doorman_time drift = doorman__scale(leases->lease_length, server->options.drift);
    double amount = doorman__min(leases->may_commit, upward->held.claimed);
    if (!doorman__divides_capacity(leases->algorithm)) amount = DBL_MAX;
    doorman_time until = doorman__later(doorman__after(leases->end_by, drift), leases->late_end);
    return (doorman__maximum){amount, until};
}

#define DOORMAN__DESCRIPTION_BYTES_MAX 256 /* on the wire; a configuration has no limit */
#define DOORMAN__TEXTS_BYTES_MAX (DOORMAN__DESCRIPTION_BYTES_MAX + 1 + DOORMAN_UNIT_BYTES_MAX + 1)

/* Copies the description and the unit to `texts`, and sets the pointers to the copies. Returns how
 * many bytes the copies have together. */
static size_t doorman__texts_copy(char texts[DOORMAN__TEXTS_BYTES_MAX], const char **description,
                                  const char **unit) {
    doorman__text_copy(texts, DOORMAN__DESCRIPTION_BYTES_MAX + 1, *description);
    size_t bytes = strlen(texts) + 1;
    doorman__text_copy(texts + bytes, DOORMAN_UNIT_BYTES_MAX + 1, *unit);
    *description = texts;
    *unit = texts + bytes;
    return bytes + strlen(*unit) + 1;
}

/* T9: stores the texts, which rarely change. If memory runs out, the last texts stay. */
static void doorman__upward_set_texts(doorman__upward *upward,
                                      const doorman_capacity_response *item_response) {
    char texts[DOORMAN__TEXTS_BYTES_MAX], *copy = NULL;
    const char *description = item_response->description, *unit = item_response->unit;
    doorman_template *settings = &upward->settings;
    size_t bytes = doorman__texts_copy(texts, &description, &unit);
    assert(bytes <= sizeof texts);
    bool same =
        strcmp(settings->description, description) == 0 && strcmp(settings->unit, unit) == 0;
    if (!same) copy = (char *)doorman__zalloc(bytes);
    if (!copy) return;
    memcpy(copy, texts, bytes);
    DOORMAN_FREE(upward->texts);
    upward->texts = copy;
    settings->description = copy;
    settings->unit = copy + (unit - description);
}

static void doorman__upward_granted(doorman__upward *upward,
                                    const doorman_capacity_response *item_response) {
    doorman__resource_entry *resource = upward->resource;
    const doorman__held_lease *held = &upward->held;
    assert(held->lease_id && item_response->terms_count <= DOORMAN_TERMS_MAX);
    memcpy(resource->server->parent, held->node, strlen(held->node) + 1);
    if (item_response->algorithm) {
        doorman__upward_set_algorithm(upward, item_response->algorithm);
    } else {
        doorman__server_event(resource->server, DOORMAN_EVENT_UNKNOWN_KIND, resource->resource_id,
                              resource->server->node, held->capacity);
    }
    if (item_response->has_learn_for) doorman__upward_learn(upward, item_response->learn_for);
    doorman__upward_set_texts(upward, item_response);
    upward->settings.whole = item_response->whole;
    doorman__leases_set_algorithm(&resource->leases, &upward->settings.algorithm,
                                  item_response->whole);
    for (size_t i = 0; i < item_response->terms_count; i++) {
        upward->terms[i] = item_response->terms[i];
    }
    resource->leases.parent_terms_count = item_response->terms_count;
}

static void doorman__upward_changed(doorman__upward *upward,
                                    const doorman_capacity_response *item_response) {
    doorman__held_lease *held = &upward->held;
    doorman__lease_table *leases = &upward->resource->leases;
    doorman__maximum before = doorman__upward_maximum_before(upward);
    bool granted = item_response->outcome == DOORMAN_GRANTED;
    if (granted) doorman__upward_granted(upward, item_response);
    if (granted || item_response->has_safe_capacity) {
        upward->settings.has_safe_capacity = item_response->has_safe_capacity;
        upward->settings.safe_capacity = item_response->safe_capacity;
    }
    upward->settings.overload.target = held->overload_target;
    doorman__upward_apply_lease(upward);
    if (leases->algorithm->handover == DOORMAN_CONFIRMED) {
        doorman__resource_add_older(upward->resource, before);
    }
    leases->terms_count = 0;
    /* R12: the node confirms a cut only when its committed amounts fit into the lease. */
    doorman__held_lease_confirm_at(&upward->resource->server->upstream, held, DOORMAN_NEVER);
    doorman__upward_expedite(upward);
}

/* T8: records the longest path below this node, from the requests of its children. The server
 * forgets a path that no request has named for a minute. Otherwise a child that is gone, or that
 * had a wrong name, could make the parent refuse all requests of this node. */
static void doorman__server_note_path(doorman_server *server, const doorman_request *request) {
    size_t count = request->path_count;
    bool shorter = count + 1 < server->upstream.path_count && server->now < server->below_until;
    if (shorter || !count || doorman__server_is_root(server)) return;
    assert(count < DOORMAN__PATH_MAX);
    for (size_t i = 0; i < count; i++) {
        memcpy(server->below[i], request->path[i], strlen(request->path[i]) + 1);
    }
    server->upstream.path_count = count + 1;
    server->below_until = doorman__after(server->now, 60 * DOORMAN_SECOND);
}

/* ---- server: answering */

/* R1: returns a new lease id. The id is less than 2^53, so JSON carries it safely. The id is a
 * keyed hash, so a holder cannot guess the lease ids of others, and cannot derive the seed from its
 * own ids. */
static uint64_t doorman__server_lease_id(doorman_server *server) {
    uint64_t id = doorman__hash_number(server->options.seed, ++server->lease_count) >> 11;
    return id ? id : 1;
}

/* S7: sets *out to the safe capacity. Returns false if there is no safe capacity. */
static bool doorman__resource_safe_capacity(const doorman__resource_entry *resource,
                                            doorman_time now, double *out) {
    const doorman_template *settings = resource->settings;
    const doorman__lease_table *leases = &resource->leases;
    double subclients = doorman__leases_subclients(leases);
    bool divides = doorman__divides_capacity(leases->algorithm);
    *out = settings->safe_capacity;
    if (settings->has_safe_capacity) return true;
    if (!divides || doorman__leases_learning(leases, now) || subclients <= 0) return false;
    *out = leases->capacity / subclients;
    for (size_t i = 0; i < leases->parent_terms_count; i++) {
        *out = doorman__max(*out, leases->parent_terms[i].level);
    }
    if (leases->whole) *out = doorman__whole_floor(*out);
    return !resource->upward || *out > 0;
}

/* One item of a request, with all data that the decision needs. */
typedef struct doorman__request_context {
    doorman_server *server;
    const doorman_request *request;
    doorman__request_item *item;
    const doorman_capacity_request *item_request;
    doorman__resource_entry *resource;
    doorman__lease_table *leases; /* the lease table of the resource */
    doorman__lease_entry *entry;
    doorman__rotation *rotation; /* NULL: leases are not whole units */
    doorman_time now;
    doorman_time end;      /* the end of the entry before this request; 0: no lease */
    double claim;          /* x, what the holder claims */
    double claim_here;     /* the `has` of a request that names a lease of this node, or 0 (R6) */
    double outstanding;    /* what a child node that names a lease of this node has in use, or 0 */
    double last_wants;     /* what the holder wanted before this request */
    bool leased;           /* the server is a root, or has a lease of its own */
    bool live;             /* the holder has had a lease, or something is committed for it */
    bool names_last_lease; /* the request names the holder's last lease of this node */
    bool granted_here;     /* the request names a lease of this node */
    bool learns;           /* the holder is a server that learns */
    bool returned;         /* the holder learns and may get the same lease as before (R7) */
    double target;         /* what the holder should have */
    doorman_capacity_response *out;
} doorman__request_context;

static doorman__request_context doorman__context_start(doorman_server *server,
                                                       const doorman_request *request,
                                                       doorman__request_item *item) {
    const doorman_capacity_request *item_request = &request->items[item->index];
    const doorman_lease *has = &item_request->has;
    doorman__lease_table *leases = &item->resource->leases;
    doorman__lease_entry *entry = item->entry;
    assert(item->state == DOORMAN__ITEM_FOUND || item->state == DOORMAN__ITEM_ADDED);
    const bool live = entry->lease_id || entry->committed > 0;
    const bool here = has->id && strcmp(has->node, server->node) == 0;
    const bool learns = request->is_server && item_request->learning;
    const bool divides = doorman__divides_capacity(leases->algorithm);
    return (doorman__request_context){
        .server = server,
        .request = request,
        .item = item,
        .item_request = item_request,
        .resource = item->resource,
        .leases = leases,
        .entry = entry,
        .rotation = doorman__leases_rotation(leases, entry),
        .now = server->now,
        .end = live ? entry->end : 0,
        .claim = doorman__max(has->id ? has->capacity : 0, item_request->outstanding),
        .claim_here = here ? has->capacity : 0,
        .outstanding = here && entry->is_server ? item_request->outstanding : 0,
        .last_wants = doorman__entry_wants(entry),
        .live = live,
        .names_last_lease = entry->lease_id && has->id == entry->lease_id,
        .granted_here = here,
        .learns = learns,
        .returned = learns && live && divides && !doorman__leases_learning(leases, server->now),
        .out = &server->items[item->index]};
}

/* Reports a claim of an unknown lease (S9), or a claim of more than is committed. */
static void doorman__context_report_claim(const doorman__request_context *context) {
    const doorman_lease *has = &context->item_request->has;
    bool unknown = context->item->state == DOORMAN__ITEM_ADDED && has->id &&
                   context->now >= context->leases->learned_at; /* S9 */
    bool excess =
        context->names_last_lease && has->capacity > context->entry->committed * (1 + 1e-9);
    if (!unknown && !excess) return;
    doorman_event_kind kind = unknown ? DOORMAN_EVENT_UNKNOWN_CLAIM : DOORMAN_EVENT_EXCESS_CLAIM;
    doorman__server_event(context->server, kind, context->resource->resource_id,
                          context->entry->holder_id, context->claim);
}

/* Responds to an item without a lease entry. If no template matches, the item is granted, unless
 * the configuration rejects such requests (G2). If the template has no capacity, or a limit is
 * reached (C7), the item is refused. */
static void doorman__server_respond_unmatched(doorman_server *server,
                                              const doorman_request *request,
                                              const doorman__request_item *item) {
    static const doorman_terms all = {DOORMAN_ANY_PRIORITY, 0, 1};
    const doorman_capacity_request *item_request = &request->items[item->index];
    doorman_capacity_response *item_response = &server->items[item->index];
    bool full = item->state == DOORMAN__ITEM_FULL;
    double wants = 0;
    assert(full || item->state == DOORMAN__ITEM_UNMATCHED);
    for (size_t i = 0; i < item_request->wants_count; i++) wants += item_request->wants[i].wants;
    wants = doorman__min(wants, DOORMAN_AMOUNT_MAX);
    doorman__server_event(server, full ? DOORMAN_EVENT_FULL : DOORMAN_EVENT_UNMATCHED,
                          item_request->resource_id, request->holder_id, wants);
    item_response->outcome = full ? DOORMAN_FULL : DOORMAN_UNMATCHED;
    item_response->gets.refresh_interval = doorman__unmatched.refresh_interval;
    if (full) return; /* a node with a parent has no configuration */
    /* a template that matches has limits alone, without capacity */
    bool without_capacity = doorman_config_find(server->config, item_request->resource_id) != NULL;
    if (without_capacity || server->config->reject_unmatched) return;
    item_response->outcome = DOORMAN_GRANTED;
    item_response->gets = (doorman_lease){.id = doorman__server_lease_id(server),
                                          .node = server->node,
                                          .capacity = wants,
                                          .committed = wants,
                                          .expires_in = doorman__unmatched.lease_length,
                                          .refresh_interval = doorman__unmatched.refresh_interval};
    if (!request->is_server) return;
    item_response->algorithm = &doorman__unmatched;
    item_response->terms = &all;
    item_response->terms_count = 1;
    item_response->has_learn_for = item_request->learning;
}

/* R12: returns whether the node asks its parent soon if a holder wants more. */
static bool doorman__upward_asks(const doorman__upward *upward) {
    const doorman__held_lease *held = &upward->held;
    doorman_time soon = 2 * upward->settings.algorithm.minimum_refresh_interval;
    return held->met || held->request_at <= doorman__after(upward->resource->server->now, soon);
}

/* R12: returns the refresh interval for a holder that may get more soon.
 *   more   the node asks its parent soon, and may get more */
static doorman_time doorman__leases_soon(const doorman_algorithm *algorithm, bool more) {
    if (more) return algorithm->minimum_refresh_interval;
    return doorman__later(doorman__minimum_interval(algorithm, algorithm->lease_length),
                          algorithm->minimum_refresh_interval);
}

/* S6 and R12: returns the refresh interval that the response contains. */
static doorman_time doorman__context_refresh(const doorman__request_context *context) {
    const doorman__lease_table *leases = context->leases;
    const doorman__lease_entry *entry = context->entry;
    const doorman__upward *upward = context->resource->upward;
    const doorman_algorithm *algorithm = leases->algorithm;
    const double target = context->target;
    doorman_time now = context->now;
    /* The time until the lease ends. It is less than the lease length if a lease is repeated (R11),
     * or ends with the lease of the node (S6). */
    doorman_time left = entry->lease_end - now;
    assert(left >= 0);
    doorman_time least = algorithm->minimum_refresh_interval;
    least = doorman__earlier(doorman__earlier(least, algorithm->lease_length / 3), left);
    doorman_time refresh =
        doorman__earlier(algorithm->refresh_interval, doorman__later(left / 3, least));
    bool more = (entry->has <= 0 || entry->is_server) && upward && doorman__upward_asks(upward);
    bool enough = entry->has >= target * DOORMAN__MET;
    if (leases->whole && !doorman__leases_learning(leases, now)) {
        double owed = doorman__total_value(leases->owed);
        double most = doorman__max(leases->capacity, (double)leases->entries.count / 8);
        enough = doorman__leases_rotation(leases, entry)->owed <= 0;
        /* a repeated lease is no turn: `owed` may be old, so the target counts too */
        if (context->item->state == DOORMAN__ITEM_REPEAT) {
            enough = enough && entry->has >= doorman__whole_floor(target);
        }
        enough = enough || owed > most;
    }
    /* the target is a part of what the node has now, and too small if the node gets more soon */
    if (more) enough = entry->has >= doorman__entry_wants(entry) * DOORMAN__MET;
    if (enough) return doorman__later(refresh, 1);
    return doorman__later(doorman__earlier(refresh, doorman__leases_soon(algorithm, more)), 1);
}

/* Ensures that an entry lasts until now, plus `length`, plus the drift (S8). `length` is the length
 * of the lease. For a holder that gets no lease, `length` is at most the longer of two times: three
 * times the interval after which the holder should ask again, and the rest of the lease that the
 * holder claims (T4). The entry may end later (see "expiry" in >>leases). */
static void doorman__context_set_end(const doorman__request_context *context, doorman_time length) {
    doorman__lease_table *leases = context->leases;
    doorman__lease_entry *entry = context->entry;
    doorman_time end = doorman__after(context->now, doorman__server_bound(context->server, length));
    assert(length >= 0);
    doorman__leases_set_end(leases, entry, end);
    if (entry->has > 0 && entry->end > end) {
        leases->late_end = doorman__later(leases->late_end, entry->end);
    }
    doorman__resource_update_by(context->resource, entry->end);
}

/* T4: returns after what time a holder asks again if the node expects no lease soon: 3 to 4 s. */
static doorman_time doorman__entry_defer(const doorman__lease_entry *entry) {
    double part = (double)(entry->link.hash >> 32) / 4294967296.0;
    return DOORMAN__DEFER_MAX - doorman__scale(DOORMAN__DEFER_SPREAD, part);
}

/* T4: responds to an item while the node has no lease of its own. If the node learns, it commits
 * what the holder claims under a lease of this node, so that the node's own claim to its parent is
 * complete. If the holder never had a lease, the node keeps the holder's wants for at least three
 * times the interval after which the holder should ask again. */
static void doorman__context_defer(const doorman__request_context *context) {
    doorman__lease_table *leases = context->leases;
    doorman__lease_entry *entry = context->entry;
    const doorman__held_lease *held = &context->resource->upward->held;
    bool alone = context->server->upstream.failures > 0; /* the parent does not respond */
    bool refused = held->outcome == DOORMAN_UNMATCHED || held->outcome == DOORMAN_FULL;
    bool far = held->request_at - context->now > DOORMAN__DEFER_MAX; /* no request soon */
    bool soon = !alone && !refused && !far;
    doorman_time interval = soon ? DOORMAN_SECOND : doorman__entry_defer(entry);
    doorman_time length = 3 * interval;
    if (context->granted_here && doorman__leases_learning(leases, context->now)) {
        double has = context->item_request->has.capacity;
        double claim = entry->is_server ? context->claim : has;
        double committed = doorman__max(entry->committed, doorman__ceil(claim));
        doorman__leases_set_amounts(leases, entry, entry->has, committed);
        if (entry->is_server) {
            doorman__child *child = entry->demand.child;
            child->leased = doorman__max(child->leased, doorman__ceil(has));
            assert(child->leased <= committed);
        }
        entry->recent = doorman__float_up(committed);
        doorman_time most = leases->algorithm->lease_length;
        most = doorman__earlier(context->item_request->has.expires_in, most);
        length = doorman__later(length, most);
    }
    if (!entry->lease_id) doorman__context_set_end(context, length);
    context->out->outcome = refused ? held->outcome : DOORMAN_TRY_LATER;
    context->out->learning = held->granter_learns;
    context->out->gets.refresh_interval = interval;
}

/* S3, R11: repeats the last lease. */
static doorman_lease doorman__context_repeat(const doorman__request_context *context) {
    doorman__lease_table *leases = context->leases;
    doorman__lease_entry *entry = context->entry;
    double wants = doorman__floor(doorman__entry_wants(entry));
    double has = context->learns ? entry->has : doorman__min(entry->has, wants);
    has = doorman__leases_round_down(leases, has);
    double committed = has;
    assert(context->names_last_lease && entry->lease_id);
    if (!context->learns) {
        committed = doorman__max(has, doorman__leases_held(leases, entry, entry->committed));
    }
    doorman__leases_set_amounts(leases, entry, has, entry->committed);
    entry->recent = doorman__float_up(doorman__max(entry->recent, committed));
    return (doorman_lease){.id = entry->lease_id,
                           .node = context->server->node,
                           .capacity = has,
                           .committed = committed,
                           .expires_in = entry->lease_end - context->now,
                           .refresh_interval = doorman__context_refresh(context)};
}

/* S3: returns whether a holder may get a new lease within the minimum interval. */
static bool doorman__context_may_grow(const doorman__request_context *context) {
    const doorman__lease_table *leases = context->leases;
    const doorman__lease_entry *entry = context->entry;
    double has = entry->has, last_wants = context->last_wants, target = context->target;
    if (context->learns || doorman__leases_learning(leases, context->now)) return false;
    if (last_wants <= 0 && doorman__entry_wants(entry) > 0) return true;
    bool met = has <= 0 || entry->is_server || has >= last_wants * DOORMAN__MET;
    if (!met || leases->round_is_on) return false;
    if (doorman__divides_capacity(leases->algorithm)) {
        target = doorman__min(target, doorman__leases_free(leases, entry));
    }
    return target * DOORMAN__MET > has;
}

/* Returns the next state of an item whose memory is reserved. */
static doorman__item_state doorman__context_next(const doorman__request_context *context) {
    const doorman__lease_entry *entry = context->entry;
    const doorman__lease_table *leases = context->leases;
    doorman_time length = entry->lease_end - entry->granted_at, now = context->now;
    assert(length >= 0 && now >= entry->granted_at);
    if (!context->leased) return DOORMAN__ITEM_NO_LEASE;
    doorman_time minimum = doorman__minimum_interval(leases->algorithm, length);
    bool early = context->names_last_lease && now - entry->granted_at < minimum;
    if (early && !doorman__context_may_grow(context)) return DOORMAN__ITEM_REPEAT; /* S3 */
    if (doorman__leases_learning(leases, now)) return DOORMAN__ITEM_LEARN;
    return context->returned ? DOORMAN__ITEM_RESTORE : DOORMAN__ITEM_GRANT;
}

/* R6: grants again what a holder claims under a lease of this node, as far as that amount is free,
 * or more if holders have given back capacity. If the claim is 0 and nothing was given back, the
 * holder gets a lease of 0. A holder that names no lease of this node must try later (S4). Returns
 * the amount of the lease. */
static double doorman__context_learn(const doorman__request_context *context) {
    doorman__lease_table *leases = context->leases;
    if (!context->granted_here) {
        doorman__item_move(context->item, DOORMAN__ITEM_TRY_LATER);
        return 0;
    }
    double target = leases->whole ? doorman__whole_ceil(context->target) : context->target;
    return doorman__leases_learn(leases, context->entry, target, context->claim_here,
                                 context->outstanding);
}

/* S5: grants the share of a holder, up to the bound of R5. Returns the committed amount. With whole
 * units the target becomes an integer. */
static double doorman__context_share(doorman__request_context *context) {
    doorman__lease_table *leases = context->leases;
    doorman__rotation *turns = leases->whole ? context->rotation : NULL;
    double due = 0, target = context->target;
    if (turns) target = doorman__leases_whole_target(leases, turns, target, &due, context->now);
    context->target = target;
    double committed = doorman__leases_grant(leases, context->entry, target, context->claim);
    if (turns) doorman__rotation_granted(leases, turns, due);
    return committed;
}

/* S4: responds to a holder that gets no lease because the server learns. */
static void doorman__context_try_later(const doorman__request_context *context) {
    const doorman_algorithm *algorithm = context->leases->algorithm;
    assert(context->now < context->leases->learned_at);
    doorman_time usual = algorithm->refresh_interval;
    doorman_time rest = doorman__earlier(usual, context->leases->learned_at - context->now);
    doorman_time interval = doorman__later(rest, doorman__earlier(usual, DOORMAN_SECOND));
    doorman_time length = doorman__earlier(3 * interval, algorithm->lease_length);
    if (!context->live) doorman__context_set_end(context, length);
    context->out->outcome = DOORMAN_TRY_LATER;
    context->out->gets.refresh_interval = interval;
}

/* Makes a lease from the amounts that the lease table has just committed. */
static doorman_lease doorman__context_new_lease(const doorman__request_context *context,
                                                double committed) {
    doorman_server *server = context->server;
    doorman__lease_table *leases = context->leases;
    doorman__lease_entry *entry = context->entry;
    doorman_time now = context->now; /* S6: no lease outlasts the lease of the node */
    doorman_time length = doorman__earlier(leases->algorithm->lease_length, leases->end_by - now);
    double most = DOORMAN_AMOUNT_MAX;
    assert(committed >= entry->has && length >= 0);
    if (!context->learns) most = doorman__floor(doorman__entry_wants(entry));
    if (doorman__entry_note_request(entry, context->item_request->has.id)) {
        doorman__server_event(server, DOORMAN_EVENT_SHARED_ID, context->resource->resource_id,
                              entry->holder_id, entry->has);
    }
    if (!context->live) entry->end = 0; /* the holder had no lease whose end R9 protects */
    entry->lease_id = doorman__server_lease_id(server);
    entry->granted_at = now;
    entry->lease_end = doorman__after(now, length);
    doorman__context_set_end(context, length);
    return (doorman_lease){.id = entry->lease_id,
                           .node = server->node,
                           .capacity = doorman__min(entry->has, most),
                           .committed = committed,
                           .expires_in = length,
                           .refresh_interval = doorman__context_refresh(context)};
}

/* S14: returns why a lease is less than 0.999 of what the request wants, or 0 if it is not. */
static doorman_lease_reason doorman__context_reason(const doorman__request_context *context,
                                                    double capacity) {
    const doorman__lease_table *leases = context->leases;
    const doorman_capacity_request *item_request = context->item_request;
    bool learning = doorman__leases_learning(leases, context->now) || context->returned;
    double wants = 0;
    for (size_t i = 0; i < item_request->wants_count; i++) {
        wants += doorman__demand_of(&item_request->wants[i], leases->whole).wants;
    }
    wants = doorman__floor(doorman__min(wants, DOORMAN_AMOUNT_MAX));
    if (capacity >= wants * DOORMAN__MET) return (doorman_lease_reason)0;
    if (learning) return DOORMAN_LEASE_LEARNING;
    if (!doorman__divides_capacity(leases->algorithm)) return DOORMAN_LEASE_SHARE;
    if (leases->round_is_on) return DOORMAN_LEASE_CUT;
    double target = doorman__min(context->target, leases->capacity);
    target = doorman__leases_round_down(leases, target);
    return capacity >= target * DOORMAN__MET ? DOORMAN_LEASE_SHARE : DOORMAN_LEASE_RESERVED;
}

/* S14: sets the reason in the response and in the entry. If a repeated lease needs a reason, and
 * already had a reason, it keeps the old reason (R11). */
static void doorman__context_note_reason(const doorman__request_context *context) {
    doorman__lease_entry *entry = context->entry;
    doorman_lease *lease = &context->out->gets;
    lease->reason = doorman__context_reason(context, lease->capacity);
    bool again = context->item->state == DOORMAN__ITEM_REPEAT && lease->reason && entry->reason;
    if (again) lease->reason = doorman__entry_reason(entry);
    doorman__entry_set_reason(entry, lease->reason);
}

/* Adds what a child node receives with its lease (T2, T3, T6). The child also receives the terms of
 * priorities for which it has no demand. The level in any of these terms may be the level of the
 * reserve, and the child needs a boundary of its groups at that level (T2). Terms that hold for all
 * priorities are sent once for each priority that the request of the child names. */
static void doorman__context_write_terms(const doorman__request_context *context,
                                         doorman_terms *terms) {
    doorman_capacity_response *out = context->out;
    doorman__lease_table *leases = context->leases;
    if (!leases->terms_count) doorman__leases_solve(leases);
    out->algorithm = leases->algorithm;
    out->terms = terms;
    const size_t count = leases->terms_count;
    for (size_t i = 0; i < context->item_request->wants_count; i++) {
        int priority = context->item_request->wants[i].priority;
        const doorman_terms *found = doorman__terms_find(leases->terms, count, priority);
        if (!found || doorman__terms_find(terms, out->terms_count, priority)) continue;
        terms[out->terms_count] = *found;
        terms[out->terms_count++].priority = priority;
    }
    for (size_t i = 0; i < count; i++) {
        int priority = leases->terms[i].priority;
        if (priority == DOORMAN_ANY_PRIORITY) break;
        if (doorman__terms_find(terms, out->terms_count, priority)) continue;
        terms[out->terms_count++] = leases->terms[i];
    }
    assert(out->terms_count <= DOORMAN_TERMS_MAX);
    out->has_learn_for = context->learns;
    if (!context->learns) return;
    out->learn_for = doorman__later(context->end - context->now, 0);
    if (!doorman__leases_learning(leases, context->now)) return;
    out->learn_for = doorman__later(out->learn_for, leases->learned_at - context->now);
}

/* Decides on an item whose memory is reserved, and writes the response. */
static void doorman__context_decide(doorman__request_context *context) {
    doorman__request_item *item = context->item;
    doorman_capacity_response *out = context->out;
    double committed = 0;
    out->learning = doorman__leases_learning(context->leases, context->now);
    doorman__item_move(item, doorman__context_next(context));
    if (item->state == DOORMAN__ITEM_GRANT) {
        committed = doorman__context_share(context);
    } else if (item->state == DOORMAN__ITEM_LEARN) {
        committed = doorman__context_learn(context);
        context->target = doorman__entry_wants(context->entry);
    } else if (item->state == DOORMAN__ITEM_RESTORE) {
        committed = doorman__leases_return(context->leases, context->entry);
        context->target = context->entry->has;
    }
    if (item->state == DOORMAN__ITEM_NO_LEASE) {
        doorman__context_defer(context);
    } else if (item->state == DOORMAN__ITEM_TRY_LATER) {
        doorman__context_try_later(context);
    } else if (item->state == DOORMAN__ITEM_REPEAT) {
        out->gets = doorman__context_repeat(context);
    } else {
        out->gets = doorman__context_new_lease(context, committed);
    }
    if (item->state == DOORMAN__ITEM_RESTORE) {
        doorman__resource_keep_older(context->resource, context->entry->end);
    }
    assert((out->outcome == DOORMAN_GRANTED) == (out->gets.id != 0));
    if (out->outcome == DOORMAN_GRANTED) doorman__context_note_reason(context);
}

/* Records the wants of the holder, and lowers the committed amount if the request confirms a lease
 * (R4). */
static void doorman__context_enter(doorman__request_context *context) {
    doorman__lease_table *leases = context->leases;
    doorman__lease_entry *entry = context->entry;
    const doorman_capacity_request *item_request = context->item_request;
    assert(context->leases == &context->resource->leases);
    doorman__resource_tick(context->resource);
    if (context->rotation) doorman__rotation_settle(leases, context->rotation);
    if (!context->learns) doorman__leases_age(leases, entry, context->now);
    if (context->returned) {
        doorman__leases_retract(leases, entry);
    } else {
        doorman__leases_set_demands(leases, entry, item_request->wants, item_request->wants_count);
    }
    if (!context->learns) {
        double claim = context->names_last_lease ? item_request->has.capacity : -1;
        doorman__leases_note_claim(leases, entry, claim, context->now);
        if (doorman__entry_unconfirmed(entry)) {
            doorman__server_event(context->server, DOORMAN_EVENT_UNCONFIRMED,
                                  context->resource->resource_id, entry->holder_id, entry->has);
        }
    }
    if (context->names_last_lease && !context->learns) {
        doorman__leases_confirm(leases, entry, context->claim);
    }
    context->target = doorman__leases_target(leases, entry);
}

static void doorman__server_respond(doorman_server *server, const doorman_request *request,
                                    doorman__request_item *item) {
    const doorman_capacity_request *item_request = &request->items[item->index];
    doorman_capacity_response *out = &server->items[item->index];
    assert(item->state != DOORMAN__ITEM_CHECKED && item->index < request->item_count);
    *out = (doorman_capacity_response){.resource_id = item_request->resource_id,
                                       .outcome = DOORMAN_GRANTED};
    if (!item->entry) {
        doorman__server_respond_unmatched(server, request, item);
        return;
    }
    doorman__resource_entry *resource = item->resource;
    const doorman_template *settings = resource->settings;
    doorman__resource_grow_capacity(resource);
    doorman__resource_add_report(resource, request->holder_id, &item_request->overload);
    bool leased = !resource->upward || doorman__upward_renew(resource->upward);
    doorman__request_context context = doorman__context_start(server, request, item);
    context.leased = leased;
    doorman__context_report_claim(&context);
    doorman__context_enter(&context);
    doorman__context_decide(&context);
    if (request->is_server && out->outcome == DOORMAN_GRANTED) {
        doorman__context_write_terms(&context, &server->terms[item->index * DOORMAN_TERMS_MAX]);
        if (settings->description[0]) out->description = settings->description; /* T9 */
        if (settings->unit[0]) out->unit = settings->unit;
    }
    out->whole = resource->leases.whole;
    out->overload_target = doorman__resource_overload_target(resource);
    out->has_safe_capacity =
        doorman__resource_safe_capacity(resource, context.now, &out->safe_capacity);
    if (request->is_server) out->has_safe_capacity = settings->has_safe_capacity;
    if (resource->upward) doorman__upward_expedite(resource->upward);
}

/* R10: processes a release. An item has an effect only if it names the holder's last lease. */
static void doorman__server_release(doorman_server *server, const doorman_request *request) {
    assert(server->is_master);
    for (size_t i = 0; i < request->item_count; i++) {
        const doorman_capacity_request *item_request = &request->items[i];
        doorman__resource_entry *resource = server->request_items[i].resource;
        if (!resource) continue;
        doorman__lease_table *leases = &resource->leases;
        doorman__lease_entry *entry = doorman__leases_find(leases, server->holder_hash,
                                                           request->holder_id, request->is_server);
        if (entry && entry->lease_id == item_request->has.id) {
            doorman__resource_remove_entry(resource, entry);
        }
        if (leases->entries.count) continue;
        doorman__resource_update_by(resource, server->now);
        server->update_at = server->now;
    }
}

/* H11: processes reports on resources. A report on a resource that no holder has asked for has no
 * effect. */
static doorman_status doorman__server_report(doorman_server *server,
                                             const doorman_request *request) {
    assert(server->is_master);
    for (size_t i = 0; i < request->item_count; i++) {
        doorman__resource_entry *resource = server->request_items[i].resource;
        const doorman_overload_report *report = &request->items[i].overload;
        bool room = !resource || doorman__resource_reserve_report(resource, report);
        if (!room) return DOORMAN_OUT_OF_MEMORY;
    }
    for (size_t i = 0; i < request->item_count; i++) {
        doorman__resource_entry *resource = server->request_items[i].resource;
        doorman_capacity_response *out = &server->items[i];
        *out = (doorman_capacity_response){.resource_id = request->items[i].resource_id,
                                           .outcome = DOORMAN_GRANTED};
        if (!resource) continue;
        doorman__resource_expire(resource, DOORMAN__EXPIRE_MAX);
        doorman__resource_add_report(resource, request->holder_id, &request->items[i].overload);
        out->overload_target = doorman__resource_overload_target(resource);
    }
    return DOORMAN_OK;
}

/* Returns a response without lists: the method, the kind of the holder, and the master. */
static doorman_response doorman__server_start_response(const doorman_server *server,
                                                       const doorman_request *request) {
    return (doorman_response){.method = request->method,
                              .is_server = request->is_server,
                              .is_master = server->is_master,
                              .master_address = server->master[0] ? server->master : NULL};
}

/* Refuses a NULL list whose count is not 0. A program can make this error, but no message can. */
static doorman_status doorman__server_check_lists(const doorman_request *request,
                                                  doorman_error *error) {
    const char *missing = NULL;
    if (request->path_count && !request->path) missing = "path: NULL, but path_count is not 0";
    if (request->item_count && !request->items) missing = "items: NULL, but item_count is not 0";
    if (request->permit_count && !request->permits)
        missing = "permits: NULL, but permit_count is not 0";
    if (request->entry_count && !request->entries)
        missing = "entries: NULL, but entry_count is not 0";
    if (request->hold_count && !request->holds) missing = "holds: NULL, but hold_count is not 0";
    if (request->settle_count && !request->settles)
        missing = "settles: NULL, but settle_count is not 0";
    return missing ? doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "%s", missing) : DOORMAN_OK;
}

/* Does the same as doorman_server_handle. Precondition: the caller has advanced the time.
 *   arena   receives the parts of a response on permits; belongs to the server or to the caller */
static doorman_status doorman__server_handle_in(doorman_server *server,
                                                const doorman_request *request,
                                                doorman_response *response, doorman__arena *arena,
                                                doorman_error *error) {
    const doorman_method method = request->method;
    doorman_status status = doorman__server_check_lists(request, error);
    if (status != DOORMAN_OK) return status;
    if (method >= DOORMAN_ACQUIRE && method <= DOORMAN_SETTLE) {
        return DOORMAN__HAS_PERMITS
                   ? doorman__permits_in_server.answer(server, request, response, arena, error)
                   : doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "method: " DOORMAN__NO_PERMITS);
    }
    status = doorman__server_check(server, request, error);
    if (status != DOORMAN_OK) return status;
    if (method == DOORMAN_GET_CAPACITY && server->is_master) {
        status = doorman__server_make_room(server, request);
        if (status != DOORMAN_OK) return doorman__no_memory(error);
        doorman__server_note_path(server, request);
        for (size_t i = 0; i < request->item_count; i++) {
            doorman__server_respond(server, request, &server->request_items[i]);
        }
    } else if (method == DOORMAN_RELEASE_CAPACITY && server->is_master) {
        doorman__server_release(server, request);
    } else if (method == DOORMAN_REPORT_OVERLOAD && server->is_master) {
        status = doorman__server_report(server, request);
        if (status != DOORMAN_OK) return doorman__no_memory(error);
    }
    doorman_response started = doorman__server_start_response(server, request);
    if (DOORMAN__HAS_PERMITS && method == DOORMAN_DISCOVERY &&
        !doorman__permits_in_server.add_map(server, request, &started, arena)) {
        return doorman__no_memory(error);
    }
    *response = started;
    bool lists = method == DOORMAN_GET_CAPACITY || method == DOORMAN_REPORT_OVERLOAD;
    if (!lists || !server->is_master) return DOORMAN_OK;
    assert(request->item_count <= server->response_items_capacity);
    response->items = server->items;
    response->item_count = request->item_count;
    return DOORMAN_OK;
}

doorman_status doorman_server_handle(doorman_server *server, const doorman_request *request,
                                     doorman_response *response, doorman_error *error,
                                     doorman_time now) {
    if (!server) return doorman__missing(error, "server");
    if (!request) return doorman__missing(error, "request");
    if (!response) return doorman__missing(error, "response");
    doorman__server_advance(server, now);
    return doorman__server_handle_in(server, request, response, &server->arena, error);
}

doorman_upstream *doorman_server_upstream(doorman_server *server) {
    return server ? &server->upstream : NULL;
}

/* Visits a resource that is due. Removes at most `most` expired leases, and then the resource if it
 * has no holder. Returns the number of the removed leases plus 1, but at most `most`. */
static size_t doorman__resource_update(doorman__resource_entry *resource, size_t most) {
    doorman_server *server = resource->server;
    size_t count = doorman__resource_expire(resource, most);
    assert(count <= most);
    if (count == most) return most;
    doorman__resource_grow_capacity(resource);
    const doorman__lease_entry *first = doorman__leases_first(&resource->leases);
    doorman_time due = first ? first->end : doorman__after(server->now, DOORMAN__DEFER_MAX);
    if (resource->overload) due = doorman__earlier(due, resource->overload->step_at);
    doorman__timer_set(&server->dues, &resource->due, due);
    if (!first) doorman__resource_remove(resource);
    return count + 1;
}

/* Visits the resources that are due, and removes their expired leases. One call visits at most
 * DOORMAN__UPDATE_MAX leases and resources. Calls that read the leases of a resource remove the
 * expired ones first (S2), so an update need not run more than once a second. */
static void doorman__server_update(doorman_server *server) {
    size_t left = DOORMAN__UPDATE_MAX;
    while (doorman__timers_due(&server->dues) <= server->now) {
        if (left == 0) return; /* the next update is due at once */
        doorman__timer *due = doorman__timers_first(&server->dues);
        size_t visited =
            doorman__resource_update(DOORMAN__WITHIN(doorman__resource_entry, due, due), left);
        assert(visited > 0 && visited <= left);
        left -= visited;
    }
    server->update_at = doorman__after(server->now, DOORMAN_SECOND);
}

/* ---- server: what a caller's loop calls */

static doorman_time doorman__server_due(const doorman_upstream *upstream) {
    const doorman_server *server = DOORMAN__WITHIN_CONST(doorman_server, upstream, upstream);
    doorman_time due = doorman__later(doorman__timers_due(&server->dues), server->update_at);
    if (server->is_master) {
        due = doorman__earlier(due, server->master_until);
        if (DOORMAN__HAS_PERMITS) {
            due = doorman__earlier(due, doorman__permits_in_server.due(server));
        }
    }
    if (doorman__server_is_root(server)) return due;
    return doorman__earlier(due, doorman__upstream_due(upstream));
}

/* One call of doorman__server_note_ends reports at most this many ends. So no call takes long. */
#define DOORMAN__ENDS_MAX 1000

/* Reports the leases of this node that have ended without a renewal. */
static void doorman__server_note_ends(doorman_server *server) {
    doorman__timers *ends = &server->upstream.ends;
    for (size_t i = 0; i < DOORMAN__ENDS_MAX && doorman__timers_due(ends) <= server->now; i++) {
        doorman__timer *first = doorman__timers_first(ends);
        doorman__server_note_end(server, DOORMAN__WITHIN(doorman__held_lease, over, first));
    }
}

static void doorman__server_work(doorman_upstream *upstream, doorman_time now) {
    doorman_server *server = DOORMAN__WITHIN(doorman_server, upstream, upstream);
    doorman__server_advance(server, now);
    doorman__server_update(server);
    doorman__server_note_ends(server);
    if (DOORMAN__HAS_PERMITS) doorman__permits_in_server.work(server);
}

static bool doorman__server_request(doorman_upstream *upstream, doorman_request *out,
                                    doorman_time now) {
    doorman_server *server = DOORMAN__WITHIN(doorman_server, upstream, upstream);
    bool made = false;
    now = doorman__server_now(server, now);
    if (doorman__server_is_root(server)) return false;
    if (now >= server->below_until) upstream->path_count = 1; /* T8 */
    if (doorman__upstream_begin(upstream, now)) {
        for (doorman__held_lease *held = NULL; (held = doorman__upstream_next(upstream, now));) {
            doorman__upward_report(doorman__upward_of(held), now);
        }
        made = doorman__upstream_end(upstream, out, now);
    }
    doorman__server_free_closed(server);
    return made;
}

static doorman_status doorman__server_response(doorman_upstream *upstream, uint64_t sequence,
                                               const doorman_response *response, doorman_time now) {
    doorman_server *server = DOORMAN__WITHIN(doorman_server, upstream, upstream);
    const doorman_capacity_response *item_response = NULL;
    doorman__held_lease *held = NULL;
    now = doorman__server_advance(server, now);
    doorman__server_note_ends(server);
    doorman_status status = doorman__upstream_accept(upstream, sequence, response, now);
    if (status == DOORMAN_STALE) return status;
    while ((item_response = doorman__upstream_next_item(upstream, response, &held))) {
        doorman__upward_changed(doorman__upward_of(held), item_response);
    }
    doorman__server_free_closed(server);
    return status;
}

static void doorman__server_failed(doorman_upstream *upstream, uint64_t sequence, bool is_wrong,
                                   doorman_time now) {
    (void)is_wrong;
    doorman_server *server = DOORMAN__WITHIN(doorman_server, upstream, upstream);
    now = doorman__server_now(server, now);
    doorman__server_note_ends(server);
    doorman__upstream_fail(upstream, sequence, now);
    doorman__server_free_closed(server);
}

static const doorman__upstream_calls doorman__server_calls = {
    doorman__server_due, doorman__server_work, doorman__server_request, doorman__server_response,
    doorman__server_failed};

/* Returns false if this node is releasing its own lease of the resource. */
static bool doorman__resource_describe(doorman__resource_entry *resource,
                                       doorman_server_resource *out) {
    doorman_time now = resource->server->now;
    const doorman__held_lease *held = resource->upward ? &resource->upward->held : NULL;
    if (held && doorman__held_lease_ending(held)) return false;
    doorman__resource_expire(resource, DOORMAN__EXPIRE_MAX);
    const doorman__lease_table *leases = &resource->leases;
    const bool divides = doorman__divides_capacity(leases->algorithm);
    bool leased = !held || doorman__held_lease_live(held, now);
    *out =
        (doorman_server_resource){.resource_id = resource->resource_id,
                                  .settings = resource->settings,
                                  .capacity = leased ? leases->capacity : 0,
                                  .leased = held && leased,
                                  .lease_end = held ? held->end : 0,
                                  .lease_length = held ? held->length : 0,
                                  .outcome = held ? held->outcome : DOORMAN_GRANTED,
                                  .reason = held && leased ? held->reason : (doorman_lease_reason)0,
                                  .has = doorman__total_value(leases->has),
                                  .committed = doorman__total_value(leases->committed),
                                  .wants = doorman__leases_wants(leases),
                                  .subclients = doorman__leases_subclients(leases),
                                  .holder_count = leases->entries.count,
                                  .unconfirmed_count = leases->unconfirmed_count,
                                  .expired_count = resource->expired_count,
                                  .divides_capacity = divides,
                                  .is_learning = doorman__leases_learning(leases, now),
                                  .learned_at = leases->learned_at};
    assert(out->has <= out->committed && out->unconfirmed_count <= out->holder_count);
    if (divides) out->overshoot = doorman__resource_overshoot(resource);
    out->has_safe_capacity = doorman__resource_safe_capacity(resource, now, &out->safe_capacity);
    out->configured_capacity = held ? out->capacity : resource->settings->capacity;
    if (resource->overload) {
        doorman_time from, until;
        out->overload = doorman__overload_sum(resource->overload, now, &from, &until);
        out->overload_cut_at = resource->overload->cut_at;
    }
    return true;
}

bool doorman_server_next_resource(doorman_server *server, doorman_cursor *cursor,
                                  doorman_server_resource *out, doorman_time now) {
    if (!server || !cursor || !out) return false;
    doorman__server_advance(server, now);
    for (doorman__link *link; (link = doorman__cursor_next(cursor, &server->resources));) {
        doorman__resource_entry *resource = (doorman__resource_entry *)(void *)link;
        if (doorman__resource_describe(resource, out)) return true;
    }
    return false;
}

size_t doorman_server_lease_count(const doorman_server *server, const char *holder_id,
                                  bool is_server) {
    if (!server || !holder_id) return 0;
    const uint64_t hash = doorman__holder_hash(server, holder_id, is_server);
    const doorman__holder_usage *usage = doorman__server_usage(server, hash);
    return usage ? usage->count : 0;
}

bool doorman_server_find(doorman_server *server, const char *resource_id,
                         doorman_server_resource *out, doorman_time now) {
    if (!server || !resource_id || !out) return false;
    doorman__server_advance(server, now);
    uint64_t hash = doorman__hash(server->options.seed, resource_id);
    doorman__resource_entry *resource = doorman__server_find(server, hash, resource_id);
    return resource && doorman__resource_describe(resource, out);
}

bool doorman_server_next_lease(doorman_server *server, const char *resource_id,
                               doorman_cursor *cursor, doorman_server_lease *out,
                               doorman_time now) {
    if (!server || !resource_id || !cursor || !out) return false;
    doorman__server_advance(server, now);
    uint64_t hash = doorman__hash(server->options.seed, resource_id);
    doorman__resource_entry *resource = doorman__server_find(server, hash, resource_id);
    if (!resource) return false;
    doorman__resource_expire(resource, DOORMAN__EXPIRE_MAX);
    const doorman__link *link = doorman__cursor_next(cursor, &resource->leases.entries);
    if (!link) return false;
    const doorman__lease_entry *entry = (const doorman__lease_entry *)(const void *)link;
    *out = (doorman_server_lease){.holder_id = entry->holder_id,
                                  .is_server = entry->is_server,
                                  .shared = doorman__entry_shared(entry),
                                  .unconfirmed = doorman__entry_unconfirmed(entry),
                                  .has = entry->has,
                                  .committed = entry->committed,
                                  .wants = doorman__entry_wants(entry),
                                  .subclients = doorman__entry_subclients(&resource->leases, entry),
                                  .priority = (int)entry->priority,
                                  .reason = doorman__entry_reason(entry),
                                  .granted_at = entry->granted_at,
                                  .expires_at = entry->end};
    return true;
}

/* ---- >>handover ----------------------------------------------------------------------------- */
/*
 * A master that stops as planned hands its lease tables over to the next master of its node.
 *
 * D8 The next master knows what the last one knew about leases, so it need not learn (R6). If the
 *    last master was still learning, the next one learns for the rest of that time. In the proof of
 *    T7 the two masters count as one master, which does nothing between the writing and the reading
 *    of the bytes. The details:
 *       - The bytes have u, g and v of each holder, and the id of its last lease. So claims confirm
 *         leases (R4), and the next master continues a round (see "round" in >>leases).
 *       - The last master grants nothing after it has written the bytes. So all its grants are in
 *         the bytes.
 *       - For each time at which something ends, the bytes have the time that was left (the rest),
 *         because the clocks of two machines have no common start. An entry ends when its rest,
 *         plus the drift, has passed since the reading. So the amount of a holder that has gone
 *         stays committed for longer, which is safe. The learning becomes longer too.
 *       - For a request within the minimum interval (S3) the next master grants a new lease. It
 *         cannot repeat a lease of the last master with the same end (R11), because the bytes have
 *         the end of the entry, but not the end of the lease.
 *       - The next master learns the resources of a template whose glob the last one did not have
 *         (R8), because the last master may have granted requests for them without a lease entry
 *         (G2). Leases of a resource without a template are dropped (G5).
 *       - A new master of a node with a parent does not take over the node's own lease, which may
 *         have ended. The new master grants nothing until the parent has granted a lease (T4). It
 *         reports as `outstanding` what its holders may use. Either the parent still has this
 *         amount committed (R4), or the node's lease has ended, and the leases of the holders with
 *         it (S6).
 *       - Of the permits, holds and transfers are handed over (see >>permit_handover). Counters are
 *         not handed over: the counters of durable limits have rows in a store (D1). The permits do
 *         not get their leases back. If they had a lease of a resource (P17), the next master
 *         learns this resource as after a crash.
 *    No promise needs the following, so it is not handed over: the lags of whole units (A5), the
 *    signs of shared ids (S10), the reports of overload (H11), the paths below the node (T8),
 *    permits that wait (P7).
 *
 * The bytes. An integer has its lowest byte first. An amount has the bits of an IEEE double. A text
 * has its length in two bytes before it, and a NUL after it:
 *
 *     start       8 bytes  "doorman", the version
 *                 text     the node
 *                 8        the rest until drains_at (see doorman_server)
 *     template    1        'T'          one for each template with a capacity; only in a root
 *                 text     its glob
 *                 8        the rest of its learning; 0: it has learned
 *     resource    1        'R'          followed by its entries, the first to end first
 *                 text     its id
 *                 8        the rest of its learning; all bits set: its end is not known
 *                 1        1: a round is active
 *     entry       1        'E'
 *                 text     the id of the holder
 *                 1        1: a server; 3: a server that learns (R7); 0: a client
 *                 8 8      the lease id; the rest until the end of the entry
 *                 8 8 8 8  g, u, the part of u that leases commit, v
 *                 1        the reason (S14)
 *                 2        the number of demands; 1 for a client
 *     demand      8 4 1    the wants, the subclients, the priority; after its entry
 *     permits     1        'P'          at most once, and only from a server with permits
 *                 8        the rest of the learning of holds (P16)
 *                 8        how long a hold may last
 *                 8        the number of holds, which follow: see >>permit_handover
 *     end         1        '.'
 */

#define DOORMAN__HANDOVER_MAGIC "doorman\1"

/* Bytes that are being handed over. */
typedef struct doorman__handover_writer {
    doorman_write *write;
    void *context;
    size_t count; /* how many of `bytes` are not passed to `write` yet */
    bool failed;
    unsigned char bytes[4096];
} doorman__handover_writer;

/* Bytes that are being taken over. After the first fault each number that is read is 0, and each
 * text is "". */
typedef struct doorman__handover_reader {
    doorman_server *server;
    doorman_permits *permits;
    doorman_time now;
    double drift;
    const unsigned char *at;
    size_t left;
    const char *wrong;     /* the first fault; NULL: none */
    doorman_status status; /* what this fault makes doorman_server_take_over return */
    bool has_permits;      /* the part 'P' was read, and with it the next two times */
    doorman_time learns_until, longest;
} doorman__handover_reader;

/* The functions of the section >>permit_handover that this section calls. */
typedef struct doorman__handover_permits {
    void (*hand_over)(doorman_server *server, doorman__handover_writer *out);
    bool (*has_holds)(const doorman_server *server);
    void (*take_over)(doorman__handover_reader *in);
    void (*finish)(doorman__handover_reader *in); /* called at the end if there was no fault */
    void (*drop)(doorman_server *server);         /* after a fault: drops what was taken over */
} doorman__handover_permits;
static const doorman__handover_permits doorman__permits_in_handover;

static void doorman__handover_flush(doorman__handover_writer *out) {
    assert(out->count <= sizeof out->bytes);
    if (!out->failed && out->count) out->failed = !out->write(out->context, out->bytes, out->count);
    out->count = 0;
}

static void doorman__handover_add(doorman__handover_writer *out, const void *bytes, size_t count) {
    assert(count <= sizeof out->bytes);
    if (count > sizeof out->bytes - out->count) doorman__handover_flush(out);
    memcpy(out->bytes + out->count, bytes, count);
    out->count += count;
}

static void doorman__handover_add_number(doorman__handover_writer *out, uint64_t number,
                                         size_t count) {
    unsigned char bytes[8];
    (void)doorman__le_write(bytes, number, count);
    doorman__handover_add(out, bytes, count);
}

static void doorman__handover_add_amount(doorman__handover_writer *out, double amount) {
    uint64_t bits;
    memcpy(&bits, &amount, sizeof bits);
    doorman__handover_add_number(out, bits, 8);
}

static void doorman__handover_add_text(doorman__handover_writer *out, const char *text) {
    size_t bytes = strlen(text);
    assert(bytes <= UINT16_MAX);
    doorman__handover_add_number(out, bytes, 2);
    doorman__handover_add(out, text, bytes + 1);
}

/* Adds how long something lasts from now on, or UINT64_MAX if its end is not known (NEVER). */
static void doorman__handover_add_rest(doorman__handover_writer *out, doorman_time until,
                                       doorman_time now) {
    bool is_known = until != DOORMAN_NEVER;
    uint64_t rest = until > now ? (uint64_t)(until - now) : 0;
    doorman__handover_add_number(out, is_known ? rest : UINT64_MAX, 8);
}

static void doorman__handover_add_demand(doorman__handover_writer *out,
                                         const doorman__demand *demand, int priority) {
    doorman__handover_add_amount(out, demand->wants);
    doorman__handover_add_number(out, demand->subclients, 4);
    doorman__handover_add_number(out, (unsigned)priority, 1);
}

static void doorman__handover_add_entry(doorman__handover_writer *out,
                                        const doorman__lease_table *leases,
                                        const doorman__lease_entry *entry, doorman_time now) {
    const doorman__child *child = doorman__entry_child(entry);
    assert(entry->end > now && (child ? child->offered.count == 0 : entry->indexed));
    doorman__handover_add_number(out, 'E', 1);
    doorman__handover_add_text(out, entry->holder_id);
    doorman__handover_add_number(out, child ? 1U + 2U * child->frozen : 0, 1);
    doorman__handover_add_number(out, entry->lease_id, 8);
    doorman__handover_add_rest(out, entry->end, now);
    doorman__handover_add_amount(out, entry->has);
    doorman__handover_add_amount(out, entry->committed);
    doorman__handover_add_amount(out, doorman__entry_leased(entry));
    doorman__handover_add_amount(out, doorman__entry_in_round(leases, entry));
    doorman__handover_add_number(out, entry->reason, 1);
    doorman__handover_add_number(out, child ? child->now.count : 1, 2);
    for (size_t i = 0; child && i < child->now.count; i++) {
        const doorman__demand_group *group = &child->now.items[i];
        doorman__handover_add_demand(out, &group->demand, group->priority);
    }
    if (child) return;
    doorman__demand own = doorman__entry_demand(leases, entry);
    doorman__handover_add_demand(out, &own, (int)entry->priority);
}

/* Adds a resource, and its entries in the order in which they end. The lease table has the entries
 * in two lists. */
static void doorman__handover_add_resource(doorman__handover_writer *out,
                                           const doorman__resource_entry *resource,
                                           doorman_time now) {
    const doorman__lease_table *leases = &resource->leases;
    const doorman__lease_entry *older = leases->draining, *newer = leases->oldest;
    doorman__handover_add_number(out, 'R', 1);
    doorman__handover_add_text(out, resource->resource_id);
    doorman__handover_add_rest(out, leases->learned_at, now);
    doorman__handover_add_number(out, leases->round_is_on, 1);
    while (older || newer) {
        bool is_older = older && (!newer || older->end <= newer->end);
        const doorman__lease_entry *entry = is_older ? older : newer;
        assert(!entry->newer || entry->newer->end >= entry->end);
        if (entry->end > now) doorman__handover_add_entry(out, leases, entry, now);
        *(is_older ? &older : &newer) = entry->newer;
    }
}

doorman_status doorman_server_hand_over(doorman_server *server, doorman_write *write, void *context,
                                        doorman_time now) {
    if (!server || !write) return DOORMAN_INVALID_ARGUMENT;
    now = doorman__server_advance(server, now);
    if (!server->is_master) return DOORMAN_UNAVAILABLE;
    doorman__handover_writer out = {.write = write, .context = context};
    doorman__handover_add(&out, DOORMAN__HANDOVER_MAGIC, 8);
    doorman__handover_add_text(&out, server->node);
    doorman__handover_add_rest(&out, server->drains_at, now);
    for (size_t i = 0; server->config && i < server->config->template_count; i++) {
        const doorman_template *settings = &server->config->templates[i];
        if (settings->without_capacity) continue;
        doorman__handover_add_number(&out, 'T', 1);
        doorman__handover_add_text(&out, settings->identifier_glob);
        doorman__handover_add_rest(&out, server->learned_at[i], now);
    }
    doorman_cursor cursor = {0};
    for (doorman__link *link; (link = doorman__cursor_next(&cursor, &server->resources));) {
        doorman__handover_add_resource(&out, (doorman__resource_entry *)(void *)link, now);
    }
    if (DOORMAN__HAS_PERMITS) doorman__permits_in_handover.hand_over(server, &out);
    doorman__handover_add_number(&out, '.', 1);
    doorman__handover_flush(&out);
    if (out.failed) return DOORMAN_UNAVAILABLE;
    doorman__server_resign(server);
    server->has_left = true;
    return DOORMAN_OK;
}

/* ---- handover: taking over */

static void doorman__handover_fail(doorman__handover_reader *in, doorman_status status,
                                   const char *wrong) {
    if (in->wrong) return;
    in->wrong = wrong;
    in->status = status;
    in->left = 0;
}

/* Returns the next `count` bytes, or NULL if fewer are left. */
static const unsigned char *doorman__handover_take(doorman__handover_reader *in, size_t count) {
    if (count > in->left) {
        doorman__handover_fail(in, DOORMAN_INVALID_ARGUMENT, "they end too early");
        return NULL;
    }
    const unsigned char *at = in->at;
    in->at += count;
    in->left -= count;
    return at;
}

static uint64_t doorman__handover_take_number(doorman__handover_reader *in, size_t count) {
    const unsigned char *at = doorman__handover_take(in, count);
    return at ? doorman__le_read(at, count) : 0;
}

static double doorman__handover_take_amount(doorman__handover_reader *in) {
    uint64_t bits = doorman__handover_take_number(in, 8);
    double amount;
    memcpy(&amount, &bits, sizeof amount);
    if (amount >= 0 && amount <= DOORMAN_AMOUNT_MAX) return amount;
    doorman__handover_fail(in, DOORMAN_INVALID_ARGUMENT, "an amount is not valid");
    return 0;
}

/* Returns a text, which points into the bytes, or "" after a fault. */
static const char *doorman__handover_take_text(doorman__handover_reader *in) {
    size_t bytes = (size_t)doorman__handover_take_number(in, 2);
    const char *text = (const char *)doorman__handover_take(in, bytes + 1);
    if (text && !memchr(text, 0, bytes) && !text[bytes]) return text;
    doorman__handover_fail(in, DOORMAN_INVALID_ARGUMENT, "a text is not valid");
    return "";
}

static const char *doorman__handover_take_id(doorman__handover_reader *in) {
    const char *id = doorman__handover_take_text(in);
    if (doorman__id_valid(id)) return id;
    doorman__handover_fail(in, DOORMAN_INVALID_ARGUMENT, "an id is not valid");
    return "";
}

/* Reads how long something lasts, and returns when it ends: after this time, plus the drift.
 *   may_be_unknown   true: the bytes may say that the end is not known. Then returns NEVER */
static doorman_time doorman__handover_take_rest(doorman__handover_reader *in, bool may_be_unknown) {
    uint64_t rest = doorman__handover_take_number(in, 8);
    if (rest == UINT64_MAX && may_be_unknown) return DOORMAN_NEVER;
    if (rest > 2 * (uint64_t)DOORMAN_DURATION_MAX) {
        doorman__handover_fail(in, DOORMAN_INVALID_ARGUMENT, "a time is not valid");
        return 0;
    }
    const doorman_time length = (doorman_time)rest;
    return doorman__after(in->now, length + doorman__scale(length, in->drift));
}

/* Reads a number. A number above `most` is a fault. */
static unsigned doorman__handover_take_choice(doorman__handover_reader *in, size_t count,
                                              unsigned most) {
    uint64_t number = doorman__handover_take_number(in, count);
    if (number <= most) return (unsigned)number;
    doorman__handover_fail(in, DOORMAN_INVALID_ARGUMENT, "a number is not valid");
    return 0;
}

static void doorman__handover_take_template(doorman__handover_reader *in, size_t place) {
    const doorman_server *server = in->server;
    const char *glob = doorman__handover_take_text(in);
    doorman_time learned_at = doorman__handover_take_rest(in, false);
    if (in->wrong || !server->config) return;
    size_t index = doorman__config_same(server->config, glob, place);
    if (index < server->config->template_count) server->learned_at[index] = learned_at;
}

/* Adds a resource without entries. Returns NULL after a fault, or if this root has no template for
 * the resource. */
static doorman__resource_entry *doorman__handover_take_resource(doorman__handover_reader *in) {
    doorman_server *server = in->server;
    const char *id = doorman__handover_take_id(in);
    doorman_time learned_at = doorman__handover_take_rest(in, !doorman__server_is_root(server));
    bool round_is_on = doorman__handover_take_choice(in, 1, 1);
    const doorman_template *settings = NULL;
    if (in->wrong) return NULL;
    if (server->config) settings = doorman__config_find_capacity(server->config, id);
    if (doorman__server_is_root(server) && !settings) return NULL;
    uint64_t hash = doorman__hash(server->options.seed, id);
    if (doorman__server_find(server, hash, id)) {
        doorman__handover_fail(in, DOORMAN_INVALID_ARGUMENT, "a resource occurs twice");
    } else if (server->resources.count >= server->options.resource_max) {
        doorman__handover_fail(in, DOORMAN_RESOURCE_EXHAUSTED, "more resources than resource_max");
    }
    if (in->wrong) return NULL;
    doorman__resource_entry *resource = doorman__server_add_resource(
        server, hash, id, doorman__server_is_root(server) ? settings : NULL);
    if (!resource) {
        doorman__handover_fail(in, DOORMAN_OUT_OF_MEMORY, "out of memory");
        return NULL;
    }
    resource->leases.learned_at = learned_at;
    resource->leases.round_is_on = round_is_on;
    resource->leases.round = round_is_on;
    return resource;
}

/* An entry as it is in the bytes. */
typedef struct doorman__handed_entry {
    const char *holder_id;
    bool is_server, is_frozen;
    uint64_t lease_id;
    doorman_time end;
    double has, committed, leased, in_round;
    unsigned reason;
    size_t demand_count;
    doorman_demand demands[DOORMAN__GROUPS_MAX];
} doorman__handed_entry;

static void doorman__handover_take_entry(doorman__handover_reader *in, doorman__handed_entry *out) {
    out->holder_id = doorman__handover_take_id(in);
    unsigned kind = doorman__handover_take_choice(in, 1, 3);
    out->is_server = kind & 1U;
    out->is_frozen = kind & 2U;
    out->lease_id = doorman__handover_take_number(in, 8);
    out->end = doorman__handover_take_rest(in, false);
    out->has = doorman__handover_take_amount(in);
    out->committed = doorman__handover_take_amount(in);
    out->leased = doorman__handover_take_amount(in);
    out->in_round = doorman__handover_take_amount(in);
    out->reason =
        doorman__handover_take_choice(in, 1, DOORMAN_LEASE_LEARNING - DOORMAN_LEASE_SHARE + 1U);
    out->demand_count =
        doorman__handover_take_choice(in, 2, out->is_server ? DOORMAN__GROUPS_MAX : 1);
    const bool weighs = out->is_server || strcmp(out->holder_id, DOORMAN__PERMITS_HOLDER) == 0;
    const unsigned most = weighs ? (unsigned)DOORMAN_SUBCLIENTS_MAX : 1;
    for (size_t i = 0; i < out->demand_count; i++) {
        out->demands[i].wants = doorman__handover_take_amount(in);
        out->demands[i].subclients = doorman__handover_take_choice(in, 4, most);
        if (out->demands[i].subclients < 1) {
            doorman__handover_fail(in, DOORMAN_INVALID_ARGUMENT, "a demand is not valid");
        }
        out->demands[i].priority = (int)doorman__handover_take_choice(in, 1, DOORMAN_PRIORITY_MAX);
    }
    bool is_valid = kind != 2 && out->lease_id <= UINT64_C(1) << 53 && out->end > in->now &&
                    out->has <= out->leased && out->leased <= out->committed &&
                    (out->is_server || out->leased >= out->committed) &&
                    (out->is_server || out->demand_count == 1) &&
                    out->in_round <= doorman__float_up(out->committed);
    if (!is_valid) doorman__handover_fail(in, DOORMAN_INVALID_ARGUMENT, "a lease is not valid");
}

/* Adds an entry without a lease. Returns NULL after a fault. */
static doorman__lease_entry *doorman__handover_add_holder(doorman__handover_reader *in,
                                                          doorman__lease_table *leases,
                                                          const doorman__handed_entry *handed) {
    doorman_server *server = in->server;
    uint64_t hash = doorman__holder_hash(server, handed->holder_id, handed->is_server);
    if (doorman__leases_find(leases, hash, handed->holder_id, handed->is_server)) {
        doorman__handover_fail(in, DOORMAN_INVALID_ARGUMENT, "a holder occurs twice");
        return NULL;
    }
    doorman_status status = DOORMAN_RESOURCE_EXHAUSTED;
    if (leases->entries.count < server->options.holder_max) {
        status = doorman__server_count(server, hash, handed->is_server);
    }
    doorman__lease_entry *entry = NULL;
    if (status == DOORMAN_OK) {
        entry = doorman__leases_add(leases, hash, handed->holder_id, handed->is_server);
        if (!entry) doorman__server_uncount(server, hash);
    }
    if (status == DOORMAN_RESOURCE_EXHAUSTED) {
        doorman__handover_fail(in, status,
                               "more holders than holder_max, or more resources of one "
                               "than resource_max_per_holder");
    } else if (!entry) {
        doorman__handover_fail(in, DOORMAN_OUT_OF_MEMORY, "out of memory");
    }
    return entry;
}

/* D8: called if the node's permits held a lease of the resource, which they do not get back. So the
 * server learns the resource as after a crash. In a root, new resources of the same template learn
 * for as long, because this resource may be removed, and asked for again, before that. */
static void doorman__handover_learn(doorman__resource_entry *resource) {
    doorman_server *server = resource->server;
    doorman__lease_table *leases = &resource->leases;
    if (!doorman__server_is_root(server)) {
        leases->learned_at = DOORMAN_NEVER; /* the parent says when the learning ends (T6) */
        return;
    }
    doorman_time until = doorman__server_learned_at(server, leases->algorithm, server->now);
    size_t index = (size_t)(resource->settings - server->config->templates);
    assert(index < server->config->template_count);
    doorman_time *of_template = &server->learned_at[index];
    leases->learned_at = doorman__later(leases->learned_at, until);
    *of_template = doorman__later(*of_template, until);
}

static void doorman__handover_restore(doorman__handover_reader *in,
                                      doorman__resource_entry *resource,
                                      const doorman__handed_entry *handed) {
    doorman__lease_table *leases = &resource->leases;
    doorman__lease_entry *entry = doorman__handover_add_holder(in, leases, handed);
    if (!entry) return;
    doorman__leases_set_end(leases, entry, handed->end); /* first: a later step can fail */
    assert(leases->newest == entry);                     /* an entry in no list would never end */
    bool of_permits = !entry->is_server && strcmp(entry->holder_id, DOORMAN__PERMITS_HOLDER) == 0;
    if (of_permits) doorman__handover_learn(resource);
    if (handed->demand_count) {
        if (!doorman__leases_reserve(leases, entry, handed->demands, handed->demand_count)) {
            doorman__handover_fail(in, DOORMAN_OUT_OF_MEMORY, "out of memory");
            return;
        }
        doorman__leases_set_demands(leases, entry, handed->demands, handed->demand_count);
    }
    entry->lease_id = handed->lease_id;
    entry->granted_at = entry->lease_end = in->server->now; /* so that S3 repeats no lease */
    entry->reason = handed->reason & 7U;
    doorman__child *child = doorman__entry_child(entry);
    if (child) child->leased = handed->leased;
    doorman__leases_set_amounts(leases, entry, handed->has, handed->committed);
    if (handed->is_frozen) doorman__leases_freeze(leases, entry);
    if (leases->round_is_on) doorman__leases_set_in_round(leases, entry, handed->in_round);
    entry->step = leases->step & 3;
    entry->recent = doorman__float_up(handed->committed);
    leases->late_end = doorman__later(leases->late_end, entry->end);
    doorman__resource_update_by(resource, entry->end);
    resource->older[0] = (doorman__maximum){doorman__total_ceil(leases->committed), entry->end};
}

/* Takes over one part after the other, until the end or the first fault. */
static void doorman__handover_take_all(doorman__handover_reader *in) {
    doorman__resource_entry *resource = NULL;
    doorman__handed_entry handed;
    size_t template_count = 0;
    for (;;) {
        switch (doorman__handover_take_number(in, 1)) {
        case 'T': doorman__handover_take_template(in, template_count++); break;
        case 'R': resource = doorman__handover_take_resource(in); break;
        case 'E':
            doorman__handover_take_entry(in, &handed);
            if (resource && !in->wrong) doorman__handover_restore(in, resource, &handed);
            break;
        case 'P':
            if (DOORMAN__HAS_PERMITS) {
                doorman__permits_in_handover.take_over(in);
            } else {
                doorman__handover_fail(in, DOORMAN_INVALID_ARGUMENT, "they have permits");
            }
            break;
        case '.':
            if (in->left)
                doorman__handover_fail(in, DOORMAN_INVALID_ARGUMENT, "they go on after the end");
            return;
        default:
            doorman__handover_fail(in, DOORMAN_INVALID_ARGUMENT, "a part is not known");
            return;
        }
    }
}

doorman_status doorman_server_take_over(doorman_server *server, const unsigned char *bytes,
                                        size_t count, doorman_error *error, doorman_time now) {
    if (!server) return doorman__missing(error, "server");
    if (!bytes) return doorman__missing(error, "bytes");
    (void)doorman__server_advance(server, now);
    bool has_holds = DOORMAN__HAS_PERMITS && doorman__permits_in_handover.has_holds(server);
    if (!server->is_master || server->resources.count || has_holds) {
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT,
                             "server: it is not master, or has leases or holds already");
    }
    doorman__handover_reader in = {.server = server,
                                   .permits = server->permits,
                                   .now = server->now,
                                   .drift = server->options.drift,
                                   .at = bytes,
                                   .left = count};
    const unsigned char *magic = doorman__handover_take(&in, 8);
    if (magic && memcmp(magic, DOORMAN__HANDOVER_MAGIC, 8) != 0) {
        doorman__handover_fail(&in, DOORMAN_INVALID_ARGUMENT, "they are of another version");
    }
    if (strcmp(doorman__handover_take_text(&in), server->node) != 0) {
        doorman__handover_fail(&in, DOORMAN_NOT_FOUND, "they are of another node");
    }
    doorman_time drains_at = doorman__handover_take_rest(&in, false);
    if (!in.wrong) doorman__handover_take_all(&in);
    if (DOORMAN__HAS_PERMITS && !in.wrong) doorman__permits_in_handover.finish(&in);
    if (!in.wrong) { /* only now: a wrong time would let the server learn for years */
        server->drains_at = doorman__later(server->drains_at, drains_at);
        return DOORMAN_OK;
    }
    doorman__server_drop_leases(server);
    if (DOORMAN__HAS_PERMITS) doorman__permits_in_handover.drop(server);
    doorman__server_begin_learning(server);
    return doorman__fail(error, in.status, "bytes: %s", in.wrong);
}

/* ---- >>election ----------------------------------------------------------------------------- */
/*
 * To elect a master, the processes of a node use a store that all of them reach. The store has a
 * key for the node. The store also grants leases of its own, each with a time to live (TTL). They
 * are called store leases here. The process whose store lease holds the key is master. The value of
 * the key has the address of the master. The value may have more than the address, but the election
 * reads only the address.
 *
 * V2 A process is master only while its own store lease holds the key. The process stops being
 *    master 0.95 TTL after it sent its last successful renewal, by its own clock. The store keeps
 *    the store lease for the whole TTL, from the time at which it received the renewal. So if the
 *    rates of the clocks differ by less than 5 %, the process stops being master before the store
 *    can give the key to another process.
 *
 *     state      meaning                     event                               next state
 *     NO_MASTER  no known master             our store lease holds the key       MASTER
 *                                            another store lease holds the key   STANDBY
 *     STANDBY    another process is master,  as above                            MASTER, STANDBY
 *                at `master`                 no key, and this process cannot     NO_MASTER
 *                                            create it; or no answer for the
 *                                            TTL
 *     MASTER     this process is master      our store lease holds the key       MASTER
 *                                            another store lease holds the key   STANDBY
 *                                            no key, or the last renewal is too  NO_MASTER
 *                                            old
 *     RESIGNED   this process has left       none                                -
 *                the election
 *     MASTER                                 doorman_election_abstain is called  NO_MASTER
 *     any                                    doorman_election_resign is called   RESIGNED
 *
 * A process polls the store every second, or five times within the TTL if that is more often. While
 * the store answers but shows no master, the process polls every 0.1 s, because some process will
 * soon create the key. Both periods run from the start of a poll. Only the end of a poll,
 * doorman_election_abstain and doorman_election_resign change the state. Each call of a poll
 * depends on the answer to the previous call:
 *
 *     call         is made if                     answer                   next call
 *     KEEP_ALIVE   there is a store lease         any                      READ_KEY
 *     READ_KEY                                    the key exists           none
 *                                                 no key, and the state    none
 *                                                 was MASTER
 *                                                 no key, any other state  GRANT_LEASE, CREATE_KEY
 *     GRANT_LEASE  there is no store lease        a store lease            CREATE_KEY
 *                                                 no store lease           none
 *     CREATE_KEY                                  any                      none
 *
 * If a call gets no answer, its poll ends, and the state stays the same until its time (`until`)
 * has passed. If the answers show a state whose time has already passed, the state becomes
 * NO_MASTER. doorman_election_mastership also compares `until` with the clock. So a process is not
 * master after a long sleep, even before it polls again.
 *
 * A process that abstains from an election (doorman_election_abstain) first revokes its store
 * lease. The process repeats this call until the store has answered or the store lease has ended.
 * After that the process only reads the key, and a missing key means NO_MASTER. When one TTL has
 * passed since the abstention, the process polls at the usual period, even if there is no master.
 *
 * A process that was master at its last poll does not create a missing key at once, because another
 * process may have held the key since that poll. First the state of this process becomes NO_MASTER.
 * If this process creates the key in the next poll, its server learns again.
 *
 * The value of the key may be the address of this process, although another store lease holds the
 * key. Such a key is from an earlier process at this address, and the store removes it after its
 * TTL. This process does not use the address, because it would redirect its clients to itself.
 *
 * The learning of a new master starts at the time at which its predecessor was known to be gone
 * (R8). This is the time of the first poll that found no key. Normally the process creates the key
 * in the same poll, so it becomes master at this time. If the process creates the key in a later
 * poll, it must know that no other process was master in between. For this purpose the store counts
 * how often the key was created (`term`). */
#define DOORMAN__POLL_PERIOD DOORMAN_SECOND
#define DOORMAN__POLL_PERIOD_NO_MASTER (DOORMAN_SECOND / 10)

doorman_status doorman_election_init(doorman_election *election,
                                     const doorman_election_options *options, doorman_error *error,
                                     doorman_time now) {
    if (!election) return doorman__missing(error, "election");
    if (!options) return doorman__missing(error, "options");
    const doorman__rule rules[] = {
        {!doorman__id_valid(options->address), "address: " DOORMAN__ID_RULE},
        {!doorman__duration_valid(options->ttl) || (options->ttl && options->ttl < DOORMAN_SECOND),
         "ttl: must be from 1 to 1e8 seconds"},
    };
    if (DOORMAN__RULES_CHECK(rules, error) != DOORMAN_OK) return DOORMAN_INVALID_ARGUMENT;
    memset(election, 0, sizeof *election);
    memcpy(election->address, options->address, strlen(options->address) + 1);
    election->ttl = options->ttl ? options->ttl : 10 * DOORMAN_SECOND;
    election->until = DOORMAN_NEVER;
    election->now = election->due = now;
    return DOORMAN_OK;
}

/* Advances the time of the election, and returns it. If the clock goes back, time stands still. */
static doorman_time doorman__election_now(doorman_election *election, doorman_time now) {
    return election->now = doorman__later(election->now, now);
}

/* Changes the state, or renews it. After doorman_election_init no other function writes it.
 *   until     when the state ends unless it is renewed
 *   master    the address of the master in the state STANDBY; NULL: not known, or another state */
static void doorman__election_move(doorman_election *election, doorman_election_state to,
                                   doorman_time until, const char *master) {
    bool is_master = to == DOORMAN_MASTER;
    bool becomes_master = is_master && election->state != DOORMAN_MASTER;
    assert(election->state != DOORMAN_RESIGNED && to < DOORMAN_ELECTION_STATE_COUNT);
    assert(until > election->now);
    assert(until == DOORMAN_NEVER || is_master || to == DOORMAN_STANDBY);
    assert(!is_master || (election->lease && until == election->lease_until));
    assert(!master || to == DOORMAN_STANDBY);
    size_t bytes = master ? strlen(master) : 0;
    if (bytes) memcpy(election->master, master, bytes);
    election->master[bytes] = 0;
    election->predecessor_gone = becomes_master && election->vacant_term ? election->vacant_at : 0;
    if (is_master) election->vacant_term = 0;
    election->state = to;
    election->until = until;
}

static void doorman__election_begin_poll(doorman_election *election) {
    assert(election->step == DOORMAN_NO_CALL && election->now >= election->due);
    election->poll_at = election->now;
    doorman_time period = doorman__earlier(election->ttl / 5, DOORMAN__POLL_PERIOD);
    election->due = doorman__after(election->now, period);
    if (election->abstains && election->now >= election->lease_until) election->lease = 0;
    doorman_election_call_kind with_lease =
        election->abstains ? DOORMAN_REVOKE_LEASE : DOORMAN_KEEP_ALIVE;
    election->step = election->lease ? with_lease : DOORMAN_READ_KEY;
}

/* Returns whether some process will probably create the key soon. */
static bool doorman__election_expects_master(const doorman_election *election) {
    return !election->abstains ||
           election->now < doorman__after(election->abstains_at, election->ttl);
}

/* Ends a poll in which the store has answered all calls.
 *   state    what the answers say
 *   master   see doorman__election_move */
static void doorman__election_end_poll(doorman_election *election, doorman_election_state state,
                                       const char *master) {
    doorman_time until = DOORMAN_NEVER;
    if (state == DOORMAN_MASTER) until = election->lease_until;
    if (state == DOORMAN_STANDBY) until = doorman__after(election->poll_at, election->ttl);
    if (election->now >= until) state = DOORMAN_NO_MASTER, until = DOORMAN_NEVER, master = NULL;
    assert(election->step != DOORMAN_NO_CALL);
    doorman__election_move(election, state, until, master);
    election->step = DOORMAN_NO_CALL;
    if (state == DOORMAN_NO_MASTER && doorman__election_expects_master(election)) {
        election->due = doorman__earlier(
            election->due, doorman__after(election->poll_at, DOORMAN__POLL_PERIOD_NO_MASTER));
    }
}

/* Ends a poll in which a call has got no answer. */
static void doorman__election_fail_poll(doorman_election *election) {
    assert(election->step != DOORMAN_NO_CALL && election->step != DOORMAN_REVOKE_LEASE);
    if (election->now >= election->until) {
        doorman__election_move(election, DOORMAN_NO_MASTER, DOORMAN_NEVER, NULL);
    }
    election->step = DOORMAN_NO_CALL;
}

/* Takes a store lease from the answer to GRANT_LEASE or KEEP_ALIVE.
 *   lease   the id of the store lease
 *   ttl     0: there is no such store lease */
static void doorman__election_take_lease(doorman_election *election, int64_t lease,
                                         doorman_time ttl) {
    assert(election->step == DOORMAN_KEEP_ALIVE || election->step == DOORMAN_GRANT_LEASE);
    ttl = doorman__earlier(ttl, DOORMAN_DURATION_MAX);
    election->lease = ttl > 0 ? lease : 0;
    election->lease_until = election->lease ? doorman__after(election->sent_at, ttl / 100 * 95) : 0;
}

/* Called when our store lease holds the key. Forgets `vacant_at`, the time at which this process
 * found no key, if another process has had the key since then. */
static void doorman__election_win(doorman_election *election, uint64_t term) {
    assert(election->lease && election->step != DOORMAN_NO_CALL);
    if (term != election->vacant_term + 1) election->vacant_term = 0;
    election->term = term;
    doorman__election_end_poll(election, DOORMAN_MASTER, NULL);
}

static void doorman__election_miss_key(doorman_election *election, uint64_t term) {
    assert(election->step == DOORMAN_READ_KEY);
    if (term != election->vacant_term) {
        election->vacant_term = term;
        election->vacant_at = election->now;
    }
    if (election->state == DOORMAN_MASTER || election->abstains) {
        doorman__election_end_poll(election, DOORMAN_NO_MASTER, NULL);
    } else {
        election->step = election->lease ? DOORMAN_CREATE_KEY : DOORMAN_GRANT_LEASE;
    }
}

static void doorman__election_read_key(doorman_election *election,
                                       const doorman_election_answer *answer) {
    assert(election->step == DOORMAN_READ_KEY);
    if (!answer->exists) {
        doorman__election_miss_key(election, answer->term);
    } else if (election->lease && answer->lease == election->lease) {
        doorman__election_win(election, answer->term);
    } else {
        const char *master = doorman__id_valid(answer->address) ? answer->address : NULL;
        if (master && strcmp(master, election->address) == 0) master = NULL;
        election->lease = 0; /* the store lease is no longer needed, and ends by itself */
        doorman__election_end_poll(election, DOORMAN_STANDBY, master);
    }
}

static void doorman__election_take_answer(doorman_election *election,
                                          const doorman_election_answer *answer) {
    switch (election->step) {
    case DOORMAN_KEEP_ALIVE:
        doorman__election_take_lease(election, election->lease, answer->ttl);
        election->step = DOORMAN_READ_KEY;
        break;
    case DOORMAN_READ_KEY: doorman__election_read_key(election, answer); break;
    case DOORMAN_GRANT_LEASE:
        doorman__election_take_lease(election, answer->lease, answer->ttl);
        election->step = DOORMAN_CREATE_KEY;
        if (!election->lease) doorman__election_end_poll(election, DOORMAN_NO_MASTER, NULL);
        break;
    case DOORMAN_CREATE_KEY:
        if (answer->created) {
            doorman__election_win(election, answer->term);
        } else {
            doorman__election_end_poll(election, DOORMAN_NO_MASTER, NULL);
        }
        break;
    case DOORMAN_REVOKE_LEASE:
    case DOORMAN_NO_CALL:
    case DOORMAN_ELECTION_CALL_COUNT:
    default:
        assert(election->step == DOORMAN_REVOKE_LEASE);
        election->step = DOORMAN_NO_CALL;
        election->lease = 0;
        break;
    }
}

bool doorman_election_next(doorman_election *election, doorman_election_call *out,
                           doorman_time now) {
    if (!out) return false;
    *out = (doorman_election_call){.due = DOORMAN_NEVER};
    if (!election) return false;
    now = doorman__election_now(election, now);
    if (election->under_way) return false;
    if (election->step == DOORMAN_NO_CALL) {
        bool resigned = election->state == DOORMAN_RESIGNED;
        if (!resigned) out->due = election->due;
        if (resigned || now < election->due) return false;
        doorman__election_begin_poll(election);
    }
    bool has_lease = election->step != DOORMAN_READ_KEY && election->step != DOORMAN_GRANT_LEASE;
    assert(!has_lease || election->lease);
    election->under_way = true;
    election->sent_at = now;
    *out = (doorman_election_call){.kind = election->step,
                                   .sequence = ++election->sequence,
                                   .lease = has_lease ? election->lease : 0};
    if (election->step == DOORMAN_GRANT_LEASE) out->ttl = election->ttl;
    if (election->step == DOORMAN_CREATE_KEY) out->address = election->address;
    return true;
}

doorman_status doorman_election_answered(doorman_election *election, uint64_t sequence,
                                         const doorman_election_answer *answer, doorman_time now) {
    if (!election) return DOORMAN_INVALID_ARGUMENT;
    doorman__election_now(election, now);
    if (!election->under_way || sequence != election->sequence) return DOORMAN_STALE;
    election->under_way = false;
    assert(election->step != DOORMAN_NO_CALL);
    if (answer) {
        doorman__election_take_answer(election, answer);
    } else if (election->step == DOORMAN_REVOKE_LEASE) {
        election->step = DOORMAN_NO_CALL;
    } else {
        doorman__election_fail_poll(election);
    }
    return DOORMAN_OK;
}

doorman_election_state doorman_election_mastership(const doorman_election *election,
                                                   doorman_mastership *out, doorman_time now) {
    if (!out) return DOORMAN_NO_MASTER;
    *out = (doorman_mastership){.address = NULL};
    if (!election) return DOORMAN_NO_MASTER;
    doorman_election_state state = election->state;
    now = doorman__later(election->now, now);
    if (now >= election->until) state = DOORMAN_NO_MASTER;
    if (state == DOORMAN_MASTER) {
        *out = (doorman_mastership){election->address, election->until, election->predecessor_gone,
                                    election->term};
    } else if (state == DOORMAN_STANDBY && election->master[0]) {
        out->address = election->master;
    }
    return state;
}

void doorman_election_resign(doorman_election *election, doorman_time now) {
    if (!election) return;
    doorman__election_now(election, now);
    if (election->state == DOORMAN_RESIGNED) return;
    doorman__election_move(election, DOORMAN_RESIGNED, DOORMAN_NEVER, NULL);
    election->under_way = false;
    election->step = election->lease ? DOORMAN_REVOKE_LEASE : DOORMAN_NO_CALL;
}

void doorman_election_abstain(doorman_election *election, bool abstains, doorman_time now) {
    if (!election) return;
    now = doorman__election_now(election, now);
    if (election->state == DOORMAN_RESIGNED || election->abstains == abstains) return;
    election->abstains = abstains;
    election->abstains_at = election->due = now;
    if (!abstains) return;
    if (election->state == DOORMAN_MASTER) {
        doorman__election_move(election, DOORMAN_NO_MASTER, DOORMAN_NEVER, NULL);
    }
    election->under_way = false;
    election->step = election->lease ? DOORMAN_REVOKE_LEASE : DOORMAN_NO_CALL;
}

/* ---- >>limiters ----------------------------------------------------------------------------- */
/*
 * Limiters decide whether an application may use units now. There are two families of limiters,
 * with the same arithmetic. A doorman_limiter needs no server, and follows a doorman_limit. A
 * doorman__rate or doorman__gauge belongs to a resource, and follows its lease.
 *
 * Each kind of limiter has one pure function for an attempt to take units. The arguments of the
 * function are the limits, the state, an amount of units, and the time if the kind needs it. The
 * result is a doorman__attempt: the decision, the new state, the wait and what is left. The callers
 * load the state, and store the new state by compare-and-swap in a loop.
 *
 *   kind             function                    state
 *   token bucket     doorman__bucket_try         paid_until (see L1)
 *   concurrency      doorman__concurrency_try    the units in use
 *   fixed window     doorman__fixed_try          the number of a window, and its units
 *   sliding window   doorman__sliding_try        the numbers of two windows, and their units
 *   sliding log      doorman__arrival_try        the last arrivals, one for each unit of the limit
 *
 * A rate is a token bucket without debt, and a gauge is a concurrency limiter. Both follow an
 * allowance, which has one quota until a point in time and another quota from then on. So a limiter
 * stops using a lease when the lease ends, even if no function of the client is called at that
 * time. Only one thread at a time writes an allowance. An allowance has two slots. The writer fills
 * the slot that is not in use, and then increments the version, which tells readers the slot in
 * use.
 *
 * L1 In any t seconds, a rate allows at most rate * (t + burst) units. A single request may have
 *    more than rate * burst units. With such a request of n units, the bound is rate * t + n. A
 *    gauge refuses each request that would exceed its capacity. If the capacity falls below the
 *    units in flight, the gauge refuses requests until enough units are released.
 *
 *    A token bucket stores one time, paid_until (GCRA). A request for n units moves it forward by
 *    n times the time of one unit, 1 / rate. The time from paid_until to now is saved for later
 *    units, but at most `burst` of it. When a rate falls, the saved time is worth fewer units
 *    (doorman__quota_carry has exceptions). A rate starts with nothing saved.
 *       An example with 10 units a second and a burst of 0.1 s: at 5.00 s, paid_until is 4.00 s.
 *    Only 0.1 s of the difference is saved. One unit takes 0.1 s and fits exactly. After this unit,
 *    paid_until is 5.00 s, and the next unit fits at 5.10 s.
 *       If the time of one unit is longer than the burst, the bucket saves the time of one unit. If
 *    it saved less, no unit would ever fit. Example: at 0.5 units a second, one unit takes 2 s. A
 *    request for n units may use all the time since paid_until, up to the time of n units. So a
 *    request that is larger than the burst fits after some time. Example: at 100 units a second, 20
 *    units fit 0.2 s after the last units were taken.
 *       The burst may also be a number of units. Such a burst is a hard bound: a larger request is
 *    IMPOSSIBLE. The bucket saves the time that this number of units takes at the rate in force.
 *
 *    Times are in ticks of 1/256 ns, and wrap around after 2^64 ticks (834 days). paid_until is in
 *    the future if it is ahead of the clock by less than 18 minutes plus the largest debt.
 *    paid_until gets ahead of the clock in two cases: another thread has read the clock after this
 *    thread, or units were taken as a debt. Any other paid_until is in the past. A rate saves at
 *    most 9e18 ticks (407 days), so a rate below 2.8e-8 units a second (one unit in 407 days) never
 *    allows a whole unit. The time of a unit is rounded up to a tick. So requests for one unit get
 *    at most 2.56e11 units in a second. At rates of about 1e8 units a second, they get up to 0.04 %
 *    too few.
 *
 *    A gauge counts the units in flight. A thread that takes units adds them to this count, and
 *    then checks that the allowance has not changed since the thread read it. The client first
 *    lowers the allowance, and then reads the units in flight. So either the thread sees the new
 *    allowance, or the client sees the added units. In both cases the claim of the client includes
 *    all units in flight (R3).
 * L2 A limiter has three calls: try, delay and release. The call `delay` takes no units. It returns
 *    how long to wait before a try. The calls that wait are in the section >>nng. The ceiling is
 *    the largest capacity that the limiter can ever get. A try for n units is IMPOSSIBLE if n is
 *    not an amount, or does not fit at the ceiling. A try is REFUSED if n does not fit now, but
 *    fits at the ceiling. A ceiling of 0 means that the ceiling is not known yet. In this case any
 *    amount n fits at the ceiling, unless n is more than a burst in units. A refusal counts as
 *    demand, so a larger lease may come.
 * L3 Limiters take no lock and make no system call. So any number of threads may share a limiter
 *    (C2). A try of a resource performs no division if it fits and its `out` is NULL: divisions by
 *    an amount are done when the amount changes. A try with its clock read takes 32 ns, and a
 *    refused try takes 27 ns (make bench). On the same machine a clock read takes 24 ns, and a
 *    clock read with a compare-and-swap takes 30 ns.
 * L5 Shadow mode and the kill switch allow a try that the limiter would refuse without them. Such a
 *    try counts as excess. A try checks the two flags only if the limiter refuses.
 *
 * A refusal shows demand (L4, see >>client). The first refusal of a limiter after the client's last
 * look at its counts sets a flag that all limiters of the client share. The limiter stores the time
 * of this refusal. So the client reads one flag to learn whether any limiter has refused a try.
 */

/* ---- limiters: amounts and times */

#define DOORMAN__UNIT 4096.0 /* limiters count in grains; this many are one unit */

#define DOORMAN__TICKS_PER_SECOND 256e9

static inline uint64_t doorman__ticks(doorman_time now) { return (uint64_t)now * 256; }

/* Returns nanoseconds, rounded up. */
static inline doorman_time doorman__nanoseconds(int64_t ticks) { return (ticks + 255) / 256; }

/* Returns x rounded up. Precondition: x is at least -2^63 and less than 2^63. */
static inline int64_t doorman__round_up(double x) {
    int64_t whole = (int64_t)x;
    return whole + ((double)whole < x);
}

/* Converts n units to grains, and rounds up. The counters of allowed and refused grains wrap
 * around, so only the difference of two readings has a meaning. */
static inline uint64_t doorman__units(double n) {
    if (n == 1) return (uint64_t)DOORMAN__UNIT;
    return (uint64_t)doorman__round_up(n * DOORMAN__UNIT);
}

/* Returns the time of one unit in ticks: DBL_MAX if the amount is 0, and 0 if it is unlimited. */
static double doorman__unit_time(double amount) {
    if (doorman__unlimited(amount)) return 0;
    return amount > 0 ? DOORMAN__TICKS_PER_SECOND / amount : DBL_MAX;
}

/* Rounds a price up to whole ticks. Returns -1 if the price is NaN, negative, or more than `most`.
 * A rounding error above `most` is tolerated, so that all of `most` can be taken at once. */
static inline int64_t doorman__price(double price, int64_t most) {
    if (!(price >= 0 && price <= (double)most * (1 + 1e-9))) return -1;
    int64_t ticks = doorman__round_up(price);
    return ticks < most ? ticks : most;
}

/* ---- limiters: an attempt as a pure function */

/* Without inlining, compilers return a doorman__attempt in memory and compute fields that the
 * caller does not use. A try then takes 10 to 14 ns instead of 8. */
#define DOORMAN__INLINE static inline __attribute__((always_inline))

/* The result of an attempt on the state of a limiter. */
typedef struct doorman__attempt {
    doorman_decision decision;
    size_t index;   /* if ALLOWED: the index of the word of the state that changes */
    uint64_t after; /* if ALLOWED: the new value of this word */
    /* If ALLOWED: how long to wait before the units may be used. Otherwise: how long to wait before
     * the next attempt. DOORMAN_NEVER: this time is unknown, or the units never fit. */
    doorman_time wait;
    int64_t left; /* what is left: of a bucket in ticks, negative for a debt; of others in grains */
    doorman_time reset_after; /* without more attempts, all units are available after this time */
} doorman__attempt;

/* Makes the result of a try without a limiter: IMPOSSIBLE. */
static doorman_decision doorman__impossible(doorman_result *out) {
    if (out) {
        *out = (doorman_result){.decision = DOORMAN_IMPOSSIBLE, .retry_after = DOORMAN_NEVER};
    }
    return DOORMAN_IMPOSSIBLE;
}

/* ---- limiters: token bucket */

#define DOORMAN__FUTURE (INT64_C(1) << 48)    /* 18 minutes, in ticks */
#define DOORMAN__SAVED_MAX (INT64_C(1) << 62) /* 208 days, in ticks */

/* Returns how many ticks are saved. A negative number is a debt. */
static inline int64_t doorman__bucket_level(const doorman__bucket *bucket, uint64_t paid_until,
                                            uint64_t now) {
    assert(bucket->saved_most >= 0 && bucket->debt_most >= 0);
    int64_t level = (int64_t)(now - paid_until), future = bucket->debt_most + DOORMAN__FUTURE;
    return level > bucket->saved_most || level <= -future ? bucket->saved_most : level;
}

/* Makes an attempt. An allowed attempt adds its price to paid_until, and its caller waits until the
 * debt of earlier attempts is paid back. An attempt is refused if it would raise the debt above
 * debt_most, or if its caller would wait longer than wait_most. */
DOORMAN__INLINE doorman__attempt doorman__bucket_try(const doorman__bucket *bucket,
                                                     uint64_t paid_until, int64_t price,
                                                     uint64_t now) {
    assert(price >= 0 && bucket->saved_most >= 0 && bucket->debt_most >= 0);
    int64_t level = doorman__bucket_level(bucket, paid_until, now), owed = level < 0 ? -level : 0;
    int64_t missing = price - level - bucket->debt_most;
    int64_t excess_wait = owed - bucket->wait_most;
    if (missing <= 0 && excess_wait <= 0) {
        int64_t left = level - price;
        return (doorman__attempt){.decision = DOORMAN_ALLOWED,
                                  .after = now - (uint64_t)left,
                                  .wait = doorman__nanoseconds(owed),
                                  .left = left,
                                  .reset_after = doorman__nanoseconds(bucket->saved_most - left)};
    }
    int64_t until = missing > excess_wait ? missing : excess_wait;
    return (doorman__attempt){.decision = DOORMAN_REFUSED,
                              .wait = doorman__nanoseconds(until),
                              .left = level,
                              .reset_after = doorman__nanoseconds(bucket->saved_most - level)};
}

/* ---- limiters: concurrency */

/* Makes an attempt with units that are released later. The time of the release is not known. So a
 * refusal has the wait DOORMAN_NEVER, and no attempt sets reset_after. */
DOORMAN__INLINE doorman__attempt doorman__concurrency_try(uint64_t most, uint64_t in_use,
                                                          uint64_t units) {
    uint64_t room = in_use < most ? most - in_use : 0;
    if (units > room) {
        return (doorman__attempt){
            .decision = DOORMAN_REFUSED, .wait = DOORMAN_NEVER, .left = (int64_t)room};
    }
    return (doorman__attempt){
        .decision = DOORMAN_ALLOWED, .after = in_use + units, .left = (int64_t)(room - units)};
}

/* Returns false, and changes nothing, if more is released than is in use. */
static bool doorman__concurrency_release(doorman__shared *in_use, uint64_t units) {
    uint64_t before = __atomic_load_n(in_use, __ATOMIC_RELAXED);
    do {
        if (units > before) return false;
    } while (!__atomic_compare_exchange_n(in_use, &before, before - units, true, __ATOMIC_SEQ_CST,
                                          __ATOMIC_RELAXED));
    return true;
}

/* ---- limiters: windows */
/*
 * The count of a window is one word: the number of the window modulo 2^24, and in the lower 40 bits
 * the grains that were used in it. Another thread may have read a later time than this thread. So
 * if the number is ahead of this thread's window by at most 255, the attempt is made in the window
 * with this number. Other numbers, except the number of the current window, belong to windows in
 * the past.
 */

#define DOORMAN__WINDOWS ((UINT64_C(1) << 24) - 1)
#define DOORMAN__WINDOW_UNITS ((UINT64_C(1) << 40) - 1)
#define DOORMAN__WINDOW_LIMIT_MAX 1e8

/* Returns how many windows a count is ahead of the window `number`, or 0 if it is not ahead. */
static inline uint64_t doorman__window_ahead(uint64_t count, uint64_t number) {
    uint64_t ahead = ((count >> 40) - number) & DOORMAN__WINDOWS;
    return ahead < 256 ? ahead : 0;
}

/* The window in which an attempt is made. */
typedef struct doorman__window {
    uint64_t number;
    /* the time until the window ends; longer than a window if the window is ahead of the clock */
    doorman_time rest;
} doorman__window;

static inline doorman__window doorman__window_at(const uint64_t *counts, size_t count,
                                                 doorman_time length, doorman_time now) {
    assert(length > 0);
    uint64_t number = (uint64_t)(now / length), ahead = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t by = doorman__window_ahead(counts[i], number);
        if (by > ahead) ahead = by;
    }
    doorman_time rest = length - now % length + (doorman_time)ahead * length;
    return (doorman__window){(number + ahead) & DOORMAN__WINDOWS, rest};
}

static inline uint64_t doorman__window_units(uint64_t count, uint64_t number) {
    return count >> 40 == (number & DOORMAN__WINDOWS) ? count & DOORMAN__WINDOW_UNITS : 0;
}

/* Makes an attempt in a fixed window. Precondition, also of doorman__sliding_try: units <= most,
 * and no count is ahead of `window`. */
DOORMAN__INLINE doorman__attempt doorman__fixed_try(uint64_t most, uint64_t count, uint64_t units,
                                                    doorman__window window) {
    assert(units <= most && doorman__window_ahead(count, window.number) == 0);
    uint64_t used = doorman__window_units(count, window.number);
    uint64_t room = used < most ? most - used : 0;
    bool allowed = units <= room;
    if (allowed) used += units, room -= units;
    return (doorman__attempt){.decision = allowed ? DOORMAN_ALLOWED : DOORMAN_REFUSED,
                              .after = window.number << 40 | used,
                              .wait = allowed ? 0 : window.rest,
                              .left = (int64_t)room,
                              .reset_after = used > 0 ? window.rest : 0};
}

/* Returns how many grains of the previous window still count in the current window, rounded up.
 * `rest` is the time until the current window ends. */
static inline uint64_t doorman__window_carry(uint64_t units, doorman_time rest,
                                             doorman_time length) {
    assert(rest >= 0 && length > 0);
    if (rest >= length) return units;
    return (uint64_t)doorman__round_up((double)units * (double)rest / (double)length);
}

/* Returns how much time is left of the current window once at most `room` of the `units` of the
 * previous window still count. */
static doorman_time doorman__window_rest(uint64_t units, uint64_t room, doorman_time length) {
    if (units <= room) return length;
    doorman_time rest = (doorman_time)((double)room * (double)length / (double)units);
    while (doorman__window_carry(units, rest, length) > room) rest--; /* `rest` was rounded */
    assert(rest >= 0 && rest < length);
    return rest;
}

/* Returns how long it takes until a refused attempt fits. `last` and `here` are the units of the
 * previous and of the current window. `room` is the limit minus the units of the attempt. If `here`
 * is more than `room`, the attempt fits only in the next window. Otherwise the attempt fits later
 * in the current window, when a smaller part of `last` counts. */
static doorman_time doorman__sliding_delay(uint64_t last, uint64_t here, uint64_t room,
                                           doorman_time rest, doorman_time length) {
    assert(rest > 0 && (here > room || last > room - here));
    if (here > room) return rest + length - doorman__window_rest(here, room, length);
    return rest - doorman__window_rest(last, room - here, length);
}

/* Makes an attempt in a sliding window. counts[0] is for windows with an even number, and counts[1]
 * is for windows with an odd number. So the count of a new window replaces the count that is two
 * windows older. */
DOORMAN__INLINE doorman__attempt doorman__sliding_try(uint64_t most, doorman_time length,
                                                      const uint64_t *counts, uint64_t units,
                                                      doorman__window window) {
    assert(units <= most && doorman__window_ahead(counts[0], window.number) == 0 &&
           doorman__window_ahead(counts[1], window.number) == 0);
    size_t index = window.number & 1;
    uint64_t last = doorman__window_units(counts[!index], window.number - 1);
    uint64_t here = doorman__window_units(counts[index], window.number);
    uint64_t used = here + doorman__window_carry(last, window.rest, length);
    uint64_t room = used < most ? most - used : 0;
    doorman__attempt attempt = {.decision = DOORMAN_ALLOWED, .index = index};
    if (units > room) {
        attempt.decision = DOORMAN_REFUSED;
        attempt.wait = doorman__sliding_delay(last, here, most - units, window.rest, length);
    } else {
        here += units;
        room -= units;
    }
    attempt.after = window.number << 40 | here;
    attempt.left = (int64_t)room;
    if (last > 0) attempt.reset_after = window.rest;
    if (here > 0) attempt.reset_after = window.rest + length;
    return attempt;
}

/* ---- limiters: log */

/* Makes an attempt for one unit, whose arrival replaces the arrival `before`. An arrival is the
 * time at which a unit was asked for, also if it was refused. A ring has one arrival for each unit
 * of the limit. The arrival of a new unit replaces the oldest arrival. The unit is allowed if the
 * oldest arrival is at least a whole window old. So at most as many units are allowed in a window
 * as the ring has arrivals. A later arrival is never replaced by an earlier one, even if the clock
 * of this thread is behind the clock of another thread. */
static inline doorman__attempt doorman__arrival_try(doorman_time window, doorman_time before,
                                                    doorman_time now) {
    assert(window > 0);
    doorman_time wait = doorman__later(window - (now - before), 0);
    return (doorman__attempt){.decision = wait > 0 ? DOORMAN_REFUSED : DOORMAN_ALLOWED,
                              .after = (uint64_t)doorman__later(before, now),
                              .wait = wait};
}

/* ---- limiters without a server: all kinds of limiter as a pure function */

/* Converts n units to what the limiter counts: ticks for a token bucket, and grains for any other
 * kind. Returns -1 if a try for n units is IMPOSSIBLE. */
static inline int64_t doorman__limit_amount(const doorman_limit *limit, double n) {
    if (limit->kind == DOORMAN_TOKEN_BUCKET) {
        const doorman__bucket *bucket = &limit->bucket;
        if (!(n <= DOORMAN_AMOUNT_MAX)) return -1;
        return doorman__price(n * limit->unit_time, bucket->saved_most + bucket->debt_most);
    }
    if (!doorman__amount_valid(n)) return -1;
    uint64_t units = doorman__units(n);
    return units <= limit->most ? (int64_t)units : -1;
}

DOORMAN__INLINE doorman__attempt doorman__limit_attempt(const doorman_limit *limit,
                                                        const uint64_t *words, int64_t amount,
                                                        doorman_time now) {
    assert(amount >= 0 && limit->kind != DOORMAN_SLIDING_LOG);
    if (limit->kind == DOORMAN_TOKEN_BUCKET) {
        return doorman__bucket_try(&limit->bucket, words[0], amount, doorman__ticks(now));
    }
    uint64_t units = (uint64_t)amount;
    if (limit->kind == DOORMAN_FIXED_WINDOW) {
        doorman__window window = doorman__window_at(words, 1, limit->window, now);
        return doorman__fixed_try(limit->most, words[0], units, window);
    }
    if (limit->kind == DOORMAN_SLIDING_WINDOW) {
        doorman__window window = doorman__window_at(words, 2, limit->window, now);
        return doorman__sliding_try(limit->most, limit->window, words, units, window);
    }
    return doorman__concurrency_try(limit->most, words[0], units);
}

/* Makes an attempt that takes nothing. The caller does not store `after`.
 *   amount   0: for no units; -1: for units that are IMPOSSIBLE */
static doorman__attempt doorman__limit_look(const doorman_limit *limit, const uint64_t *words,
                                            int64_t amount, doorman_time now) {
    assert(amount <= 0);
    doorman__attempt attempt = doorman__limit_attempt(limit, words, 0, now);
    attempt.decision = amount < 0 ? DOORMAN_IMPOSSIBLE : DOORMAN_ALLOWED;
    attempt.wait = amount < 0 ? DOORMAN_NEVER : 0;
    return attempt;
}

static doorman_result doorman__limit_result(const doorman_limit *limit,
                                            const doorman__attempt *attempt) {
    bool allowed = attempt->decision == DOORMAN_ALLOWED;
    double left = attempt->left > 0 ? (double)attempt->left : 0;
    bool bucket = limit->kind == DOORMAN_TOKEN_BUCKET;
    assert(bucket || attempt->left >= 0); /* only a token bucket has debts */
    double units = bucket ? left * limit->amount * (1 / DOORMAN__TICKS_PER_SECOND)
                          : left * (1 / DOORMAN__UNIT);
    return (doorman_result){.decision = attempt->decision,
                            .limit = limit->amount,
                            .remaining = units,
                            .wait = allowed ? attempt->wait : 0,
                            .retry_after = allowed ? 0 : attempt->wait,
                            .reset_after = attempt->reset_after};
}

/* ---- limiters without a server: checking the options of a limit */

#define DOORMAN__BUCKET_TIME_MAX (10000000 * DOORMAN_SECOND)

/* Returns the first rule of a token bucket that the options break. Returns NULL if they break no
 * rule. */
static const char *doorman__bucket_wrong(const doorman_limit_options *options) {
    const double saved = options->size * doorman__unit_time(options->rate);
    const double debt = (double)options->max_debt * 256;
    const doorman__rule rules[] = {
        {!(options->rate > 0 && options->rate <= DOORMAN_AMOUNT_MAX),
         "rate: must be more than 0 and at most 1e15"},
        {!doorman__amount_valid(options->size), "size: " DOORMAN__AMOUNT_RULE},
        {!(options->size > 0) && !options->max_debt,
         "size: must be more than 0 where max_debt is 0"},
        {options->max_debt < 0 || options->max_debt > DOORMAN__BUCKET_TIME_MAX,
         "max_debt: must be from 0 to 1e7 seconds"},
        {!(saved + debt <= (double)DOORMAN__BUCKET_TIME_MAX * 256),
         "size: must be worth at most 1e7 seconds of the rate, together with max_debt"},
        {!doorman__duration_valid(options->max_wait), "max_wait: " DOORMAN__DURATION_OR_ZERO_RULE},
        {options->max_wait && !options->has_max_wait, "max_wait: must be 0 without has_max_wait"},
        {options->has_max_wait && !options->max_debt,
         "has_max_wait: must not be set without a max_debt, because no caller would have to wait"},
        {options->limit != 0, "limit: must be 0: a TOKEN_BUCKET has none"},
        {options->window != 0, "window: must be 0: a TOKEN_BUCKET has none"},
    };
    return DOORMAN__RULE_NEXT(rules, &(size_t){0});
}

#define DOORMAN__ONLY_BUCKET_RULE "must be 0: only a TOKEN_BUCKET has one"

/* Returns the first rule that a limit of any kind except TOKEN_BUCKET breaks, or NULL. */
static const char *doorman__count_limit_wrong(const doorman_limit_options *options) {
    const double limit = options->limit;
    const bool held = options->kind == DOORMAN_CONCURRENCY;
    const bool countable = limit >= 0 && limit <= DOORMAN__WINDOW_LIMIT_MAX;
    const bool whole = countable && limit >= 1 && (double)(uint64_t)limit == limit;
    const bool window_valid = options->window > 0 && doorman__duration_valid(options->window);
    const doorman__rule rules[] = {
        {held && !doorman__amount_valid(limit), "limit: " DOORMAN__AMOUNT_RULE},
        {!held && !countable, "limit: must be from 0 to 1e8"},
        {options->kind == DOORMAN_SLIDING_LOG && !whole,
         "limit: must be a whole number, at least 1, for a SLIDING_LOG"},
        {held && options->window, "window: must be 0: CONCURRENCY has none"},
        {!held && !window_valid, "window: " DOORMAN__DURATION_RULE},
        {options->rate != 0, "rate: " DOORMAN__ONLY_BUCKET_RULE},
        {options->size != 0, "size: " DOORMAN__ONLY_BUCKET_RULE},
        {options->max_debt != 0, "max_debt: " DOORMAN__ONLY_BUCKET_RULE},
        {options->has_max_wait, "has_max_wait: " DOORMAN__ONLY_BUCKET_RULE},
        {options->max_wait != 0, "max_wait: " DOORMAN__ONLY_BUCKET_RULE},
    };
    return DOORMAN__RULE_NEXT(rules, &(size_t){0});
}

static const char *doorman__limit_wrong(const doorman_limit_options *options) {
    switch (options->kind) {
    case DOORMAN_TOKEN_BUCKET: return doorman__bucket_wrong(options);
    case DOORMAN_FIXED_WINDOW:
    case DOORMAN_SLIDING_WINDOW:
    case DOORMAN_SLIDING_LOG:
    case DOORMAN_CONCURRENCY: return doorman__count_limit_wrong(options);
    case DOORMAN_TIERS:
    default:
        return "kind: must be TOKEN_BUCKET, FIXED_WINDOW, SLIDING_WINDOW, SLIDING_LOG or "
               "CONCURRENCY";
    }
}

doorman_status doorman_limit_init(doorman_limit *limit, const doorman_limit_options *options,
                                  doorman_error *error) {
    if (!limit) return doorman__missing(error, "limit");
    if (!options) return doorman__missing(error, "options");
    const char *wrong = doorman__limit_wrong(options);
    if (wrong) {
        (void)doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "%s", wrong);
        return DOORMAN_INVALID_ARGUMENT; /* constant, so that a compiler sees that OK sets *limit */
    }
    bool is_bucket = options->kind == DOORMAN_TOKEN_BUCKET;
    double grains = options->kind == DOORMAN_SLIDING_LOG ? 1 : DOORMAN__UNIT;
    *limit = (doorman_limit){.kind = options->kind,
                             .amount = is_bucket ? options->rate : options->limit,
                             .window = options->window,
                             .most = (uint64_t)(options->limit * grains)};
    if (!is_bucket) return DOORMAN_OK;
    doorman_time max_wait = options->has_max_wait ? options->max_wait : DOORMAN_DURATION_MAX;
    limit->unit_time = doorman__unit_time(options->rate);
    limit->bucket.saved_most = doorman__round_up(options->size * limit->unit_time);
    limit->bucket.debt_most = options->max_debt * 256;
    limit->bucket.wait_most = doorman__earlier(max_wait, DOORMAN__BUCKET_TIME_MAX) * 256;
    assert(limit->bucket.saved_most >= 0 && limit->bucket.debt_most >= 0);
    assert(limit->bucket.wait_most >= 0);
    return DOORMAN_OK;
}

/* ---- limiters without a server: the state that threads share */

doorman_status doorman_limiter_init(doorman_limiter *limiter, const doorman_limit *limit,
                                    doorman_arrival *arrivals, doorman_time now) {
    if (!limiter || !limit) return DOORMAN_INVALID_ARGUMENT;
    bool log = limit->kind == DOORMAN_SLIDING_LOG;
    bool aligned = (uintptr_t)arrivals % sizeof *arrivals == 0;
    if (!limit->kind || log != (arrivals != NULL) || !aligned) return DOORMAN_INVALID_ARGUMENT;
    memset(limiter, 0, sizeof *limiter);
    if (limit->kind == DOORMAN_TOKEN_BUCKET) {
        limiter->state.words[0] = doorman__ticks(now) - (uint64_t)limit->bucket.saved_most;
    } else if (log) {
        limiter->state.log.arrivals = arrivals;
        /* at time 0 each arrival is a whole window old, so all units are allowed */
        for (uint64_t i = 0; i < limit->most; i++) arrivals[i] = -limit->window;
    } else if (limit->kind != DOORMAN_CONCURRENCY) {
        limiter->state.words[0] = (uint64_t)(now / limit->window) << 40;
        limiter->state.words[1] = limiter->state.words[0];
    }
    return DOORMAN_OK;
}

/* Returns n rounded up to whole units, or UINT64_MAX if n is negative, NaN or above the limit. */
static uint64_t doorman__log_units(const doorman_limit *limit, double n) {
    return n >= 0 && n <= (double)limit->most ? (uint64_t)doorman__round_up(n) : UINT64_MAX;
}

static inline doorman_arrival *doorman__log_place(const doorman_limiter *limiter,
                                                  const doorman_limit *limit, uint64_t index) {
    assert(limit->most > 0);
    return &limiter->state.log.arrivals[index % limit->most];
}

static uint64_t doorman__log_next(const doorman_limiter *limiter) {
    return __atomic_load_n(&limiter->state.log.next, __ATOMIC_RELAXED);
}

/* Returns how long it takes until the log could allow a unit at the position `index`. */
static doorman_time doorman__log_wait(const doorman_limiter *limiter, const doorman_limit *limit,
                                      uint64_t index, doorman_time now) {
    const doorman_arrival *place = doorman__log_place(limiter, limit, index);
    doorman_time before = __atomic_load_n(place, __ATOMIC_RELAXED);
    return doorman__arrival_try(limit->window, before, now).wait;
}

static doorman_decision doorman__log_try(doorman_limiter *limiter, const doorman_limit *limit,
                                         uint64_t units, doorman_time now) {
    assert(units <= limit->most);
    uint64_t next = __atomic_fetch_add(&limiter->state.log.next, units, __ATOMIC_RELAXED);
    doorman_decision decision = DOORMAN_ALLOWED;
    for (; units > 0; units--, next++) {
        doorman_arrival *place = doorman__log_place(limiter, limit, next);
        doorman_time before = __atomic_load_n(place, __ATOMIC_RELAXED);
        doorman__attempt attempt;
        do {
            attempt = doorman__arrival_try(limit->window, before, now);
            assert((doorman_time)attempt.after >= before);
        } while (!__atomic_compare_exchange_n(place, &before, (doorman_time)attempt.after, true,
                                              __ATOMIC_RELAXED, __ATOMIC_RELAXED));
        if (attempt.decision != DOORMAN_ALLOWED) decision = DOORMAN_REFUSED;
    }
    return decision;
}

/* Returns how long it takes until the log could allow n units. The last unit waits longest. */
static doorman_time doorman__log_delay(const doorman_limiter *limiter, const doorman_limit *limit,
                                       double n, doorman_time now) {
    uint64_t units = doorman__log_units(limit, n);
    if (units > limit->most) return DOORMAN_NEVER;
    if (units == 0) return 0;
    return doorman__log_wait(limiter, limit, doorman__log_next(limiter) + units - 1, now);
}

/* Returns how many units could be allowed now. From the next position on, the arrivals are in the
 * order of their times. So a binary search finds the first arrival that is too new. */
static uint64_t doorman__log_left(const doorman_limiter *limiter, const doorman_limit *limit,
                                  doorman_time now) {
    uint64_t next = doorman__log_next(limiter), low = 0, high = limit->most;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (doorman__log_wait(limiter, limit, next + middle, now) == 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static doorman_decision doorman__log_decide(doorman_limiter *limiter, const doorman_limit *limit,
                                            double n, doorman_result *out, doorman_time now) {
    uint64_t units = doorman__log_units(limit, n);
    doorman_decision decision = DOORMAN_IMPOSSIBLE;
    if (units <= limit->most) decision = doorman__log_try(limiter, limit, units, now);
    if (!out) return decision;
    uint64_t newest = doorman__log_next(limiter) + limit->most - 1;
    *out = (doorman_result){.decision = decision,
                            .limit = limit->amount,
                            .remaining = (double)doorman__log_left(limiter, limit, now),
                            .reset_after = doorman__log_wait(limiter, limit, newest, now)};
    if (decision != DOORMAN_ALLOWED) {
        out->retry_after = doorman__log_delay(limiter, limit, n, now);
    }
    return decision;
}

/* Makes an attempt for any kind except a sliding log, whose state does not fit into two words. */
DOORMAN__INLINE doorman__attempt doorman__limiter_attempt(const doorman_limiter *limiter,
                                                          const doorman_limit *limit,
                                                          uint64_t *words, double n,
                                                          doorman_time now) {
    for (int i = 0; i < 2; i++) {
        words[i] = __atomic_load_n(&limiter->state.words[i], __ATOMIC_RELAXED);
    }
    int64_t amount = doorman__limit_amount(limit, n);
    if (__builtin_expect(amount <= 0, false)) {
        return doorman__limit_look(limit, words, amount, now);
    }
    return doorman__limit_attempt(limit, words, amount, now);
}

/* Returns false for NULL, for a limit without doorman_limit_init, and for a log without
 * doorman_limiter_init. A limiter of any other kind may be all zeros. */
static inline bool doorman__limiter_usable(const doorman_limiter *limiter,
                                           const doorman_limit *limit) {
    if (!limiter || !limit || !limit->kind) return false;
    return limit->kind != DOORMAN_SLIDING_LOG || limiter->state.log.arrivals;
}

doorman_decision doorman_limiter_try(doorman_limiter *limiter, const doorman_limit *limit, double n,
                                     doorman_result *out, doorman_time now) {
    bool must_wait = limit && limit->bucket.debt_most && limit->bucket.wait_most;
    if (!doorman__limiter_usable(limiter, limit) || (must_wait && !out)) {
        return doorman__impossible(out);
    }
    if (limit->kind == DOORMAN_SLIDING_LOG) {
        return doorman__log_decide(limiter, limit, n, out, now);
    }
    uint64_t words[2];
    doorman__attempt attempt;
    do {
        attempt = doorman__limiter_attempt(limiter, limit, words, n, now);
        if (attempt.decision != DOORMAN_ALLOWED || n <= 0) break;
    } while (!__atomic_compare_exchange_n(&limiter->state.words[attempt.index],
                                          &words[attempt.index], attempt.after, true,
                                          __ATOMIC_ACQUIRE, __ATOMIC_RELAXED));
    if (out) *out = doorman__limit_result(limit, &attempt);
    return attempt.decision;
}

doorman_time doorman_limiter_delay(const doorman_limiter *limiter, const doorman_limit *limit,
                                   double n, doorman_time now) {
    if (!doorman__limiter_usable(limiter, limit)) return DOORMAN_NEVER;
    if (limit->kind == DOORMAN_SLIDING_LOG) return doorman__log_delay(limiter, limit, n, now);
    uint64_t words[2];
    doorman__attempt attempt = doorman__limiter_attempt(limiter, limit, words, n, now);
    return attempt.decision == DOORMAN_ALLOWED ? 0 : attempt.wait;
}

doorman_status doorman_limiter_release(doorman_limiter *limiter, const doorman_limit *limit,
                                       double n) {
    bool valid = limiter && limit && limit->kind == DOORMAN_CONCURRENCY && doorman__amount_valid(n);
    bool done = valid && doorman__concurrency_release(&limiter->state.words[0], doorman__units(n));
    return done ? DOORMAN_OK : DOORMAN_INVALID_ARGUMENT;
}

/* ---- limiters of a resource: the allowance */

/* The amount of a rate or a gauge, and values that are computed from it. */
typedef struct DOORMAN__ALIGNED doorman__quota {
    double amount;      /* rate: units a second; gauge: units at once; may be unlimited */
    double unit_time;   /* rate: the time of one unit in ticks */
    int64_t unit_price; /* rate: unit_time, rounded up; -1: the amount is 0 or unlimited, or one
                           unit takes more than 407 days */
    /* rate: the ticks that can be saved; -1: amount 0 or unlimited; gauge: the amount in grains */
    int64_t most;
} doorman__quota;

/* Two quotas that threads read without a lock. Only one thread at a time writes them. */
typedef struct doorman__allowance {
    uint32_t version;
    struct doorman__allowance_slot {
        doorman_time until;
        doorman__quota quota[2]; /* quota[0] before `until`, quota[1] from `until` on */
    } slot[2];
} doorman__allowance;

/* A capacity: `amount` before the time `until`, and `after` from that time on. */
typedef struct doorman__schedule {
    double amount;
    doorman_time until;
    double after;
} doorman__schedule;

static void doorman__allowance_set(doorman__allowance *allowance, doorman__quota before,
                                   doorman_time until, doorman__quota after) {
    assert(doorman__safe_capacity_valid(before.amount));
    assert(doorman__safe_capacity_valid(after.amount));
    uint32_t version = allowance->version + 1; /* only this thread writes the version */
    struct doorman__allowance_slot *slot = &allowance->slot[version & 1];
    doorman__quota quotas[2] = {before, after};
    for (int i = 0; i < 2; i++) {
        __atomic_store(&slot->quota[i].amount, &quotas[i].amount, __ATOMIC_RELEASE);
        __atomic_store(&slot->quota[i].unit_time, &quotas[i].unit_time, __ATOMIC_RELEASE);
        __atomic_store_n(&slot->quota[i].unit_price, quotas[i].unit_price, __ATOMIC_RELEASE);
        __atomic_store_n(&slot->quota[i].most, quotas[i].most, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&slot->until, until, __ATOMIC_RELEASE);
    __atomic_store_n(&allowance->version, version, __ATOMIC_SEQ_CST);
}

/* Reads the quota in force, and returns the version of the allowance. The loop repeats if the
 * writer writes during this read. __builtin_expect makes compilers use a branch on `until`, which
 * the processor predicts. Without __builtin_expect, compilers compute the address of the quota from
 * this comparison, so the loads of the quota wait for the clock. */
static inline uint32_t doorman__allowance_read(const doorman__allowance *allowance,
                                               doorman__quota *out, doorman_time now) {
    uint32_t version;
    do {
        version = __atomic_load_n(&allowance->version, __ATOMIC_ACQUIRE);
        const struct doorman__allowance_slot *slot = &allowance->slot[version & 1];
        const doorman__quota *quota = &slot->quota[0];
        bool later = now >= __atomic_load_n(&slot->until, __ATOMIC_ACQUIRE);
        if (__builtin_expect(later, false)) quota = &slot->quota[1];
        __atomic_load(&quota->amount, &out->amount, __ATOMIC_ACQUIRE);
        __atomic_load(&quota->unit_time, &out->unit_time, __ATOMIC_ACQUIRE);
        out->unit_price = __atomic_load_n(&quota->unit_price, __ATOMIC_ACQUIRE);
        out->most = __atomic_load_n(&quota->most, __ATOMIC_ACQUIRE);
    } while (version != __atomic_load_n(&allowance->version, __ATOMIC_RELAXED));
    return version;
}

/* ---- limiters of a resource: what they count */

enum { DOORMAN__SHADOW = 1, DOORMAN__KILL_SWITCH = 2 };

/* What the client and the limiter store for each other. All fields that change are atomic. */
typedef struct DOORMAN__ALIGNED doorman__usage {
    doorman__shared allowed, refused, excess; /* in grains; they wrap around */
    doorman_time unmet_since; /* the first refusal since the client's last look; 0: none */
    doorman__shared largest;  /* the largest request since the client's last sample; 0: none was
                                 above one unit */
    double ceiling;           /* the largest capacity that the limiter can ever get */
    double expected;          /* the amount of the next lease; 0: no larger lease is expected */
    doorman_time refresh_at;  /* when another amount may come; DOORMAN_NEVER: it is final */
    double
        ceiling_asked; /* gauge: until ceiling_until, the client asks for at most this capacity */
    doorman_time ceiling_until;
    /* the client raises the wants to a rate that saves the units of a refused request in this time;
     * 0: the wants do not follow use */
    doorman_time growth_time;
    uint8_t *client_unmet; /* the client's flag; set with unmet_since; NULL: there is no client */
    uint8_t bypass;        /* the flags that are on: DOORMAN__SHADOW, DOORMAN__KILL_SWITCH */
    doorman__shared over_released; /* only for a gauge: see doorman_counts */
    /* grains of tries that were IMPOSSIBLE, which `refused` and `excess` do not count */
    doorman__shared impossible_refused, impossible_excess;
} doorman__usage;

/* Amounts that threads share are aligned to 8 bytes in their structs. On 32-bit x86 the type double
 * is aligned to only 4 bytes, but this type is aligned to 8 bytes. */
typedef double doorman__shared_amount DOORMAN__ALIGNED;

static double doorman__load(const double *from) {
    const doorman__shared_amount *at = (const doorman__shared_amount *)(const void *)from;
    double value;
    __atomic_load(at, &value, __ATOMIC_RELAXED);
    return value;
}

static void doorman__store(double *to, double value) {
    doorman__shared_amount *at = (doorman__shared_amount *)(void *)to;
    __atomic_store(at, &value, __ATOMIC_RELAXED);
}

/* Returns a count of grains in units. */
static double doorman__counted(const doorman__shared *grains) {
    return (double)__atomic_load_n(grains, __ATOMIC_RELAXED) / DOORMAN__UNIT;
}

/* Raises a count to a value, unless the count is larger already. */
static inline void doorman__raise(doorman__shared *most, uint64_t value) {
    uint64_t before = __atomic_load_n(most, __ATOMIC_RELAXED);
    while (before < value && !__atomic_compare_exchange_n(most, &before, value, true,
                                                          __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

static void doorman__usage_bypass(doorman__usage *usage, uint8_t flag, bool on) {
    assert(flag == DOORMAN__SHADOW || flag == DOORMAN__KILL_SWITCH);
    if (on) {
        __atomic_fetch_or(&usage->bypass, flag, __ATOMIC_RELAXED);
    } else {
        __atomic_fetch_and(&usage->bypass, (uint8_t)~flag, __ATOMIC_RELAXED);
    }
}

static inline bool doorman__bypass(const doorman__usage *usage) {
    return __atomic_load_n(&usage->bypass, __ATOMIC_RELAXED) != 0;
}

/* Tells the client of a refusal, unless unmet_since already has the time of an earlier refusal. The
 * client clears its flag client_unmet before it reads unmet_since. So the client finds the time of
 * the refusal that has set the flag. */
static inline void doorman__usage_signal(doorman__usage *usage, doorman_time now) {
    if (__atomic_load_n(&usage->unmet_since, __ATOMIC_RELAXED)) return;
    /* the bit keeps the time different from 0, which means that there was no refusal */
    __atomic_store_n(&usage->unmet_since, now | 1, __ATOMIC_RELAXED);
    if (usage->client_unmet) __atomic_store_n(usage->client_unmet, 1, __ATOMIC_RELEASE);
}

/* Stores the size of the largest request. Requests for at most one unit are not stored, because a
 * limiter that allows a larger request allows them too. */
static inline void doorman__usage_note_size(doorman__usage *usage, uint64_t units) {
    if (__builtin_expect(units <= (uint64_t)DOORMAN__UNIT, true)) return;
    doorman__raise(&usage->largest, units);
}

/* Counts an attempt that is IMPOSSIBLE. No lease can allow it, so it is no demand (L2). Returns the
 * decision that the caller gets. */
static doorman_decision doorman__count_impossible(doorman__usage *usage, uint64_t units) {
    const bool bypass = doorman__bypass(usage);
    doorman__shared *count = bypass ? &usage->impossible_excess : &usage->impossible_refused;
    __atomic_fetch_add(count, units, __ATOMIC_RELAXED);
    return bypass ? DOORMAN_ALLOWED : DOORMAN_IMPOSSIBLE;
}

/* Counts an attempt, and returns the decision that the caller gets. Allowed units are counted
 * exactly, because wants follow them. The count of refused units uses no locked instruction, so it
 * may lose units that two threads refuse at the same time. */
static inline doorman_decision doorman__count(doorman__usage *usage, uint64_t units,
                                              doorman_decision decision, doorman_time now) {
    assert(units > 0);
    if (decision == DOORMAN_IMPOSSIBLE) return doorman__count_impossible(usage, units);
    doorman__usage_note_size(usage, units);
    if (decision == DOORMAN_ALLOWED) {
        __atomic_fetch_add(&usage->allowed, units, __ATOMIC_RELAXED);
        return DOORMAN_ALLOWED;
    }
    doorman__usage_signal(usage, now);
    if (doorman__bypass(usage)) {
        __atomic_fetch_add(&usage->excess, units, __ATOMIC_RELAXED);
        return DOORMAN_ALLOWED;
    }
    uint64_t refused = __atomic_load_n(&usage->refused, __ATOMIC_RELAXED);
    __atomic_store_n(&usage->refused, refused + units, __ATOMIC_RELAXED);
    return decision;
}

/* A limiter expects no larger lease sooner than this. After a refusal the client needs up to this
 * time to check for refusals (every 0.2 s) and to ask the server. */
#define DOORMAN__REFRESH_MIN (DOORMAN_SECOND / 4)

/* Returns how long it takes until the limiter may get another amount. */
static doorman_time doorman__usage_refresh_in(const doorman__usage *usage, doorman_time now) {
    doorman_time at = __atomic_load_n(&usage->refresh_at, __ATOMIC_RELAXED);
    return at == DOORMAN_NEVER ? DOORMAN_NEVER : doorman__later(at - now, DOORMAN__REFRESH_MIN);
}

/* Returns what the limiter has counted. The calls that wait are counted in >>nng. */
static void doorman__usage_read(const doorman__usage *usage, doorman_counts *out) {
    *out = (doorman_counts){
        .allowed = doorman__counted(&usage->allowed),
        .refused = doorman__counted(&usage->refused) + doorman__counted(&usage->impossible_refused),
        .excess = doorman__counted(&usage->excess) + doorman__counted(&usage->impossible_excess),
        .over_released = __atomic_load_n(&usage->over_released, __ATOMIC_RELAXED)};
}

/* ---- limiters of a resource: the rate */

/* The struct must not be copied or moved while threads use it. */
typedef struct doorman__rate {
    doorman__allowance allowance;
    doorman_time burst;
    double burst_units;  /* the burst in units, which replaces `burst`; 0: `burst` applies */
    uint64_t paid_until; /* in ticks; see L1 */
    doorman__usage usage;
} doorman__rate;

static inline doorman__bucket doorman__quota_bucket(const doorman__quota *quota, int64_t price) {
    int64_t most = price > quota->most ? price : quota->most;
    return (doorman__bucket){.saved_most = most, .wait_most = INT64_MAX};
}

/* Returns the quota of an amount. The quota saves at most the longer of the burst and the time of a
 * unit. */
static doorman__quota doorman__rate_quota(const doorman__rate *rate, double amount) {
    doorman__quota quota = {amount, doorman__unit_time(amount), -1, -1};
    if (!(amount > 0)) return quota;
    double depth = (double)rate->burst * 256;
    if (rate->burst_units > 0) depth = rate->burst_units * quota.unit_time;
    depth = doorman__max(depth, quota.unit_time);
    quota.most = doorman__round_up(doorman__min(depth, 9e18));
    if (quota.unit_time <= 9e18) quota.unit_price = doorman__round_up(quota.unit_time);
    assert(quota.most >= quota.unit_price);
    return quota;
}

/* Limits what the quota `after` can save, so that a rise of the rate does not increase the number
 * of saved units. One unit can always be saved. A fall of the rate needs no limit, because the
 * saved time is worth fewer units after it. */
static void doorman__quota_limit_rise(doorman__quota *after, const doorman__quota *before) {
    if (!(after->amount > before->amount)) return;
    double depth = (double)before->most * (before->amount / after->amount);
    if (before->most < 0) depth = 0;
    int64_t most = doorman__round_up(doorman__max(depth, doorman__min(after->unit_time, 9e18)));
    if (most < after->unit_price) most = after->unit_price; /* with the x87, products can differ */
    if (most < after->most) after->most = most;
    assert(after->most >= after->unit_price); /* one unit */
}

/* A change of a rate. */
typedef struct doorman__rate_change {
    const doorman__quota *from, *to;
    bool in_units;  /* the burst is in units */
    double largest; /* the units of the largest recent request; 0: none was above one unit */
} doorman__rate_change;

/* Returns how many ticks a quota can save for the largest request. This request may be larger than
 * the burst (L1). A burst in units is a hard bound. */
static int64_t doorman__quota_depth(const doorman__quota *quota,
                                    const doorman__rate_change *change) {
    assert(change->largest >= 0);
    if (quota->most < 0) return DOORMAN__SAVED_MAX;
    double price = doorman__min(change->largest * quota->unit_time, DOORMAN__SAVED_MAX);
    int64_t depth = doorman__round_up(change->in_units ? 0 : price);
    return depth > quota->most ? depth : quota->most;
}

/* Returns the new paid_until when a rate changes. The change does not increase the number of saved
 * units. When the rate rises, the saved time shrinks in proportion. When the rate falls, the saved
 * time stays the same, so it is worth fewer units. But if the burst is in units, or there was a
 * large request, the number of saved units stays the same, as far as the new rate can save them.
 * Returns paid_until itself if the saved time stays the same. */
static uint64_t doorman__quota_carry(const doorman__rate_change *change, uint64_t paid_until,
                                     uint64_t now) {
    const doorman__quota *from = change->from, *to = change->to;
    const doorman__bucket before = {.saved_most = doorman__quota_depth(from, change)};
    const doorman__bucket after = {.saved_most = doorman__quota_depth(to, change)};
    int64_t saved = doorman__bucket_level(&before, paid_until, now);
    double ratio = to->unit_time / from->unit_time; /* NaN: both are unlimited */
    bool units_stay = (change->in_units || change->largest > 0) && ratio < 1e12 && to->most >= 0;
    bool falls = !(ratio <= 1);
    if (saved <= 0 || (falls && !units_stay)) return paid_until;
    bool stays = ratio >= 1 && doorman__bucket_level(&after, paid_until, now) <= saved;
    if (stays && !units_stay) return paid_until;
    return now - (uint64_t)doorman__min((double)saved * ratio, (double)after.saved_most);
}

/* Sets the rate. Before other threads see the new amount, the function adapts the saved time to it
 * (see doorman__quota_carry). When `after` replaces `amount` at the time `until`, the number of
 * units that can be saved does not rise.
 *   largest   the units of the largest recent request; 0: none was above one unit */
static void doorman__rate_set(doorman__rate *rate, doorman__schedule schedule, double largest,
                              doorman_time now) {
    doorman__quota old, before = doorman__rate_quota(rate, schedule.amount);
    doorman__quota after = doorman__rate_quota(rate, schedule.after);
    (void)doorman__allowance_read(&rate->allowance, &old, now);
    const doorman__rate_change change = {&old, now < schedule.until ? &before : &after,
                                         rate->burst_units > 0, largest};
    uint64_t ticks = doorman__ticks(now), carried;
    uint64_t paid = __atomic_load_n(&rate->paid_until, __ATOMIC_RELAXED);
    do {
        carried = doorman__quota_carry(&change, paid, ticks);
        if (carried == paid) break;
        assert((int64_t)(ticks - carried) >= 0); /* what was saved does not become a debt */
    } while (!__atomic_compare_exchange_n(&rate->paid_until, &paid, carried, true, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
    if (now < schedule.until) doorman__quota_limit_rise(&after, &before);
    doorman__allowance_set(&rate->allowance, before, schedule.until, after);
}

/* Initializes a rate with nothing saved.
 *   burst         how much unused time is saved; 0 means 0.1 s
 *   burst_units   if not 0, this many units are saved at any rate, and `burst` is not used */
static void doorman__rate_init(doorman__rate *rate, double amount, doorman_time burst,
                               double burst_units, doorman_time now) {
    assert(doorman__duration_valid(burst) && doorman__amount_valid(burst_units));
    memset(rate, 0, sizeof *rate);
    rate->burst = burst ? burst : DOORMAN_SECOND / 10;
    rate->burst_units = burst_units;
    rate->paid_until = doorman__ticks(now);
    rate->usage.ceiling = amount;
    rate->usage.refresh_at = DOORMAN_NEVER;
    doorman__quota quota = doorman__rate_quota(rate, amount);
    doorman__allowance_set(&rate->allowance, quota, DOORMAN_NEVER, quota);
}

/* Returns the price of n units in ticks. Returns -1 if n is not an amount, n is more than the
 * burst, or the rate is 0 or unlimited. The usual case of one unit needs no arithmetic. */
static inline int64_t doorman__rate_price(const doorman__quota *quota, double n) {
    if (n == 1) return quota->unit_price;
    if (!(n <= DOORMAN_AMOUNT_MAX)) return -1;
    return doorman__price(n * quota->unit_time, quota->most);
}

/* Returns the price of a request that is larger than the burst. The rate saves up for such a
 * request (L1). Returns -1 if the burst is in units, the rate is 0 or unlimited, the rate cannot
 * save that much, or n is not an amount. */
static int64_t doorman__rate_large_price(const doorman__rate *rate, const doorman__quota *quota,
                                         double n) {
    if (rate->burst_units > 0 || !(quota->amount > 0) || !doorman__amount_valid(n)) return -1;
    return doorman__price(n * quota->unit_time, DOORMAN__SAVED_MAX);
}

static bool doorman__rate_possible(const doorman__rate *rate, double n) {
    double ceiling = doorman__load(&rate->usage.ceiling);
    bool known = ceiling > 0; /* 0: the ceiling is not known yet */
    if (known && !(n * doorman__unit_time(ceiling) <= (double)DOORMAN__SAVED_MAX)) return false;
    return rate->burst_units <= 0 || n <= doorman__max(rate->burst_units, 1) * (1 + 1e-9);
}

DOORMAN__INLINE doorman_decision doorman__rate_take(doorman__rate *rate,
                                                    const doorman__quota *quota, int64_t price,
                                                    uint64_t units, doorman_time now) {
    assert(price >= 0 && units > 0);
    uint64_t ticks = doorman__ticks(now);
    uint64_t paid = __atomic_load_n(&rate->paid_until, __ATOMIC_RELAXED);
    const doorman__bucket bucket = doorman__quota_bucket(quota, price);
    doorman__attempt attempt;
    do {
        attempt = doorman__bucket_try(&bucket, paid, price, ticks);
        if (attempt.decision != DOORMAN_ALLOWED) {
            return doorman__count(&rate->usage, units, DOORMAN_REFUSED, now);
        }
    } while (!__atomic_compare_exchange_n(&rate->paid_until, &paid, attempt.after, true,
                                          __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return doorman__count(&rate->usage, units, DOORMAN_ALLOWED, now);
}

/* Makes a try for which doorman__rate_price finds no price, or for 0 units. */
static doorman_decision doorman__rate_try_unusual(doorman__rate *rate, const doorman__quota *quota,
                                                  double n, doorman_time now) {
    if (!doorman__amount_valid(n)) return DOORMAN_IMPOSSIBLE;
    if (n <= 0) return DOORMAN_ALLOWED;
    uint64_t units = doorman__units(n);
    int64_t price = doorman__rate_large_price(rate, quota, n);
    if (price >= 0) return doorman__rate_take(rate, quota, price, units, now);
    doorman_decision decision = DOORMAN_ALLOWED;
    if (!doorman__unlimited(quota->amount)) {
        decision = doorman__rate_possible(rate, n) ? DOORMAN_REFUSED : DOORMAN_IMPOSSIBLE;
    }
    return doorman__count(&rate->usage, units, decision, now);
}

static doorman_decision doorman__rate_try(doorman__rate *rate, double n, doorman_time now) {
    doorman__quota quota;
    (void)doorman__allowance_read(&rate->allowance, &quota, now);
    int64_t price = doorman__rate_price(&quota, n);
    if (price < 0 || n <= 0) return doorman__rate_try_unusual(rate, &quota, n, now);
    return doorman__rate_take(rate, &quota, price, doorman__units(n), now);
}

/* What a try for n units would find now. */
typedef struct doorman__rate_view {
    doorman__quota quota;
    int64_t price; /* of n units; -1: the rate cannot save n units, is 0, or is unlimited */
    doorman__attempt attempt; /* the attempt at this price, or at price 0 if the price is -1 */
} doorman__rate_view;

static doorman__rate_view doorman__rate_look(const doorman__rate *rate, double n,
                                             doorman_time now) {
    doorman__rate_view view = {.attempt = {.decision = DOORMAN_REFUSED}};
    (void)doorman__allowance_read(&rate->allowance, &view.quota, now);
    view.price = doorman__rate_price(&view.quota, n);
    if (!(view.quota.amount > 0)) return view;
    if (view.price < 0) view.price = doorman__rate_large_price(rate, &view.quota, n);
    uint64_t paid = __atomic_load_n(&rate->paid_until, __ATOMIC_RELAXED);
    int64_t price = view.price > 0 ? view.price : 0;
    const doorman__bucket bucket = doorman__quota_bucket(&view.quota, price);
    view.attempt = doorman__bucket_try(&bucket, paid, price, doorman__ticks(now));
    return view;
}

/* Returns how long it takes until a try for the units of the view could be allowed. */
static doorman_time doorman__rate_view_delay(const doorman__rate_view *view) {
    if (doorman__unlimited(view->quota.amount)) return 0;
    if (view->price < 0) return DOORMAN_NEVER;
    return view->attempt.decision == DOORMAN_ALLOWED ? 0 : view->attempt.wait;
}

static doorman_time doorman__rate_delay(const doorman__rate *rate, double n, doorman_time now) {
    if (!doorman__amount_valid(n)) return DOORMAN_NEVER;
    if (n <= 0 || doorman__bypass(&rate->usage)) return 0;
    doorman__rate_view view = doorman__rate_look(rate, n, now);
    return doorman__rate_view_delay(&view);
}

/* Returns how long the rate of the next lease takes to save n units. If the wants follow use, a
 * refusal of n units raises them to a rate that saves n units in the growth time (L4), unless
 * wants_maximum is less. So the result is at most the longer of two times: the growth time, and the
 * time that a rate of the ceiling takes. Example: an idle resource without a wants_maximum refuses
 * 100 units. The retry_after is 2.25 s: 0.25 s until a new lease may come, and 2 s of growth time.
 * For a million units, the retry_after is 2.25 s too. */
static doorman_time doorman__usage_saves_in(const doorman__usage *usage, double n,
                                            double expected) {
    assert(n >= 0 && expected >= 0);
    doorman_time growth_time = __atomic_load_n(&usage->growth_time, __ATOMIC_RELAXED);
    double ceiling = doorman__load(&usage->ceiling);
    if (expected <= 0) expected = ceiling;
    if (doorman__equal(expected, 0)) return 0;
    double slow = n * doorman__unit_time(expected) / 256;
    double fast = n * doorman__unit_time(ceiling) / 256;
    double grown = doorman__max(fast, (double)growth_time);
    double saves = growth_time ? doorman__min(slow, grown) : slow;
    return (doorman_time)doorman__min(saves, (double)DOORMAN_DURATION_MAX);
}

/* Returns how long to wait after a refusal before another try: until n units are saved at the rate
 * in force, or until a larger lease may have saved them if that is earlier. */
static doorman_time doorman__rate_retry_after(const doorman__rate *rate, double n,
                                              doorman_time now) {
    doorman_time delay = doorman__rate_delay(rate, n, now);
    doorman_time refresh_in = doorman__usage_refresh_in(&rate->usage, now);
    double expected = doorman__load(&rate->usage.expected);
    bool may_grow = expected > 0 || delay == DOORMAN_NEVER;
    if (!may_grow || refresh_in == DOORMAN_NEVER) return doorman__later(delay, 1);
    doorman_time growth = doorman__usage_saves_in(&rate->usage, n, expected);
    return doorman__later(doorman__earlier(delay, doorman__after(refresh_in, growth)), 1);
}

/* Makes a try, and then reads the state. Other threads may take units between the two steps. */
static doorman_decision doorman__rate_decide(doorman__rate *rate, double n, doorman_result *out,
                                             doorman_time now) {
    doorman_decision decision = doorman__rate_try(rate, n, now);
    doorman_time refresh_in = doorman__usage_refresh_in(&rate->usage, now);
    doorman__rate_view view = doorman__rate_look(rate, 0, now);
    double amount = view.quota.amount;
    *out = (doorman_result){.decision = decision, .limit = amount, .remaining = amount};
    if (amount > 0) {
        double left = view.attempt.left > 0 ? (double)view.attempt.left : 0;
        out->remaining = left / view.quota.unit_time;
        out->reset_after = view.attempt.reset_after;
    } else if (!doorman__unlimited(amount)) {
        out->reset_after = refresh_in;
    }
    if (decision == DOORMAN_IMPOSSIBLE) out->retry_after = DOORMAN_NEVER;
    if (decision == DOORMAN_REFUSED) out->retry_after = doorman__rate_retry_after(rate, n, now);
    return decision;
}

/* ---- limiters of a resource: the gauge */

/* The struct must not be copied or moved while threads use it. */
typedef struct DOORMAN__ALIGNED doorman__gauge {
    doorman__allowance allowance;
    doorman__shared in_flight; /* units in flight, in grains */
    doorman__shared peak;      /* the largest value of in_flight since the client's last sample */
    doorman__usage usage;
} doorman__gauge;

static double doorman__gauge_in_flight(const doorman__gauge *gauge) {
    return (double)__atomic_load_n(&gauge->in_flight, __ATOMIC_SEQ_CST) / DOORMAN__UNIT;
}

static doorman__quota doorman__gauge_quota(double amount) {
    assert(doorman__safe_capacity_valid(amount));
    double most = doorman__unlimited(amount) ? DOORMAN_AMOUNT_MAX : amount;
    return (doorman__quota){.amount = amount, .most = (int64_t)(most * DOORMAN__UNIT)};
}

static void doorman__gauge_set(doorman__gauge *gauge, doorman__schedule schedule) {
    doorman__allowance_set(&gauge->allowance, doorman__gauge_quota(schedule.amount), schedule.until,
                           doorman__gauge_quota(schedule.after));
}

static void doorman__gauge_init(doorman__gauge *gauge, double capacity) {
    memset(gauge, 0, sizeof *gauge);
    gauge->usage.ceiling = capacity;
    gauge->usage.refresh_at = DOORMAN_NEVER;
    doorman__gauge_set(gauge, (doorman__schedule){capacity, DOORMAN_NEVER, capacity});
}

/* Returns false, and releases nothing, if n is not an amount, or is more than the units in flight.
 * The gauge counts the second error. */
static bool doorman__gauge_release(doorman__gauge *gauge, double n) {
    if (!doorman__amount_valid(n)) return false;
    if (doorman__concurrency_release(&gauge->in_flight, doorman__units(n))) return true;
    __atomic_fetch_add(&gauge->usage.over_released, 1, __ATOMIC_RELAXED);
    return false;
}

static doorman_decision doorman__gauge_take(doorman__gauge *gauge, int64_t most, uint64_t units) {
    assert(most >= 0 && units > 0);
    uint64_t before = __atomic_load_n(&gauge->in_flight, __ATOMIC_RELAXED);
    doorman__attempt attempt;
    do {
        attempt = doorman__concurrency_try((uint64_t)most, before, units);
        if (attempt.decision != DOORMAN_ALLOWED) return DOORMAN_REFUSED;
        assert(attempt.after <= (uint64_t)most);
    } while (!__atomic_compare_exchange_n(&gauge->in_flight, &before, attempt.after, true,
                                          __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
    doorman__raise(&gauge->peak, attempt.after); /* the wants follow it */
    return DOORMAN_ALLOWED;
}

static bool doorman__gauge_possible(const doorman__gauge *gauge, uint64_t units) {
    doorman__quota quota = doorman__gauge_quota(doorman__load(&gauge->usage.ceiling));
    return quota.most == 0 || units <= (uint64_t)quota.most;
}

/* Refuses units, or allows them by a bypass. Units that a bypass allows count as in flight. */
static doorman_decision doorman__gauge_refuse(doorman__gauge *gauge, uint64_t units,
                                              doorman_time now) {
    assert(units > 0);
    const int64_t most = (int64_t)(DOORMAN_AMOUNT_MAX * DOORMAN__UNIT);
    bool bypass = doorman__bypass(&gauge->usage);
    doorman_decision decision =
        doorman__gauge_possible(gauge, units) ? DOORMAN_REFUSED : DOORMAN_IMPOSSIBLE;
    if (bypass && doorman__gauge_take(gauge, most, units) != DOORMAN_ALLOWED) return decision;
    return doorman__count(&gauge->usage, units, decision, now);
}

static doorman_decision doorman__gauge_try(doorman__gauge *gauge, double n, doorman_time now) {
    if (!doorman__amount_valid(n)) return DOORMAN_IMPOSSIBLE;
    if (n <= 0) return DOORMAN_ALLOWED;
    uint64_t units = doorman__units(n);
    for (;;) {
        doorman__quota quota;
        uint32_t version = doorman__allowance_read(&gauge->allowance, &quota, now);
        doorman_decision decision = doorman__gauge_take(gauge, quota.most, units);
        if (decision != DOORMAN_ALLOWED) return doorman__gauge_refuse(gauge, units, now);
        if (version == __atomic_load_n(&gauge->allowance.version, __ATOMIC_SEQ_CST)) {
            return doorman__count(&gauge->usage, units, DOORMAN_ALLOWED, now);
        }
        (void)doorman__concurrency_release(&gauge->in_flight, units);
    }
}

/* Returns what a try for n units would find now, without taking or counting anything. */
static doorman__attempt doorman__gauge_look(const doorman__gauge *gauge, double n,
                                            doorman__quota *quota, doorman_time now) {
    (void)doorman__allowance_read(&gauge->allowance, quota, now);
    assert(quota->most >= 0);
    uint64_t in_flight = __atomic_load_n(&gauge->in_flight, __ATOMIC_SEQ_CST);
    return doorman__concurrency_try((uint64_t)quota->most, in_flight, doorman__units(n));
}

/* Returns how long to wait after a refusal before another try. If the client has found that the
 * server cannot give n units, it does not ask for them before ceiling_until (L4). */
static doorman_time doorman__gauge_retry_after(const doorman__gauge *gauge, double n,
                                               doorman_time now) {
    const doorman__usage *usage = &gauge->usage;
    doorman_time refresh_in = doorman__usage_refresh_in(usage, now);
    doorman_time until = __atomic_load_n(&usage->ceiling_until, __ATOMIC_RELAXED);
    bool is_more = n > doorman__load(&usage->ceiling_asked);
    return is_more ? doorman__later(refresh_in, until - now) : refresh_in;
}

static doorman_decision doorman__gauge_decide(doorman__gauge *gauge, double n, doorman_result *out,
                                              doorman_time now) {
    doorman__quota quota;
    doorman_decision decision = doorman__gauge_try(gauge, n, now);
    doorman__attempt attempt = doorman__gauge_look(gauge, 0, &quota, now);
    *out = (doorman_result){.decision = decision, .limit = quota.amount, .remaining = quota.amount};
    if (!doorman__unlimited(quota.amount)) out->remaining = (double)attempt.left / DOORMAN__UNIT;
    if (decision == DOORMAN_IMPOSSIBLE) out->retry_after = DOORMAN_NEVER;
    if (decision == DOORMAN_REFUSED) out->retry_after = doorman__gauge_retry_after(gauge, n, now);
    return decision;
}

/* ---- >>client ------------------------------------------------------------------------------- */
/*
 * A client manages the resources of an application: what each resource wants, what it may use now,
 * and what it does without a lease. The client tells its upstream what to ask for, and the upstream
 * makes the requests. An agent (>>nng) is a client with a thread.
 *
 * A resource is in one of these states. Only doorman__resource_move changes the state:
 *
 *   state     meaning                 capacity in force          leaves it when
 *   UNLEASED  open, without a lease   that of the fallback       a lease arrives      -> LEASED
 *                                                                the last close comes -> CLOSING
 *   LEASED    open, and the lease     that of the lease          the lease ends       -> UNLEASED
 *             has not ended                                      the last close comes -> CLOSING
 *   CLOSING   after the last close    none: nobody may use it    it is opened again   -> UNLEASED
 *                                                                                        or LEASED
 *                                                                the lease is released or has
 *                                                                ended; the resource is freed
 *
 *   fallback      capacity without a lease
 *   SAFE          the safe capacity that a server sent last; that of the options if none was sent
 *   PESSIMISTIC   0
 *   OPTIMISTIC    what the resource wants
 *
 * doorman__resource_publish passes to the limiter the capacity in force, the end of that capacity,
 * and the capacity that follows. So the limiter stops using a lease at its end without another
 * call.
 *
 * In a request, a client claims the capacity of its lease, and reports its units in use as
 * outstanding (R3). While requests succeed, a client that wants less than it has first gives the
 * difference back, and then sends the request. If leases are whole units, the client rounds its
 * wants up, as the server does (A5).
 *
 * K4 Without a lease the fallback is in force. on_change is called when the capacity, or what
 *    explains the capacity, has changed (see doorman_resource_options).
 * K5 A resource that is opened twice is still one resource, with one limiter and the options of the
 *    first opening. A later opening reports the first option that differs. It fails if it asks for
 *    another kind of limiter (rate or gauge). The last close releases the lease as soon as no units
 *    are in use. In an agent, the release waits 0.1 s. A resource that is opened again in this time
 *    keeps its lease. The opening then causes no message unless it has another priority, or the
 *    wants have changed by more than a tenth. doorman_agent_stop releases at once.
 * K6 Either the application sets the wants, or the wants follow use. Wants that follow use begin at
 *    an initial value, and stay between a minimum and a maximum. An idle resource wants the
 *    minimum. The default of the minimum is 1 for a rate, so that its first call need not wait. For
 *    a gauge it is 0, so that idle clients take no unit from others. With the minimum 0, an idle
 *    resource has a lease of 0, so the server knows the resource. When the resource is used, it
 *    wants at least 1. So the first call after an idle time needs a request to the server.
 * K7 Neither a response of a server nor a missing response can block or crash the application.
 * L4 Use is measured in a moving window, in which newer amounts count more. Use consists of the
 *    units that were allowed, the units that were refused, and the units that callers wait for (see
 *    "demand"). With a steady demand, the wants settle within 10 % of the demand. Wants grow until
 *    the demand is met, or until the server has no more capacity. A gauge is idle when it had no
 *    use for half a refresh interval, or for a window if that is shorter. So the units that an idle
 *    gauge gives back reach another holder within two refresh intervals. A gauge that has refused a
 *    call, and has allowed no call since, is not idle before a window has passed.
 *
 * How soon a lease follows demand. A limiter that refuses units sets a flag, which the client
 * checks every 0.2 s. The client waits until 0.1 s have passed since the refusal, because the
 * counts show the rate of the demand only after this time. For a gauge the client does not wait.
 * After the wait the client asks the server at once, if the last response granted all wants. In
 * this case an agent also checks at once when a call begins to wait for a gauge. Example: a
 * resource is idle, and its capacity is free at the server. If callers keep trying, the resource
 * gets its whole share within 250 ms and one round trip after the first refusal.
 *
 * An idle resource asks only for its minimum, even if its safe capacity is larger. A safe capacity
 * that is not configured is the capacity divided by the number of clients. If each idle resource
 * asked for this safe capacity, idle clients would hold the whole capacity. Another client would
 * then have to wait until the idle clients ask again: up to a refresh interval, instead of 250 ms.
 *
 * While all callers of a rate wait, no refusals show how much capacity is missing. The resource
 * then asks for at least its safe capacity, as long as the server grants all wants.
 */

/* ---- client: demand */
/*
 * This part estimates how much a resource should want. The inputs of the estimator are its options,
 * what the limiters have counted, and what the responses of the server show. The estimator takes a
 * sample every tenth of the window.
 *
 * Refused units count as demand. If they did not count, the wants of a resource that has too little
 * would never grow. But a caller that repeats its try in a loop may be refused a million times for
 * one unit. So while the server has no more capacity (it grants less than was wanted), refused
 * units count only up to a bound: seven times the units that were allowed, or seven times what the
 * capacity allows if that is more. So a resource with endless demand asks for only about eight
 * times what it has.
 *
 * Example: a lease of 50 units a second allows 50 units a second, and 10,000 units a second are
 * refused. The bound is 7 * 50 = 350. So the demand is 50 + 350 = 400 units a second.
 *
 * A caller that waits for units of a rate is not refused. Therefore the estimator also looks at
 * workers. A worker waits for a unit, is busy with the unit, and waits for the next unit. The
 * estimator assumes that there are as many workers as have waited at the same time. On average
 * `waiting` of them wait. If no worker had to wait, the workers would use workers / (workers -
 * waiting) times as much. The additional units are the demand of the waiting workers. This demand
 * never exceeds the bound. If all workers wait, the demand is equal to the bound.
 *
 * Example with 50 units a second: there are two workers, and a unit keeps a worker busy for 20 ms.
 * On average one worker is busy, and one waits. Without the wait the workers would use 2 / (2 - 1)
 * = 2 times as much, which is 100 units a second.
 *
 * For a gauge, the bound on refused units also applies while the server may have more capacity,
 * because a caller that tries again does not need a second unit.
 *
 * A rate saves units for a request of n units (L1). The largest n raises the wants to a rate that
 * saves n units within a fifth of a window. A request for n units of a gauge must fit into its
 * capacity, so the largest n raises the wants to n. In both cases n counts even if the request was
 * refused, and is remembered for ten windows. So a caller that makes such a request only once in
 * several windows finds a lease that is large enough. If n or more units of a gauge were in use at
 * the same time since the request, n is remembered only until the gauge is idle.
 *
 * A request for n units of a gauge may be larger than what the server can give. The estimator
 * assumes this after n has not fitted into the lease for two windows, although more was wanted. For
 * the next ten windows, requests that are larger than this lease do not count as demand. If they
 * counted, the resource would take capacity from other clients without using it. A request that is
 * IMPOSSIBLE (L2) does not count either.
 *
 * The bound on refused units is at least seven times the minimum, where a minimum of 0 counts as 1.
 * A resource that is not idle also wants at least this minimum. Otherwise a resource with a lease
 * of 0 would never ask for its first unit.
 *
 * While the server may have more, the estimator also looks at the counts between two samples. Such
 * a look can raise the wants of a rate to the rate of the requests since the first refusal. The
 * raise lasts for the time of two samples. The first refused request only starts the measured time.
 * If that request were counted, one refused caller would count as ten units a second, because a
 * look comes 0.1 s after the refusal.
 */

#define DOORMAN__SAMPLES 11

/* The shortest time from the first refusal of a rate to a look. */
#define DOORMAN__LOOK_MIN (DOORMAN_SECOND / 10)

/* What the limiter of a resource has counted up to the time `at`. */
typedef struct doorman__reading {
    doorman_time at;
    doorman_time unmet_since;  /* the first refusal since the last look; NEVER: no refusal */
    uint64_t allowed, refused; /* in grains; they wrap around */
    double largest;      /* the largest request since the last sample; 0: none was above one unit */
    double waiting;      /* the units that callers wait for now */
    double waited;       /* rate: the integral of `waiting` over time, in units * seconds */
    double waiting_peak; /* rate: the largest `waiting` since the last sample */
    double peak;         /* gauge: the most units in use since the last sample */
    double in_use;       /* gauge: the units in use now */
} doorman__reading;

/* What the responses of the server show. */
typedef struct doorman__supply {
    double amount;           /* the larger of the capacity in force and the safe capacity */
    bool exhausted;          /* the server granted less than what was wanted */
    doorman_time idle_after; /* a gauge without use for this long is idle; 0: for a window */
} doorman__supply;

/* The demand in the interval between two samples. */
typedef struct doorman__use {
    double seconds, rate; /* of a rate, in units a second */
    double peak;          /* of a gauge, in units at the same time */
    bool unmet;
    bool bounded; /* the unmet demand is at its bound, so its true size is unknown */
} doorman__use;

typedef struct doorman__sample {
    doorman__reading reading;
    doorman__use use; /* the demand since the previous sample */
} doorman__sample;

/* Counts the units that callers wait for, and how long callers wait. */
typedef struct doorman__waiting {
    uint64_t units;          /* the grains that callers wait for now */
    uint64_t units_peak;     /* the largest value of `units` since the last sample */
    double area;             /* the integral of `units` up to changed_at, in units * seconds */
    doorman_time changed_at; /* when `area` and `units` were last set */
    uint64_t call_count;     /* the number of waits that have ended */
    doorman_time waited;     /* the total time of the waits that have ended */
} doorman__waiting;

static double doorman__waiting_units(const doorman__waiting *waiting) {
    return (double)waiting->units / DOORMAN__UNIT;
}

static double doorman__waiting_area(const doorman__waiting *waiting, doorman_time now) {
    double seconds = (double)(now - waiting->changed_at) / (double)DOORMAN_SECOND;
    return waiting->area + doorman__waiting_units(waiting) * seconds;
}

#if defined DOORMAN_NNG || defined DOORMAN_PERMITS
static void doorman__waiting_set(doorman__waiting *waiting, uint64_t units, doorman_time now) {
    assert(waiting->units <= waiting->units_peak);
    waiting->area = doorman__waiting_area(waiting, now);
    waiting->changed_at = now;
    waiting->units = units;
    if (units > waiting->units_peak) waiting->units_peak = units;
}
#endif

typedef struct doorman__estimator {
    bool is_gauge;
    double minimum, maximum;
    double initial; /* the minimum of the wants until initial_until */
    doorman_time window, initial_until;
    doorman__sample samples[DOORMAN__SAMPLES]; /* a ring; the newest sample is at newest_sample */
    size_t newest_sample, sample_count;
    /* the reading of the last look; the next look counts what came after it */
    doorman__reading looked;
    double raised; /* the wants are at least this until raised_until */
    doorman_time raised_until;
    double largest; /* the largest request, until largest_until */
    doorman_time largest_until;
    /* Of the fields below, only `wants` and `unmet` have a meaning for a rate. */
    bool served; /* as many units as `largest` were in use at the same time */
    doorman_time
        short_since; /* since when `largest` has not fitted into the lease; NEVER: it fits */
    double ceiling;  /* the capacity that the server granted when more was wanted */
    doorman_time ceiling_until; /* until then, requests above `ceiling` are no demand */
    doorman_time used_at;       /* when a reading last showed use */
    doorman_time refused_until; /* until this time a refusal counts as use */
    doorman__reading noted;     /* the last reading that was looked at for use */
    double wants;               /* the result of the estimate */
    bool unmet;                 /* the last reading shows demand that was not met */
} doorman__estimator;

/* Starts an estimate with its first reading. Precondition: the fields are zero, except the fields
 * before initial_until. */
static void doorman__estimator_init(doorman__estimator *estimator, const doorman__reading *first) {
    assert(estimator->window > 0 && estimator->minimum <= estimator->maximum);
    estimator->initial_until = doorman__after(first->at, estimator->window);
    estimator->sample_count = 1;
    estimator->samples[0].reading = estimator->looked = estimator->noted = *first;
    estimator->short_since = DOORMAN_NEVER;
    estimator->used_at = first->at;
    estimator->wants = estimator->initial;
}

static const doorman__sample *doorman__estimator_sample_of(const doorman__estimator *estimator,
                                                           size_t age) {
    assert(age < estimator->sample_count);
    size_t at = estimator->newest_sample + DOORMAN__SAMPLES - age;
    return &estimator->samples[at % DOORMAN__SAMPLES];
}

static doorman_time doorman__estimator_due(const doorman__estimator *estimator) {
    doorman_time newest = estimator->samples[estimator->newest_sample].reading.at;
    return doorman__after(newest, estimator->window / 10);
}

/* Returns the least that a resource wants while it is used. */
static double doorman__estimator_base(const doorman__estimator *estimator) {
    double least = estimator->minimum > 0 ? estimator->minimum : 1;
    return doorman__min(least, estimator->maximum);
}

/* Returns after what time without use a gauge is idle. */
static doorman_time doorman__estimator_idle_after(const doorman__estimator *estimator,
                                                  const doorman__supply *supply) {
    doorman_time after = estimator->window;
    return supply->idle_after ? doorman__earlier(after, supply->idle_after) : after;
}

/* L4: returns whether the resource is a gauge that is idle. */
static bool doorman__estimator_gauge_is_idle(const doorman__estimator *estimator,
                                             const doorman__reading *reading,
                                             const doorman__supply *supply) {
    doorman_time after = doorman__estimator_idle_after(estimator, supply);
    doorman_time at =
        doorman__later(doorman__after(estimator->used_at, after), estimator->refused_until);
    return estimator->is_gauge && reading->at >= at;
}

/* Notes whether a gauge was used since the last reading. */
static void doorman__estimator_note_use(doorman__estimator *estimator,
                                        const doorman__reading *reading) {
    assert(reading->at >= estimator->noted.at);
    bool refused = reading->refused != estimator->noted.refused;
    bool used = reading->in_use > 0 || reading->allowed != estimator->noted.allowed;
    if (used || reading->waiting > 0) estimator->used_at = reading->at;
    if (used) estimator->refused_until = 0;
    if (refused) estimator->refused_until = doorman__after(reading->at, estimator->window);
    estimator->noted = *reading;
}

static double doorman__counted_units(uint64_t before, uint64_t after) {
    return (double)(after - before) / DOORMAN__UNIT;
}

/* Returns the demand for a gauge since an earlier reading: the most units in use, plus the refused
 * units up to the bound. If `futile` is true, refused and waiting units do not count. */
static doorman__use doorman__use_of_gauge(const doorman__estimator *estimator,
                                          const doorman__reading *before,
                                          const doorman__reading *reading,
                                          const doorman__supply *supply, bool futile) {
    assert(estimator->is_gauge);
    double least = doorman__max(doorman__estimator_base(estimator), supply->amount);
    double refused = futile ? 0 : doorman__counted_units(before->refused, reading->refused);
    double most = 7 * doorman__max(reading->peak, least);
    if (!supply->exhausted) most = doorman__max(most, reading->largest);
    return (doorman__use){.peak = reading->peak + doorman__min(refused, most),
                          .unmet = !futile && (refused > 0 || reading->waiting > 0)};
}

/* Returns the demand for a rate since the last sample. */
static doorman__use doorman__use_of_rate(const doorman__estimator *estimator,
                                         const doorman__reading *reading,
                                         const doorman__supply *supply) {
    const doorman__reading *last = &doorman__estimator_sample_of(estimator, 0)->reading;
    double seconds = (double)(reading->at - last->at) / (double)DOORMAN_SECOND;
    assert(!estimator->is_gauge && seconds > 0);
    double workers = reading->waiting_peak, minimum = doorman__estimator_base(estimator);
    for (size_t age = 0; age < estimator->sample_count; age++) {
        const doorman__sample *sample = doorman__estimator_sample_of(estimator, age);
        workers = doorman__max(workers, sample->reading.waiting_peak);
    }
    double allowed = doorman__counted_units(last->allowed, reading->allowed);
    double unmet = doorman__counted_units(last->refused, reading->refused);
    double most = 7 * doorman__max(allowed, doorman__max(minimum, supply->amount) * seconds);
    double waiting = (reading->waited - last->waited) / seconds, busy = workers - waiting;
    if (waiting > 0) unmet += busy * most > allowed * waiting ? allowed * waiting / busy : most;
    double known = doorman__max(allowed, minimum * seconds), counts = unmet;
    /* refusals of one large request do not mean that the demand has an unknown size */
    if (!supply->exhausted) known = doorman__max(known, reading->largest);
    if (supply->exhausted) counts = doorman__min(unmet, most);
    return (doorman__use){.seconds = seconds,
                          .rate = (allowed + counts) / seconds,
                          .unmet = unmet > 0,
                          .bounded = unmet >= 7 * known};
}

/* Returns the mean rate over the window. The weights of the intervals fall from 1 (the newest) to a
 * tenth (the oldest). An interval whose unmet demand has an unknown size does not count. */
static double doorman__estimator_mean(const doorman__estimator *estimator) {
    double rate = 0, weights = 0;
    for (size_t age = 0; age + 1 < estimator->sample_count; age++) {
        const doorman__use *use = &doorman__estimator_sample_of(estimator, age)->use;
        double weight = use->seconds * (double)(DOORMAN__SAMPLES - 1 - age);
        if (use->bounded) continue;
        rate += weight * use->rate;
        weights += weight;
    }
    return weights > 0 ? rate / weights : 0;
}

/* Returns a lower bound of the wants, so that wants rise sooner than they fall: the smallest rate
 * of the last three intervals. If demand was not met in the newest interval, the bound is at least
 * the rate of that interval. */
static double doorman__estimator_recent(const doorman__estimator *estimator) {
    double recent = 0, lately = DBL_MAX;
    for (size_t age = 0; age < 3 && age + 1 < estimator->sample_count; age++) {
        const doorman__use *use = &doorman__estimator_sample_of(estimator, age)->use;
        if (age == 0 && use->unmet) recent = use->rate;
        lately = doorman__min(lately, use->rate);
        if (age == 2) recent = doorman__max(recent, lately);
    }
    return recent;
}

/* The largest request is remembered for WINDOWS_REMEMBERED windows. If the largest request of a
 * gauge does not fit for WINDOWS_SHORT windows, the estimator assumes that the server does not have
 * that much. */
#define DOORMAN__WINDOWS_REMEMBERED 10
#define DOORMAN__WINDOWS_SHORT 2

/* Remembers the largest request, because a rate may be saving units for it (L1). A gauge forgets a
 * request that is larger than the maximum of the wants, or larger than what the server can give,
 * because such a request can never fit. Returns true if the largest request of this reading can
 * never fit; then refused units are no demand. Returns false for a rate. */
static bool doorman__estimator_remember(doorman__estimator *estimator,
                                        const doorman__reading *reading,
                                        const doorman__supply *supply) {
    doorman_time at = reading->at, window = estimator->window;
    doorman_time until = doorman__after(at, DOORMAN__WINDOWS_REMEMBERED * window);
    if (reading->largest >= estimator->largest || at >= estimator->largest_until) {
        estimator->largest = reading->largest;
        estimator->largest_until = until;
        estimator->served = false;
    }
    if (!estimator->is_gauge) return false;
    if (reading->peak >= estimator->largest) estimator->served = true;
    bool is_short = supply->exhausted && estimator->largest > supply->amount;
    if (!is_short) estimator->short_since = DOORMAN_NEVER;
    if (is_short) estimator->short_since = doorman__earlier(estimator->short_since, at);
    assert((estimator->short_since == DOORMAN_NEVER) == !is_short);
    if (is_short && at - estimator->short_since >= DOORMAN__WINDOWS_SHORT * window) {
        estimator->ceiling = supply->amount;
        estimator->ceiling_until = until;
    }
    double most = estimator->maximum;
    if (at < estimator->ceiling_until) most = doorman__min(most, estimator->ceiling);
    if (estimator->largest > most) estimator->largest = 0;
    return reading->largest > most;
}

static void doorman__estimator_conclude(doorman__estimator *estimator,
                                        const doorman__reading *reading,
                                        const doorman__supply *supply, bool futile) {
    double mean = doorman__estimator_mean(estimator), peak = 0;
    bool initial = reading->at < estimator->initial_until;
    double minimum = initial ? estimator->initial : estimator->minimum;
    double raised = reading->at < estimator->raised_until ? estimator->raised : 0;
    double largest = estimator->is_gauge ? 0 : doorman__max(reading->largest, estimator->largest);
    /* the rate that saves the units of the largest recent request in a fifth of a window */
    double least = largest / ((double)estimator->window / (double)(5 * DOORMAN_SECOND));
    for (size_t age = 0; age + 1 < estimator->sample_count; age++) {
        peak = doorman__max(peak, doorman__estimator_sample_of(estimator, age)->use.peak);
    }
    if (doorman__estimator_gauge_is_idle(estimator, reading, supply)) {
        peak = raised = 0;
        if (estimator->served) estimator->largest = 0;
    }
    if (estimator->is_gauge && !futile) {
        peak = doorman__max(peak + reading->waiting, estimator->largest);
    }
    double base = doorman__estimator_base(estimator);
    if (supply->exhausted) {
        double most = doorman__max(mean, doorman__max(base, supply->amount));
        raised = doorman__min(raised, 8 * most);
        least = doorman__min(least, 8 * most);
    }
    /* Adds 5 %, so that noise does not cut a steady rate. */
    double wants = 1.05 * doorman__max(mean, doorman__estimator_recent(estimator));
    wants = doorman__max(doorman__max(wants, peak), doorman__max(raised, least));
    if (wants > 0) wants = doorman__max(wants, base);
    estimator->wants = doorman__max(minimum, doorman__min(estimator->maximum, wants));
    assert(estimator->wants >= estimator->minimum && estimator->wants <= DOORMAN_AMOUNT_MAX);
}

/* Adds a sample. Precondition: the reading is later than the last sample. */
static void doorman__estimator_sample(doorman__estimator *estimator,
                                      const doorman__reading *reading,
                                      const doorman__supply *supply) {
    const doorman__reading *last = &doorman__estimator_sample_of(estimator, 0)->reading;
    assert(reading->at > last->at);
    bool futile = doorman__estimator_remember(estimator, reading, supply);
    doorman__estimator_note_use(estimator, reading);
    doorman__use use = estimator->is_gauge
                           ? doorman__use_of_gauge(estimator, last, reading, supply, futile)
                           : doorman__use_of_rate(estimator, reading, supply);
    estimator->newest_sample = (estimator->newest_sample + 1) % DOORMAN__SAMPLES;
    if (estimator->sample_count < DOORMAN__SAMPLES) estimator->sample_count++;
    estimator->samples[estimator->newest_sample] = (doorman__sample){*reading, use};
    estimator->unmet = use.unmet;
    bool look_is_near = reading->at < doorman__after(reading->unmet_since, DOORMAN__LOOK_MIN) &&
                        reading->unmet_since != DOORMAN_NEVER;
    if (!look_is_near || supply->exhausted) estimator->looked = *reading;
    doorman__estimator_conclude(estimator, reading, supply, futile);
}

/* Returns a lower bound of the wants of a rate, from the counts since the last look. */
static double doorman__estimator_look_at_rate(doorman__estimator *estimator,
                                              const doorman__reading *reading,
                                              const doorman__supply *supply) {
    assert(!estimator->is_gauge);
    const doorman__reading *last = &estimator->looked;
    doorman_time since = doorman__earlier(reading->unmet_since, reading->at - DOORMAN__LOOK_MIN);
    doorman_time before = doorman__earlier(last->at, since);
    double seconds = (double)(reading->at - since) / (double)DOORMAN_SECOND;
    double all_seconds = (double)(reading->at - before) / (double)DOORMAN_SECOND;
    double base = doorman__estimator_base(estimator);
    double refused = doorman__counted_units(last->refused, reading->refused);
    double allowed = doorman__counted_units(last->allowed, reading->allowed) / all_seconds;
    double first = doorman__max(doorman__max(1, last->largest), reading->largest);
    double more = doorman__max(0, refused - first) / seconds;
    double waiting = (reading->waited - last->waited) / seconds;
    bool all_wait = reading->waiting > 0 && waiting >= 0.875 * reading->waiting;
    if (all_wait) {
        more = doorman__max(more, 7 * doorman__max(allowed, doorman__max(base, supply->amount)));
    }
    estimator->unmet = refused > 0 || all_wait;
    return doorman__max(1.05 * (allowed + more), refused > 0 ? base : 0);
}

/* Looks at a reading between two samples, after a refusal or while a caller waits. */
static void doorman__estimator_look(doorman__estimator *estimator, const doorman__reading *reading,
                                    const doorman__supply *supply) {
    assert(reading->at >= estimator->looked.at);
    double raised;
    bool futile = doorman__estimator_remember(estimator, reading, supply);
    doorman__estimator_note_use(estimator, reading);
    if (estimator->is_gauge) {
        const doorman__use use =
            doorman__use_of_gauge(estimator, &estimator->looked, reading, supply, futile);
        raised = futile ? 0 : use.peak + reading->waiting;
        estimator->unmet = use.unmet;
    } else {
        raised = doorman__estimator_look_at_rate(estimator, reading, supply);
    }
    if (reading->at < estimator->raised_until) raised = doorman__max(raised, estimator->raised);
    estimator->raised = raised;
    estimator->raised_until = doorman__after(reading->at, estimator->window / 5);
    estimator->looked = *reading;
    doorman__estimator_conclude(estimator, reading, supply, futile);
}

/* Returns when to check whether a gauge has become idle. Use since the last check counts as use at
 * the time of this check. To keep this error small, there are four checks in the time after which a
 * gauge without use is idle. */
static doorman_time doorman__estimator_check_at(const doorman__estimator *estimator,
                                                const doorman__supply *supply) {
    if (!estimator->is_gauge || estimator->wants <= estimator->minimum) return DOORMAN_NEVER;
    doorman_time pause = doorman__estimator_idle_after(estimator, supply) / 4;
    return doorman__after(estimator->noted.at, doorman__later(pause, DOORMAN_SECOND / 100));
}

/* Checks between two samples whether a gauge has become idle. */
static void doorman__estimator_check(doorman__estimator *estimator, const doorman__reading *reading,
                                     const doorman__supply *supply) {
    assert(estimator->is_gauge);
    doorman__estimator_note_use(estimator, reading);
    if (!doorman__estimator_gauge_is_idle(estimator, reading, supply)) return;
    doorman__estimator_conclude(estimator, reading, supply, false);
}

/* ---- client: estimates without a client */

/* An estimate gets the counts of other processes. The counts arrive late, and each covers a long
 * time. So doorman_estimate_add spreads them evenly over the time since the last sample. So an
 * estimate has as many samples as the estimator of a resource, and depends on the window, but not
 * on how often counts arrive. */
struct doorman_estimate {
    doorman__estimator estimator;
    doorman__reading total; /* all counts, also those that are not in a sample yet */
};

doorman_status doorman_estimate_create(doorman_estimate **out,
                                       const doorman_estimate_options *options,
                                       doorman_error *error, doorman_time now) {
    if (!out) return doorman__missing(error, "out");
    if (!options) return doorman__missing(error, "options");
    const doorman_time window = options->window ? options->window : 10 * DOORMAN_SECOND;
    if (!doorman__amount_valid(options->minimum)) {
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "minimum: must be in [0, 1e15]");
    }
    if (window < DOORMAN_SECOND / 100 || window > 100000000 * DOORMAN_SECOND) {
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT,
                             "window: must be from 10 ms to 1e8 s");
    }
    doorman_estimate *estimate = (doorman_estimate *)doorman__zalloc(sizeof *estimate);
    if (!estimate) return doorman__no_memory(error);
    estimate->estimator.minimum = estimate->estimator.initial = options->minimum;
    estimate->estimator.maximum = DOORMAN_AMOUNT_MAX;
    estimate->estimator.window = window;
    estimate->total.at = now;
    estimate->total.unmet_since = DOORMAN_NEVER;
    doorman__estimator_init(&estimate->estimator, &estimate->total);
    *out = estimate;
    return DOORMAN_OK;
}

void doorman_estimate_destroy(doorman_estimate *estimate) { DOORMAN_FREE(estimate); }

static uint64_t doorman__estimate_grains(double units) {
    /* of one report at most this many units count */
    const double most = DOORMAN_AMOUNT_MAX / DOORMAN__UNIT;
    if (!doorman__amount_valid(units)) return 0;
    return doorman__units(doorman__min(units, most));
}

/* Returns difference * part / count, rounded down, without an overflow. */
static uint64_t doorman__estimate_part(uint64_t difference, int64_t part, int64_t count) {
    assert(part > 0 && part <= count);
    uint64_t number = (uint64_t)part, all = (uint64_t)count;
    return difference / all * number + difference % all * number / all;
}

double doorman_estimate_add(doorman_estimate *estimate, const doorman_estimate_counts *counts,
                            doorman_time now) {
    if (!estimate) return 0;
    const doorman_estimate_counts none = {.allowed = 0};
    if (!counts) counts = &none;
    doorman__estimator *estimator = &estimate->estimator;
    const doorman__reading from = doorman__estimator_sample_of(estimator, 0)->reading;
    doorman__reading *total = &estimate->total;
    double capacity = doorman__amount_valid(counts->capacity) ? counts->capacity : 0;
    const doorman__supply supply = {.amount = capacity, .exhausted = counts->exhausted};
    total->at = doorman__later(total->at, now);
    total->allowed += doorman__estimate_grains(counts->allowed);
    total->refused += doorman__estimate_grains(counts->refused);
    const doorman_time elapsed = total->at - from.at;
    assert(elapsed >= 0);
    const int64_t most = DOORMAN__SAMPLES - 1;
    int64_t count = elapsed / (estimator->window / 10);
    if (count > most) count = most;
    for (int64_t i = 1; i <= count; i++) {
        doorman__reading reading = from;
        reading.at += elapsed / count * i + elapsed % count * i / count;
        reading.allowed += doorman__estimate_part(total->allowed - from.allowed, i, count);
        reading.refused += doorman__estimate_part(total->refused - from.refused, i, count);
        doorman__estimator_sample(estimator, &reading, &supply);
    }
    return estimator->wants;
}

/* ---- client: resources */

struct doorman_client {
    doorman_upstream upstream;
    doorman__table resources;   /* the resources, by id */
    doorman__timers wakes;      /* the times at which resources have work for the client */
    doorman_time look_at;       /* when to check for refusals (L4) */
    size_t follow_use_count;    /* the number of resources whose wants follow use */
    uint64_t hash_key[2];       /* the key of the hash function of `resources` (C8) */
    uint8_t unmet;              /* a limiter has signalled a refusal since the last check; atomic */
    doorman_time release_delay; /* how long a release waits for the next opening (K5) */
    bool kill_switch;           /* the kill switch is on */
    bool notifying;             /* an on_change is running; atomic */
    char client_id[DOORMAN_ID_BYTES_MAX + 1];
};

typedef enum doorman__client_resource_state {
    DOORMAN__UNLEASED,
    DOORMAN__LEASED,
    DOORMAN__CLOSING
} doorman__client_resource_state;

struct doorman_client_resource {
    doorman__held_lease held;
    doorman__link link;
    doorman__timer wake;
    doorman_client *client;
    doorman__client_resource_state state;
    size_t opened; /* the number of openings that have not been closed */
    bool wants_follow_use;
    double wants;
    doorman__estimator estimator;     /* estimates the wants, while they follow use */
    doorman_resource_options options; /* the options of the first opening, with all defaults */
    bool options_differ;              /* a later opening had other options */
    doorman_resource_info published;  /* the info of the last doorman__resource_publish */
    doorman_resource_kind kind;       /* the kind of the limiter */
    union {
        doorman__rate rate;
        doorman__gauge gauge;
    };
    doorman__usage *usage;           /* of the limiter */
    doorman__waiting waiting;        /* the calls that wait; only >>nng and >>leased set it */
    struct doorman_resource *handle; /* the agent's handle; NULL: there is no agent */
    doorman__tally tally;            /* what the next request reports (H11) */
    uint32_t subclients;             /* the weight of a resource of permits (>>leased); 0 means 1 */
    char resource_id[];
};

/* Returns the units in use. A rate has none. */
static double doorman__resource_in_use(const doorman_client_resource *resource) {
    return resource->kind == DOORMAN_GAUGE ? doorman__gauge_in_flight(&resource->gauge) : 0;
}

static double doorman__resource_known_safe_capacity(const doorman_client_resource *resource) {
    const doorman__held_lease *held = &resource->held;
    return held->has_safe_capacity ? held->safe_capacity : resource->options.safe_capacity;
}

/* Returns the capacity that is in force without a lease. */
static double doorman__resource_fallback(const doorman_client_resource *resource) {
    if (resource->options.fallback == DOORMAN_PESSIMISTIC) return 0;
    if (resource->options.fallback == DOORMAN_OPTIMISTIC) return resource->wants;
    return doorman__resource_known_safe_capacity(resource);
}

void doorman_client_read(const doorman_client_resource *resource, doorman_resource_info *out,
                         doorman_time now) {
    if (!out) return;
    memset(out, 0, sizeof *out);
    if (!resource) return;
    const doorman__held_lease *held = &resource->held;
    now = doorman__later(now, resource->client->upstream.now);
    bool leased = doorman__held_lease_live(held, now);
    double fallback = doorman__resource_fallback(resource);
    *out = (doorman_resource_info){.resource_id = resource->resource_id,
                                   .kind = resource->kind,
                                   .leased = leased,
                                   .capacity = leased ? held->capacity : fallback,
                                   .wants = resource->wants,
                                   .in_use = doorman__resource_in_use(resource),
                                   .expires_at = leased ? held->end : 0,
                                   .has_outcome = held->has_outcome,
                                   .outcome = held->outcome,
                                   .learning = held->granter_learns,
                                   .reason = leased ? held->reason : (doorman_lease_reason)0,
                                   .has_safe_capacity = held->has_safe_capacity,
                                   .safe_capacity = held->safe_capacity,
                                   .whole = held->whole,
                                   .overload_target = held->overload_target,
                                   .gauge_is_divided =
                                       resource->kind == DOORMAN_GAUGE && leased && !held->whole,
                                   .fallback = resource->options.fallback,
                                   .refresh_failures = resource->client->upstream.failure_count,
                                   .options_differ = resource->options_differ};
    doorman__usage_read(resource->usage, &out->counts);
    out->counts.waits = resource->waiting.call_count;
    out->counts.waited = resource->waiting.waited;
}

static doorman_time doorman__resource_update_wants_due(const doorman_client_resource *resource);

/* Sets when the client next has work for the resource. Must be called when one of these has
 * changed: the state, the end of the lease, the newest sample, the refused units, or
 * wants_follow_use. */
static void doorman__resource_set_wake(doorman_client_resource *resource) {
    doorman_time at =
        resource->wants_follow_use ? doorman__resource_update_wants_due(resource) : DOORMAN_NEVER;
    if (resource->published.leased) at = doorman__earlier(at, resource->held.end);
    doorman__timer_set(&resource->client->wakes, &resource->wake, at);
}

/* Moves a resource to another state: see the table above. No other function writes the state. */
static void doorman__resource_move(doorman_client_resource *resource,
                                   doorman__client_resource_state state) {
    assert(state != resource->state);
    assert((state == DOORMAN__CLOSING) == (resource->opened == 0));
    assert(state != DOORMAN__LEASED || resource->held.lease_id);
    resource->state = state;
}

/* Tells the limiter the largest possible capacity, the amount of the next larger lease, and when
 * that lease may come: see doorman__usage. */
static void doorman__resource_announce(doorman_client_resource *resource) {
    const doorman__held_lease *held = &resource->held;
    const doorman_upstream *upstream = &resource->client->upstream;
    const doorman__estimator *estimator = &resource->estimator;
    doorman__usage *usage = resource->usage;
    double capacity = resource->published.capacity;
    bool follows = resource->wants_follow_use;
    bool may_grow = !resource->published.leased || (follows && held->met);
    assert(doorman__amount_valid(resource->wants) && doorman__safe_capacity_valid(capacity));
    doorman_time at = held->request_at;
    if (follows && held->met) at = 0; /* the client asks soon after a refusal */
    if (upstream->state == DOORMAN__BACKING_OFF) at = doorman__later(at, upstream->retry_at);
    if (upstream->state == DOORMAN__REQUESTED && upstream->failures) {
        at = doorman__after(upstream->sent_at, upstream->timeout);
    }
    if (at == DOORMAN_NEVER) at = 0;
    doorman_time growth_time = follows ? estimator->window / 5 : 0;
    doorman_time until = follows ? estimator->ceiling_until : 0;
    double most = follows ? estimator->maximum : resource->wants;
    doorman__store(&usage->ceiling, doorman__max(most, capacity));
    doorman__store(&usage->ceiling_asked, doorman__max(estimator->ceiling, capacity));
    doorman__store(&usage->expected, may_grow ? resource->wants : 0);
    __atomic_store_n(&usage->growth_time, growth_time, __ATOMIC_RELAXED);
    __atomic_store_n(&usage->ceiling_until, until, __ATOMIC_RELAXED);
    __atomic_store_n(&usage->refresh_at, at, __ATOMIC_RELAXED);
}

static void doorman__resource_limit(doorman_client_resource *resource, doorman__schedule schedule,
                                    doorman_time now) {
    if (resource->kind == DOORMAN_GAUGE) {
        doorman__gauge_set(&resource->gauge, schedule);
        return;
    }
    double largest = doorman__counted(&resource->usage->largest);
    if (resource->wants_follow_use) largest = doorman__max(largest, resource->estimator.largest);
    doorman__rate_set(&resource->rate, schedule, largest, now);
}

static void doorman__resource_notify(doorman_client_resource *resource) {
    if (!resource->options.on_change || resource->state == DOORMAN__CLOSING) return;
    doorman_resource_info info = resource->published;
    __atomic_store_n(&resource->client->notifying, true, __ATOMIC_RELAXED);
    resource->options.on_change(resource->options.context, &info);
    __atomic_store_n(&resource->client->notifying, false, __ATOMIC_RELAXED);
}

/* Passes the capacity in force to the limiter. Then calls on_change, if the capacity or what
 * explains it has changed (K4). Without a lease, gauge_is_divided stays what it was, so that
 * on_change reports it once. */
static void doorman__resource_publish(doorman_client_resource *resource, doorman_time now) {
    doorman_resource_info info, before = resource->published;
    doorman_client_read(resource, &info, now);
    const doorman__schedule schedule = {info.leased ? info.capacity : 0, info.expires_at,
                                        doorman__resource_fallback(resource)};
    doorman__resource_limit(resource, schedule, now);
    if (!info.leased) info.gauge_is_divided = before.gauge_is_divided;
    resource->published = info;
    doorman__client_resource_state state = info.leased ? DOORMAN__LEASED : DOORMAN__UNLEASED;
    if (!resource->opened) state = DOORMAN__CLOSING;
    if (state != resource->state) doorman__resource_move(resource, state);
    assert((resource->state == DOORMAN__CLOSING) == !resource->opened);
    doorman__resource_set_wake(resource);
    doorman__resource_announce(resource);
    bool same = info.leased == before.leased && info.outcome == before.outcome &&
                info.learning == before.learning && info.reason == before.reason &&
                info.gauge_is_divided == before.gauge_is_divided &&
                doorman__equal(info.capacity, before.capacity);
    if (!same) doorman__resource_notify(resource);
}

#ifdef DOORMAN_NNG
/* Makes the limiter refuse everything, even in shadow mode or with the kill switch on.
 * Precondition: the client is not used any more, and this resource is only used for attempts. */
static void doorman__resource_disable(doorman_client_resource *resource) {
    if (resource->kind == DOORMAN_GAUGE) {
        doorman__gauge_set(&resource->gauge, (doorman__schedule){0, DOORMAN_NEVER, 0});
    } else {
        doorman__quota none = doorman__rate_quota(&resource->rate, 0);
        doorman__allowance_set(&resource->rate.allowance, none, DOORMAN_NEVER, none);
    }
    resource->usage->bypass = 0;
    resource->usage->refresh_at = DOORMAN_NEVER; /* no retry can succeed */
}
#endif

/* ---- client: attempts */

static inline doorman_decision doorman__resource_try(doorman_client_resource *resource, double n,
                                                     doorman_result *out, doorman_time now) {
    if (resource->kind == DOORMAN_GAUGE) {
        return out ? doorman__gauge_decide(&resource->gauge, n, out, now)
                   : doorman__gauge_try(&resource->gauge, n, now);
    }
    return out ? doorman__rate_decide(&resource->rate, n, out, now)
               : doorman__rate_try(&resource->rate, n, now);
}

doorman_decision doorman_client_try(doorman_client_resource *resource, double n,
                                    doorman_result *out, doorman_time now) {
    if (!resource) return doorman__impossible(out);
    return doorman__resource_try(resource, n, out, now);
}

doorman_status doorman_client_release(doorman_client_resource *resource, double n) {
    if (!resource) return DOORMAN_INVALID_ARGUMENT;
    bool done = resource->kind == DOORMAN_GAUGE && doorman__gauge_release(&resource->gauge, n);
    return done ? DOORMAN_OK : DOORMAN_INVALID_ARGUMENT;
}

/* ---- client: wants that follow use */

/* Returns the refused units, and the units that only shadow mode or the kill switch allowed. */
static uint64_t doorman__usage_unmet(const doorman__usage *usage) {
    return __atomic_load_n(&usage->refused, __ATOMIC_RELAXED) +
           __atomic_load_n(&usage->excess, __ATOMIC_RELAXED);
}

/* Returns the time of the first refusal since the last look, or NEVER. */
static doorman_time doorman__resource_unmet_since(const doorman_client_resource *resource) {
    doorman_time since = __atomic_load_n(&resource->usage->unmet_since, __ATOMIC_RELAXED);
    return since ? since : DOORMAN_NEVER;
}

static doorman__reading doorman__resource_reading(const doorman_client_resource *resource,
                                                  doorman_time now) {
    const doorman__usage *usage = resource->usage;
    const doorman__waiting *waiting = &resource->waiting;
    doorman__reading reading = {.at = now,
                                .unmet_since = doorman__resource_unmet_since(resource),
                                .allowed = __atomic_load_n(&usage->allowed, __ATOMIC_RELAXED),
                                .refused = doorman__usage_unmet(usage),
                                .largest = doorman__counted(&usage->largest),
                                .waiting = doorman__waiting_units(waiting)};
    if (resource->kind == DOORMAN_GAUGE) {
        reading.in_use = doorman__gauge_in_flight(&resource->gauge);
        reading.peak = doorman__counted(&resource->gauge.peak);
    } else {
        reading.waited = doorman__waiting_area(waiting, now);
        reading.waiting_peak = (double)waiting->units_peak / DOORMAN__UNIT;
    }
    return reading;
}

/* Forgets the first refusal, so that the next refusal counts as the first one. */
static void doorman__resource_looked(doorman_client_resource *resource) {
    __atomic_store_n(&resource->usage->unmet_since, 0, __ATOMIC_RELAXED);
}

/* Moves the largest values since the last sample to the reading, and resets them. */
static void doorman__resource_sampled(doorman_client_resource *resource,
                                      doorman__reading *reading) {
    assert(resource->waiting.units <= resource->waiting.units_peak);
    uint64_t largest = __atomic_exchange_n(&resource->usage->largest, 0, __ATOMIC_RELAXED);
    reading->largest = (double)largest / DOORMAN__UNIT;
    resource->waiting.units_peak = resource->waiting.units;
    if (resource->kind != DOORMAN_GAUGE) return;
    doorman__gauge *gauge = &resource->gauge;
    uint64_t in_use = __atomic_load_n(&gauge->in_flight, __ATOMIC_RELAXED);
    uint64_t peak = __atomic_exchange_n(&gauge->peak, in_use, __ATOMIC_RELAXED);
    reading->peak = (double)peak / DOORMAN__UNIT;
}

static doorman__supply doorman__resource_supply(const doorman_client_resource *resource,
                                                doorman_time now) {
    const doorman__held_lease *held = &resource->held;
    double safe = doorman__resource_known_safe_capacity(resource);
    return (doorman__supply){.amount = doorman__max(resource->published.capacity, safe),
                             .exhausted = doorman__held_lease_live(held, now) && !held->met,
                             .idle_after = held->refresh_interval / 2};
}

static void doorman__resource_apply_wants(doorman_client_resource *resource, double wants,
                                          doorman_time now) {
    assert(doorman__amount_valid(wants) && wants <= resource->options.wants_maximum);
    resource->wants = wants;
    doorman__held_lease_wants(&resource->client->upstream, &resource->held, wants, now);
    if (resource->options.fallback == DOORMAN_OPTIMISTIC) {
        doorman__resource_publish(resource, now);
    }
    doorman__resource_announce(resource);
}

/* K1: after unmet demand, asks at once if the last response granted all wants, and the wants have
 * grown by more than a tenth since the last request. If the largest request of a gauge does not fit
 * yet, any growth is enough. */
static void doorman__resource_grow(doorman_client_resource *resource, doorman_time now) {
    assert(resource->wants_follow_use);
    doorman__held_lease *held = &resource->held;
    const doorman__estimator *estimator = &resource->estimator;
    double largest = estimator->is_gauge ? estimator->largest : 0;
    double worth = largest <= resource->published.capacity ? 1.1 : 1 + 1e-9;
    if (!estimator->unmet || resource->wants <= held->requested_wants * worth) return;
    doorman__held_lease_grow(&resource->client->upstream, held, now);
}

/* Returns when to look at the counts after a refusal: for a gauge at once, as it needs no rate. */
static doorman_time doorman__resource_look_at(const doorman_client_resource *resource) {
    doorman_time since = doorman__resource_unmet_since(resource);
    return resource->kind == DOORMAN_GAUGE ? since : doorman__after(since, DOORMAN__LOOK_MIN);
}

/* Returns when to update the wants next. If the server has no more capacity, refusals count only
 * with the next sample. */
static doorman_time doorman__resource_update_wants_due(const doorman_client_resource *resource) {
    doorman__supply supply = doorman__resource_supply(resource, resource->client->upstream.now);
    const doorman__estimator *estimator = &resource->estimator;
    doorman_time due = doorman__earlier(doorman__estimator_due(estimator),
                                        doorman__estimator_check_at(estimator, &supply));
    if (supply.exhausted) return due;
    return doorman__earlier(due, doorman__resource_look_at(resource));
}

static void doorman__resource_update_wants(doorman_client_resource *resource, doorman_time now) {
    assert(resource->wants_follow_use);
    doorman__estimator *estimator = &resource->estimator;
    doorman__supply supply = doorman__resource_supply(resource, now);
    doorman_time due = doorman__estimator_due(estimator), look = DOORMAN_NEVER;
    if (!supply.exhausted) look = doorman__resource_look_at(resource);
    if (now < doorman__resource_update_wants_due(resource)) return;
    doorman__reading reading = doorman__resource_reading(resource, now);
    if (now >= look) {
        doorman__resource_looked(resource);
        doorman__estimator_look(estimator, &reading, &supply);
    }
    if (now >= due) {
        if (supply.exhausted) doorman__resource_looked(resource);
        doorman__resource_sampled(resource, &reading);
        doorman__estimator_sample(estimator, &reading, &supply);
    }
    if (now < due && now < look) doorman__estimator_check(estimator, &reading, &supply);
    doorman__resource_apply_wants(resource, estimator->wants, now);
    bool idle = doorman__estimator_gauge_is_idle(estimator, &reading, &supply);
    if (idle && resource->wants < resource->held.requested_wants) { /* L4: asks at once */
        doorman__held_lease_expedite(&resource->client->upstream, &resource->held, 0, now);
    }
    doorman__resource_grow(resource, now);
}

/* ---- client: its held leases */

static doorman_client_resource *doorman__resource_of(doorman__held_lease *held) {
    return DOORMAN__WITHIN(doorman_client_resource, held, held);
}

/* R3: puts one held lease into the request. First lowers the limiter by what is given back, and
 * then reads the units in use, so that the report includes all of them (L1). */
static void doorman__resource_report(doorman_client_resource *resource, doorman_time now) {
    doorman_upstream *upstream = &resource->client->upstream;
    double wants = resource->wants;
    if (resource->held.whole) wants = doorman__whole_ceil(wants);
    if (doorman__held_lease_give_back(upstream, &resource->held, wants, now)) {
        doorman__resource_publish(resource, now);
    }
    const doorman_demand demand = {
        .wants = wants, .subclients = resource->subclients, .priority = resource->options.priority};
    const doorman__report report = {.demands = &demand,
                                    .demand_count = 1,
                                    .wants = wants,
                                    .outstanding = doorman__resource_in_use(resource),
                                    .tally = &resource->tally};
    doorman__upstream_put(upstream, &resource->held, &report, now);
}

static void doorman__resource_free(doorman_client_resource *resource) {
    assert(!resource->wants_follow_use || resource->client->follow_use_count > 0);
    doorman__table_remove(&resource->client->resources, &resource->link);
    doorman__timer_clear(&resource->client->wakes, &resource->wake);
    if (resource->wants_follow_use) resource->client->follow_use_count--;
    DOORMAN_FREE(resource->handle);
    DOORMAN_FREE(resource);
}

/* Frees each resource that is closed and whose lease has been released or has ended. */
static void doorman__client_free_closed(doorman_client *client) {
    for (doorman__held_lease *held = NULL;
         (held = doorman__upstream_next_closed(&client->upstream));) {
        doorman__resource_free(doorman__resource_of(held));
    }
}

/* ---- client: the calls of the application */

#define DOORMAN__REQUEST_TIMEOUT_MIN (DOORMAN_SECOND / 1000)

/* Returns the first rule that the options of a client break. Returns NULL if they break no rule. */
static const char *doorman__client_check(const doorman_client_options *options) {
    const doorman_time timeout = options->request_timeout;
    const bool is_short = timeout != 0 && timeout < DOORMAN__REQUEST_TIMEOUT_MIN;
    const doorman__rule rules[] = {
        {!doorman__id_valid(options->client_id), "client_id: " DOORMAN__ID_RULE},
        {!doorman__duration_valid(timeout) || is_short,
         "request_timeout: must be from 1 ms to 1e8 seconds"},
        {options->tls, "tls: must be NULL, except for an agent"},
        {!options->seed, "seed: must not be 0, but random bits that are new for each client"},
    };
    return DOORMAN__RULE_NEXT(rules, &(size_t){0});
}

static const doorman__upstream_calls doorman__client_calls; /* below */

static doorman_status doorman__client_start(doorman_client *client,
                                            const doorman_client_options *options,
                                            doorman_error *error, doorman_time now) {
    assert(options->seed);
    memcpy(client->client_id, options->client_id, strlen(options->client_id) + 1);
    client->look_at = DOORMAN_NEVER;
    client->upstream.calls = &doorman__client_calls;
    client->upstream.now = doorman__later(now, 0);
    client->upstream.random = options->seed;
    uint64_t keys = ~options->seed; /* so that the keys are not the random numbers of the jitter */
    for (int i = 0; i < 2; i++) client->hash_key[i] = doorman__random(&keys);
    client->upstream.timeout =
        options->request_timeout ? options->request_timeout : 5 * DOORMAN_SECOND;
    return doorman__upstream_init(&client->upstream, client->client_id, options->addresses,
                                  options->address_count, error);
}

doorman_status doorman_client_create(doorman_client **out, const doorman_client_options *options,
                                     doorman_error *error, doorman_time now) {
    if (!out) return doorman__missing(error, "out");
    if (!options) return doorman__missing(error, "options");
    doorman_client_options own = *options;
#ifdef DOORMAN_NNG
    if (!own.seed && !doorman__random_bits(&own.seed, sizeof own.seed)) {
        return doorman__fail(error, DOORMAN_UNAVAILABLE, "the system has no random bits");
    }
#endif
    const char *wrong = doorman__client_check(&own);
    if (wrong) return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "%s", wrong);
    doorman_client *client = (doorman_client *)doorman__zalloc(sizeof *client);
    if (!client) return doorman__no_memory(error);
    doorman_status status = doorman__client_start(client, &own, error, now);
    if (status != DOORMAN_OK) {
        doorman_client_destroy(client);
        return status;
    }
    *out = client;
    return DOORMAN_OK;
}

void doorman_client_destroy(doorman_client *client) {
    if (!client) return;
    while (client->upstream.first) {
        doorman_client_resource *resource = doorman__resource_of(client->upstream.first);
        doorman__upstream_remove(&client->upstream, &resource->held);
        doorman__resource_free(resource);
    }
    assert(client->follow_use_count == 0 && client->resources.count == 0);
    doorman__upstream_uninit(&client->upstream);
    doorman__table_uninit(&client->resources);
    doorman__timers_uninit(&client->wakes);
    DOORMAN_FREE(client);
}

doorman_upstream *doorman_client_upstream(doorman_client *client) {
    if (!client) return NULL;
    return &client->upstream;
}

/* How often the client checks for refusals. A refusal is processed at the latest after the longer
 * of this time and LOOK_MIN. Both are less than the 250 ms that this section promises. */
#define DOORMAN__LOOK_INTERVAL (DOORMAN_SECOND / 5)

/* Checks for refusals since the last check. A resource whose limiter has refused units becomes due
 * sooner if its wants follow use. */
static void doorman__client_look(doorman_client *client, doorman_time now) {
    client->look_at = DOORMAN_NEVER;
    if (client->follow_use_count) client->look_at = doorman__after(now, DOORMAN__LOOK_INTERVAL);
    if (!__atomic_load_n(&client->unmet, __ATOMIC_RELAXED) ||
        !__atomic_exchange_n(&client->unmet, 0, __ATOMIC_ACQUIRE)) {
        return;
    }
    for (doorman__held_lease *held = client->upstream.first; held; held = held->next) {
        doorman_client_resource *resource = doorman__resource_of(held);
        bool unmet = doorman__resource_unmet_since(resource) != DOORMAN_NEVER;
        if (resource->wants_follow_use && unmet) doorman__resource_set_wake(resource);
    }
}

/* Updates at most `most` resources. Returns true if more resources are due. */
static bool doorman__client_update_some(doorman_client *client, size_t most, doorman_time now) {
    now = doorman__upstream_now(&client->upstream, now);
    doorman__client_look(client, now);
    for (; most > 0 && doorman__timers_due(&client->wakes) <= now; most--) {
        doorman__timer *first = doorman__timers_first(&client->wakes);
        doorman_client_resource *resource = DOORMAN__WITHIN(doorman_client_resource, wake, first);
        if (resource->wants_follow_use) doorman__resource_update_wants(resource, now);
        if (resource->published.leased && !doorman__held_lease_live(&resource->held, now)) {
            doorman__resource_publish(resource, now);
        }
        doorman__resource_set_wake(resource);
    }
    return doorman__timers_due(&client->wakes) <= now;
}

/* ---- client: what a caller's loop calls */

/* Returns when the client is due next. A client without resources is due only if a request is in
 * flight. So after the last close, DOORMAN_NEVER means that no release is left. */
static doorman_time doorman__client_due(const doorman_upstream *upstream) {
    const doorman_client *client = DOORMAN__WITHIN_CONST(doorman_client, upstream, upstream);
    doorman_time due = doorman__upstream_due(upstream);
    if (!upstream->first) return due;
    due = doorman__earlier(due, doorman__timers_due(&client->wakes));
    return doorman__earlier(due, client->look_at);
}

static void doorman__client_work(doorman_upstream *upstream, doorman_time now) {
    doorman_client *client = DOORMAN__WITHIN(doorman_client, upstream, upstream);
    (void)doorman__client_update_some(client, SIZE_MAX, now);
}

static bool doorman__client_request(doorman_upstream *upstream, doorman_request *out,
                                    doorman_time now) {
    doorman_client *client = DOORMAN__WITHIN(doorman_client, upstream, upstream);
    bool made = false;
    now = doorman__upstream_now(upstream, now);
    if (doorman__upstream_begin(upstream, now)) {
        for (doorman__held_lease *held = NULL; (held = doorman__upstream_next(upstream, now));) {
            doorman__resource_report(doorman__resource_of(held), now);
        }
        made = doorman__upstream_end(upstream, out, now);
    }
    doorman__client_free_closed(client);
    return made;
}

static doorman_status doorman__client_response(doorman_upstream *upstream, uint64_t sequence,
                                               const doorman_response *response, doorman_time now) {
    doorman_client *client = DOORMAN__WITHIN(doorman_client, upstream, upstream);
    doorman__held_lease *held = NULL;
    now = doorman__upstream_now(upstream, now);
    doorman_status status = doorman__upstream_accept(upstream, sequence, response, now);
    if (status == DOORMAN_STALE) return status;
    while (doorman__upstream_next_item(upstream, response, &held)) {
        doorman_client_resource *resource = doorman__resource_of(held);
        /* the wants may have changed since the request was made */
        doorman__held_lease_wants(upstream, held, resource->wants, now);
        doorman__resource_publish(resource, now);
        if (resource->wants_follow_use && held->met) doorman__resource_grow(resource, now);
    }
    doorman__client_free_closed(client);
    return status;
}

static void doorman__client_failed(doorman_upstream *upstream, uint64_t sequence, bool is_wrong,
                                   doorman_time now) {
    (void)is_wrong;
    doorman_client *client = DOORMAN__WITHIN(doorman_client, upstream, upstream);
    doorman__upstream_fail(upstream, sequence, now);
    doorman__client_free_closed(client);
}

static const doorman__upstream_calls doorman__client_calls = {
    doorman__client_due, doorman__client_work, doorman__client_request, doorman__client_response,
    doorman__client_failed};

#ifdef DOORMAN_NNG
/* Returns whether a release is under way, or a lease can be released. A lease cannot be released
 * while units are in use.
 *   cost   O(resources) */
static bool doorman__client_has_to_release(const doorman_client *client, doorman_time now) {
    doorman__held_lease *held = client->upstream.first;
    for (; held; held = held->next) {
        if (held->state == DOORMAN__HELD_RELEASING) return true;
        bool in_use = doorman__resource_in_use(doorman__resource_of(held)) > 0;
        if (doorman__held_lease_live(held, now) && !in_use) return true;
    }
    return false;
}
#endif

/* ---- client: the options of a resource */

/* Returns what an idle resource wants (K6). */
static double doorman__resource_wants_minimum(const doorman_resource_options *options) {
    bool given = options->has_wants_minimum || options->wants_minimum > 0;
    return given ? options->wants_minimum : options->kind == DOORMAN_GAUGE ? 0 : 1;
}

#define DOORMAN__CONSTANT_WANTS_RULE                                                               \
    "must be 0 if wants is set, because then they do not follow use"
#define DOORMAN__LEAST_WANTS_RULE                                                                  \
    "must be at least wants_minimum (default: 1 for a rate, 0 for a gauge)"

/* Returns the first rule on the wants that the options break. Returns NULL if they break none. */
static const char *doorman__resource_wants_wrong(const doorman_resource_options *options) {
    const bool constant = options->wants > 0;
    const bool has_minimum = options->has_wants_minimum || options->wants_minimum > 0;
    const double least = doorman__resource_wants_minimum(options), first = options->wants_initial;
    const double most = options->wants_maximum > 0 ? options->wants_maximum : DOORMAN_AMOUNT_MAX;
    const bool is_short = options->window && options->window < DOORMAN_SECOND / 100;
    const doorman__rule rules[] = {
        {!doorman__amount_valid(options->wants), "wants: " DOORMAN__AMOUNT_RULE},
        {!doorman__amount_valid(options->wants_minimum), "wants_minimum: " DOORMAN__AMOUNT_RULE},
        {!doorman__amount_valid(options->wants_maximum), "wants_maximum: " DOORMAN__AMOUNT_RULE},
        {!doorman__amount_valid(first), "wants_initial: " DOORMAN__AMOUNT_RULE},
        {!doorman__duration_valid(options->window) || is_short,
         "window: must be from 0.01 to 1e8 seconds"},
        {constant && options->wants > most, "wants: must be at most wants_maximum"},
        {constant && has_minimum, "wants_minimum: " DOORMAN__CONSTANT_WANTS_RULE},
        {constant && first > 0, "wants_initial: " DOORMAN__CONSTANT_WANTS_RULE},
        {constant && options->window, "window: " DOORMAN__CONSTANT_WANTS_RULE},
        {!constant && most < least, "wants_maximum: " DOORMAN__LEAST_WANTS_RULE},
        {!constant && first > 0 && first < least, "wants_initial: " DOORMAN__LEAST_WANTS_RULE},
        {!constant && first > most, "wants_initial: must be at most wants_maximum"},
    };
    return DOORMAN__RULE_NEXT(rules, &(size_t){0});
}

#define DOORMAN__BURST_MIN (DOORMAN_SECOND / 1000000)

/* Returns the first rule on the kind, burst, fallback or safe capacity that is broken, or NULL. */
static const char *doorman__resource_limiter_wrong(const doorman_resource_options *options) {
    const bool gauge = options->kind == DOORMAN_GAUGE, has_safe = options->has_safe_capacity;
    const bool is_short = options->burst != 0 && options->burst < DOORMAN__BURST_MIN;
    const doorman__rule rules[] = {
        {(unsigned)options->kind > DOORMAN_GAUGE, "kind: must be RATE or GAUGE"},
        {!doorman__duration_valid(options->burst) || is_short,
         "burst: must be from 1 us to 1e8 seconds"},
        {!doorman__amount_valid(options->burst_units), "burst_units: " DOORMAN__AMOUNT_RULE},
        {gauge && options->burst, "burst: must be 0: a gauge has no burst"},
        {gauge && options->burst_units > 0, "burst_units: must be 0: a gauge has no burst"},
        {options->burst && options->burst_units > 0,
         "burst_units: must be 0 if burst is set: a rate has one or the other"},
        {(unsigned)options->fallback > DOORMAN_OPTIMISTIC,
         "fallback: must be SAFE, PESSIMISTIC or OPTIMISTIC"},
        {!has_safe && !doorman__equal(options->safe_capacity, 0),
         "safe_capacity: needs has_safe_capacity"},
        {!doorman__safe_capacity_valid(options->safe_capacity),
         "safe_capacity: must be -1 (unlimited), or a finite number from 0 to 1e15"},
        {has_safe && options->fallback != DOORMAN_SAFE,
         "has_safe_capacity: must not be set unless the fallback is SAFE"},
    };
    return DOORMAN__RULE_NEXT(rules, &(size_t){0});
}

static doorman_status doorman__resource_check(const doorman_resource_options *options,
                                              doorman_error *error) {
    const doorman__rule rules[] = {
        {!doorman__id_valid(options->resource_id), "resource_id: " DOORMAN__ID_RULE},
        {!options->has_priority && options->priority, "priority: needs has_priority"},
        {options->priority < 0 || options->priority > DOORMAN_PRIORITY_MAX,
         "priority: must be from 0 to 15"},
    };
    const char *wrong = DOORMAN__RULE_NEXT(rules, &(size_t){0});
    if (!wrong) wrong = doorman__resource_wants_wrong(options);
    if (!wrong) wrong = doorman__resource_limiter_wrong(options);
    return wrong ? doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "%s", wrong) : DOORMAN_OK;
}

/* Fills in the defaults of fields that are not given, so that two openings can be compared. */
static doorman_resource_options doorman__resource_resolve(const doorman_resource_options *given) {
    doorman_resource_options all = *given;
    all.resource_id = NULL; /* valid only during the call */
    if (!given->has_priority) all.priority = 1;
    all.wants_minimum = doorman__resource_wants_minimum(given);
    if (given->wants_maximum <= 0) all.wants_maximum = DOORMAN_AMOUNT_MAX;
    if (given->wants_initial <= 0) all.wants_initial = all.wants_minimum;
    if (!given->window) all.window = 10 * DOORMAN_SECOND;
    if (!given->burst) all.burst = DOORMAN_SECOND / 10;
    return all;
}

/* Returns the first field, other than `kind`, in which two resolved options differ, or NULL. */
static const char *doorman__resource_difference(const doorman_resource_options *a,
                                                const doorman_resource_options *b) {
    if (a->priority != b->priority) return "priority";
    if (!doorman__equal(a->wants, b->wants)) return "wants";
    if (!doorman__equal(a->wants_minimum, b->wants_minimum)) return "wants_minimum";
    if (!doorman__equal(a->wants_maximum, b->wants_maximum)) return "wants_maximum";
    if (!doorman__equal(a->wants_initial, b->wants_initial)) return "wants_initial";
    if (a->window != b->window) return "window";
    if (a->burst != b->burst) return "burst";
    if (!doorman__equal(a->burst_units, b->burst_units)) return "burst_units";
    if (a->fallback != b->fallback) return "fallback";
    if (!doorman__equal(a->safe_capacity, b->safe_capacity)) return "safe_capacity";
    if (a->shadow != b->shadow) return "shadow";
    if (a->on_change != b->on_change) return "on_change";
    return a->context != b->context ? "context" : NULL;
}

/* K5: compares the options of a later opening with the options of the first opening. */
static void doorman__resource_compare(doorman_client_resource *resource,
                                      const doorman_resource_options *given, doorman_error *error) {
    assert(resource->opened > 1);
    doorman_resource_options all = doorman__resource_resolve(given);
    const char *field = doorman__resource_difference(&resource->options, &all);
    if (!field) return;
    resource->options_differ = true;
    doorman__fail(error, DOORMAN_OK, "%s: not as in the first opening, which stays in force",
                  field);
}

static void doorman__resource_set_follow_use(doorman_client_resource *resource,
                                             bool wants_follow_use, doorman_time now) {
    doorman_client *client = resource->client;
    if (wants_follow_use != resource->wants_follow_use)
        client->follow_use_count += wants_follow_use ? 1 : SIZE_MAX;
    resource->wants_follow_use = wants_follow_use;
    assert(client->follow_use_count <= client->upstream.held_count);
    doorman_time look_at = doorman__after(now, DOORMAN__LOOK_INTERVAL);
    if (!client->follow_use_count) client->look_at = DOORMAN_NEVER;
    if (wants_follow_use) client->look_at = doorman__earlier(client->look_at, look_at);
}

/* Starts a new limiter. The limiter allows nothing before doorman__resource_publish is called. */
static void doorman__resource_set_kind(doorman_client_resource *resource,
                                       doorman_resource_kind kind, doorman_time now) {
    assert(resource->opened <= 1);
    resource->kind = kind;
    if (kind == DOORMAN_GAUGE) {
        doorman__gauge_init(&resource->gauge, 0);
        resource->usage = &resource->gauge.usage;
    } else {
        doorman__rate_init(&resource->rate, 0, 0, 0, now);
        resource->usage = &resource->rate.usage;
    }
    resource->usage->client_unmet = &resource->client->unmet;
}

static void doorman__resource_start_estimator(doorman_client_resource *resource, doorman_time now) {
    const doorman_resource_options *options = &resource->options;
    doorman__reading first = doorman__resource_reading(resource, now);
    doorman__resource_looked(resource);
    doorman__resource_sampled(resource, &first);
    first.unmet_since = DOORMAN_NEVER;
    resource->estimator = (doorman__estimator){.is_gauge = resource->kind == DOORMAN_GAUGE,
                                               .minimum = options->wants_minimum,
                                               .maximum = options->wants_maximum,
                                               .initial = options->wants_initial,
                                               .window = options->window};
    doorman__estimator_init(&resource->estimator, &first);
}

static void doorman__resource_set_options(doorman_client_resource *resource,
                                          const doorman_resource_options *options,
                                          doorman_time now) {
    doorman_resource_options all = doorman__resource_resolve(options);
    resource->options = all;
    resource->options_differ = false;
    doorman__resource_set_follow_use(resource, all.wants <= 0, now);
    resource->wants = resource->wants_follow_use ? all.wants_initial : all.wants;
    if (resource->kind != all.kind) doorman__resource_set_kind(resource, all.kind, now);
    if (resource->kind == DOORMAN_RATE) {
        resource->rate.burst = all.burst;
        resource->rate.burst_units = all.burst_units;
    }
    doorman__usage_bypass(resource->usage, DOORMAN__SHADOW, all.shadow);
    doorman__usage_bypass(resource->usage, DOORMAN__KILL_SWITCH, resource->client->kill_switch);
    doorman__resource_start_estimator(resource, now);
    resource->published = (doorman_resource_info){.resource_id = resource->resource_id};
}

/* ---- client: opening and closing */

static doorman_client_resource *doorman__client_find(doorman_client *client,
                                                     const char *resource_id) {
    uint64_t hash = doorman__hash(client->hash_key, resource_id);
    doorman__link *link = doorman__table_first(&client->resources, hash);
    for (; link; link = doorman__table_same(link->next, hash)) {
        doorman_client_resource *resource = DOORMAN__WITHIN(doorman_client_resource, link, link);
        if (strcmp(resource->resource_id, resource_id) == 0) return resource;
    }
    return NULL;
}

/* Adds a resource. Returns NULL if there is no memory. */
static doorman_client_resource *doorman__client_add(doorman_client *client,
                                                    const doorman_resource_options *options,
                                                    doorman_time now) {
    size_t bytes = strlen(options->resource_id) + 1, count = client->upstream.held_count + 1;
    if (!doorman__upstream_reserve(&client->upstream)) return NULL;
    if (!doorman__timers_reserve(&client->wakes, count)) return NULL;
    doorman_client_resource *resource =
        (doorman_client_resource *)doorman__zalloc(sizeof *resource + bytes);
    if (!resource) return NULL;
    memcpy(resource->resource_id, options->resource_id, bytes);
    resource->client = client;
    resource->held.resource_id = resource->resource_id;
    doorman__resource_set_kind(resource, options->kind, now);
    doorman__upstream_add(&client->upstream, &resource->held, now);
    doorman__table_add(&client->resources, &resource->link,
                       doorman__hash(client->hash_key, options->resource_id));
    assert(client->resources.count == client->upstream.held_count);
    return resource;
}

/* Opens a new resource, or a closed resource that is not released yet. A closed resource gets the
 * new options, and keeps its units in use. It keeps its lease, unless the lease is being released.
 * In an agent, if the release was still waiting (K5), the lease is renewed at its usual time,
 * unless the priority or the wants have changed. A renewal at once would send a message each
 * time. */
static void doorman__resource_reopen(doorman_client_resource *resource,
                                     const doorman_resource_options *options, doorman_time now) {
    assert(resource->opened == 1);
    doorman__held_lease *held = &resource->held;
    doorman_upstream *upstream = &resource->client->upstream;
    int old_priority = resource->options.priority;
    bool keeps = held->state == DOORMAN__HELD_CLOSING && resource->client->release_delay > 0;
    held->cut = false;
    if (doorman__held_lease_ending(held)) doorman__held_lease_reopen(upstream, held, now);
    doorman__resource_set_options(resource, options, now);
    keeps = keeps && resource->options.priority == old_priority;
    if (keeps && doorman__held_lease_live(held, now)) {
        doorman__held_lease_request_at(upstream, held, held->renew_at);
        doorman__held_lease_wants(upstream, held, resource->wants, now);
    }
    doorman__resource_publish(resource, now);
}

/* K5: refuses another kind of limiter while the resource is open or has units in use. */
static doorman_status doorman__resource_check_kind(const doorman_client_resource *resource,
                                                   const doorman_resource_options *options,
                                                   doorman_error *error) {
    if (!resource || resource->kind == options->kind) return DOORMAN_OK;
    const char *kind = resource->kind == DOORMAN_GAUGE ? "GAUGE" : "RATE";
    if (resource->opened) {
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "kind: '%s' is open as a %s",
                             resource->resource_id, kind);
    }
    if (!(doorman__resource_in_use(resource) > 0)) return DOORMAN_OK;
    return doorman__fail(error, DOORMAN_INVALID_ARGUMENT,
                         "kind: '%s' was closed as a %s, and has units in use",
                         resource->resource_id, kind);
}

doorman_status doorman_client_open(doorman_client_resource **out, doorman_client *client,
                                   const doorman_resource_options *options, doorman_error *error,
                                   doorman_time now) {
    if (!out) return doorman__missing(error, "out");
    if (!client) return doorman__missing(error, "client");
    if (!options) return doorman__missing(error, "options");
    now = doorman__upstream_now(&client->upstream, now);
    doorman_status status = doorman__resource_check(options, error);
    if (status != DOORMAN_OK) return status;
    doorman_client_resource *resource = doorman__client_find(client, options->resource_id);
    status = doorman__resource_check_kind(resource, options, error);
    if (status != DOORMAN_OK) return status;
    if (!resource) resource = doorman__client_add(client, options, now);
    if (!resource) return doorman__no_memory(error);
    *out = resource;
    if (error) doorman__error_clear(error);
    if (resource->opened++ > 0) {
        doorman__resource_compare(resource, options, error);
    } else {
        doorman__resource_reopen(resource, options, now);
    }
    return DOORMAN_OK;
}

void doorman_client_close(doorman_client_resource *resource, doorman_time now) {
    if (!resource) return;
    doorman_client *client = resource->client;
    now = doorman__upstream_now(&client->upstream, now);
    assert(resource->opened);
    if (--resource->opened) return;
    doorman__resource_move(resource, DOORMAN__CLOSING);
    doorman__held_lease_close(&client->upstream, &resource->held,
                              doorman__after(now, client->release_delay), now);
    doorman__client_free_closed(client);
}

doorman_status doorman_client_set_wants(doorman_client_resource *resource, double wants,
                                        doorman_time now) {
    if (!resource) return DOORMAN_INVALID_ARGUMENT;
    now = doorman__upstream_now(&resource->client->upstream, now);
    bool valid = doorman__amount_valid(wants) && wants <= resource->options.wants_maximum;
    if (!valid) return DOORMAN_INVALID_ARGUMENT;
    doorman__resource_set_follow_use(resource, false, now);
    doorman__resource_set_wake(resource);
    doorman__resource_apply_wants(resource, wants, now);
    return DOORMAN_OK;
}

doorman_status doorman_client_report_overload(doorman_client_resource *resource,
                                              const doorman_overload_report *report,
                                              doorman_time now) {
    if (!resource || !report) return DOORMAN_INVALID_ARGUMENT;
    const char *rule = NULL;
    now = doorman__upstream_now(&resource->client->upstream, now);
    if (doorman__overload_report_wrong(report, &rule)) return DOORMAN_INVALID_ARGUMENT;
    bool used = report->interval && resource->held.overload_target;
    if (used) doorman__tally_add(&resource->tally, report, now);
    return DOORMAN_OK;
}

#ifdef DOORMAN_JSON
#include <cjson/cJSON.h>

/* ---- >>json --------------------------------------------------------------------------------- */
/*
 * This section reads and writes configurations and the messages of the wire protocol. Each message
 * is one JSON object. A request has one key, the method. Its response has the same key, or `error`.
 * POST /v1/METHOD leaves out the key of the method. Unknown fields in a message are ignored.
 * Unknown fields in a configuration are refused, because they are probably typing errors. If a
 * message has an error, the whole message is refused. Errors are a missing field, a field of the
 * wrong type, a value out of range, and a key that an object has twice.
 *
 * Only the first error of a message is reported. The reading of a configuration continues after the
 * error of a field, so that one call finds several errors. A syntax error ends the reading. The
 * text of an error in a message has the number of the byte, or the path of the field. An error in a
 * field of a configuration has the path, the line and the column of the field. A syntax error of a
 * configuration has a line and a column. cJSON keeps no positions. But the tree of cJSON has its
 * values in the order of the text. So the n-th value of the tree is the n-th value of the text. A
 * second syntax check stops at the n-th value, and so finds the position.
 *
 * docs/protocol.md is the reference of the protocol. It has the fields of each message, their
 * defaults, an example of each message, the errors, and the duties of a client. A parent may have a
 * newer version than its child. So a child ignores parameters that it does not know, and algorithms
 * of a kind that it does not know.
 *
 * G7 An algorithm has named parameters: minimum_interval, minimum_refresh_interval, decay_factor,
 *    reserve and handover. The design document has two more parameters: lease_duration_secs and
 *    refresh_interval. They set the same values as the fields lease_length and refresh_interval.
 *    The value of a parameter is a number or a string.
 * V5 A request, a response or a configuration has at most 4 MiB, 32 levels and 200,000 values. A
 *    number has at most 63 bytes. cJSON accepts texts that are not valid: numbers such as 01, raw
 *    control characters in strings, and bytes after the end. So this section checks each text
 *    against RFC 8259, and passes only valid text to cJSON. U+0000 in a string is refused, although
 *    RFC 8259 allows its escape. This section has its own writer, because cJSON does not write
 *    numbers exact to the last bit.
 *
 * A number in a message reads back as the same double, so a lease may need 17 digits. With fewer
 * digits, each field would need its own direction of rounding: a lease would be rounded down,
 * `outstanding` would be rounded up, and `has` would have the digits of the lease. A sum of leases
 * that is exact in one process (C9) would differ from the sum in another process. So only texts for
 * people and monitoring have fewer digits: the status page, the status and the metrics of
 * doorman_server (see server/http/text.c).
 */

#define DOORMAN__JSON_DEPTH_MAX 32
#define DOORMAN__JSON_VALUES_MAX 200000
#define DOORMAN__JSON_NUMBER_BYTES_MAX 63       /* the maximum of cJSON */
#define DOORMAN__INTEGER_MAX 9007199254740992.0 /* 2^53: each integer up to this one is a double */

/* The state of a syntax check. Each function of the check moves `at` behind the text that it
 * accepts. A function that finds an error leaves `at` at or behind the error, sets `rule` to what
 * it expected, and returns false. */
typedef struct doorman__scan {
    const char *at, *end, *rule;
    const char *key;     /* where the last key begins */
    bool has_rounded_id; /* a number in the text may have been rounded to 2^53 */
    unsigned depth, values, values_max;
} doorman__scan;

static bool doorman__scan_fail(doorman__scan *scan, const char *rule) {
    scan->rule = rule;
    return false;
}

/* Returns the next character, or NUL at the end. A NUL character in the text looks like the end.
 * Both are errors at each place where a caller expects a character. */
static char doorman__scan_peek(const doorman__scan *scan) {
    return scan->at < scan->end ? *scan->at : '\0';
}

static bool doorman__scan_take(doorman__scan *scan, char expected) {
    if (doorman__scan_peek(scan) != expected) return false;
    scan->at++;
    return true;
}

static void doorman__scan_space(doorman__scan *scan) {
    if (doorman__scan_peek(scan) > ' ') return; /* the common case in texts that programs write */
    while (doorman__scan_take(scan, ' ') || doorman__scan_take(scan, '\n') ||
           doorman__scan_take(scan, '\r') || doorman__scan_take(scan, '\t')) {
    }
}

static size_t doorman__scan_digits(doorman__scan *scan) {
    const char *at = scan->at, *first = at;
    while (at < scan->end && *at >= '0' && *at <= '9') at++;
    scan->at = at;
    return (size_t)(at - first);
}

/* Returns true for numbers near 2^53 that cJSON may round to 2^53, for example 2^53 + 1. A number
 * with its point elsewhere, as in 9.007199254740993e15, is not recognised. */
static bool doorman__rounds_to_id_max(const char *number, size_t bytes) {
    bool near = bytes >= 16 && memcmp(number, "900719925474099", 15) == 0;
    return near && (bytes > 16 || number[15] == '3');
}

static bool doorman__scan_number(doorman__scan *scan) {
    const char *start = scan->at;
    (void)doorman__scan_take(scan, '-');
    bool sound = doorman__scan_take(scan, '0') || doorman__scan_digits(scan) > 0;
    if (sound && doorman__scan_take(scan, '.')) sound = doorman__scan_digits(scan) > 0;
    if (sound && (doorman__scan_take(scan, 'e') || doorman__scan_take(scan, 'E'))) {
        if (!doorman__scan_take(scan, '-')) (void)doorman__scan_take(scan, '+');
        sound = doorman__scan_digits(scan) > 0;
    }
    if (!sound) return doorman__scan_fail(scan, "not JSON: expected a value");
    if (doorman__rounds_to_id_max(start, (size_t)(scan->at - start))) scan->has_rounded_id = true;
    if (scan->at - start <= DOORMAN__JSON_NUMBER_BYTES_MAX) return true;
    return doorman__scan_fail(scan, "a number longer than 63 bytes");
}

/* Reads the four hexadecimal digits of an escape. Returns -1 if they are not hexadecimal. */
static int doorman__scan_hex(doorman__scan *scan) {
    static const char digits[] = "0123456789abcdefABCDEF";
    int code = 0;
    for (int i = 0; i < 4; i++, scan->at++) {
        const char *digit = strchr(digits, doorman__scan_peek(scan));
        if (!digit || !*digit) return -1;
        code = code * 16 + (int)(digit - digits) - (digit - digits < 16 ? 0 : 6);
    }
    return code;
}

/* Checks the part of an escape that is behind the backslash. A character above U+FFFF is written as
 * two surrogates, high and then low. U+0000 is refused: it would end the string in C. */
static bool doorman__scan_escape(doorman__scan *scan) {
    static const char not_escape[] = "not JSON: expected an escape";
    char kind = doorman__scan_peek(scan);
    if (!kind || !strchr("\"\\/bfnrtu", kind)) return doorman__scan_fail(scan, not_escape);
    scan->at++;
    if (kind != 'u') return true;
    int code = doorman__scan_hex(scan), low = -1;
    if (code < 0) return doorman__scan_fail(scan, not_escape);
    if (code == 0) return doorman__scan_fail(scan, "the control character U+0000 is not allowed");
    if (code < 0xd800 || code >= 0xe000) return true;
    bool pair = code < 0xdc00 && doorman__scan_take(scan, '\\') && doorman__scan_take(scan, 'u');
    if (pair) low = doorman__scan_hex(scan);
    if (low >= 0xdc00 && low < 0xe000) return true;
    return doorman__scan_fail(scan, "a surrogate without its pair is not a valid character");
}

/* Returns true for printable ASCII characters that need no escape in a string. Most text consists
 * of these characters, so special loops process them faster. */
static bool doorman__json_plain(char character) {
    return character >= ' ' && character < 0x7f && character != '"' && character != '\\';
}

static void doorman__scan_plain(doorman__scan *scan) {
    const char *at = scan->at, *end = scan->end;
    while (at < end && doorman__json_plain(*at)) at++;
    scan->at = at;
}

static bool doorman__scan_string(doorman__scan *scan) {
    if (!doorman__scan_take(scan, '"')) {
        return doorman__scan_fail(scan, "not JSON: expected a key in double quotes");
    }
    while (!doorman__scan_take(scan, '"')) {
        uint32_t code = 0;
        doorman__scan_plain(scan);
        unsigned char next = (unsigned char)doorman__scan_peek(scan);
        if (next == '"') continue;
        if (next < 0x20) {
            return doorman__scan_fail(scan, "not JSON: expected a double quote at the end of the "
                                            "string, or an escape for a control character");
        }
        if (next < 0x80) scan->at++;
        if (next >= 0x80 && !doorman__utf8_next(&scan->at, scan->end, &code)) {
            return doorman__scan_fail(scan, "not JSON: expected UTF-8");
        }
        if (next == '\\' && !doorman__scan_escape(scan)) return false;
    }
    return true;
}

static bool doorman__scan_word(doorman__scan *scan, const char *word) {
    for (; *word; word++) {
        if (!doorman__scan_take(scan, *word))
            return doorman__scan_fail(scan, "not JSON: expected a value");
    }
    return true;
}

static bool doorman__scan_value(doorman__scan *scan);

static bool doorman__scan_key(doorman__scan *scan) {
    doorman__scan_space(scan);
    scan->key = scan->at;
    if (!doorman__scan_string(scan)) return false;
    doorman__scan_space(scan);
    return doorman__scan_take(scan, ':') || doorman__scan_fail(scan, "not JSON: expected a colon");
}

/* Checks an object or a list. The text begins with the opening bracket. */
static bool doorman__scan_container(doorman__scan *scan) {
    bool object = *scan->at++ == '{';
    char close = object ? '}' : ']';
    if (++scan->depth > DOORMAN__JSON_DEPTH_MAX) {
        return doorman__scan_fail(scan, "nested deeper than 32 levels");
    }
    doorman__scan_space(scan);
    bool more = !doorman__scan_take(scan, close);
    while (more) {
        if (object && !doorman__scan_key(scan)) return false;
        if (!doorman__scan_value(scan)) return false;
        more = doorman__scan_take(scan, ',');
        if (!more && !doorman__scan_take(scan, close)) {
            return doorman__scan_fail(scan, object ? "not JSON: expected a comma or }"
                                                   : "not JSON: expected a comma or ]");
        }
    }
    scan->depth--;
    return true;
}

/* Checks a value and the white space around the value. The recursion is at most
 * DOORMAN__JSON_DEPTH_MAX levels deep. */
static bool doorman__scan_value(doorman__scan *scan) {
    bool sound = false;
    if (++scan->values > scan->values_max) {
        return doorman__scan_fail(scan, "more than 200,000 values");
    }
    doorman__scan_space(scan);
    switch (doorman__scan_peek(scan)) {
    case '{':
    case '[': sound = doorman__scan_container(scan); break;
    case '"': sound = doorman__scan_string(scan); break;
    case 't': sound = doorman__scan_word(scan, "true"); break;
    case 'f': sound = doorman__scan_word(scan, "false"); break;
    case 'n': sound = doorman__scan_word(scan, "null"); break;
    default: sound = doorman__scan_number(scan); break;
    }
    if (sound) doorman__scan_space(scan);
    return sound;
}

/* The rule that a text breaks if more than white space follows its value. */
static const char doorman__json_end_rule[] = "not JSON: expected the end of the text";

/* Checks a text and parses it into a tree. The caller deletes the tree. cJSON fails for a valid
 * text in two cases: there is no memory, or the decimal separator of the locale is longer than one
 * byte. In both cases the function returns OUT_OF_MEMORY.
 *   scan   written in full. After a syntax error it has the position and the rule. If the whole
 *          text is too large, the position is NULL */
static doorman_status doorman__json_parse(cJSON **out, doorman__scan *scan, const char *text,
                                          size_t bytes) {
    *scan = (doorman__scan){.rule = "larger than 4 MiB"};
    if (bytes > DOORMAN_MESSAGE_BYTES_MAX) return DOORMAN_RESOURCE_EXHAUSTED;
    *scan = (doorman__scan){.at = text,
                            .end = text + bytes,
                            .rule = doorman__json_end_rule,
                            .values_max = DOORMAN__JSON_VALUES_MAX};
    if (!doorman__scan_value(scan) || scan->at < scan->end) {
        bool full = scan->depth > DOORMAN__JSON_DEPTH_MAX || scan->values > scan->values_max;
        return full ? DOORMAN_RESOURCE_EXHAUSTED : DOORMAN_INVALID_ARGUMENT;
    }
    *out = cJSON_ParseWithLength(text, bytes);
    return *out ? DOORMAN_OK : DOORMAN_OUT_OF_MEMORY;
}

/* The errors of a configuration, or the warnings about it. */
typedef struct doorman__problems {
    const char *text; /* of the configuration */
    size_t bytes;
    doorman_config_problem *items;
    size_t room, count; /* count: how many problems there are; may be more than room */
} doorman__problems;

/* The state of reading a text. The reader of a message keeps the first failure. A caller may
 * continue to read after a failure, because an absent or wrong field leaves its target unchanged,
 * or sets it to false. So a caller checks for failure only at the end. The reader of a
 * configuration counts all failures, and keeps as many as `problems` has room for. */
typedef struct doorman__reader {
    doorman_status status;
    doorman_error *error;        /* for a message; may be NULL */
    doorman__problems *problems; /* for a configuration; NULL for a message */
    cJSON *tree;
    bool has_rounded_id;  /* a number may have been rounded to 2^53, so 2^53 is no id */
    bool has_refusal;     /* the text is an answer with the code INVALID_ARGUMENT */
    doorman__arena arena; /* the structs that are made from the text */
} doorman__reader;

/* A value of a text, and its path. Each doorman__field is on the stack. It points to the
 * doorman__field of the object or list that contains the value. The path is written as text only if
 * there is an error. */
typedef struct doorman__field {
    doorman__reader *reader;
    /* the object or list that contains the value; NULL: the value is the whole text */
    const struct doorman__field *parent;
    /* the key of the value; NULL: the value is an item of a list */
    const char *key;
    int key_bytes;
    size_t index;
    const cJSON *value; /* NULL: the object does not have this key */
} doorman__field;

/* Frees the tree and the memory of the reader, and returns the result of reading. */
static doorman_status doorman__read_end(doorman__reader *reader) {
    if (reader->status == DOORMAN_OUT_OF_MEMORY) (void)doorman__no_memory(reader->error);
    doorman__arena_uninit(&reader->arena);
    cJSON_Delete(reader->tree);
    return reader->status;
}

static void doorman__field_path(const doorman__field *field, char *path, size_t path_bytes) {
    path[0] = '\0';
    if (!field->parent) return;
    doorman__field_path(field->parent, path, path_bytes);
    size_t used = strlen(path);
    const char *dot = used ? "." : "";
    if (field->key) {
        snprintf(path + used, path_bytes - used, "%s%.*s", dot, field->key_bytes, field->key);
    } else {
        snprintf(path + used, path_bytes - used, "[%zu]", field->index);
    }
}

/* Returns whether failures are no longer kept: in a message after the first failure, and in a
 * configuration after a syntax error, or after a status other than INVALID_ARGUMENT. */
static bool doorman__read_stopped(const doorman__reader *reader) {
    bool continues = reader->problems && reader->tree && reader->status == DOORMAN_INVALID_ARGUMENT;
    return reader->status != DOORMAN_OK && !continues;
}

/* Counts the values of a tree in the order of the text, up to `wanted`. Returns whether `wanted` is
 * in the tree. */
static bool doorman__value_number(const cJSON *value, const cJSON *wanted, unsigned *number) {
    ++*number;
    if (value == wanted) return true;
    for (const cJSON *child = value->child; child; child = child->next) {
        if (doorman__value_number(child, wanted, number)) return true;
    }
    return false;
}

/* Returns where a field begins in the text: at its key, or at the item of a list. A field that is
 * not in the tree has the position of the object or list that should contain it. */
static const char *doorman__field_at(const doorman__field *field) {
    const doorman__problems *problems = field->reader->problems;
    unsigned number = 0;
    while (!doorman__value_number(field->reader->tree, field->value, &number)) {
        field = field->parent;
        number = 0;
    }
    assert(number > 0);
    doorman__scan scan = {
        .at = problems->text, .end = problems->text + problems->bytes, .values_max = number - 1};
    (void)doorman__scan_value(&scan); /* stops in front of the value with this number */
    doorman__scan_space(&scan);
    return field->key ? scan.key : scan.at;
}

/* Adds a problem. Returns its text for the caller to write, or NULL if there is no room.
 *   at   where the problem is in the text; NULL: the position is not known */
static doorman_error *doorman__problem_add(doorman__problems *problems, const char *at) {
    if (problems->count++ >= problems->room) return NULL;
    doorman_config_problem *problem = &problems->items[problems->count - 1];
    *problem = (doorman_config_problem){.line = at ? 1 : 0, .column = at ? 1 : 0};
    for (const char *before = problems->text; at && before < at; before++) {
        bool starts_character = ((unsigned char)*before & 0xc0) != 0x80;
        problem->column = *before == '\n' ? 1 : problem->column + starts_character;
        problem->line += *before == '\n';
    }
    return &problem->error;
}

/* Writes what is wrong with a field, or a warning about it. */
static void doorman__read_note(const doorman__field *field, const char *rule) {
    char path[256];
    doorman__problems *problems = field->reader->problems;
    doorman_error *error = field->reader->error;
    if (problems) {
        bool has_room = problems->count < problems->room;
        error = doorman__problem_add(problems, has_room ? doorman__field_at(field) : NULL);
    }
    doorman__field_path(field, path, sizeof path);
    (void)doorman__fail(error, DOORMAN_OK, "%s%s%s", path, path[0] ? ": " : "", rule);
    if (error) error->path_bytes = strlen(path); /* a key of JSON may contain ": " */
}

static void doorman__read_fail(const doorman__field *field, const char *rule) {
    if (doorman__read_stopped(field->reader)) return;
    doorman__read_note(field, rule);
    field->reader->status = DOORMAN_INVALID_ARGUMENT;
}

static int doorman__key_order(const void *a, const void *b) {
    return strcmp((*(const cJSON *const *)a)->string, (*(const cJSON *const *)b)->string);
}

static doorman__field doorman__member(const doorman__field *object, const cJSON *value) {
    const char *key = value->string;
    return (doorman__field){object->reader, object, key, (int)strlen(key), 0, value};
}

static void doorman__read_twice(const doorman__field *object, const cJSON *value) {
    doorman__field field = doorman__member(object, value);
    doorman__read_fail(&field, "appears twice");
}

/* Refuses the keys that an object has twice. If the object has at most 16 keys, each key is
 * compared with each earlier key. This is fast, because most keys differ in the first character. If
 * the object has more keys, they are sorted, and each key is compared with the next one. No object
 * of a message needs more than 16 keys. But an attacker can send an object of 100,000 keys, and
 * comparing all pairs would keep a server busy. */
static void doorman__read_unique_keys(const doorman__field *object, size_t count) {
    const cJSON *first = object->value->child;
    for (const cJSON *b = first; b && count <= 16; b = b->next) {
        const cJSON *a = first;
        while (a != b && (*a->string != *b->string || strcmp(a->string, b->string) != 0)) {
            a = a->next;
        }
        if (a != b) doorman__read_twice(object, b);
    }
    if (count <= 16) return;
    const cJSON **keys = (const cJSON **)DOORMAN_MALLOC(count * sizeof *keys);
    if (!keys) {
        object->reader->status = DOORMAN_OUT_OF_MEMORY;
        return;
    }
    for (size_t i = 0; i < count; i++, first = first->next) keys[i] = first;
    qsort(keys, count, sizeof *keys, doorman__key_order);
    for (size_t i = 1; i < count && !doorman__read_stopped(object->reader); i++) {
        if (doorman__key_order(&keys[i - 1], &keys[i]) == 0) doorman__read_twice(object, keys[i]);
    }
    DOORMAN_FREE(keys);
}

/* Refuses each key that an object has twice. Checks all objects of the text, even those that are
 * not read. */
static void doorman__read_unique(const doorman__field *field) {
    bool object = cJSON_IsObject(field->value);
    size_t count = 0;
    for (const cJSON *value = field->value->child; value; value = value->next, count++) {
        if (!value->child) continue;
        int key_bytes = object ? (int)strlen(value->string) : 0;
        doorman__field below = {field->reader, field, value->string, key_bytes, count, value};
        doorman__read_unique(&below);
    }
    if (object && !doorman__read_stopped(field->reader)) doorman__read_unique_keys(field, count);
}

static bool doorman__text_is_blank(const char *text, size_t bytes) {
    size_t spaces = 0;
    while (spaces < bytes && strchr(" \t\r\n", text[spaces]) && text[spaces]) spaces++;
    return spaces == bytes;
}

/* Returns whether a text begins with the byte-order mark of UTF-8. */
static bool doorman__text_is_marked(const char *text, size_t bytes) {
    return bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0;
}

/* Finds a likely reason why a text that people write is not JSON: the text is empty, or an editor
 * has saved it with a byte-order mark or as UTF-16. UTF-16 begins with a mark, or one of the first
 * two bytes is 0. Returns NULL if there is no such reason. */
static const char *doorman__syntax_cause(const char *text, size_t bytes) {
    if (doorman__text_is_blank(text, bytes)) return "not JSON: the text is empty";
    if (doorman__text_is_marked(text, bytes)) {
        return "not JSON: the text begins with a byte-order mark; save it as UTF-8 without one";
    }
    bool marked = bytes >= 2 && (!memcmp(text, "\xff\xfe", 2) || !memcmp(text, "\xfe\xff", 2));
    if (marked || (bytes >= 2 && !text[0] != !text[1])) {
        return "not JSON: the text is UTF-16; save it as UTF-8";
    }
    return NULL;
}

/* Writes a syntax error. A configuration is written by people, so its syntax error may name a
 * likely cause. */
static void doorman__read_syntax(doorman__reader *reader, const doorman__scan *scan,
                                 const char *text, size_t bytes) {
    doorman__problems *problems = reader->problems;
    doorman_error *error = problems ? doorman__problem_add(problems, scan->at) : reader->error;
    bool explains = problems && reader->status == DOORMAN_INVALID_ARGUMENT;
    const char *rule = scan->rule, *cause = explains ? doorman__syntax_cause(text, bytes) : NULL;
    if (cause) {
        (void)doorman__fail(error, reader->status, "%s", cause);
    } else if (explains && scan->at == scan->end) {
        size_t skipped = strncmp(rule, "not JSON: ", 10) == 0 ? 10 : 0;
        (void)doorman__fail(error, reader->status, "not JSON: the text ends in the middle: %s",
                            rule + skipped);
    } else if (!problems && scan->at) {
        (void)doorman__fail(error, reader->status, "byte %zu: %s", (size_t)(scan->at - text), rule);
    } else {
        (void)doorman__fail(error, reader->status, "%s", rule);
    }
}

static doorman__field doorman__read_start(doorman__reader *reader, const char *text, size_t bytes) {
    doorman__scan scan;
    reader->status = doorman__json_parse(&reader->tree, &scan, text, bytes);
    reader->has_rounded_id = reader->status == DOORMAN_OK && scan.has_rounded_id;
    bool has_error = reader->status != DOORMAN_OK && reader->status != DOORMAN_OUT_OF_MEMORY;
    if (has_error) doorman__read_syntax(reader, &scan, text, bytes);
    doorman__field root = {.reader = reader, .value = reader->tree};
    if (reader->status == DOORMAN_OK) doorman__read_unique(&root);
    return root;
}

/* ---- JSON: writing */

/* The state of writing a text. If memory runs out, the buffer stays as it is, and the rest of the
 * text is dropped. So a caller checks for failure only at the end. */
typedef struct doorman__writer {
    doorman_buffer *buffer;
    bool failed;
    bool is_exact; /* amounts have as few digits as possible */
    /* Only for a response. epoch: as in doorman_json_serve; is_server: the holder is a node;
     * is_body: only the object of the method is written; request: what the response answers. */
    int64_t epoch;
    bool is_server, is_body;
    const doorman_request *request;
} doorman__writer;

void doorman_buffer_uninit(doorman_buffer *buffer) {
    if (!buffer) return;
    DOORMAN_FREE(buffer->text);
    *buffer = (doorman_buffer){0};
}

static bool doorman__buffer_reserve(doorman_buffer *buffer, size_t bytes) {
    void *text = buffer->text;
    bool room = doorman__reserve(&text, &buffer->capacity, bytes + 1, 1);
    buffer->text = (char *)text;
    return room;
}

/* Returns room for `bytes` bytes, or NULL if there is no memory. The caller writes the bytes, and
 * adds their number to `bytes` of the buffer. */
static char *doorman__put_room(doorman__writer *out, size_t bytes) {
    doorman_buffer *buffer = out->buffer;
    out->failed = out->failed || !doorman__buffer_reserve(buffer, buffer->bytes + bytes);
    return out->failed ? NULL : buffer->text + buffer->bytes;
}

static void doorman__put_bytes(doorman__writer *out, const char *text, size_t bytes) {
    char *to = doorman__put_room(out, bytes);
    if (!to) return;
    memcpy(to, text, bytes);
    out->buffer->bytes += bytes;
    assert(out->buffer->bytes < out->buffer->capacity);
}

/* Writes units * 10^-places, without zeros at the end of the fraction. The function makes the
 * digits from the last one to the first one. */
static void doorman__put_decimal(doorman__writer *out, uint64_t units, int places) {
    char text[32], *end = text + sizeof text, *first = end;
    bool whole = true;
    for (; places > 0; places--, units /= 10) {
        whole = whole && units % 10 == 0;
        if (!whole) *--first = (char)('0' + units % 10);
    }
    if (!whole) *--first = '.';
    do {
        *--first = (char)('0' + units % 10);
        units /= 10;
    } while (units);
    doorman__put_bytes(out, first, (size_t)(end - first));
}

/* Writes a time as seconds. Most times are whole seconds, which need no fraction. */
static void doorman__put_seconds(doorman__writer *out, doorman_time time) {
    bool whole = time % DOORMAN_SECOND == 0;
    doorman__put_decimal(out, (uint64_t)(whole ? time / DOORMAN_SECOND : time), whole ? 0 : 9);
}

/* Writes the decimal point of `size` and the digits behind the point. Precondition: `size` is at
 * least 1/64 and less than 2^53. So `size` has at most 58 bits behind the point. The method is that
 * of Steele and White (1990). The loop writes digits until the written number, or that number with
 * its last digit incremented, differs from `size` by less than `near`. Then `size` is the double
 * nearest to the written number. Two doubles of this size differ by at least size / 2^53. `near` is
 * half of size / 2^53, so the function may write one digit more than needed. The increment never
 * changes a 9 to a 10, because the loop would have ended one digit earlier. */
static void doorman__put_fraction(doorman__writer *out, double size) {
    assert(size >= 1.0 / 64 && size < DOORMAN__INTEGER_MAX);
    const uint64_t one = UINT64_C(1) << 60;
    uint64_t rest = (uint64_t)((size - (double)(uint64_t)size) * (double)one);
    uint64_t near = (uint64_t)(size * 64); /* size / 2^54, in the units of `rest` */
    char text[24] = ".";
    size_t count = 1;
    do {
        rest *= 10;
        near *= 10;
        text[count++] = (char)('0' + (rest >> 60));
        rest &= one - 1;
    } while (rest >= near && one - rest >= near);
    if (rest > one / 2) text[count - 1]++;
    doorman__put_bytes(out, text, count);
}

/* Writes a number with the fewest digits that give the same double when they are read. The function
 * first tries 15 digits, and then 16 and 17. It tries no smaller count, because printf omits zeros
 * at the end. A number below DBL_MIN has fewer significant bits, so fewer digits may be enough, and
 * the function first tries 1 digit. The decimal separator is `.` in every locale. */
static void doorman__put_shortest(doorman__writer *out, double size) {
    char text[40];
    int count = size < DBL_MIN ? 1 : 15;
    do {
        snprintf(text, sizeof text, "%.*g", count, size);
    } while (strtod(text, NULL) != size && ++count <= 17);
    size_t digits = strspn(text, "0123456789");
    size_t point = strcspn(text + digits, "0123456789e");
    doorman__put_bytes(out, text, digits);
    doorman__put_bytes(out, ".", point ? 1 : 0);
    doorman__put_bytes(out, text + digits + point, strlen(text + digits + point));
}

/* Writes an amount. Reading the text gives the same double. Most amounts are integers or have a few
 * decimals.
 *   shortest   false: the function is faster, but may write one digit more than needed */
static void doorman__put_amount(doorman__writer *out, double amount, bool shortest) {
    double size = amount < 0 ? -amount : amount;
    uint64_t whole = size < DOORMAN__INTEGER_MAX ? (uint64_t)size : 0;
    uint64_t millionths = size < 1e9 ? (uint64_t)(size * 1e6 + 0.5) : 0;
    if (amount < 0) doorman__put_bytes(out, "-", 1);
    if ((double)whole == size) {
        doorman__put_decimal(out, whole, 0);
    } else if ((double)millionths / 1e6 == size) {
        doorman__put_decimal(out, millionths, 6);
    } else if (!shortest && size >= 1.0 / 64 && size < DOORMAN__INTEGER_MAX) {
        doorman__put_decimal(out, whole, 0);
        doorman__put_fraction(out, size);
    } else {
        doorman__put_shortest(out, size);
    }
}

/* Writes the rest of a string, from its first character that is not plain (see
 * doorman__json_plain). The library does not check the text of error messages, descriptions and
 * HTTP addresses. They can have control characters, which the function escapes, and bytes that are
 * not UTF-8, for which it writes U+FFFD. An example is an incomplete character at the end of a long
 * error message that was cut. */
static void doorman__put_escaped(doorman__writer *out, const char *text, const char *end) {
    const char *plain = text;
    while (text < end) {
        char escape[16];
        const char *at = text;
        uint32_t code = 0;
        bool valid = doorman__utf8_next(&text, end, &code);
        bool sign = code == '"' || code == '\\';
        if (valid && !sign && code >= 0x20 && (code < 0x7f || code >= 0xa0)) continue;
        if (!valid) text++, code = 0xfffd;
        snprintf(escape, sizeof escape, sign ? "\\%c" : "\\u%04x", (unsigned)code);
        doorman__put_bytes(out, plain, (size_t)(at - plain));
        doorman__put_bytes(out, escape, strlen(escape));
        plain = text;
    }
    doorman__put_bytes(out, plain, (size_t)(end - plain));
}

/* Writes a string in quotes. */
static void doorman__put_string(doorman__writer *out, const char *text) {
    const char *end = text;
    while (doorman__json_plain(*end)) end++;
    size_t plain = (size_t)(end - text);
    char *to = doorman__put_room(out, plain + 2);
    if (!to) return;
    *to = '"';
    memcpy(to + 1, text, plain);
    to[plain + 1] = '"';
    out->buffer->bytes += plain + (*end ? 1 : 2);
    if (!*end) return;
    doorman__put_escaped(out, end, end + strlen(end));
    doorman__put_bytes(out, "\"", 1);
}

static void doorman__put_comma(doorman__writer *out) {
    const doorman_buffer *buffer = out->buffer;
    bool first = buffer->bytes && strchr("[{", buffer->text[buffer->bytes - 1]);
    if (!first) doorman__put_bytes(out, ",", 1);
}

/* Writes the text of a format up to its next %, or up to its end. Returns the first character that
 * is not written. */
static const char *doorman__put_plain(doorman__writer *out, const char *format) {
    char *first = doorman__put_room(out, strlen(format)), *to = first;
    for (; *format && *format != '%'; format++) {
        if (to) *to++ = *format == '\'' ? '"' : *format;
    }
    out->buffer->bytes += (size_t)(to - first);
    return format;
}

/* Writes text by a format. Most characters are written unchanged. The exceptions are:
 *   '    the character "
 *   %s   a string in quotes
 *   %n   an amount
 *   %x   an amount, with as few digits as possible
 *   %t   a doorman_time, in seconds
 *   %i   a uint64_t
 *   %b   a bool
 *   %,   a comma, but nothing directly behind an opening bracket */
static void doorman__put(doorman__writer *out, const char *format, ...) {
    va_list values;
    va_start(values, format);
    for (; *(format = doorman__put_plain(out, format)); format += 2) {
        switch (format[1]) {
        case 's': doorman__put_string(out, va_arg(values, const char *)); break;
        case 'n': doorman__put_amount(out, va_arg(values, double), false); break;
        case 'x': doorman__put_amount(out, va_arg(values, double), true); break;
        case 't': doorman__put_seconds(out, va_arg(values, doorman_time)); break;
        case 'i': doorman__put_decimal(out, va_arg(values, uint64_t), 0); break;
        case 'b': doorman__put(out, va_arg(values, int) ? "true" : "false"); break;
        default: doorman__put_comma(out); break;
        }
    }
    va_end(values);
}

/* Ends a text. If memory ran out, the text is empty, because half a message is useless. */
static doorman_status doorman__put_end(doorman__writer *out) {
    doorman_buffer *buffer = out->buffer;
    if (out->failed) buffer->bytes = 0;
    if (buffer->text) buffer->text[buffer->bytes] = '\0';
    return out->failed ? DOORMAN_OUT_OF_MEMORY : DOORMAN_OK;
}

static doorman__writer doorman__put_start(doorman_buffer *buffer) {
    buffer->bytes = 0;
    return (doorman__writer){.buffer = buffer};
}

/* ---- JSON: fields */
/*
 * Tables of fields say how messages and the structs of a configuration are read, and how most of
 * them are written. A row is one field. A writer that uses a table writes the fields in its order.
 * The reader takes the fields of an object in any order. What a table cannot say is in the two
 * functions of a row: one reads, and one writes.
 */

typedef enum doorman__type {
    DOORMAN__JSON_END,
    DOORMAN__JSON_NUMBER, /* numbers: see doorman__numbers */
    DOORMAN__JSON_AMOUNT,
    DOORMAN__JSON_FRACTION,
    DOORMAN__JSON_SLOPE,
    DOORMAN__JSON_DECAY, /* a fraction of more than 0 */
    DOORMAN__JSON_RATE,
    DOORMAN__JSON_CLIENTS,
    DOORMAN__JSON_SECONDS,
    DOORMAN__JSON_DURATION,
    DOORMAN__JSON_HOUR, /* a duration of at most an hour */
    DOORMAN__JSON_ID,
    DOORMAN__JSON_EPOCH, /* as an ID, or 0 */
    DOORMAN__JSON_PRIORITY,
    DOORMAN__JSON_SIZE, /* from `least` to `most` of the row */
    DOORMAN__JSON_UINT32,
    DOORMAN__JSON_BOOL,
    DOORMAN__JSON_STRING, /* a const char *; the writer leaves out NULL */
    DOORMAN__JSON_TEXT,   /* a const char *; the writer leaves out NULL and "" */
    DOORMAN__JSON_CHOICE, /* an enum: one of `names` */
    DOORMAN__JSON_FLAG,   /* a bool: one of two `names` */
    DOORMAN__JSON_OBJECT, /* the writer leaves it out if its first field has its default */
    DOORMAN__JSON_INLINE, /* a struct inside the struct. In JSON its fields are in the outer object
                             itself */
    DOORMAN__JSON_LIST,
    DOORMAN__JSON_OTHER /* two functions read and write it */
} doorman__type;

typedef enum doorman__flags {
    DOORMAN__JSON_OPTIONAL, /* the writer leaves out a default: 0, false, an empty list, `usual` */
    DOORMAN__JSON_NEEDED,   /* the reader refuses an object without the field */
    DOORMAN__JSON_ALWAYS,   /* the writer always writes the field */
    DOORMAN__JSON_REQUIRED, /* both NEEDED and ALWAYS */
    DOORMAN__JSON_LENIENT,  /* an unknown name or a number out of bounds counts as absent */
    DOORMAN__JSON_OR_STRING = 8 /* a string is not read, and is no error */
} doorman__flags;

/* One field of a struct. A table of rows ends with a row of zeros. */
typedef struct doorman__row {
    const char *key;     /* NULL: INLINE, a call, or an item of a list that is no object */
    const char *written; /* the key with a comma, quotes and a colon */
    unsigned char key_bytes, type, flags;
    signed char usual;  /* the default of a number */
    unsigned short at;  /* the offset in the struct */
    unsigned short has; /* the offset of the bool that says whether there is a value, or 0 */
    unsigned short count, bytes; /* of a list: the offset of its count; the size of an item */
    uint32_t least, most; /* the bounds of a number, if `most` is not 0. Of a list: `most` is the
                             largest number of items. Of a choice: `least` is the value of the first
                             name, and `most` is the number of names */
    const char *const *names;         /* an entry that is NULL has no name */
    const struct doorman__row *below; /* the fields of an object or of the items of a list */
    void (*read)(const doorman__field *field, void *out); /* without a key it gets the object */
    void (*put)(doorman__writer *out, const void *from);  /* writes the key and the value */
} doorman__row;

/* Macros that make rows. DOORMAN__ROW uses the name of the field in the struct as the key. */
#define DOORMAN__KEY(key_, type_, flags_)                                                          \
    .key = (key_), .written = ",\"" key_ "\":", .key_bytes = sizeof(key_) - 1,                     \
    .type = DOORMAN__JSON_##type_, .flags = DOORMAN__JSON_##flags_
#define DOORMAN__FIELD(key, type, flags, struct_, field)                                           \
    DOORMAN__KEY(key, type, flags), .at = offsetof(struct_, field)
#define DOORMAN__ROW_AS(key, type, flags, struct_, field)                                          \
    { DOORMAN__FIELD(key, type, flags, struct_, field) }
#define DOORMAN__ROW(type, flags, struct_, field)                                                  \
    { DOORMAN__FIELD(#field, type, flags, struct_, field) }
#define DOORMAN__ROW_HAS(type, struct_, field)                                                     \
    {                                                                                              \
        DOORMAN__FIELD(#field, type, OPTIONAL, struct_, field),                                    \
            .has = offsetof(struct_, has_##field)                                                  \
    }
#define DOORMAN__ROW_BOUNDED(key, type, flags, struct_, field, least_, most_)                      \
    { DOORMAN__FIELD(key, type, flags, struct_, field), .least = (least_), .most = (most_) }
#define DOORMAN__ROW_CHOICE(key, flags, struct_, field, names_)                                    \
    {                                                                                              \
        DOORMAN__FIELD(key, CHOICE, flags, struct_, field),                                        \
            .names = (names_), .most = sizeof(names_) / sizeof *(names_)                           \
    }
#define DOORMAN__ROW_OBJECT(key, struct_, field, rows)                                             \
    { DOORMAN__FIELD(key, OBJECT, OPTIONAL, struct_, field), .below = (rows) }
#define DOORMAN__ROW_INLINE(struct_, field, rows)                                                  \
    { .type = DOORMAN__JSON_INLINE, .at = offsetof(struct_, field), .below = (rows) }
#define DOORMAN__LIST(key, flags, struct_, field, counter, rows)                                   \
    DOORMAN__FIELD(key, LIST, flags, struct_, field), .count = offsetof(struct_, counter),         \
                                                      .bytes = sizeof *((struct_ *)NULL)->field,   \
                                                      .below = (rows)
#define DOORMAN__ROW_LIST(key, flags, struct_, field, counter, rows)                               \
    { DOORMAN__LIST(key, flags, struct_, field, counter, rows) }
#define DOORMAN__ROW_OTHER(key, flags, reader, writer)                                             \
    { DOORMAN__KEY(key, OTHER, flags), .read = (reader), .put = (writer) }
#define DOORMAN__ROW_CALL(reader, writer)                                                          \
    { .type = DOORMAN__JSON_OTHER, .read = (reader), .put = (writer) }

/* The items of a list of strings. */
static const doorman__row doorman__string_rows[] = {{.type = DOORMAN__JSON_STRING}, {0}};

typedef enum doorman__storage {
    DOORMAN__IN_DOUBLE,
    DOORMAN__IN_TIME, /* in JSON: seconds */
    DOORMAN__IN_UINT64,
    DOORMAN__IN_SIZE,
    DOORMAN__IN_UINT32,
    DOORMAN__IN_INT
} doorman__storage;

/* How a number is stored, and which numbers are valid. */
typedef struct doorman__number {
    doorman__storage storage;
    bool is_integer, is_exact; /* is_exact: written with as few digits as possible in each text */
    double least, most;
    const char *rule;
} doorman__number;

#define DOORMAN__POSITIVE 5e-324 /* the smallest double above 0 */

static const doorman__number doorman__numbers[] = {
    [DOORMAN__JSON_NUMBER] = {DOORMAN__IN_DOUBLE, false, false, -DBL_MAX, DBL_MAX, NULL},
    [DOORMAN__JSON_AMOUNT] = {DOORMAN__IN_DOUBLE, false, false, 0, DOORMAN_AMOUNT_MAX,
                              DOORMAN__AMOUNT_RULE},
    [DOORMAN__JSON_FRACTION] = {DOORMAN__IN_DOUBLE, false, true, 0, 1, "must be from 0 to 1"},
    [DOORMAN__JSON_SLOPE] = {DOORMAN__IN_DOUBLE, false, false, 0, 1, "must be from 0 to 1"},
    [DOORMAN__JSON_DECAY] = {DOORMAN__IN_DOUBLE, false, true, DOORMAN__POSITIVE, 1,
                             "must be more than 0 and at most 1"},
    [DOORMAN__JSON_RATE] = {DOORMAN__IN_DOUBLE, false, false, DOORMAN__POSITIVE, DOORMAN_AMOUNT_MAX,
                            "must be more than 0 and at most 1e15"},
    [DOORMAN__JSON_CLIENTS] = {DOORMAN__IN_DOUBLE, true, false, 1, DOORMAN_SUBCLIENTS_MAX,
                               "must be an integer from 1 to 1e9"},
    [DOORMAN__JSON_SECONDS] = {DOORMAN__IN_TIME, false, false, 0, 1e8,
                               DOORMAN__DURATION_OR_ZERO_RULE},
    [DOORMAN__JSON_DURATION] = {DOORMAN__IN_TIME, false, false, 1e-9, 1e8, doorman__duration_rule},
    [DOORMAN__JSON_HOUR] = {DOORMAN__IN_TIME, false, false, 1e-9, 3600, DOORMAN__HOUR_RULE},
    [DOORMAN__JSON_ID] = {DOORMAN__IN_UINT64, true, false, 1, DOORMAN__INTEGER_MAX,
                          doorman__lease_id_rule},
    [DOORMAN__JSON_EPOCH] = {DOORMAN__IN_UINT64, true, false, 0, DOORMAN__INTEGER_MAX,
                             "must be an integer from 0 to 2^53"},
    [DOORMAN__JSON_PRIORITY] = {DOORMAN__IN_INT, true, false, 0, DOORMAN_PRIORITY_MAX,
                                "must be an integer from 0 to 15"},
    [DOORMAN__JSON_SIZE] = {DOORMAN__IN_SIZE, true, false, 0, 0, NULL},
    [DOORMAN__JSON_UINT32] = {DOORMAN__IN_UINT32, true, false, 0, 0, NULL},
};

/* Stores a number. Seconds are rounded to nanoseconds. So a duration of up to 26 days that
 * doorman__put_seconds wrote is read back exactly. */
static void doorman__number_store(void *to, doorman__storage storage, double number) {
    switch (storage) {
    case DOORMAN__IN_DOUBLE: *(double *)to = number; break;
    case DOORMAN__IN_TIME: *(doorman_time *)to = (doorman_time)(number * 1e9 + 0.5); break;
    case DOORMAN__IN_UINT64: *(uint64_t *)to = (uint64_t)number; break;
    case DOORMAN__IN_SIZE: *(size_t *)to = (size_t)number; break;
    case DOORMAN__IN_UINT32: *(uint32_t *)to = (uint32_t)number; break;
    case DOORMAN__IN_INT: *(int *)to = (int)number; break;
    }
}

static uint64_t doorman__integer_load(const void *at, doorman__storage storage) {
    assert(storage != DOORMAN__IN_DOUBLE);
    if (storage == DOORMAN__IN_SIZE) return *(const size_t *)at;
    if (storage == DOORMAN__IN_UINT32) return *(const uint32_t *)at;
    if (storage == DOORMAN__IN_INT) return (uint64_t) * (const int *)at;
    if (storage == DOORMAN__IN_TIME) return (uint64_t) * (const doorman_time *)at;
    return *(const uint64_t *)at;
}

static bool doorman__number_valid(const doorman__field *field, const doorman__row *row,
                                  double number) {
    const doorman__number *type = &doorman__numbers[row->type];
    double least = row->most ? row->least : type->least, most = row->most ? row->most : type->most;
    bool is_integer = type->is_integer && !(row->flags & DOORMAN__JSON_LENIENT);
    if (!(number >= least && number <= most)) return false;
    if (is_integer && number > (double)(uint64_t)number) return false;
    bool rounded = field->reader->has_rounded_id && number >= DOORMAN__INTEGER_MAX;
    return row->type != DOORMAN__JSON_ID || !rounded;
}

/* A value that is not valid leaves the target unchanged. */
static void doorman__read_number(const doorman__field *field, const doorman__row *row, void *to) {
    assert(row->type > DOORMAN__JSON_END && row->type < DOORMAN__JSON_BOOL);
    const doorman__number *type = &doorman__numbers[row->type];
    if (!cJSON_IsNumber(field->value)) {
        bool is_read_elsewhere =
            row->flags & DOORMAN__JSON_OR_STRING && cJSON_IsString(field->value);
        if (!is_read_elsewhere) doorman__read_fail(field, "must be a number");
        return;
    }
    double number = field->value->valuedouble;
    char rule[64];
    if (doorman__number_valid(field, row, number)) {
        doorman__number_store(to, type->storage, number);
    } else if (row->flags & DOORMAN__JSON_LENIENT) {
        return;
    } else if (!(number - number == 0)) {
        doorman__read_fail(field, "must be a finite number");
    } else if (type->rule) {
        doorman__read_fail(field, type->rule);
    } else {
        snprintf(rule, sizeof rule, "must be %sfrom %g to %g",
                 type->is_integer ? "an integer " : "", (double)row->least, (double)row->most);
        doorman__read_fail(field, rule);
    }
}

static void doorman__read_string(const doorman__field *field, const char **out) {
    if (cJSON_IsString(field->value)) {
        *out = field->value->valuestring;
    } else if (field->value) {
        doorman__read_fail(field, "must be a string");
    }
}

static void doorman__read_bool(const doorman__field *field, bool *out) {
    *out = cJSON_IsTrue(field->value);
    if (field->value && !cJSON_IsBool(field->value)) doorman__read_fail(field, "must be a boolean");
}

/* Returns the index of a field's value among the names. Returns -1 if the field is absent, or if
 * its value is not among the names. Such a value is an error, except for a string if is_lenient is
 * true. */
static int doorman__read_name(const doorman__field *field, const char *const *names, size_t count,
                              bool is_lenient) {
    const char *name = NULL, *separator = " ";
    doorman__read_string(field, &name);
    for (size_t i = 0; name && i < count; i++) {
        if (names[i] && strcmp(name, names[i]) == 0) return (int)i;
    }
    if (!name || is_lenient) return -1;
    char rule[192] = "must be one of";
    for (size_t i = 0; i < count; i++) {
        size_t used = strlen(rule);
        if (!names[i]) continue;
        snprintf(rule + used, sizeof rule - used, "%s%s", separator, names[i]);
        separator = ", ";
    }
    doorman__read_fail(field, rule);
    return -1;
}

static void doorman__read_choice(const doorman__field *field, const doorman__row *row, void *to) {
    int chosen =
        doorman__read_name(field, row->names, row->most, row->flags & DOORMAN__JSON_LENIENT);
    if (chosen < 0) return;
    if (row->type == DOORMAN__JSON_FLAG) *(bool *)to = chosen > 0;
    if (row->type == DOORMAN__JSON_CHOICE) *(int *)to = (int)row->least + chosen;
}

static size_t doorman__list_count(const doorman__field *list) {
    return cJSON_IsArray(list->value) ? (size_t)cJSON_GetArraySize(list->value) : 0;
}

/* Returns the first item of a list. doorman__next moves to the next item. `value` is NULL behind
 * the last item. If reading has stopped, `value` of the first item is NULL, because there may be no
 * memory for the items. */
static doorman__field doorman__read_list(const doorman__field *list) {
    doorman__field first = {.reader = list->reader, .parent = list};
    bool is_list = cJSON_IsArray(list->value);
    if (list->value && !is_list) doorman__read_fail(list, "must be a list");
    if (is_list && !doorman__read_stopped(list->reader)) first.value = list->value->child;
    return first;
}

static void doorman__next(doorman__field *item) {
    item->index++;
    item->value = item->value->next;
}

/* Returns zeroed memory for structs that are made from the text. Returns NULL if reading has
 * stopped, or if there is no memory. */
static void *doorman__read_room(doorman__reader *reader, size_t bytes) {
    if (doorman__read_stopped(reader)) return NULL;
    void *room = doorman__arena_take(&reader->arena, bytes);
    if (!room) reader->status = DOORMAN_OUT_OF_MEMORY;
    return room ? memset(room, 0, bytes) : NULL;
}

static void doorman__read_value(const doorman__field *field, const doorman__row *row, void *out);
static void doorman__read_fields(const doorman__field *object, const doorman__row *rows, void *out);

static void doorman__read_items(const doorman__field *list, const doorman__row *row,
                                unsigned char *out) {
    const doorman__row *below = row->below;
    bool is_object = below->key || below->type == DOORMAN__JSON_INLINE;
    size_t count = doorman__list_count(list);
    assert(row->type == DOORMAN__JSON_LIST && row->bytes > 0);
    if (row->most && count > row->most) {
        char rule[64];
        snprintf(rule, sizeof rule, "must be a list of at most %u", (unsigned)row->most);
        doorman__read_fail(list, rule);
    }
    doorman__field item = doorman__read_list(list);
    unsigned char *items = (unsigned char *)doorman__read_room(list->reader, count * row->bytes);
    if (!items) return;
    memcpy(out + row->at, &items, sizeof items);
    *(size_t *)(void *)(out + row->count) = count;
    for (; item.value; doorman__next(&item), items += row->bytes) {
        if (is_object) doorman__read_fields(&item, below, items);
        if (!is_object) doorman__read_value(&item, below, items);
    }
}

/* Reads one field into a struct. If the object lacks the field, the field gets its default. */
static void doorman__read_value(const doorman__field *field, const doorman__row *row, void *out) {
    unsigned char *base = (unsigned char *)out;
    void *to = base + row->at;
    if (row->has) *(bool *)(base + row->has) = field->value || row->usual;
    if (row->type == DOORMAN__JSON_OTHER) {
        if (row->read) row->read(field, out);
    } else if (row->type == DOORMAN__JSON_BOOL) {
        doorman__read_bool(field, (bool *)to);
    } else if (!field->value) {
        if (!row->usual) return;
        doorman__number_store(to, doorman__numbers[row->type].storage, row->usual);
    } else if (row->type == DOORMAN__JSON_STRING || row->type == DOORMAN__JSON_TEXT) {
        doorman__read_string(field, (const char **)to);
    } else if (row->names) {
        doorman__read_choice(field, row, to);
    } else if (row->type == DOORMAN__JSON_LIST) {
        doorman__read_items(field, row, base);
    } else if (row->type == DOORMAN__JSON_OBJECT) {
        doorman__read_fields(field, row->below, to);
    } else {
        doorman__read_number(field, row, to);
    }
}

/* Returns true if a key equals a name of `bytes` bytes. Most keys differ in the first character.
 * For these keys this loop is faster than a call of strncmp. */
static bool doorman__key_is(const char *key, const char *name, size_t bytes) {
    size_t same = 0;
    while (same < bytes && key[same] == name[same]) same++;
    return same == bytes && !key[same];
}

static doorman__field doorman__field_of(const doorman__field *object, const char *key,
                                        size_t bytes) {
    const cJSON *value = cJSON_IsObject(object->value) ? object->value->child : NULL;
    while (value && !doorman__key_is(value->string, key, bytes)) value = value->next;
    return (doorman__field){object->reader, object, key, (int)bytes, 0, value};
}

/* Finds a key that differs from the name of a field only by an `s` at the end, and returns it, or
 * NULL. An example is `resources` in place of `resource`. */
static const char *doorman__near_key(const doorman__field *field) {
    for (const cJSON *value = field->parent->value->child; value; value = value->next) {
        size_t bytes = strlen(value->string), wanted = (size_t)field->key_bytes;
        size_t common = bytes < wanted ? bytes : wanted;
        const char *longer = bytes < wanted ? field->key : value->string;
        bool by_one = bytes == wanted + 1 || bytes + 1 == wanted;
        bool same = by_one && strncmp(value->string, field->key, common) == 0;
        if (same && longer[common] == 's') return value->string;
    }
    return NULL;
}

static void doorman__read_missing(const doorman__field *field) {
    char rule[80];
    const char *near = doorman__near_key(field);
    snprintf(rule, sizeof rule, "is missing; \"%s\" is not a field", near ? near : "");
    doorman__read_fail(field, near ? rule : "is missing");
}

/* Reads the fields of an object. Most texts have the fields in the order of the rows. So the
 * function first tries the value after the last one that it found. */
static void doorman__read_rows(const doorman__field *object, const doorman__row *rows, void *out) {
    assert(cJSON_IsObject(object->value));
    const cJSON *next = object->value->child;
    for (const doorman__row *row = rows; row->type; row++) {
        if (row->type == DOORMAN__JSON_INLINE) {
            doorman__read_rows(object, row->below, (unsigned char *)out + row->at);
            continue;
        }
        if (!row->key) {
            doorman__read_value(object, row, out);
            continue;
        }
        doorman__field field = {object->reader, object, row->key, row->key_bytes, 0, next};
        if (!next || !doorman__key_is(next->string, row->key, row->key_bytes)) {
            field = doorman__field_of(object, row->key, row->key_bytes);
        }
        if (field.value) next = field.value->next;
        if (!field.value && row->flags & DOORMAN__JSON_NEEDED) doorman__read_missing(&field);
        doorman__read_value(&field, row, out);
    }
}

static bool doorman__key_known(const doorman__row *rows, const char *key) {
    for (const doorman__row *row = rows; row->type; row++) {
        if (row->key && doorman__key_is(key, row->key, row->key_bytes)) return true;
        if (row->type == DOORMAN__JSON_INLINE && doorman__key_known(row->below, key)) return true;
    }
    return false;
}

/* In a configuration, or a part of one, a key without a row is refused. */
static void doorman__read_fields(const doorman__field *object, const doorman__row *rows,
                                 void *out) {
    if (!cJSON_IsObject(object->value)) {
        doorman__read_fail(object, "must be an object");
        return;
    }
    const cJSON *value = object->reader->problems ? object->value->child : NULL;
    for (; value; value = value->next) {
        if (doorman__key_known(rows, value->string)) continue;
        doorman__field field = doorman__member(object, value);
        doorman__read_fail(&field, "is not known");
    }
    doorman__read_rows(object, rows, out);
}

/* Returns whether the writer writes a field without the flag ALWAYS. If the row has `has`, the bool
 * at this offset must be true. If the row has `usual`, the value must differ from it. If the row
 * has neither, the value must not be the default. */
static bool doorman__has_value(const doorman__row *row, const void *from) {
    const unsigned char *base = (const unsigned char *)from;
    const void *at = base + row->at;
    const char *text;
    if (row->has && !*(const bool *)(base + row->has)) return false;
    switch (row->type) {
    case DOORMAN__JSON_STRING:
    case DOORMAN__JSON_TEXT:
        memcpy(&text, at, sizeof text);
        return text && (row->type == DOORMAN__JSON_STRING || *text);
    case DOORMAN__JSON_BOOL:
    case DOORMAN__JSON_FLAG: return row->has || *(const bool *)at;
    case DOORMAN__JSON_CHOICE: return *(const int *)at != 0;
    case DOORMAN__JSON_LIST:
        return row->has || *(const size_t *)(const void *)(base + row->count) > 0;
    case DOORMAN__JSON_OBJECT: return doorman__has_value(row->below, at);
    case DOORMAN__JSON_INLINE:
    case DOORMAN__JSON_OTHER: return true;
    default: break;
    }
    if (row->has && !row->usual) return true;
    doorman__storage storage = doorman__numbers[row->type].storage;
    if (storage != DOORMAN__IN_DOUBLE) {
        return doorman__integer_load(at, storage) != (uint64_t)row->usual;
    }
    double number = *(const double *)at;
    return row->usual ? !doorman__equal(number, row->usual) : number > 0;
}

static void doorman__put_number(doorman__writer *out, const doorman__row *row, const void *at) {
    const doorman__number *type = &doorman__numbers[row->type];
    if (type->storage == DOORMAN__IN_DOUBLE) {
        bool is_none = row->type == DOORMAN__JSON_CLIENTS && *(const double *)at < 1;
        bool is_exact = out->is_exact || type->is_exact;
        doorman__put_amount(out, is_none ? 1 : *(const double *)at, is_exact); /* 0 means 1 */
    } else if (type->storage == DOORMAN__IN_TIME) {
        doorman__put_seconds(out, *(const doorman_time *)at);
    } else {
        doorman__put_decimal(out, doorman__integer_load(at, type->storage), 0);
    }
}

static void doorman__put_value(doorman__writer *out, const doorman__row *row, const void *from);
static void doorman__put_rows(doorman__writer *out, const doorman__row *rows, const void *from);

static void doorman__put_fields(doorman__writer *out, const doorman__row *rows, const void *from) {
    doorman__put_bytes(out, "{", 1);
    doorman__put_rows(out, rows, from);
    doorman__put_bytes(out, "}", 1);
}

static void doorman__put_items(doorman__writer *out, const doorman__row *row,
                               const unsigned char *from) {
    const doorman__row *below = row->below;
    bool is_object = below->key || below->type == DOORMAN__JSON_INLINE;
    const unsigned char *item;
    size_t count = *(const size_t *)(const void *)(from + row->count);
    memcpy(&item, from + row->at, sizeof item);
    assert(row->type == DOORMAN__JSON_LIST && row->bytes > 0);
    doorman__put_bytes(out, "[", 1);
    for (size_t i = 0; i < count; i++, item += row->bytes) {
        if (i) doorman__put_bytes(out, ",", 1);
        if (is_object) doorman__put_fields(out, below, item);
        if (!is_object) doorman__put_value(out, below, item);
    }
    doorman__put_bytes(out, "]", 1);
}

static void doorman__put_choice(doorman__writer *out, const doorman__row *row, const void *at) {
    bool is_flag = row->type == DOORMAN__JSON_FLAG;
    int chosen = is_flag ? *(const bool *)at : *(const int *)at - (int)row->least;
    const char *name = chosen >= 0 && chosen < (int)row->most ? row->names[chosen] : NULL;
    doorman__put_string(out, name ? name : "?");
}

static void doorman__put_value(doorman__writer *out, const doorman__row *row, const void *from) {
    const unsigned char *base = (const unsigned char *)from;
    const void *at = base + row->at;
    if (row->type < DOORMAN__JSON_BOOL) {
        doorman__put_number(out, row, at);
    } else if (row->type == DOORMAN__JSON_BOOL) {
        doorman__put(out, "%b", *(const bool *)at);
    } else if (row->type == DOORMAN__JSON_STRING || row->type == DOORMAN__JSON_TEXT) {
        const char *text;
        memcpy(&text, at, sizeof text);
        doorman__put_string(out, text ? text : "");
    } else if (row->names) {
        doorman__put_choice(out, row, at);
    } else if (row->type == DOORMAN__JSON_LIST) {
        doorman__put_items(out, row, base);
    } else if (row->type == DOORMAN__JSON_OBJECT) {
        doorman__put_fields(out, row->below, at);
    }
}

/* Writes a key, with a comma before it unless it is the first one of its object. */
static void doorman__put_key(doorman__writer *out, const doorman__row *row) {
    const doorman_buffer *buffer = out->buffer;
    bool is_first = buffer->bytes && buffer->text[buffer->bytes - 1] == '{';
    doorman__put_bytes(out, row->written + is_first, row->key_bytes + 4u - is_first);
}

/* Writes the fields of a struct, without the braces around them. */
static void doorman__put_rows(doorman__writer *out, const doorman__row *rows, const void *from) {
    for (const doorman__row *row = rows; row->type; row++) {
        if (row->put) {
            row->put(out, from);
        } else if (row->type == DOORMAN__JSON_INLINE) {
            doorman__put_rows(out, row->below, (const unsigned char *)from + row->at);
        } else if (row->type == DOORMAN__JSON_OTHER) {
            continue;
        } else if (row->flags & DOORMAN__JSON_ALWAYS || doorman__has_value(row, from)) {
            doorman__put_key(out, row);
            doorman__put_value(out, row, from);
        }
    }
}
/* ---- JSON: configurations */

/* What this section needs to read and write permits. The section >>permit_json defines it. */
typedef struct doorman__json_permits {
    const doorman__row *limits;                         /* of a template */
    const doorman__row *descriptors;                    /* of a configuration */
    const doorman__row *map;                            /* of shards */
    const doorman__row (*requests)[3], (*responses)[3]; /* for each method from ACQUIRE on */
    doorman_status (*check_reply)(const doorman_permits *permits, const doorman_request *request,
                                  doorman_error *error);
    bool (*is_pending)(const doorman_json_exchange *exchange); /* a permit of the exchange waits */
    doorman_status (*refuse_figures)(const doorman_request *request, doorman_error *error);
} doorman__json_permits;
static const doorman__json_permits doorman__permits_in_json;

static const char *const doorman__kind_names[] = {
#define DOORMAN__KIND_NAME(kind, name) name,
    DOORMAN_KINDS(DOORMAN__KIND_NAME)};

static const char *const doorman__handovers[] = {
    [DOORMAN_CONFIRMED] = "confirmed", [DOORMAN_IMMEDIATE] = "immediate"};

/* The parameters of an algorithm (G7). The first two can also be fields of the algorithm,
 * `lease_length` and `refresh_interval`. */
static const doorman__row doorman__parameter_rows[] = {
    DOORMAN__ROW_AS("lease_duration_secs", DURATION, OPTIONAL, doorman_algorithm, lease_length),
    DOORMAN__ROW(DURATION, OPTIONAL, doorman_algorithm, refresh_interval),
    DOORMAN__ROW_HAS(SECONDS, doorman_algorithm, minimum_interval),
    DOORMAN__ROW(DURATION, OPTIONAL, doorman_algorithm, minimum_refresh_interval),
    DOORMAN__ROW(DECAY, OPTIONAL, doorman_algorithm, decay_factor),
    DOORMAN__ROW(FRACTION, OPTIONAL, doorman_algorithm, reserve),
    DOORMAN__ROW_CHOICE("handover", OPTIONAL, doorman_algorithm, handover, doorman__handovers),
    {0},
};
enum { DOORMAN__PARAMETER_COUNT = sizeof doorman__parameter_rows / sizeof(doorman__row) - 1 };

static const doorman__row doorman__name_value_rows[] = {
    DOORMAN__ROW_OTHER("name", NEEDED, NULL, NULL),
    DOORMAN__ROW_OTHER("value", NEEDED, NULL, NULL),
    {0},
};

/* Reads one parameter. A number may be written as a string, as in configurations of the original
 * Doorman. */
static void doorman__read_parameter(const doorman__field *field, unsigned *given,
                                    doorman_algorithm *out) {
    const char *texts[DOORMAN__PARAMETER_COUNT];
    for (size_t i = 0; i < DOORMAN__PARAMETER_COUNT; i++) texts[i] = doorman__parameter_rows[i].key;
    doorman__read_fields(field, doorman__name_value_rows, out); /* stores nothing */
    doorman__field name = doorman__field_of(field, "name", 4);
    doorman__field value = doorman__field_of(field, "value", 5);
    int which =
        doorman__read_name(&name, texts, DOORMAN__PARAMETER_COUNT, !field->reader->problems);
    if (which < 0) return;
    const doorman__row *row = &doorman__parameter_rows[which];
    if (*given & 1u << which) doorman__read_fail(&name, "is set already");
    *given |= 1u << which;
    cJSON *number = NULL;
    if (!row->names && cJSON_IsString(value.value)) {
        const char *text = value.value->valuestring;
        doorman__scan scan;
        doorman_status status = doorman__json_parse(&number, &scan, text, strlen(text));
        if (status == DOORMAN_OUT_OF_MEMORY) field->reader->status = status;
        if (number) value.value = number;
    }
    doorman__read_value(&value, row, out);
    cJSON_Delete(number);
}

static void doorman__read_parameters(const doorman__field *list, void *out) {
    doorman_algorithm *algorithm = (doorman_algorithm *)out;
    unsigned given = (algorithm->lease_length ? 1u : 0) | (algorithm->refresh_interval ? 2u : 0);
    doorman__field item = doorman__read_list(list);
    for (; item.value; doorman__next(&item)) doorman__read_parameter(&item, &given, algorithm);
}

static const doorman__row doorman__algorithm_rows[] = {
    DOORMAN__ROW_CHOICE("kind", NEEDED, doorman_algorithm, kind, doorman__kind_names),
    DOORMAN__ROW(DURATION, OPTIONAL, doorman_algorithm, lease_length),
    DOORMAN__ROW(DURATION, OPTIONAL, doorman_algorithm, refresh_interval),
    DOORMAN__ROW_HAS(SECONDS, doorman_algorithm, learning_mode_duration),
    DOORMAN__ROW_OTHER("parameters", OPTIONAL, doorman__read_parameters, NULL),
    {0},
};

/* Reads an algorithm that a parent has sent. The parent may have a newer version than this node, so
 * unknown parameters are ignored. If the kind of the algorithm is unknown, the function leaves
 * `out` unchanged and returns false. */
static bool doorman__read_algorithm(const doorman__field *field, doorman_algorithm *out) {
    doorman__field kind = doorman__field_of(field, "kind", 4);
    bool is_unknown = !field->reader->problems && cJSON_IsString(kind.value) &&
                      doorman__read_name(&kind, doorman__kind_names, DOORMAN_KIND_COUNT, true) < 0;
    if (!is_unknown) doorman__read_fields(field, doorman__algorithm_rows, out);
    return !is_unknown;
}

/* Writes an algorithm, without the parameters that have their default value. */
static void doorman__put_algorithm(doorman__writer *out, const doorman_algorithm *given,
                                   bool whole) {
    const doorman_algorithm none = {.reserve = 0}, usual = doorman__algorithm_resolve(&none);
    const doorman_algorithm all = doorman__algorithm_resolve(given);
    doorman__put(out, "%,'algorithm':{'kind':%s,'lease_length':%t,'refresh_interval':%t",
                 doorman__kind_names[all.kind], all.lease_length, all.refresh_interval);
    if (whole) doorman__put(out, ",'whole':%b", true);
    if (all.has_learning_mode_duration) {
        doorman__put(out, ",'learning_mode_duration':%t", all.learning_mode_duration);
    }
    doorman__put(out, ",'parameters':[");
    if (all.minimum_interval != usual.minimum_interval) {
        doorman__put(out, "%,{'name':'minimum_interval','value':%t}", all.minimum_interval);
    }
    if (all.minimum_refresh_interval != usual.minimum_refresh_interval) {
        doorman__put(out, "%,{'name':'minimum_refresh_interval','value':%t}",
                     all.minimum_refresh_interval);
    }
    if (all.decay_factor != usual.decay_factor) {
        doorman__put(out, "%,{'name':'decay_factor','value':%x}", all.decay_factor);
    }
    if (all.reserve > 0) doorman__put(out, "%,{'name':'reserve','value':%x}", all.reserve);
    if (all.handover != usual.handover) {
        doorman__put(out, "%,{'name':'handover','value':%s}", doorman__handovers[all.handover]);
    }
    doorman__put(out, "]}");
}

static void doorman__read_target(const doorman__field *object, void *out) {
    doorman__field target = doorman__field_of(object, "target", strlen("target"));
    if (!((doorman_overload *)out)->target) doorman__read_fail(&target, "must be more than 0");
}

static void doorman__read_capacity(const doorman__field *capacity, void *out) {
    static const doorman__row amount =
        DOORMAN__ROW_AS("", AMOUNT, OPTIONAL, doorman_template, capacity);
    doorman__field limits = doorman__field_of(capacity->parent, "limits", strlen("limits"));
    ((doorman_template *)out)->without_capacity = !capacity->value;
    if (capacity->value) {
        doorman__read_value(capacity, &amount, out);
    } else if (!limits.value && !doorman__near_key(capacity) && !doorman__near_key(&limits)) {
        doorman__read_fail(capacity, "is missing; a template needs `capacity` or `limits`");
    } else if (!limits.value) {
        doorman__read_missing(doorman__near_key(capacity) ? capacity : &limits);
    }
}

static void doorman__put_capacity(doorman__writer *out, const void *from) {
    const doorman_template *template_ = (const doorman_template *)from;
    if (!template_->without_capacity) doorman__put(out, "%,'capacity':%x", template_->capacity);
}

/* Writes the algorithm of a template, if it has one. Other templates use the algorithm of the
 * template `*` (G3). */
static void doorman__put_template_algorithm(doorman__writer *out, const void *from) {
    const doorman_template *template_ = (const doorman_template *)from;
    if (template_->has_algorithm) doorman__put_algorithm(out, &template_->algorithm, false);
}

static void doorman__read_template_limits(const doorman__field *field, void *out) {
    if (DOORMAN__HAS_PERMITS) {
        doorman__read_value(field, doorman__permits_in_json.limits, out);
    } else if (field->value) {
        doorman__read_fail(field, DOORMAN__NO_PERMITS);
    }
}

static void doorman__put_template_limits(doorman__writer *out, const void *from) {
    if (!DOORMAN__HAS_PERMITS) return;
    const doorman__row *limits = doorman__permits_in_json.limits;
    if (!doorman__has_value(limits, from)) return;
    doorman__put_key(out, limits);
    doorman__put_value(out, limits, from);
}

static const doorman__row doorman__overload_rows[] = {
    DOORMAN__ROW(SECONDS, NEEDED, doorman_overload, target),
    DOORMAN__ROW(AMOUNT, OPTIONAL, doorman_overload, capacity_min),
    DOORMAN__ROW_CALL(doorman__read_target, NULL),
    {0},
};

static const char *const doorman__shard_keys[] = {"key", "resource"};
static const doorman__row doorman__template_rows[] = {
    DOORMAN__ROW(STRING, REQUIRED, doorman_template, identifier_glob),
    DOORMAN__ROW(TEXT, OPTIONAL, doorman_template, description),
    DOORMAN__ROW(TEXT, OPTIONAL, doorman_template, unit),
    DOORMAN__ROW(TEXT, OPTIONAL, doorman_template, refused_body),
    DOORMAN__ROW_OTHER("capacity", OPTIONAL, doorman__read_capacity, doorman__put_capacity),
    DOORMAN__ROW_HAS(NUMBER, doorman_template, safe_capacity),
    DOORMAN__ROW(BOOL, OPTIONAL, doorman_template, whole),
    DOORMAN__ROW_OBJECT("overload", doorman_template, overload, doorman__overload_rows),
    {DOORMAN__FIELD("algorithm", OBJECT, OPTIONAL, doorman_template, algorithm),
     .has = offsetof(doorman_template, has_algorithm), .below = doorman__algorithm_rows,
     .put = doorman__put_template_algorithm},
    {DOORMAN__FIELD("shard_by", FLAG, OPTIONAL, doorman_template, shard_by_resource),
     .names = doorman__shard_keys, .most = 2},
    DOORMAN__ROW_OTHER("limits", OPTIONAL, doorman__read_template_limits,
                       doorman__put_template_limits),
    {0},
};

/* A value that a path names, and the objects and lists around it. */
typedef struct doorman__walk {
    doorman__field steps[8];
    size_t count;
} doorman__walk;

/* Finds the value with a path below `start`, for example "limits[2].tiers[0].window". Returns its
 * field. */
static const doorman__field *doorman__walk_path(doorman__walk *walk, const doorman__field *start,
                                                const char *path, size_t bytes) {
    const doorman__field *at = start;
    const char *end = path + bytes;
    walk->count = 0;
    while (path < end && walk->count < sizeof walk->steps / sizeof *walk->steps) {
        doorman__field *step = &walk->steps[walk->count++];
        if (*path == '[') {
            size_t index = (size_t)strtoul(path + 1, NULL, 10);
            *step = (doorman__field){.reader = start->reader, .parent = at, .index = index};
            step->value = cJSON_GetArrayItem(at->value, (int)index);
            if (cJSON_IsObject(at->value) && step->value) { /* the plans have names, not indexes */
                step->key = step->value->string;
                step->key_bytes = (int)strlen(step->key);
            }
            path += strcspn(path, "]") + 1;
        } else {
            size_t key_bytes = strcspn(path, ".[:");
            *step = doorman__field_of(at, path, key_bytes);
            path += key_bytes;
        }
        if (path < end && *path == '.') path++;
        at = step;
    }
    return at;
}

/* Makes the path of a field in JSON: the text `object`, and behind it `field`. In JSON the figures
 * of a limit are fields of the limit itself, so "figures." is left out. */
static void doorman__config_path(const char *object, const char *field, size_t bytes,
                                 char path[256]) {
    static const char figures[] = "figures.";
    const size_t skipped = sizeof figures - 1;
    snprintf(path, 256, "%.128s%.*s", object, (int)bytes, field);
    char *at = strstr(path, figures);
    if (at) memmove(at, at + skipped, strlen(at + skipped) + 1);
}

/* Adds a problem that the section >>configuration reports. `context` is the doorman__field of the
 * whole text. */
static void doorman__config_problem_add(const doorman__config_report *report, size_t index,
                                        const char *object, const char *text) {
    const doorman__field *root = (const doorman__field *)report->context;
    const doorman__problems *problems = root->reader->problems;
    const char *second = strchr(text, '\n'); /* behind it: the names of JSON, see DOORMAN__NAMES */
    if (second) text = second + 1;
    const size_t key_bytes = doorman__path_bytes(text);
    doorman__field list = doorman__field_of(root, "resources", strlen("resources"));
    doorman__field item = {.reader = root->reader, .parent = &list, .index = index};
    if (index != DOORMAN__NO_TEMPLATE) item.value = cJSON_GetArrayItem(list.value, (int)index);
    char path[256];
    doorman__config_path(object, text, key_bytes, path);
    doorman__walk walk;
    const doorman__field *start = index == DOORMAN__NO_TEMPLATE ? root : &item;
    const doorman__field *field = doorman__walk_path(&walk, start, path, strlen(path));
    doorman__read_note(field, text + key_bytes + strlen(": "));
    if (problems->count > problems->room) return;
    assert(problems->count > 0);
    problems->items[problems->count - 1].without_store = report->without_store;
}

/* Reads and checks the templates. A template with an error in its text is not checked further,
 * because some of its fields are not set. */
static void doorman__read_templates(const doorman__field *list, void *out) {
    doorman_config_options *options = (doorman_config_options *)out;
    doorman__reader *reader = list->reader;
    doorman__field root = *list->parent;
    const doorman__config_report report = {doorman__config_problem_add, &root, false};
    size_t count = doorman__list_count(list);
    if (count > DOORMAN__TEMPLATE_MAX && !doorman__read_stopped(reader)) {
        char rule[64];
        snprintf(rule, sizeof rule, "at most %d, not %zu", DOORMAN__TEMPLATE_MAX, count);
        doorman__read_fail(list, rule);
        reader->status = DOORMAN_RESOURCE_EXHAUSTED;
    }
    doorman_template *templates =
        (doorman_template *)doorman__read_room(reader, count * sizeof *templates);
    options->templates = templates;
    options->template_count = count;
    doorman__field item = doorman__read_list(list);
    for (; item.value; doorman__next(&item)) {
        const size_t before = reader->problems->count;
        doorman__read_fields(&item, doorman__template_rows, &templates[item.index]);
        if (doorman__read_stopped(reader)) return; /* without memory the template is not complete */
        if (reader->problems->count > before) continue;
        doorman__template_check(options, item.index, &report);
        if (reader->problems->count > before) reader->status = DOORMAN_INVALID_ARGUMENT;
    }
    if (doorman__read_stopped(reader) || reader->problems->count) return;
    if (DOORMAN__HAS_PERMITS) doorman__permits_in_config.check_leased(options, &report);
    doorman__config_check_shards(options, &report);
    if (reader->problems->count) reader->status = DOORMAN_INVALID_ARGUMENT;
}

static void doorman__read_shadow(const doorman__field *list, void *out) {
    static const doorman__row strings = DOORMAN__ROW_LIST(
        "", OPTIONAL, doorman_config_options, shadow, shadow_count, doorman__string_rows);
    doorman__reader *reader = list->reader;
    doorman__field root = *list->parent;
    const doorman__config_report report = {doorman__config_problem_add, &root, false};
    size_t before = reader->problems->count;
    doorman__read_value(list, &strings, out);
    if (doorman__read_stopped(reader) || reader->problems->count > before) return;
    doorman__config_check_shadow((const doorman_config_options *)out, &report);
    if (reader->problems->count > before) reader->status = DOORMAN_INVALID_ARGUMENT;
}

static void doorman__read_descriptors(const doorman__field *list, void *out) {
    doorman__reader *reader = list->reader;
    doorman__field root = *list->parent;
    const doorman__config_report report = {doorman__config_problem_add, &root, false};
    size_t before = reader->problems->count;
    if (DOORMAN__HAS_PERMITS) {
        doorman__read_value(list, doorman__permits_in_json.descriptors, out);
    } else if (list->value) {
        doorman__read_fail(list, DOORMAN__NO_PERMITS);
    }
    if (doorman__read_stopped(reader) || reader->problems->count > before) return;
    doorman__config_check_descriptors((const doorman_config_options *)out, &report);
    if (reader->problems->count > before) reader->status = DOORMAN_INVALID_ARGUMENT;
}

static const char *const doorman__policies[] = {"allow", "reject"};
static const doorman__row doorman__config_rows[] = {
    DOORMAN__ROW_BOUNDED("shards", SIZE, OPTIONAL, doorman_config_options, shard_count, 1,
                         DOORMAN_SHARDS_MAX),
    DOORMAN__ROW_OTHER("resources", NEEDED, doorman__read_templates, NULL),
    {DOORMAN__FIELD("unmatched", FLAG, OPTIONAL, doorman_config_options, reject_unmatched),
     .names = doorman__policies, .most = 2},
    DOORMAN__ROW_OTHER("shadow", OPTIONAL, doorman__read_shadow, NULL),
    DOORMAN__ROW_OTHER("descriptors", OPTIONAL, doorman__read_descriptors, NULL),
    {0},
};

doorman_status doorman_json_check_config(doorman_config **out, const char *text, size_t bytes,
                                         doorman_config_problems *problems) {
    bool has_text = text || !bytes || bytes > DOORMAN_MESSAGE_BYTES_MAX; /* too large: not read */
    doorman_config_problems none = {.room = 0};
    if (!problems) problems = &none;
    problems->count = 0;
    if ((problems->room && !problems->items) || !has_text) return DOORMAN_INVALID_ARGUMENT;
    doorman__problems list = {text, bytes, problems->items, problems->room, 0};
    doorman__reader reader = {.problems = &list};
    doorman_config *config = NULL;
    doorman__field root = doorman__read_start(&reader, text, bytes);
    doorman_config_options options = {.template_count = 0};
    doorman__read_fields(&root, doorman__config_rows, &options);
    if (reader.status == DOORMAN_OK && out) {
        config = doorman__config_make(&options);
        if (!config) reader.status = DOORMAN_OUT_OF_MEMORY;
        if (config) config->wire_names = true;
    }
    if (reader.status == DOORMAN_OK) {
        const doorman__config_report report = {doorman__config_problem_add, &root, false};
        doorman__config_warn(&options, &report);
        if (out) *out = config;
    } else if (reader.status == DOORMAN_OUT_OF_MEMORY) {
        list.count = 0;
        (void)doorman__no_memory(doorman__problem_add(&list, NULL));
    }
    assert(reader.status == DOORMAN_OK || (list.count > 0 && !config));
    problems->count = list.count;
    return doorman__read_end(&reader);
}

doorman_status doorman_json_config(doorman_config **out, const char *text, size_t bytes,
                                   doorman_error *error) {
    if (!out) return doorman__missing(error, "out");
    if (bytes && !text) return doorman__missing(error, "text");
    doorman_config_problem first = {0};
    doorman_config_problems problems = {.items = &first, .room = error ? 1 : 0};
    doorman_status status = doorman_json_check_config(out, text, bytes, &problems);
    if (!error) return status;
    if (problems.count > 0 && first.line > 0) {
        (void)doorman__fail(error, status, "line %zu, column %zu: %s", first.line, first.column,
                            first.error.text);
    } else if (problems.count > 0) {
        *error = first.error;
    }
    doorman__error_end(error, problems.count);
    return status;
}

doorman_status doorman_json_write_config(const doorman_config_options *options,
                                         doorman_buffer *text) {
    if (!options || !text) return DOORMAN_INVALID_ARGUMENT;
    doorman__writer out = doorman__put_start(text);
    out.is_exact = true;
    doorman__put(&out, "{");
    if (options->reject_unmatched) doorman__put(&out, "'unmatched':%s,", "reject");
    if (options->shard_count) doorman__put(&out, "'shards':%n,", (double)options->shard_count);
    if (options->shadow_count) doorman__put(&out, "'shadow':[");
    for (size_t i = 0; i < options->shadow_count; i++)
        doorman__put(&out, "%,%s", options->shadow[i]);
    if (options->shadow_count) doorman__put(&out, "],");
    if (DOORMAN__HAS_PERMITS && options->descriptor_count) {
        doorman__put(&out, "'descriptors':");
        doorman__put_value(&out, doorman__permits_in_json.descriptors, options);
        doorman__put(&out, ",");
    }
    doorman__put(&out, "'resources':[");
    for (size_t i = 0; i < options->template_count; i++) {
        doorman__put(&out, "%,\n");
        doorman__put_fields(&out, doorman__template_rows, &options->templates[i]);
    }
    doorman__put(&out, "]}");
    return doorman__put_end(&out);
}

/* ---- JSON: messages on leases */

static bool doorman__method_has_permits(doorman_method method) {
    return method >= DOORMAN_ACQUIRE && method <= DOORMAN_SETTLE;
}

/* Reads the holder's id from client_id or server_id. In a release, the key that is present says
 * whether the holder is a client or a server. */
static void doorman__read_holder(const doorman__field *body, void *out) {
    doorman_request *request = (doorman_request *)out;
    doorman__field server = doorman__field_of(body, "server_id", 9);
    doorman__field client = doorman__field_of(body, "client_id", 9);
    if (request->method == DOORMAN_RELEASE_CAPACITY) {
        request->is_server = server.value != NULL;
        if (server.value && client.value) {
            doorman__read_fail(&client, "must not be given with server_id");
        }
    }
    const doorman__field *id = request->is_server ? &server : &client;
    if (!id->value) doorman__read_missing(id);
    doorman__read_string(id, &request->holder_id);
}

static void doorman__put_holder(doorman__writer *out, const void *from) {
    const doorman_request *request = (const doorman_request *)from;
    doorman__put(out, request->is_server ? "'server_id':%s" : "'client_id':%s", request->holder_id);
}

/* Checks how many nodes the path of a server's request has. */
static void doorman__read_path(const doorman__field *body, void *out) {
    doorman__field path = doorman__field_of(body, "path", 4);
    size_t count = doorman__list_count(&path);
    bool bounded = count >= 1 && count <= DOORMAN__PATH_MAX;
    if (path.value && !bounded) doorman__read_fail(&path, "must be a list of 1 to 16 ids");
    (void)out;
}

/* The demand of a client for a resource. In JSON the fields of the demand are fields of the
 * resource. */
static const doorman__row doorman__demand_rows[] = {
    {DOORMAN__FIELD("priority", PRIORITY, ALWAYS, doorman_demand, priority), .usual = 1},
    DOORMAN__ROW(AMOUNT, REQUIRED, doorman_demand, wants),
    {0},
};

static void doorman__read_demand(const doorman__field *object, void *out) {
    doorman_capacity_request *item_request = (doorman_capacity_request *)out;
    doorman_demand *demand = (doorman_demand *)doorman__read_room(object->reader, sizeof *demand);
    if (!demand) return;
    demand->subclients = 1;
    doorman__read_rows(object, doorman__demand_rows, demand);
    item_request->wants = demand;
    item_request->wants_count = 1;
}

static void doorman__put_demand(doorman__writer *out, const void *from) {
    const doorman_demand *demand = ((const doorman_capacity_request *)from)->wants;
    doorman__put_rows(out, doorman__demand_rows, demand);
}

/* The demands of a server, one for each group of its clients. */
static const doorman__row doorman__group_rows[] = {
    {DOORMAN__FIELD("priority", PRIORITY, ALWAYS, doorman_demand, priority), .usual = 1},
    DOORMAN__ROW_AS("num_clients", CLIENTS, REQUIRED, doorman_demand, subclients),
    DOORMAN__ROW(AMOUNT, REQUIRED, doorman_demand, wants),
    {0},
};

static const doorman__row doorman__has_rows[] = {
    DOORMAN__ROW(ID, REQUIRED, doorman_lease, id),
    DOORMAN__ROW(STRING, REQUIRED, doorman_lease, node),
    DOORMAN__ROW(AMOUNT, REQUIRED, doorman_lease, capacity),
    DOORMAN__ROW(SECONDS, REQUIRED, doorman_lease, expires_in),
    {0},
};

/* A report (H11). In the method report_overload the fields of the report are fields of the
 * resource. */
static const doorman__row doorman__report_rows[] = {
    DOORMAN__ROW(SECONDS, REQUIRED, doorman_overload_report, interval),
    DOORMAN__ROW(AMOUNT, REQUIRED, doorman_overload_report, arrived),
    DOORMAN__ROW(AMOUNT, REQUIRED, doorman_overload_report, finished),
    DOORMAN__ROW(AMOUNT, REQUIRED, doorman_overload_report, refused),
    DOORMAN__ROW(AMOUNT, OPTIONAL, doorman_overload_report, late),
    {0},
};

/* Each item begins with the resource id. doorman__held_rows has the fields that follow the
 * demand. */
#define DOORMAN__ROW_RESOURCE(struct_) DOORMAN__ROW(STRING, REQUIRED, struct_, resource_id)

static const doorman__row doorman__held_rows[] = {
    DOORMAN__ROW(AMOUNT, OPTIONAL, doorman_capacity_request, outstanding),
    DOORMAN__ROW_OBJECT("has", doorman_capacity_request, has, doorman__has_rows),
    DOORMAN__ROW_OBJECT("overload", doorman_capacity_request, overload, doorman__report_rows),
    {0},
};

static const doorman__row doorman__client_item_rows[] = {
    DOORMAN__ROW_RESOURCE(doorman_capacity_request),
    DOORMAN__ROW_CALL(doorman__read_demand, doorman__put_demand),
    {.type = DOORMAN__JSON_INLINE, .below = doorman__held_rows},
    {0},
};
static const doorman__row doorman__node_item_rows[] = {
    DOORMAN__ROW_RESOURCE(doorman_capacity_request),
    DOORMAN__ROW(BOOL, OPTIONAL, doorman_capacity_request, learning),
    {DOORMAN__LIST("wants", REQUIRED, doorman_capacity_request, wants, wants_count,
                   doorman__group_rows),
     .most = DOORMAN__GROUPS_MAX},
    {.type = DOORMAN__JSON_INLINE, .below = doorman__held_rows},
    {0},
};
static const doorman__row doorman__release_item_rows[] = {
    DOORMAN__ROW_RESOURCE(doorman_capacity_request),
    DOORMAN__ROW_AS("id", ID, REQUIRED, doorman_capacity_request, has.id),
    {0},
};
static const doorman__row doorman__report_item_rows[] = {
    DOORMAN__ROW_RESOURCE(doorman_capacity_request),
    DOORMAN__ROW_INLINE(doorman_capacity_request, overload, doorman__report_rows),
    {0},
};

/* The content of the requests on leases. The index is the method, or
 * DOORMAN__GET_SERVER_CAPACITY. */
#define DOORMAN__RESOURCES(rows)                                                                   \
    DOORMAN__ROW_LIST("resource", REQUIRED, doorman_request, items, item_count, rows)
#define DOORMAN__HOLDER DOORMAN__ROW_CALL(doorman__read_holder, doorman__put_holder)
enum { DOORMAN__GET_SERVER_CAPACITY = DOORMAN_REPORT_OVERLOAD + 1 };
static const doorman__row doorman__requests[][6] = {
    [DOORMAN_DISCOVERY] = {DOORMAN__ROW_HAS(EPOCH, doorman_request, map_epoch)},
    [DOORMAN_GET_CAPACITY] = {DOORMAN__HOLDER, DOORMAN__RESOURCES(doorman__client_item_rows)},
    [DOORMAN_RELEASE_CAPACITY] = {DOORMAN__HOLDER, DOORMAN__RESOURCES(doorman__release_item_rows)},
    [DOORMAN_REPORT_OVERLOAD] = {DOORMAN__HOLDER, DOORMAN__RESOURCES(doorman__report_item_rows)},
    [DOORMAN__GET_SERVER_CAPACITY] = {DOORMAN__HOLDER, DOORMAN__ROW_CALL(doorman__read_path, NULL),
                                      DOORMAN__ROW_LIST("path", REQUIRED, doorman_request, path,
                                                        path_count, doorman__string_rows),
                                      DOORMAN__ROW(STRING, OPTIONAL, doorman_request, http_address),
                                      DOORMAN__RESOURCES(doorman__node_item_rows)},
};

/* The names of all values of doorman_outcome except the first one, GRANTED. */
static const char *const doorman__reasons[] = {"TRY_LATER", "UNMATCHED", "FULL"};
static void doorman__put_expiry_time(doorman__writer *out, const void *from) {
    doorman_time expires_in = ((const doorman_capacity_response *)from)->gets.expires_in;
    int64_t end = out->epoch + expires_in / DOORMAN_SECOND;
    if (out->epoch) doorman__put(out, ",'expiry_time':%n", (double)end);
}

static const doorman__row doorman__gets_rows[] = {
    DOORMAN__ROW_AS("id", ID, REQUIRED, doorman_capacity_response, gets.id),
    DOORMAN__ROW_AS("node", STRING, REQUIRED, doorman_capacity_response, gets.node),
    DOORMAN__ROW_AS("capacity", AMOUNT, REQUIRED, doorman_capacity_response, gets.capacity),
    DOORMAN__ROW_AS("expires_in", SECONDS, REQUIRED, doorman_capacity_response, gets.expires_in),
    DOORMAN__ROW_AS("refresh_interval", SECONDS, REQUIRED, doorman_capacity_response,
                    gets.refresh_interval),
    DOORMAN__ROW_AS("keep", AMOUNT, OPTIONAL, doorman_capacity_response, gets.committed),
    DOORMAN__ROW_CALL(NULL, doorman__put_expiry_time),
    DOORMAN__ROW(BOOL, OPTIONAL, doorman_capacity_response, whole),
    {DOORMAN__FIELD("reason", CHOICE, LENIENT, doorman_capacity_response, gets.reason),
     .names = doorman__lease_reasons, .least = DOORMAN_LEASE_SHARE,
     .most = DOORMAN__LEASE_REASON_COUNT},
    {0},
};
static const doorman__row doorman__refused_rows[] = {
    {DOORMAN__FIELD("reason", CHOICE, REQUIRED, doorman_capacity_response, outcome),
     .names = doorman__reasons, .least = DOORMAN_TRY_LATER, .most = 3},
    DOORMAN__ROW_AS("refresh_interval", SECONDS, REQUIRED, doorman_capacity_response,
                    gets.refresh_interval),
    {0},
};

static void doorman__read_outcome(const doorman__field *object, void *out) {
    doorman_capacity_response *item_response = (doorman_capacity_response *)out;
    doorman_lease *lease = &item_response->gets;
    doorman__field gets = doorman__field_of(object, "gets", 4);
    doorman__field refused = doorman__field_of(object, "refused", 7);
    item_response->outcome = DOORMAN_GRANTED;
    if (refused.value) {
        doorman__read_fields(&refused, doorman__refused_rows, out);
    } else if (gets.value) {
        doorman__read_fields(&gets, doorman__gets_rows, out);
        lease->committed = doorman__max(lease->committed, lease->capacity);
    } else {
        doorman__read_fail(&gets, "is missing");
    }
}

static void doorman__put_outcome(doorman__writer *out, const void *from) {
    doorman_capacity_response shown = *(const doorman_capacity_response *)from;
    bool is_granted = shown.outcome == DOORMAN_GRANTED;
    if (shown.gets.committed <= shown.gets.capacity) shown.gets.committed = 0;
    if (out->is_server) shown.whole = false; /* a server finds it in the algorithm */
    doorman__put(out, is_granted ? "%,'gets':" : "%,'refused':");
    doorman__put_fields(out, is_granted ? doorman__gets_rows : doorman__refused_rows, &shown);
}

/* Reads the algorithm of a response to a server. The sender leaves out the parameters that have
 * their default value, so this function sets them. */
static void doorman__read_policy(const doorman__field *settings, void *out) {
    static const doorman__row whole =
        DOORMAN__ROW(BOOL, OPTIONAL, doorman_capacity_response, whole);
    doorman_capacity_response *item_response = (doorman_capacity_response *)out;
    if (!settings->value) return;
    doorman__field field = doorman__field_of(settings, "whole", 5);
    doorman_algorithm *algorithm =
        (doorman_algorithm *)doorman__read_room(settings->reader, sizeof *algorithm);
    if (!algorithm) return;
    doorman__read_value(&field, &whole, out);
    if (!doorman__read_algorithm(settings, algorithm)) return;
    *algorithm = doorman__algorithm_resolve(algorithm);
    item_response->algorithm = algorithm;
}

static void doorman__put_policy(doorman__writer *out, const void *from) {
    const doorman_capacity_response *item_response = (const doorman_capacity_response *)from;
    if (!item_response->algorithm) return;
    doorman__put_algorithm(out, item_response->algorithm, item_response->whole);
}

static const doorman__row doorman__term_rows[] = {
    {DOORMAN__FIELD("priority", PRIORITY, OPTIONAL, doorman_terms, priority),
     .usual = DOORMAN_ANY_PRIORITY},
    DOORMAN__ROW(AMOUNT, REQUIRED, doorman_terms, level),
    DOORMAN__ROW(SLOPE, REQUIRED, doorman_terms, slope),
    {0},
};

static const doorman__row doorman__client_result_rows[] = {
    DOORMAN__ROW_RESOURCE(doorman_capacity_response),
    DOORMAN__ROW_HAS(NUMBER, doorman_capacity_response, safe_capacity),
    DOORMAN__ROW(BOOL, OPTIONAL, doorman_capacity_response, learning),
    DOORMAN__ROW(SECONDS, OPTIONAL, doorman_capacity_response, overload_target),
    DOORMAN__ROW_CALL(doorman__read_outcome, doorman__put_outcome),
    {0},
};
static const doorman__row doorman__node_result_rows[] = {
    {.type = DOORMAN__JSON_INLINE, .below = doorman__client_result_rows},
    DOORMAN__ROW_OTHER("algorithm", OPTIONAL, doorman__read_policy, doorman__put_policy),
    {DOORMAN__LIST("terms", OPTIONAL, doorman_capacity_response, terms, terms_count,
                   doorman__term_rows),
     .most = DOORMAN_TERMS_MAX},
    DOORMAN__ROW_HAS(SECONDS, doorman_capacity_response, learn_for),
    /* texts for people (T9) */
    DOORMAN__ROW(TEXT, OPTIONAL, doorman_capacity_response, description),
    DOORMAN__ROW(TEXT, OPTIONAL, doorman_capacity_response, unit),
    {0},
};
static const doorman__row doorman__report_result_rows[] = {
    DOORMAN__ROW_RESOURCE(doorman_capacity_response),
    DOORMAN__ROW(SECONDS, OPTIONAL, doorman_capacity_response, overload_target),
    {0},
};

static void doorman__read_map(const doorman__field *field, void *out) {
    if (DOORMAN__HAS_PERMITS) doorman__read_value(field, doorman__permits_in_json.map, out);
}

static void doorman__put_map(doorman__writer *out, const void *from) {
    if (!((const doorman_response *)from)->map || !DOORMAN__HAS_PERMITS) return;
    doorman__put(out, "%,'map':");
    doorman__permits_in_json.map->put(out, from);
}

/* The content of the responses of a master, and of any response to DISCOVERY. */
#define DOORMAN__RESPONSES(rows)                                                                   \
    DOORMAN__ROW_LIST("response", REQUIRED, doorman_response, items, item_count, rows)
static const doorman__row doorman__responses[][4] = {
    [DOORMAN_DISCOVERY] = {DOORMAN__ROW(BOOL, REQUIRED, doorman_response, is_master),
                           DOORMAN__ROW_OTHER("map", OPTIONAL, doorman__read_map,
                                              doorman__put_map)},
    [DOORMAN_GET_CAPACITY] = {DOORMAN__RESPONSES(doorman__client_result_rows)},
    [DOORMAN_REPORT_OVERLOAD] = {DOORMAN__RESPONSES(doorman__report_result_rows)},
    [DOORMAN__GET_SERVER_CAPACITY] = {DOORMAN__ROW(STRING, OPTIONAL, doorman_response,
                                                   http_address),
                                      DOORMAN__ROW(BOOL, OPTIONAL, doorman_response, shared_id),
                                      DOORMAN__RESPONSES(doorman__node_result_rows)},
};
static const doorman__row doorman__no_rows[] = {{0}};

/* Returns the rows of a message. Returns NULL for permits in a build without them. */
static const doorman__row *doorman__message_rows(doorman_method method, bool is_server,
                                                 bool is_request) {
    const doorman__json_permits *permits = &doorman__permits_in_json;
    if (doorman__method_has_permits(method)) {
        if (!DOORMAN__HAS_PERMITS) return NULL;
        int index = (int)method - (int)DOORMAN_ACQUIRE;
        return is_request ? permits->requests[index] : permits->responses[index];
    }
    bool is_node = is_server && method == DOORMAN_GET_CAPACITY;
    int index = is_node ? DOORMAN__GET_SERVER_CAPACITY : (int)method;
    assert(index <= DOORMAN__GET_SERVER_CAPACITY);
    return is_request ? doorman__requests[index] : doorman__responses[index];
}

/* Returns the name of the i-th method. The method DOORMAN_METHOD_COUNT is get_server_capacity. */
static const char *doorman__method_name(int i) {
    bool is_server = i == DOORMAN_METHOD_COUNT;
    return doorman_method_name(is_server ? DOORMAN_GET_CAPACITY : (doorman_method)i, is_server);
}

/* The two texts of an error on the wire. */
typedef struct doorman__wire_error {
    const char *code, *message;
} doorman__wire_error;

static const doorman__row doorman__error_rows[] = {
    DOORMAN__ROW(STRING, REQUIRED, doorman__wire_error, code),
    DOORMAN__ROW(STRING, REQUIRED, doorman__wire_error, message),
    {0},
};
static const doorman__row doorman__mastership_rows[] = {
    DOORMAN__ROW(STRING, OPTIONAL, doorman_response, master_address),
    {0},
};

/* Checks whether a message is the content of a method without the method. A client can send this by
 * mistake, because it is the body of a POST to /v1/METHOD. If the message has a key that only such
 * content has, the function returns true, and sets an error that explains the two forms. */
static bool doorman__read_content(const doorman__field *root) {
    static const char *const keys[] = {"client_id", "server_id", "resource", "permit", "entry"};
    bool found = false;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        found = found || doorman__field_of(root, keys[i], strlen(keys[i])).value;
    }
    if (found) {
        doorman__read_fail(root, "must be an object with one key, the method, such as "
                                 "{\"get_capacity\": {...}}. Only POST /v1/METHOD takes a body "
                                 "without the method");
    }
    return found;
}

/* Sets an error if the content of a method has the name of a method as a key. Then the client has
 * probably sent a whole message to /v1/METHOD. Called only if the content lacks its last field,
 * because a message that is complete may have unknown fields. */
static void doorman__read_nested(const doorman__field *body) {
    for (int i = 0; i <= DOORMAN_METHOD_COUNT; i++) {
        const char *name = doorman__method_name(i);
        doorman__field inner = doorman__field_of(body, name, strlen(name));
        if (!inner.value) continue;
        doorman__read_fail(&inner, "is a method inside a method. POST /v1/METHOD takes only the "
                                   "content of the method. POST /v1 takes the whole message");
    }
}

/* Finds the method with a name. If there is none, returns false, and sets an error. */
static bool doorman__method_find(doorman__reader *reader, const char *name, doorman_method *method,
                                 bool *is_server) {
    char names[200] = "";
    for (int i = 0; i <= DOORMAN_METHOD_COUNT; i++) {
        size_t used = strlen(names);
        const char *known = doorman__method_name(i);
        *is_server = i == DOORMAN_METHOD_COUNT;
        *method = *is_server ? DOORMAN_GET_CAPACITY : (doorman_method)i;
        if (strcmp(name, known) == 0) return true;
        snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", known);
    }
    *is_server = false;
    *method = DOORMAN_DISCOVERY;
    reader->status = doorman__fail(reader->error, DOORMAN_NOT_FOUND,
                                   "no such method: %.40s; the methods are %s", name, names);
    return false;
}

/* Finds the method of a whole message.
 *   body      out: the object of the method
 *   returns   false: there is none, and an error is set */
static bool doorman__read_method(const doorman__field *root, doorman_method *method,
                                 bool *is_server, doorman__field *body) {
    const cJSON *only = cJSON_IsObject(root->value) ? root->value->child : NULL;
    *body = *root;
    *is_server = false;
    *method = DOORMAN_DISCOVERY;
    assert(root->parent == NULL);
    if (doorman__read_content(root)) return false;
    if (!only || only->next) {
        doorman__read_fail(root, "must be an object with one key, the method");
        return false;
    }
    *body = doorman__member(root, only);
    return doorman__method_find(root->reader, only->string, method, is_server);
}

/* Reads the object of a method. Precondition: the method of the request is set. */
static void doorman__read_body(const doorman__field *body, doorman_request *out) {
    assert((unsigned)out->method < DOORMAN_METHOD_COUNT);
    const doorman__row *rows = doorman__message_rows(out->method, out->is_server, true);
    out->wire_names = true;
    if (!rows) {
        doorman__read_fail(body, DOORMAN__NO_PERMITS);
        return;
    }
    const doorman__row *list = NULL; /* the last field: what the request is about */
    for (const doorman__row *row = rows; row->type; row++) list = row;
    if (list && !doorman__field_of(body, list->key, list->key_bytes).value) {
        doorman__read_nested(body);
    }
    doorman__read_fields(body, rows, out);
}

/* Reads a whole message. Returns whether it has a method that exists. */
static bool doorman__read_request(const doorman__field *root, doorman_request *out) {
    doorman__field body;
    bool found = doorman__read_method(root, &out->method, &out->is_server, &body);
    if (found) doorman__read_body(&body, out);
    return found;
}

static void doorman__read_response(const doorman__field *root, doorman_response *out) {
    doorman__reader *reader = root->reader;
    doorman__field error = doorman__field_of(root, "error", 5), body;
    if (error.value) {
        doorman__wire_error texts = {"", ""};
        doorman__read_fields(&error, doorman__error_rows, &texts);
        if (reader->status != DOORMAN_OK) return;
        reader->status = doorman__fail(reader->error, DOORMAN_INVALID_ARGUMENT, "%s: %s",
                                       texts.code, texts.message);
        reader->has_refusal = strcmp(texts.code, "INVALID_ARGUMENT") == 0;
        if (reader->error) reader->error->path_bytes = 0; /* the text begins with a code, no path */
        return;
    }
    (void)doorman__read_method(root, &out->method, &out->is_server, &body);
    const doorman__row *rows = doorman__message_rows(out->method, out->is_server, false);
    doorman__field mastership = doorman__field_of(&body, "mastership", 10);
    if (mastership.value) doorman__read_fields(&mastership, doorman__mastership_rows, out);
    out->is_master = !mastership.value;
    bool has_rows = rows && (out->is_master || out->method == DOORMAN_DISCOVERY);
    doorman__read_fields(&body, has_rows ? rows : doorman__no_rows, out);
}

static void doorman__put_response(doorman__writer *out, const doorman_response *response,
                                  int64_t epoch) {
    bool discovery = response->method == DOORMAN_DISCOVERY;
    out->epoch = epoch;
    out->is_server = response->is_server;
    const char *method = doorman_method_name(response->method, response->is_server);
    if (!out->is_body) doorman__put(out, "{%s:", method);
    doorman__put(out, "{");
    if (discovery || response->is_master) {
        doorman__put_rows(out, doorman__message_rows(response->method, response->is_server, false),
                          response);
    }
    if (discovery || !response->is_master) {
        const char *http = response->http_address;
        doorman__put(out, "%,'mastership':{");
        doorman__put_rows(out, doorman__mastership_rows, response);
        if (http) doorman__put(out, "%,'http_address':%s", http);
        doorman__put(out, "}");
    }
    doorman__put(out, out->is_body ? "}" : "}}");
}

static const char *doorman__status_text(doorman_status status) {
#define DOORMAN__STATUS_TEXT(code, name, text) text,
    static const char *const texts[] = {DOORMAN_STATUSES(DOORMAN__STATUS_TEXT)};
    return (unsigned)status < DOORMAN_STATUS_COUNT ? texts[status] : "not a status";
}

/* If the message is empty, the reply has the text of the status. */
static void doorman__put_error(doorman__writer *out, doorman_status status, const char *message) {
    bool on_wire = status == DOORMAN_INVALID_ARGUMENT || status == DOORMAN_NOT_FOUND ||
                   status == DOORMAN_RESOURCE_EXHAUSTED || status == DOORMAN_UNAVAILABLE;
    doorman__put(out, "{'error':{'code':%s,'message':%s}}",
                 on_wire ? doorman_status_name(status) : "INTERNAL",
                 message[0] ? message : doorman__status_text(status));
}

doorman_status doorman_json_request(const doorman_request *request, doorman_buffer *text) {
    if (!request || !text) return DOORMAN_INVALID_ARGUMENT;
    const doorman__row *rows = doorman__message_rows(request->method, request->is_server, true);
    if (!rows) return DOORMAN_INVALID_ARGUMENT;
    doorman__writer out = doorman__put_start(text);
    doorman__put(&out, "{%s:", doorman_method_name(request->method, request->is_server));
    doorman__put_fields(&out, rows, request);
    doorman__put(&out, "}");
    return doorman__put_end(&out);
}

/* Allocates the memory for a reply before the server decides. If there is no memory, or if the
 * reply could be too large, the message is refused and changes nothing (C4). An id takes up to
 * twice its bytes, because each byte may need an escape. The rest of an item, with the node's name,
 * takes at most 880 bytes. In a reply to a server, the algorithm of an item takes at most 520
 * bytes, and each of 16 terms takes at most 80 bytes. The texts for people usually take up to twice
 * their bytes, and 32 bytes for their names. So the reply to a request of DOORMAN__ITEMS_MAX items
 * fits. */
static doorman_status doorman__reply_reserve(doorman_buffer *reply, const doorman_request *request,
                                             doorman_error *error) {
    const size_t frame = 1024;
    size_t bytes = frame, largest = 0, rest = 880;
    if (request->is_server) rest += 520 + 16 * 80 + 2 * DOORMAN__TEXTS_BYTES_MAX + 32;
    for (size_t i = 0; i < request->item_count; i++) {
        size_t id_bytes = strlen(request->items[i].resource_id);
        size_t item =
            rest + 2 * (id_bytes < DOORMAN_ID_BYTES_MAX ? id_bytes : DOORMAN_ID_BYTES_MAX);
        if (item > largest) largest = item;
        bytes += item;
    }
    if (request->permit_count > 0) largest = 256;
    if (request->entry_count > 0) largest = 64;
    bytes += (request->permit_count + request->entry_count) * largest;
    if (bytes > DOORMAN_MESSAGE_BYTES_MAX) {
        assert(largest > 0);
        return doorman__fail(error, DOORMAN_RESOURCE_EXHAUSTED,
                             "%s%s: the response could be larger than 4 MiB; send at most %zu %s "
                             "in one message",
                             doorman_method_name(request->method, request->is_server),
                             request->permit_count  ? ".permit"
                             : request->entry_count ? ".entry"
                                                    : ".resource",
                             (DOORMAN_MESSAGE_BYTES_MAX - frame) / largest,
                             request->item_count ? "resources" : "elements");
    }
    return doorman__buffer_reserve(reply, bytes) ? DOORMAN_OK : DOORMAN_OUT_OF_MEMORY;
}

/* ---- JSON: an exchange */
/*
 * An exchange is one message and its reply. An exchange has three steps: read, decide and write.
 * Only the step `decide` needs the caller's lock, and this step is short. In a message of 100
 * resources, each with `has`, each resource takes 1.3 us on one core of a virtual machine:
 *
 *     checking the text   0.14 us
 *     parsing by cJSON    0.52     with an arena; 0.70 with malloc
 *     finding equal keys  0.03
 *     reading the tree    0.17
 *     deciding            0.19
 *     writing             0.28
 *
 * The table shows the states, and the next state after each step. Each step may be called in each
 * state. A step that has no effect ("-") returns what the last step returned. After _uninit the
 * state is EMPTY.
 *
 *     state     meaning                        _read          _decide           _write
 *     EMPTY     there is no message            READ, FAILED   FAILED            FAILED, WRITTEN
 *     READ      the message is valid           READ, FAILED   DECIDED, FAILED   FAILED, WRITTEN
 *     DECIDED   the server has decided         READ, FAILED   -                 WRITTEN
 *     FAILED    the reply will be an error     READ, FAILED   -                 WRITTEN
 *     WRITTEN   the reply is complete          READ, FAILED   -                 -
 *
 * In EMPTY, _decide and _write fail with INVALID_ARGUMENT, because there is no message. In READ,
 * _write fails with UNAVAILABLE, because the server has not decided.
 *
 * In DECIDED, permits of the response may be pending: _settle puts the decision on one of them into
 * the response, or leads to FAILED if memory runs out. _undo leads back to READ. _settle and _undo
 * have no effect if no permit is pending. _write needs a response without pending permits. */

static void doorman__exchange_move(doorman_json_exchange *exchange, doorman__exchange_state next,
                                   doorman_status status) {
    doorman__exchange_state last = exchange->state;
    switch (next) {
    case DOORMAN__EXCHANGE_EMPTY: assert(status == DOORMAN_OK); break;
    case DOORMAN__EXCHANGE_READ: /* from any state, or back from DECIDED */
        assert(status == DOORMAN_OK && exchange->tree);
        break;
    case DOORMAN__EXCHANGE_DECIDED:
        assert(last == DOORMAN__EXCHANGE_READ && status == DOORMAN_OK);
        break;
    case DOORMAN__EXCHANGE_FAILED: assert(status != DOORMAN_OK); break;
    case DOORMAN__EXCHANGE_WRITTEN:
        assert(last == DOORMAN__EXCHANGE_DECIDED || last == DOORMAN__EXCHANGE_FAILED);
        assert(!exchange->tree);
        break;
    }
    (void)last;
    exchange->state = next;
    exchange->status = status;
}

static doorman_status doorman__exchange_fail(doorman_json_exchange *exchange, doorman_status status,
                                             const char *message) {
    assert(exchange->state != DOORMAN__EXCHANGE_WRITTEN);
    doorman__fail(&exchange->error, status, "%s", message);
    doorman__exchange_move(exchange, DOORMAN__EXCHANGE_FAILED, status);
    return status;
}

/* Frees the message that was read, and the structs that were made from it. */
static void doorman__exchange_forget(doorman_json_exchange *exchange) {
    cJSON_Delete(exchange->tree);
    exchange->tree = NULL;
    doorman__arena_uninit(&exchange->message);
}

void doorman_json_exchange_uninit(doorman_json_exchange *exchange) {
    if (!exchange) return;
    doorman__exchange_forget(exchange);
    doorman_buffer_uninit(&exchange->reply);
    doorman__arena_uninit(&exchange->arena);
    DOORMAN_FREE(exchange->kept);
    *exchange = (doorman_json_exchange){.kept = NULL};
    doorman__exchange_move(exchange, DOORMAN__EXCHANGE_EMPTY, DOORMAN_OK);
}

/* Allocates memory for the server's response. The memory begins with the items. If the response is
 * for a server, the items are followed by the algorithms of all items, by all terms, and by the
 * texts for people. */
static doorman_status doorman__exchange_reserve(doorman_json_exchange *exchange) {
    const doorman_request *request = &exchange->request;
    size_t each = sizeof(doorman_capacity_response);
    if (request->is_server) {
        each += sizeof(doorman_algorithm) + DOORMAN_TERMS_MAX * sizeof(doorman_terms) +
                DOORMAN__TEXTS_BYTES_MAX;
    }
    doorman_status status = doorman__reply_reserve(&exchange->reply, request, &exchange->error);
    if (status != DOORMAN_OK) return status;
    bool room =
        doorman__reserve(&exchange->kept, &exchange->kept_bytes, request->item_count * each, 1);
    return room ? DOORMAN_OK : DOORMAN_OUT_OF_MEMORY;
}

static doorman_status doorman__exchange_check_administration(doorman_json_exchange *exchange) {
    const doorman_request *request = &exchange->request;
    bool resets = request->method == DOORMAN_RESET;
    bool administers = resets || request->method == DOORMAN_INSPECT;
    if (!administers || !exchange->forbids_administration) return DOORMAN_OK;
    const char *name = doorman_method_name(request->method, false);
    return doorman__fail(&exchange->error, DOORMAN_NOT_FOUND,
                         "%s: send it over HTTP, as POST /v1/%s with a token of the role %s", name,
                         name, resets ? "support" : "read");
}

/* P31: refuses a message whose permits bring figures, if the caller forbids them. */
static doorman_status doorman__exchange_check_figures(doorman_json_exchange *exchange) {
    if (!DOORMAN__HAS_PERMITS || !exchange->forbids_figures) return DOORMAN_OK;
    return doorman__permits_in_json.refuse_figures(&exchange->request, &exchange->error);
}

/* Sets the error text for a body that is not JSON. A body is not a whole message: the path of the
 * HTTP request names the method. Three frequent mistakes have an error text of their own. */
static void doorman__body_syntax(doorman__reader *reader, const doorman__scan *scan,
                                 const char *text, size_t bytes) {
    const char *cause = NULL;
    if (doorman__text_is_blank(text, bytes)) {
        cause = "the body is empty: send {}, or the content of the method";
    } else if (doorman__text_is_marked(text, bytes)) {
        cause = "byte 0: not JSON: remove the byte order mark";
    } else if (scan->rule == doorman__json_end_rule) {
        cause = "not JSON: text follows the content of the method";
    }
    if (cause && reader->status == DOORMAN_INVALID_ARGUMENT) {
        doorman__fail(reader->error, reader->status, "%s", cause);
    } else if (reader->status != DOORMAN_OUT_OF_MEMORY) {
        doorman__read_syntax(reader, scan, text, bytes);
    }
}

/* Reads the object of a method whose name is not in the text. The paths of errors begin with the
 * name, as in a whole message. */
static void doorman__exchange_read_body(doorman_json_exchange *exchange, doorman__reader *reader,
                                        const char *method, const char *text, size_t bytes) {
    doorman_request *request = &exchange->request;
    doorman__scan scan;
    exchange->has_method =
        doorman__method_find(reader, method, &request->method, &request->is_server);
    if (!exchange->has_method) return;
    reader->status = doorman__json_parse(&reader->tree, &scan, text, bytes);
    if (reader->status != DOORMAN_OK) {
        doorman__body_syntax(reader, &scan, text, bytes);
        return;
    }
    const doorman__field whole = {.reader = reader};
    const doorman__field body = {reader, &whole, method, (int)strlen(method), 0, reader->tree};
    reader->has_rounded_id = scan.has_rounded_id;
    doorman__read_unique(&body);
    doorman__read_body(&body, request);
}

doorman_status doorman_json_exchange_read(doorman_json_exchange *exchange, const char *method,
                                          const char *text, size_t bytes) {
    if (!exchange) return DOORMAN_INVALID_ARGUMENT;
    if (!text && bytes <= DOORMAN_MESSAGE_BYTES_MAX) text = "", bytes = 0;
    doorman__exchange_forget(exchange);
    doorman__reader reader = {.error = &exchange->error, .arena = exchange->message};
    exchange->request = (doorman_request){.sequence = 0};
    doorman__error_clear(&exchange->error);
    exchange->is_body = method != NULL;
    if (method) {
        doorman__exchange_read_body(exchange, &reader, method, text, bytes);
    } else {
        doorman__field whole = doorman__read_start(&reader, text, bytes);
        exchange->has_method = doorman__read_request(&whole, &exchange->request);
    }
    exchange->tree = reader.tree;
    exchange->message = reader.arena;
    doorman_status status = reader.status;
    if (status == DOORMAN_OK) status = doorman__exchange_reserve(exchange);
    if (status == DOORMAN_OK) status = doorman__exchange_check_administration(exchange);
    if (status == DOORMAN_OK) status = doorman__exchange_check_figures(exchange);
    if (status != DOORMAN_OK) doorman__exchange_forget(exchange);
    doorman__exchange_move(
        exchange, status == DOORMAN_OK ? DOORMAN__EXCHANGE_READ : DOORMAN__EXCHANGE_FAILED, status);
    return status;
}

/* Copies the algorithm, the terms and the texts of one item of a response to a server. */
static void doorman__exchange_keep_policy(doorman_json_exchange *exchange, size_t index) {
    size_t count = exchange->response.item_count;
    doorman_capacity_response *items = (doorman_capacity_response *)exchange->kept,
                              *item_response = &items[index];
    doorman_algorithm *algorithms = (doorman_algorithm *)(void *)(items + count);
    doorman_terms *terms = (doorman_terms *)(void *)(algorithms + count);
    char *texts = (char *)(terms + count * DOORMAN_TERMS_MAX) + index * DOORMAN__TEXTS_BYTES_MAX;
    terms += index * DOORMAN_TERMS_MAX;
    if (item_response->algorithm) {
        algorithms[index] = *item_response->algorithm;
        item_response->algorithm = &algorithms[index];
    }
    assert(item_response->terms_count <= DOORMAN_TERMS_MAX);
    if (item_response->terms_count)
        memcpy(terms, item_response->terms, item_response->terms_count * sizeof *terms);
    item_response->terms = terms;
    (void)doorman__texts_copy(texts, &item_response->description, &item_response->unit);
}

/* Copies what is only valid until the next call on the server. Another thread may make that call
 * before the reply is written. */
static void doorman__exchange_keep(doorman_json_exchange *exchange) {
    doorman_response *response = &exchange->response;
    doorman_capacity_response *items = (doorman_capacity_response *)exchange->kept;
    assert(response->item_count <= exchange->request.item_count);
    assert(response->item_count * sizeof *items <= exchange->kept_bytes);
    if (response->master_address) {
        memcpy(exchange->master, response->master_address, strlen(response->master_address) + 1);
        response->master_address = exchange->master;
    }
    for (size_t i = 0; i < response->item_count; i++) {
        items[i] = response->items[i];
        items[i].resource_id = exchange->request.items[i].resource_id;
        const char *node = items[i].gets.node; /* all leases have the same node */
        if (node && strcmp(exchange->node, node) != 0) {
            memcpy(exchange->node, node, strlen(node) + 1);
        }
        items[i].gets.node = exchange->node;
        if (response->is_server) doorman__exchange_keep_policy(exchange, i);
    }
    response->items = items;
}

/* If the server refuses the request, adds the method to the server's error text, because the paths
 * in that text begin below the method. */
doorman_status doorman_json_exchange_decide(doorman_json_exchange *exchange, doorman_server *server,
                                            doorman_time now) {
    if (!exchange || !server) return DOORMAN_INVALID_ARGUMENT;
    const doorman_request *request = &exchange->request;
    doorman_error below;
    doorman__error_clear(&below);
    if (exchange->state == DOORMAN__EXCHANGE_EMPTY) {
        return doorman__exchange_fail(exchange, DOORMAN_INVALID_ARGUMENT, "no message was read");
    }
    if (exchange->state != DOORMAN__EXCHANGE_READ) return exchange->status;
    assert(exchange->tree && exchange->request.method < DOORMAN_METHOD_COUNT);
    doorman_status status = DOORMAN_OK;
    if (DOORMAN__HAS_PERMITS && doorman__method_has_permits(request->method)) {
        status = doorman__permits_in_json.check_reply(server->permits, request, &below);
    }
    if (status == DOORMAN_OK) {
        doorman__server_advance(server, now);
        status = doorman__server_handle_in(server, request, &exchange->response, &exchange->arena,
                                           &below);
    }
    if (status == DOORMAN_OK) {
        doorman__exchange_keep(exchange);
        doorman__exchange_move(exchange, DOORMAN__EXCHANGE_DECIDED, status);
        return status;
    }
    if (status != DOORMAN_OUT_OF_MEMORY) {
        doorman__fail(&exchange->error, status, "%s.%s",
                      doorman_method_name(request->method, request->is_server), below.text);
    } else if (doorman__method_has_permits(request->method)) {
        doorman__fail(&exchange->error, status,
                      "out of memory; units may have been charged"); /* P9 */
    }
    doorman__exchange_move(exchange, DOORMAN__EXCHANGE_FAILED, status);
    return status;
}

doorman_status doorman_json_exchange_write(doorman_json_exchange *exchange, int64_t epoch) {
    if (!exchange) return DOORMAN_INVALID_ARGUMENT;
    assert(!doorman__permits_in_json.is_pending || !doorman__permits_in_json.is_pending(exchange));
    if (exchange->state == DOORMAN__EXCHANGE_WRITTEN) return exchange->status;
    if (exchange->state == DOORMAN__EXCHANGE_EMPTY) {
        doorman__exchange_fail(exchange, DOORMAN_INVALID_ARGUMENT, "no message was read");
    } else if (exchange->state == DOORMAN__EXCHANGE_READ) {
        doorman__exchange_fail(exchange, DOORMAN_UNAVAILABLE, "the server is stopping");
    }
    doorman__writer out = doorman__put_start(&exchange->reply);
    out.request = &exchange->request;
    out.is_body = exchange->is_body;
    if (exchange->state == DOORMAN__EXCHANGE_DECIDED) {
        doorman__put_response(&out, &exchange->response, epoch);
    } else {
        doorman__put_error(&out, exchange->status, exchange->error.text);
    }
    doorman_status status = doorman__put_end(&out);
    if (status == DOORMAN_OK) status = exchange->status;
    doorman__exchange_forget(exchange);
    doorman__exchange_move(exchange, DOORMAN__EXCHANGE_WRITTEN, status);
    return status;
}

doorman_status doorman_json_serve(doorman_server *server, const char *text, size_t bytes,
                                  doorman_buffer *reply, int64_t epoch, doorman_time now) {
    if (!server || !reply) return DOORMAN_INVALID_ARGUMENT;
    doorman_json_exchange exchange = {.reply = *reply};
    (void)doorman_json_exchange_read(&exchange, NULL, text, bytes);
    (void)doorman_json_exchange_decide(&exchange, server, now);
    doorman_status status = doorman_json_exchange_write(&exchange, epoch);
    *reply = exchange.reply;
    exchange.reply = (doorman_buffer){.text = NULL};
    doorman_json_exchange_uninit(&exchange);
    return status;
}

/* A response that is processed in two steps. The first step reads the response. It takes longer
 * than the second step, and needs no lock. The second step gives the response to the upstream. */
typedef struct doorman__incoming {
    doorman__reader reader;
    doorman_response response;
} doorman__incoming;

static void doorman__incoming_read(doorman__incoming *incoming, const char *text, size_t bytes,
                                   doorman_error *error) {
    *incoming = (doorman__incoming){.reader = {.error = error}};
    doorman__reader *reader = &incoming->reader;
    doorman__field root = doorman__read_start(reader, text, bytes);
    doorman__read_response(&root, &incoming->response);
    if (reader->status == DOORMAN_NOT_FOUND) reader->status = DOORMAN_INVALID_ARGUMENT;
}

/* Gives a valid response to the upstream. Reports any other response as a failure, except if memory
 * has run out. Frees the response. */
static doorman_status doorman__incoming_give(doorman__incoming *incoming,
                                             doorman_upstream *upstream, uint64_t sequence,
                                             doorman_time now) {
    doorman__reader *reader = &incoming->reader;
    const doorman_response *response = &incoming->response;
    if (reader->status == DOORMAN_OK) {
        reader->status = upstream->calls->response(upstream, sequence, response, now);
        if (reader->status == DOORMAN_INVALID_ARGUMENT) {
            doorman__fail(reader->error, reader->status, "%s: does not match the request",
                          doorman_method_name(response->method, response->is_server));
        }
    } else if (reader->status != DOORMAN_OUT_OF_MEMORY) {
        upstream->calls->failed(upstream, sequence, reader->has_refusal, now);
    }
    return doorman__read_end(reader);
}

doorman_status doorman_json_response(doorman_upstream *upstream, uint64_t sequence,
                                     const char *text, size_t bytes, doorman_error *error,
                                     doorman_time now) {
    if (!upstream) return doorman__missing(error, "upstream");
    if (bytes && !text) return doorman__missing(error, "text");
    doorman__incoming incoming;
    doorman__incoming_read(&incoming, text, bytes, error);
    return doorman__incoming_give(&incoming, upstream, sequence, now);
}
#endif /* DOORMAN_JSON */

#ifdef DOORMAN_NNG
/* ---- >>nng ---------------------------------------------------------------------------------- */
/*
 * An agent is a client with a mutex, a transport, a thread, and a list of the calls that wait for
 * units. The transport is one REQ socket of nng. The list is in order of arrival. The thread
 * repeats these steps:
 *
 *   1. Process the response that has come.
 *   2. Update the client.
 *   3. Wake the first waiter of each resource.
 *   4. Send the request that is due.
 *   5. Sleep until the client is due or something has changed.
 *
 * A node with a parent has a transport too. The node's program calls the transport from a thread.
 *
 * The mutex (K7). The agent's thread does not hold the mutex while it closes or dials a connection
 * or sends a request. It usually parses a response before it locks the mutex. So no call waits for
 * the mutex while the thread uses the network. When the thread waits for the mutex, each call that
 * locks the mutex lets the thread pass first. Otherwise many application threads that open and
 * close resources could keep the agent's thread from renewing a lease in time. The thread sleeps on
 * a mutex of its own (wake_mutex), so that it can wake up while a call holds the mutex of the
 * agent. The thread updates 100 resources at a time, and a request has at most 500 resources, so
 * that the mutex is not locked for long. With 1,000 resources in a request, on a busy machine, the
 * mutex was locked for up to 1.1 ms to make a request, and again to process its response. The
 * callback of nng locks only wake_mutex, to wake the thread. After a request has failed, the next
 * request uses a new connection, because a server that does not respond may have lost the old one.
 *
 * Waiting (L1, L2). Among the waiters of a resource, only the first one tries to take units. It
 * sleeps until the limiter could allow its units, or until the lease may have changed. When it
 * leaves, it wakes the next waiter. Each resource has an atomic sum of the units that calls wait
 * for. So a caller needs no mutex to check whether the queue is empty, and the client knows how
 * much demand there is. When a waiter times out, its units are counted as refused once.
 *
 * Pacing. While a thread oversleeps, the limiter saves units. Without pacing, this thread and the
 * waiters behind it would use these units in a burst. Pacing makes a pause between two waiters. If
 * no units are saved, the pause is the time that the units of the second waiter take at the rate.
 * If units are saved, the pause is shorter: it is this time multiplied by 1 - s * s, where s is the
 * saved units divided by an eighth of the burst. If s is 1 or more, the pause is 0, because a pause
 * would waste capacity. Pacing also applies to calls that come soon after a waiter.
 *
 * An example with 10,000 units a second and a burst of 0.1 s: after 2 ms of oversleep, waiters get
 * their units 3 % faster than the rate. After 10 ms, they are 2.8 times as fast as the rate. After
 * 12.5 ms, there is no pause. If threads oversleep for longer, the limiter still saves units, up to
 * the whole burst.
 *
 * Condition variables use CLOCK_MONOTONIC. On Linux this clock stops while the machine is
 * suspended, but doorman_clock (CLOCK_BOOTTIME) does not. Therefore a thread sleeps for at most a
 * second at a time.
 *
 * on_change is called with the mutex locked. If on_change calls a function that locks the mutex
 * again, the mutex reports an error, and most functions return DEADLOCK. While an on_change runs
 * (`notifying`), each wait locks the mutex, so a wait that on_change calls returns DEADLOCK too.
 *
 * Fork. A child process has a copy of its parent's memory, but it has only the thread that called
 * fork. So an agent in the child would use leases that the parent still uses. If the parent has
 * used nng, a call of nng would also end the child. An attempt makes no system call, so it cannot
 * compare process ids. Therefore a handler (pthread_atfork) runs in the child before fork returns.
 * It marks each agent as inherited, and makes all its limiters refuse everything, in O(resources)
 * time. Another handler runs before the fork, and locks the list of agents and each agent, so that
 * the child gets a consistent copy. The child unlocks and uses the mutex of the list, but not the
 * mutexes of the agents. The list of agents is in doorman__process, the only global variable of
 * this file that is not constant.
 */

#include <nng/nng.h>
#include <nng/protocol/reqrep0/req.h>
#include <nng/supplemental/tls/tls.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

/* The system header that is included first determines which names the system declares. glibc
 * defines __USE_MISC if _DEFAULT_SOURCE was defined before that header. */
#if !defined CLOCK_MONOTONIC || (defined __GLIBC__ && !defined __USE_MISC)
#error "doorman.h: with -std=c11, put #define _DEFAULT_SOURCE before the first #include"
#endif

/* What any thread may read without the mutex about the calls that wait for a resource. The fields
 * are atomic. The calls themselves are in a list of the agent. */
typedef struct DOORMAN__ALIGNED doorman__queue {
    uint64_t units;     /* the sum of the grains that the calls wait for */
    doorman_time paced; /* only for a rate: when the next pause starts (see "Pacing") */
} doorman__queue;

/* A resource of an agent, as the application sees it. The mutex of the agent guards `own`, except
 * the limiter, which is atomic. */
struct DOORMAN__ALIGNED doorman_resource {
    doorman_agent *agent;
    doorman_client_resource *own;
    doorman__queue queue;
};

/* A call that waits for units. The struct is on the stack of the caller's thread. */
typedef struct doorman__waiter {
    struct doorman__waiter *previous, *next;
    doorman_agent *agent;
    doorman_client_resource *resource; /* NULL: the resource is closed, or the agent is shut down */
    doorman__queue *queue;             /* the queue of the resource */
    double n;
    bool first; /* this waiter is the first one in its queue */
    doorman_time since;
    pthread_cond_t wake; /* wakes the thread of this call */
} doorman__waiter;

/* The pause of one part of an agent: of the leases or of the permits. When a master answers one
 * part, the pause of the other part ends. The fields are atomic, so no part needs the mutex of the
 * other part. */
typedef struct doorman__pause {
    bool lasts; /* this part backs off after a failure */
    bool ends;  /* the other part has had a response during this pause */
} doorman__pause;

typedef struct doorman__agent_permits doorman__agent_permits;

struct doorman_agent {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_condattr_t monotonic;
    pthread_mutex_t wake_mutex; /* guards `wakeup`; locked last */
    pthread_cond_t wake;        /* wakes the agent's thread */
    bool wakeup;                /* the thread must run again before it sleeps */
    bool thread_waits;          /* the agent's thread waits for `mutex`; atomic */
    pthread_cond_t passed;      /* signals that the thread has locked `mutex` */
    size_t passing_count;       /* calls that let the thread pass */
    pthread_cond_t left;        /* signals that the last waiter has left */
    doorman_agent *next;        /* the next agent in the list of the process */
    bool locked_by_fork;        /* the handler of fork has locked the mutex */
    bool inherited;             /* a parent of this process has started the agent */
    bool closed;                /* new waits return at once; atomic */
    doorman_client *client;
    doorman__waiter *first, *last; /* all waiters, in order of arrival */
    /* when the thread ends at the latest; DOORMAN_NEVER: the agent is not stopping */
    doorman_time stop_by;
    doorman_time sleeps_until;    /* when the thread wakes up; 0: it is awake */
    doorman_transport *transport; /* only the agent's thread uses it */
    /* true: last_error says why the request in progress has no connection */
    bool cannot_connect;
    doorman_error last_error;
    doorman_time last_error_at; /* 0: no request has failed */
    doorman__pause pause;       /* of the leases */
    doorman__agent_permits *permits;
};

static doorman_time doorman__clock_read(clockid_t clock) {
    struct timespec time = {0};
    (void)clock_gettime(clock, &time);
    return (doorman_time)time.tv_sec * DOORMAN_SECOND + (doorman_time)time.tv_nsec;
}

doorman_time doorman_clock(void) {
#ifdef CLOCK_BOOTTIME
    return doorman__clock_read(CLOCK_BOOTTIME);
#else
    return doorman__clock_read(CLOCK_MONOTONIC);
#endif
}

/* ---- nng: processes that fork */

/* The order of the locks is: this mutex, the mutex of an agent, the mutex of the agent's permits,
 * and the agent's wake_mutex. A thread that holds one of them locks only later ones, except before
 * a fork (below). */
static struct doorman__process {
    pthread_mutex_t mutex; /* guards the other fields */
    doorman_agent *agents; /* the agents that run in this process, linked by `next` */
    bool has_handlers;     /* the handlers of fork are registered */
    bool lost_nng;         /* a parent of this process had used nng before the fork */
} doorman__process = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* Locks the list and the agents before a fork. If an on_change calls fork, the thread has already
 * locked its agent. Then locking that agent again fails, and the handlers after the fork do not
 * unlock it. */
static void doorman__fork_prepare(void) {
    pthread_mutex_lock(&doorman__process.mutex);
    for (doorman_agent *agent = doorman__process.agents; agent; agent = agent->next) {
        agent->locked_by_fork = pthread_mutex_lock(&agent->mutex) == 0;
    }
}

static void doorman__fork_parent(void) {
    for (doorman_agent *agent = doorman__process.agents; agent; agent = agent->next) {
        if (agent->locked_by_fork) pthread_mutex_unlock(&agent->mutex);
    }
    pthread_mutex_unlock(&doorman__process.mutex);
}

static void doorman__fork_child(void) {
    for (doorman_agent *agent = doorman__process.agents; agent; agent = agent->next) {
        agent->inherited = true;
        doorman__held_lease *held = agent->client->upstream.first;
        for (; held; held = held->next) {
            doorman__resource_disable(doorman__resource_of(held));
        }
    }
    doorman__process.agents = NULL;
    doorman__process.lost_nng = true;
    pthread_mutex_unlock(&doorman__process.mutex);
}

/* Registers the handlers of fork. Each function that begins to use nng calls this function first.
 * Returns OK, UNAVAILABLE if this process must not call nng, or OUT_OF_MEMORY. */
static doorman_status doorman__process_use_nng(void) {
    struct doorman__process *process = &doorman__process;
    pthread_mutex_lock(&process->mutex);
    if (!process->has_handlers) {
        process->has_handlers =
            pthread_atfork(doorman__fork_prepare, doorman__fork_parent, doorman__fork_child) == 0;
    }
    doorman_status status = process->has_handlers ? DOORMAN_OK : DOORMAN_OUT_OF_MEMORY;
    if (process->lost_nng) status = DOORMAN_UNAVAILABLE;
    pthread_mutex_unlock(&process->mutex);
    return status;
}

static void doorman__process_add(doorman_agent *agent) {
    assert(!agent->next && !agent->inherited);
    pthread_mutex_lock(&doorman__process.mutex);
    agent->next = doorman__process.agents;
    doorman__process.agents = agent;
    pthread_mutex_unlock(&doorman__process.mutex);
}

static void doorman__process_remove(doorman_agent *agent) {
    assert(!agent->inherited);
    pthread_mutex_lock(&doorman__process.mutex);
    doorman_agent **at = &doorman__process.agents;
    while (*at != agent) at = &(*at)->next;
    *at = agent->next;
    pthread_mutex_unlock(&doorman__process.mutex);
}

/* ---- nng: what every call of an agent begins with */

/* Locks the mutex for the agent's thread. */
static void doorman__agent_lock_first(doorman_agent *agent) {
    assert(!agent->inherited);
    __atomic_store_n(&agent->thread_waits, true, __ATOMIC_RELAXED);
    pthread_mutex_lock(&agent->mutex);
    __atomic_store_n(&agent->thread_waits, false, __ATOMIC_RELAXED);
    if (agent->passing_count > 0) pthread_cond_broadcast(&agent->passed);
}

/* Lets the agent's thread lock the mutex once before this call continues. The mutex is locked
 * before and after. pthread_cond_wait is a point of cancellation, but most calls of an agent are
 * not. So cancellation is disabled during this wait. */
static void doorman__agent_let_pass(doorman_agent *agent) {
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    agent->passing_count++;
    pthread_cond_wait(&agent->passed, &agent->mutex);
    assert(agent->passing_count > 0);
    agent->passing_count--;
    pthread_setcancelstate(before, NULL);
}

/* Locks the mutex. If the result is not OK, the call has not locked it. Reading `inherited` needs
 * no mutex, because `inherited` is only written before fork returns. */
static doorman_status doorman__agent_lock(doorman_agent *agent) {
    if (agent->inherited) return DOORMAN_UNAVAILABLE;
    if (pthread_mutex_lock(&agent->mutex) != 0) return DOORMAN_DEADLOCK;
    if (__atomic_load_n(&agent->thread_waits, __ATOMIC_RELAXED)) doorman__agent_let_pass(agent);
    return DOORMAN_OK;
}

/* Makes the checks of doorman__agent_lock for calls that may not need the mutex. */
static doorman_status doorman__agent_check_call(doorman_agent *agent) {
    if (agent->inherited) return DOORMAN_UNAVAILABLE;
    if (!__atomic_load_n(&agent->client->notifying, __ATOMIC_RELAXED)) return DOORMAN_OK;
    doorman_status status = doorman__agent_lock(agent);
    if (status == DOORMAN_OK) pthread_mutex_unlock(&agent->mutex);
    return status;
}

/* Starts a thread that does not receive the application's signals. Returns false if the system can
 * start no thread. */
static bool doorman__thread_start(pthread_t *out, void *(*run)(void *), void *argument) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool done = pthread_create(out, NULL, run, argument) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return done;
}

/* Makes the attributes of condition variables that wait on CLOCK_MONOTONIC. */
static bool doorman__monotonic_init(pthread_condattr_t *out) {
    return pthread_condattr_init(out) == 0 && pthread_condattr_setclock(out, CLOCK_MONOTONIC) == 0;
}

/* Returns when a wait of this duration ends, for condition variables on CLOCK_MONOTONIC. */
static struct timespec doorman__monotonic_end(doorman_time duration) {
    assert(duration >= 0);
    doorman_time end = doorman__clock_read(CLOCK_MONOTONIC) + duration;
    return (struct timespec){.tv_sec = (time_t)(end / DOORMAN_SECOND),
                             .tv_nsec = (long)(end % DOORMAN_SECOND)};
}

/* The longest sleep without a look at the clock. A test for lost wake-ups defines a longer time. */
#ifndef DOORMAN__NAP_MAX
#define DOORMAN__NAP_MAX DOORMAN_SECOND
#endif

/* Sleeps until a point in time, or for a shorter time, so the caller must check the clock again. */
static void doorman__condition_wait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                    doorman_time until, doorman_time now) {
    assert(until >= now);
    doorman_time nap = doorman__earlier(until - now, DOORMAN__NAP_MAX);
    struct timespec time = doorman__monotonic_end(nap);
    (void)pthread_cond_timedwait(condition, mutex, &time);
}

/* Wakes the agent's thread. The mutex of the agent need not be locked. */
static void doorman__agent_notify(doorman_agent *agent) {
    pthread_mutex_lock(&agent->wake_mutex);
    agent->wakeup = true;
    pthread_cond_signal(&agent->wake);
    pthread_mutex_unlock(&agent->wake_mutex);
}

/* Wakes the agent's thread if the client is due before the thread would wake up. */
static void doorman__agent_expedite(doorman_agent *agent) {
    if (doorman_upstream_due(&agent->client->upstream) >= agent->sleeps_until) return;
    agent->sleeps_until = 0;
    doorman__agent_notify(agent);
}

/* ---- nng: the queues of waiters */

static bool doorman__queue_is_empty(const doorman__queue *queue) {
    return __atomic_load_n(&queue->units, __ATOMIC_SEQ_CST) == 0;
}

/* Subtracts a waiter's units, and counts its wait. Precondition of this function and the next five:
 * the mutex is locked. */
static void doorman__queue_subtract(const doorman__waiter *waiter, doorman_time now) {
    doorman__waiting *waiting = &waiter->resource->waiting;
    uint64_t units = doorman__units(waiter->n);
    assert(waiting->units >= units);
    units = __atomic_sub_fetch(&waiter->queue->units, units, __ATOMIC_SEQ_CST);
    doorman__waiting_set(waiting, units, now);
    waiting->call_count++;
    waiting->waited += now - waiter->since;
}

/* A waiter first adds its units to the sum, and then tries to take them. A release first returns
 * units, and then reads the sum. So the waiter finds the units, or the release wakes the waiter. */
static void doorman__waiters_join(doorman_agent *agent, doorman__waiter *waiter) {
    const doorman__waiter *other = agent->last;
    while (other && other->queue != waiter->queue) other = other->previous;
    waiter->first = !other;
    waiter->previous = agent->last;
    *(agent->last ? &agent->last->next : &agent->first) = waiter;
    agent->last = waiter;
    waiter->since = doorman_clock();
    uint64_t units = doorman__units(waiter->n);
    assert(units > 0);
    units = __atomic_add_fetch(&waiter->queue->units, units, __ATOMIC_SEQ_CST);
    doorman__waiting_set(&waiter->resource->waiting, units, waiter->since);
}

/* Marks the next waiter of this queue, starting at `from`, as the first one, and wakes it. */
static void doorman__waiters_wake_next(doorman__waiter *from, const doorman__queue *queue) {
    while (from && from->queue != queue) from = from->next;
    if (!from) return;
    assert(from->resource);
    from->first = true;
    pthread_cond_signal(&from->wake);
}

static void doorman__waiters_leave(doorman_agent *agent, doorman__waiter *waiter) {
    *(waiter->previous ? &waiter->previous->next : &agent->first) = waiter->next;
    *(waiter->next ? &waiter->next->previous : &agent->last) = waiter->previous;
    assert(!agent->first == !agent->last);
    if (!agent->first) pthread_cond_signal(&agent->left);
    if (!waiter->resource) return;
    doorman__queue_subtract(waiter, doorman_clock());
    if (waiter->first) doorman__waiters_wake_next(waiter->next, waiter->queue);
}

/* Wakes the first waiter of each queue, because the limiter may allow its units now. */
static void doorman__waiters_wake(doorman_agent *agent) {
    for (doorman__waiter *waiter = agent->first; waiter; waiter = waiter->next) {
        if (waiter->first) pthread_cond_signal(&waiter->wake);
    }
}

/* Ends the waits for a resource (NULL: all waits). The calls do not use the resource again. */
static void doorman__waiters_cancel(doorman_agent *agent, const doorman_client_resource *resource) {
    for (doorman__waiter *waiter = agent->first; waiter; waiter = waiter->next) {
        if (!waiter->resource || (resource && waiter->resource != resource)) continue;
        assert(waiter->queue);
        doorman__queue_subtract(waiter, doorman_clock());
        waiter->resource = NULL;
        waiter->queue = NULL;
        pthread_cond_signal(&waiter->wake);
    }
}

/* Threads usually oversleep by at most this time. Pacing shortens the next pause by the time that a
 * thread has overslept, but not by more than this. */
#define DOORMAN__WAKE_MAX (DOORMAN_SECOND / 10000)

/* Returns when pacing lets a waiter pass: the start of the pause (`paced`) plus its length.
 * Precondition: the waiter's attempt is allowed. */
static doorman_time doorman__pace_due(doorman_time paced, const doorman__rate_view *view) {
    assert(view->attempt.decision == DOORMAN_ALLOWED && view->price >= 0 && view->quota.most > 0);
    double saved = 8 * (double)view->attempt.left / (double)view->quota.most;
    double late = doorman__min(doorman__max(saved, 0), 1);
    return paced + (doorman_time)((double)view->price / 256 * (1 - late * late));
}

/* Returns the time at which pacing lets this waiter pass, or 0 if pacing does not apply. Pacing
 * applies to the first waiter of the queue, and, for the time of half a burst after the last paced
 * call, to a call outside the queue. It does not apply if the rate is 0. */
static doorman_time doorman__waiter_pace(const doorman__waiter *waiter,
                                         const doorman__rate_view *view, doorman_time now) {
    doorman_time paced = __atomic_load_n(&waiter->queue->paced, __ATOMIC_RELAXED);
    bool recent = now - paced < view->quota.most / 512;
    if (!(view->quota.amount > 0) || !(waiter->first || recent)) return 0;
    return doorman__pace_due(paced, view);
}

/* Tells the client that a call waits, in the same way as for a refusal. */
static void doorman__waiter_signal(const doorman__waiter *waiter, doorman__usage *usage,
                                   doorman_time now) {
    doorman__usage_note_size(usage, doorman__units(waiter->n));
    doorman__usage_signal(usage, now);
}

/* Tries to take the units of a waiter. First looks at the attempt without making it, because a
 * failed attempt would count the demand of the waiter twice.
 *   delay     out: on UNAVAILABLE, how long to wait until the next try
 *   last      the waiter cannot wait any longer, so pacing does not apply
 *   returns   OK | UNAVAILABLE | RESOURCE_EXHAUSTED: the units are IMPOSSIBLE */
static doorman_status doorman__waiter_try_rate(const doorman__waiter *waiter, doorman_time *delay,
                                               bool last, doorman_time now) {
    assert(waiter->n > 0 && waiter->resource->kind == DOORMAN_RATE);
    doorman__rate *rate = &waiter->resource->rate;
    doorman__rate_view view = doorman__rate_look(rate, waiter->n, now);
    bool bypass = doorman__bypass(&rate->usage);
    bool fits = view.quota.amount <= 0 || view.price >= 0;
    if (!fits && !bypass && !doorman__rate_possible(rate, waiter->n)) {
        return DOORMAN_RESOURCE_EXHAUSTED;
    }
    doorman_time due = 0;
    *delay = bypass ? 0 : doorman__rate_view_delay(&view);
    if (*delay > 0) doorman__waiter_signal(waiter, &rate->usage, now);
    if (*delay == 0 && !last && !bypass) due = doorman__waiter_pace(waiter, &view, now);
    if (*delay == 0 && due > now) *delay = due - now;
    if (*delay > 0) return DOORMAN_UNAVAILABLE;
    if (doorman__rate_try(rate, waiter->n, now) != DOORMAN_ALLOWED) return DOORMAN_UNAVAILABLE;
    if (due == 0) return DOORMAN_OK;
    due = doorman__later(due, now - DOORMAN__WAKE_MAX);
    __atomic_store_n(&waiter->queue->paced, due, __ATOMIC_RELAXED);
    return DOORMAN_OK;
}

/* Does the same as doorman__waiter_try_rate, for a gauge. */
static doorman_status doorman__waiter_try_gauge(const doorman__waiter *waiter, doorman_time *delay,
                                                doorman_time now) {
    assert(waiter->n > 0 && waiter->resource->kind == DOORMAN_GAUGE);
    doorman__gauge *gauge = &waiter->resource->gauge;
    doorman__quota quota;
    doorman__attempt attempt = doorman__gauge_look(gauge, waiter->n, &quota, now);
    bool bypass = doorman__bypass(&gauge->usage);
    *delay = DOORMAN_NEVER; /* the waiter sleeps until units are released or the lease changes */
    if (!bypass && !doorman__gauge_possible(gauge, doorman__units(waiter->n))) {
        return DOORMAN_RESOURCE_EXHAUSTED;
    }
    if (!bypass && attempt.decision != DOORMAN_ALLOWED) {
        doorman__waiter_signal(waiter, &gauge->usage, now);
        return DOORMAN_UNAVAILABLE;
    }
    bool allowed = doorman__gauge_try(gauge, waiter->n, now) == DOORMAN_ALLOWED;
    return allowed ? DOORMAN_OK : DOORMAN_UNAVAILABLE;
}

static doorman_status doorman__waiter_try(const doorman__waiter *waiter, doorman_time *delay,
                                          bool last, doorman_time now) {
    return waiter->resource->kind == DOORMAN_GAUGE
               ? doorman__waiter_try_gauge(waiter, delay, now)
               : doorman__waiter_try_rate(waiter, delay, last, now);
}

/* Counts the units of a wait that has failed: as REFUSED after a time-out, as IMPOSSIBLE if they
 * can never be available. The units are counted before the waiter leaves the queue, because the
 * resource may be closed after that. */
static void doorman__waiter_count(const doorman__waiter *waiter, doorman_status status) {
    if (status != DOORMAN_TIMED_OUT && status != DOORMAN_RESOURCE_EXHAUSTED) return;
    assert(waiter->resource);
    doorman_decision decision = status == DOORMAN_TIMED_OUT ? DOORMAN_REFUSED : DOORMAN_IMPOSSIBLE;
    uint64_t units = doorman__units(waiter->n);
    (void)doorman__count(waiter->resource->usage, units, decision, doorman_clock());
}

/* Blocks until this waiter has its units, can never get them, or is cancelled, or until `end`. */
static doorman_status doorman__waiter_block(doorman_agent *agent, doorman__waiter *waiter,
                                            doorman_time end) {
    doorman_status status = DOORMAN_UNAVAILABLE;
    while (waiter->resource) {
        doorman_time now = doorman_clock(), delay = DOORMAN_NEVER;
        if (waiter->first) status = doorman__waiter_try(waiter, &delay, now >= end, now);
        if (status == DOORMAN_UNAVAILABLE && now >= end) status = DOORMAN_TIMED_OUT;
        if (status != DOORMAN_UNAVAILABLE) break;
        doorman_time until = doorman__earlier(end, doorman__after(now, delay));
        doorman__condition_wait(&waiter->wake, &agent->mutex, until, now);
    }
    doorman__waiter_count(waiter, status);
    return status;
}

/* L4: a call begins to wait. The agent asks for more at once if the call waits for units of a gauge
 * whose wants follow the use and were met by the last lease, because the server may have more. */
static void doorman__waiter_hurry(doorman_agent *agent, const doorman__waiter *waiter) {
    const doorman_client_resource *resource = waiter->resource;
    if (!resource || resource->kind != DOORMAN_GAUGE) return;
    if (!resource->wants_follow_use || !resource->held.met) return;
    agent->client->look_at = 0;
    doorman__agent_notify(agent);
}

static void doorman__waiter_cleanup(void *context) {
    doorman__waiter *waiter = (doorman__waiter *)context;
    doorman__waiters_leave(waiter->agent, waiter);
    pthread_mutex_unlock(&waiter->agent->mutex);
    pthread_cond_destroy(&waiter->wake);
}

/* If the thread is cancelled, pthread_cond_timedwait locks the mutex again, and the cleanup handler
 * removes the waiter, which is on the stack of the thread. */
static doorman_status doorman__waiter_enqueue(doorman_agent *agent, doorman__waiter *waiter,
                                              doorman_time end) {
    assert(waiter->n > 0 && end > 0);
    doorman_status status;
    if (pthread_cond_init(&waiter->wake, &agent->monotonic) != 0) return DOORMAN_OUT_OF_MEMORY;
    waiter->agent = agent;
    status = doorman__agent_lock(agent);
    if (status != DOORMAN_OK) {
        pthread_cond_destroy(&waiter->wake);
        return status;
    }
    doorman__waiters_join(agent, waiter);
    if (agent->closed) doorman__waiters_cancel(agent, NULL);
    doorman__waiter_hurry(agent, waiter);
    pthread_cleanup_push(doorman__waiter_cleanup, waiter);
    status = doorman__waiter_block(agent, waiter, end);
    pthread_cleanup_pop(1);
    return status;
}

/* Takes units, or waits for them. Locks no mutex if no other call waits, there are enough units,
 * pacing does not apply, and no on_change runs. */
static doorman_status doorman__agent_wait(doorman_agent *agent, doorman__waiter *waiter,
                                          doorman_time timeout) {
    doorman_time now = doorman_clock(), delay = 0;
    doorman_status status = doorman__agent_check_call(agent);
    if (status != DOORMAN_OK) return status;
    if (__atomic_load_n(&agent->closed, __ATOMIC_RELAXED)) return DOORMAN_UNAVAILABLE;
    if (!doorman__amount_valid(waiter->n)) return DOORMAN_INVALID_ARGUMENT;
    if (waiter->n <= 0) return DOORMAN_OK;
    status = DOORMAN_UNAVAILABLE;
    if (doorman__queue_is_empty(waiter->queue))
        status = doorman__waiter_try(waiter, &delay, timeout <= 0, now);
    if (status == DOORMAN_UNAVAILABLE && timeout > 0) {
        return doorman__waiter_enqueue(agent, waiter, doorman__after(now, timeout));
    }
    if (status == DOORMAN_UNAVAILABLE) status = DOORMAN_TIMED_OUT;
    doorman__waiter_count(waiter, status);
    return status;
}

doorman_status doorman_resource_wait(doorman_resource *resource, double n, doorman_time timeout) {
    if (!resource) return DOORMAN_INVALID_ARGUMENT;
    doorman__waiter waiter = {.resource = resource->own, .queue = &resource->queue, .n = n};
    return doorman__agent_wait(resource->agent, &waiter, timeout);
}

/* If an on_change calls this, the thread has already locked the mutex. Then `locked` is false, and
 * the mutex stays locked. */
doorman_status doorman_resource_release(doorman_resource *resource, double n) {
    if (!resource) return DOORMAN_INVALID_ARGUMENT;
    doorman_agent *agent = resource->agent;
    if (agent->inherited) return DOORMAN_UNAVAILABLE;
    doorman_status status = doorman_client_release(resource->own, n);
    if (status != DOORMAN_OK || doorman__queue_is_empty(&resource->queue)) return status;
    bool locked = doorman__agent_lock(agent) == DOORMAN_OK;
    doorman__waiters_wake_next(agent->first, &resource->queue);
    if (locked) pthread_mutex_unlock(&agent->mutex);
    return DOORMAN_OK;
}

/* ---- nng: sockets that close */

/* A socket of nng, and what nng's threads use until the socket is closed. */
typedef struct doorman__socket {
    nng_socket nng;
    /* The upper half is the id of nng's dialer, and the lower half is the id of its connection. 0:
     * none. Both ids are in one atomic word, so that a connection of the previous dialer cannot
     * count as a connection of the present dialer. */
    doorman__shared ids;

    /* How the socket closes. The mutex protects `closed` and `abandoned`. */
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    bool closed;
    bool abandoned; /* nobody waits; the thread that closes the socket frees the struct */
} doorman__socket;

/* The longest time that a caller waits until a socket is closed. Closing usually takes less than 1
 * ms. */
#define DOORMAN__CLOSE_MAX (DOORMAN_SECOND / 2)

static bool doorman__socket_init_close(doorman__socket *own) {
    pthread_condattr_t monotonic;
    bool done = pthread_mutex_init(&own->mutex, NULL) == 0 && doorman__monotonic_init(&monotonic);
    if (!done) return false;
    done = pthread_cond_init(&own->wake, &monotonic) == 0;
    pthread_condattr_destroy(&monotonic);
    return done;
}

static void doorman__socket_free(doorman__socket *own) {
    pthread_cond_destroy(&own->wake);
    pthread_mutex_destroy(&own->mutex);
    DOORMAN_FREE(own);
}

static void *doorman__socket_main(void *argument) {
    doorman__socket *own = (doorman__socket *)argument;
    nng_close(own->nng);
    pthread_mutex_lock(&own->mutex);
    assert(!own->closed);
    bool abandoned = own->abandoned;
    own->closed = true;
    pthread_cond_signal(&own->wake);
    pthread_mutex_unlock(&own->mutex);
    if (abandoned) doorman__socket_free(own);
    return NULL;
}

/* Waits until the thread has closed the socket, for at most DOORMAN__CLOSE_MAX. Returns whether it
 * has. If not, the thread frees the struct later. */
static bool doorman__socket_wait(doorman__socket *own) {
    struct timespec until = doorman__monotonic_end(DOORMAN__CLOSE_MAX);
    int error = 0;
    pthread_mutex_lock(&own->mutex);
    assert(!own->abandoned);
    while (!own->closed && error == 0) {
        error = pthread_cond_timedwait(&own->wake, &own->mutex, &until);
    }
    bool closed = own->closed;
    own->abandoned = !closed;
    pthread_mutex_unlock(&own->mutex);
    return closed;
}

/* Closes a socket and frees the struct. nng_close waits until all connections of the socket have
 * ended. With nng 1.5.2 it can wait for ever, because nng can lose a connection that ends while nng
 * starts to read from it (nanomsg/nng #1813). So a separate thread calls nng_close. If the socket
 * is not closed in time, the thread and the memory of the socket stay until nng_close returns.
 *   own   NULL: the function has no effect */
static void doorman__socket_close(doorman__socket *own) {
    pthread_t thread;
    if (!own) return;
    bool is_open = nng_socket_id(own->nng) > 0;
    if (!is_open || !doorman__socket_init_close(own)) {
        if (is_open) nng_close(own->nng);
        DOORMAN_FREE(own);
        return;
    }
    if (!doorman__thread_start(&thread, doorman__socket_main, own)) {
        nng_close(own->nng);
    } else if (!doorman__socket_wait(own)) {
        pthread_detach(thread); /* the thread frees the struct */
        return;
    } else {
        pthread_join(thread, NULL);
    }
    doorman__socket_free(own);
}

/* ---- nng: the transport */

/* Only doorman__transport_move changes the state. The state determines the owner of the request:
 * the caller's thread or nng. Only the owner uses the other fields of the transport, unless a
 * comment says otherwise, but the caller's thread may always read `options`, `address` and
 * `socket`.
 *
 *   state      meaning                          owner   leaves it
 *   IDLE       there is no request              caller  _update fetches a request      -> PREPARED
 *   PREPARED   the request must be sent         caller  _send                          -> SENDING
 *                                                       _send fails                    -> ENDED
 *   SENDING    nng waits for a connection       nng     nng has sent the request       -> RECEIVING
 *                                                       the request fails or times out -> ENDED
 *   RECEIVING  nng waits for the response       nng     a response or an error comes   -> ENDED
 *   ENDED      there is a response or an error  caller  the response is parsed         -> PARSED
 *                                                       _update passes the error on    -> IDLE
 *   PARSED     the response is parsed           caller  _update passes the response on -> IDLE
 */
typedef enum doorman__transport_state {
    DOORMAN__TRANSPORT_IDLE,
    DOORMAN__TRANSPORT_PREPARED,
    DOORMAN__TRANSPORT_SENDING,
    DOORMAN__TRANSPORT_RECEIVING,
    DOORMAN__TRANSPORT_ENDED,
    DOORMAN__TRANSPORT_PARSED
} doorman__transport_state;

struct doorman_transport {
    doorman_transport_options options;
    doorman__transport_state state; /* atomic */
    /* The texts of authority, certificate and key; NULL: not given. Only the caller's thread uses
     * this field and the next one, also while nng owns the request. */
    char *pem[3];
    bool has_new_tls; /* the connection does not use these texts yet */

    /* The connection. */
    doorman__socket *socket;
    nng_aio *aio;
    char address[DOORMAN_ID_BYTES_MAX + 1]; /* the address of the last request */
    bool has_dialer;                        /* the dialer connects to this address */
    bool fails_early;      /* a request fails when an attempt to connect has failed */
    uint64_t old_failures; /* the number of the dialer's failures before it last connected */
    const struct doorman__dial_failure *failure; /* why nng could not connect since the request was
                                                    sent; NULL: no attempt has failed; atomic */

    /* The request. */
    doorman_buffer text;
    uint64_t sequence;
    doorman_time deadline; /* when the request times out */
    doorman_time send_by;  /* when the request fails if there is no connection */
    doorman_time look_in;  /* how long to wait before the next check for failures to connect */

    /* The probes. */
    bool probing;          /* the request in progress is a probe */
    bool failed;           /* the last request or probe failed */
    doorman_time ended_at; /* when the last request or probe has ended; 0: there was none */
    size_t probe_index;    /* the index of the address of the next probe */

    /* How the request ended. */
    int nng_error;  /* why the request failed; 0: the request did not fail */
    nng_msg *reply; /* NULL: the request failed */
    doorman__incoming incoming;
    doorman_error error; /* why the request failed, or what is wrong with the response */
};

/* A test defines this macro, so that nng can change the state right after a thread has read it. */
#ifndef DOORMAN__AFTER_STATE_READ
#define DOORMAN__AFTER_STATE_READ() ((void)0)
#endif

/* While nng owns the request, the state may change at any time. So a function reads it once, and
 * decides on what it has read. */
static doorman__transport_state doorman__transport_get(const doorman_transport *transport) {
    doorman__transport_state state = __atomic_load_n(&transport->state, __ATOMIC_ACQUIRE);
    DOORMAN__AFTER_STATE_READ();
    return state;
}

static void doorman__transport_move(doorman_transport *transport, doorman__transport_state state) {
    static const unsigned legal[] = {
        [DOORMAN__TRANSPORT_IDLE] = 1u << DOORMAN__TRANSPORT_PREPARED,
        [DOORMAN__TRANSPORT_PREPARED] =
            1u << DOORMAN__TRANSPORT_SENDING | 1u << DOORMAN__TRANSPORT_ENDED,
        [DOORMAN__TRANSPORT_SENDING] =
            1u << DOORMAN__TRANSPORT_RECEIVING | 1u << DOORMAN__TRANSPORT_ENDED,
        [DOORMAN__TRANSPORT_RECEIVING] = 1u << DOORMAN__TRANSPORT_ENDED,
        [DOORMAN__TRANSPORT_ENDED] =
            1u << DOORMAN__TRANSPORT_PARSED | 1u << DOORMAN__TRANSPORT_IDLE,
        [DOORMAN__TRANSPORT_PARSED] = 1u << DOORMAN__TRANSPORT_IDLE};
    assert(legal[doorman__transport_get(transport)] & 1u << state);
    (void)legal;
    __atomic_store_n(&transport->state, state, __ATOMIC_RELEASE);
}

/* ---- nng: why there is no connection */

/* The counters of failures in nng's statistics of a dialer, and the meaning of each counter. */
static const struct doorman__dial_failure {
    const char *counter;
    int nng_error; /* 0: only `text` says what failed */
    const char *text;
} doorman__dial_failures[] = {
    {"refused", NNG_ECONNREFUSED, NULL},
    {"disconnect", NNG_ECONNRESET, NULL},
    {"timeout", NNG_ETIMEDOUT, NULL},
    {"proto", NNG_EPROTO, NULL},
    {"auth", 0,
     "the TLS handshake failed: a certificate is missing or expired, names another host, or is of "
     "an unknown CA"},
    {"oom", NNG_ENOMEM, NULL},
    {"other", 0,
     "the host is unreachable, its name is unknown, or another protocol is spoken there"},
};

static uint64_t doorman__stat_value(nng_stat *parent, const char *name) {
    for (nng_stat *at = nng_stat_child(parent); at; at = nng_stat_next(at)) {
        if (strcmp(nng_stat_name(at), name) == 0) return nng_stat_value(at);
    }
    return 0;
}

static const char *doorman__dial_failure_text(const struct doorman__dial_failure *failure) {
    assert(failure->text || failure->nng_error);
    return failure->text ? failure->text : nng_strerror(failure->nng_error);
}

/* Returns the most frequent failure of a dialer, from its statistics.
 *   all   out: the number of failures */
static const struct doorman__dial_failure *doorman__stat_failure(nng_stat *dialer, uint64_t *all) {
    const struct doorman__dial_failure *found = NULL;
    uint64_t most = 0;
    for (size_t i = 0; i < sizeof doorman__dial_failures / sizeof *doorman__dial_failures; i++) {
        uint64_t count = doorman__stat_value(dialer, doorman__dial_failures[i].counter);
        *all += count;
        if (count > most) found = &doorman__dial_failures[i];
        if (count > most) most = count;
    }
    assert(!found == !*all);
    return found;
}

/* Finds why a dialer cannot connect. nng retries without reporting failures, but nng's statistics
 * count the failures by cause.
 *   count     out: the number of failures
 *   returns   NULL: there was no failure
 *   cost      O(sockets and connections of nng in this process) */
static const struct doorman__dial_failure *doorman__dialer_failure(uint32_t dialer,
                                                                   uint64_t *count) {
    const struct doorman__dial_failure *found = NULL;
    nng_stat *all = NULL;
    *count = 0;
    if (nng_stats_get(&all) != 0) return NULL;
    for (nng_stat *at = nng_stat_child(all); at && !found; at = nng_stat_next(at)) {
        bool is_dialer = strncmp(nng_stat_name(at), "dialer", strlen("dialer")) == 0;
        if (!is_dialer || doorman__stat_value(at, "id") != dialer) continue;
        found = doorman__stat_failure(at, count);
    }
    nng_stats_free(all);
    return found;
}

/* ---- nng: the transport's requests */

static uint32_t doorman__transport_dialer(const doorman_transport *transport) {
    return (uint32_t)(__atomic_load_n(&transport->socket->ids, __ATOMIC_RELAXED) >> 32);
}

static bool doorman__transport_connected(const doorman_transport *transport) {
    return (uint32_t)__atomic_load_n(&transport->socket->ids, __ATOMIC_RELAXED) != 0;
}

/* Sets the id of the dialer. The transport then counts as not connected. */
static void doorman__transport_set_dialer(doorman_transport *transport, uint32_t dialer) {
    __atomic_store_n(&transport->socket->ids, (uint64_t)dialer << 32, __ATOMIC_RELAXED);
}

/* Returns why the request in progress has no connection yet. NULL: no request waits for one, or no
 * attempt to connect has failed. */
static const struct doorman__dial_failure *
doorman__transport_failure(const doorman_transport *transport) {
    bool sending = doorman__transport_get(transport) == DOORMAN__TRANSPORT_SENDING;
    if (!sending || doorman__transport_connected(transport)) return NULL;
    return __atomic_load_n(&transport->failure, __ATOMIC_RELAXED);
}

/* Sets the error text of a request that has failed. */
static void doorman__transport_explain(doorman_transport *transport, bool was_sending) {
    assert(!transport->reply);
    int code = transport->nng_error;
    uint64_t count;
    const struct doorman__dial_failure *failure = NULL;
    bool connects = transport->has_dialer && was_sending && code == NNG_ETIMEDOUT &&
                    !doorman__transport_connected(transport);
    if (connects) failure = doorman__dialer_failure(doorman__transport_dialer(transport), &count);
    doorman__fail(&transport->error, DOORMAN_UNAVAILABLE, "%s%s",
                  connects ? "cannot connect: " : "",
                  failure ? doorman__dial_failure_text(failure) : nng_strerror(code));
}

static void doorman__transport_finish(doorman_transport *transport, int nng_error, nng_msg *reply) {
    assert(!nng_error == !!reply);
    bool was_sending = doorman__transport_get(transport) == DOORMAN__TRANSPORT_SENDING;
    transport->nng_error = nng_error;
    transport->reply = reply;
    doorman__error_clear(&transport->error);
    if (!reply) doorman__transport_explain(transport, was_sending);
    doorman__transport_move(transport, DOORMAN__TRANSPORT_ENDED);
    transport->options.on_wakeup(transport->options.context);
}

static nng_duration doorman__transport_time_left(doorman_time deadline) {
    doorman_time left = doorman__later(deadline - doorman_clock(), 0);
    return (nng_duration)doorman__earlier(left / (DOORMAN_SECOND / 1000) + 1, INT32_MAX);
}

/* nng does not report that an attempt to connect has failed, so the transport looks at nng's
 * statistics until a failure is known. A look is expensive in a process with many connections.
 * Therefore the time between two looks doubles, from LOOK_FIRST up to LOOK_LAST. */
#define DOORMAN__LOOK_FIRST (DOORMAN_SECOND / 100)
#define DOORMAN__LOOK_LAST (16 * DOORMAN__LOOK_FIRST)

/* Lets nng send the request when there is a connection. */
static void doorman__transport_submit(doorman_transport *transport) {
    assert(transport->has_dialer && transport->look_in > 0);
    doorman_time until = doorman__after(doorman_clock(), transport->look_in);
    if (__atomic_load_n(&transport->failure, __ATOMIC_RELAXED)) until = DOORMAN_NEVER;
    until = doorman__earlier(until, transport->send_by);
    nng_aio_set_timeout(transport->aio, doorman__transport_time_left(until));
    nng_send_aio(transport->socket->nng, transport->aio);
}

/* Checks whether an attempt to connect has failed since the last connection. */
static void doorman__transport_look(doorman_transport *transport) {
    assert(transport->look_in >= DOORMAN__LOOK_FIRST);
    uint64_t count;
    transport->look_in = doorman__earlier(2 * transport->look_in, DOORMAN__LOOK_LAST);
    const struct doorman__dial_failure *failure =
        doorman__dialer_failure(doorman__transport_dialer(transport), &count);
    if (!failure || count <= transport->old_failures) return;
    __atomic_store_n(&transport->failure, failure, __ATOMIC_RELAXED);
    transport->options.on_wakeup(transport->options.context);
}

/* A thread of nng calls this function when nng has sent the request, has a response, or has failed,
 * and also when it is time to check for failures to connect. */
static void doorman__transport_on_aio(void *context) {
    doorman_transport *transport = (doorman_transport *)context;
    int nng_error = nng_aio_result(transport->aio);
    doorman__transport_state state = doorman__transport_get(transport);
    bool sending = state == DOORMAN__TRANSPORT_SENDING;
    assert(sending || state == DOORMAN__TRANSPORT_RECEIVING);
    if (sending && nng_error == NNG_ETIMEDOUT && doorman_clock() < transport->send_by) {
        doorman__transport_look(transport);
        bool failed = __atomic_load_n(&transport->failure, __ATOMIC_RELAXED) != NULL;
        if (!failed || !transport->fails_early) {
            doorman__transport_submit(transport);
            return;
        }
    }
    if (sending && nng_error == 0) {
        if (transport->look_in > DOORMAN__LOOK_FIRST) {
            (void)doorman__dialer_failure(doorman__transport_dialer(transport),
                                          &transport->old_failures);
        }
        doorman__transport_move(transport, DOORMAN__TRANSPORT_RECEIVING);
        nng_aio_set_timeout(transport->aio, doorman__transport_time_left(transport->deadline));
        nng_recv_aio(transport->socket->nng, transport->aio);
        return;
    }
    if (sending)
        nng_msg_free(nng_aio_get_msg(transport->aio)); /* nng does not own the message yet */
    doorman__transport_finish(transport, nng_error,
                              nng_error == 0 ? nng_aio_get_msg(transport->aio) : NULL);
}

static void doorman__tls_uninit(char *pem[3]) {
    for (int i = 0; i < 3; i++) {
        DOORMAN_FREE(pem[i]);
        pem[i] = NULL;
    }
}

/* Copies the texts, because each new connection needs them.
 *   pem       out: NULL for each text that is not given
 *   returns   false: memory has run out, and nothing is copied */
static bool doorman__tls_copy(char *pem[3], const doorman_tls *tls) {
    const char *texts[3] = {tls->authority, tls->certificate, tls->key};
    bool done = true;
    for (int i = 0; i < 3; i++) {
        pem[i] = texts[i] ? doorman__copy(texts[i]) : NULL;
        done = done && !pem[i] == !texts[i];
    }
    if (!done) doorman__tls_uninit(pem);
    return done;
}

/* Returns whether the authority is given, and either both the certificate and the key or
 * neither. */
static bool doorman__tls_given(const doorman_tls *tls) {
    return tls->authority && !tls->certificate == !tls->key;
}

/* Takes no lock, so the caller may hold the mutex of an agent or of its permits. Precondition: the
 * options are valid, and doorman__process_use_nng has returned OK. */
static doorman_status doorman__transport_create(doorman_transport **out,
                                                const doorman_transport_options *options) {
    assert(options->upstream && options->on_wakeup);
    doorman_transport *transport = (doorman_transport *)doorman__zalloc(sizeof *transport);
    if (transport)
        transport->socket = (doorman__socket *)doorman__zalloc(sizeof *transport->socket);
    if (!transport || !transport->socket ||
        nng_aio_alloc(&transport->aio, doorman__transport_on_aio, transport) != 0 ||
        (options->tls && !doorman__tls_copy(transport->pem, options->tls))) {
        doorman_transport_destroy(transport);
        return DOORMAN_OUT_OF_MEMORY;
    }
    transport->options = *options;
    *out = transport;
    return DOORMAN_OK;
}

doorman_status doorman_transport_create(doorman_transport **out,
                                        const doorman_transport_options *options) {
    bool valid = out && options && options->upstream && options->on_wakeup &&
                 (!options->tls || doorman__tls_given(options->tls));
    if (!valid) return DOORMAN_INVALID_ARGUMENT;
    doorman_status status = doorman__process_use_nng();
    return status == DOORMAN_OK ? doorman__transport_create(out, options) : status;
}

/* nng_aio_stop aborts the operation of the aio, and waits until the callback has returned. If the
 * callback tries to send again after the stop, nng does not take the message, so this function
 * frees it. The aio is freed before the socket is closed: nng's thread for timeouts uses the socket
 * of an operation that times out, even if the operation ends otherwise at the same time. nng 1.5.2
 * waits for this thread only in nng_aio_free. */
void doorman_transport_destroy(doorman_transport *transport) {
    if (!transport) return;
    if (transport->aio) nng_aio_stop(transport->aio);
    if (doorman__transport_get(transport) == DOORMAN__TRANSPORT_SENDING) {
        nng_msg_free(nng_aio_get_msg(transport->aio));
    }
    nng_aio_free(transport->aio);
    doorman__socket_close(transport->socket);
    if (doorman__transport_get(transport) == DOORMAN__TRANSPORT_PARSED) {
        (void)doorman__read_end(&transport->incoming.reader);
    }
    if (transport->reply) nng_msg_free(transport->reply);
    doorman_buffer_uninit(&transport->text);
    doorman__tls_uninit(transport->pem);
    DOORMAN_FREE(transport);
}

doorman_status doorman_transport_set_tls(doorman_transport *transport, const doorman_tls *tls) {
    if (!transport || !tls || !doorman__tls_given(tls)) return DOORMAN_INVALID_ARGUMENT;
    char *pem[3];
    if (!doorman__tls_copy(pem, tls)) return DOORMAN_OUT_OF_MEMORY;
    doorman__tls_uninit(transport->pem);
    memcpy(transport->pem, pem, sizeof pem);
    transport->has_new_tls = true;
    return DOORMAN_OK;
}

/* Makes the TLS configuration of a connection. nng checks that the certificate is for the host. */
static int doorman__transport_create_tls(doorman_transport *transport, nng_tls_config **out) {
    assert(transport->pem[0] && !transport->pem[1] == !transport->pem[2]);
    char host[DOORMAN_ID_BYTES_MAX + 1];
    const char *from = strstr(transport->address, "://");
    from = from ? from + 3 : transport->address;
    snprintf(host, sizeof host, "%.*s", (int)strcspn(from, ":/"), from);
    int error = nng_tls_config_alloc(out, NNG_TLS_MODE_CLIENT);
    if (error == 0) error = nng_tls_config_server_name(*out, host);
    if (error == 0) error = nng_tls_config_ca_chain(*out, transport->pem[0], NULL);
    if (error == 0 && transport->pem[1]) {
        error = nng_tls_config_own_cert(*out, transport->pem[1], transport->pem[2], NULL);
    }
    return error;
}

/* A thread of nng calls this when a connection is made or lost. A dialer that is being closed may
 * still make a connection. This function closes that connection or does not count it. */
static void doorman__transport_on_pipe(nng_pipe pipe, nng_pipe_ev event, void *context) {
    doorman__socket *own = (doorman__socket *)context;
    uint32_t id = (uint32_t)nng_pipe_id(pipe), dialer = nng_pipe_dialer(pipe).id;
    uint64_t ids = __atomic_load_n(&own->ids, __ATOMIC_RELAXED), next = 0;
    if (event == NNG_PIPE_EV_ADD_PRE) {
        if (dialer != ids >> 32) nng_pipe_close(pipe);
        return;
    }
    do {
        bool is_added = event == NNG_PIPE_EV_ADD_POST;
        if (is_added ? dialer != ids >> 32 : id != (uint32_t)ids) return;
        next = (ids & ~(uint64_t)UINT32_MAX) | (is_added ? id : 0);
    } while (!__atomic_compare_exchange_n(&own->ids, &ids, next, false, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
}

static int doorman__transport_dial(doorman_transport *transport) {
    assert(transport->address[0]);
    nng_dialer dialer = NNG_DIALER_INITIALIZER;
    nng_tls_config *tls = NULL;
    int error = nng_dialer_create(&dialer, transport->socket->nng, transport->address);
    if (error == 0 && transport->pem[0] && doorman__tls(transport->address)) {
        transport->has_new_tls = false;
        error = doorman__transport_create_tls(transport, &tls);
        if (error == 0) error = nng_dialer_set_ptr(dialer, NNG_OPT_TLS_CONFIG, tls);
    }
    doorman__transport_set_dialer(transport, dialer.id);
    if (error == 0) error = nng_dialer_start(dialer, NNG_FLAG_NONBLOCK);
    if (tls) nng_tls_config_free(tls); /* the dialer has its own reference */
    return error;
}

/* Opens the socket. The transport keeps this socket until doorman_transport_destroy, because
 * closing a socket can take long (see doorman__socket_close). nng must not resend a request,
 * because a server could grant a request that the upstream has given up.
 *   returns   nng's error, or 0 */
static int doorman__transport_open(doorman_transport *transport) {
    /* nng counts its request id as a part of the message */
    size_t bytes_max = DOORMAN_MESSAGE_BYTES_MAX + sizeof(uint32_t);
    nng_socket socket = NNG_SOCKET_INITIALIZER;
    int error = nng_req0_open(&socket);
    if (error != 0) return error;
    error = nng_socket_set_ms(socket, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE);
    if (error == 0) error = nng_socket_set_ms(socket, NNG_OPT_RECONNMAXT, 1000);
    if (error == 0) error = nng_socket_set_size(socket, NNG_OPT_RECVMAXSZ, bytes_max);
    for (int i = NNG_PIPE_EV_ADD_PRE; error == 0 && i <= NNG_PIPE_EV_REM_POST; i++) {
        error =
            nng_pipe_notify(socket, (nng_pipe_ev)i, doorman__transport_on_pipe, transport->socket);
    }
    if (error != 0) nng_close(socket);
    if (error == 0) transport->socket->nng = socket;
    return error;
}

/* Closes the previous dialer and its connection, and starts to connect to the address. The server
 * need not run yet, because nng retries every 0.1 s to 1 s.
 *   returns   nng's error, or 0 */
static int doorman__transport_connect(doorman_transport *transport) {
    assert(!transport->has_dialer);
    bool is_open = nng_socket_id(transport->socket->nng) > 0;
    int error = is_open ? 0 : doorman__transport_open(transport);
    if (error != 0) return error;
    nng_dialer old = NNG_DIALER_INITIALIZER;
    old.id = doorman__transport_dialer(transport);
    (void)nng_dialer_close(old); /* its connection too; has no effect if there is no dialer yet */
    transport->old_failures = 0;
    error = doorman__transport_dial(transport);
    transport->has_dialer = error == 0;
    return error;
}

/* Makes the next request open a new connection. */
static void doorman__transport_disconnect(doorman_transport *transport) {
    transport->has_dialer = false;
    doorman__transport_set_dialer(transport, doorman__transport_dialer(transport));
}

/* Sets the address of the next request. A new address or new certificates need a new connection. */
static void doorman__transport_set_address(doorman_transport *transport, const char *address) {
    assert(strlen(address) < sizeof transport->address);
    bool renews_tls = transport->has_new_tls && doorman__tls(address);
    if (renews_tls || strcmp(transport->address, address) != 0) {
        doorman__transport_disconnect(transport);
    }
    memcpy(transport->address, address, strlen(address) + 1);
}

/* How long after a result the next probe is due. DOORMAN__PROBE_SOON applies after a failure or
 * without a connection, because the server may be gone. */
#define DOORMAN__PROBE_AFTER (60 * DOORMAN_SECOND)
#define DOORMAN__PROBE_SOON (5 * DOORMAN_SECOND)

/* Returns whether a probe is due. No probe is due while the upstream has a request or backs off. */
static bool doorman__transport_probe_is_due(const doorman_transport *transport, doorman_time now) {
    bool usual = transport->options.probes && transport->options.upstream->state == DOORMAN__READY;
    bool gone = transport->failed || !doorman__transport_connected(transport);
    doorman_time pause = gone ? DOORMAN__PROBE_SOON : DOORMAN__PROBE_AFTER;
    if (!transport->ended_at) return usual;
    return usual && now >= doorman__after(transport->ended_at, pause);
}

static bool doorman__transport_prepare_probe(doorman_transport *transport, doorman_time now) {
    const doorman_upstream *upstream = transport->options.upstream;
    const doorman_request request = {.method = DOORMAN_DISCOVERY};
    assert(transport->probe_index < upstream->address_count);
    if (!doorman__transport_probe_is_due(transport, now)) return false;
    if (doorman_json_request(&request, &transport->text) != DOORMAN_OK) return false;
    doorman__transport_set_address(transport, upstream->addresses[transport->probe_index]);
    transport->probing = true;
    transport->sequence = 0;
    transport->deadline = doorman__after(now, upstream->timeout);
    doorman__transport_move(transport, DOORMAN__TRANSPORT_PREPARED);
    return true;
}

/* Does the work that is due for the client or the server. If no request is in progress, fetches the
 * next request or makes a probe that is due. Returns true if a request or probe must be sent. */
static bool doorman__transport_prepare(doorman_transport *transport, doorman_time now) {
    doorman_upstream *upstream = transport->options.upstream;
    doorman_request request;
    if (doorman__transport_get(transport) != DOORMAN__TRANSPORT_IDLE) {
        upstream->calls->work(upstream, now);
        return false;
    }
    assert(!transport->probing && !transport->reply);
    if (!doorman_upstream_request(upstream, &request, now)) {
        return doorman__transport_prepare_probe(transport, now);
    }
    const char *http = transport->options.http_address;
    if (upstream->is_server && http && *http) request.http_address = http;
    if (doorman_json_request(&request, &transport->text) != DOORMAN_OK) {
        doorman_upstream_failed(upstream, request.sequence, now);
        return false;
    }
    doorman__transport_set_address(transport, request.address);
    transport->sequence = request.sequence;
    transport->deadline = doorman__upstream_due(upstream);
    doorman__transport_move(transport, DOORMAN__TRANSPORT_PREPARED);
    return true;
}

/* A probe, or a request of an upstream that has another address to try, waits at most this long for
 * a connection. Other requests wait until they time out, if `fails_early` is false. */
#define DOORMAN__CONNECT_MAX (2 * DOORMAN_SECOND)

void doorman_transport_send(doorman_transport *transport) {
    if (!transport) return;
    nng_msg *message = NULL;
    transport->send_by = transport->deadline;
    if (transport->probing || transport->options.upstream->address_count > 1) {
        doorman_time soon = doorman_clock() + DOORMAN__CONNECT_MAX;
        transport->send_by = doorman__earlier(transport->deadline, soon);
    }
    transport->look_in = DOORMAN__LOOK_FIRST;
    __atomic_store_n(&transport->failure, NULL, __ATOMIC_RELAXED);
    int error = transport->has_dialer ? 0 : doorman__transport_connect(transport);
    if (error == 0) error = nng_msg_alloc(&message, transport->text.bytes);
    if (error != 0) {
        doorman__transport_finish(transport, error, NULL);
        return;
    }
    memcpy(nng_msg_body(message), transport->text.text, transport->text.bytes);
    nng_aio_set_msg(transport->aio, message);
    doorman__transport_move(transport, DOORMAN__TRANSPORT_SENDING);
    doorman__transport_submit(transport);
}

/* Parses a response if one has come. Parsing needs no lock. Returns the state on which the caller
 * decides. ENDED means that the request has failed. If a response comes after this call has read
 * the state, the next call parses it. */
static doorman__transport_state doorman__transport_parse(doorman_transport *transport) {
    doorman__transport_state state = doorman__transport_get(transport);
    if (state != DOORMAN__TRANSPORT_ENDED || !transport->reply) return state;
    doorman__incoming_read(&transport->incoming, (const char *)nng_msg_body(transport->reply),
                           nng_msg_len(transport->reply), &transport->error);
    doorman__transport_move(transport, DOORMAN__TRANSPORT_PARSED);
    return DOORMAN__TRANSPORT_PARSED;
}

/* Takes a response. Gives it to the upstream, unless it is the response to a probe. */
static doorman_status doorman__transport_take_response(doorman_transport *transport,
                                                       doorman_transport_result *out,
                                                       doorman_time now) {
    doorman__incoming *incoming = &transport->incoming;
    const char *http = incoming->response.http_address;
    const char *master = incoming->response.master_address;
    doorman_status status;
    out->is_master = incoming->response.is_master;
    if (!out->is_master && doorman__id_valid(master)) {
        memcpy(out->redirect, master, strlen(master) + 1);
    }
    if (transport->probing) {
        status = doorman__read_end(&incoming->reader);
    } else {
        if (doorman__id_valid(http)) memcpy(out->http_address, http, strlen(http) + 1);
        out->shared_id = incoming->response.shared_id;
        status =
            doorman__incoming_give(incoming, transport->options.upstream, transport->sequence, now);
    }
    assert(transport->reply);
    nng_msg_free(transport->reply);
    transport->reply = NULL;
    return status;
}

/* Passes a response or a failure to the upstream. After a failure the next request opens a new
 * connection. After a failed probe the next probe goes to the next address. */
static void doorman__transport_process_result(doorman_transport *transport,
                                              doorman_transport_result *out, doorman_time now) {
    doorman_upstream *upstream = transport->options.upstream;
    memset(out, 0, sizeof *out);
    doorman__transport_state state = doorman__transport_parse(transport);
    bool parsed = state == DOORMAN__TRANSPORT_PARSED;
    if (!parsed && state != DOORMAN__TRANSPORT_ENDED) return;
    out->has_ended = true;
    out->status = DOORMAN_UNAVAILABLE;
    memcpy(out->address, transport->address, sizeof out->address);
    out->is_probe = transport->probing;
    if (parsed) out->status = doorman__transport_take_response(transport, out, now);
    transport->probing = false;
    transport->failed = out->status != DOORMAN_OK;
    transport->ended_at = doorman__later(now, 1);
    if (transport->failed) {
        out->error = transport->error;
        if (out->is_probe) {
            transport->probe_index = (transport->probe_index + 1) % upstream->address_count;
        } else {
            doorman_upstream_failed(upstream, transport->sequence, now);
        }
        doorman__transport_disconnect(transport);
        bool waits = upstream->state != DOORMAN__READY;
        out->is_master = false;
        out->redirect[0] = 0;
        out->retry_at = waits ? doorman__upstream_due(upstream)
                              : doorman__after(transport->ended_at, DOORMAN__PROBE_SOON);
    }
    assert(!transport->reply && !transport->probing);
    doorman__transport_move(transport, DOORMAN__TRANSPORT_IDLE);
}

bool doorman_transport_update(doorman_transport *transport, doorman_transport_result *out,
                              doorman_time now) {
    doorman_transport_result result;
    if (!out) out = &result;
    if (!transport) {
        memset(out, 0, sizeof *out);
        return false;
    }
    doorman__transport_process_result(transport, out, now);
    return doorman__transport_prepare(transport, now);
}

/* ---- nng: pauses */

/* Notes whether a part of the agent backs off: see doorman__pause. */
static void doorman__pause_note(doorman__pause *pause, const doorman_upstream *upstream) {
    bool lasts = upstream->state == DOORMAN__BACKING_OFF;
    __atomic_store_n(&pause->lasts, lasts, __ATOMIC_SEQ_CST);
}

static void doorman__pause_check(doorman__pause *pause, doorman_upstream *upstream) {
    if (!__atomic_exchange_n(&pause->ends, false, __ATOMIC_SEQ_CST)) return;
    doorman__upstream_retry_soon(upstream, doorman_clock());
}

/* ---- nng: the thread */

/* What an agent does with its permits. The section >>permit_agent has the functions. */
typedef struct doorman__agent_permit_calls {
    doorman_status (*create)(doorman_agent *agent, const doorman_client_options *options,
                             doorman_error *error);
    void (*free)(doorman_agent *agent);
    void (*note_result)(doorman_agent *agent, const doorman_transport_result *result);
    void (*close)(doorman_agent *agent, doorman_time stop_by);
    bool (*is_own_thread)(doorman_agent *agent);
    void (*join)(doorman_agent *agent);
    void (*read)(doorman_agent *agent, doorman_agent_info *out);
    void (*set_kill_switch)(doorman_agent *agent, bool on);
} doorman__agent_permit_calls;
static const doorman__agent_permit_calls doorman__permits_in_agent;

/* Wakes the agent's thread. Runs in a thread of nng, or in the agent's thread itself. */
static void doorman__agent_on_wakeup(void *context) {
    doorman__agent_notify((doorman_agent *)context);
}

/* Keeps the error text of a failure for doorman_agent_read_info. */
static void doorman__error_keep(doorman_error *last, const char *address,
                                const doorman_error *error) {
    int most = (int)(sizeof error->text - (DOORMAN_ID_BYTES_MAX + 1) - 2);
    doorman__fail(last, DOORMAN_OK, "%s: %.*s", address, most, error->text);
}

static void doorman__agent_keep_error(doorman_agent *agent, const doorman_error *error,
                                      doorman_time now) {
    assert(error->text[0]);
    doorman__error_keep(&agent->last_error, agent->transport->address, error);
    agent->last_error_at = now;
}

/* Keeps the error text once, when an attempt to connect for the request in progress has failed. */
static void doorman__agent_process_connection(doorman_agent *agent, doorman_time now) {
    const struct doorman__dial_failure *failure = doorman__transport_failure(agent->transport);
    doorman_error error;
    bool before = agent->cannot_connect;
    agent->cannot_connect = failure != NULL;
    if (!failure || before) return;
    doorman__fail(&error, DOORMAN_OK, "cannot connect: %s", doorman__dial_failure_text(failure));
    doorman__agent_keep_error(agent, &error, now);
}

/* Processes the result of the last request. Keeps the error text of a failure, also if a server
 * knows no master. */
static void doorman__agent_process_result(doorman_agent *agent, doorman_time now) {
    doorman_transport_result result;
    uint64_t before = agent->client->upstream.failure_count;
    doorman__transport_process_result(agent->transport, &result, now);
    if (DOORMAN__HAS_PERMITS) doorman__permits_in_agent.note_result(agent, &result);
    doorman__agent_process_connection(agent, now);
    if (!result.has_ended || agent->client->upstream.failure_count == before) return;
    if (!result.error.text[0]) doorman__fail(&result.error, DOORMAN_OK, "it knows no master");
    doorman__agent_keep_error(agent, &result.error, now);
}

/* Updates the client in slices of DOORMAN__SLICE resources. For N resources with a wake-up time
 * there are at most N / DOORMAN__SLICE + 1 slices. Between two slices the thread sleeps. Otherwise
 * it would lock the mutex again before a waiting thread is awake. */
#define DOORMAN__SLICE 100
#define DOORMAN__SLICE_PAUSE (DOORMAN_SECOND / 20000)

static void doorman__agent_update(doorman_agent *agent) {
    const struct timespec pause = {.tv_nsec = (long)DOORMAN__SLICE_PAUSE};
    size_t left = agent->client->wakes.count;
    while (doorman__client_update_some(agent->client, DOORMAN__SLICE, doorman_clock())) {
        if (left < DOORMAN__SLICE) break;
        left -= DOORMAN__SLICE;
        pthread_mutex_unlock(&agent->mutex);
        (void)nanosleep(&pause, NULL);
        doorman__agent_lock_first(agent);
    }
}

/* Returns whether an agent must wait before it stops. The agent waits while it can release a lease,
 * and while a server may grant a lease. It does not wait for a server that does not respond,
 * because leases end even if they are not released. The table shows when the agent waits:
 *
 *   upstream      connection   the agent waits if
 *   READY         any          there is a lease to release (the next request releases it)
 *   REQUESTED     yes          there is a lease to release, or the last request did not fail (this
 *                              request may then get a response that grants a lease)
 *   REQUESTED     no           the last request did not fail, and no attempt to connect has failed
 *   BACKING_OFF   any          never */
static bool doorman__agent_has_to_wait(const doorman_agent *agent, doorman_time now) {
    const doorman_upstream *upstream = &agent->client->upstream;
    bool reachable = upstream->failures == 0; /* also true before the first request */
    if (upstream->state == DOORMAN__BACKING_OFF) return false;
    if (upstream->state == DOORMAN__READY)
        return doorman__client_has_to_release(agent->client, now);
    if (!doorman__transport_connected(agent->transport)) {
        return reachable && !doorman__transport_failure(agent->transport);
    }
    return reachable || doorman__client_has_to_release(agent->client, now);
}

/* Does the work of the agent's thread. The mutex is locked. Returns whether the thread ends. After
 * doorman_agent_stop, the thread ends when doorman__agent_has_to_wait returns false, or soon after
 * stop_by at the latest. */
static bool doorman__agent_work(doorman_agent *agent) {
    agent->sleeps_until = 0;
    doorman__pause_check(&agent->pause, &agent->client->upstream);
    doorman__agent_process_result(agent, doorman_clock());
    doorman__agent_update(agent);
    doorman_time now = doorman_clock(), stop_by = agent->stop_by;
    doorman__waiters_wake(agent);
    if (doorman__transport_prepare(agent->transport, now)) {
        pthread_mutex_unlock(&agent->mutex);
        doorman_transport_send(agent->transport);
        doorman__agent_lock_first(agent);
    }
    doorman__pause_note(&agent->pause, &agent->client->upstream);
    agent->sleeps_until = doorman__earlier(doorman_upstream_due(&agent->client->upstream), stop_by);
    /* the thread sleeps for at least 10 ms, unless it is woken */
    agent->sleeps_until = doorman__later(agent->sleeps_until, now + DOORMAN_SECOND / 100);
    assert(agent->sleeps_until > now);
    return now >= stop_by || (stop_by != DOORMAN_NEVER && !doorman__agent_has_to_wait(agent, now));
}

/* Sleeps, unless the thread must run again. The thread does not hold the mutex of the agent. */
static void doorman__agent_sleep(doorman_agent *agent, doorman_time until) {
    doorman_time now = doorman_clock();
    pthread_mutex_lock(&agent->wake_mutex);
    if (!agent->wakeup && now < until) {
        doorman__condition_wait(&agent->wake, &agent->wake_mutex, until, now);
    }
    agent->wakeup = false;
    pthread_mutex_unlock(&agent->wake_mutex);
}

/* doorman__agent_sleep clears `wakeup` before the thread looks for changes, so the thread misses no
 * change. */
static void *doorman__agent_main(void *context) {
    doorman_agent *agent = (doorman_agent *)context;
    for (bool ends = false; !ends;) {
        (void)doorman__transport_parse(agent->transport);
        doorman__agent_lock_first(agent);
        ends = doorman__agent_work(agent);
        doorman_time until = agent->sleeps_until;
        pthread_mutex_unlock(&agent->mutex);
        if (!ends) doorman__agent_sleep(agent, until);
    }
    return NULL;
}

/* Writes "HOST:PID:RANDOM". In the host name, "-" replaces each space and each character that is
 * not printable ASCII. Two containers may have the same host name and pid, so 64 random bits make
 * the id unique. The system provides the bits, because a fork or a copy of a virtual machine would
 * copy the state of a generator in this process. The probability that two of a million agents have
 * the same bits is 3e-8. */
static void doorman__agent_default_id(char id[DOORMAN_ID_BYTES_MAX + 1], uint64_t random) {
    char host[200] = "";
    if (gethostname(host, sizeof host - 1) != 0) memcpy(host, "unknown", 8);
    for (char *at = host; *at; at++) {
        if (*at <= ' ' || *at > '~') *at = '-';
    }
    snprintf(id, DOORMAN_ID_BYTES_MAX + 1, "%s:%ld:%016llx", host, (long)getpid(),
             (unsigned long long)random);
}

/* How long the release of a lease waits for the resource to be opened again (K5). */
#define DOORMAN__RELEASE_DELAY (DOORMAN_SECOND / 10)

static doorman_status doorman__agent_create_client(doorman_agent *agent,
                                                   const doorman_client_options *options,
                                                   doorman_error *error) {
    doorman_client_options own = *options;
    char id[DOORMAN_ID_BYTES_MAX + 1];
    uint64_t random[2];
    if (!doorman__random_bits(random, sizeof random)) {
        return doorman__fail(error, DOORMAN_UNAVAILABLE, "the system has no random bits");
    }
    doorman__agent_default_id(id, random[0]);
    if (!own.client_id) own.client_id = id;
    if (!own.seed) own.seed = random[1];
    own.tls = NULL; /* only the transport uses it */
    doorman_status status = doorman_client_create(&agent->client, &own, error, doorman_clock());
    if (status == DOORMAN_OK) agent->client->release_delay = DOORMAN__RELEASE_DELAY;
    return status;
}

static doorman_status doorman__agent_create_transport(doorman_agent *agent, const doorman_tls *tls,
                                                      doorman_error *error) {
    doorman_transport_options options = {.upstream = doorman_client_upstream(agent->client),
                                         .on_wakeup = doorman__agent_on_wakeup,
                                         .context = agent,
                                         .tls = tls};
    doorman_status status = doorman_transport_create(&agent->transport, &options);
    return status == DOORMAN_OK ? DOORMAN_OK : doorman__no_memory(error);
}

/* Checks whether nng supports an address. The check makes no connection. */
static doorman_status doorman__agent_check_address(nng_socket socket, const char *address,
                                                   bool has_tls, size_t index,
                                                   doorman_error *error) {
    nng_dialer dialer = NNG_DIALER_INITIALIZER;
    int result = nng_dialer_create(&dialer, socket, address);
    if (result == NNG_ENOMEM) return doorman__no_memory(error);
    if (result != 0) {
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT,
                             "addresses[%zu]: '%s': %s: must be tcp://HOST:PORT, "
                             "tls+tcp://HOST:PORT, ipc://PATH, inproc://NAME, ws://HOST:PORT/PATH "
                             "or wss://HOST:PORT/PATH",
                             index, address, nng_strerror(result));
    }
    nng_dialer_close(dialer);
    if (has_tls || !doorman__tls(address)) return DOORMAN_OK;
    return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "addresses[%zu]: '%s' needs options.tls",
                         index, address);
}

static doorman_status doorman__agent_check_tls(const doorman_tls *tls, doorman_error *error) {
    const char *field = "authority";
    if (!tls->authority) {
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "tls.authority: must not be NULL");
    }
    if (!tls->certificate != !tls->key) {
        return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "tls.%s: must not be NULL beside %s",
                             tls->key ? "certificate" : "key", tls->key ? "key" : "certificate");
    }
    nng_tls_config *config = NULL;
    int result = nng_tls_config_alloc(&config, NNG_TLS_MODE_CLIENT);
    if (result == 0) result = nng_tls_config_ca_chain(config, tls->authority, NULL);
    if (result == 0 && tls->certificate) {
        field = "certificate";
        result = nng_tls_config_own_cert(config, tls->certificate, tls->key, NULL);
    }
    if (config) nng_tls_config_free(config);
    if (result == 0) return DOORMAN_OK;
    if (result == NNG_ENOMEM) return doorman__no_memory(error);
    return doorman__fail(error, DOORMAN_INVALID_ARGUMENT, "tls.%s: %s", field,
                         nng_strerror(result));
}

/* Checks the options that depend on what nng supports. */
static doorman_status doorman__agent_check(const doorman_client_options *options,
                                           doorman_error *error) {
    doorman__socket *own = (doorman__socket *)doorman__zalloc(sizeof *own);
    doorman_status status = DOORMAN_OK;
    if (!own || nng_req0_open(&own->nng) != 0) {
        DOORMAN_FREE(own);
        return doorman__no_memory(error);
    }
    if (options->tls) status = doorman__agent_check_tls(options->tls, error);
    for (size_t i = 0; status == DOORMAN_OK && i < options->address_count; i++) {
        status =
            doorman__agent_check_address(own->nng, options->addresses[i], options->tls, i, error);
    }
    doorman__socket_close(own);
    return status;
}

static doorman_status doorman__agent_use_nng(doorman_error *error) {
    doorman_status status = doorman__process_use_nng();
    if (status == DOORMAN_OUT_OF_MEMORY) return doorman__no_memory(error);
    if (status == DOORMAN_OK) return status;
    return doorman__fail(error, status, "the parent of this process had used nng before the fork");
}

/* Precondition: the agent's thread has ended, or never ran. Threads of nng may use the agent until
 * the transport is destroyed. */
static void doorman__agent_free(doorman_agent *agent) {
    assert(!agent->first);
    if (agent->permits) doorman__permits_in_agent.free(agent);
    doorman_transport_destroy(agent->transport);
    doorman_client_destroy(agent->client);
    pthread_cond_destroy(&agent->left);
    pthread_cond_destroy(&agent->passed);
    pthread_cond_destroy(&agent->wake);
    pthread_mutex_destroy(&agent->wake_mutex);
    pthread_condattr_destroy(&agent->monotonic);
    pthread_mutex_destroy(&agent->mutex);
    DOORMAN_FREE(agent);
}

/* Creates the mutexes and condition variables. If one of them cannot be created, the others are not
 * destroyed, because none of them owns memory yet. */
static bool doorman__agent_init(doorman_agent *agent) {
    pthread_mutexattr_t checks;
    agent->stop_by = DOORMAN_NEVER;
    bool done = pthread_mutexattr_init(&checks) == 0 &&
                pthread_mutexattr_settype(&checks, PTHREAD_MUTEX_ERRORCHECK) == 0 &&
                pthread_mutex_init(&agent->mutex, &checks) == 0;
    pthread_mutexattr_destroy(&checks);
    return done && doorman__monotonic_init(&agent->monotonic) &&
           pthread_mutex_init(&agent->wake_mutex, NULL) == 0 &&
           pthread_cond_init(&agent->wake, &agent->monotonic) == 0 &&
           pthread_cond_init(&agent->passed, &agent->monotonic) == 0 &&
           pthread_cond_init(&agent->left, &agent->monotonic) == 0;
}

doorman_status doorman_agent_start(doorman_agent **out, const doorman_client_options *options,
                                   doorman_error *error) {
    if (!out) return doorman__missing(error, "out");
    if (!options) return doorman__missing(error, "options");
    doorman_status status = doorman__agent_use_nng(error);
    if (status != DOORMAN_OK) return status;
    doorman_agent *agent = (doorman_agent *)doorman__zalloc(sizeof *agent);
    if (!agent || !doorman__agent_init(agent)) {
        DOORMAN_FREE(agent);
        return doorman__no_memory(error);
    }
    status = doorman__agent_create_client(agent, options, error);
    if (status == DOORMAN_OK) status = doorman__agent_check(options, error);
    if (status == DOORMAN_OK) status = doorman__agent_create_transport(agent, options->tls, error);
    if (DOORMAN__HAS_PERMITS && status == DOORMAN_OK) {
        status = doorman__permits_in_agent.create(agent, options, error);
    }
    if (status == DOORMAN_OK &&
        !doorman__thread_start(&agent->thread, doorman__agent_main, agent)) {
        status = doorman__fail(error, DOORMAN_UNAVAILABLE, "cannot start a thread");
    }
    if (status == DOORMAN_OK) {
        doorman__process_add(agent);
        *out = agent;
    } else {
        doorman__agent_free(agent);
    }
    return status;
}

/* All releases are due at once. */
static void doorman__agent_close_all(doorman_agent *agent, doorman_time now) {
    doorman_upstream *upstream = &agent->client->upstream;
    doorman__held_lease *held = agent->client->upstream.first, *next = NULL;
    for (; held; held = next) {
        doorman_client_resource *resource = doorman__resource_of(held);
        next = held->next;
        for (size_t times = resource->opened; times; times--) doorman_client_close(resource, now);
    }
    for (held = upstream->first; held; held = held->next) {
        doorman__held_lease_request_at(upstream, held, now);
    }
}

/* Ends all waits, and allows no new wait. Precondition: the mutex is locked. */
static void doorman__agent_cancel_waits(doorman_agent *agent) {
    __atomic_store_n(&agent->closed, true, __ATOMIC_RELAXED);
    doorman__waiters_cancel(agent, NULL);
}

doorman_status doorman_agent_shutdown(doorman_agent *agent) {
    if (!agent) return DOORMAN_OK;
    doorman_status status = doorman__agent_lock(agent);
    if (status != DOORMAN_OK) return status;
    doorman__agent_cancel_waits(agent);
    pthread_mutex_unlock(&agent->mutex);
    if (DOORMAN__HAS_PERMITS) doorman__permits_in_agent.close(agent, 0);
    return DOORMAN_OK;
}

doorman_status doorman_agent_stop(doorman_agent *agent) {
    if (!agent) return DOORMAN_OK;
    doorman_status status = doorman__agent_lock(agent);
    if (status != DOORMAN_OK) return status;
    doorman_time now = doorman_clock();
    if (DOORMAN__HAS_PERMITS && doorman__permits_in_agent.is_own_thread(agent)) {
        pthread_mutex_unlock(&agent->mutex);
        return DOORMAN_DEADLOCK;
    }
    agent->stop_by = doorman__after(now, DOORMAN_SECOND);
    if (DOORMAN__HAS_PERMITS) doorman__permits_in_agent.close(agent, agent->stop_by);
    doorman__agent_cancel_waits(agent);
    doorman__agent_close_all(agent, now);
    doorman__agent_notify(agent);
    while (agent->first) pthread_cond_wait(&agent->left, &agent->mutex);
    pthread_mutex_unlock(&agent->mutex);
    pthread_join(agent->thread, NULL);
    if (DOORMAN__HAS_PERMITS) doorman__permits_in_agent.join(agent);
    doorman__process_remove(agent);
    doorman__agent_free(agent);
    return DOORMAN_OK;
}

doorman_status doorman_agent_read_info(doorman_agent *agent, doorman_agent_info *out) {
    if (out) memset(out, 0, sizeof *out);
    if (!agent || !out) return DOORMAN_INVALID_ARGUMENT;
    doorman_status status = doorman__agent_lock(agent);
    if (status != DOORMAN_OK) return status;
    const doorman_upstream *upstream = &agent->client->upstream;
    memcpy(out->client_id, agent->client->client_id, sizeof out->client_id);
    snprintf(out->address, sizeof out->address, "%s", doorman__upstream_address(upstream));
    bool same = strcmp(out->address, agent->transport->address) == 0;
    out->connected = same && doorman__transport_connected(agent->transport);
    bool cannot_connect = agent->cannot_connect && doorman__transport_failure(agent->transport);
    out->failing = upstream->failures > 0 || cannot_connect;
    out->last_error = agent->last_error;
    out->last_error_at = agent->last_error_at;
    out->next_refresh = doorman__upstream_due(upstream);
    pthread_mutex_unlock(&agent->mutex);
    if (DOORMAN__HAS_PERMITS) doorman__permits_in_agent.read(agent, out);
    return DOORMAN_OK;
}

/* ---- nng: the resources */

/* Locks the mutex for a call that opens a resource. Fails if the agent is shut down. Sets the error
 * text of each failure. */
static doorman_status doorman__agent_lock_open(doorman_agent *agent, doorman_error *error) {
    doorman_status status = doorman__agent_lock(agent);
    if (status == DOORMAN_DEADLOCK) {
        return doorman__fail(error, status, "%s", doorman__status_text(status));
    }
    if (status != DOORMAN_OK) {
        return doorman__fail(error, status, "the agent is that of the parent process");
    }
    if (!agent->closed) return DOORMAN_OK;
    pthread_mutex_unlock(&agent->mutex);
    return doorman__fail(error, DOORMAN_UNAVAILABLE, "the agent is shut down");
}

/* Precondition: the mutex is locked. */
static doorman_status doorman__agent_open(doorman_resource **out, doorman_agent *agent,
                                          const doorman_resource_options *options,
                                          doorman_error *error) {
    doorman_client_resource *own = NULL;
    doorman_resource *handle = (doorman_resource *)doorman__zalloc(sizeof *handle);
    if (!handle) return doorman__no_memory(error);
    doorman_status status =
        doorman_client_open(&own, agent->client, options, error, doorman_clock());
    if (status == DOORMAN_OK && !own->handle) { /* a resource that was already open has a handle */
        handle->agent = agent;
        handle->own = own;
        own->handle = handle;
        handle = NULL;
    }
    assert(status != DOORMAN_OK || own->handle->own == own);
    if (status == DOORMAN_OK) *out = own->handle;
    DOORMAN_FREE(handle);
    return status;
}

doorman_status doorman_resource_open(doorman_resource **out, doorman_agent *agent,
                                     const doorman_resource_options *options,
                                     doorman_error *error) {
    if (!out) return doorman__missing(error, "out");
    if (!agent) return doorman__missing(error, "agent");
    if (!options) return doorman__missing(error, "options");
    doorman_status status = doorman__agent_lock_open(agent, error);
    if (status != DOORMAN_OK) return status;
    status = doorman__agent_open(out, agent, options, error);
    doorman__agent_expedite(agent);
    pthread_mutex_unlock(&agent->mutex);
    return status;
}

doorman_status doorman_resource_close(doorman_resource *resource) {
    if (!resource) return DOORMAN_OK;
    doorman_client_resource *own = resource->own;
    doorman_agent *agent = resource->agent;
    doorman_status status = doorman__agent_lock(agent);
    if (status != DOORMAN_OK) return status;
    if (own->opened == 1) doorman__waiters_cancel(agent, own);
    doorman_client_close(own, doorman_clock());
    doorman__agent_expedite(agent);
    pthread_mutex_unlock(&agent->mutex);
    return DOORMAN_OK;
}

doorman_status doorman_resource_set_wants(doorman_resource *resource, double wants) {
    if (!resource) return DOORMAN_INVALID_ARGUMENT;
    doorman_agent *agent = resource->agent;
    doorman_status status = doorman__agent_lock(agent);
    if (status != DOORMAN_OK) return status;
    status = doorman_client_set_wants(resource->own, wants, doorman_clock());
    doorman__agent_notify(agent); /* the thread also wakes the first waiter */
    pthread_mutex_unlock(&agent->mutex);
    return status;
}

doorman_status doorman_resource_report_overload(doorman_resource *resource,
                                                const doorman_overload_report *report) {
    if (!resource || !report) return DOORMAN_INVALID_ARGUMENT;
    doorman_agent *agent = resource->agent;
    doorman_status status = doorman__agent_lock(agent);
    if (status != DOORMAN_OK) return status;
    status = doorman_client_report_overload(resource->own, report, doorman_clock());
    pthread_mutex_unlock(&agent->mutex);
    return status;
}

doorman_status doorman_resource_read(const doorman_resource *resource, doorman_resource_info *out) {
    if (out) memset(out, 0, sizeof *out);
    if (!resource || !out) return DOORMAN_INVALID_ARGUMENT;
    doorman_agent *agent = resource->agent;
    doorman_status status = doorman__agent_lock(agent);
    if (status != DOORMAN_OK) return status;
    doorman_client_read(resource->own, out, doorman_clock());
    pthread_mutex_unlock(&agent->mutex);
    return DOORMAN_OK;
}

doorman_decision doorman_resource_try(doorman_resource *resource, double n, doorman_result *out) {
    if (!resource) return doorman__impossible(out);
    return doorman__resource_try(resource->own, n, out, doorman_clock());
}

static doorman_time doorman__gauge_delay(const doorman__gauge *gauge, double n, doorman_time now) {
    doorman__quota quota;
    doorman__attempt attempt = doorman__gauge_look(gauge, n, &quota, now);
    if (attempt.decision == DOORMAN_ALLOWED || doorman__bypass(&gauge->usage)) return 0;
    bool possible = doorman__gauge_possible(gauge, doorman__units(n));
    return possible ? doorman__gauge_retry_after(gauge, n, now) : DOORMAN_NEVER;
}

doorman_time doorman_resource_delay(const doorman_resource *resource, double n) {
    if (!resource) return DOORMAN_NEVER;
    const doorman_client_resource *own = resource->own;
    doorman_time now = doorman_clock();
    if (!doorman__amount_valid(n)) return DOORMAN_NEVER;
    if (n <= 0) return 0;
    if (own->kind == DOORMAN_GAUGE) return doorman__gauge_delay(&own->gauge, n, now);
    doorman_time delay = doorman__rate_delay(&own->rate, n, now);
    if (delay == 0) return 0;
    bool possible = doorman__rate_possible(&own->rate, n);
    return possible ? doorman__rate_retry_after(&own->rate, n, now) : DOORMAN_NEVER;
}

/* The client keeps this setting for resources that are opened later. */
doorman_status doorman_agent_kill_switch(doorman_agent *agent, bool on) {
    if (!agent) return DOORMAN_INVALID_ARGUMENT;
    doorman_status status = doorman__agent_lock(agent);
    if (status != DOORMAN_OK) return status;
    agent->client->kill_switch = on;
    doorman__held_lease *held = agent->client->upstream.first;
    for (; held; held = held->next) {
        doorman__usage_bypass(doorman__resource_of(held)->usage, DOORMAN__KILL_SWITCH, on);
    }
    doorman__waiters_wake(agent);
    pthread_mutex_unlock(&agent->mutex);
    if (DOORMAN__HAS_PERMITS) doorman__permits_in_agent.set_kill_switch(agent, on);
    return DOORMAN_OK;
}
#endif /* DOORMAN_NNG */

#endif /* DOORMAN__IMPLEMENTED */
#endif /* DOORMAN_IMPLEMENTATION */

/*
 * MIT License
 *
 * Copyright (c) 2026 the Doorman authors
 *
 * Permission is hereby granted, free of charge, to any person obtaining a copy
 * of this software and associated documentation files (the "Software"), to deal
 * in the Software without restriction, including without limitation the rights
 * to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
 * copies of the Software, and to permit persons to whom the Software is
 * furnished to do so, subject to the following conditions:
 *
 * The above copyright notice and this permission notice shall be included in all
 * copies or substantial portions of the Software.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
 * IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
 * FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
 * AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
 * LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
 * OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
 * SOFTWARE.
 */
