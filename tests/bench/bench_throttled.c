/* examples/throttled_server.c with and without its throttle. wrk sends 0.5, 1, 2 and 5 times the
 * requests that the server can answer: see throttled.lua. Without a throttle, a connection waits
 * longer for its answer, so fewer requests arrive. */
#define _GNU_SOURCE /* popen */
#include "bench.h"

#include <string.h>

enum { CAPACITY = 400 /* requests a second */, WARM_UP = 2 /* seconds */ };

typedef struct outcome {
    unsigned in_time, late, refused, p99;
} outcome;

static outcome run_wrk(const char *wrk, const peer *to, double times, int seconds) {
    char command[512], line[256];
    outcome out = {0, 0, 0, 0};
    int found = 0;
    snprintf(command, sizeof command,
             "'%s' -t1 -c%d -d%ds --timeout 20s --script tests/bench/throttled.lua "
             "http://127.0.0.1:%u/",
             wrk, (int)(times * CAPACITY), WARM_UP + seconds, (unsigned)to->port);
    FILE *output = popen(command, "r");
    must(output, "cannot start wrk");
    while (fgets(line, sizeof line, output)) {
        if (strncmp(line, "in_time ", 8) != 0) continue;
        found = sscanf(line, "in_time %u late %u refused %u p99 %u", &out.in_time, &out.late,
                       &out.refused, &out.p99);
    }
    must(pclose(output) == 0 && found == 4, "wrk got no responses, or errors");
    return out;
}

/* Starts a fresh server, because without a throttle requests of the last load would still wait. */
static void measure(bench *b, const char *wrk, double times, bool off) {
    int seconds = b->quick ? 2 : 5;
    peer *server = peer_throttled(b, off);
    outcome out = run_wrk(wrk, server, times, seconds);
    peer_stop(server);
    const char *with = off ? "  without a throttle" : "throttled_server";
    bench_row(b, (double)out.in_time / seconds, "answers/s", ANY,
              "%s, in time at %g times the load", with, times);
    bench_row(b, out.p99, "ms", ANY, off ? "  without a throttle, p99" : "  p99");
    bench_tick(b);
}

void bench_throttled(bench *b) {
    static const double loads[] = {0.5, 1, 2, 5};
    char wrk[256];
    const char *name = "a server behind a throttle";
    bench_step(b, "%s", name);
    if (!bench_find_program(wrk, "wrk")) {
        bench_skip(b, name, "wrk");
        return;
    }
    for (size_t i = 0; i < sizeof loads / sizeof *loads; i++) {
        if (b->quick && i % 2 == 1 && i != 3) continue;
        measure(b, wrk, loads[i], false);
        measure(b, wrk, loads[i], true);
    }
}
