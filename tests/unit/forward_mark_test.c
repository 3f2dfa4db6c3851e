/* Tests the mark of messages between nodes (N4). Its hash is SipHash-2-4, which is compared with
 * the values that the authors of SipHash have published. Only a whole message with the right secret
 * and time has a right mark. */
#define _GNU_SOURCE
#include "../../server/forward/forward_mark.c"
#include "../../server/util/siphash.c"
#include "../test.h"

#define NOW INT64_C(1800000000)

static const uint64_t secret[2] = {0x0706050403020100, 0x0f0e0d0c0b0a0908};

/* The text for value N has the bytes 0 to N - 1. The last value is also in the paper on SipHash. */
TEST(the_hash_has_the_published_values) {
    static const uint64_t values[] = {
        0x726fdb47dd0e0e31, 0x74f839c593dc67fd, 0x0d6c8009d9a94f5a, 0x85676696d7fb7e2d,
        0xcf2794e0277187b7, 0x18765564cd99a68d, 0xcbc9466e58fee3ce, 0xab0200f58b01d137,
        0x93f5f5799a932462, 0x9e0082df0ba9e4b0, 0x7a5dbbc594ddb9f3, 0xf4b32f46226bada7,
        0x751e8fbc860ee5fb, 0x14ea5627c0843d90, 0xf723ca908e7af2ee, 0xa129ca6149be45e5};
    char text[sizeof values / sizeof *values];
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)i;
    for (size_t i = 0; i < sizeof text; i++)
        assert_true(server_siphash(secret, text, i) == values[i]);
}

TEST(pieces_of_a_text_have_the_hash_of_the_whole) {
    static const char text[] = "one key space on many machines";
    const size_t bytes = sizeof text - 1;
    for (size_t i = 0; i <= bytes; i++) {
        struct siphash hash;
        server_siphash_start(&hash, secret);
        server_siphash_add(&hash, text, i);
        server_siphash_add(&hash, text + i, bytes - i);
        assert_true(server_siphash_end(&hash) == server_siphash(secret, text, bytes));
    }
}

/* Writes a marked message. Returns its bytes. */
static size_t message_write(char out[512], const char *inner) {
    const doorman_buffer rest = {.text = (char *)(uintptr_t)inner, .bytes = strlen(inner)};
    char head[MARK_HEAD_BYTES];
    static uint64_t number;
    const struct mark_source source = {{secret[0], secret[1]}, ++number, NOW};
    const size_t bytes = server_mark_write(head, &source, "acquire", &rest);
    assert_int_equal(bytes, strlen(head));
    snprintf(out, 512, "%s%s", head, inner);
    return strlen(out);
}

TEST(a_message_is_only_right_as_a_whole) {
    char message[512];
    const size_t bytes = message_write(message, "\"client_id\":\"c\"}}");
    size_t none = 0;
    assert_int_equal(server_mark_check(message, bytes, secret, NOW), MARK_RIGHT);
    for (size_t i = 0; i < bytes; i++) {
        message[i] ^= 1;
        const enum mark_result result = server_mark_check(message, bytes, secret, NOW);
        assert_int_not_equal(result, MARK_RIGHT);
        none += result == MARK_NONE;
        message[i] ^= 1;
        assert_int_not_equal(server_mark_check(message, i, secret, NOW), MARK_RIGHT);
    }
    assert_true(none > 0 && none < 32); /* these are in the head */
}

TEST(another_secret_or_another_time_is_wrong) {
    static const uint64_t other[2] = {0x0706050403020100, 0x0f0e0d0c0b0a0909};
    char message[512];
    const size_t bytes = message_write(message, "\"client_id\":\"c\"}}");
    assert_int_equal(server_mark_check(message, bytes, other, NOW), MARK_WRONG);
    for (int sign = -1; sign <= 1; sign += 2) {
        const int64_t edge = NOW + sign * MARK_SECONDS;
        assert_int_equal(server_mark_check(message, bytes, secret, edge), MARK_RIGHT);
        assert_int_equal(server_mark_check(message, bytes, secret, edge + sign), MARK_WRONG);
    }
}

TEST(two_marks_of_one_message_differ) {
    char one[512], other[512];
    message_write(one, "\"client_id\":\"c\"}}");
    message_write(other, "\"client_id\":\"c\"}}");
    assert_string_not_equal(one, other);
}

TEST(a_message_without_a_mark_has_none) {
    static const char *const messages[] = {"", "{", "{\"acquire\":{\"client_id\":\"c\"}}",
                                           "{\"ACQUIRE\":{\"forwarded\":\"",
                                           "{\"a\":{\"forwarded\": \"x\"}}"};
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
        assert_int_equal(server_mark_check(messages[i], strlen(messages[i]), secret, NOW),
                         MARK_NONE);
    }
    static const char small[] = "{\"acquire\":{\"forwarded\":\"12\",\"client_id\":\"c\"}}";
    assert_int_equal(server_mark_check(small, strlen(small), secret, NOW), MARK_WRONG);
}
