"""Curves over steps as SVG: one line per candidate, a band for the spread of its seeds.

Lines differ in colour, dashes and markers. The first one, the baseline, is wide and lies below the others: a
line that equals it runs inside of it. A value that is not finite breaks the line and is marked at the upper
edge.

A curve of any length is drawn from a bounded number of columns. So the page stays small, and a spike of one
step stays visible.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from halfguard.report.blocks import clean
from halfguard.report.svg import (
    MARKERS,
    Axis,
    Change,
    Key,
    Mark,
    draw_change,
    draw_legend,
    draw_mark,
    fit_axis,
    mark_keys,
    number_label,
    shape_at,
    suits_log_axis,
    svg_start,
)

LINE_COLOURS = 6  # of the style sheet; the first one is for the baseline
COLUMNS = 320  # per line of a drawing with several; a screen cannot show more


@dataclass(frozen=True)
class Column:
    """Neighbouring steps: their position and their values."""

    step: float
    mean: float
    low: float
    high: float
    nonfinite: int = 0  # number of values that were not finite


Series = tuple[Sequence[float], Sequence[float]]  # steps, and one value for each


def gather_columns(runs: Sequence[Series], count: int = COLUMNS) -> list[Column]:
    """Gather several runs, each with ascending steps, into at most ``count`` columns.

    There may be millions of values, so this works on slices, not on single values.
    """
    runs = [run for run in runs if run[0]]
    if not runs:
        return []
    first, last = min(steps[0] for steps, _ in runs), max(steps[-1] for steps, _ in runs)
    width = max((last - first + 1) / count, 1.0)
    found, starts = [], [0] * len(runs)
    for index in range(int((last - first) // width) + 1):
        ends = [bisect_left(steps, first + (index + 1) * width) for steps, _ in runs]
        slices = [
            (steps[start:end], values[start:end])
            for (steps, values), start, end in zip(runs, starts, ends, strict=True)
            if end > start
        ]
        if slices:
            found.append(_gather(slices))
        starts = ends
    return found


def _gather(slices: Sequence[Series]) -> Column:
    step = sum((steps[0] + steps[-1]) / 2 for steps, _ in slices) / len(slices)
    good = [value for _, values in slices for value in values if math.isfinite(value)]
    nonfinite = sum(len(values) for _, values in slices) - len(good)
    if not good:
        return Column(step, math.nan, math.nan, math.nan, nonfinite)
    return Column(step, _mean(good), min(good), max(good), nonfinite)


def _mean(values: Sequence[float]) -> float:
    half = math.fsum(value / 2 / len(values) for value in values)  # the sum itself may overflow
    return min(max(2 * half, min(values)), max(values))


def thin_columns(given: Sequence[Column], count: int = COLUMNS) -> list[Column]:
    """Merge columns into at most ``count`` of equal width, in the order of their steps."""
    if not given:
        return []
    first, last = min(c.step for c in given), max(c.step for c in given)
    width = max((last - first + 1) / count, 1.0)
    gathered: dict[int, list[Column]] = {}
    for column in given:
        gathered.setdefault(int((column.step - first) // width), []).append(column)
    return [_merge(part) for _, part in sorted(gathered.items())]


def single_value(step: float, value: float) -> Column:
    """Return a column for one value at one step."""
    if math.isfinite(value):
        return Column(step, value, value, value)
    return Column(step, math.nan, math.nan, math.nan, 1)


def _merge(parts: list[Column]) -> Column:
    if len(parts) == 1:
        return parts[0]
    step = sum(part.step for part in parts) / len(parts)
    nonfinite = sum(part.nonfinite for part in parts)
    good = [part for part in parts if not math.isnan(part.mean)]
    if not good:
        return Column(step, math.nan, math.nan, math.nan, nonfinite)
    mean = _mean([part.mean for part in good])
    return Column(step, mean, min(p.low for p in good), max(p.high for p in good), nonfinite)


_LEFT, _RIGHT, _TOP, _BOTTOM, _HEIGHT = 78, 706, 22, 210, 258
_TITLE = 24  # height of the title above the legend
_MARKED = 7  # markers of a line, so that they do not hide it
_NOT_FINITE = "M-4.5-3h9l-4.5 7z"


@dataclass(frozen=True)
class Line:
    """One curve; ``colour`` is its index in the palette."""

    name: str
    columns: Sequence[Column]
    colour: int = 0

    @property
    def style(self) -> str:
        return f"c{self.colour % LINE_COLOURS}"


def draw_curves(
    lines: Sequence[Line],
    *,
    label: str,
    log: bool | None = None,
    marks: Sequence[Mark] = (),
    changes: Sequence[Change] = (),
    spread: str = "lowest to highest",
) -> str:
    """Return the drawing; with ``log=None`` the values decide whether the axis is logarithmic.

    ``spread`` is the meaning of the bands.
    """
    shown = [line for line in lines if line.columns]
    numbers = [value for line in shown for c in line.columns for value in (c.low, c.high, c.mean)]
    x = fit_axis([c.step for line in shown for c in line.columns], _LEFT, _RIGHT)
    logarithmic = suits_log_axis(numbers) if log is None else log
    y = fit_axis(numbers, _BOTTOM, _TOP, log=logarithmic)
    title = f"{clean(label)}{', logarithmic' if logarithmic else ''}"
    keys = [*_keys(shown, spread), *mark_keys(marks, changes)]
    legend, height = draw_legend(keys, _TITLE)
    top = _TITLE + height
    parts = [
        svg_start(top + _HEIGHT, f"{label} over steps", _describe(shown, label)),
        f'<text class="strong" x="2" y="15">{escape(title)}</text>',
        *legend,
        f'<g transform="translate(0 {top:.0f})">',
        *_frame(x, y),
        *(draw_change(change, x, _TOP, _BOTTOM) for change in changes),
        *(piece for line in shown for piece in _band(line, x, y)),
        *(piece for line in shown for piece in _line(line, x, y)),
        *(piece for line in shown for piece in _markers(line, x, y, len(shown))),
        *(draw_mark(mark, x, _BOTTOM) for mark in marks),
        "</g></svg>",
    ]
    return "".join(parts)


def _describe(lines: Sequence[Line], label: str) -> str:
    """Return where every line begins and ends, for readers who do not see the drawing."""
    parts = []
    for line in lines:
        known = [c for c in line.columns if not math.isnan(c.mean)]
        if known:
            ends = f"from {known[0].mean:.4g} to {known[-1].mean:.4g}"
            parts.append(f"{line.name}: {ends}, steps {known[0].step:.0f} to {known[-1].step:.0f}")
        else:
            parts.append(f"{line.name}: no finite value")
    return f"{label}. {'; '.join(parts)}."


def _keys(lines: Sequence[Line], spread: str) -> Iterator[Key]:
    for line in lines:
        sample = f'<path class="curve {line.style}" d="M0 0H20"/>'
        marker = shape_at(_marker(line), 10, 0, f"dot {line.style}") if len(lines) > 1 else ""
        yield Key(sample + marker, line.name)
    if any(c.low < c.high for line in lines for c in line.columns):
        style = lines[0].style if len(lines) == 1 else "c0"
        yield Key(f'<rect class="band {style}" y="-6" width="20" height="12"/>', spread)
    if any(c.nonfinite for line in lines for c in line.columns):
        yield Key(
            f'<path class="point" transform="translate(10 0)" d="{_NOT_FINITE}"/>', "not finite"
        )


def _frame(x: Axis, y: Axis) -> Iterator[str]:
    for value in y.ticks():
        place = y.at(value)
        yield f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{place:.1f}" y2="{place:.1f}"/>'
        yield f'<text class="soft end" x="{_LEFT - 7}" y="{place + 5:.1f}">{number_label(value)}</text>'
    for value in x.ticks(8):
        place = x.at(value)
        yield f'<line x1="{place:.1f}" x2="{place:.1f}" y1="{_BOTTOM}" y2="{_BOTTOM + 4}"/>'
        yield f'<text class="soft mid" x="{place:.1f}" y="{_BOTTOM + 20}">{number_label(value)}</text>'
    yield f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{_BOTTOM}" y2="{_BOTTOM}"/>'
    yield f'<text class="soft mid" x="{(_LEFT + _RIGHT) / 2}" y="{_BOTTOM + 40}">step</text>'


def _unbroken_parts(line: Line) -> Iterator[list[Column]]:
    """Yield the parts of a line between columns without a finite value."""
    part: list[Column] = []
    for column in line.columns:
        if math.isnan(column.mean):
            if part:
                yield part
            part = []
        else:
            part.append(column)
    if part:
        yield part


def _band(line: Line, x: Axis, y: Axis) -> Iterator[str]:
    for part in _unbroken_parts(line):
        if all(c.low == c.high for c in part):
            continue
        upper = [f"{x.at(c.step):.1f} {y.at(c.high):.1f}" for c in part]
        lower = [f"{x.at(c.step):.1f} {y.at(c.low):.1f}" for c in reversed(part)]
        yield f'<path class="band {line.style}" d="M{"L".join(upper + lower)}Z"/>'


def _line(line: Line, x: Axis, y: Axis) -> Iterator[str]:
    for part in _unbroken_parts(line):
        places = [f"{x.at(c.step):.1f} {y.at(c.mean):.1f}" for c in part]
        if len(places) == 1:
            where = x.at(part[0].step), y.at(part[0].mean)
            yield f'<circle class="dot {line.style}" cx="{where[0]:.1f}" cy="{where[1]:.1f}" r="3"/>'
        else:
            yield f'<path class="curve {line.style}" d="M{"L".join(places)}"/>'
    for column in line.columns:
        if column.nonfinite:
            text = f"{line.name}, step {column.step:.0f}: not finite"
            yield shape_at(_NOT_FINITE, x.at(column.step), 6, f"dot {line.style}", text)


def _markers(line: Line, x: Axis, y: Axis, lines: int) -> Iterator[str]:
    """Yield a few markers along a line; those of several lines are at different steps."""
    known = [c for c in line.columns if not math.isnan(c.mean)]
    if lines < 2 or len(known) < 2:
        return
    stride = len(known) / _MARKED
    for index in range(_MARKED):
        column = known[int((index + (line.colour % lines + 0.5) / lines) * stride)]
        yield shape_at(_marker(line), x.at(column.step), y.at(column.mean), f"dot {line.style}")


def _marker(line: Line) -> str:
    return MARKERS[line.colour % len(MARKERS)]
