#!/bin/sh
# Tests examples/throttled_server.c with curl: what it answers, what it refuses when too many
# requests arrive, how it passes requests on to another port, and that it reports what it counts.
set -u
# shellcheck source=tests/check.sh
. tests/check.sh
require curl

# Starts an example, and waits until it serves. Sets $port and $process.
throttled() { # name, flags
    name=$1
    shift
    build/asan/examples/throttled_server --listen 127.0.0.1:0 "$@" 2>"$folder/$name" &
    process=$!
    processes="$processes $process"
    : >>"$folder/$name"
    await 'listens on' "$folder/$name" "$process"
    port=$(sed -n 's/.*listens on .*, port //p' "$folder/$name")
}

answers() { # an extended regular expression, the arguments of curl
    expected=$1
    shift
    curl --silent --include --max-time 100 "$@" | tr -d '\r' >"$folder/answer"
    grep -Eq "$expected" "$folder/answer" || { cat "$folder/answer" && false; }
}

# Sends requests at the same time. Leaves the status and the Retry-After of each response.
burst() { # requests
    curl --silent --no-progress-meter --parallel --parallel-immediate --parallel-max 300 \
        --output /dev/null \
        --write-out '%{http_code} %header{retry-after}\n' --max-time 100 \
        "http://127.0.0.1:$port/[1-$1]" >"$folder/burst" 2>"$folder/burst_log"
}
count() { # a regular expression: responses to the burst
    grep -Ec "$1" "$folder/burst"
}
# Retry-After follows the time that requests wait (H9), so a stalled machine makes it longer.
refused='^503 [1-9][0-9]*$'
some_are_refused() { [ "$(count '^200 ')" -ge 16 ] && [ "$(count "$refused")" -ge 1 ]; }
each_is_200_or_503() { # how many
    [ "$(count "^200 \$|$refused")" = "$1" ] || { sort "$folder/burst" | uniq -c && false; }
}
ends() { # what it prints
    kill "$process" && wait "$process" && grep "$1" "$folder/$name"
}

throttled alone
check 'a request is answered' answers '^done: /a$' "http://127.0.0.1:$port/a"
check 'a criticality is accepted' answers ' 200 ' -H 'X-Criticality: 15' -H 'X-User: ann' \
    "http://127.0.0.1:$port/"
for wrong in 16 -1 1x x; do
    check 'another criticality is refused, and the error says what is wrong' \
        answers '^X-Criticality must be 0 to 15$' -H "X-Criticality: $wrong" \
        "http://127.0.0.1:$port/"
done
check 'requests in a burst are answered' burst 300
check 'some of them are refused, with Retry-After' some_are_refused
check 'no request of a burst is lost' each_is_200_or_503 300
check 'after the burst a request is answered' answers ' 200 ' "http://127.0.0.1:$port/"
check 'the server ends, and says what it has counted' ends '^307 requests: .* refused$'

throttled off --off
check 'without the throttle, requests in a burst are answered' burst 300
check 'without the throttle, no request is refused' [ "$(count '^200 $')" = 300 ]
backend=$port

throttled sidecar --backend "127.0.0.1:$backend"
check 'a sidecar passes a request on' answers '^done: /b\?c=d$' "http://127.0.0.1:$port/b?c=d"
check 'a sidecar passes on a request with a body' answers '^done: /e$' --data 'text' \
    "http://127.0.0.1:$port/e"
check 'a sidecar refuses what would wait too long' burst 300
check 'a sidecar loses no request' each_is_200_or_503 300
throttled alone_again --backend 127.0.0.1:1
check 'a backend that does not answer is a 502' answers ' 502 Bad Gateway' "http://127.0.0.1:$port/"

shows_usage() {
    build/asan/examples/throttled_server --help 2>"$folder/usage"
    [ $? = 2 ] && grep '^usage: throttled_server \[--listen HOST:PORT\]' "$folder/usage"
}
check 'a wrong flag shows the usage' shows_usage
check 'an address in use is named' sh -c \
    "build/asan/examples/throttled_server --listen 127.0.0.1:$port 2>&1 | grep '127.0.0.1:$port'"

# The resource loses capacity because its server refuses requests.
cat >"$folder/config" <<'END'
{"resources": [{"identifier_glob": "plain", "capacity": 1000,
    "algorithm": {"kind": "FAIR_SHARE", "lease_length": 6, "refresh_interval": 1}},
  {"identifier_glob": "backend", "capacity": 1000,
    "overload": {"target": 0.05, "capacity_min": 100},
    "algorithm": {"kind": "FAIR_SHARE", "lease_length": 6, "refresh_interval": 1}}]}
END
build/asan/doorman_server --config "$folder/config" --listen "ipc://$folder/socket" --http off \
    2>"$folder/server" &
processes="$processes $!"
: >>"$folder/server"
await 'msg=serving' "$folder/server" $!
throttled no_effect --doorman "ipc://$folder/socket" --resource plain
no_effect='reports have no effect: the template of plain has no overload'
await "$no_effect" "$folder/no_effect" "$process"
check 'the resource of reports without effect is named' grep "$no_effect" "$folder/no_effect"
throttled reports --doorman "ipc://$folder/socket" --resource backend
capacity_falls() {
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        burst 300
        if grep 'resource=backend' "$folder/server" | grep 'capacity in force was lowered'; then
            return
        fi
    done
    cat "$folder/server"
    false
}
check 'the capacity of the resource follows what the server can do' capacity_falls
check_end
