#!/bin/sh
# Holds the files of examples/deploy against the tools that will read them, where these are
# installed, and against the names of the metrics that the server has.
set -u
deploy=examples/deploy
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
passed=0 failed=0

check() { # a command
    if "$@" >"$folder/output" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "[  FAILED  ] $*"
        cat "$folder/output"
    fi
}

# Whether there is a tool. One that is missing is no failure, but is said.
has() {
    command -v "$1" >/dev/null && return
    echo "$1 is not installed: left out"
    return 1
}

# What is installed elsewhere is taken from here, so that systemd finds it.
unit_is_right() {
    sed "s|/usr/local/bin|$PWD/build/plain|" $deploy/doorman.service >"$folder/doorman.service"
    systemd-analyze verify --man=no "$folder/doorman.service" >"$folder/verify" 2>&1 &&
        ! grep -e doorman.service "$folder/verify"
}

# The server's source has them without their prefix, in quotes or as a part of a text.
metrics_are_known() {
    sed 's/_bucket//g' $deploy/doorman.rules.yml $deploy/grafana.json |
        grep -o -E 'doorman_(server|resource|build)_[a-z_]+' | sort -u >"$folder/metrics"
    while read -r metric; do
        grep -q -w -e "${metric#doorman_}" -e "$metric" doorman_server.c || echo "$metric"
    done <"$folder/metrics" >"$folder/unknown"
    [ -s "$folder/metrics" ] && ! grep . "$folder/unknown"
}

if has promtool; then
    check promtool check config $deploy/prometheus.yml
    check promtool check rules $deploy/doorman.rules.yml
    check promtool test rules tests/deploy/rules_test.yml
fi
if has systemd-analyze; then check unit_is_right; fi
if has python3; then check python3 -m json.tool $deploy/grafana.json; fi
check metrics_are_known

echo "[  PASSED  ] $passed test(s)."
[ $failed = 0 ] || echo "[  FAILED  ] $failed test(s)"
[ $failed = 0 ]
