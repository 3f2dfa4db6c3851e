/* doorman_server, part GRPC: the item of a permit that a descriptor means (W1). */
#ifndef DOORMAN_SERVER_GRPC_DESCRIPTOR_H
#define DOORMAN_SERVER_GRPC_DESCRIPTOR_H

#include "../server.h"

/* Rules that an operator has written for descriptors. There are none yet. */
typedef struct doorman_descriptors doorman_descriptors;

typedef struct doorman_descriptor_entry {
    const char *key; /* any bytes, without a final 0 */
    size_t key_bytes;
    const char *value; /* any bytes, without a final 0 */
    size_t value_bytes;
} doorman_descriptor_entry;

typedef struct doorman_descriptor_item {
    char resource_id[DOORMAN_ID_BYTES_MAX + 1], key[DOORMAN_ID_BYTES_MAX + 1];
    bool matched; /* by a rule; false: the names are the default ones */
    bool hashed;  /* a name was too long, or no valid text, and is a hash now */
} doorman_descriptor_item;

/* Finds the resource and the key of a descriptor. By default the resource is
 * DOMAIN/KEY1/KEY2, and the key is VALUE1/VALUE2. In each of them `/` becomes %2F, and `%`
 * becomes %25, so different descriptors never have the same names. A name that is too long, or is
 * not valid, becomes "sha256:" and 64 hexadecimal digits. The hash covers the escaped text.
 *   rules     may be NULL: no rules
 *   domain    ends with a 0
 *   count     at least 1
 *   out       written on OK
 *   returns   OK | OUT_OF_MEMORY */
doorman_status doorman_descriptors_resolve(const doorman_descriptors *rules, const char *domain,
                                           const doorman_descriptor_entry *entries, size_t count,
                                           doorman_descriptor_item *out);

#endif
