"""The heat map of a probe: one row per layer, one column per step, coloured by the bits of headroom.

The page shows it as SVG, which needs no library: names are text that can be searched, and a cell shows its
numbers when the mouse is over it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

from halfguard.records.ranges import LayerRange, ProbeReport, headroom
from halfguard.report.axes import LETTER, Axis, display_width, shorten
from halfguard.report.blocks import clean
from halfguard.report.svg import WIDTH, Key, draw_legend, svg_start, swatch

ROWS = 200  # layers that are shown: the ones with the least headroom
# Each colour stands for less headroom than its limit: from red over yellow to blue, which people with any
# kind of colour vision can tell apart, on white and on dark pages. An overflow is struck through as well.
HEADROOM_COLOURS = (
    (0, "#c51b8a"), (1, "#a50026"), (2, "#d73027"), (3, "#f46d43"), (4, "#fdae61"),
    (6, "#fee090"), (8, "#e0f3f8"), (12, "#abd9e9"), (math.inf, "#4575b4"),
)  # fmt: skip
_TOP, _ROW, _GAP = 30, 18, 18
_NAME = 32  # letters of a layer's name


def shown_layers(report: ProbeReport) -> list[LayerRange]:
    """Return at most ``ROWS`` layers, those with the least headroom, in the order in which they ran."""
    tight = sorted(report.layers, key=lambda layer: least_headroom(layer, report.best_scale))[:ROWS]
    chosen = {layer.module for layer in tight}
    return [layer for layer in report.layers if layer.module in chosen]


def least_headroom(layer: LayerRange, scale: float) -> float:
    """Return the least headroom of a layer, forward or backward."""
    return min(layer.forward_headroom, layer.backward_headroom(scale))


def panels(
    report: ProbeReport, layers: Sequence[LayerRange]
) -> list[tuple[str, list[list[float]]]]:
    """Return the title of each half of the map, and its headroom by layer and step."""
    scale = report.best_scale
    forward = [[headroom(value) for value in layer.forward] for layer in layers]
    backward = [[headroom(value * scale) for value in layer.backward] for layer in layers]
    title = f"backward at loss scale 2^{round(math.log2(scale))}"
    return [("forward", forward), (title, backward)]


def draw_heat_map(report: ProbeReport) -> str:
    """Return the drawing of a probe as SVG, with its legend."""
    layers = shown_layers(report)
    names = [layer.module or "(model)" for layer in layers]
    return draw_panels(names, panels(report, layers), range(max(report.steps, 1) + 1))


def draw_panels(
    names: Sequence[str], halves: Sequence[tuple[str, list[list[float]]]], edges: Sequence[int]
) -> str:
    """Return two maps side by side, each with a title and the headroom by layer and column.

    Column i reaches from step ``edges[i]`` to before step ``edges[i + 1]``.
    """
    names = [clean(name).replace("\n", " ") for name in names]
    shown = [shorten(name, _NAME) for name in names]
    left = 12 + LETTER * max(map(display_width, shown), default=0)
    width = (WIDTH - left - _GAP) / 2
    bottom = _TOP + _ROW * len(names)
    legend, above = draw_legend(_keys(), 18)
    about = f"{len(names)} layers, {edges[-1] - edges[0]} steps. {_describe(names, halves)}"
    parts = [
        svg_start(18 + above + bottom + 44, "Headroom of every layer at every step", about),
        '<text class="strong" x="2" y="14">headroom in bits</text>',
        *legend,
        f'<g transform="translate(0 {18 + above:.0f})">',
    ]
    for row, (name, short) in enumerate(zip(names, shown, strict=True)):
        full = f"<title>{escape(name)}</title>" if short != name else ""
        place = f'x="{left - 8:.1f}" y="{_TOP + _ROW * row + 13}"'
        parts.append(f'<text class="mono end" {place}>{full}{escape(short)}</text>')
    for index, (title, values) in enumerate(halves):
        start = left + index * (width + _GAP)
        axis = Axis(edges[0], edges[-1], start, start + width)
        parts.append(f'<text class="strong" x="{start:.1f}" y="{_TOP - 8}">{title}</text>')
        for row, bits in enumerate(values):
            parts += _cells(bits, row, axis, edges)
        parts += _steps(axis, bottom)
    return "".join([*parts, "</g></svg>"])


def _keys() -> list[Key]:
    limits = [f"below {limit}" for limit, _ in HEADROOM_COLOURS[1:-1]]
    labels = ["overflow", *limits, f"{HEADROOM_COLOURS[-2][0]} or more", "no values"]
    styles = [*(f'fill="{colour}"' for _, colour in HEADROOM_COLOURS), 'class="zero"']
    samples = [swatch(style) for style in styles]
    samples[0] += '<path class="strike" d="M3 0h14"/>'
    return [Key(sample, label) for sample, label in zip(samples, labels, strict=True)]


def _describe(names: Sequence[str], halves: Sequence[tuple[str, list[list[float]]]]) -> str:
    """Return the layer with the least headroom of each half."""
    found = []
    for title, values in halves:
        least = [
            (min(bits, default=math.inf), name) for bits, name in zip(values, names, strict=True)
        ]
        bits, name = min(least, default=(math.inf, ""))
        amount = "an overflow" if bits < 0 else f"{bits:.1f} bits"
        found.append(
            f"{title}: " + (f"least is {amount} in {name}" if bits < math.inf else "no values")
        )
    return "; ".join(found)


def _cells(values: Sequence[float], row: int, axis: Axis, edges: Sequence[int]) -> Iterator[str]:
    """Yield one rectangle for each series of steps of one colour, so that long runs stay small."""
    for fill, cells in groupby(enumerate(values), key=lambda cell: _fill(cell[1])):
        series = list(cells)
        first, last = edges[series[0][0]], edges[series[-1][0] + 1] - 1
        least = min(bits for _, bits in series)
        steps = f"step {first}" if first == last else f"steps {first} to {last}"
        found = "no values" if least == math.inf else f"at least {least:.1f} bits"
        x, width = axis.at(first), axis.at(last + 1) - axis.at(first)
        place = f'x="{x:.2f}" y="{_TOP + _ROW * row}" width="{width:.2f}" height="{_ROW - 1}"'
        yield f'<rect {fill} {place} shape-rendering="crispEdges">'
        yield f"<title>{steps}: {'not finite' if least == -math.inf else found}</title></rect>"
        if least < 0:
            middle = _TOP + _ROW * (row + 0.5) - 0.5
            yield f'<path class="strike" d="M{x + 1:.2f} {middle}h{max(width - 2, 1):.2f}"/>'


def _fill(bits: float) -> str:
    # Headroom is infinite where all values are zero, or none came, as without a backward pass.
    colour = next((colour for limit, colour in HEADROOM_COLOURS if bits < limit), None)
    return f'fill="{colour}"' if colour else 'class="zero"'


def _steps(axis: Axis, bottom: int) -> Iterator[str]:
    for step in axis.ticks(5):
        if step == int(step) and step < axis.high:
            x = axis.at(step + 0.5)
            yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
            yield f'<text class="soft mid" x="{x:.1f}" y="{bottom + 19}">{step:.0f}</text>'
    middle = (axis.start + axis.end) / 2
    yield f'<text class="soft mid" x="{middle:.1f}" y="{bottom + 38}">step</text>'
