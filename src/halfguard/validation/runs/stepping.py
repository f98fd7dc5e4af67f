"""One training step of a workload, as its author would have written it: bare, or with the guard.

Bare means torch's autocast and torch's GradScaler and nothing of ours: it is what a guarded candidate is
compared with. On a CPU both run under CUDA's autocast rules, because CUDA's are what the answer is about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from halfguard.guard import Guard
from halfguard.precision.emulation import as_on_cuda
from halfguard.precision.modes import Precision
from halfguard.precision.plans import apply_plan
from halfguard.records import Action
from halfguard.validation.runs.task import Setting
from halfguard.workload import Workload


@dataclass(frozen=True)
class Seen:
    """What one update attempt showed."""

    loss: float
    grad_norm: float
    scale: float
    applied: bool
    retried: bool = False


Step = Callable[[Any], Seen | None]


def make_step(workload: Workload, setting: Setting) -> Step:
    """Prepare the workload as ``setting`` says, and return what trains it on one batch."""
    precision = Precision(setting.precision)
    if setting.plan is not None:
        apply_plan(workload.model, setting.plan)
    workload.store_weights_as(precision)
    workload.model.train()
    if setting.guard is None:
        return BareStep(workload, precision)
    return GuardedStep(workload, precision, setting.guard)


class BareStep:
    """Autocast, scaled backward, step and update, in torch's own words."""

    def __init__(self, workload: Workload, precision: Precision) -> None:
        self.workload, self.precision = workload, precision
        self.scaler = torch.amp.GradScaler(workload.device.type, enabled=precision.needs_loss_scale)

    def __call__(self, batch: Any) -> Seen:
        """Train on one batch."""
        optimizer = self.workload.optimizer
        optimizer.zero_grad(set_to_none=True)
        with as_on_cuda(self.precision, self.workload.device):
            loss = self.workload.loss_of(batch)
        scale = self.scaler.get_scale()
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.scaler.unscale_(optimizer)
        grads = [grad for p in _trained(optimizer) if (grad := p.grad) is not None]
        finite = not self.scaler.is_enabled() or all(bool(g.isfinite().all()) for g in grads)
        norm = nn.utils.get_total_norm(grads).item() if grads else 0.0
        self.scaler.step(optimizer)
        self.scaler.update()
        return Seen(loss.item(), norm, scale, applied=finite)


class GuardedStep:
    """The guard's callable form."""

    def __init__(self, workload: Workload, precision: Precision, config: dict[str, Any]) -> None:
        self.workload, self.precision = workload, precision
        self.guard = Guard(workload.model, workload.optimizer, config)

    def __call__(self, batch: Any) -> Seen | None:
        """Train on one batch; None while the step waits for more of them."""
        outcome = self.guard.step(self._loss, batch)
        if outcome.action is Action.ACCUMULATE:
            return None
        scale = outcome.scale if self.guard.scaler.is_enabled() else 1.0
        retried = outcome.action is Action.RETRY
        return Seen(outcome.loss, outcome.grad_norm, scale, outcome.applied, retried)

    def _loss(self, _: nn.Module, batch: Any) -> Tensor:
        # A step that is repeated in FP32 arrives here with autocast off, and must stay there.
        with _same_rules(self.precision, self.workload.device):
            return self.workload.loss_of(batch)


@contextmanager
def _same_rules(precision: Precision, device: torch.device) -> Iterator[None]:
    if torch.is_autocast_enabled(device.type):
        with as_on_cuda(precision, device):
            yield
    else:
        yield


def _trained(optimizer: Optimizer) -> Iterator[Tensor]:
    return (p for group in optimizer.param_groups for p in group["params"])
