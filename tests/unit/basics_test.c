/* Tests section basics: the version, statuses, memory, ids, the keyed hash table, timers and the
 * exact sum. */
#include "unit.h"

#define DOORMAN_IMPLEMENTATION
#include "../../doorman.h"

/* ---- the version, statuses, times, memory -------------------------------------------------- */

TEST(the_number_of_the_version_is_that_of_its_text) {
    int major = 0, minor = 0, patch = 0;
    assert_int_equal(sscanf(DOORMAN_VERSION, "%d.%d.%d", &major, &minor, &patch), 3);
    assert_int_equal(DOORMAN_VERSION_NUMBER, 10000 * major + 100 * minor + patch);
}

TEST(every_status_has_a_name_and_a_text_of_its_own) {
#define STATUS_TEXT(code, name, text) [code] = text,
    static const char *const texts[] = {DOORMAN_STATUSES(STATUS_TEXT)};
    assert_int_equal(DOORMAN_OK, 0);
    assert_string_equal(doorman_status_name(DOORMAN_OK), "OK");
    assert_string_equal(doorman_status_name(DOORMAN_TIMED_OUT), "TIMED_OUT");
    for (int i = 0; i < DOORMAN_STATUS_COUNT; i++) {
        assert_true(strlen(texts[i]) > 0);
        for (int j = 0; j < i; j++) {
            assert_string_not_equal(doorman_status_name((doorman_status)i),
                                    doorman_status_name((doorman_status)j));
            assert_string_not_equal(texts[i], texts[j]);
        }
    }
}

TEST(an_unknown_status_has_a_name) {
    const int numbers[] = {-1, DOORMAN_STATUS_COUNT, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        assert_string_equal(doorman_status_name((doorman_status)numbers[i]), "UNKNOWN");
    }
}

TEST(a_time_beyond_the_maximum_is_never) {
    assert_int_equal(doorman__after(5, 7), 12);
    assert_int_equal(doorman__after(DOORMAN_NEVER - 1, 1), DOORMAN_NEVER);
    assert_int_equal(doorman__after(DOORMAN_NEVER - 1, 2), DOORMAN_NEVER);
    assert_int_equal(doorman__after(DOORMAN_NEVER, DOORMAN_NEVER), DOORMAN_NEVER);
}

/* C4 */
TEST(without_memory_an_array_stays_unchanged) {
    int *items = NULL;
    size_t capacity = 0, blocks = memory_blocks();
    assert_true(doorman__reserve((void **)&items, &capacity, 3, sizeof *items));
    items[2] = 42;
    size_t before = capacity;
    memory_fails_at(1);
    assert_false(doorman__reserve((void **)&items, &capacity, before + 1, sizeof *items));
    assert_false(memory_works());
    assert_int_equal(capacity, before);
    assert_int_equal(items[2], 42);
    assert_true(doorman__reserve((void **)&items, &capacity, before + 1, sizeof *items));
    assert_true(capacity > before);
    assert_int_equal(items[2], 42);
    assert_false(doorman__reserve((void **)&items, &capacity, SIZE_MAX / 2, sizeof *items));
    assert_false(doorman__reserve((void **)&items, &capacity, SIZE_MAX, 1));
    assert_int_equal(items[2], 42);
    unit_free(items);
    assert_int_equal(memory_blocks(), blocks);
}

/* C1 */
TEST(the_same_seed_gives_the_same_numbers_from_0_to_1) {
    uint64_t one = random_bits(), other = one;
    double sum = 0;
    for (int i = 0; i < 10000; i++) {
        double number = doorman__random_unit(&one);
        assert_exact(doorman__random_unit(&other), number);
        assert_true(number >= 0 && number < 1);
        sum += number;
    }
    assert_near(sum, 5000, 0.1);
}

/* ---- ids ----------------------------------------------------------------------------------- */

/* A template's glob is checked like any other id, so it is the shortest way to test the check. */
static bool is_id(const char *id) {
    const doorman_template template_ = {.identifier_glob = id};
    const doorman_config_options options = {.templates = &template_, .template_count = 1};
    doorman_config *config = NULL;
    doorman_error error = {0};
    if (doorman_config_create(&config, &options, &error) == DOORMAN_OK) {
        doorman_config_destroy(config);
        return true;
    }
    const char *path = "templates[0].identifier_glob: ";
    assert_int_equal(strncmp(error.text, path, strlen(path)), 0);
    return false;
}

typedef struct sample {
    const char *id, *what;
} sample;

static const sample valid_ids[] = {
    {"a", "a letter"},
    {" ", "the first of ASCII"},
    {"~", "the last of ASCII"},
    {"shard 17/primary", "a path with a space"},
    {"\xc2\xa0", "U+00A0, the first behind the controls C1"},
    {"\xdf\xbf", "U+07FF, the last of two bytes"},
    {"\xe0\xa0\x80", "U+0800, the first of three"},
    {"\xed\x9f\xbf", "U+D7FF, the last before the surrogates"},
    {"\xee\x80\x80", "U+E000, the first behind them"},
    {"\xef\xbf\xbf", "U+FFFF, the last of three bytes"},
    {"\xf0\x90\x80\x80", "U+10000, the first of four"},
    {"\xf4\x8f\xbf\xbf", "U+10FFFF, the last there is"},
    {"1\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "one of each length"},
};

static const sample invalid_ids[] = {
    {NULL, "no string"},
    {"", "the empty string"},
    {"\x01", "the first control"},
    {"a\nb", "a control in the middle"},
    {"\x1f", "the last control C0"},
    {"\x7f", "DEL"},
    {"\xc2\x80", "U+0080, the first control C1"},
    {"a\xc2\x9f", "U+009F, the last control C1"},
    {"a\x80", "a continuation of nothing"},
    {"\xbf", "a continuation at the start"},
    {"\xc0\x80", "NUL in two bytes"},
    {"\xc1\xbf", "DEL in two bytes"},
    {"\xe0\x9f\xbf", "U+07FF in three bytes"},
    {"\xf0\x8f\xbf\xbf", "U+FFFF in four bytes"},
    {"\xed\xa0\x80", "U+D800, the first surrogate"},
    {"\xed\xbf\xbf", "U+DFFF, the last surrogate"},
    {"\xf4\x90\x80\x80", "U+110000, the first there is not"},
    {"\xf5\x80\x80\x80", "a byte that is in no UTF-8"},
    {"\xf8\x88\x80\x80\x80", "five bytes"},
    {"\xff", "the last byte"},
    {"\xc3", "one byte of two"},
    {"\xe2\x82", "two bytes of three"},
    {"\xf0\x9f\x98", "three bytes of four"},
    {"\xc3(", "ASCII for the second byte"},
    {"\xe2\x82(", "ASCII for the third byte"},
    {"\xf0\x9f\x98(", "ASCII for the fourth byte"},
};

/* C5 */
TEST(an_id_is_utf8_without_control_characters) {
    for (size_t i = 0; i < sizeof valid_ids / sizeof *valid_ids; i++) {
        if (!is_id(valid_ids[i].id)) fail_msg("%s is refused", valid_ids[i].what);
    }
    for (size_t i = 0; i < sizeof invalid_ids / sizeof *invalid_ids; i++) {
        if (is_id(invalid_ids[i].id)) fail_msg("%s is accepted", invalid_ids[i].what);
    }
}

/* C5 */
TEST(an_id_has_at_most_256_bytes) {
    char id[600];
    memset(id, 'x', sizeof id);
    id[599] = 0;
    assert_false(is_id(id));
    id[257] = 0;
    assert_false(is_id(id));
    id[256] = 0;
    assert_true(is_id(id));
    memcpy(id + 254, "\xc3\xa9", 3); /* the limit counts bytes, not characters */
    assert_true(is_id(id));
    memcpy(id + 254, "\xe2\x82\xac", 4);
    assert_false(is_id(id));
    memcpy(id + 254, "\xe2\x82", 3); /* cut off by the limit */
    assert_false(is_id(id));
}

static void utf8_put(char *out, uint32_t code) {
    size_t more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const unsigned lead[] = {0, 0xc0, 0xe0, 0xf0};
    out[0] = (char)(unsigned char)(lead[more] | code >> (6 * more));
    for (size_t i = 1; i <= more; i++) {
        out[i] = (char)(unsigned char)(0x80 | (code >> (6 * (more - i)) & 0x3f));
    }
    out[more + 1] = 0;
}

/* C5 */
TEST(every_character_except_controls_is_allowed_in_an_id) {
    for (uint32_t code = 1; code < 0x120000; code++) {
        char id[5];
        utf8_put(id, code);
        bool control = code < 0x20 || (code >= 0x7f && code <= 0x9f);
        bool surrogate = code >= 0xd800 && code <= 0xdfff;
        bool valid = doorman__id_valid(id);
        if (valid != (!control && !surrogate && code <= 0x10ffff)) {
            fail_msg("U+%04X: %s", (unsigned)code, valid ? "accepted" : "refused");
        }
    }
}

/* C5. The check reads eight bytes at a time. So the test puts each byte at each position, between
 * neighbours of three kinds. A single byte of 0x80 or more is not UTF-8. */
TEST(a_wrong_byte_is_found_anywhere_in_an_id) {
    const char neighbours[] = {' ', '0', '~'};
    for (size_t bytes = 1; bytes <= 20; bytes++) {
        for (size_t place = 0; place < 3 * bytes; place++) {
            char id[21] = {0};
            memset(id, neighbours[place % 3], bytes);
            for (int byte = 1; byte < 256; byte++) {
                id[place / 3] = (char)(unsigned char)byte;
                assert_int_equal(doorman__id_valid(id), byte >= 0x20 && byte < 0x7f);
            }
        }
    }
}

/* C5. The valid ids of two bytes are 95 by 95 ids of ASCII, and U+00A0 to U+07FF. The test takes
 * only ids of three bytes whose first byte cannot begin a shorter character. Of these ids, U+0800
 * to U+FFFF are valid, without the surrogates. */
TEST(overlong_encodings_are_refused_in_an_id) {
    size_t of_two = 0, of_three = 0;
    for (unsigned first = 1; first < 256; first++) {
        for (unsigned second = 1; second < 256; second++) {
            char id[4] = {(char)first, (char)second, 0, 0};
            of_two += doorman__id_valid(id);
            for (unsigned third = 1; first >= 0xe0 && third < 256; third++) {
                id[2] = (char)third;
                of_three += doorman__id_valid(id);
            }
        }
    }
    assert_int_equal(of_two, 95 * 95 + 0x800 - 0xa0);
    assert_int_equal(of_three, 0x10000 - 0x800 - 0x800);
}

/* ---- the hash and the table ---------------------------------------------------------------- */

/* C8. The values for the key 0 are from CPython 3.11, whose hash of bytes is SipHash-1-3. The
 * values for the key of the SipHash paper, the bytes 0 to 15, are from another program. That
 * program agrees with CPython for the key 0. */
TEST(the_hash_is_siphash_1_3) {
    static const uint64_t none[2] = {0, 0};
    static const uint64_t key[2] = {UINT64_C(0x0706050403020100), UINT64_C(0x0f0e0d0c0b0a0908)};
    static const struct {
        const char *id;
        uint64_t unkeyed, keyed;
    } vectors[] = {
        {"a", UINT64_C(0x407448d2b89b1813), UINT64_C(0x1c2697ab786a6237)},
        {"abcdefg", UINT64_C(0x6db12aae9070f506), UINT64_C(0x639b490caba831bb)},
        {"abcdefgh", UINT64_C(0x3f7b849c0b8e35ea), UINT64_C(0x12d8c08c2ee9e620)},
        {"client:1", UINT64_C(0x9c89fe66497588cb), UINT64_C(0xa9b8031e9fd259d6)},
        {"a longer id of thirty-two bytes!", UINT64_C(0xf757c0ca36897ab0),
         UINT64_C(0x532c4ebc334e1787)},
    };
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        assert_int_equal(doorman__hash(none, vectors[i].id), vectors[i].unkeyed);
        assert_int_equal(doorman__hash(key, vectors[i].id), vectors[i].keyed);
    }
    assert_int_equal(doorman__hash(key, ""), UINT64_C(0xabac0158050fc4dc));
    char id[DOORMAN_ID_BYTES_MAX + 1];
    memset(id, 'x', DOORMAN_ID_BYTES_MAX);
    id[DOORMAN_ID_BYTES_MAX] = 0;
    assert_int_equal(doorman__hash(none, id), UINT64_C(0x4160fa066cfd2ffd));
}

enum { ITEM_COUNT = 300 };

typedef struct item {
    doorman__link link; /* must be first */
    uint64_t hash;
    bool in;
} item;

static bool table_has(doorman__table *table, const item *wanted) {
    doorman__link *link = doorman__table_first(table, wanted->hash);
    size_t steps = 0;
    for (; link && link != &wanted->link; link = doorman__table_same(link->next, wanted->hash)) {
        assert_true(link->hash == wanted->hash && ++steps < ITEM_COUNT);
    }
    return link != NULL;
}

static void table_check(doorman__table *table, const item *items) {
    size_t count = 0;
    for (size_t i = 0; i < ITEM_COUNT; i++) {
        assert_int_equal(table_has(table, &items[i]), items[i].in);
        count += items[i].in;
    }
    assert_int_equal(table->count, count);
}

/* C4, C8. The test alternates between phases with more additions and phases with more removals. So
 * the table grows and shrinks. Some hashes are equal, and some hashes are equal only in part.
 * Memory fails for a while and works again. */
TEST(a_table_equals_a_plain_array_even_when_memory_fails) {
    size_t blocks = memory_blocks(), refusals = 0;
    doorman__table table = {0};
    item items[ITEM_COUNT] = {0};
    for (size_t i = 0; i < ITEM_COUNT; i++) {
        items[i].hash = i % 3 ? random_bits() : random_below(40) << (i % 2 ? 32 : 0);
    }
    for (int i = 0; i < 30000; i++) {
        item *some = &items[random_below(ITEM_COUNT)];
        bool growing = i / 1000 % 2 == 0;
        if (random_below(10) == 0) some = &items[0];
        if (i / 2000 % 2 == 1) memory_fails_from(1);
        if (some->in && (!growing || random_below(16) == 0)) {
            doorman__table_remove(&table, &some->link);
            some->in = false;
        } else if (!some->in && (growing || random_below(16) == 0)) {
            doorman__table_add(&table, &some->link, some->hash);
            some->in = true;
        }
        refusals += !memory_works();
        assert_int_equal(table_has(&table, some), some->in);
        if (i % 100 == 0) table_check(&table, items);
    }
    assert_true(refusals > 0);
    doorman__table_uninit(&table);
    assert_int_equal(memory_blocks(), blocks);
}

/* C8. A chain of 16 among 10,000 keyed hashes occurs in less than one of a billion runs. */
TEST(a_table_keeps_its_chains_short_and_frees_memory) {
    enum { COUNT = 10000 };
    static item items[COUNT];
    doorman__table table = {0};
    uint64_t key[2] = {random_bits(), random_bits()};
    for (size_t i = 0; i < COUNT; i++) {
        char id[32];
        snprintf(id, sizeof id, "client:%zu", i);
        doorman__table_add(&table, &items[i].link, doorman__hash(key, id));
    }
    assert_true(table.bucket_count <= (size_t)4 * COUNT);
    for (size_t i = 0; i < table.bucket_count; i++) {
        size_t length = 0;
        for (doorman__link *link = table.buckets[i]; link; link = link->next) length++;
        assert_true(length < 16);
    }
    for (size_t i = 10; i < COUNT; i++) doorman__table_remove(&table, &items[i].link);
    assert_true(table.bucket_count <= 128);
    doorman__table_uninit(&table);
}

/* ---- exact totals -------------------------------------------------------------------------- */

static void shuffle(double *amounts, size_t count) {
    for (size_t i = count; i > 1; i--) {
        size_t j = random_below(i);
        double amount = amounts[j];
        amounts[j] = amounts[i - 1];
        amounts[i - 1] = amount;
    }
}

/* C9 */
TEST(adding_and_removing_100000_amounts_leaves_exactly_0) {
    enum { COUNT = 100000 };
    static double amounts[COUNT];
    doorman__total total = {0, 0};
    for (size_t i = 0; i < COUNT; i++) amounts[i] = random_amount();
    for (size_t i = 0; i < COUNT; i++) doorman__total_add(&total, amounts[i]);
    assert_true(doorman__total_value(total) > 1e15);
    shuffle(amounts, COUNT);
    for (size_t i = 0; i < COUNT; i++) doorman__total_subtract(&total, amounts[i]);
    assert_int_equal(total.high, 0);
    assert_int_equal(total.low, 0);
    assert_exact(doorman__total_value(total), 0);
    assert_exact(doorman__total_left(total, 1e15), 1e15);
}

/* C9. Near 1e15 a double has only multiples of 0.125. A total keeps all bits of small amounts. */
TEST(a_small_amount_beside_a_large_one_is_not_lost) {
    doorman__total total = {0, 0};
    double small = doorman__floor(0.01);
    for (int i = 0; i < 10; i++) doorman__total_add(&total, small);
    doorman__total_add(&total, 1e15);
    doorman__total_subtract(&total, 1e15);
    assert_about(doorman__total_value(total), 0.1);
    assert_near(doorman__total_left(total, 1.25), 1.15, 1e-12);
}

TEST(an_amount_is_rounded_to_a_multiple_of_2_to_the_minus_48) {
    for (int i = 0; i < 100000; i++) {
        double amount = random_amount();
        double down = doorman__floor(amount), up = doorman__ceil(amount);
        assert_true(down <= amount && amount <= up);
        assert_true(up - down <= 0x1p-48);
        assert_exact(doorman__floor(down), down);
        assert_exact(doorman__ceil(down), down);
        assert_exact(doorman__total_value(doorman__total_of(down)), down);
        if (amount >= 32) assert_exact(down, amount);
    }
    assert_exact(doorman__floor(5e-324), 0);
    assert_exact(doorman__ceil(5e-324), 0x1p-48);
}

/* C9. Some totals are around 2^16, where the high word changes, and no double can represent them.
 * Other totals are larger than the largest amount. */
TEST(a_total_is_rounded_in_the_safe_direction) {
    doorman__total under = {0, UINT64_MAX}, over = {1, 1}, large = {0, 0};
    assert_true(doorman__total_floor(under) < 65536 && doorman__total_floor(under) > 65535.9999);
    assert_exact(doorman__total_ceil(under), 65536);
    assert_exact(doorman__total_floor(over), 65536);
    assert_true(doorman__total_ceil(over) > 65536 && doorman__total_ceil(over) < 65536.0001);
    for (int i = 0; i < 2; i++) doorman__total_add(&large, 1e15);
    assert_exact(doorman__total_floor(large), 1e15);
    assert_exact(doorman__total_ceil(large), 1e15);
}

#ifdef __SIZEOF_INT128__
__extension__ typedef unsigned __int128 wide;

/* Returns the amount in units of 2^-48. The result is exact, except for the bits that a total drops
 * too. */
static wide wide_of(double amount) { return (wide)(amount * 0x1p48); }

static wide wide_total(doorman__total total) { return (wide)total.high << 64 | total.low; }

/* C9, T7. The reported rest is never more than the true rest. The reported rest is smaller by at
 * most the last bit of a double. */
TEST(the_reported_rest_never_exceeds_the_true_rest) {
    double held[64] = {0};
    doorman__total total = {0, 0};
    wide truth = 0;
    for (int i = 0; i < 200000; i++) {
        double *one = &held[random_below(64)];
        doorman__total_subtract(&total, *one);
        truth -= wide_of(*one);
        *one = random_amount();
        doorman__total_add(&total, *one);
        truth += wide_of(*one);
        assert_true(wide_total(total) == truth);

        double near = doorman__total_value(total) * (1 + (random_unit() - 0.3) * 1e-9);
        double capacity = doorman__min(i % 2 ? near : random_amount(), DOORMAN_AMOUNT_MAX);
        wide there = wide_of(capacity) > truth ? wide_of(capacity) - truth : 0;
        double left = doorman__total_left(total, capacity);
        assert_true(left >= 0 && wide_of(left) <= there);
        assert_true(there - wide_of(left) <= there >> 52);
    }
}
#endif

/* ---- timers ---- */

enum { TIMERS = 60 };

/* Returns the number that the heap gave the timer when it was set; 0: the timer is not set. */
static uint64_t order_of(const doorman__timers *timers, const doorman__timer *timer) {
    return timer->position ? timers->heap[timer->position - 1].order : 0;
}

/* Finds the first timer by comparing all timers. */
static const doorman__timer *first_of(const doorman__timers *heap, const doorman__timer *timers) {
    const doorman__timer *first = NULL;
    for (size_t i = 0; i < TIMERS; i++) {
        const doorman__timer *each = &timers[i];
        if (!each->position) continue;
        bool earlier = !first || each->at < first->at;
        bool same = first && each->at == first->at;
        if (earlier || (same && order_of(heap, each) < order_of(heap, first))) first = each;
    }
    return first;
}

TEST(timers_run_by_time_and_then_by_age) {
    doorman__timers timers = {.count = 0};
    doorman__timer all[TIMERS] = {{.at = 0}};
    assert_true(doorman__timers_reserve(&timers, TIMERS));
    assert_true(doorman__timers_due(&timers) == DOORMAN_NEVER);
    for (int round = 0; round < 20000; round++) {
        doorman__timer *one = &all[random_below(TIMERS)];
        size_t choice = random_below(4);
        doorman_time at = choice ? (doorman_time)random_below(30) : DOORMAN_NEVER;
        uint64_t order = order_of(&timers, one);
        bool same = one->position && one->at == at;
        if (choice == 1 && one->position) doorman__timer_clear(&timers, one);
        if (choice != 1) doorman__timer_set(&timers, one, at);
        if (choice != 1 && same) assert_true(order_of(&timers, one) == order);
        assert_ptr_equal(doorman__timers_first(&timers), first_of(&timers, all));
        size_t count = 0;
        for (size_t i = 0; i < TIMERS; i++) {
            if (!all[i].position) continue;
            assert_ptr_equal(timers.heap[all[i].position - 1].timer, &all[i]);
            assert_true(timers.heap[all[i].position - 1].at == all[i].at);
            count++;
        }
        assert_int_equal(timers.count, count);
    }
    doorman__timers_uninit(&timers);
}
