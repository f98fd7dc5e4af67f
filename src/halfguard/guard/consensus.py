"""The gradients of a step, measured, and one row of numbers for all ranks, so that all decide alike.

If gradients are averaged by DDP, or reduced by torch over a mesh of DTensors, all ranks have the same norm
and the same overflow, and only the loss differs. Then the loss alone is summed: sent after the forward pass,
awaited after the backward pass. Otherwise (norms of shards that torch was not asked to reduce, experts or
stages on meshes of their own) overflow and norm are summed with it, after the backward pass. In both cases it
is one sum of at most 48 bytes.

The same sum carries, every ``desync.every`` steps, a fingerprint of the tensors that ranks share
(``desync``), and with ``heal`` the number of ranks that have an alarm. With a single rank nothing is sent or
computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype

from halfguard.dist.collectives import AsyncSum, all_reduce_max, world_size
from halfguard.dist.layout import Layout
from halfguard.dist.wrapping import full_tensor
from halfguard.guard.config import GuardConfig
from halfguard.numerics.tensor_rows import local_tensor, to_device

DESYNC = 2.0  # added to found_inf (0 or 1) if ranks that must be equal differ


@dataclass(frozen=True)
class Gradients:
    """The unscaled gradients of one step with the norm of each; the names are the user's own."""

    names: list[str]
    norms: Tensor  # one per parameter
    total: Tensor
    overflow: Tensor | None = None  # 1.0 where one of them, on any rank, is not finite

    def worst(self, at_most: int) -> list[tuple[str, float]]:
        """Return parameters with their norms: those that are not finite, or else the largest.

        This reads the device, so call it only for unusual steps.
        """
        named = list(zip(self.names, self.norms.tolist(), strict=True))
        bad = [(name, norm) for name, norm in named if not math.isfinite(norm)]
        ranked = bad or sorted(named, key=lambda pair: pair[::-1], reverse=True)
        return ranked[:at_most]


def measure(named: Sequence[tuple[str, Tensor]], norm_type: float = 2.0) -> Gradients:
    """Compute the norm of every gradient and the total norm, with the operations of ``clip_grad_norm_``.

    The total of DTensors covers all ranks; the norms per parameter cover the parts on this rank.
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
    if len(grouped) > 1:  # on several devices, or of several dtypes
        norms = [to_device(norm, first) for norm in norms]
    stacked = torch.stack(norms)
    total = torch.linalg.vector_norm(stacked, norm_type)
    return Gradients(
        [named[position][0] for position in order], local_tensor(stacked), full_tensor(total)
    )


@dataclass(frozen=True)
class StepMeasurements:
    """Loss, gradient norm and faults of a step, for one rank or for all."""

    loss: Tensor
    norm: Tensor
    overflow: Tensor  # 1.0 where a gradient is not finite
    fault: Tensor  # the same, plus ``DESYNC`` if ranks that must be equal differ
    alarms: Tensor | None = None  # the number of ranks with an alarm; None if nobody asks


class Consensus:
    """Combines the measurements of all ranks into one."""

    def __init__(self, names: Sequence[str], layout: Layout, config: GuardConfig) -> None:
        self.single_rank = world_size() == 1
        self._power = 2.0 if config.clip is None else config.clip.norm_type
        # torch reduces the norm of a uniform mesh itself, in the order of the bare loop's clipping. Without
        # clipping the bare loop computes no norm, so that order does not matter. An infinity norm does not
        # depend on order, and torch fails on the empty shard of a parameter with fewer rows than ranks.
        asked = config.clip is not None and math.isfinite(self._power)
        self.sums_early = layout.replicated or (layout.overflow_reaches_all and asked)
        self._sum: AsyncSum | None = None
        self._summed_loss: Tensor | None = None
        self._fingerprint: Tensor | None = None
        self._alarm: Tensor | None = None
        self._share = dict(zip(names, layout.shares, strict=True))
        self._names: list[str] = []
        self._shares: Tensor | None = None

    def start_sum(
        self, loss: Tensor, fingerprint: Tensor | None, alarm: Tensor | None = None
    ) -> None:
        """Start to sum the loss of a step, while its last backward pass runs."""
        if self._sum is not None:  # of a step that got one more micro-batch
            self._sum.wait()
        self._summed_loss, self._fingerprint, self._alarm = loss, fingerprint, alarm
        self._sum = AsyncSum(torch.cat(self._parts(loss))) if self.sums_early else None

    def has_sum_of(self, loss: Tensor) -> bool:
        """Return whether the sum of this loss was started, or is not needed."""
        return self.single_rank or loss is self._summed_loss

    def discard(self) -> None:
        """Drop a sum that was started."""
        self._sum = self._summed_loss = self._fingerprint = self._alarm = None

    def agree(
        self, loss: Tensor, gradients: Gradients, overflow: Tensor, *, repeated: bool = False
    ) -> StepMeasurements:
        """Return the measurements of all ranks together, the same on each of them.

        Gradients of a ``repeated`` step are not unscaled, so torch has not reduced their overflow.
        """
        if self.single_rank:
            return StepMeasurements(loss, gradients.total, overflow, overflow)
        carried = self.sums_early and not repeated
        extra = [] if carried else [overflow.view(1).double(), self._powers(gradients)]
        values = (self._sum or AsyncSum(torch.cat([*self._parts(loss), *extra]))).wait()
        norm = gradients.total
        if not carried:
            overflow = values[-2].clamp(max=1).float()
        if not self.sums_early:
            norm = self._root(values[-1], norm)
        fault = overflow
        if self._fingerprint is not None:
            fault = overflow + DESYNC * (values[1:3] != 0).any()
        alarms = None if self._alarm is None else values[1 if self._fingerprint is None else 3]
        self.discard()
        return StepMeasurements(values[0].float(), norm, overflow, fault, alarms)

    def _parts(self, loss: Tensor) -> list[Tensor]:
        mine = loss.view(1).double() / world_size()
        return [part for part in (mine, self._fingerprint, self._alarm) if part is not None]

    def _powers(self, gradients: Gradients) -> Tensor:
        """Return this rank's part of the norm, raised to the power in which norms add up."""
        norms = gradients.norms.double()
        if math.isinf(self._power):
            return norms.amax().view(1)  # reduced by a maximum of its own below
        if self._shares is None or self._names != gradients.names:
            self._names = gradients.names
            shares = [self._share[name] for name in gradients.names]
            self._shares = torch.tensor(shares, dtype=torch.float64).to(norms.device)
        return (norms.pow(self._power) * self._shares).sum().view(1)

    def _root(self, total: Tensor, mine: Tensor) -> Tensor:
        # A maximum is not a sum: infinity norms over several meshes need a second collective.
        return (
            all_reduce_max(mine) if math.isinf(self._power) else total.pow(1 / self._power).to(mine)
        )
