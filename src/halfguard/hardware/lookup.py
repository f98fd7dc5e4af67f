"""Find a device in the table of accelerators by any of its names.

A card is found by name. It gets figures only if the name cannot mean another variant. Another memory size or
form, a laptop card, or a card that is not listed gets the abilities of its generation without figures, and
``source`` says so. A device that torch reports is also found by its compute capability or gfx name, and a
processor by its flags. This module does not import torch.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NoReturn

from halfguard.errors import UsageError
from halfguard.hardware.names import CardName, canonical_name, find_vendor, parse_name
from halfguard.hardware.table import Card, load_table
from halfguard.records.machine import Device, Hardware, Processor

PRODUCT_LINES = ("gtx", "rtx", "rx")  # people leave them out: "4090"
# Share of the memory that torch reports, after error correction and the driver: 14.6 of a T4's 16 GB.
REPORTED_MEMORY = (0.85, 1.05)
_NOT_LISTED = "the table does not list it"
_VENDOR = {"cuda": "NVIDIA", "rocm": "AMD", "mps": "Apple", "xpu": "Intel"}


def find_card(name: str) -> Hardware:
    """Return the card that a person or torch calls ``name``; raise a UsageError with close matches."""
    shared = load_table().shared_names.get(parse_name(name).model)
    if shared is not None:
        raise UsageError(
            f"{name!r} is the name of several cards: {', '.join(shared)}.",
            cure=f"Name one of them: {' or '.join(repr(one) for one in shared)}.",
        )
    found = _look_up_name(name, find_vendor(name))
    return found if found is not None else _raise_unknown(name)


def look_up_device(device: Device) -> Hardware:
    """Return what the table says about a device that torch reported; ``unknown`` if it is not listed.

    The compute capability or gfx name overrides the name: the RTX 2050 has a Turing number, but is Ampere.
    """
    vendor, target = _VENDOR[device.kind], (device.target or "").split(":")[0]
    found = _look_up_name(device.name, vendor, device.memory)
    # Two generations, both Turing, share one target.
    generations = [row for row in load_table().generations if target in row.targets]
    if generations and (found is None or found.generation not in [row.name for row in generations]):
        found = load_table().without_figures(generations[0], device.name, _NOT_LISTED)
    if found is None:
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
    return found.model_copy(update={"name": device.name, "memory": device.memory or found.memory})


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


def _look_up_name(name: str, vendor: str | None, reported: float | None = None) -> Hardware | None:
    """Look up a card, with figures if it is listed; ``reported`` is the memory that torch reports."""
    generations = [row for row in load_table().generations if vendor in (None, row.vendor)]
    keys = {row.key for row in generations}
    exact = _cards_by_name().get(canonical_name(name))
    if exact is not None and exact.generation in keys and _matches_memory(exact, reported):
        return load_table().hardware(exact)
    wanted = parse_name(name)
    for model in _spellings(wanted.model):
        listed = [card for card in _cards_by_model().get(model, ()) if card.generation in keys]
        for card in listed:
            if _matches_name(card, wanted) and _matches_memory(card, reported):
                return load_table().hardware(card)
        if listed:
            variants = ", ".join(_describe_card(card) for card in listed)
            generation = load_table().generation(listed[0].generation)
            return load_table().without_figures(generation, name, f"the table has {variants} only")
        for generation in generations:
            if any(re.fullmatch(pattern, model) for pattern in generation.patterns):
                return load_table().without_figures(generation, name, _NOT_LISTED)
    return None


def _spellings(model: str) -> Iterator[str]:
    yield model
    if re.match(r"\d{4}\b", model):
        yield from (f"{line} {model}" for line in PRODUCT_LINES)


def _matches_name(card: Card, wanted: CardName) -> bool:
    """Return whether a name with the card's model can mean this variant of it."""
    memory = card.figure("memory")
    same_size = wanted.size is None or memory is None or memory.value == wanted.size
    form = parse_name(card.name).form
    # "sxm" matches "sxm 4", and a name without a form matches any form.
    same_form = form.startswith(wanted.form) or wanted.form.startswith(form)
    return not wanted.reduced and same_size and same_form


def _matches_memory(card: Card, reported: float | None) -> bool:
    """Return whether torch may report this much memory for the card."""
    memory = card.figure("memory")
    if memory is None or reported is None:
        return True
    lowest, highest = REPORTED_MEMORY
    return lowest <= reported / memory.value <= highest


def _describe_card(card: Card) -> str:
    memory = card.figure("memory")
    size = "" if memory is None else f"{memory.value:g} GB"
    named = memory is None or size.replace(" ", "") in card.name
    return card.name if named else f"{card.name} ({size})"


@cache
def _cards_by_name() -> Mapping[str, Card]:
    cards = load_table().cards
    return {canonical_name(name): card for card in cards for name in (card.name, *card.aliases)}


@cache
def _cards_by_model() -> Mapping[str, tuple[Card, ...]]:
    """Return the variants of each model in the order of the table; the first is the default."""
    found: dict[str, list[Card]] = {}
    for card in load_table().cards:
        for model in {parse_name(name).model for name in (card.name, *card.aliases)}:
            found.setdefault(model, []).append(card)
    return {model: tuple(cards) for model, cards in found.items()}


def _raise_unknown(name: str) -> NoReturn:
    close = _close_names(canonical_name(name), find_vendor(name))
    advice = (
        f"Similar names: {', '.join(close)}."
        if close
        else "Use the name that nvidia-smi or torch shows."
    )
    raise UsageError(
        f"There is no card {name!r} in the table.",
        cure=f"{advice} docs/reference/hardware.md lists all {len(load_table().cards)}.",
    )


def _close_names(wanted: str, vendor: str | None) -> list[str]:
    makers = {row.key: row.vendor for row in load_table().generations}
    names = [n for n, card in _cards_by_name().items() if vendor in (None, makers[card.generation])]
    found = difflib.get_close_matches(wanted, names, n=8, cutoff=0.5)
    return list(dict.fromkeys(_cards_by_name()[name].name for name in found))[:5]
