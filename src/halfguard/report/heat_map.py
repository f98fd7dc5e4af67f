"""The heat map as a PNG: a row a layer, a column a step, coloured by the bits of headroom.

Rows are as tall as their names are, whatever the number of layers: the picture grows, the names do not
shrink. Beyond ``ROWS`` layers those with the least headroom are shown.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from typing import Any

from halfguard.errors import MissingExtraError
from halfguard.records.files import write_whole
from halfguard.records.ranges import LayerRange, ProbeReport, headroom

ROWS = 200
WIDEST = 16.0  # bits: the colour of everything that has more
_ROW, _NAME = 0.165, 0.075  # inches: the height of a row, the width of a character of its name


def shown_layers(report: ProbeReport, rows: int = ROWS) -> list[LayerRange]:
    """The layers in the order in which they ran; the tightest ones if there are too many."""
    tight = sorted(report.layers, key=lambda layer: tightest(layer, report.best_scale))[:rows]
    chosen = {layer.module for layer in tight}
    return [layer for layer in report.layers if layer.module in chosen]


def tightest(layer: LayerRange, scale: float) -> float:
    """The least headroom of a layer, forward or backward."""
    return min(layer.forward_headroom, layer.backward_headroom(scale))


def save_png(report: ProbeReport, path: str | os.PathLike[str]) -> None:
    """Draw the heat map; needs the extra ``report``."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingExtraError("The heat map", "report") from error
    layers = shown_layers(report)
    names = [layer.module or "(model)" for layer in layers]
    margin = 0.3 + _NAME * max(map(len, names), default=0)
    panel = min(max(0.14 * report.steps, 2.4), 6.0)
    above, below = 0.75, 1.05
    height = above + below + _ROW * len(layers)
    width = margin + 2 * panel + 0.35
    figure = Figure(figsize=(width, height), dpi=120)
    for column, (title, values) in enumerate(_panels(report, layers)):
        left = (margin + column * (panel + 0.2)) / width
        body = figure.add_axes((left, below / height, panel / width, 1 - (above + below) / height))
        image = _draw(body, title, values, names if column == 0 else None)
    bar = figure.add_axes((margin / width, 0.42 / height, 2 * panel / width, 0.12 / height))
    colours = figure.colorbar(image, cax=bar, orientation="horizontal", extend="both")
    colours.set_label("headroom in bits: doublings until FP16 overflows", fontsize=8)
    bar.tick_params(labelsize=8)
    figure.suptitle(_title(report), fontsize=10, y=1 - 0.12 / height, va="top")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_whole(path, buffer.getvalue())


def _title(report: ProbeReport) -> str:
    worst = min((layer.forward_headroom for layer in report.layers), default=math.inf)
    steps = f"{report.steps} step{'s' * (report.steps != 1)}"
    return f"Headroom over {steps} in {report.precision}; least forward: {worst:.1f} bits"


def _panels(
    report: ProbeReport, layers: Sequence[LayerRange]
) -> list[tuple[str, list[list[float]]]]:
    forward = [[headroom(value) for value in layer.forward] for layer in layers]
    scale = report.best_scale
    backward = [[headroom(value * scale) for value in layer.backward] for layer in layers]
    exponent = round(math.log2(scale))
    return [("forward", forward), (f"backward at loss scale 2^{exponent}", backward)]


def _shown(bits: float) -> float:
    """Within the colours; a gap where all values are zero, or none came: a backward pass that never was."""
    return math.nan if bits == math.inf else min(max(bits, -1.0), WIDEST)


def _draw(axes: Any, title: str, values: list[list[float]], names: list[str] | None) -> Any:
    from matplotlib import colormaps  # noqa: PLC0415
    from matplotlib.colors import TwoSlopeNorm  # noqa: PLC0415
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    steps = max(map(len, values), default=0)
    padded = [[_shown(bits) for bits in row] + [math.nan] * (steps - len(row)) for row in values]
    colours = colormaps["RdYlBu"].with_extremes(under="black", bad="0.9")
    norm = TwoSlopeNorm(vmin=0.0, vcenter=3.0, vmax=WIDEST)
    image = axes.imshow(padded, aspect="auto", interpolation="nearest", cmap=colours, norm=norm)
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("step", fontsize=8, labelpad=2)
    axes.tick_params(labelsize=8, length=2)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
    axes.set_yticks(range(len(values)), names or [""] * len(values), fontsize=8, family="monospace")
    if names is None:
        axes.tick_params(axis="y", length=0)
    return image
