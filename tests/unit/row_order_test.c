/* The order in which rows of counters and reservations are written to a store (D3, P27). */
#include "../../server/store/row_order.c"

#include "../test.h"

/* Makes a row for each letter of `taken`, in the order in which the rows were taken. The identity
 * of a row is its letter in lower case. An upper case letter makes a last row. */
static size_t rows_of(const char *taken, struct store_row *rows) {
    static char memory[64];
    const size_t count = strlen(taken);
    assert_true(count < sizeof memory);
    for (size_t i = 0; i < count; i++) {
        const bool is_last = taken[i] >= 'A' && taken[i] <= 'Z';
        memory[i] = (char)(is_last ? taken[i] - 'A' + 'a' : taken[i]);
        rows[i] = (struct store_row){.identity = &memory[i],
                                     .identity_bytes = 1,
                                     .is_last = is_last,
                                     .fresh_at = (int64_t)i};
    }
    return count;
}

static void assert_order(const char *taken, const char *written) {
    struct store_row rows[64];
    char out[64] = "";
    const size_t count = server_store_order(rows, rows_of(taken, rows));
    assert_int_equal(count, strlen(written));
    for (size_t i = 0; i < count; i++) out[i] = taken[rows[i].fresh_at];
    assert_string_equal(out, written);
}

TEST(rows_are_written_in_the_order_of_their_identities) {
    assert_order("", "");
    assert_order("hcad", "acdh");
}

/* P27: an open reservation is written before its counters, and again behind them. */
TEST(last_rows_are_written_behind_all_others) {
    assert_order("akAtB", "aktAB");
    assert_order("BA", "AB");
}

/* P27: if a reservation is settled after its last row was taken, that row is not written. */
TEST(a_last_row_with_a_later_row_is_not_written) {
    assert_order("abktABat", "aabkttB");
    assert_order("abktABbt", "abbkttA");
    assert_order("aAaA", "aaA");
}

/* Of two rows with the same identity, the later row counts. */
TEST(a_later_row_is_written_behind_an_earlier_one) {
    struct store_row rows[64];
    const size_t count = server_store_order(rows, rows_of("tkt", rows));
    assert_int_equal(count, 3);
    assert_int_equal(rows[1].fresh_at, 0);
    assert_int_equal(rows[2].fresh_at, 2);
}
