"""A hook of MkDocs: writes a page for each header, with its manual and its public declarations."""

import html
import pathlib
import re

TOP = pathlib.Path(__file__).resolve().parents[2]
HEADERS = ["doorman.h", "doorman_permits.h", "doorman_throttle.h"]
HEADING = re.compile(r"([A-Z][A-Z ,]{3,}[A-Z])\b(.*)", re.S)
BANNER = re.compile(r"^/\* ---- (.*?) -* ?\*/\n", re.M)
DECLARED = re.compile(r"^(?:DOORMAN_API[^;]*?\b(?=\w+\()|typedef (?:struct|enum) )(\w+)", re.M)
RULE = re.compile(r"^([A-Z]\d+) ")


def indent_of(line):
    return len(line) - len(line.lstrip())


def code_block(text):
    language = "c" if re.search(r"[;{]$|^#", text, re.M) else "text"
    return f"~~~~{language}\n{text.rstrip()}\n~~~~\n\n"


def blocks_of(comment):
    """Yields the blocks of lines of a comment, and whether a block is a quote of a file."""
    lines = [re.sub(r"^(/\*| \*/?) ?|\s*\*/$", "", line) for line in comment.splitlines()]
    block, is_quote = [], False
    for line in lines + ["<!-- end -->"]:
        is_mark = line.startswith("<!--")
        if block and (is_mark or (line and line[0] != " " if is_quote else not line)):
            yield block, is_quote
            block, is_quote = [], False
        is_quote |= is_mark
        if not is_mark and (line or is_quote):
            block.append(line)


def rows_of(lines):
    """Returns the rows of a list of terms, or None if the lines are no such list."""
    first = re.match(r"\S.*?  +(?=\S)", lines[0])
    if not first or "   " in lines[0][first.end() :]:
        return None
    column, rows = first.end(), []
    for line in lines:
        if line[0] != " ":
            rows.append((re.split("  +", line, maxsplit=1) + [""])[:2])
        elif indent_of(line) == column:
            rows[-1][1] += "\n" + line
        else:
            return None
    return rows


class Writer:
    """Turns the comments of a header into Markdown."""

    def __init__(self, folder, pages):
        self.folder, self.pages = folder, pages  # of all pages; the header that declares a name
        self.last, self.seen = "", set()

    def name(self, word):
        """Returns a name as code, with a link. "_destroy" replaces the end of the last name."""
        name = html.unescape(word[0])
        page = name if name.endswith(".md") else name + ".md"
        if name in HEADERS or (self.folder / page).is_file():
            return f"[`{name}`]({page})"
        start = self.last if name[0] == "_" else ""
        while start and start + name not in self.pages:
            start = start.rpartition("_")[0]
        if start + name in self.pages:
            self.last = start + name
            return f"[`{name}`]({self.pages[self.last]}.md#{self.last})"
        return f"`{name}`" if re.search("[_>]", name) else name

    def text(self, text):
        parts = re.split(r"(`[^`]+`)", re.sub(r"\s+", " ", text.strip()))
        for i in range(0, len(parts), 2):
            part = re.sub(r"([*\[\]])", r"\\\1", html.escape(parts[i], quote=False))
            parts[i] = re.sub(r"&gt;&gt;\w+|\w*[_/]\w+(\.[a-z]+)*", self.name, part)
        return "".join(parts)

    def paragraphs(self, lines):
        """Returns text. Each rule begins a paragraph, and so does a deeper indent inside a rule."""
        if not RULE.match(lines[0]):
            return self.text("\n".join(lines)) + "\n\n"
        texts = []
        for line in lines:
            if RULE.match(line) or indent_of(line) > 5:
                texts.append("")
            texts[-1] += line + "\n"
        return "".join(RULE.sub(r"**\1** ", self.text(text)) + "\n\n" for text in texts)

    def block(self, lines):
        margin = min(indent_of(line) for line in lines)
        lines = [line[margin:] for line in lines]
        if len(lines) > 1 and lines[0].endswith(":"):
            return self.block(lines[:1]) + self.block(lines[1:])
        if rows := rows_of(lines):
            return "".join(f"{self.text(term)}\n:   {self.text(text)}\n\n" for term, text in rows)
        if margin > 4 or lines[-1].endswith(";") or any("   " in line.strip() for line in lines):
            return code_block("\n".join(lines))
        return self.paragraphs(lines)

    def comment(self, comment, has_headings=False):
        out = ""
        for block, is_quote in blocks_of(comment):
            heading = has_headings and HEADING.match("\n".join(block))
            if heading:
                title, rest = heading[1].capitalize().replace(" api", " API"), heading[2]
                out += f"## {title}\n\n"
                text = rest[1:] if rest.startswith(".") else title + rest
                block = text.splitlines() if rest.strip() else []
            if is_quote:
                out += code_block("\n".join(line[4:] for line in block))
            elif block:
                out += self.block(block)
        return out

    def declaration(self, chunk):
        """Returns a comment alone as text, and a declaration with its comment as code."""
        if re.fullmatch(r"/\*((?!\*/).)*\*/", chunk, re.S):
            return self.comment(chunk)
        if re.fullmatch(r"((#(if|endif)|}|extern).*\n?)+", chunk):
            return ""
        names = [name for name in dict.fromkeys(DECLARED.findall(chunk)) if name not in self.seen]
        self.seen.update(names)
        out = "".join(f'<a id="{name}"></a>\n' for name in names[1:])
        if names:
            out += f"\n### {', '.join(f'`{name}`' for name in names)} {{#{names[0]}}}\n\n"
        return out + code_block(chunk)


def on_config(config):
    folder = pathlib.Path(config["docs_dir"])
    parts, pages = {}, {}  # of a header: the comment at the top, and titles and texts of sections
    for header in HEADERS:
        manual, _, rest = (TOP / header).read_text(encoding="utf-8").partition("*/\n")
        public = rest[: rest.index("/* ==== the API ends here")]
        before, *sections = BANNER.split(public.partition('extern "C" {\n#endif\n')[2])
        parts[header] = [manual] + (sections or ["all", before])
        for name in DECLARED.findall(public):
            pages.setdefault(name, header)
    for header, (manual, *sections) in parts.items():
        writer, out = Writer(folder, pages), f"# {header}\n\n"
        out += writer.comment(manual, has_headings=True)
        for title, text in zip(sections[::2], sections[1::2]):
            out += f"## API: {title.partition(', the public')[0].strip()}\n\n"
            out += "".join(writer.declaration(part) for part in re.split(r"\n\n+", text.strip()))
        (folder / (header + ".md")).write_text(out, encoding="utf-8")
    return config
