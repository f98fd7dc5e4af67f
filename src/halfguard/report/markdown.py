"""A page as Markdown, for an issue, a pull request or a chat. Drawings are left out."""

from __future__ import annotations

import re
from urllib.parse import quote

from halfguard.report import blocks as b


def to_markdown(page: b.Page) -> str:
    """Return the page as Markdown text."""
    parts = [f"# {_text(page.title)}", *map(_block, b.without_figures(page.blocks))]
    return "\n\n".join(part for part in parts if part) + "\n"


def _text(text: str) -> str:
    """Return text on one line, with all markup escaped."""
    flat = " ".join(b.clean(text).split("\n"))
    escaped = re.sub(r"([\\`*_\[\]|~])", r"\\\1", flat).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"^([#>+-])", r"\\\1", escaped)


def _inline(text: str) -> str:
    if isinstance(text, b.Link):
        return f"[{_text(text)}](./{quote(b.clean(text))})"
    if not isinstance(text, b.Mono) or not text.strip():
        return _text(text)
    # A bar would end the cell of a table.
    flat = " ".join(b.clean(text).split("\n")).replace("|", "¦")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", flat)), default=0))
    pad = " " if flat.startswith("`") or flat.endswith("`") else ""
    return f"{fence}{pad}{flat}{pad}{fence}"


def _block(block: b.Block) -> str:
    match block:
        case b.Heading(text):
            return f"## {_text(text)}"
        case b.Text(parts, tone):
            body = "".join(map(_inline, parts))
            return f"**{body}**" if tone else body
        case b.Listing(items):
            return "\n".join(f"- {_inline(item)}" for item in items)
        case b.Code(text, language):
            body = b.clean(text)
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", body)), default=0))
            return f"{fence}{language}\n{body}\n{fence}"
        case b.Table(heads, rows):
            lines = [heads, ["---"] * len(heads), *([_inline(c) for c in row] for row in rows)]
            return "\n".join(f"| {' | '.join(line)} |" for line in lines)
        case b.Figure():
            return ""
