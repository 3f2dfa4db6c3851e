/* Declarations that the parts of the benchmark share. Everything is bounded in time and count, and
 * uses only the loopback. A part that cannot continue prints why, and ends the program and its
 * children. */
#ifndef DOORMAN_TESTS_BENCH_H
#define DOORMAN_TESTS_BENCH_H

#define DOORMAN_JSON
#define DOORMAN_NNG
#include "doorman_permits.h"
#include "doorman_throttle.h"

#include <stdio.h>
#include <sys/types.h>

#define TIMEOUT (20 * DOORMAN_SECOND) /* how long to wait for a peer; some machines are slow */

/* ---- bench.c: the table, and the progress ---------------------------------------------------- */

/* The goal for a figure; NO_GOAL if there is none. */
typedef struct goal {
    enum { NO_GOAL, AT_LEAST, AT_MOST } sense;
    double value;
} goal;

#define ANY ((goal){NO_GOAL, 0})
#define LEAST(value) ((goal){AT_LEAST, value})
#define MOST(value) ((goal){AT_MOST, value})

typedef struct bench {
    bool quick;             /* fewer and shorter rounds, and smaller loads */
    bool large_pages;       /* work in one process uses pages of 2 MiB */
    const char *only;       /* the part to measure; NULL: all */
    unsigned share, shares; /* or which share of the parts; 0: all */
    const char *server;     /* the path of the server program */
    FILE *csv;              /* the rows */
    FILE *cost, *permits;   /* for the pictures: nanoseconds by number of holders, or of keys */
    char group[96];         /* the last row whose name is not indented */
    char step[80];          /* what is being measured */
    doorman_time started;   /* when this step started */
    doorman_time shown;     /* when the progress was last printed */
    bool terminal;
} bench;

/* Writes a row of the table and of the file. The name is a format with its arguments. */
__attribute__((format(printf, 5, 6))) void bench_row(bench *b, double value, const char *unit,
                                                     goal to, const char *format, ...);

/* Writes the nanoseconds of a clock read, which say how fast the machine is now. */
void bench_clock(bench *b, const char *beside);

/* Writes that a measurement is left out because a program is not installed. */
void bench_skip(const bench *b, const char *name, const char *program);

/* bench_step prints what is measured from now on. bench_tick is called often and prints from time
 * to time how long that has taken. */
__attribute__((format(printf, 2, 3))) void bench_step(bench *b, const char *format, ...);
void bench_tick(bench *b);

/* Ends the program unless `done`, with a line that says what failed. */
void must(bool done, const char *message);

/* Returns the CPU time of this thread in nanoseconds. On a busy machine it is less than the time
 * that passes. */
doorman_time cpu_time(void);

/* Finds a program in the PATH or in /usr/sbin. */
bool bench_find_program(char out[256], const char *name);

void sort(double *values, size_t count);
double median(double *values, size_t count); /* sorts them */
uint64_t random_below(uint64_t *state, uint64_t bound);
double random_unit(uint64_t *state); /* in [0, 1) */

/* Returns the bytes that malloc reports as in use. */
double bytes_in_use(void);

/* Raises *pause to the CPU time since `start`, if that is longer. */
void note_pause(doorman_time *pause, doorman_time start);

/* Returns how many operations a second one thread does, in CPU time: the median of several rounds.
 *   some   does BENCH_SOME operations with `context` */
#define BENCH_SOME 1000
double bench_rate(bench *b, void (*some)(void *context), void *context);

#define HOLDER_ID_BYTES 32
void write_holder_id(char out[HOLDER_ID_BYTES + 1], size_t index);

/* ---- bench_peer.c: the peers that answer, as child processes --------------------------------- */

typedef struct peer {
    const struct peer *redis, *etcd; /* those that a peer_state_server uses */
    pid_t pid;                       /* 0: none */
    uint16_t port;
    char address[16]; /* of the loopback; empty: 127.0.0.1 */
    char folder[64], config[80], log[80], pid_file[80], state[80];
    bool has_folders; /* `state` is a folder */
} peer;

/* Each function starts a peer and returns when the peer listens. The caller ends it with
 * peer_stop. */
peer *peer_server(const bench *b);
/* This server keeps its counters in a file or a Redis. With an etcd it is one process of a node. */
peer *peer_state_server(const bench *b, const peer *redis, const peer *etcd);
peer *peer_event_server(const bench *b, const char *sample); /* with --events */
peer *peer_echo(void);
peer *peer_http_server(const bench *b); /* the port is that of HTTP */
/* Starts examples/throttled_server.c. `off`: without its throttle. */
peer *peer_throttled(const bench *b, bool off);
peer *peer_nginx(const char *program); /* it answers every request with 200 */
peer *peer_poolcounter(const char *program);
peer *peer_grpc_server(const bench *b); /* the port is that of gRPC */
peer *peer_http2(void);                 /* bench_http2.c */
peer *peer_redis(const char *program);  /* keeps nothing on disk */
peer *peer_etcd(const char *program);
/* Starts an etcd and a Redis. Returns false if one of them is not installed. */
bool peers_find(bench *b, const char *name, peer **etcd, peer **redis);

/* A node of a cluster whose nodes share the keys. Clusters with different numbers have nothing in
 * common, although they use the same etcd and Redis. The name of the node is "nCLUSTER-NODE". */
typedef struct shard_place {
    const peer *etcd, *redis;
    unsigned cluster, node;
} shard_place;

#define PEER_TOKEN "bench-operator"                              /* the token of an administrator */
peer *peer_shard_node(const bench *b, const shard_place *place); /* the port is that of HTTP */

void peer_stop(peer *p);

/* Tells a peer_state_server to end, waits, and starts it again on the same port. */
void peer_restart(const bench *b, peer *p);

/* Reads the number that follows a text in the log of a peer. Returns false if there is none yet. */
bool peer_read_log(const peer *p, const char *text_before, double *number);
double peer_memory(const peer *p);  /* bytes of resident memory */
double peer_seconds(const peer *p); /* CPU time of all its threads */

void peers_kill(void); /* ends all peers; safe in a signal handler */
int echo_main(void);   /* the main function of the echo */
int http2_main(void);  /* that of the bare server of HTTP/2; it does not return */

/* ---- bench_load.c: the clients --------------------------------------------------------------- */

typedef struct load load;

typedef struct load_options {
    const peer *to;
    bool echo; /* the peer sends the request back */
    size_t connections;
    size_t in_flight;     /* requests on each connection */
    size_t holders;       /* used in rotation; at least one for each request in flight */
    const char *resource; /* its id; with several in each request, the start of their ids */
    size_t resources;     /* the number in each request; of permits, if it asks for those */
    bool permits;         /* requests ask for permits, each with another key */
} load_options;

load *load_open(const load_options *options);
void load_close(load *l); /* waits for requests in flight */

uint64_t load_answered(const load *l); /* requests answered so far */

/* Keeps all connections busy for a time. Returns responses a second. */
double load_round(load *l, doorman_time length);

/* Sends requests on every connection, one in each period on average, at random times. */
typedef struct paced {
    size_t asked, unanswered;
    double p50, p99, p999, longest; /* seconds from when a request was due until its response
                                       arrived */
} paced;
paced load_pace(load *l, bench *b, doorman_time period, doorman_time length);

/* Closes all connections, opens all again at once, and sends a request on each. Returns the seconds
 * until all have been answered. */
double load_reconnect(load *l, bench *b);

/* ---- the parts ------------------------------------------------------------------------------- */

void bench_renewals(bench *b);
void bench_permits(bench *b);
void bench_batch(bench *b);
void bench_holds(bench *b);
void bench_pool(bench *b);
void bench_state(bench *b);
void bench_throttle(bench *b);
void bench_throttled(bench *b);
void bench_wire(bench *b);
void bench_agent(bench *b);
void bench_events(bench *b);
void bench_http(bench *b);
void bench_grpc(bench *b);
void bench_shards(bench *b);
void bench_moves(bench *b);
void bench_connections(bench *b);
void bench_limiter(bench *b);
void bench_pacing(bench *b);

#endif
