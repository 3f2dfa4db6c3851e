/* doorman_server, part ADMIN: the normal form of a configuration, and how two configurations differ
 * (E3). */
#ifndef DOORMAN_SERVER_NORMAL_H
#define DOORMAN_SERVER_NORMAL_H

#include "../server.h"

#define SUMMARY_MAX 20 /* texts of a difference in lists and in the audit */

/* Makes the normal form of a configuration: defaults and what is inherited are left out, fields
 * have one order, and lists whose order has no meaning are sorted. Templates, limits and overrides
 * keep their order: of templates and of overrides, the first one that matches decides.
 *   returns   a tree that the caller deletes; NULL: out of memory */
cJSON *server_config_normalise(const doorman_config *config);

/* Finds how one normal form differs from another.
 *   last, now   normal forms; NULL: an empty configuration
 *   returns     an object that the caller deletes; NULL: out of memory. Its members are `changes`
 *               (an object for each template that differs), `fields` (the other fields that
 *               differ) and `is_reordered`. A field has the members `field`, `last` and `now`. A
 *               value is null if it is the default */
cJSON *server_config_differ(const cJSON *last, const cJSON *now);

/* Adds a list of at most SUMMARY_MAX texts that describe a difference, and how many more there
 * are. */
void server_config_summarise(cJSON *object, const char *name, const cJSON *difference);

#endif
