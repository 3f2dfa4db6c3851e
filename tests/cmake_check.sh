#!/bin/sh
# Builds examples/cmake with CMake, as docs/library.md shows it, without warnings: with the headers
# of this folder, and with installed headers that find_package finds.
set -u
# shellcheck source=tests/check.sh
. tests/check.sh
require cmake
prefix=$folder/moved

# The prefix is moved after the installation, so nothing may contain its path.
install_and_move() {
    (unset MAKEFLAGS MFLAGS MAKELEVEL &&
        make install_headers DESTDIR="$folder/stage" PREFIX=/opt) &&
        mv "$folder/stage/opt" "$prefix"
}

builds_with_installed() {
    cmake -S examples/cmake/installed -B "$folder/installed" -DCMAKE_PREFIX_PATH="$prefix" \
        -DCMAKE_C_FLAGS=-Werror -DCMAKE_CXX_FLAGS=-Werror &&
        cmake --build "$folder/installed" &&
        grep -r -h -F -e "$prefix/include/doorman_permits.h" --include='*.d' "$folder/installed" &&
        ! grep -r -F -e "$PWD/doorman" --include='*.d' "$folder/installed"
}

# doorman::core has no libraries.
installed_run() {
    "$folder/installed/hold_guard" --help | grep -q usage &&
        "$folder/installed/library_only" &&
        ! grep -r -e nng -e cjson "$folder/installed/CMakeFiles/library_only.dir/link.txt"
}

# Prints what find_package finds, in a project with $languages.
languages=NONE
find_doorman() { # arguments of find_package, options of cmake...
    rm -rf "$folder/find"
    mkdir "$folder/find"
    # shellcheck disable=SC2016 # CMake expands these
    printf '%s\n' 'cmake_minimum_required(VERSION 3.16)' "project(find $languages)" \
        "find_package(doorman $1)" 'get_target_property(include doorman::core' \
        '    INTERFACE_INCLUDE_DIRECTORIES)' \
        'message(STATUS "found ${doorman_VERSION} ${include}")' \
        >"$folder/find/CMakeLists.txt"
    shift
    cmake -S "$folder/find" -B "$folder/find/build" -DCMAKE_PREFIX_PATH="$prefix" "$@" 2>&1
}
finds() { # arguments of find_package, options of cmake...
    find_doorman "$@" >"$folder/found" && cat "$folder/found" &&
        grep -q "found .* $prefix/include" "$folder/found"
}
finds_not() { # text, arguments of find_package, options of cmake...
    text=$1
    shift
    ! find_doorman "$@" >"$folder/found" && cat "$folder/found" && grep -q "$text" "$folder/found"
}

# Before 1.0 a minor version may change the interface. CMake 3.19 and later has ranges.
finds_versions() {
    version=$(sed -n 's/^#define DOORMAN_VERSION "\(.*\)"$/\1/p' doorman.h)
    minor=${version%.*}
    next=${minor%.*}.$((${minor#*.} + 1))
    for wanted in "$minor" "$version" "$version EXACT"; do
        finds "$wanted REQUIRED COMPONENTS core" || return 1
    done
    for wanted in "$next" "$version.1" "${minor%.*}" 99; do
        finds_not 'no.* compatible\|configuration' "$wanted REQUIRED COMPONENTS core" || return 1
    done
    cmake -P "$folder/has_ranges.cmake" || return 0
    finds "0.0...<$next REQUIRED COMPONENTS core" &&
        finds "0.0...$version REQUIRED COMPONENTS core" &&
        finds_not compatible "0.0...<$version REQUIRED COMPONENTS core" &&
        finds_not compatible "$next...99 REQUIRED COMPONENTS core"
}

# CMake looks for libraries in a folder that has none.
needs_libraries_only_for_nng() {
    languages=C
    set -- -DCMAKE_FIND_ROOT_PATH="$folder/find" -DCMAKE_FIND_ROOT_PATH_MODE_LIBRARY=ONLY
    finds_not 'doorman::doorman needs nng, cJSON' REQUIRED "$@" &&
        finds 'REQUIRED COMPONENTS core' "$@" &&
        finds 'REQUIRED COMPONENTS core OPTIONAL_COMPONENTS doorman' "$@" &&
        finds_not 'no component http' 'REQUIRED COMPONENTS core http'
}

check 'CMake configures the example' cmake -S examples/cmake -B "$folder/build" \
    -DCMAKE_C_FLAGS=-Werror -DCMAKE_CXX_FLAGS=-Werror
check 'CMake builds the example' cmake --build "$folder/build"
check 'the example runs' sh -c "'$folder/build/hold_guard' --help | grep -q usage"

printf '%s\n' 'if(CMAKE_VERSION VERSION_LESS 3.19)' 'message(FATAL_ERROR "no ranges")' 'endif()' \
    >"$folder/has_ranges.cmake"
check 'the headers are installed, and moved' install_and_move
check 'find_package finds them, and CMake builds with them' builds_with_installed
check 'the programs run' installed_run
check 'find_package finds the versions that fit, and no others' finds_versions
check 'without nng and cJSON there is doorman::core' needs_libraries_only_for_nng
check_end
