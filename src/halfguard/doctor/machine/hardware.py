"""How a device is found in the table of accelerators by any of its names.

A card is found by name; one that is not listed, by its generation: through a pattern of names, or through the
compute capability or gfx name that torch reports. Then it has abilities but no figures. A processor is
judged by its flags. This module imports no torch.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import NoReturn

from halfguard.doctor.machine.hardware_table import Card, table
from halfguard.errors import UsageError
from halfguard.records.machine import Device, Hardware, Processor

# Words that say nothing about which chip it is, and words that only tell its variants apart.
_NOISE = re.compile(
    r"nvidia|geforce|tesla|amd|radeon|instinct|intel|apple|graphics|gpu|chip|with|design|r|tm"
)
_VARIANT = re.compile(r"\d+|gb|sxm|pcie|hbm|e|oam|nvl|founders|edition")
_SMALLER = re.compile(r"\b(laptop|mobile|max q|mig .*)$")


def canonical(name: str) -> str:
    """A name without vendor, punctuation and case: ``NVIDIA GeForce RTX3090-Ti`` is ``rtx 3090 ti``."""
    words = re.findall(r"[a-z]+|\d+", name.lower())
    return " ".join(word for word in words if not _NOISE.fullmatch(word)) or " ".join(words)


def find(name: str) -> Hardware:
    """The card that a person or torch calls ``name``; UsageError with close matches if there is none."""
    found = _by_name(name)
    return found if found is not None else _unknown(name)


def of_device(device: Device) -> Hardware:
    """What the table says about a device that torch reported; ``unknown`` where it says nothing."""
    found = _by_name(device.name) or _by_target(device)
    if found is None:
        return Hardware(
            name=device.name,
            vendor={"cuda": "NVIDIA", "rocm": "AMD", "mps": "Apple", "xpu": "Intel"}[device.kind],
            generation="not in the table",
            fp16="unknown",
            bf16="unknown",
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


def _by_name(name: str) -> Hardware | None:
    wanted = canonical(name)
    smaller = _SMALLER.search(wanted)
    wanted = _SMALLER.sub("", wanted).strip()
    card = None if smaller else _card(wanted)
    if card is not None:
        return table().hardware(card)
    for generation in table().generations:
        if any(re.fullmatch(pattern, wanted) for pattern in generation.patterns):
            return table().without_figures(generation, name)
    if smaller and (card := _card(wanted)) is not None:  # a part of the card, or a slower one
        return table().without_figures(table().generation(card.generation), name)
    return None


def _card(wanted: str) -> Card | None:
    """The card of exactly this name, or else the longest that it starts with and only qualifies."""
    names = _names()
    if wanted in names:
        return names[wanted]
    words = wanted.split()
    for length in range(len(words) - 1, 0, -1):
        rest = words[length:]
        card = names.get(" ".join(words[:length]))
        if card is not None and all(_VARIANT.fullmatch(word) for word in rest) and "gb" in rest:
            return card
    return None


@cache
def _names() -> Mapping[str, Card]:
    return {canonical(name): card for card in table().cards for name in (card.name, *card.aliases)}


def _by_target(device: Device) -> Hardware | None:
    target = (device.target or "").split(":")[0]
    for generation in table().generations:
        if target in generation.targets:
            return table().without_figures(generation, device.name)
    return None


def _unknown(name: str) -> NoReturn:
    close = _closest(canonical(name), _names())
    advice = f"Close: {', '.join(close)}." if close else "Name it as nvidia-smi or torch does."
    raise UsageError(
        f"There is no card {name!r} in the table.",
        cure=f"{advice} docs/reference/hardware.md lists all {len(table().cards)}.",
    )


def _closest(wanted: str, names: Iterable[str]) -> list[str]:
    found = difflib.get_close_matches(wanted, list(names), n=8, cutoff=0.5)
    return list(dict.fromkeys(_names()[name].name for name in found))[:5]
