#!/bin/sh
# Tests the description of the API, server/pages/openapi.json. A public validator accepts it. It
# agrees with the reference of the protocol, and with the responses of running servers. Without the
# validator or Node.js the test is skipped.
#
#   tests/openapi_check.sh [doorman_server]
set -u
# shellcheck source=tests/check.sh
. tests/check.sh
server=${1:-build/plain/doorman_server}

# Ends the test with the reason why it cannot run.
fail() {
    echo "[  FAILED  ] $1"
    exit 1
}

[ -x "$server" ] || fail "$server is missing. Build it with: make $server"
newer=$(find doorman*.h doorman_server.c server -newer "$server" | head -n 1)
[ -z "$newer" ] || fail "$server is older than $newer. Build it with: make $server"
require node
if ! sh .ci/deps --look openapi; then
    skip openapi
    check_end
    exit
fi

cat >"$folder/config.json" <<END
{"unmatched": "reject", "descriptors": [
  {"domain": "shop", "entries": [["path", "/login"], ["user", "*"]], "resource": "login",
   "key": "{user}"}], "resources": [
  {"identifier_glob": "db/*", "description": "queries", "unit": "queries/s",
   "capacity": 100, "safe_capacity": 10, "algorithm": {
    "kind": "FAIR_SHARE", "lease_length": 3600, "refresh_interval": 5, "learning_mode_duration": 0,
    "parameters": [{"name": "minimum_interval", "value": 0},
                   {"name": "minimum_refresh_interval", "value": 2},
                   {"name": "decay_factor", "value": 0.75}]}},
  {"identifier_glob": "pool/*", "capacity": 7, "safe_capacity": -1, "whole": true, "algorithm": {
    "kind": "PRIORITY_SHARE", "lease_length": 60, "refresh_interval": 15,
    "learning_mode_duration": 0, "parameters": [{"name": "reserve", "value": 0.2}]}},
  {"identifier_glob": "mail/*", "capacity": 50, "algorithm": {
    "kind": "FAIR_SHARE", "parameters": [{"name": "handover", "value": "immediate"}]}},
  {"identifier_glob": "search", "capacity": 100, "overload": {
    "target": 0.1, "capacity_min": 1}, "algorithm": {
    "kind": "FAIR_SHARE", "lease_length": 60, "refresh_interval": 15,
    "learning_mode_duration": 0}},
  {"identifier_glob": "login", "limits": [
    {"name": "per-user", "kind": "TOKEN_BUCKET", "rate": 0.1, "size": 5, "max_debt": 60,
     "plans": {"free": {"size": 4}, "pro": {"size": 50}},
     "warn_at": 0.5, "ban": {"refusals": 9, "window": 60, "duration": 60}},
    {"name": "tiers", "kind": "TIERS", "tiers": [{"limit": 99, "window": 9, "active": 9}]},
    {"name": "soft", "kind": "FIXED_WINDOW", "limit": 1, "window": "day", "shadow": true}]},
  {"identifier_glob": "shared", "limits": [
    {"name": "fair", "per": "resource", "kind": "TOKEN_BUCKET", "rate": 100, "size": 100,
     "fair": true, "fair_window": 3600}]},
  {"identifier_glob": "soon", "limits": [
    {"name": "debt", "kind": "TOKEN_BUCKET", "rate": 4, "size": 0, "max_debt": 60}]},
  {"identifier_glob": "slots", "refused_body": "wait", "limits": [
    {"name": "slots", "kind": "CONCURRENCY", "limit": 2, "queue": 9, "max_wait": 600,
     "time_to_live": 600, "on_restart": "full"}]}]}
END
printf '%s\n' 'read reader read-1' 'write writer write-1' 'support sue support-1 *' \
    'admin ann admin-1' >"$folder/tokens"

# Starts a server, and sets $url to its HTTP address.
start() { # name, flags...
    name=$1
    shift
    : >"$folder/$name.log"
    "$server" --listen "ipc://$folder/$name" --http 127.0.0.1:0 "$@" 2>"$folder/$name.log" &
    processes="$processes $!"
    await ' http=' "$folder/$name.log" $!
    url=$(sed -n 's/.* http=\(http:[^ ,]*\).*/\1/p' "$folder/$name.log")
    [ -n "$url" ] || fail "$server did not start: $(cat "$folder/$name.log")"
}

export DOORMAN_REPLACED='1 1' # as after a leak of descriptors
start master --config "$folder/config.json" --node eu --state "$folder/state" \
    --grpc 127.0.0.1:0 --events tcp://127.0.0.1:0
unset DOORMAN_REPLACED
master=$url
start standby --config "$folder/config.json" --etcd http://127.0.0.1:1 --election-key key
standby=$url
start child --parent "ipc://$folder/master" --node eu-2
child=$url
start guarded --config "$folder/config.json" --http-token "$folder/tokens" --max-message 2000 \
    --state "$folder/acts"
guarded=$url
start versioned --config store: --http-token "$folder/tokens" --state "$folder/versions"
versioned=$url

check 'a validator accepts the description' node tests/openapi/validate.mjs
check 'it agrees with the reference of the protocol' node tests/openapi/reference.mjs
check 'it agrees with the servers' \
    node tests/openapi/server.mjs "$master" "$standby" "$child" "$guarded" "$versioned"
check_end
