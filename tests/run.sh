#!/bin/sh
# Runs test programs one after the other: the output of one that fails, a count of each, and in the
# end the sum. `make test` calls it.
#
#   tests/run.sh build/plain/unit/shares_test ... tests/text_check.sh ...
#
# A program ends with status 0 and a line of cmocka's, "[  PASSED  ] 12 test(s).", and after
# failures "[  FAILED  ] 2 test(s), ..." too.
set -u
passed=0 failed=0 limit=''
if command -v timeout >/dev/null; then limit='timeout 300'; fi

# Compilers of before 2024 cannot place TSan's memory where the addresses of a program are random
# in more than 28 bits.
fixed_addresses=''
if setarch "$(uname -m)" -R true 2>/dev/null; then fixed_addresses="setarch $(uname -m) -R"; fi

count() { # a word of cmocka's
    printf '%s\n' "$output" |
        awk -v word="$1" '$1 == "[" && $2 == word && $5 ~ /^test/ { n += $4 } END { print n + 0 }'
}

for program; do
    before=''
    case $program in
    build/*)
        path=${program#build/}
        flavor=${path%%/*}
        path=${path#*/}
        label="${path%%/*} $flavor: ${path#*/}"
        export DOORMAN_SERVER="$PWD/build/$flavor/doorman_server"
        if [ "$flavor" = tsan ]; then before=$fixed_addresses; fi
        ;;
    *)
        label=${program##*/}
        before='sh'
        ;;
    esac
    printf '%-36s' "$label"
    # shellcheck disable=SC2086 # the words of commands
    output=$($limit $before "$program" 2>&1)
    status=$?
    good=$(count PASSED) bad=$(count FAILED) skipped=$(count SKIPPED)
    # One that crashed, hung or tested nothing has failed, whatever it said before.
    if [ $((good + bad)) = 0 ] || { [ $status != 0 ] && [ "$bad" = 0 ]; }; then bad=1; fi
    if [ "$bad" = 0 ]; then
        if [ "$skipped" = 0 ]; then skipped=''; else skipped=", $skipped skipped"; fi
        echo "$good passed$skipped"
    else
        echo "$good passed, $bad FAILED (status $status)"
        printf '%s\n' "$output"
    fi
    passed=$((passed + good)) failed=$((failed + bad))
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
