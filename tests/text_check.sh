#!/bin/sh
# Checks the pages for people.
#
# Quotes: the line
#
#     <!-- file: examples/rate_client.c -->
#
# names the file of the quote that follows. The quote must be in that file, word for word, except
# for the indentation. On a page the quote is the next fenced block. In a header it is the next
# lines of the comment that are indented by four.
#
# Blocks: every block of code on a page is checked by something:
#
#     JSON                  it has templates, which tests/unit/recipes_test.c reads; or it is a
#                           message of docs/protocol.md, which tests/system/protocol_test.c sends;
#                           or it is a quote
#     a picture (mermaid)   tests/layers_check.sh draws it
#     other languages       it is a quote
#     commands (sh)         one of these lines says who runs them:
#                           <!-- run -->             tests/pages_check.sh
#                           <!-- run: .ci/run -->    .ci/run has a stage for each line
#                           <!-- not run: WHY -->    nobody, for example because they need root
#
# Links: a relative link leads to a file, and its anchor to a heading.
set -u
# shellcheck source=tests/check.sh
. tests/check.sh
pages=$(find README.md docs -name '*.md' | sort)

# shellcheck disable=SC2086 # several pages
quotes_are_in_their_files() {
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
            if (passed == 0) print "there are no quotes"
            exit failed > 0 || passed == 0
        }
    ' $pages doorman.h doorman_permits.h doorman_throttle.h
}

# The line above a block has its mark.
# shellcheck disable=SC2086
blocks_are_checked() {
    awk '
        function wrong(what) { print where ": " what; failed = 1 }
        FNR == 1 { inside = 0; above = "" }
        /^```/ && inside {
            inside = 0
            if (kind == "json" && !templates) wrong("JSON that no test reads")
            next
        }
        /^```/ {
            inside = 1; where = FILENAME ":" FNR; templates = 1
            ci = above == "<!-- run: .ci/run -->"
            language = $0; sub(/^```/, "", language); kind = language; sub(/ .*/, "", kind)
            quote = above ~ /^<!-- file: /
            run = ci || above == "<!-- run -->" || above ~ /^<!-- not run: .+ -->$/
            if (kind == "sh" && !run) wrong("nothing says who runs these commands")
            other = kind != "" && kind != "sh" && kind != "json" && kind != "mermaid"
            if (other && !quote) wrong("no quote of a file")
            if (kind == "json" && !quote && FILENAME != "docs/protocol.md") templates = 0
            next
        }
        inside && kind == "json" && /"identifier_glob"/ { templates = 1 }
        inside && kind == "sh" && ci { print "stage " $0 > commands }
        { above = $0 }
        END { exit failed }
    ' commands="$folder/commands" $pages
}

# A stage can also be one of several that run at the same time, in quotes.
ci_runs_its_commands() {
    while read -r stage command; do
        sed 's/^ *//' .ci/run | grep -q -x -F "$stage $command" ||
            grep -q -F "'$command'" .ci/run || echo "$command"
    done <"$folder/commands" >"$folder/unknown"
    [ -s "$folder/commands" ] && ! grep . "$folder/unknown"
}

# Prints the anchors of the headings of a page, as GitHub makes them.
anchors_of() { # page
    awk '/^```/ { inside = !inside } !inside && /^#+ / { sub(/^#+ /, ""); print }' "$1" |
        tr '[:upper:]' '[:lower:]' | sed -e 's/[^a-z0-9 _-]//g' -e 's/ /-/g' |
        awk '{ print seen[$0]++ ? $0 "-" seen[$0] - 1 : $0 }'
}

# Prints the targets of the relative links of a page.
links_of() { # page
    awk '/^```/ { inside = !inside }
        !inside { while (match($0, /\]\([^() ]+\)/)) {
            print substr($0, RSTART + 2, RLENGTH - 3)
            $0 = substr($0, RSTART + RLENGTH)
        } }' "$1" | grep -v '^[a-z]*:'
}

links_lead_somewhere() { # page
    links_of "$1" | while read -r link; do
        file=${link%%#*}
        file=${file:+$(dirname "$1")/$file}
        file=${file:-$1}
        if ! [ -e "$file" ]; then
            echo "$1: $link: there is no such file"
        elif [ "$link" != "${link#*#}" ] && ! anchors_of "$file" | grep -q -x -e "${link#*#}"; then
            echo "$1: $link: there is no such heading"
        fi
    done >"$folder/broken"
    ! grep . "$folder/broken"
}

readme_is_short() { [ "$(wc -l <README.md)" -le 300 ]; }
# The manual of a header is its first comment.
manuals_are_short() {
    for header in *.h; do
        lines=$(($(grep -n -m 1 '^ \*/' "$header" | cut -d: -f1) - 2))
        [ $lines -le 250 ] || { echo "$header: $lines lines" && return 1; }
    done
}

check 'each quote is in its file' quotes_are_in_their_files
check 'something checks each block of code' blocks_are_checked
check '.ci/run runs the commands that pages leave to it' ci_runs_its_commands
for page in $pages CONTRIBUTING.md CHANGELOG.md examples/deploy/README.md; do
    check "the links of $page lead somewhere" links_lead_somewhere "$page"
done
check 'README.md has at most 300 lines' readme_is_short
check 'the manual of each header has at most 250 lines' manuals_are_short
check_end
