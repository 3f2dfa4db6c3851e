#!/bin/sh
# Makes the Debian package, checks its contents, and runs the server from it. Then installs,
# upgrades and removes it in a copy of this system, whose changes are lost at the end: an overlay
# over /, in a mount namespace. Nothing is installed on the system itself.
set -u
# shellcheck source=tests/check.sh
. tests/check.sh
files=$folder/files

# The umask must not matter.
is_made() {
    (umask 077 && sh examples/deploy/debian/package.sh build/doorman_server build/doormanctl \
        "$folder") &&
        mv "$folder"/doorman-server_*.deb "$folder/server.deb" &&
        dpkg-deb -x "$folder/server.deb" "$files"
}

is_made_again_with_the_same_bytes() {
    mkdir "$folder/again" &&
        sh examples/deploy/debian/package.sh build/doorman_server build/doormanctl \
            "$folder/again" &&
        cmp "$folder"/again/doorman-server_*.deb "$folder/server.deb"
}

has_expected_files() {
    dpkg-deb --contents "$folder/server.deb" | grep -v '^d' | awk '{ print $1, $2, $6 }' |
        LC_ALL=C sort -k 3 >"$folder/contents"
    doc=./usr/share/doc/doorman-server
    find docs -name '*.md' | sed "s|^|-rw-r--r-- root/root $doc/|" >"$folder/expected"
    printf '%s\n' '-rw-r--r-- root/root ./etc/doorman/config.json' \
        '-rw-r--r-- root/root ./etc/doorman/environment' \
        '-rwxr-xr-x root/root ./usr/bin/doorman_server' \
        '-rwxr-xr-x root/root ./usr/bin/doormanctl' \
        '-rw-r--r-- root/root ./usr/share/bash-completion/completions/doormanctl' \
        '-rw-r--r-- root/root ./usr/share/man/man1/doormanctl.1.gz' \
        '-rw-r--r-- root/root ./usr/share/zsh/vendor-completions/_doormanctl' \
        '-rw-r--r-- root/root ./usr/lib/systemd/system/doorman.service' \
        "-rw-r--r-- root/root $doc/CHANGELOG.md" \
        "-rw-r--r-- root/root $doc/README.md" \
        "-rw-r--r-- root/root $doc/changelog.gz" \
        "-rw-r--r-- root/root $doc/copyright" \
        "-rw-r--r-- root/root $doc/examples/doorman.rules.yml" \
        "-rw-r--r-- root/root $doc/examples/grafana.json" \
        "-rw-r--r-- root/root $doc/examples/prometheus.yml" >>"$folder/expected"
    LC_ALL=C sort -k 3 "$folder/expected" | diff - "$folder/contents"
}

has_right_fields() {
    version=$(dpkg-deb --field "$folder/server.deb" Version)
    "$files/usr/bin/doorman_server" --version | grep -x -F "doorman_server $version" &&
        "$files/usr/bin/doormanctl" --version | grep -x -F "doormanctl $version" &&
        dpkg-deb --field "$folder/server.deb" Depends | grep libnng1 | grep libcjson1 |
        grep libcurl4 | grep libsqlite3-0 | grep libhiredis | grep libyaml-0-2 |
        grep 'libc6 (>=' &&
        cmp LICENSE "$files/usr/share/doc/doorman-server/copyright"
}

unit_is_right() {
    sed "s|/usr/bin/doorman_server|$files&|" "$files/usr/lib/systemd/system/doorman.service" \
        >"$folder/doorman.service"
    grep -x "ExecStart=$files/usr/bin/doorman_server" "$folder/doorman.service" &&
        systemd-analyze verify --man=no "$folder/doorman.service" >"$folder/verify" 2>&1 &&
        ! grep -e doorman.service "$folder/verify"
}

# As systemd starts and reloads it: with the packaged environment, and the command of the unit.
server_runs() {
    reload=$(sed -n "s|^ExecReload=/bin/sh -c '\(.*\)'$|\1|p" \
        "$files/usr/lib/systemd/system/doorman.service")
    variables=$(grep -v '^#' "$files/etc/doorman/environment" |
        sed -e "s|/etc/|$files&|" -e "s|/var/lib/doorman|$folder|")
    # shellcheck disable=SC2086 # the words are variables
    env $variables DOORMAN_CHECK_CONFIG=1 "$files/usr/bin/doorman_server" || return 1
    # shellcheck disable=SC2086
    env $variables DOORMAN_LISTEN=tcp://127.0.0.1:0 DOORMAN_HTTP=off \
        "$files/usr/bin/doorman_server" 2>"$folder/log" &
    server=$!
    processes=$server
    await ' listen=' "$folder/log"
    MAINPID=$server sh -c "$reload"
    await 'configuration loaded' "$folder/log"
    kill -TERM $server
    wait $server && grep ' resources=' "$folder/log" && grep 'configuration loaded' "$folder/log" &&
        [ -s "$folder/counters.db" ]
}

# Runs commands in the overlay.
in_copy() { # commands
    # shellcheck disable=SC2016 # the inner shell expands its arguments
    unshare --mount sh -c '
        set -e
        mkdir "$1/copy" && mount -t tmpfs none "$1/copy" && cd "$1/copy" && mkdir upper work root
        mount -t overlay none -o lowerdir=/,upperdir=upper,workdir=work root
        cp "$1/server.deb" root/server.deb
        mount -t proc none root/proc
        mount --bind /dev root/dev
        chroot root sh -c "$2"' sh "$folder" "$1"
}

# shellcheck disable=SC2016 # the shell in the overlay expands these
steps='
set -eux
dpkg --purge doorman-server
rm -rf /etc/doorman /run/systemd/system
enabled=/etc/systemd/system/multi-user.target.wants/doorman.service
dpkg --install /server.deb
doorman_server --version
doorman_server --config /etc/doorman/config.json --check-config
doormanctl help config check
test -L $enabled
echo "# edited" >>/etc/doorman/environment
systemctl disable doorman.service
dpkg --install /server.deb </dev/null
grep -x "# edited" /etc/doorman/environment
test ! -e $enabled
systemctl enable doorman.service
dpkg --remove doorman-server
test ! -e /usr/bin/doorman_server
test -e /etc/doorman/config.json
dpkg --install /server.deb </dev/null
grep -x "# edited" /etc/doorman/environment
test -L $enabled
dpkg --purge doorman-server
test ! -e /etc/doorman
test ! -L $enabled
test ! -e /usr/lib/systemd/system/doorman.service
test ! -e /usr/share/doc/doorman-server
'

require dpkg-deb dpkg-shlibdeps strip
check 'the package is made' is_made
check 'the package can be made again' is_made_again_with_the_same_bytes
check 'it has the expected files' has_expected_files
check 'its fields are right' has_right_fields
check 'the server runs with the packaged configuration' server_runs
check_with systemd-analyze 'systemd reads the unit' unit_is_right
# Without DEBEMAIL, the address of the maintainer is a placeholder.
check_with lintian 'lintian finds no error' lintian --fail-on error \
    --suppress-tags bogus-mail-host,bogus-mail-host-in-debian-changelog,root-in-contact \
    "$folder/server.deb"
if in_copy true >/dev/null 2>&1; then
    rmdir "$folder/copy"
    check 'it is installed, upgraded and removed' in_copy "$steps"
else
    skip 'the right to mount an overlay'
fi
check_end
