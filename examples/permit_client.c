/* Asks a server whether a user may log in: a permit.
 *
 *     make
 *     build/doorman_server --config config.example.json &
 *     build/examples/permit_client alice
 *
 * The server decides for each user. Call the program six times within five seconds: the last time,
 * alice has to wait. If the server does not run, the program lets alice log in.
 */
#define DOORMAN_IMPLEMENTATION
#define DOORMAN_JSON
#define DOORMAN_NNG
#include "doorman_permits.h"

#include <stdio.h>

int main(int argc, char **argv) {
    const char *user = argc > 1 ? argv[1] : "alice";
    const char *addresses[] = {argc > 2 ? argv[2] : "tcp://127.0.0.1:15000"};
    doorman_client_options options = {.addresses = addresses, .address_count = 1};
    doorman_permit_item login = {.resource_id = "login", .key = user, .cost = 1};
    doorman_permit_request request = {.items = &login, .item_count = 1};
    doorman_agent *agent = NULL;
    doorman_acquired acquired = {.granted = false};
    doorman_error error = {0};
    if (doorman_agent_start(&agent, &options, &error) != DOORMAN_OK ||
        doorman_agent_acquire(agent, &request, DOORMAN_SECOND, &acquired, &error) != DOORMAN_OK) {
        fprintf(stderr, "permit_client: %s\n", error.text);
    } else if (acquired.granted) {
        printf("%s may log in\n", user);
    } else {
        printf("%s must wait: %s\n", user, doorman_reason_name(acquired.reason));
    }
    doorman_agent_stop(agent);
    return acquired.granted ? 0 : 1;
}
