"""What a page is made of. Text is plain here; how it is set off and escaped is each writer's business."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Tone = Literal["", "good", "bad"]


class Mono(str):
    """A name or a piece of code inside a sentence or a cell."""

    __slots__ = ()


class Link(str):
    """A path, as seen from the page, such as ``incidents/000123-r0``."""

    __slots__ = ()


@dataclass(frozen=True)
class Heading:
    """The title of what follows."""

    text: str


@dataclass(frozen=True)
class Text:
    """A paragraph; the parts are set one after the other."""

    parts: Sequence[str]
    tone: Tone = ""


@dataclass(frozen=True)
class Listing:
    """Points, one below the other."""

    items: Sequence[str]


@dataclass(frozen=True)
class Table:
    """Rows under heads; ``tones`` has one entry a row."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    tones: Sequence[Tone] = ()


@dataclass(frozen=True)
class Code:
    """Lines to copy, in a language such as ``diff`` or ``yaml``."""

    text: str
    language: str = ""


@dataclass(frozen=True)
class Figure:
    """A drawing as SVG, made by this room alone, and what it shows for those who do not see it."""

    svg: str
    caption: str


Block = Heading | Text | Listing | Table | Code | Figure


@dataclass(frozen=True)
class Page:
    """A title and what stands under it."""

    title: str
    blocks: Sequence[Block]


def without_figures(blocks: Sequence[Block]) -> list[Block]:
    """For writers that cannot draw: the drawings are left out, and titles that only stood over drawings."""
    kept: list[Block] = []
    for block in blocks:
        if isinstance(block, Figure):
            continue
        if isinstance(block, Heading) and kept and isinstance(kept[-1], Heading):
            kept.pop()
        kept.append(block)
    return kept


def clean(text: str) -> str:
    """Text without characters that steer a terminal or a parser; an incident may be a stranger's."""
    kept = (c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
    return "".join(kept)
