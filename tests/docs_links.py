#!/usr/bin/env python3
"""Checks the links of a site: each page, picture, script and anchor that a page names exists.

    tests/docs_links.py FOLDER

Only links of text may lead to other sites, because the site must work without a network.
"""

import html.parser
import pathlib
import sys
import urllib.parse


class Page(html.parser.HTMLParser):
    def __init__(self, file):
        super().__init__()
        self.anchors, self.links = {""}, []
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("id", "name"):
                if name == "id" and value in self.anchors:
                    self.links.append((tag, f"#{value} (twice)"))
                self.anchors.add(value)
            elif name in ("href", "src") and value is not None:
                self.links.append((tag, value))


def wrong(site, pages, file, tag, link):
    """Says what is wrong with a link, or returns None."""
    url = urllib.parse.urlsplit(link)
    if url.scheme or url.netloc:
        return None if tag == "a" else "needs the network"
    if url.path.startswith("/"):
        return "needs a web server"
    target = (file.parent / urllib.parse.unquote(url.path)).resolve() if url.path else file
    if target.is_dir():
        return "is a folder"
    if not target.is_file():
        return "there is no such file"
    if target in pages and urllib.parse.unquote(url.fragment) not in pages[target].anchors:
        return "there is no such heading"
    return None


def main():
    site = pathlib.Path(sys.argv[1]).resolve()
    pages = {file: Page(file) for file in sorted(site.rglob("*.html")) if file.name != "404.html"}
    failed = count = 0
    for file, page in pages.items():
        for tag, link in page.links:
            count += 1
            problem = wrong(site, pages, file, tag, link)
            if problem:
                failed += 1
                print(f"{file.relative_to(site)}: {link}: {problem}")
    print(f"{len(pages)} pages, {count} links, {failed} are wrong")
    return failed > 0 or count == 0


if __name__ == "__main__":
    sys.exit(main())
