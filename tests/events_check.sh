#!/bin/sh
# Tests examples/events_to_file.c: each event is a line of the file, a rotated file is opened again,
# and what is missing is a line too.
set -u
# shellcheck source=tests/check.sh
. tests/check.sh
require curl
file=$folder/events.json

cat >"$folder/config" <<'EOF'
{"resources": [{"identifier_glob": "*", "limits": [
  {"name": "quota", "kind": "FIXED_WINDOW", "limit": 0, "window": 10000000,
   "on_restart": "full"}]}]}
EOF
# Starts a server. Sets $url, $address and $server.
start() { # name, address of the events
    : >"$folder/$1.log"
    build/plain/doorman_server --config "$folder/config" --listen tcp://127.0.0.1:0 \
        --http 127.0.0.1:0 --events "$2" 2>"$folder/$1.log" &
    server=$!
    processes="$processes $server"
    await ' events=' "$folder/$1.log" $server
    url=$(sed -n 's/.* http=\(http:[^ ,]*\).*/\1/p' "$folder/$1.log")
    address=$(sed -n 's/.* events=\(tcp:[^ ,]*\).*/\1/p' "$folder/$1.log")
}
ask() { curl --silent --output "$folder/allowed" "$url/v1/allow?resource=$1&key=bob"; }
# A subscriber loses what happens before it is connected, so requests are made until it sees one.
ask_until_seen() { # resource
    tries=0
    until grep -q "\"resource_id\":\"$1\"" "$file" 2>/dev/null || [ $tries = 600 ]; do
        ask "$1"
        sleep 0.1
        tries=$((tries + 1))
    done
    grep "\"resource_id\":\"$1\"" "$file" || { cat "$file" "$folder/errors" && false; }
}
# Returns whether the numbers of the file, with the lines about gaps, are complete.
is_complete() { # files
    cat "$@" | awk '
        /^{"event":"lost"/ && match($0, /"lost":[0-9]+/) {
            lost += substr($0, RSTART + 7, RLENGTH - 7)
        }
        match($0, /"seq":[0-9]+/) {
            seq = substr($0, RSTART + 6, RLENGTH - 6) + 0
            if (last && seq != last + lost + 1) { print "gap before", $0; failed = 1 }
            last = seq
            lost = 0
        }
        END { exit failed || !last }'
}
is_rotated() {
    mv "$file" "$folder/old.json" && ask_until_seen moved && mv "$file" "$folder/older.json" &&
        kill -HUP "$consumer" && ask_until_seen signal &&
        is_complete "$folder/old.json" "$folder/older.json" "$file"
}
awk 'BEGIN {
    printf "{\"client_id\":\"x\",\"permit\":["
    for (i = 0; i < 1000; i++)
        printf "%s{\"item\":[{\"resource_id\":\"slow\",\"key\":\"%d\"}]}", (i ? "," : ""), i
    print "]}"
}' >"$folder/permits"
# 80,000 events are more than all queues on the way have room for.
notes_a_gap() {
    kill -STOP "$consumer"
    for i in 1 2 3 4 5 6 7 8; do
        for k in 0 1 2 3 4 5 6 7 8 9; do
            curl --silent --fail --output "$folder/posted-$i$k" --data "@$folder/permits" \
                -H 'Content-Type: application/json' "$url/v1/acquire" || return
        done
    done
    kill -CONT "$consumer" && ask_until_seen after &&
        grep -q '^{"event":"lost","lost":[1-9][0-9]*,"server":"127' "$file" && is_complete "$file"
}
survives_a_restart() {
    kill "$server" && wait "$server"
    start again "$address" && ask_until_seen again
}
ends() { kill "$consumer" && wait "$consumer"; }
fails() { # exit code, arguments
    wanted=$1
    shift
    timeout 60 build/asan/examples/events_to_file "$@" 2>"$folder/usage"
    [ $? = "$wanted" ]
}

start first tcp://127.0.0.1:0
build/asan/examples/events_to_file "$file" "$address" 2>"$folder/errors" &
consumer=$!
processes="$processes $consumer"
check 'an event is a line of the file' ask_until_seen first
check 'a line is JSON without the topic' grep -q '^{"event":"permit.refused","seq":' "$file"
check 'a file that was moved is opened again' is_rotated
check 'what was lost is a line' notes_a_gap
check 'the consumer connects again to a server' survives_a_restart
check 'the consumer ends' ends
check 'an address is needed' fails 2 "$file"
check 'the file must be one that can be written' fails 1 "$folder/none/events" "$address"
check_end
