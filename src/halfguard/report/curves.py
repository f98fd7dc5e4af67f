"""Curves over steps as SVG: one line per candidate, a band for the spread of its seeds.

A curve of any length is drawn from a few hundred columns, each with the mean, the lowest and the highest of
its steps. So the page stays small, and a spike of one step stays visible. A value that is not finite breaks
the line and is marked at the upper edge.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from halfguard.report.axes import Axis, fit_axis, number_label, suits_log_axis
from halfguard.report.blocks import clean

COLUMNS = 320  # per drawing; a screen cannot show more
LINE_COLOURS = 6
_WIDTH, _HEIGHT = 720, 272
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 706, 52, 228


@dataclass(frozen=True)
class Column:
    """Neighbouring steps: their position and their values."""

    step: float
    mean: float
    low: float
    high: float
    nonfinite: int = 0  # number of values that were not finite


Series = tuple[Sequence[float], Sequence[float]]  # steps, and one value for each


@dataclass(frozen=True)
class Line:
    """One curve; ``colour`` is its index in the palette."""

    name: str
    columns: Sequence[Column]
    colour: int = 0


@dataclass(frozen=True)
class Mark:
    """An event at a step: a tick at the lower edge, with ``text`` as its tooltip."""

    step: float
    text: str
    bad: bool = True


@dataclass(frozen=True)
class Change:
    """A change of the run at a step: a line over the whole height, with a short ``label`` at its top."""

    step: float
    label: str
    text: str
    undone: bool = False  # something was taken back: the line is dashed


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
    good = [value for _, values in slices for value in _finite_values(values)]
    nonfinite = sum(len(values) for _, values in slices) - len(good)
    if not good:
        return Column(step, math.nan, math.nan, math.nan, nonfinite)
    return Column(step, _mean(good), min(good), max(good), nonfinite)


def _finite_values(values: Sequence[float]) -> Sequence[float]:
    try:
        finite = math.isfinite(math.fsum(values))
    except (OverflowError, ValueError):  # the sum overflows, or has infinities of both signs
        finite = False
    return values if finite else [value for value in values if math.isfinite(value)]


def _mean(values: Sequence[float]) -> float:
    try:
        return math.fsum(values) / len(values)
    except OverflowError:  # the sum overflows, the mean does not
        largest = max(map(abs, values))
        return math.fsum(value / largest for value in values) / len(values) * largest


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


def draw_curves(
    lines: Sequence[Line],
    *,
    label: str,
    log: bool | None = None,
    marks: Sequence[Mark] = (),
    changes: Sequence[Change] = (),
    whole: bool = False,
) -> str:
    """Return the drawing; with ``log=None`` the values decide whether the axis is logarithmic.

    ``whole`` is for counts: the axis has whole numbers only.
    """
    numbers = [value for line in lines for c in line.columns for value in (c.low, c.high, c.mean)]
    x = fit_axis([c.step for line in lines for c in line.columns], _LEFT, _RIGHT)
    logarithmic = suits_log_axis(numbers) if log is None else log
    y = fit_axis(numbers, _BOTTOM, _TOP, log=logarithmic)
    shown = [line for line in lines if line.columns]
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(clean(label))}">',
        *_frame(x, y, label, whole=whole),
        *(_change(change, x) for change in changes),
        *(piece for line in shown for piece in _band(line, x, y)),
        # The first line, the baseline, is dashed and on top: a line that equals it stays visible in the gaps.
        *(piece for line in (*shown[1:], *shown[:1]) for piece in _line(line, x, y)),
        *(_mark(mark, x) for mark in marks),
        *_legend(shown),
        "</svg>",
    ]
    return "".join(parts)


def _frame(x: Axis, y: Axis, label: str, *, whole: bool) -> Iterator[str]:
    for value in [value for value in y.ticks() if not whole or value == int(value)]:
        place = y.at(value)
        yield f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{place:.1f}" y2="{place:.1f}"/>'
        yield f'<text class="soft end" x="{_LEFT - 7}" y="{place + 4:.1f}">{number_label(value)}</text>'
    for value in x.ticks(8):
        place = x.at(value)
        yield f'<line x1="{place:.1f}" x2="{place:.1f}" y1="{_BOTTOM}" y2="{_BOTTOM + 4}"/>'
        yield f'<text class="soft mid" x="{place:.1f}" y="{_BOTTOM + 17}">{number_label(value)}</text>'
    yield f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{_BOTTOM}" y2="{_BOTTOM}"/>'
    yield f'<text class="soft mid" x="{(_LEFT + _RIGHT) / 2}" y="{_HEIGHT - 8}">step</text>'
    title = f"{clean(label)}{', logarithmic' if y.log else ''}"
    yield f'<text class="strong" x="4" y="14">{escape(title)}</text>'


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
        yield f'<path class="band c{line.colour % LINE_COLOURS}" d="M{"L".join(upper + lower)}Z"/>'


def _line(line: Line, x: Axis, y: Axis) -> Iterator[str]:
    colour = f"c{line.colour % LINE_COLOURS}"
    for part in _unbroken_parts(line):
        places = [f"{x.at(c.step):.1f} {y.at(c.mean):.1f}" for c in part]
        if len(places) == 1:
            where = x.at(part[0].step), y.at(part[0].mean)
            yield f'<circle class="dot {colour}" cx="{where[0]:.1f}" cy="{where[1]:.1f}" r="2.5"/>'
        else:
            yield f'<path class="curve {colour}" d="M{"L".join(places)}"/>'
    for column in line.columns:
        if column.nonfinite:
            place = x.at(column.step)
            yield f'<path class="dot {colour}" d="M{place - 3.5:.1f} {_TOP - 7}h7l-3.5 6z">'
            yield f"<title>{escape(clean(line.name))}, step {column.step:.0f}: not finite</title></path>"


def _mark(mark: Mark, x: Axis) -> str:
    place, kind = x.at(mark.step), "bad" if mark.bad else "mild"
    return (
        f'<path class="mark {kind}" d="M{place:.1f} {_BOTTOM}v-9">'
        f"<title>{escape(clean(mark.text))}</title></path>"
    )


def _change(change: Change, x: Axis) -> str:
    place, kind = x.at(change.step), " undone" if change.undone else ""
    return (
        f'<line class="change{kind}" x1="{place:.1f}" x2="{place:.1f}" y1="{_TOP - 8}" y2="{_BOTTOM}">'
        f"<title>{escape(clean(change.text))}</title></line>"
        f'<text class="strong" x="{place + 5:.1f}" y="{_TOP + 2}">{escape(clean(change.label))}</text>'
    )


def _legend(lines: Sequence[Line]) -> Iterator[str]:
    if len(lines) < 2:
        return
    most = int((_RIGHT / len(lines) - 34) / 6.4)  # letters per name, so that all fit on one row
    place = 6.0
    for line in lines:
        name = clean(line.name).replace("\n", " ")
        name = name if len(name) <= max(most, 3) else f"{name[: max(most, 3) - 1]}…"
        yield f'<path class="curve c{line.colour % LINE_COLOURS}" d="M{place:.1f} 28h16"/>'
        yield f'<text x="{place + 20:.1f}" y="32">{escape(name)}</text>'
        place += 34 + 6.4 * len(name)
