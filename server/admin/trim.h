/* doorman_server, part ADMIN: which versions of the configuration are removed, because they are too
 * many or too large together (E3). */
#ifndef DOORMAN_SERVER_TRIM_H
#define DOORMAN_SERVER_TRIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VERSION_MAX 1000              /* versions that are kept at most */
#define VERSION_BYTES_MAX (64U << 20) /* of their notes */
#define TRIM_MAX 32                   /* versions that one change removes at most */

struct version_trim {
    size_t count, bytes; /* of the versions that are kept */
    uint64_t removed[TRIM_MAX];
    size_t removed_count;
};

/* Adds a version. The newest ones are added first.
 *   returns   whether a further one is wanted */
static inline bool version_trim_add(struct version_trim *trim, uint64_t number, size_t bytes) {
    const bool has_room = trim->removed_count == 0 && trim->count < VERSION_MAX &&
                          bytes <= VERSION_BYTES_MAX - trim->bytes;
    if (has_room) {
        trim->count++;
        trim->bytes += bytes;
        return true;
    }
    if (trim->removed_count == TRIM_MAX) return false;
    trim->removed[trim->removed_count++] = number;
    return true;
}

#endif
