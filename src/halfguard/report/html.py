"""A page as one self-contained HTML file: no scripts, nothing loaded, light and dark mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape as escaped
from importlib import resources
from itertools import zip_longest
from urllib.parse import quote

from halfguard.records.machine import installed_version
from halfguard.report import blocks as b

STYLE = (resources.files("halfguard.report") / "style.css").read_text("utf-8")
_ALLOWED = "default-src 'none'; style-src 'unsafe-inline'"
_WIDE = 4  # columns from which a table is wider than a phone
_LONG = 24  # letters of a name that may be broken in a table


def to_html(page: b.Page) -> str:
    """Return the page as HTML text."""
    title, made = _text(page.title), datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    versions = [f"halfguard {installed_version('halfguard') or 'from a source tree'}"]
    if torch := page.torch or installed_version("torch"):
        versions.append(f"torch {torch}")
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        # Names may come from somebody else. They are escaped; this header is a second defence.
        f'<meta http-equiv="Content-Security-Policy" content="{_ALLOWED}">',
        f"<title>{title}</title><style>{STYLE}</style></head><body><main>",
        f'<header><h1>{title}</h1>\n<p class="made">{_text(" · ".join([made, *versions]))}</p></header>',
        *_body(page.blocks),
        "</main><footer><p>This page is a single file; it loads nothing and runs no script.</p></footer>",
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _body(blocks: Sequence[b.Block]) -> Iterator[str]:
    section = ""
    for block in blocks:
        section = block.text if isinstance(block, b.Heading) else section
        yield _block(block, section)


def _text(text: str) -> str:
    return escaped(b.clean(text))


def _inline(text: str) -> str:
    if isinstance(text, b.Link):
        # "./" and quoting make any folder name a path; it can never be read as a URL scheme.
        return f'<a href="./{quote(b.clean(text))}">{_text(text)}</a>'
    return f"<code>{_text(text)}</code>" if isinstance(text, b.Mono) else _text(text)


def _block(block: b.Block, section: str) -> str:
    match block:
        case b.Heading(text):
            return f"<h2>{_text(text)}</h2>"
        case b.Text(parts, tone):
            body = "".join(map(_inline, parts))
            return f'<p class="{tone}">{body}</p>' if tone else f"<p>{body}</p>"
        case b.Listing(items):
            return f"<ul>{''.join(f'<li>{_inline(item)}</li>' for item in items)}</ul>"
        case b.Code(text):
            return f"<pre>{_text(text)}</pre>"
        case b.Figure(svg, caption):
            drawing = _scrolling(svg, f"Drawing: {caption.partition(':')[0]}")
            return f"<figure>{drawing}<figcaption>{_text(caption)}</figcaption></figure>"
        case b.Table():
            return _scrolling(_table(block), f"Table: {section or block.heads[0]}")


def _scrolling(content: str, label: str) -> str:
    """Return a box that scrolls on a narrow screen, by touch or by keyboard."""
    return (
        f'<div class="scroll" role="group" tabindex="0" aria-label="{_text(label)}">{content}</div>'
    )


def _cell(text: str) -> str:
    """Return a cell; a long name may be broken, a short one never is."""
    if isinstance(text, b.Mono) and len(text) > _LONG:
        return f'<code class="long">{_text(text)}</code>'
    return _inline(text)


def _table(table: b.Table) -> str:
    heads = "".join(
        f'<th scope="col">{_text(head)}</th>' if head else "<td></td>" for head in table.heads
    )
    rows = []
    for row, tone in zip_longest(table.rows, table.tones, fillvalue=""):
        first, *others = map(_cell, row)
        cells = f'<th scope="row">{first}</th>' if first else "<td></td>"
        cells += "".join(f"<td>{cell}</td>" for cell in others)
        rows.append(f'<tr class="{tone}">{cells}</tr>' if tone else f"<tr>{cells}</tr>")
    wide = ' class="wide"' if len(table.heads) >= _WIDE else ""
    return f"<table{wide}><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
