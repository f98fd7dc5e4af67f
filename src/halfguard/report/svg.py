"""The pieces that all drawings share: the element itself, a legend, and the shapes of markers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from halfguard.report.axes import display_width, shorten
from halfguard.report.blocks import clean

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


def swatch(style: str) -> str:
    """Return the sample of an area; ``style`` is an attribute such as ``class="in"``."""
    return f'<rect {style} x="2" y="-7" width="16" height="13"/>'


def draw_legend(keys: Sequence[Key], top: float, left: float = 2.0) -> tuple[list[str], float]:
    """Return the drawing of a legend, and the height of its rows."""
    parts: list[str] = []
    x, y = left, top + _ROW / 2
    for key in keys:
        label = shorten(clean(key.label).replace("\n", " "), 60)
        width = _SAMPLE + LETTER * display_width(label) + 12
        if x > left and x + width > WIDTH:
            x, y = left, y + _ROW
        parts.append(f'<g transform="translate({x:.1f} {y:.1f})">{key.sample}')
        parts.append(f'<text x="{_SAMPLE}" y="5">{escape(label)}</text></g>')
        x += width
    return parts, (y - top + _ROW / 2) if keys else 0.0
