"""A planted failure, and the line of source that a diagnosis must name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from tests.support.devices import chosen_device
from torch import Tensor, nn

from halfguard.precision.emulation import autocast_like_cuda
from halfguard.precision_names import Precision


class Job(NamedTuple):
    """A training step: ``loss_fn(model, batch)``."""

    model: nn.Module
    loss_fn: Callable[[nn.Module, Any], Tensor]
    batch: Any

    def loss(self) -> Tensor:
        return self.loss_fn(self.model, self.batch)


@dataclass(frozen=True)
class PlantedFailure:
    """A job that breaks, and the correct diagnosis."""

    name: str
    make: Callable[[int], Job]
    op: str
    module: str | None
    phase: Literal["forward", "backward"] = "forward"
    kind: Literal["op", "parameter", "buffer", "input"] = "op"
    subject: str = ""  # the parameter or the input that was bad
    compiled: bool = False

    def __str__(self) -> str:
        return self.name


def line_of(plant: PlantedFailure) -> tuple[str, int]:
    """Return the file and the line that carry its name."""
    file = inspect.getsourcefile(plant.make)
    assert file is not None
    marked = [
        number
        for number, text in enumerate(Path(file).read_text().splitlines(), 1)
        if text.endswith(f"# <- {plant.name}")
    ]
    assert len(marked) == 1, f"{plant.name} marks {len(marked)} lines of {file}"
    return file, marked[0]


def in_half(model: nn.Module, batch: Any) -> Tensor:
    """Return the mean of the model's output under CUDA's float16 autocast rules."""
    with autocast_like_cuda(Precision.FP16_MIXED, chosen_device()):
        out: Tensor = model(batch)
    return out.float().mean()


def in_full(model: nn.Module, batch: Any) -> Tensor:
    """Return the mean of the model's output in float32."""
    out: Tensor = model(batch)
    return out.float().mean()


def noise(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def seeded(seed: int, build: Callable[[], nn.Module]) -> nn.Module:
    """Build a model without changing the global random state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()
