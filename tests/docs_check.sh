#!/bin/sh
# Builds the site of all pages, as `make docs` does, and checks it: each page is in the menu, each
# link and anchor exists, the manuals have every public function, the page about HTTP has every
# path, and the search finds pages in a browser that shows the site from files.
set -u
# shellcheck source=tests/check.sh
. tests/check.sh
require python3
if ! sh .ci/deps --look mkdocs; then
    skip mkdocs
    check_end
    exit
fi
site=$folder/site

# MkDocs and its hooks write only into the temporary folder.
build() {
    mkdir "$folder/pages" &&
        DOORMAN_PAGES=$folder/pages PYTHONDONTWRITEBYTECODE=1 \
            mkdocs build --quiet --strict --config-file docs/mkdocs.yml --site-dir "$site"
}

pages_are_in_the_menu() {
    for page in *.md docs/*.md docs/tasks/*.md clients/*/README.md examples/deploy/README.md; do
        grep -q -e ": $page\$" docs/mkdocs.yml || echo "$page is not in docs/mkdocs.yml"
    done >"$folder/unknown"
    ! grep . "$folder/unknown"
}

# MkDocs knows fewer kinds of blocks of code than others do. It shows an unknown one as text.
marks_are_gone() {
    ! grep -r -n --include='*.html' -e '^```' -e '^<p>```' "$site"
}

functions_have_headings() { # header
    sed '/^\/\* ==== the API ends here/q' "$1" | grep -o '^DOORMAN_API [^(]*(' |
        sed 's/.*[ *]\(doorman_[a-z0-9_]*\)(/\1/' | sort -u >"$folder/functions"
    while read -r name; do
        grep -q "id=\"$name\"" "$site/$1.html" || echo "$name"
    done <"$folder/functions" >"$folder/unknown"
    [ -s "$folder/functions" ] && ! grep . "$folder/unknown"
}

paths_have_headings() {
    sed -n 's/^  "\(\/[^"]*\)": {$/\1/p' server/pages/openapi.json >"$folder/paths"
    while read -r path; do
        grep -q "<h3[^>]*>[A-Z]* $path<" "$site/docs/openapi.html" || echo "$path"
    done <"$folder/paths" >"$folder/unknown"
    [ -s "$folder/paths" ] && ! grep . "$folder/unknown"
}

search_finds() { # words, link
    timeout 300 chromium --headless=new --no-sandbox --disable-gpu \
        --user-data-dir="$folder/profile" --virtual-time-budget=20000 --enable-logging=stderr \
        --dump-dom "file://$site/search.html?q=$1" 2>"$folder/browser_log" >"$folder/found"
    if grep ':CONSOLE' "$folder/browser_log"; then return 1; fi
    grep -q -F "href=\"./$2\"" "$folder/found" || { cat "$folder/found"; return 1; }
}

check 'each page is in the menu' pages_are_in_the_menu
check 'MkDocs builds the site without a warning' build
if [ $failed != 0 ]; then
    check_end
    exit 1
fi
check 'each link and anchor of the site exists' python3 tests/docs_links.py "$site"
check 'no block of code is taken for text' marks_are_gone
for header in doorman*.h; do
    check "each function of $header has a heading" functions_have_headings "$header"
done
check 'each path of the API has a heading' paths_have_headings
check_with chromium 'the search finds a function' search_finds doorman_agent_stop \
    'doorman.h.html#doorman_agent_stop'
check_with chromium 'the search finds a page by its words' search_finds redis+restart+counters \
    'docs/operations.html#a-redis-for-the-counters-of-a-node'
check_end
