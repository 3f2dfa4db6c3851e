#!/bin/sh
# What `make test` runs of the fuzzers: every file of tests/fuzz/HARNESS goes through its harness
# again, in the program that was built for that. It names each file before it takes it, so that
# after a failure the last one named is the one.
set -u
passed=0 failed=0
for folder in tests/fuzz/*/; do
    name=${folder%/} name=${name##*/}
    set -- "$folder"*
    if output=$("${REPLAYS:-build/asan/fuzz}/$name" "$@" 2>&1); then
        passed=$((passed + $#))
    else
        failed=$((failed + 1))
        printf '%s\n[  FAILED  ] %s\n' "$output" "$name"
    fi
done
echo "[  PASSED  ] $passed test(s)."
if [ $failed != 0 ]; then echo "[  FAILED  ] $failed test(s)"; fi
[ $failed = 0 ]
