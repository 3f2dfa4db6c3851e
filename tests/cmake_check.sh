#!/bin/sh
# Builds examples/cmake with CMake, as docs/library.md shows it, without warnings.
set -u
# shellcheck source=tests/check.sh
. tests/check.sh
require cmake

check 'CMake configures the example' cmake -S examples/cmake -B "$folder/build" \
    -DCMAKE_C_FLAGS=-Werror -DCMAKE_CXX_FLAGS=-Werror
check 'CMake builds the example' cmake --build "$folder/build"
check 'the example runs' sh -c "'$folder/build/hold_guard' --help | grep -q usage"
check_end
