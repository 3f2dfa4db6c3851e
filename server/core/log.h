/* doorman_server: the log, and the last line of a process that ends. Only the core includes this
 * file. */
#ifndef DOORMAN_SERVER_LOG_H
#define DOORMAN_SERVER_LOG_H

#include "../server.h"

#include <poll.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <unistd.h>

enum exit_status server_fatal_error(enum exit_status exit_status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("doorman_server: ", stderr);
    vfprintf(stderr, format, arguments);
    fputs(exit_status == EXIT_USAGE ? "; try 'doorman_server --help'\n" : "\n", stderr);
    va_end(arguments);
    return exit_status;
}

const char *server_status_text(doorman_status status) {
#define STATUS_TEXT(code, name, text) [code] = (text),
    static const char *const texts[] = {DOORMAN_STATUSES(STATUS_TEXT)};
    return texts[status];
}

/* Each call of server_log writes one line of logfmt (V6) or none. If lines were lost before, it
 * first writes a line about them. A line has key=value pairs, with quotes around a value that needs
 * them. */

static const char *const level_names[LEVEL_COUNT] = {"debug", "info", "warning", "error"};

struct log_line {
    char text[PIPE_BUF]; /* a longer line is cut off */
    size_t bytes;
};

static void log_line_add(struct log_line *line, const char *text, size_t bytes) {
    size_t room = sizeof line->text - line->bytes;
    if (bytes > room) bytes = room;
    memcpy(line->text + line->bytes, text, bytes);
    line->bytes += bytes;
}

/* Adds one byte of a quoted value. Escapes the control characters of ASCII, because they could
 * control a terminal. */
static void log_line_add_escaped(struct log_line *line, unsigned char character) {
    char escape[8];
    int bytes = 1;
    if (character == '"' || character == '\\') {
        bytes = snprintf(escape, sizeof escape, "\\%c", character);
    } else if (character == '\n') {
        bytes = snprintf(escape, sizeof escape, "\\n");
    } else if (character < ' ' || character == 0x7f) {
        bytes = snprintf(escape, sizeof escape, "\\u%04x", (unsigned)character);
    } else {
        escape[0] = (char)character;
    }
    log_line_add(line, escape, (size_t)bytes);
}

static void log_line_add_pair(struct log_line *line, const char *key, const char *value) {
    bool quoted = !*value;
    for (const char *at = value; *at; at++) {
        quoted = quoted || *at <= ' ' || strchr("\"=\\\x7f", *at);
    }
    log_line_add(line, " ", line->bytes > 0);
    log_line_add(line, key, strlen(key));
    log_line_add(line, "=\"", quoted ? 2 : 1);
    for (const char *at = value; *at; at++) {
        if (quoted) {
            log_line_add_escaped(line, (unsigned char)*at);
        } else {
            log_line_add(line, at, 1);
        }
    }
    log_line_add(line, "\"", quoted);
}

static void log_line_add_time(struct log_line *line) {
    struct timespec now;
    struct tm utc;
    char seconds[32], text[48];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(seconds, sizeof seconds, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(text, sizeof text, "%s.%03ldZ", seconds, now.tv_nsec / 1000000);
    log_line_add_pair(line, "time", text);
}

static void log_line_start(struct log_line *line, enum log_level level, const char *message) {
    line->bytes = 0;
    log_line_add_time(line);
    log_line_add_pair(line, "level", level_names[level]);
    log_line_add_pair(line, "msg", message);
}

/* The lines that could not be written. */
static struct lost_lines {
    struct lock lock;        /* held from poll to write, so no thread fills the pipe in between */
    counter total, reported; /* since the start; of these: those that a line has reported */
} lost_lines = {.lock = LOCK_INITIALIZER(LOCK_LOG)};

const counter *server_lost_line_count(void) { return &lost_lines.total; }

/* Writes a line with one system call, so that lines of two threads or two processes do not mix.
 *
 * The function must not block, because the caller may hold the lock of the service. If a pipe is
 * full, the line is lost. If poll reports a pipe as writable, PIPE_BUF bytes fit, and no line is
 * longer. systemd provides a socket instead of a pipe. For a socket, send has a flag that prevents
 * blocking.
 *   returns   false: the line is lost */
static bool log_line_write(struct log_line *line) {
    struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (line->bytes == sizeof line->text) line->bytes--;
    log_line_add(line, "\n", 1);
    ssize_t wrote = send(out.fd, line->text, line->bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (wrote < 0 && errno == ENOTSOCK && poll(&out, 1, 0) == 1) {
        wrote = write(out.fd, line->text, line->bytes);
    }
    return wrote == (ssize_t)line->bytes;
}

/* Writes a line. If earlier lines were lost, first reports how many. */
static void log_line_send(struct log_line *line) {
    struct log_line before;
    char count[24];
    server_lock(&lost_lines.lock);
    uint64_t lost = lost_lines.total - lost_lines.reported;
    if (lost > 0) {
        snprintf(count, sizeof count, "%" PRIu64, lost);
        log_line_start(&before, LEVEL_WARNING,
                       "log lines were lost: standard error did not accept them");
        log_line_add_pair(&before, "count", count);
        if (log_line_write(&before)) lost_lines.reported += lost, lost = 0;
    }
    if (lost > 0 || !log_line_write(line)) server_counter_add(&lost_lines.total, 1);
    server_unlock(&lost_lines.lock);
}

void server_log(const struct settings *settings, enum log_level level, const char *message, ...) {
    struct log_line line;
    va_list pairs;
    va_start(pairs, message);
    if (level >= settings->log_level) {
        log_line_start(&line, level, message);
        for (const char *key = NULL; (key = va_arg(pairs, const char *)) != NULL;) {
            log_line_add_pair(&line, key, va_arg(pairs, const char *));
        }
        log_line_send(&line);
    }
    va_end(pairs);
}

#endif
