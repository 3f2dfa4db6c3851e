#!/bin/sh
# Builds the image of examples/deploy/Dockerfile with docker or buildah, and runs the server in it.
# Skipped where neither works, or where the base image cannot be had. The build compiles the server,
# so it takes some minutes.
set -u
# shellcheck source=tests/check.sh
. tests/check.sh
file=examples/deploy/Dockerfile
image=localhost/doorman-check-$$
container=doorman-check-$$
base=$(sed -n 's/^FROM \([^ ]*\).*/\1/p' $file | sort -u)

# docker needs its service. buildah needs none, and isolation by chroot also works in a container.
if docker info >/dev/null 2>&1; then
    tool=docker
elif command -v buildah >/dev/null; then
    tool=buildah
    BUILDAH_ISOLATION=${BUILDAH_ISOLATION:-chroot}
    export BUILDAH_ISOLATION
else
    skip 'docker or buildah'
    check_end
    exit
fi

has_base() {
    case $tool in
    docker) docker image inspect "$base" || timeout 300 docker pull "$base" ;;
    buildah) timeout 300 buildah pull --policy missing "$base" ;;
    esac
}

# Only images in the format of docker have a health check.
is_built() {
    case $tool in
    docker) docker build -f $file -t $image . ;;
    buildah)
        buildah bud --pull=false --format docker -f $file -t $image . &&
            buildah from --name $container $image
        ;;
    esac
}

# Runs a program in the image, as the user of the image.
in_image() { # program, arguments...
    volume=$folder/config.json:/etc/doorman/config.json:ro
    program=$1
    shift
    case $tool in
    docker)
        docker run --rm --read-only --tmpfs /tmp --cap-drop ALL -v "$volume" \
            --entrypoint "$program" $image "$@"
        ;;
    buildah) buildah run -v "$volume" $container -- "$program" "$@" ;;
    esac
}

inspect() {
    case $tool in
    docker) docker image inspect $image ;;
    buildah) buildah inspect --type image $image ;;
    esac
}

has_right_settings() {
    inspect >"$folder/settings" && cat "$folder/settings" &&
        grep -q '"User": "65532:65532"' "$folder/settings" &&
        grep -q '"StopSignal": "SIGTERM"' "$folder/settings" &&
        grep -q '/healthz' "$folder/settings" &&
        grep -A 1 '"Entrypoint": \[' "$folder/settings" | grep -q '"doorman_server"'
}

has_right_version() {
    version=$(sed -n 's/^#define DOORMAN_VERSION "\(.*\)"$/\1/p' doorman.h)
    in_image doorman_server --version | tee "$folder/version" && grep "$version" "$folder/version"
}

# The server has the configuration of the image, ports of its own, and the health check.
# shellcheck disable=SC2016 # the shell in the image expands these
session='
set -eu
test "$(id -u)" = 65532
if command -v gcc; then exit 1; fi
doorman_server --listen tcp://127.0.0.1:0 --http 127.0.0.1:0 2>/tmp/log &
server=$!
tries=0
until grep " http=" /tmp/log; do
    tries=$((tries + 1))
    test $tries -lt 1800
    kill -0 $server
    sleep 0.1
done
HEALTH_URL=$(sed -n "s/.* http=\([^ ]*\).*/\1/p" /tmp/log)/healthz
export HEALTH_URL
sh -c "$1"
kill -TERM $server
wait $server
! sh -c "$1"
'
server_runs() {
    in_image sh -c "$session" sh "$(sed -n 's/^    CMD \(curl .*\)$/\1/p' $file)"
}

remove() {
    case $tool in
    docker) docker image rm -f $image ;;
    buildah) buildah rm $container && buildah rmi $image ;;
    esac
}

if ! has_base >"$folder/base" 2>&1; then
    skip "the image $base"
    check_end
    exit
fi
install -m 644 config.example.json "$folder/config.json"
check 'the image is built' is_built
check 'its settings are right' has_right_settings
check 'its server has the right version' has_right_version
check 'the server in it runs, and ends cleanly' server_runs
check 'the image is removed' remove
check_end
