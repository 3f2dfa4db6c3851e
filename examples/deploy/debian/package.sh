#!/bin/sh
# Makes three Debian packages in FOLDER. `make deb` calls it. From the top folder:
#
#   sh examples/deploy/debian/package.sh build/doorman_server build/doormanctl FOLDER
#
#   doorman-server_VERSION_ARCHITECTURE.deb   the server, its service, its configuration, all pages
#   doormanctl_VERSION_ARCHITECTURE.deb       the program for operators
#   libdoorman-dev_VERSION_all.deb            the headers, and what compilers and programmers need
#
# VERSION is the version in doorman.h and the revision of the packages. Raise the revision when only
# the packages change. DEBFULLNAME and DEBEMAIL name the maintainer, as for Debian's own tools.
#
# Packages from the same commit and the same compiler are equal, in whatever folder they are built:
# SOURCE_DATE_EPOCH is the time of the commit, and the programs lose their build id, which depends
# on the folder.
set -eu
server=$1 ctl=$2 out=$3
revision=1
here=examples/deploy/debian
version=$(sed -n 's/^#define DOORMAN_VERSION "\(.*\)"$/\1/p' doorman.h)-$revision
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
maintainer="${DEBFULLNAME:-The Doorman authors} <${DEBEMAIL:-root@localhost}>"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022

write_changelog() {
    printf '%s (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n' "$name" "$version"
    printf ' -- %s  %s\n' "$maintainer" "$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")"
}

# Begins a package in $root, with the files that each package has.
begin() { # name
    name=$1
    root=$work/$name
    doc=$root/usr/share/doc/$name
    install -D -m 644 LICENSE "$doc/copyright"
    write_changelog | gzip -9 -n >"$doc/changelog.Debian.gz"
}

install_program() { # program
    install -D "$1" "$root/usr/bin/${1##*/}"
    strip -s -R .note.gnu.build-id "$root/usr/bin/${1##*/}"
}

# The comment at the top of the unit is about an installation without a package.
install_server() {
    install_program "$server"
    install -d "$root/usr/lib/systemd/system"
    sed -e '1,/^\[Unit\]/{/^#/d}' -e 's|/usr/local/bin|/usr/bin|' examples/deploy/doorman.service \
        >"$root/usr/lib/systemd/system/doorman.service"
    install -D -m 644 config.example.json "$root/etc/doorman/config.json"
    install -m 644 "$here/environment" "$root/etc/doorman"
    install -m 644 README.md CHANGELOG.md "$doc"
    install -d "$doc/docs/tasks" "$doc/examples"
    install -m 644 docs/*.md "$doc/docs"
    install -m 644 docs/tasks/*.md "$doc/docs/tasks"
    install -m 644 examples/deploy/prometheus.yml examples/deploy/doorman.rules.yml \
        examples/deploy/grafana.json "$doc/examples"
    install -d "$root/DEBIAN"
    printf '/etc/doorman/%s\n' config.json environment >"$root/DEBIAN/conffiles"
    install -m 755 "$here/postinst" "$here/prerm" "$here/postrm" "$root/DEBIAN"
}

install_ctl() {
    install_program "$ctl"
    install -D -m 644 server/ctl/completion.bash \
        "$root/usr/share/bash-completion/completions/doormanctl"
    install -D -m 644 server/ctl/completion.zsh "$root/usr/share/zsh/vendor-completions/_doormanctl"
    install -d "$root/usr/share/man/man1"
    gzip -9 -n <docs/doormanctl.1 >"$root/usr/share/man/man1/doormanctl.1.gz"
}

# The demos start programs of a build folder, so they are left out of the examples.
install_headers() {
    (unset MAKEFLAGS MFLAGS MAKELEVEL && make -s install_headers DESTDIR="$root" PREFIX=/usr)
    install -m 644 CHANGELOG.md "$doc"
    install -d "$doc/docs" "$doc/examples/cmake/installed"
    install -m 644 docs/library.md docs/configuration.md docs/permits.md docs/protocol.md \
        "$doc/docs"
    install -m 644 examples/*.[ch] examples/*.cpp "$doc/examples"
    install -m 644 examples/cmake/installed/CMakeLists.txt "$doc/examples/cmake/installed"
    rm "$doc"/examples/demo*.c "$doc/examples/demo_fleet.h"
}

# Prints the packages of the shared libraries. dpkg-shlibdeps needs a file debian/control.
dependencies() {
    mkdir -p "$work/debian"
    printf 'Source: doorman\n\nPackage: %s\nArchitecture: any\n' "$name" >"$work/debian/control"
    (cd "$work" && dpkg-shlibdeps -O "$name"/usr/bin/*) | sed -n 's/^shlibs:Depends=//p'
}

# Prints the kibibytes of the package, as Debian's policy counts them. Those of `du` depend on the
# file system.
installed_size() {
    find "$root" -path "$root/DEBIAN" -prune -o -printf '%y %s\n' |
        awk '{ size += $1 == "f" ? int(($2 + 1023) / 1024) : 1 } END { print size }'
}

# Writes the control files of the package in $root, and makes the package.
finish() { # architecture
    architecture=$1 depends=''
    install -d "$root/DEBIAN"
    if [ "$architecture" != all ]; then depends=$(dependencies); fi
    size=$(installed_size)
    sed -e "s|@VERSION@|$version|" -e "s|@ARCHITECTURE@|$architecture|" \
        -e "s|@MAINTAINER@|$maintainer|" -e "s|@SIZE@|$size|" -e "s|@DEPENDS@|$depends|" \
        "$here/$name.control" >"$root/DEBIAN/control"
    (cd "$root" && find usr -type f -exec md5sum {} + | LC_ALL=C sort -k 2) >"$root/DEBIAN/md5sums"
    find "$root" -exec touch -d "@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group --build "$root" "$out/${name}_${version}_$architecture.deb"
}

begin doorman-server
install_server
finish "$(dpkg --print-architecture)"
begin doormanctl
install_ctl
finish "$(dpkg --print-architecture)"
begin libdoorman-dev
install_headers
finish all
