/* doorman_server, part WATCH: notices that the configuration file has changed or was replaced (V1).
 * Only the main thread calls these functions. */
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
    service->last_load.file_version =
        file_version_read(settings->config_key ? NULL : settings->config);
}

bool server_watch_has_changed(const struct service *service) {
    struct file_version now = file_version_read(service->settings->config);
    const struct file_version *last = &service->last_load.file_version;
    bool same = now.device == last->device && now.file == last->file && now.bytes == last->bytes &&
                now.seconds == last->seconds && now.nanoseconds == last->nanoseconds;
    return now.file != 0 && !same;
}
