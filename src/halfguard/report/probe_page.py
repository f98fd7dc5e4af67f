"""The probe as one HTML page that needs nothing else: findings, heat map, table of layers.

The heat map is drawn as SVG by hand, so that the page needs no library, names are text that can be searched,
and every cell says its step and its headroom when pointed at.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from html import escape

from halfguard.records.files import write_whole
from halfguard.records.ranges import ProbeReport, headroom, module_label
from halfguard.report.heat_map import shown_layers

_STYLE = """
body{font:14px/1.5 system-ui,sans-serif;margin:2em auto;max-width:1200px;padding:0 1em;color:#222}
table{border-collapse:collapse}td,th{padding:2px 10px;text-align:right;border-bottom:1px solid #ddd}
td:first-child,th:first-child{text-align:left;font-family:ui-monospace,monospace}
.bad{color:#a50026;font-weight:600}.key span{padding:2px 8px}figure{overflow-x:auto;margin:0}
svg text{font:11px ui-monospace,monospace}li{margin:.3em 0}code{background:#f3f3f3}
"""
_ROW, _CHARACTER = 15, 7  # pixels
# The same scale as the picture's: bits of headroom below which a colour is used.
_COLOURS = ((0, "#000"), (1, "#a50026"), (2, "#d73027"), (3, "#f46d43"), (4, "#fdae61"),
            (6, "#fee090"), (8, "#e0f3f8"), (12, "#abd9e9"), (math.inf, "#4575b4"))  # fmt: skip


def save_html(report: ProbeReport, path: str | os.PathLike[str]) -> None:
    """Write the page."""
    write_whole(path, to_html(report))


def to_html(report: ProbeReport) -> str:
    """The whole page as text."""
    window = report.window
    fits = f"{window.low:g} to {window.high:g}" if window else "none fits all layers"
    facts = (
        f"{report.steps} steps in {escape(report.precision)}, {len(report.layers)} layers. "
        f"Loss scales that fit: {fits}; best {report.best_scale:g}, current {report.scale:g}."
    )
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>halfguard probe</title>",
        f"<style>{_STYLE}</style><h1>What FP16 would do to this model</h1><p>{facts}</p>",
        "<h2>Findings</h2>",
        *_findings(report),
        "<h2>Headroom, in bits</h2>",
        *_key(),
        *_map(report),
        "<h2>Layers</h2>",
        *_table(report),
        "</html>\n",
    ]
    return "\n".join(parts)


def _findings(report: ProbeReport) -> Iterator[str]:
    if not report.findings:
        yield "<p>None.</p>"
        return
    yield "<ul>"
    for found in report.findings:
        text = f"<b>{found.code}</b> {escape(found.message)} {escape(found.why)}"
        yield f"<li>{text} <i>{escape(found.cure)}</i></li>"
    yield "</ul>"


def _key() -> Iterator[str]:
    labels = ["below 0", *(f"below {limit}" for limit, _ in _COLOURS[1:-1]), "more"]
    yield "<p class=key>"
    for (_, colour), label in zip(_COLOURS, labels, strict=True):
        ink = "#fff" if colour in ("#000", "#a50026", "#d73027", "#4575b4") else "#222"
        yield f'<span style="background:{colour};color:{ink}">{label}</span>'
    yield "</p>"


def _map(report: ProbeReport) -> Iterator[str]:
    layers = shown_layers(report)
    cell = max(4, min(20, 440 // max(report.steps, 1)))
    margin = 10 + _CHARACTER * max((len(layer.module or "(model)") for layer in layers), default=0)
    panel = cell * report.steps + 20
    yield f'<figure><svg width="{margin + 2 * panel}" height="{_ROW * len(layers) + 24}">'
    exponent = round(math.log2(report.best_scale))
    titles = ("forward", f"backward at loss scale 2^{exponent}")
    for index, title in enumerate(titles):
        yield f'<text x="{margin + index * panel}" y="12">{title}</text>'
    for row, layer in enumerate(layers):
        y = 20 + _ROW * row
        yield f'<text x="{margin - 6}" y="{y + 11}" text-anchor="end">'
        yield f"{escape(layer.module or '(model)')}</text>"
        yield from _cells(layer.forward, margin, y, cell)
        scaled = [value * report.best_scale for value in layer.backward]
        yield from _cells(scaled, margin + panel, y, cell)
    yield "</svg></figure>"


def _cells(values: Sequence[float], x: int, y: int, cell: int) -> Iterator[str]:
    for step, value in enumerate(values):
        bits = headroom(value)
        # No colour where all values are zero, or none came: a backward pass that never was.
        colour = next((colour for limit, colour in _COLOURS if bits < limit), "#eee")
        yield (
            f'<rect x="{x + step * cell}" y="{y}" width="{cell}" height="{_ROW - 1}" fill="{colour}">'
            f"<title>step {step}: {value:.3g}, {bits:.1f} bits</title></rect>"
        )


def _table(report: ProbeReport) -> Iterator[str]:
    heads = ("layer", "forward, bits", "backward, bits", "lost now", "lost at best", "scales")
    yield f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>"
    for layer in report.layers:
        cells = (
            _bits(layer.forward_headroom),
            _bits(layer.backward_headroom(report.best_scale)),
            f"<td>{layer.underflow_now:.1%}</td><td>{layer.underflow_best:.1%}</td>",
            f"<td{'' if layer.fits else ' class=bad'}>{layer.scales}</td>",
        )
        yield f"<tr><td>{escape(module_label(layer.module))}</td>{''.join(cells)}</tr>"
    yield "</table>"


def _bits(value: float) -> str:
    return f"<td{' class=bad' if value < 0 else ''}>{value:.1f}</td>"
