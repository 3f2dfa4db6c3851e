#!/bin/sh
# Tests the package of clients/go: its form; its tests, with real servers; and that another module
# can use it, without a network. The examples of its page are compiled, and run. Random stories
# compare the package with the one in Python: SEED=N repeats them.
#
#   tests/go_client_check.sh [doorman_server]
set -u
# shellcheck source=tests/check.sh
. tests/check.sh
server=${1:-build/plain/doorman_server}
package=clients/go
DOORMAN_SERVER=$PWD/$server GOFLAGS=-mod=mod GOPROXY=off GOTOOLCHAIN=local
export DOORMAN_SERVER GOFLAGS GOPROXY GOTOOLCHAIN
if [ ! -x "$server" ]; then
    echo "[  FAILED  ] $server is missing. Build it with: make $server"
    exit 1
fi
require go

version=$(sed -n 's/^#define DOORMAN_VERSION "\(.*\)"/\1/p' doorman.h)
version_is_that_of_the_library() {
    grep -q "^const Version = \"$version\"" $package/version.go &&
        grep -q "doorman@v$version" $package/README.md
}

is_formatted() {
    gofmt -l $package >"$folder/unformatted" && ! grep . "$folder/unformatted"
}

vets() {
    (cd $package && go vet ./...)
}

# Some files are for one system alone.
builds_elsewhere() {
    for system in linux/386 linux/arm64 darwin/arm64 windows/amd64; do
        (cd $package && GOOS=${system%/*} GOARCH=${system#*/} go build ./...) || return 1
    done
}

needs_no_other_module() {
    ! grep -q '^require\|^replace' $package/go.mod && [ ! -e $package/go.sum ]
}

# The first commands of the page make a program that uses the package, in an empty folder.
installs_from_its_folder() {
    new=$folder/new
    mkdir "$new" && printf 'package main\n\nimport "doorman.example/doorman"\n\n%s\n' \
        'func main() { println(doorman.Version) }' >"$new/main.go" &&
        awk '/^```$/ { exit } inside; /^```sh$/ { inside = 1 }' $package/README.md |
        sed "s|=PATH/|=$PWD/|" >"$new/commands" && [ -s "$new/commands" ] &&
        (cd "$new" && sh -e commands && go run . 2>&1 | grep -x "$version")
}

# Shows what has failed or was skipped.
run_tests() { # package, -run expression
    (cd $package && go test -count=1 -v -run "$2" "$1") >"$folder/tests" 2>&1
    status=$?
    grep -v '^=== RUN\|^ *--- PASS' "$folder/tests"
    return $status
}

# The cores in Python have said what must be seen.
random_stories_pass() { # leases, permits or shards
    mkdir -p "$folder/$1"
    PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=clients/python/src \
        python3 clients/python/tests/random_stories.py "$1" "$seed" 150 "$folder/$1" &&
        STORIES=$folder/$1 run_tests ./cores '^TestStories$'
}

# Everything public has a comment.
public_names_are_documented() {
    find $package -name '*.go' ! -name '*_test.go' -exec awk '
        FNR == 1 { above = "" }
        /^(func|type|var|const) (\([a-z]+ \*?[A-Z][A-Za-z]*\) )?[A-Z]/ && above !~ /^\/\// {
            print FILENAME ":" FNR ": " $0
            failed = 1
        }
        { above = $0 }
        END { exit failed }
    ' {} +
}

metrics_are_valid() {
    mkdir -p "$folder/metrics"
    cat >"$folder/metrics/go.mod" <<END
module metrics
go 1.18
require doorman.example/doorman v$version
replace doorman.example/doorman => $PWD/$package
END
    cat >"$folder/metrics/main.go" <<'END'
package main

import (
	"context"
	"fmt"

	"doorman.example/doorman"
)

func main() {
	options := doorman.Options{OnWarning: func(string) {}}
	client, err := doorman.New(options, "http://127.0.0.1:1")
	if err != nil {
		panic(err)
	}
	if _, err := client.Rate(`a"b\c`, doorman.ResourceOptions{Wants: 1}); err != nil {
		panic(err)
	}
	if _, err := client.AcquireItems(context.Background(), doorman.AcquireOptions{Timeout: -1},
		doorman.Item{Resource: "x"}); err != nil {
		panic(err)
	}
	fmt.Print(client.Metrics())
}
END
    (cd "$folder/metrics" && go run .) >"$folder/metrics/text" || return 1
    grep -q '^doorman_client_permits_fallback_granted_total 1$' "$folder/metrics/text" &&
        grep -qF 'resource_wants{resource="a\"b\\c"} 1' "$folder/metrics/text"
}

prometheus_accepts_the_metrics() {
    promtool check metrics <"$folder/metrics/text"
}

check 'the package has the version of the library' version_is_that_of_the_library
check 'gofmt changes nothing' is_formatted
check 'go vet finds nothing' vets
check 'the package builds for other systems' builds_elsewhere
check 'the package needs no other module' needs_no_other_module
check 'everything public is documented' public_names_are_documented
check 'the package installs from its folder, as its page says' installs_from_its_folder
check 'another module can use the package, and its metrics are complete' metrics_are_valid
check_with promtool 'Prometheus accepts the metrics' prometheus_accepts_the_metrics
is_installed openssl # without it, a test of TLS is skipped
check 'the tests of the cores pass' run_tests ./cores .
check 'the tests of the client pass' run_tests . .

seed=${SEED:-$(date +%s)}
echo "SEED=$seed"
for kind in leases permits shards; do
    check_with python3 "the packages agree on random $kind" random_stories_pass $kind
done
check_end
