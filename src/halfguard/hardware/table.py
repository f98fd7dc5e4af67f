"""The rows of ``hardware.yaml``: generations of chips, processor flags, and the documents behind them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Literal

import yaml
from pydantic import Field

from halfguard.records.base import RecordPart
from halfguard.records.machine import Hardware


class Document(RecordPart):
    """A document that was opened: its name, and the place in it."""

    name: str
    where: str


class Generation(RecordPart):
    """A family of chips with the same 16-bit abilities."""

    name: str
    vendor: Literal["NVIDIA", "AMD", "Intel", "Apple"]
    targets: tuple[str, ...] = ()
    cards: tuple[str, ...] = Field(description="examples")
    patterns: tuple[str, ...] = Field(description="of models, see lookup.model_name")
    fp16: Literal["native", "slow", "faulty"]
    bf16: Literal["native", "emulated"]
    matrix: bool
    inferred: bool = False
    sources: tuple[str, ...]

    @property
    def tf32(self) -> bool:
        """NVIDIA added TF32 with native BF16, in compute capability 8.0."""
        return self.vendor == "NVIDIA" and self.bf16 == "native"


class ProcessorFeature(RecordPart):
    """The meaning of a processor flag."""

    flag: str
    name: str
    format: Literal["FP16", "BF16"]
    arithmetic: bool
    sources: tuple[str, ...]


class Table(RecordPart):
    """The content of ``hardware.yaml``."""

    documents: Mapping[str, Document]
    generations: tuple[Generation, ...]
    processor_features: tuple[ProcessorFeature, ...]

    def hardware(self, generation: Generation, name: str) -> Hardware:
        """Return a device of a generation."""
        documents = dict.fromkeys(self.documents[key].name for key in generation.sources)
        return Hardware(
            name=name,
            vendor=generation.vendor,
            generation=generation.name,
            fp16=generation.fp16,
            bf16=generation.bf16,
            matrix=generation.matrix,
            tf32=generation.tf32,
            source=", ".join(documents),
        )


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def load_table() -> Table:
    """Return the table; it is read once."""
    text = (resources.files("halfguard.hardware") / "hardware.yaml").read_text("utf-8")
    return Table.model_validate(yaml.load(text, Loader=_LOADER))  # noqa: S506  a safe loader, in C if available
