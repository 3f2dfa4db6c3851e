#!/bin/sh
# Tests the package of clients/javascript: its tests, with real servers; its types; and that it
# installs, with npm, from its folder and from a tarball, without a network. The examples of its
# page also run with the package that was installed. Random stories compare the package with the one
# in Python: SEED=N repeats them.
#
#   tests/javascript_client_check.sh [doorman_server]
set -u
# shellcheck source=tests/check.sh
. tests/check.sh
server=${1:-build/plain/doorman_server}
package=clients/javascript
DOORMAN_SERVER=$PWD/$server
export DOORMAN_SERVER
if [ ! -x "$server" ]; then
    echo "[  FAILED  ] $server is missing. Build it with: make $server"
    exit 1
fi
require node

version_is_that_of_the_library() {
    version=$(sed -n 's/^#define DOORMAN_VERSION "\(.*\)"/\1/p' doorman.h)
    grep -q "^export const VERSION = '$version';" $package/src/version.js &&
        grep -q "\"version\": \"$version\"" $package/package.json
}

run_test() { # file
    node --test "$package/tests/$1.test.js"
}

# Writes the example of a web application, which many copy.
web_example() {
    awk '
        /^```js$/ { inside = 1; text = ""; next }
        /^```$/ { if (inside && text ~ /createServer/) printf "%s", text; inside = 0 }
        inside { text = text $0 "\n" }
    ' $package/README.md
}

types_agree() {
    mkdir -p "$folder/types/node_modules"
    cp $package/tests/types.ts $package/tests/tsconfig.json "$folder/types" &&
        web_example >"$folder/types/web.ts" && [ -s "$folder/types/web.ts" ] &&
        echo '{"type": "module"}' >"$folder/types/package.json" &&
        ln -s "$PWD/build/typescript/node_modules/@types" "$folder/types/node_modules/@types" &&
        ln -s "$PWD/$package" "$folder/types/node_modules/doorman-client" &&
        build/typescript/node_modules/.bin/tsc -p "$folder/types"
}

# The cores in Python have said what must be seen.
random_stories_pass() { # leases, permits or shards
    mkdir -p "$folder/$1"
    PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=clients/python/src \
        python3 clients/python/tests/random_stories.py "$1" "$seed" 150 "$folder/$1" &&
        STORIES=$folder/$1 run_test stories
}

install_with() { # folder, what to install
    mkdir -p "$folder/$1"
    echo '{}' >"$folder/$1/package.json"
    npm install --prefix "$folder/$1" --cache "$folder/cache" --offline --silent --no-audit \
        --no-fund "$2"
}

# The package has the sources and their types, and no tests.
pack() {
    npm pack --silent --cache "$folder/cache" --pack-destination "$folder" "./$package" &&
        tar -tzf "$folder"/doorman-client-*.tgz >"$folder/files" &&
        grep -qx package/src/index.js "$folder/files" &&
        grep -qx package/src/index.d.ts "$folder/files" &&
        grep -qx package/README.md "$folder/files" &&
        ! grep package/tests "$folder/files"
}

run_installed() { # folder
    DOORMAN_PACKAGE=$folder/$1/node_modules/doorman-client run_test readme
}

metrics_are_valid() {
    node --input-type=module - >"$folder/metrics" <<END
import { Client } from '$PWD/$package/src/index.js';
const client = new Client('http://127.0.0.1:1', { onWarning: () => {} });
client.rate('a"b\\\\c', { wants: 1 });
await client.acquire('x', { timeout: 0 });
process.stdout.write(client.metrics());
END
    grep -q '^doorman_client_permits_fallback_granted_total 1$' "$folder/metrics" &&
        grep -qF 'resource_wants{resource="a\"b\\c"} 1' "$folder/metrics" &&
        promtool check metrics <"$folder/metrics"
}

check 'the package has the version of the library' version_is_that_of_the_library
check_with promtool 'Prometheus accepts the metrics' metrics_are_valid
is_installed openssl # without it, a test of TLS is skipped
for test in stories shards cores limiters arguments handles client crowds web readme; do
    check "the tests of $test pass" run_test $test
done

seed=${SEED:-$(date +%s)}
echo "SEED=$seed"
for kind in leases permits shards; do
    check_with python3 "the packages agree on random $kind" random_stories_pass $kind
done

if sh .ci/deps --look typescript; then
    check 'the types of the package agree' types_agree
else
    skip typescript
fi

if is_installed npm; then
    check 'the package installs from its folder' install_with plain "$PWD/$package"
    check 'npm packs the package' pack
    check 'the tarball installs' install_with packed "$(find "$folder" -maxdepth 1 -name '*.tgz')"
    for installed in plain packed; do
        check "the package that was installed runs ($installed)" run_installed $installed
    done
fi
check_end
