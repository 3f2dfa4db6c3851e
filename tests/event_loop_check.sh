#!/bin/sh
# Tests examples/event_loop.c with a server: it gets a lease, continues without a server, and
# releases its lease at the end.
set -u
# shellcheck source=tests/check.sh
. tests/check.sh
server='' http=''

finish() {
    if [ "$server" ]; then kill "$server" && wait "$server"; fi
    rm -rf "$folder"
}
trap finish EXIT

# Runs the example for 2 s. It prints one line: how many queries it made, and its capacity.
run() { build/asan/examples/event_loop "$1" 2 >"$folder/output" 2>"$folder/errors"; }
prints() { grep -q -x "$1" "$folder/output" || { cat "$folder/output" "$folder/errors"; false; }; }
has_no_error() { [ ! -s "$folder/errors" ] || { cat "$folder/errors"; false; }; }
says() { grep -q "$1" "$folder/errors" || { cat "$folder/errors"; false; }; }
has_no_lease() { curl -s "$http/v1/status" | grep -q '"clients":0\|"resources":\[\]'; }

check 'the example runs without a server' run http://127.0.0.1:1
check 'it uses the safe capacity' prints '[0-9]* queries, the safe capacity of 10 a second'
check 'it says that the connection is refused' says 'Connection refused'
check 'the example runs with an address that is no number' run http://localhost:1
check 'it says that it cannot connect' says 'cannot connect'

cat >"$folder/config" <<END
{"resources": [{"identifier_glob": "db/*", "capacity": 300, "algorithm":
    {"kind": "FAIR_SHARE", "learning_mode_duration": 0}}]}
END
build/asan/doorman_server --config "$folder/config" --listen "ipc://$folder/socket" \
    --http 127.0.0.1:0 2>"$folder/log" &
server=$!
: >>"$folder/log"
await 'msg=serving' "$folder/log"
http=$(sed -n 's/.* http=\(http:[^ ]*\).*/\1/p' "$folder/log")
check 'the example runs with a server' run "$http"
check 'it gets a lease' prints '[0-9]* queries, a lease of 300 a second'
check 'no request fails' has_no_error
check_with curl 'it releases its lease' has_no_lease
check_end
