"""The forms of the planted material, and the hash that holds a third of it out."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from halfguard import Workload

Job = Callable[[int], Workload]
Training = tuple[
    nn.Module, Callable[[nn.Module, Any], Tensor], Callable[[int], Any], Optimizer, int
]


def is_held_out(name: str) -> bool:
    """Say if this one is for the final measurement only; about a third are."""
    return hashlib.sha256(name.encode()).digest()[0] % 3 == 0


def source_of(job: Job) -> Path:
    """Return the file that a job was written in."""
    return Path(inspect.getfile(job))


@dataclass(frozen=True)
class Fault:
    """A job that learns in FP32 and fails in FP16, and the line that is to blame.

    ``line`` is the text of that line without its indentation, unique in the file of ``job``. ``also`` are
    other lines that one may blame with good reason, such as one that divides by what ``line`` rounds to 0.
    """

    name: str
    architecture: str
    loss: str
    in_loss: bool
    job: Job
    line: str
    cure: str
    also: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def line_number(self) -> int:
        lines = [text.strip() for text in source_of(self.job).read_text().splitlines()]
        return lines.index(self.line) + 1


@dataclass(frozen=True)
class Periodic(Fault):
    """A fault that overflows in every ``every``-th batch only: those with ``(step + 1) % every == 0``."""

    every: int = field(kw_only=True)
    module: str = field(kw_only=True)


@dataclass(frozen=True)
class Healthy:
    """A job that looks dangerous and trains in FP16 as in FP32."""

    name: str
    architecture: str
    job: Job


@dataclass(frozen=True)
class Drift:
    """A training run of a few hundred steps, in which something grows, or seems to.

    ``make(seed)`` returns the model, ``loss_fn(model, batch)``, ``batch_fn(step)``, the optimizer and the
    number of steps.
    """

    name: str
    make: Callable[[int], Training]
