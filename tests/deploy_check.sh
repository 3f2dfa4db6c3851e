#!/bin/sh
# Holds the files of examples/deploy against the tools that will read them, where these are
# installed, and against the names of the metrics that the server has.
set -u
# shellcheck source=tests/check.sh
. tests/check.sh
deploy=examples/deploy

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
    check 'Prometheus reads its configuration' promtool check config $deploy/prometheus.yml
    check 'the rules are rules' promtool check rules $deploy/doorman.rules.yml
    check 'the alerts come when they should' promtool test rules tests/deploy/rules_test.yml
fi
if has systemd-analyze; then check 'systemd reads the unit' unit_is_right; fi
if has python3; then check 'the dashboard is JSON' python3 -m json.tool $deploy/grafana.json; fi
check 'every metric is one of the server' metrics_are_known

check_end
