#!/bin/sh
# The part of the fuzzers that `make test` runs: each harness runs on every file of its corpus,
# tests/fuzz/HARNESS. It prints the name of a file before it runs it, so after a failure the last
# name is the file that failed.
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
