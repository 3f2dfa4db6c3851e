/* Text of doorman_server: numbers, durations and what is escaped. An amount of a lease is never
 * printed too large. */
#define _GNU_SOURCE
#include "unit.h"

#define DOORMAN_IMPLEMENTATION
#include "../../server/http/text.c"

#define DIGITS_MAX 12

/* Takes the text out of the buffer. The result is valid until the next call. */
static const char *text_take(struct text *text) {
    static char out[64];
    assert_false(text->failed);
    snprintf(out, sizeof out, "%s", text->buffer.text);
    free(text->buffer.text);
    return out;
}

static const char *lease_text(double amount) {
    struct text text = {.failed = false};
    server_text_add_lease(&text, amount);
    return text_take(&text);
}

static const char *number_text(double value) {
    struct text text = {.failed = false};
    server_text_add_number(&text, value);
    return text_take(&text);
}

static const char *integer_text(int64_t value) {
    struct text text = {.failed = false};
    server_text_add_integer(&text, value);
    return text_take(&text);
}

static const char *seconds_text(doorman_time duration) {
    struct text text = {.failed = false};
    server_text_add_seconds(&text, duration);
    return text_take(&text);
}

static const char *escaped_text(const char *plain) {
    struct text text = {.failed = false};
    server_text_add_all(&text, TEXTS("<", "b", ">"));
    server_text_add_escaped(&text, plain, server_escape_html);
    server_text_add_all(&text, TEXTS("</b>"));
    return text_take(&text);
}

/* The text is the same as printf would write. */
TEST(an_integer_has_all_its_digits) {
    char expected[32];
    assert_string_equal(integer_text(0), "0");
    assert_string_equal(integer_text(INT64_MAX), "9223372036854775807");
    assert_string_equal(integer_text(INT64_MIN), "-9223372036854775808");
    for (int i = 0; i < 100000; i++) {
        const int64_t value = (int64_t)(random_bits() >> random_below(64));
        snprintf(expected, sizeof expected, "%" PRId64, i % 2 ? value : -value);
        assert_string_equal(integer_text(i % 2 ? value : -value), expected);
    }
}

TEST(a_duration_has_as_many_decimals_as_it_needs) {
    assert_string_equal(seconds_text(0), "0");
    assert_string_equal(seconds_text(1), "0.000000001");
    assert_string_equal(seconds_text(1000), "0.000001");
    assert_string_equal(seconds_text(120 * DOORMAN_SECOND), "120");
    assert_string_equal(seconds_text(DOORMAN_SECOND * 5 / 2), "2.5");
    assert_string_equal(seconds_text(10 * DOORMAN_SECOND + 100), "10.0000001");
    assert_string_equal(seconds_text(INT64_MAX), "9223372036.854775807");
}

TEST(only_what_must_be_escaped_is_escaped) {
    assert_string_equal(escaped_text(""), "<b></b>");
    assert_string_equal(escaped_text("plain"), "<b>plain</b>");
    assert_string_equal(escaped_text("a<b"), "<b>a&lt;b</b>");
    assert_string_equal(escaped_text("<>"), "<b>&lt;&gt;</b>");
    assert_string_equal(escaped_text("&a&"), "<b>&amp;a&amp;</b>");
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

/* The text loses less than one unit of its last digit. If the text is read and written again, it
 * stays the same. A larger amount is never printed as a smaller number. */
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
