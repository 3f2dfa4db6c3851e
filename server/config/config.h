/* doorman_server: how configurations differ, and texts of configurations that came over HTTP. These
 * functions only read configurations, and put none into force. */
#ifndef DOORMAN_SERVER_CONFIG_H
#define DOORMAN_SERVER_CONFIG_H

#include "../server.h"

/* ---- changes -------------------------------------------------------------------------------- */

/* How one configuration differs from another, by template and by limit, and what the change does to
 * counters (P15). */

/* A template that is not the same in both configurations. */
struct template_change {
    const doorman_template *last, *now; /* NULL: it was added, or removed */
};

/* The pointers are valid as long as both configurations exist. */
struct config_changes {
    doorman_config_options last, now;
    struct template_change *items; /* sorted by glob */
    size_t count;
    bool reordered;   /* the templates that are in both have another order */
    bool descriptors; /* the rules for descriptors differ */
};

/* A limit that is not the same in both configurations. */
struct limit_change {
    const doorman_permit_limit *last, *now; /* NULL: it was added, or removed */
    const char *text;                       /* what has changed, and what happens to its counters */
    bool drops;     /* its counters leave the memory, or start fresh. Holds stay */
    bool ends_bans; /* it bans no key any more, so its bans end */
};

/* How many counters and bans a limit has now. */
struct limit_counts {
    size_t counters, bans;
};

/* Compares two configurations.
 *   out       server_changes_uninit frees it, also after a failure
 *   returns   false: memory ran out
 *   cost      O(bytes of both as JSON, and templates * log(templates)) */
bool server_changes_find(struct config_changes *out, const doorman_config *last,
                         const doorman_config *now);
void server_changes_uninit(struct config_changes *changes);

/* Yields the limits of a template that have changed: first those of the new configuration in their
 * order, then those that were removed.
 *   cursor      in/out: 0 at first
 *   has_store   --state is given, so the store keeps the counters of durable limits
 *   returns     false: there is no further one */
bool server_changes_next_limit(const struct template_change *change, size_t *cursor, bool has_store,
                               struct limit_change *out);

/* Returns the counts of all limits of the configuration in force, in the order of the
 * configuration, or NULL if memory runs out or the process is not the master. The caller frees the
 * list. Precondition: the lock is held. */
struct limit_counts *server_changes_count(const struct service *service);

/* Returns the counts of a limit of the last configuration.
 *   counts   of server_changes_count; NULL: not known, and the function returns zeros */
struct limit_counts server_changes_counts(const struct config_changes *changes,
                                          const struct limit_counts *counts,
                                          const doorman_permit_limit *limit);

/* ---- texts ---------------------------------------------------------------------------------- */

/* Reads a configuration as a load would.
 *   problems   out: why it is not valid or does not fit this node; or warnings about it
 *   returns    the configuration, which the caller destroys; NULL: it is refused */
doorman_config *server_config_read_text(const struct service *service, const char *text,
                                        size_t bytes, struct config_problems *problems);

/* Adds a list of problems: at most PROBLEM_MAX of them, and how many there are if there are more.
 *   key   "errors" or "warnings" */
void server_problems_add(cJSON *answer, const char *key, const struct config_problems *problems);

#endif
