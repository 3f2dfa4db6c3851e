/* doorman_server: SipHash-2-4. The functions change only their arguments. */
#include "siphash.h"

#include <endian.h>
#include <string.h>

static uint64_t siphash_rotate(uint64_t value, int bits) {
    return value << bits | value >> (64 - bits);
}

static void siphash_round(uint64_t v[4]) {
    v[0] += v[1], v[1] = siphash_rotate(v[1], 13) ^ v[0], v[0] = siphash_rotate(v[0], 32);
    v[2] += v[3], v[3] = siphash_rotate(v[3], 16) ^ v[2];
    v[0] += v[3], v[3] = siphash_rotate(v[3], 21) ^ v[0];
    v[2] += v[1], v[1] = siphash_rotate(v[1], 17) ^ v[2], v[2] = siphash_rotate(v[2], 32);
}

static void siphash_take(struct siphash *hash, uint64_t word) {
    hash->v[3] ^= word;
    siphash_round(hash->v);
    siphash_round(hash->v);
    hash->v[0] ^= word;
}

void server_siphash_start(struct siphash *hash, const uint64_t secret[2]) {
    *hash = (struct siphash){
        .v = {secret[0] ^ UINT64_C(0x736f6d6570736575), secret[1] ^ UINT64_C(0x646f72616e646f6d),
              secret[0] ^ UINT64_C(0x6c7967656e657261), secret[1] ^ UINT64_C(0x7465646279746573)}};
}

void server_siphash_add(struct siphash *hash, const char *text, size_t bytes) {
    size_t i = 0;
    for (; hash->bytes % 8 == 0 && bytes - i >= 8; i += 8, hash->bytes += 8) {
        uint64_t word = 0;
        memcpy(&word, text + i, sizeof word);
        siphash_take(hash, le64toh(word));
    }
    for (; i < bytes; i++) {
        hash->word |= (uint64_t)(unsigned char)text[i] << (hash->bytes % 8 * 8);
        if (++hash->bytes % 8 != 0) continue;
        siphash_take(hash, hash->word);
        hash->word = 0;
    }
}

uint64_t server_siphash_end(struct siphash *hash) {
    siphash_take(hash, hash->word | (uint64_t)hash->bytes << 56);
    hash->v[2] ^= 0xff;
    for (int i = 0; i < 4; i++) siphash_round(hash->v);
    return hash->v[0] ^ hash->v[1] ^ hash->v[2] ^ hash->v[3];
}

uint64_t server_siphash(const uint64_t secret[2], const char *text, size_t bytes) {
    struct siphash hash;
    server_siphash_start(&hash, secret);
    server_siphash_add(&hash, text, bytes);
    return server_siphash_end(&hash);
}
