"""``Row``: one published failure of a real class, and how a small model with random weights gets it.

A row is data: how the model is made, the modules that overflow (``places``), what is stretched there, and
what the authors did (``upstream``). ``Row.workload`` returns the stretched job. In a pattern, ``*`` is one
part of a path.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.famous import data
from benchmarks.famous.data import Batch
from halfguard.precision_names import Precision
from halfguard.step.random_state import seeded
from halfguard.workload import Workload

Loss = Callable[[nn.Module, Batch], Tensor]
Change = Callable[[nn.Module], None]
BATCHES = 8


def loss_of_output(model: nn.Module, batch: Batch) -> Tensor:
    """Return the loss that models of transformers compute themselves."""
    loss: Tensor = model(**batch).loss
    return loss.float()


@dataclass(frozen=True)
class Stretch:
    """One channel of every module at ``place``, enlarged until the module's output reaches ``reach``.

    ``sources`` beside it are enlarged first, to 16: with small inputs, its weights would not fit half.
    """

    place: str
    sources: tuple[str, ...] = ()
    parameter: str = "weight"
    index: Any = 0
    reach: float = 1.2e5

    def __call__(self, model: nn.Module, loss: Loss, batch: Batch) -> None:
        """Enlarge them module by module: each one changes what the next ones read."""
        for name, module in matching(model, self.place):
            for source in self.sources:
                before = model.get_submodule(f"{name.rpartition('.')[0]}.{source}")
                factor = 16 / output_of(model, before, loss, batch).abs().max()
                before.get_parameter("weight").mul_(factor)
            for _ in range(4):  # not linear in every model
                peak = output_of(model, module, loss, batch).abs().max()
                module.get_parameter(self.parameter)[self.index] *= self.reach / peak


@dataclass(frozen=True)
class Row:
    """A published failure: ``number`` in the list of known failures, ``threads`` where it is told."""

    name: str
    number: int
    threads: str
    make: Callable[[], nn.Module]
    stretch: Stretch | Change
    upstream: Change | None = None  # changes a model as the authors did
    fix: str = "none"  # the same in words
    places: tuple[str, ...] = ()  # patterns of modules; without them, that of the stretch
    note: str = ""  # where this row differs from the published model
    batch: Callable[[], Batch] = data.causal
    loss: Loss = loss_of_output
    precision: Precision = Precision.FP16_MIXED
    learning_rate: float = 1e-3
    norms: tuple[str, ...] = ()  # read the stretched channel, and are balanced
    norm_offset: float = 0.0  # what these norms add to their weights
    half_base: bool = False  # frozen weights are half, as under adapters

    def __post_init__(self) -> None:
        if isinstance(self.stretch, Stretch):
            object.__setattr__(self, "places", self.places or (self.stretch.place,))

    @property
    def held_out(self) -> bool:
        """Whether the row is measured only once: half of them, by a hash of the name."""
        return hashlib.sha256(self.name.encode()).digest()[0] % 2 == 0

    def workload(self) -> Workload:
        """Return the stretched job with FP32 weights; the same at every call."""
        with seeded(0):
            model = self.make().train()
            batches = [self.batch() for _ in range(BATCHES)]
            for _ in range(3 if self.norms else 1):  # each changes what the other one reads
                with torch.no_grad():
                    self._stretch(model, batches[0])
                    self._balance(model, batches[0])
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=self.learning_rate)
        return Workload(model, self.loss, batches, optimizer)

    def _stretch(self, model: nn.Module, batch: Batch) -> None:
        if isinstance(self.stretch, Stretch):
            self.stretch(model, self.loss, batch)
        else:
            self.stretch(model)

    def _balance(self, model: nn.Module, batch: Batch) -> None:
        """Let norms return numbers near 1 in all channels, as those of trained models do."""
        for _, norm in matching(model, *self.norms):
            weight = norm.get_parameter("weight")
            weight[0] = 0.2 - self.norm_offset
            others = output_of(model, norm, self.loss, batch)[..., 1:]
            size = others.square().mean(-1).sqrt().max()
            gain = ((weight[1:] + self.norm_offset) / size).clamp(max=1e4)  # fits half, with room
            weight[1:] = gain - self.norm_offset

    def lowered(self) -> Workload:
        """Return the job as it is trained in half: with half weights where the row has them."""
        work = self.workload()
        work.store_weights_as(self.precision)
        if self.half_base:
            for parameter in work.model.parameters():
                if not parameter.requires_grad:
                    parameter.data = parameter.data.half()
        return work


def matching(model: nn.Module, *patterns: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield names and modules that match one of the patterns; each pattern must match a module."""
    names = [name for name, _ in model.named_modules()]
    for pattern in patterns:
        if not any(matches(name, pattern) for name in names):
            raise ValueError(f"{pattern} matches no module of {type(model).__name__}")
    for name, module in model.named_modules():
        if any(matches(name, pattern) for pattern in patterns):
            yield name, module


def matches(name: str, pattern: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", r"[^.]+"), name) is not None


def output_of(model: nn.Module, module: nn.Module, loss: Loss, batch: Batch) -> Tensor:
    """Return what ``module`` returns in FP32; the first tensor, at the last call."""
    seen: list[Tensor] = []

    def note(_module: nn.Module, _args: Any, output: Any) -> None:
        seen.append(output if isinstance(output, Tensor) else output[0])

    handle = module.register_forward_hook(note)
    loss(model, batch)
    handle.remove()
    return seen[-1]
