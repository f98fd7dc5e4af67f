"""How a device is found in the table of accelerators by any of its names.

A card is found by name. Its figures are given only to a name that can be no other variant: another size or
form, a laptop's card, or a card that is not listed has the abilities of its generation and no figures, and
``source`` says so. A device that torch reported is known by its compute capability or gfx name as well, and
a processor by its flags. This module imports no torch.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NoReturn

from halfguard.diagnosis.machine.hardware_table import Card, Generation, table
from halfguard.diagnosis.machine.names import Name, canonical, same_form, taken_apart, vendor_of
from halfguard.errors import UsageError
from halfguard.records.machine import Device, Hardware, Processor

LINES = ("gtx", "rtx", "rx")  # left out by people who say 4090
# torch reports what is left after error correction and the driver: 14.6 GB of a T4's 16.
SEEN_OF_MEMORY = (0.85, 1.05)
_VENDOR = {"cuda": "NVIDIA", "rocm": "AMD", "mps": "Apple", "xpu": "Intel"}


def find(name: str) -> Hardware:
    """The card that a person or torch calls ``name``; UsageError with close matches if there is none."""
    shared = table().shared_names.get(taken_apart(name).model)
    if shared is not None:
        raise UsageError(
            f"{name!r} is the name of several cards: {', '.join(shared)}.",
            cure=f"Write which one: {' or '.join(repr(one) for one in shared)}.",
        )
    found = _by_name(name, vendor_of(name))
    return found if found is not None else _unknown(name)


def of_device(device: Device) -> Hardware:
    """What the table says about a device that torch reported; ``unknown`` where it says nothing.

    A target goes before a name: the RTX 2050 is numbered among Turing's cards and is none of them.
    """
    vendor, generations = _VENDOR[device.kind], _by_target(device)
    found = _by_name(device.name, vendor, device.memory)
    if generations and (found is None or found.generation not in [row.name for row in generations]):
        found = table().without_figures(generations[0], device.name, "the table does not list it")
    if found is None:
        return Hardware(
            name=device.name,
            vendor=vendor,
            generation="not in the table",
            fp16="unknown",
            bf16="emulated" if _torch_emulates_bf16(device) else "unknown",
            memory=device.memory,
            source="none",
        )
    return found.model_copy(update={"name": device.name, "memory": device.memory or found.memory})


def of_processor(processor: Processor) -> Hardware:
    """What the flags of a processor say."""
    names: dict[str, list[str]] = {"FP16": [], "BF16": []}
    for feature in table().processor_features:
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


def _by_name(name: str, vendor: str | None, seen: float | None = None) -> Hardware | None:
    """With figures for a card that is listed; ``seen`` is the memory that torch reports of it."""
    generations = [row for row in table().generations if vendor in (None, row.vendor)]
    keys = {row.key for row in generations}
    exact = _names().get(canonical(name))
    if exact is not None and exact.generation in keys and _has(exact, seen):
        return table().hardware(exact)
    wanted = taken_apart(name)
    for model in _spellings(wanted.model):
        listed = [card for card in _models().get(model, ()) if card.generation in keys]
        card = next((c for c in listed if _is(c, wanted) and _has(c, seen)), None)
        if card is not None:
            return table().hardware(card)
        if listed:
            variants = ", ".join(_described(card) for card in listed)
            generation = table().generation(listed[0].generation)
            return table().without_figures(generation, name, f"the table has {variants} only")
        for generation in generations:
            if any(re.fullmatch(pattern, model) for pattern in generation.patterns):
                return table().without_figures(generation, name, "the table does not list it")
    return None


def _spellings(model: str) -> Iterator[str]:
    yield model
    if re.match(r"\d{4}\b", model):
        yield from (f"{line} {model}" for line in LINES)


def _is(card: Card, wanted: Name) -> bool:
    """Whether a name that has the card's model can be this variant of it."""
    memory = card.figure("memory")
    same_size = wanted.size is None or memory is None or memory.value == wanted.size
    return not wanted.smaller and same_size and same_form(taken_apart(card.name).form, wanted.form)


def _has(card: Card, seen: float | None) -> bool:
    """Whether a card can show this much memory."""
    memory = card.figure("memory")
    if memory is None or seen is None:
        return True
    least, most = SEEN_OF_MEMORY
    return least <= seen / memory.value <= most


def _described(card: Card) -> str:
    memory = card.figure("memory")
    size = "" if memory is None else f"{memory.value:g} GB"
    return (
        card.name
        if memory is None or size.replace(" ", "") in card.name
        else f"{card.name} ({size})"
    )


@cache
def _names() -> Mapping[str, Card]:
    return {canonical(name): card for card in table().cards for name in (card.name, *card.aliases)}


@cache
def _models() -> Mapping[str, tuple[Card, ...]]:
    """The variants of each model, in the order of the table: the first is meant if nothing is said."""
    found: dict[str, list[Card]] = {}
    for card in table().cards:
        for model in {taken_apart(name).model for name in (card.name, *card.aliases)}:
            found.setdefault(model, []).append(card)
    return {model: tuple(cards) for model, cards in found.items()}


def _by_target(device: Device) -> list[Generation]:
    """The generations that have a device's compute capability or gfx name; Turing's two share one."""
    target = (device.target or "").split(":")[0]
    return [row for row in table().generations if target in row.targets]


def _torch_emulates_bf16(device: Device) -> bool:
    """What torch.cuda.is_bf16_supported(including_emulation=False) denies: CUDA devices before 8.0."""
    return device.kind == "cuda" and int((device.target or "8").split(".")[0]) < 8


def _unknown(name: str) -> NoReturn:
    close = _closest(canonical(name), vendor_of(name))
    advice = f"Close: {', '.join(close)}." if close else "Name it as nvidia-smi or torch does."
    raise UsageError(
        f"There is no card {name!r} in the table.",
        cure=f"{advice} docs/reference/hardware.md lists all {len(table().cards)}.",
    )


def _closest(wanted: str, vendor: str | None) -> list[str]:
    makers = {row.key: row.vendor for row in table().generations}
    names = [n for n, card in _names().items() if vendor in (None, makers[card.generation])]
    found = difflib.get_close_matches(wanted, names, n=8, cutoff=0.5)
    return list(dict.fromkeys(_names()[name].name for name in found))[:5]
