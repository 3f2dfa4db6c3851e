/* doormanctl: its settings, such as the address and the token. A flag takes precedence over the
 * environment, and the environment over the file. The token has no flag, because the list of
 * processes shows flags to all users. */
#include "ctl.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#define SETTINGS_BYTES_MAX 65536
#define TIMEOUT_MAX 86400

#define PLACE(member) offsetof(struct ctl_settings, member)
const struct ctl_setting ctl_settings_table[CTL_SETTING_COUNT] = {
    {"url", "URL", "DOORMAN_URL", PLACE(url), true, true,
     "the HTTP address of a server (http://127.0.0.1:15050)"},
    {"token", "TOKEN", "DOORMAN_TOKEN", PLACE(token), false, true,
     "a token of the server's --http-token"},
    {"cacert", "FILE", "DOORMAN_CACERT", PLACE(cacert), true, true,
     "the authorities of the server's certificate, as PEM (those of the system)"},
    {"cert", "FILE", "DOORMAN_CERT", PLACE(cert), true, true, "the client's certificate, as PEM"},
    {"key", "FILE", "DOORMAN_KEY", PLACE(key), true, true, "the key of --cert, as PEM"},
    {"timeout", "SECONDS", "DOORMAN_TIMEOUT", PLACE(timeout), true, true,
     "fail when nothing has come for this time (10)"},
    {"events", "URL[,URL...]", "DOORMAN_EVENTS", PLACE(events), true, true,
     "where `events` gets its events (what the server at --url says)"},
    {"settings", "FILE", "DOORMAN_SETTINGS", PLACE(file), true, false,
     "a file of settings, readable only by you (~/.config/doormanctl)"},
};

static const char **setting_value(struct ctl_settings *settings,
                                  const struct ctl_setting *setting) {
    return (const char **)(void *)((char *)settings + setting->place);
}

/* ---- the file ------------------------------------------------------------------------------- */

/* Takes a line "NAME VALUE", an empty line or a comment. Returns false if the line is none of
 * these, or if NAME is not known. */
static bool line_take(struct ctl_settings *settings, char *line) {
    line += strspn(line, " \t");
    char *value = line + strcspn(line, " \t\r"), *end = line + strlen(line);
    while (end > line && strchr(" \t\r", end[-1])) *--end = 0;
    if (!*line || *line == '#') return true;
    if (value >= end) return false;
    *value++ = 0;
    value += strspn(value, " \t");
    for (size_t i = 0; i < CTL_SETTING_COUNT; i++) {
        const struct ctl_setting *setting = &ctl_settings_table[i];
        if (!setting->in_file || strcmp(line, setting->flag) != 0) continue;
        const char **place = setting_value(settings, setting);
        if (!*place) *place = value;
        return true;
    }
    return false;
}

static enum ctl_exit file_take(struct ctl_settings *settings, const char *path, FILE *file) {
    struct stat facts;
    if (fstat(fileno(file), &facts) != 0 || !S_ISREG(facts.st_mode)) {
        return ctl_fail(CTL_USAGE, "%s: is not a file", path);
    }
    if (facts.st_mode & 077) {
        return ctl_fail(CTL_USAGE,
                        "%s: others may read or write it (mode %03o), and it may have a token; "
                        "run: chmod 600 %s",
                        path, (unsigned)facts.st_mode & 0777u, path);
    }
    char *text = settings->text = (char *)ctl_need(malloc(SETTINGS_BYTES_MAX + 1));
    size_t bytes = fread(text, 1, SETTINGS_BYTES_MAX + 1, file);
    if (ferror(file) || bytes > SETTINGS_BYTES_MAX) {
        return ctl_fail(CTL_USAGE, "%s: cannot be read, or has more than 64 KiB", path);
    }
    text[bytes] = 0;
    for (size_t line = 1; text; line++) {
        char *end = strchr(text, '\n');
        if (end) *end = 0;
        if (!line_take(settings, text)) {
            return ctl_fail(CTL_USAGE,
                            "%s: line %zu: must be a name and a value; the names are url, token, "
                            "cacert, cert, key, timeout and events",
                            path, line);
        }
        text = end ? end + 1 : NULL;
    }
    return CTL_DONE;
}

/* Reads settings->file. If this is NULL, reads the file doormanctl, if it exists: in
 * $XDG_CONFIG_HOME, or in ~/.config if that variable is empty or not set. */
static enum ctl_exit file_read(struct ctl_settings *settings) {
    char standard[4096] = "";
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME"), *path = settings->file;
    if (!path && config && config[0]) {
        snprintf(standard, sizeof standard, "%s/doormanctl", config);
    } else if (!path && home && home[0]) {
        snprintf(standard, sizeof standard, "%s/.config/doormanctl", home);
    }
    FILE *file = path || standard[0] ? fopen(path ? path : standard, "rb") : NULL;
    if (!file && !path && (!standard[0] || errno == ENOENT || errno == ENOTDIR)) return CTL_DONE;
    if (!path) path = standard;
    if (!file) return ctl_fail(CTL_USAGE, "%s: %s", path, strerror(errno));
    enum ctl_exit code = file_take(settings, path, file);
    fclose(file);
    return code;
}

/* ---- checks --------------------------------------------------------------------------------- */

static bool url_is_valid(const char *url) {
    bool has_scheme = strncasecmp(url, "http://", 7) == 0 || strncasecmp(url, "https://", 8) == 0;
    return has_scheme && !strpbrk(url, "@?# ") && strchr(url, ':')[3];
}

/* Returns whether a token is one word of visible ASCII characters, and not too long. */
static bool token_is_valid(const char *token) {
    size_t bytes = 0;
    while (token[bytes] > ' ' && token[bytes] < 0x7f) bytes++;
    return bytes > 0 && bytes <= CTL_TOKEN_BYTES_MAX && !token[bytes];
}

enum ctl_exit ctl_settings_complete(struct ctl_settings *settings, double *timeout) {
    for (size_t i = 0; i < CTL_SETTING_COUNT; i++) {
        const char **place = setting_value(settings, &ctl_settings_table[i]);
        const char *value = getenv(ctl_settings_table[i].variable);
        if (!*place && value && value[0]) *place = value;
    }
    enum ctl_exit code = file_read(settings);
    if (code != CTL_DONE) return code;
    if (!settings->url) settings->url = "http://127.0.0.1:15050";
    if (!settings->timeout) settings->timeout = "10";
    char *end = NULL;
    *timeout = strtod(settings->timeout, &end);
    if (!url_is_valid(settings->url)) {
        return ctl_fail(CTL_USAGE, "the address must be http://HOST[:PORT] or https://HOST[:PORT], "
                                   "without a name, a password or a query");
    }
    if (settings->token && !token_is_valid(settings->token)) {
        return ctl_fail(CTL_USAGE, "the token must be one word of visible ASCII characters");
    }
    if (*end || !(*timeout > 0 && *timeout <= TIMEOUT_MAX)) {
        return ctl_fail(CTL_USAGE, "the timeout must be seconds, above 0 and at most %d",
                        TIMEOUT_MAX);
    }
    if (!settings->cert != !settings->key) {
        return ctl_fail(CTL_USAGE, "--cert and --key belong together");
    }
    return CTL_DONE;
}
