#!/bin/sh
# Tests the package of clients/python: its tests, with real servers; and that it installs, with
# pip, from its folder and from a wheel, without a network. The tests also run with the package that
# was installed. Random stories compare the package with the library: SEED=N repeats them.
#
#   tests/python_client_check.sh [doorman_server [stories_test]]
set -u
# shellcheck source=tests/check.sh
. tests/check.sh
server=${1:-build/plain/doorman_server}
runner=${2:-build/asan/unit/stories_test}
DOORMAN_SERVER=$PWD/$server PYTHONDONTWRITEBYTECODE=1
export DOORMAN_SERVER PYTHONDONTWRITEBYTECODE
for program in "$server" "$runner"; do
    if [ ! -x "$program" ]; then
        echo "[  FAILED  ] $program is missing. Build it with: make $program"
        exit 1
    fi
done
require python3

# Prints a Python that can build and install a package, if there is one. The first Python of PATH
# need not have the packages of Debian.
installer() {
    for python in python3 /usr/bin/python3; do
        "$python" -c 'import setuptools, wheel, venv, ensurepip, pip' 2>/dev/null || continue
        echo "$python"
        return
    done
}

run_tests() { # python, folder of the package or empty, file
    (cd clients/python/tests && PYTHONPATH=$2 "$1" -W error::ResourceWarning -m unittest "$3")
}

# The types must find an option of rate and gauge that does not exist.
misspelt_option_is_found() {
    cat >"$folder/misspelt.py" <<END
from doorman import AsyncClient, Client
Client("http://h").rate("db", safe_capcity=5)
AsyncClient("http://h").gauge("db", safe_capcity=5)
END
    MYPYPATH=clients/python/src mypy --strict --cache-dir "$folder/mypy" "$folder/misspelt.py" \
        >"$folder/misspelt"
    test "$(grep -c 'Unexpected keyword argument "safe_capcity"' "$folder/misspelt")" -eq 2
}

version_is_that_of_the_library() {
    grep -q "^#define DOORMAN_VERSION $(sed -n 's/^VERSION = //p' \
        clients/python/src/doorman/_version.py)" doorman.h
}

install_with() { # python, name of the environment, what to install
    "$1" -m venv --system-site-packages "$folder/$2" &&
        "$folder/$2/bin/pip" install --quiet --no-index --no-deps --no-build-isolation "$3"
}

# The library must pass stories whose steps are random, and in which the core in Python has said
# what must be seen.
random_stories_pass() { # leases or permits
    mkdir -p "$folder/$1"
    PYTHONPATH=clients/python/src python3 clients/python/tests/random_stories.py "$1" "$seed" 150 \
        "$folder/$1" && STORIES=$folder/$1 "$runner" 'the_clients_of_the_library*'
}

metrics_are_valid() {
    PYTHONPATH=clients/python/src python3 - >"$folder/metrics" <<END
from doorman import Client
with Client("http://127.0.0.1:1") as client:
    client.rate('a"b\\\\c', wants=1)
    client.acquire("x", timeout=0)
    print(client.metrics(), end="")
END
    grep -q '^doorman_client_permits_fallback_granted_total 1$' "$folder/metrics" &&
        promtool check metrics <"$folder/metrics"
}

check 'the package has the version of the library' version_is_that_of_the_library
check_with promtool 'Prometheus accepts the metrics' metrics_are_valid
check_with mypy 'the types of the package agree' \
    mypy --strict --cache-dir "$folder/mypy" clients/python/src/doorman
check_with mypy 'the types name an option that does not exist' misspelt_option_is_found
for test in stories shards limiters client arguments trouble crowds web readme; do
    check "the tests of $test pass" run_tests python3 ../src "test_$test"
done

seed=${SEED:-$(date +%s)}
echo "SEED=$seed"
for kind in leases permits; do
    check "the library and the package agree on random $kind" random_stories_pass $kind
done

python=$(installer)
if [ -z "$python" ]; then
    skip pip
    check_end
    exit
fi
# pip writes into the folder that it installs.
cp -R clients/python "$folder/package"
check 'the package installs from its folder' install_with "$python" plain "$folder/package"
check 'pip builds a wheel' "$python" -m pip wheel --quiet --no-index --no-deps \
    --no-build-isolation --wheel-dir "$folder" "$folder/package"
wheel=$(find "$folder" -maxdepth 1 -name '*.whl')
check 'the wheel installs' install_with "$python" wheel "$wheel"
for environment in plain wheel; do
    check "the package that was installed runs ($environment)" run_tests \
        "$folder/$environment/bin/python" '' test_readme
done
check 'the package that was installed has types' \
    find "$folder"/wheel/lib/python*/site-packages/doorman/py.typed
check_end
