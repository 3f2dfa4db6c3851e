# shellcheck shell=sh
# What the checks share that are shell scripts: they source it, and end with check_end. $folder is a
# temporary folder of theirs.
passed=0 failed=0
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT

check() { # the promise, a command: counts whether it succeeds, and shows what it said if not
    promise=$1
    shift
    if "$@" >"$folder/said" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "[  FAILED  ] $promise: $*"
        cat "$folder/said"
    fi
}

# Whether there is a tool. One that is missing is no failure, but is said.
has() {
    command -v "$1" >/dev/null && return
    echo "$1 is not installed: left out"
    return 1
}

# Waits for a text in a file, that of a server's log.
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
