/* doorman_server, part SHARDS: the mark of messages between nodes. This file changes only its
 * arguments.
 *
 * The hash is SipHash-2-4 by Aumasson and Bernstein, a keyed hash whose values nobody can guess
 * without the key. A guess needs a message to the server, so 64 bits are enough. */
#include "forward.h"

#include <nng/supplemental/util/platform.h>

static uint64_t rotate(uint64_t value, int bits) { return value << bits | value >> (64 - bits); }

static void sip_round(uint64_t v[4]) {
    v[0] += v[1], v[2] += v[3];
    v[1] = rotate(v[1], 13) ^ v[0], v[3] = rotate(v[3], 16) ^ v[2];
    v[0] = rotate(v[0], 32);
    v[2] += v[1], v[0] += v[3];
    v[1] = rotate(v[1], 17) ^ v[2], v[3] = rotate(v[3], 21) ^ v[0];
    v[2] = rotate(v[2], 32);
}

/* A hash of several pieces of text, one after the other. */
struct sip {
    uint64_t v[4], word;
    size_t bytes;
};

static void sip_start(struct sip *sip, const uint64_t key[2]) {
    *sip = (struct sip){.v = {key[0] ^ 0x736f6d6570736575U, key[1] ^ 0x646f72616e646f6dU,
                              key[0] ^ 0x6c7967656e657261U, key[1] ^ 0x7465646279746573U}};
}

static void sip_take_word(struct sip *sip, uint64_t word) {
    sip->v[3] ^= word;
    sip_round(sip->v);
    sip_round(sip->v);
    sip->v[0] ^= word;
}

static void sip_add(struct sip *sip, const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        sip->word |= (uint64_t)(unsigned char)text[i] << (sip->bytes % 8 * 8);
        if (++sip->bytes % 8 != 0) continue;
        sip_take_word(sip, sip->word);
        sip->word = 0;
    }
}

static uint64_t sip_end(struct sip *sip) {
    sip_take_word(sip, sip->word | (uint64_t)sip->bytes << 56);
    sip->v[2] ^= 0xff;
    for (int i = 0; i < 4; i++) sip_round(sip->v);
    return sip->v[0] ^ sip->v[1] ^ sip->v[2] ^ sip->v[3];
}

/* A part of a message. */
struct span {
    const char *text;
    size_t bytes;
};

/* Returns the hash of the method, of the first two numbers of a mark, and of the rest. */
static uint64_t mark_sign(const uint64_t secret[2], struct span method, const char *numbers,
                          struct span rest) {
    struct sip sip;
    sip_start(&sip, secret);
    sip_add(&sip, method.text, method.bytes);
    sip_add(&sip, numbers, 34); /* with both points */
    sip_add(&sip, rest.text, rest.bytes);
    return sip_end(&sip);
}

size_t server_mark_write(char out[MARK_HEAD_BYTES], const char *method, const uint64_t secret[2],
                         const doorman_buffer *rest, int64_t now) {
    char numbers[40];
    const struct span name = {method, strlen(method)}, all = {rest->text, rest->bytes};
    const uint64_t nonce = (uint64_t)nng_random() << 32 | nng_random();
    snprintf(numbers, sizeof numbers, "%016" PRIx64 ".%016" PRIx64 ".", (uint64_t)now, nonce);
    const int bytes = snprintf(out, MARK_HEAD_BYTES, "{\"%s\":{\"forwarded\":\"%s%016" PRIx64 "\",",
                               method, numbers, mark_sign(secret, name, numbers, all));
    return (size_t)bytes;
}

/* Reads 16 hexadecimal digits. Returns false if there are none. */
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
