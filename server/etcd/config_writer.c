/* doorman_server, part ETCD: reads and replaces the configuration in a key of etcd (E3). It has
 * connections of its own, so that the thread of the election never waits for its calls.
 *
 * A change is one transaction. It compares the revision of the key with the version that it
 * replaces, and reads the key if they differ. If the response to the first try is lost, the second
 * try finds the new text in the key. So a key with the new text and a later version counts as
 * changed. */
#include "etcd.h"

#define WRITER_TRIES 3 /* members that are asked */
#define WRITER_DEADLINE (4 * DOORMAN_SECOND)

struct config_writer {
    struct etcd etcd;
};

static enum exit_status writer_load(struct service *service) {
    struct config_writer *writer = service->config_writer;
    if (!service->settings->config_key) return CONTINUE;
    enum exit_status exit_status = server_etcd_init_again(&writer->etcd, service->settings);
    if (writer->etcd.tries > WRITER_TRIES) writer->etcd.tries = WRITER_TRIES;
    writer->etcd.deadline = WRITER_DEADLINE;
    return exit_status;
}

static void writer_destroy(struct service *service) {
    if (service->config_writer) server_etcd_uninit(&service->config_writer->etcd);
}

/* Returns the body of the transaction, which the caller frees; NULL: out of memory. */
static char *writer_body(const struct service *service, const struct config_access *access) {
    char key[ETCD_KEY_TEXT];
    const size_t room = 2 * sizeof key + BASE64_TEXT(strlen(access->text)) + sizeof key + 512;
    char *body = (char *)malloc(room);
    if (!body) return NULL;
    server_base64_write(key, service->settings->config_key);
    int used = snprintf(body, room,
                        "{\"compare\":[{\"key\":\"%s\",\"target\":\"MOD\",\"mod_revision\":"
                        "\"%" PRIu64 "\"}],\"success\":[{\"request_put\":{\"key\":\"%s\","
                        "\"value\":\"",
                        key, access->expected, key);
    server_base64_write(body + used, access->text);
    size_t bytes = strlen(body);
    snprintf(body + bytes, room - bytes,
             "\"}}],\"failure\":[{\"request_range\":{\"key\":\"%s\"}}]}", key);
    return body;
}

/* Takes the version and the text of an entry, which may be NULL.
 *   returns   false: out of memory */
static bool writer_take(struct config_access *access, const cJSON *entry) {
    const size_t room = DOORMAN_MESSAGE_BYTES_MAX + 2;
    size_t bytes = 0;
    access->version = strtoull(server_etcd_number(entry, "mod_revision"), NULL, 10);
    if (!entry) return true;
    access->present = (char *)malloc(room);
    if (!access->present) return false;
    if (!server_etcd_read_value(entry, access->present, room, &bytes)) access->present[0] = 0;
    return true;
}

/* Reads the response to the transaction. */
static enum config_access_result writer_read(struct config_access *access, const cJSON *response) {
    const cJSON *header = cJSON_GetObjectItemCaseSensitive(response, "header");
    const cJSON *all = cJSON_GetObjectItemCaseSensitive(response, "responses");
    const cJSON *range =
        cJSON_GetObjectItemCaseSensitive(cJSON_GetArrayItem(all, 0), "response_range");
    if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(response, "succeeded"))) {
        access->version = strtoull(server_etcd_number(header, "revision"), NULL, 10);
        return ACCESS_DONE;
    }
    if (!writer_take(access,
                     cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(range, "kvs"), 0))) {
        snprintf(access->error, sizeof access->error, "out of memory");
        return ACCESS_REFUSED;
    }
    bool is_ours = access->present && strcmp(access->present, access->text) == 0 &&
                   access->version > access->expected;
    if (!is_ours) return ACCESS_STALE;
    free(access->present);
    access->present = NULL;
    return ACCESS_DONE;
}

/* Notes why a change has failed. Returns ACCESS_UNKNOWN if etcd may have made the change. */
static enum config_access_result writer_fail(const struct etcd *etcd,
                                             struct config_access *access) {
    const bool denied = etcd->failure == ETCD_DENIED;
    snprintf(access->error, sizeof access->error, "%s%s", etcd->error.text,
             denied ? "; the user of etcd needs the right readwrite for the key" : "");
    return etcd->is_denied ? ACCESS_REFUSED : ACCESS_UNKNOWN;
}

static enum config_access_result writer_change(struct service *service,
                                               struct config_access *access) {
    struct etcd *etcd = &service->config_writer->etcd;
    char *body = writer_body(service, access);
    if (!body) {
        snprintf(access->error, sizeof access->error, "out of memory");
        return ACCESS_REFUSED;
    }
    cJSON *response = server_etcd_post(etcd, "/v3/kv/txn", body);
    free(body);
    enum config_access_result result =
        response ? writer_read(access, response) : writer_fail(etcd, access);
    cJSON_Delete(response);
    return result;
}

static enum config_access_result writer_access(struct service *service,
                                               struct config_access *access) {
    struct etcd *etcd = &service->config_writer->etcd;
    const cJSON *entry = NULL;
    if (access->text) return writer_change(service, access);
    cJSON *response = server_etcd_get(etcd, service->settings->config_key, &entry);
    bool is_done = response && writer_take(access, entry);
    if (!is_done) {
        snprintf(access->error, sizeof access->error, "%s",
                 response ? "out of memory" : etcd->error.text);
    }
    cJSON_Delete(response);
    return is_done ? ACCESS_DONE : ACCESS_REFUSED;
}

const struct server_part server_part_config_writer = {
    SERVER_PART_STATE(config_writer), .load = writer_load, .access_config = writer_access,
    .destroy = writer_destroy};
