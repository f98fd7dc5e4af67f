"""The answer to "may this step be applied?", given on the device.

All that the policy looks at is one small row of numbers: the loss, the gradient norm, whether a gradient
is not finite, and the loss scale. A row of limits beside it decides: the step passes where every number is
at most its limit, and since nothing is at most anything once it is NaN, one comparison finds spikes and
NaN alike. The same row travels to the host, where the policy finds the same answer and its cause.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype

from halfguard.dist.wrapping import local, whole
from halfguard.guard.policy import Limits, Signals

_LARGEST = torch.finfo(torch.float32).max
DESYNC = 2.0  # added to found_inf, which is 0 or 1, where ranks that must be equal are not


@dataclass(frozen=True)
class Gradients:
    """The unscaled gradients of one step with the norm of each; the names are the user's own."""

    names: list[str]
    norms: Tensor  # one a parameter
    total: Tensor
    overflow: Tensor | None = None  # 1.0 where one of them, on any rank, is not finite

    def worst(self, at_most: int) -> list[tuple[str, float]]:
        """The parameters to blame with their norms: those that are not finite, else the largest.

        This reads the device, so it is for unusual steps.
        """
        named = list(zip(self.names, self.norms.tolist(), strict=True))
        sick = [(name, norm) for name, norm in named if not math.isfinite(norm)]
        ranked = sick or sorted(named, key=lambda pair: pair[::-1], reverse=True)
        return ranked[:at_most]


def measure(named: Sequence[tuple[str, Tensor]], norm_type: float = 2.0) -> Gradients:
    """The norm of every gradient and of all of them, by the operations of ``clip_grad_norm_``.

    The total of DTensors is that of all ranks; the norms are those of the parts on this one.
    """
    grads = [grad.coalesce().values() if grad.is_sparse else grad for _, grad in named]
    first = grads[0].device
    norms: list[Tensor] = []
    order: list[int] = []
    # torch's own grouping: the order of the norms decides the last bit of their sum.
    lists: Any = [grads]
    grouped: Any = _group_tensors_by_device_and_dtype(lists, with_indices=True)
    for [group], positions in grouped.values():
        norms += torch._foreach_norm(group, norm_type)
        order += positions
    stacked = torch.stack([norm.to(first, non_blocking=True) for norm in norms])
    total = torch.linalg.vector_norm(stacked, norm_type)
    return Gradients([named[position][0] for position in order], local(stacked), whole(total))


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
