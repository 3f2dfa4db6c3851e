/* doorman_server, part STATE: the order in which rows are written. The functions change only their
 * arguments.
 *
 * Rows are sorted by their identities, as in a file, so that each page is visited once. Of rows
 * with the same identity, the row that was taken later comes later. Rows of reservations come
 * before all counters. Rows of open reservations come once more after the counters, with is_last:
 * see >>reservations of doorman_permits.h.
 *
 * Rows are taken in steps, between which the lock of the service is free. So a reservation may be
 * settled after its row with is_last was taken, and then have a later row without is_last. The
 * store must keep the later row, so the row with is_last is left out. */
#include "store.h"

#include <stdlib.h>
#include <string.h>

static int row_compare_identities(const struct store_row *one, const struct store_row *other) {
    bool is_shorter = one->identity_bytes < other->identity_bytes;
    int order = memcmp(one->identity, other->identity,
                       is_shorter ? one->identity_bytes : other->identity_bytes);
    if (order != 0) return order;
    if (one->identity_bytes != other->identity_bytes) return is_shorter ? -1 : 1;
    return 0;
}

static int row_compare(const void *left, const void *right) {
    const struct store_row *one = (const struct store_row *)left;
    const struct store_row *other = (const struct store_row *)right;
    if (one->is_last != other->is_last) return one->is_last ? 1 : -1;
    int order = row_compare_identities(one, other);
    if (order != 0) return order;
    return one->identity < other->identity ? -1 : one->identity > other->identity;
}

/* Leaves out each row with is_last if a later row without is_last has the same identity. Both kinds
 * are sorted.
 *   others   how many rows do not have is_last */
static size_t rows_without_outdated(struct store_row *rows, size_t count, size_t others) {
    size_t at = 0, kept = others;
    for (size_t i = others; i < count; i++) {
        bool is_outdated = false;
        while (at < others && row_compare_identities(&rows[at], &rows[i]) < 0) at++;
        for (size_t j = at; j < others && row_compare_identities(&rows[j], &rows[i]) == 0; j++) {
            is_outdated = rows[j].identity > rows[i].identity;
        }
        if (!is_outdated) rows[kept++] = rows[i];
    }
    return kept;
}

size_t server_store_order(struct store_row *rows, size_t count) {
    size_t others = 0;
    qsort(rows, count, sizeof *rows, row_compare);
    while (others < count && !rows[others].is_last) others++;
    return rows_without_outdated(rows, count, others);
}
