#!/bin/sh
# Upgrades from the version before to this one, and goes back, while clients of both versions use
# the servers. The version before is built out of the history of git.
#
#   tests/upgrade_check.sh [doorman_server [doormanctl]]
#
# The leases that the clients believe to have must never exceed the capacity, and no hold may be
# lost. CHANGELOG.md says under "Upgrade notes" what differs between the versions on purpose.
set -u
# shellcheck source=tests/check.sh
. tests/check.sh
server=${1:-build/doorman_server}
ctl=${2:-build/doormanctl}
unset MAKEFLAGS MFLAGS MAKELEVEL # set by the make that runs this script

# Where nobody has made the tag, the version before is the last commit before doorman.h was split.
# That work began the changes that an upgrade notices.
before=v0.1.0
git rev-parse --quiet --verify "$before^{commit}" >/dev/null 2>&1 ||
    before=f90e95e82db8e5cd99cbe4c8601526f23251a5cb
if ! git cat-file -e "$before^{commit}" 2>/dev/null; then
    skip 'history of git'
    check_end
    exit
fi
require curl
old=$folder/before

cat >"$folder/config" <<END
{"resources": [
  {"identifier_glob": "db", "capacity": 100, "safe_capacity": 0, "algorithm":
    {"kind": "FAIR_SHARE", "lease_length": 4, "refresh_interval": 1,
     "parameters": [{"name": "minimum_interval", "value": 0}]}},
  {"identifier_glob": "login", "limits": [
    {"name": "per-user", "kind": "TOKEN_BUCKET", "rate": 100, "size": 100}]},
  {"identifier_glob": "month", "limits": [
    {"name": "quota", "kind": "FIXED_WINDOW", "limit": 5, "window": 2592000,
     "on_restart": "full"}]},
  {"identifier_glob": "jobs", "limits": [
    {"name": "slots", "per": "resource", "kind": "CONCURRENCY", "limit": 4,
     "time_to_live": 10}]}]}
END
# A node of a tree has the capacity of its parent, and limits of its own.
sed '/"db"/,/"parameters"/d' "$folder/config" >"$folder/node"

build_client() { # source of the headers, object, program, flag
    "${CC:-cc}" -std=c11 -D_DEFAULT_SOURCE -pthread -O1 -DDOORMAN__IMPLEMENTED \
        -DDOORMAN__PERMITS_IMPLEMENTED "-I$1" ${4:+"$4"} tests/system/upgrade_client.c "$2" \
        -lnng -lcjson -o "$3"
}

# Without optimization the compilation takes seconds.
build_before() {
    mkdir "$old" && git archive "$before" | tar -x -C "$old" &&
        make -C "$old" CC="${CC:-cc}" CPPFLAGS="${CPPFLAGS:-}" CFLAGS=-O0 build/doorman_server &&
        build_client "$old" "$old/build/doorman.o" "$folder/client_old" -DBEFORE_PERMITS_HEADER
}

# Starts a server: old or new. Sets $url to its HTTP address, and $started to its process.
starts=0
start() { # version, name of its address, flags...
    program=$server
    if [ "$1" = old ]; then program=$old/build/doorman_server; fi
    starts=$((starts + 1))
    log=$folder/server$starts.log
    address=ipc://$folder/$2
    shift 2
    : >"$log"
    "$program" --listen "$address" --http 127.0.0.1:0 "$@" 2>"$log" &
    started=$!
    processes="$processes $started"
    await 'msg=serving' "$log" $started
    url=$(sed -n 's/.* http=\(http:[^ ]*\).*/\1/p' "$log")
    grep -q msg=serving "$log" || { cat "$log" && false; }
}

stop() { # process
    kill -TERM "$1" && wait "$1"
}

# Starts a client: old or new. Its lines go to NAME.log.
client() { # version, name, names of addresses
    "$folder/client_$1" "$2" "ipc://$folder/$3" ${4:+"ipc://$folder/$4"} >"$folder/$2.log" 2>&1 &
    eval "$2=$!"
    processes="$processes $!"
}

# Ends clients, and keeps the lines of each of them.
end_clients() { # names
    for name; do
        eval "stop \$$name" || return 1
    done
}

# Waits until each of the clients has a lease of this size.
have() { # capacity, names
    wanted=$1
    shift
    for name; do
        tries=0
        until [ "$(awk '$2 == "lease" { has = $3 } END { print has }' "$folder/$name.log")" = \
            "$wanted" ]; do
            tries=$((tries + 1))
            [ $tries -lt 600 ] || { tail "$folder/$name.log" && return 1; }
            sleep 0.1
        done
    done
}

# Waits until servers have granted five more permits to each of the clients.
get_permits() { # names
    for name; do
        file=$folder/$name.log
        wanted=$(($(grep -c 'permit granted' "$file") + 5))
        tries=0
        until [ "$(grep -c 'permit granted' "$file")" -ge $wanted ]; do
            tries=$((tries + 1))
            [ $tries -lt 600 ] || { tail "$file" && return 1; }
            sleep 0.1
        done
    done
}

holds() { # names
    for name; do
        await 'hold 1' "$folder/$name.log"
        [ "$(awk '$2 == "hold" { has = $3 } END { print has }' "$folder/$name.log")" = 1 ] ||
            { cat "$folder/$name.log" && return 1; }
    done
}

# Adds up what all clients have believed to have, in the order of time. Clients that have a lease of
# 33.3333 round it to six digits.
never_exceeds() { # names
    for name; do
        awk -v name="$name" '$2 == "lease" { print $1, name, $3 }' "$folder/$name.log"
    done | sort -n | awk '
        { sum += $3 - has[$2]; has[$2] = $3; if (sum > most) most = sum }
        { print; if (sum > 100.001) { print "the sum is", sum; failed = 1 } }
        END { print "at most", most; exit failed || most < 99 }'
}

allow() { curl --silent "$url/v1/allow?resource=month&key=bob" | tee "$folder/allowed"; }
is_left() { # units
    allow && grep -q "\"remaining\":$1," "$folder/allowed"
}

# All of this is true of clients that a server knows.
share() { # capacity of each, names
    have "$@" && shift && get_permits "$@" && holds "$@"
}

# Another version takes the place of the root, at the same address.
replace() { # version, flags...
    version=$1
    shift
    stop "$root" && start "$version" root --config "$folder/config" "$@" && root=$started
}

# What 0.1.0 does not know has an error that names it.
refuses_flag() {
    ! "$old/build/doorman_server" --config "$folder/config" --state "$folder/state" \
        2>"$folder/refused" && grep "unknown flag '--state'" "$folder/refused"
}
refuses_field() {
    sed 's/"on_restart": "full"/"durable": true/' "$folder/config" >"$folder/durable"
    ! "$old/build/doorman_server" --check-config --config "$folder/durable" 2>"$folder/refused" &&
        grep 'limits\[0\].durable: is not known' "$folder/refused"
}
refuses_method() {
    curl --silent --data '{}' --header 'Content-Type: application/json' "$url/v1/settle" |
        grep 'no such method; the methods are .*acquire'
}
refuses_command() {
    ! "$ctl" --url "$url" bans 2>"$folder/refused" && grep 'no such method' "$folder/refused"
}

if [ ! -x "$server" ]; then
    echo "[  FAILED  ] $server is missing. Build it with: make $server"
    exit 1
fi
check 'the version before is built' build_before
check 'a client of this version is built' build_client . build/doorman.o "$folder/client_new"
if [ $failed != 0 ]; then
    check_end
    exit 1
fi

# A node alone: up, restarted, back, and up again. The quota is that of one key.
start old root --config "$folder/config"
root=$started
client old a root
client new b root
check 'a server of 0.1.0 serves clients of both versions' share 50 a b
check 'it counts a quota' is_left 4

check 'this version takes its place' replace new --state "$folder/state"
client old c root
client new d root
check 'clients of both versions go on' share 25 a b c d
check '0.1.0 had no store, so the quota begins again, once' is_left 4
check 'this version is restarted' replace new --state "$folder/state"
check 'the clients still go on' share 25 a b c d
check 'the quota has not come back' is_left 3

check '0.1.0 takes the place again' replace old
check 'two clients end' end_clients c d
check 'the others get their shares, and go on' share 50 a b
check '0.1.0 begins the quota again' is_left 4
check '0.1.0 refuses a flag that it does not know' refuses_flag
check '0.1.0 refuses a field that it does not know' refuses_field
check '0.1.0 refuses a method that it does not know' refuses_method
if [ -x "$ctl" ]; then
    check 'doormanctl says what 0.1.0 cannot do' refuses_command
else
    skip libcurl
fi
check 'this version is upgraded to again' replace new --state "$folder/state"
check 'it counts on from its own state' is_left 2
check 'the clients go on' share 50 a b
check 'the clients end' end_clients a b
check 'the leases have never exceeded the capacity' never_exceeds a b c d
check 'this version ends' stop "$root"

# A tree: the nodes of both versions have a parent of 0.1.0, and then one of this version.
start old root --config "$folder/config"
root=$started
start old node_old --node old --parent "ipc://$folder/root" --config "$folder/node"
start new node_new --node new --parent "ipc://$folder/root" --config "$folder/node"
client new e node_old
client old f node_new
check 'nodes of both versions have leases from 0.1.0' share 50 e f
check 'this version becomes the parent' replace new
client new g node_new
check 'nodes of both versions have leases from this version' share 33.3333 e f g
check '0.1.0 becomes the parent again' replace old
check 'a client ends' end_clients g
check 'the nodes go on' share 50 e f
check 'the other clients end' end_clients e f
check 'the leases in the tree have never exceeded the capacity' never_exceeds e f g

# A node of two processes with an election. The master changes from one version to the other.
if is_installed etcd; then
    check 'etcd starts' start_etcd
    set -- --config "$folder/config" --etcd "$etcd" --election-key node --election-ttl 2
    start old first "$@"
    first=$started
    client old h first second
    await 'lease 80' "$folder/h.log"
    start new second "$@"
    second=$started
    client new i second first
    check 'the version before is the master' share 50 h i
    check 'the master ends' stop "$first"
    client new j second first
    check 'this version is the master' share 33.3333 h i j
    start old first "$@"
    check 'this version ends' stop "$second"
    check 'a client ends' end_clients j
    check '0.1.0 is the master again' share 50 h i
    check 'the clients end' end_clients h i
    check 'the leases of the node have never exceeded the capacity' never_exceeds h i j
fi
check_end
