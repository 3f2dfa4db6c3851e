/* doormanctl: the command `convert`, which makes a configuration of Doorman from one of Envoy's
 * ratelimit (github.com/envoyproxy/ratelimit).
 *
 * In that service, descriptors are a tree. For each entry of a request, the service goes one level
 * down: to the descriptor with the same value, else to the first one whose value ends with `*` and
 * matches, else to the one without a value. It never goes back. The limit of the last descriptor
 * counts, and each combination of values has a counter.
 *
 * In Doorman, rules are a list, and the first one that matches counts. So for each sequence of keys
 * the converter visits the tree in the order above, and writes a rule for each limit. Where the
 * service would go down and find nothing, no later rule may match, so a rule without a limit comes
 * before the later ones.
 *
 *     path "/a" { ip: 5 a day }        [path "/a"], [ip "*"]             5 a day, by ip
 *     path "/b" { user: 7 a day }  --> [path "/b"], [ip "*"]             no limit
 *     path      { ip: 9 a day }        [path "*"], [ip "*"]              9 a day, by path and ip
 *                                      [path "/b"], [user "*"]           7 a day, by user */
#include "convert.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "../../doorman.h"

#define ENTRIES_MAX 16            /* of a rule */
#define DESCRIPTOR_RULES_MAX 1000 /* of a configuration */
#define RULES_MAX 4000            /* of one sequence of keys, with those that prove to be useless */
#define DOMAIN_BYTES_MAX 64
#define PATH_BYTES 512
#define TEXT_BYTES 1024 /* of a name: longer ones are refused later */

enum node_kind { NODE_EXACT, NODE_PREFIX, NODE_ANY };

/* A descriptor of the tree. The strings belong to the document. */
struct convert_node {
    enum node_kind kind;
    const char *key, *value;
    bool shares;        /* all values that match have one counter */
    const cJSON *limit; /* the template for this descriptor; NULL: no limit */
    struct convert_node *below;
    size_t count;
};

/* A rule that may be written. `nodes` are the descriptors of its entries. */
struct convert_rule {
    const struct convert_node *nodes[ENTRIES_MAX]; /* NULL: any value */
    const struct convert_node *target;             /* NULL: no limit */
};

/* The conversion of one document. */
struct convert_domain {
    struct ctl_conversion *all;
    const char *name;
    const struct convert_node *path[ENTRIES_MAX]; /* of the descriptor that is visited */
    const char *keys[ENTRIES_MAX];                /* of the rules that are being made */
    size_t depth;                                 /* of these keys */
    struct convert_rule *rules;
    size_t rule_count, rule_room;
    cJSON *sequences; /* an object with the sequences of keys so far */
};

/* ---- reports */

/* Reports something that is left out. */
__attribute__((format(printf, 3, 4))) static void
convert_leave(struct ctl_conversion *all, const char *path, const char *format, ...) {
    char text[TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    ctl_print(all->report, all->file);
    fputs(": ", all->report);
    ctl_print(all->report, path);
    fputs(": ", all->report);
    ctl_print(all->report, text);
    fputc('\n', all->report);
    all->left_count++;
}

/* Reports something that changes no decision, or hardly any. */
static void convert_note(struct ctl_conversion *all, const char *path, const char *text) {
    const size_t count = all->left_count;
    convert_leave(all, path, "note: %s", text);
    all->left_count = count;
}

static void convert_below(char out[PATH_BYTES], const char *path, const char *name) {
    snprintf(out, PATH_BYTES, "%.400s%s%.100s", path, path[0] ? "." : "", name);
}

/* ---- texts */

/* Adds a text to another one. If it does not fit, its end is cut off, and the result is later
 * refused as too long. */
static void convert_add(char out[TEXT_BYTES], const char *text, size_t bytes) {
    const size_t used = strlen(out);
    const size_t room = TEXT_BYTES - 1 - used;
    if (bytes > room) bytes = room;
    memcpy(out + used, text, bytes);
    out[used + bytes] = '\0';
}

/* Adds a text, with a mark in front of each special character. */
static void convert_add_marked(char out[TEXT_BYTES], const char *text, const char *special,
                               const char *mark) {
    for (; *text; text++) {
        if (strchr(special, *text)) convert_add(out, mark, strlen(mark));
        convert_add(out, text, 1);
    }
}

static void convert_add_name(char out[TEXT_BYTES], const char *text) {
    for (; *text; text++) {
        if (*text == '/' || *text == '%') {
            convert_add(out, *text == '/' ? "%2F" : "%25", 3);
        } else {
            convert_add(out, text, 1);
        }
    }
}

/* Names the resource of a descriptor: "shop/path=%2Flogin/remote_address". */
static void convert_resource(char out[TEXT_BYTES], const struct convert_domain *domain,
                             const struct convert_node *const path[], size_t depth) {
    out[0] = '\0';
    convert_add_name(out, domain->name);
    for (size_t i = 0; i < depth; i++) {
        convert_add(out, "/", 1);
        convert_add_name(out, path[i]->key);
        if (path[i]->kind != NODE_ANY) convert_add(out, "=", 1);
        convert_add_name(out, path[i]->value);
    }
}

/* Returns a text of an object; "": it is absent or no text. */
static const char *convert_text(const cJSON *object, const char *name) {
    return ctl_text(object, name);
}

/* Reads a word for a boolean. A missing one counts as false. Any other value is reported, and
 * counts as false. */
static bool convert_flag(struct ctl_conversion *all, const cJSON *object, const char *path,
                         const char *name) {
    static const char *const words[] = {"false", "no", "off", "true", "yes", "on"};
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, name);
    char below[PATH_BYTES];
    if (!value || cJSON_IsNull(value)) return false;
    for (size_t i = 0; i < 6 && cJSON_IsString(value); i++) {
        if (strcasecmp(value->valuestring, words[i]) == 0) return i >= 3;
    }
    convert_below(below, path, name);
    convert_leave(all, below, "must be true or false");
    return false;
}

static bool convert_has_control(const char *text) {
    for (; *text; text++) {
        const unsigned char first = (unsigned char)text[0], second = (unsigned char)text[1];
        if (first < 0x20 || first == 0x7f || (first == 0xc2 && second < 0xa0)) return true;
    }
    return false;
}

/* ---- limits */

struct convert_unit {
    const char *name, *window; /* NULL: seconds */
    double seconds;
    const char *note; /* NULL: none */
};
static const struct convert_unit convert_units[] = {
    {"second", NULL, 1, NULL},
    {"minute", "minute", 0, NULL},
    {"hour", "hour", 0, NULL},
    {"day", "day", 0, NULL},
    {"week", "week", 0, "the week of the calendar begins on Monday; that of Envoy on Thursday"},
    {"month", "month", 0, "the month of the calendar is used; that of Envoy has 30 days"},
    {"year", NULL, 31536000, "a year has 365 days, as for Envoy"},
};

static const struct convert_unit *convert_unit_find(const char *name) {
    for (size_t i = 0; i < sizeof convert_units / sizeof *convert_units; i++) {
        if (strcasecmp(convert_units[i].name, name) == 0) return &convert_units[i];
    }
    return NULL;
}

/* Reports fields that are not known. `known` ends with NULL. */
static void convert_check_fields(struct ctl_conversion *all, const cJSON *object, const char *path,
                                 const char *const known[]) {
    const cJSON *field = NULL;
    char below[PATH_BYTES];
    cJSON_ArrayForEach(field, object) {
        size_t i = 0;
        while (known[i] && strcmp(known[i], field->string) != 0) i++;
        convert_below(below, path, field->string);
        if (!known[i]) convert_leave(all, below, "is not known");
    }
}

static bool convert_amount(struct ctl_conversion *all, const cJSON *limit, const char *path,
                           double *out) {
    const char *text = convert_text(limit, "requests_per_unit");
    char below[PATH_BYTES], *end = NULL;
    convert_below(below, path, "requests_per_unit");
    *out = 0;
    if (!text[0]) {
        convert_note(all, below, "is missing, so the limit is 0 and refuses everything");
        return true;
    }
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (strspn(text, "0123456789") != strlen(text) || errno || value > UINT32_MAX) {
        convert_leave(all, below, "must be an integer from 0 to 4294967295; the limit is left out");
        return false;
    }
    *out = (double)value;
    return true;
}

/* Makes the limit of a template from `rate_limit`. Returns NULL if it is wrong. */
static cJSON *convert_window(struct ctl_conversion *all, const cJSON *limit, const char *path,
                             bool shadow) {
    const struct convert_unit *unit = convert_unit_find(convert_text(limit, "unit"));
    const char *name = convert_text(limit, "name");
    char below[PATH_BYTES];
    double amount = 0;
    const bool is_name =
        name[0] && strlen(name) <= DOORMAN_ID_BYTES_MAX && !convert_has_control(name);
    convert_below(below, path, "unit");
    if (!unit) {
        convert_leave(all, below,
                      "must be second, minute, hour, day, week, month or year; the limit is left "
                      "out");
        return NULL;
    }
    if (!convert_amount(all, limit, path, &amount)) return NULL;
    if (unit->note) convert_note(all, below, unit->note);
    cJSON *out = (cJSON *)ctl_need(cJSON_CreateObject());
    snprintf(below, sizeof below, "per-%s", unit->name);
    cJSON_AddStringToObject(out, "name", is_name ? name : below);
    cJSON_AddStringToObject(out, "kind", "FIXED_WINDOW");
    cJSON_AddNumberToObject(out, "limit", amount);
    if (unit->window) cJSON_AddStringToObject(out, "window", unit->window);
    if (!unit->window) cJSON_AddNumberToObject(out, "window", unit->seconds);
    if (shadow) cJSON_AddTrueToObject(out, "shadow");
    return out;
}

/* Makes the template of a descriptor, and adds it. Returns NULL if the limit is left out. */
static cJSON *convert_template(struct convert_domain *domain, const cJSON *limit, const char *path,
                               size_t depth, bool shadow) {
    static const char *const known[] = {"unit", "requests_per_unit", "unlimited",
                                        "name", "replaces",          NULL};
    struct ctl_conversion *all = domain->all;
    char resource[TEXT_BYTES], glob[TEXT_BYTES] = "", below[PATH_BYTES];
    cJSON *window = NULL;
    convert_check_fields(all, limit, path, known);
    convert_below(below, path, "replaces");
    if (cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(limit, "replaces"))) {
        convert_leave(all, below, "is left out: all limits of a request count");
    }
    if (!convert_flag(all, limit, path, "unlimited")) {
        window = convert_window(all, limit, path, shadow);
        if (!window) return NULL;
    }
    convert_resource(resource, domain, domain->path, depth);
    convert_add_marked(glob, resource, "*?[\\", "\\");
    if (strlen(glob) > DOORMAN_ID_BYTES_MAX) {
        convert_leave(all, path,
                      "the resource %.80s... is longer than 256 bytes; the limit is "
                      "left out",
                      resource);
        cJSON_Delete(window);
        return NULL;
    }
    cJSON *template_ = (cJSON *)ctl_need(cJSON_CreateObject());
    cJSON_AddStringToObject(template_, "identifier_glob", glob);
    cJSON *limits = cJSON_AddArrayToObject(template_, "limits");
    if (window) cJSON_AddItemToArray(limits, window);
    cJSON_AddItemToArray(all->templates, template_);
    return template_;
}

/* ---- the tree */

static bool convert_is_duplicate(const struct convert_node *nodes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (strcmp(nodes[i].key, nodes[count].key) == 0 &&
            strcmp(nodes[i].value, nodes[count].value) == 0) {
            return true;
        }
    }
    return false;
}

/* Returns why a descriptor is left out; NULL: it is not. */
static const char *convert_node_wrong(const struct convert_node *siblings, size_t count,
                                      size_t depth) {
    const struct convert_node *node = &siblings[count];
    const size_t key_bytes = strlen(node->key);
    if (!key_bytes) return "key: is missing; the descriptor is left out";
    if (depth > ENTRIES_MAX) return "has more than 16 levels; the descriptor is left out";
    if (node->kind == NODE_ANY && node->key[key_bytes - 1] == '*') {
        return "key: a * in a key cannot be converted; the descriptor is left out";
    }
    if (key_bytes > DOORMAN_ID_BYTES_MAX || strlen(node->value) > DOORMAN_ID_BYTES_MAX / 2) {
        return "has a key or a value that is too long; the descriptor is left out";
    }
    if (convert_has_control(node->key) || convert_has_control(node->value)) {
        return "has a control character; the descriptor is left out";
    }
    return convert_is_duplicate(siblings, count) ? "occurs twice; the second one is left out"
                                                 : NULL;
}

static void convert_list(struct convert_domain *domain, const cJSON *parent, const char *path,
                         size_t depth, struct convert_node *out);

/* Reads one descriptor. `node` has its key and value. */
static void convert_node_read(struct convert_domain *domain, const cJSON *descriptor,
                              const char *path, size_t depth, struct convert_node *node) {
    static const char *const known[] = {"key",         "value",           "rate_limit",
                                        "descriptors", "shadow_mode",     "detailed_metric",
                                        "quota_mode",  "share_threshold", "value_to_metric",
                                        NULL};
    struct ctl_conversion *all = domain->all;
    const cJSON *limit = cJSON_GetObjectItemCaseSensitive(descriptor, "rate_limit");
    char below[PATH_BYTES];
    convert_check_fields(all, descriptor, path, known);
    const bool shadow = convert_flag(all, descriptor, path, "shadow_mode");
    node->shares = convert_flag(all, descriptor, path, "share_threshold");
    if (convert_flag(all, descriptor, path, "quota_mode")) {
        convert_below(below, path, "quota_mode");
        convert_leave(all, below, "is left out: the limit refuses");
    }
    if (convert_flag(all, descriptor, path, "detailed_metric") ||
        convert_flag(all, descriptor, path, "value_to_metric")) {
        convert_note(all, path, "metrics for each value are left out");
    }
    domain->path[depth - 1] = node;
    if (limit && !cJSON_IsNull(limit)) {
        convert_below(below, path, "rate_limit");
        node->limit = convert_template(domain, limit, below, depth, shadow);
    }
    convert_list(domain, descriptor, path, depth + 1, node);
}

/* Reads the field `descriptors` of an object into the nodes below a node. */
static void convert_list(struct convert_domain *domain, const cJSON *parent, const char *path,
                         size_t depth, struct convert_node *out) {
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(parent, "descriptors"), *item = NULL;
    char below[PATH_BYTES], here[PATH_BYTES];
    convert_below(here, path, "descriptors");
    if (list && !cJSON_IsNull(list) && !cJSON_IsArray(list)) {
        convert_leave(domain->all, here, "must be a list; it is left out");
        return;
    }
    const size_t count = (size_t)cJSON_GetArraySize(list);
    if (!count) return;
    out->below = (struct convert_node *)ctl_need(calloc(count, sizeof *out->below));
    size_t index = 0;
    cJSON_ArrayForEach(item, list) {
        struct convert_node *node = &out->below[out->count];
        snprintf(below, sizeof below, "%.480s[%zu]", here, index++);
        *node = (struct convert_node){.key = convert_text(item, "key"),
                                      .value = convert_text(item, "value")};
        const size_t bytes = strlen(node->value);
        node->kind = bytes ? NODE_EXACT : NODE_ANY;
        if (bytes && node->value[bytes - 1] == '*') node->kind = NODE_PREFIX;
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(item, "value");
        const char *wrong = convert_node_wrong(out->below, out->count, depth);
        if (value && !cJSON_IsString(value) && !cJSON_IsNull(value)) {
            wrong = "value: must be a text; the descriptor is left out";
        }
        if (wrong) {
            convert_leave(domain->all, below, "%s", wrong);
            continue;
        }
        out->count++;
        convert_node_read(domain, item, below, depth, node);
    }
}

static void convert_node_free(struct convert_node *node) {
    for (size_t i = 0; i < node->count; i++) convert_node_free(&node->below[i]);
    free(node->below);
}

/* ---- rules */

static void convert_rule_add(struct convert_domain *domain, size_t depth,
                             const struct convert_node *target) {
    if (domain->rule_count == RULES_MAX) {
        domain->all->has_many_rules = true;
        return;
    }
    if (domain->rule_count == domain->rule_room) {
        domain->rule_room = 2 * domain->rule_room + 16;
        domain->rules = (struct convert_rule *)ctl_need(
            realloc(domain->rules, domain->rule_room * sizeof *domain->rules));
    }
    struct convert_rule *rule = &domain->rules[domain->rule_count++];
    memset(rule, 0, sizeof *rule);
    memcpy(rule->nodes, domain->path, depth * sizeof *rule->nodes);
    rule->target = target;
}

/* Goes down the tree along the keys, and adds the rules in the order in which the service looks. */
static void convert_visit(struct convert_domain *domain, const struct convert_node *at,
                          size_t depth) {
    for (int kind = NODE_EXACT; kind <= NODE_ANY; kind++) {
        for (size_t i = 0; i < at->count; i++) {
            const struct convert_node *node = &at->below[i];
            const bool is_last = depth + 1 == domain->depth;
            if ((int)node->kind != kind || strcmp(node->key, domain->keys[depth]) != 0) continue;
            domain->path[depth] = node;
            if (is_last) {
                convert_rule_add(domain, depth + 1, node->limit ? node : NULL);
            } else {
                convert_visit(domain, node, depth + 1);
                convert_rule_add(domain, depth + 1, NULL);
            }
        }
    }
}

static bool convert_is_prefix(const char *prefix, size_t bytes, const char *text) {
    return strncmp(prefix, text, bytes) == 0;
}

/* Returns whether some value fits both descriptors. */
static bool convert_nodes_meet(const struct convert_node *a, const struct convert_node *b) {
    if (!a || !b || a == b || a->kind == NODE_ANY || b->kind == NODE_ANY) return true;
    const size_t a_bytes = strlen(a->value) - (a->kind == NODE_PREFIX);
    const size_t b_bytes = strlen(b->value) - (b->kind == NODE_PREFIX);
    if (a->kind == NODE_EXACT && b->kind == NODE_EXACT) return strcmp(a->value, b->value) == 0;
    if (a->kind == NODE_EXACT) return convert_is_prefix(b->value, b_bytes, a->value);
    if (b->kind == NODE_EXACT) return convert_is_prefix(a->value, a_bytes, b->value);
    return convert_is_prefix(a->value, a_bytes < b_bytes ? a_bytes : b_bytes, b->value);
}

/* Returns whether an earlier rule certainly matches each request that a rule matches. */
static bool convert_rule_is_hidden(const struct convert_domain *domain, size_t index) {
    const struct convert_rule *rule = &domain->rules[index];
    bool is_hidden = false;
    for (size_t j = 0; j < index && !is_hidden; j++) {
        is_hidden = true;
        for (size_t i = 0; is_hidden && i < domain->depth; i++) {
            const struct convert_node *earlier = domain->rules[j].nodes[i];
            is_hidden = !earlier || earlier->kind == NODE_ANY || earlier == rule->nodes[i];
        }
    }
    return is_hidden;
}

/* Returns whether a rule has an effect: it has a limit, or keeps requests from a later rule with a
 * limit. */
static bool convert_rule_matters(const struct convert_domain *domain, size_t index) {
    const struct convert_rule *rule = &domain->rules[index];
    if (rule->target) return true;
    if (convert_rule_is_hidden(domain, index)) return false;
    for (size_t j = index + 1; j < domain->rule_count; j++) {
        bool meets = domain->rules[j].target != NULL;
        for (size_t i = 0; meets && i < domain->depth; i++) {
            meets = convert_nodes_meet(rule->nodes[i], domain->rules[j].nodes[i]);
        }
        if (meets) return true;
    }
    return false;
}

/* Writes the key of a rule: a placeholder for each value that is not fixed. Returns why there is no
 * key; NULL: it is written. */
static const char *convert_rule_key(const struct convert_domain *domain,
                                    const struct convert_rule *rule, char out[TEXT_BYTES]) {
    out[0] = '\0';
    for (size_t i = 0; i < domain->depth; i++) {
        const struct convert_node *node = rule->nodes[i];
        if (node->kind == NODE_EXACT || (node->kind == NODE_PREFIX && node->shares)) continue;
        size_t named = 0;
        for (size_t j = 0; j < domain->depth; j++) {
            named += strcmp(domain->keys[j], node->key) == 0;
        }
        if (named > 1) return "the same key occurs on two levels, so its value has no name";
        if (strpbrk(node->key, "{}")) return "the key has a brace, so its value has no name";
        const char *open = out[0] ? "/{" : "{";
        convert_add(out, open, strlen(open));
        convert_add(out, node->key, strlen(node->key));
        convert_add(out, "}", 1);
    }
    return strlen(out) > DOORMAN_ID_BYTES_MAX ? "its keys are too long together" : NULL;
}

/* Writes the resource of descriptors without a limit, for which there is no template. */
static void convert_no_limit(char out[TEXT_BYTES], const struct convert_domain *domain) {
    out[0] = '\0';
    convert_add_name(out, domain->name);
    convert_add(out, "/(no limit)", strlen("/(no limit)"));
}

/* Writes the glob for a value.
 *   node   NULL: any value */
static void convert_glob(char out[TEXT_BYTES], const struct convert_node *node) {
    char value[TEXT_BYTES] = "";
    out[0] = '\0';
    if (node) convert_add(value, node->value, strlen(node->value));
    const bool is_exact = node && node->kind == NODE_EXACT;
    if (node && node->kind == NODE_PREFIX) value[strlen(value) - 1] = '\0';
    convert_add_marked(out, value, "*?[\\", "\\");
    if (!is_exact) convert_add(out, "*", 1);
}

static void convert_entries(const struct convert_domain *domain, const struct convert_rule *rule,
                            cJSON *entries) {
    char glob[TEXT_BYTES];
    for (size_t i = 0; i < domain->depth; i++) {
        cJSON *pair = (cJSON *)ctl_need(cJSON_CreateArray());
        convert_glob(glob, rule->nodes[i]);
        cJSON_AddItemToArray(pair, (cJSON *)ctl_need(cJSON_CreateString(domain->keys[i])));
        cJSON_AddItemToArray(pair, (cJSON *)ctl_need(cJSON_CreateString(glob)));
        cJSON_AddItemToArray(entries, pair);
    }
}

/* Writes the rule for a limit, or for no limit. */
static void convert_rule_write(struct convert_domain *domain, const struct convert_rule *rule) {
    char resource[TEXT_BYTES], text[TEXT_BYTES] = "", key[TEXT_BYTES] = "";
    const char *wrong = NULL;
    convert_no_limit(resource, domain);
    if (rule->target) {
        convert_resource(resource, domain, rule->nodes, domain->depth);
        wrong = convert_rule_key(domain, rule, key);
    }
    convert_add_marked(text, resource, "{", "{");
    resource[0] = '\0';
    convert_add_marked(resource, text, "}", "}");
    if (strlen(resource) > DOORMAN_ID_BYTES_MAX) wrong = "the resource is too long";
    if (wrong) {
        convert_leave(domain->all, text, "%s; the limit is left out", wrong);
        convert_no_limit(resource, domain);
        key[0] = '\0';
    }
    cJSON *out = (cJSON *)ctl_need(cJSON_CreateObject());
    cJSON_AddStringToObject(out, "domain", domain->name);
    convert_entries(domain, rule, cJSON_AddArrayToObject(out, "entries"));
    cJSON_AddStringToObject(out, "resource", resource);
    if (key[0]) cJSON_AddStringToObject(out, "key", key);
    cJSON_AddItemToArray(domain->all->rules, out);
}

/* Makes the rules of all descriptors with the keys of the path.
 *   root   of the tree */
static void convert_sequence(struct convert_domain *domain, const struct convert_node *root,
                             const struct convert_node *const path[], size_t depth) {
    char name[ENTRIES_MAX * (DOORMAN_ID_BYTES_MAX + 2)] = "";
    size_t used = 0;
    for (size_t i = 0; i < depth; i++) {
        used += (size_t)snprintf(name + used, sizeof name - used, "%s\n", path[i]->key);
        domain->keys[i] = path[i]->key;
    }
    if (cJSON_GetObjectItemCaseSensitive(domain->sequences, name)) return;
    cJSON_AddTrueToObject(domain->sequences, name);
    domain->depth = depth;
    domain->rule_count = 0;
    convert_visit(domain, root, 0);
    for (size_t i = 0; i < domain->rule_count && !domain->all->has_many_rules; i++) {
        if (convert_rule_matters(domain, i)) convert_rule_write(domain, &domain->rules[i]);
        domain->all->has_many_rules = cJSON_GetArraySize(domain->all->rules) > DESCRIPTOR_RULES_MAX;
    }
}

/* Makes the rules of each descriptor that has a limit.
 *   path   of `at`; with room for the descriptors below */
static void convert_rules(struct convert_domain *domain, const struct convert_node *root,
                          const struct convert_node *at, const struct convert_node *path[],
                          size_t depth) {
    for (size_t i = 0; i < at->count && !domain->all->has_many_rules; i++) {
        path[depth] = &at->below[i];
        if (at->below[i].limit) convert_sequence(domain, root, path, depth + 1);
        convert_rules(domain, root, &at->below[i], path, depth + 1);
    }
}

/* ---- a document */

static void convert_start(struct ctl_conversion *all) {
    if (all->rules) return;
    all->rules = (cJSON *)ctl_need(cJSON_CreateArray());
    all->templates = (cJSON *)ctl_need(cJSON_CreateArray());
    all->domains = (cJSON *)ctl_need(cJSON_CreateObject());
}

void ctl_convert(struct ctl_conversion *conversion, const cJSON *document) {
    static const char *const known[] = {"domain", "descriptors", NULL};
    const struct convert_node *path[ENTRIES_MAX];
    struct convert_domain domain = {.all = conversion, .name = convert_text(document, "domain")};
    struct convert_node root = {.below = NULL};
    convert_start(conversion);
    if (!domain.name[0] || strlen(domain.name) > DOMAIN_BYTES_MAX ||
        convert_has_control(domain.name) || strpbrk(domain.name, "{}")) {
        convert_leave(conversion, "domain",
                      "must be a text of 1 to 64 bytes without { and }; the document is left out");
        return;
    }
    if (cJSON_GetObjectItemCaseSensitive(conversion->domains, domain.name)) {
        convert_leave(conversion, "domain", "occurs twice; the second document is left out");
        return;
    }
    cJSON_AddTrueToObject(conversion->domains, domain.name);
    convert_check_fields(conversion, document, "", known);
    domain.sequences = (cJSON *)ctl_need(cJSON_CreateObject());
    convert_list(&domain, document, "", 1, &root);
    convert_rules(&domain, &root, &root, path, 0);
    if (conversion->has_many_rules) {
        while (cJSON_GetArraySize(conversion->rules) > DESCRIPTOR_RULES_MAX) {
            cJSON_DeleteItemFromArray(conversion->rules, DESCRIPTOR_RULES_MAX);
        }
        convert_leave(conversion, "descriptors",
                      "need more than 1,000 rules; the rest is left "
                      "out");
    }
    convert_node_free(&root);
    cJSON_Delete(domain.sequences);
    free(domain.rules);
}

static void convert_write_list(const cJSON *list, const char *name, FILE *out) {
    const cJSON *item = NULL;
    fprintf(out, "\"%s\": [", name);
    cJSON_ArrayForEach(item, list) {
        char *text = (char *)ctl_need(cJSON_PrintUnformatted(item));
        fprintf(out, "%s\n  %s", item == list->child ? "" : ",", text);
        cJSON_free(text);
    }
    fputs("]", out);
}

void ctl_conversion_write(const struct ctl_conversion *conversion, FILE *out) {
    fputs("{", out);
    convert_write_list(conversion->rules, "descriptors", out);
    fputs(",\n", out);
    convert_write_list(conversion->templates, "resources", out);
    fputs("}\n", out);
}

void ctl_conversion_free(struct ctl_conversion *conversion) {
    cJSON_Delete(conversion->rules);
    cJSON_Delete(conversion->templates);
    cJSON_Delete(conversion->domains);
}
