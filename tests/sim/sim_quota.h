/* Runs with quotas: see sim_quota.c. */
#ifndef SIM_QUOTA_H
#define SIM_QUOTA_H

#include "sim.h"

/* Only the options program, seed, allowed, favoured, verbose, and the most clients and seconds have
 * an effect. Returns the status of the process. */
int sim_quotas(const sim_run_options *options, uint64_t seeds, uint64_t jobs);

#endif
