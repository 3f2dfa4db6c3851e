#!/bin/sh
# Runs test programs, several at a time: a line for each as it ends, then the whole output of those
# that failed, their names and those of their failed tests, and the sum. `make test` calls it.
#
#   tests/run.sh build/plain/unit/shares_test ... tests/text_check.sh ...
#
# JOBS is how many run at a time: four for each core, as most of the time they wait. A program ends
# with status 0 and a line of cmocka's, "[  PASSED  ] 12 test(s).", and after failures with
# "[  FAILED  ] 2 test(s), ..." too; the name of a test that failed stands in a line of its own.
set -u

# Compilers of before 2024 cannot place TSan's memory where the addresses of a program are random
# in more than 28 bits.
fixed_addresses() {
    setarch "$(uname -m)" -R true 2>/dev/null && echo "setarch $(uname -m) -R"
}

count() { # a word of cmocka's
    awk -v word="$1" '$1 == "[" && $2 == word && $5 ~ /^test/ { n += $4 } END { print n + 0 }' \
        "$output"
}

# Which tests failed; of a program that was ended, which one it was in.
failures() {
    sed -n 's/^\[  FAILED  \] \([^0-9]\)/\1/p' "$output" | awk '!seen[$0]++'
    [ "$status" = 1 ] || echo "status $status, after: $(grep '^\[ RUN' "$output" | tail -n 1)"
}

# One program. What it printed, if it failed, and its counts are left in $RESULTS.
run_one() {
    program=$1 before=''
    case $program in
    build/*)
        path=${program#build/}
        flavor=${path%%/*}
        path=${path#*/}
        label="${path%%/*} $flavor: ${path#*/}"
        export DOORMAN_SERVER="$PWD/build/$flavor/doorman_server"
        if [ "$flavor" = tsan ]; then before=$(fixed_addresses); fi
        ;;
    *)
        label=${program#tests/}
        before='sh'
        ;;
    esac
    # Far longer than any takes, on a machine that has much else to do.
    if command -v timeout >/dev/null; then before="timeout 1200 $before"; fi
    output=$RESULTS/$(echo "$program" | tr / _)
    started=$(date +%s)
    # shellcheck disable=SC2086 # the words of commands
    $before "$program" >"$output" 2>&1
    status=$?
    seconds=$(($(date +%s) - started))
    good=$(count PASSED) bad=$(count FAILED) skipped=$(count SKIPPED)
    # One that crashed, hung or tested nothing has failed, whatever it said before.
    if [ $((good + bad)) = 0 ] || { [ $status != 0 ] && [ "$bad" = 0 ]; }; then bad=1; fi
    said="$good passed"
    if [ "$skipped" != 0 ]; then said="$said, $skipped skipped"; fi
    if [ "$bad" != 0 ]; then said="$said, $bad FAILED (status $status)"; fi
    printf '%-36s%4s s  %s\n' "$label" $seconds "$said"
    echo "$good $bad" >"$output.counts"
    if [ "$bad" = 0 ]; then return; fi
    { echo "==== $label"; cat "$output"; } >"$output.failed"
    failures | sed "s|^|FAILED $label: |" >"$output.names"
}

if [ "${1:-}" = --one ]; then
    run_one "$2"
    exit 0
fi

RESULTS=$(mktemp -d)
export RESULTS
trap 'rm -rf "$RESULTS"' EXIT
trap 'exit 1' INT TERM
cores=$(nproc 2>/dev/null || echo 1)
printf '%s\n' "$@" | xargs -P "${JOBS:-$((4 * cores))}" -n 1 sh "$0" --one
for failed in "$RESULTS"/*.failed "$RESULTS"/*.names; do
    if [ -e "$failed" ]; then cat "$failed"; fi
done
cat "$RESULTS"/*.counts | awk -v programs=$# '
    { passed += $1; failed += $2 }
    END {
        if (NR != programs) print "FAILED: " programs - NR " programs did not run to their end"
        failed += programs - NR
        print passed + 0 " passed, " failed " failed"
        exit failed != 0
    }'
