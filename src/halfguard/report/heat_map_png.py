"""The heat map of a probe as a PNG file, drawn with matplotlib.

A row has the height of a layer's name. With more layers the picture grows and the names stay readable.
"""

from __future__ import annotations

import io
import math
import os
from typing import Any

from halfguard.errors import MissingExtraError
from halfguard.records import write_atomically
from halfguard.records.ranges import ProbeReport
from halfguard.report.heat_map import HEADROOM_COLOURS, panels, shown_layers

_ROW, _LETTER = 0.165, 0.075  # inches: the height of a row, the width of a letter of its name


def save_png(report: ProbeReport, path: str | os.PathLike[str]) -> None:
    """Draw the heat map; needs the extra ``report``."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingExtraError("The heat map", "report") from error
    layers = shown_layers(report)
    names = [layer.module or "(model)" for layer in layers]
    margin = 0.3 + _LETTER * max(map(len, names), default=0)
    panel = min(max(0.14 * report.steps, 2.4), 6.0)
    above, below = 0.75, 1.05
    height = above + below + _ROW * len(layers)
    width = margin + 2 * panel + 0.35
    figure = Figure(figsize=(width, height), dpi=120)
    for column, (title, values) in enumerate(panels(report, layers)):
        left = (margin + column * (panel + 0.2)) / width
        body = figure.add_axes((left, below / height, panel / width, 1 - (above + below) / height))
        image = _draw(body, title, values, names if column == 0 else None)
    bar = figure.add_axes((margin / width, 0.42 / height, 2 * panel / width, 0.12 / height))
    colours = figure.colorbar(image, cax=bar, orientation="horizontal", extend="both")
    colours.set_label(
        "headroom in bits: doublings until FP16 overflows; struck through: overflow; grey: no values",
        fontsize=8,
    )
    bar.tick_params(labelsize=8)
    worst = min((layer.forward_headroom for layer in report.layers), default=math.inf)
    steps = f"{report.steps} step{'s' * (report.steps != 1)}"
    title = f"Headroom over {steps} in {report.precision}; least forward: {worst:.1f} bits"
    figure.suptitle(title, fontsize=10, y=1 - 0.12 / height, va="top")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_atomically(path, buffer.getvalue())


def _draw(axes: Any, title: str, values: list[list[float]], names: list[str] | None) -> Any:
    from matplotlib.colors import BoundaryNorm, ListedColormap  # noqa: PLC0415
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    steps = max(map(len, values), default=0)
    # NaN, which stays grey, where all values are zero or none came.
    limited = [[math.nan if b == math.inf else max(b, -1.0) for b in row] for row in values]
    padded = [row + [math.nan] * (steps - len(row)) for row in limited]
    overflow, *shades, most = (colour for _, colour in HEADROOM_COLOURS)
    colours = ListedColormap(shades).with_extremes(under=overflow, over=most, bad="#e9ecef")
    norm = BoundaryNorm([limit for limit, _ in HEADROOM_COLOURS[:-1]], len(shades))
    image = axes.imshow(padded, aspect="auto", interpolation="nearest", cmap=colours, norm=norm)
    # An overflow is struck through, as on the page.
    struck = [
        (row, step) for row, bits in enumerate(values) for step, b in enumerate(bits) if b < 0
    ]
    axes.hlines(
        [row for row, _ in struck],
        [step - 0.4 for _, step in struck],
        [step + 0.4 for _, step in struck],
        colors="white",
        linestyles=(0, (2, 1)),
    )
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("step", fontsize=8, labelpad=2)
    axes.tick_params(labelsize=8, length=2)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
    axes.set_yticks(range(len(values)), names or [""] * len(values), fontsize=8, family="monospace")
    if names is None:
        axes.tick_params(axis="y", length=0)
    return image
