#!/bin/sh
# Runs the commands of README.md and of docs/: each block below the line `<!-- run -->`. If a block
# without a language follows, it is what the commands print, apart from numbers and names of nodes.
#
#   tests/pages_check.sh [doorman_server]
#
# The commands of a page reach a server with the configuration of the page, or with
# config.example.json if the page has none. They run in a folder that has links to all files of the
# top folder, and the configuration of the page as config.json. Each server that they start ends as
# soon as it serves. The addresses of the pages are replaced, so other servers may run on this
# machine. `make` has been run before.
set -u
# shellcheck source=tests/check.sh
. tests/check.sh
server=${1:-build/plain/doorman_server}
case $server in /*) ;; *) server=$PWD/$server ;; esac
work=$folder/work

# Writes what a page needs: the commands and the output of each block as N.sh and N.out, and the
# configuration as config.json.
split() { # page
    rm -rf "$folder/blocks"
    mkdir "$folder/blocks"
    awk -v folder="$folder/blocks" '
        /^```/ && inside { inside = 0; close(out); next }
        /^```/ {
            inside = 1; out = "/dev/null"
            if ($0 == "```sh") printing = above == "<!-- run -->"
            if ($0 == "```sh" && printing) out = folder "/" ++count ".sh"
            if ($0 == "```" && printing) { out = folder "/" count ".out"; printing = 0 }
            json = $0 ~ /^```json/
            next
        }
        inside && json && /^{.*"resources"/ { out = folder "/config.json" }
        inside { print > out }
        !inside && $0 != "" { printing = 0 }
        { above = $0 }' "$1"
}

# Starts a server, and writes a script that replaces the addresses of the pages by its own.
start() { # configuration
    : >"$folder/log"
    "$server" --config "$1" --listen tcp://127.0.0.1:0 --http 127.0.0.1:0 2>"$folder/log" &
    processes=$!
    await ' http=' "$folder/log" "$processes"
    sed -n 's/.* listen=tcp:\/\/\([0-9.:]*\).*/s|127.0.0.1:15000|\1|/p' "$folder/log" \
        >"$folder/addresses"
    sed -n 's/.* http=http:\/\/\([0-9.:]*\).*/s|127.0.0.1:15050|\1|/p' "$folder/log" \
        >>"$folder/addresses"
    printf '%s\n' 's/127.0.0.1:150[0-9][1-9]/127.0.0.1:0/' 's/127.0.0.1:15080/127.0.0.1:0/' \
        "s|build/doorman_server|$folder/serve|" \
        '/^make$/d' >>"$folder/addresses"
}

# Prints a text with each number as 0, and each name of a node as "N".
plain() { tr -d '\r' <"$1" | sed -e 's/[0-9][0-9.]*/0/g' -e 's/"node":"[^"]*"/"node":"N"/g'; }

# A line "..." of the page stands for any lines.
is_output() { # wanted, real
    plain "$2" >"$2.plain"
    plain "$1" | awk -v real="$2.plain" '
        BEGIN { while ((getline line < real) > 0) lines[++count] = line }
        $0 == "..." { any = 1; next }
        { at++; while (any && at <= count && lines[at] != $0) at++; any = 0 }
        lines[at] != $0 { exit failed = 1 }
        END { exit failed || (at != count && !any) }'
}

# A server that has just started learns, so the output can need some tries.
prints_what_the_page_says() { # N
    block=$folder/blocks/$1
    sed -f "$folder/addresses" "$block.sh" >"$block.run"
    tries=0
    while :; do
        (cd "$work" && sh -e "$block.run" >"$block.real" 2>"$block.errors") || {
            cat "$block.real" "$block.errors" && return 1
        }
        [ -e "$block.out" ] || return 0
        if is_output "$block.out" "$block.real"; then return 0; fi
        tries=$((tries + 1))
        [ $tries -lt 40 ] || break
        sleep 0.5
    done
    diff "$block.out" "$block.real"
}

# Runs the blocks of a page.
run() { # page
    page=$1
    split "$page"
    config=$folder/blocks/config.json
    [ -e "$config" ] || config=config.example.json
    cp "$config" "$work/config.json"
    start "$config"
    number=1
    while [ -e "$folder/blocks/$number.sh" ]; do
        check "$page: block $number: $(head -n 1 "$folder/blocks/$number.sh")" \
            prints_what_the_page_says $number
        number=$((number + 1))
    done
    kill "$processes" && wait "$processes"
}

require curl nngcat openssl
mkdir "$work"
ln -s "$PWD"/* "$work"
# The flags of a page take precedence over these variables. A server that serves is stopped. One
# that only checks something ends by itself. Both must end with success.
cat >"$folder/serve" <<END
#!/bin/sh
export DOORMAN_LISTEN=tcp://127.0.0.1:0 DOORMAN_HTTP=127.0.0.1:0
: >"$folder/served"
"$server" "\$@" 2>>"$folder/served" &
tries=0
until grep -q 'msg=serving' "$folder/served" || ! kill -0 \$! || [ \$tries = 1800 ]; do
    sleep 0.1
    tries=\$((tries + 1))
done 2>/dev/null
kill \$! 2>/dev/null
wait \$!
status=\$?
cat "$folder/served" >&2
exit \$status
END
chmod +x "$folder/serve"
for page in README.md docs/*.md docs/*/*.md; do
    if grep -q -x -e '<!-- run -->' "$page"; then run "$page"; fi
done
check_end
