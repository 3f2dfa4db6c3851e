/* Fills in structs as the manual does it in C++. g++ -Wextra must not warn. */
#define DOORMAN_JSON
#define DOORMAN_NNG
#include "doorman_permits.h"
#include "doorman_throttle.h"

int main() {
    doorman_client_options client = {};
    client.client_id = "me";
    doorman_resource_options resource = {};
    resource.resource_id = "db/orders";
    doorman_limit_options limit = {};
    limit.kind = DOORMAN_TOKEN_BUCKET;
    doorman_permit_item item = {};
    item.cost = 1;
    doorman_permit_request request = {};
    request.items = &item;
    request.item_count = 1;
    doorman_limiter_map_options map = {};
    map.limit = limit;
    doorman_throttle_options throttle = {};
    doorman_template template_ = {};
    doorman_config_options config = {};
    config.templates = &template_;
    doorman_server_options server = {};
    doorman_permits_options permits = {};
    doorman_transport_options transport = {};
    doorman_election_options election = {};
    bool empty = !client.seed && !resource.window && !map.max_keys && !throttle.queue_max &&
                 !server.holder_max && !permits.item_max && !election.ttl && !transport.upstream;
    return empty && request.item_count == config.template_count ? 0 : 1;
}
