# Helpers of the tests over gRPC, which tests/grpc_check.sh and tests/grpc_quotas_check.sh source.
# Those set:
#
#   $server    the program to test
#   $config    the configuration of the servers that `start` starts
#   $main      the address that run_all tests
#   $crowded   one with few connections, for the tests that need that

# shellcheck shell=sh disable=SC2154
# shellcheck source=tests/check.sh
. tests/check.sh
python=/usr/bin/python3 # that of the packages

# Starts a server. Sets $pid, $address to that of gRPC, and $log.
start() { # name, flags...
    log=$folder/$1.log
    name=$1
    shift
    : >"$log"
    DOORMAN_HTTP=off "$server" --config "$config" --listen "ipc://$folder/$name" \
        --grpc 127.0.0.1:0 "$@" 2>"$log" &
    pid=$!
    processes="$processes $pid"
    await 'msg=serving ' "$log" $pid
    address=$(sed -n 's/.* grpc=\([^ ]*\).*/\1/p' "$log" | head -n 1)
}

# Stops a server, which writes what is left into its store.
stop() { # process
    kill "$1" && wait "$1"
}

run() { # program, arguments...
    program=tests/grpc/$1
    shift
    timeout 300 $python "$program" "$@" || { tail -n 5 "$folder"/*.log && return 1; }
}

# Each program says which tests it has.
run_all() { # program
    for test in $($python "tests/grpc/$1" '' --list); do
        case $test in *do_not_take_all) address=$crowded ;; *) address=$main ;; esac
        check "$(echo "$test" | tr _ ' ')" run "$1" "$address" "$test"
    done
}

# Ends the script with one skipped test if what the clients in Python need is missing.
need_grpcio() {
    $python -c 'import grpc, google.protobuf, hpack' 2>/dev/null && is_installed protoc && return
    skip grpcio
    check_end
    exit
}
