/* Tests doormanctl convert with random configurations of Envoy's ratelimit. Random descriptors must
 * get the limit that a model of ratelimit finds. The model looks, as ratelimit documents it, first
 * for the same value, then for values that end with *, then for an entry without a value. */
#include "unit.h"

#include <string.h>

#define DOORMAN_JSON
#define DOORMAN_IMPLEMENTATION
#include "../../doorman_permits.h"

#include "../../server/ctl/convert.c"
#include "../../server/ctl/ctl.c"
#include "../../server/ctl/yaml.c"

_Static_assert(ENTRIES_MAX == DOORMAN_DESCRIPTOR_ENTRIES_MAX, "as in the library");
_Static_assert(DESCRIPTOR_RULES_MAX == DOORMAN_DESCRIPTOR_RULES_MAX, "as in the library");

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))
#define LEVELS 3
#define CHILDREN 5
#define TEXT_ROOM 131072

/* ---- a conversion of a text ------------------------------------------------------------------ */

struct converted {
    char *config, *report; /* texts */
    size_t left_count;
};

static struct converted convert(const char *yaml) {
    struct converted out = {.left_count = 0};
    char error[CTL_ERROR_BYTES];
    size_t bytes = 0;
    struct ctl_conversion conversion = {.report = open_memstream(&out.report, &bytes), .file = "f"};
    cJSON *documents = ctl_yaml_read(yaml, strlen(yaml), error), *document = NULL;
    if (!documents) fail_msg("%s\n%s", error, yaml);
    cJSON_ArrayForEach(document, documents) ctl_convert(&conversion, document);
    cJSON_Delete(documents);
    fclose(conversion.report);
    FILE *text = open_memstream(&out.config, &bytes);
    ctl_conversion_write(&conversion, text);
    fclose(text);
    out.left_count = conversion.left_count;
    ctl_conversion_free(&conversion);
    return out;
}

static void converted_free(struct converted *converted) {
    free(converted->config);
    free(converted->report);
}

static doorman_config *config_of(const struct converted *converted) {
    doorman_config *config = NULL;
    doorman_error error;
    if (doorman_json_config(&config, converted->config, strlen(converted->config), &error) !=
        DOORMAN_OK) {
        fail_msg("%s\n%s", error.text, converted->config);
    }
    return config;
}

static const char *yaml_error(const char *yaml) {
    static char error[CTL_ERROR_BYTES];
    cJSON *documents = ctl_yaml_read(yaml, strlen(yaml), error);
    cJSON_Delete(documents);
    return documents ? "" : error;
}

/* ---- what is read and written ---------------------------------------------------------------- */

#define LIMIT(text) "rate_limit: {unit: day, requests_per_unit: " text "}"

TEST(a_tree_becomes_a_list_of_rules_in_the_order_of_the_service) {
    struct converted converted =
        convert("domain: d\n"
                "descriptors:\n"
                "  - {key: p, " LIMIT("1") "}\n"
                                           "  - {key: p, value: a*, " LIMIT(
                                               "2") "}\n"
                                                    "  - {key: p, value: ab, " LIMIT("3") "}\n");
    assert_string_equal(
        converted.config,
        "{\"descriptors\": [\n"
        "  {\"domain\":\"d\",\"entries\":[[\"p\",\"ab\"]],\"resource\":\"d/p=ab\"},\n"
        "  {\"domain\":\"d\",\"entries\":[[\"p\",\"a*\"]],\"resource\":\"d/p=a*\",\"key\":\"{p}\"},"
        "\n"
        "  {\"domain\":\"d\",\"entries\":[[\"p\",\"*\"]],\"resource\":\"d/p\",\"key\":\"{p}\"}],\n"
        "\"resources\": [\n"
        "  {\"identifier_glob\":\"d/p\",\"limits\":[{\"name\":\"per-day\",\"kind\":"
        "\"FIXED_WINDOW\",\"limit\":1,\"window\":\"day\"}]},\n"
        "  {\"identifier_glob\":\"d/p=a\\\\*\",\"limits\":[{\"name\":\"per-day\",\"kind\":"
        "\"FIXED_WINDOW\",\"limit\":2,\"window\":\"day\"}]},\n"
        "  {\"identifier_glob\":\"d/p=ab\",\"limits\":[{\"name\":\"per-day\",\"kind\":"
        "\"FIXED_WINDOW\",\"limit\":3,\"window\":\"day\"}]}]}\n");
    assert_string_equal(converted.report, "");
    converted_free(&converted);
}

TEST(aliases_and_merged_fields_are_read) {
    struct converted converted =
        convert("x: &x {unit: day, requests_per_unit: 4}\n"
                "domain: d\n"
                "descriptors: [{key: p, rate_limit: {<<: *x, requests_per_unit: 5}}]\n");
    assert_non_null(strstr(converted.config, "\"limit\":5,\"window\":\"day\""));
    assert_string_equal(converted.report, "f: x: is not known\n");
    converted_free(&converted);
}

TEST(what_is_left_out_is_named_with_its_path) {
    static const struct {
        const char *descriptor, *report;
    } cases[] = {
        {"key: p, rate_limit: {unit: eon, requests_per_unit: 1}",
         "f: descriptors[0].rate_limit.unit: must be second, minute, hour, day, week, month or "
         "year; the limit is left out\n"},
        {"key: p, rate_limit: {unit: day, requests_per_unit: -1}",
         "f: descriptors[0].rate_limit.requests_per_unit: must be an integer from 0 to "
         "4294967295; the limit is left out\n"},
        {"key: p, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: x}]}",
         "f: descriptors[0].rate_limit.replaces: is left out: all limits of a request count\n"},
        {"value: p", "f: descriptors[0]: key: is missing; the descriptor is left out\n"},
        {"key: p, value: {a: b}",
         "f: descriptors[0]: value: must be a text; the descriptor is left out\n"},
        {"key: p, quota_mode: true",
         "f: descriptors[0].quota_mode: is left out: the limit refuses\n"},
        {"key: p, shadow_mode: 7", "f: descriptors[0].shadow_mode: must be true or false\n"},
        {"key: p, colour: red", "f: descriptors[0].colour: is not known\n"},
        {"key: p, descriptors: [{key: p, " LIMIT("1") "}]",
         "f: d/p/p: the same key occurs on two levels, so its value has no name; the limit is left "
         "out\n"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char yaml[512];
        snprintf(yaml, sizeof yaml, "domain: d\ndescriptors: [{%s}]\n", cases[i].descriptor);
        struct converted converted = convert(yaml);
        assert_string_equal(converted.report, cases[i].report);
        assert_int_equal(converted.left_count, 1);
        doorman_config_destroy(config_of(&converted));
        converted_free(&converted);
    }
}

TEST(a_domain_that_occurs_twice_is_left_out) {
    struct converted converted =
        convert("domain: d\n---\ndomain: d\n---\ndomain: ''\n---\ndomain: e\n");
    assert_string_equal(converted.report,
                        "f: domain: occurs twice; the second document is left out\n"
                        "f: domain: must be a text of 1 to 64 bytes without { and }; the document "
                        "is left out\n");
    converted_free(&converted);
}

TEST(more_than_1000_rules_are_cut_off) {
    char *yaml = (char *)malloc(TEXT_ROOM);
    size_t used = (size_t)snprintf(yaml, TEXT_ROOM, "domain: d\ndescriptors:\n");
    for (int i = 0; i < 1002; i++) {
        used += (size_t)snprintf(yaml + used, TEXT_ROOM - used,
                                 "- {key: p, value: v%d, " LIMIT("1") "}\n", i);
    }
    struct converted converted = convert(yaml);
    assert_string_equal(converted.report,
                        "f: descriptors: need more than 1,000 rules; the rest is left out\n");
    doorman_config_destroy(config_of(&converted));
    converted_free(&converted);
    free(yaml);
}

TEST(hostile_yaml_is_refused) {
    char deep[128] = "a: ";
    memset(deep + 3, '[', 40);
    memset(deep + 43, ']', 40);
    assert_string_equal(yaml_error(deep), "line 1, column 35: more than 32 levels");
    assert_string_equal(yaml_error("a: &a [*a]\n"), "line 1, column 4: more than 32 levels");
    assert_string_equal(
        yaml_error("a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
                   "c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nw: &w [*c,*c,*c,*c,*c,*c,*c,*c,*c]\n"
                   "e: &e [*w,*w,*w,*w,*w,*w,*w,*w]\nf: [*e,*e,*e,*e,*e,*e,*e]\n"),
        "line 1, column 20: more than 100,000 values, with those of aliases");
    assert_string_equal(yaml_error("a: 1\na: 2\n"), "line 2, column 1: the key occurs twice");
    assert_string_equal(yaml_error("[a]: 1\n"), "line 1, column 1: a key must be a text");
    assert_string_equal(yaml_error("a: \"\\0\"\n"),
                        "line 1, column 4: a text must not contain a 0 byte");
    assert_memory_equal(yaml_error("a: [\n"), "line 2, column 1: is no YAML: ", 29);
}

/* ---- random trees, beside a model ------------------------------------------------------------ */

struct tree {
    char key[4], value[8]; /* value "": any */
    int limit;             /* the figure, which names the node; 0: none; -1: unlimited */
    bool shares;
    struct tree *below;
    size_t count;
};

static const char *const values[] = {"", "a", "b", "ab", "a*", "ab*", "*", "x/y", "[a]"};

static void tree_make(struct tree *node, size_t level, int *limits) {
    node->below = (struct tree *)calloc(CHILDREN, sizeof *node->below);
    assert_non_null(node->below);
    for (size_t tries = 0; level < LEVELS && tries < CHILDREN; tries++) {
        struct tree *child = &node->below[node->count];
        memset(child, 0, sizeof *child);
        snprintf(child->key, sizeof child->key, "%c%u", "kkl"[random_below(3)], (unsigned)level);
        snprintf(child->value, sizeof child->value, "%s", values[random_below(COUNT_OF(values))]);
        bool is_new = random_below(4) > 0;
        for (size_t i = 0; i < node->count; i++) {
            is_new = is_new && (strcmp(node->below[i].key, child->key) != 0 ||
                                strcmp(node->below[i].value, child->value) != 0);
        }
        if (!is_new) continue;
        node->count++;
        child->limit = random_below(6) ? 0 : -1;
        if (random_below(2)) child->limit = ++*limits;
        child->shares = random_below(4) == 0;
        tree_make(child, random_below(2) ? level + 1 : LEVELS, limits);
    }
}

static void tree_free(struct tree *node) {
    for (size_t i = 0; i < node->count; i++) tree_free(&node->below[i]);
    free(node->below);
}

static void tree_write(FILE *out, const struct tree *node) {
    fputs("descriptors: [", out);
    for (size_t i = 0; i < node->count; i++) {
        const struct tree *child = &node->below[i];
        fprintf(out, "%s{key: %s, value: '%s', ", i ? ", " : "", child->key, child->value);
        if (child->shares) fputs("share_threshold: true, ", out);
        if (child->limit > 0) {
            fprintf(out, "rate_limit: {unit: hour, requests_per_unit: %d}, ", child->limit);
        }
        if (child->limit < 0) fputs("rate_limit: {unlimited: true}, ", out);
        tree_write(out, child);
        fputs("}", out);
    }
    fputs("]", out);
}

static bool is_wildcard(const struct tree *node) {
    const size_t bytes = strlen(node->value);
    return bytes && node->value[bytes - 1] == '*';
}

/* Returns the child of a node that fits an entry, or NULL. */
static const struct tree *model_step(const struct tree *at, const char *key, const char *value) {
    for (int kind = 0; kind < 3; kind++) {
        for (size_t i = 0; i < at->count; i++) {
            const struct tree *child = &at->below[i];
            if (strcmp(child->key, key) != 0) continue;
            const bool wild = is_wildcard(child);
            const bool fits = kind == 0 ? !wild && child->value[0] && !strcmp(child->value, value)
                              : kind == 1
                                  ? wild && !strncmp(child->value, value, strlen(child->value) - 1)
                                  : !child->value[0];
            if (fits) return child;
        }
    }
    return NULL;
}

/* Returns the node whose limit applies, or NULL. Writes the name of its counter. */
static const struct tree *model_find(const struct tree *root, size_t count,
                                     const char *const pairs[][2], char counter[128]) {
    const struct tree *at = root;
    size_t used = 0;
    counter[0] = '\0';
    for (size_t i = 0; at && i < count; i++) {
        at = model_step(at, pairs[i][0], pairs[i][1]);
        if (!at) return NULL;
        const bool shared = is_wildcard(at) && at->shares;
        used += (size_t)snprintf(counter + used, 128 - used, "%s\t%s\n", pairs[i][0],
                                 shared ? at->value : pairs[i][1]);
    }
    return at && at->limit ? at : NULL;
}

struct decided {
    char counter[128];
    doorman_descriptor_item item;
    int limit;
};

/* Compares the result for a random descriptor with the result of the model. */
static void compare_one(const struct tree *root, const doorman_config *config,
                        struct decided *out) {
    static const char *const given[] = {"", "a", "b", "ab", "abc", "x/y", "x", "[a]", "a/"};
    const char *pairs[LEVELS + 1][2];
    char keys[LEVELS + 1][4];
    doorman_descriptor_entry entries[LEVELS + 1];
    const size_t count = 1 + random_below(LEVELS);
    for (size_t i = 0; i < count; i++) {
        snprintf(keys[i], sizeof keys[i], "%c%u", "kkl"[random_below(3)], (unsigned)i);
        pairs[i][0] = keys[i], pairs[i][1] = given[random_below(COUNT_OF(given))];
        entries[i] = (doorman_descriptor_entry){pairs[i][0], strlen(pairs[i][0]), pairs[i][1],
                                                strlen(pairs[i][1])};
    }
    const struct tree *wanted =
        model_find(root, count, (const char *const(*)[2])pairs, out->counter);
    assert_int_equal(doorman_descriptors_resolve(doorman_config_descriptors(config), "shop",
                                                 entries, count, &out->item),
                     DOORMAN_OK);
    const doorman_template *found = doorman_config_find(config, out->item.resource_id);
    out->limit = wanted ? wanted->limit : 0;
    if (!wanted) {
        assert_null(found);
    } else if (wanted->limit < 0) {
        assert_true(found && found->has_limits && found->limit_count == 0);
    } else {
        assert_true(found && found->limit_count == 1);
        assert_int_equal((int)found->limits[0].figures.limit, wanted->limit);
    }
}

TEST(a_converted_configuration_decides_as_the_service) {
    size_t limited = 0;
    for (size_t round = 0; round < 150; round++) {
        struct tree root = {.count = 0};
        struct decided all[60];
        int limits = 0;
        char *yaml = NULL;
        size_t bytes = 0;
        tree_make(&root, 0, &limits);
        FILE *out = open_memstream(&yaml, &bytes);
        fputs("domain: shop\n", out);
        tree_write(out, &root);
        fclose(out);
        struct converted converted = convert(yaml);
        assert_string_equal(converted.report, "");
        doorman_config *config = config_of(&converted);
        for (size_t i = 0; i < COUNT_OF(all); i++) {
            compare_one(&root, config, &all[i]);
            limited += all[i].limit > 0;
            for (size_t j = 0; all[i].limit > 0 && j < i; j++) {
                const bool same = strcmp(all[i].item.resource_id, all[j].item.resource_id) == 0 &&
                                  strcmp(all[i].item.key, all[j].item.key) == 0;
                if (all[j].limit <= 0) continue;
                assert_true(same == (strcmp(all[i].counter, all[j].counter) == 0));
            }
        }
        doorman_config_destroy(config);
        converted_free(&converted);
        tree_free(&root);
        free(yaml);
    }
    assert_true(limited > 100);
}
