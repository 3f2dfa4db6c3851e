#!/bin/sh
# Checks that what CONTRIBUTING.md, README.md and docs/ name exists: the targets of make, the files,
# the sources of the programs in build/, and the functions and the metrics. Commands and
# names are in blocks of code or in backticks. Also checks that all files have the same version.
set -u
# shellcheck source=tests/check.sh
. tests/check.sh

# Prints the code of a page, one word on each line.
code_of() { # page
    awk '/^```/ { inside = !inside; next }
        inside { print; next }
        { while (match($0, /`[^`]+`/)) {
            print substr($0, RSTART + 1, RLENGTH - 2)
            $0 = substr($0, RSTART + RLENGTH)
        } }' "$1" | sed 's/  *#.*//'
}

# Each target is a rule of the Makefile.
targets_exist() { # page
    code_of "$1" | sed -n 's/^make \([a-z_]*\)\( .*\)\{0,1\}$/\1/p' | sort -u >"$folder/targets"
    while read -r target; do
        [ -z "$target" ] || grep -q "^$target:" Makefile || echo "make $target"
    done <"$folder/targets" >"$folder/unknown"
    ! grep . "$folder/unknown"
}

# Succeeds if a path exists. A word in capitals, such as NAME, matches any name.
path_exists() { # path
    case $1 in
    *NAME* | *...*) return 0 ;;
    build/asan/fuzz/*) ls tests/fuzz/"${1##*/}.c" ;;
    build/sim/sim) ls tests/sim/sim.c ;;
    build/*/doorman_server) ls doorman_server.c ;;
    build/plain/* | build/asan/* | build/tsan/*) ls tests/"${1#build/*/}"* ;;
    *) eval "ls -d $1" ;; # it may be a pattern
    esac >/dev/null 2>&1
}
paths_exist() { # page
    code_of "$1" | tr -s " =()<>'\"" '\n' |
        grep -E '^(\.ci|tests|server|examples|build/(plain|asan|tsan|sim))/' | sort -u \
        >"$folder/paths"
    while read -r path; do
        path_exists "$path" || echo "$path"
    done <"$folder/paths" >"$folder/unknown"
    [ -s "$folder/paths" ] && ! grep . "$folder/unknown"
}

# Names of functions and files of code, and of metrics, which the server writes without the prefix.
names_exist() { # page, pattern
    code_of "$1" | tr -c 'a-z0-9_\n' '\n' | grep -E -x "$2" | sort -u >"$folder/names"
    while read -r name; do
        grep -r -q -w -e "$name" -e "\"${name#doorman_}\"" Makefile doorman*.h doorman_server.c \
            server examples || echo "$name"
    done <"$folder/names" >"$folder/unknown"
    ! grep . "$folder/unknown"
}

# Prints what a pattern of grep finds in a table of C, without its quotes.
table_of() { # the first line of the table, pattern, FILE...
    first=$1 pattern=$2
    shift 2
    cat "$@" | awk -v first="$first" '$0 ~ first { inside = 1 } inside; /^$|^};/ { inside = 0 }' |
        grep -oE "$pattern" | sed 's/[")]*$//; s/.*[ ("]//'
}

# The fields of C that the parameters of an algorithm have.
parameters_of() {
    table_of 'doorman__row doorman__parameter_rows\\[' 'doorman_algorithm, [a-z_]+' doorman.h
}

# The fields of JSON that the rows of a struct have.
fields_of() { # rows
    table_of "doorman__row doorman__$1\\\\[" \
        'DOORMAN__[A-Z_]*\("[a-z_]+"|DOORMAN__ROW(_HAS)?\([^"]*, [a-z_]+\)' doorman_permits.h
}

# Those of them that are numbers of a unit.
numbers_of() { # rows
    types='RATE|AMOUNT|SECONDS|DURATION|SIZE|UINT32|NUMBER|FRACTION'
    table_of "doorman__row doorman__$1\\\\[" \
        "($types), ([A-Z_]+, )?doorman_[a-z_]+, [a-z_]+" doorman_permits.h
}

# The paths that the parts of the server have.
paths_of_server() {
    table_of 'struct http_route [a-z_]*\\[' '\{"/[^"]*"' server/*/*.c | sed 's:\(.\)/$:\1:'
}

# Prints each line of a list that is not in a file.
missing_in() { # list, pattern with NAME for the line, FILE...
    list=$1 pattern=$2 where=$3
    shift 2
    [ $# -eq 1 ] || where=${where%/*}
    where=${where#"$folder/"} # a part of a file
    while read -r name; do
        known=$(printf '%s' "$pattern" | sed "s:NAME:$name:g")
        cat "$@" | grep -qE -e "$known" || echo "$name is missing in $where"
    done <"$list"
}
nothing_is_missing() { # prints what is read
    cat >"$folder/missing"
    ! grep . "$folder/missing"
}
has_lines() { # list, how many at least
    [ "$(wc -l <"$1")" -ge "$2" ] || echo "$1 has too few lines"
}

# These checks name each page and each table that lacks a field, a path or a kind. A page has
# the name of a field in backticks, so the patterns need a character there that is no letter.
fields_are_documented() {
    for rows in limit_rows figure_rows; do fields_of "$rows"; done >"$folder/fields"
    {
        has_lines "$folder/fields" 30
        missing_in "$folder/fields" '^\|[^|]*[^|a-z_]NAME[^|a-z_][^|]*\|' docs/configuration.md
        missing_in "$folder/fields" '"NAME[^a-z_]' tests/fuzz/json.dict
    } | nothing_is_missing
}
numbers_have_units() {
    for rows in limit_rows figure_rows; do numbers_of "$rows"; done >"$folder/fields"
    table='the table NAMES AND UNITS of doorman_permits.h'
    sed -n '/^ \* NAMES AND UNITS/,/^ \* CONTENTS/p' doorman_permits.h >"$folder/$table"
    {
        has_lines "$folder/fields" 12
        missing_in "$folder/fields" '^ \*     .*[ ,]NAME[ ,]' "$folder/$table"
    } | nothing_is_missing
}
# The simulator sets each field of a limit, except for two: it has no other fair_window than the
# default, and a unit test has random figures of callers (set_max).
fields_are_simulated() {
    rows='doorman__row doorman__limit_rows\\['
    table_of "$rows" 'doorman_permit_limit, [a-z_]+' doorman_permits.h |
        grep -vxE 'fair_window|set_max' >"$folder/fields"
    {
        has_lines "$folder/fields" 18
        missing_in "$folder/fields" '[.>]NAME([^a-z_]|$)' tests/sim/*.[ch]
    } | nothing_is_missing
}
# No row has a time_to_live, and the role support may not change a window.
figures_have_bounds() {
    fields_of figure_rows | grep -vxE 'time_to_live|window' >"$folder/fields"
    {
        has_lines "$folder/fields" 8
        missing_in "$folder/fields" '\{"set\.NAME[":]' server/admin/override.c
    } | nothing_is_missing
}
# /v1/reset is a method of the protocol, and one row of the page has all of them. docs/operations.md
# also has the fields of two paths. Programs ask the two probes, so no page links to them.
paths_are_everywhere() {
    paths_of_server >"$folder/paths"
    grep -vx /v1/reset "$folder/paths" >"$folder/described"
    grep /v1 "$folder/paths" | grep -vxE '/v1/(status|shards)' >"$folder/json"
    grep -vE '^/(v1/.*|healthz|readyz)$' "$folder/paths" >"$folder/pages"
    {
        has_lines "$folder/paths" 40
        has_lines "$folder/pages" 15
        missing_in "$folder/described" '^\|[^|]*[^|a-z]NAME[^|a-z/][^|]*\|' docs/operations.md
        missing_in "$folder/json" 'NAME([^a-z]|$)' docs/protocol.md
        missing_in "$folder/paths" '"NAME["/]' server/pages/openapi.json
        missing_in "$folder/paths" '[" ]NAME[?"/ ]' tests/fuzz/http.dict
        missing_in "$folder/paths" '[" ]NAME[?"/ ]' tests/system/*.c
        missing_in "$folder/pages" "href=.?[\"']NAME[\"'?]" server/pages/*.c |
            sed 's/^/the link to /'
    } | nothing_is_missing
}
kinds_are_everywhere() {
    table_of 'define DOORMAN_KINDS' 'X\([A-Z_]+, "[A-Z_]+"' doorman.h >"$folder/kinds"
    table_of 'define DOORMAN_KINDS' 'X\([A-Z_]+' doorman.h >"$folder/codes"
    schema='Kind of openapi.json' enum='the list in Kind of openapi.json'
    examples='the examples of >>shares' solvers='doorman__solvers'
    sed -n '/^    "Kind": {/,/^    },/p' server/pages/openapi.json >"$folder/$schema"
    sed -n '/"enum"/,/\]/p' "$folder/$schema" >"$folder/$enum"
    sed -n '/^\/\* ---- >>shares /,/^ \*\//p' doorman.h >"$folder/$examples"
    sed -n '/ doorman__solvers\[.* = {$/,/^};/p' doorman.h >"$folder/$solvers"
    {
        has_lines "$folder/kinds" 5
        missing_in "$folder/kinds" '^\| .algorithm.kind. \|.*.NAME.' docs/configuration.md
        missing_in "$folder/kinds" '"NAME"' "$folder/$enum"
        missing_in "$folder/kinds" '[ .]NAME: ' "$folder/$schema"
        missing_in "$folder/kinds" '^ \*   NAME ' "$folder/$examples"
        missing_in "$folder/codes" '\[NAME\] = doorman__solve_' "$folder/$solvers"
        missing_in "$folder/kinds" '[^A-Z_]NAME[^A-Z_]' tests/fuzz/json.dict
        for file in system/server_test.c unit/json_test.c; do
            missing_in "$folder/kinds" '[ "]NAME(, |[,"]*$|\\)' "tests/$file"
        done
        for file in unit/shares_test.c unit/configuration_test.c unit/tree_test.c fuzz/message.c \
            sim/sim_faults.c sim/sim_check.c; do
            missing_in "$folder/codes" '[^A-Z_]NAME([^A-Z_]|$)' "tests/$file"
        done
    } | nothing_is_missing
}
parameters_are_everywhere() {
    parameters_of >"$folder/parameters"
    schema='Parameter of openapi.json'
    sed -n '/^    "Parameter": {/,/^    },/p' server/pages/openapi.json >"$folder/$schema"
    writer='doorman__put_algorithm'
    sed -n "/ $writer(/,/^}/p" doorman.h >"$folder/$writer"
    {
        has_lines "$folder/parameters" 7
        missing_in "$folder/parameters" '^\| .algorithm\..*[^a-z_]NAME[^a-z_]' \
            docs/configuration.md
        missing_in "$folder/parameters" '[^a-z_]NAME[^a-z_]' tests/fuzz/json.dict
        for file in fuzz/configuration.c unit/json_test.c unit/configuration_test.c; do
            missing_in "$folder/parameters" '[^a-z_]NAME[^a-z_]' "tests/$file"
        done
        grep -vxE 'lease_length|refresh_interval' "$folder/parameters" >"$folder/named"
        missing_in "$folder/named" '[^a-z_]NAME[^a-z_]' "$folder/$schema"
        missing_in "$folder/named" '[^a-z_]NAME[^a-z_]' "$folder/$writer"
    } | nothing_is_missing
}
# The test names the kinds that have a term for each priority. Other texts name them too.
kinds_by_priority_are_named() {
    sed -n '/bool by_priority =/,/;/p' tests/unit/shares_test.c | grep -oE 'DOORMAN_[A-Z_]+' |
        while read -r code; do
            table_of 'define DOORMAN_KINDS' "X\\($code, \"[A-Z_]+\"" doorman.h
        done >"$folder/kinds"
    comment='the comment of doorman_shares'
    sed -n '/^ \*   terms_count  written/,/^ \*   error /p' doorman.h >"$folder/$comment"
    {
        has_lines "$folder/kinds" 1
        missing_in "$folder/kinds" '[^A-Z_]NAME[^A-Z_]' "$folder/$comment"
        missing_in "$folder/kinds" '^\| .resource\[\]\.priority. .*[^A-Z_]NAME[^A-Z_]' \
            docs/protocol.md
        missing_in "$folder/kinds" 'number is more important.*[^A-Z_]NAME[^A-Z_]' \
            server/pages/openapi.json
    } | nothing_is_missing
}
reasons_are_everywhere() {
    table_of 'define DOORMAN_REASONS' 'X\(DOORMAN_REASON_[A-Z_]+, "[A-Z_]+"' doorman_permits.h \
        >"$folder/reasons"
    schema='PermitReason of openapi.json' table='the reasons of a permit in protocol.md'
    sed -n '/^    "PermitReason": {/,/^    },/p' server/pages/openapi.json >"$folder/$schema"
    sed -n '/^| reason of a permit /,/^$/p' docs/protocol.md >"$folder/$table"
    {
        has_lines "$folder/reasons" 16
        missing_in "$folder/reasons" '^\| .NAME. \|' "$folder/$table"
        missing_in "$folder/reasons" '"NAME"' "$folder/$schema"
    } | nothing_is_missing
}

# .ci/run tries one of three parts of what is long.
parts_are_all() {
    seq 20 >"$folder/lines"
    for part in 1 2 3; do PART=$part/3 sh tests/part.sh <"$folder/lines"; done | sort -n |
        cmp - "$folder/lines"
}
parts_are_refused() { # PART...
    for part; do
        seq 3 | PART=$part sh tests/part.sh && return 1
    done
    :
}

check 'each line is in one of the parts' parts_are_all
check 'a part that does not exist is refused' parts_are_refused 4/3 0/3 1/0 1 x 1/2/3
for page in CONTRIBUTING.md README.md docs/*.md docs/*/*.md; do
    check "the targets of $page exist" targets_exist "$page"
    check "the functions and metrics of $page exist" names_exist "$page" 'doorman_[a-z_]+[a-z]'
done
check 'the files that CONTRIBUTING.md names exist' paths_exist CONTRIBUTING.md
check 'the files that docs/architecture.md names exist' paths_exist docs/architecture.md
check 'the functions that docs/architecture.md names exist' names_exist docs/architecture.md \
    '[a-z]+_[a-z_]+[a-z]'
check 'each field of a limit is in docs/configuration.md and a dictionary' fields_are_documented
check 'each number of a limit has a unit in the table NAMES AND UNITS' numbers_have_units
check 'each field of a limit is in the simulator, or fields_are_simulated leaves it out' \
    fields_are_simulated
check 'each figure of an override has a bound for the role support' figures_have_bounds
check 'each path is in the docs, the description, a dictionary, a test and a link' \
    paths_are_everywhere
check 'each kind of share is in the page, the description, lists and tests' kinds_are_everywhere
check 'each parameter of an algorithm is in the page, the description and tests' \
    parameters_are_everywhere
check 'each kind with a term for each priority is named where priorities are described' \
    kinds_by_priority_are_named
check 'each reason of a permit is in the table of docs/protocol.md and in the description' \
    reasons_are_everywhere
check 'all files have the version of doorman.h' sh .ci/release --versions
check_end
