"""The answer to "may this step be applied?", given on the device.

All that the policy looks at is one small row of numbers: the loss, the gradient norm, whether a gradient
is not finite, and the loss scale. A row of limits beside it decides: the step passes where every number is
at most its limit, and since nothing is at most anything once it is NaN, one comparison finds spikes and
NaN alike. The same row travels to the host, where the policy finds the same answer and its cause.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from halfguard.guard.agreement.consensus import DESYNC
from halfguard.guard.policy import Limits, Signals

_LARGEST = torch.finfo(torch.float32).max


class Gate:
    """Holds the limits on the device, and builds the row of each step."""

    def __init__(self) -> None:
        self._limits: Limits | None = None
        self._row_limits: tuple[Tensor, Tensor] | None = None

    @staticmethod
    def row(loss: Tensor, total: Tensor, fault: Tensor, scale: Tensor) -> Tensor:
        """One step as four numbers: loss, gradient norm, found_inf (and desync), loss scale."""
        parts = (loss, total, fault, scale)
        device = fault.device
        return torch.stack([part.to(device, torch.float32, non_blocking=True) for part in parts])

    def refused(self, row: Tensor, limits: Limits) -> Tensor:
        """Whether the step must not be applied, as a boolean on the device."""
        low, high = self._on_device(limits, row.device)
        # Clamping changes whatever lies outside, and what is NaN is not equal to itself.
        return (row.clamp(low, high) != row).any()

    def _on_device(self, limits: Limits, device: torch.device) -> tuple[Tensor, Tensor]:
        if self._row_limits is None or limits != self._limits:
            high = [min(limits.loss, _LARGEST), min(limits.grad_norm, _LARGEST), 0.0, math.inf]
            low = [-_LARGEST] * 3 + [-math.inf]
            both = torch.tensor([low, high]).to(device, non_blocking=True)
            low_row, high_row = both.unbind()
            self._row_limits = low_row, high_row
            self._limits = limits
        return self._row_limits


def read(row: Sequence[float], limits: Limits) -> Signals:
    """The row on the host as what the policy understands."""
    loss, grad_norm, fault, scale = row
    return Signals(
        loss=loss,
        grad_norm=grad_norm,
        grads_finite=fault in {0, DESYNC},
        scale=scale,
        limits=limits,
        desync=fault >= DESYNC,
    )
