"""The pieces that drawings share: the element itself, a legend, and marks of single steps and of changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from halfguard.report.axes import Axis, display_width, shorten
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
MarkKind = Literal["skipped", "repeated in FP32", "rolled back or stopped", "scale finds its level"]
_SHAPES: dict[MarkKind, tuple[str, str]] = {
    "skipped": (CROSS, "mark bad"),
    "repeated in FP32": (CARET, "mark mild"),
    "rolled back or stopped": (SQUARE, "mark bad"),
    "scale finds its level": (TICK, "mark mild"),
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
        width = _SAMPLE + LETTER * display_width(label) + 12
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
        (False, "healed: an island was made"),
        (True, "an island was taken back"),
    ):
        if any(change.undone is undone for change in changes):
            style = "change undone key" if undone else "change key"
            yield Key(f'<line class="{style}" x1="10" x2="10" y1="-8" y2="8"/>', label)
