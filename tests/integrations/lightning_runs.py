"""A stock LightningModule, data with faults, and fits that differ in nothing but the precision plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from halfguard.integrations.lightning import GuardPrecision
from tests.support import quiet

INIT_SCALE = 1024.0
RETRY: dict[str, Any] = {"scale": {"init": INIT_SCALE}, "skip": {"on_nonfinite": "retry_fp32"}}
SKIP: dict[str, Any] = {"scale": {"init": INIT_SCALE}}
Batch = tuple[Tensor, Tensor]


class Classifier(LightningModule):
    """Automatic optimization, BatchNorm, a scheduler per step."""

    def __init__(self, *, fused: bool = False, dropout: float = 0.1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fused = fused
        self.net = nn.Sequential(
            nn.Linear(12, 24),
            nn.BatchNorm1d(24),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(24, 4),
        )
        self.dtypes: set[torch.dtype] = set()
        self.steps = 0

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        inputs, labels = batch
        logits = self.net(inputs)
        self.dtypes.add(logits.dtype)
        loss = nn.functional.cross_entropy(logits, labels)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        self.steps += 1
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = AdamW(self.parameters(), lr=1e-3, fused=self.fused, foreach=not self.fused)
        scheduler = LambdaLR(optimizer, lambda step: 0.97**step)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


class TwoOptimizers(LightningModule):
    """Manual optimization; both backward passes come first, as torch's documentation shows it."""

    def __init__(self, *, boost: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.automatic_optimization = False
        self.norm = nn.BatchNorm1d(12)
        self.first, self.second = nn.Linear(12, 4), nn.Linear(12, 4)
        self.boost = boost  # of the first loss, in the second batch
        self.seen: list[Tensor] = []  # gradients of the second, as its optimizer gets them

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        one, two = self.optimizers()  # type: ignore[misc,union-attr,attr-defined]
        inputs, labels = batch
        hidden = self.norm(inputs)
        for optimizer in (one, two):
            optimizer.zero_grad()
        boost = self.boost if batch_idx == 1 else 1.0
        self.manual_backward(nn.functional.cross_entropy(self.first(hidden) * boost, labels))
        loss = nn.functional.cross_entropy(self.second(hidden.detach()), labels)
        self.manual_backward(loss)
        one.step()
        two.step()

    def configure_optimizers(self) -> Any:
        one = SGD([*self.norm.parameters(), *self.first.parameters()], lr=0.1)
        two = SGD(self.second.parameters(), lr=0.1)
        two.register_step_pre_hook(lambda o, *_: self.seen.append(self._gradient()))
        return [one, two]

    def _gradient(self) -> Tensor:
        assert self.second.weight.grad is not None
        return self.second.weight.grad.clone()


def batches(count: int = 12, fault: Callable[[int, Tensor], Tensor] | None = None) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(8, 12, generator=generator) for _ in range(count)]
    labels = [x[:, :4].argmax(1) for x in inputs]
    if fault is not None:
        inputs = [fault(index, x) for index, x in enumerate(inputs)]
    return list(zip(inputs, labels, strict=True))


def nan_at(*positions: int) -> Callable[[int, Tensor], Tensor]:
    return lambda index, x: x * torch.nan if index in positions else x


def overflow_everywhere(index: int, x: Tensor) -> Tensor:
    """Finite in FP32, infinite in half."""
    return x * 1e6


def stock_plugin() -> MixedPrecision:
    """Return Lightning's own FP16; ``precision="16-mixed"`` would become BF16 on a CPU."""
    return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=INIT_SCALE))


def guard_plugin(config: Any = None, **how: Any) -> GuardPrecision:
    return GuardPrecision(RETRY if config is None else config, **how)


def fit(module: LightningModule, plugin: Any, data: list[Batch], **how: Any) -> Trainer:
    """Train, on one CPU and without side effects on disk unless asked for."""
    path = how.pop("ckpt_path", None)
    settings = quiet.LIGHTNING | {"devices": 1, "max_epochs": 1, "num_sanity_val_steps": 0}
    trainer = Trainer(plugins=plugin, **(settings | how))
    torch.manual_seed(3)
    loader: Any = DataLoader(data, batch_size=None, shuffle=False)  # type: ignore[arg-type]
    trainer.fit(module, loader, ckpt_path=path)
    return trainer


def state(trainer: Trainer) -> dict[str, Any]:
    """Return everything that training changes: model, optimizers, schedulers with their rates."""
    return {
        "model": trainer.lightning_module.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in trainer.optimizers],
        "schedulers": [c.scheduler.state_dict() for c in trainer.lr_scheduler_configs],
    }
