"""Twelve training loops as people write them."""

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
from tests.support.matrix.networks import Adapted, Batch, Classifier, Gan, Recurrent
from tests.support.matrix.optimizers import OptimizerCase, Parameters, set_training
from tests.support.matrix.shape import OwnForward, Scaler, Shape, half


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
    """Four micro-batches per step, with clipping and gradient checkpointing."""

    config: ClassVar[dict[str, Any]] = {"accumulate": 4, "clip": {"max_norm": 0.1}}
    max_norm = 0.1
    micro_batches = 4

    def make_model(self) -> nn.Module:
        return Classifier(sparse=self.case.sparse, checkpointed=True)


class AccumulatedOwnForward(OwnForward):
    """Four micro-batches per step in a loop with its own forward pass, with clipping."""

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
