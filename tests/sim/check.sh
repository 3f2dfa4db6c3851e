#!/bin/sh
# The part of the simulator that `make test` runs: all scenarios with one seed, 200 runs with faults
# of leases, of permits, of holds and of stores, 60 of quotas and of shards, 30 of leased permits,
# short runs of a throttle, and the mixes of fair limits.
# SEED is the first seed of the runs with faults (1). SIM is the program (build/sim/sim).
set -u
# shellcheck source=tests/check.sh
. tests/check.sh
sim=${SIM:-build/sim/sim}

check 'the scenarios' "$sim" scenarios --seeds 1 --output "$folder"
check 'random faults' "$sim" faults --seeds 200 --seed "${SEED:-1}"
check 'random faults with permits' "$sim" permits --seeds 200 --seed "${SEED:-1}"
check 'random faults with holds' "$sim" holds --seeds 200 --seed "${SEED:-1}"
check 'random faults with stores' "$sim" state --seeds 200 --seed "${SEED:-1}"
check 'random faults with quotas' "$sim" quotas --seeds 60 --seed "${SEED:-1}"
check 'random faults with shards' "$sim" shards --seeds 60 --seed "${SEED:-1}"
check 'random faults with leased permits' "$sim" leased --seeds 30 --seed "${SEED:-1}"
check 'the figures of a throttle' "$sim" throttle --seconds 4 --output "$folder"
check 'the shares of fair limits' "$sim" fair --output "$folder"
check_end
