# Helpers of the tests over gRPC, which tests/grpc_check.sh and tests/grpc_quotas_check.sh source.
# Those set:
#
#   $server    the program to test
#   $config    the configuration of the servers that `start` starts
#   $main      the address that run_all tests
#   $crowded   one with few connections, for the tests that need that

# shellcheck shell=sh disable=SC2034,SC2154
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
    timeout 1000 $python "$program" "$@" || { tail -n 5 "$folder"/*.log && return 1; }
}

# Each program says which tests it has, and runs them one after the other.
run_all() { # program
    names=$($python "tests/grpc/$1" '' --list)
    few=$(echo "$names" | grep 'do_not_take_all$')
    # shellcheck disable=SC2046,SC2086 # words
    {
        run "$1" "$main" $(echo "$names" | grep -v 'do_not_take_all$')
        [ ! "$few" ] || run "$1" "$crowded" $few
    } >"$folder/ran"
    for test in $names; do check "$(echo "$test" | tr _ ' ')" has_passed "$test"; done
}

# Prints why a test has failed.
has_passed() { # test
    grep -q -x "passed $1" "$folder/ran" && return
    awk -v test="$1" '/^(passed|failed) / { if ($2 == test) print text; text = ""; next }
        { text = text $0 "\n" } END { print text }' "$folder/ran"
    return 1
}

# Ends the script with one skipped test if what the clients in Python need is missing.
need_grpcio() {
    $python -c 'import grpc, google.protobuf, hpack' 2>/dev/null && is_installed protoc && return
    skip grpcio
    check_end
    exit
}
