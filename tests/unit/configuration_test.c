/* Tests section configuration: globs, templates, their defaults, and which template a resource
 * gets. */
#include "unit.h"

#include <math.h>

#define DOORMAN_IMPLEMENTATION
#include "../../doorman.h"

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))
#define SECONDS(n) ((n)*DOORMAN_SECOND)

static doorman_config *config_of(const doorman_template *templates, size_t count) {
    const doorman_config_options options = {.templates = templates, .template_count = count};
    doorman_config *config = NULL;
    doorman_error error = {0};
    if (doorman_config_create(&config, &options, &error) != DOORMAN_OK) fail_msg("%s", error.text);
    return config;
}

/* ---- globs --------------------------------------------------------------------------------- */

/* Returns whether a resource takes the template of a glob. */
static bool matches(const char *glob, const char *id) {
    const doorman_template template_ = {.identifier_glob = glob};
    const doorman_config_options options = {.templates = &template_, .template_count = 1};
    doorman_config *config = NULL;
    assert_int_equal(doorman_config_create(&config, &options, NULL), DOORMAN_OK);
    bool found = doorman_config_find(config, id) != NULL;
    doorman_config_destroy(config);
    return found;
}

static const struct {
    const char *glob, *matches[4], *others[4];
} glob_rows[] = {
    {"a", {"a"}, {"b", "A", "aa"}},
    {"*", {"a", "*", "[", "a/b"}, {NULL}},
    {"db*", {"db", "db/7/read"}, {"d", "xdb"}},
    {"*/read", {"/read", "db/7/read"}, {"db/write", "db/read/"}},
    {"d*7*d", {"d7d", "db/7/read"}, {"d7", "db/7/reads"}},
    {"a*b*b", {"abb", "abbbb"}, {"ab", "abba"}},
    {"**", {"x"}, {NULL}},
    {"a?*", {"ab", "abc"}, {"a"}},
    {"?", {"a", "/", "\xe2\x82\xac"}, {"ab", "\xc3\xa9\xc3\xa9"}},
    {"??", {"ab", "\xc3\xa9\xc3\xa9"}, {"a", "\xc3\xa9", "abc"}},
    {"[a-c]", {"a", "b", "c"}, {"d", "-", "ab"}},
    {"[c-a]", {NULL}, {"a", "b", "c", "-"}},
    {"[a-cx-z]", {"b", "x", "z"}, {"d", "w"}},
    {"db[0-9]*", {"db7", "db7/r"}, {"db", "dbx7"}},
    {"[!a]", {"b", "/", "!"}, {"a", "bb"}},
    {"[^a]", {"b", "^"}, {"a"}},
    {"[!a-c]", {"d", "-"}, {"a", "b", "c"}},
    {"[a-]", {"a", "-"}, {"b"}},
    {"[-a]", {"a", "-"}, {"b"}},
    {"[]a]", {"]", "a"}, {"[", "[]a]x"}},
    {"[!]]", {"a", "["}, {"]"}},
    {"[\\]a]", {"]", "a"}, {"\\"}},
    {"[a\\-c]", {"a", "-", "c"}, {"b", "\\"}},
    {"[\\!a]", {"!", "a"}, {"b", "\\"}},
    {"[a!^]", {"a", "!", "^"}, {"b"}},
    {"[*?]", {"*", "?"}, {"a"}},
    {"[\xc3\xa0-\xc3\xbf]", {"\xc3\xa0", "\xc3\xa9", "\xc3\xbf"}, {"e", "\xc4\x80"}},
    {"\\*", {"*"}, {"a", "\\a", "**"}},
    {"*\\*", {"*", "a*"}, {"a"}},
    {"\\?", {"?"}, {"a"}},
    {"\\[a]", {"[a]"}, {"a", "\\a"}},
    {"\\\\", {"\\"}, {"\\\\\\"}},
    {"\\a", {"a"}, {"b"}},
    {"\\", {"\\"}, {"a"}},
    {"[", {"["}, {"a"}},
    {"[a", {"[a"}, {"a", "["}},
    {"[]", {"[]"}, {"[", "]"}},
    {"[!", {"[!"}, {"a"}},
    {"[a-", {"[a-"}, {"a", "-"}},
    {"[*", {"[", "[abc"}, {"a", "*["}},
    {"*[", {"[", "a["}, {"[a"}},
};

/* G1 */
TEST(globs_match_as_in_the_shell) {
    for (size_t i = 0; i < COUNT_OF(glob_rows); i++) {
        for (size_t j = 0; j < 4; j++) {
            const char *glob = glob_rows[i].glob, *good = glob_rows[i].matches[j];
            const char *other = glob_rows[i].others[j];
            if (good && !matches(glob, good)) fail_msg("%s should match %s", glob, good);
            if (other && matches(glob, other)) fail_msg("%s should not match %s", glob, other);
        }
    }
}

/* Sets members[c] for each ASCII character c that a bracket matches. Returns the text behind the
 * bracket, or NULL if the bracket has no end. */
static const char *reference_bracket(const char *glob, bool members[128]) {
    bool negated = *glob == '!' || *glob == '^';
    const char *first = glob += negated;
    memset(members, negated, 128);
    while (*glob && (glob == first || *glob != ']')) {
        if (*glob == '\\' && glob[1]) glob++;
        int low = *glob++, high = low;
        if (glob[0] == '-' && glob[1] && glob[1] != ']') {
            glob += 1 + (glob[1] == '\\' && glob[2]);
            high = *glob++;
        }
        for (int c = low; c <= high; c++) members[c] = !negated;
    }
    return *glob ? glob + 1 : NULL;
}

/* Matches by the documented rules of the shell, for ASCII only. Tries all possibilities. */
static bool reference_match(const char *glob, const char *id) {
    if (!*glob) return !*id;
    if (*glob == '*') {
        return reference_match(glob + 1, id) || (*id && reference_match(glob, id + 1));
    }
    if (!*id) return false;
    if (*glob == '?') return reference_match(glob + 1, id + 1);
    if (*glob == '[') {
        bool members[128];
        const char *rest = reference_bracket(glob + 1, members);
        if (rest) return members[(int)*id] && reference_match(rest, id + 1);
    }
    if (*glob == '\\' && glob[1]) glob++;
    return *glob == *id && reference_match(glob + 1, id + 1);
}

static void random_text(char *out, size_t most, const char *alphabet) {
    size_t length = 1 + random_below(most);
    for (size_t i = 0; i < length; i++) out[i] = alphabet[random_below(strlen(alphabet))];
    out[length] = 0;
}

/* G1 */
TEST(globs_match_as_an_exhaustive_search_does) {
    size_t matched = 0;
    for (int i = 0; i < 300000; i++) {
        char glob[16], id[16];
        random_text(glob, 1 + random_below(12), i % 2 ? "ab*?" : "abc*?[]!^-\\");
        random_text(id, 1 + random_below(8), i % 2 ? "ab" : "abc[]-\\^");
        bool expected = reference_match(glob, id);
        matched += expected;
        if (doorman__glob_match(glob, id) != expected) {
            fail_msg("%s should%s match %s", glob, expected ? "" : " not", id);
        }
    }
    assert_true(matched > 3000);
}

/* G1. A matcher that tries all possibilities would never finish this test. */
TEST(a_glob_takes_time_proportional_to_its_length_times_the_ids) {
    char glob[DOORMAN_ID_BYTES_MAX + 1] = "", id[DOORMAN_ID_BYTES_MAX + 1];
    for (size_t i = 0; i < DOORMAN_ID_BYTES_MAX - 2; i += 2) memcpy(glob + i, "a*", 3);
    memset(id, 'a', DOORMAN_ID_BYTES_MAX);
    id[DOORMAN_ID_BYTES_MAX] = 0;
    assert_true(matches(glob, id));
    strcat(glob, "b");
    assert_false(matches(glob, id));
    id[DOORMAN_ID_BYTES_MAX - 1] = 'b';
    assert_true(matches(glob, id));
}

/* ---- which template ------------------------------------------------------------------------ */

static void assert_takes(const doorman_config *config, const char *resource_id, double capacity) {
    const doorman_template *found = doorman_config_find(config, resource_id);
    if (!found) fail_msg("%s has no template", resource_id);
    if (found) assert_exact(found->capacity, capacity);
}

/* G1 */
TEST(an_equal_id_precedes_the_first_matching_glob) {
    const doorman_template templates[] = {
        {.identifier_glob = "db/*", .capacity = 1}, {.identifier_glob = "db/7", .capacity = 2},
        {.identifier_glob = "*/7", .capacity = 4},  {.identifier_glob = "?[0-9]", .capacity = 5},
        {.identifier_glob = "*", .capacity = 6},
    };
    doorman_config *config = config_of(templates, COUNT_OF(templates));
    assert_takes(config, "db/7", 2);
    assert_takes(config, "db/8", 1);
    assert_takes(config, "db/8/7", 1);
    assert_takes(config, "cache/7", 4);
    assert_takes(config, "x9", 5);
    assert_takes(config, "x", 6);
    assert_null(doorman_config_find(config, "db/\xff"));
    assert_null(doorman_config_find(config, ""));
    assert_null(doorman_config_find(config, NULL));
    doorman_config_destroy(config);
}

/* G1. The original Doorman crashes on a slash if only `*` is configured. */
TEST(a_resource_id_can_look_like_a_glob_or_a_path) {
    const doorman_template all = {.identifier_glob = "*", .capacity = 1};
    doorman_config *config = config_of(&all, 1);
    static const char *const ids[] = {"*", "[", "]", "?", "\\", "/", "a/b", "a//b/", "[!a-", "**"};
    for (size_t i = 0; i < COUNT_OF(ids); i++) assert_takes(config, ids[i], 1);
    doorman_config_destroy(config);

    const doorman_template some[] = {
        {.identifier_glob = "\\*", .capacity = 1},
        {.identifier_glob = "[", .capacity = 2},
        {.identifier_glob = "[ab]", .capacity = 3},
    };
    config = config_of(some, COUNT_OF(some));
    assert_takes(config, "*", 1);
    assert_takes(config, "[", 2);
    assert_takes(config, "[ab]", 3); /* the glob is equal to the id, but does not match it */
    assert_takes(config, "a", 3);
    assert_null(doorman_config_find(config, "**"));
    doorman_config_destroy(config);
}

/* G2 */
TEST(a_resource_that_matches_no_glob_has_no_template) {
    const doorman_template template_ = {.identifier_glob = "db/*"};
    doorman_config *config = config_of(&template_, 1);
    assert_null(doorman_config_find(config, "db"));
    assert_null(doorman_config_find(config, "a/db/7"));
    doorman_config_destroy(config);

    doorman_config_options read = {.template_count = 1};
    config = config_of(NULL, 0);
    assert_null(doorman_config_find(config, "db/7"));
    doorman_config_read(config, &read);
    assert_int_equal(read.template_count, 0);
    doorman_config_destroy(config);
}

/* Makes a short text of few different characters, so that many globs match. */
static void make_text(char *text, const char *characters, size_t most) {
    size_t bytes = 1 + random_below(most), kinds = strlen(characters);
    for (size_t i = 0; i < bytes; i++) text[i] = characters[random_below(kinds)];
    text[bytes] = 0;
}

/* Finds a template by the definition in G1. */
static const doorman_template *find_by_linear_search(const doorman_config *config, const char *id) {
    for (size_t i = 0; i < config->template_count; i++) {
        if (strcmp(config->templates[i].identifier_glob, id) == 0) return &config->templates[i];
    }
    for (size_t i = 0; i < config->template_count; i++) {
        const doorman_template *one = &config->templates[i];
        if (doorman__glob_match(one->identifier_glob, id)) return one;
    }
    return NULL;
}

/* G1 */
TEST(the_tables_find_the_same_template_as_a_linear_search) {
    enum { ROUNDS = 300, MOST = 40 };
    size_t found_count = 0;
    for (int round = 0; round < ROUNDS; round++) {
        char globs[MOST][16], id[16];
        doorman_template templates[MOST] = {{.identifier_glob = NULL}};
        size_t count = 0;
        for (size_t tries = random_below(MOST); tries > 0; tries--) {
            bool known = false;
            make_text(globs[count], "aabbb/*?[]\\", 8);
            for (size_t i = 0; i < count; i++) known = known || !strcmp(globs[i], globs[count]);
            if (known || strcmp(globs[count], "*") == 0) continue;
            templates[count].identifier_glob = globs[count];
            count++;
        }
        doorman_config *config = config_of(templates, count);
        for (int i = 0; i < 200; i++) {
            make_text(id, i % 4 ? "aab/" : "ab/*?[]\\", 8);
            const doorman_template *found = doorman_config_find(config, id);
            assert_ptr_equal(found, find_by_linear_search(config, id));
            found_count += found != NULL;
        }
        doorman_config_destroy(config);
    }
    assert_true(found_count > ROUNDS * 20);
}

/* ---- defaults ------------------------------------------------------------------------------ */

static const doorman_algorithm *algorithm_of(const doorman_config *config, const char *id) {
    const doorman_template *found = doorman_config_find(config, id);
    assert_non_null(found);
    assert_true(found->has_algorithm);
    return &found->algorithm;
}

/* G3, G7 */
TEST(a_template_without_an_algorithm_is_fair_share_with_defaults) {
    const doorman_template templates[] = {
        {.identifier_glob = "none", .capacity = 10},
        {.identifier_glob = "zeros", .capacity = 10, .has_algorithm = true},
        {.identifier_glob = "*"},
    };
    doorman_config *config = config_of(templates, COUNT_OF(templates));
    static const char *const ids[] = {"none", "zeros", "another"};
    for (size_t i = 0; i < COUNT_OF(ids); i++) {
        const doorman_algorithm *all = algorithm_of(config, ids[i]);
        assert_int_equal(all->kind, DOORMAN_FAIR_SHARE);
        assert_int_equal(all->handover, DOORMAN_CONFIRMED);
        assert_int_equal(all->lease_length, SECONDS(60));
        assert_int_equal(all->refresh_interval, SECONDS(16));
        assert_false(all->has_learning_mode_duration);
        assert_int_equal(all->minimum_interval, SECONDS(5));
        assert_int_equal(all->minimum_refresh_interval, SECONDS(1));
        assert_exact(all->decay_factor, 0.5);
        assert_exact(all->reserve, 0);
        assert_false(doorman_config_find(config, ids[i])->has_safe_capacity);
        assert_string_equal(doorman_config_find(config, ids[i])->description, "");
    }
    doorman_config_destroy(config);
}

/* G3 */
TEST(a_template_without_an_algorithm_takes_that_of_the_star) {
    const doorman_template templates[] = {
        {.identifier_glob = "none", .capacity = 10},
        {.identifier_glob = "own",
         .has_algorithm = true,
         .algorithm = {.kind = DOORMAN_STATIC_SHARE}},
        {.identifier_glob = "*",
         .has_algorithm = true,
         .algorithm = {.kind = DOORMAN_PRIORITY_SHARE, .reserve = 0.25}},
    };
    doorman_config *config = config_of(templates, COUNT_OF(templates));
    assert_int_equal(algorithm_of(config, "none")->kind, DOORMAN_PRIORITY_SHARE);
    assert_exact(algorithm_of(config, "none")->reserve, 0.25);
    assert_int_equal(algorithm_of(config, "none")->lease_length, SECONDS(60));
    assert_takes(config, "none", 10); /* only the algorithm is taken from `*` */
    assert_int_equal(algorithm_of(config, "own")->kind, DOORMAN_STATIC_SHARE);
    assert_exact(algorithm_of(config, "own")->reserve, 0);
    doorman_config_destroy(config);
}

/* G6. The default refresh interval is valid even for a lease of one nanosecond. */
TEST(the_default_refresh_interval_is_a_third_of_a_short_lease) {
    static const struct {
        doorman_time lease_length, refresh_interval;
    } examples[] = {
        {SECONDS(48), SECONDS(16)},
        {SECONDS(600), SECONDS(16)},
        {SECONDS(12), SECONDS(4)},
        {SECONDS(3), SECONDS(1)},
        {3, 1},
        {1, 1},
    };
    for (size_t i = 0; i < COUNT_OF(examples); i++) {
        const doorman_template template_ = {
            .identifier_glob = "a",
            .has_algorithm = true,
            .algorithm = {.lease_length = examples[i].lease_length}};
        doorman_config *config = config_of(&template_, 1);
        assert_int_equal(algorithm_of(config, "a")->refresh_interval, examples[i].refresh_interval);
        doorman_config_destroy(config);
    }
}

static void assert_same_algorithm(const doorman_algorithm *a, const doorman_algorithm *b) {
    assert_int_equal(a->kind, b->kind);
    assert_int_equal(a->handover, b->handover);
    assert_int_equal(a->lease_length, b->lease_length);
    assert_int_equal(a->refresh_interval, b->refresh_interval);
    assert_int_equal(a->has_learning_mode_duration, b->has_learning_mode_duration);
    assert_int_equal(a->learning_mode_duration, b->learning_mode_duration);
    assert_int_equal(a->has_minimum_interval, b->has_minimum_interval);
    assert_int_equal(a->minimum_interval, b->minimum_interval);
    assert_int_equal(a->minimum_refresh_interval, b->minimum_refresh_interval);
    assert_exact(a->decay_factor, b->decay_factor);
    assert_exact(a->reserve, b->reserve);
}

/* C3 */
TEST(a_configuration_copies_everything_it_is_given) {
    char glob[] = "db/[0-9]*", description[] = "queries a second", unit[] = "queries/s";
    doorman_template template_ = {
        .identifier_glob = glob,
        .description = description,
        .unit = unit,
        .capacity = DOORMAN_AMOUNT_MAX,
        .whole = true,
        .has_safe_capacity = true, /* 0 is meaningful in this field and the next two has_ fields */
        .has_algorithm = true,
        .algorithm = {.kind = DOORMAN_PRIORITY_SHARE,
                      .handover = DOORMAN_IMMEDIATE,
                      .lease_length = DOORMAN_DURATION_MAX,
                      .refresh_interval = DOORMAN_DURATION_MAX,
                      .has_learning_mode_duration = true,
                      .has_minimum_interval = true,
                      .minimum_refresh_interval = SECONDS(2),
                      .decay_factor = 1,
                      .reserve = 1},
    };
    const doorman_algorithm given = template_.algorithm;
    doorman_config *config = config_of(&template_, 1);
    memset(glob, 'x', sizeof glob - 1);
    memset(description, 'x', sizeof description - 1);
    memset(unit, 'x', sizeof unit - 1);
    memset(&template_, 0, sizeof template_);

    doorman_config_options read;
    doorman_config_read(config, &read);
    assert_int_equal(read.template_count, 1);
    assert_false(read.reject_unmatched);
    const doorman_template *kept = read.templates;
    assert_ptr_equal(doorman_config_find(config, "db/7"), kept);
    assert_string_equal(kept->identifier_glob, "db/[0-9]*");
    assert_string_equal(kept->description, "queries a second");
    assert_string_equal(kept->unit, "queries/s");
    assert_string_equal(kept->refused_body, "");
    assert_exact(kept->capacity, DOORMAN_AMOUNT_MAX);
    assert_true(kept->whole);
    assert_true(kept->has_safe_capacity);
    assert_exact(kept->safe_capacity, 0);
    assert_same_algorithm(&kept->algorithm, &given);
    doorman_config_destroy(config);
}

TEST(each_kind_has_its_name) {
#define KIND_NAME(kind, name) [kind] = name,
    static const char *const names[] = {DOORMAN_KINDS(KIND_NAME)};
    assert_int_equal(COUNT_OF(names), DOORMAN_KIND_COUNT);
    assert_string_equal(names[DOORMAN_FAIR_SHARE], "FAIR_SHARE");
    assert_string_equal(names[DOORMAN_PROPORTIONAL_SHARE], "PROPORTIONAL_SHARE");
    assert_string_equal(names[DOORMAN_PRIORITY_SHARE], "PRIORITY_SHARE");
    assert_string_equal(names[DOORMAN_STATIC_SHARE], "STATIC");
    assert_string_equal(names[DOORMAN_NO_ALGORITHM], "NO_ALGORITHM");
}

/* ---- what is refused ----------------------------------------------------------------------- */

#define WITH(...)                                                                                  \
    {                                                                                              \
        .identifier_glob = "b", .has_algorithm = true, .algorithm = { __VA_ARGS__ }                \
    }

#define WITH_LEARNING(duration)                                                                    \
    .has_algorithm = true,                                                                         \
    .algorithm = {.has_learning_mode_duration = true, .learning_mode_duration = (duration)}

static const struct {
    doorman_template template_;
    const char *error; /* how the text begins */
} refused[] = {
    {{.identifier_glob = NULL}, "identifier_glob: must be 1 to 256 bytes"},
    {{.identifier_glob = ""}, "identifier_glob: must be 1 to 256 bytes"},
    {{.identifier_glob = "a\n"}, "identifier_glob: must be 1 to 256 bytes"},
    {{.identifier_glob = "*"}, "identifier_glob: \"*\" must be the last template"}, /* G6 */
    {{.identifier_glob = "b", .capacity = -1}, "capacity: must be"},
    {{.identifier_glob = "b", .capacity = -5e-324}, "capacity: must be"},
    {{.identifier_glob = "b", .capacity = 1.0000000000000002e15}, "capacity: must be"},
    {{.identifier_glob = "b", .capacity = (double)INFINITY}, "capacity: must be"},
    {{.identifier_glob = "b", .capacity = (double)NAN}, "capacity: must be"},
    {{.identifier_glob = "b", .has_safe_capacity = true, .safe_capacity = -2},
     "safe_capacity: must be"},
    {{.identifier_glob = "b", .has_safe_capacity = true, .safe_capacity = -0.5},
     "safe_capacity: must be"},
    {{.identifier_glob = "b", .has_safe_capacity = true, .safe_capacity = (double)NAN},
     "safe_capacity: must be"},
    {{.identifier_glob = "b", .safe_capacity = 1}, "safe_capacity: needs has_safe_capacity"},
    {{.identifier_glob = "b", .unit = "123456789012345678901234567890123"},
     "unit: must be at most 32 bytes"},
    {{.identifier_glob = "b", .unit = "\xff"}, "unit: must be at most 32 bytes"},
    {{.identifier_glob = "b", .refused_body = "\xff"}, "refused_body: must be at most 4096 bytes"},
    {{.identifier_glob = "b", .refused_body = "wait"}, "refused_body: needs has_limits"},
    {{.identifier_glob = "b", .unit = "a\x7f"}, "unit: must be at most 32 bytes"},
    {{.identifier_glob = "b", .algorithm = {.kind = DOORMAN_STATIC_SHARE}},
     "algorithm: needs has_algorithm"},
    {{.identifier_glob = "b", .algorithm = {.handover = DOORMAN_IMMEDIATE}},
     "algorithm: needs has_algorithm"},
    {{.identifier_glob = "b", .algorithm = {.lease_length = 1}}, "algorithm: needs has_algorithm"},
    {{.identifier_glob = "b", .algorithm = {.has_minimum_interval = true}},
     "algorithm: needs has_algorithm"},
    {WITH(.learning_mode_duration = 1),
     "algorithm.learning_mode_duration: needs has_learning_mode_duration"},
    {WITH(.minimum_interval = 1), "algorithm.minimum_interval: needs has_minimum_interval"},
    {WITH(.kind = DOORMAN_PROPORTIONAL_SHARE, .reserve = 0.5),
     "algorithm.reserve: only PRIORITY_SHARE has one"},
    {{.identifier_glob = "b", .capacity = 2.5, .whole = true}, "capacity: must be an integer"},
    {{.identifier_glob = "b", .whole = true, .has_safe_capacity = true, .safe_capacity = 0.5},
     "safe_capacity: must be an integer"},
    {WITH(.kind = DOORMAN_KIND_COUNT), "algorithm.kind: "},
    {WITH(.kind = (doorman_kind)-1), "algorithm.kind: "},
    {WITH(.handover = (doorman_handover)2), "algorithm.handover: must be"},
    {WITH(.lease_length = -1), "algorithm.lease_length: must be"},
    {WITH(.lease_length = DOORMAN_DURATION_MAX + 1), "algorithm.lease_length: must be"},
    {WITH(.lease_length = DOORMAN_NEVER), "algorithm.lease_length: must be"},
    {WITH(.refresh_interval = -1), "algorithm.refresh_interval: must be"},
    {WITH(.refresh_interval = SECONDS(60) + 1), "algorithm.refresh_interval: must be"}, /* G6 */
    {WITH(.lease_length = SECONDS(5), .refresh_interval = SECONDS(6)),
     "algorithm.refresh_interval: must be at most the lease_length"},
    {WITH(.has_learning_mode_duration = true, .learning_mode_duration = -1),
     "algorithm.learning_mode_duration: must be"},
    {WITH(.has_learning_mode_duration = true, .learning_mode_duration = DOORMAN_NEVER),
     "algorithm.learning_mode_duration: must be"},
    {WITH(.has_minimum_interval = true, .minimum_interval = -1),
     "algorithm.minimum_interval: must be"},
    {WITH(.has_minimum_interval = true, .minimum_interval = DOORMAN_NEVER),
     "algorithm.minimum_interval: must be"},
    {WITH(.minimum_refresh_interval = -1), "algorithm.minimum_refresh_interval: must be"},
    {WITH(.minimum_refresh_interval = DOORMAN_NEVER),
     "algorithm.minimum_refresh_interval: must be"},
    {WITH(.decay_factor = -0.5), "algorithm.decay_factor: must be"},
    {WITH(.decay_factor = 1.0000000000000002), "algorithm.decay_factor: must be"},
    {WITH(.decay_factor = (double)NAN), "algorithm.decay_factor: must be"},
    {WITH(.reserve = -0.1), "algorithm.reserve: must be"},
    {WITH(.reserve = 1.1), "algorithm.reserve: must be"},
    {WITH(.reserve = (double)NAN), "algorithm.reserve: must be"},
};

/* G4 */
TEST(an_error_refuses_the_whole_configuration_and_has_its_path) {
    size_t blocks = memory_blocks();
    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        const doorman_template templates[] = {
            {.identifier_glob = "a"}, refused[i].template_, {.identifier_glob = "*"}};
        const doorman_config_options options = {.templates = templates, .template_count = 3};
        doorman_config *config = NULL;
        doorman_error error = {0};
        doorman_status status = doorman_config_create(&config, &options, &error);
        char expected[sizeof error.text] = "templates[1].";
        strcat(expected, refused[i].error);
        assert_int_equal(status, DOORMAN_INVALID_ARGUMENT);
        assert_null(config);
        error.text[strlen(expected)] = 0;
        assert_string_equal(error.text, expected);
        assert_int_equal(doorman_config_create(&config, &options, NULL), status);
    }
    assert_int_equal(memory_blocks(), blocks);
}

/* G4: the text has the first error, and how many more there are. */
TEST(an_error_says_how_many_more_there_are) {
    const doorman_template templates[] = {
        {.identifier_glob = "a"},
        {.identifier_glob = "*", .capacity = -1},
        {.identifier_glob = NULL, .has_safe_capacity = true, .safe_capacity = -2},
        WITH(.lease_length = SECONDS(5), .refresh_interval = SECONDS(6), .reserve = 2),
        {.identifier_glob = "a"},
    };
    const doorman_config_options options = {.templates = templates, .template_count = 5};
    doorman_config *config = NULL;
    doorman_error error = {0};
    assert_int_equal(doorman_config_create(&config, &options, &error), DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(error.text,
                        "templates[1].identifier_glob: \"*\" must be the last template: "
                        "none after it is used (and 7 more)");
    assert_null(config);
}

/* A field that is out of range causes no second error from a rule about several fields. */
TEST(a_wrong_field_has_one_error) {
    static const doorman_template wrong[] = {
        {.identifier_glob = NULL},
        {.identifier_glob = "b", .capacity = (double)NAN, .whole = true},
        {.identifier_glob = "b", .whole = true, .has_safe_capacity = true, .safe_capacity = -2.5},
        {.identifier_glob = "b", .safe_capacity = (double)NAN},
        WITH(.lease_length = -1),
        WITH(.refresh_interval = DOORMAN_NEVER),
        WITH(.lease_length = -1, .minimum_refresh_interval = 1),
        WITH(.kind = (doorman_kind)-1),
        WITH(.decay_factor = (double)NAN),
        WITH(.reserve = (double)NAN),
    };
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        const doorman_config_options options = {.templates = &wrong[i], .template_count = 1};
        doorman_config *config = NULL;
        doorman_error error = {0};
        assert_int_equal(doorman_config_create(&config, &options, &error),
                         DOORMAN_INVALID_ARGUMENT);
        if (strstr(error.text, " more)")) fail_msg("%d: %s", (int)i, error.text);
    }
}

TEST(missing_templates_are_refused) {
    const doorman_config_options options = {.template_count = 1};
    doorman_config *config = NULL;
    doorman_error error = {0};
    assert_int_equal(doorman_config_create(&config, &options, &error), DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(error.text, "templates: must not be NULL");
    assert_null(config);
}

static doorman_status create_many(size_t count, size_t most, doorman_error *error) {
    static doorman_template many[10001];
    static char globs[10001][8];
    for (size_t i = 0; i < count; i++) {
        snprintf(globs[i], sizeof globs[i], "a%d", (int)i);
        many[i].identifier_glob = globs[i];
    }
    const doorman_config_options options = {
        .templates = many, .template_count = count, .template_max = most};
    doorman_config *config = NULL;
    doorman_status status = doorman_config_create(&config, &options, error);
    assert_int_equal(config != NULL, status == DOORMAN_OK);
    doorman_config_destroy(config);
    return status;
}

/* G4: the second template with a glob could never be used. */
TEST(no_two_templates_have_the_same_glob) {
    const doorman_template templates[] = {
        {.identifier_glob = "db/7"}, {.identifier_glob = "db/8"}, {.identifier_glob = "db/7"}};
    const doorman_config_options options = {.templates = templates, .template_count = 3};
    doorman_config *config = NULL;
    doorman_error error = {0};
    assert_int_equal(doorman_config_create(&config, &options, &error), DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(error.text, "templates[2].identifier_glob: equals that of "
                                    "templates[0], so it would never be used");
}

/* C7 */
TEST(the_number_of_templates_is_limited) {
    doorman_error error = {0};
    assert_int_equal(create_many(3, 3, &error), DOORMAN_OK);
    assert_int_equal(create_many(4, 3, &error), DOORMAN_RESOURCE_EXHAUSTED);
    assert_string_equal(error.text, "templates: at most 3, not 4");
    assert_int_equal(create_many(10000, 0, &error), DOORMAN_OK);
    assert_int_equal(create_many(10001, 0, &error), DOORMAN_RESOURCE_EXHAUSTED);
    assert_int_equal(create_many(10001, 10001, &error), DOORMAN_OK);
}

/* Algorithms, and whether a warning about them is expected. */
static const struct {
    bool expected;
    doorman_algorithm algorithm;
} learning_rows[] = {
    {false, {.lease_length = SECONDS(60)}},
    {false, {.has_learning_mode_duration = true, .learning_mode_duration = SECONDS(63)}},
    {true, {.has_learning_mode_duration = true, .learning_mode_duration = SECONDS(63) - 1}},
    {true, {.has_learning_mode_duration = true}},
    {true,
     {.lease_length = SECONDS(100),
      .has_learning_mode_duration = true,
      .learning_mode_duration = SECONDS(104)}},
    {false, {.handover = DOORMAN_IMMEDIATE, .has_learning_mode_duration = true}},
    {false, {.kind = DOORMAN_STATIC_SHARE, .has_learning_mode_duration = true}},
    {false, {.kind = DOORMAN_NO_ALGORITHM, .has_learning_mode_duration = true}},
};

/* G9 */
TEST(learning_that_is_shorter_than_the_longest_lease_causes_a_warning) {
    for (size_t i = 0; i < COUNT_OF(learning_rows); i++) {
        const doorman_template templates[] = {{.identifier_glob = "a"},
                                              {.identifier_glob = "b",
                                               .has_algorithm = true,
                                               .algorithm = learning_rows[i].algorithm}};
        const doorman_config_options options = {.templates = templates, .template_count = 2};
        doorman_config *config = NULL;
        doorman_error error = {.text = "an old text"};
        assert_int_equal(doorman_config_create(&config, &options, &error), DOORMAN_OK);
        const char *path = "templates[1].algorithm.learning_mode_duration: ";
        assert_int_equal(strncmp(error.text, path, strlen(path)) == 0, learning_rows[i].expected);
        assert_int_equal(error.text[0] != 0, learning_rows[i].expected);
        doorman_config_destroy(config);
    }
}

/* G9 */
TEST(a_warning_has_the_durations_and_the_number_of_warnings) {
    const doorman_template templates[] = {
        {.identifier_glob = "a", WITH_LEARNING(SECONDS(60))},
        {.identifier_glob = "b"},
        {.identifier_glob = "*", WITH_LEARNING(SECONDS(63) / 2)},
    };
    const doorman_config_options options = {.templates = templates, .template_count = 3};
    doorman_config *config = NULL;
    doorman_error error = {0};
    assert_int_equal(doorman_config_create(&config, &options, &error), DOORMAN_OK);
    /* The second template takes the algorithm of the third (G3), but has no warning of its own. */
    assert_string_equal(error.text,
                        "templates[0].algorithm.learning_mode_duration: 60 s is shorter than the "
                        "longest lease, 63 s with clock drift: after a change of master, more than "
                        "the capacity may be in use (and 1 more)");
    doorman_config_destroy(config);
    assert_int_equal(doorman_config_create(&config, &options, NULL), DOORMAN_OK);
    doorman_config_destroy(config);
}

/* Returns the warning about a configuration that is made from templates. */
static doorman_error warning_of(const doorman_template *templates, size_t count, bool reject) {
    const doorman_config_options options = {
        .templates = templates, .template_count = count, .reject_unmatched = reject};
    doorman_config *config = NULL;
    doorman_error error = {.text = "an old text"};
    assert_int_equal(doorman_config_create(&config, &options, &error), DOORMAN_OK);
    doorman_config_destroy(config);
    return error;
}

/* G9 */
TEST(a_valid_configuration_with_a_probable_mistake_causes_a_warning) {
    const doorman_template good[] = {{.identifier_glob = "a[b]"}, {.identifier_glob = "*"}};
    const doorman_template open[] = {{.identifier_glob = "a[b]"}, {.identifier_glob = "a[b"}};
    assert_string_equal(warning_of(NULL, 0, false).text,
                        "templates: is empty, so nothing is limited");
    assert_string_equal(warning_of(NULL, 0, true).text,
                        "templates: is empty, so all requests are refused");
    assert_string_equal(warning_of(good, 2, false).text, "");
    assert_string_equal(warning_of(open, 2, false).text,
                        "templates[1].identifier_glob: a [ has no ], so it is an ordinary "
                        "character; write \\[ if this is intended");
}

/* G9 */
TEST(a_refresh_interval_that_equals_the_lease_length_causes_a_warning) {
    static const struct {
        bool expected;
        doorman_algorithm algorithm;
    } rows[] = {
        {false, {.lease_length = 0}},
        {true, {.refresh_interval = SECONDS(60)}},
        {false, {.refresh_interval = SECONDS(60) - 1}},
        {true, {.lease_length = SECONDS(16), .refresh_interval = SECONDS(16)}},
        {false, {.lease_length = SECONDS(16)}},
        {true, {.kind = DOORMAN_STATIC_SHARE, .refresh_interval = SECONDS(60)}},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const doorman_template template_ = {
            .identifier_glob = "a", .has_algorithm = true, .algorithm = rows[i].algorithm};
        const doorman_error warning = warning_of(&template_, 1, false);
        const char *expected = "templates[0].algorithm.refresh_interval: equals the lease_length";
        bool found = strncmp(warning.text, expected, strlen(expected)) == 0;
        assert_int_equal(found, rows[i].expected);
        assert_int_equal(warning.text[0] != 0, rows[i].expected);
    }
}

/* G9, G1. A glob causes a warning if it has a `[` that has no `]` and so is an ordinary
 * character. */
TEST(a_bracket_that_is_not_closed_causes_a_warning) {
    static const char *const open[] = {"[",   "a[",    "[]",  "[!]",   "[a-",      "[a-]b[",
                                       "*[b", "[a\\]", "[[a", "\\\\[", "\xc3\xa9["};
    static const char *const closed[] = {
        "[a]",      "[]]", "[!]]",   "\\[",   "a\\[b",
        "]",        "[[]", "[a\\]]", "[\\[]", "\xe2\x82\xac[\xc3\xa9]",
        "[a][b-d]", "a\\"};
    for (size_t i = 0; i < COUNT_OF(open); i++) {
        const doorman_template template_ = {.identifier_glob = open[i]};
        if (!warning_of(&template_, 1, false).text[0]) fail_msg("no warning for %s", open[i]);
    }
    for (size_t i = 0; i < COUNT_OF(closed); i++) {
        const doorman_template template_ = {.identifier_glob = closed[i]};
        if (warning_of(&template_, 1, false).text[0]) fail_msg("a warning for %s", closed[i]);
    }
}
