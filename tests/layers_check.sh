#!/bin/sh
# Checks the layers of the server: no file uses a file that uses it back, directly or through
# others, no folder uses a folder above it, no file includes a header that is private to another
# folder, and the picture of the folders in docs/architecture.md is true. `make lint` calls this
# script, and tests/lint_check.sh checks that it can fail.
#
#   tests/layers_check.sh [--graph] FOLDER      --graph: prints this picture
#
# FOLDER has the object files: doorman_server.o, and server/SUBFOLDER/NAME.o. An arrow is a symbol
# that one file defines and another one uses, or a header that a file includes. NAME.c and NAME.h
# are one file. The core is one object, so its arrows come from its text: doorman_server.c,
# server/server.h and server/core/ are files too. The core finds the parts in a table of their
# structs, whose names start with server_part_. So these symbols are no arrows. `ctl` is another
# program, so no arrow leads from it to another folder, or back.
#
# server/NAME/NAME.h is the face of its folder. Other folders include no other header of it: those
# are private. A face that other folders include must not include a private header, because these
# folders would then see it too. There are two exceptions:
#
#     core   the face is server/server.h. It contains some headers of server/core/
#     util   a library of small things that have nothing in common. Each header is a face
set -eu
page=docs/architecture.md
if [ "$1" = --graph ]; then page= && shift; fi
# The folders from the bottom to the top. `core` is doorman_server.c.
layers='ctl core util config log process tls etcd store state shards link forward waiting http'
layers="$layers events grpc admin pages"

# Lines "define FILE SYMBOL", "use FILE SYMBOL" and "include FILE HEADER SOURCE".
facts() {
    for object in "$1"/doorman_server.o "$1"/server/*/*.o; do
        name=${object#"$1"/} name=${name#server/} name=${name%.o}
        nm "$object" | awk -v file="$name" '
            $(NF - 1) ~ /^[TDBR]$/ { print "define", file, $NF }
            $(NF - 1) == "U" { print "use", file, $NF }'
    done
    for source in doorman_server.c server/*.h server/*/*.[ch]; do
        name=${source#server/} name=${name%.[ch]}
        sed -n 's/^ *# *include *"\([^"]*\)\.h".*/\1/p' "$source" | while read -r header; do
            case $source:$header in
            *:../doorman_permits | *:../../doorman | *:build/*) continue ;;
            doorman_server.c:*) ;;
            *:../*) header=${header#../} ;;
            server/*/*) header=${name%/*}/$header ;;
            esac
            echo "include $name ${header#server/} $source"
        done
    done
    for source in doorman_server.c server/server.h server/core/*.h; do
        name=${source#server/} name=${name%.[ch]}
        text_facts "$name" "$source"
    done
}

# The functions and variables that a file defines, and each name in the bodies of functions and in
# tables that is not the member of a struct. Macros belong to the file that uses them.
text_facts() {
    awk -v file="$1" '
    { gsub(/\/\*[^*]*\*\//, ""); gsub(/"([^"\\]|\\.)*"/, "") }
    is_comment { if (!sub(/^.*\*\//, "")) next; is_comment = 0 }
    sub(/\/\*.*$/, "") { is_comment = 1 }
    is_macro || /^#/ { is_macro = /\\$/; next }
    !is_body && /^[a-z_]/ { head = ""; is_head = 1 }
    is_head {
        head = head " " $0
        if ($0 !~ /[;{}]/) next
        is_head = 0
        if (head ~ /^[^={]*;/) next # a declaration
        before = head
        sub(/[={].*/, "", before)
        is_function = before ~ /\(/
        is_body = is_function || head ~ /=/
        if (!is_body) next # a struct
        name = before
        sub(/[[(].*/, "", name)
        sub(/ +$/, "", name)
        sub(/.*[ *]/, "", name)
        print "define", file, name
        $0 = substr(head, length(before) + 1)
    }
    is_body {
        if (/^}/ || (is_function ? head != "" && /}$/ : /;$/)) is_body = 0
        head = ""
        gsub(/(\.|->)[ ]*[A-Za-z0-9_]+/, "")
        count = split($0, words, /[^A-Za-z0-9_]+/)
        for (i = 1; i <= count; i++) if (words[i] ~ /^[a-z]/) print "use", file, words[i]
    }' "$2"
}

# Prints the picture, or what is wrong.
check() {
    facts "$1" | awk -v layers="$layers" '
    function folder(file) { return file ~ /\// ? substr(file, 1, index(file, "/") - 1) : "core" }
    function complain(text) { print text; bad = 1 }
    function is_face(file) {
        if (folder(file) == "core") return file == "server"
        return folder(file) == "util" || file == folder(file) "/" folder(file)
    }
    function include(from, to, source) {
        if (folder(from) != folder(to)) {
            if (is_face(to)) shared[to]
            else complain(source " includes server/" to ".h, which is private to its folder")
        } else if (source ~ /\.h$/ && !is_face(to) && folder(to) != "core") {
            inner[from] = to
        }
    }
    function add(from, to, what) {
        if (from == to || to == "") return
        arrows[from, to] = what
        if (!((from, to) in known)) { known[from, to]; uses[from] = uses[from] " " to }
        if (folder(from) != folder(to)) between[folder(from), folder(to)]++
        if ((folder(from) == "ctl") != (folder(to) == "ctl"))
            complain(from " uses " what " of " to ", which is of another program")
        if (floor[folder(to)] > floor[folder(from)])
            complain(from " uses " what " of " to ", which is in a layer above it")
    }
    function visit(file, path,    i, count, names) { # depth first: a file on the way is a circle
        if (state[file] == 2) return
        if (state[file] == 1) {
            complain("a circle:" substr(path, index(path, " " file)) " " file)
            return
        }
        state[file] = 1
        count = split(uses[file], names, " ")
        for (i = 1; i <= count; i++) visit(names[i], path " " file)
        state[file] = 2
    }
    BEGIN { count = split(layers, order, " "); for (i = 1; i <= count; i++) floor[order[i]] = i }
    $1 == "define" { owner[$3] = $2; files[$2] }
    $1 == "use" && $3 !~ /^server_part_/ { used[++used_count] = $2 " " $3 }
    $1 == "include" { add($2, $3, "the header"); include($2, $3, $4) }
    END {
        for (file in files) if (!(folder(file) in floor)) complain(file ": an unknown folder")
        for (i = 1; i <= used_count; i++) {
            split(used[i], pair, " ")
            if (pair[2] in owner) add(pair[1], owner[pair[2]], pair[2])
        }
        for (file in files) visit(file, "")
        for (file in inner) if (file in shared) {
            complain("server/" file ".h is included by other folders and includes server/" \
                inner[file] ".h, so that is not private")
        }
        if (!length(files)) complain("there are no object files")
        if (bad) exit 1
        print "graph BT"
        for (i = 2; i <= count; i++) { # the nearest first; what it uses needs no arrow
            for (j = i - 1; j >= 1; j--) {
                if (!((order[i], order[j]) in between) || (i, j) in reached) continue
                print "    " order[i] " --> " order[j]
                reached[i, j]
                for (k = 1; k < j; k++) if ((j, k) in reached) reached[i, k]
            }
        }
    }'
}

picture=$(check "$1") || { echo "$picture" && exit 1; }
if [ ! "$page" ]; then
    echo "$picture"
elif [ "$picture" != "$(sed -n '/^graph BT$/,/^```$/p' $page | sed '/^```$/d')" ]; then
    echo "$page: the picture of the folders is another one: make lint_layers GRAPH=1"
    exit 1
fi
