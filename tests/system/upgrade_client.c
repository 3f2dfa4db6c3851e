/* A client for tests/upgrade_check.sh, which compiles it with the headers of two versions.
 *
 *     upgrade_client ID ADDRESS...
 *
 * It wants 80 of the capacity of "db", holds a unit of "jobs", and asks for a permit of "login" at
 * most ten times a second. It writes a line when its capacity or hold changes, and one for each
 * decision of a server. The first word of a line is the time on a clock that all processes share:
 *
 *     TIME lease CAPACITY
 *     TIME hold UNITS
 *     TIME permit granted|refused
 *
 * SIGTERM ends it. Before it gives anything back it writes that it has nothing any more, so that no
 * other client can have the same units in an earlier line. */
#define DOORMAN_IMPLEMENTATION
#define DOORMAN_JSON
#define DOORMAN_NNG
#ifdef BEFORE_PERMITS_HEADER
#include "doorman.h"
#else
#include "doorman_permits.h"
#endif

#include <signal.h>
#include <stdio.h>
#include <time.h>

static volatile sig_atomic_t ended;

static void on_signal(int number) {
    (void)number;
    ended = 1;
}

static void tell(const char *what, double amount) {
    printf("%llu %s %g\n", (unsigned long long)doorman_clock(), what, amount);
    fflush(stdout);
}

static void on_change(void *context, const doorman_resource_info *info) {
    (void)context;
    tell("lease", info->capacity);
}

static void on_hold_changed(void *context, const doorman_held *held) {
    (void)context;
    if (held->gone) tell("hold", 0);
}

/* Waits at most a second for a hold of a unit of "jobs". Returns whether a server grants it. */
static bool take_hold(doorman_agent *agent) {
    const doorman_permit_item item = {.resource_id = "jobs", .cost = 1};
    uint64_t hold = 0;
    const doorman_permit_request request = {.items = &item, .item_count = 1, .hold = &hold};
    doorman_acquired out = {.granted = false};
    doorman_agent_acquire(agent, &request, DOORMAN_SECOND, &out, NULL);
    if (out.granted && out.hold) tell("hold", 1);
    return out.granted && out.hold;
}

static void ask(doorman_agent *agent, const char *key) {
    const doorman_permit_item item = {.resource_id = "login", .key = key, .cost = 1};
    const doorman_permit_request request = {.items = &item, .item_count = 1};
    doorman_acquired out = {.granted = false};
    doorman_agent_acquire(agent, &request, DOORMAN_SECOND, &out, NULL);
    if (out.decided_by != DOORMAN_BY_SERVER) return;
    printf("%llu permit %s\n", (unsigned long long)doorman_clock(),
           out.granted ? "granted" : "refused");
    fflush(stdout);
}

static void run(doorman_agent *agent, const char *id) {
    const struct timespec pause = {.tv_nsec = 100000000};
    bool has_hold = false;
    while (!ended) {
        if (!has_hold) has_hold = take_hold(agent);
        ask(agent, id);
        nanosleep(&pause, NULL);
    }
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    const doorman_client_options options = {
        .client_id = argv[1],
        .addresses = (const char *const *)argv + 2,
        .address_count = (size_t)argc - 2,
        .request_timeout = DOORMAN_SECOND,
        .permits = {.fallback = DOORMAN_FAIL_CLOSED, .on_hold_changed = on_hold_changed}};
    const doorman_resource_options database = {
        .resource_id = "db", .wants = 80, .on_change = on_change};
    doorman_agent *agent = NULL;
    doorman_resource *resource = NULL;
    doorman_error error = {0};
    signal(SIGTERM, on_signal);
    if (doorman_agent_start(&agent, &options, &error) != DOORMAN_OK ||
        doorman_resource_open(&resource, agent, &database, &error) != DOORMAN_OK) {
        fprintf(stderr, "upgrade_client: %s\n", error.text);
        return 1;
    }
    run(agent, argv[1]);
    tell("lease", 0);
    tell("hold", 0);
    doorman_agent_stop(agent);
    return 0;
}
