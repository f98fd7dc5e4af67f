"""Sizes in bytes as text: ``2GB`` is 2,000,000,000 bytes, ``2GiB`` is 2,147,483,648."""

from __future__ import annotations

import re

from halfguard.errors import UsageError

_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_bytes(text: str) -> int:
    """Parse a size in bytes: ``"2GB"``, ``"512 MiB"``, ``"1.5g"``, ``"4096"``."""
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text!r} is not an amount of memory.", cure="Write 2GB, 512MiB, or a number of bytes."
        )
    number, unit = match.group(1), (match.group(2) or "").lower()
    base, power = 1024 if unit.endswith("i") else 1000, _POWERS[unit[:1]]
    return round(float(number) * float(base**power))


def format_bytes(count: float) -> str:
    """Return a size as text such as ``1.6 GB``, with at most three digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB" if count < 999.5 else f"{count:.0f} TB"
