"""The losses of all candidates with their intervals against the thresholds: what a reviewer looks at first.

One row a candidate: dots are the seeds, the thick bar is the 95% interval, the thin one holds for all
candidates at once. A bar that lies wholly in the green field is a PASS.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from unicodedata import east_asian_width

from halfguard.records.verdict import Comparison, Verdict
from halfguard.report.axes import Axis, percent
from halfguard.report.blocks import clean

_WIDTH, _ROW, _TOP = 720, 40, 46
_LEFT, _RIGHT, _WORDS = 170, 560, 574
_LETTER = 7.5  # a letter of the drawing's monospace font, the widest that systems have


def draw_forest(verdict: Verdict) -> str:
    """The drawing as SVG."""
    axis = _axis(verdict)
    bottom = _TOP + _ROW * len(verdict.comparisons)
    rows = enumerate(verdict.comparisons)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {bottom + 42}" role="img" aria-label="losses with their intervals">',
        *_fields(verdict, axis, bottom),
        *(piece for index, row in rows for piece in _row(row, _TOP + _ROW * index + 16, axis)),
        *_scale(axis, bottom),
        "</svg>",
    ]
    return "".join(parts)


def _axis(verdict: Verdict) -> Axis:
    """Around the thresholds, where it is decided; what lies far away is an arrow at the edge."""
    low, high = -verdict.passing, 1.6 * verdict.marginal
    far = 3 * verdict.marginal
    for row in verdict.comparisons:
        if row.low > far or row.high < -far:
            continue
        ends = [v for v in (row.joint_low, row.joint_high, *row.losses) if math.isfinite(v)]
        low = min([low, *(max(end, -far) for end in ends)])
        high = max([high, *(min(end, far) for end in ends)])
    air = (high - low) * 0.04
    return Axis(low - air, high + air, _LEFT, _RIGHT)


def _fields(verdict: Verdict, axis: Axis, bottom: int) -> Iterator[str]:
    edges = (axis.low, verdict.passing, verdict.marginal, axis.high)
    fields = (("normal", "PASS"), ("sub", "MARGINAL"), ("over", "FAIL"))
    for (kind, name), start, end in zip(fields, edges, edges[1:], strict=False):
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
    shown = shortened(name, int((_LEFT - 12) / _LETTER))
    told = f"{escape(shown)}<title>{escape(name)}</title>"
    yield f'<text class="end mono" x="{_LEFT - 12}" y="{y + 4}">{told}</text>'
    yield f'<text class="strong" x="{_WORDS}" y="{y + 4}">{row.word}</text>'
    for value in row.losses:
        if axis.low <= value <= axis.high:
            yield f'<circle class="seed" cx="{axis.at(value):.1f}" cy="{y + 12}" r="2.2"/>'
    if not math.isfinite(row.loss):
        yield f'<text class="soft" x="{_LEFT + 8}" y="{y + 4}">no interval: {row.pairs} pairs</text>'
        return
    yield from _bar(row.joint_low, row.joint_high, y, axis, 1.5)
    yield from _bar(row.low, row.high, y, axis, 5)
    told = f"{row.loss:z.3%} lost, between {row.low:z.3%} and {row.high:z.3%}"
    if axis.low <= row.loss <= axis.high:
        x = axis.at(row.loss)
        yield f'<circle class="point" cx="{x:.1f}" cy="{y}" r="5"><title>{told}</title></circle>'
    gained = round(row.loss, 4) < 0  # in the digits that are shown
    change = f"{-row.loss:.2%} gained" if gained else f"{row.loss:z.2%} lost"
    yield f'<text class="soft" x="{_WORDS}" y="{y + 18}">{change}</text>'


def shortened(name: str, most: int) -> str:
    """``name`` in at most ``most`` letters, East Asian ones counted twice; the middle gives way.

    Candidates often differ in how they end: "fp16-mixed guarded", "fp16-mixed guarded with plan".
    """
    if _letters(name) <= most:
        return name
    head, tail = name, ""
    while _letters(head) > most // 2:
        head = head[:-1]
    for letter in reversed(name):
        if _letters(head) + 1 + _letters(letter + tail) > most:
            break
        tail = letter + tail
    return f"{head}…{tail}"


def _letters(text: str) -> int:
    return sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def _bar(low: float, high: float, y: int, axis: Axis, width: float) -> Iterator[str]:
    start, end = axis.at(low), axis.at(high)
    if start < end:
        yield f'<path class="bar" stroke-width="{width}" d="M{start:.1f} {y}H{end:.1f}"/>'
    if low < axis.low:
        yield f'<path class="point" d="M{_LEFT} {y}l9 -5v10z"/>'
    if high > axis.high:
        yield f'<path class="point" d="M{_RIGHT} {y}l-9 -5v10z"/>'


def _scale(axis: Axis, bottom: int) -> Iterator[str]:
    yield f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{bottom}" y2="{bottom}"/>'
    for value in axis.ticks(7):
        x = axis.at(value)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
        yield f'<text class="soft mid" x="{x:.1f}" y="{bottom + 17}">{percent(value)}</text>'
    yield f'<text class="soft mid" x="{(_LEFT + _RIGHT) / 2}" y="{bottom + 36}">'
    yield "← better · loss of quality against the baseline · worse →</text>"
