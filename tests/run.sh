#!/bin/sh
# Runs test programs in parallel. Prints a line for each program when it ends. At the end it prints
# the whole output of the programs that failed, the names of the failed tests, and the totals with
# what the skipped tests need. `make test` calls it.
#
#   tests/run.sh build/plain/unit/shares_test ... tests/text_check.sh ...
#   tests/run.sh build/asan/system/tls_test:1/2 build/asan/system/tls_test:2/2    in two halves
#   tests/run.sh --into FOLDER build/asan/system/redis_test ...    only runs programs, and
#   tests/run.sh --sum FOLDER...                                   sums up what such runs have left
#
# JOBS is how many run at a time. The default is six per core, because tests mostly wait. A program
# that succeeds ends with status 0 and a line of cmocka, "[  PASSED  ] 12 test(s).". After failures
# it also prints "[  FAILED  ] 2 test(s), ...", and a line with the name of each failed test. If
# tests were skipped it prints "[  SKIPPED ] 3 test(s), ...", and for each of them a line such as
# "needs: chromium". A skipped test without that line is a failure, because the reader could not
# know what to install.
set -u

# A command that turns off the randomization of addresses. The TSan of compilers before 2024 does
# not work if more than 28 bits of the addresses are random.
fixed_addresses() {
    setarch "$(uname -m)" -R true 2>/dev/null && echo "setarch $(uname -m) -R"
}

count() { # PASSED, FAILED or SKIPPED, as in cmocka's output
    awk -v word="$1" '$1 == "[" && $2 == word && $5 ~ /^test/ { n += $4 } END { print n + 0 }' \
        "$output"
}

# Prints the seconds of the second line of `times`, for example 63 for "1m2.50s 0m0.25s".
processor_time() {
    sed -n '2{s/[ms]/ /g;p;}' "$output.times" | awk '{ printf "%.0f", $1 * 60 + $2 + $3 * 60 + $4 }'
}

# Prints the names of the failed tests. For a program that crashed or hung, also the running test.
failures() {
    sed -n 's/^\[  FAILED  \] \([^0-9]\)/\1/p' "$output" | awk '!seen[$0]++'
    [ "$status" = 1 ] || echo "status $status, after: $(grep '^\[ RUN' "$output" | tail -n 1)"
}

# Runs one program. Leaves its counts in $RESULTS, and its output if it failed.
run_one() {
    whole=$1 before=''
    program=${whole%%:*}
    [ "$program" = "$whole" ] || export TEST_PART="${whole#*:}"
    case $program in
    build/*)
        path=${whole#build/}
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
    # 20 minutes is far longer than any program takes, even on a busy machine.
    if command -v timeout >/dev/null; then before="timeout 1200 $before"; fi
    output=$RESULTS/$(echo "$whole" | tr / _)
    started=$(date +%s)
    # shellcheck disable=SC2086 # the words of commands
    $before "$program" >"$output" 2>&1
    status=$?
    times >"$output.times" # the processor time of this shell, and of the processes that have ended
    seconds=$(($(date +%s) - started))
    good=$(count PASSED) bad=$(count FAILED) skipped=$(count SKIPPED)
    # A program that crashed, hung or ran no test has failed, whatever it printed.
    if [ $((good + bad + skipped)) = 0 ] || { [ $status != 0 ] && [ "$bad" = 0 ]; }; then bad=1; fi
    grep '^needs: ' "$output" >"$output.lines"
    if [ "$(wc -l <"$output.lines")" != "$skipped" ]; then bad=$((bad + 1)); fi
    short=${program##*/}
    sed "s|^needs: \(.*\)|\1 (${short%.sh})|" "$output.lines" >"$output.needs"
    summary="$good passed"
    if [ "$skipped" != 0 ]; then summary="$summary, $skipped skipped"; fi
    if [ "$bad" != 0 ]; then summary="$summary, $bad FAILED (status $status)"; fi
    printf '%-36s%4s s,%4s s of a core  %s\n' "$label" $seconds "$(processor_time)" "$summary"
    echo "$good $bad $skipped" >"$output.counts"
    if [ "$bad" = 0 ]; then return; fi
    { echo "==== $label"; cat "$output"; } >"$output.failed"
    failures | sed "s|^|FAILED $label: |" >"$output.names"
}

if [ "${1:-}" = --one ]; then
    run_one "$2"
    exit 0
fi

# Runs the programs. Leaves their results in $RESULTS.
run_all() { # programs
    echo $# >"$RESULTS/programs"
    printf '%s\n' "$@" | xargs -P "${JOBS:-$((6 * $(nproc 2>/dev/null || echo 1)))}" -n 1 \
        sh "$0" --one
}

# Prints the files with this name of all folders.
print_all() { # name, folders
    name=$1
    shift
    for folder; do
        for file in "$folder"/$name; do
            if [ -e "$file" ]; then cat "$file"; fi
        done
    done
}

sum_up() { # folders
    print_all '*.failed' "$@"
    print_all '*.names' "$@"
    programs=$(print_all programs "$@" | awk '{ n += $1 } END { print n + 0 }')
    needs=$(print_all '*.needs' "$@" | sort -u |
        awk '{ printf "%s%s", NR == 1 ? ": " : ", ", $0 }')
    print_all '*.counts' "$@" | awk -v programs="$programs" -v needs="$needs" '
        { passed += $1; failed += $2; skipped += $3 }
        END {
            if (NR != programs) print "FAILED: " programs - NR " programs did not finish"
            failed += programs - NR
            print passed + 0 " passed, " failed " failed, " skipped + 0 " skipped" needs
            exit failed != 0
        }'
}

trap 'exit 1' INT TERM
case ${1:-} in
--into)
    export RESULTS="$2"
    shift 2
    rm -rf "$RESULTS"
    mkdir -p "$RESULTS"
    run_all "$@"
    exit 0 # the sum says what has failed
    ;;
--sum)
    shift
    sum_up "$@"
    exit
    ;;
esac
RESULTS=$(mktemp -d)
export RESULTS
trap 'rm -rf "$RESULTS"' EXIT
run_all "$@"
sum_up "$RESULTS"
