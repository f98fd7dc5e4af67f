"""Ranges of tensors against the range of FP16: magnitudes on a log2 axis, one row per tensor.

Of a range that has both signs, or contains zero, only the largest magnitude is known: its bar begins at the
left edge. A bar that goes beyond the axis is drawn to its end. Each row ends with the number of values that
are not finite.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from halfguard.formats import FP16
from halfguard.records.culprit import TensorRange
from halfguard.report.axes import Axis, shorten
from halfguard.report.blocks import clean
from halfguard.report.svg import Key, draw_legend, svg_start, swatch

# FP16's limits, as exponents of two.
SMALLEST, NORMAL, LARGEST = map(
    math.log2, (FP16.smallest_subnormal, FP16.smallest_normal, FP16.largest)
)
_LEFT, _ROW, _TOP = 206, 30, 42
_PLOT, _COUNTS = 376, 592  # width of the axis, and position of the counts
_LOWEST = -28.0  # start of the axis, as an exponent


def draw_ranges(inputs: Sequence[TensorRange], outputs: Sequence[TensorRange]) -> str:
    """Return the drawing as SVG."""
    rows = [*((part, "in") for part in inputs), *((part, "out") for part in outputs)]
    highest = min(max([LARGEST + 8, *(_magnitudes(part)[1] for part, _ in rows)]) + 2, 130.0)
    axis = Axis(_LOWEST, highest, _LEFT, _LEFT + _PLOT)
    height = _TOP + _ROW * len(rows) + 34
    keys = [
        Key(swatch('class="in" rx="2"'), "input"),
        Key(swatch('class="out" rx="2"'), "output"),
        Key('<path class="rest" d="M6-7l9 7l-9 7z"/>', "values that are not finite"),
    ]
    legend, above = draw_legend(keys, 0)
    about = "; ".join(f"{part.name} {part.low:.4g} to {part.high:.4g}" for part, _ in rows)
    parts = [
        svg_start(above + height + 18, "Ranges against the range of FP16", about),
        *legend,
        f'<g transform="translate(0 {above:.0f})">',
        *_bands(axis, height),
        *(piece for i, (part, kind) in enumerate(rows) for piece in _bar(axis, i, part, kind)),
        *_ticks(axis, height),
        "</g></svg>",
    ]
    return "".join(parts)


def _magnitudes(part: TensorRange) -> tuple[float, float]:
    """Return the smallest and the largest magnitude as exponents; minus infinity for zero or no value."""
    if math.isnan(part.low):
        return -math.inf, -math.inf
    low, high = sorted((abs(part.low), abs(part.high)))
    if part.low <= 0 <= part.high:
        low = 0.0
    return _log2(low), _log2(high)


def _log2(value: float) -> float:
    return math.log2(value) if 0 < value < math.inf else -math.inf


def _bands(axis: Axis, height: int) -> Iterator[str]:
    edges = (_LOWEST, SMALLEST - 1, NORMAL, LARGEST, axis.high)
    names = (("zero", "0"), ("sub", "subnormal"), ("normal", "normal"), ("over", "overflow"))
    bottom = height - 30
    for (style, name), start, end in zip(names, edges, edges[1:], strict=False):
        x, width = axis.at(start), axis.at(end) - axis.at(start)
        yield f'<rect class="{style}" x="{x:.1f}" y="24" width="{width:.1f}" height="{bottom - 24}"/>'
        if width > 7 * len(name):
            yield f'<text class="soft mid" x="{x + width / 2:.1f}" y="16">{name}</text>'
    limit = axis.at(LARGEST)
    yield f'<line class="limit" x1="{limit:.1f}" x2="{limit:.1f}" y1="20" y2="{bottom}"/>'


def _bar(axis: Axis, index: int, part: TensorRange, kind: str) -> Iterator[str]:
    y = _TOP + _ROW * index
    name = clean(part.name)
    shown = f"{shorten(name, 12)} {part.dtype}"
    yield f'<text class="mono end" x="{_LEFT - 8}" y="{y + 11}">{escape(shown)}</text>'
    low, high = _magnitudes(part)
    if part.low == part.high == 0:
        middle = (axis.at(_LOWEST) + axis.at(SMALLEST - 1)) / 2
        yield f'<circle class="{kind}" cx="{middle:.1f}" cy="{y + 7}" r="5"><title>0</title></circle>'
    if high > -math.inf:
        start, end = axis.at(low), axis.at(high)
        width = max(end - start, 3.0)
        yield f'<rect class="{kind}" x="{start:.1f}" y="{y}" width="{width:.1f}" height="14" rx="2">'
        yield f"<title>{part.low:.6g} to {part.high:.6g}</title></rect>"
    bad = {"NaN": part.nan, "+inf": part.posinf, "-inf": part.neginf}
    counts = ", ".join(f"{count} {what}" for what, count in bad.items() if count)
    if counts:
        end = axis.at(axis.high)
        yield f'<path class="{kind}" d="M{end - 9:.1f} {y}l9 7l-9 7z"/>'
        yield f'<text class="mono" x="{_COUNTS}" y="{y + 11}">{counts}</text>'
    elif math.isfinite(part.low):
        largest = max(abs(part.low), abs(part.high))
        label = f"up to {largest:.4g}" if largest else "all 0"
        yield f'<text class="soft" x="{_COUNTS}" y="{y + 11}">{label}</text>'


def _ticks(axis: Axis, height: int) -> Iterator[str]:
    y = height - 30
    yield f'<line x1="{_LEFT}" x2="{axis.at(axis.high):.1f}" y1="{y}" y2="{y}"/>'
    labels = {SMALLEST: "2⁻²⁴", NORMAL: "2⁻¹⁴", 0.0: "1", LARGEST: "65504"}
    far = axis.high - 2
    if far - LARGEST > 10:
        labels[far] = f"{2.0**far:.0e}".replace("e+", "e")
    yield f'<text class="soft mid" x="{_LEFT + _PLOT / 2}" y="{y + 39}">magnitude</text>'
    for exponent, label in labels.items():
        x = axis.at(exponent)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + 5}"/>'
        yield f'<text class="mid" x="{x:.1f}" y="{y + 19}">{label}</text>'
