"""A hook of MkDocs: writes a page about HTTP from the description that a server serves."""

import json
import pathlib
import re
import shutil

TOP = pathlib.Path(__file__).resolve().parents[2]
API = "server/pages/openapi.json"
METHODS = ["get", "put", "post", "delete"]
BOUNDS = {
    "minimum": "at least {}", "exclusiveMinimum": "more than {}", "maximum": "at most {}",
    "minLength": "at least {} bytes", "maxLength": "at most {} bytes", "pattern": "matches {}",
    "minItems": "at least {} entries", "maxItems": "at most {} entries",
    "minProperties": "at least {} fields", "maxProperties": "at most {} fields",
    "default": "default {}", "const": "is {}",
}  # fmt: skip


def layout(value, margin="\n"):
    """Returns a value as JSON. A part that fits into a line is one line."""
    line = json.dumps(value, ensure_ascii=False)
    if len(margin + line) <= 90 or not isinstance(value, (dict, list)):
        return line
    inner = margin + "  "
    if isinstance(value, list):
        return "[" + inner + f",{inner}".join(layout(part, inner) for part in value) + margin + "]"
    parts = (f"{json.dumps(key)}: {layout(part, inner)}" for key, part in value.items())
    return "{" + inner + f",{inner}".join(parts) + margin + "}"


def linked(text):
    """Returns a text with links to the pages that it names."""
    return re.sub(r"docs/(\w+)\.md", r"[docs/\1.md](\1.md)", text)


def table(titles, rows):
    lines = [titles, ["---"] * len(titles)] + rows if rows else []
    cells = [[re.sub(r"\s+", " ", cell).replace("|", "\\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells) + "\n"


def type_of(schema):
    """Returns the type of a value, with a link to its schema."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#schema-{name.lower()})"
    choices = schema.get("oneOf") or schema.get("anyOf")
    if choices and "type" not in schema:
        return " or ".join(map(type_of, choices))
    if "items" in schema:
        return f"array of {type_of(schema['items'])}"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    kind = schema.get("type", "any value")
    return kind if isinstance(kind, str) else " or ".join(kind)


def meaning_of(schema, text=""):
    """Returns the description of a value, with its bounds."""
    parts = [linked(text or schema.get("description", "")).rstrip(".")]
    for key, bound in BOUNDS.items():
        if key in schema:
            value = schema[key]
            value = f"{value:g}" if isinstance(value, float) else json.dumps(value)
            parts.append(bound.format(f"`{value}`"))
    return ". ".join(filter(None, parts))


def row(name, is_required, schema, text=""):
    name = f"`{name}`, required" if is_required else f"`{name}`"
    return [name, type_of(schema), meaning_of(schema, text)]


def body_of(content, what):
    """Returns the types and the examples of a body."""
    types, examples = [], ""
    for kind, body in content.items():
        prefix = "" if kind == "application/json" else f"`{kind}`: "
        types.append(prefix + type_of(body.get("schema", {})))
        for name, example in body.get("examples", {}).items():
            examples += f"Example of a {what}: {example.get('summary', name)}\n\n"
            examples += f"~~~~json\n{layout(example['value'])}\n~~~~\n\n"
    return "; ".join(types), examples


def operation(api, method, path, shared):
    """Returns the text on one method of a path."""

    def find(part):
        if "$ref" not in part:
            return part
        kind, name = part["$ref"].split("/")[2:]
        return api["components"][kind][name]

    part = api["paths"][path][method]
    out = f"### {method.upper()} {path}\n\n{part['summary']}\n\n"
    out += linked(part.get("description", "")) + "\n\n"
    entries = map(find, shared + part.get("parameters", []))
    rows = [
        row(entry["name"], entry.get("required"), entry["schema"], entry["description"])
        + [entry["in"]]
        for entry in entries
    ]
    out += table(["parameter", "type", "meaning", "in"], rows)
    if "requestBody" in part:
        types, examples = body_of(find(part["requestBody"])["content"], "request")
        out += f"Body: {types}\n\n{examples}"
    rows, examples = [], ""
    for status, response in part["responses"].items():
        response = find(response)
        types, found = body_of(response.get("content", {}), "response")
        headers = ", ".join(f"`{name}`" for name in response.get("headers", {}))
        rows.append([status, linked(response["description"]), types, headers])
        examples += found if status.startswith("2") else ""
    return out + table(["status", "when", "body", "headers"], rows) + examples


def page(api):
    out = f"# HTTP\n\n{linked(api['info']['description'])}\n\n"
    out += f"The description in OpenAPI {api['openapi']} is [{API}](../{API}). "
    out += "A server serves it as `/v1/openapi.json`.\n\n"
    for tag in api["tags"]:
        out += f"## {tag['name'].capitalize()}\n\n{linked(tag['description'])}\n\n"
        for path, methods in api["paths"].items():
            for method in METHODS:
                if tag["name"] in methods.get(method, {}).get("tags", []):
                    out += operation(api, method, path, methods.get("parameters", []))
    out += "## Schemas\n\nThe types of the messages, by name.\n\n"
    for name, schema in sorted(api["components"]["schemas"].items()):
        out += f"### {name} {{#schema-{name.lower()}}}\n\n{meaning_of(schema)}\n\n"
        required = schema.get("required", [])
        fields = schema.get("properties", {})
        rows = [row(field, field in required, fields[field]) for field in fields]
        out += table(["field", "type", "meaning"], rows) if rows else f"Type: {type_of(schema)}\n\n"
    return out


def on_config(config):
    pages = pathlib.Path(config["docs_dir"])
    api = json.loads((TOP / API).read_text(encoding="utf-8"))
    (pages / "docs/openapi.md").write_text(page(api), encoding="utf-8")
    (pages / API).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(TOP / API, pages / API)
    return config
