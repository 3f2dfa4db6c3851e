/* doorman_server, part WATCH: notices that the configuration file has changed, was replaced or was
 * deleted (V1). It also loads changed certificates and tokens. Only the main thread calls these
 * functions.
 *
 * A program that replaces a file may delete it first. So a missing file is only reported at the
 * second look in a row without it. A file that this process may not read counts as missing. What
 * was loaded from a missing file stays in force, but a restart would fail. So the metrics and the
 * page show a missing file until it is there again. */
#include "../server.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* The identity and version of a file. */
struct file_version {
    uint64_t device, file; /* file 0: the file does not exist */
    int64_t bytes, seconds, nanoseconds;
};

/* A missing file is reported after this many looks in a row, because some programs delete a file
 * before they write the new one. */
#define MISSING_MAX 2

/* What is known about the configuration file. */
struct file_watch {
    struct file_version loaded; /* the version that was loaded last */
    unsigned missing_count; /* how many times in a row the file was missing, up to MISSING_MAX */
};

/* The files of certificates, tokens and passwords. The files of TLS and of the tokens are loaded
 * again when they change. The certificates for etcd are read for each connection to etcd, and the
 * password for each new token of etcd. */
enum {
    FILE_TLS_CERT,
    FILE_TLS_KEY,
    FILE_TLS_CA,
    FILE_TOKENS,
    FILE_ETCD_CA,
    FILE_ETCD_CERT,
    FILE_ETCD_KEY,
    FILE_ETCD_PASSWORD,
    RELOAD_FILE_COUNT
};

struct reload {
    struct file_version loaded[RELOAD_FILE_COUNT]; /* at the last load, even if it was refused */
    struct file_version seen[RELOAD_FILE_COUNT];   /* at the last look */
    unsigned missing_count[RELOAD_FILE_COUNT]; /* looks in a row without the file, as file_watch */
    unsigned
        tls_wait; /* looks until the files of TLS, which do not fit yet, are refused; 0: none */
};

/* What this part keeps. Only the main thread uses it. */
struct watch {
    struct file_watch config;
    struct reload reload;
};

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

/* Returns the version of the configuration file. If this process may not read the file, returns the
 * version of a missing file, and errno says why. This function does not open the file, because it
 * may be a pipe: at the close the program that writes to the pipe would lose its reader. */
static struct file_version config_version_read(const struct settings *settings) {
    const bool is_file = !settings->config_key && !settings->config_in_store;
    const char *path = is_file ? settings->config : NULL;
    struct file_version version = file_version_read(path);
    bool found = version.file != 0;
    if (found && faccessat(AT_FDCWD, path, R_OK, AT_EACCESS) != 0) {
        version = (struct file_version){.device = 0};
    }
    return version;
}

/* Stores the version of the configuration file. The load that follows reports a missing file, so
 * the file counts as reported. */
static void watch_start(struct service *service) {
    service->watch->config.loaded = config_version_read(service->settings);
    bool missing = service->watch->config.loaded.file == 0;
    service->watch->config.missing_count = missing ? MISSING_MAX : 0;
    server_note_failure(service, CONFIG_UNREADABLE, "");
}

enum missing_change { MISSING_NO_CHANGE, MISSING_STARTS, MISSING_ENDS };

/* Counts one look at a file. Returns what has to be reported.
 *   count   in/out: how many times in a row the file was missing */
static enum missing_change missing_count(unsigned *count, bool missing) {
    enum missing_change change = MISSING_NO_CHANGE;
    assert(*count <= MISSING_MAX);
    if (!missing && *count == MISSING_MAX) change = MISSING_ENDS;
    if (missing && *count == MISSING_MAX - 1) change = MISSING_STARTS;
    *count = !missing ? 0 : *count < MISSING_MAX ? *count + 1 : MISSING_MAX;
    return change;
}

/* Counts a look at the configuration file. Logs and notes when the file is missing, and when it is
 * there again.
 *   missing   the file cannot be read, and errno says why */
static void watch_missing(struct service *service, bool missing) {
    const struct settings *settings = service->settings;
    bool exists = errno != ENOENT;
    const char *why = strerror(errno);
    enum missing_change change = missing_count(&service->watch->config.missing_count, missing);
    if (change == MISSING_ENDS) {
        server_note_failure(service, CONFIG_UNREADABLE, "");
        server_log(settings, LEVEL_INFO, "the configuration file is there again", "file",
                   settings->config, LOG_END);
    } else if (change == MISSING_STARTS) {
        server_note_failure(service, CONFIG_UNREADABLE, why);
        server_log(settings, LEVEL_WARNING,
                   exists
                       ? "the configuration file cannot be read; the last configuration stays in "
                         "force"
                       : "the configuration file is missing; the last configuration stays in force",
                   "file", settings->config, "error", why, LOG_END);
    }
}

/* Returns whether the configuration file has another version than the stored one. A missing file
 * counts as unchanged. The function is called once a second. If the file is missing in two calls in
 * a row, the second call logs a warning. */
static bool watch_poll(struct service *service) {
    const struct settings *settings = service->settings;
    const struct file_version *last = &service->watch->config.loaded;
    struct file_version now = config_version_read(settings);
    bool has_file = settings->config && !settings->config_key && !settings->config_in_store;
    bool same = now.device == last->device && now.file == last->file && now.bytes == last->bytes &&
                now.seconds == last->seconds && now.nanoseconds == last->nanoseconds;
    if (has_file) watch_missing(service, now.file == 0);
    return now.file != 0 && !same;
}

/* ---- certificates and tokens ---------------------------------------------------------------- */
/* The certificate, its key and the authority belong together. A program may replace them one after
 * the other. So these files are loaded when one of them has changed and all of them were the same
 * in the last two looks. If they do not fit together, the program may not have replaced all of them
 * yet. So an error is only logged when they still do not fit TLS_WAIT looks later. What was loaded
 * before stays in force meanwhile. The file of the tokens is a group of its own. If a file of a
 * group is missing or cannot be read, a program may be replacing it, and nothing of this group is
 * loaded.
 *
 * libcurl reads the certificates for etcd again for each connection. So those files are not loaded
 * here. They are only reported if they are missing, because the next connection to etcd would
 * fail. */

/* Files of TLS that do not fit together are refused after this many looks, one each second. */
#define TLS_WAIT 10

static const int reload_flags[RELOAD_FILE_COUNT] = {
    [FILE_TLS_CERT] = FLAG_TLS_CERT, [FILE_TLS_KEY] = FLAG_TLS_KEY,
    [FILE_TLS_CA] = FLAG_TLS_CA,     [FILE_TOKENS] = FLAG_HTTP_TOKEN,
    [FILE_ETCD_CA] = FLAG_ETCD_CA,   [FILE_ETCD_CERT] = FLAG_ETCD_CERT,
    [FILE_ETCD_KEY] = FLAG_ETCD_KEY, [FILE_ETCD_PASSWORD] = FLAG_ETCD_PASSWORD_FILE};

/* Returns the path of a file, or NULL if its flag is not given. */
static const char *reload_path(const struct settings *settings, int file) {
    const char *const paths[RELOAD_FILE_COUNT] = {
        [FILE_TLS_CERT] = settings->tls_cert, [FILE_TLS_KEY] = settings->tls_key,
        [FILE_TLS_CA] = settings->tls_ca,     [FILE_TOKENS] = settings->http_token,
        [FILE_ETCD_CA] = settings->etcd_ca,   [FILE_ETCD_CERT] = settings->etcd_cert,
        [FILE_ETCD_KEY] = settings->etcd_key, [FILE_ETCD_PASSWORD] = settings->etcd_password_file};
    return paths[file];
}

/* Returns the version of a file. If it cannot be read, returns the version of a missing file, and
 * errno says why. If no file descriptor is left, a file that exists counts as readable. */
static struct file_version readable_version_read(const char *path) {
    struct file_version version = file_version_read(path);
    int fd = version.file != 0 ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    if (fd >= 0) {
        close(fd);
    } else if (errno != EMFILE && errno != ENFILE) {
        version = (struct file_version){.device = 0};
    }
    return version;
}

/* Notes a file of certificates or tokens that cannot be read. When the file can be read again,
 * notes another missing file of its group, or none.
 *   why   NULL: the file can be read again */
static void reload_note(struct service *service, int file, const char *why) {
    enum load_failure failure = file == FILE_TOKENS ? TOKENS_UNREADABLE : CERTIFICATE_UNREADABLE;
    int first = file == FILE_TOKENS ? FILE_TOKENS : FILE_TLS_CERT;
    int last = file == FILE_TOKENS ? FILE_TOKENS : FILE_TLS_CA, found = why ? file : -1;
    char text[PROBLEM_TEXT] = "";
    for (int i = first; i <= last && found < 0; i++) {
        if (service->watch->reload.missing_count[i] == MISSING_MAX) found = i;
    }
    if (found >= 0) {
        snprintf(text, sizeof text, "--%s %s: %s", server_flag_name(reload_flags[found]),
                 reload_path(service->settings, found), why ? why : "cannot be read");
    }
    server_note_failure(service, failure, text);
}

/* Counts a look at a file. Logs and notes when the file cannot be read, and when it can be read
 * again.
 *   missing   the file cannot be read, and errno says why */
static void reload_report(struct service *service, int file, bool missing) {
    const struct settings *settings = service->settings;
    const char *why = strerror(errno), *flag = server_flag_name(reload_flags[file]);
    const char *path = reload_path(settings, file);
    enum missing_change change =
        missing_count(&service->watch->reload.missing_count[file], missing);
    if (change != MISSING_NO_CHANGE && file <= FILE_TOKENS) {
        reload_note(service, file, missing ? why : NULL);
    }
    if (change == MISSING_ENDS) {
        server_log(settings, LEVEL_INFO, "a file can be read again", "flag", flag, "file", path,
                   LOG_END);
    } else if (change == MISSING_STARTS && file > FILE_TOKENS) {
        server_log(settings, LEVEL_WARNING,
                   "a file cannot be read; the next connection to etcd needs it", "flag", flag,
                   "file", path, "error", why, LOG_END);
    } else if (change == MISSING_STARTS) {
        server_log(settings, LEVEL_WARNING,
                   "a file cannot be read; what was loaded from it stays in force", "flag", flag,
                   "file", path, "error", why, LOG_END);
    }
}

/* Looks at all files, and reports those that cannot be read. */
static void reload_look(struct service *service, struct file_version versions[RELOAD_FILE_COUNT]) {
    for (int i = 0; i < RELOAD_FILE_COUNT; i++) {
        const char *path = reload_path(service->settings, i);
        versions[i] = (struct file_version){.device = 0};
        if (!path) continue;
        versions[i] = readable_version_read(path);
        reload_report(service, i, versions[i].file == 0);
    }
}

/* Returns whether the files `from` to `to` must be loaded.
 *   now   their versions at this look */
static bool reload_is_due(const struct service *service, int from, int to,
                          const struct file_version now[RELOAD_FILE_COUNT]) {
    const struct reload *reload = &service->watch->reload;
    size_t bytes = (size_t)(to - from + 1) * sizeof *now;
    bool complete = true;
    for (int i = from; i <= to; i++) {
        complete = complete && (now[i].file != 0 || !reload_path(service->settings, i));
    }
    return complete && memcmp(&now[from], &reload->seen[from], bytes) == 0 &&
           memcmp(&now[from], &reload->loaded[from], bytes) != 0;
}

/* Stores the versions of the files with certificates and tokens. The load that follows reports a
 * missing file, so the file counts as reported. The files of etcd are not loaded, so their versions
 * are not stored. */
static void reload_start(struct service *service) {
    struct reload *reload = &service->watch->reload;
    for (int i = FILE_TLS_CERT; i <= FILE_TOKENS; i++) {
        const char *path = reload_path(service->settings, i);
        reload->loaded[i] = path ? readable_version_read(path) : (struct file_version){.device = 0};
        reload->missing_count[i] = path && reload->loaded[i].file == 0 ? MISSING_MAX : 0;
    }
    memcpy(reload->seen, reload->loaded, sizeof reload->seen);
    server_note_failure(service, CERTIFICATE_UNREADABLE, "");
    server_note_failure(service, TOKENS_UNREADABLE, "");
}

/* Loads the certificates and the tokens again if their files have changed. If a file cannot be read
 * in two calls in a row, the second call logs a warning. */
static void reload_update(struct service *service) {
    struct reload *reload = &service->watch->reload;
    struct file_version now[RELOAD_FILE_COUNT];
    reload_look(service, now);
    bool tls = reload_is_due(service, FILE_TLS_CERT, FILE_TLS_CA, now);
    bool tokens = reload_is_due(service, FILE_TOKENS, FILE_TOKENS, now);
    memcpy(reload->seen, now, sizeof now);
    if (tls) {
        memcpy(reload->loaded, now, FILE_TOKENS * sizeof *now);
        reload->tls_wait = server_load_files(service, FILES_OF_TLS, true) ? 0 : TLS_WAIT;
    } else if (reload->tls_wait > 0 && --reload->tls_wait == 0) {
        server_load_files(service, FILES_OF_TLS, false);
    }
    if (tokens) {
        reload->loaded[FILE_TOKENS] = now[FILE_TOKENS];
        server_load_files(service, FILES_OF_TOKENS, false);
    }
}

/* ---- the part ------------------------------------------------------------------------------- */

static enum exit_status watch_load(struct service *service) {
    watch_start(service);
    reload_start(service);
    return CONTINUE;
}

/* SIGHUP has arrived: the core loads everything now. */
static void watch_reload(struct service *service) {
    watch_start(service);
    reload_start(service);
    service->watch->reload.tls_wait = 0;
}

static void watch_work(struct service *service, doorman_time now) {
    (void)now;
    if (watch_poll(service)) {
        watch_start(service);
        server_reload_config(service);
    }
    reload_update(service);
}

const struct server_part server_part_watch = {SERVER_PART_STATE(watch), .load = watch_load,
                                              .work = watch_work, .reload = watch_reload};
