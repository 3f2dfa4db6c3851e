#!/bin/sh
# Builds the image of examples/deploy/Dockerfile with the command in its comment, and runs the
# server in it. docker does this if its service runs, and otherwise buildah. Where buildah reaches
# no registry, mmdebstrap makes the base image from the packages of Debian. The build compiles the
# server, so this takes some minutes. `make test_image` runs it.
set -u
# shellcheck source=tests/check.sh
. tests/check.sh
file=examples/deploy/Dockerfile
image=doorman
base=$(sed -n 's/^FROM \([^ ]*\).*/\1/p' $file | sort -u)

# Runs a command for at most some seconds. What buildah, mmdebstrap and the server mount is in a
# namespace of theirs, and ends with them. So $folder never holds mounts, and can be removed.
within='timeout --foreground -k 10'
alone="unshare --mount --pid --fork --kill-child --mount-proc $within"
if docker info >/dev/null 2>&1; then
    builder=docker alone=$within
    image=doorman-check-$$ # beside the images of the user
else
    builder=buildah
    require buildah mmdebstrap unshare ip
    # shellcheck disable=SC2086 # the words of commands
    if ! unshare --net $alone 9 true 2>/dev/null; then
        skip 'root, or docker'
        check_end
        exit
    fi
    # Isolation by chroot also works in a container. All images are in $folder.
    export BUILDAH_ISOLATION=chroot CONTAINERS_STORAGE_CONF="$folder/storage.conf" TMPDIR="$folder"
    printf '[storage]\ndriver = "vfs"\ngraphroot = "%s/images"\nrunroot = "%s/run"\n' \
        "$folder" "$folder" >"$CONTAINERS_STORAGE_CONF"
fi

is_pulled() {
    # shellcheck disable=SC2086
    $alone 120 $builder pull "$base"
}

# The image of Debian leaves out the same files, and keeps no packages that it has installed.
base_is_made() {
    [ "$base" = docker.io/library/debian:12-slim ] || return 1 # another release has another name
    new=$(buildah from scratch) && root=$(buildah mount "$new") || return 1
    # shellcheck disable=SC2086
    $alone 900 mmdebstrap --mode=root --variant=minbase --format=directory \
        --dpkgopt=force-unsafe-io --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        --aptopt='Dir::Cache::pkgcache ""' --aptopt='Dir::Cache::srcpkgcache ""' \
        --aptopt='DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb"; }' \
        bookworm "$root" &&
        buildah commit --rm "$new" "$base"
}

# The comment has a command for docker and one for buildah.
is_built() {
    command=$(sed -n "s/^#  *\($builder build .* \)doorman \.$/\1$image ./p" $file)
    [ "$command" ] && eval "$alone 1800 $command"
}

inspect() { # template
    case $builder in
    docker) docker image inspect --format "{{with .Config}}$1{{end}}" $image ;;
    buildah)
        buildah inspect --type image --format "{{with .Docker.Config}}$1{{end}}" $image && echo
        ;;
    esac
}

has_right_settings() {
    inspect '{{.User}} {{.StopSignal}} {{.Entrypoint}} {{.Cmd}} {{.ExposedPorts}}
{{.Healthcheck.Test}}' | tee "$folder/settings"
    health=$(sed -n 's/^    CMD \(curl .*\)$/\1/p' $file)
    {
        echo '65532:65532 SIGTERM [doorman_server] [] map[15000/tcp:{} 15050/tcp:{}]'
        echo "[CMD-SHELL $health]"
    } | diff - "$folder/settings"
}

# Unpacks the image, with empty files at the places of the volumes.
is_unpacked() {
    new=$(buildah from --pull=never $image) && root=$(buildah mount "$new") || return 1
    mkdir "$root/etc/doorman" && : >"$root/etc/doorman/config.json" && : >"$root/token"
    user=$(inspect '{{.User}}')
    variables=$(inspect '{{range .Env}}{{.}} {{end}}')
}

# Does what docker does with an image that is unpacked: a network, processes and mounts of its own,
# a root that cannot be written, the user, no capabilities, and the variables of the image.
# shellcheck disable=SC2016 # the shell in the namespace expands these
contain='
set -eu
root=$1 folder=$2 user=$3 variables=$4
shift 4
ip link set lo up
mount --bind "$root" "$root"
mount --bind "$folder/config.json" "$root/etc/doorman/config.json"
mount --bind "$folder/token" "$root/token"
mount --bind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount -o remount,bind,ro "$root"
exec chroot "$root" setpriv --reuid "${user%:*}" --regid "${user#*:}" --clear-groups \
    --bounding-set=-all --no-new-privs env -i $variables "$@"
'

# Runs a program in the image, with the flags of the command in the comment.
in_image() { # program, arguments...
    if [ $builder = buildah ]; then
        # shellcheck disable=SC2086
        unshare --net $alone 120 sh -c "$contain" sh "$root" "$folder" "$user" "$variables" "$@"
        return
    fi
    program=$1
    shift
    # shellcheck disable=SC2086
    $within 120 docker run --rm --read-only --cap-drop ALL -v "$folder/token:/token:ro" \
        -v "$folder/config.json:/etc/doorman/config.json:ro" --entrypoint "$program" $image "$@"
}

has_right_version() {
    version=$(sed -n 's/^#define DOORMAN_VERSION "\(.*\)"$/\1/p' doorman.h)
    in_image doorman_server --version | tee "$folder/version" && grep "$version" "$folder/version"
}

# Checks what the comment says of the image, in it. The server has the ports of the image, since
# the network is its own. /proc/net/tcp has ports as hexadecimal numbers: 3A98 is 15000, and 3ACA is
# 15050.
# shellcheck disable=SC2016 # the shell in the image expands these
session='
set -eu
health=$1
say() { echo "session: $1"; }
fail() { say "$1"; exit 1; }
await() { # command: until it succeeds, or the server has ended
    tries=0
    until sh -c "$1"; do
        tries=$((tries + 1))
        test $tries -lt 600 && kill -0 $server
        sleep 0.1
    done
}
status() { curl -s -o /dev/null -w "%{http_code}" "$@"; }
listens() { grep -q -i ": $1 00000000:0000 0A" /proc/net/tcp; }
stop() { kill -TERM $1 && wait $1; }

say "an unprivileged user, who can write nothing"
test "$(id -u):$(id -g)" = 65532:65532
grep "^CapEff:[[:space:]]0*$" /proc/self/status
! touch /tmp/file 2>/dev/null || fail "the root can be written"
! command -v gcc || fail "there is a compiler"

say "without flags"
doorman_server &
server=$!
await "$health"
listens 00000000:3A98
listens 0100007F:3ACA
root=$server

say "a node with a parent"
export DOORMAN_LISTEN=tcp://127.0.0.1:15001
DOORMAN_CONFIG= DOORMAN_PARENT=tcp://127.0.0.1:15000 DOORMAN_NODE=leaf \
    DOORMAN_HTTP=127.0.0.1:15051 doorman_server &
server=$!
await "curl -fsS http://127.0.0.1:15051/readyz?master=1"
HEALTH_URL=http://127.0.0.1:15051/healthz sh -c "$health"
stop $server
stop $root
! sh -c "$health" || fail "a dead server is healthy"

say "published, with a token"
DOORMAN_HTTP=0.0.0.0:15050 DOORMAN_HTTP_TOKEN=/token doorman_server &
server=$!
await "$health"
listens 00000000:3ACA
test "$(status http://127.0.0.1:15050/v1/status)" = 401
test "$(status -H "Authorization: Bearer $(cat /token)" http://127.0.0.1:15050/v1/status)" = 200
stop $server
'
server_runs() { in_image sh -c "$session" sh "$(sed -n 's/^    CMD \(curl .*\)$/\1/p' $file)"; }

# The checks that follow need what the last one made.
check_or_end() { # promise, command...
    check "$@"
    [ $failed = 0 ] && return
    check_end
    exit 1
}

nothing_is_mounted() { ! grep "$folder" /proc/self/mounts; }

echo "image_check: $builder looks for $base"
if ! is_pulled >"$folder/pulled" 2>&1; then
    if [ $builder = docker ]; then
        skip "the image $base"
        check_end
        exit
    fi
    echo 'image_check: no registry answers, so mmdebstrap makes this image (about a minute)'
    check_or_end 'mmdebstrap makes the base image' base_is_made
fi
install -m 644 config.example.json "$folder/config.json"
echo image-check-token >"$folder/token"
chmod 644 "$folder/token"
chmod 755 "$folder"
echo "image_check: $builder builds $file (some minutes)"
check_or_end 'the image is built' is_built
check 'its settings are right' has_right_settings
if [ $builder = buildah ]; then check_or_end 'buildah unpacks it' is_unpacked; fi
echo 'image_check: servers run in the image'
check 'its server has the right version' has_right_version
check 'the server in it does what the Dockerfile says' server_runs
if [ $builder = docker ]; then
    check 'the image is removed' docker image rm -f $image
else
    check 'nothing is mounted' nothing_is_mounted
fi
check_end
