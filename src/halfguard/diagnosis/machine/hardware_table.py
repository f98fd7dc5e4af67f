"""The rows of ``hardware.yaml``: generations of chips, cards, processor flags, and where each was read.

A figure is either read, in a document that the row names, or computed from figures that were: FP16 by the
rate of its generation, matrix products by a rule for a family of cards. Nothing else is in the table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from functools import cache
from importlib import resources
from typing import Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field

from halfguard.records.machine import Hardware, Support

Checked = Literal["read", "computed"]
FigureName = Literal["fp32", "fp16", "matrix", "memory", "bandwidth"]
FIGURES: tuple[FigureName, ...] = get_args(FigureName)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Document(_Part):
    """A text that was opened: a name for people, and where in it to look."""

    name: str
    where: str


class Figures(_Part):
    """What one document says about one card."""

    fp32: float | None = None
    matrix: float | None = None
    memory: float | None = None
    bandwidth: float | None = None


class Figure(_Part):
    """One number of a card, and what it rests on."""

    value: float
    checked: Checked
    documents: tuple[str, ...]


class Rule(_Part):
    """How many times their FP32 rate the matrix units of a family of cards do."""

    cards: str = Field(description="pattern of names")
    matrix: float
    sources: tuple[str, ...]

    def covers(self, card: Card) -> bool:
        """Whether the rule is about this card."""
        return re.fullmatch(self.cards, card.name) is not None


class Generation(_Part):
    """A family of chips that agree about 16 bits."""

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
        """FP16 arithmetic: faulty, slower than FP32, or as it should be."""
        if self.faulty_fp16:
            return "faulty"
        return "slow" if self.fp16_rate is not None and self.fp16_rate < 1 else "native"

    def named(self, name: str, source: str) -> Hardware:
        """A device of this generation, without figures."""
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


class Card(_Part):
    """One product: its figures by the document in which they were read, in order of preference."""

    name: str
    generation: str
    aliases: tuple[str, ...] = ()
    read: Mapping[str, Figures]
    otherwise: Mapping[str, Figures] = Field(
        default_factory=dict, description="figures of documents that do not agree"
    )

    @property
    def sources(self) -> tuple[str, ...]:
        """Every document that the card cites."""
        return (*self.read, *self.otherwise)

    def figure(self, name: FigureName) -> Figure | None:
        """A figure as the first document has it, with all that agree."""
        said = {key: getattr(figures, name, None) for key, figures in self.read.items()}
        values = {key: value for key, value in said.items() if value is not None}
        if not values:
            return None
        return Figure(value=next(iter(values.values())), checked="read", documents=tuple(values))


class ProcessorFeature(_Part):
    """What a flag of the processor means."""

    flag: str
    name: str
    format: Literal["FP16", "BF16"]
    arithmetic: bool
    sources: tuple[str, ...]


class Table(_Part):
    """All of ``hardware.yaml``."""

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
        """The generation with this key."""
        return next(row for row in self.generations if row.key == key)

    def figures(self, card: Card) -> dict[FigureName, Figure]:
        """All that is known of a card: what was read, and what follows from it.

        FP16 is left out beside matrix units and where it is slow or faulty: nobody would multiply in it.
        """
        found = {name: figure for name in FIGURES if (figure := card.figure(name)) is not None}
        fp32 = found.get("fp32")
        if fp32 is None:
            return found
        generation = self.generation(card.generation)
        if not generation.matrix and generation.fp16 == "native" and generation.fp16_rate:
            found["fp16"] = _times(fp32, generation.fp16_rate, generation.sources)
        rule = next((rule for rule in self.rules if rule.covers(card)), None)
        if rule is not None and "matrix" not in found:
            found["matrix"] = _times(fp32, rule.matrix, rule.sources)
        return found

    def hardware(self, card: Card) -> Hardware:
        """A card with its figures and with what its generation can do."""
        figures = self.figures(card)
        generation = self.generation(card.generation)
        first = [figure.documents[0] for figure in figures.values() if figure.checked == "read"]
        computed = [d for f in figures.values() if f.checked == "computed" for d in f.documents]
        source = self._named((*first, *computed, *generation.sources))
        values = {
            name if name in ("memory", "bandwidth") else f"{name}_tflops": figure.value
            for name, figure in figures.items()
        }
        return generation.named(card.name, source).model_copy(update=values)

    def without_figures(self, generation: Generation, name: str, why: str) -> Hardware:
        """A card that is not listed, of a generation that is, and why it has no figures."""
        return generation.named(name, f"{self._named(generation.sources)}. No figures: {why}")

    def _named(self, keys: tuple[str, ...]) -> str:
        return ", ".join(dict.fromkeys(self.documents[key].name for key in keys))


def _times(fp32: Figure, rate: float, sources: tuple[str, ...]) -> Figure:
    value = float(f"{fp32.value * rate:.4g}")
    return Figure(value=value, checked="computed", documents=(fp32.documents[0], *sources))


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def table() -> Table:
    """The table, read once."""
    text = (resources.files("halfguard.diagnosis.machine") / "hardware.yaml").read_text("utf-8")
    return Table.model_validate(yaml.load(text, Loader=_LOADER))  # noqa: S506  safe, in C if there is one
