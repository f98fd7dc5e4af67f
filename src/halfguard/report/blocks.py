"""The blocks of a page. They hold plain text; each writer formats and escapes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Tone = Literal["", "good", "bad"]


class Mono(str):
    """A name or a piece of code inside a sentence or a cell."""

    __slots__ = ()


class Link(str):
    """A path relative to the page, such as ``incidents/000123-r0``."""

    __slots__ = ()


@dataclass(frozen=True)
class Heading:
    """A section title."""

    text: str


class Text:
    """A paragraph; its parts are joined without spaces."""

    __match_args__ = ("parts", "tone")

    def __init__(self, *parts: str, tone: Tone = "") -> None:
        self.parts, self.tone = parts, tone


@dataclass(frozen=True)
class Listing:
    """A bulleted list."""

    items: Sequence[str]


@dataclass(frozen=True)
class Table:
    """A table; ``tones`` has one entry per row."""

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
    """An SVG drawing with its caption. It is not escaped, so only this package may make one."""

    svg: str
    caption: str


Block = Heading | Text | Listing | Table | Code | Figure


@dataclass(frozen=True)
class Page:
    """A title and blocks; ``torch`` is the version that the shown run had, if it is known."""

    title: str
    blocks: Sequence[Block]
    torch: str = ""


def without_figures(blocks: Sequence[Block]) -> list[Block]:
    """Return ``blocks`` without drawings, and without headings that only had drawings under them."""
    kept: list[Block] = []
    for block in blocks:
        if isinstance(block, Figure):
            continue
        if isinstance(block, Heading) and kept and isinstance(kept[-1], Heading):
            kept.pop()
        kept.append(block)
    return kept


def clean(text: str) -> str:
    """Replace characters that control a terminal or a parser: an incident may come from somebody else."""
    kept = (c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
    return "".join(kept)
