#!/bin/sh
# Compiles and links the headers in all supported ways, without warnings (C6): C99, C++11 and C11,
# with and without the optional sections. Programs that need no library also run. With --all it does
# so with gcc and clang, for 64 and 32 bits, and for Windows (without the section that needs nng).
# A compiler that is not installed is one skipped check. Programs for 32 bits must print the same as
# those for 64 bits.
#
#   tests/compile_check.sh         the default compiler, at one level of optimization or another
#   tests/compile_check.sh --all   all compilers at all levels: `make matrix`; PART=2/3 does every
#                                  third check, from the second one on
#
# `table` prints one line per check: a command that uses the functions below. The lines run in
# parallel, each in a process of this script with `--line`.

# shellcheck disable=SC2086 # compilers and flags are several words
set -u
export CPPFLAGS="${CPPFLAGS:-}" WARNINGS="${WARNINGS:-}" emulator="${emulator:-}"
mingw=x86_64-w64-mingw32
nng='-DDOORMAN_JSON -DDOORMAN_NNG -D_DEFAULT_SOURCE'

# Makes floating point on 32-bit x86 work as on other processors: see "threads and time" in
# doorman.h.
sse='-msse2 -mfpmath=sse'

# Leaves the implementation out of a program, as the Makefile does for programs that link it.
linked='-DDOORMAN__IMPLEMENTED -DDOORMAN__PERMITS_IMPLEMENTED -DDOORMAN__THROTTLE_IMPLEMENTED'

compile_c() { # a compiler with its flags, the standard, the rest
    compiler=$1 standard=$2
    shift 2
    $compiler "-std=$standard" $CPPFLAGS $WARNINGS -Wstrict-prototypes -Wmissing-prototypes \
        -Werror -I. "$@"
}

compile_cxx() { # the same
    compiler=$1 standard=$2
    shift 2
    $compiler "-std=$standard" $CPPFLAGS $WARNINGS -Werror -I. "$@"
}

# Both include doorman.h.
headers='-include doorman_permits.h -include doorman_throttle.h'
public_c() { compile_c "$@" $headers -c -x c /dev/null -o /dev/null; }
public_cxx() { compile_cxx "$@" $headers -c -x c++ /dev/null -o /dev/null; }
implementation() {
    compile_c "$@" -DDOORMAN_IMPLEMENTATION $headers -c -x c /dev/null -o /dev/null
}
header_alone() { # its name, a compiler, a standard, flags
    header=$1
    shift
    compile_c "$@" -DDOORMAN_IMPLEMENTATION -c -x c "$header" -o /dev/null
}
source_c() { compile_c "$@" -c -o /dev/null; }

# A program of these lines. One that must not compile is refused with a text of the header's.
program() { printf '%s\n' "$@" >"$own/program.c"; }
is_refused() { # the expected error, a compiler, the lines
    wanted=$1 compiler=$2
    shift 2
    program "$@"
    if compile_c "$compiler" c11 -fsyntax-only "$own/program.c" 2>"$own/log"; then
        echo "compiled, and should not have"
        return 1
    fi
    grep -F "$wanted" "$own/log" || { cat "$own/log" && return 1; }
}
is_accepted() { # a compiler, the lines
    compiler=$1
    shift
    program "$@"
    compile_c "$compiler" c11 -fsyntax-only "$own/program.c"
}

# The sizes in docs/library.md are those of gcc on x86-64. Another version of gcc may need a tenth
# more. A program grows by a page at a time, so one more byte of code may make a page more.
size_is_documented() { # a compiler, a text of the row of the page, the rest
    row="/tests.compile.bucket.c/,/only prints a line/s/^| .*$2.*| \([0-9,]*\) |\$/\1/p"
    documented=$(sed -n "$row" docs/library.md | tr -d ,)
    compiler=$1
    shift 2
    compile_c "$compiler" c11 -O2 -s "$@" tests/compile/bucket.c -o "$own/bucket" || return 1
    bytes=$(wc -c <"$own/bucket")
    echo "docs/library.md says ${documented:-nothing}, and the program has $bytes bytes"
    page=4096
    [ "$bytes" -le $((documented * 11 / 10 + page)) ] &&
        [ "$bytes" -ge $((documented * 9 / 10 - page)) ]
}

# A program that only has leases links little, and nothing of servers, permits or the throttle.
# clang inlines more.
links_leases_alone() { # a compiler, the most bytes with gcc, the source, flags and other files
    most=$2
    case $1 in clang*) most=$(($2 * 7 / 5)) ;; esac
    compile_c "$1" c11 -O2 -D_DEFAULT_SOURCE -ffunction-sections -fdata-sections \
        -Wl,--gc-sections "$3" $4 -o "$own/use" &&
        ! nm "$own/use" | grep -E 'doorman_+(permit|server|election|throttle)' &&
        size "$own/use" | awk "NR == 2 { print; exit \$1 > $most }"
}

# The leases at -O2 with a section for each function are compiled once for these checks.
sizes_are_documented() { # a compiler
    compile_c "$1" c11 -O2 -DDOORMAN_IMPLEMENTATION -ffunction-sections -fdata-sections \
        -c -x c doorman.h -o "$own/core.o" &&
        links_leases_alone "$1" 61440 tests/compile/loop_client.c "$linked $own/core.o" || return 1
    [ "$($1 -dumpmachine)" = x86_64-linux-gnu ] || return 0
    $1 --version | grep -q 'Free Software Foundation' || return 0
    size_is_documented "$1" none $linked "$own/core.o" &&
        size_is_documented "$1" gc-sections $linked -Wl,--gc-sections "$own/core.o" &&
        size_is_documented "$1" DOORMAN_STATIC -DDOORMAN_IMPLEMENTATION -DDOORMAN_STATIC
}

# In C++ the implementation is one error, and it says what to do.
is_one_error() { # a compiler of C++, a header
    printf '#define DOORMAN_IMPLEMENTATION\n#include "%s"\n' "$2" >"$own/program.cpp"
    compile_cxx "$1" c++11 -c "$own/program.cpp" -o /dev/null 2>"$own/log" && return 1
    [ "$(grep -c ' error: ' "$own/log")" = 1 ] && grep 'define it in a .c file' "$own/log"
}

core() { compile_c "$@" -DDOORMAN_IMPLEMENTATION $headers -c -x c /dev/null -o "$own/core.o"; }

# Runs a program. Some kernels for 64 bits run no program for 32 bits. Then an emulator runs it.
run() { # the program, its arguments
    case $(od -An -tx1 -N5 "$1") in
    ' 7f 45 4c 46 01') $emulator "$@" ;; # ELF for 32 bits
    *) "$@" ;;
    esac
}

# Builds a program and runs it.
works() { "$@" -o "$own/use" && run "$own/use"; }

# Sections 1 to 8 have no global state (C2), so the object has no writable data. It also must not
# need libatomic, which programs do not link. Programs in C and in C++ link it.
object_works() { # a compiler of C, a compiler of C++
    core "$1" c11 -O1 -fno-pic &&
        ! nm "$own/core.o" | grep -E ' [bBcCdD] | __atomic_' &&
        works compile_c "$1 -no-pie" c99 tests/compile/use.c "$own/core.o" &&
        works compile_cxx "$2 -no-pie" c++11 -x c++ tests/compile/use.c -x none "$own/core.o"
}

# An example must print the same text with other flags.
example_is_the_same() { # an example, a compiler, the flags
    works compile_c "$2" c11 -O1 "$1" >"$own/expected" &&
        works compile_c "$2 $3" c11 "$1" >"$own/printed" &&
        cmp "$own/expected" "$own/printed"
}

# Simulates random systems and faults. The last line of the output ends with a hash of all events.
sim() { # a compiler with its level of optimization, the number of runs
    compile_c "$1" c11 -D_DEFAULT_SOURCE tests/sim/*.c -o "$own/sim" -lm &&
        run "$own/sim" faults --seeds "$2" >"$own/log"
}
sim_is_the_same() {
    sim "$@" && tail -n 1 "$own/log" >"$own/hash" && cat "$own/hash" &&
        build/sim/sim faults --seeds "$2" | tail -n 1 | cmp - "$own/hash"
}

# Links the simulator, without its processes, as a shared library, because that must not have
# undefined symbols. Two warnings are off: on Windows gcc does not check formats of printf by C11,
# and isinf is a macro that also takes floats.
links_on_windows() {
    # sim.c, which needs POSIX, includes them otherwise
    for header in sim sim_state store_fences; do echo "#include \"tests/sim/$header.h\""; done \
        >"$own/fences.c"
    core "$mingw-gcc" c11 -O2 &&
        compile_c "$mingw-gcc" c11 -O2 -Wno-format -Wno-float-conversion -shared \
            tests/sim/sim_[acdehnoprtw]*.c tests/sim/sim_leased*.c tests/sim/sim_s[et]*.c \
            "$own/fences.c" "$own/core.o" -o "$own/sim.dll"
}

# ---- the table

sections() { # a compiler of C, a compiler of C++, the flags of each set of sections
    c=$1 cxx=$2
    shift 2
    for section; do
        for standard in c99 c11 c2x; do echo "public_c '$c' $standard $section"; done
        for standard in c++11 c++20; do echo "public_cxx '$cxx' $standard $section"; done
        quick=-fsyntax-only levels='' # code is made of all sections together
        case $section in # the section nng has all others
        *DOORMAN_NNG*) quick='' levels=${all:+-O0 -O1 -O2 -O3} ;;
        esac
        for variant in $levels '-funsigned-char -fshort-enums -fsyntax-only' "-DNDEBUG $quick" \
            '-O1 -DDOORMAN_STATIC'; do
            echo "implementation '$c' c11 $variant $section"
        done
    done
}

# Macros that are missing, incomplete, or defined too late.
macros() { # a compiler of C
    include="'#include \"doorman.h\"'" implement="'#define DOORMAN_IMPLEMENTATION'"
    malloc="'#define DOORMAN_MALLOC(bytes) my_malloc(bytes)'"
    realloc="'#define DOORMAN_REALLOC(pointer, bytes) my_realloc(pointer, bytes)'"
    free="'#define DOORMAN_FREE(pointer) my_free(pointer)'"
    declare="'#include <stddef.h>' 'void *my_malloc(size_t bytes);' \
        'void *my_realloc(void *pointer, size_t bytes);' 'void my_free(void *pointer);'"
    for two in "$malloc $realloc" "$malloc $free" "$realloc $free" "$free"; do
        echo "is_refused 'or none' '$1' $declare $implement $two $include"
    done
    echo "is_accepted '$1' $declare $implement $malloc $realloc $free $include"
    with_json="'#define DOORMAN_JSON'" with_nng="'#define DOORMAN_NNG'"
    as_static="'#define DOORMAN_STATIC'"
    first='before the first include of doorman.h'
    echo "is_refused 'needs DOORMAN_JSON' '$1' $with_nng $include"
    echo "is_refused 'DOORMAN_JSON $first' '$1' $include $with_json $include"
    echo "is_refused 'DOORMAN_JSON $first' '$1' $include $implement $with_json $include"
    echo "is_refused 'DOORMAN_NNG $first' '$1' $with_json $include $implement $with_nng $include"
    echo "is_refused 'DOORMAN_STATIC $first' '$1' $include $as_static $include"
    twice="$with_json $with_nng $include $include $implement $include"
    echo "is_refused _DEFAULT_SOURCE '$1' $twice"
    echo "is_accepted '$1' '#define _DEFAULT_SOURCE' $twice"
    all_of_it="$implement $with_json $with_nng $include"
    echo "is_refused _DEFAULT_SOURCE '$1' '#include <stdio.h>' $all_of_it"
    posix="'#define _POSIX_C_SOURCE 200809L'"
    echo "is_refused _DEFAULT_SOURCE '$1' $posix '#include <stdio.h>' $all_of_it"
    echo "is_accepted '$1' $all_of_it '#include <stdio.h>'"
}

# No function that needs the caller's lock accepts a resource of an agent, and the reverse.
handles() { # a compiler of C
    header="'#define DOORMAN_JSON' '#define DOORMAN_NNG' '#include \"doorman.h\"'"
    agents="'void call(doorman_resource *it);' 'void call(doorman_resource *it) {'"
    clients="'void call(doorman_client_resource *it);' 'void call(doorman_client_resource *it) {'"
    wrong=incompatible-pointer-types
    for call in 'doorman_client_close(it, 0);' '(void)doorman_client_set_wants(it, 1, 0);' \
        '(void)doorman_client_try(it, 1, NULL, 0);' '(void)doorman_client_release(it, 1);'; do
        echo "is_refused $wrong '$1' $header $agents '$call' '}'"
        echo "is_accepted '$1' $header $clients '$call' '}'"
    done
    for call in 'doorman_resource_close(it);' '(void)doorman_resource_set_wants(it, 1);' \
        '(void)doorman_resource_try(it, 1, NULL);' '(void)doorman_resource_release(it, 1);'; do
        echo "is_refused $wrong '$1' $header $clients '$call' '}'"
        echo "is_accepted '$1' $header $agents '$call' '}'"
    done
}

# A status, a decision and an outcome cannot be mixed up: -Wall -Wextra of gcc and clang finds a
# conversion, -Wall of gcc finds a comparison too, and no value of one is a value of another.
mix_ups() { # a compiler of C
    header="'#define DOORMAN_JSON' '#define DOORMAN_NNG' '#include \"doorman.h\"'"
    begin="'int call(doorman_resource *it);' 'int call(doorman_resource *it) {'"
    try='doorman_resource_try(it, 1, NULL)' wait='doorman_resource_wait(it, 1, 0)'
    for wrong in "doorman_status is = $try; return is;" \
        'doorman_status is = DOORMAN_GRANTED; return is;' \
        "doorman_decision is = $wait; return is;" "return *doorman_status_name($try);"; do
        echo "is_refused enum-conversion '$1' $header $begin '$wrong' '}'"
    done
    for wrong in "$wait == DOORMAN_GRANTED" "$wait == DOORMAN_ALLOWED" "$try == DOORMAN_OK"; do
        if [ "$1" != clang ]; then
            echo "is_refused enum-compare '$1' $header $begin 'return $wrong;' '}'"
        fi
    done
    for apart in ALLOWED GRANTED; do
        none="'_Static_assert((int)DOORMAN_$apart > (int)DOORMAN_STATUS_COUNT, \"\");'"
        echo "is_accepted '$1' $header $none"
    done
    none="'_Static_assert((int)DOORMAN_IMPOSSIBLE < (int)DOORMAN_GRANTED, \"\");'"
    echo "is_accepted '$1' $header $none"
    echo "is_accepted '$1' $header $begin 'return $try == DOORMAN_ALLOWED;' '}'"
    echo "is_accepted '$1' $header $begin 'return $wait == DOORMAN_OK;' '}'"
}

# Returns whether a server starts, and whether SIGTERM ends it with success.
server_works() { # its program
    "$1" --config config.example.json --http off --listen tcp://127.0.0.1:0 2>"$own/log" &
    for _ in $(seq 1800); do
        if grep -q 'msg=serving' "$own/log"; then break; fi
        sleep 0.1
    done
    kill $!
    wait $! && grep -q 'msg=serving' "$own/log"
}

# doorman_server.c alone, as a person compiles it. It refuses the flags of the parts that it lacks.
server_alone() { # a compiler
    $1 $CPPFLAGS -Werror doorman_server.c -lnng -lcjson -pthread -o "$own/server" &&
        server_works "$own/server" || return 1
    for flag in '--http 127.0.0.1:0' '--check-config' '--etcd http://127.0.0.1:1' '--state x' \
        '--config etcd:key' '--tls-ca file' '--replace-at 80' '--parent tls+tcp://127.0.0.1:1'; do
        "$own/server" $flag 2>"$own/log" && return 1
        grep 'this server was built without' "$own/log" || { cat "$own/log" && return 1; }
    done
}

server_sources() { # a compiler of C, the levels of optimization
    parts=$(printf -- '-DDOORMAN_SERVER_%s ' CHECK ETCD HTTP IPC MEMORY NOTIFY REDIS REPLACE \
        REPORTS STATE TLS UNMATCHED WAITING WARNINGS WATCH)
    flags="-D_DEFAULT_SOURCE $linked -idirafter $folder $parts"
    for source in doorman_server.c server/*/*.c; do
        for level in $2; do
            echo "source_c '$1' c11 $flags $source $level"
        done
    done
}

# The implementation in an example is compiled often enough. One example needs its includes.
examples() { # a compiler of C
    for example in examples/*.c; do
        flags=$linked
        if [ "$example" = examples/permits_only.c ]; then flags=-fsyntax-only; fi
        echo "source_c '$1' c11 $flags -D_DEFAULT_SOURCE $example"
    done
}

programs() { # a compiler of C and one of C++
    echo "sizes_are_documented '$1'" # the longest first
    echo "object_works '$1' '$2'"
    for header in doorman*.h; do echo "is_one_error '$2' $header"; done
    for standard in c++11 c++20; do
        echo "compile_cxx '$2' $standard -Wall -Wextra -c tests/compile/options.cpp -o /dev/null"
    done
    echo "works compile_c '$1' c11 -DDOORMAN_IMPLEMENTATION tests/compile/use.c"
    echo "works compile_c '$1' c11 -O1 -DDOORMAN_IMPLEMENTATION -DDOORMAN_STATIC \
        tests/compile/use.c"
    level=-O1 # nearly all of the code, which `sections` compiles at all levels with --all
    if [ "$all" ]; then level=-fsyntax-only; fi
    echo "header_alone doorman_permits.h '$1' c11 $level $nng"
    for header in doorman.h doorman_throttle.h; do
        echo "header_alone $header '$1' c11 -fsyntax-only $nng"
    done
    for header in doorman_permits.h doorman_throttle.h; do
        echo "is_refused 'the same version' '$1' '#define DOORMAN_VERSION_NUMBER 1' \
            '#define DOORMAN_H' '#include \"$header\"'"
    done
    echo "is_refused 'include it before doorman.h' '$1' '#define DOORMAN_IMPLEMENTATION' \
        '#include \"doorman.h\"' '#include \"doorman_permits.h\"'"
    echo "links_leases_alone '$1' 122880 examples/rate_client.c '-lnng -lcjson -pthread'"
    examples "$1"
    for example in examples/*.cpp; do
        echo "compile_cxx '$2' c++11 -c $example -o /dev/null"
    done
    echo "server_alone '$1'"
    if [ ! "$all" ]; then return; fi
    server_sources "$1" '-O0 -O2'
}

for_32_bits() { # a compiler of C, a compiler of C++, both for 64 bits
    can_build multilib "$1 -m32" "$2 -m32" || return 0
    can_run_32_bits || return 0
    sections "$1 -m32" "$2 -m32" "$nng"
    echo "object_works '$1 -m32' '$2 -m32'"
    for example in examples/library_only.c examples/local_limiters.c; do
        echo "example_is_the_same $example '$1' '-m32 $sse -O0'"
        echo "example_is_the_same $example '$1' '-m32 $sse -O3'"
    done
    echo "sim_is_the_same '$1 -m32 $sse -O2' $runs"
    echo "sim '$1 -m32 -O1' $runs"
    server_sources "$1 -m32" -O2
}

for_windows() {
    can_build mingw $mingw-gcc $mingw-g++ || return 0
    sections $mingw-gcc $mingw-g++ "-DDOORMAN_JSON -I$folder"
    echo links_on_windows
    for example in examples/l*.c; do
        echo "compile_c $mingw-gcc c11 -O2 $example -o \"\$own/example.exe\""
    done
}

table() {
    for c in "$CC" $clang; do
        if [ "$c" = clang ]; then cxx='clang++'; else cxx=$CXX; fi
        sections "$c" "$cxx" '' -DDOORMAN_JSON "$nng"
        programs "$c" "$cxx"
        macros "$c"
        handles "$c"
        mix_ups "$c"
        if [ "$all" ]; then for_32_bits "$c" "$cxx"; fi
    done
    if [ ! "$all" ]; then return; fi
    for_windows
}

# Returns whether a compiler of C and a compiler of C++ are installed and can build programs. If
# not, their checks are skipped, and a line for tests/run.sh says so.
can_build() { # their name in .ci/deps, a compiler of C, a compiler of C++
    for compiler in "$2 -x c" "$3 -x c++"; do
        echo 'int main(void) { return 0; }' |
            $compiler - -o "$folder/program" 2>/dev/null && continue
        echo "needs: $1" >&2
        skipped=$((skipped + 1))
        return 1
    done
}

# Returns whether the program that can_build has made last can run. If it needs the emulator, sets
# it. The simulator is ten times slower there.
can_run_32_bits() {
    "$folder/program" 2>/dev/null && return
    emulator=qemu-i386 runs=40
    $emulator "$folder/program" 2>/dev/null && return
    echo "needs: emulator" >&2
    skipped=$((skipped + 1))
    return 1
}

if [ "${1:-}" = --line ]; then
    own=$(mktemp -d "$3/XXXXXX")
    if output=$(eval "$2" 2>&1); then
        echo passed
    else
        printf '[  FAILED  ] %s\n%s\n' "$2" "$(printf '%s\n' "$output" | head -20)"
    fi
    rm -rf "$own"
    exit
fi

CC=${CC:-cc} CXX=${CXX:-g++} all='' runs=200 clang='' skipped=0
if [ "${1:-}" = --all ]; then all=yes; fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ "$all" ] && [ "$CC" != clang ] && can_build clang clang clang++; then clang=clang; fi

# The compilers for Windows do not search the system's folders, so they need a copy of cJSON's
# header, which is the same on Windows. The compilers for 32 bits need a copy of libcurl's headers,
# because Debian keeps them in a folder for 64 bits.
path_of() { # a header
    echo "#include <$1>" | $CC $CPPFLAGS -M -x c - | tr ' ' '\n' | grep -m 1 "/$1\$"
}
mkdir "$folder/cjson"
cp "$(path_of cjson/cJSON.h)" "$folder/cjson"
cp -r "$(dirname "$(path_of curl/curl.h)")" "$folder/curl"

table | sh tests/part.sh >"$folder/table" || exit
tr '\n' '\0' <"$folder/table" |
    xargs -0 -P "$(nproc 2>/dev/null || echo 2)" -I LINE sh "$0" --line LINE "$folder" \
        >"$folder/results"
grep -v '^passed$' "$folder/results"
passed=$(grep -c '^passed$' "$folder/results")
failed=$(($(wc -l <"$folder/table") - passed))
echo "[  PASSED  ] $passed test(s)."
[ $skipped = 0 ] || echo "[  SKIPPED ] $skipped test(s)"
[ $failed = 0 ] || echo "[  FAILED  ] $failed test(s)"
[ $failed = 0 ]
