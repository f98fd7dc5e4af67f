"""A page as one self-contained HTML file: no scripts, nothing loaded, light and dark mode."""

from __future__ import annotations

from html import escape as escaped
from itertools import zip_longest
from urllib.parse import quote

from halfguard.report import blocks as b

STYLE = """
:root{color-scheme:light dark;--ink:#1d2329;--soft:#5c6670;--paper:#fff;--line:#d9dee3;--shade:#f4f6f8;
--good:#1a7f37;--bad:#b3261e;--zero:#e9ecef;--sub:#fdf0cf;--normal:#dcf0e1;--over:#fbdcd9;--in:#2f6fb3;
--out:#b3261e;--c0:#5c6670;--c1:#2f6fb3;--c2:#c8571b;--c3:#2a8c4a;--c4:#8a4fb3;--c5:#b08a00;
--mild:#b08a00}
@media (prefers-color-scheme:dark){:root{--ink:#e4e8ec;--soft:#9aa5b0;--paper:#15191d;--line:#343c44;
--shade:#1f252b;--good:#5ccf7d;--bad:#ff8a80;--zero:#252b31;--sub:#3d3520;--normal:#1d3626;--over:#46211f;
--in:#7db4ec;--out:#ff8a80;--c0:#a9b3bd;--c1:#7db4ec;--c2:#ff9d66;--c3:#5ccf7d;--c4:#c9a0ef;--c5:#e6c34a;
--mild:#e6c34a}}
body{font:15px/1.55 system-ui,sans-serif;margin:2.5em auto;max-width:60em;padding:0 1.2em;color:var(--ink);
background:var(--paper)}
h1{font-size:1.5em;line-height:1.25;margin:0 0 .8em}h2{font-size:1.1em;margin:2em 0 .5em}
p{margin:.5em 0}p.good{color:var(--good)}p.bad{color:var(--bad)}p.good,p.bad{font-weight:600}
code,pre{font:13px/1.5 ui-monospace,monospace;background:var(--shade);border-radius:4px}
code{padding:1px 4px;overflow-wrap:anywhere}pre{padding:.8em 1em;white-space:pre-wrap;
overflow-wrap:anywhere}
.scroll,figure{overflow-x:auto;margin:1em 0}table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:4px 14px 4px 0;border-bottom:1px solid var(--line)}
th{font-weight:600;color:var(--soft)}tr.good td:nth-child(2){color:var(--good);font-weight:600}
tr.bad td:nth-child(2){color:var(--bad);font-weight:600}figcaption{color:var(--soft);font-size:.9em}
svg{width:100%;min-width:640px;height:auto}svg text{font:12px system-ui,sans-serif;fill:var(--ink)}
svg .mono{font:12px ui-monospace,monospace}svg .soft{fill:var(--soft)}svg .end{text-anchor:end}
svg .mid{text-anchor:middle}svg .zero{fill:var(--zero)}svg .sub{fill:var(--sub)}
svg .normal{fill:var(--normal)}svg .over{fill:var(--over)}svg .in{fill:var(--in)}svg .out{fill:var(--out)}
svg line{stroke:var(--soft);stroke-width:1}svg line.limit{stroke:var(--bad);stroke-dasharray:4 3}
svg line.grid{stroke:var(--line)}svg line.change{stroke:var(--good);stroke-width:1.6}
svg line.undone{stroke:var(--bad);stroke-dasharray:4 3}svg .strong{font-weight:600}
svg .curve{fill:none;stroke-width:1.6;stroke-linejoin:round}
svg .band{opacity:.18}svg .bar{stroke:var(--ink)}svg .point{fill:var(--ink)}
svg .seed{fill:var(--soft)}svg .mark{stroke-width:2}svg .mark.bad{stroke:var(--bad)}
svg .mark.mild{stroke:var(--mild)}svg .curve.c0{stroke-dasharray:5 3}a{color:var(--in)}
"""
# One palette for lines and their bands; the baseline has the first colour.
STYLE += "".join(
    f"svg .curve.c{i}{{stroke:var(--c{i})}}svg .band.c{i},svg .dot.c{i}{{fill:var(--c{i})}}"
    for i in range(6)
)
_ALLOWED = "default-src 'none'; style-src 'unsafe-inline'"


def to_html(page: b.Page) -> str:
    """Return the page as HTML text."""
    title = _text(page.title)
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        # Names may come from somebody else. They are escaped; this header is a second defence.
        f'<meta http-equiv="Content-Security-Policy" content="{_ALLOWED}">',
        f"<title>{title}</title><style>{STYLE}</style></head><body>",
        f"<h1>{title}</h1>",
        *(_block(block) for block in page.blocks),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _text(text: str) -> str:
    return escaped(b.clean(text))


def _inline(text: str) -> str:
    if isinstance(text, b.Link):
        # "./" and quoting make any folder name a path; it can never be read as a URL scheme.
        return f'<a href="./{quote(b.clean(text))}">{_text(text)}</a>'
    return f"<code>{_text(text)}</code>" if isinstance(text, b.Mono) else _text(text)


def _block(block: b.Block) -> str:
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
            return f"<figure>{svg}<figcaption>{_text(caption)}</figcaption></figure>"
        case b.Table():
            return _table(block)
        case _:
            return f"<p>{_text(block.plain())}</p>"


def _table(table: b.Table) -> str:
    heads = "".join(f"<th>{_text(head)}</th>" for head in table.heads)
    rows = []
    for row, tone in zip_longest(table.rows, table.tones, fillvalue=""):
        cells = "".join(f"<td>{_inline(cell)}</td>" for cell in row)
        rows.append(f'<tr class="{tone}">{cells}</tr>' if tone else f"<tr>{cells}</tr>")
    return f'<div class="scroll"><table><tr>{heads}</tr>{"".join(rows)}</table></div>'
