"""A training loop in two forms: one iteration with the guard, and the same iteration by hand.

A shape is a run: a model, its optimizers and what else the loop holds. By hand means torch's own scaler and
autocast. A scaler that is disabled makes the iteration by hand an iteration in FP32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel

import halfguard as hg
from halfguard.guard.stepping.outcome import StepOutcome
from tests.support.matrix.networks import Batch, Classifier, classification_loss
from tests.support.matrix.optimizers import OptimizerCase, Parameters, set_training

Scaler = torch.amp.GradScaler


class Shape:
    """The loop with a loss function: ``guard.step(loss_fn, batch)``."""

    config: ClassVar[dict[str, Any]] = {}
    max_norm: ClassVar[float | None] = None
    micro_batches: ClassVar[int] = 1
    updates: ClassVar[int] = 1  # of the guard, per iteration
    last_good: ClassVar[int] = 4  # iterations before the snapshot that a rollback returns to
    repeatable: ClassVar[bool] = True  # the guard has a loss function, and can repeat a step

    def __init__(self, case: OptimizerCase) -> None:
        self.case = case
        self.model: Any = self.make_model()
        self.optimizers: list[Any] = [case.make(part) for part in self.trained_parts()]
        self.scheduler: LambdaLR | None = None
        self.ema: AveragedModel | None = None
        self.lr_cut = 1.0
        for optimizer in self.optimizers:
            set_training(optimizer, training=True)

    def make_model(self) -> nn.Module:
        return Classifier(sparse=self.case.sparse)

    def trained_parts(self) -> list[Parameters]:
        """Return the parameters of each optimizer."""
        return [self.case.trainable(self.model)]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return classification_loss(model, batch)

    def prepare(self, iteration: int) -> None:
        """Do what this loop does before an iteration."""

    def keep_from(self, undone: Shape) -> None:
        """Take over from the iterations that a rollback undid what it does not undo."""

    @contextmanager
    def half_parts_in_fp32(self) -> Iterator[None]:
        """Keep weights and states in FP32 that are half otherwise, for an iteration in FP32."""
        yield

    def guarded(self, guard: hg.Guard, batches: Sequence[Batch]) -> list[StepOutcome]:
        """Run an iteration with the guard."""
        return [guard.step(self.loss, batch) for batch in batches]

    def by_hand(self, scaler: Scaler, batches: Sequence[Batch]) -> bool:
        """Run an iteration by hand; return whether it was applied."""
        for batch in batches:
            with half(scaler):
                loss = self.loss(self.model, batch)
            scaler.scale(loss / len(batches)).backward()
        return self._update(scaler)

    def _update(self, scaler: Scaler) -> bool:
        before = scaler.get_scale()
        if self.max_norm is not None:
            for optimizer in self.optimizers:
                scaler.unscale_(optimizer)
            clip(self.model, self.max_norm)
        for optimizer in self.optimizers:
            scaler.step(optimizer)
        scaler.update()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        applied = scaler.get_scale() >= before
        if applied:
            self._advance()
        return applied

    def _advance(self) -> None:
        """Advance scheduler and average; the scheduler does not see the cut of a rollback."""
        if self.scheduler is not None:
            self.multiply_rates(1 / self.lr_cut)
            self.scheduler.step()
            self.multiply_rates(self.lr_cut)
        if self.ema is not None:
            self.ema.update_parameters(self.model)

    def multiply_rates(self, factor: float) -> None:
        for group in (group for optimizer in self.optimizers for group in optimizer.param_groups):
            group["lr"] *= factor

    def state(self, scaler: Scaler) -> dict[str, Any]:
        """Return everything that a step may change."""
        return {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "ema": None if self.ema is None else self.ema.state_dict(),
            "scale": scaler.get_scale(),
            "growth": scaler._get_growth_tracker(),
            "gradients": [parameter.grad for parameter in self.model.parameters()],
        }


class OwnForward(Shape):
    """The loop with its own forward pass: ``guard.autocast()``, ``backward`` and ``update``."""

    repeatable = False

    def guarded(self, guard: hg.Guard, batches: Sequence[Batch]) -> list[StepOutcome]:
        for batch in batches:
            with guard.autocast():
                loss = self.loss(self.model, batch)
            guard.backward(loss, batch=batch)
        return [guard.update()]


def half(scaler: Scaler) -> torch.autocast:
    """Return the context of a forward pass by hand."""
    return torch.autocast("cpu", torch.float16, enabled=scaler.is_enabled())


def clip(model: nn.Module, max_norm: float) -> None:
    """Clip as torch does; its own function raises for sparse gradients."""
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    if not any(grad.is_sparse for grad in grads):
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        return
    norms = [torch.linalg.vector_norm(grad.coalesce().values()) for grad in grads]
    factor = max_norm / (torch.linalg.vector_norm(torch.stack(norms)) + 1e-6)
    for grad in grads:
        grad.mul_(factor.clamp(max=1.0))
