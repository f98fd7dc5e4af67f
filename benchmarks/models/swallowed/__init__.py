"""Steps with a swallowed overflow each, and healthy steps full of infinities and zeros that do no harm.

A third of the planted faults is held out, by a hash of its name: nothing was tuned on them.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.models.swallowed import healthy_layers, healthy_losses, layers, losses
from benchmarks.models.swallowed.base import Planted, Step, is_held_out, line_of

PLANTED: tuple[Planted, ...] = (*layers.PLANTED, *losses.PLANTED)
HEALTHY: dict[str, Callable[[int], Step]] = healthy_layers.MODELS | healthy_losses.MODELS

__all__ = ["HEALTHY", "PLANTED", "Planted", "Step", "is_held_out", "line_of"]
