/* Queries on a shared database, limited to the share of this client (a rate).
 *
 *     make
 *     build/doorman_server --config config.example.json &
 *     build/examples/rate_client
 *
 * The program wants 400 queries a second. Start the program in several terminals. While the server
 * runs, the programs together do no more queries than the capacity of db/orders in
 * config.example.json. Each program gets a fair share of that capacity. If you stop one program,
 * the others get its share. If you stop the server, each program continues with its lease, and then
 * with the safe capacity.
 */
#define DOORMAN_IMPLEMENTATION
#define DOORMAN_JSON
#define DOORMAN_NNG
#include "doorman.h"

#include <stdio.h>

int main(int argc, char **argv) {
    if (argc > 1 && argv[1][0] == '-') { /* such as --help */
        printf("usage: rate_client [ADDRESS]\n");
        return 0;
    }
    const char *addresses[] = {argc > 1 ? argv[1] : "tcp://127.0.0.1:15000"};
    doorman_client_options options = {.addresses = addresses, .address_count = 1};
    doorman_resource_options database = {
        .resource_id = "db/orders",
        .wants = 400,
        .has_safe_capacity = true,
        .safe_capacity = 10,
    };
    doorman_agent *agent = NULL;
    doorman_resource *resource = NULL;
    doorman_error error = {0};
    if (doorman_agent_start(&agent, &options, &error) != DOORMAN_OK ||
        doorman_resource_open(&resource, agent, &database, &error) != DOORMAN_OK) {
        fprintf(stderr, "rate_client: %s\n", error.text);
        doorman_agent_stop(agent);
        return 1;
    }

    for (int second = 1; second <= 10; second++) {
        int queries = 0;
        doorman_time end = doorman_clock() + DOORMAN_SECOND;
        for (doorman_time now; (now = doorman_clock()) < end;) {
            if (doorman_resource_wait(resource, 1, end - now) == DOORMAN_OK) queries++;
        }
        doorman_resource_info info;
        doorman_resource_read(resource, &info);
        printf("%2d s: %5d queries, %s of %g a second\n", second, queries,
               info.leased ? "a lease" : "without a lease, the safe capacity", info.capacity);
    }

    doorman_agent_stop(agent);
    return 0;
}
