/* Permits in a simulated system: see sim_permits.c. */
#ifndef SIM_PERMITS_H
#define SIM_PERMITS_H

#include "sim_account.h"

#define SIM_PERMITS 3 /* of a message */
#define SIM_EVENTS 512

/* ---- sim_definition.c */

/* Draws a configuration.
 *   before   the configuration before it; may be NULL
 *   alone    all templates have limits alone, as in a node with a parent */
void sim_draw_definitions(sim_permit_version *version, const sim_permit_version *before, bool alone,
                          uint64_t *random);
doorman_config *sim_create_config(sim_permit_version *version);
/* Adds a configuration to the log. */
void sim_log_definitions(sim_world *world, const sim_permit_version *version);

#endif
