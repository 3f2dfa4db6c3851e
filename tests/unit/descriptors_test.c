/* Tests what a descriptor of a gateway becomes (W1). Random rules and descriptors are compared with
 * a slow model. */
#include "unit.h"

#include <string.h>

#define DOORMAN_JSON
#define DOORMAN_IMPLEMENTATION
#include "../../doorman_permits.h"

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))
#define RESOURCES "\"resources\": [{\"identifier_glob\": \"*\", \"limits\": []}]"

/* ---- helpers ------------------------------------------------------------------------------- */

static doorman_config *config_of(const char *descriptors) {
    char text[4096];
    doorman_config *config = NULL;
    doorman_error error = {0};
    snprintf(text, sizeof text, "{\"descriptors\": [%s], " RESOURCES "}", descriptors);
    doorman_status status = doorman_json_config(&config, text, strlen(text), &error);
    if (status != DOORMAN_OK) fail_msg("%s: %s", text, error.text);
    return config;
}

/* Returns the error of a configuration, or its warning. */
static const char *text_of(const char *descriptors) {
    static doorman_error error;
    char text[4096];
    doorman_config *config = NULL;
    snprintf(text, sizeof text, "{\"descriptors\": %s,\n" RESOURCES "}", descriptors);
    doorman_status status = doorman_json_config(&config, text, strlen(text), &error);
    assert_true((status == DOORMAN_OK) == (config != NULL));
    doorman_config_destroy(config);
    return error.text;
}

/* Resolves a descriptor that is written as pairs of strings. */
static doorman_descriptor_item resolve(const doorman_config *config, const char *domain,
                                       size_t count, const char *const pairs[][2]) {
    doorman_descriptor_entry entries[DOORMAN_DESCRIPTOR_ENTRIES_MAX + 1];
    doorman_descriptor_item out;
    assert_true(count <= COUNT_OF(entries));
    for (size_t i = 0; i < count; i++) {
        entries[i] = (doorman_descriptor_entry){pairs[i][0], strlen(pairs[i][0]), pairs[i][1],
                                                strlen(pairs[i][1])};
    }
    assert_int_equal(doorman_descriptors_resolve(doorman_config_descriptors(config), domain,
                                                 entries, count, &out),
                     DOORMAN_OK);
    return out;
}

#define RESOLVE(config, domain, ...)                                                               \
    resolve(config, domain, COUNT_OF(((const char *const[][2]){__VA_ARGS__})),                     \
            (const char *const[][2]){__VA_ARGS__})

static void assert_names(const doorman_descriptor_item *item, const char *resource,
                         const char *key) {
    assert_string_equal(item->resource_id, resource);
    assert_string_equal(item->key, key);
    assert_false(item->hashed);
}

/* ---- names without a rule -------------------------------------------------------------------- */

TEST(without_a_rule_keys_name_the_resource_and_values_name_the_key) {
    const doorman_descriptor_item item =
        RESOLVE(NULL, "shop", {"path", "/login"}, {"remote_address", "1.2.3.4"});
    assert_names(&item, "shop/path/remote_address", "%2Flogin/1.2.3.4");
    assert_false(item.matched);
}

TEST(default_names_escape_what_separates_them) {
    const doorman_descriptor_item item = RESOLVE(NULL, "a/b", {"c/%", "d%2F/"}, {"", ""});
    assert_names(&item, "a%2Fb/c%2F%25/", "d%252F%2F/");
    const doorman_descriptor_item none = resolve(NULL, "shop", 0, NULL);
    assert_names(&none, "shop", "");
}

/* A name of 256 bytes is used, and one of 257 bytes is hashed. */
TEST(a_name_that_is_too_long_is_hashed) {
    char value[300];
    memset(value, 'v', sizeof value);
    value[256] = '\0';
    doorman_descriptor_item item = RESOLVE(NULL, "d", {"k", value});
    assert_names(&item, "d/k", value);
    value[256] = 'v', value[257] = '\0';
    item = RESOLVE(NULL, "d", {"k", value});
    assert_true(item.hashed);
    assert_string_equal(item.resource_id, "d/k");
    assert_int_equal(strlen(item.key), 7 + 64);
    assert_memory_equal(item.key, "sha256:", 7);
    value[255] = '/', value[256] = '\0'; /* 258 bytes after it is escaped */
    item = RESOLVE(NULL, "d", {"k", value});
    assert_true(item.hashed);
}

/* The digits come from sha256sum. */
TEST(a_name_that_is_not_valid_is_hashed) {
    doorman_descriptor_item item = RESOLVE(NULL, "d", {"k", "\xff"});
    assert_true(item.hashed);
    assert_string_equal(item.key,
                        "sha256:"
                        "a8100ae6aa1940d0b663bb31cd466142ebbdbd5187131b92d93818987832eb89");
    assert_string_equal(item.resource_id, "d/k");
    item = RESOLVE(NULL, "a\nb", {"k", "a\nb"});
    assert_true(item.hashed && strncmp(item.resource_id, "sha256:", 7) == 0);
    assert_string_equal(item.key, "a\nb"); /* a key may have control characters */
    item = resolve(NULL, "", 0, NULL);
    assert_true(item.hashed);
    assert_string_equal(item.resource_id,
                        "sha256:"
                        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(a_name_may_not_look_like_a_hash) {
    char digits[80];
    doorman_descriptor_item item = RESOLVE(NULL, "d", {"k", "\xff"});
    snprintf(digits, sizeof digits, "%.79s", item.key);
    item = RESOLVE(NULL, "d", {"k", digits});
    assert_true(item.hashed);
    assert_string_not_equal(item.key, digits);
}

TEST(a_zero_byte_is_hashed) {
    const doorman_descriptor_entry entries[] = {{"k", 1, "a\0b", 3}, {"k", 1, "a", 1}};
    doorman_descriptor_item first, second;
    assert_int_equal(doorman_descriptors_resolve(NULL, "d", &entries[0], 1, &first), DOORMAN_OK);
    assert_int_equal(doorman_descriptors_resolve(NULL, "d", &entries[1], 1, &second), DOORMAN_OK);
    assert_true(first.hashed && !second.hashed);
}

/* Tests the vectors of FIPS 180-4, and lengths around the ends of a block. */
TEST(sha256_has_the_published_results) {
    static const struct {
        const char *text;
        const char *digits;
    } vectors[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrl"
         "m"
         "nopqrsmnopqrstnopqrstu",
         "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
    };
    for (size_t i = 0; i < COUNT_OF(vectors); i++) {
        doorman__sha256 hash;
        char digits[65];
        doorman__sha256_start(&hash);
        doorman__sha256_add(&hash, vectors[i].text, strlen(vectors[i].text));
        doorman__sha256_end(&hash, digits);
        assert_string_equal(digits, vectors[i].digits);
    }
    doorman__sha256 hash;
    char digits[65];
    doorman__sha256_start(&hash);
    for (int i = 0; i < 1000000; i++) doorman__sha256_add(&hash, "a", 1);
    doorman__sha256_end(&hash, digits);
    assert_string_equal(digits, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

/* Compares the hash of a text in two pieces with the hash of the whole text, for all lengths up to
 * a little over two blocks. */
TEST(sha256_does_not_depend_on_the_pieces) {
    char text[130], one[65], two[65];
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)random_bits();
    for (size_t bytes = 0; bytes <= sizeof text; bytes++) {
        doorman__sha256 hash;
        const size_t cut = random_below(bytes + 1);
        doorman__sha256_start(&hash);
        doorman__sha256_add(&hash, text, bytes);
        doorman__sha256_end(&hash, one);
        doorman__sha256_start(&hash);
        doorman__sha256_add(&hash, text, cut);
        doorman__sha256_add(&hash, text + cut, bytes - cut);
        doorman__sha256_end(&hash, two);
        assert_string_equal(one, two);
    }
}

/* ---- rules ----------------------------------------------------------------------------------- */

TEST(the_first_rule_that_matches_gives_the_names) {
    doorman_config *config = config_of(
        "{\"domain\": \"shop\", \"entries\": [[\"path\", \"/login\"], [\"ip\", \"*\"]],"
        " \"resource\": \"login\", \"key\": \"{ip}\"},"
        "{\"domain\": \"shop\", \"entries\": [[\"path\", \"/*\"], [\"ip\", \"10.*\"]],"
        " \"resource\": \"inside{path}\"},"
        "{\"domain\": \"shop\", \"entries\": [[\"path\", \"*\"]], \"resource\": \"{{a}}\"}");
    doorman_descriptor_item item = RESOLVE(config, "shop", {"path", "/login"}, {"ip", "10.1/2"});
    assert_true(item.matched && item.rule == 0);
    assert_names(&item, "login", "10.1/2");
    item = RESOLVE(config, "shop", {"path", "/cart"}, {"ip", "10.1"});
    assert_true(item.matched && item.rule == 1);
    assert_names(&item, "inside/cart", "");
    item = RESOLVE(config, "shop", {"path", ""});
    assert_true(item.matched && item.rule == 2);
    assert_names(&item, "{a}", "");
    doorman_config_destroy(config);
}

TEST(a_rule_needs_the_same_domain_keys_order_and_count) {
    doorman_config *config =
        config_of("{\"domain\": \"shop\", \"entries\": [[\"a\", \"*\"], [\"b\", \"x\"]],"
                  " \"resource\": \"r\"}");
    assert_true(RESOLVE(config, "shop", {"a", ""}, {"b", "x"}).matched);
    assert_false(RESOLVE(config, "shop2", {"a", ""}, {"b", "x"}).matched);
    assert_false(RESOLVE(config, "shop", {"b", "x"}, {"a", ""}).matched);
    assert_false(RESOLVE(config, "shop", {"a", ""}).matched);
    assert_false(RESOLVE(config, "shop", {"a", ""}, {"b", "x"}, {"c", ""}).matched);
    assert_false(RESOLVE(config, "shop", {"a", ""}, {"b", "xx"}).matched);
    doorman_config_destroy(config);
}

/* A client cannot evade a rule by a byte that is not UTF-8, or by a zero. */
TEST(a_rule_matches_values_of_any_bytes) {
    doorman_config *config = config_of(
        "{\"domain\": \"d\", \"entries\": [[\"p\", \"/login*\"]], \"resource\": \"login\"},"
        "{\"domain\": \"d\", \"entries\": [[\"p\", \"?\"]], \"resource\": \"one\"}");
    const doorman_descriptor_entry entries[] = {
        {"p", 1, "/login\xff", 7}, {"p", 1, "/login\0x", 8}, {"p", 1, "\xff", 1},
        {"p", 1, "\0", 1},         {"p", 1, NULL, 0},
    };
    static const char *const wanted[] = {"login", "login", "one", "one", "d/p"};
    for (size_t i = 0; i < COUNT_OF(entries); i++) {
        doorman_descriptor_item item;
        assert_int_equal(doorman_descriptors_resolve(doorman_config_descriptors(config), "d",
                                                     &entries[i], 1, &item),
                         DOORMAN_OK);
        assert_string_equal(item.resource_id, wanted[i]);
    }
    doorman_config_destroy(config);
}

TEST(several_placeholders_escape_their_values) {
    doorman_config *config =
        config_of("{\"domain\": \"d\", \"entries\": [[\"a\", \"*\"], [\"b\", \"*\"]],"
                  " \"resource\": \"r{a}\", \"key\": \"{a}/{b}\"}");
    doorman_descriptor_item item = RESOLVE(config, "d", {"a", "x/y"}, {"b", "z%"});
    assert_names(&item, "rx/y", "x%2Fy/z%25");
    doorman_config_destroy(config);
}

TEST(a_descriptor_with_more_than_16_entries_matches_no_rule) {
    const char *pairs[17][2];
    for (size_t i = 0; i < 17; i++) pairs[i][0] = "k", pairs[i][1] = "v";
    char text[1024] = "{\"domain\": \"d\", \"resource\": \"r\", \"entries\": [[\"k\", \"*\"]";
    for (size_t i = 1; i < 16; i++) {
        const size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, ", [\"k\", \"*\"]");
    }
    const size_t used = strlen(text);
    snprintf(text + used, sizeof text - used, "]}");
    doorman_config *config = config_of(text);
    assert_true(resolve(config, "d", 16, (const char *const(*)[2])pairs).matched);
    assert_false(resolve(config, "d", 17, (const char *const(*)[2])pairs).matched);
    doorman_config_destroy(config);
}

/* ---- configurations -------------------------------------------------------------------------- */

#define RULE(entries, rest) "[{\"domain\": \"d\", \"entries\": " entries rest "}]"
#define AT(column, path) "line 1, column " #column ": descriptors" path

TEST(a_wrong_rule_is_named_with_its_path) {
    static const struct {
        const char *rules, *error;
    } wrong[] = {
        {"{}", AT(2, ": must be a list")},
        {"[7]", AT(18, "[0]: must be an object")},
        {"[{\"domain\": \"\", \"entries\": [[\"a\", \"\"]], \"resource\": \"r\"}]",
         AT(19, "[0].domain: must be 1 to 256 bytes of UTF-8 without control characters")},
        {RULE("[[\"a\", \"\"]]", ""), AT(18, "[0].resource: is missing")},
        {RULE("[]", ", \"resource\": \"r\""), AT(34, "[0].entries: must be a list of 1 to 16")},
        {RULE("[[\"a\"]]", ", \"resource\": \"r\""),
         AT(46, "[0].entries[0]: must be a list of a key, and a glob for its value")},
        {RULE("[[\"a\", 5]]", ", \"resource\": \"r\""),
         AT(52, "[0].entries[0][1]: must be a string")},
        {RULE("[[\"a\", \"\"], [\"\", \"\"]]", ", \"resource\": \"r\""),
         AT(58, "[0].entries[1][0]: must be 1 to 256 bytes of UTF-8 without control characters")},
        {RULE("[[\"a\", \"\\u0001\"]]", ", \"resource\": \"r\""),
         AT(52, "[0].entries[0][1]: must be at most 256 bytes of UTF-8 without control "
                "characters")},
        {RULE("[[\"a\", \"\"]]", ", \"resource\": \"{b}\""),
         AT(58, "[0].resource: {b} names no entry of the rule")},
        {RULE("[[\"a\", \"\"], [\"a\", \"\"]]", ", \"resource\": \"r\", \"key\": \"{a}\""),
         AT(86, "[0].key: {a} names an entry that occurs more than once")},
        {RULE("[[\"a\", \"\"]]", ", \"resource\": \"r\", \"key\": \"{a\""),
         AT(75, "[0].key: must have braces only around the key of an entry; write {{ or }} for a "
                "brace itself")},
        {RULE("[[\"a\", \"\"]]", ", \"resource\": \"}\""),
         AT(58, "[0].resource: must have braces only around the key of an entry; write {{ or }} "
                "for a brace itself")},
        {RULE("[[\"a\", \"\"]]", ", \"resource\": \"r\", \"keys\": \"\""),
         AT(75, "[0].keys: is not known")},
    };
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        assert_string_equal(text_of(wrong[i].rules), wrong[i].error);
    }
}

TEST(a_useless_or_ambiguous_rule_causes_a_warning) {
    static const struct {
        const char *rules, *warning;
    } cases[] = {
        {"[{\"domain\": \"d\", \"entries\": [[\"a\", \"/*\"]], \"resource\": \"r\"},\n"
         "{\"domain\": \"d\", \"entries\": [[\"a\", \"/x\"]], \"resource\": \"r\"}]",
         "line 2, column 17: descriptors[1].entries: are never used, because descriptors[0] comes "
         "first and matches them"},
        {"[{\"domain\": \"d\", \"entries\": [[\"a\", \"/*\"]], \"resource\": \"r\"},\n"
         "{\"domain\": \"d\", \"entries\": [[\"a\", \"*\"]], \"resource\": \"r\"}]",
         ""},
        {RULE("[[\"a\", \"[\"]]", ", \"resource\": \"r\""),
         AT(52, "[0].entries[0][1]: a [ has no ], so it is an ordinary character; write \\[ if "
                "this is intended")},
        {RULE("[[\"a\", \"*\"], [\"b\", \"*\"]]", ", \"resource\": \"r\", \"key\": \"{a}:{b}\""),
         AT(88, "[0].key: different values can give the same text; write / between two "
                "placeholders")},
        {RULE("[[\"a\", \"*\"], [\"b\", \"*\"]]", ", \"resource\": \"r\", \"key\": \"{a}:/{b}\""),
         ""},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_string_equal(text_of(cases[i].rules), cases[i].warning);
    }
}

TEST(options_in_c_are_checked_with_the_names_of_c) {
    const doorman_template all = {
        .identifier_glob = "*", .without_capacity = true, .has_limits = true};
    const doorman_descriptor_match entries[] = {{"a", "*"}, {NULL, "*"}, {"b", NULL}};
    doorman_descriptor_rule rule = {
        .domain = "d", .entries = &entries[1], .entry_count = 1, .resource = "r"};
    doorman_config_options options = {
        .templates = &all, .template_count = 1, .descriptors = &rule, .descriptor_count = 1};
    doorman_config *config = NULL;
    doorman_error error;
    assert_int_equal(doorman_config_create(&config, &options, &error), DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(error.text, "descriptors[0].entries[0].key: must be 1 to 256 bytes of "
                                    "UTF-8 without control characters");
    rule.entries = &entries[2];
    assert_int_equal(doorman_config_create(&config, &options, &error), DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(error.text, "descriptors[0].entries[0].value: must be at most 256 bytes of "
                                    "UTF-8 without control characters");
    rule.entries = NULL;
    assert_int_equal(doorman_config_create(&config, &options, &error), DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(error.text, "descriptors[0].entries: must not be NULL");
    options.descriptor_count = 1001;
    assert_int_equal(doorman_config_create(&config, &options, &error), DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(error.text, "descriptors: must be a list of at most 1,000");
    options.descriptor_count = 1, options.descriptors = NULL;
    assert_int_equal(doorman_config_create(&config, &options, &error), DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(error.text, "descriptors: must not be NULL");
    options.descriptors = &rule;
    rule.entries = entries;
    assert_int_equal(doorman_config_create(&config, &options, &error), DOORMAN_OK);
    assert_true(RESOLVE(config, "d", {"a", "x"}).matched);
    doorman_config_destroy(config);
}

TEST(missing_arguments_are_refused) {
    const doorman_descriptor_entry bad[] = {{NULL, 1, "v", 1}, {"k", 1, NULL, 1}};
    doorman_descriptor_item out;
    const doorman_status refused = DOORMAN_INVALID_ARGUMENT;
    assert_int_equal(doorman_descriptors_resolve(NULL, NULL, NULL, 0, &out), refused);
    assert_int_equal(doorman_descriptors_resolve(NULL, "d", NULL, 1, &out), refused);
    assert_int_equal(doorman_descriptors_resolve(NULL, "d", NULL, 0, NULL), refused);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        assert_int_equal(doorman_descriptors_resolve(NULL, "d", &bad[i], 1, &out), refused);
    }
    assert_null(doorman_config_descriptors(NULL));
}

#define TWO_RULES                                                                                  \
    "{\"domain\":\"d\",\"entries\":[[\"a\",\"*\"],[\"b\",\"\"]],\"resource\":\"r{a}\",\"key\":"    \
    "\"{b}\"},{\"domain\":\"e\",\"entries\":[[\"\xc3\xa9\",\"x\"]],\"resource\":\"s\"}"

TEST(rules_are_written_as_they_were_read) {
    doorman_config *config = config_of(TWO_RULES);
    doorman_config_options options;
    doorman_buffer text = {NULL, 0, 0};
    doorman_config_read(config, &options);
    assert_int_equal(options.descriptor_count, 2);
    assert_int_equal(doorman_json_write_config(&options, &text), DOORMAN_OK);
    assert_non_null(strstr(text.text, "{\"descriptors\":[" TWO_RULES "],\"resources\":["));
    doorman_buffer_uninit(&text);
    doorman_config_destroy(config);
}

TEST(a_configuration_without_memory_is_not_made) {
    static const char text[] = "{\"descriptors\": [" TWO_RULES "], " RESOURCES "}";
    const size_t blocks = memory_blocks();
    size_t n = 0;
    doorman_status status = DOORMAN_OK;
    do {
        doorman_config *config = NULL;
        memory_fails_at(++n);
        status = doorman_json_config(&config, text, sizeof text - 1, NULL);
        assert_true((status == DOORMAN_OK) == (config != NULL));
        if (status != DOORMAN_OK) assert_int_equal(status, DOORMAN_OUT_OF_MEMORY);
        doorman_config_destroy(config);
        assert_int_equal(memory_blocks(), blocks);
    } while (!memory_works());
    assert_int_equal(status, DOORMAN_OK);
    assert_true(n > 3);
}

/* ---- random rules and descriptors, beside a model ------------------------------------------- */

static const char *const words[] = {"", "a", "b", "ab", "/", "a/b", "%2F", "a%", "\xff", "*a"};
static const char *const globs[] = {"*", "a*", "?", "a", "", "*b", "a/*", "[ab]"};
static const char *const rule_texts[] = {"r", "{k}", "x{k}/{l}", "{{{l}}}", "{l}%"};
enum { RULES = 12, ENTRIES = 3 };

typedef struct random_rules {
    doorman_descriptor_rule rules[RULES];
    doorman_descriptor_match matches[RULES][ENTRIES];
    doorman_config *config;
} random_rules;

#define PICK(array) ((array)[random_below(COUNT_OF(array))])

static void random_rules_make(random_rules *r) {
    static const char *const keys[] = {"k", "l", "m"}, *const domains[] = {"d", "e"};
    const doorman_template all = {
        .identifier_glob = "*", .without_capacity = true, .has_limits = true};
    for (size_t i = 0; i < RULES; i++) {
        doorman_descriptor_rule *rule = &r->rules[i];
        *rule = (doorman_descriptor_rule){.domain = PICK(domains), .entries = r->matches[i]};
        rule->entry_count = 2 + random_below(ENTRIES - 1);
        const size_t turn = random_below(2);
        for (size_t j = 0; j < rule->entry_count; j++) {
            const char *key = keys[j < 2 ? (j + turn) % 2 : j];
            r->matches[i][j] = (doorman_descriptor_match){key, PICK(globs)};
        }
        rule->resource = PICK(rule_texts);
        rule->key = random_below(4) ? PICK(rule_texts) : NULL;
    }
    const doorman_config_options options = {.templates = &all,
                                            .template_count = 1,
                                            .descriptors = r->rules,
                                            .descriptor_count = random_below(RULES + 1)};
    r->config = NULL;
    assert_int_equal(doorman_config_create(&r->config, &options, NULL), DOORMAN_OK);
}

/* Matches a glob with the elements of `globs`: `*`, `?`, `[ab]` and literal bytes, by recursion. */
static bool model_glob(const char *glob, const char *text) {
    if (*glob == '*') return model_glob(glob + 1, text) || (*text && model_glob(glob, text + 1));
    if (!*text || !*glob) return !*text && !*glob;
    if (*glob == '[') return (*text == 'a' || *text == 'b') && model_glob(glob + 4, text + 1);
    return (*glob == '?' || *glob == *text) && model_glob(glob + 1, text + 1);
}

typedef struct model_text {
    char text[512];
    size_t bytes;
} model_text;

static void model_add(model_text *to, char c, bool escape) {
    if (escape && (c == '/' || c == '%')) {
        const char *code = c == '/' ? "%2F" : "%25";
        for (int i = 0; i < 3; i++) to->text[to->bytes++] = code[i];
    } else {
        to->text[to->bytes++] = c;
    }
}

/* Expands one of rule_texts, whose placeholders have one character. */
static void model_expand(model_text *to, const char *text, size_t count,
                         const char *const pairs[][2]) {
    const bool escape = strstr(text, "{k}") && strstr(text, "{l}");
    while (*text) {
        if (strncmp(text, "{{", 2) == 0 || strncmp(text, "}}", 2) == 0) {
            model_add(to, *text, false);
            text += 2;
        } else if (*text == '{') {
            for (size_t i = 0; i < count; i++) {
                if (pairs[i][0][0] != text[1]) continue;
                for (const char *c = pairs[i][1]; *c; c++) model_add(to, *c, escape);
            }
            text += 3;
        } else {
            model_add(to, *text++, false);
        }
    }
}

/* Compares a name with what the model makes. If the text of the model is no valid name, the name
 * must be a hash. */
static void model_compare(const model_text *wanted, const char *name, bool is_key) {
    char text[513];
    memcpy(text, wanted->text, wanted->bytes);
    text[wanted->bytes] = '\0';
    const bool bad = strstr(text, "\xff") || (!is_key && !wanted->bytes);
    if (bad) assert_memory_equal(name, "sha256:", 7);
    if (!bad) assert_string_equal(name, text);
}

static const doorman_descriptor_rule *model_find(const random_rules *r, const char *domain,
                                                 size_t count, const char *const pairs[][2]) {
    doorman_config_options read;
    doorman_config_read(r->config, &read);
    for (size_t i = 0; i < read.descriptor_count; i++) {
        const doorman_descriptor_rule *rule = &r->rules[i];
        bool matches = rule->entry_count == count && strcmp(rule->domain, domain) == 0;
        for (size_t j = 0; matches && j < count; j++) {
            matches = strcmp(rule->entries[j].key, pairs[j][0]) == 0 &&
                      model_glob(rule->entries[j].value, pairs[j][1]);
        }
        if (matches) return rule;
    }
    return NULL;
}

static size_t random_pairs(const char *pairs[ENTRIES][2]) {
    static const char *const keys[] = {"k", "l", "m"};
    const size_t count = random_below(ENTRIES + 1), turn = random_below(2);
    for (size_t j = 0; j < count; j++) {
        pairs[j][0] = random_below(20) ? keys[j < 2 ? (j + turn) % 2 : j] : PICK(words);
        pairs[j][1] = PICK(words);
    }
    return count;
}

TEST(random_descriptors_have_the_names_of_the_model) {
    size_t matched = 0;
    for (size_t round = 0; round < 200; round++) {
        random_rules r;
        random_rules_make(&r);
        for (size_t i = 0; i < 50; i++) {
            const char *pairs[ENTRIES][2];
            const size_t count = random_pairs(pairs);
            const char *const(*given)[2] = (const char *const(*)[2])pairs;
            const char *domain = random_below(2) ? "d" : "e";
            const doorman_descriptor_item item = resolve(r.config, domain, count, given);
            const doorman_descriptor_rule *rule = model_find(&r, domain, count, given);
            assert_true(item.matched == (rule != NULL));
            if (!rule) continue;
            matched++;
            assert_ptr_equal(&r.rules[item.rule], rule);
            model_text resource = {.bytes = 0}, key = {.bytes = 0};
            model_expand(&resource, rule->resource, count, given);
            model_expand(&key, rule->key ? rule->key : "", count, given);
            model_compare(&resource, item.resource_id, false);
            model_compare(&key, item.key, true);
        }
        doorman_config_destroy(r.config);
    }
    assert_true(matched > 100);
}

/* ---- no two descriptors have the same default names ----------------------------------------- */

typedef struct named {
    char source[128]; /* the descriptor, in a form of the test */
    doorman_descriptor_item item;
} named;

static int named_order(const void *a, const void *b) {
    const named *x = (const named *)a, *y = (const named *)b;
    const int resources = strcmp(x->item.resource_id, y->item.resource_id);
    return resources ? resources : strcmp(x->item.key, y->item.key);
}

static void named_make(named *one) {
    const char *pairs[ENTRIES][2];
    const size_t count = random_below(ENTRIES + 1);
    const char *domain = PICK(words);
    size_t used = (size_t)snprintf(one->source, sizeof one->source, "%s", domain);
    for (size_t i = 0; i < count; i++) {
        pairs[i][0] = PICK(words), pairs[i][1] = PICK(words);
        used += (size_t)snprintf(one->source + used, sizeof one->source - used, "\n%s\t%s",
                                 pairs[i][0], pairs[i][1]);
    }
    one->item = resolve(NULL, domain, count, (const char *const(*)[2])pairs);
}

TEST(different_descriptors_have_different_default_names) {
    enum { COUNT = 20000 };
    named *all = (named *)calloc(COUNT, sizeof *all);
    assert_non_null(all);
    size_t equal = 0;
    for (size_t i = 0; i < COUNT; i++) named_make(&all[i]);
    qsort(all, COUNT, sizeof *all, named_order);
    for (size_t i = 1; i < COUNT; i++) {
        if (named_order(&all[i - 1], &all[i]) != 0) continue;
        assert_string_equal(all[i - 1].source, all[i].source);
        equal++;
    }
    assert_true(equal > 0); /* the words are so few that some descriptors are equal */
    free(all);
}
