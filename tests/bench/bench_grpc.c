/* ShouldRateLimit of gRPC, over 16 connections with 1 and with 16 requests in flight on each. It is
 * compared with a bare server of HTTP/2 that answers with the same bytes (bench_http2.c), and with
 * a script in Redis, because Envoy's own service also calls Redis for a request. h2load is the
 * client of the server and of the bare server, in one thread. The client of Redis is hiredis, in
 * one thread too. It has a connection for each request in flight, as Envoy's service has unless
 * REDIS_PIPELINE_WINDOW is set (its README, "Pipelining"). All requests have the same key, whose
 * bucket never refuses. */
#define _GNU_SOURCE /* memfd_create */
#include "bench.h"

#if defined BENCH_HTTP2 && defined BENCH_REDIS
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <hiredis/hiredis.h>

enum { ROUNDS_MAX = 10, CONNECTIONS = 16, STREAMS = 16 };

/* A request: a prefix, the domain `permits`, and a descriptor with the entry 64=alice. */
static const unsigned char question[] = {0,   0,   0,    0,   24,   0x0a, 7,    'p', 'e',  'r',
                                         'm', 'i', 't',  's', 0x12, 13,   0x0a, 11,  0x0a, 2,
                                         '6', '4', 0x12, 5,   'a',  'l',  'i',  'c', 'e'};

/* Counts a request in a window of Redis, as Envoy's service does: it adds to the counter, and gives
 * a new counter an end. */
#define SCRIPT                                                                                     \
    "local n = redis.call('INCRBY', KEYS[1], ARGV[1]) "                                            \
    "if n == tonumber(ARGV[1]) then redis.call('EXPIRE', KEYS[1], ARGV[2]) end return n"

typedef struct grpc_side {
    const peer *peer;
    double rates[ROUNDS_MAX];
    double seconds, answered; /* CPU time of the peer, and responses */
} grpc_side;

typedef struct grpc_bench {
    char h2load[256];
    int file; /* has the question */
    grpc_side ours, bare, redis;
    redisContext *contexts[CONNECTIONS * STREAMS];
    char script[64]; /* its SHA1 */
} grpc_bench;

/* Runs h2load for a second. Returns responses a second. */
static double run_h2load(const grpc_bench *g, const peer *to, unsigned streams) {
    char command[768], line[256];
    double rate = 0, good = 0, failed = 0;
    snprintf(command, sizeof command,
             "'%s' -t1 -c%d -m%u -D1 -d /dev/fd/%d -H 'content-type: application/grpc' "
             "-H 'te: trailers' 'http://127.0.0.1:%u/envoy.service.ratelimit.v3.RateLimitService"
             "/ShouldRateLimit'",
             g->h2load, CONNECTIONS, streams, g->file, (unsigned)to->port);
    FILE *output = popen(command, "r");
    must(output, "cannot start h2load");
    while (fgets(line, sizeof line, output)) {
        sscanf(line, "finished in %*[^,], %lf req/s", &rate);
        sscanf(line, "requests: %*f total, %*f started, %*f done, %lf succeeded, %lf failed", &good,
               &failed);
    }
    must(pclose(output) == 0 && rate > 0 && good > 0 && failed <= 0,
         "h2load got no responses, or errors");
    return rate;
}

/* ---- Redis ----------------------------------------------------------------------------------- */

static void redis_ask(const grpc_bench *g, redisContext *context) {
    must(redisAppendCommand(context, "EVALSHA %s 1 permits_64_alice 1 60", g->script) == REDIS_OK,
         "cannot ask Redis");
    for (int done = 0; !done;) {
        must(redisBufferWrite(context, &done) == REDIS_OK, "cannot write to Redis");
    }
}

static void redis_connect(grpc_bench *g) {
    for (int i = 0; i < CONNECTIONS * STREAMS; i++) {
        g->contexts[i] = redisConnect("127.0.0.1", g->redis.peer->port);
        must(g->contexts[i] && !g->contexts[i]->err, "cannot connect to Redis");
    }
    redisReply *reply = redisCommand(g->contexts[0], "SCRIPT LOAD %s", SCRIPT);
    must(reply && reply->type == REDIS_REPLY_STRING, "Redis does not take the script");
    snprintf(g->script, sizeof g->script, "%s", reply->str);
    freeReplyObject(reply);
}

/* Takes the response of a connection, if it is complete. */
static bool redis_take(redisContext *context) {
    void *reply = NULL;
    must(redisBufferRead(context) == REDIS_OK, "cannot read from Redis");
    must(redisGetReplyFromReader(context, &reply) == REDIS_OK, "Redis sends what is no response");
    if (!reply) return false;
    must(((redisReply *)reply)->type == REDIS_REPLY_INTEGER, "the script fails");
    freeReplyObject(reply);
    return true;
}

/* Sends requests to Redis during one second, over some connections at once. Returns responses a
 * second. */
static double run_redis(const grpc_bench *g, unsigned connections) {
    struct pollfd polls[CONNECTIONS * STREAMS];
    unsigned open = connections;
    double answered = 0;
    for (unsigned i = 0; i < connections; i++) {
        polls[i] = (struct pollfd){.fd = g->contexts[i]->fd, .events = POLLIN};
        redis_ask(g, g->contexts[i]);
    }
    doorman_time start = doorman_clock(), end = start + DOORMAN_SECOND, now = start;
    while (open > 0) {
        must(poll(polls, connections, 20000) > 0, "Redis does not answer");
        for (unsigned i = 0; i < connections; i++) {
            if (!polls[i].revents || !redis_take(g->contexts[i])) continue;
            answered++;
            if (now < end) redis_ask(g, g->contexts[i]);
            open -= now >= end;
        }
        now = doorman_clock();
    }
    return answered / ((double)(now - start) / (double)DOORMAN_SECOND);
}

/* ---- the comparison -------------------------------------------------------------------------- */

static void run_side(const grpc_bench *g, grpc_side *side, size_t round, unsigned streams) {
    double before = peer_seconds(side->peer);
    side->rates[round] = side == &g->redis ? run_redis(g, CONNECTIONS * streams)
                                           : run_h2load(g, side->peer, streams);
    side->seconds += peer_seconds(side->peer) - before;
    side->answered += side->rates[round]; /* a round is one second */
}

static void compare_grpc(bench *b, grpc_bench *g, unsigned streams) {
    double bare[ROUNDS_MAX], redis[ROUNDS_MAX];
    size_t rounds = b->quick ? 3 : ROUNDS_MAX;
    grpc_side *const sides[] = {&g->ours, &g->bare, &g->redis};
    for (size_t k = 0; k < 3; k++) sides[k]->seconds = sides[k]->answered = 0;
    for (size_t i = 0; i < rounds; i++) {
        for (size_t k = 0; k < 3; k++) run_side(g, sides[k], i, streams);
        bare[i] = g->ours.rates[i] / g->bare.rates[i];
        redis[i] = g->ours.rates[i] / g->redis.rates[i];
        bench_tick(b);
    }
    bench_row(b, median(g->ours.rates, rounds), "calls/s", ANY,
              "ShouldRateLimit, 16 connections with %u stream%s", streams, streams > 1 ? "s" : "");
    bench_row(b, median(g->bare.rates, rounds), "calls/s", ANY, "  nghttp2, the same bytes");
    bench_row(b, median(g->redis.rates, rounds), "calls/s", ANY, "  a script in Redis");
    bench_row(b, median(bare, rounds), "times", LEAST(0.8), "  the server relative to nghttp2");
    bench_row(b, median(redis, rounds), "times", streams > 1 ? LEAST(3) : LEAST(1),
              "  the server relative to Redis");
    for (size_t k = 0; k < 3; k++) {
        static const char *const names[] = {"the server", "nghttp2", "Redis"};
        bench_row(b, 1e6 * sides[k]->seconds / sides[k]->answered, "us", ANY,
                  "  CPU time of %s for a call", names[k]);
    }
}

void bench_grpc(bench *b) {
    const char *name = "ShouldRateLimit beside nghttp2 and Redis";
    grpc_bench g = {.file = -1};
    char redis[256];
    bench_step(b, "%s", name);
    bool has_load = bench_find_program(g.h2load, "h2load");
    if (!has_load || !bench_find_program(redis, "redis-server")) {
        bench_skip(b, name, has_load ? "redis-server" : "h2load");
        return;
    }
    g.file = memfd_create("question", 0); /* h2load inherits it */
    must(g.file >= 0 && write(g.file, question, sizeof question) == sizeof question,
         "cannot write a request");
    peer *ours = peer_grpc_server(b), *bare = peer_http2(), *other = peer_redis(redis);
    g.ours.peer = ours;
    g.bare.peer = bare;
    g.redis.peer = other;
    redis_connect(&g);
    compare_grpc(b, &g, 1);
    compare_grpc(b, &g, STREAMS);
    for (int i = 0; i < CONNECTIONS * STREAMS; i++) redisFree(g.contexts[i]);
    close(g.file);
    peer_stop(ours);
    peer_stop(bare);
    peer_stop(other);
}
#else
void bench_grpc(bench *b) {
    bench_skip(b, "ShouldRateLimit beside nghttp2 and Redis", "nghttp2 or hiredis");
}
#endif
