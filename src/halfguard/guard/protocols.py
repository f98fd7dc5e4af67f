"""Protocols of the objects that a user passes in: schedulers, weight averages, anything with a state."""

from __future__ import annotations

from typing import Any, Protocol

from torch import nn


class Stateful(Protocol):
    """An object that is saved and loaded like torch's modules and optimizers."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


class Scheduler(Stateful, Protocol):
    """A learning-rate scheduler."""

    def step(self) -> None: ...


class UpdatesParameters(Protocol):
    """An average of weights, such as torch's ``AveragedModel``."""

    def update_parameters(self, model: nn.Module) -> Any: ...


class UpdatesModel(Protocol):
    """An average of weights, such as timm's ``ModelEmaV3``."""

    def update(self, model: nn.Module) -> Any: ...


WeightAverage = UpdatesParameters | UpdatesModel
