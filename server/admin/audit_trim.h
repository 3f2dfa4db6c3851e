/* doorman_server, part ADMIN: how much the audit has, and which of its rows are removed (E5).
 *
 * One token must not push the acts of others out of the audit. So the token that has written most
 * loses rows first. The acts of the role support of the last day stay, because they count for its
 * bounds. Each token of this role has a bound for them. */
#ifndef DOORMAN_SERVER_AUDIT_TRIM_H
#define DOORMAN_SERVER_AUDIT_TRIM_H

#include "reset_count.h"

#define AUDIT_DAYS 400
#ifndef AUDIT_BYTES_MAX /* a test has a smaller one */
#define AUDIT_BYTES_MAX ((size_t)64 << 20)
#endif
#define AUDIT_SUPPORT_BYTES_MAX ((size_t)4 << 20) /* of a token of the role support, in a day */
#define AUDIT_SUPPORT_TOKENS 256                  /* more of them share a bound */
#define AUDIT_IDENTITY 24                         /* bytes of the identity of a note */

/* What a token of the role support has written since a day before the last trim. */
struct audit_writer {
    char token[TOKEN_NAME_MAX + 1]; /* its name; "": of all tokens for which there was no room */
    size_t bytes;
};

/* How much the audit has. Only the thread of the store uses it, and the main thread while that
 * thread does not run. */
struct audit_size {
    uint64_t last_id;  /* of the newest row; 0: there is none */
    size_t bytes;      /* of all rows */
    size_t trim_bytes; /* with more than this, rows should be removed */
    struct audit_writer writers[AUDIT_SUPPORT_TOKENS];
    size_t writer_count;
    struct resets_seen resets; /* by the role support, since a day before the trim */
};

/* Writes the identity of the note of an act. */
static inline void server_audit_identity(char identity[AUDIT_IDENTITY], uint64_t id) {
    snprintf(identity, AUDIT_IDENTITY, "%020" PRIu64,
             id); /* the order of texts is that of numbers */
}

/* Reads what the audit has, and removes what is too old or too much.
 *   size      in/out: unchanged if nothing could be read
 *   returns   false: the store has failed, or memory has run out
 *   cost      reads the whole audit */
bool server_audit_trim(struct audit_size *size, struct store *store);

/* Adds a row that was written.
 *   returns   false: memory has run out, so the audit must be read again */
bool server_audit_add(struct audit_size *size, const struct token_identity *token, size_t bytes,
                      const cJSON *row);

/* Returns whether a token may write a further row. */
bool server_audit_has_room(const struct audit_size *size, const struct token_identity *token,
                           size_t bytes);

#endif
