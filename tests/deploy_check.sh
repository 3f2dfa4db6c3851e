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
        grep -o -E 'doorman_(server|state|resource|permits|build)_[a-z_]+' |
        sort -u >"$folder/metrics"
    while read -r metric; do
        grep -q -w -e "${metric#doorman_}" -e "$metric" server/*/*.c || echo "$metric"
    done <"$folder/metrics" >"$folder/unknown"
    [ -s "$folder/metrics" ] && ! grep . "$folder/unknown"
}

# A misspelt variable would have no effect.
variables_are_known() {
    grep -h -o -E 'DOORMAN_[A-Z_]+' $deploy/*.yml $deploy/*.yaml $deploy/kubernetes/*/*.y*ml \
        $deploy/Dockerfile \
        $deploy/doorman.service $deploy/debian/environment | sort -u >"$folder/variables"
    while read -r variable; do
        grep -q "\"$variable\"" server/core/flags.h || echo "$variable"
    done <"$folder/variables" >"$folder/unknown"
    [ -s "$folder/variables" ] && ! grep . "$folder/unknown"
}

# Runs the health check of the Dockerfile against a server, and again when the server has ended.
health_check_is_right() {
    command=$(sed -n 's/^    CMD \(curl .*\)$/\1/p' $deploy/Dockerfile)
    build/doorman_server --config config.example.json --listen tcp://127.0.0.1:0 \
        --http 127.0.0.1:0 2>"$folder/log" &
    server=$!
    processes=$server
    await ' http=' "$folder/log"
    HEALTH_URL=$(sed -n 's/.* http=\([^ ]*\).*/\1/p' "$folder/log")/healthz
    export HEALTH_URL
    sh -c "$command" && status=healthy || status=unhealthy
    kill $server
    wait $server
    [ "$status" = healthy ] && ! sh -c "$command"
}

# Runs the processes of a manifest in namespaces of its own.
manifest_runs() { # name
    mkdir "$folder/$1"
    # shellcheck disable=SC2086 # the words of a command
    timeout 600 $namespaces python3 tests/deploy/kubernetes_run.py \
        "$deploy/kubernetes/$1/$1.yml" build/doorman_server "$folder/$1" && return
    tail -n 5 "$folder/$1"/*.log
    return 1
}

# Whether the tools of manifest_runs are installed, and namespaces are permitted.
manifests_can_run() {
    for tool in etcd etcdctl redis-server openssl curl ip; do is_installed $tool || return; done
    $namespaces true 2>/dev/null && return
    skip 'the right to make namespaces'
    return 1
}

# Writes what kustomize makes of each folder to $folder/kustomized.
kustomizes() {
    mkdir "$folder/kustomized"
    for base in "$deploy"/kubernetes/*/; do
        kubectl kustomize "$base" >"$folder/kustomized/$(basename "$base").yml" || return 1
    done
}

# A base only has the objects of its file. The overlay changes what it says, and its configuration
# is valid.
kustomized_are_right() {
    for base in tree election shards monitor; do
        python3 tests/deploy/kubernetes_same.py $deploy/kubernetes/$base/$base.yml \
            "$folder/kustomized/$base.yml" || return 1
    done
    overlay=$folder/kustomized/overlay.yml
    version=$(sed -n 's/^#define DOORMAN_VERSION "\(.*\)"$/\1/p' doorman.h)
    [ "$(grep -c "image: registry.example/doorman:$version$" "$overlay")" = 2 ] &&
        [ "$(grep -c 'value: https://etcd.example:2379$' "$overlay")" = 2 ] &&
        [ "$(grep -c 'replicas: 3$' "$overlay")" = 2 ] &&
        [ "$(grep -c 'memory: 1Gi$' "$overlay")" = 2 ] &&
        grep '"capacity": 4000' "$overlay" && grep 'kind: ServiceMonitor' "$overlay" &&
        ! grep -e 'etcd.etcd' -e 'image: doorman' "$overlay" &&
        build/doorman_server --config $deploy/kubernetes/overlay/config.json --check-config
}

fits_schema() { # files
    python3 tests/deploy/kubernetes_json.py "$@" >"$folder/objects.json" &&
        node tests/deploy/kubernetes_schema.mjs "$folder/objects.json"
}

# Each command of sed breaks a manifest.
schema_finds_faults() {
    while read -r base text command; do
        sed "$command" "$deploy/kubernetes/$base/$base.yml" >"$folder/broken.yml"
        ! fits_schema "$folder/broken.yml" >"$folder/faults" && cat "$folder/faults" &&
            grep -q -e "$text" "$folder/faults" || return 1
    done <<'END'
tree readynessProbe s/readinessProbe:/readynessProbe:/
tree /spec/replicas s/replicas:.1/replicas: many/
tree serviceName /serviceName:/d
tree storage s/storage:.1Gi/storage: large/
tree no.such.kind s/kind:.NetworkPolicy/kind: NetworkPolice/
election whenUnsatisfiable /whenUnsatisfiable:/d
shards maxUnavailble s/maxUnavailable:/maxUnavailble:/
monitor jobLable s/jobLabel/jobLable/
monitor targetLable s/targetLabel/targetLable/
END
}

check_kubernetes() {
    files="$deploy/kubernetes/*/[!k]*.yml"
    if is_installed kubectl; then
        if kubectl version --client 2>&1 | grep -q 'v1\.\(1[0-9]\|20\)\.'; then
            skip 'kubectl (1.21 or later)'
        else
            check 'kustomize reads the folders of Kubernetes' kustomizes
            check 'what kustomize makes is right' kustomized_are_right
            files="$files $folder/kustomized/*.yml"
        fi
    fi
    # shellcheck disable=SC2086 # several files
    check 'the objects of Kubernetes fit together' python3 tests/deploy/kubernetes_check.py $files
    is_installed node || return
    sh .ci/deps --look kubernetes || { skip 'the schema of Kubernetes' && return; }
    # shellcheck disable=SC2086
    check 'the objects fit to the schema of Kubernetes' fits_schema $files
    check 'the schema of Kubernetes finds faults' schema_finds_faults
}

# The Dockerfile copies the files that the build needs, and installs libcurl, SQLite and
# hiredis. `make -n`
# checks that each file is there, and compiles nothing.
image_can_be_built() {
    mkdir "$folder/image"
    sed -n 's/^COPY \([^-].*\) [^ ]*$/\1/p' $deploy/Dockerfile | while read -r files; do
        # shellcheck disable=SC2086 # one or more files
        cp -r $files "$folder/image" || return 1
    done
    (unset MAKEFLAGS MFLAGS MAKELEVEL && make -n -C "$folder/image" build/doorman_server) &&
        grep -w libcurl4 $deploy/Dockerfile && grep -w libcurl4-openssl-dev $deploy/Dockerfile &&
        grep -w libsqlite3-0 $deploy/Dockerfile && grep -w libsqlite3-dev $deploy/Dockerfile &&
        grep -w libhiredis0.14 $deploy/Dockerfile && grep -w libhiredis-dev $deploy/Dockerfile &&
        grep -w libnghttp2-14 $deploy/Dockerfile && grep -w libnghttp2-dev $deploy/Dockerfile &&
        grep -w libgnutls30 $deploy/Dockerfile && grep -w libgnutls28-dev $deploy/Dockerfile &&
        grep -w libprotobuf-c1 $deploy/Dockerfile && grep -w protobuf-c-compiler $deploy/Dockerfile
}

# The check of the metrics also writes the expressions of the dashboard as rules.
check_dashboard() {
    check 'the dashboard is JSON' python3 -m json.tool $deploy/grafana.json
    for tool in openssl etcd redis-server; do is_installed $tool || return; done
    check 'running servers have every metric' python3 tests/deploy/metrics_check.py \
        build/doorman_server "$folder" $deploy/grafana.json $deploy/doorman.rules.yml
    check_with promtool 'the expressions of the dashboard are valid' \
        promtool check rules "$folder/dashboard.yml"
}

if is_installed promtool; then
    check 'Prometheus reads its configuration' promtool check config $deploy/prometheus.yml
    check 'the rules are valid' promtool check rules $deploy/doorman.rules.yml
    check 'the alerts fire when they should, and only then' \
        promtool test rules tests/deploy/rules*_test.yml
fi
if is_installed systemd-analyze; then check 'systemd reads the unit' unit_is_right; fi
if is_installed python3; then check_dashboard; fi
if python3 -c 'import yaml' 2>/dev/null; then
    check_kubernetes
    check 'each alert is tested when it must fire, and when it must not' \
        python3 tests/deploy/rules_check.py $deploy/doorman.rules.yml tests/deploy/rules*_test.yml
    namespaces='unshare --net --mount --pid --fork --kill-child'
    [ "$(id -u)" = 0 ] || namespaces="$namespaces --map-root-user"
    if manifests_can_run; then
        check 'the tree with an election works' manifest_runs election
        check 'the nodes that share their keys work' manifest_runs shards
    fi
else
    skip PyYAML
fi
if is_installed curl; then check 'the health check finds a dead server' health_check_is_right; fi
check 'the server has every metric' metrics_are_known
check 'the server has every variable' variables_are_known
check 'the Dockerfile copies what the build needs' image_can_be_built

check_end
