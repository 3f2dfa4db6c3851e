/* doorman_server, part STATE: reads the address of a Redis. */
#include "address_redis.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCHEME "redis://"
#define SCHEME_TLS "rediss://"
#define FORM "the form is redis://USER@HOST:PORT/DATABASE"
#define PORT_DEFAULT 6379

/* Copies a part of the address. Returns false if it is too long. */
static bool part_copy(char *to, size_t room, const char *from, size_t bytes) {
    if (bytes >= room) return false;
    memcpy(to, from, bytes);
    to[bytes] = 0;
    return true;
}

/* Replaces each %XX by its byte. Returns false if a %XX is not valid, or is a zero. */
static bool part_decode(char *text) {
    char *to = text;
    for (const char *from = text; *from; from++) {
        char digits[3] = "";
        *to++ = *from;
        if (*from != '%') continue;
        snprintf(digits, sizeof digits, "%.2s", from + 1);
        long byte = strtol(digits, NULL, 16);
        if (strspn(digits, "0123456789abcdefABCDEF") != 2 || byte == 0) return false;
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

/* Reads :PORT/DATABASE. Both parts may be missing. Returns NULL, or what is wrong. */
static const char *number_parts_read(const char *text, struct redis_address *out) {
    char port[8] = "";
    size_t port_bytes = strcspn(text, "/");
    const char *database = text + port_bytes;
    if (*text == ':') {
        bool fits = part_copy(port, sizeof port, text + 1, port_bytes - 1);
        out->port = fits ? number_read(port, 65535) : -1;
        if (out->port <= 0) return "has a wrong port; it is a number from 1 to 65535";
    }
    if (database[0] && database[1]) out->database = number_read(database + 1, 999999);
    return out->database < 0 ? "has a wrong database; it is a number from 0 to 999999" : NULL;
}

/* Reads HOST:PORT/DATABASE. Returns NULL, or what is wrong. */
static const char *place_read(const char *text, struct redis_address *out) {
    bool is_bracketed = *text == '[';
    const char *host = text + is_bracketed;
    const char *end = host + strcspn(host, is_bracketed ? "]" : ":/");
    if (strpbrk(text, "?#")) return "has options behind a ? or #, and there are none";
    if (end == host) return "has no host; " FORM;
    if (!part_copy(out->host, sizeof out->host, host, (size_t)(end - host))) {
        return "has a host that is too long";
    }
    if (is_bracketed && *end++ != ']') return "has a host with a [ and without a ]";
    if (*end && *end != ':' && *end != '/') return "has a wrong port; " FORM;
    return number_parts_read(end, out);
}

const char *server_redis_address_read(const char *text, struct redis_address *out) {
    *out = (struct redis_address){.port = PORT_DEFAULT};
    out->has_tls = strncmp(text, SCHEME_TLS, strlen(SCHEME_TLS)) == 0;
    if (!out->has_tls && strncmp(text, SCHEME, strlen(SCHEME)) != 0) return FORM;
    text += strlen(out->has_tls ? SCHEME_TLS : SCHEME);
    const char *at = strrchr(text, '@'); /* a password may have an @ */
    if (at && !credentials_read(text, at, out)) {
        return "has a user or a password that is too long, or has a wrong %XX";
    }
    return place_read(at ? at + 1 : text, out);
}
