"""Find the generation of a device in ``hardware.yaml``: by its name, by what torch reports, by flags.

People, torch and data sheets write one name in many ways. Memory size, form and a laptop's suffix do not
change the generation, so they are dropped. A device that torch reports is found by its compute capability or
gfx name before its name. This module does not import torch.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Literal, NoReturn

import yaml
from pydantic import Field

from halfguard.errors import UsageError
from halfguard.records.base import RecordPart
from halfguard.records.machine import Device, Hardware, Processor


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


PRODUCT_LINES = ("gtx", "rtx", "rx")  # people leave them out: "4090"
_VENDOR = {"cuda": "NVIDIA", "rocm": "AMD", "mps": "Apple", "xpu": "Intel"}
# Words that identify the vendor: an M4 is Apple's, but a Tesla M4 is NVIDIA's.
_VENDOR_WORDS = {
    "NVIDIA": re.compile(r"nvidia|geforce|tesla|quadro"),
    "AMD": re.compile(r"amd|radeon|instinct"),
    "Intel": re.compile(r"intel|arc"),
    "Apple": re.compile(r"apple"),
}
# Words that do not identify the chip.
_NOISE = re.compile(
    r"nvidia|geforce|tesla|amd|radeon|instinct|intel|apple|graphics|gpu|chip|with|design|founders|edition"
    r"|oam|r|tm"
)
_SLICE = re.compile(r"\bmig\b.*")
# A size is a word of its own, unlike the 10G of A10G.
_SIZE = re.compile(r"(?<![a-z\d.])\d+\s*g(?:i?b)?\b")
_FORM = re.compile(r"\b(sxm|pcie|nvl|hbm)(?: \d)?(?: e)?\b")
_REDUCED = re.compile(r"\b(laptop|mobile|max q)$")
# NVIDIA gave these names to a card of Turing and to one of Ada.
_NAME_OF_TWO_CARDS = re.compile(r"rtx [3-6]000")


def find_card(name: str) -> Hardware:
    """Return the card that a person or torch calls ``name``; raise a UsageError with close matches."""
    model = model_name(name)
    if _NAME_OF_TWO_CARDS.fullmatch(model):
        number = model.split()[1]
        raise UsageError(
            f"{name!r} matches two cards: Quadro RTX {number}, RTX {number} Ada.",
            cure=f"Specify 'Quadro RTX {number}' or 'RTX {number} Ada'.",
        )
    generation = _generation_of(name, _vendor_of(name))
    return _raise_unknown(name) if generation is None else load_table().hardware(generation, name)


def look_up_device(device: Device) -> Hardware:
    """Return what the table says about a device that torch reported; ``unknown`` if it is not listed.

    The compute capability or gfx name overrides the name: the RTX 2050 has a Turing number, but is Ampere.
    """
    vendor, target = _VENDOR[device.kind], (device.target or "").split(":")[0]
    found = _generation_of(device.name, vendor)
    # Two generations, both Turing, share one target.
    listed = [row for row in load_table().generations if target in row.targets]
    if listed and found not in listed:
        found = listed[0]
    if found is not None:
        hardware = load_table().hardware(found, device.name)
        return hardware.model_copy(update={"memory": device.memory})
    # As torch.cuda.is_bf16_supported(including_emulation=False), False on CUDA below 8.0.
    no_bf16 = device.kind == "cuda" and int((device.target or "8").split(".")[0]) < 8
    return Hardware(
        name=device.name,
        vendor=vendor,
        generation="not in the table",
        fp16="unknown",
        bf16="emulated" if no_bf16 else "unknown",
        memory=device.memory,
        source="none",
    )


def look_up_processor(processor: Processor) -> Hardware:
    """Return what the flags of a processor say about its 16-bit arithmetic."""
    names: dict[str, list[str]] = {"FP16": [], "BF16": []}
    for feature in load_table().processor_features:
        if feature.arithmetic and feature.flag in processor.features:
            names[feature.format].append(feature.name)
    return Hardware(
        name=processor.name,
        kind="processor",
        vendor="",
        generation=", ".join(names["BF16"] + names["FP16"]) or "no 16-bit arithmetic",
        fp16="native" if names["FP16"] else "emulated",
        bf16="native" if names["BF16"] else "emulated",
        memory=processor.memory,
        source="the flags of the processor",
    )


def model_name(name: str) -> str:
    """Return the model alone: ``NVIDIA GeForce RTX3090-Ti 24GB`` becomes ``rtx 3090 ti``."""
    words = _words(_SIZE.sub(" ", _SLICE.sub("", name.lower())))
    model = " ".join(word for word in words if not _NOISE.fullmatch(word)) or " ".join(words)
    return _REDUCED.sub("", " ".join(_FORM.sub(" ", model).split())).strip()


def _generation_of(name: str, vendor: str | None) -> Generation | None:
    generations = [row for row in load_table().generations if vendor in (None, row.vendor)]
    for model in _spellings(model_name(name)):
        for generation in generations:
            if any(re.fullmatch(pattern, model) for pattern in generation.patterns):
                return generation
    return None


def _spellings(model: str) -> Iterator[str]:
    yield model
    if re.match(r"\d{4}\b", model):
        yield from (f"{line} {model}" for line in PRODUCT_LINES)


def _vendor_of(name: str) -> str | None:
    """Return the vendor, if a word of the name identifies it."""
    for word in _words(name):
        for vendor, words in _VENDOR_WORDS.items():
            if words.fullmatch(word):
                return vendor
    return None


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z]+|\d+", name.lower().replace("pci-e", "pcie"))


def _raise_unknown(name: str) -> NoReturn:
    vendor = _vendor_of(name)
    rows = [row for row in load_table().generations if vendor in (None, row.vendor)]
    cards = {model_name(card): card for row in rows for card in row.cards}
    close = difflib.get_close_matches(model_name(name), list(cards), n=5, cutoff=0.5)
    advice = (
        f"Similar names: {', '.join(cards[model] for model in close)}."
        if close
        else "Use the name that nvidia-smi or torch shows."
    )
    raise UsageError(
        f"The card {name!r} is not in the table.",
        cure=f"{advice} docs/reference/hardware.md lists all generations.",
    )
