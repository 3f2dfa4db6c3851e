#!/bin/sh
# What `make test` runs of the simulator: all scenarios with one seed, and 200 runs with faults.
# SEED is the first seed of those; SIM is the program.
set -u
# shellcheck source=tests/check.sh
. tests/check.sh
sim=${SIM:-build/sim/sim}

check 'the scenarios' "$sim" scenarios --seeds 1 --output "$folder"
check 'random faults' "$sim" faults --seeds 200 --seed "${SEED:-1}"
check_end
