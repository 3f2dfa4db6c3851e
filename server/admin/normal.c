/* doorman_server, part ADMIN: the normal form of a configuration, and how two configurations differ
 * (E3).
 *
 * The library writes the fields of a configuration in one order, and leaves out defaults. This file
 * also leaves out the algorithms that templates inherit, and the figures that overrides and plans
 * take from their limits. It sorts what has no order: lists of texts, such as `shadow` and `keys`,
 * and the plans of a limit. The first template and the first override that match decide, so these
 * keep their order. Limits keep theirs too.
 *
 * A difference is found by comparing the JSON, so a new field of the configuration needs no change
 * here. Templates are compared by glob, limits by name, and all other values as a whole:
 *
 *     {"version": 8, "before": 7, "changes": [
 *         {"template": "maps", "change": "changed", "fields": [
 *             {"field": "capacity", "last": 100, "now": 200}], "limits": [
 *             {"limit": "burst", "change": "changed", "fields": [
 *                 {"field": "rate", "last": 10, "now": 20}]}]}],
 *      "fields": [{"field": "unmatched", "last": null, "now": "reject"}], "is_reordered": false} */
#include "normal.h"

#include <stdarg.h>

#define DEPTH_MAX 8 /* of objects within objects */
#define FIELD_TEXT 256
#define VALUE_SHOWN 80 /* bytes of a value in a summary */
#define SUMMARY_TEXT 512

/* ---- the normal form ------------------------------------------------------------------------ */

static int normal_compare(const void *left, const void *right) {
    const char *one = cJSON_GetStringValue(*(cJSON *const *)left);
    const char *other = cJSON_GetStringValue(*(cJSON *const *)right);
    return strcmp(one ? one : "", other ? other : "");
}

/* Compares the names of two fields of an object. */
static int normal_compare_names(const void *left, const void *right) {
    return strcmp((*(cJSON *const *)left)->string, (*(cJSON *const *)right)->string);
}

/* Sorts a list, or the fields of an object. Returns false if memory runs out. */
static bool normal_sort(cJSON *list, int (*compare)(const void *left, const void *right)) {
    const int count = cJSON_GetArraySize(list);
    cJSON **items = (cJSON **)calloc((size_t)count + 1, sizeof *items);
    if (!items) return false;
    for (int i = 0; i < count; i++) items[i] = cJSON_DetachItemFromArray(list, 0);
    qsort((void *)items, (size_t)count, sizeof *items, compare);
    for (int i = 0; i < count; i++) cJSON_AddItemToArray(list, items[i]);
    free((void *)items);
    return true;
}

/* Sorts the lists of strings below a value, and the plans of limits. */
static bool normal_sort_below(cJSON *value, int depth) {
    cJSON *item = NULL;
    bool done = true;
    if (depth == 0) return true;
    cJSON_ArrayForEach(item, value) {
        const bool sorts = item->string && cJSON_IsArray(item) && cJSON_IsString(item->child);
        const bool has_plans =
            item->string && cJSON_IsObject(item) && strcmp(item->string, "plans") == 0;
        if (done && has_plans) done = normal_sort(item, normal_compare_names);
        if (done && sorts) {
            done = normal_sort(item, normal_compare);
        } else if (done && (cJSON_IsArray(item) || cJSON_IsObject(item))) {
            done = normal_sort_below(item, depth - 1);
        }
    }
    return done;
}

/* Returns the tree of a configuration, which the caller deletes; NULL: out of memory. */
static cJSON *normal_read(const doorman_config *config) {
    doorman_config_options options;
    doorman_buffer text = {.text = NULL};
    cJSON *tree = NULL;
    doorman_config_read(config, &options);
    if (doorman_json_write_config(&options, &text) == DOORMAN_OK) {
        tree = cJSON_ParseWithLength(text.text, text.bytes);
    }
    doorman_buffer_uninit(&text);
    return tree;
}

static cJSON *resources_of(const cJSON *tree) {
    return cJSON_GetObjectItemCaseSensitive(tree, "resources");
}

static bool is_star(const cJSON *template) {
    const char *glob =
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(template, "identifier_glob"));
    return glob && strcmp(glob, "*") == 0;
}

/* Leaves out an algorithm that a template would have anyway (G3): the algorithm of the template
 * `*`, or, for `*` itself and without `*`, the default. So a later change of `*` still concerns the
 * others.
 *   usual   the default */
static void normal_drop_algorithms(cJSON *tree, const cJSON *usual) {
    const cJSON *given = usual;
    cJSON *star = NULL, *item = NULL;
    cJSON_ArrayForEach(item, resources_of(tree)) star = is_star(item) ? item : star;
    if (star) given = cJSON_GetObjectItemCaseSensitive(star, "algorithm");
    cJSON_ArrayForEach(item, resources_of(tree)) {
        const cJSON *algorithm = cJSON_GetObjectItemCaseSensitive(item, "algorithm");
        if (item == star || !cJSON_Compare(algorithm, given, true)) continue;
        cJSON_DeleteItemFromObjectCaseSensitive(item, "algorithm");
    }
    if (star && cJSON_Compare(given, usual, true)) {
        cJSON_DeleteItemFromObjectCaseSensitive(star, "algorithm");
    }
}

/* Leaves out the figures of an override or a plan that are the same in its limit. So a later change
 * of the limit still concerns them.
 *   least   the object keeps at least this number of fields, even if the limit has the same */
static void normal_drop_figures(cJSON *object, const cJSON *limit, int least) {
    cJSON *next = NULL;
    for (cJSON *own = object->child; own && cJSON_GetArraySize(object) > least; own = next) {
        const cJSON *given = cJSON_GetObjectItemCaseSensitive(limit, own->string);
        const bool is_zero = cJSON_IsNumber(own) && !(own->valuedouble > 0);
        const bool is_taken = given ? cJSON_Compare(own, given, true) : is_zero;
        next = own->next;
        if (!is_taken || strcmp(own->string, "keys") == 0) continue;
        cJSON_Delete(cJSON_DetachItemViaPointer(object, own));
    }
}

static void normal_drop_inherited(cJSON *tree) {
    cJSON *template = NULL, *limit = NULL, *override = NULL, *plan = NULL;
    cJSON_ArrayForEach(template, resources_of(tree)) {
        cJSON_ArrayForEach(limit, cJSON_GetObjectItemCaseSensitive(template, "limits")) {
            cJSON_ArrayForEach(override, cJSON_GetObjectItemCaseSensitive(limit, "overrides")) {
                normal_drop_figures(override, limit, 2);
            }
            cJSON_ArrayForEach(plan, cJSON_GetObjectItemCaseSensitive(limit, "plans")) {
                normal_drop_figures(plan, limit, 0);
            }
        }
    }
}

/* Returns the tree of a configuration with one template that has only defaults. */
static cJSON *normal_read_usual(void) {
    const doorman_template plain = {.identifier_glob = "plain", .capacity = 1};
    const doorman_config_options options = {.templates = &plain, .template_count = 1};
    doorman_config *config = NULL;
    cJSON *tree = NULL;
    if (doorman_config_create(&config, &options, NULL) == DOORMAN_OK) tree = normal_read(config);
    doorman_config_destroy(config);
    return tree;
}

/* Returns the sorted tree of a configuration, with what is inherited. */
static cJSON *normal_read_whole(const doorman_config *config) {
    cJSON *tree = normal_read(config);
    if (!tree || normal_sort_below(tree, DEPTH_MAX)) return tree;
    cJSON_Delete(tree);
    return NULL;
}

/* Returns whether reading a tree gives the configuration of `whole`. Returns false if memory runs
 * out.
 *   whole   of normal_read_whole */
static bool normal_is_of(const cJSON *tree, const cJSON *whole) {
    doorman_config *config = NULL;
    char *text = cJSON_PrintUnformatted(tree);
    bool is_valid = text && doorman_json_config(&config, text, strlen(text), NULL) == DOORMAN_OK;
    cJSON *other = is_valid ? normal_read_whole(config) : NULL;
    bool is_equal = other && cJSON_Compare(other, whole, true);
    cJSON_Delete(other);
    cJSON_free(text);
    doorman_config_destroy(config);
    return is_equal;
}

/* Leaves out nothing if the shorter tree would be read as another configuration. */
cJSON *server_config_normalise(const doorman_config *config) {
    cJSON *whole = normal_read_whole(config), *plain = normal_read_usual();
    const cJSON *first = cJSON_GetArrayItem(resources_of(plain), 0);
    const cJSON *usual = cJSON_GetObjectItemCaseSensitive(first, "algorithm");
    cJSON *tree = whole && usual ? cJSON_Duplicate(whole, true) : NULL;
    if (tree) {
        normal_drop_algorithms(tree, usual);
        normal_drop_inherited(tree);
    }
    cJSON_Delete(plain);
    if (tree && normal_is_of(tree, whole)) {
        cJSON_Delete(whole);
        return tree;
    }
    cJSON_Delete(tree);
    return whole;
}

/* ---- fields --------------------------------------------------------------------------------- */

/* How two objects are compared. */
struct differ {
    cJSON *fields;         /* the list to which fields are added */
    const char *skipped;   /* the field that is compared elsewhere; NULL: none */
    char path[FIELD_TEXT]; /* of the object, with a dot at its end; "" */
};

static void differ_add(struct differ *differ, const char *name, const cJSON *last,
                       const cJSON *now) {
    cJSON *item = cJSON_CreateObject();
    char field[2 * FIELD_TEXT];
    snprintf(field, sizeof field, "%s%s", differ->path, name);
    cJSON_AddStringToObject(item, "field", field);
    cJSON_AddItemToObject(item, "last", last ? cJSON_Duplicate(last, true) : cJSON_CreateNull());
    cJSON_AddItemToObject(item, "now", now ? cJSON_Duplicate(now, true) : cJSON_CreateNull());
    cJSON_AddItemToArray(differ->fields, item);
}

static void differ_objects(struct differ *differ, const cJSON *last, const cJSON *now, int depth);

/* Compares a field. If both values are objects, compares their fields. */
static void differ_field(struct differ *differ, const char *name, const cJSON *last,
                         const cJSON *now, int depth) {
    const size_t bytes = strlen(differ->path);
    if (cJSON_Compare(last, now, true)) return;
    if (!cJSON_IsObject(last) || !cJSON_IsObject(now) || depth == 0) {
        differ_add(differ, name, last, now);
        return;
    }
    snprintf(differ->path + bytes, sizeof differ->path - bytes, "%s.", name);
    differ_objects(differ, last, now, depth - 1);
    differ->path[bytes] = 0;
}

/* Compares the fields of two objects, which may be NULL. */
static void differ_objects(struct differ *differ, const cJSON *last, const cJSON *now, int depth) {
    const cJSON *item = NULL;
    const char *skipped = differ->skipped;
    differ->skipped = NULL; /* only at the top */
    cJSON_ArrayForEach(item, now) {
        if (skipped && strcmp(item->string, skipped) == 0) continue;
        differ_field(differ, item->string, cJSON_GetObjectItemCaseSensitive(last, item->string),
                     item, depth);
    }
    cJSON_ArrayForEach(item, last) {
        if (skipped && strcmp(item->string, skipped) == 0) continue;
        if (cJSON_GetObjectItemCaseSensitive(now, item->string)) continue;
        differ_field(differ, item->string, item, NULL, depth);
    }
}

/* Adds the list `fields` of what differs in two objects.
 *   skipped   a field that is left out; NULL: none */
static void differ_fields(cJSON *out, const cJSON *last, const cJSON *now, const char *skipped) {
    struct differ differ = {.fields = cJSON_AddArrayToObject(out, "fields"), .skipped = skipped};
    differ_objects(&differ, last, now, DEPTH_MAX);
}

/* ---- lists of objects with names ------------------------------------------------------------ */

static const char *name_of(const cJSON *item, const char *key) {
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, key));
    return name ? name : "";
}

/* An item of a list, in an index that is sorted by name. */
struct named {
    const cJSON *item;
    const char *name;
    int place;
};

static int named_compare(const void *left, const void *right) {
    return strcmp(((const struct named *)left)->name, ((const struct named *)right)->name);
}

/* Returns a sorted index of a list, which the caller frees; NULL: out of memory. */
static struct named *named_make(const cJSON *list, const char *key, size_t *count) {
    const cJSON *item = NULL;
    *count = 0;
    struct named *index =
        (struct named *)calloc((size_t)cJSON_GetArraySize(list) + 1, sizeof *index);
    if (!index) return NULL;
    cJSON_ArrayForEach(item, list) {
        index[*count] = (struct named){item, name_of(item, key), (int)*count};
        (*count)++;
    }
    qsort(index, *count, sizeof *index, named_compare);
    return index;
}

static const struct named *named_find(const struct named *index, size_t count, const char *name) {
    const struct named wanted = {.name = name};
    return (const struct named *)bsearch(&wanted, index, count, sizeof *index, named_compare);
}

/* Compares two lists by names, and calls a function for each pair that differs.
 *   add         gets NULL instead of an item that a list does not have
 *   reordered   out: the items of both lists have another order
 *   returns     false: out of memory */
static bool named_differ(cJSON *out, const cJSON *const lists[2], const char *key,
                         void (*add)(cJSON *out, const cJSON *last, const cJSON *now),
                         bool *reordered) {
    size_t counts[2];
    const cJSON *item = NULL;
    int highest = 0;
    struct named *last = named_make(lists[0], key, &counts[0]);
    struct named *now = named_make(lists[1], key, &counts[1]);
    const bool done = last && now;
    const cJSON *const both[2] = {done ? lists[0] : NULL, done ? lists[1] : NULL};
    cJSON_ArrayForEach(item, both[1]) {
        const struct named *found = named_find(last, counts[0], name_of(item, key));
        if (!found || !cJSON_Compare(found->item, item, true)) {
            add(out, found ? found->item : NULL, item);
        }
        *reordered = *reordered || (found && found->place < highest);
        if (found) highest = found->place;
    }
    cJSON_ArrayForEach(item, both[0]) {
        if (!named_find(now, counts[1], name_of(item, key))) add(out, item, NULL);
    }
    free(last);
    free(now);
    return done;
}

static const char *change_name(const cJSON *last, const cJSON *now) {
    return !last ? "added" : !now ? "removed" : "changed";
}

static void differ_limit(cJSON *out, const cJSON *last, const cJSON *now) {
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "limit", name_of(now ? now : last, "name"));
    cJSON_AddStringToObject(item, "change", change_name(last, now));
    differ_fields(item, last, now, "name");
    cJSON_AddItemToArray(out, item);
}

static void differ_template(cJSON *out, const cJSON *last, const cJSON *now) {
    cJSON *item = cJSON_CreateObject();
    const cJSON *const lists[2] = {cJSON_GetObjectItemCaseSensitive(last, "limits"),
                                   cJSON_GetObjectItemCaseSensitive(now, "limits")};
    bool reordered = false;
    struct differ differ = {.fields = NULL};
    cJSON_AddStringToObject(item, "template", name_of(now ? now : last, "identifier_glob"));
    cJSON_AddStringToObject(item, "change", change_name(last, now));
    differ.fields = cJSON_AddArrayToObject(item, "fields");
    for (int side = 0; side < 2; side++) {
        const cJSON *field = NULL, *object = side ? now : last;
        cJSON_ArrayForEach(field, object) {
            const bool is_apart = strcmp(field->string, "limits") == 0 ||
                                  strcmp(field->string, "identifier_glob") == 0;
            const cJSON *other = cJSON_GetObjectItemCaseSensitive(side ? last : now, field->string);
            if (is_apart || (!side && other)) continue;
            differ_field(&differ, field->string, side ? other : field, side ? field : NULL,
                         DEPTH_MAX);
        }
    }
    (void)named_differ(cJSON_AddArrayToObject(item, "limits"), lists, "name", differ_limit,
                       &reordered);
    if (reordered) cJSON_AddTrueToObject(item, "is_reordered");
    cJSON_AddItemToArray(out, item);
}

cJSON *server_config_differ(const cJSON *last, const cJSON *now) {
    cJSON *out = cJSON_CreateObject();
    const cJSON *const lists[2] = {cJSON_GetObjectItemCaseSensitive(last, "resources"),
                                   cJSON_GetObjectItemCaseSensitive(now, "resources")};
    bool reordered = false;
    bool done = named_differ(cJSON_AddArrayToObject(out, "changes"), lists, "identifier_glob",
                             differ_template, &reordered);
    differ_fields(out, last, now, "resources");
    cJSON_AddBoolToObject(out, "is_reordered", reordered);
    if (done) return out;
    cJSON_Delete(out);
    return NULL;
}

/* ---- summaries ------------------------------------------------------------------------------ */

struct summary {
    cJSON *list;
    size_t count; /* also of those that are left out */
};

__attribute__((format(printf, 2, 3))) static void summary_add(struct summary *summary,
                                                              const char *format, ...) {
    char text[SUMMARY_TEXT];
    va_list arguments;
    if (summary->count++ >= SUMMARY_MAX) return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    cJSON_AddItemToArray(summary->list, cJSON_CreateString(text));
}

/* Prints a value. If it has more than VALUE_SHOWN bytes, prints its beginning and "...". */
static void value_text(const cJSON *value, char out[VALUE_SHOWN + 4]) {
    char *text = cJSON_IsNull(value) ? NULL : cJSON_PrintUnformatted(value);
    const size_t bytes = text ? strlen(text) : 0;
    size_t shown = bytes < VALUE_SHOWN ? bytes : VALUE_SHOWN;
    while (text && shown < bytes && ((unsigned char)text[shown] & 0xc0U) == 0x80) shown--;
    snprintf(out, VALUE_SHOWN + 4, "%.*s%s", (int)shown, text ? text : "default",
             shown < bytes ? "..." : "");
    if (!text) snprintf(out, VALUE_SHOWN + 4, "default");
    cJSON_free(text);
}

/* Adds a text for each field: "maps burst rate: 10 -> 20". */
static void summary_add_fields(struct summary *summary, const cJSON *object, const char *place) {
    const cJSON *field = NULL;
    cJSON_ArrayForEach(field, cJSON_GetObjectItemCaseSensitive(object, "fields")) {
        char last[VALUE_SHOWN + 4], now[VALUE_SHOWN + 4];
        value_text(cJSON_GetObjectItemCaseSensitive(field, "last"), last);
        value_text(cJSON_GetObjectItemCaseSensitive(field, "now"), now);
        summary_add(summary, "%s%s: %s -> %s", place, name_of(field, "field"), last, now);
    }
}

/* Adds the texts of a template and of its limits. */
static void summary_add_one(struct summary *summary, const cJSON *item, const char *key,
                            const char *place) {
    char path[SUMMARY_TEXT];
    const char *change = name_of(item, "change");
    const cJSON *limit = NULL;
    snprintf(path, sizeof path, "%s%s", place, name_of(item, key));
    if (strcmp(change, "changed") != 0) {
        summary_add(summary, "%s: %s", path, change);
        return;
    }
    snprintf(path, sizeof path, "%s%s ", place, name_of(item, key));
    summary_add_fields(summary, item, path);
    cJSON_ArrayForEach(limit, cJSON_GetObjectItemCaseSensitive(item, "limits")) {
        char below[SUMMARY_TEXT];
        const bool is_changed = strcmp(name_of(limit, "change"), "changed") == 0;
        snprintf(below, sizeof below, "%.400s%.64s%s", path, name_of(limit, "limit"),
                 is_changed ? " " : "");
        if (!is_changed) summary_add(summary, "%s: %s", below, name_of(limit, "change"));
        if (is_changed) summary_add_fields(summary, limit, below);
    }
    if (cJSON_HasObjectItem(item, "is_reordered")) summary_add(summary, "%slimits: order", path);
}

void server_config_summarise(cJSON *object, const char *name, const cJSON *difference) {
    struct summary summary = {.list = cJSON_AddArrayToObject(object, name)};
    const cJSON *item = NULL;
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(difference, "changes")) {
        summary_add_one(&summary, item, "template", "");
    }
    summary_add_fields(&summary, difference, "");
    if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(difference, "is_reordered"))) {
        summary_add(&summary, "resources: order");
    }
    if (summary.count <= SUMMARY_MAX) return;
    char text[64];
    snprintf(text, sizeof text, "and %zu more", summary.count - SUMMARY_MAX);
    cJSON_AddItemToArray(summary.list, cJSON_CreateString(text));
}
