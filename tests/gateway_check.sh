#!/bin/sh
# Runs nginx, HAProxy and Caddy with their files in examples/deploy, in front of two servers: one
# decides, and the other one is the application. A gateway that is not installed is skipped.
set -u
# shellcheck source=tests/check.sh
. tests/check.sh
server=build/doorman_server
PATH=$PATH:/usr/sbin # Debian has nginx and HAProxy there

# Starts a server. Sets $pid, and $address to the host and port of its HTTP.
start_server() { # name
    : >"$folder/$1.log"
    $server --config "$folder/config.json" --listen "ipc://$folder/$1" --http 127.0.0.1:0 \
        2>"$folder/$1.log" &
    pid=$!
    processes="$processes $pid"
    await ' http=' "$folder/$1.log" $pid
    address=$(sed -n 's/.* http=http:..\([^ ]*\).*/\1/p' "$folder/$1.log")
}

# Starts a gateway with its addresses replaced, in a folder of its own. The port may be in use, so a
# gateway that ends at once is started again with another port. Sets $pid and $url.
start_gateway() { # file, command...
    file=$1
    shift
    ports=$(awk 'BEGIN { srand(); for (; i < 9; i++) print 20000 + int(12000 * rand()) }')
    for port in $ports; do
        for each in examples/deploy/"${file%.*}"*; do
            sed -e "s|127.0.0.1:8080|127.0.0.1:$port|" -e "s|127.0.0.1:15050|$doorman|" \
                -e "s|127.0.0.1:9000|$application|" -e "s|/tmp/doorman-nginx|$folder/nginx|" \
                "$each" >"$folder/${each##*/}"
        done
        url=http://127.0.0.1:$port/healthz
        (cd "$folder" && HOME=$folder exec "$@" >"$folder/$file.log" 2>&1) &
        pid=$!
        tries=0
        until grep -q . "$folder/ready" 2>/dev/null || [ $tries = 600 ]; do
            curl -s -o /dev/null -m 20 "http://127.0.0.1:$port/" && echo yes >"$folder/ready"
            kill -0 $pid 2>/dev/null || break
            sleep 0.1
            tries=$((tries + 1))
        done
        [ ! -s "$folder/ready" ] || kill -0 $pid 2>/dev/null && break
    done
    rm -f "$folder/ready"
    processes="$processes $pid"
}

# Fails unless a request has this status, and a text in its response.
expect() { # status, text, curl's arguments...
    status=$1 text=$2
    shift 2
    got=$(curl -s -i -m 60 "$@" "$url") || true
    case $got in
    "HTTP/1.1 $status "*"$text"*) return 0 ;;
    esac
    printf 'expected %s and %s, got:\n%s\n' "$status" "$text" "$got"
    tail -n 5 "$folder"/*.log
    return 1
}

# The readiness request of start_gateway has used one of five units. The next four pass, also those
# of web pages. The next one is refused, with Retry-After. $2 is the status after Doorman has ended.
gateway_limits() { # file, status, command...
    start_server "doorman-$1"
    doorman=$address doorman_pid=$pid
    file=$1 after=$2
    shift 2
    start_gateway "$file" "$@"
    gateway_pid=$pid
    expect 200 ok && expect 200 ok -H 'Origin: https://shop.example' &&
        expect 200 ok -H 'Sec-Fetch-Site: cross-site' && expect 200 ok -d 'a=b' -X GET &&
        expect 429 'etry-' && expect 429 'etry-' -H 'X-API-Key: a&cost=0'
    result=$?
    kill "$doorman_pid" && wait "$doorman_pid"
    [ $result != 0 ] || expect "$after" '' || result=1
    kill "$gateway_pid" && wait "$gateway_pid"
    return $result
}

cat >"$folder/config.json" <<END
{"resources": [{"identifier_glob": "api", "limits": [
  {"name": "per-client", "kind": "TOKEN_BUCKET", "rate": 0.0001, "size": 5}]}]}
END

require curl
start_server application
application=$address
check_with nginx 'nginx refuses what Doorman refuses' gateway_limits nginx.conf 200 \
    nginx -c "$folder/nginx.conf" -p "$folder"
check_with haproxy 'HAProxy refuses what Doorman refuses' gateway_limits haproxy.cfg 200 \
    haproxy -f haproxy.cfg
check_with caddy 'Caddy refuses what Doorman refuses' gateway_limits Caddyfile 502 \
    caddy run --adapter caddyfile --config Caddyfile
check_end
