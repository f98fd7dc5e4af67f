"""Small models with faults that can be switched on, and the bare loop that the guard is compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from halfguard.step.random_state import seeded
from tests.support.devices import chosen_device, place

OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda parameters: SGD(parameters, lr=0.05, momentum=0.9),
    "adamw-foreach": lambda parameters: AdamW(parameters, lr=1e-3, foreach=True),
    "adamw-fused": lambda parameters: AdamW(parameters, lr=1e-3, fused=True),
}
Batch = tuple[Tensor, Tensor]


class GradientBoost(torch.autograd.Function):
    """The identity; its gradient is multiplied."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.factor, None


class Faulty(nn.Module):
    """The identity, until a factor for the value or the gradient is set."""

    def __init__(self) -> None:
        super().__init__()
        self.forward_factor = 1.0
        self.gradient_factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        if self.gradient_factor != 1.0:
            x = GradientBoost.apply(x, self.gradient_factor)
        return x if self.forward_factor == 1.0 else x * self.forward_factor


class MLP(nn.Module):
    """Two hidden layers with BatchNorm and dropout."""

    def __init__(self, features: int = 12, hidden: int = 24, classes: int = 4) -> None:
        super().__init__()
        self.first = nn.Linear(features, hidden)
        self.faulty = Faulty()
        self.norm = nn.BatchNorm1d(hidden)
        self.drop = nn.Dropout(0.1)
        self.last = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(torch.relu(self.norm(self.faulty(self.first(x))))))


class Transformer(nn.Module):
    """One pre-norm block over a few tokens of the input."""

    def __init__(self, features: int = 12, width: int = 16, classes: int = 4) -> None:
        super().__init__()
        self.width = width
        self.embed = nn.Linear(features, 3 * width)
        self.faulty = Faulty()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.faulty(self.embed(x)).view(-1, 3, self.width)
        q, k, v = self.qkv(self.norm1(h)).chunk(3, dim=-1)
        attention = torch.softmax(q @ k.transpose(1, 2) / self.width**0.5, dim=-1)
        h = h + self.drop(self.out(attention @ v))
        h = h + self.down(torch.relu(self.up(self.norm2(h))))
        return self.head(self.norm2(h.mean(1)))


class ConvNet(nn.Module):
    """Two convolutions with BatchNorm; the input is taken as a small image."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm(self.conv1(x.view(-1, 1, 3, 4))))
        return self.head(torch.relu(self.conv2(h)).mean((2, 3)))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp-batchnorm": MLP,
    "transformer": Transformer,
    "convnet": ConvNet,
}


def make(name: str, seed: int = 0) -> nn.Module:
    """Return a model with the same weights for the same seed; leave the global generators unchanged."""
    with seeded(seed):
        return place(MODELS[name]())


def batches(count: int, seed: int = 1, size: int = 8) -> list[Batch]:
    """A learnable task: the class is the largest of four features."""
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(size, 12, generator=generator) for _ in range(count)]
    return [place((x, x[:, :4].argmax(1))) for x in inputs]


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    inputs, labels = batch
    return nn.functional.cross_entropy(model(inputs), labels)


def bare_step(
    model: nn.Module,
    optimizer: Optimizer,
    scaler: torch.amp.GradScaler,
    micro_batches: Sequence[Batch],
    max_norm: float,
    loss_of: Callable[[nn.Module, Batch], Tensor] = loss_fn,
    dtype: torch.dtype = torch.float16,
) -> None:
    """Take one step of the loop in torch's documentation: autocast, GradScaler, clipping."""
    for batch in micro_batches:
        with torch.autocast(chosen_device().type, dtype, enabled=dtype is not torch.float32):
            loss = loss_of(model, batch)
        scaler.scale(loss / len(micro_batches) if len(micro_batches) > 1 else loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


def tensors_of(state: Any, path: str = "") -> dict[str, Any]:
    """Return a nested state as a flat mapping from path to tensor or value."""
    if isinstance(state, dict):
        items = state.items()
    elif isinstance(state, list | tuple):
        items = dict(enumerate(state)).items()
    else:
        return {path: state.clone() if isinstance(state, Tensor) else state}
    found: dict[str, Any] = {}
    for key, value in items:
        found |= tensors_of(value, f"{path}.{key}")
    return found


def differences(first: Any, second: Any) -> list[str]:
    """Return the paths at which two states are not bitwise equal."""
    left, right = tensors_of(first), tensors_of(second)
    return [
        path
        for path in left.keys() | right.keys()
        if path not in left or path not in right or not _same(left[path], right[path])
    ]


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return left.dtype == right.dtype and torch.equal(left.cpu(), right.cpu())
    return bool(left == right)


class _OutOfMemory(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("no room")


def out_of_memory(loss: Tensor) -> Tensor:
    """Return the same loss; its backward pass raises ``torch.OutOfMemoryError``."""
    return _OutOfMemory.apply(loss)  # type: ignore[no-any-return, no-untyped-call]
