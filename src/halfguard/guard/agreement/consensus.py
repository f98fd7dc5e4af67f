"""One row of numbers for all ranks, so that every one of them takes the same decision.

What the ranks see of a step differs in the loss alone where gradients carry the rest: DDP averages them, so
that all have the same norm and the same overflow, and torch reduces both over a mesh of DTensors. There the
loss travels by itself, sent after the forward pass and awaited after the backward pass. Where gradients do
not tell everybody (a norm of shards that nobody asked torch for, experts or stages on meshes of their own),
overflow and norm travel with it, after the backward pass. Either way it is one sum of at most 40 bytes.

In the same sum goes, every so often, a fingerprint of what several ranks hold (``desync``). Alone, a rank
agrees with itself and nothing is sent or computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from halfguard.dist.collectives import Sum, all_reduce_max, world_size
from halfguard.dist.layout import Layout
from halfguard.guard.config import GuardConfig
from halfguard.guard.gradients import Gradients

DESYNC = 2.0  # added to found_inf, which is 0 or 1, where ranks that must be equal are not


@dataclass(frozen=True)
class Seen:
    """What a step looks like, to one rank or to all."""

    loss: Tensor
    norm: Tensor
    overflow: Tensor  # 1.0 where a gradient is not finite
    fault: Tensor  # the same, plus ``DESYNC`` where ranks that must be equal are not


class Consensus:
    """Brings together what the ranks see of each step."""

    def __init__(self, names: Sequence[str], layout: Layout, config: GuardConfig) -> None:
        self.alone = world_size() == 1
        self._power = 2.0 if config.clip is None else config.clip.norm_type
        # torch reduces the norm of a uniform mesh itself, and in its own order: with clipping, the
        # bare loop's order. Without clipping nobody asks for it, and we need not either. The largest
        # value has no order, and torch finds none in the empty part of a parameter smaller than the ranks.
        asked = config.clip is not None and math.isfinite(self._power)
        self.early = layout.replicated or (layout.carried and asked)
        self._sum: Sum | None = None
        self._announced: Tensor | None = None
        self._fingerprint: Tensor | None = None
        self._share = dict(zip(names, layout.shares, strict=True))
        self._names: list[str] = []
        self._shares: Tensor | None = None

    def announce(self, loss: Tensor, fingerprint: Tensor | None) -> None:
        """Say what the forward passes of a step gave, while the last backward pass runs."""
        if self._sum is not None:  # of a step that went on, with one more micro-batch
            self._sum.join()
        self._announced, self._fingerprint = loss, fingerprint
        self._sum = Sum(torch.cat(self._parts(loss))) if self.early else None

    def knows(self, loss: Tensor) -> bool:
        """Whether this is the loss that was announced, or there is nobody to announce it to."""
        return self.alone or loss is self._announced

    def forget(self) -> None:
        """Wait for nothing that was announced."""
        self._sum = self._announced = self._fingerprint = None

    def agree(
        self, loss: Tensor, gradients: Gradients, overflow: Tensor, *, repeated: bool = False
    ) -> Seen:
        """What all ranks see, the same on each of them.

        The gradients of a ``repeated`` step were not unscaled, so that torch told nobody of an overflow.
        """
        if self.alone:
            return Seen(loss, gradients.total, overflow, overflow)
        carried = self.early and not repeated
        extra = [] if carried else [overflow.view(1).double(), self._powers(gradients)]
        values = (self._sum or Sum(torch.cat([*self._parts(loss), *extra]))).join()
        norm = gradients.total
        if not carried:
            overflow = values[-2].clamp(max=1).float()
        if not self.early:
            norm = self._root(values[-1], norm)
        fault = overflow
        if self._fingerprint is not None:
            fault = overflow + DESYNC * (values[1:3] != 0).any()
        self.forget()
        return Seen(values[0].float(), norm, overflow, fault)

    def _parts(self, loss: Tensor) -> list[Tensor]:
        mine = loss.view(1).double() / world_size()
        return [mine] if self._fingerprint is None else [mine, self._fingerprint]

    def _powers(self, gradients: Gradients) -> Tensor:
        """This rank's part of the norm, to the power in which norms can be added."""
        norms = gradients.norms.double()
        if math.isinf(self._power):
            return norms.amax().view(1)  # found by a maximum of its own below
        if self._shares is None or self._names != gradients.names:
            self._names = gradients.names
            shares = [self._share[name] for name in gradients.names]
            self._shares = torch.tensor(shares, dtype=torch.float64).to(norms.device)
        return (norms.pow(self._power) * self._shares).sum().view(1)

    def _root(self, total: Tensor, mine: Tensor) -> Tensor:
        # The largest value of all is no sum: whoever clips by it on several meshes pays a second time.
        return (
            all_reduce_max(mine) if math.isinf(self._power) else total.pow(1 / self._power).to(mine)
        )
