#!/bin/sh
# Installs into a temporary folder. Builds and runs programs with the flags of pkg-config, in a
# folder in which no other doorman.h can be found. Then uninstalls. Also checks which commands of
# make install packages.
set -u
# shellcheck source=tests/check.sh
. tests/check.sh
unset MAKEFLAGS MFLAGS MAKELEVEL # set by the make that runs this script

# shellcheck disable=SC2086 # flags are several words
compile_c() { (cd "$folder/work" && ${CC:-cc} ${CPPFLAGS:-} -std=c11 "$@"); }
# shellcheck disable=SC2086
compile_cxx() { (cd "$folder/work" && ${CXX:-g++} ${CPPFLAGS:-} -std=c++11 "$@"); }

installs() { make CC="${CC:-cc}" CPPFLAGS="${CPPFLAGS:-}" install "$@"; }

# DESTDIR only says where the files are written. No file may contain it.
is_packed() {
    installs DESTDIR="$folder/package" PREFIX=/usr
    (cd "$folder/package" && find . ! -type d | sort) >"$folder/packed"
    printf './usr/%s\n' bin/doorman_server bin/doormanctl include/doorman.h \
        include/doorman_permits.h include/doorman_throttle.h \
        lib/cmake/doorman/doormanConfig.cmake lib/cmake/doorman/doormanConfigVersion.cmake \
        share/bash-completion/completions/doormanctl share/man/man1/doormanctl.1 \
        share/pkgconfig/doorman.pc share/zsh/site-functions/_doormanctl |
        sort | cmp - "$folder/packed" && ! grep -r -I "$folder" "$folder/package"
}

server_runs() {
    version=$("$prefix/bin/doorman_server" --version) && echo "$version" &&
        grep "\"${version##* }\"" "$prefix/include/doorman.h" &&
        "$prefix/bin/doorman_server" --config config.example.json --check-config
}

doormanctl_runs() {
    "$prefix/bin/doormanctl" --version && "$prefix/bin/doormanctl" help config check
}
is_left_out() {
    make -n CTL=0 install PREFIX="$prefix" >"$folder/made" && ! grep doormanctl "$folder/made"
}

version_is_right() {
    "$prefix/bin/doorman_server" --version | grep -w -F -e "$(pkg-config --modversion doorman)"
}

# shellcheck disable=SC2046 # flags are several words
core_in_c() {
    compile_c library_only.c $(pkg-config --cflags --libs doorman) -o library_only &&
        "$folder/work/library_only"
}

# shellcheck disable=SC2046
core_in_cxx() {
    compile_c -DDOORMAN_IMPLEMENTATION -x c -c "$prefix/include/doorman.h" -o core.o &&
        compile_cxx $(pkg-config --cflags --libs doorman) -x c++ use.c -x none core.o -o use &&
        "$folder/work/use"
}

# The header of the throttle finds doorman.h in its own folder.
# shellcheck disable=SC2046
throttle_in_c() {
    printf '%s\n' '#define DOORMAN_STATIC' '#define DOORMAN_IMPLEMENTATION' \
        '#include <doorman_throttle.h>' 'int main(void) {' 'doorman_retry_budget budget;' \
        'doorman_retry_budget_init(&budget);' 'return !doorman_retry_budget_retry(&budget);' '}' \
        >"$folder/work/throttle.c" &&
        compile_c throttle.c $(pkg-config --cflags --libs doorman) -o throttle &&
        "$folder/work/throttle"
}

# shellcheck disable=SC2046
all_in_c() {
    compile_c rate_client.c $(pkg-config --cflags --libs --static doorman) -o rate_client
}

# shellcheck disable=SC2046
all_in_cxx() {
    compile_c -DDOORMAN_IMPLEMENTATION -DDOORMAN_JSON -DDOORMAN_NNG -x c -c \
        "$prefix/include/doorman.h" -o all.o &&
        compile_cxx gauge_guard.cpp all.o $(pkg-config --cflags --libs --static doorman) -o guard
}

nothing_is_left() {
    make uninstall "$@" && [ -z "$(find "$folder/package" "$prefix" ! -type d)" ]
}

# Runs make on a system that seems to lack all headers. The programs that could install them only
# write their names and arguments to $folder/calls.
make_without_headers() { # goal
    : >"$folder/calls"
    PATH="$folder/installers:$PATH" make CPPFLAGS=-nostdinc CALLS="$folder/calls" "$@" \
        >"$folder/made" 2>&1
}
stops_and_names_deps() { # goal
    ! make_without_headers "$1" && cat "$folder/made" &&
        grep -q 'missing: .*nng.* Run: make deps$' "$folder/made" && [ ! -s "$folder/calls" ]
}
installs_packages() {
    make_without_headers deps && cat "$folder/made" &&
        grep -q 'missing: .*nng.* Installing .*libnng-dev' "$folder/made" &&
        grep -q 'install .*libnng-dev' "$folder/calls"
}

prefix=$folder/prefix
mkdir "$folder/work" "$folder/installers"
for installer in apt-get sudo; do
    # shellcheck disable=SC2016 # expands in the script that is written
    printf '#!/bin/sh\necho "$0 $*" >>"$CALLS"\n' >"$folder/installers/$installer"
    chmod +x "$folder/installers/$installer"
done
for goal in build/doorman_server build/plain/unit/shares_test; do
    check 'without its libraries, make names them and installs nothing' stops_and_names_deps $goal
done
check 'make deps says what it installs, and installs it' installs_packages
cp examples/library_only.c examples/rate_client.c examples/gauge_guard.cpp tests/compile/use.c \
    "$folder/work"
check 'a package has the expected files, and no path of this machine' is_packed
check 'all files are installed' installs PREFIX="$prefix"
check 'the installed server runs' server_runs
check 'the installed doormanctl runs' doormanctl_runs
check 'CTL=0 leaves doormanctl out' is_left_out
export PKG_CONFIG_PATH="$prefix/share/pkgconfig"
check_with pkg-config 'the version is that of the header' version_is_right
check_with pkg-config 'a program in C without libraries' core_in_c
check_with pkg-config 'a program in C++ without libraries' core_in_cxx
check_with pkg-config 'a program in C with a throttle' throttle_in_c
check_with pkg-config 'a program in C with nng' all_in_c
check_with pkg-config 'a program in C++ with nng' all_in_cxx
check 'a package is uninstalled' make uninstall DESTDIR="$folder/package" PREFIX=/usr
check 'nothing is left' nothing_is_left PREFIX="$prefix"
check_end
