/* doorman_server: how one configuration differs from another. Two configurations are compared by
 * their globs: the templates of both are sorted by glob, and the sorted lists are merged. A
 * template has changed if its JSON differs. So a new field needs no change here. The order of the
 * templates counts too, because the first glob that matches a resource decides. */
#include "config.h"

#define DEPTH_MAX 32 /* of the JSON of a template */

/* ---- templates ------------------------------------------------------------------------------ */

static int compare_texts(const void *left, const void *right) {
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* Returns the texts of a list, sorted. The caller frees the array. Returns NULL if an item is no
 * text, or memory runs out. */
static const char **texts_sort(const cJSON *list, size_t count) {
    const char **texts = (const char **)calloc(count + 1, sizeof *texts);
    const cJSON *item = NULL;
    size_t found = 0;
    if (!texts) return NULL;
    cJSON_ArrayForEach(item, list) {
        if (cJSON_IsString(item)) texts[found++] = item->valuestring;
    }
    if (found == count) {
        qsort((void *)texts, count, sizeof *texts, compare_texts);
        return texts;
    }
    free((void *)texts);
    return NULL;
}

/* Returns whether two lists consist of the same texts, in any order, because a list of keys has no
 * order. */
static bool text_lists_equal(const cJSON *one, const cJSON *other, size_t count) {
    const char **left = texts_sort(one, count), **right = texts_sort(other, count);
    bool equal = left && right;
    for (size_t i = 0; i < count && equal; i++) equal = strcmp(left[i], right[i]) == 0;
    free((void *)left);
    free((void *)right);
    return equal;
}

/* Returns whether two trees are equal. The order of the members of an object, such as plans, and of
 * the texts of a list does not count. */
static bool trees_equal(const cJSON *one, const cJSON *other, int depth) {
    const int count = cJSON_GetArraySize(one);
    const cJSON *left = NULL, *right = other ? other->child : NULL;
    if (!one || !other || depth == 0 || count != cJSON_GetArraySize(other)) return false;
    if (!cJSON_IsObject(one) && !cJSON_IsArray(one)) return cJSON_Compare(one, other, true);
    if (cJSON_IsArray(one) && text_lists_equal(one, other, (size_t)count)) return true;
    bool equal = true;
    cJSON_ArrayForEach(left, one) {
        if (left->string) right = cJSON_GetObjectItemCaseSensitive(other, left->string);
        equal = equal && trees_equal(left, right, depth - 1);
        right = right ? right->next : NULL;
    }
    return equal;
}

static bool json_equal(const char *one, const char *other) {
    cJSON *left = cJSON_Parse(one), *right = cJSON_Parse(other);
    const bool equal = trees_equal(left, right, DEPTH_MAX);
    cJSON_Delete(left);
    cJSON_Delete(right);
    return equal;
}

/* Returns whether two templates have the same JSON, apart from the order of members and of texts.
 * Returns false if memory runs out. */
static bool templates_equal(const doorman_template *one, const doorman_template *other) {
    const doorman_config_options left = {.templates = one, .template_count = 1};
    const doorman_config_options right = {.templates = other, .template_count = 1};
    doorman_buffer left_text = {.text = NULL}, right_text = {.text = NULL};
    bool equal = doorman_json_write_config(&left, &left_text) == DOORMAN_OK &&
                 doorman_json_write_config(&right, &right_text) == DOORMAN_OK &&
                 left_text.bytes == right_text.bytes &&
                 (memcmp(left_text.text, right_text.text, left_text.bytes) == 0 ||
                  json_equal(left_text.text, right_text.text));
    doorman_buffer_uninit(&left_text);
    doorman_buffer_uninit(&right_text);
    return equal;
}

static int compare_globs(const void *left, const void *right) {
    const doorman_template *one = *(const doorman_template *const *)left;
    const doorman_template *other = *(const doorman_template *const *)right;
    return strcmp(one->identifier_glob, other->identifier_glob);
}

/* Returns pointers to the templates, sorted by glob, or NULL if memory runs out. The caller frees
 * the list. */
static const doorman_template **templates_sort(const doorman_config_options *options) {
    size_t count = options->template_count;
    const doorman_template **list = (const doorman_template **)calloc(count + 1, sizeof *list);
    for (size_t i = 0; list && i < count; i++) list[i] = &options->templates[i];
    if (list) qsort(list, count, sizeof *list, compare_globs);
    return list;
}

/* Returns whether the templates that are in both configurations have another order now.
 *   places   for each template of the last configuration: its new index plus 1; 0: removed */
static bool places_are_reordered(const size_t *places, size_t count) {
    size_t highest = 0;
    bool reordered = false;
    for (size_t i = 0; i < count; i++) {
        if (places[i] == 0) continue;
        reordered = reordered || places[i] < highest;
        highest = places[i];
    }
    return reordered;
}

/* Merges the sorted lists, and adds the templates that were removed, added or changed.
 *   places   out, see places_are_reordered */
static void changes_merge(struct config_changes *changes, const doorman_template **last,
                          const doorman_template **now, size_t *places) {
    const size_t last_count = changes->last.template_count, now_count = changes->now.template_count;
    size_t i = 0, j = 0;
    while (i < last_count || j < now_count) {
        int order = j == now_count ? -1 : i == last_count ? 1 : compare_globs(&last[i], &now[j]);
        const struct template_change change = {.last = order <= 0 ? last[i++] : NULL,
                                               .now = order >= 0 ? now[j++] : NULL};
        if (order == 0) {
            places[change.last - changes->last.templates] =
                (size_t)(change.now - changes->now.templates) + 1;
            if (templates_equal(change.last, change.now)) continue;
        }
        changes->items[changes->count++] = change;
    }
}

static bool rules_differ(const doorman_descriptor_rule *a, const doorman_descriptor_rule *b) {
    bool differ = a->entry_count != b->entry_count || strcmp(a->domain, b->domain) != 0 ||
                  strcmp(a->resource, b->resource) != 0 || strcmp(a->key, b->key) != 0;
    for (size_t i = 0; !differ && i < a->entry_count; i++) {
        differ = strcmp(a->entries[i].key, b->entries[i].key) != 0 ||
                 strcmp(a->entries[i].value, b->entries[i].value) != 0;
    }
    return differ;
}

static bool descriptors_differ(const doorman_config_options *last,
                               const doorman_config_options *now) {
    bool differ = last->descriptor_count != now->descriptor_count;
    for (size_t i = 0; !differ && i < now->descriptor_count; i++) {
        differ = rules_differ(&last->descriptors[i], &now->descriptors[i]);
    }
    return differ;
}

bool server_changes_find(struct config_changes *out, const doorman_config *last,
                         const doorman_config *now) {
    *out = (struct config_changes){.count = 0};
    doorman_config_read(last, &out->last);
    doorman_config_read(now, &out->now);
    out->descriptors = descriptors_differ(&out->last, &out->now);
    const doorman_template **sorted_last = templates_sort(&out->last);
    const doorman_template **sorted_now = templates_sort(&out->now);
    const size_t last_count = out->last.template_count, now_count = out->now.template_count;
    size_t *places = (size_t *)calloc(last_count + 1, sizeof *places);
    out->items = (struct template_change *)calloc(last_count + now_count + 1, sizeof *out->items);
    bool found = sorted_last && sorted_now && places && out->items;
    if (found) {
        changes_merge(out, sorted_last, sorted_now, places);
        out->reordered = places_are_reordered(places, last_count);
    }
    free(places);
    free((void *)sorted_now);
    free((void *)sorted_last);
    return found;
}

void server_changes_uninit(struct config_changes *changes) { free(changes->items); }

/* ---- limits --------------------------------------------------------------------------------- */

static const doorman_permit_limit *limit_named(const doorman_template *template, const char *name) {
    for (size_t i = 0; template && i < template->limit_count; i++) {
        if (strcmp(template->limits[i].name, name) == 0) return &template->limits[i];
    }
    return NULL;
}

/* Returns whether a window has another length, or another calendar. Figures that the kind does not
 * use are 0, so they do not differ. */
static bool figures_have_other_windows(const doorman_figures *last, const doorman_figures *now) {
    size_t both = last->tier_count < now->tier_count ? last->tier_count : now->tier_count;
    bool other = last->window != now->window || last->calendar != now->calendar;
    for (size_t i = 0; i < both; i++)
        other = other || last->tiers[i].window != now->tiers[i].window;
    return other;
}

static const doorman_figures *plan_figures(const doorman_permit_limit *limit, const char *name) {
    for (size_t i = 0; i < limit->plan_count; i++) {
        if (strcmp(limit->plans[i].name, name) == 0) return &limit->plans[i].figures;
    }
    return NULL;
}

/* Returns whether a plan has windows of another length. A plan that is added or removed does not
 * count, because only the counters of its keys, if there are any, start fresh. */
static bool plans_have_other_windows(const doorman_permit_limit *last,
                                     const doorman_permit_limit *now) {
    bool other = false;
    for (size_t i = 0; i < last->plan_count && !other; i++) {
        const doorman_figures *figures = plan_figures(now, last->plans[i].name);
        other = figures && figures_have_other_windows(&last->plans[i].figures, figures);
    }
    return other;
}

/* Returns whether some keys have windows of another length. If a configuration lacks an override,
 * the figures of the limit count instead. */
static bool limit_has_other_windows(const doorman_permit_limit *last,
                                    const doorman_permit_limit *now) {
    size_t count =
        last->override_count > now->override_count ? last->override_count : now->override_count;
    bool other = figures_have_other_windows(&last->figures, &now->figures);
    for (size_t i = 0; i < count && !other; i++) {
        bool had = i < last->override_count, has = i < now->override_count;
        other = figures_have_other_windows(had ? &last->overrides[i].figures : &last->figures,
                                           has ? &now->overrides[i].figures : &now->figures);
    }
    return other || plans_have_other_windows(last, now);
}

static bool limits_equal(const doorman_template *template, const doorman_permit_limit *last,
                         const doorman_permit_limit *now) {
    doorman_template one = *template, other = *template;
    one.limits = last;
    other.limits = now;
    one.limit_count = other.limit_count = 1;
    return templates_equal(&one, &other);
}

/* Fills in what has changed in a limit. Returns false if nothing has. */
static bool limit_compare(const doorman_template *template, bool has_store,
                          struct limit_change *change) {
    const doorman_permit_limit *last = change->last, *now = change->now;
    change->drops = last && last->kind != DOORMAN_CONCURRENCY;
    change->ends_bans = last && last->ban.refusals && !(now && now->ban.refusals);
    if (!last) {
        change->text = "added";
    } else if (!now && last->kind == DOORMAN_CONCURRENCY) {
        change->text = "removed or renamed; its holds stay";
    } else if (!now && has_store && last->durable) {
        change->text =
            "removed or renamed; its counters stay in the store, and come back with its name";
    } else if (!now) {
        change->text = "removed or renamed, so its counters are dropped";
    } else if (last->kind != now->kind) {
        change->text = "another kind, so its counters start fresh";
    } else if (last->per != now->per) {
        change->text = "another scope, so its counters start fresh";
    } else if (limit_has_other_windows(last, now)) {
        change->text = "a window of another length, so its counters start fresh";
    } else {
        change->text = "other settings; its counters stay";
        change->drops = false;
        return !limits_equal(template, last, now);
    }
    return true;
}

bool server_changes_next_limit(const struct template_change *change, size_t *cursor, bool has_store,
                               struct limit_change *out) {
    const doorman_template *last = change->last, *now = change->now;
    const size_t now_count = now ? now->limit_count : 0, last_count = last ? last->limit_count : 0;
    while (*cursor < now_count + last_count) {
        size_t i = (*cursor)++;
        *out = (struct limit_change){.text = NULL};
        if (i < now_count) {
            out->now = &now->limits[i];
            out->last = limit_named(last, out->now->name);
        } else {
            out->last = &last->limits[i - now_count];
            if (limit_named(now, out->last->name)) continue;
        }
        if (limit_compare(now ? now : last, has_store, out)) return true;
    }
    return false;
}

/* ---- counters and bans ---------------------------------------------------------------------- */

struct limit_counts *server_changes_count(const struct service *service) {
    const doorman_permits *permits = doorman_server_permits(service->server);
    doorman_permits_limit info;
    doorman_cursor cursor = {0};
    size_t room = 0, count = 0;
    assert(server_lock_is_held(&service->lock));
    if (!permits) return NULL;
    while (doorman_permits_next_limit(permits, &cursor, &info)) room++;
    struct limit_counts *counts = (struct limit_counts *)calloc(room + 1, sizeof *counts);
    cursor = (doorman_cursor){0};
    while (counts && doorman_permits_next_limit(permits, &cursor, &info)) {
        if (!info.settings) continue; /* a template whose list of limits is empty */
        counts[count++] = (struct limit_counts){info.counter_count, info.ban_count};
    }
    return counts;
}

struct limit_counts server_changes_counts(const struct config_changes *changes,
                                          const struct limit_counts *counts,
                                          const doorman_permit_limit *limit) {
    size_t before = 0;
    for (size_t i = 0; counts && i < changes->last.template_count; i++) {
        const doorman_template *template = &changes->last.templates[i];
        const doorman_permit_limit *end = template->limits + template->limit_count;
        if (limit >= template->limits && limit < end) {
            return counts[before + (size_t)(limit - template->limits)];
        }
        before += template->limit_count;
    }
    return (struct limit_counts){0, 0};
}
