"""Marks in a curve: single steps at its lower edge, and changes of the run as lines over its height."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from halfguard.report.axes import Axis
from halfguard.report.blocks import clean
from halfguard.report.svg import CARET, CROSS, SQUARE, TICK, Key, shape_at

MarkKind = Literal["skipped", "repeated in FP32", "rolled back or stopped", "scale finds its level"]
_SHAPES: dict[MarkKind, tuple[str, str]] = {
    "skipped": (CROSS, "mark bad"),
    "repeated in FP32": (CARET, "mark mild"),
    "rolled back or stopped": (SQUARE, "mark bad"),
    "scale finds its level": (TICK, "mark mild"),
}


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
