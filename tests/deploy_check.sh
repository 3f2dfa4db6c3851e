#!/bin/sh
# Checks the files of examples/deploy with the tools that read them, if these are installed, and
# checks that the server has every metric that they name.
set -u
# shellcheck source=tests/check.sh
. tests/check.sh
deploy=examples/deploy

# systemd checks that the program exists, so this uses the server in build/.
unit_is_right() {
    sed "s|/usr/local/bin|$PWD/build/plain|" $deploy/doorman.service >"$folder/doorman.service"
    systemd-analyze verify --man=no "$folder/doorman.service" >"$folder/verify" 2>&1 &&
        ! grep -e doorman.service "$folder/verify"
}

# The source of the server contains the names with or without the prefix `doorman_`.
metrics_are_known() {
    sed 's/_bucket//g' $deploy/doorman.rules.yml $deploy/grafana.json |
        grep -o -E 'doorman_(server|resource|build)_[a-z_]+' | sort -u >"$folder/metrics"
    while read -r metric; do
        grep -q -w -e "${metric#doorman_}" -e "$metric" server/*.c || echo "$metric"
    done <"$folder/metrics" >"$folder/unknown"
    [ -s "$folder/metrics" ] && ! grep . "$folder/unknown"
}

# The Dockerfile copies the files that the build needs, and installs libcurl. `make -n` checks that
# each file is there, and compiles nothing.
image_can_be_built() {
    mkdir "$folder/image"
    sed -n 's/^COPY \([^-].*\) [^ ]*$/\1/p' $deploy/Dockerfile | while read -r files; do
        # shellcheck disable=SC2086 # one or more files
        cp -r $files "$folder/image" || return 1
    done
    (unset MAKEFLAGS MFLAGS MAKELEVEL && make -n -C "$folder/image" build/doorman_server) &&
        grep -w libcurl4 $deploy/Dockerfile && grep -w libcurl4-openssl-dev $deploy/Dockerfile
}

if is_installed promtool; then
    check 'Prometheus reads its configuration' promtool check config $deploy/prometheus.yml
    check 'the rules are valid' promtool check rules $deploy/doorman.rules.yml
    check 'the alerts fire when they should' promtool test rules tests/deploy/rules_test.yml
fi
if is_installed systemd-analyze; then check 'systemd reads the unit' unit_is_right; fi
if is_installed python3; then
    check 'the dashboard is JSON' python3 -m json.tool $deploy/grafana.json
fi
check 'the server has every metric' metrics_are_known
check 'the Dockerfile copies what the build needs' image_can_be_built

check_end
