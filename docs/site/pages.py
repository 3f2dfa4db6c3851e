"""Hooks of MkDocs: write the pages of the project into docs_dir, in the folders that they have.

A link to a folder becomes a link to its README.md, or to a list of its files. A source file that a
page links to becomes a page of its own, with `.md` behind its name. Pictures are copied.
"""

import json
import pathlib
import posixpath
import re
import shutil
import subprocess

TOP = pathlib.Path(__file__).resolve().parents[2]
PAGES = ["*.md", "docs/*.md", "docs/tasks/*.md", "clients/*/README.md", "examples/deploy/README.md"]
MANUALS = ["doorman.h", "doorman_permits.h", "doorman_throttle.h"]  # headers.py writes their pages
PICTURES = (".png", ".svg")
LANGUAGES = {
    ".c": "c", ".h": "c", ".cpp": "cpp", ".py": "python", ".mjs": "js", ".go": "go", ".lua": "lua",
    ".json": "json", ".yml": "yaml", ".yaml": "yaml", ".conf": "nginx", ".service": "ini",
}  # fmt: skip


def slug(heading, separator):
    """Returns the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", separator)


def write(pages, path, text):
    file = pages / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def write_source(pages, path):
    """Writes a page that shows a file."""
    language = LANGUAGES.get(pathlib.Path(path).suffix, "text")
    text = (TOP / path).read_text(encoding="utf-8", errors="replace").rstrip()
    write(pages, path + ".md", f"# {path}\n\n~~~~{language}\n{text}\n~~~~\n")


def target_of(pages, folder, link):
    """Returns the target of a link of a page in the site, and writes what it leads to."""
    path = posixpath.normpath(posixpath.join(folder, link))
    file = TOP / path
    if file.is_dir():
        if not (file / "README.md").exists():
            names = sorted(child.name for child in file.iterdir() if child.is_file())
            links = [f"- [{name}]({target_of(pages, path, name)})" for name in names]
            write(pages, path + "/README.md", f"# {path}\n\n" + "\n".join(links) + "\n")
        return link.rstrip("/") + "/README.md"
    if link.endswith(".md") or not file.exists():
        return link  # MkDocs names links that lead nowhere
    if link.endswith(PICTURES):
        (pages / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, pages / path)
        return link
    if path not in MANUALS:
        write_source(pages, path)
    return link + ".md"


def draw(match):
    """Draws a graph of Mermaid with Graphviz."""
    arrows = match[1].replace("-->", "->").splitlines()
    graph = "digraph { rankdir=BT; bgcolor=transparent; node [shape=box, fontname=sans]; %s }"
    svg = subprocess.run(
        ["dot", "-Tsvg"], input=graph % ";".join(arrows), capture_output=True, check=True, text=True
    ).stdout
    return f'<div class="graph">{svg[svg.index("<svg"):]}</div>\n'.replace("\n\n", "\n")


def write_page(pages, path):
    text = (TOP / path).read_text(encoding="utf-8")
    text = re.sub(r"^```mermaid\ngraph BT\n(.*?)^```\n", draw, text, flags=re.M | re.S)
    text = re.sub(r"^(```\w+) .*$", r"\1", text, flags=re.M)  # MkDocs reads one word alone
    # Every second part is a block of code.
    parts = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)
    folder = posixpath.dirname(path)
    for i in range(0, len(parts), 2):
        # A code in a table needs no backslash before "|" here.
        parts[i] = re.sub(r"`[^`\n]+`", lambda match: match[0].replace(r"\|", "|"), parts[i])
        parts[i] = re.sub(
            r"\]\((?![a-z]+:|#)([^()\s#]+)",
            lambda match: "](" + target_of(pages, folder, match[1]),
            parts[i],
        )
    write(pages, path, "".join(parts))


def write_man_page(pages, path):
    """Writes a page of the manual. Its headings become headings of Markdown."""
    html = subprocess.run(
        ["mandoc", "-T", "html", "-O", "fragment", TOP / path],
        capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip
    html = re.sub(r'<table class="(head|foot)">.*?</table>|</?section[^>]*>', "", html, flags=re.S)
    html = re.sub(r'</?div[^>]*>|<a class="permalink"[^>]*>|</a>| class="Bl[^"]*"', "", html)
    html = re.sub(
        r"<h1[^>]*>(.*?)</h1>",
        lambda match: f"</div>\n\n## {match[1].capitalize()}\n\n<div>",
        html,
    )
    name = pathlib.Path(path).stem
    write(pages, path + ".md", f"# {name}\n\n<div>{html}</div>\n")


def on_config(config):
    """Writes the pages before MkDocs looks for them."""
    pages = pathlib.Path(config["docs_dir"])
    shutil.rmtree(pages)
    for pattern in PAGES:
        for file in TOP.glob(pattern):
            write_page(pages, file.relative_to(TOP).as_posix())
    write_man_page(pages, "docs/doormanctl.1")
    config["mdx_configs"]["toc"]["slugify"] = slug
    return config


def on_post_build(config):
    """Writes the index of the search as a script, which a browser also loads without a server."""
    folder = pathlib.Path(config["site_dir"]) / "search"
    index, page, before = [], "", ""
    for part in json.loads((folder / "search_index.json").read_text(encoding="utf-8"))["docs"]:
        is_page = "#" not in part["location"]
        page = part["title"] if is_page else page
        text = re.sub(r"\s+\*/?\s+", " ", part["text"]).lstrip("/* ")  # without margins of comments
        text = re.sub(r"(?<= )([\[({]+) | ([,;:.)\]}]+)(?= )", r"\1\2", text)  # of colored code
        # A page comes before its parts. The first part, which has its heading, is left out, and so
        # is JSON, because it is mostly figures.
        if ".json.html" not in part["location"] and (is_page or "#" in before):
            index.append({**part, "text": text, "page": page})
        before = part["location"]
    script = f"var searchIndex = {json.dumps(index)};\n"
    (folder / "search_index.js").write_text(script, encoding="utf-8")
