/* doorman_server: loading a configuration, and putting it into force (V1). Only the core
 * includes this file. */
#ifndef DOORMAN_SERVER_CONFIGURATION_H
#define DOORMAN_SERVER_CONFIGURATION_H

#include "registry.h"

/* Reads a configuration from an open file. Reads at most one byte more than a message may have: if
 * there is such a byte, doorman.h refuses the text as too large. */
static doorman_status config_parse(doorman_config **out, FILE *file,
                                   struct config_problems *problems) {
    doorman_status status = DOORMAN_OUT_OF_MEMORY;
    char *text = (char *)malloc(DOORMAN_MESSAGE_BYTES_MAX + 1);
    size_t bytes = text ? fread(text, 1, DOORMAN_MESSAGE_BYTES_MAX + 1, file) : 0;
    if (ferror(file)) {
        server_set_problem(problems, "cannot be read: ", strerror(errno));
        status = DOORMAN_UNAVAILABLE;
    } else if (text) {
        status = server_config_check(out, text, bytes, problems);
    }
    free(text);
    return status;
}

/* Loads a configuration from a file. On failure, returns false. */
static bool config_load(doorman_config **out, const char *path, struct config_problems *problems) {
    doorman_status status = DOORMAN_UNAVAILABLE;
    FILE *file = fopen(path, "rb");
    *problems = (struct config_problems){.count = 0};
    if (file) {
        status = config_parse(out, file, problems);
        fclose(file);
    } else {
        server_set_problem(problems, "cannot be opened: ", strerror(errno));
    }
    if (status != DOORMAN_OK && problems->count == 0) {
        server_set_problem(problems, "", server_status_text(status));
    }
    return status == DOORMAN_OK;
}

/* Writes the FNV-1a hash of the JSON that doorman.h writes for the configuration. */
void server_config_hash(const doorman_config *config, char hash[CONFIG_HASH_BYTES]) {
    doorman_config_options options;
    doorman_buffer text = {.text = NULL};
    uint64_t value = 14695981039346656037U;
    hash[0] = 0;
    if (!config) return;
    doorman_config_read(config, &options);
    if (doorman_json_write_config(&options, &text) == DOORMAN_OK) {
        for (size_t i = 0; i < text.bytes; i++) {
            value = (value ^ (unsigned char)text.text[i]) * 1099511628211U;
        }
        snprintf(hash, CONFIG_HASH_BYTES, "%016" PRIx64, value);
    }
    doorman_buffer_uninit(&text);
}

/* Loads the configuration that --config names. On failure, returns false. */
static bool config_load_first(struct service *service, struct config_problems *problems) {
    const struct settings *settings = service->settings;
    if (!settings->config_key && !settings->config_in_store) {
        return config_load(&service->config, settings->config, problems);
    }
    bool loaded = false;
    EACH_PART(part, load_config) {
        loaded = loaded || (*part)->load_config(service, &service->config, problems);
    }
    return loaded;
}

enum exit_status server_load_config(struct service *service, struct config_problems *problems) {
    const struct settings *settings = service->settings;
    enum exit_status exit_status = CONTINUE;
    char text[PROBLEM_TEXT];
    *problems = (struct config_problems){.count = 0};
    exit_status = server_make_states(service);
    EACH_PART(part, load) if (exit_status == CONTINUE) exit_status = (*part)->load(service);
    if (exit_status != CONTINUE || !settings->config) return exit_status;
    if (config_load_first(service, problems)) {
        if (settings->state) server_drop_warnings(problems);
        return CONTINUE;
    }
    EACH_PART(part, refuse_config) return (*part)->refuse_config(settings, problems);
    server_problems_text(problems, text);
    return server_fatal_error(EXIT_ERROR, "%s: %s", settings->config, text);
}

/* Gives a configuration to the server object. Returns whether it is in force.
 *   error   out: why the server object refuses it */
static bool config_configure(struct service *service, const doorman_config *config,
                             char error[PROBLEM_TEXT]) {
    doorman_error unfit = {0};
    EACH_PART(part, refuses) {
        if ((*part)->refuses(service, config, error)) return false;
    }
    EACH_PART(part, configures)(*part)->configures(service);
    doorman_status status = doorman_server_configure(service->server, config, doorman_clock());
    (void)doorman_config_fits(config, service->settings->parents.count > 0, &unfit);
    if (status == DOORMAN_OK) {
        EACH_PART(part, in_force)(*part)->in_force(service);
        return true;
    }
    snprintf(error, PROBLEM_TEXT, "%s", *unfit.text ? unfit.text : server_status_text(status));
    return false;
}

/* Puts a configuration into force, and notes the result. Returns the configuration that was in
 * force before, or `config` if it is refused. The caller destroys what is returned.
 *   config   NULL: it could not be loaded */
static doorman_config *config_replace(struct service *service, doorman_config *config,
                                      const struct config_problems *problems) {
    char hash[CONFIG_HASH_BYTES], error[PROBLEM_TEXT] = "";
    doorman_config *last = config;
    server_config_hash(config, hash);
    EACH_PART(part, before_config) if (config)(*part)->before_config(service);
    if (!config) server_problems_text(problems, error);
    server_lock(&service->lock);
    if (config && config_configure(service, config, error)) {
        last = service->config;
        service->config = config;
        server_note_load(&service->last_load, hash, problems);
        server_note_learning(service, LEARNING_OF_CONFIGURATION, doorman_clock());
    }
    memcpy(service->last_load.error, error, sizeof error);
    server_unlock(&service->lock);
    return last;
}

/* Tells the parts about a change. If no part has report_config, logs the change, except at the
 * start. */
static void config_note(struct service *service, const struct config_change *change) {
    const char *error = service->last_load.error;
    bool is_reported = change->is_first;
    EACH_PART(part, report_config) {
        (*part)->report_config(service, change);
        is_reported = true;
    }
    EACH_PART(part, configured)(*part)->configured(service, change);
    if (is_reported) return;
    server_log(service->settings, error[0] ? LEVEL_ERROR : LEVEL_INFO,
               error[0] ? "configuration refused; the last one stays in force"
                        : "configuration loaded",
               "file", service->settings->config, error[0] ? "error" : LOG_END, error, LOG_END);
}

void server_apply_config(struct service *service, doorman_config *config,
                         const struct config_problems *problems) {
    doorman_config *last = config_replace(service, config, problems);
    const struct config_change change = {
        .last = last, .problems = problems, .valid = config != NULL};
    config_note(service, &change);
    server_lock(&service->config_lock);
    doorman_config_destroy(last);
    server_unlock(&service->config_lock);
}

/* A file is read without the lock, so that requests do not wait. */
void server_reload_config(struct service *service) {
    doorman_config *config = NULL;
    struct config_problems problems;
    if (service->settings->config_key || service->settings->config_in_store) {
        EACH_PART(part, reload_config)(*part)->reload_config(service);
    } else {
        bool loaded = config_load(&config, service->settings->config, &problems);
        if (loaded && service->settings->state) server_drop_warnings(&problems);
        server_apply_config(service, config, &problems);
    }
}

#endif
