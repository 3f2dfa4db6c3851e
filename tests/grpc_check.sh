#!/bin/sh
# Tests the services over gRPC: with gRPC for Python, with TLS, tokens and a standby, and with frames
# that no client sends. Without gRPC for Python these checks are skipped.
#
#   tests/grpc_check.sh [doorman_server]
set -u
# shellcheck source=tests/check.sh
. tests/check.sh
server=${1:-build/doorman_server}
python=/usr/bin/python3 # that of the packages

cat >"$folder/config.json" <<END
{"unmatched": "reject", "resources": [
  {"identifier_glob": "shop/path", "limits": [
    {"name": "daily", "kind": "FIXED_WINDOW", "limit": 5, "window": 86400}]},
  {"identifier_glob": "shop/user", "limits": [
    {"name": "bucket", "kind": "TOKEN_BUCKET", "rate": 0.00001, "size": 3}]},
  {"identifier_glob": "shop/pair/end", "limits": [
    {"name": "daily", "kind": "FIXED_WINDOW", "limit": 5, "window": 86400}]},
  {"identifier_glob": "shop/refund", "limits": [
    {"name": "daily", "kind": "FIXED_WINDOW", "limit": 5, "window": 86400, "refunds": true}]},
  {"identifier_glob": "shop/slots", "limits": [
    {"name": "slots", "kind": "CONCURRENCY", "limit": 2, "time_to_live": 600}]}]}
END

# Starts a server. Sets $pid, $address to that of gRPC, and $log.
start() { # name, flags...
    log=$folder/$1.log
    name=$1
    shift
    : >"$log"
    $server --config "$folder/config.json" --listen "ipc://$folder/$name" --http off \
        --grpc 127.0.0.1:0 "$@" 2>"$log" &
    pid=$!
    processes="$processes $pid"
    await 'msg=serving ' "$log" $pid
    address=$(sed -n 's/.* grpc=\([^ ]*\).*/\1/p' "$log" | head -n 1)
}

run() { # program, arguments...
    timeout 300 $python tests/grpc/"$@" || { tail -n 5 "$folder"/*.log && return 1; }
}

if $python -c 'import grpc, google.protobuf' 2>/dev/null && command -v protoc >/dev/null; then
    start master
    for test in $($python tests/grpc/calls.py '' --list); do
        check "$(echo "$test" | tr _ ' ')" run calls.py "$address" "$test"
    done
else
    skip grpcio
fi
check_end
