#!/bin/sh
# Makes the Debian packages, checks their contents, and runs the programs from them. Then installs,
# upgrades and removes them in a copy of this system, whose changes are lost at the end: an overlay
# over /, in a mount namespace. Nothing is installed on the system itself.
set -u
# shellcheck source=tests/check.sh
. tests/check.sh
names='doorman-server doormanctl libdoorman-dev'
files=$folder/files/doorman-server

make_packages() { # doormanctl, folder
    mkdir -p "$2" &&
        sh examples/deploy/debian/package.sh build/doorman_server "$1" "$2"
}

# Each package becomes NAME.deb in $folder. The umask must not matter.
are_made() {
    mkdir "$folder/files" &&
        (umask 077 && make_packages build/doormanctl "$folder/made") || return 1
    for name in $names; do
        mv "$folder/made/${name}"_*.deb "$folder/$name.deb" &&
            dpkg-deb -x "$folder/$name.deb" "$folder/files/$name" || return 1
    done
}

# Builds doormanctl in a folder, and makes the packages with it.
make_in() { # folder
    mkdir -p "$1" && cp -r Makefile .ci server ./*.h ./*.c "$1" &&
        (unset MAKEFLAGS MFLAGS MAKELEVEL &&
            make CC="${CC:-cc}" CPPFLAGS="${CPPFLAGS:-}" -C "$1" build/doormanctl) &&
        make_packages "$1/build/doormanctl" "$1/made"
}

# The two builds have other times, folders and umasks. They compile only doormanctl, because the
# server takes a minute.
are_made_again_with_the_same_bytes() {
    (umask 077 && make_in "$folder/one") && (umask 002 && make_in "$folder/second/folder") &&
        (cd "$folder/one/made" && sha256sum ./*.deb) >"$folder/sums" &&
        [ "$(wc -l <"$folder/sums")" = 3 ] &&
        (cd "$folder/second/folder/made" && sha256sum -c "$folder/sums")
}

# Each package also has a copyright and a changelog.
has_files() { # name, expected files
    name=$1
    shift
    printf './%s\n' "$@" "usr/share/doc/$name/copyright" "usr/share/doc/$name/changelog.Debian.gz" |
        awk '{ print ($1 ~ "/bin/" ? "-rwxr-xr-x" : "-rw-r--r--"), "root/root", $1 }' |
        LC_ALL=C sort -k 3 >"$folder/expected"
    dpkg-deb --contents "$folder/$name.deb" | grep -v '^d' | awk '{ print $1, $2, $6 }' |
        LC_ALL=C sort -k 3 | diff "$folder/expected" -
}

# shellcheck disable=SC2046 # several files
have_expected_files() {
    doc=usr/share/doc/doorman-server
    has_files doorman-server etc/doorman/config.json etc/doorman/environment \
        usr/bin/doorman_server usr/lib/systemd/system/doorman.service $doc/CHANGELOG.md \
        $doc/README.md $doc/examples/doorman.rules.yml $doc/examples/grafana.json \
        $doc/examples/prometheus.yml $(find docs -name '*.md' | sed "s|^|$doc/|") &&
        has_files doormanctl usr/bin/doormanctl usr/share/man/man1/doormanctl.1.gz \
            usr/share/bash-completion/completions/doormanctl \
            usr/share/zsh/vendor-completions/_doormanctl || return 1
    doc=usr/share/doc/libdoorman-dev
    has_files libdoorman-dev usr/include/doorman.h usr/include/doorman_permits.h \
        usr/include/doorman_throttle.h usr/share/pkgconfig/doorman.pc \
        usr/lib/cmake/doorman/doormanConfig.cmake \
        usr/lib/cmake/doorman/doormanConfigVersion.cmake \
        $doc/CHANGELOG.md $doc/examples/cmake/installed/CMakeLists.txt \
        $doc/docs/configuration.md $doc/docs/library.md $doc/docs/permits.md \
        $doc/docs/protocol.md $(find examples -maxdepth 1 -name '*.[ch]*' |
            grep -v -e '/demo.*\.c$' -e demo_fleet | sed "s|^|$doc/|")
}

field() { # name, field
    dpkg-deb --field "$folder/$1.deb" "$2"
}

# The version of the packages has a revision. A program has no dependency of the other one.
have_right_fields() {
    version=$(field doorman-server Version)
    "$files/usr/bin/doorman_server" --version | grep -x -F "doorman_server ${version%-*}" &&
        "$folder/files/doormanctl/usr/bin/doormanctl" --version |
        grep -x -F "doormanctl ${version%-*}" &&
        [ "$(field doormanctl Version)" = "$version" ] &&
        [ "$(field libdoorman-dev Version)" = "$version" ] &&
        [ "$(field libdoorman-dev Architecture)" = all ] &&
        [ "$(field doormanctl Architecture)" = "$(dpkg --print-architecture)" ] &&
        field doorman-server Depends | grep libnng1 | grep libcjson1 | grep libcurl4 |
        grep libsqlite3-0 | grep libhiredis | grep libnghttp2 | grep libgnutls |
        grep libprotobuf-c | grep 'libc6 (>=' | grep -v libyaml &&
        field doormanctl Depends | grep libnng1 | grep libcjson1 | grep libcurl4 |
        grep libyaml-0-2 | grep 'libc6 (>=' |
        grep -v -e libsqlite3 -e libgnutls -e libtsan -e libasan &&
        [ -z "$(field libdoorman-dev Depends)" ] &&
        for name in $names; do
            cmp LICENSE "$folder/files/$name/usr/share/doc/$name/copyright" || return 1
        done
}

# md5sums, which `dpkg --verify` reads, has each file under usr.
have_right_sums() {
    mkdir "$folder/control"
    for name in $names; do
        dpkg-deb --control "$folder/$name.deb" "$folder/control/$name" &&
            (cd "$folder/files/$name" && md5sum --quiet -c "$folder/control/$name/md5sums") &&
            [ "$(find "$folder/files/$name/usr" -type f | wc -l)" = \
                "$(wc -l <"$folder/control/$name/md5sums")" ] || return 1
    done
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

# Some packages of 0.1.0, which had no revision yet, had the server and doormanctl. Makes such a
# package, old.deb.
make_old_package() {
    cp -r "$files" "$folder/old" && cp -r "$folder/files/doormanctl/usr" "$folder/old" &&
        rm -r "$folder/old/usr/share/doc/doormanctl" &&
        dpkg-deb --control "$folder/doorman-server.deb" "$folder/old/DEBIAN" &&
        sed -i -e 's/^Version: .*/Version: 0.1.0/' -e '/^Recommends/d' \
            "$folder/old/DEBIAN/control" &&
        dpkg-deb --root-owner-group --build "$folder/old" "$folder/old.deb"
}

# Runs commands in the overlay. It has the packages, and the programs for programmers, at its top.
in_copy() { # commands
    # shellcheck disable=SC2016 # the inner shell expands its arguments
    unshare --mount sh -c '
        set -e
        mkdir -p "$1/copy" && mount -t tmpfs none "$1/copy"
        mkdir "$1/copy/upper" "$1/copy/work" "$1/copy/root"
        mount -t overlay none -o "lowerdir=/,upperdir=$1/copy/upper,workdir=$1/copy/work" \
            "$1/copy/root"
        cp "$1"/*.deb examples/library_only.c examples/rate_client.c "$1/copy/root"
        mkdir "$1/copy/root/programs"
        cp -r examples/cmake examples/library_only.c examples/hold_guard.cpp "$1/copy/root/programs"
        cd "$1/copy"
        mount -t proc none root/proc
        mount --bind /dev root/dev
        chroot root sh -c "$2"' sh "$folder" "$begin$1"
}

# shellcheck disable=SC2016 # the shell in the overlay expands these
begin='
set -eux
dpkg --purge doorman-server doormanctl libdoorman-dev
rm -rf /etc/doorman /run/systemd/system
enabled=/etc/systemd/system/multi-user.target.wants/doorman.service
'

# shellcheck disable=SC2016
steps='
dpkg --install /doorman-server.deb /doormanctl.deb
doorman_server --version
doorman_server --config /etc/doorman/config.json --check-config
doormanctl help config check
dpkg --verify doorman-server doormanctl
test -L $enabled
echo "# edited" >>/etc/doorman/environment
systemctl disable doorman.service
dpkg --install /doorman-server.deb /doormanctl.deb </dev/null
grep -x "# edited" /etc/doorman/environment
test ! -e $enabled
systemctl enable doorman.service
dpkg --remove doorman-server
test ! -e /usr/bin/doorman_server
test -e /etc/doorman/config.json
doormanctl --version
dpkg --install /doorman-server.deb </dev/null
grep -x "# edited" /etc/doorman/environment
test -L $enabled
dpkg --purge doorman-server
test ! -e /etc/doorman
test ! -L $enabled
test ! -e /usr/lib/systemd/system/doorman.service
test ! -e /usr/share/doc/doorman-server
dpkg --purge doormanctl
test ! -e /usr/bin/doormanctl
test ! -e /usr/share/man/man1/doormanctl.1.gz
'

# doormanctl alone would break an old server, so dpkg refuses it. With --auto-deconfigure, as apt
# calls dpkg, it comes first, and takes its files from the old package.
# shellcheck disable=SC2016
upgrade='
dpkg --install /old.deb
dpkg --search /usr/bin/doormanctl | grep -x "doorman-server: /usr/bin/doormanctl"
echo "# edited" >>/etc/doorman/environment
if dpkg --install /doormanctl.deb; then exit 1; fi
dpkg --auto-deconfigure --install /doormanctl.deb /doorman-server.deb </dev/null
dpkg --search /usr/bin/doormanctl | grep -x "doormanctl: /usr/bin/doormanctl"
dpkg --verify doormanctl
doormanctl --version
grep -x "# edited" /etc/doorman/environment
test -L $enabled
test -z "$(dpkg --audit)"
dpkg --remove doorman-server
doormanctl --version
'

# shellcheck disable=SC2016
headers='
dpkg --install /libdoorman-dev.deb
unset PKG_CONFIG_PATH
compile="${CC:-cc} -std=c11 -o /program"
cd /
$compile library_only.c $(pkg-config --cflags --libs doorman)
./program
$compile rate_client.c $(pkg-config --cflags --libs --static doorman)
$compile -M library_only.c $(pkg-config --cflags doorman)
grep /usr/include/doorman.h program
dpkg --purge libdoorman-dev
test ! -e /usr/include/doorman.h
'

# Both names of the folder of libraries lead to /usr/include.
# shellcheck disable=SC2016
cmake_headers='
dpkg --install /libdoorman-dev.deb
cd /
cmake -S programs/cmake/installed -B built
cmake --build built
built/library_only
built/hold_guard --help | grep usage
grep -r -h /usr/include/doorman_permits.h built --include "*.d"
cmake -S programs/cmake/installed -B again -Ddoorman_DIR=/lib/cmake/doorman
dpkg --purge libdoorman-dev
test ! -e /usr/lib/cmake/doorman
'

# Without DEBEMAIL, the address of the maintainer is a placeholder.
lintian_is_content() {
    lintian --fail-on error --suppress-tags \
        bogus-mail-host,bogus-mail-host-in-debian-changelog,root-in-contact \
        "$folder/doorman-server.deb" "$folder/doormanctl.deb" "$folder/libdoorman-dev.deb"
}

require dpkg-deb dpkg-shlibdeps strip
check 'the packages are made' are_made
check 'two builds give the same bytes' are_made_again_with_the_same_bytes
check 'they have the expected files' have_expected_files
check 'their fields are right' have_right_fields
check 'their sums are right' have_right_sums
check 'the server runs with the packaged configuration' server_runs
check_with systemd-analyze 'systemd reads the unit' unit_is_right
check_with lintian 'lintian finds no error' lintian_is_content
if in_copy true >/dev/null 2>&1; then
    check 'they are installed, upgraded and removed' in_copy "$steps"
    check 'a package with both programs can be made' make_old_package
    check 'a package with both programs is upgraded' in_copy "$upgrade"
    check_with pkg-config 'a program is compiled with the packaged headers' in_copy "$headers"
    check_with cmake 'CMake finds the packaged headers' in_copy "$cmake_headers"
else
    skip 'the right to mount an overlay'
fi
check_end
