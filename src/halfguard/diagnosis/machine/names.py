"""A card's name, taken apart: which model it is, in which form, with how much memory.

People, torch and data sheets write one name in many ways. What tells two cards apart is the model
(``rtx 3080``), sometimes the form (``sxm 4``, ``pcie``) and the memory; a laptop's card, or a slice of a
card, has the model's name and not its figures. This module imports no torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# Words that say nothing about which chip it is.
_NOISE = re.compile(
    r"nvidia|geforce|tesla|amd|radeon|instinct|intel|apple|graphics|gpu|chip|with|design|founders|edition"
    r"|oam|r|tm"
)
# Words that say whose it is: an M4 is Apple's, and a Tesla M4 is not.
_VENDORS = {
    "NVIDIA": re.compile(r"nvidia|geforce|tesla|quadro"),
    "AMD": re.compile(r"amd|radeon|instinct"),
    "Intel": re.compile(r"intel|arc"),
    "Apple": re.compile(r"apple"),
}
_SLICE = re.compile(r"\bmig\b.*")
# Not the 10G of A10G: a size stands by itself.
_SIZE = re.compile(r"(?<![a-z\d.])(\d+)\s*g(?:i?b)?\b")
_FORM = re.compile(r"\b(sxm|pcie|nvl|hbm)(?: (\d))?(?: e)?\b")
_SMALLER = re.compile(r"\b(laptop|mobile|max q)$")


@dataclass(frozen=True)
class Name:
    """What a name says."""

    model: str
    form: str = ""
    size: int | None = None  # GB
    smaller: bool = False  # a laptop's card or a slice of one


def vendor_of(name: str) -> str | None:
    """Whose card it is, where the name has a word that says it."""
    for word in _words(name):
        for vendor, words in _VENDORS.items():
            if words.fullmatch(word):
                return vendor
    return None


def canonical(name: str) -> str:
    """A name without vendor, punctuation and case: ``NVIDIA GeForce RTX3090-Ti`` is ``rtx 3090 ti``."""
    words = _words(name)
    return " ".join(word for word in words if not _NOISE.fullmatch(word)) or " ".join(words)


def taken_apart(name: str) -> Name:
    """The parts of a name: ``NVIDIA A100-SXM4-40GB`` is the model ``a 100``, the form ``sxm 4`` and 40 GB."""
    whole = _SLICE.sub("", name.lower())
    size = _SIZE.search(whole)
    words = canonical(_SIZE.sub(" ", whole))
    forms = list(_FORM.finditer(words))
    # A bus says more than a kind of memory.
    form = next((f for f in forms if f[1] != "hbm"), forms[0] if forms else None)
    words = " ".join(_FORM.sub(" ", words).split())
    model = _SMALLER.sub("", words).strip()
    return Name(
        model=model,
        form="" if form is None else form[1] + (f" {form[2]}" if form[2] else ""),
        size=None if size is None else int(size[1]),
        smaller=model != words or whole != name.lower(),
    )


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z]+|\d+", name.lower().replace("pci-e", "pcie"))


def same_form(one: str, other: str) -> bool:
    """Whether two forms can be one: ``sxm`` is any ``sxm 4``, and no form is any form."""
    return one.startswith(other) or other.startswith(one)
