"""A step with a planted fault, the split into tuned and held-out faults, and the line that must be named."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from halfguard.precision.emulation import autocast_like_cuda
from halfguard.precision_names import Precision

Body = Callable[[Tensor], Tensor]
Model = Callable[..., Tensor]
LossFn = Callable[[Any, Any], Tensor]


@dataclass
class Step:
    """``loss_fn(model, batch)`` under CUDA's autocast rules; with half weights, without autocast."""

    model: nn.Module
    loss_fn: LossFn
    batch: Any
    half_weights: bool = False

    def loss(self, precision: Precision = Precision.FP16_MIXED, scale: float = 1.0) -> Tensor:
        device = torch.device("cpu")
        with nullcontext() if self.half_weights else autocast_like_cuda(precision, device):
            loss = self.loss_fn(self.model, self.batch)
        return loss.float() * scale


@dataclass(frozen=True)
class Planted:
    """A step whose loss and gradients are finite and wrong in half, and the place of the fault."""

    name: str
    make: Callable[[int], Step]
    module: str | None
    phase: Literal["forward", "backward"] = "forward"
    scale: float = 1.0

    def __str__(self) -> str:
        return self.name

    @property
    def held_out(self) -> bool:
        """Whether this fault was kept away from all tuning: decided by its name alone."""
        return is_held_out(self.name)


def is_held_out(name: str) -> bool:
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 3 == 0


def line_of(planted: Planted) -> tuple[str, int]:
    """Return the file and the line that carry its name."""
    file = inspect.getsourcefile(inspect.unwrap(planted.make))
    assert file is not None
    lines = Path(file).read_text().splitlines()
    marked = [n for n, text in enumerate(lines, 1) if text.endswith(f"# <- {planted.name}")]
    assert len(marked) == 1, f"{planted.name} marks {len(marked)} lines of {file}"
    return file, marked[0]


class Apply(nn.Module):
    """A module without parameters that runs a function."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def loud(seed: int, rows: int, *shape: int, by: float = 1000.0) -> Tensor:
    """Return noise in which every fourth row is ``by`` times as large."""
    x = torch.randn(rows, *shape, generator=torch.Generator().manual_seed(seed + 1))
    x[::4] *= by
    return x


def seeded(seed: int, build: Callable[[], nn.Module]) -> nn.Module:
    """Build a model without changing the global random state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def classes(seed: int, rows: int, count: int = 4) -> Tensor:
    return torch.randint(count, (rows,), generator=torch.Generator().manual_seed(seed + 2))


def classify(model: Model, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]).float(), batch[1])


def classifier(body: Body, *, by: float = 1000.0, width: int = 32) -> Callable[[int], Step]:
    """Return a classifier with ``body`` as its module "1", on loud and quiet samples."""

    def make(seed: int) -> Step:
        layers = lambda: nn.Sequential(nn.Linear(16, width), Apply(body), nn.Linear(width, 4))  # noqa: E731
        return Step(seeded(seed, layers), classify, (loud(seed, 16, 16, by=by), classes(seed, 16)))

    functools.update_wrapper(make, body, (), ())  # so that inspect finds the file
    return make


def images(body: Body, *, by: float = 1000.0) -> Callable[[int], Step]:
    """Return the same on images of 8 channels."""

    def make(seed: int) -> Step:
        layers = lambda: nn.Sequential(  # noqa: E731
            nn.Conv2d(3, 8, 3, padding=1),
            Apply(body),
            nn.Conv2d(8, 8, 3, 2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 4),
        )
        x = loud(seed, 8, 3, 8, 8, by=by)
        return Step(seeded(seed, layers), classify, (x, classes(seed, 8)))

    functools.update_wrapper(make, body, (), ())  # so that inspect finds the file
    return make


def regression(loss: LossFn, *, by: float = 1000.0, out: int = 8) -> Callable[[int], Step]:
    """Return a model whose loss function has the fault; the batch is input and target."""

    def make(seed: int) -> Step:
        layers = lambda: nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, out))  # noqa: E731
        x = loud(seed, 16, 16, by=by)
        target = torch.randn(16, out, generator=torch.Generator().manual_seed(seed + 3))
        return Step(seeded(seed, layers), loss, (x, target))

    functools.update_wrapper(make, loss, (), ())  # so that inspect finds the file
    return make
