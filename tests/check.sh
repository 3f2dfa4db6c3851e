# shellcheck shell=sh
# Functions for tests that are shell scripts. A script sources this file, and ends with check_end.
# $folder is a temporary folder for the script. Processes whose ids it adds to $processes end with
# it. A check that cannot run here is skipped: it is not counted as passed, and a line "needs: ..."
# says what is missing.
passed=0 failed=0 skipped=0
folder=$(mktemp -d) || exit 1
processes=''

# A script that is stopped, by INT or TERM, ends its processes too, also those that stand still.
# They are continued before they get TERM: a SIGCONT after it can undo the SIGSTOP with which
# LeakSanitizer stops the threads of a program that ends, and then the program waits for ever. The
# system gives the ids of processes that have ended to others, so only a child gets a signal.
finish() {
    jobs -p >"$folder/children"
    for process in $processes; do
        grep -qx "$process" "$folder/children" || continue
        kill -CONT "$process" 2>/dev/null && kill "$process" && wait "$process"
    done
    rm -rf "$folder"
}
trap finish EXIT
trap 'exit 1' INT TERM

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

# Counts a skipped check. tests/run.sh collects the lines "needs: ...", one for each skipped check.
skip() { # what it needs
    skipped=$((skipped + 1))
    echo "needs: $1"
}

# Returns whether a tool is installed. If not, counts one skipped check.
is_installed() {
    command -v "$1" >/dev/null || { skip "$1" && return 1; }
}

# The same as check, for a command that needs a tool.
check_with() { # tool, promise, command...
    is_installed "$1" || return 0
    shift
    check "$@"
}

# Ends the script if a tool is missing. The whole script counts as one skipped check.
require() { # tools
    for tool; do
        if is_installed "$tool"; then continue; fi
        check_end
        exit
    done
}

# Waits up to three minutes for a text in a file, such as the log of a server. With a process id,
# the wait ends with the process.
await() { # text, file, process
    tries=0
    until grep -q -e "$1" "$2" || [ $tries = 1800 ]; do
        if [ -n "${3:-}" ] && ! kill -0 "$3" 2>/dev/null; then break; fi
        sleep 0.1
        tries=$((tries + 1))
    done
}

# Ports that may be in use.
guess_ports() { awk 'BEGIN { srand(); for (; i < 9; i++) print 20000 + int(12000 * rand()) }'; }

# Starts etcd. If its port is in use, it is started again with another one. Sets $etcd and $pid.
start_etcd() {
    for port in $(guess_ports); do
        etcd=http://127.0.0.1:$port
        : >"$folder/etcd.log"
        etcd --data-dir "$folder/etcd$port" --listen-peer-urls http://127.0.0.1:0 \
            --listen-client-urls "$etcd" --advertise-client-urls "$etcd" \
            >"$folder/etcd.log" 2>&1 &
        pid=$!
        processes="$processes $pid"
        await 'ready to serve client requests' "$folder/etcd.log" $pid
        if kill -0 $pid 2>/dev/null; then return; fi
    done
    return 1
}

check_end() {
    echo "[  PASSED  ] $passed test(s)."
    [ $skipped = 0 ] || echo "[  SKIPPED ] $skipped test(s)"
    [ $failed = 0 ] || echo "[  FAILED  ] $failed test(s)"
    [ $failed = 0 ]
}
