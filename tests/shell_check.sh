#!/bin/sh
# Tests examples/doorman_shell.c with a server: what its commands print, and what they change at the
# server. Errors must be on standard error, with the line number, and in the exit status.
set -u
# shellcheck source=tests/check.sh
. tests/check.sh
url="ipc://$folder/socket"
server='' http=''

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
    build/asan/doorman_server --config "$folder/config" --listen "$url" --http 127.0.0.1:0 \
        2>"$folder/log" &
    server=$!
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
tell() {
    cat "$folder/output" "$folder/errors" "$folder/status" "$folder/log"
    return 1
}

# Checks that the output has such a line, ignoring the width of columns; or a number of such lines.
says() { tr -s ' ' <"$folder/output" | grep -q -x -e "$1" || tell; }
says_times() { [ "$(tr -s ' ' <"$folder/output" | grep -c -x -e "$2")" = "$1" ] || tell; }
has_status() { [ "$(cat "$folder/status")" = "$1" ]; }
complains() { { has_status "$1" && grep -q -e "$2" "$folder/errors"; } || tell; }
is_fine() { { has_status 0 && [ ! -s "$folder/errors" ]; } || tell; }

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
both_share() { says 'alice db/orders 70 50 .*'; }
bob_has_more() { says 'bob db/orders 70 70 .*'; }
bob_wants_less() { says 'bob db/orders 20 20 .*'; }

check_leases() {
    shell "$url" <<END
# get prints what the client has
get alice db/orders 70
get bob "db/order lines" 1e3  # a resource of its own
show
END
    check 'get prints what a client has' says 'alice has 70 of db/orders, and wants 70'
    check 'a quoted text is one word' says 'bob has 100 of db/order lines, and wants 1000'
    check 'show lists the leases' says_times 2 '[ab].* [0-9.]* s'
    check 'there was no error in the leases' is_fine

    # On a busy machine it can take longer until all clients have received a change.
    for seconds in 3 15 60; do
        share $seconds
        if both_share && bob_has_more && bob_wants_less; then break; fi
    done >/dev/null
    check 'the end of the last shell released all leases' says 'alice has 70 of .*'
    check 'both clients share' both_share
    check 'release gives the capacity to the other client' bob_has_more
    check 'get changes what a client wants' bob_wants_less
    check 'watch prints a table every second' says_times $((3 * seconds)) 'sum .*'
    check 'there was no error in sharing' is_fine
}

check_master() {
    echo master | shell "$url"
    check 'master prints the address' says "$url"
    echo master | shell "ipc://$folder/nobody" "$url"
    check 'master asks the next server' says "$url"
    echo status | shell "$url"
    check 'status prints the address too' says "$url"
}

check_http() {
    { echo get alice db/orders 70; echo status; echo watch db/orders 1; } |
        shell --http "$http" "$url"
    check 'status prints the master' says "server .* the master, at $url"
    check 'status and watch count all clients' says_times 2 'db/orders 100 70 70 1'
    check 'there was no error over HTTP' is_fine
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
    check 'the shell continues after errors' says 'bob has 5 of .*'

    { echo master; echo get alice db/orders 5; } | shell "ipc://$folder/nobody"
    check 'master without a server' complains 1 'line 1: master: no answer'
    check 'get without a server' complains 1 'line 2: .*: no answer'
    echo status | shell --http http://127.0.0.1:1 "$url"
    check 'status without a server' complains 1 'http://127.0.0.1:1/v1/status: '
    shell --fast </dev/null
    check 'a usage error' complains 2 Usage
}

start_server
check_leases
check_master
check_errors
check_http
check_end
