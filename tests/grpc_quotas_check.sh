#!/bin/sh
# Tests quotas for Envoy (W5): streams whose buckets are leases, with a clean and with an unclean
# restart of the server, and with a master that is killed. The tests mostly wait for leases to end.
#
#   tests/grpc_quotas_check.sh [doorman_server]
set -u
# shellcheck source=tests/grpc/check.sh
. tests/grpc/check.sh
server=${1:-build/asan/doorman_server}
need_grpcio

algorithm='"kind": "FAIR_SHARE", "refresh_interval": 1, "lease_length"'
config=$folder/quotas.json
cat >"$config" <<END
{"unmatched": "reject", "resources": [
  {"identifier_glob": "shop/name=closed", "capacity": 0, "algorithm": {$algorithm: 4}},
  {"identifier_glob": "shop/name=ended", "capacity": 120, "algorithm": {$algorithm: 12}},
  {"identifier_glob": "shop/name=joined", "capacity": 120, "algorithm": {$algorithm: 12}},
  {"identifier_glob": "shop/name=all", "capacity": 120, "algorithm": {$algorithm: 10}},
  {"identifier_glob": "shop/name=status*", "capacity": 120, "algorithm": {$algorithm: 12}},
  {"identifier_glob": "shop/name=restart", "capacity": 120,
   "algorithm": {"learning_mode_duration": 0, $algorithm: 10}},
  {"identifier_glob": "shop/*", "capacity": 120, "algorithm": {$algorithm: 4}},
  {"identifier_glob": "sha256:*", "capacity": 1200, "algorithm": {$algorithm: 4}}]}
END

# The first server is killed, and the second one stops as planned, so the third one knows all leases
# of the second.
check_restart() {
    start killed --state "$folder/restarts" --node restarts
    check 'a client gets a quota' run quota_restart.py "$address" fill "$folder/filled"
    kill -KILL "$pid"
    wait "$pid" 2>/dev/null # it has the store until it is gone
    start planned --state "$folder/restarts" --node restarts
    check 'the second server stops' stop "$pid"
    start last --state "$folder/restarts" --node restarts
    await 'leases and holds taken over' "$log" "$pid"
    check 'nothing is assigned until quotas of a crashed server have ended' \
        run quota_restart.py "$address" wait "$folder/filled"
}

check_standby() {
    is_installed etcd || return
    start_etcd
    set --
    for name in one two; do
        start $name --etcd "$etcd" --election-key node --election-ttl 2
        set -- "$@" "$address" "$pid"
    done
    check '50 streams of quotas have exact shares, also after the master was killed' \
        run quota_standby.py "$@"
}

start quotas --http 127.0.0.1:0
main=$address
http=$(sed -n 's/.* http=\(http:[^ ]*\).*/\1/p' "$log")
check 'the status and the page count streams of quotas' run quota_status.py "$main" "$http"
run_all quotas.py
check_restart
check_standby
check_end
