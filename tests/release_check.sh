#!/bin/sh
# Runs `make release` in copies of this folder that are repositories of their own: what it refuses,
# and that its archives are complete, right, and the same when they are made again in another place.
# The programs are compiled without optimization, because that takes seconds.
# tests/package_check.sh makes the Debian packages twice.
set -u
# shellcheck source=tests/check.sh
. tests/check.sh
unset MAKEFLAGS MFLAGS MAKELEVEL # set by the make that runs this script
version=$(sed -n 's/^#define DOORMAN_VERSION "\(.*\)"$/\1/p' doorman.h)
copy=$folder/copy again=$folder/again/copy made=$folder/copy/build/release
export GIT_AUTHOR_NAME=test GIT_AUTHOR_EMAIL=test@localhost GIT_COMMITTER_NAME=test \
    GIT_COMMITTER_EMAIL=test@localhost GIT_CONFIG_GLOBAL=/dev/null

if ! git ls-files -c -o --exclude-standard >"$folder/files" 2>/dev/null; then
    skip 'history of git'
    check_end
    exit
fi

commit() { git -C "$copy" add -A && git -C "$copy" commit -q -m "$1"; }

# Files that are not committed are in the copies too.
copy_folder() {
    mkdir "$copy" "$folder/again" && tar -c -T "$folder/files" --ignore-failed-read |
        tar -x -C "$copy" && git -C "$copy" init -q &&
        sed -i 's/^## Unreleased: \(.*\)/## \1 - 2026-01-01/; s/\*to be run\*/1 passed/' \
            "$copy/CHANGELOG.md" &&
        commit 'Begin' && git clone -q "$copy" "$again"
}

release() { # folder, archives
    make -C "$1" CC="${CC:-cc}" CPPFLAGS="${CPPFLAGS:-}" CFLAGS=-O0 CHECKED=1 ONLY="$2" release \
        >"$folder/output" 2>&1
}

# The folder is as before afterwards.
refuses() { # text
    ! release "$copy" source && cat "$folder/output" && grep -q -e "$1" "$folder/output" &&
        [ ! -e "$made" ]
    status=$?
    git -C "$copy" reset -q --hard main_of_test && git -C "$copy" clean -q -f -d
    return $status
}
refuses_uncommitted() {
    echo text >"$copy/docs/new.md"
    refuses 'docs/new.md'
}
refuses_versions() { # file
    sed -i "s/$version/9.8.7/" "$copy/$1" && commit 'Change a version' && refuses "$1"
}
refuses_unreleased() {
    sed -i "s/^## $version - .*/## Unreleased: $version/" "$copy/CHANGELOG.md" &&
        commit 'Forget the date' && refuses 'date of the release'
}

refuses_without_figures() {
    sed -i '3s/$/\nThe tests: *to be run*./' "$copy/CHANGELOG.md" &&
        commit 'Forget the figures' && refuses 'figures of the runs'
}

is_made() { # archives
    release "$copy" "$1" || { cat "$folder/output" && return 1; }
    grep "git tag -a v$version" "$folder/output" && grep 'ci/run --all is left out' \
        "$folder/output"
}
has_right_sums() {
    (cd "$made" && sha256sum --quiet -c SHA256SUMS &&
        [ "$(find . -type f | wc -l)" = $(($(wc -l <SHA256SUMS) + 1)) ])
}

# The second time in another folder, with another umask and another time zone.
is_made_again() { # archives
    (umask 077 && export TZ=Asia/Tokyo && release "$again" "$1") ||
        { cat "$folder/output" && return 1; }
    (cd "$again/build/release" && find . -type f ! -name SHA256SUMS -exec cmp {} "$made/{}" \; \
        -print) >"$folder/compared"
    cat "$folder/compared" && ! grep differ "$folder/compared" &&
        [ "$(grep -c '^\./' "$folder/compared")" -ge 2 ]
}

# Unpacks an archive into a folder.
unpack() { # archive, folder
    mkdir "$2" && tar -x -f "$1" -C "$2"
}

source_is_complete() {
    unpack "$made/doorman-$version.tar.gz" "$folder/source" &&
        git -C "$copy" ls-files | sort >"$folder/expected" &&
        (cd "$folder/source/doorman-$version" && find . -type f | cut -c 3- | sort) |
        diff "$folder/expected" - &&
        make -C "$folder/source/doorman-$version" CC="${CC:-cc}" CFLAGS=-O0 \
            build/examples/library_only &&
        "$folder/source/doorman-$version/build/examples/library_only"
}
debs_are_right() {
    for package in "doorman-server_$version-*_*" "doormanctl_$version-*_*" \
        "libdoorman-dev_$version-*_all"; do
        # shellcheck disable=SC2086 # a pattern
        dpkg-deb --contents "$made"/$package.deb || return 1
    done
}
wheel_is_right() {
    (cd / && PYTHONPATH=$(echo "$made"/doorman_client-*.whl) python3 -c "
import doorman
from doorman._version import VERSION
assert '.whl' in doorman.__file__ and VERSION == '$version'")
}
sdist_is_right() {
    unpack "$made"/doorman?client-"$version".tar.gz "$folder/sdist" &&
        ls "$folder/sdist"/*/pyproject.toml "$folder/sdist"/*/PKG-INFO "$folder/sdist"/*/LICENSE
}
npm_is_right() {
    unpack "$made/doorman-client-$version.tgz" "$folder/npm" &&
        grep "\"version\": \"$version\"" "$folder/npm/package/package.json" &&
        cmp clients/javascript/src/index.js "$folder/npm/package/src/index.js"
}
npm_runs() {
    node --input-type=module -e "
import { Client } from '$folder/npm/package/src/index.js';
new Client('http://127.0.0.1:1');"
}

# go gets the module from a folder that is laid out as a proxy.
go_gets_the_module() {
    proxy=$folder/proxy/doorman.example/doorman/@v
    mkdir -p "$proxy" "$folder/user" && cp "$made/doorman-go-$version.zip" "$proxy/v$version.zip" &&
        cp clients/go/go.mod "$proxy/v$version.mod" &&
        echo "{\"Version\": \"v$version\"}" >"$proxy/v$version.info" &&
        printf 'module user\n\ngo 1.18\n' >"$folder/user/go.mod" &&
        printf 'package main\n\nimport "doorman.example/doorman"\n\n%s\n' \
            'func main() { println(doorman.Version) }' >"$folder/user/main.go" &&
        (export GOPROXY="file://$folder/proxy" GOSUMDB=off GOTOOLCHAIN=local \
            GOFLAGS='-mod=mod -modcacherw' GOMODCACHE="$folder/modules" && cd "$folder/user" &&
            go get "doorman.example/doorman@v$version" && go run . 2>&1 | grep -x "$version")
}
# The page of the package has the commands: the second block.
go_uses_the_archive() {
    cp -R "$folder/user" "$folder/unzips" && cp "$made/doorman-go-$version.zip" "$folder/unzips" &&
        awk '/^```sh$/ { inside = ++block == 2; next } /^```$/ { inside = 0 } inside' \
            clients/go/README.md >"$folder/unzips/commands" && [ -s "$folder/unzips/commands" ] &&
        (cd "$folder/unzips" && sh -e commands &&
            env GOPROXY=off GOFLAGS=-mod=mod GOTOOLCHAIN=local go run . 2>&1 | grep -x "$version")
}
site_is_right() {
    unpack "$made/doorman-site-$version.tar.gz" "$folder/site" &&
        grep "$version" "$folder/site/doorman-site-$version/CHANGELOG.html" &&
        python3 tests/docs_links.py "$folder/site/doorman-site-$version"
}

check 'this folder is copied' copy_folder
git -C "$copy" tag main_of_test
check 'files that are not committed are refused' refuses_uncommitted
for file in doorman_permits.h server/pages/openapi.json clients/go/version.go README.md; do
    check "another version in $file is refused" refuses_versions $file
done
check 'a changelog for another version is refused' refuses_versions CHANGELOG.md
check 'a changelog without a date is refused' refuses_unreleased
check 'a changelog without the figures of a run is refused' refuses_without_figures

archives='source go'
for pair in python:pip javascript:npm site:mkdocs; do
    if sh .ci/deps --look "${pair#*:}"; then
        archives="$archives ${pair%:*}"
    else
        skip "${pair#*:}"
    fi
done
again_archives=$archives
if sh .ci/deps --look dpkg-dev; then archives="$archives deb"; else skip dpkg-dev; fi
check 'the release is made' is_made "$archives"
check 'the checksums are right, and of all archives' has_right_sums
check 'the archives are the same when they are made again' is_made_again "$again_archives"
check 'the source archive is complete, and builds' source_is_complete
check_with go 'go gets the module' go_gets_the_module
if is_installed go; then
    check_with unzip 'go uses the unpacked archive, as its page says' go_uses_the_archive
fi
for archive in $archives; do
    case $archive in
    deb) check 'the Debian packages are readable' debs_are_right ;;
    python)
        check 'the wheel is right' wheel_is_right
        check 'the sdist is right' sdist_is_right
        ;;
    javascript)
        check 'the tarball of npm is right' npm_is_right
        check_with node 'the tarball of npm runs' npm_runs
        ;;
    site) check 'the site is right' site_is_right ;;
    esac
done
check_end
