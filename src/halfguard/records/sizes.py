"""Bytes as people write them: ``2GB`` is 2,000,000,000 of them, ``2GiB`` 2,147,483,648."""

from __future__ import annotations

import re

from halfguard.errors import UsageError

_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def bytes_of(text: str) -> int:
    """The number of bytes that ``text`` names: ``"2GB"``, ``"512 MiB"``, ``"1.5g"``, ``"4096"``."""
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text!r} is not an amount of memory.", cure="Write 2GB, 512MiB, or a number of bytes."
        )
    number, unit = match.group(1), (match.group(2) or "").lower()
    base, power = 1024 if unit.endswith("i") else 1000, _POWERS[unit[:1]]
    return round(float(number) * float(base**power))


def size_text(count: float) -> str:
    """``1.6 GB``: three digits at most, in the unit that needs the fewest."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB" if count < 999.5 else f"{count:.0f} TB"
