#!/bin/sh
# Compiles and links doorman.h in the ways that it promises to work (C6), without a warning: C99,
# C++11 and C11, with and without its optional sections, by gcc and by clang where there is one.

# shellcheck disable=SC2086 # flags are several words
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
passed=0 failed=0

check() { # a command
    if "$@" >"$folder/output" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "[  FAILED  ] $cc, $cxx: $*"
        head -20 "$folder/output"
    fi
}

c() { # the standard, the rest
    standard=$1
    shift
    $cc "-std=$standard" $CPPFLAGS $WARNINGS -Wstrict-prototypes -Wmissing-prototypes -Werror -O1 \
        -I. "$@"
}

cxx() { $cxx -std=c++11 $CPPFLAGS $WARNINGS -Werror -O1 -I. "$@"; }

works() { # where from, the compilation: what it builds says so itself
    "$@" -o "$folder/use" && "$folder/use"
}

# Sections 1 to 8 keep nothing between calls (C2): the object has no data that can be written.
has_no_globals() {
    c c11 -fno-pic -c -x c doorman.h -DDOORMAN_IMPLEMENTATION -o "$folder/core.o" &&
        ! nm "$folder/core.o" | grep -E ' [bBcCdD] '
}

compile_sections() { # the optional sections
    check c c99 -c -x c doorman.h "$@" -o /dev/null
    check cxx -c -x c++ doorman.h "$@" -o /dev/null
    set -- -DDOORMAN_IMPLEMENTATION "$@"
    check c c11 -c -x c doorman.h "$@" -o /dev/null
    check c c11 -c -x c doorman.h "$@" -DNDEBUG -o /dev/null
    check c c11 -c -x c doorman.h "$@" -DDOORMAN_STATIC -o /dev/null
}

compile_all() {
    compile_sections
    compile_sections -DDOORMAN_JSON
    compile_sections -DDOORMAN_JSON -DDOORMAN_NNG -D_DEFAULT_SOURCE

    check c c11 -c -x c doorman.h -DDOORMAN_IMPLEMENTATION -o "$folder/doorman.o"
    check works c c99 tests/compile/use.c "$folder/doorman.o"
    check works cxx -x c++ tests/compile/use.c -x none "$folder/doorman.o"
    check works c c11 -DDOORMAN_IMPLEMENTATION tests/compile/use.c
    check works c c11 -DDOORMAN_IMPLEMENTATION -DDOORMAN_STATIC tests/compile/use.c
    check has_no_globals

    for example in examples/*.c; do
        check c c11 -D_DEFAULT_SOURCE -c "$example" -o /dev/null
    done
    check cxx -c examples/gauge_guard.cpp -o /dev/null
}

cc=${CC:-cc} cxx=${CXX:-g++} CPPFLAGS=${CPPFLAGS:-} WARNINGS=${WARNINGS:-}
compile_all
if command -v clang >/dev/null && command -v clang++ >/dev/null; then
    cc=clang cxx=clang++
    compile_all
fi

echo "[  PASSED  ] $passed test(s)."
[ $failed = 0 ] || echo "[  FAILED  ] $failed test(s)"
[ $failed = 0 ]
