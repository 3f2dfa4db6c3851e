#!/bin/sh
# Makes a Debian package of the server and of doormanctl:
# FOLDER/doorman-server_VERSION_ARCHITECTURE.deb. `make deb` calls it. From the top folder:
#
#   sh examples/deploy/debian/package.sh build/doorman_server build/doormanctl FOLDER
#
# DEBFULLNAME and DEBEMAIL name the maintainer, as for Debian's own tools. Two packages from the
# same commit and the same compiler are equal, because SOURCE_DATE_EPOCH is the time of the commit.
set -eu
server=$1 ctl=$2 out=$3
here=examples/deploy/debian
version=$(sed -n 's/^#define DOORMAN_VERSION "\(.*\)"$/\1/p' doorman.h)
architecture=$(dpkg --print-architecture)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
maintainer="${DEBFULLNAME:-The Doorman authors} <${DEBEMAIL:-root@localhost}>"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
root=$work/root
doc=$root/usr/share/doc/doorman-server

write_changelog() {
    printf 'doorman-server (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n' "$version"
    printf ' -- %s  %s\n' "$maintainer" "$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")"
}

# The comment at the top of the unit is about an installation without a package.
install_files() {
    install -D -s "$server" "$root/usr/bin/doorman_server"
    install -s "$ctl" "$root/usr/bin/doormanctl"
    install -D -m 644 server/ctl/completion.bash \
        "$root/usr/share/bash-completion/completions/doormanctl"
    install -D -m 644 server/ctl/completion.zsh "$root/usr/share/zsh/vendor-completions/_doormanctl"
    install -d "$root/usr/share/man/man1"
    gzip -9 -n <docs/doormanctl.1 >"$root/usr/share/man/man1/doormanctl.1.gz"
    install -d "$root/usr/lib/systemd/system"
    sed -e '1,/^\[Unit\]/{/^#/d}' -e 's|/usr/local/bin|/usr/bin|' examples/deploy/doorman.service \
        >"$root/usr/lib/systemd/system/doorman.service"
    install -D -m 644 config.example.json "$root/etc/doorman/config.json"
    install -m 644 "$here/environment" "$root/etc/doorman"
    install -D -m 644 LICENSE "$doc/copyright"
    write_changelog | gzip -9 -n >"$doc/changelog.gz"
    install -m 644 README.md CHANGELOG.md "$doc"
    install -d "$doc/docs/tasks"
    install -m 644 docs/*.md "$doc/docs"
    install -m 644 docs/tasks/*.md "$doc/docs/tasks"
    install -d "$doc/examples"
    install -m 644 examples/deploy/prometheus.yml examples/deploy/doorman.rules.yml \
        examples/deploy/grafana.json "$doc/examples"
}

# Prints the packages of the shared libraries. dpkg-shlibdeps needs a file debian/control.
dependencies() {
    mkdir "$work/debian"
    printf 'Source: doorman-server\n\nPackage: doorman-server\nArchitecture: any\n' \
        >"$work/debian/control"
    (cd "$work" && dpkg-shlibdeps -O root/usr/bin/*) | sed -n 's/^shlibs:Depends=//p'
}

write_control() {
    install -d "$root/DEBIAN"
    depends=$(dependencies)
    size=$(du -s -k --exclude DEBIAN "$root" | cut -f 1)
    sed -e "s|@VERSION@|$version|" -e "s|@ARCHITECTURE@|$architecture|" \
        -e "s|@MAINTAINER@|$maintainer|" -e "s|@SIZE@|$size|" -e "s|@DEPENDS@|$depends|" \
        "$here/control.in" >"$root/DEBIAN/control"
    printf '/etc/doorman/%s\n' config.json environment >"$root/DEBIAN/conffiles"
    install -m 755 "$here/postinst" "$here/prerm" "$here/postrm" "$root/DEBIAN"
    (cd "$root" && find usr -type f -exec md5sum {} + | sort -k 2) >"$root/DEBIAN/md5sums"
}

install_files
write_control
dpkg-deb --root-owner-group --build "$root" "$out/doorman-server_${version}_$architecture.deb"
