/* doorman_server, part SHARDS: failures, and the permits of the mastership that the thread works
 * for. */
#include "shards.h"

doorman_permits *server_shards_permits(const struct shards *shards) {
    assert(server_lock_is_held(&shards->service->lock));
    const bool is_current = shards->victory == shards->victories;
    return is_current ? doorman_server_permits(shards->service->server) : NULL;
}

void server_shards_fail(struct shards *shards, const char *what, const char *error) {
    struct service *service = shards->service;
    char reason[sizeof shards->trouble.reason];
    shards->has_failed = true;
    snprintf(reason, sizeof reason, "%s: %.*s", what, (int)sizeof reason - 100, error);
    server_lock(&service->lock);
    const bool is_new = shards->trouble.since == 0;
    server_trouble_set(&shards->trouble, reason, doorman_clock());
    server_unlock(&service->lock);
    if (!is_new) return;
    server_log(service->settings, LEVEL_ERROR, what, "key", shards->key.name, "error", error,
               LOG_END);
}

void server_shards_work_again(struct shards *shards) {
    struct service *service = shards->service;
    server_lock(&service->lock);
    const bool had_trouble = shards->trouble.since != 0;
    shards->trouble.since = 0;
    server_unlock(&service->lock);
    if (!had_trouble) return;
    server_log(service->settings, LEVEL_INFO, "shards work again", "key", shards->key.name,
               LOG_END);
}
