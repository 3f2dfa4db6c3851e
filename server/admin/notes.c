/* doorman_server, part ADMIN: the overrides that the store keeps. The note of an override has the
 * number of its act as its identity, and its row as text. */
#include "admin.h"

bool server_override_read(const struct store_note *note, doorman_override_message *message) {
    cJSON *json = cJSON_Parse(note->text);
    char *text = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(json, "override"));
    bool is_valid =
        text && doorman_json_read_override(message, text, strlen(text), NULL) == DOORMAN_OK;
    message->row.id = strtoull(note->identity, NULL, 10);
    cJSON_free(text);
    cJSON_Delete(json);
    return is_valid && message->row.id > 0;
}

/* Puts the row of a note into force. */
static bool note_restore(void *context, const struct store_note *note) {
    struct service *service = (struct service *)context;
    doorman_override_message message = {.expires_in = 0};
    doorman_error error = {0};
    bool is_valid = server_override_read(note, &message);
    bool held = server_lock_is_held(&service->lock);
    if (!held) server_lock(&service->lock);
    doorman_permits *permits = doorman_server_permits(service->server);
    doorman_status status = DOORMAN_INVALID_ARGUMENT;
    if (permits && is_valid) {
        status = doorman_permits_restore_override(permits, &message.row, &error, doorman_clock());
    }
    if (!held) server_unlock(&service->lock);
    if (permits && status != DOORMAN_OK) {
        server_log(service->settings, LEVEL_ERROR,
                   "an override cannot be read, and stays in the store", "override", note->identity,
                   "error", error.text[0] ? error.text : "is not valid", LOG_END);
    }
    doorman_override_message_uninit(&message);
    return permits != NULL;
}

bool server_overrides_read(struct service *service, struct store *store) {
    return server_store_list_notes(store, OVERRIDE_NOTE, "", note_restore, service) == STORE_OK;
}
