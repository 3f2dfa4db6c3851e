#!/bin/sh
# Tests the status page in a headless Chromium (Debian: chromium). A tree of three servers runs, and
# the root has 300 clients. The browser loads the page, follows links to a resource and through the
# tree, filters, and searches for a client. It also fills in the form for other figures of a key.
# It takes screenshots in both themes and at both widths: build/browser/*.png. Without Chromium,
# curl or node the test is skipped.
#
#   tests/browser_check.sh [doorman_server]
set -u
# shellcheck source=tests/check.sh
. tests/check.sh
server=${1:-build/plain/doorman_server}
screenshots=build/browser

require chromium curl node

mkdir -p "$screenshots"
rm -f "$screenshots"/*.png
cat >"$folder/config.json" <<END
{"resources": [
  {"identifier_glob": "*", "capacity": 1000, "safe_capacity": 2, "unit": "\"><b>queries/s",
   "description": "\"><script>alert(1)</script>", "algorithm":
    {"kind": "FAIR_SHARE", "lease_length": 3600, "refresh_interval": 5, "learning_mode_duration": 0,
     "parameters": [{"name": "minimum_interval", "value": 0}]}}]}
END
"$server" --config "$folder/config.json" --node shop-eu --listen tcp://127.0.0.1:0 \
    --http 127.0.0.1:0 2>"$folder/log" &
processes=$!

# Prints the value that a server has logged behind a key.
logged() { # key, log
    sed -n "s/.* $1=\([^ ]*\).*/\1/p" "$2" | head -n 1
}

await 'msg=serving' "$folder/log"
url=$(logged http "$folder/log")

# Starts a child node of the server with this log.
start_child() { # name, log of its parent
    : >"$folder/log_$1"
    "$server" --parent "$(logged listen "$2")" --node "$1" --listen tcp://127.0.0.1:0 \
        --http 127.0.0.1:0 2>"$folder/log_$1" &
    processes="$processes $!"
    await 'msg=serving' "$folder/log_$1"
}

start_child region "$folder/log"
start_child leaf "$folder/log_region"
region=$(logged http "$folder/log_region")
leaf=$(logged http "$folder/log_leaf")

# Asks the leaf for a lease until it has one from its parent.
request_at_leaf() {
    for _ in $(seq 300); do
        curl -s -H 'Content-Type: application/json' -d '{"client_id": "far-1", "resource": [
            {"resource_id": "db/orders", "wants": 3}]}' "$leaf/v1/get_capacity" |
            grep -q '"gets"' && return 0
        sleep 0.2
    done
    return 1
}

# Sends one request for each of 300 clients, one after the other over one connection.
send_requests() {
    for i in $(seq 300); do
        printf 'next\nurl = "%s/v1/get_capacity"\nheader = "Content-Type: application/json"\n' \
            "$url"
        printf 'silent\noutput = "/dev/null"\ndata = "%s"\n' "{\\\"client_id\\\": \
\\\"web-$((i % 40)):$i\\\", \\\"resource\\\": [\
{\\\"resource_id\\\": \\\"db/orders\\\", \\\"wants\\\": $((i % 9 + 1))}, \
{\\\"resource_id\\\": \\\"mail/send\\\", \\\"wants\\\": $((i % 5))}, \
{\\\"resource_id\\\": \\\"<b>&'bold'</b>\\\", \\\"wants\\\": 1}]}"
    done | sed 1d >"$folder/requests"
    curl --config "$folder/requests" || echo "curl failed"
}

# Runs the browser until the script of the page has run for 5 s of virtual time. The script loads
# the page again at least once in this time. The log gets what the page writes to the console.
browse() {
    timeout 300 chromium --headless=new --no-sandbox --disable-gpu --hide-scrollbars \
        --user-data-dir="$folder/profile" --virtual-time-budget=5000 --enable-logging=stderr \
        "$@" 2>>"$folder/browser_log"
}

console_is_empty() {
    ! grep ':CONSOLE' "$folder/browser_log"
}

send_requests

browse --dump-dom "$url/" >"$folder/page"
check 'the page' grep -F '300 holders' "$folder/page"
check 'its script runs' grep -F '>live</span>' "$folder/page"
check 'names are text' grep -F '&lt;b&gt;&amp;' "$folder/page"

link=$(sed -n 's/.*href="\(\/resources?resource=db\/orders\)".*/\1/p' "$folder/page")
browse --dump-dom "$url$link" >"$folder/leases"
check 'the link to a resource' grep -F '1 to 100 of 300 leases' "$folder/leases"

browse --dump-dom "$url/?filter=mail" >"$folder/filtered"
check 'the filter' grep -F '1 to 1 of 1 resources' "$folder/filtered"

browse --dump-dom "$url/clients?client=web-7:" >"$folder/clients"
check 'the search for a client' grep -F '>24 leases.' "$folder/clients"

check 'a lease of the leaf' request_at_leaf
browse --dump-dom "$region/resources?resource=db/orders" >"$folder/region"
check 'a link up' grep -F "<a href=\"$url/resources?resource=db/orders\">" "$folder/region"
check 'a link down' grep -F "<a href=\"$leaf/resources?resource=db/orders\">" "$folder/region"
check 'the description is text' grep -F '&lt;script&gt;alert(1)' "$folder/region"
check 'the unit is text' grep -F '&lt;b&gt;queries/s' "$folder/region"
browse --dump-dom "$url/" >"$folder/page"
check 'the children' grep -F "<a href=\"$region/\">region</a>" "$folder/page"

check 'nothing in the console' console_is_empty

# The form for other figures. A token is the password of the browser.
cat >"$folder/limits.json" <<END
{"resources": [{"identifier_glob": "api/*", "limits": [
  {"name": "burst", "kind": "TOKEN_BUCKET", "rate": 10, "size": 50},
  {"name": "quota", "kind": "FIXED_WINDOW", "limit": 5, "window": "month"}]}]}
END
printf '%s\n' 'support alice alice-2 api/*' 'support bob bob-3 maps' 'read ron read-4' \
    >"$folder/tokens"
"$server" --config "$folder/limits.json" --node office --listen tcp://127.0.0.1:0 \
    --http 127.0.0.1:0 --http-token "$folder/tokens" --state "$folder/state" \
    2>"$folder/log_office" &
processes="$processes $!"
await 'msg="counters read"' "$folder/log_office"
office=$(logged http "$folder/log_office")
form='/override?resource=api/search&key=acme'

# Prints the address of a page with a token.
as() { # token, path
    printf 'http://any:%s@%s%s' "$1" "${office#http://}" "$2"
}

fill() { # profile, URL, expression, ...
    profile=$folder/profile_$1
    shift
    node tests/browser/fill.mjs "$profile" "$@"
}

send='const { elements } = document.querySelector(".fill");
    Object.assign(elements.limit, { value: "quota" });
    Object.assign(elements.figures, { value: "limit=20" });
    Object.assign(elements.reason, { value: "ticket <4711>" });
    document.querySelector(".fill button").click()'
browse --dump-dom "$(as bob-3 "$form")" >"$folder/form_bob"
check 'no form without the right' grep -F 'This token may only change maps' "$folder/form_bob"
too_much=$(printf '%s' "$send" | sed 's/limit=20/limit=99/')
fill alice "$(as alice-2 "$form")" "$too_much" >"$folder/form_too_much"
check 'a form that asks for too much' grep -F 'at most 10 times the limit' "$folder/form_too_much"
check 'the form keeps what was typed' grep -F 'value="ticket &lt;4711&gt;"' "$folder/form_too_much"
fill alice "$(as alice-2 "$form")" "$send" >"$folder/form_alice"
check 'a form with the right' grep -F 'Done, as act 1.' "$folder/form_alice"
check 'what it has set' grep -F 'limit 20 until ' "$folder/form_alice"
check 'its reason is text' grep -F 'ticket &lt;4711&gt;' "$folder/form_alice"
browse --dump-dom "$(as read-4 "$form")" >"$folder/form_ron"
check 'no form for the role read' grep -F 'This one has the role read' "$folder/form_ron"

# A page elsewhere sends the form in the name of the person who has typed the token before.
cat >"$folder/elsewhere.html" <<END
<form method=post action="$office/override"><input name=resource value=api/search>
<input name=key value=acme><input name=limit value=quota><input name=figures value=limit=30>
<input name=number value=1><input name=unit value=days><input name=reason value=none></form>
END
fill alice "$(as alice-2 "$form")" 'location.reload()' "file://$folder/elsewhere.html" \
    'document.forms[0].submit()' >"$folder/form_elsewhere"
check 'a form of another origin' grep -F 'a form must be sent from a page of this server' \
    "$folder/form_elsewhere"

# Notes a screenshot for the browser.
shots=''
screenshot() { # name, width, height, theme, address
    set -- "$screenshots/$1_$4_$2.png" "$2" "$3" "$4" "$5"
    shots="$shots $*"
}

for theme in dark light; do
    for width in 400 1400; do
        screenshot resources $width 900 $theme "$url/"
        screenshot leases $width 900 $theme "$url$link"
        screenshot clients $width 900 $theme "$url/clients?client=web-7:"
        screenshot region $width 900 $theme "$region/"
        screenshot form $width 1000 $theme "$(as alice-2 "$form")"
    done
done
# shellcheck disable=SC2086 # words without spaces
check 'screenshots are taken' node tests/browser/shoot.mjs "$folder/profile" $shots
for name in resources leases clients region form; do
    for kind in dark_400 dark_1400 light_400 light_1400; do
        check "a screenshot of $name" grep -qF PNG "$screenshots/${name}_$kind.png"
    done
done
check_end
