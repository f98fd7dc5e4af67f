"""The rows of ``hardware.yaml``: generations of chips, cards, processor flags, and their sources.

A figure was either read in a document that the row names, or is computed from figures that were read: FP16 by
the rate of its generation, matrix products by a rule for a family of cards. The table has no other figures.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from functools import cache
from importlib import resources
from typing import Literal, get_args

import yaml
from pydantic import Field

from halfguard.records.base import RecordPart
from halfguard.records.machine import Hardware, Support

Checked = Literal["read", "computed"]
FigureName = Literal["fp32", "fp16", "matrix", "memory", "bandwidth"]
FIGURES: tuple[FigureName, ...] = get_args(FigureName)


class Document(RecordPart):
    """A document that was opened: its name, and the place in it."""

    name: str
    where: str


class Figures(RecordPart):
    """The figures that one document gives for one card."""

    fp32: float | None = None
    matrix: float | None = None
    memory: float | None = None
    bandwidth: float | None = None


class Figure(RecordPart):
    """One number of a card, and its sources."""

    value: float
    checked: Checked
    documents: tuple[str, ...]


class Rule(RecordPart):
    """The rate of matrix units over FP32, for a family of cards."""

    cards: str = Field(description="pattern of names")
    matrix: float
    sources: tuple[str, ...]

    def covers(self, card: Card) -> bool:
        return re.fullmatch(self.cards, card.name) is not None


class Generation(RecordPart):
    """A family of chips with the same 16-bit abilities."""

    key: str
    name: str
    vendor: str
    bf16: Literal["native", "emulated"]
    matrix: bool
    fp16_rate: float | None = None
    bf16_rate: float = Field(default=1, description="BF16 over FP16 in matrix units")
    tf32: bool = False
    faulty_fp16: bool = False
    targets: tuple[str, ...] = ()
    patterns: tuple[str, ...] = Field(default=(), description="of models in canonical form")
    checked: Checked
    sources: tuple[str, ...]

    @property
    def fp16(self) -> Support:
        """FP16 arithmetic: faulty, slower than FP32, or native."""
        if self.faulty_fp16:
            return "faulty"
        return "slow" if self.fp16_rate is not None and self.fp16_rate < 1 else "native"

    def to_hardware(self, name: str, source: str) -> Hardware:
        """Return a device of this generation, without figures."""
        return Hardware(
            source=source,
            name=name,
            vendor=self.vendor,
            generation=self.name,
            fp16=self.fp16,
            bf16=self.bf16,
            fp16_rate=self.fp16_rate,
            bf16_rate=self.bf16_rate,
            matrix=self.matrix,
            tf32=self.tf32,
        )


class Card(RecordPart):
    """One card: its figures by the document in which they were read, in order of preference."""

    name: str
    generation: str
    aliases: tuple[str, ...] = ()
    read: Mapping[str, Figures]
    otherwise: Mapping[str, Figures] = Field(
        default_factory=dict, description="figures of documents that disagree"
    )

    @property
    def sources(self) -> tuple[str, ...]:
        return (*self.read, *self.otherwise)

    def figure(self, name: FigureName) -> Figure | None:
        """Return a figure from the first document that has it, with all documents that agree."""
        read = {key: getattr(figures, name, None) for key, figures in self.read.items()}
        values = {key: value for key, value in read.items() if value is not None}
        if not values:
            return None
        return Figure(value=next(iter(values.values())), checked="read", documents=tuple(values))


class ProcessorFeature(RecordPart):
    """The meaning of a processor flag."""

    flag: str
    name: str
    format: Literal["FP16", "BF16"]
    arithmetic: bool
    sources: tuple[str, ...]


class Table(RecordPart):
    """The content of ``hardware.yaml``."""

    checked_on: date
    documents: Mapping[str, Document]
    rules: tuple[Rule, ...]
    shared_names: Mapping[str, tuple[str, ...]] = Field(
        description="models in canonical form that are several cards, and how to tell them apart"
    )
    generations: tuple[Generation, ...]
    cards: tuple[Card, ...]
    processor_features: tuple[ProcessorFeature, ...]

    def generation(self, key: str) -> Generation:
        return next(row for row in self.generations if row.key == key)

    def figures(self, card: Card) -> dict[FigureName, Figure]:
        """Return all figures of a card, read and computed.

        FP16 is left out if there are matrix units, or if it is slow or faulty: it would not be used.
        """
        found = {name: figure for name in FIGURES if (figure := card.figure(name)) is not None}
        fp32 = found.get("fp32")
        if fp32 is None:
            return found
        generation = self.generation(card.generation)
        if not generation.matrix and generation.fp16 == "native" and generation.fp16_rate:
            found["fp16"] = _computed_figure(fp32, generation.fp16_rate, generation.sources)
        rule = next((rule for rule in self.rules if rule.covers(card)), None)
        if rule is not None and "matrix" not in found:
            found["matrix"] = _computed_figure(fp32, rule.matrix, rule.sources)
        return found

    def hardware(self, card: Card) -> Hardware:
        """Return a card with its figures and the abilities of its generation."""
        figures = self.figures(card)
        generation = self.generation(card.generation)
        first = [figure.documents[0] for figure in figures.values() if figure.checked == "read"]
        computed = [d for f in figures.values() if f.checked == "computed" for d in f.documents]
        source = self._document_names((*first, *computed, *generation.sources))
        values = {
            name if name in ("memory", "bandwidth") else f"{name}_tflops": figure.value
            for name, figure in figures.items()
        }
        return generation.to_hardware(card.name, source).model_copy(update=values)

    def without_figures(self, generation: Generation, name: str, why: str) -> Hardware:
        """Return a card that is not listed, of a listed generation, with the reason for missing figures."""
        return generation.to_hardware(
            name, f"{self._document_names(generation.sources)}. No figures: {why}"
        )

    def _document_names(self, keys: tuple[str, ...]) -> str:
        return ", ".join(dict.fromkeys(self.documents[key].name for key in keys))


def _computed_figure(fp32: Figure, rate: float, sources: tuple[str, ...]) -> Figure:
    value = float(f"{fp32.value * rate:.4g}")
    return Figure(value=value, checked="computed", documents=(fp32.documents[0], *sources))


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def load_table() -> Table:
    """Return the table; it is read once."""
    text = (resources.files("halfguard.hardware") / "hardware.yaml").read_text("utf-8")
    return Table.model_validate(yaml.load(text, Loader=_LOADER))  # noqa: S506  a safe loader, in C if available
