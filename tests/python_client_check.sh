#!/bin/sh
# Tests the package of clients/python: its tests, with real servers; and that it installs, with
# pip, from its folder and from a wheel, without a network. The tests also run with the package that
# was installed.
#
#   tests/python_client_check.sh [doorman_server]
set -u
# shellcheck source=tests/check.sh
. tests/check.sh
server=${1:-build/plain/doorman_server}
DOORMAN_SERVER=$PWD/$server PYTHONDONTWRITEBYTECODE=1
export DOORMAN_SERVER PYTHONDONTWRITEBYTECODE
if [ ! -x "$server" ]; then
    echo "[  FAILED  ] $server is missing. Build it with: make $server"
    exit 1
fi
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

version_is_that_of_the_library() {
    grep -q "^#define DOORMAN_VERSION $(sed -n 's/^VERSION = //p' \
        clients/python/src/doorman/_version.py)" doorman.h
}

install_with() { # python, name of the environment, what to install
    "$1" -m venv --system-site-packages "$folder/$2" &&
        "$folder/$2/bin/pip" install --quiet --no-index --no-deps --no-build-isolation "$3"
}

check 'the package has the version of the library' version_is_that_of_the_library
for test in stories limiters client web readme; do
    check "the tests of $test pass" run_tests python3 ../src "test_$test"
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
