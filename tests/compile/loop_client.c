/* A client of leases with a loop of its own. It must not link the code of permits or of servers. */
#include "doorman.h"

static doorman_time run(doorman_client *client, doorman_client_resource *resource, int count) {
    doorman_upstream *upstream = doorman_client_upstream(client);
    const doorman_response response = {.is_master = true};
    doorman_request request;
    for (int now = 0; now < count; now++) {
        if (doorman_upstream_request(upstream, &request, now)) {
            (void)doorman_upstream_response(upstream, request.sequence, &response, now);
        } else {
            doorman_upstream_failed(upstream, request.sequence, now);
        }
        if (doorman_client_try(resource, 1, NULL, now) == DOORMAN_ALLOWED) break;
    }
    return doorman_upstream_due(upstream);
}

int main(int argc, char **argv) {
    const char *const addresses[] = {argv[0]};
    const doorman_client_options options = {
        .client_id = "me", .seed = 1, .addresses = addresses, .address_count = 1};
    const doorman_resource_options resource_options = {.resource_id = "db/orders",
                                                       .kind = DOORMAN_RATE};
    doorman_client *client = NULL;
    doorman_client_resource *resource = NULL;
    if (doorman_client_create(&client, &options, NULL, 0) != DOORMAN_OK) return 1;
    if (doorman_client_open(&resource, client, &resource_options, NULL, 0) != DOORMAN_OK) return 1;
    bool waits = run(client, resource, argc) > 0;
    doorman_client_close(resource, argc);
    doorman_client_destroy(client);
    return waits ? 0 : 1;
}
