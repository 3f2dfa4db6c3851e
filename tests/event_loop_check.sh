#!/bin/sh
# Tests examples/event_loop.c with a server: it gets a lease, continues without a server, and
# releases its lease at the end.
set -u
# shellcheck source=tests/check.sh
. tests/check.sh
http=''

# Runs the example for some seconds. It prints one line: how many queries it made, and its capacity.
run_for() { build/asan/examples/event_loop "$2" "$1" >"$folder/output" 2>"$folder/errors"; }
prints() { grep -q -x "$1" "$folder/output" || { cat "$folder/output" "$folder/errors"; false; }; }
has_no_error() { [ ! -s "$folder/errors" ] || { cat "$folder/errors"; false; }; }
says() { grep -q "$1" "$folder/errors" || { cat "$folder/errors"; false; }; }
has_no_lease() { curl -s "$http/v1/status" | grep -q '"clients":0\|"resources":\[\]'; }

# Runs the example until a command succeeds. On a busy machine, an example that runs for a short
# time may not connect. Returns whether the last run of the example has succeeded.
run_until() { # address, command...
    address=$1
    shift
    for seconds in 1 5 60; do
        run_for $seconds "$address" || return
        if "$@" >/dev/null; then break; fi
    done
}

check 'the example runs without a server' run_until http://127.0.0.1:1 says 'Connection refused'
check 'it uses the safe capacity' prints '[0-9]* queries, the safe capacity of 10 a second'
check 'it says that the connection is refused' says 'Connection refused'
check 'the example runs with an address that is no number' \
    run_until http://localhost:1 says 'cannot connect'
check 'it says that it cannot connect' says 'cannot connect'

cat >"$folder/config" <<END
{"resources": [{"identifier_glob": "db/*", "capacity": 300, "algorithm":
    {"kind": "FAIR_SHARE", "learning_mode_duration": 0}}]}
END
build/asan/doorman_server --config "$folder/config" --listen "ipc://$folder/socket" \
    --http 127.0.0.1:0 2>"$folder/log" &
server=$!
processes=$server
: >>"$folder/log"
await 'msg=serving' "$folder/log"
http=$(sed -n 's/.* http=\(http:[^ ]*\).*/\1/p' "$folder/log")
lease='[0-9]* queries, a lease of 300 a second'
check 'the example runs with a server' run_until "$http" prints "$lease"
check 'it gets a lease' prints "$lease"
check 'no request fails' has_no_error
check_with curl 'it releases its lease' has_no_lease
check_end
