#!/bin/sh
# Checks that a section of the library uses only the sections before it. C needs a declaration for
# a function that is defined further down, so such a declaration must be in the section of the
# function. A table of functions is the way for the rest: see doorman__permit_node. `make lint`
# calls this script.
#
#   tests/order_check.sh doorman.h doorman_permits.h ...
awk '
    FNR == 1 { section = "" }
    /^\/\* ---- >>[a-z_]+ / { section = substr($3, 3) }
    section == "" { next }
    /^[a-z][A-Za-z0-9_ *]*\(/ && !/^typedef/ { text = ""; open = 1; at = FNR }
    !open { next }
    {
        text = text " " $0
        if (!match(text, /[;{]/)) next
        open = 0
        if (!match(text, /doorman_[A-Za-z0-9_]*\(/)) next
        name = substr(text, RSTART, RLENGTH - 1)
        if (text !~ /{/) {
            declared[name] = section
            where[name] = FILENAME ":" at
        } else {
            defined[name] = section
        }
    }
    END {
        for (name in declared) {
            if (declared[name] == defined[name]) continue
            print where[name] ": " name " is declared in >>" declared[name] \
                ", and defined in >>" defined[name]
            bad = 1
        }
        exit bad
    }' "$@"
