"""One update on the device: unscale, measure, ask the gate, clip, step, new scale, restore or keep.

Everything here is the same for a step that passes and for one that is refused; nothing waits for the
answer unless the caller has it. In the order of a careful loop, and with its very operations, so that a
healthy run is bitwise the one without us.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_
from torch.optim import Optimizer

from halfguard.dist.layout import layout_of
from halfguard.dist.wrapping import (
    Wrappers,
    is_spread,
    local,
    reduce_partial,
    unwrapped,
    widen,
)
from halfguard.errors import UsageError
from halfguard.guard.agreement.consensus import Consensus
from halfguard.guard.agreement.desync import Replicas
from halfguard.guard.config import GuardConfig
from halfguard.guard.gradients import Gradients, measure
from halfguard.guard.policy import Limits
from halfguard.guard.protocols import parameters_of
from halfguard.guard.step_batches import MicroBatch, Window, loss_of
from halfguard.guard.stepping.buffers import Buffers
from halfguard.guard.stepping.gate import Gate
from halfguard.guard.stepping.scaler import GradScaler
from halfguard.precision.master_weights import MasterWeights
from halfguard.precision.modes import full_precision
from halfguard.step.random_state import restore_random_state


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
        self._wrappers = Wrappers(model)
        self._had_their_turn: set[int] = set()
        self._precision = config.precision  # what FSDP2's policy was made for
        self._narrow_again: Callable[[], None] | None = None
        self._expected = config.accumulate  # backward passes after which a step is complete
        self.replicas = Replicas(model, optimizers, self._scale)
        self._stock: list[tuple[list[Tensor], int]] = []  # the optimizers' lists of parameters
        self.take_stock()

    @property
    def fused(self) -> bool:
        """Whether every optimizer can skip a step by itself, so that nobody must wait for the answer."""
        return all(getattr(o, "_step_supports_amp_scaling", False) for o in self.optimizers)

    @property
    def alone(self) -> bool:
        """Whether there is nobody to agree with."""
        return self._consensus.alone

    def micro_batch(self, window: Window) -> AbstractContextManager[Any]:
        """The context for the passes of one micro-batch: ranks reduce gradients with the last one."""
        if self.config.accumulate == 1 or self.alone:
            return nullcontext()
        window.held_back = self._holds_back(len(window.micro_batches))
        return self._wrappers.holding_gradients_back(window.held_back)

    def _holds_back(self, index: int) -> bool:
        # Master weights take each micro-batch's gradients away, and must get them averaged.
        collected = any(isinstance(optimizer, MasterWeights) for optimizer in self.optimizers)
        return index + 1 < self.config.accumulate and not collected

    def reconfigure(self, config: GuardConfig) -> None:
        """Go on with another configuration; FP32 as a remedy reaches FSDP2's policy as well."""
        wide = config.precision == "fp32" != self._precision
        if wide and self._narrow_again is None:
            self._narrow_again = widen(self.model)
        elif not wide and self._narrow_again is not None:
            self._narrow_again()
            self._narrow_again = None
        self.config = config
        self.scaler.set_growth_interval(config.scale.growth_interval)

    def backward(self, part: Tensor, micro: MicroBatch, window: Window, *, check: bool) -> None:
        """Scaled backward pass of a micro-batch's part of the loss, which is added to the window.

        When the window is complete the other ranks are told its loss before the pass begins; ``check``
        asks them as well whether they are still equal.
        """
        scaled = self.scaler.scale(part)
        window.add(self.scaler.last_loss, micro)
        if len(window.micro_batches) == self._expected:
            self._announce(window, check=check)
        scaled.backward()
        if self.config.accumulate > 1:
            for optimizer in self.optimizers:
                if isinstance(optimizer, MasterWeights):
                    optimizer.collect_gradients()  # the sum over micro-batches is taken in FP32

    def examine(
        self, optimizers: Sequence[Optimizer], window: Window, limits: Limits, *, check: bool
    ) -> tuple[Tensor, Tensor, Gradients]:
        """Unscale and measure: the row of the step, whether the gate refuses it, and its gradients."""
        if any(id(optimizer) in self._had_their_turn for optimizer in optimizers):
            self._end_round()  # a second turn before the others had theirs, as a critic may have
        self._reduce_partial(optimizers)
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
        if not self._consensus.knows(window.loss):
            self._announce(window, check=check)
        self._expected = len(window.micro_batches)
        seen = self._consensus.agree(window.loss, gradients, overflow)
        if not self._consensus.alone:
            self.scaler.testify(seen.loss)
        row = self._gate.row(seen.loss, seen.norm, seen.fault, scale)
        return (
            row,
            self._gate.refused(row, limits),
            replace(gradients, total=seen.norm, overflow=seen.overflow),
        )

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
            self.scaler.refuse(optimizer, refusal, overflow=gradients.overflow, known=known)
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
        narrow_again = widen(self.model)
        try:
            parts = [self._repeat(micro, index) for index, micro in enumerate(window.micro_batches)]
        finally:
            narrow_again()
        self._reduce_partial(self.optimizers)
        gradients = self._measure(self.optimizers)
        sick = 1 - gradients.norms.isfinite().all().to(torch.float32)
        seen = self._consensus.agree(sum(parts[1:], parts[0]), gradients, sick, repeated=True)
        row = self._gate.row(seen.loss, seen.norm, seen.overflow, torch.ones_like(sick))
        return row, replace(gradients, total=seen.norm)

    def _repeat(self, micro: MicroBatch, index: int) -> Tensor:
        if micro.loss_fn is None or micro.rng is None:
            raise UsageError("Only a step made by guard.step(loss_fn, batch) can be repeated.")
        restore_random_state(micro.rng)
        with self._wrappers.holding_gradients_back(self._holds_back(index)):
            with full_precision(self.device.type):
                part = loss_of(micro.loss_fn(self.model, micro.batch))
            part = part if self.config.accumulate == 1 else part / self.config.accumulate
            part.backward()  # type: ignore[no-untyped-call]
        return part.detach()

    def apply_repeated(self, gradients: Gradients) -> None:
        """Clip and step with the gradients of a repeated step, which were never scaled."""
        self._clip(self.optimizers, gradients)
        for optimizer in self.optimizers:
            optimizer.step()
        self.clear()

    def discard(self) -> None:
        """Leave no trace of a step that is given up."""
        self._consensus.forget()
        self._wrappers.forget_gradients()
        self.scaler.forget_witnesses()
        self.buffers.restore()
        self.clear()

    def take_stock(self) -> bool:
        """Find out what is updated, and where it lies, if that is not what it was; whether it was not."""
        lists = [group["params"] for o in self.optimizers for group in o.param_groups]
        before, self._stock = self._stock, [(one, len(one)) for one in lists]
        if len(before) == len(lists) and all(
            one is other and length == len(one)
            for (other, length), one in zip(before, lists, strict=True)
        ):
            return False
        self._named = _by_name(unwrapped(self.model), self.optimizers)
        updated = [(name, parameter) for name, parameter, _ in self._named]
        # Master weights are updated, but it is the half parameters that lie on the ranks.
        own = dict(unwrapped(self.model).named_parameters())
        held = [own.get(name, parameter) for name, parameter in updated]
        layout = layout_of(self.model, held)
        self.private = {  # held by this rank alone: experts, pipeline stages
            id(p)
            for p, who in zip(held, layout.holders, strict=True)
            if who.count == 1 and not is_spread(p)
        }
        self._consensus = Consensus([name for name, _ in updated], layout, self.config)
        self.replicas.hold(updated, layout)
        return True

    def clear(self) -> None:
        """Clear all gradients, also those that one optimizer's loss left in another's parameters."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def _announce(self, window: Window, *, check: bool) -> None:
        assert window.loss is not None  # noqa: S101 - a window that is complete has one
        if self._wrappers.joining:
            raise UsageError(
                "DDP's join() lets ranks stop early, and a rank that has stopped takes part in no decision.",
                cure="Give every rank the same number of batches: DistributedSampler(drop_last=True).",
            )
        if not self._consensus.alone:
            fingerprint = self.replicas.fingerprint() if check else None
            self._consensus.announce(window.loss, fingerprint)

    def _scale(self) -> list[tuple[str, Tensor]]:
        """The state of the loss scale, for comparison between ranks."""
        scale, tracker = self.scaler._scale, self.scaler._growth_tracker
        return (
            []
            if scale is None or tracker is None
            else [("loss scale", scale), ("its age", tracker)]
        )

    def _end_round(self) -> None:
        self.scaler.update()
        self._had_their_turn.clear()

    def _reduce_partial(self, optimizers: Sequence[Optimizer]) -> None:
        if not self.replicas.complete:
            for parameter in (p for optimizer in optimizers for p in parameters_of(optimizer)):
                reduce_partial(parameter)

    def _clip(self, optimizers: Sequence[Optimizer], gradients: Gradients) -> None:
        if self.config.clip is None:
            return
        clipped: Any = [p for o in optimizers for p in parameters_of(o) if p.grad is not None]
        if not self._consensus.early:
            # torch multiplies tensors of one mesh at a time; each rank its own.
            clipped = [SimpleNamespace(grad=local(p.grad)) for p in clipped]
        clip_grads_with_norm_(clipped, self.config.clip.max_norm, gradients.total)

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
        if not self._consensus.early:  # each rank measures what it holds; the sum is taken there
            named = [(name, _own_part(grad)) for name, grad in named]
        return measure(named, 2.0 if self.config.clip is None else self.config.clip.norm_type)


def _own_part(grad: Tensor) -> Tensor:
    part = local(grad)
    return part if part.numel() else part.new_zeros(1)  # nothing has no largest value


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
