"""Forest plot: the loss of quality of every candidate, with its interval, against the thresholds.

There is one row per candidate. Dots are seeds, the thick bar is the 95% interval, the thin bar the interval
that holds for all candidates together. A bar that is completely in the area PASS is a PASS.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape

from halfguard.records.verdict import Comparison, Verdict
from halfguard.report.axes import LETTER, Axis, percent_label, shorten
from halfguard.report.blocks import clean
from halfguard.report.svg import Key, draw_legend, svg_start

_ROW, _TOP = 44, 46
_LEFT, _RIGHT, _LABELS = 190, 566, 580


def draw_forest(verdict: Verdict) -> str:
    """Return the drawing as SVG."""
    axis = _axis(verdict)
    bottom = _TOP + _ROW * len(verdict.comparisons)
    rows = enumerate(verdict.comparisons)
    legend, height = draw_legend(_keys(several=len(verdict.comparisons) > 1), 0)
    about = "; ".join(f"{row.candidate}: {row.word}" for row in verdict.comparisons)
    parts = [
        svg_start(height + bottom + 46, f"Loss of {verdict.metric} with its intervals", about),
        *legend,
        f'<g transform="translate(0 {height:.0f})">',
        *_areas(verdict, axis, bottom),
        *(piece for index, row in rows for piece in _row(row, _TOP + _ROW * index + 16, axis)),
        *_ticks(axis, bottom),
        "</g></svg>",
    ]
    return "".join(parts)


def _keys(*, several: bool) -> list[Key]:
    keys = [
        Key('<circle class="point" cx="10" cy="0" r="5"/>', "mean over seeds"),
        Key('<circle class="seed" cx="10" cy="0" r="3"/>', "one seed"),
        Key('<path class="bar" stroke-width="5" d="M0 0h20"/>', "95% interval"),
    ]
    joint = Key('<path class="bar" stroke-width="1.5" d="M0 0h20"/>', "for all candidates together")
    return [*keys, joint] if several else keys


def _axis(verdict: Verdict) -> Axis:
    """Return an axis around the thresholds; values far away become arrows at the edge."""
    low, high = -verdict.passing, 1.6 * verdict.marginal
    far = 3 * verdict.marginal
    for row in verdict.comparisons:
        if row.low > far or row.high < -far:
            continue
        ends = [v for v in (row.joint_low, row.joint_high, *row.losses) if math.isfinite(v)]
        low = min([low, *(max(end, -far) for end in ends)])
        high = max([high, *(min(end, far) for end in ends)])
    margin = (high - low) * 0.04
    return Axis(low - margin, high + margin, _LEFT, _RIGHT)


def _areas(verdict: Verdict, axis: Axis, bottom: int) -> Iterator[str]:
    edges = (axis.low, verdict.passing, verdict.marginal, axis.high)
    areas = (("normal", "PASS"), ("sub", "MARGINAL"), ("over", "FAIL"))
    for (kind, name), start, end in zip(areas, edges, edges[1:], strict=False):
        x, width = axis.at(start), axis.at(end) - axis.at(start)
        yield f'<rect class="{kind}" x="{x:.1f}" y="30" width="{width:.1f}" height="{bottom - 30}"/>'
        if width > 8.5 * len(name):
            yield f'<text class="soft mid" x="{x + width / 2:.1f}" y="22">{name}</text>'
    zero = axis.at(0.0)
    yield f'<line x1="{zero:.1f}" x2="{zero:.1f}" y1="30" y2="{bottom}"/>'
    for limit in (verdict.passing, verdict.marginal):
        x = axis.at(limit)
        yield f'<line class="limit" x1="{x:.1f}" x2="{x:.1f}" y1="26" y2="{bottom}"/>'


def _row(row: Comparison, y: int, axis: Axis) -> Iterator[str]:
    name = clean(row.candidate).replace("\n", " ")
    shown = shorten(name, int((_LEFT - 12) / LETTER))
    label = f"{escape(shown)}<title>{escape(name)}</title>"
    yield f'<text class="end mono" x="{_LEFT - 12}" y="{y + 4}">{label}</text>'
    yield f'<text class="strong" x="{_LABELS}" y="{y + 4}">{row.word}</text>'
    for value in row.losses:
        if axis.low <= value <= axis.high:
            yield f'<circle class="seed" cx="{axis.at(value):.1f}" cy="{y + 13}" r="2.6"/>'
    if not math.isfinite(row.loss):
        yield f'<text class="soft" x="{_LEFT + 8}" y="{y + 4}">no interval: {row.pairs} pairs</text>'
        return
    yield from _bar(row.joint_low, row.joint_high, y, axis, 1.5)
    yield from _bar(row.low, row.high, y, axis, 5)
    tooltip = f"{row.loss:z.3%} lost, between {row.low:z.3%} and {row.high:z.3%}"
    if axis.low <= row.loss <= axis.high:
        x = axis.at(row.loss)
        yield f'<circle class="point" cx="{x:.1f}" cy="{y}" r="5"><title>{tooltip}</title></circle>'
    gained = round(row.loss, 4) < 0  # after rounding to the digits shown
    change = f"{-row.loss:.2%} gained" if gained else f"{row.loss:z.2%} lost"
    yield f'<text class="soft" x="{_LABELS}" y="{y + 21}">{change}</text>'


def _bar(low: float, high: float, y: int, axis: Axis, width: float) -> Iterator[str]:
    start, end = axis.at(low), axis.at(high)
    if start < end:
        yield f'<path class="bar" stroke-width="{width}" d="M{start:.1f} {y}H{end:.1f}"/>'
    if low < axis.low:
        yield f'<path class="point" d="M{_LEFT} {y}l9 -5v10z"/>'
    if high > axis.high:
        yield f'<path class="point" d="M{_RIGHT} {y}l-9 -5v10z"/>'


def _ticks(axis: Axis, bottom: int) -> Iterator[str]:
    yield f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{bottom}" y2="{bottom}"/>'
    for value in axis.ticks(7):
        x = axis.at(value)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
        yield f'<text class="soft mid" x="{x:.1f}" y="{bottom + 19}">{percent_label(value)}</text>'
    yield f'<text class="soft mid" x="{(_LEFT + _RIGHT) / 2}" y="{bottom + 40}">'
    yield "← better · loss of quality against the baseline · worse →</text>"
