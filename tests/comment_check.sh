#!/bin/sh
# Checks the comments of the headers, doorman_server.c and server/:
#
#   - Each function, type or macro that a comment of a header names exists. In the list of the API
#     at the top, "_destroy" behind "doorman_server_create" means doorman_server_destroy.
#   - The list of the API has each function of the API, and CONTENTS has each section.
#   - Each rule that a comment of these files or of the tests quotes (T7, R4, ...) is defined
#     exactly once. A definition is a line of a comment that starts with the number of the rule.
#   - A section that a comment names with its header (">>NAME of doorman.h") is in that header.
set -u
awk '
    function complain(text) { print text; failed++ }

    # Returns the name whose last words the suffix replaces; "": there is none.
    function extended(name, suffix) {
        while (sub(/_[^_]*$/, "", name)) if ((name suffix) in code) return name suffix
        return ""
    }

    # Splits a line into its code and its comment. Returns the comment.
    function comment_of(line,    text, at) {
        text = outside = ""
        while (line != "") {
            at = index(line, inside ? "*/" : "/*")
            if (at == 0) at = length(line) + 1
            if (inside) text = text " " substr(line, 1, at - 1)
            else outside = outside " " substr(line, 1, at - 1)
            line = substr(line, at + 2)
            if (at <= full) inside = !inside
            full = length(line)
        }
        return text
    }

    function take_words(text, array, where,    count, words, i) {
        count = split(text, words, /[^A-Za-z0-9_*]+/)
        for (i = 1; i <= count; i++) if (words[i] != "" && !(words[i] in array)) {
            array[words[i]] = where
        }
    }

    {
        full = length($0)
        text = comment_of($0)
        where = FILENAME ":" FNR
        header = FILENAME ~ /^doorman(_permits|_throttle)?\.h$/
        take_words(outside, code, where)
        if (header && match(outside, /^ DOORMAN_API .*doorman_[a-z0-9_]+\(/)) {
            name = substr(outside, 1, RLENGTH - 1)
            sub(/.*[^a-z0-9_]/, "", name)
            api[name] = where
        }
        if (text == "") next
        if (header || FILENAME ~ /^(doorman_server\.c$|server\/)/) {
            if (match(text, /^ +\* [A-Z][0-9]+(, [A-Z][0-9]+)* [^ ]/)) {
                count = split(substr(text, RSTART, RLENGTH - 1), words, /[^A-Z0-9]+/)
                for (i = 1; i <= count; i++) if (words[i] != "") {
                    if (words[i] in rules) {
                        complain(where ": " words[i] " is also defined at " rules[words[i]])
                    }
                    rules[words[i]] = where
                }
            }
        }
        if (header && match(text, /---- >>[a-z_]+/)) {
            sections[substr(text, RSTART + 5, RLENGTH - 5) " of " FILENAME] = where
        }
        if (header && text ~ /^ +\* +>>[a-z_]+ / && match(text, />>[a-z_]+/)) {
            contents[substr(text, RSTART, RLENGTH) " of " FILENAME] = 1
        }
        if (match(text, />>[a-z_]+ of doorman[a-z_]*\.h/)) {
            placed[substr(text, RSTART, RLENGTH)] = where
        }
        if (header && text ~ / THE API[,.]/) in_list = 1
        if (header && text ~ / (There are three ways|ERRORS,)/) in_list = 0
        count = split(text, words, /[^A-Za-z0-9_*]+/)
        for (i = 1; i <= count; i++) {
            word = words[i]
            if (word ~ /^[A-Z][0-9][0-9]?$/ && !(word in quoted)) quoted[word] = where
            if (!header) continue
            if (word ~ /^(doorman|DOORMAN)_[A-Za-z0-9_]*[A-Za-z0-9]$/) {
                if (!(word in named)) named[word] = where
                last = word
                if (in_list) listed[word] = 1
            } else if (in_list && word ~ /^_[a-z_]+$/) {
                suffixes[last " " word] = where
            }
        }
    }

    END {
        known["doorman_server"] = 1 # the program
        for (word in named) {
            checked++
            if (!(word in code) && !(word in known)) complain(named[word] ": no " word)
        }
        for (pair in suffixes) {
            split(pair, parts, " ")
            checked++
            name = extended(parts[1], parts[2])
            if (name == "") complain(suffixes[pair] ": no " parts[2])
            listed[name] = 1
        }
        for (name in api) {
            checked++
            if (!(name in listed)) complain(api[name] ": THE API does not list " name)
        }
        for (section in sections) {
            checked++
            if (section ~ /^>>throttle / || section in contents) continue # the only one there
            complain(sections[section] ": CONTENTS has no " section)
        }
        for (word in quoted) {
            checked++
            if (word ~ /^(C11|C99|H7|H8)$/) continue # standards, and two rules that were dropped
            if (!(word in rules)) complain(quoted[word] ": no rule " word)
        }
        for (section in placed) {
            checked++
            if (!(section in sections)) complain(placed[section] ": no " section)
        }
        if (checked == 0) complain("there are no comments")
        print "[  PASSED  ] " checked - failed + 0 " test(s)."
        if (failed) print "[  FAILED  ] " failed " test(s)"
        exit failed != 0
    }
' doorman.h doorman_permits.h doorman_throttle.h doorman_server.c server/*.h server/*/*.[ch] \
    tests/*.h tests/*/*.[ch]
