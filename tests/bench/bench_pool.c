/* Holds over the network, compared with PoolCounter, the daemon that limits the parallel work of
 * MediaWiki. Its documentation describes its protocol: a line `ACQ4ME KEY WORKERS QUEUE TIMEOUT`
 * asks for a slot of a key, and LOCKED grants it. RELEASE gives it back. If a connection closes,
 * its slot is free.
 *
 * The same code measures both sides, on plain sockets with one thread. Doorman's messages have the
 * frames of nng's protocol (see bench_load.c). */
#include "bench.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PAIR_CONNECTIONS = 16, SLOTS = 4, QUEUE = 100, ROUNDS_MAX = 10, FRAME_BYTES = 12 };
#define TIMEOUT_MS ((int)(TIMEOUT / 1000000))
#define ROUND_LENGTH (DOORMAN_SECOND / 2)

typedef struct pool_side {
    const peer *to;
    bool doorman;
} pool_side;

typedef struct pool_connection {
    const pool_side *side;
    int fd;
    bool holds; /* the last request was an acquire */
    unsigned number;
    uint64_t request_id; /* of the last acquire */
    char in[4096];
    size_t count; /* bytes in `in` */
} pool_connection;

/* ---- messages -------------------------------------------------------------------------------- */

static void pool_send_bytes(const pool_connection *c, const void *data, size_t count) {
    ssize_t sent = send(c->fd, data, count, MSG_NOSIGNAL);
    must(sent == (ssize_t)count, "cannot send to a peer");
}

/* Sends a text, in a frame if the peer needs one. */
static void pool_send(const pool_connection *c, const char *text) {
    char message[1024];
    size_t bytes = strlen(text), head = c->side->doorman ? FRAME_BYTES : 0;
    must(bytes + head <= sizeof message, "a message is too long");
    memset(message, 0, FRAME_BYTES);
    if (head) {
        message[6] = (char)((bytes + 4) >> 8);
        message[7] = (char)(bytes + 4);
        message[8] = (char)0x80;
    }
    memcpy(message + head, text, bytes);
    pool_send_bytes(c, message, head + bytes);
}

/* Asks for a slot of a key.
 *   max_wait, time_to_live   seconds; Doorman only */
static void pool_acquire(pool_connection *c, const char *key, int workers, int max_wait,
                         int time_to_live) {
    char text[512];
    c->holds = true;
    c->request_id++;
    if (c->side->doorman) {
        snprintf(text, sizeof text,
                 "{\"acquire\":{\"client_id\":\"bench-%u\",\"permit\":[{\"request_id\":%llu,"
                 "\"max_wait\":%d,\"time_to_live\":%d,\"item\":[{\"resource_id\":\"pool/%s\","
                 "\"key\":\"key\"}]}]}}",
                 c->number, (unsigned long long)c->request_id, max_wait, time_to_live, key);
    } else {
        snprintf(text, sizeof text, "ACQ4ME %s %d %d 20\n", key, workers, QUEUE + SLOTS);
    }
    pool_send(c, text);
}

static void pool_release(pool_connection *c) {
    char text[512];
    c->holds = false;
    if (c->side->doorman) {
        snprintf(text, sizeof text,
                 "{\"release\":{\"client_id\":\"bench-%u\",\"entry\":[{\"request_id\":%llu}]}}",
                 c->number, (unsigned long long)c->request_id);
    }
    pool_send(c, c->side->doorman ? text : "RELEASE\n");
}

/* Returns the bytes of the first message, or 0 if it is not complete yet. */
static size_t pool_complete(const pool_connection *c) {
    if (!c->side->doorman) {
        const char *end = memchr(c->in, '\n', c->count);
        return end ? (size_t)(end - c->in) + 1 : 0;
    }
    if (c->count < FRAME_BYTES) return 0;
    size_t bytes = 8 + ((size_t)(unsigned char)c->in[6] << 8 | (unsigned char)c->in[7]);
    must(bytes < sizeof c->in, "a response is too long");
    return c->count >= bytes ? bytes : 0;
}

/* Checks that the response grants the slot or confirms its release, and removes the response. */
static void pool_take(pool_connection *c, size_t bytes) {
    char text[sizeof c->in];
    size_t head = c->side->doorman ? FRAME_BYTES : 0;
    memcpy(text, c->in + head, bytes - head);
    text[bytes - head] = 0;
    bool done = c->side->doorman
                    ? c->holds ? strstr(text, "\"GRANTED\"") != NULL : !strstr(text, "\"gone\"")
                    : strcmp(text, c->holds ? "LOCKED\n" : "RELEASED\n") == 0;
    if (!done) fprintf(stderr, "\nbench: %s\n", text);
    must(done, "a peer has refused a slot");
    c->count -= bytes;
    memmove(c->in, c->in + bytes, c->count);
}

/* Reads what has arrived. Returns whether a response was complete. */
static bool pool_read(pool_connection *c) {
    ssize_t got = recv(c->fd, c->in + c->count, sizeof c->in - c->count, 0);
    must(got > 0, "a peer has closed a connection");
    c->count += (size_t)got;
    size_t bytes = pool_complete(c);
    if (bytes) pool_take(c, bytes);
    return bytes > 0;
}

static void pool_wait(pool_connection *c) {
    struct pollfd at = {.fd = c->fd, .events = POLLIN};
    do {
        must(poll(&at, 1, TIMEOUT_MS) == 1, "a peer does not answer");
    } while (!pool_read(c));
}

/* ---- connections ----------------------------------------------------------------------------- */

static void pool_open(pool_connection *c, const pool_side *side, unsigned number) {
    static const char hello[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(side->to->port)};
    int one = 1;
    const char *host = side->to->address[0] ? side->to->address : "127.0.0.1";
    must(inet_pton(AF_INET, host, &address.sin_addr) == 1, "an address is invalid");
    *c = (pool_connection){.side = side, .number = number};
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    must(c->fd >= 0, "cannot open a socket");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    must(connect(c->fd, (struct sockaddr *)&address, sizeof address) == 0, "cannot connect");
    if (!side->doorman) return;
    char welcome[sizeof hello];
    pool_send_bytes(c, hello, sizeof hello);
    must(recv(c->fd, welcome, sizeof welcome, MSG_WAITALL) == sizeof welcome &&
             memcmp(welcome, hello, 4) == 0,
         "the peer does not speak nng's protocol");
}

static void pool_open_all(pool_connection *all, size_t count, const pool_side *side) {
    for (size_t i = 0; i < count; i++) pool_open(&all[i], side, (unsigned)i);
}

static void pool_close_all(pool_connection *all, size_t count) {
    for (size_t i = 0; i < count; i++) close(all[i].fd);
}

/* ---- pairs ----------------------------------------------------------------------------------- */

/* Sends the next request of a connection: acquires and releases take turns. A slot is always free.
 *   max_wait   Doorman only. If it is not 0, the server prepares for a permit that waits */
static void pool_next(pool_connection *c, int max_wait) {
    if (c->holds) {
        pool_release(c);
    } else {
        pool_acquire(c, "pairs", PAIR_CONNECTIONS, max_wait, 60);
    }
}

/* Returns how many acquires with their releases 16 connections make in a second. No slot is held
 * afterwards. */
static double pool_round(const pool_side *side, int max_wait) {
    pool_connection all[PAIR_CONNECTIONS];
    struct pollfd at[PAIR_CONNECTIONS];
    uint64_t releases = 0;
    pool_open_all(all, PAIR_CONNECTIONS, side);
    for (size_t i = 0; i < PAIR_CONNECTIONS; i++) {
        at[i] = (struct pollfd){.fd = all[i].fd, .events = POLLIN};
        pool_next(&all[i], max_wait);
    }
    doorman_time start = doorman_clock();
    while (doorman_clock() - start < ROUND_LENGTH) {
        int ready = poll(at, PAIR_CONNECTIONS, TIMEOUT_MS);
        must(ready > 0, "a peer does not answer");
        for (size_t i = 0; i < PAIR_CONNECTIONS; i++) {
            if (!at[i].revents || !pool_read(&all[i])) continue;
            releases += !all[i].holds;
            pool_next(&all[i], max_wait);
        }
    }
    doorman_time passed = doorman_clock() - start;
    for (size_t i = 0; i < PAIR_CONNECTIONS; i++) {
        pool_wait(&all[i]);
        if (!all[i].holds) continue;
        pool_release(&all[i]);
        pool_wait(&all[i]);
    }
    pool_close_all(all, PAIR_CONNECTIONS);
    return (double)releases * 1e9 / (double)passed;
}

/* ---- a queue --------------------------------------------------------------------------------- */

/* Waits until a connection that was not served yet is granted its slot. Returns its index. */
static size_t next_granted(pool_connection *all, const bool *served, size_t count) {
    struct pollfd at[QUEUE + SLOTS];
    doorman_time end = doorman_clock() + TIMEOUT;
    for (size_t i = 0; i < count; i++) {
        at[i] = (struct pollfd){.fd = served[i] ? -1 : all[i].fd, .events = POLLIN};
    }
    while (doorman_clock() < end) {
        must(poll(at, count, TIMEOUT_MS) > 0, "nobody is served");
        for (size_t i = 0; i < count; i++) {
            if (at[i].revents && pool_read(&all[i])) return i;
        }
    }
    must(false, "nobody is served");
    return 0;
}

/* Lets 100 callers arrive one after the other behind 4 slots. Then each holder releases. Returns
 * how many callers were served before a caller that had arrived earlier. */
static size_t pool_order(const pool_side *side) {
    static pool_connection all[QUEUE + SLOTS];
    bool served[QUEUE + SLOTS] = {false};
    const size_t count = QUEUE + SLOTS;
    size_t first = SLOTS, early = 0;
    struct timespec pause = {0, 2000000}; /* so that the requests arrive in order */
    pool_open_all(all, count, side);
    for (size_t i = 0; i < count; i++) {
        pool_acquire(&all[i], "queue", SLOTS, 20, 60);
        served[i] = i < SLOTS;
        if (served[i]) pool_wait(&all[i]);
        if (!served[i]) nanosleep(&pause, NULL);
    }
    for (size_t i = 0, holder = 0; i < QUEUE; i++) {
        pool_release(&all[holder]);
        pool_wait(&all[holder]);
        size_t granted = next_granted(all, served, count);
        served[granted] = true;
        early += granted != first;
        while (first < count && served[first]) first++;
        holder = holder + 1 < SLOTS ? holder + 1 : granted;
    }
    pool_close_all(all, count);
    return early;
}

/* Closes the connection of a holder while another caller waits. Returns the seconds until the slot
 * is granted. PoolCounter frees the slot with the connection. Doorman keeps it until the end of the
 * hold, because a holder may reconnect. */
static double pool_killed(const pool_side *side, const char *key) {
    pool_connection holder, next;
    pool_open(&holder, side, 1000);
    pool_open(&next, side, 1001);
    pool_acquire(&holder, key, 1, 20, 1);
    pool_wait(&holder);
    pool_acquire(&next, key, 1, 20, 1);
    doorman_time start = doorman_clock();
    close(holder.fd);
    pool_wait(&next);
    double seconds = (double)(doorman_clock() - start) / 1e9;
    close(next.fd);
    return seconds;
}

/* ---- the comparison -------------------------------------------------------------------------- */

static void compare_pairs(bench *b, const pool_side *ours, const pool_side *theirs) {
    double own[ROUNDS_MAX], other[ROUNDS_MAX], ratios[ROUNDS_MAX], waits[ROUNDS_MAX];
    size_t rounds = b->quick ? 3 : ROUNDS_MAX;
    for (size_t i = 0; i < rounds; i++) {
        own[i] = pool_round(ours, 0);
        other[i] = theirs ? pool_round(theirs, 0) : 1;
        ratios[i] = own[i] / other[i];
        waits[i] = pool_round(ours, 20);
        bench_tick(b);
    }
    bench_row(b, median(own, rounds), "pairs/s", ANY,
              "acquire and release over nng, 16 connections");
    bench_row(b, median(waits, rounds), "pairs/s", ANY, "  the same with permits that may wait");
    if (!theirs) return;
    bench_row(b, median(other, rounds), "pairs/s", ANY, "  PoolCounter");
    bench_row(b, median(ratios, rounds), "times", LEAST(0.9),
              "  the server relative to PoolCounter");
}

void bench_pool(bench *b) {
    char program[256];
    bench_step(b, "holds over nng");
    bool has_other = bench_find_program(program, "poolcounterd");
    pool_side ours = {.to = peer_server(b), .doorman = true};
    pool_side theirs = {.to = has_other ? peer_poolcounter(program) : NULL};
    compare_pairs(b, &ours, has_other ? &theirs : NULL);
    bench_row(b, (double)pool_order(&ours), "callers", MOST(0),
              "  100 callers behind 4 slots: served out of order");
    bench_row(b, 1e3 * pool_killed(&ours, "killed"), "ms", ANY,
              "  a holder of a hold of 1 s is killed: free after");
    if (has_other) {
        bench_row(b, (double)pool_order(&theirs), "callers", ANY,
                  "  PoolCounter: served out of order");
        bench_row(b, 1e3 * pool_killed(&theirs, "killed"), "ms", ANY,
                  "  PoolCounter: a holder is killed: free after");
        peer_stop((peer *)(uintptr_t)theirs.to);
    } else {
        bench_skip(b, "  holds beside PoolCounter", "poolcounterd");
    }
    peer_stop((peer *)(uintptr_t)ours.to);
}
