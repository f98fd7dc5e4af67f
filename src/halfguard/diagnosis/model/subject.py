"""What a check looks at: a model with all that trains it, however its owner happens to hold them.

A plain loop, a Lightning Trainer and an Accelerator keep the same things in different places. The files
in ``frameworks`` find them; from here on there is one shape, and no check knows a framework.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from halfguard.diagnosis.model.forward import Forward
from halfguard.diagnosis.model.measured_precision import Ran, named
from halfguard.precision.master_weights import MasterWeights
from halfguard.precision.modes import HALF_DTYPES
from halfguard.records.diagnosis import Effective


@dataclass(frozen=True)
class Held:
    """A parameter as an optimizer holds it, under the model's own name for it."""

    name: str
    tensor: Tensor
    group: Mapping[str, Any] = field(default_factory=dict)
    optimizer: Optimizer | None = None
    own: bool = True  # whether it is a parameter of the model, or the master of one
    master_of: Tensor | None = None

    @property
    def half(self) -> bool:
        """Whether it is updated in 16 bits."""
        return self.tensor.requires_grad and self.tensor.dtype in HALF_DTYPES

    @property
    def weight(self) -> Tensor:
        """What a forward pass computes with, where the optimizer holds a master of it."""
        return self.tensor if self.master_of is None else self.master_of


@dataclass(frozen=True)
class Advice:
    """What a framework's user writes: lines to paste, in the words of that framework."""

    why: str = ""  # why the framework gives another precision than it was asked for
    precision: str = ""  # a line that gives the precision that was asked for, or the nearest
    scaler: str = ""  # a line that adds a loss scaler
    raised: str = ""  # lines to run first, without which a forward pass may raise


@dataclass(frozen=True)
class Subject:
    """A training setup: what trains what, in which precision, and how one forward pass of it runs."""

    framework: str = "plain"
    model: nn.Module | None = None
    optimizers: tuple[Optimizer, ...] = ()
    scaler: torch.amp.GradScaler | None = None
    asked: str | None = None
    step: Callable[[], Any] | None = None  # one forward pass as it runs in training
    # The model is in the dtypes, and on the device, of its training while this context lasts.
    as_trained: Callable[[], AbstractContextManager[Any]] = nullcontext
    advise: Callable[[str | None, Ran], Advice] = lambda _asked, _ran: Advice()
    settings: Any = None  # a TrainingArguments
    checkpoint: Any = None
    detects_anomalies: bool = False
    # What one forward pass showed, once it has been run.
    forward: Forward | None = None
    ran: Ran | None = None  # none if it raised
    effective: Effective | None = None

    @property
    def device_type(self) -> str:
        """Where the model is: ``"cuda"``, ``"cpu"``."""
        parameters = () if self.model is None else self.model.parameters()
        return next((p.device.type for p in parameters), "cpu")

    @cached_property
    def held(self) -> tuple[Held, ...]:
        """What the optimizers update; without any, what would be updated: the trainable parameters."""
        if self.optimizers:
            return tuple(one for optimizer in self.optimizers for one in self._held_by(optimizer))
        parameters = () if self.model is None else self.model.named_parameters()
        return tuple(Held(name, p) for name, p in parameters if p.requires_grad)

    @property
    def weights(self) -> Counter[torch.dtype]:
        """How many elements are trained in which dtype: of the model, else outside of it; else of all."""
        held = [one for one in self.held if one.weight.requires_grad]
        trained = [one.weight for one in held if one.own]
        outside = [one.weight for one in held if not one.own]
        everything = [] if self.model is None else list(self.model.parameters())
        counts: Counter[torch.dtype] = Counter()
        unheld = [p for p in everything if p.requires_grad]
        for parameter in trained or unheld or outside or everything:
            counts[parameter.dtype] += parameter.numel()
        return counts

    @property
    def half_trained(self) -> list[Held]:
        """Parameters that are updated in 16 bits."""
        return [one for one in self.held if one.half]

    @property
    def frozen_half(self) -> bool:
        """Whether the model has a frozen base in 16 bits, over which something else is trained."""
        parameters = [] if self.model is None else list(self.model.parameters())
        frozen = any(not p.requires_grad and p.dtype in HALF_DTYPES for p in parameters)
        return frozen and any(p.requires_grad for p in parameters)

    @property
    def precision(self) -> str | None:
        """What the forward pass runs in: measured, or where it was not run, asked for."""
        return self.asked if self.ran is None else self.ran.name

    @property
    def trains_through_fp16(self) -> bool:
        """Whether gradients pass through FP16: as measured, or where nothing was run, as asked for."""
        if self.forward is None or self.ran is None:
            return (self.asked or "").startswith("fp16")
        return any(p.trains and p.dtype is torch.float16 for p in self.forward.products)

    @property
    def advice(self) -> Advice:
        """What the user writes in this framework, for what ran or else for what was asked for."""
        return self.advise(self.asked, self.ran or named(self.asked or "unknown"))

    @property
    def scales(self) -> bool:
        """Whether a loss scaler is there and switched on."""
        return self.scaler is not None and self.scaler.is_enabled()

    @property
    def trains(self) -> bool:
        """Whether the setup is one for training, as far as can be seen."""
        return bool(self.optimizers) or self.framework != "plain"

    @property
    def half_cure(self) -> str:
        """The line after which updates happen in FP32."""
        if self.frozen_half:
            return "halfguard.upcast_trainable(model)  # before the optimizer is built"
        if self.asked is not None and not self.asked.endswith(("-weights", "-true")):
            return "model.float()  # before the optimizer is built"
        return "optimizer = halfguard.MasterWeights(optimizer)"

    @cached_property
    def _names(self) -> dict[int, str]:
        if self.model is None:
            return {}
        return {id(parameter): name for name, parameter in self.model.named_parameters()}

    def _held_by(self, optimizer: Optimizer) -> Iterable[Held]:
        owners: dict[int, Tensor] = {}
        if isinstance(optimizer, MasterWeights):
            owners = {id(master): half for half, master in optimizer.masters().items()}
        for position, group in enumerate(optimizer.param_groups):
            # Not ``for tensor in params``: iterating over the masters moves gradients into them.
            params = group["params"]
            for index in range(len(params)):
                owner = owners.get(id(params[index]), params[index])
                name = self._names.get(id(owner))
                unnamed = f"parameter {index} of group {position}"
                yield Held(
                    name or unnamed,
                    params[index],
                    group,
                    optimizer,
                    own=name is not None,
                    master_of=owners.get(id(params[index])),
                )
