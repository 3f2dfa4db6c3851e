/* The library without a network, threads or a clock. A server and three clients run in one process.
 * The program itself passes requests and responses, and time is a variable. Use it as a pattern to
 * test a policy. Every decision of Doorman is a function call, and every run has the same result.
 *
 *     cc -I. examples/library_only.c -o library_only && ./library_only
 */
#define DOORMAN_IMPLEMENTATION
#include "doorman.h"

#include <stdio.h>
#include <stdlib.h>

enum { CLIENTS = 3 };

typedef struct world {
    doorman_config *config;
    doorman_server *server;
    doorman_client *client[CLIENTS];
    doorman_client_resource *resource[CLIENTS];
    double shown[CLIENTS]; /* the leases that were printed last */
    doorman_time now;
} world;

static void check(doorman_status status) {
    if (status == DOORMAN_OK) return;
    fprintf(stderr, "library_only: %s\n", doorman_status_name(status));
    exit(1);
}

/* Starts a root that shares 120 units fairly. It does not learn, because it has no predecessor. */
static void start_server(world *w) {
    doorman_template all = {.identifier_glob = "*", .capacity = 120, .has_algorithm = true};
    all.algorithm = (doorman_algorithm){.kind = DOORMAN_FAIR_SHARE,
                                        .lease_length = 30 * DOORMAN_SECOND,
                                        .refresh_interval = 10 * DOORMAN_SECOND,
                                        .has_learning_mode_duration = true};
    doorman_config_options config_options = {.templates = &all, .template_count = 1};
    check(doorman_config_create(&w->config, &config_options, NULL));
    doorman_server_options options = {.node = "root", .config = w->config, .seed = {1, 2}};
    check(doorman_server_create(&w->server, &options, NULL, w->now));
    doorman_mastership mastership = {.address = "here", .until = DOORMAN_NEVER};
    check(doorman_server_set_master(w->server, &mastership, w->now));
}

static void start_client(world *w, int i, const char *client_id, double wants) {
    const char *addresses[] = {"here"};
    doorman_client_options options = {
        .client_id = client_id, .addresses = addresses, .address_count = 1};
    options.seed = (uint64_t)i + 1; /* a real program takes random bits */
    check(doorman_client_create(&w->client[i], &options, NULL, w->now));
    doorman_resource_options resource = {.resource_id = "db", .wants = wants};
    check(doorman_client_open(&w->resource[i], w->client[i], &resource, NULL, w->now));
}

/* Passes one request and its response, if the client has something to send. A real program would
 * use a network instead. */
static void pass_request(world *w, doorman_client *client) {
    doorman_upstream *upstream = doorman_client_upstream(client);
    doorman_request request;
    doorman_response response;
    if (!doorman_upstream_request(upstream, &request, w->now)) return;
    check(doorman_server_handle(w->server, &request, &response, NULL, w->now));
    check(doorman_upstream_response(upstream, request.sequence, &response, w->now));
}

/* Prints the leases if a lease has changed. */
static void print_leases(world *w) {
    bool changed = false;
    for (int i = 0; i < CLIENTS; i++) {
        doorman_resource_info info = {0};
        if (w->resource[i]) doorman_client_read(w->resource[i], &info, w->now);
        changed = changed || info.capacity < w->shown[i] || info.capacity > w->shown[i];
        w->shown[i] = info.capacity;
    }
    if (!changed) return;
    printf("%10.2f s", (double)w->now / (double)DOORMAN_SECOND);
    for (int i = 0; i < CLIENTS; i++) printf("%10g", w->shown[i]);
    printf("\n");
}

/* Moves the time forward to the next moment at which a client has a request. The program never
 * sleeps. */
static void run_until(world *w, doorman_time end) {
    for (;;) {
        int first = 0;
        for (int i = 1; i < CLIENTS; i++) {
            if (doorman_upstream_due(doorman_client_upstream(w->client[i])) <
                doorman_upstream_due(doorman_client_upstream(w->client[first])))
                first = i;
        }
        doorman_time due = doorman_upstream_due(doorman_client_upstream(w->client[first]));
        if (due >= end) break;
        if (due > w->now) w->now = due;
        pass_request(w, w->client[first]);
        print_leases(w);
    }
    w->now = end;
}

int main(int argc, char **argv) {
    if (argc > 1 && argv[1][0] == '-') { /* such as --help */
        printf("usage: library_only\n");
        return 0;
    }
    world w = {0};
    start_server(&w);
    start_client(&w, 0, "greedy", 1000);
    start_client(&w, 1, "medium", 50);
    start_client(&w, 2, "modest", 10);

    /* The first client to ask gets the whole capacity. When it renews its lease, the server cuts it
     * to its fair share. After the client has confirmed the cut, the server grants the rest to the
     * others. */
    printf("capacity 120    greedy    medium    modest\n");
    printf("wants             1000        50        10\n");
    run_until(&w, 30 * DOORMAN_SECOND);

    printf("medium leaves\n");
    doorman_client_close(w.resource[1], w.now);
    w.resource[1] = NULL;
    run_until(&w, 60 * DOORMAN_SECOND);

    for (int i = 0; i < CLIENTS; i++) doorman_client_destroy(w.client[i]);
    doorman_server_destroy(w.server);
    doorman_config_destroy(w.config);
    return 0;
}
