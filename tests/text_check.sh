#!/bin/sh
# Holds the code that README.md and doorman.h quote against the files that it comes from. A line
# with
#
#     <!-- file: examples/rate_client.c -->
#
# says that what follows it is in that file, word for word but for the indentation: in README.md
# the next fenced block, in doorman.h the next lines of the comment that are indented by four.
set -u
awk '
    function compare(    lines, count, start, i) {
        while ((getline lines[++count] < file) > 0) sub(/^ +/, "", lines[count])
        close(file)
        for (start = 1; start + quoted <= count; start++) {
            for (i = 1; i <= quoted && lines[start + i - 1] == quote[i]; i++) {}
            if (i > quoted) return 1
        }
        return 0
    }
    function finish(    i) {
        while (quoted > 0 && quote[quoted] == "") quoted--
        for (i = 1; i <= quoted; i++) sub(/^ +/, "", quote[i])
        if (quoted > 0 && compare()) passed++
        else { failed++; print where ": not found in " file " as it is quoted" }
        file = ""
    }

    { text = $0; header = FILENAME ~ /\.h$/; if (header) sub(/^ \* ?/, "", text) }
    FNR == 1 && file != "" { finish() }

    match(text, /<!-- file: [^ ]+ -->/) {
        if (file != "") finish()
        file = substr(text, RSTART + 11, RLENGTH - 15)
        where = FILENAME ":" FNR
        quoted = inside = 0
        next
    }
    file == "" { next }
    header && text ~ /^    / { quote[++quoted] = substr(text, 5); next }
    header && text == "" { if (quoted) quote[++quoted] = ""; next }
    header { if (quoted) finish(); next }
    text ~ /^```/ && inside { finish(); next }
    text ~ /^```/ { inside = 1; next }
    inside { quote[++quoted] = text }

    END {
        if (file != "") finish()
        if (passed + failed == 0) { failed = 1; print "nothing is quoted" }
        print "[  PASSED  ] " passed + 0 " test(s)."
        if (failed) print "[  FAILED  ] " failed " test(s)"
        exit failed != 0
    }
' README.md doorman.h
