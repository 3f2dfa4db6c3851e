/* doorman_server, part HTTP: which page is the first one. A root whose configuration has only
 * limits shows its limits, and any other server shows its resources. */
#include "pages.h"

/* Returns whether the configuration has only limits, and no parent leases capacity to the node. */
static bool has_only_limits(struct service *service) {
    doorman_config_options config = {.template_count = 0};
    server_lock(&service->lock);
    bool only = service->config && service->settings->parents.count == 0;
    if (service->config) doorman_config_read(service->config, &config);
    for (size_t i = 0; only && i < config.template_count; i++) {
        only = config.templates[i].without_capacity;
    }
    server_unlock(&service->lock);
    return only;
}

static void handle_front(struct service *service, const struct http_request *request,
                         struct http_response *response) {
    server_handler *handle = has_only_limits(service) ? server_page_limits : server_page_resources;
    handle(service, request, response);
}

static const struct http_route front_routes[] = {{"/", .handle = handle_front}, {.path = NULL}};

const struct server_part server_part_front = {.routes = front_routes};
