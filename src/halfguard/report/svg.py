"""The pieces that drawings share: axes, the element itself, a legend, marks of steps and of changes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from halfguard.report.blocks import clean


@dataclass(frozen=True)
class Axis:
    """Maps numbers from ``low`` to ``high`` to positions from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Return the position of a number; one beyond the axis gets the position of its end."""
        low, high, here = self.low, self.high, value
        if self.log:
            low, high, here = math.log(low), math.log(high), math.log(max(value, self.low))
        share = min(max((here - low) / (high - low), 0.0), 1.0)
        return self.start + (self.end - self.start) * share

    def ticks(self, count: int = 5) -> list[float]:
        """Return round numbers on the axis, about ``count`` at most."""
        return (
            _powers(self.low, self.high, count)
            if self.log
            else _round_numbers(self.low, self.high, count)
        )


def fit_axis(values: Sequence[float], start: float, end: float, *, log: bool = False) -> Axis:
    """Return an axis that covers all finite ``values``, with a small margin.

    A logarithmic axis shows positive numbers, down to twelve decades below the largest. Otherwise one loss
    scale near zero would flatten everything else.
    """
    kept = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    # Beyond these limits, the ends of the axis would overflow a float.
    least, most = (1e-300 if log else -1e300), 1e300
    kept = [min(max(value, least), most) for value in kept] or [0.5, 1.0]
    low, high = min(kept), max(kept)
    if log:
        low = max(low, high * 1e-12)
        if high / low < 1 + 1e-9:  # equal, or too close for their logarithms to differ
            low, high = low / 2, high * 2
        margin = (high / low) ** 0.05
        return Axis(max(low / margin, least), min(high * margin, most), start, end, log=True)
    margin = (high - low) * 0.05 or abs(low) * 0.1 or 1.0
    return Axis(low - margin, high + margin, start, end)


def suits_log_axis(values: Sequence[float]) -> bool:
    """Return whether a logarithmic axis suits: values are positive and differ by a factor above 50."""
    kept = [value for value in values if math.isfinite(value)]
    return bool(kept) and min(kept) > 0 and max(kept) > 50 * min(kept)


def number_label(value: float) -> str:
    """Return a short label for a number."""
    if value == 0:
        return "0"
    if 1e-4 <= abs(value) < 1e6:
        return f"{value:.6g}"
    return f"{value:.0e}".replace("e+", "e").replace("e0", "e").replace("e-0", "e-")


def percent_label(value: float) -> str:
    """Return a fraction as a percentage."""
    return f"{100 * value:z.4g}%"


def shorten(name: str, most: int) -> str:
    """Shorten ``name`` in the middle to at most ``most`` letters.

    Candidates often differ in how they end: "fp16-mixed guarded", "fp16-mixed guarded with plan".
    """
    half = most // 2
    return name if len(name) <= most else f"{name[:half]}…{name[half + 1 - most :]}"


def _round_numbers(low: float, high: float, count: int) -> list[float]:
    rough = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= 0.75 * rough)
    first = math.ceil(low / step)
    return [index * step for index in range(first, math.floor(high / step) + 1)]


def _powers(low: float, high: float, count: int) -> list[float]:
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    if last - first < 1:  # within one decade: powers of two, or other round numbers
        twos = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
        if len(twos) > 1:
            return [2.0**power for power in twos][:: max(1, len(twos) // count)]
        return [value for value in _round_numbers(low, high, count) if value > 0]
    stride = max(1, math.ceil((last - first + 1) / count))
    return [10.0**power for power in range(first, last + 1, stride)]


WIDTH = 720  # of every drawing, in its own units; text is 14 of them high
LETTER = 7.8  # mean width of a letter of a legend
_SAMPLE, _ROW = 26, 20  # width of a sample in a legend, and height of its rows

# Shapes around (0, 0), as paths.
MARKERS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",  # circle
    "M-3.6-3.6h7.2v7.2h-7.2z",  # square
    "M0-4.6L4.4 3.4H-4.4z",  # triangle
    "M0-5L4.4 0L0 5L-4.4 0z",  # diamond
    "M-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",  # cross
    "M0 4.6L4.4-3.4H-4.4z",  # triangle, upside down
)
CROSS, CARET, SQUARE, TICK = "M-4-4L4 4M4-4L-4 4", "M-5 4L0-4L5 4", "M-4-4h8v8h-8z", "M0-4v8"
MarkKind = Literal["skipped", "repeated in FP32", "rolled back or stopped", "loss scale calibrates"]
_SHAPES: dict[MarkKind, tuple[str, str]] = {
    "skipped": (CROSS, "mark bad"),
    "repeated in FP32": (CARET, "mark mild"),
    "rolled back or stopped": (SQUARE, "mark bad"),
    "loss scale calibrates": (TICK, "mark mild"),
}


@dataclass(frozen=True)
class Key:
    """An entry of a legend: ``sample`` is SVG for a place of 20 by 14 units, its middle at (10, 0)."""

    sample: str
    label: str


def svg_start(height: float, title: str, description: str = "") -> str:
    """Return the opening tag of a drawing, with its name and description for readers who do not see it."""
    about = f"<desc>{escape(clean(description))}</desc>" if description else ""
    head = f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img">'
    return f"{head}<title>{escape(clean(title))}</title>{about}"


def shape_at(shape: str, x: float, y: float, style: str, text: str = "") -> str:
    """Return a shape at a place, with ``text`` as its tooltip."""
    place = f'<path class="{style}" transform="translate({x:.1f} {y:.1f})" d="{shape}"'
    return f"{place}><title>{escape(clean(text))}</title></path>" if text else f"{place}/>"


def draw_legend(keys: Sequence[Key], top: float, left: float = 2.0) -> tuple[list[str], float]:
    """Return the drawing of a legend, and the height of its rows."""
    parts: list[str] = []
    x, y = left, top + _ROW / 2
    for key in keys:
        label = shorten(clean(key.label).replace("\n", " "), 60)
        width = _SAMPLE + LETTER * len(label) + 12
        if x > left and x + width > WIDTH:
            x, y = left, y + _ROW
        parts.append(f'<g transform="translate({x:.1f} {y:.1f})">{key.sample}')
        parts.append(f'<text x="{_SAMPLE}" y="5">{escape(label)}</text></g>')
        x += width
    return parts, (y - top + _ROW / 2) if keys else 0.0


@dataclass(frozen=True)
class Mark:
    """An event at a step: a shape at the lower edge, with ``text`` as its tooltip."""

    step: float
    text: str
    kind: MarkKind = "skipped"


@dataclass(frozen=True)
class Change:
    """A change of the run at a step: a line over the whole height, with a short ``label`` at its top."""

    step: float
    label: str
    text: str
    undone: bool = False  # something was taken back: the line is dashed


def draw_mark(mark: Mark, x: Axis, bottom: float) -> str:
    """Return the shape of a mark, at the lower edge of the plot."""
    shape, style = _SHAPES[mark.kind]
    return shape_at(shape, x.at(mark.step), bottom - 7, style, mark.text)


def draw_change(change: Change, x: Axis, top: float, bottom: float) -> str:
    """Return the line of a change, with its label."""
    place, kind = x.at(change.step), " undone" if change.undone else ""
    return (
        f'<line class="change{kind}" x1="{place:.1f}" x2="{place:.1f}" y1="{top - 8}" y2="{bottom}">'
        f"<title>{escape(clean(change.text))}</title></line>"
        f'<text class="strong" x="{place + 5:.1f}" y="{top + 4}">{escape(clean(change.label))}</text>'
    )


def mark_keys(marks: Sequence[Mark], changes: Sequence[Change]) -> Iterator[Key]:
    """Yield an entry of the legend for each kind of mark and change that is drawn."""
    found = {mark.kind for mark in marks}
    for kind, (shape, style) in _SHAPES.items():
        if kind in found:
            yield Key(shape_at(shape, 10, 0, style), kind)
    for undone, label in (
        (False, "an island was added"),
        (True, "an island was removed"),
    ):
        if any(change.undone is undone for change in changes):
            style = "change undone key" if undone else "change key"
            yield Key(f'<line class="{style}" x1="10" x2="10" y1="-8" y2="8"/>', label)
