"""One plain training step: autocast, forward, scaled backward, optimizer step, scale update. No guard.

Probing, cost measurements and the bare candidates of a study all train with this step. So "bare" means the
same everywhere: torch's own autocast and torch's own GradScaler, and nothing of ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from halfguard.precision.emulation import autocast_like_cuda, hold_like_cuda
from halfguard.precision.modes import autocast
from halfguard.precision_names import Precision
from halfguard.step.parameters import parameters_of
from halfguard.workload.job import Workload

Advance = Callable[[], None]


class TrainingStep:
    """Trains a workload on one batch per call, in any precision.

    A caller that inspects or repeats parts of a step calls ``forward``, ``backward`` and ``update`` itself.
    ``cuda_rules`` applies CUDA's autocast rules on a CPU too; without it the device's own rules apply.
    """

    def __init__(
        self,
        workload: Workload,
        precision: Precision,
        *,
        cuda_rules: bool = True,
        init_scale: float = 65536.0,
    ) -> None:
        self.workload, self.precision, self.cuda_rules = workload, precision, cuda_rules
        self.scaler = torch.amp.GradScaler(
            workload.device.type, init_scale, enabled=precision.needs_loss_scale
        )
        self._unscaled = False
        self._hold = hold_like_cuda(precision, workload.device) if cuda_rules else None

    def __call__(self, batch: Any) -> Tensor:
        """Train on one batch and return its loss."""
        loss = self.forward(batch)
        self.backward(loss)
        self.update()
        return loss

    def forward(self, batch: Any) -> Tensor:
        """Clear the gradients and return the loss."""
        self.workload.optimizer.zero_grad(set_to_none=True)
        return self.loss_of(batch)

    def loss_of(self, batch: Any) -> Tensor:
        """Return the loss under autocast; gradients are not touched."""
        device = self.workload.device
        with (
            autocast_like_cuda(self.precision, device)
            if self.cuda_rules
            else autocast(self.precision, device.type)
        ):
            return self.workload.loss_of(batch)

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of the scaled loss."""
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def gradients(self) -> list[Tensor]:
        """Return the gradients of the optimizer's parameters."""
        params = parameters_of(self.workload.optimizer)
        return [grad for p in params if (grad := p.grad) is not None]

    def unscale(self) -> None:
        """Divide the gradients by the loss scale, once in a step."""
        if not self._unscaled:
            self.scaler.unscale_(self.workload.optimizer)
            self._unscaled = True

    def update(self) -> None:
        """Clip the gradients, step the optimizer unless one is not finite, then adapt the scale."""
        if self.workload.clip_norm is not None:
            self.unscale()
            self.clip()
        self.scaler.step(self.workload.optimizer)
        self.scaler.update()
        self._unscaled = False

    def clip(self) -> None:
        """Clip unscaled gradients to the workload's ``clip_norm``, if it has one."""
        if self.workload.clip_norm is not None:
            params = parameters_of(self.workload.optimizer)
            nn.utils.clip_grad_norm_(params, self.workload.clip_norm)


def final_loss(losses: Sequence[float]) -> float:
    """Return the mean over the last fifth of the steps, so that no single batch decides; NaN for no steps."""
    last = losses[-max(1, len(losses) // 5) :]
    return sum(last) / len(last) if last else math.nan
