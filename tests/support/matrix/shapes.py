"""A training loop in two forms: one iteration with the guard, and the same iteration by hand.

A shape is a run: a model, its optimizers and what else the loop holds. By hand means torch's own scaler and
autocast. A scaler that is disabled makes the iteration by hand an iteration in FP32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import halfguard as hg
from halfguard.guard.stepping.outcome import StepOutcome
from tests.support.matrix.networks import (
    Adapted,
    Batch,
    Classifier,
    Gan,
    Recurrent,
    classification_loss,
)
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


class Evaluated(OwnForward):
    """The loop with its own forward pass, and an evaluation after every iteration."""

    def guarded(self, guard: hg.Guard, batches: Sequence[Batch]) -> list[StepOutcome]:
        outcomes = super().guarded(guard, batches)
        with self._evaluation(), guard.autocast():
            self.loss(self.model, batches[0])
        return outcomes

    def by_hand(self, scaler: Scaler, batches: Sequence[Batch]) -> bool:
        applied = super().by_hand(scaler, batches)
        with self._evaluation(), half(scaler):
            self.loss(self.model, batches[0])
        return applied

    @contextmanager
    def _evaluation(self) -> Iterator[None]:
        self.model.eval()
        set_training(self.optimizers[0], training=False)
        with torch.no_grad():
            yield
        self.model.train()
        set_training(self.optimizers[0], training=True)


class Accumulated(Shape):
    """Three micro-batches per step (not a power of 2), with clipping and gradient checkpointing."""

    config: ClassVar[dict[str, Any]] = {"accumulate": 3, "clip": {"max_norm": 0.1}}
    max_norm = 0.1
    micro_batches = 3

    def make_model(self) -> nn.Module:
        return Classifier(sparse=self.case.sparse, checkpointed=True)


class AccumulatedOwnForward(OwnForward):
    """Three micro-batches per step in a loop with its own forward pass, with clipping."""

    config: ClassVar[dict[str, Any]] = Accumulated.config
    max_norm = Accumulated.max_norm
    micro_batches = Accumulated.micro_batches


class InTurn(Shape):
    """Two optimizers in turn over one graph, as a GAN has."""

    updates = 2
    repeatable = False

    def make_model(self) -> nn.Module:
        return Gan(sparse=self.case.sparse)

    def trained_parts(self) -> list[Parameters]:
        return [self.case.trainable(self.model.critic), self.case.trainable(self.model.generator)]

    def guarded(self, guard: hg.Guard, batches: Sequence[Batch]) -> list[StepOutcome]:
        (batch,), outcomes = batches, []
        for optimizer, loss_fn in self._turns():
            with guard.autocast():
                loss = loss_fn(batch)
            guard.backward(loss, batch=batch)
            outcomes.append(guard.update(optimizer))
        return outcomes

    def by_hand(self, scaler: Scaler, batches: Sequence[Batch]) -> bool:
        (batch,), before = batches, scaler.get_scale()
        for optimizer, loss_fn in self._turns():
            with half(scaler):
                loss = loss_fn(batch)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            self.model.zero_grad()
        scaler.update()
        return scaler.get_scale() >= before

    def _turns(self) -> Iterator[tuple[Any, Callable[[Batch], Tensor]]]:
        yield from zip(
            self.optimizers, (self.model.critic_loss, self.model.generator_loss), strict=True
        )


class AtOnce(Shape):
    """Two optimizers, one for the encoder and one for the head, updated at once."""

    def trained_parts(self) -> list[Parameters]:
        encoder = nn.ModuleList([self.model.first, self.model.norm, self.model.middle])
        return [self.case.trainable(encoder), self.case.trainable(self.model.last)]


class Scheduled(Shape):
    """A scheduler, an average of the weights (EMA) and clipping, with BatchNorm; all left to the guard."""

    config: ClassVar[dict[str, Any]] = {"clip": {"max_norm": 0.1}}
    max_norm = 0.1

    def __init__(self, case: OptimizerCase) -> None:
        super().__init__(case)
        owner = getattr(self.optimizers[0], "base", self.optimizers[0])  # inside a wrapper
        self.scheduler = LambdaLR(owner, lambda step: 0.9**step)
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def make_model(self) -> nn.Module:
        return Classifier(sparse=self.case.sparse, batchnorm=True)


class Compiled(Shape):
    """A compiled model."""

    def make_model(self) -> nn.Module:
        torch._dynamo.reset()  # a run compiles its own model, and reaches no limit of recompilations
        model: Any = torch.compile(super().make_model(), backend="aot_eager")
        return model  # type: ignore[no-any-return]


class ContextOnce(OwnForward):
    """An autocast context of the loop's own, made once; the model has BatchNorm."""

    def __init__(self, case: OptimizerCase) -> None:
        super().__init__(case)
        self.context = torch.autocast("cpu", torch.float16)

    def make_model(self) -> nn.Module:
        return Classifier(sparse=self.case.sparse, batchnorm=True)

    def guarded(self, guard: hg.Guard, batches: Sequence[Batch]) -> list[StepOutcome]:
        (batch,) = batches
        with self.context:
            loss = self.loss(self.model, batch)
        guard.backward(loss, batch=batch)
        return [guard.update()]


class Adapters(Shape):
    """Adapters over a frozen half base."""

    def make_model(self) -> nn.Module:
        return Adapted(sparse=self.case.sparse)

    @contextmanager
    def half_parts_in_fp32(self) -> Iterator[None]:
        self.model.base.float()
        yield
        self.model.base.half()


class UnfrozenLater(Shape):
    """A model whose first layers are frozen for three iterations."""

    last_good = 3  # the parameters were added then, and snapshots from before do not fit

    def trained_parts(self) -> list[Parameters]:
        self.frozen = nn.ModuleList([self.model.first, self.model.norm, self.model.middle])
        self.frozen.requires_grad_(False)
        return [self.case.trainable(self.model.last)]

    def prepare(self, iteration: int) -> None:
        if iteration >= self.last_good and len(self.optimizers[0].param_groups) == 1:
            self.frozen.requires_grad_(True)
            self.optimizers[0].add_param_group({"params": self.case.trainable(self.frozen)})
            set_training(self.optimizers[0], training=True)


class Truncated(Shape):
    """Truncated backpropagation through time: the model keeps a hidden state from step to step."""

    def make_model(self) -> nn.Module:
        return Recurrent(sparse=self.case.sparse)

    def by_hand(self, scaler: Scaler, batches: Sequence[Batch]) -> bool:
        before = self.model.hidden
        applied = super().by_hand(scaler, batches)
        if not applied:
            self.model.hidden = before
        return applied

    @contextmanager
    def half_parts_in_fp32(self) -> Iterator[None]:
        self.model.hidden = self.model.hidden.float()
        yield

    def keep_from(self, undone: Shape) -> None:
        self.model.hidden = undone.model.hidden

    def state(self, scaler: Scaler) -> dict[str, Any]:
        return super().state(scaler) | {"hidden": self.model.hidden}


SHAPES: dict[str, type[Shape]] = {
    "step": Shape,
    "own forward": Evaluated,
    "accumulated": Accumulated,
    "accumulated own forward": AccumulatedOwnForward,
    "optimizers in turn": InTurn,
    "optimizers at once": AtOnce,
    "scheduler and EMA": Scheduled,
    "compiled": Compiled,
    "context made once": ContextOnce,
    "adapters": Adapters,
    "unfrozen later": UnfrozenLater,
    "truncated": Truncated,
}
