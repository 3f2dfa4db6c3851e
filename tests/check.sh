# shellcheck shell=sh
# Functions for tests that are shell scripts. A script sources this file, and ends with check_end.
# $folder is a temporary folder for the script.
passed=0 failed=0
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT

# Runs a command, and counts whether it succeeds. Shows its output if it fails.
check() { # promise, command...
    promise=$1
    shift
    if "$@" >"$folder/check_output" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "[  FAILED  ] $promise: $*"
        cat "$folder/check_output"
    fi
}

# Returns whether a tool is installed. A missing tool is printed, and is not a failure.
is_installed() {
    command -v "$1" >/dev/null && return
    echo "$1 is not installed: skipped"
    return 1
}

# Waits up to 60 s for a text in a file, such as the log of a server.
await() { # text, file
    tries=0
    until grep -q -e "$1" "$2" || [ $tries = 600 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
}

check_end() {
    echo "[  PASSED  ] $passed test(s)."
    [ $failed = 0 ] || echo "[  FAILED  ] $failed test(s)"
    [ $failed = 0 ]
}
