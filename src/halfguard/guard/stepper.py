"""One update on the device: unscale, measure, ask the gate, clip, step, new scale, restore or keep.

Everything here is the same for a step that passes and for one that is refused; nothing waits for the
answer unless the caller has it. In the order of a careful loop, and with its very operations, so that a
healthy run is bitwise the one without us.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_
from torch.optim import Optimizer

from halfguard.errors import UsageError
from halfguard.guard import rng
from halfguard.guard.buffers import Buffers
from halfguard.guard.config import GuardConfig
from halfguard.guard.gate import Gate, Gradients, measure
from halfguard.guard.policy import Limits
from halfguard.guard.scaler import GradScaler
from halfguard.guard.window import Window, loss_of
from halfguard.precision.master_weights import MasterWeights
from halfguard.precision.modes import full_precision


class Stepper:
    """Owns what an update touches: parameters by name, optimizers, scaler, buffers."""

    def __init__(self, model: nn.Module, optimizers: list[Optimizer], config: GuardConfig) -> None:
        self.model = model
        self.optimizers = optimizers
        self.config = config
        self.device = _device_of(model)
        self.scaler = _scaler(config, self.device)
        self.buffers = Buffers(model, config.buffers)
        self._gate = Gate()
        self._named = _by_name(model, optimizers)
        self._had_their_turn: set[int] = set()

    @property
    def fused(self) -> bool:
        """Whether every optimizer can skip a step by itself, so that nobody must wait for the answer."""
        return all(getattr(o, "_step_supports_amp_scaling", False) for o in self.optimizers)

    def backward(self, part: Tensor) -> Tensor:
        """Scaled backward pass of a micro-batch's part of the loss; returns that part without graph."""
        self.scaler.scale(part).backward()
        if self.config.accumulate > 1:
            for optimizer in self.optimizers:
                if isinstance(optimizer, MasterWeights):
                    optimizer.collect_gradients()  # the sum over micro-batches is taken in FP32
        return self.scaler.last_loss

    def examine(
        self, optimizers: Sequence[Optimizer], window: Window, limits: Limits
    ) -> tuple[Tensor, Tensor, Gradients]:
        """Unscale and measure: the row of the step, whether the gate refuses it, and its gradients."""
        if any(id(optimizer) in self._had_their_turn for optimizer in optimizers):
            self._end_round()  # a second turn before the others had theirs, as a critic may have
        for optimizer in optimizers:
            self.scaler.unscale_(optimizer)
        gradients = self._measure(optimizers)
        found = [self.scaler.found_inf(optimizer) for optimizer in optimizers]
        overflow = (
            found[0] if len(found) == 1 else torch.stack([f.to(found[0]) for f in found]).amax()
        )
        scale = self.scaler._get_scale_async()
        if window.loss is None or scale is None:
            raise UsageError("An update was asked for without a backward pass since the last one.")
        row = self._gate.row(window.loss, gradients.total, overflow, scale)
        return row, self._gate.refused(row, limits), gradients

    def apply(
        self,
        optimizers: Sequence[Optimizer],
        gradients: Gradients,
        refused: Tensor,
        known: bool | None,
    ) -> None:
        """Clip and step where not refused; then the new scale, and buffers as they were if refused.

        ``known`` is the answer where it has been read, and None where it is still on the device.
        """
        if not known:
            self._clip(optimizers, gradients)
        refusal = refused.to(torch.float32)
        for optimizer in optimizers:
            self.scaler.refuse(optimizer, refusal, known=known)
            self.scaler.step(optimizer)
            self._had_their_turn.add(id(optimizer))
        if len(self._had_their_turn) == len(self.optimizers):
            self._end_round()
        if known is None:
            self.buffers.restore_where(refused)
        elif known:
            self.buffers.restore()
        self.clear()

    def repeat(self, window: Window) -> tuple[Tensor, Gradients]:
        """The whole step once more in FP32: same batches, random state and buffers, no loss scale."""
        loss: Tensor | None = None
        for micro in window.micro_batches:
            if micro.loss_fn is None or micro.rng is None:
                raise UsageError("Only a step made by guard.step(loss_fn, batch) can be repeated.")
            rng.restore(micro.rng)
            with full_precision(self.device.type):
                part = loss_of(micro.loss_fn(self.model, micro.batch))
            part = part if self.config.accumulate == 1 else part / self.config.accumulate
            part.backward()  # type: ignore[no-untyped-call]
            loss = part.detach() if loss is None else loss + part.detach()
        gradients = self._measure(self.optimizers)
        if loss is None:
            raise UsageError("There is no micro-batch to repeat.")
        sick = 1 - gradients.norms.isfinite().all().to(torch.float32)
        return self._gate.row(loss, gradients.total, sick, torch.ones_like(sick)), gradients

    def apply_repeated(self, gradients: Gradients) -> None:
        """Clip and step with the gradients of a repeated step, which were never scaled."""
        self._clip(self.optimizers, gradients)
        for optimizer in self.optimizers:
            optimizer.step()
        self.clear()

    def discard(self) -> None:
        """Leave no trace of a repeated step."""
        self.buffers.restore()
        self.clear()

    def clear(self) -> None:
        """Clear all gradients, also those that one optimizer's loss left in another's parameters."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def _end_round(self) -> None:
        self.scaler.update()
        self._had_their_turn.clear()

    def _clip(self, optimizers: Sequence[Optimizer], gradients: Gradients) -> None:
        if self.config.clip is not None:
            parameters = [p for o in optimizers for p in parameters_of(o)]
            clip_grads_with_norm_(parameters, self.config.clip.max_norm, gradients.total)

    def _measure(self, optimizers: Sequence[Optimizer]) -> Gradients:
        turn = {id(o) for o in optimizers}
        named = [
            (name, p.grad) for name, p, owner in self._named if owner in turn and p.grad is not None
        ]
        if not named:
            raise UsageError(
                "No parameter of the optimizer has a gradient.",
                cure="Either the loss does not depend on them, or the optimizer was built before "
                "model.to(device) replaced them.",
            )
        return measure(named, 2.0 if self.config.clip is None else self.config.clip.norm_type)


def parameters_of(optimizer: Optimizer) -> Iterator[Tensor]:
    """Every parameter that an optimizer updates."""
    return (p for group in optimizer.param_groups for p in group["params"])


def _by_name(model: nn.Module, optimizers: Sequence[Optimizer]) -> list[tuple[str, Tensor, int]]:
    """Every optimized parameter with its name and optimizer, in the order of the model."""
    owners = {id(p): id(o) for o in optimizers for p in parameters_of(o)}
    masters: dict[Tensor, Tensor] = {}
    for optimizer in optimizers:
        if isinstance(optimizer, MasterWeights):
            masters |= optimizer.masters()
    named = [(name, masters.get(p, p)) for name, p in model.named_parameters()]
    known = {id(p) for _, p in named}
    # An optimizer may hold what is not part of the model, such as a learned temperature.
    extra = [p for o in optimizers for p in parameters_of(o) if id(p) not in known]
    named += [(f"optimizer parameter {index}", p) for index, p in enumerate(extra)]
    return [(name, p, owners[id(p)]) for name, p in named if id(p) in owners]


def _device_of(model: nn.Module) -> torch.device:
    for parameter in model.parameters():
        return parameter.device
    raise UsageError("The model has no parameters, so there is nothing to guard.")


def _scaler(config: GuardConfig, device: torch.device) -> GradScaler:
    if config.precision not in {"fp16-mixed", "fp16-weights"}:
        return GradScaler(device.type, init_scale=1.0, floor=1.0, ceiling=1.0)
    scale = config.scale
    return GradScaler(
        device.type,
        init_scale=scale.init,
        growth_factor=scale.growth_factor,
        backoff_factor=scale.backoff_factor,
        growth_interval=scale.growth_interval,
        floor=scale.floor,
        ceiling=scale.ceiling,
    )
