"""Parse the name of a card into model, form and memory size.

People, torch and data sheets write one name in many ways. Cards differ by the model (``rtx 3080``), sometimes
by the form (``sxm 4``, ``pcie``) and the memory. A laptop card, or a slice of a card, has the model's name
but not its figures. This module does not import torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# Words that do not identify the chip.
_NOISE = re.compile(
    r"nvidia|geforce|tesla|amd|radeon|instinct|intel|apple|graphics|gpu|chip|with|design|founders|edition"
    r"|oam|r|tm"
)
# Words that identify the vendor: an M4 is Apple's, but a Tesla M4 is NVIDIA's.
_VENDORS = {
    "NVIDIA": re.compile(r"nvidia|geforce|tesla|quadro"),
    "AMD": re.compile(r"amd|radeon|instinct"),
    "Intel": re.compile(r"intel|arc"),
    "Apple": re.compile(r"apple"),
}
_SLICE = re.compile(r"\bmig\b.*")
# A size is a word of its own, unlike the 10G of A10G.
_SIZE = re.compile(r"(?<![a-z\d.])(\d+)\s*g(?:i?b)?\b")
_FORM = re.compile(r"\b(sxm|pcie|nvl|hbm)(?: (\d))?(?: e)?\b")
_REDUCED = re.compile(r"\b(laptop|mobile|max q)$")


@dataclass(frozen=True)
class CardName:
    """The parts of a card's name."""

    model: str
    form: str = ""
    size: int | None = None  # GB
    reduced: bool = False  # a laptop card, or a slice of a card


def find_vendor(name: str) -> str | None:
    """Return the vendor, if a word of the name identifies it."""
    for word in _tokens(name):
        for vendor, words in _VENDORS.items():
            if words.fullmatch(word):
                return vendor
    return None


def canonical_name(name: str) -> str:
    """Drop vendor, punctuation and case: ``NVIDIA GeForce RTX3090-Ti`` becomes ``rtx 3090 ti``."""
    words = _tokens(name)
    return " ".join(word for word in words if not _NOISE.fullmatch(word)) or " ".join(words)


def parse_name(name: str) -> CardName:
    """Split a name: ``NVIDIA A100-SXM4-40GB`` has the model ``a 100``, the form ``sxm 4`` and 40 GB."""
    whole = _SLICE.sub("", name.lower())
    size = _SIZE.search(whole)
    words = canonical_name(_SIZE.sub(" ", whole))
    forms = list(_FORM.finditer(words))
    # The bus identifies a variant better than the kind of memory.
    form = next((f for f in forms if f[1] != "hbm"), forms[0] if forms else None)
    words = " ".join(_FORM.sub(" ", words).split())
    model = _REDUCED.sub("", words).strip()
    return CardName(
        model=model,
        form="" if form is None else form[1] + (f" {form[2]}" if form[2] else ""),
        size=None if size is None else int(size[1]),
        reduced=model != words or whole != name.lower(),
    )


def _tokens(name: str) -> list[str]:
    return re.findall(r"[a-z]+|\d+", name.lower().replace("pci-e", "pcie"))
