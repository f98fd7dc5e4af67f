"""The small training jobs of the kit, with faults that a batch switches on, and the bare loop beside them.

A batch is a mapping of tensors. ``gradient`` multiplies the gradient in mid-model, ``value`` an
activation; both are 1 in a healthy batch. ``nan_loss`` makes the loss NaN. So a fault is data: it happens
on the device, and again wherever the batch is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, AdamW, Optimizer

from halfguard.precision.modes import autocast
from halfguard.precision_names import Precision
from halfguard.workload import Workload

Batch = dict[str, Tensor]
FEATURES, CLASSES, ROWS = 12, 4, 8
MAX_NORM = 1.0
ENTRY = f"{__name__}:mlp_workload"

OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "SGD": lambda parameters: SGD(parameters, lr=0.05, momentum=0.9),
    "AdamW foreach": lambda parameters: AdamW(parameters, lr=1e-3, foreach=True),
    "AdamW fused": lambda parameters: AdamW(parameters, lr=1e-3, fused=True),
}
FUSED = "AdamW fused"


class _ScaledGradient(torch.autograd.Function):
    """The identity; its gradient is multiplied by a tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(factor)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.saved_tensors[0].to(grad.dtype), None


def _with_faults(x: Tensor, batch: Batch) -> Tensor:
    scaled: Tensor = _ScaledGradient.apply(x, batch["gradient"])  # type: ignore[no-untyped-call]
    return scaled * batch["value"].to(x.dtype)


class MLP(nn.Module):
    """Two layers with BatchNorm and dropout."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(FEATURES, width), nn.BatchNorm1d(width)
        self.drop, self.last = nn.Dropout(0.1), nn.Linear(width, CLASSES)

    def forward(self, batch: Batch) -> Tensor:
        h = _with_faults(self.first(batch["x"]), batch)
        logits: Tensor = self.last(self.drop(torch.relu(self.norm(h))))
        return logits


class Transformer(nn.Module):
    """One block of attention over three tokens, with LayerNorm and dropout."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.width = width
        self.embed, self.qkv = nn.Linear(FEATURES, 3 * width), nn.Linear(width, 3 * width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop, self.last = nn.Dropout(0.1), nn.Linear(width, CLASSES)

    def forward(self, batch: Batch) -> Tensor:
        h = _with_faults(self.embed(batch["x"]), batch).view(-1, 3, self.width)
        q, k, v = self.qkv(self.norm1(h)).chunk(3, dim=-1)
        h = h + self.drop(torch.softmax(q @ k.transpose(1, 2) / self.width**0.5, dim=-1) @ v)
        h = h + self.down(functional.gelu(self.up(self.norm2(h))))
        logits: Tensor = self.last(self.norm2(h.mean(1)))
        return logits


class ConvNet(nn.Module):
    """Two convolutions with BatchNorm over the features as a small image."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.norm, self.last = nn.BatchNorm2d(width), nn.Linear(width, CLASSES)

    def forward(self, batch: Batch) -> Tensor:
        h = _with_faults(self.conv1(batch["x"].view(-1, 1, 3, 4)), batch)
        h = torch.relu(self.conv2(torch.relu(self.norm(h))))
        logits: Tensor = self.last(h.mean((2, 3)))
        return logits


MODELS: dict[str, Callable[[], nn.Module]] = {
    "MLP with BatchNorm": MLP,
    "transformer": Transformer,
    "convolutions": ConvNet,
}


def make_model(name: str, device: torch.device) -> nn.Module:
    """Return a model with the same weights at every call and on every device."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return MODELS[name]().to(device)


def make_batch(seed: int, device: torch.device, rows: int = ROWS) -> Batch:
    """Return a healthy, learnable batch: the class is the largest of four features."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, FEATURES, generator=generator)
    healthy = {"gradient": torch.ones(()), "value": torch.ones(()), "nan_loss": torch.tensor(False)}
    batch = {"x": x, "y": x[:, :CLASSES].argmax(1), **healthy}
    return {name: tensor.to(device) for name, tensor in batch.items()}


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    """Return the loss of one batch."""
    loss = functional.cross_entropy(model(batch).float(), batch["y"])
    return torch.where(batch["nan_loss"], torch.nan, loss)


def bare_step(
    model: nn.Module,
    optimizer: Optimizer,
    scaler: torch.amp.GradScaler,
    batches: Sequence[Batch],
    precision: Precision = Precision.FP16_MIXED,
) -> None:
    """Take one step of the loop in torch's documentation: autocast, GradScaler, clipping."""
    device = batches[0]["x"].device
    for batch in batches:
        with autocast(precision, device.type):
            loss = loss_fn(model, batch)
        part = loss / len(batches) if len(batches) > 1 else loss
        scaler.scale(part).backward()  # type: ignore[no-untyped-call]
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


def mlp_workload(seed: int) -> Workload:
    """Return the MLP's job on a CPU, for the replay of an incident."""
    device = torch.device("cpu")
    model = make_model("MLP with BatchNorm", device)
    batches = [make_batch(seed + index, device) for index in range(4)]
    return Workload(model, loss_fn, batches, OPTIMIZERS["AdamW foreach"](model.parameters()))
