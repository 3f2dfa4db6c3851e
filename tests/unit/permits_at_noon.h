/* Permits in a process that starts at noon, and what one key gets of them: for figures_test,
 * plans_test and overrides_test. */
#ifndef DOORMAN_TESTS_PERMITS_AT_NOON_H
#define DOORMAN_TESTS_PERMITS_AT_NOON_H

#include "unit.h"

#include <string.h>

#define DOORMAN_JSON
#define DOORMAN_IMPLEMENTATION
#include "../../doorman_permits.h"

#define SECOND DOORMAN_SECOND
#define HOUR (3600 * SECOND)
#define DAY (24 * HOUR)
#define COUNT(array) (sizeof(array) / sizeof *(array))

static const doorman_time noon = INT64_C(1767225600) * SECOND + 12 * HOUR; /* 1 January 2026 */

struct process {
    doorman_config *config;
    doorman_permits *permits;
    doorman_time now; /* since noon */
    doorman_permit out;
    doorman_error error;
    uint64_t ids; /* of rows */
};

/* Returns a configuration with these limits for all resources in "api/" and in "maps/". */
static inline doorman_config *limits_of(const char *limits) {
    static char text[8192];
    doorman_config *config = NULL;
    doorman_error error = {0};
    snprintf(text, sizeof text,
             "{\"resources\": [{\"identifier_glob\": \"api/*\", \"limits\": [%s]}, "
             "{\"identifier_glob\": \"maps/*\", \"limits\": [%s]}]}",
             limits, limits);
    doorman_status status = doorman_json_config(&config, text, strlen(text), &error);
    if (status != DOORMAN_OK) fail_msg("%s", error.text);
    return config;
}

static inline void process_start(struct process *p) {
    const doorman_permits_options options = {.config = p->config, .seed = {1, random_bits() | 1}};
    doorman_status status = doorman_permits_create(&p->permits, &options, NULL, p->now);
    assert_int_equal(status, DOORMAN_OK);
    doorman_permits_set_epoch(p->permits, noon + p->now, p->now);
}

static inline struct process process_of(const char *limits) {
    struct process p = {.config = limits_of(limits)};
    process_start(&p);
    return p;
}

static inline void process_end(struct process *p) {
    doorman_permits_destroy(p->permits);
    doorman_config_destroy(p->config);
}

static inline void reconfigure(struct process *p, const char *limits) {
    doorman_config *config = limits_of(limits);
    assert_int_equal(doorman_permits_configure(p->permits, config), DOORMAN_OK);
    doorman_config_destroy(p->config);
    p->config = config;
}

/* Returns how many of `units` units a key gets now. */
static inline double take(struct process *p, const char *resource, const char *key, double units) {
    const doorman_permit_item item = {
        .resource_id = resource, .key = key, .cost = units, .has_min = true};
    const doorman_permit_request request = {.items = &item, .item_count = 1};
    doorman_status status =
        doorman_permits_acquire(p->permits, &request, &p->out, &p->error, p->now);
    if (status != DOORMAN_OK) fail_msg("%s", p->error.text);
    return p->out.granted ? p->out.items[0].granted : 0;
}

/* Returns what the last permit says of a limit. */
static inline doorman_permit_detail detail_of(const struct process *p, const char *limit) {
    for (size_t i = 0; i < p->out.detail_count; i++) {
        if (!strcmp(p->out.details[i].limit, limit)) return p->out.details[i];
    }
    fail_msg("no limit %s", limit);
    return (doorman_permit_detail){0};
}

/* Returns the state of a limit for a key. */
static inline doorman_permit_detail look(struct process *p, const char *resource, const char *key,
                                         const char *limit) {
    assert_int_equal(
        doorman_permits_inspect(p->permits, ITEM_OF(resource, key), &p->out, NULL, p->now),
        DOORMAN_OK);
    return detail_of(p, limit);
}

static inline doorman_permits_info info_of(const struct process *p) {
    doorman_permits_info info;
    doorman_permits_read(p->permits, &info);
    return info;
}

#endif
