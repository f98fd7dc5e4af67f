"""What the guard asks of things that are not its own: schedulers, averages, whatever has a state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer


class Stateful(Protocol):
    """Whatever can be saved and loaded the way torch's modules and optimizers can."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


class Scheduler(Stateful, Protocol):
    """A learning-rate scheduler."""

    def step(self) -> None: ...


class Average(Protocol):
    """An average of weights, such as torch's ``AveragedModel``."""

    def update_parameters(self, model: nn.Module) -> Any: ...


def parameters_of(optimizer: Optimizer) -> Iterator[Tensor]:
    """Every parameter that an optimizer updates."""
    return (p for group in optimizer.param_groups for p in group["params"])
