"""A small framework of the common kind: it owns backward, clipping, zero_grad and the scheduler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from halfguard.guard.guard_scaler import GuardScaler
from halfguard.guard.hosted import HostedGuard
from tests.support.devices import chosen_device
from tests.support.models import OPTIMIZERS, Batch, loss_fn, make

INIT_SCALE = 1024.0  # small enough that healthy runs see no overflow


def decay(optimizer: Optimizer) -> LRScheduler:
    return LambdaLR(optimizer, lambda step: 0.97**step)


@dataclass
class Host:
    """Trains a model with any scaler; ``scaler=None`` is FP32."""

    model: nn.Module
    optimizer: Optimizer
    scaler: torch.amp.GradScaler | None
    accumulate: int = 1
    max_norm: float | None = None
    losses: list[float] = field(default_factory=list)
    dtypes: set[torch.dtype] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.scheduler = decay(self.optimizer)
        last = [m for m in self.model.modules() if isinstance(m, nn.Linear)][-1]
        last.register_forward_hook(lambda m, i, output: self.dtypes.add(output.dtype))

    @property
    def guard(self) -> HostedGuard:
        assert isinstance(self.scaler, GuardScaler)
        assert self.scaler.guard is not None
        return self.scaler.guard

    def loss(self, batch: Batch) -> Tensor:
        return loss_fn(self.model, batch) / self.accumulate

    def clip(self, optimizer: Optimizer) -> None:
        if self.max_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)

    def fit(self, data: Sequence[Batch]) -> None:
        for window in self._windows(data):
            for batch in window:
                self._forward_backward(batch)
            self._update()

    def _windows(self, data: Sequence[Batch]) -> Iterator[Sequence[Batch]]:
        for start in range(0, len(data), self.accumulate):
            yield data[start : start + self.accumulate]

    def _forward_backward(self, batch: Batch) -> None:
        if isinstance(self.scaler, GuardScaler):
            self.guard.begin(batch, about="a batch", repeat=self.loss)
        device = chosen_device().type
        with nullcontext() if self.scaler is None else torch.autocast(device, torch.float16):
            loss = self.loss(batch)
        self.losses.append(loss.item())
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def _update(self) -> None:
        weight = next(self.model.parameters())
        before = weight.detach().clone()
        if self.scaler is None:
            self.clip(self.optimizer)
            self.optimizer.step()
        else:
            if self.max_norm is not None:
                self.scaler.unscale_(self.optimizer)
                self.clip(self.optimizer)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad()
        if not torch.equal(before, weight):
            self.scheduler.step()

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
        }


def stock_host(
    *,
    optimizer: str = "adamw-foreach",
    model: str = "mlp-batchnorm",
    fp32: bool = False,
    **how: Any,
) -> Host:
    """Return the framework as it is, with torch's scaler or in FP32."""
    made = make(model)
    device = chosen_device().type
    scaler = None if fp32 else torch.amp.GradScaler(device, init_scale=INIT_SCALE)
    return Host(made, OPTIMIZERS[optimizer](made.parameters()), scaler, **how)


def guarded_host(
    *,
    optimizer: str = "adamw-foreach",
    model: str = "mlp-batchnorm",
    config: dict[str, Any] | None = None,
    run_dir: Any = None,
    **how: Any,
) -> Host:
    """Return the same framework with a hosted guard in place of its scaler."""
    made = make(model)
    scaler = GuardScaler()
    host = Host(made, OPTIMIZERS[optimizer](made.parameters()), scaler, **how)
    settings = {"scale": {"init": INIT_SCALE}} | (config or {})
    scaler.bind(
        HostedGuard(
            made,
            host.optimizer,
            settings,
            scheduler=host.scheduler,
            clip=host.clip,
            run_dir=run_dir,
        )
    )
    return host
