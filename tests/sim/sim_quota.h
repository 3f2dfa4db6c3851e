/* Runs with quotas: see sim_quota.c. */
#ifndef SIM_QUOTA_H
#define SIM_QUOTA_H

#include "sim.h"

/* Only the options program, seed, allowed, favoured and verbose have an effect, and of maximum only
 * clients and seconds. Returns 0 if no run has failed, otherwise 1. */
int sim_quotas(const sim_run_options *options, uint64_t seeds, uint64_t jobs);

#endif
