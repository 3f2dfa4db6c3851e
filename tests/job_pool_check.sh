#!/bin/sh
# Tests examples/job_pool.c: all jobs are finished although a process is killed, the limit is never
# exceeded, and no slot is lost. With a server that runs, the example does the same again.
set -u
# shellcheck source=tests/check.sh
. tests/check.sh

run_pool() { # [address]
    build/asan/examples/job_pool "$@" >"$folder/output" 2>&1 || { cat "$folder/output"; false; }
}
prints() { grep -q "$1" "$folder/output" || { cat "$folder/output"; false; }; }
finishes_each_job_once() {
    [ "$(sed -n 's/.*job \([1-6]\) finished, .*/\1/p' "$folder/output" | sort | tr -d '\n')" = \
        123456 ]
}
check_output() {
    check 'process 2 is killed' prints 'process 2: killed, [0-5] of 6 jobs finished'
    check 'process 2 does the first step' prints 'process 2: job 2 seized, step 1'
    check 'process 3 does the second step' prints 'process 3: job 1 seized, step 2'
    check 'the job of the killed process loses its slot' prints 'job 2 has lost its slot at step 1'
    check 'another process does this job' prints 'process 3: job 2 seized, step 2'
    check 'each job is finished once' finishes_each_job_once
    check 'no slot is lost, and the limit is not exceeded' \
        prints 'process 1: all 3 slots are free, at most [1-3] were taken'
}

check 'the example starts a server' run_pool
check_output

# The template is that of the example.
sed -n '/^static const char config/,/;$/s/^ *"\(.*\)"[;]*$/\1/p' examples/job_pool.c |
    sed -e 's/\\n$//' -e 's/\\"/"/g' >"$folder/config"
build/asan/doorman_server --config "$folder/config" --listen "ipc://$folder/socket" --http off \
    2>"$folder/log" &
server=$!
processes=$server
: >>"$folder/log"
await 'msg=serving' "$folder/log" "$server"
check 'the example uses a server that runs' run_pool "ipc://$folder/socket"
check_output
check 'the example shows how it is called' run_pool --help
check 'the usage names the address' prints '^usage: job_pool \[ADDRESS\]$'
check_end
