/* GET /v1/allow, compared with limit_req of nginx. wrk sends the requests over 16 connections that
 * stay open, to the server and to nginx in turn. All requests have the same key, and none is
 * refused. nginx is one process. wrk is one thread, and needs as much CPU time for a request as
 * nginx does, about 7 us. So a second process of nginx would have little to do. */
#define _GNU_SOURCE /* popen */
#include "bench.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS_MAX = 10 };

typedef struct http_side {
    const peer *peer;
    double rates[ROUNDS_MAX];
    double seconds, answered; /* CPU time of the peer, and responses */
} http_side;

bool bench_find_program(char out[256], const char *name) {
    const char *path = getenv("PATH");
    char folders[4096];
    snprintf(folders, sizeof folders, "%s:/usr/sbin", path ? path : "");
    for (char *rest = NULL, *each = strtok_r(folders, ":", &rest); each;
         each = strtok_r(NULL, ":", &rest)) {
        int bytes = snprintf(out, 256, "%s/%s", each, name);
        if (bytes < 256 && access(out, X_OK) == 0) return true;
    }
    return false;
}

/* Runs wrk for a second. Returns responses a second. */
static double run_wrk(const char *wrk, const peer *to) {
    char command[512], line[256];
    double rate = 0, failed = 0;
    snprintf(command, sizeof command,
             "'%s' -t1 -c16 -d1s 'http://127.0.0.1:%u/v1/allow?resource=permits/64&key=alice'", wrk,
             (unsigned)to->port);
    FILE *output = popen(command, "r");
    must(output, "cannot start wrk");
    while (fgets(line, sizeof line, output)) {
        sscanf(line, "Requests/sec: %lf", &rate);
        sscanf(line, " Non-2xx or 3xx responses: %lf", &failed);
    }
    must(pclose(output) == 0 && rate > 0 && failed <= 0, "wrk got no responses, or errors");
    return rate;
}

static void run_round(const char *wrk, http_side *side, size_t round) {
    double before = peer_seconds(side->peer);
    side->rates[round] = run_wrk(wrk, side->peer);
    side->seconds += peer_seconds(side->peer) - before;
    side->answered += side->rates[round]; /* a round is one second */
}

static void compare(bench *b, const char *wrk, http_side *ours, http_side *theirs) {
    double ratios[ROUNDS_MAX];
    size_t rounds = b->quick ? 3 : ROUNDS_MAX;
    for (size_t i = 0; i < rounds; i++) {
        run_round(wrk, ours, i);
        run_round(wrk, theirs, i);
        ratios[i] = ours->rates[i] / theirs->rates[i];
        bench_tick(b);
    }
    const double own = ours->seconds / ours->answered, other = theirs->seconds / theirs->answered;
    bench_row(b, median(ours->rates, rounds), "requests/s", ANY, "GET /v1/allow, 16 connections");
    bench_row(b, median(theirs->rates, rounds), "requests/s", ANY, "  limit_req of nginx");
    bench_row(b, median(ratios, rounds), "times", LEAST(0.8), "  the server relative to nginx");
    bench_row(b, 1e6 * own, "us", ANY, "  CPU time of the server for a request");
    bench_row(b, 1e6 * other, "us", ANY, "  CPU time of nginx");
    bench_row(b, own / other, "times", MOST(1.4), "  the server relative to nginx");
}

void bench_http(bench *b) {
    char wrk[256], nginx[256];
    const char *name = "GET /v1/allow beside nginx";
    bench_step(b, "%s", name);
    bool has_wrk = bench_find_program(wrk, "wrk");
    if (!has_wrk || !bench_find_program(nginx, "nginx")) {
        bench_skip(b, name, has_wrk ? "nginx" : "wrk");
        return;
    }
    peer *server = peer_http_server(b), *other = peer_nginx(nginx);
    http_side ours = {.peer = server}, theirs = {.peer = other};
    compare(b, wrk, &ours, &theirs);
    peer_stop(server);
    peer_stop(other);
}
