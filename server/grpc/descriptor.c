/* doorman_server, part GRPC: the default names of descriptors. The functions use only their
 * arguments. */
#include "descriptor.h"

#include <gnutls/crypto.h>

/* A text with escapes. The hash of all of it is kept, and the start as far as it fits. */
struct name {
    char text[DOORMAN_ID_BYTES_MAX + 1];
    size_t bytes; /* of the whole text, which may be longer */
    gnutls_hash_hd_t hash;
};

static bool name_start(struct name *name) {
    name->bytes = 0;
    name->text[0] = 0;
    return gnutls_hash_init(&name->hash, GNUTLS_DIG_SHA256) == 0;
}

static void name_add(struct name *name, const char *bytes, size_t count) {
    gnutls_hash(name->hash, bytes, count);
    if (name->bytes + count < sizeof name->text) {
        memcpy(name->text + name->bytes, bytes, count);
        name->text[name->bytes + count] = 0;
    }
    name->bytes += count;
}

/* Adds a text in which the characters with a meaning are escaped. */
static void name_add_escaped(struct name *name, const char *bytes, size_t count) {
    size_t plain = 0;
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] != '/' && bytes[i] != '%') continue;
        name_add(name, bytes + plain, i - plain);
        name_add(name, bytes[i] == '/' ? "%2F" : "%25", 3);
        plain = i + 1;
    }
    name_add(name, bytes + plain, count - plain);
}

/* Returns the bytes of the character at `at`. Returns 0 if it is not UTF-8, or is a control
 * character. */
static size_t character_bytes(const unsigned char *at, size_t left) {
    static const uint32_t smallest[] = {0, 0xa0, 0x800, 0x10000};
    size_t more = *at < 0x80 ? 0 : *at < 0xe0 ? 1 : *at < 0xf0 ? 2 : 3;
    if (more == 0) return *at >= 0x20 && *at < 0x7f;
    if (*at < 0xc2 || *at > 0xf4 || more >= left) return 0;
    uint32_t code = *at & (0x3fU >> more);
    for (size_t i = 1; i <= more; i++) {
        if ((at[i] & 0xc0) != 0x80) return 0;
        code = code << 6 | (at[i] & 0x3fU);
    }
    bool valid = code >= smallest[more] && code <= 0x10ffff && (code < 0xd800 || code >= 0xe000);
    return valid ? more + 1 : 0;
}

static bool name_is_valid_text(const char *text, size_t bytes) {
    size_t at = 0, count = 1;
    for (; at < bytes && count > 0; at += count) {
        count = character_bytes((const unsigned char *)text + at, bytes - at);
    }
    return count > 0;
}

/* Writes the name, or its hash. Returns whether it is a hash. */
static bool name_end(struct name *name, char out[DOORMAN_ID_BYTES_MAX + 1]) {
    unsigned char digest[32];
    bool valid = name->bytes <= DOORMAN_ID_BYTES_MAX && name_is_valid_text(name->text, name->bytes);
    gnutls_hash_deinit(name->hash, digest);
    if (valid) {
        memcpy(out, name->text, name->bytes + 1);
        return false;
    }
    int bytes = snprintf(out, DOORMAN_ID_BYTES_MAX + 1, "sha256:");
    for (size_t i = 0; i < sizeof digest; i++) {
        bytes += snprintf(out + bytes, 3, "%02x", digest[i]);
    }
    return true;
}

doorman_status doorman_descriptors_resolve(const doorman_descriptors *rules, const char *domain,
                                           const doorman_descriptor_entry *entries, size_t count,
                                           doorman_descriptor_item *out) {
    struct name resource, key;
    (void)rules;
    if (!name_start(&resource)) return DOORMAN_OUT_OF_MEMORY;
    if (!name_start(&key)) {
        gnutls_hash_deinit(resource.hash, NULL);
        return DOORMAN_OUT_OF_MEMORY;
    }
    name_add_escaped(&resource, domain, strlen(domain));
    for (size_t i = 0; i < count; i++) {
        name_add(&resource, "/", 1);
        name_add_escaped(&resource, entries[i].key, entries[i].key_bytes);
        if (i > 0) name_add(&key, "/", 1);
        name_add_escaped(&key, entries[i].value, entries[i].value_bytes);
    }
    out->matched = false;
    out->hashed = name_end(&resource, out->resource_id);
    out->hashed = name_end(&key, out->key) || out->hashed;
    return DOORMAN_OK;
}
