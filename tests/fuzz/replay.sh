#!/bin/sh
# What `make test` runs of the fuzzers: every file of tests/fuzz/HARNESS goes through its harness
# again, in the program that was built for that.
set -u
passed=0 failed=0
for folder in tests/fuzz/*/; do
    name=${folder%/} name=${name##*/}
    for file in "$folder"*; do
        if output=$("${REPLAYS:-build/asan/fuzz}/$name" "$file" 2>&1); then
            passed=$((passed + 1))
        else
            failed=$((failed + 1))
            printf '%s\n[  FAILED  ] %s\n' "$output" "$file"
        fi
    done
done
echo "[  PASSED  ] $passed test(s)."
if [ $failed != 0 ]; then echo "[  FAILED  ] $failed test(s)"; fi
[ $failed = 0 ]
