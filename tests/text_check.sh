#!/bin/sh
# Checks that the code that README.md and the headers quote is the same as in its file. The line
#
#     <!-- file: examples/rate_client.c -->
#
# names the file of the quote that follows. The quote must be in that file, word for word, except
# for the indentation. In README.md the quote is the next fenced block. In a header it is the next
# lines of the comment that are indented by four.
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
        else { failed++; print where ": the quoted text is not in " file }
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
        if (passed + failed == 0) { failed = 1; print "there are no quotes" }
        print "[  PASSED  ] " passed + 0 " test(s)."
        if (failed) print "[  FAILED  ] " failed " test(s)"
        exit failed != 0
    }
' README.md doorman.h doorman_permits.h doorman_throttle.h
