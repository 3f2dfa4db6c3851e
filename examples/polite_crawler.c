/* Fetches pages. However many crawlers run, the server lets them fetch one page a second from a
 * host.
 *
 *     make
 *     build/doorman_server --config hosts.json &      the configuration of docs/tasks/politeness.md
 *     build/examples/polite_crawler tcp://127.0.0.1:15000 example.org example.org example.net
 *
 * Each host in the arguments stands for a page of this host. The server decides which page comes
 * when. While no server answers, the program keeps a slower pace of its own for each host.
 */
#define DOORMAN_IMPLEMENTATION
#define DOORMAN_JSON
#define DOORMAN_NNG
#include "doorman_permits.h"

#include <stdio.h>

int main(int argc, char **argv) {
    if (argc < 2 || argv[1][0] == '-') { /* such as --help */
        printf("usage: polite_crawler ADDRESS HOST...\n");
        return 0;
    }
    const char *addresses[] = {argv[1]};
    const doorman_limit_options alone = {.kind = DOORMAN_TOKEN_BUCKET, .rate = 0.1, .size = 1};
    doorman_client_options options = {.addresses = addresses,
                                      .address_count = 1,
                                      .permits = {.fallback = DOORMAN_FAIL_LOCAL, .local = &alone}};
    doorman_agent *agent = NULL;
    doorman_error error = {0};
    doorman_status status = doorman_agent_start(&agent, &options, &error);
    for (int i = 2; status == DOORMAN_OK && i < argc; i++) {
        doorman_permit_item page = {.resource_id = "hosts", .key = argv[i], .cost = 1};
        doorman_permit_request request = {
            .items = &page, .item_count = 1, .max_wait = 20 * DOORMAN_SECOND};
        doorman_acquired turn = {.granted = false};
        status = doorman_agent_acquire(agent, &request, 25 * DOORMAN_SECOND, &turn, &error);
        if (turn.granted) {
            printf("fetch a page of %s\n", argv[i]);
        } else {
            printf("%s: later, in %g s\n", argv[i], (double)turn.retry_after / DOORMAN_SECOND);
        }
    }
    if (status != DOORMAN_OK) fprintf(stderr, "polite_crawler: %s\n", error.text);
    doorman_agent_stop(agent);
    return status == DOORMAN_OK ? 0 : 1;
}
