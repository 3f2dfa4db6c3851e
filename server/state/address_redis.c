/* doorman_server, part STATE: reads the address of a Redis, and a password from a file. */
#include "address_redis.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCHEME "redis://"
#define FORM "is not of the form redis://USER@HOST:PORT/DATABASE"
#define PORT_DEFAULT 6379

/* Copies a part of the address. Returns false if it is too long. */
static bool part_copy(char *to, size_t room, const char *from, size_t bytes) {
    if (bytes >= room) return false;
    memcpy(to, from, bytes);
    to[bytes] = 0;
    return true;
}

/* Replaces each %XX by its byte. Returns false if one is not valid, or is a zero. */
static bool part_decode(char *text) {
    char *to = text;
    for (const char *from = text; *from; from++) {
        char digits[3] = "", *end = digits;
        *to++ = *from;
        if (*from != '%') continue;
        snprintf(digits, sizeof digits, "%.2s", from + 1);
        long byte = strtol(digits, &end, 16);
        if (end != digits + 2 || byte <= 0) return false;
        to[-1] = (char)byte;
        from += 2;
    }
    *to = 0;
    return true;
}

/* Reads a number that ends where the text ends. Returns -1 if there is none, or it is too large. */
static int number_read(const char *text, int most) {
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 6 || text[digits]) return -1;
    int number = (int)strtol(text, NULL, 10);
    return number <= most ? number : -1;
}

/* Reads USER:PASSWORD, which ends before `end`. */
static bool credentials_read(const char *text, const char *end, struct redis_address *out) {
    const char *colon = (const char *)memchr(text, ':', (size_t)(end - text));
    const char *user_end = colon ? colon : end;
    const char *password = colon ? colon + 1 : end;
    return part_copy(out->user, sizeof out->user, text, (size_t)(user_end - text)) &&
           part_copy(out->password, sizeof out->password, password, (size_t)(end - password)) &&
           part_decode(out->user) && part_decode(out->password);
}

/* Reads HOST:PORT/DATABASE. */
static bool place_read(const char *text, struct redis_address *out) {
    char port[8] = "";
    bool is_bracketed = *text == '[';
    const char *host = text + is_bracketed;
    const char *end = host + strcspn(host, is_bracketed ? "]" : ":/");
    if (end == host || !part_copy(out->host, sizeof out->host, host, (size_t)(end - host)) ||
        (is_bracketed && *end++ != ']')) {
        return false;
    }
    size_t port_bytes = strcspn(end, "/");
    const char *database = end + port_bytes;
    if (*end == ':' && !part_copy(port, sizeof port, end + 1, port_bytes - 1)) return false;
    if (*end && *end != ':' && *end != '/') return false;
    out->port = *end == ':' ? number_read(port, 65535) : PORT_DEFAULT;
    out->database = database[0] && database[1] ? number_read(database + 1, 999999) : 0;
    return out->port > 0 && out->database >= 0;
}

const char *server_redis_address_read(const char *text, struct redis_address *out) {
    *out = (struct redis_address){.port = 0};
    if (strncmp(text, SCHEME, strlen(SCHEME)) != 0) return FORM;
    text += strlen(SCHEME);
    const char *at = strrchr(text, '@'); /* a password may have an @ */
    if (at && !credentials_read(text, at, out)) return FORM;
    return place_read(at ? at + 1 : text, out) ? NULL : FORM;
}

const char *server_redis_password_read(const char *path, char password[REDIS_TEXT]) {
    FILE *file = fopen(path, "rb");
    const char *why = file ? NULL : strerror(errno);
    password[0] = 0;
    if (file && !fgets(password, REDIS_TEXT, file)) why = "is empty, or cannot be read";
    size_t bytes = strcspn(password, "\r\n");
    if (!why && bytes == 0) why = "its first line is empty";
    if (!why && bytes == REDIS_TEXT - 1) why = "its first line is too long";
    password[bytes] = 0;
    if (file) fclose(file);
    return why;
}
