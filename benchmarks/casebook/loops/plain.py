"""Loops that users write: with halfguard, torch's scaler, a pasted check, an optimizer that skips."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

import halfguard as hg
from benchmarks.casebook.loops.faults import Batch, LoopParts


class Guarded:
    """``hg.Guard``, which repeats in FP32 what half cannot do."""

    def __init__(self, parts: LoopParts) -> None:
        config = {
            "scale": {"init": parts.initial_scale},
            "skip": {"on_nonfinite": "retry_fp32"},
            "accumulate": parts.accumulate,
        }
        self.parts = parts
        self.guard = hg.Guard(parts.model, parts.optimizer, config, scheduler=parts.scheduler)

    def train(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            self.guard.step(self.parts.loss, batch)

    def loss_scale(self) -> float | None:
        return self.guard.scaler.get_scale()


class Scaled:
    """The loop of torch's AMP examples."""

    def __init__(self, parts: LoopParts) -> None:
        self.parts = parts
        self.scaler = torch.amp.GradScaler("cpu", init_scale=parts.initial_scale)

    def train(self, batches: Sequence[Batch]) -> None:
        parts = self.parts
        for number, batch in enumerate(batches, 1):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = parts.loss(parts.model, batch) / parts.accumulate
            if self.leaves_out(loss):
                continue
            self.scaler.scale(loss).backward()
            if number % parts.accumulate == 0:
                self.scaler.step(parts.optimizer)
                self.scaler.update()
                parts.optimizer.zero_grad()
                parts.scheduler.step()

    def leaves_out(self, _loss: Tensor) -> bool:
        return False

    def loss_scale(self) -> float | None:
        return self.scaler.get_scale()


class Pasted(Scaled):
    """The same with the lines that answers on the web recommend."""

    def leaves_out(self, _loss: Tensor) -> bool:
        return bool(torch.isnan(_loss))  # and continue


class SkipStepAdamW(torch.optim.AdamW):
    """AdamW that leaves out a step whose gradient norm is six deviations above the last ones.

    The decision is a factor of 0 or 1 on the device, as in trainers that never wait for it.
    """

    def __init__(self, parameters: Any, *, window: int = 128, **options: Any) -> None:
        super().__init__(parameters, **options)
        self.norms: deque[Tensor] = deque(maxlen=window)

    def factor(self, norm: Tensor) -> Tensor:
        if len(self.norms) < 2:
            return norm.new_ones(())
        past = torch.stack(list(self.norms))
        return (norm <= past.mean() + 6 * past.std()).to(norm.dtype)

    @torch.no_grad()
    def step(self, _closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        weights = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        gradients = [p.grad for p in weights if p.grad is not None]
        norm = torch.stack([g.float().norm() for g in gradients]).norm()
        factor = self.factor(norm)
        self.norms.append(norm)
        group = self.param_groups[0]
        (b1, b2), rate, eps = group["betas"], group["lr"], group["eps"]
        for weight, gradient in zip(weights, gradients, strict=True):
            state = self.state[weight]
            if not state:
                state["step"] = torch.zeros(())
                state["exp_avg"], state["exp_avg_sq"] = (
                    torch.zeros_like(weight),
                    torch.zeros_like(weight),
                )
            state["step"] += factor
            count = float(state["step"].clamp(min=1))
            state["exp_avg"].lerp_(gradient, (1 - b1) * factor)
            state["exp_avg_sq"].lerp_(gradient * gradient, (1 - b2) * factor)
            root = (state["exp_avg_sq"] / (1 - b2**count)).sqrt_().add_(eps)
            weight.add_(factor * (-rate / (1 - b1**count)) * state["exp_avg"] / root)


class SkippingOptimizer:
    """BF16 autocast without a scaler, and an optimizer that skips by a running window."""

    def __init__(self, parts: LoopParts) -> None:
        self.parts = parts
        parts.optimizer = SkipStepAdamW(parts.model.parameters(), lr=1e-3)
        parts.scheduler = LambdaLR(parts.optimizer, lambda step: 0.99**step)

    def train(self, batches: Sequence[Batch]) -> None:
        parts = self.parts
        for number, batch in enumerate(batches, 1):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = parts.loss(parts.model, batch) / parts.accumulate
            loss.backward()
            if number % parts.accumulate == 0:
                parts.optimizer.step()
                parts.optimizer.zero_grad()
                parts.scheduler.step()

    def loss_scale(self) -> float | None:
        return None
