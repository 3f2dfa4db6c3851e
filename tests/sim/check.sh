#!/bin/sh
# What `make test` runs of the simulator: all scenarios with one seed, and 200 runs with faults.
# SEED is the first seed of those; SIM is the program.
set -u
sim=${SIM:-build/sim/sim}
folder=$(mktemp -d) || exit 1
passed=0 failed=0

check() {
    if output=$("$sim" "$@" 2>&1); then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf '%s\n' "$output"
    fi
}

check scenarios --seeds 1 --output "$folder"
check faults --seeds 200 --seed "${SEED:-1}"
rm -rf "$folder"
echo "[  PASSED  ] $passed test(s)."
if [ $failed != 0 ]; then echo "[  FAILED  ] $failed test(s)"; fi
[ $failed = 0 ]
