/* doorman_server: a hash that nobody can compute without the secret. */
#ifndef DOORMAN_SERVER_SIPHASH_H
#define DOORMAN_SERVER_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

/* The state of SipHash-2-4, by Aumasson and Bernstein (2012), over the pieces of a text. */
struct siphash {
    uint64_t v[4], word;
    size_t bytes;
};

void server_siphash_start(struct siphash *hash, const uint64_t secret[2]);
void server_siphash_add(struct siphash *hash, const char *text, size_t bytes);

/* Returns the hash of all pieces. No piece may be added after this call. */
uint64_t server_siphash_end(struct siphash *hash);

/* Returns the hash of one text. */
uint64_t server_siphash(const uint64_t secret[2], const char *text, size_t bytes);

#endif
