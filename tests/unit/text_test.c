/* Numbers as text of doorman_server: an amount of a lease is never printed too large. */
#define _GNU_SOURCE
#include "unit.h"

#define DOORMAN_IMPLEMENTATION
#include "../../server/http/text.c"

#define DIGITS_MAX 12

static const char *lease_text(double amount) {
    static char out[64];
    struct text text = {.failed = false};
    server_text_add_lease(&text, amount);
    assert_false(text.failed);
    snprintf(out, sizeof out, "%s", text.buffer.text);
    free(text.buffer.text);
    return out;
}

static const char *number_text(double value) {
    static char out[64];
    struct text text = {.failed = false};
    server_text_add_number(&text, value);
    snprintf(out, sizeof out, "%s", text.buffer.text);
    free(text.buffer.text);
    return out;
}

TEST(a_number_has_at_most_twelve_digits) {
    assert_string_equal(number_text(0), "0");
    assert_string_equal(number_text(0.1 + 0.2), "0.3");
    assert_string_equal(number_text(-1), "-1");
    assert_string_equal(number_text(-0.25), "-0.25");
    assert_string_equal(number_text(200.0 / 3), "66.6666666667");
    assert_string_equal(number_text(123456789012345), "123456789012345");
    assert_string_equal(number_text(1e15), "1000000000000000");
}

TEST(a_lease_is_rounded_down) {
    assert_string_equal(lease_text(200.0 / 3), "66.6666666666");
    assert_string_equal(lease_text(100.0 / 3), "33.3333333333");
    assert_string_equal(lease_text(0.1), "0.1");
    assert_string_equal(lease_text(0.3), "0.3");
    assert_string_equal(lease_text(123456789012345), "123456789012345");
    assert_string_equal(lease_text(99.99999999999999), "99.9999999999"); /* not 100 */
    assert_string_equal(lease_text(0.00099999999999999998), "0.001");
    assert_string_equal(lease_text(0.00099999999999996), "0.000999999999999");
    assert_string_equal(lease_text(-1), "-1"); /* unlimited */
}

static size_t count_digits(const char *text) {
    size_t count = 0;
    while (*text == '0' || *text == '.') text++;
    for (; *text && *text != 'e'; text++) count += *text != '.';
    return count;
}

/* The text loses less than one unit of its last digit. Writing the same number again changes
 * nothing. Larger amounts have no smaller text. */
TEST(random_leases_are_rounded_down_by_at_most_one_digit) {
    for (int i = 0; i < 200000; i++) {
        double amount = (double)random_below(1000000000) / (double)(1 + random_below(1000000));
        if (i % 2) amount /= 1e9;
        char text[64];
        snprintf(text, sizeof text, "%s", lease_text(amount));
        double printed = strtod(text, NULL);
        bool is_integer = amount == (double)(int64_t)amount;
        if (!is_integer && count_digits(text) > DIGITS_MAX) fail_msg("%.17g: %s", amount, text);
        if (printed > amount || printed < amount * (1 - 1.1e-11)) {
            fail_msg("%.17g is printed as %s", amount, text);
        }
        assert_string_equal(lease_text(printed), text);
        assert_true(strtod(lease_text(amount * (1 + 1e-15)), NULL) >= printed);
    }
}
