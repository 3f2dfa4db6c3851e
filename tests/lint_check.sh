#!/bin/sh
# Checks that tests/layers_check.sh can fail: a small server with right layers passes, and with each
# fault it is refused for the right reason.
set -u
# shellcheck source=tests/check.sh
. tests/check.sh
script=$PWD/tests/layers_check.sh

# Makes a server of four files in $tree. state uses etcd, and both use util.
make_tree() {
    tree=$folder/tree
    rm -rf "$tree"
    mkdir -p "$tree/docs" "$tree/server/core" "$tree/server/util" "$tree/server/etcd" \
        "$tree/server/state"
    cd "$tree" || return 1
    echo 'struct waiter;' >server/core/waiter.h
    echo '#include "core/waiter.h"' >server/server.h
    printf '#include "server/server.h"\nint main(void) {\n    return 0;\n}\n' >doorman_server.c
    printf '#include "../server.h"\nint server_host(void);\n' >server/util/host.h
    printf '#include "host.h"\nint server_host(void) { return 1; }\n' >server/util/host.c
    printf '#include "../util/host.h"\nint server_etcd(void);\n' >server/etcd/etcd.h
    printf 'int server_etcd_post(void);\n' >server/etcd/etcd_http.h
    printf '#include "etcd.h"\n#include "etcd_http.h"\n' >server/etcd/etcd.c
    printf 'int server_etcd(void) { return server_host(); }\n' >>server/etcd/etcd.c
    printf '#include "../etcd/etcd.h"\n' >server/state/state.h
    printf '#include "state.h"\nint server_state(void);\n' >server/state/state.c
    printf 'int server_state(void) { return server_etcd(); }\n' >>server/state/state.c
    {
        echo 'graph BT'
        printf '    %s --> %s\n' util core etcd util state etcd
        echo '```'
    } >docs/architecture.md
}

layers_are_checked() { # in $tree
    for source in doorman_server.c server/*/*.c; do
        mkdir -p "objects/${source%/*}"
        object=objects/${source%.c}.o
        [ "$source" != doorman_server.c ] || object=objects/doorman_server.o
        ${CC:-cc} -c "$source" -o "$object" || return 1
    done
    sh "$script" objects
}

right_layers_pass() (
    make_tree && layers_are_checked
)

# Adds a line to a file. The check then fails, and says why.
is_refused() ( # what it says, file, line
    make_tree || return 1
    echo "$3" >>"$2"
    if layers_are_checked >"$folder/said"; then echo 'it passes' && return 1; fi
    grep -F "$1" "$folder/said" || { cat "$folder/said" && return 1; }
)

if is_installed nm; then
    check 'right layers pass' right_layers_pass
    check 'a private header of another folder is refused' is_refused \
        'server/state/state.c includes server/etcd/etcd_http.h, which is private' \
        server/state/state.c '#include "../etcd/etcd_http.h" /* a comment */'
    check 'a face with a private header is refused' is_refused \
        'server/etcd/etcd.h is included by other folders and includes server/etcd/etcd_http.h' \
        server/etcd/etcd.h '#include "etcd_http.h"'
    check 'a header of the core is refused' is_refused \
        'server/util/host.c includes server/core/waiter.h, which is private' \
        server/util/host.c '#include "../core/waiter.h"'
    check 'a header of a folder above is refused' is_refused \
        'etcd/etcd uses the header of state/state, which is in a layer above it' \
        server/etcd/etcd.c '#include "../state/state.h"'
    check 'a function of a folder above is refused' is_refused \
        'util/host uses server_etcd of etcd/etcd, which is in a layer above it' \
        server/util/host.c \
        'int server_etcd(void); int server_up(void); int server_up(void) { return server_etcd(); }'
    check 'a circle is refused' is_refused 'a circle:' server/etcd/etcd_http.h '#include "etcd.h"'
    check 'a picture that is not true is refused' is_refused 'the picture of the folders' \
        docs/architecture.md "$(printf 'graph BT\n    util --> state\n\140\140\140')"
fi
check_end
