/* doorman_server, part WATCH: notices that the configuration file has changed, was replaced or was
 * deleted (V1). It also loads changed certificates and tokens. Only the main thread calls these
 * functions.
 *
 * A program that replaces the file may delete it first. So a file that is missing once is not
 * reported. A file that is missing a second time is reported, once. A missing file never changes
 * the configuration in force. */
#include "server.h"

#include <sys/stat.h>

/* Returns the identity and version of a file. Follows symbolic links. So a path also counts as
 * changed if a rename or a changed link makes it name another file. */
static struct file_version file_version_read(const char *path) {
    struct file_version file_version = {.device = 0};
    struct stat state;
    if (path && stat(path, &state) == 0) {
        file_version = (struct file_version){(uint64_t)state.st_dev, (uint64_t)state.st_ino,
                                             (int64_t)state.st_size, (int64_t)state.st_mtim.tv_sec,
                                             (int64_t)state.st_mtim.tv_nsec};
    }
    return file_version;
}

void server_watch_start(struct service *service) {
    const struct settings *settings = service->settings;
    service->watch.loaded = file_version_read(settings->config_key ? NULL : settings->config);
    /* The load that follows reports a missing file. */
    bool missing = service->watch.loaded.file == 0;
    service->watch.missing_count = missing ? MISSING_MAX : 0;
}

/* Logs that the file is missing, or that it is there again. */
static void watch_missing(struct service *service, bool missing) {
    const struct settings *settings = service->settings;
    unsigned *count = &service->watch.missing_count;
    assert(*count <= MISSING_MAX);
    if (!missing && *count == MISSING_MAX) {
        server_log(settings, LEVEL_INFO, "the configuration file is there again", "file",
                   settings->config, LOG_END);
    }
    if (missing && *count == MISSING_MAX - 1) {
        server_log(settings, LEVEL_WARNING,
                   "the configuration file is missing; the last configuration stays in force",
                   "file", settings->config, LOG_END);
    }
    *count = !missing ? 0 : *count < MISSING_MAX ? *count + 1 : MISSING_MAX;
}

bool server_watch_poll(struct service *service) {
    const struct settings *settings = service->settings;
    const struct file_version *last = &service->watch.loaded;
    struct file_version now = file_version_read(settings->config_key ? NULL : settings->config);
    bool has_file = settings->config && !settings->config_key;
    bool same = now.device == last->device && now.file == last->file && now.bytes == last->bytes &&
                now.seconds == last->seconds && now.nanoseconds == last->nanoseconds;
    if (has_file) watch_missing(service, now.file == 0);
    return now.file != 0 && !same;
}

/* ---- certificates and tokens ---------------------------------------------------------------- */
/* Several files belong together, such as a certificate and its key. A program may replace them one
 * after the other. So the files are loaded when one of them has changed and all of them were the
 * same in two looks. If a file is missing, a program may be replacing it, and nothing is loaded. */

/* Reads the versions of the files. Returns false if one of them is missing. */
static bool reload_look(const struct service *service,
                        struct file_version versions[RELOAD_FILE_COUNT]) {
    const struct settings *settings = service->settings;
    const char *const paths[RELOAD_FILE_COUNT] = {[FILE_TLS_CERT] = settings->tls_cert,
                                                  [FILE_TLS_KEY] = settings->tls_key,
                                                  [FILE_TLS_CA] = settings->tls_ca,
                                                  [FILE_TOKENS] = settings->http_token};
    bool complete = true;
    for (int i = 0; i < RELOAD_FILE_COUNT; i++) {
        versions[i] = file_version_read(paths[i]);
        complete = complete && (!paths[i] || versions[i].file != 0);
    }
    return complete;
}

void server_reload_start(struct service *service) {
    struct reload *reload = &service->reload;
    (void)reload_look(service, reload->loaded);
    memcpy(reload->seen, reload->loaded, sizeof reload->seen);
}

void server_reload_now(struct service *service) {
    server_reload_start(service);
    server_tls_reload(service);
    server_tokens_reload(service);
}

void server_reload_update(struct service *service) {
    struct reload *reload = &service->reload;
    struct file_version now[RELOAD_FILE_COUNT];
    bool complete = reload_look(service, now);
    bool stable = complete && memcmp(now, reload->seen, sizeof now) == 0;
    bool tls = memcmp(now, reload->loaded, FILE_TOKENS * sizeof *now) != 0;
    bool tokens = memcmp(&now[FILE_TOKENS], &reload->loaded[FILE_TOKENS], sizeof *now) != 0;
    memcpy(reload->seen, now, sizeof now);
    if (!stable) return;
    memcpy(reload->loaded, now, sizeof now);
    if (tls) server_tls_reload(service);
    if (tokens) server_tokens_reload(service);
}
