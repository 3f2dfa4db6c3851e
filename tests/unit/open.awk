# Opens the implementation of a header to unit tests: its private functions lose their `static`.
# With -v declare=1 the functions also lose their bodies. So an object of the whole implementation
# can be linked to tests that only read declarations, which takes a tenth of the time.
#
# A function begins in the first column, its head ends with "{" at the end of a line, and its body
# ends with "}" in the first column, as clang-format has it. What is always inline stays as it is.
NR == 1 {
    print "#include \"tests/unit/hooks.h\""
    print declare ? "#pragma GCC system_header" : "#line 1 \"" FILENAME "\""
}
/^#ifdef DOORMAN_IMPLEMENTATION/ { implements = 1 }
in_body {
    if (/^}/) in_body = 0
    if (!declare) print
    next
}
implements && /^[a-z_]/ && !/^(typedef|extern) / { in_head = 1 }
in_head {
    head = head $0 "\n"
    if (!/[;{}]( *\/\*.*\*\/)?$/) next
    if (head ~ /^[^={;]*\(/) { # no type and no table
        sub(/static (inline )?/, "", head)
        if (declare) {
            in_body = /{$/
            sub(/ {.*/, ";\n", head)
        }
    }
    printf "%s", head
    head = ""
    in_head = 0
    next
}
{ print }
