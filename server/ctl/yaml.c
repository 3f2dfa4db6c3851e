/* doormanctl: reads YAML as values of JSON, with libyaml. The text is from outside, so its size,
 * depth and number of values are bounded. A few lines of aliases can mean billions of values.
 * libyaml keeps one node for all aliases of an anchor, but this file counts it for each alias. */
#include "convert.h"

#include <stdlib.h>
#include <string.h>

#include <yaml.h>

#define YAML_DEPTH_MAX 32
#define YAML_VALUES_MAX 100000

struct yaml_reader {
    yaml_document_t document;
    size_t value_count;
    char *error;
    bool failed;
};

static cJSON *yaml_fail(struct yaml_reader *reader, const yaml_node_t *node, const char *rule) {
    if (!reader->failed) {
        snprintf(reader->error, CTL_ERROR_BYTES, "line %zu, column %zu: %s",
                 node->start_mark.line + 1, node->start_mark.column + 1, rule);
    }
    reader->failed = true;
    return NULL;
}

static bool yaml_is_null(const yaml_node_t *node) {
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL"};
    bool is_null = false;
    for (size_t i = 0; i < sizeof nulls / sizeof *nulls; i++) {
        is_null = is_null || strcmp((const char *)node->data.scalar.value, nulls[i]) == 0;
    }
    return is_null && node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

static cJSON *yaml_scalar(struct yaml_reader *reader, const yaml_node_t *node) {
    const char *text = (const char *)node->data.scalar.value;
    if (strlen(text) != node->data.scalar.length) {
        return yaml_fail(reader, node, "a text must not contain a 0 byte");
    }
    if (yaml_is_null(node)) return (cJSON *)ctl_need(cJSON_CreateNull());
    return (cJSON *)ctl_need(cJSON_CreateString(text));
}

static cJSON *yaml_value(struct yaml_reader *reader, int index, unsigned depth);

static cJSON *yaml_list(struct yaml_reader *reader, const yaml_node_t *node, unsigned depth) {
    cJSON *list = (cJSON *)ctl_need(cJSON_CreateArray());
    const yaml_node_item_t *item = node->data.sequence.items.start;
    for (; item < node->data.sequence.items.top && !reader->failed; item++) {
        cJSON_AddItemToArray(list, yaml_value(reader, *item, depth));
    }
    return list;
}

/* Adds the fields of `from` that `into` lacks. `from` is an object or a list of objects. */
static void yaml_merge(cJSON *into, const cJSON *from) {
    const cJSON *field = NULL;
    cJSON_ArrayForEach(field, from) {
        if (cJSON_IsArray(from)) {
            yaml_merge(into, field);
        } else if (!cJSON_GetObjectItemCaseSensitive(into, field->string)) {
            cJSON_AddItemToObject(into, field->string,
                                  (cJSON *)ctl_need(cJSON_Duplicate(field, true)));
        }
    }
}

/* Adds a field. Returns false if it adds none. */
static bool yaml_add_field(struct yaml_reader *reader, cJSON *object, const yaml_node_pair_t *pair,
                           unsigned depth) {
    const yaml_node_t *key = yaml_document_get_node(&reader->document, pair->key);
    if (key->type != YAML_SCALAR_NODE ||
        strlen((const char *)key->data.scalar.value) != key->data.scalar.length) {
        return yaml_fail(reader, key, "a key must be a text");
    }
    const char *name = (const char *)key->data.scalar.value;
    if (cJSON_GetObjectItemCaseSensitive(object, name)) {
        return yaml_fail(reader, key, "the key occurs twice");
    }
    cJSON *value = yaml_value(reader, pair->value, depth);
    if (value) cJSON_AddItemToObject(object, name, value);
    return value != NULL;
}

static cJSON *yaml_object(struct yaml_reader *reader, const yaml_node_t *node, unsigned depth) {
    cJSON *object = (cJSON *)ctl_need(cJSON_CreateObject());
    const yaml_node_pair_t *pair = node->data.mapping.pairs.start;
    for (; pair < node->data.mapping.pairs.top && !reader->failed; pair++) {
        (void)yaml_add_field(reader, object, pair, depth);
    }
    cJSON *merged = cJSON_DetachItemFromObjectCaseSensitive(object, "<<");
    if (!reader->failed) yaml_merge(object, merged);
    cJSON_Delete(merged);
    return object;
}

/* Returns a value, or NULL. After an error, `failed` is true, and the value may be incomplete. */
static cJSON *yaml_value(struct yaml_reader *reader, int index, unsigned depth) {
    const yaml_node_t *node = yaml_document_get_node(&reader->document, index);
    if (depth == YAML_DEPTH_MAX) return yaml_fail(reader, node, "more than 32 levels");
    if (++reader->value_count > YAML_VALUES_MAX) {
        return yaml_fail(reader, node, "more than 100,000 values, with those of aliases");
    }
    switch (node->type) {
    case YAML_SCALAR_NODE: return yaml_scalar(reader, node);
    case YAML_SEQUENCE_NODE: return yaml_list(reader, node, depth + 1);
    case YAML_MAPPING_NODE: return yaml_object(reader, node, depth + 1);
    case YAML_NO_NODE:
    default: return yaml_fail(reader, node, "is not known");
    }
}

/* Reads the next document. Returns false at the end, and after an error. */
static bool yaml_next(struct yaml_reader *reader, yaml_parser_t *parser, cJSON *all) {
    if (!yaml_parser_load(parser, &reader->document)) {
        snprintf(reader->error, CTL_ERROR_BYTES, "line %zu, column %zu: is no YAML: %s",
                 parser->problem_mark.line + 1, parser->problem_mark.column + 1,
                 parser->problem ? parser->problem : "out of memory");
        reader->failed = true;
        return false;
    }
    const bool has_root = yaml_document_get_root_node(&reader->document) != NULL;
    cJSON *value = has_root ? yaml_value(reader, 1, 0) : NULL;
    if (value) cJSON_AddItemToArray(all, value);
    yaml_document_delete(&reader->document);
    return has_root && !reader->failed;
}

cJSON *ctl_yaml_read(const char *text, size_t bytes, char error[CTL_ERROR_BYTES]) {
    struct yaml_reader reader = {.error = error};
    yaml_parser_t parser;
    error[0] = '\0';
    if (bytes > CTL_YAML_BYTES_MAX) {
        snprintf(error, CTL_ERROR_BYTES, "more than 4 MiB");
        return NULL;
    }
    ctl_need(yaml_parser_initialize(&parser) ? &parser : NULL);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, bytes);
    cJSON *all = (cJSON *)ctl_need(cJSON_CreateArray());
    while (yaml_next(&reader, &parser, all)) continue;
    yaml_parser_delete(&parser);
    if (!reader.failed) return all;
    cJSON_Delete(all);
    return NULL;
}
