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
check 'all files have the version of doorman.h' sh .ci/release --versions
check_end
