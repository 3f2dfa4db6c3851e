#!/bin/sh
# Tests doormanctl with a server, and with programs that are not one: what each command prints, as a
# table and with --json, and its exit code.
set -u
# shellcheck source=tests/check.sh
. tests/check.sh
ctl=build/asan/doormanctl
if [ ! -x $ctl ]; then
    if sh .ci/deps --look libcurl; then skip yaml; else skip libcurl; fi
    check_end
    exit
fi
unset DOORMAN_URL DOORMAN_TOKEN DOORMAN_SETTINGS DOORMAN_TIMEOUT DOORMAN_CACERT NO_COLOR
export HOME="$folder" XDG_CONFIG_HOME='' DOORMAN_TIMEOUT=60 no_proxy='*'

# Starts a server, and sets $url to its HTTP address and $server to its process.
start() { # name, flags...
    name=$1
    shift
    : >"$folder/$name.log"
    build/plain/doorman_server --listen "ipc://$folder/$name" --http 127.0.0.1:0 "$@" \
        2>"$folder/$name.log" &
    server=$!
    processes="$processes $server"
    await ' http=' "$folder/$name.log" $server
    url=$(sed -n 's/.* http=\(https\{0,1\}:[^ ,]*\).*/\1/p' "$folder/$name.log")
}

# Starts a program that is no good server, and sets $fake to its address.
fake() { # behaviour, arguments
    : >"$folder/$1.port"
    python3 tests/fake_server.py "$@" >"$folder/$1.port" 2>"$folder/$1.errors" &
    processes="$processes $!"
    await '[0-9]' "$folder/$1.port" $!
    fake=http://127.0.0.1:$(cat "$folder/$1.port")
}

# Runs doormanctl, and compares its exit code. Leaves what it prints.
ends() { # exit code, arguments
    wanted=$1
    shift
    timeout 120 $ctl "$@" >"$folder/output" 2>"$folder/errors" </dev/null
    got=$?
    [ $got = "$wanted" ] && return
    echo "exit code $got"
    cat "$folder/output" "$folder/errors"
    return 1
}
# The same, and an extended regular expression matches a line of the output, or of the errors.
prints() { # expression, arguments
    expression=$1
    shift
    ends 0 "$@" || return
    grep -E -e "$expression" "$folder/output" || { cat "$folder/output" && false; }
}
prints_no() { # expression, arguments
    expression=$1
    shift
    ends 0 "$@" && ! grep -E -e "$expression" "$folder/output"
}
fails() { # exit code, expression, arguments
    code=$1 expression=$2
    shift 2
    ends "$code" "$@" || return
    grep -E -e "^doormanctl: .*$expression" "$folder/errors" || { cat "$folder/errors" && false; }
}
as_reader() { DOORMAN_TOKEN=read-1 "$@"; }
as_stranger() { DOORMAN_TOKEN=wrong "$@"; }
as_nobody() { DOORMAN_TOKEN='' "$@"; }

# Asks for units of keys: 500 keys in each message.
fill() { # first, last
    awk -v first="$1" -v last="$2" 'BEGIN {
        for (i = first; i <= last; i += 500) {
            printf "{\"client_id\":\"filler\",\"entry\":["
            for (k = i; k < i + 500; k++)
                printf "%s{\"resource_id\":\"bill\",\"key\":\"customer-%d\",\"cost\":%d}",
                    (k > i ? "," : ""), k, k
            print "]}"
        } }' | while read -r body; do
        post /v1/report "$body" || return
    done
}
post() { # path, body
    curl --silent --fail --show-error --max-time 100 --output "$folder/posted" \
        -H 'Content-Type: application/json' -H 'Authorization: Bearer admin-1' \
        --data "$2" "$url$1"
}
get() { # path
    curl --silent --fail --show-error --max-time 100 -H 'Authorization: Bearer admin-1' "$url$1"
}

# Two programs that print the same documents: what the server says, and doormanctl with --json.
says_what_the_server_says() { # path, arguments
    get "$1" >"$folder/wanted"
    shift
    ends 0 --json "$@" && cmp "$folder/wanted" "$folder/output"
}

has_lines() { # number, arguments
    lines=$1
    shift
    ends 0 "$@" && [ "$(wc -l <"$folder/output")" = "$lines" ]
}

cat >"$folder/config" <<END
{"descriptors": [{"domain": "shop", "entries": [["path", "/login"], ["user", "*"]],
    "resource": "login", "key": "{user}"}],
 "resources": [
  {"identifier_glob": "db/*", "unit": "queries/s", "capacity": 12345.5, "algorithm": {
    "kind": "FAIR_SHARE", "lease_length": 3600, "refresh_interval": 5,
    "learning_mode_duration": 0}},
  {"identifier_glob": "login", "limits": [
    {"name": "per-user", "kind": "FIXED_WINDOW", "limit": 2, "window": 100000000,
     "plans": {"free": {"limit": 1}, "pro": {"limit": 50}}}]},
  {"identifier_glob": "bill", "limits": [
    {"name": "quota", "kind": "FIXED_WINDOW", "limit": 1000000, "window": 100000000}]},
  {"identifier_glob": "slots", "limits": [
    {"name": "slots", "kind": "CONCURRENCY", "limit": 2, "time_to_live": 600, "queue": 5,
     "max_wait": 600, "on_restart": "full"}]}]}
END
printf 'read reader read-1\nadmin ann admin-1\n' >"$folder/tokens"
require curl python3
start real --config "$folder/config" --http-token "$folder/tokens" --state "$folder/state"
real=$url
export DOORMAN_URL="$real" DOORMAN_TOKEN=admin-1

# ---- commands

post /v1/get_capacity '{"client_id":"web-7","resource":[{"resource_id":"db/orders","wants":50}]}'
# The keys that are refused most have counts that are halved each minute. These last for some time.
for requests in 'dave#[1-502]' 'ann#[1-1]'; do
    curl --silent --output "$folder/allowed" -H 'Authorization: Bearer admin-1' \
        "$real/v1/allow?resource=login&key=$requests"
done
post /v1/acquire '{"client_id":"worker-1234567890","permit":[
    {"request_id":1,"item":[{"resource_id":"slots","key":"acme","cost":2}]}]}'
check 'the status names the process' prints '^master +this process$' status
# What the server could not load again is in its status, until it can.
cp "$folder/config" "$folder/config.good" && cp "$folder/tokens" "$folder/tokens.good"
echo '{' >"$folder/config" && echo 'nobody ann' >"$folder/tokens"
kill -HUP $server
await 'tokens refused' "$folder/real.log" $server
await 'configuration refused' "$folder/real.log" $server
check 'the status has a configuration that was refused' \
    prints '^problem +the last configuration was refused, .* in force: line 2' status
check 'the status has tokens that were refused' \
    prints '^problem +the last tokens were refused, .* in force: .' status
cp "$folder/config.good" "$folder/config" && cp "$folder/tokens.good" "$folder/tokens"
kill -HUP $server
await 'tokens loaded' "$folder/real.log" $server
await 'configuration loaded' "$folder/real.log" $server
check 'the status forgets what is loaded again' prints_no '^problem' status
check 'an amount has its unit' \
    prints '^db/orders +12,345.5 queries/s +50 +50 +50 +0 +1 +FAIR_SHARE' status
check 'the leases of a resource' prints '^web-7 +50 +50 +50 +1 +6[0-3][.0-9]* min' status db/orders
check 'a resource that nobody uses' fails 1 'the resource has no holders' status db/nothing
check 'a healthy server' prints '^ready +ready' check
check 'it says so to programs' prints '"check":"ready","answer":"ready","failed":false' --json check
check 'health needs no token' as_nobody ends 0 check
check 'the limits' prints '^login +per-user +2 +3 +500 +0 +0 +each key' limits
check 'the keys that are refused most' prints '^ +[0-9]+ +[0-9]+  dave +login +login +per-user$' top
check 'those of one template' prints '^ +[0-9]+ +[0-9]+  dave +login +login +per-user$' top login
check 'those of one limit' prints '^ +[0-9]+ +[0-9]+  dave' top login per-user
check 'those of a limit that does not exist' fails 1 'no such limit' top login nothing
check 'one key' prints '^per-user +2 +2 +0 +[0-9.,]+ d +-$' key login dave
check 'a key of a resource without limits' fails 1 'no template with limits' key nothing dave
check 'a ban' prints '^banned for 90 min$' ban login dave 1.5h
check 'a banned key' prints '^banned for (89|90)[.0-9]* min more$' key login dave
check 'a ban is a row of the counters' prints '^ban +login +dave .* min$' counters
check 'a ban ends' prints '^the ban has ended$' ban login dave 0
check 'a ban that there is not' prints '^there was no ban$' ban login dave 0
for time in 1w 5mm '' nan 1e99; do
    check 'a time that is none' fails 2 'must be a time' ban login dave "$time"
done
check 'who has banned a key' \
    prints '^ *1 +2.* ann +admin +127.0.0.1:[0-9]+ +ban +dave +- -> 90 min' audit dave
check 'a ban with a reason' prints '^banned for 60 min$' ban login erin 1h --reason 'ticket 12'
check 'it is in the audit' prints ' ban +erin +- -> [0-9.]+ (min|h) +ticket 12$' audit erin
act=$($ctl audit erin | sed -n '2s/^ *\([0-9]*\) .*/\1/p')
check 'an undo needs a reason' fails 2 'undo needs --reason' undo "$act"
check 'an undo' prints "^act $act is undone, by act [0-9]+$" undo "$act" --reason oops
check 'the key is not banned any more' prints_no 'banned' key login erin
check 'the undo is in the audit' prints " undo of $act +erin +.* min -> - +oops$" audit erin
check 'it cannot be undone twice' fails 1 'came later .undo by ann at' \
    undo "$act" --reason oops
check 'an act that there is not' fails 1 'the audit has no act with this number' \
    undo 999 --reason oops
for wrong in '' x -- 1x 99999999999999999; do
    check 'an id that is none' fails 2 'must be an id|usage' undo "$wrong" --reason oops
done
check 'a command without a reason' fails 2 'limits does not take --reason' limits --reason oops
check 'a key that nobody has touched' prints '^none$' audit nobody
check 'an override' prints '^override [0-9]+ is set, then ' \
    override set login per-user acme limit=9 1h 'ticket 4711'
check 'the key has it' prints '^per-user +9 +0 +9 ' key login acme
check 'the overrides' \
    prints '^ *[0-9]+ +acme +per-user +login +\{"limit":9\} +- +.* ann +ticket 4711' override list
check 'it is in force at once' prints_no later override list acme
check 'those of another key' prints '^none$' override list nobody
check 'units once' prints '^override ' override set login per-user acme add=5 1h gift
check 'the key has both' prints '^per-user +14 +0 +14 ' key login acme
check 'a template that does not exist' fails 1 'template' \
    override set 'nothing/*' per-user acme limit=9 1h why
check 'an override for two seconds' ends 0 override set login per-user short limit=9 2s why
check 'it does not seem longer' prints ' short .* [01](\.[0-9])? s +ann |^none$| 2 s +ann ' \
    override list short
check 'an override ends' prints '^the override has ended$' override end login per-user acme over
check 'one that there is not' fails 1 'no such' override end login per-user nobody over
check 'a limit that does not exist' fails 1 'limit' override set login none acme limit=9 1h why
check 'a figure that the kind does not have' fails 1 'rate' \
    override set login per-user acme rate=9 1h why
for figures in '' limit limit= limit=x 'limit=9,' =9 limit=0x10 limit=inf; do
    check 'figures that are none' fails 2 'must be figures' \
        override set login per-user acme "$figures" 1h why
done
check 'a plan' prints '^the plan is set, act [0-9]+$' plan set login erin pro 1h 'ticket 4711'
check 'the key has it' prints '^per-user +50 +0 +50 ' key login erin
check 'a plan that does not exist' fails 1 'no limit of the template' \
    plan set login erin gold 1h why
check 'a time that is none' fails 2 'must be a time' plan set login erin pro 1w why
seq -f 'key %.0f pro' 12345 >"$folder/plans"
echo 'key 12345 free' >>"$folder/plans"
check 'plans of a file' fails 1 'the first 10000 plans of .* are set' \
    plan load login "$folder/plans" 0 import
sed -i '$d' "$folder/plans"
check 'they are set' prints '^12345 plans are set$' plan load login "$folder/plans" 0 import
check 'a key has its plan' prints '^per-user +50 +0 +50 ' key login 'key 12345'
printf 'erin pro\n\nalone\n' >"$folder/plans"
check 'a line without a plan' fails 2 '/plans:3: must have a key' \
    plan load login "$folder/plans" 0 import
check 'an input without lines' prints '^0 plans are set$' plan load login - 0 import
check 'a file that is not there' fails 2 'No such file' plan load login "$folder/no" 0 import
check 'the plans of a key' prints '^ *[0-9]+ +erin +pro +login +[0-9.]+ .* ann +ticket 4711' \
    plan list erin
check 'all plans' has_lines 12347 plan list
check 'a plan ends' prints '^the plan has ended$' plan end login erin over
check 'one that there is not' fails 1 'no plan row' plan end login nobody over
check 'plans: the fields' prints '^\{"id":[0-9]+,"audit":[0-9]+,' --json plan list 'key 1'
check 'a reset' prints '^1 reset$' reset login dave per-user
check 'a reset of nothing' prints '^nothing to reset' reset login dave
check 'a reset of a limit that does not exist' fails 1 'limit' reset login dave nothing
check 'who holds units' \
    prints '^[0-9]+ +acme +slots +worker[^ ]*\.\.\. +2 +[0-9.]+ s +[0-9.]+ min' holds
check 'how many' prints '^1 held, 0 waiting, 0 reserved$' holds
check 'all counters' prints '^counter +login +per-user +login +ann +2 +1 +1 ' counters
check 'those of one limit' has_lines 2 counters login per-user
check 'those of a limit that does not exist' fails 1 'no limit' counters nothing
check 'all counters as JSON' prints '^\{"what":"counter",.*"key":"ann"' export
check 'the configuration' prints '"identifier_glob":"db/\*"' config get
check 'a valid configuration' prints '^valid; nothing would change$' config check "$folder/config"
check 'one that is wrong' fails 1 'is not valid' config check "$folder/tokens"
check 'with its place' grep '/tokens:1:1: error: ' "$folder/errors"
sed 's/"limit": 2, "window"/"limit": 3, "window"/' "$folder/config" >"$folder/other"
check 'what it would change' prints '^    per-user: other settings; its counters stay$' \
    config check "$folder/other"
sed 's/"resource": "login"/"resource": "bill"/' "$folder/config" >"$folder/rules"
check 'other rules for descriptors' prints '^the rules for descriptors change$' \
    config check "$folder/rules"
check 'they are a change' grep -x 'valid' "$folder/output"
check 'a file that is not there' fails 2 'No such file' config check "$folder/nothing"
check 'a file is not changed over HTTP' fails 1 'is a file' \
    config put "$folder/other" 'a test' 1
check 'it has no versions' prints '^none$' config versions
check 'and no difference' fails 1 'has no versions' config diff

# ---- versions of the configuration

start versioned --config store: --http-token "$folder/tokens" --state "$folder/versions"
export DOORMAN_URL="$url"
check 'the first version' prints '^version 1 is in force$' config put "$folder/config" 'the first'
check 'the next one' prints '^    login per-user limit: 2 -> 3$' \
    config put "$folder/other" 'ticket 4711'
check 'of a version that is gone' fails 1 "present version is 2, not 1: 'ann' has changed it" \
    config put "$folder/config" 'too late' 1
check 'one that is wrong' fails 1 'is not valid' config put "$folder/tokens" wrong
post /v1/report '{"client_id":"x","entry":[{"resource_id":"bill","key":"zoe","cost":2},
    {"resource_id":"bill","key":"amy","cost":2}]}'
sed 's/"quota", "kind"/"quota2", "durable": false, "kind"/' "$folder/config" >"$folder/renamed"
sed 's/"quota", "kind"/"quota", "durable": false, "kind"/' "$folder/config" >"$folder/brief"
check 'a limit in memory' prints '^version 3 is in force$' config put "$folder/brief" 'in memory'
check 'what a change drops' prints '^bill quota: .*dropped; drops [0-9]+ counters$' \
    config put "$folder/renamed" 'another name'
post /v1/report '{"client_id":"x","entry":[{"resource_id":"bill","key":"zoe","cost":2}]}'
check 'what a way back drops' prints '^bill quota2: .*dropped; drops 1 counters$' \
    config rollback 3 'the old name'
sed 's/"free": {"limit": 1}, "pro": {"limit": 50}/"pro": {"limit": 50}, "free": {"limit": 1}/' \
    "$folder/brief" >"$folder/sorted"
check 'the order of plans is no change' prints '^valid; nothing would change$' \
    config check "$folder/sorted"
check 'as before' ends 0 config put "$folder/other" again
check 'a number that is none' fails 2 'is not the number' config rollback x why
check 'all versions' prints '^ *2 +20[^ ]* +ann +ticket 4711 +login per-user limit: 2 -> 3$' \
    config versions
check 'as JSON' prints '^\{"version":2,.*"reason":"ticket 4711"' --json config versions
check 'the last difference' prints '^        limit: 2 -> 3$' config diff
check 'the first one' prints '^login: added$' config diff 1
check 'a version' prints '"limit":[[:space:]]*2,?$' config get 1
check 'one that does not exist' fails 1 'there is no version 7' config get 7
check 'a version comes back' prints '^version 7 is in force$' config rollback 1 'too much'
check 'one that is not there' fails 1 'no version 99' config rollback 99 'too much'
check 'the answer as JSON' prints '^\{"version":8,"before":7,' \
    --json config put "$folder/other" more
act=$($ctl audit | sed -n '2s/^ *\([0-9]*\) .*/\1/p')
check 'a configuration is taken back' prints "^act $act is undone, by act [0-9]+$" \
    undo "$act" --reason oops
check 'a reader may look' as_reader ends 0 config versions
check 'a reader may not change' as_reader fails 4 'role admin' config put "$folder/config" no
url=$real
export DOORMAN_URL="$real"
check 'limits as the server says it' says_what_the_server_says /v1/limits limits
check 'holds: the fields' prints '"longest_held":\[\{"holder"' --json holds
check 'one key: the fields' prints '^\{"entry":\[\{"limits"' --json key login ann
check 'a ban: the fields' prints '^\{"entry":\[\{"count":0\}\]\}$' --json ban login ann 0

# ---- tokens

check 'a token with the role read' as_reader ends 0 limits
check 'it cannot reset' as_reader fails 4 'role support' reset login ann
check 'a token that the server does not know' as_stranger fails 4 'does not know' limits
check 'no token' as_nobody fails 4 'wants a token.*DOORMAN_TOKEN' limits
check 'the token is no flag, because others could see it' ends 2 --token admin-1 limits
printf '# comment\n\n url  %s \n token\tread-1\r\n' "$real" >"$folder/settings"
unset DOORMAN_URL DOORMAN_TOKEN
chmod 644 "$folder/settings"
check 'a file that others can read' fails 2 'mode 644.*chmod 600' \
    --settings "$folder/settings" limits
chmod 600 "$folder/settings"
check 'a file of mode 600' ends 0 --settings "$folder/settings" limits
mkdir "$folder/.config"
mv "$folder/settings" "$folder/.config/doormanctl"
check 'the file in the home folder' ends 0 limits
check 'a flag goes before it' fails 3 'cannot reach http://127.0.0.1:1:' \
    --url http://127.0.0.1:1 limits
check 'so does the environment' as_stranger fails 4 'does not know' limits
echo 'tokens read-1' >>"$folder/.config/doormanctl"
check 'a wrong line is named' fails 2 'line 5: must be' limits
rm "$folder/.config/doormanctl"
check 'a file that is missing' fails 2 'No such file' --settings "$folder/nothing" limits
export DOORMAN_URL="$real" DOORMAN_TOKEN=admin-1

# ---- the command line

check 'no command' fails 2 'a command is missing'
check 'a typing error' fails 2 'Do you mean .status.\?' statsu
check 'an error in the second word' fails 2 'Do you mean .config get.\?' config gett
check 'an unknown command' fails 2 'unknown command: xyzzy\. .doormanctl help' xyzzy
check 'a command without its second word' fails 2 'override: needs a second word: .override set.' \
    override
check 'the help of a group' prints '^doormanctl override list \[KEY\]$' help override
check 'of another one' prints '^doormanctl config rollback' config --help
check_no_more() { prints_no 'doormanctl plan' help override; }
check 'and of no other group' check_no_more
check 'a group that there is not' fails 2 'unknown command: over' help over
check 'too few words' fails 2 'usage: doormanctl key RESOURCE KEY' key login
check 'too many words' fails 2 'usage: doormanctl limits' limits login
for wrong in --nothing --timeout=0 --timeout=x --timeout=nan --url=ftp://a --url=http://a:b@c \
    --url=http:// --cert=x; do
    check 'a wrong flag' ends 2 $wrong limits
done
check 'the version is that of the server' \
    prints "^doormanctl $(build/plain/doorman_server --version | cut -d ' ' -f 2)$" --version

# ---- descriptors

post /v1/report '{"client_id":"x","entry":[{"resource_id":"login","key":"dora","cost":2}]}'
check 'a descriptor has a rule' prints '^rule +descriptors\[0\]$' \
    descriptor shop path=/login user=dora
check 'its names' grep -E '^resource +login$' "$folder/output"
check 'its key' grep -E '^key +dora$' "$folder/output"
check 'a decision' grep -E '^decision +REFUSED, RATE per-user$' "$folder/output"
check 'its limits' grep -E '^per-user +2 +2 +0 +[0-9.,]+ d$' "$folder/output"
check 'a descriptor without a rule' prints '^key +a%2Fb%253D/=$' \
    descriptor 'a b' 'x=a/b%3D' y==
check 'its default names' grep -E '^resource +a b/x/y$' "$folder/output"
check 'nothing limits it' grep -E '^decision +UNMATCHED $' "$folder/output"
check 'the answer as JSON' prints '"descriptor":\{"resource_id":"login","key":"dora",' \
    --json descriptor shop path=/login user=dora
check 'the last ones without a limit' prints '^0 descriptors without a limit' descriptor
check 'an entry without a value' fails 2 'path: must be an entry KEY=VALUE' descriptor shop path
check 'too many entries' fails 1 'k: is one entry too many' descriptor shop \
    a= b= c= d= e= f= g= h= i= j= l= m= n= o= p= q= k=
check 'a token is needed' as_stranger fails 4 'does not know this token' descriptor shop a=b
check 'any role may look' as_reader ends 0 descriptor shop a=b
check 'no server' fails 3 'cannot reach' --url http://127.0.0.1:1 descriptor shop a=b

# ---- a configuration of Envoy's ratelimit

cat >"$folder/ratelimit.yaml" <<'END'
domain: shop
descriptors:
  - key: path
    value: /login
    descriptors:
      - key: remote_address
        rate_limit: {unit: day, requests_per_unit: 5}
  - key: path
    value: /img*
    rate_limit: {unlimited: true}
  - key: path
    rate_limit: {unit: Minute, requests_per_unit: 100}
    shadow_mode: true
---
domain: chat
descriptors: [{key: user, rate_limit: {unit: second, requests_per_unit: 3}}]
END
is_converted() { # exit code
    ends "$1" convert "$folder/ratelimit.yaml" || return
    cp "$folder/output" "$folder/converted"
    build/plain/doorman_server --config "$folder/converted" --check-config
}
if ends 0 convert "$folder/ratelimit.yaml"; then
    check 'a configuration is converted, and accepted' is_converted 0
    check 'nothing is left out' test ! -s "$folder/errors"
    check 'a rule' grep -F '"entries":[["path","/login"],["remote_address","*"]]' \
        "$folder/converted"
    start converted --config "$folder/converted" --http-token "$folder/tokens"
    check 'a nested limit' prints '^template +shop/path=%2Flogin/remote_address$' \
        --url "$url" descriptor shop path=/login remote_address=1.2.3.4
    check 'a wildcard without a limit' prints '^decision +GRANTED' \
        --url "$url" descriptor shop path=/img/a
    check 'the same path' prints '^per-minute +100 +0 +100 +0 s +shadow$' \
        --url "$url" descriptor shop path=/cart
    check 'the second document' prints '^per-second +3 ' --url "$url" descriptor chat user=ann
    url=$real
    printf 'domain: more\ndescriptors: [{key: a, rate_limit: {unit: eon}, colour: red}]\n' \
        >"$folder/more.yaml"
    check 'what cannot be converted' fails 1 '2 things were left out' \
        convert "$folder/ratelimit.yaml" "$folder/more.yaml"
    check 'it is named with its path' grep -E \
        'more.yaml: descriptors\[0\].rate_limit.unit: must be second' "$folder/errors"
    check 'the rest is converted' grep -F '"domain":"chat"' "$folder/output"
    check 'a file that is not there' fails 2 'No such file' convert "$folder/nothing"
    printf 'a: [\n' >"$folder/more.yaml"
    check 'a file that is no YAML' fails 2 'line 2, column 1: is no YAML' \
        convert "$folder/more.yaml"
    printf 'a: &a [*a]\n' >"$folder/more.yaml"
    check 'an alias of itself' fails 2 'more than 32 levels' convert "$folder/more.yaml"
    head -c 5000000 /dev/zero | tr '\0' ' ' >"$folder/more.yaml"
    check 'a large file' fails 2 'more than 4 MiB' convert "$folder/more.yaml"
else
    check 'without YAML there is a clear error' fails 2 'without YAML' \
        convert "$folder/ratelimit.yaml"
fi

commands=$($ctl help | sed -n '/^Commands/,/^$/s/^  \([a-z]*\( [a-z]\{1,\}\)\{0,1\}\) .*/\1/p')
flags=$($ctl help | sed -n 's/^  \(--[a-z]*\).*/\1/p')
names_are_in() { # file
    for name in $commands $flags; do
        sed 's/\\-/-/g' "$1" | grep -q -w -e "$name" || { echo "$1: no $name"; return 1; }
    done
}
# shellcheck disable=SC2086 # a name can have two words
has_help() { echo "$commands" | while read -r name; do ends 0 help $name || exit; done; }
check 'there are commands' test "$(echo "$commands" | wc -l)" -ge 12
check 'each command has help' has_help
check 'the manual has all commands and flags' names_are_in docs/doormanctl.1
check 'bash completes them' names_are_in server/ctl/completion.bash
check 'zsh completes them' names_are_in server/ctl/completion.zsh
completes() { # words, the last one is completed; then what is offered
    # shellcheck disable=SC2016 # the other shell expands them
    bash -c '. server/ctl/completion.bash
        COMP_WORDS=($1) && COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) && _doormanctl &&
        printf "%s\n" "${COMPREPLY[@]}"' bash "$1" | grep -x -e "$2"
}
check_with bash 'the start of a command is completed' completes 'doormanctl lim' limits
check_with bash 'so is its second word' completes 'doormanctl config ch' check
check_with bash 'so is a flag' completes 'doormanctl --js' --json
check_with man 'man reads the manual' sh -c \
    'man --warnings -l docs/doormanctl.1 2>&1 >/dev/null | { ! grep .; }'

# ---- the output

post /v1/report '{"client_id":"x","entry":[{"resource_id":"bill","cost":7,
    "key":"evil\u001b[31m\u009b1m\n\u007fk\u202ee\u2069y"}]}'
check 'control characters do not reach the terminal' \
    prints '  evil\?\[31m\?1m\?\?k\?e\?y  ' counters bill
has_no_colors() { ends 0 status && ! grep "$(printf '\033')" "$folder/output"; }
on_terminal() { script -qec "$*" /dev/null </dev/null >"$folder/output" 2>&1; }
has_colors() {
    TERM=xterm on_terminal $ctl status && grep "$(printf '\033\\[1m')" "$folder/output"
}
obeys_no_color() {
    NO_COLOR=1 TERM=xterm on_terminal $ctl status && grep RESOURCE "$folder/output" &&
        ! grep "$(printf '\033')" "$folder/output"
}
check 'a file has no colors' has_no_colors
check_with script 'a terminal has colors' has_colors
check_with script 'NO_COLOR turns them off' obeys_no_color
is_full() { $ctl export >/dev/full; [ $? = 1 ]; }
check 'a full disk is an error' is_full
check 'the server takes 12,000 counters' fill 1 12000
check 'a long list is complete' has_lines 12001 export bill
check 'so is a long table' has_lines 12002 counters bill

# ---- events

cat >"$folder/events.json" <<'EOF'
{"resources": [{"identifier_glob": "*", "limits": [
  {"name": "quota", "kind": "FIXED_WINDOW", "limit": 1, "window": 10000000,
   "on_restart": "full"}]}]}
EOF
# Runs a command of doormanctl in the background, and leaves its process in $subscriber.
subscribe() { # name, arguments...
    name=$1
    shift
    $ctl "$@" >"$folder/$name.out" 2>"$folder/$name.err" </dev/null &
    subscriber=$!
    processes="$processes $subscriber"
}
ask() { curl --silent --output "$folder/allowed" "$url/v1/allow?resource=$1&key=a%20b"; }
# A subscriber loses what happens before it is connected, so requests are made until it sees one.
ask_until() { # resource, expression, file
    tries=0
    until grep -q -E -e "$2" "$3" || [ $tries = 600 ]; do
        ask "$1"
        sleep 0.1
        tries=$((tries + 1))
    done
    grep -E -e "$2" "$3" || { cat "$3" && false; }
}
ends_by_a_signal() { kill "$subscriber" && wait "$subscriber"; }
loses_its_server() {
    kill "$server" && wait "$server"
    await 'a connection is lost' "$folder/table.err" "$subscriber"
    start again --config "$folder/events.json" --events "$address"
    ask_until again '  permit.refused     again ' "$folder/table.out" &&
        await 'connected again' "$folder/table.err" && grep 'connected again' "$folder/table.err"
}
before=$url
start events --config "$folder/events.json" --events tcp://127.0.0.1:0
await ' events=' "$folder/events.log" $server
address=$(sed -n 's/.* events=\(tcp:[^ ]*\).*/\1/p' "$folder/events.log")
subscribe json --json --url "$url" events permit.refused.login
check 'events are lines of JSON' \
    ask_until login '^\{"event":"permit.refused",.*"key":"a b".*\}$' "$folder/json.out"
check 'the end of a subscriber is no failure' ends_by_a_signal
subscribe table --url "$url" events
check 'events are rows of a table' \
    ask_until login '^[0-9:.]+  permit.refused     login  +a b  +limit=quota reason=RATE$' \
    "$folder/table.out"
check 'a subscriber connects again' loses_its_server
check 'its end is no failure either' ends_by_a_signal
check 'no server publishes there' fails 3 'cannot reach tcp://127.0.0.1:1 within 1 s' \
    --timeout 1 --events tcp://127.0.0.1:1 events
check 'an address that is none' fails 2 'an address of events is, for example' --events x events
url=$before
check 'a server without events' fails 1 'publishes no events: start it with --events' events

# ---- servers that are none

check 'nothing listens' fails 3 'cannot reach .*is the server running' \
    --url http://127.0.0.1:1 limits
check 'a name that does not exist' fails 3 'cannot reach' --url http://nothing.invalid limits
fake silent
check 'a server that never answers' fails 3 'nothing has come for 1 s' \
    --timeout 1 --url "$fake" limits
fake slow
check 'a slow server' ends 0 --url "$fake" limits
check 'the wait is shown' grep 'waiting for http://127.0.0.1:' "$folder/errors"
for behaviour in page number missing; do
    fake $behaviour
    for command in status limits top holds counters export check 'key a b' 'config get' \
        'ban a b 1'; do
        # shellcheck disable=SC2086 # several words
        check 'an answer that is nonsense' fails 3 'not as a Doorman server' --url "$fake" $command
    done
    check 'also with --json' fails 3 'not as a Doorman server' --json --url "$fake" limits
done
fake noise
check 'an answer that is not HTTP' fails 3 'cannot reach' --url "$fake" limits
fake endless
check 'a list that repeats itself' fails 3 'not as a Doorman server' --url "$fake" export
fake standby "$real"
for command in limits holds 'counters login' 'top login'; do
    # shellcheck disable=SC2086 # several words
    check 'the master is asked' ends 0 --url "$fake" $command
done
check 'the answer is that of the master' prints '^login +per-user' --url "$fake" limits
check 'a configuration is compared with that of the master' \
    prints '^valid; nothing would change$' --url "$fake" config check "$folder/config"
check 'a message follows the redirect' prints '^per-user' --url "$fake" key login ann
check 'the status is that of the process' prints '^master +tcp://master:15000$' --url "$fake" status
fake standby ''
check 'a master whose address is not known' fails 1 'master, which is at tcp://master.*--url' \
    --url "$fake" limits

# ---- drains, bans, and the keys that use most

start alone --config "$folder/config" --http-token "$folder/tokens" --state "$folder/alone-state"
post /v1/report '{"client_id":"b","entry":[{"resource_id":"bill","key":"zoe","cost":1}]}'
curl --silent --output "$folder/allowed" -H 'Authorization: Bearer admin-1' \
    "$url/v1/allow?resource=bill&key=zoe&cost=750000"
post /v1/acquire '{"client_id":"worker-1234567890","permit":[
    {"request_id":1,"item":[{"resource_id":"slots","key":"acme","cost":2}]}]}'
check 'the keys that use most units' \
    prints '^750,000 +750,000 +0 +zoe +bill +bill +quota' --url "$url" top units day
check 'a time that is none' fails 1 'over: must be' --url "$url" top units week
check 'the keys that are nearest' prints '^750,001 +1,000,000 .*zoe +bill' --url "$url" top nearest
check 'a key is banned' ends 0 --url "$url" ban bill mallory 1d
check 'the bans' prints '^mallory +bill +administrator +.* (24 h|1 d)$' --url "$url" bans
check 'those of a key' prints '^none$' --url "$url" bans bill zoe
check 'bans: the fields' prints '"bans":\[\{"resource_id":"bill","key":"mallory","by"' \
    --json --url "$url" bans bill
check 'a reset of what is held' prints '^2 units stay held' --url "$url" reset slots acme
hold=$($ctl --url "$url" holds | sed -n 's/^\([0-9]*\) *acme .*/\1/p')
check 'a hold ends' prints '^ended: 2 units of slots' --url "$url" holds end "$hold" stuck
check 'a hold that there is not' fails 1 'no such hold' --url "$url" holds end "$hold" stuck
check 'an id that is none' fails 2 'must be the ID' --url "$url" holds end acme stuck
post /v1/acquire '{"client_id":"gateway-1","permit":[{"request_id":1,"settle_within":3000,
    "item":[{"resource_id":"bill","key":"ida","cost":7}]}]}'
reserved=$($ctl --url "$url" holds | sed -n 's/^\([0-9]*\) *ida .*/\1/p')
check 'neither keep nor refund' fails 2 'must be keep or refund' \
    --url "$url" reservations end "$reserved" stuck later
check 'a reservation ends' prints '^ended: 7 units of bill' \
    --url "$url" reservations end "$reserved" refund stuck
check 'it has ended' fails 1 'no such reservation' \
    --url "$url" reservations end "$reserved" keep stuck
check 'nobody takes over' fails 1 'force=1, or use .doormanctl drain-alone' --url "$url" drain move
check 'a reader cannot drain' as_reader fails 4 'role admin' --url "$url" drain-alone move
check 'lists without rows have names' prints '^resources: none$' --url "$url" status
check 'lists of holds have names too' prints '^waiting: none$' --url "$url" holds
check 'a drain' prints '^drained since 20.* by ann: new disk$' --url "$url" drain-alone 'new disk'
check 'a second drain' prints 'by ann: new disk$' --url "$url" drain other
check 'the end of a drain' prints '^serving, as the master$' --url "$url" undrain over
check 'a drain: the fields' prints '^\{"state":"serving","is_master":true' \
    --json --url "$url" undrain over
check 'nobody listens' fails 3 'cannot reach' --url http://127.0.0.1:1 drain why
check 'an override that ends soon' \
    ends 0 --url "$url" override set login per-user soon limit=9 30m why
check 'one that ends late' ends 0 --url "$url" override set login per-user late limit=9 1d why
check 'the overrides that end soon' has_lines 2 --url "$url" override ending 1h
check 'drains are in the audit' prints 'undrain' --url "$url" audit
curl --silent --output "$folder/acts" -H 'Content-Type: application/json' \
    -H 'Authorization: Bearer admin-1' --data '{"entry":[{"resource_id":"bill","key":"k"}]}' \
    "$url/v1/reset?reason=n[1-1000]"
check 'a large id can be copied' prints '^ *1[0-9]{3} +20' --url "$url" audit k

# ---- the page of a task

# Prints the blocks of a language of a page.
blocks() { # language, page
    awk -v begin="\`\`\`$1" '$0 == begin { inside = 1; next } /^```/ { inside = 0 } inside' "$2"
}
page=docs/tasks/support.md
blocks json $page >"$folder/page.json"
blocks sh $page | sed '/doorman_server/,$d' >"$folder/page_tokens.sh"
(cd "$folder" && mkdir task && cd task && sh -e ../page_tokens.sh)
start page --config "$folder/page.json" --http-token "$folder/task/tokens" \
    --state "$folder/task/state"
mkdir "$folder/bin"
ln -s "$PWD/$ctl" "$folder/bin/doormanctl"
blocks sh $page | sed -e '1,/--http 127/d' -e "s|http://127.0.0.1:15051|$url|" >"$folder/page.sh"
plays_the_page() {
    PATH="$folder/bin:$PATH" sh -e "$folder/page.sh" >"$folder/output" 2>&1 ||
        { cat "$folder/output" && false; }
}
check 'the commands of the page do what it says' plays_the_page
check 'the override is there' grep -E '^ *1 +acme +quota +api/search +.*ticket 4711$' \
    "$folder/output"
check 'it comes back' grep -E '^act 2 is undone, by act 3' "$folder/output"

# ---- TLS

make_certificate() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
        -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 \
        -keyout "$folder/key.pem" -out "$folder/cert.pem"
}
if is_installed openssl; then
    check 'a certificate is made' make_certificate
    start tls --config "$folder/config" --tls-cert "$folder/cert.pem" --tls-key "$folder/key.pem"
    check 'the server has HTTPS' test "${url%%:*}" = https
    check 'HTTPS with the authority' ends 0 --url "$url" --cacert "$folder/cert.pem" limits
    check 'HTTPS without it' fails 3 '--cacert' --url "$url" limits
    check 'an authority that is missing' fails 3 'nothing.pem' \
        --url "$url" --cacert "$folder/nothing.pem" limits
fi
check_end
