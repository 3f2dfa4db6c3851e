/* doorman_server, part SHARDS: the mark of messages between nodes. The functions change only their
 * arguments.
 *
 * Each guess of a mark needs a message to the server, so the 64 bits of the hash are enough. */
#include "forward.h"
#include "../util/siphash.h"

/* A part of a message. */
struct span {
    const char *text;
    size_t bytes;
};

/* Returns the hash of a method, the first two numbers of a mark, and the rest of a message. */
static uint64_t mark_sign(const uint64_t secret[2], struct span method, const char *numbers,
                          struct span rest) {
    struct siphash hash;
    server_siphash_start(&hash, secret);
    server_siphash_add(&hash, method.text, method.bytes);
    server_siphash_add(&hash, numbers, 34); /* with both points */
    server_siphash_add(&hash, rest.text, rest.bytes);
    return server_siphash_end(&hash);
}

/* Writes 16 hexadecimal digits. Returns where they end. */
static char *mark_put(char *out, uint64_t number) {
    for (int bits = 60; bits >= 0; bits -= 4) *out++ = "0123456789abcdef"[number >> bits & 15U];
    return out;
}

size_t server_mark_write(char out[MARK_HEAD_BYTES], const struct mark_source *source,
                         const char *method, const doorman_buffer *rest) {
    const struct span name = {method, strlen(method)}, all = {rest->text, rest->bytes};
    const int bytes = snprintf(out, MARK_HEAD_BYTES, "{\"%s\":{\"forwarded\":\"", method);
    char *const mark = out + bytes;
    char *at = mark_put(mark, (uint64_t)source->now);
    *at++ = '.';
    at = mark_put(at, source->number);
    *at++ = '.';
    at = mark_put(at, mark_sign(source->secret, name, mark, all));
    assert(at == mark + MARK_BYTES && at + sizeof "\"," <= out + MARK_HEAD_BYTES);
    memcpy(at, "\",", sizeof "\",");
    return (size_t)(at - out) + 2;
}

/* Reads 16 hexadecimal digits. Returns false if the text has other characters. */
static bool mark_read(const char *text, uint64_t *out) {
    *out = 0;
    for (int i = 0; i < 16; i++) {
        const char digit = text[i];
        const bool is_small = digit >= 'a' && digit <= 'f';
        if (!is_small && (digit < '0' || digit > '9')) return false;
        *out = *out << 4 | (uint64_t)(is_small ? digit - 'a' + 10 : digit - '0');
    }
    return true;
}

enum mark_result server_mark_check(const char *text, size_t bytes, const uint64_t secret[2],
                                   int64_t now) {
    static const char between[] = "\":{\"forwarded\":\"";
    const size_t length = sizeof between - 1;
    if (bytes < 2 || text[0] != '{' || text[1] != '"') return MARK_NONE;
    size_t end = 2;
    while (end < bytes && end < 32 && text[end] >= '_' && text[end] <= 'z') end++;
    if (bytes - end < length || memcmp(text + end, between, length) != 0) return MARK_NONE;
    const char *at = text + end + length;
    const size_t left = bytes - end - length;
    uint64_t when = 0, nonce = 0, sign = 0;
    if (left < MARK_BYTES + 2 || at[MARK_BYTES] != '"' || at[MARK_BYTES + 1] != ',' ||
        at[16] != '.' || at[33] != '.' || !mark_read(at, &when) || !mark_read(at + 17, &nonce) ||
        !mark_read(at + 34, &sign)) {
        return MARK_WRONG;
    }
    const struct span method = {text + 2, end - 2};
    const struct span rest = {at + MARK_BYTES + 2, left - MARK_BYTES - 2};
    const int64_t age = now - (int64_t)when;
    const bool is_near = age >= -MARK_SECONDS && age <= MARK_SECONDS;
    return is_near && sign == mark_sign(secret, method, at, rest) ? MARK_RIGHT : MARK_WRONG;
}
