#!/bin/sh
# Tests the services over gRPC: with clients of gRPC in Python and JavaScript, with TLS, tokens and
# a standby, and with frames that no client sends. What needs a missing client is skipped.
# tests/grpc_quotas_check.sh tests quotas for Envoy.
#
#   tests/grpc_check.sh [doorman_server]
set -u
# shellcheck source=tests/grpc/check.sh
. tests/grpc/check.sh
server=${1:-build/asan/doorman_server}

config=$folder/config.json
cat >"$config" <<END
{"unmatched": "reject", "descriptors": [
  {"domain": "shop", "entries": [["host", "api.*"], ["remote_address", "*"]],
   "resource": "visits", "key": "{remote_address}"}], "resources": [
  {"identifier_glob": "visits", "limits": [
    {"name": "daily", "kind": "FIXED_WINDOW", "limit": 2, "window": 86400}]},
  {"identifier_glob": "shop/path", "limits": [
    {"name": "daily", "kind": "FIXED_WINDOW", "limit": 5, "window": 86400}]},
  {"identifier_glob": "shop/wide", "limits": [{"name": "$(printf '%0200d' 0)",
     "kind": "TOKEN_BUCKET", "rate": 1000000, "size": 1000000}]},
  {"identifier_glob": "shop/body", "refused_body": "{\"wait\": \"caf\u00e9\"}", "limits": [
    {"name": "daily", "kind": "FIXED_WINDOW", "limit": 1, "window": 86400}]},
  {"identifier_glob": "shop/user", "limits": [
    {"name": "bucket", "kind": "TOKEN_BUCKET", "rate": 0.00001, "size": 3}]},
  {"identifier_glob": "shop/pair/end", "limits": [
    {"name": "daily", "kind": "FIXED_WINDOW", "limit": 5, "window": 86400}]},
  {"identifier_glob": "shop/refund", "limits": [
    {"name": "daily", "kind": "FIXED_WINDOW", "limit": 5, "window": 86400, "refunds": true}]},
  {"identifier_glob": "shop/february", "limits": [
    {"name": "february", "kind": "FIXED_WINDOW", "limit": 100, "window": 2419200}]},
  {"identifier_glob": "shop/slots", "limits": [
    {"name": "slots", "kind": "CONCURRENCY", "limit": 2, "time_to_live": 600,
     "keys": ["!free"]}]}]}
END

# Makes two authorities, and a certificate for 127.0.0.1 and localhost of each.
certificates() {
    cd "$folder" || return
    echo 'subjectAltName = IP:127.0.0.1, DNS:localhost' >names
    for name in ca ca2; do
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 \
            -subj "/CN=$name" -keyout $name.key -out $name.pem || return
    done
    for pair in own:ca other:ca2; do
        name=${pair%:*} authority=${pair#*:}
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$name" \
            -keyout "$name.key" -out "$name.csr" &&
            openssl x509 -req -in "$name.csr" -CA "$authority.pem" -CAkey "$authority.key" \
                -CAcreateserial -days 2 -extfile names -out "$name.pem" || return
    done
    cd - || return
}

check_access() {
    printf '%s\n' 'read reader read-1' 'write writer write-1' 'figures gate figures-1' \
        'admin ann admin-1' \
        >"$folder/tokens.txt"
    start tokens --http-token "$folder/tokens.txt" --grpc-connections 8
    check 'a call needs a token with the role write' \
        run access.py "$address" "$folder" a_call_needs_a_token_with_the_role_write
    check 'a limit of a descriptor counts with the role figures' \
        run access.py "$address" "$folder" a_limit_of_a_descriptor_counts_with_the_role_figures
    check 'the log names the peer and the token' \
        grep 'level=warning.*peer=127.0.0.1:[0-9]* hosts=1 token=reader' "$log"
    check 'watches without a token do not take all connections' \
        run access.py "$address" "$folder" watches_without_a_token_do_not_take_all
    is_installed openssl || return
    check 'certificates are made' certificates
    start tls --tls-cert "$folder/own.pem" --tls-key "$folder/own.key"
    for test in tls_needs_the_right_authority tls_needs_h2; do
        check "$(echo $test | tr _ ' ')" run access.py "$address" "$folder" $test
    done
    start clients --tls-cert "$folder/own.pem" --tls-key "$folder/own.key" \
        --tls-ca "$folder/ca.pem"
    check 'tls needs a certificate of the client' \
        run access.py "$address" "$folder" tls_needs_a_certificate_of_the_client
    check 'the log names a peer without a certificate' grep 'peer=127.0.0.1:[0-9]* hosts=1' "$log"
    cp "$folder/own.pem" "$folder/served.pem" && cp "$folder/own.key" "$folder/served.key"
    start reload --tls-cert "$folder/served.pem" --tls-key "$folder/served.key"
    check 'a new certificate is used for new connections' \
        run reload.py "$address" "$folder" "$pid"
}

# Starts Redis, as start_etcd starts etcd. Sets $redis and $pid.
start_redis() {
    for port in $(guess_ports); do
        redis=redis://127.0.0.1:$port/0
        : >"$folder/redis.log"
        redis-server --port "$port" --bind 127.0.0.1 --save '' --dir "$folder" \
            >"$folder/redis.log" 2>&1 &
        pid=$!
        processes="$processes $pid"
        await 'Ready to accept connections' "$folder/redis.log" $pid
        if kill -0 $pid 2>/dev/null; then return; fi
    done
    return 1
}

# A master reserves and stops. The store stands still when the next one starts.
check_learning() {
    is_installed redis-server || return
    start_redis
    store=$pid
    start first --state "$redis" --node learning
    check 'a reservation is made' run learning.py "$address" reserve "$folder/reserved"
    check 'the first master stops' stop "$pid"
    kill -STOP "$store"
    start next --state "$redis" --node learning --state-wait 3600
    check 'a Commit waits while the master learns, and is settled then' \
        run learning.py "$address" commit "$folder/reserved" "$store"
}

# A node has two processes. Each has a limit that the other one does not have. The test kills one.
check_standby() {
    is_installed etcd || return
    start_etcd
    set --
    plain=$config
    for name in one two; do
        config=$folder/$name.json
        sed "s|shop/february|shop/$name|" "$plain" >"$config"
        start $name --etcd "$etcd" --election-key node --election-ttl 2
        set -- "$@" "$address" "$pid"
    done
    config=$plain
    check 'a standby asks the master, and takes its place' \
        run standby.py "$@" "$folder/one.log" "$folder/two.log"
}

# The same with TLS and certificates of clients. nng may not match an address in a certificate, so
# the processes listen on a name.
check_secure_standby() {
    is_installed etcd && [ -f "$folder/own.pem" ] || return
    set --
    for name in secure-one secure-two; do
        start $name --etcd "$etcd" --election-key secure --election-ttl 10 \
            --listen tls+tcp://localhost:0 --tls-cert "$folder/own.pem" \
            --tls-key "$folder/own.key" --tls-ca "$folder/ca.pem"
        set -- "$@" "$address"
    done
    check 'a standby asks the master over TLS' run secure_standby.py "$folder" "$@"
}

# Another implementation of gRPC.
check_node() {
    is_installed node || return
    sh .ci/deps --look grpcjs || { skip grpcjs && return; }
    check 'gRPC for Node.js calls all methods' timeout 300 node tests/grpc/calls.mjs "$main"
}

# Metrics, the status in JSON, and the page.
shows() { # path, text
    curl -s -m 60 "$http$1" >"$folder/shown" && grep -e "$2" "$folder/shown"
}

check_pages() {
    is_installed curl || return
    start pages --http 127.0.0.1:0
    http=$(sed -n 's/.* http=\(http:[^ ]*\).*/\1/p' "$log")
    check 'a call works' run calls.py "$address" escapes_names
    check 'metrics count calls' \
        shows /metrics '^doorman_grpc_requests_total{method="ShouldRateLimit",code="OK"} 3$'
    check 'metrics count connections' shows /metrics '^doorman_grpc_connections_total 1$'
    check 'the status has the address' shows /v1/status "\"grpc\":{\"address\":\"$address\""
    check 'the page has the address' shows / "gRPC</dt><dd>$address; [01] of 1024 connections"
    check 'a call is refused with the body of the template' \
        run calls.py "$address" refuses_with_the_body_of_the_template
    check 'so is a request of HTTP' \
        shows '/v1/allow?resource=shop/body&key=refused' '^{"wait": "café"}$'
    check 'a call without limits works' run calls.py "$address" allows_a_descriptor_without_limits
    check 'the page of descriptors shows it' shows /descriptors 'shop/nothing'
    check 'a stop tells the clients' run stop.py "$address" "$pid"
    check 'the server stops' wait "$pid"
}

check_drain() {
    start drained --http 127.0.0.1:0 --http-token "$folder/tokens.txt"
    http=$(sed -n 's/.* http=\(http:[^ ]*\).*/\1/p' "$log")
    check 'a drain tells the clients to go, and an undrain ends it' \
        run drain.py "$address" "$http"
}

# The examples for Envoy and Kuadrant, with the configuration of the page for this task.
check_examples() {
    $python -c 'import yaml' 2>/dev/null || { skip PyYAML && return; }
    config=$folder/shop.json
    awk '/^```/ { inside = /json$/; next } inside' docs/tasks/envoy.md >"$config"
    start examples
    examples=$address config=$folder/quota_page.json
    awk '/^```/ { inside = /json$/; next } inside' docs/tasks/envoy_quotas.md >"$config"
    start quota_page
    config=$folder/config.json
    check 'the examples for Envoy and Kuadrant are right' run examples.py "$examples" "$address"
}

# The server refuses what it cannot use, and says why.
refuses() { # text, flags...
    text=$1
    shift
    timeout 60 "$server" --config "$config" --listen "ipc://$folder/refuses" --http off \
        "$@" 2>"$folder/refused" && return 1
    grep -e "$text" "$folder/refused"
}

check 'an address without a port is refused' refuses 'is not HOST:PORT' --grpc 127.0.0.1
check 'a port that is too large is refused' refuses 'is not HOST:PORT' --grpc 127.0.0.1:65536
check 'an address that others reach needs a token' refuses 'give --http-token' --grpc 0.0.0.0:0
check 'no connections at all are refused' refuses 'whole number from 1' --grpc-connections 0
need_grpcio
start main
main=$address
check 'an address that is in use is refused' refuses 'Address already in use' --grpc "$main"
start crowded --grpc-connections 8
crowded=$address
run_all calls.py
run_all frames.py
check_node
check_access
check_pages
check_drain
check_examples
check_standby
check_secure_standby
check_learning
check_end
