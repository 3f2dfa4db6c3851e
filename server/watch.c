/* doorman_server, part WATCH: notices that the configuration file has changed, was replaced or was
 * deleted (V1). Only the main thread calls these functions.
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
