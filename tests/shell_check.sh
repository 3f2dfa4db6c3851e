#!/bin/sh
# Runs examples/doorman_shell.c against a server: what its commands print, what they do at the
# server, and what goes wrong: on standard error, with the line, and in the exit status.
set -u
folder=$(mktemp -d)
url="ipc://$folder/socket"
server='' http=127.0.0.1:$((20000 + $$ % 10000)) passed=0 failed=0

finish() {
    if [ "$server" ]; then kill "$server" && wait "$server"; fi
    rm -rf "$folder"
}
trap finish EXIT

start_server() {
    cat >"$folder/config" <<END
{"unmatched": "reject", "resources": [{"identifier_glob": "db/*", "capacity": 100, "algorithm":
    {"kind": "FAIR_SHARE", "lease_length": 6, "refresh_interval": 1, "learning_mode_duration": 0,
     "parameters": [{"name": "minimum_interval", "value": 0}]}}]}
END
    build/asan/doorman_server --config "$folder/config" --listen "$url" --http "$http" \
        2>"$folder/log" &
    server=$!
    tries=0
    until [ -e "$folder/socket" ] || [ $tries = 50 ]; do
        sleep 0.2
        tries=$((tries + 1))
    done
}

# The commands are on standard input. What comes of them is in files, as it may run in a pipeline.
shell() {
    build/asan/examples/doorman_shell "$@" >"$folder/output" 2>"$folder/errors"
    echo $? >"$folder/status"
}

check() { # the promise, a command
    promise=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "[  FAILED  ] $promise: $*"
        cat "$folder/output" "$folder/errors" "$folder/status" "$folder/log"
    fi
}

# A whole line, whatever its columns are; and so many of them.
says() { tr -s ' ' <"$folder/output" | grep -q -x -e "$1"; }
says_times() { [ "$(tr -s ' ' <"$folder/output" | grep -c -x -e "$2")" = "$1" ]; }
complains() { [ "$(cat "$folder/status")" = "$1" ] && grep -q -e "$2" "$folder/errors"; }
is_fine() { [ "$(cat "$folder/status")" = 0 ] && [ ! -s "$folder/errors" ]; }

check_leases() {
    shell "$url" <<END
# who asks is told what it got
get alice db/orders 70
get bob "db/order lines" 1e3  # a resource of its own
show
END
    check 'get says what a client has' says 'alice has 70 of db/orders, and wants 70'
    check 'words in quotes are one' says 'bob has 100 of db/order lines, and wants 1000'
    check 'show lists the leases' says_times 2 '[ab].* [0-9.]* s'
    check 'there was nothing to complain about' is_fine

    {
        echo get alice db/orders 70
        echo get bob db/orders 70
        echo watch db/orders 3
        echo release alice db/orders
        echo watch db/orders 3
        echo get bob db/orders 20
        echo watch db/orders 3
    } | shell "$url"
    check 'alice gave back all when the last shell ended' says 'alice has 70 of .*'
    check 'both share' says 'alice db/orders 70 50 .*'
    check 'alice gave back all' says 'bob db/orders 70 70 .*'
    check 'bob wants less from then on' says 'bob db/orders 20 20 .*'
    check 'a table a second' says_times 9 'sum .*'
    check 'there was nothing to complain about' is_fine
}

check_master() {
    echo master | shell "$url"
    check 'master says the address' says "$url"
    echo master | shell "ipc://$folder/nobody" "$url"
    check 'the next server is asked' says "$url"
    echo status | shell "$url"
    check 'status says it too' says "$url"
}

check_http() {
    { echo get alice db/orders 70; echo status; echo watch db/orders 1; } |
        shell --http "http://$http" "$url"
    check 'status tells who is master' says "server .* the master, at $url"
    check 'status and watch tell of all clients' says_times 2 'db/orders 100 70 70 1'
    check 'there was nothing to complain about' is_fine
}

check_errors() {
    shell "$url" <<END

get alice
get alice mail/send 5
get alice db/orders -5
get "alice db/orders 5
release alice db/orders
watch db/orders soon
jump
get bob db/orders 5
END
    check 'too few words' complains 1 'line 2: use: get CLIENT RESOURCE CAPACITY'
    check 'a refusal' complains 1 'line 3: no lease on mail/send: no template'
    check 'no capacity' complains 1 "line 4: '-5' is not"
    check 'an open quote' complains 1 'line 5: .*quote'
    check 'nothing to release' complains 1 'line 6: alice does not'
    check 'no duration' complains 1 "line 7: 'soon' is not"
    check 'no command' complains 1 "line 8: no command 'jump'"
    check 'it goes on after all that' says 'bob has 5 of .*'

    { echo master; echo get alice db/orders 5; } | shell "ipc://$folder/nobody"
    check 'nobody is there to tell the master' complains 1 'line 1: master: no answer'
    check 'nobody is there to ask' complains 1 'line 2: .*: no answer'
    echo status | shell --http http://127.0.0.1:1 "$url"
    check 'nobody is there over HTTP' complains 1 'http://127.0.0.1:1/v1/status: '
    shell --fast </dev/null
    check 'wrong use' complains 2 Usage
}

start_server
check_leases
check_master
check_errors
check_http
echo "[  PASSED  ] $passed test(s)."
[ $failed = 0 ] || echo "[  FAILED  ] $failed test(s)"
[ $failed = 0 ]
