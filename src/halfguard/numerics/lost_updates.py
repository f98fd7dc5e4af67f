"""Measure the share of weight updates that round to nothing, and the margin that the others have.

A weight stored in 16 bits changes only if its update exceeds half the distance to the next value. The ratio
of the two is the update's margin: below 1 the update is lost. Margins scale with the learning rate, so counts
of margins by binade tell also which share will be lost at any later rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from halfguard.formats import Format, for_dtype
from halfguard.numerics.histogram import HIGHEST, LOWEST, bin_index, count_rows
from halfguard.numerics.tensor_rows import TensorRows, in_list_order

FROZEN = 0.9  # of a layer's updates are lost: it has stopped to learn


@dataclass(frozen=True)
class UpdateMargins:
    """The margins of one tensor's updates, on the host."""

    lost: int
    """Updates that are not zero and leave the stored weight unchanged."""
    counts: tuple[int, ...]
    """Updates that are not zero, by the binade of their margin."""

    @property
    def updates(self) -> int:
        """The number of updates that are not zero."""
        return sum(self.counts)

    @property
    def share_lost(self) -> float:
        """The share of updates that are lost now."""
        return self.lost / self.updates if self.updates else 0.0

    def share_lost_at(self, factor: float) -> float:
        """Return the share that is lost if all updates are ``factor`` times as large."""
        if not self.updates or factor <= 0:
            return 1.0 if self.updates else 0.0
        limit = -math.log2(factor)  # margins below 2**limit are lost
        below = math.floor(limit)
        whole = sum(self.counts[: max(0, below - LOWEST)])
        inside = self.counts[below - LOWEST] if LOWEST <= below <= HIGHEST else 0
        return (whole + inside * (limit - below)) / self.updates


@dataclass(frozen=True)
class LostUpdates:
    """Counts on the device, one row per tensor."""

    lost: Tensor
    counts: Tensor

    def margins(self) -> list[UpdateMargins]:
        """Read the counts on the host. Waits for the device."""
        rows = torch.cat([self.lost.unsqueeze(1), self.counts], dim=1).tolist()
        return [UpdateMargins(lost, tuple(counts)) for lost, *counts in rows]


def joined(positions: list[int], parts: Sequence[LostUpdates]) -> LostUpdates:
    """Return the counts of several passes in the order of ``positions``."""
    return LostUpdates(
        in_list_order(positions, torch.cat([part.lost for part in parts])),
        in_list_order(positions, torch.cat([part.counts for part in parts])),
    )


def is_rounded_away(weights: Tensor, updates: Tensor, dtype: torch.dtype) -> Tensor:
    """Return where an update leaves a weight, which is stored in ``dtype``, as it is; both are float32."""
    return (weights + updates).to(dtype) == weights


def count_lost(weights: TensorRows, updates: Tensor, dtype: torch.dtype) -> LostUpdates:
    """Count over rows: ``updates`` has the layout of ``weights``, which are stored in ``dtype``."""
    lost = is_rounded_away(weights.data, updates, dtype) & (updates != 0)
    per_tensor = weights.reduce_rows(lost.sum(1).to(weights.numel.dtype), "sum", 0.0)
    ratios = updates.abs() / _half_distance(weights.data, for_dtype(dtype))
    # Near zero a ratio may overflow; such an update is not lost.
    counts = count_rows(weights._replace(data=ratios.clamp_(max=2.0**HIGHEST)))
    margins = counts[:, bin_index(LOWEST) : bin_index(HIGHEST) + 1]
    return LostUpdates(per_tensor.to(torch.int64), margins)


def _half_distance(weights: Tensor, stored: Format) -> Tensor:
    """Return half the distance from each weight to its neighbour away from zero."""
    # frexp's mantissa is in [0.5, 1), so its exponent is one above the binade.
    binade = (torch.frexp(weights).exponent - 1).clamp(min=1 - stored.bias)
    binade = binade.masked_fill(weights == 0, 1 - stored.bias)
    return torch.ldexp(torch.ones_like(weights), binade - stored.mantissa_bits - 1)


def freezing_step(
    margins: UpdateMargins, rates: Sequence[float], share: float = FROZEN
) -> int | None:
    """Return the first step of ``rates`` at which this share is lost; None if none is.

    ``rates`` are the learning rates of the steps to come, the first one that of the measured updates. The
    forecast assumes that the optimizer's direction keeps its size, as Adam's does; gradients that shrink
    freeze a layer earlier.
    """
    now = rates[0] if rates else 0.0
    if margins.updates == 0 or now <= 0:
        return None
    for step, rate in enumerate(rates):
        lost = margins.share_lost if rate == now else margins.share_lost_at(rate / now)
        if lost >= share:
            return step
    return None
