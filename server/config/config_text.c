/* doorman_server: the text of a configuration that came over HTTP. POST /v1/config/check and PUT
 * /v1/config read it in the same way. */
#include "config.h"

void server_problems_add(cJSON *answer, const char *key, const struct config_problems *problems) {
    cJSON *list = cJSON_AddArrayToObject(answer, key);
    for (size_t i = 0; i < problems->count && i < PROBLEM_MAX; i++) {
        const doorman_config_problem *problem = &problems->items[i];
        const doorman_error *error = &problem->error;
        cJSON *item = cJSON_CreateObject();
        char path[sizeof error->text];
        snprintf(path, sizeof path, "%.*s", (int)error->path_bytes, error->text);
        if (problem->line > 0) {
            cJSON_AddNumberToObject(item, "line", (double)problem->line);
            cJSON_AddNumberToObject(item, "column", (double)problem->column);
        }
        if (path[0]) cJSON_AddStringToObject(item, "field", path);
        cJSON_AddStringToObject(item, "text", error->text);
        cJSON_AddItemToArray(list, item);
    }
    if (problems->count > PROBLEM_MAX) {
        cJSON_AddNumberToObject(answer,
                                strcmp(key, "errors") == 0 ? "error_count" : "warning_count",
                                (double)problems->count);
    }
}

doorman_config *server_config_read_text(const struct service *service, const char *text,
                                        size_t bytes, struct config_problems *problems) {
    doorman_config *config = NULL;
    doorman_error unfit = {0};
    *problems = (struct config_problems){.count = 0};
    doorman_status status = server_config_check(&config, text, bytes, problems);
    if (status != DOORMAN_OK && problems->count == 0) {
        server_set_problem(problems, "", server_status_text(status));
    }
    if (config && doorman_config_fits(config, false, &unfit) != DOORMAN_OK) {
        *problems = (struct config_problems){.count = 1, .items = {{.error = unfit}}};
        doorman_config_destroy(config);
        config = NULL;
    }
    if (config && service->settings->state) server_drop_warnings(problems);
    return config;
}
