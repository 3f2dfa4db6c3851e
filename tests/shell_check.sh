#!/bin/sh
# Tests examples/doorman_shell.c with a server: what its commands print, and what they change at the
# server. Errors must be on standard error, with the line number, and in the exit status.
set -u
# shellcheck source=tests/check.sh
. tests/check.sh
url="ipc://$folder/socket"
http=''

start_server() {
    cat >"$folder/config" <<END
{"unmatched": "reject", "resources": [{"identifier_glob": "db/*", "capacity": 100, "algorithm":
    {"kind": "FAIR_SHARE", "lease_length": 6, "refresh_interval": 1, "learning_mode_duration": 0,
     "parameters": [{"name": "minimum_interval", "value": 0}]}}]}
END
    build/asan/doorman_server --config "$folder/config" --listen "$url" --http 127.0.0.1:0 \
        2>"$folder/log" &
    server=$!
    processes=$server
    await 'msg=serving' "$folder/log"
    http=$(sed -n 's/.* http=\(http:[^ ]*\).*/\1/p' "$folder/log")
}

# Runs the shell with commands from standard input. The results are in files, not in variables,
# because this function may run in a pipeline.
shell() {
    build/asan/examples/doorman_shell "$@" >"$folder/output" 2>"$folder/errors"
    echo $? >"$folder/status"
}

# Shows all results after a failure.
show_results() {
    cat "$folder/output" "$folder/errors" "$folder/status" "$folder/log"
    return 1
}

# Each checks whether the output has such a line, or a number of such lines. The width of columns
# does not matter.
prints() { tr -s ' ' <"$folder/output" | grep -q -x -e "$1" || show_results; }
prints_times() { [ "$(tr -s ' ' <"$folder/output" | grep -c -x -e "$2")" = "$1" ] || show_results; }
has_status() { [ "$(cat "$folder/status")" = "$1" ]; }
fails_with() { { has_status "$1" && grep -q -e "$2" "$folder/errors"; } || show_results; }
has_no_error() { { has_status 0 && [ ! -s "$folder/errors" ]; } || show_results; }

# Two clients share, then one releases its lease, then the other wants less. After each step it
# prints a number of tables.
share() { # tables
    {
        echo get alice db/orders 70
        echo get bob db/orders 70
        echo watch db/orders "$1"
        echo release alice db/orders
        echo watch db/orders "$1"
        echo get bob db/orders 20
        echo watch db/orders "$1"
    } | shell "$url"
}
both_share() { prints 'alice db/orders 70 50 .*'; }
bob_has_more() { prints 'bob db/orders 70 70 .*'; }
bob_wants_less() { prints 'bob db/orders 20 20 .*'; }

check_leases() {
    shell "$url" <<END
# get prints what the client has
get alice db/orders 70
get bob "db/order lines" 1e3  # a resource of its own
show
END
    check 'get prints what a client has' prints 'alice has 70 of db/orders, and wants 70'
    check 'a quoted text is one word' \
        prints 'bob has 100 of db/order lines, and wants 1000 (SHARE)'
    check 'show lists the leases' prints_times 2 '[ab].* [0-9.]* s\( SHARE\)*'
    check 'show says why a lease is less than the wants' prints 'bob .* 1000 100 [0-9.]* s SHARE'
    check 'there was no error in the leases' has_no_error

    # On a busy machine it can take longer until all clients have received a change.
    for seconds in 3 15 60; do
        share $seconds
        if both_share && bob_has_more && bob_wants_less; then break; fi
    done >/dev/null
    check 'the end of the last shell released all leases' prints 'alice has 70 of .*'
    check 'both clients share' both_share
    check 'release gives the capacity to the other client' bob_has_more
    check 'get changes what a client wants' bob_wants_less
    check 'watch prints a table every second' prints_times $((3 * seconds)) 'sum .*'
    check 'there was no error in sharing' has_no_error
}

check_master() {
    echo master | shell "$url"
    check 'master prints the address' prints "$url"
    echo master | shell "ipc://$folder/unused" "$url"
    check 'master asks the next server' prints "$url"
    echo status | shell "$url"
    check 'status prints the address too' prints "$url"
}

check_http() {
    { echo get alice db/orders 70; echo status; echo watch db/orders 1; } |
        shell --http "$http" "$url"
    check 'status prints the master' prints "server .* the master, at $url"
    check 'status and watch count all clients' prints_times 2 'db/orders 100 70 70 1'
    check 'there was no error over HTTP' has_no_error
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
    check 'too few words' fails_with 1 'line 2: use: get CLIENT RESOURCE CAPACITY'
    check 'a refusal' fails_with 1 'line 3: no lease on mail/send: no template'
    check 'no capacity' fails_with 1 "line 4: '-5' is not"
    check 'an open quote' fails_with 1 'line 5: .*quote'
    check 'nothing to release' fails_with 1 'line 6: alice does not'
    check 'no duration' fails_with 1 "line 7: 'soon' is not"
    check 'no command' fails_with 1 "line 8: no command 'jump'"
    check 'the shell continues after errors' prints 'bob has 5 of .*'

    { echo master; echo get alice db/orders 5; } | shell "ipc://$folder/unused"
    check 'master without a server' fails_with 1 'line 1: master: no answer'
    check 'get without a server' fails_with 1 'line 2: .*: no answer'
    echo status | shell --http http://127.0.0.1:1 "$url"
    check 'status without a server' fails_with 1 'http://127.0.0.1:1/v1/status: '
    shell --fast </dev/null
    check 'a usage error' fails_with 2 Usage
}

start_server
check_leases
check_master
check_errors
check_http
check_end
