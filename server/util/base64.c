/* doorman_server: base64, for keys and values of etcd, and for the password of an HTTP request. The
 * functions use only their arguments. */
#include "base64.h"

static const char base64_digits[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void server_base64_write(char *text, const char *bytes) {
    size_t count = strlen(bytes);
    for (size_t i = 0; i < count; i += 3) {
        uint32_t bits = 0;
        for (size_t k = i; k < i + 3; k++) {
            bits = bits << 8 | (k < count ? (unsigned char)bytes[k] : 0);
        }
        for (size_t k = 0; k < 4; k++, bits <<= 6) {
            *text++ = i + k > count ? '=' : base64_digits[bits >> 18 & 63];
        }
    }
    *text = 0;
}

size_t server_base64_read(char *bytes, size_t room, const char *text) {
    size_t count = 0;
    uint32_t bits = 0;
    unsigned held = 0;
    for (const char *digit; count < room && *text; text++) {
        if ((digit = strchr(base64_digits, *text)) == NULL) break;
        bits = bits << 6 | (uint32_t)(digit - base64_digits);
        held += 6;
        if (held < 8) continue;
        held -= 8;
        bytes[count++] = (char)(bits >> held & 255);
    }
    if (count < room) bytes[count] = 0;
    return count;
}
