"""A share, with the interval that its size allows."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Rate:
    """A count of a total, with its 95% interval by Wilson."""

    hits: int
    total: int

    @property
    def interval(self) -> tuple[float, float]:
        if not self.total:
            return 0.0, 1.0
        z, rate = 1.959964, self.hits / self.total
        middle = rate + z * z / (2 * self.total)
        spread = z * math.sqrt(rate * (1 - rate) / self.total + z * z / (4 * self.total**2))
        whole = 1 + z * z / self.total
        return max(0.0, (middle - spread) / whole), min(1.0, (middle + spread) / whole)

    def __str__(self) -> str:
        if not self.total:
            return "-"
        low, high = self.interval
        return f"{self.hits} of {self.total} ({100 * low:.0f}-{high:.0%})"
