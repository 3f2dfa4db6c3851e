/* What the parts of the benchmark share. Everything is bounded in time and count, on the loopback
 * alone; what cannot go on says why, and ends the program with its children. */
#ifndef DOORMAN_TESTS_BENCH_H
#define DOORMAN_TESTS_BENCH_H

#define DOORMAN_JSON
#define DOORMAN_NNG
#include "doorman.h"

#include <stdio.h>
#include <sys/types.h>

#define PATIENCE (20 * DOORMAN_SECOND) /* for what must happen; machines are slow at times */

/* ---- bench.c: the table, and what runs meanwhile --------------------------------------------- */

/* What a figure should be; NO_GOAL where there is nothing to reach. */
typedef struct goal {
    enum { NO_GOAL, AT_LEAST, AT_MOST } sense;
    double value;
} goal;

#define ANY ((goal){NO_GOAL, 0})
#define LEAST(value) ((goal){AT_LEAST, value})
#define MOST(value) ((goal){AT_MOST, value})

typedef struct bench {
    bool quick;           /* fewer rounds, and smaller where a row says so */
    bool large_pages;     /* of memory, for the renewals in one process */
    const char *server;   /* the program of the server */
    FILE *csv, *cost;     /* the rows; and nanoseconds by holders, for the picture */
    char group[96];       /* the last row that stands for itself */
    char step[80];        /* what is being measured */
    doorman_time started; /* since when */
    doorman_time shown;   /* when that was last said */
    bool terminal;
} bench;

/* A row of the table and of the file. The name is a format with its arguments. */
__attribute__((format(printf, 5, 6))) void bench_row(bench *b, double value, const char *unit,
                                                     goal to, const char *format, ...);

/* Says what is measured from now on; and, when called now and then, for how long it has been. */
__attribute__((format(printf, 2, 3))) void bench_step(bench *b, const char *format, ...);
void bench_tick(bench *b);

/* Ends the program unless something was done, with a line that says what could not be. */
void must(bool done, const char *what);

/* Nanoseconds that this thread has run: on a busy machine, less than those that pass. */
doorman_time cpu_time(void);

void sort(double *values, size_t count);
double median(double *values, size_t count); /* sorts them */
uint64_t random_below(uint64_t *state, uint64_t bound);
double random_unit(uint64_t *state); /* in [0, 1) */

#define HOLDER_ID_BYTES 32
void write_holder_id(char out[HOLDER_ID_BYTES + 1], size_t index);

/* ---- bench_peer.c: who answers, child processes ---------------------------------------------- */

typedef struct peer {
    pid_t pid; /* 0: none */
    uint16_t port;
    char folder[64], config[80], log[80];
} peer;

/* Start and return when they listen, on a free port; the peer is for peer_stop. */
peer *peer_server(const bench *b);
peer *peer_echo(void);
void peer_stop(peer *p);
double peer_memory(const peer *p);  /* bytes in RAM */
double peer_seconds(const peer *p); /* for which its threads have run, in all */

void peers_kill(void); /* all, at once; a signal handler may call it */
int echo_main(void);   /* the program of the echo */

/* ---- bench_load.c: who asks ------------------------------------------------------------------ */

typedef struct load load;

typedef struct load_options {
    const peer *to;
    bool echo; /* what comes back is the request */
    size_t connections;
    size_t in_flight;     /* requests on each connection */
    size_t holders;       /* who take turns; at least as many as requests in flight */
    const char *resource; /* its id; where a request has several, the id begins so */
    size_t resources;     /* in each request */
} load_options;

load *load_open(const load_options *options);
void load_close(load *l); /* waits until nothing is in flight */

uint64_t load_answered(const load *l); /* requests, so far */

/* Keeps all connections busy for a time. Answers a second. */
double load_round(load *l, doorman_time length);

/* Requests on every connection, one in each period on average, at random times. */
typedef struct paced {
    size_t asked, unanswered;
    double p50, p99; /* seconds from when a request was due until its answer was there */
} paced;
paced load_pace(load *l, bench *b, doorman_time period, doorman_time length);

/* Closes all connections, opens them anew at once, and asks on each: seconds until all have been
 * answered. */
double load_reconnect(load *l, bench *b);

/* ---- the parts ------------------------------------------------------------------------------- */

void bench_renewals(bench *b);
void bench_wire(bench *b);
void bench_connections(bench *b);
void bench_limiter(bench *b);
void bench_pacing(bench *b);

#endif
