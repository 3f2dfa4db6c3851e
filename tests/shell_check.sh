#!/bin/sh
# Runs examples/doorman_shell.c against a server: what its commands print, what they do at the
# server, and what goes wrong: on standard error, with the line, and in the exit status.
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

# The commands are on standard input. What comes of them is in files, as it may run in a pipeline.
shell() {
    build/asan/examples/doorman_shell "$@" >"$folder/output" 2>"$folder/errors"
    echo $? >"$folder/status"
}

# For a check that fails.
tell() {
    cat "$folder/output" "$folder/errors" "$folder/status" "$folder/log"
    return 1
}

# A whole line, whatever its columns are; and so many of them.
says() { tr -s ' ' <"$folder/output" | grep -q -x -e "$1" || tell; }
says_times() { [ "$(tr -s ' ' <"$folder/output" | grep -c -x -e "$2")" = "$1" ] || tell; }
has_status() { [ "$(cat "$folder/status")" = "$1" ]; }
complains() { { has_status "$1" && grep -q -e "$2" "$folder/errors"; } || tell; }
is_fine() { { has_status 0 && [ ! -s "$folder/errors" ]; } || tell; }

# Two clients share, then one gives back, then the other wants less; of each so many tables.
share() {
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
# who asks is told what it got
get alice db/orders 70
get bob "db/order lines" 1e3  # a resource of its own
show
END
    check 'get says what a client has' says 'alice has 70 of db/orders, and wants 70'
    check 'words in quotes are one' says 'bob has 100 of db/order lines, and wants 1000'
    check 'show lists the leases' says_times 2 '[ab].* [0-9.]* s'
    check 'there was nothing to complain about' is_fine

    # On a busy machine it can take longer until all have heard of a change.
    for seconds in 3 15 60; do
        share $seconds
        if both_share && bob_has_more && bob_wants_less; then break; fi
    done >/dev/null
    check 'alice gave back all when the last shell ended' says 'alice has 70 of .*'
    check 'both share' both_share
    check 'alice gave back all' bob_has_more
    check 'bob wants less from then on' bob_wants_less
    check 'a table a second' says_times $((3 * seconds)) 'sum .*'
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
        shell --http "$http" "$url"
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
check_end
