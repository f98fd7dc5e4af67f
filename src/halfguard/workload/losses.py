"""What a run's losses come to."""

from __future__ import annotations

import math
from collections.abc import Sequence


def final_loss(losses: Sequence[float]) -> float:
    """The mean over the last fifth of the steps, which one unlucky batch does not decide; NaN of none."""
    last = losses[-max(1, len(losses) // 5) :]
    return sum(last) / len(last) if last else math.nan
