/* Random configurations of permits: see sim_permits.h. All amounts are multiples of 1/8, so that
 * sums of them are exact. Each rate times max_debt is exact too. */
#include "sim_permits.h"

#include <stdlib.h>
#include <string.h>

#define SECOND DOORMAN_SECOND

/* Globs of keys, and the keys that they match, as bits: "", a1, a2, b1, b2, c. */
static const struct {
    const char *glob;
    unsigned keys;
} globs[] = {{"a*", 0x06}, {"*1", 0x0a}, {"b?", 0x18}, {"c", 0x20}, {"[ac]*", 0x26}, {"*", 0x3f}};

#define GLOBS (sizeof globs / sizeof globs[0])
#define ALL_KEYS ((1u << SIM_KEYS) - 1)

static const char *const excluding[GLOBS] = {"!a*", "!*1", "!b?", "!c", "![ac]*", "!*"};

static bool one_in(uint64_t *random, uint64_t count) { return sim_below(random, count) == 0; }

static double draw_limit(uint64_t *random) {
    if (one_in(random, 12)) return 0;
    return (double)sim_below(random, one_in(random, 3) ? 60 : 16) / 2;
}

static void draw_tiers(doorman_figures *figures, doorman_tier *tiers, uint64_t *random) {
    static const int seconds[] = {1, 2, 3, 5, 8, 10};
    figures->tiers = tiers;
    figures->tier_count = one_in(random, 12) ? 0 : 1 + sim_pick(random, SIM_TIERS);
    for (size_t i = 0; i < figures->tier_count; i++) {
        doorman_time window = seconds[sim_below(random, 6)] * SECOND;
        doorman_time active = window * (doorman_time)(1 + sim_below(random, 3));
        if (one_in(random, 3)) active = seconds[sim_below(random, 6)] * SECOND;
        if (one_in(random, 12)) active = 0;
        tiers[i] = (doorman_tier){.limit = draw_limit(random), .window = window, .active = active};
        if (sim_below(random, 2)) tiers[i].cooldown = seconds[sim_below(random, 6)] * 2 * SECOND;
        tiers[i].skippable = sim_below(random, 2);
    }
}

static void draw_bucket(doorman_figures *figures, uint64_t *random) {
    static const double rates[] = {0.5, 1, 2, 4, SIM_BUCKET_RATE};
    static const double sizes[] = {0, 1, 3, 5, 10, 20};
    figures->rate = rates[sim_below(random, 5)];
    figures->size = sizes[sim_below(random, 6)];
    figures->max_debt = (doorman_time)sim_below(random, 4) * SECOND;
    if (figures->size <= 0 && !figures->max_debt) figures->max_debt = SECOND;
    figures->has_max_wait = one_in(random, 3);
    if (figures->has_max_wait) {
        figures->max_wait = sim_time_between(random, 0, figures->max_debt);
    }
}

static doorman_figures draw_figures(doorman_limit_kind kind, doorman_tier *tiers,
                                    uint64_t *random) {
    static const int seconds[] = {1, 2, 5, 10, 16, 20};
    doorman_figures figures = {.rate = 0};
    if (kind == DOORMAN_TOKEN_BUCKET) {
        draw_bucket(&figures, random);
    } else if (kind == DOORMAN_TIERS) {
        draw_tiers(&figures, tiers, random);
    } else {
        figures.limit = draw_limit(random);
        figures.window = seconds[sim_below(random, 6)] * SECOND;
        if (kind == DOORMAN_FIXED_WINDOW && one_in(random, 4)) {
            figures.window = 0;
            figures.calendar = (doorman_calendar)(1 + sim_below(random, DOORMAN_MONTH));
        }
    }
    return figures;
}

static unsigned draw_keys(const char **out, size_t *count, uint64_t *random) {
    size_t first = sim_pick(random, GLOBS), second = sim_pick(random, GLOBS);
    *count = 1 + sim_pick(random, 2);
    out[0] = globs[first].glob;
    out[1] = excluding[second];
    if (*count == 1 && one_in(random, 3)) {
        out[0] = excluding[first];
        return ALL_KEYS & ~globs[first].keys;
    }
    if (*count == 1) return globs[first].keys;
    if (one_in(random, 2)) {
        out[1] = globs[first].glob;
        out[0] = excluding[second];
    }
    return globs[first].keys & ~globs[second].keys;
}

/* Draws an override. It has the figures of the limit, but its own rate, tiers or `limit`. */
static void draw_override(sim_definition *definition, size_t index, uint64_t *random) {
    static const double rates[] = {0.5, 1, 3, 8};
    doorman_override *override_ = &definition->overrides[index];
    doorman_figures *all = &definition->figures[1 + index];
    size_t glob = sim_pick(random, GLOBS);
    definition->override_globs[index] = globs[glob].glob;
    definition->override_keys[index] = globs[glob].keys;
    *override_ = (doorman_override){.key_count = 1};
    *all = definition->figures[0];
    if (definition->limit.kind == DOORMAN_TOKEN_BUCKET) {
        all->rate = override_->figures.rate = rates[sim_below(random, 4)];
    } else if (definition->limit.kind == DOORMAN_TIERS) {
        draw_tiers(all, definition->tiers[1 + index], random);
        override_->figures.has_tiers = true;
        override_->figures.tier_count = all->tier_count;
    } else {
        all->limit = override_->figures.limit = draw_limit(random);
        override_->figures.has_limit = true;
    }
}

static void draw_options(doorman_permit_limit *limit, uint64_t *random) {
    bool counts_units = limit->kind == DOORMAN_TOKEN_BUCKET || limit->kind == DOORMAN_FIXED_WINDOW;
    limit->shadow = one_in(random, 8);
    limit->max_keys = one_in(random, 4) ? 1 + sim_pick(random, 3) : 0;
    limit->refuse_new = sim_below(random, 2);
    limit->empty_at_start = limit->kind != DOORMAN_TIERS && one_in(random, 3);
    limit->refunds = counts_units && sim_below(random, 2);
    limit->has_max_cost = one_in(random, 8);
    limit->max_cost = limit->has_max_cost ? (double)(1 + sim_below(random, 6)) : 0;
    limit->warn_at = one_in(random, 3) ? (double)(1 + sim_below(random, 4)) / 4 : 0;
    limit->ban = (doorman_ban){.refusals = 0};
    if (limit->per != DOORMAN_PER_KEY || !one_in(random, 3)) return;
    limit->ban.refusals = 1 + (uint32_t)sim_below(random, 4);
    limit->ban.window = sim_time_between(random, SECOND, 20 * SECOND);
    limit->ban.duration = sim_time_between(random, SECOND, 30 * SECOND);
}

static void draw_numbers(sim_definition *definition, uint64_t *random) {
    definition->figures[0] = draw_figures(definition->limit.kind, definition->tiers[0], random);
    for (size_t i = 0; i < definition->override_count; i++) draw_override(definition, i, random);
}

static void draw_definition(sim_definition *definition, size_t name, uint64_t *random) {
    static const doorman_limit_kind kinds[] = {DOORMAN_TOKEN_BUCKET, DOORMAN_FIXED_WINDOW,
                                               DOORMAN_SLIDING_WINDOW, DOORMAN_TIERS};
    static const doorman_scope scopes[] = {DOORMAN_PER_KEY, DOORMAN_PER_KEY, DOORMAN_PER_RESOURCE,
                                           DOORMAN_PER_TEMPLATE};
    *definition = (sim_definition){.name = name, .keys = ALL_KEYS};
    definition->limit.kind = kinds[sim_below(random, 4)];
    definition->limit.per = scopes[sim_below(random, 4)];
    draw_options(&definition->limit, random);
    if (one_in(random, 4)) {
        definition->keys = draw_keys(definition->globs, &definition->limit.key_count, random);
    }
    bool per_key = definition->limit.per == DOORMAN_PER_KEY;
    if (per_key && one_in(random, 3)) definition->override_count = 1 + sim_pick(random, 2);
    draw_numbers(definition, random);
}

static void draw_template(sim_permit_template *template_, bool alone, uint64_t *random) {
    template_->has_limits = !one_in(random, 12) || alone;
    size_t count = one_in(random, 12) ? 0 : 1 + sim_pick(random, SIM_NAMES);
    template_->limit_count = template_->has_limits ? count : 0;
    size_t first = sim_pick(random, SIM_NAMES);
    for (size_t i = 0; i < template_->limit_count; i++) {
        draw_definition(&template_->limits[i], (first + i) % SIM_NAMES, random);
    }
}

/* Changes some limits of a template that exists. */
static void change_template(sim_permit_template *template_, uint64_t *random) {
    for (size_t i = 0; i < template_->limit_count; i++) {
        sim_definition *definition = &template_->limits[i];
        uint64_t choice = sim_below(random, 8);
        if (choice < 3) draw_numbers(definition, random);
        if (choice == 3) draw_options(&definition->limit, random);
        if (choice == 4) draw_definition(definition, definition->name, random);
    }
    if (template_->limit_count && one_in(random, 8)) template_->limit_count--;
}

/* Draws a version. It takes and changes most templates of the version before. "*" comes last. */
void sim_draw_definitions(sim_permit_version *version, const sim_permit_version *before, bool alone,
                          uint64_t *random) {
    memset(version, 0, sizeof *version);
    version->reject_unmatched = sim_below(random, 2);
    if (one_in(random, 8)) version->shadow = (unsigned)sim_below(random, 1u << SIM_PLACES);
    size_t shift = sim_pick(random, SIM_GLOBS - 1);
    for (size_t i = 0; i < SIM_GLOBS; i++) {
        size_t glob = i < SIM_GLOBS - 1 ? (i + shift) % (SIM_GLOBS - 1) : i;
        const sim_permit_template *old = NULL;
        for (size_t j = 0; before && j < before->template_count; j++) {
            if (before->templates[j].glob == glob) old = &before->templates[j];
        }
        bool takes = old ? !one_in(random, 5) : one_in(random, before ? 4 : 2);
        if (!takes) continue;
        sim_permit_template *template_ = &version->templates[version->template_count++];
        if (old) *template_ = *old;
        template_->glob = glob;
        if (old) change_template(template_, random);
        if (!old) draw_template(template_, alone, random);
    }
}

/* ---- as a configuration of doorman.h */

/* Sets the pointers of a definition, which was copied. */
static void link_definition(sim_definition *definition, size_t glob) {
    doorman_permit_limit *limit = &definition->limit;
    size_t row = limit->per == DOORMAN_PER_TEMPLATE ? 1 + glob : 0;
    limit->name = sim_limit_names[row * SIM_NAMES + definition->name];
    limit->keys = limit->key_count ? definition->globs : NULL;
    limit->override_count = definition->override_count;
    limit->overrides = definition->override_count ? definition->overrides : NULL;
    definition->figures[0].tiers = definition->tiers[0];
    limit->figures = definition->figures[0];
    for (size_t i = 0; i < definition->override_count; i++) {
        doorman_override *override_ = &definition->overrides[i];
        override_->keys = &definition->override_globs[i];
        definition->figures[1 + i].tiers = definition->tiers[1 + i];
        override_->figures.tiers = definition->tiers[1 + i];
    }
    for (size_t i = 0; i <= definition->override_count; i++) {
        doorman_figures *figures = &definition->figures[i];
        if (!figures->has_max_wait) figures->max_wait = figures->max_debt;
    }
    if (!limit->figures.has_max_wait) limit->figures.max_wait = 0;
}

doorman_config *sim_create_config(sim_permit_version *version) {
    doorman_template templates[SIM_GLOBS];
    doorman_permit_limit limits[SIM_GLOBS][SIM_NAMES];
    const char *shadow[SIM_PLACES];
    doorman_config_options options = {.templates = templates, .shadow = shadow};
    doorman_config *config = NULL;
    doorman_error error = {0};
    memset(templates, 0, sizeof templates);
    for (size_t i = 0; i < version->template_count; i++) {
        sim_permit_template *from = &version->templates[i];
        for (size_t j = 0; j < from->limit_count; j++) {
            link_definition(&from->limits[j], from->glob);
            limits[i][j] = from->limits[j].limit;
        }
        templates[i] = (doorman_template){.identifier_glob = sim_template_globs[from->glob],
                                          .without_capacity = from->has_limits,
                                          .has_limits = from->has_limits,
                                          .limits = from->limit_count ? limits[i] : NULL,
                                          .limit_count = from->limit_count};
    }
    for (size_t i = 0; i < SIM_PLACES; i++) {
        if (version->shadow >> i & 1) shadow[options.shadow_count++] = sim_place_names[i];
    }
    options.template_count = version->template_count;
    options.reject_unmatched = version->reject_unmatched;
    doorman_status status = doorman_config_create(&config, &options, &error);
    for (size_t i = 0; i < version->template_count; i++) {
        sim_permit_template *from = &version->templates[i];
        for (size_t j = 0; j < from->limit_count; j++) {
            doorman_permit_limit *limit = &from->limits[j].limit;
            if (!limit->max_keys) limit->max_keys = SIM_MAX_KEYS_NONE;
        }
    }
    if (status == DOORMAN_OK) return config;
    fprintf(stderr, "configuration: %s\n", error.text);
    abort();
}

/* ---- as text, for the log */

static void log_figures(sim_world *world, const char *what, doorman_limit_kind kind,
                        const doorman_figures *figures) {
    if (kind == DOORMAN_TOKEN_BUCKET) {
        sim_log(world, "    %s rate %g, size %g, max_debt %g s, max_wait %g s", what, figures->rate,
                figures->size, (double)figures->max_debt / 1e9, (double)figures->max_wait / 1e9);
    } else if (kind != DOORMAN_TIERS) {
        sim_log(world, "    %s %g in %g s, or calendar %d, %s", what, figures->limit,
                (double)figures->window / 1e9, (int)figures->calendar,
                kind == DOORMAN_FIXED_WINDOW ? "fixed" : "sliding");
    }
    for (size_t i = 0; kind == DOORMAN_TIERS && i < figures->tier_count; i++) {
        const doorman_tier *tier = &figures->tiers[i];
        sim_log(world, "    %s tier %zu: %g in %g s, active %g s, cooldown %g s%s", what, i + 1,
                tier->limit, (double)tier->window / 1e9, (double)tier->active / 1e9,
                (double)tier->cooldown / 1e9, tier->skippable ? ", skippable" : "");
    }
}

static void log_definition(sim_world *world, const char *glob, const sim_definition *definition) {
    static const char *const scopes[] = {"key", "resource", "template"};
    const doorman_permit_limit *limit = &definition->limit;
    sim_log(world,
            "  %s %s per %s, keys %02x, max_keys %zu%s%s%s%s, max_cost %g, ban %u in %g s: %g s",
            glob, limit->name, scopes[limit->per], definition->keys, limit->max_keys,
            limit->refuse_new ? " refuse" : "", limit->shadow ? " shadow" : "",
            limit->empty_at_start ? " empty" : "", limit->refunds ? " refunds" : "",
            limit->has_max_cost ? limit->max_cost : -1, limit->ban.refusals,
            (double)limit->ban.window / 1e9, (double)limit->ban.duration / 1e9);
    for (size_t i = 0; i <= definition->override_count; i++) {
        char what[40] = "has";
        if (i) snprintf(what, sizeof what, "keys %02x have", definition->override_keys[i - 1]);
        log_figures(world, what, limit->kind, &definition->figures[i]);
    }
}

void sim_log_definitions(sim_world *world, const sim_permit_version *version) {
    for (size_t i = 0; i < version->template_count && !world->quiet; i++) {
        const sim_permit_template *template_ = &version->templates[i];
        const char *glob = sim_template_globs[template_->glob];
        if (!template_->limit_count) {
            sim_log(world, "  %s has %s", glob, template_->has_limits ? "no limits" : "leases");
        }
        for (size_t j = 0; j < template_->limit_count; j++) {
            log_definition(world, glob, &template_->limits[j]);
        }
    }
}
