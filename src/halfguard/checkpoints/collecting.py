"""Collect what a checkpoint will contain: the states of models and optimizers, with a name for each value.

A checkpoint is loaded by scripts that do not know halfguard, with ``torch.load(path, weights_only=True)``. So
only values that this accepts are collected, and the names of weights are those of the user's model, without
the prefixes of DDP and torch.compile.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from halfguard.dist.wrapping import is_dtensor, unwrap_model
from halfguard.errors import UsageError
from halfguard.numerics.tensor_rows import local_tensor
from halfguard.step.parameters import parameters_of

_PLAIN = (type(None), bool, int, complex, str, bytes, bytearray, set, Counter)
_OF_TORCH = (torch.dtype, torch.device, torch.Size, torch.layout)


@dataclass
class CollectedState:
    """The content of a checkpoint, and its tensors and numbers by name."""

    content: Any = None
    tensors: dict[str, Tensor] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    has_optimizer: bool = False

    @property
    def sharded_over(self) -> torch.device | None:
        """The device of this rank's shards, or None if no tensor is a DTensor."""
        shards = (local_tensor(t).device for t in self.tensors.values() if is_dtensor(t))
        return next(shards, None)


def collect_state(state: Any) -> CollectedState:
    """Return the state of every object in ``state``; raise a UsageError that names what cannot be saved."""
    collector = _Collector(_parameter_names(state))
    collector.found.content = collector.collect(state, "")
    if collector.unsavable:
        raise UsageError(
            f"{'; '.join(collector.unsavable[:3])}: torch.load(weights_only=True) would not load "
            "this value. Nothing was written.",
            cure="Save the data as tensors, numbers, strings, lists and dicts: vars(args) for a "
            "Namespace, dataclasses.asdict(config) for a dataclass, .tolist() for an array.",
        )
    return collector.found


def replace_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return collected content with ``change(tensor)`` in place of every tensor."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping) and not isinstance(value, Counter):
        return _like(value, {key: replace_tensors(item, change) for key, item in value.items()})
    if type(value) in (list, tuple):
        return type(value)(replace_tensors(item, change) for item in value)
    return value


class _Collector:
    def __init__(self, parameter_names: Mapping[int, str]) -> None:
        self.found = CollectedState()
        self.unsavable: list[str] = []
        self._parameter_names = parameter_names

    def collect(self, value: Any, name: str) -> Any:
        if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
            value = value.item()  # schedulers and metrics often leave numpy's numbers behind
        if isinstance(value, Tensor):
            return self._tensor(value, name)
        if type(value) is float:
            self.found.numbers[name] = value
            return value
        if type(value) in _PLAIN or isinstance(value, _OF_TORCH):
            return value
        if isinstance(value, Mapping):
            self.found.has_optimizer |= {"state", "param_groups"} <= value.keys()
            entries = {key: self.collect(item, _join(name, key)) for key, item in value.items()}
            return _like(value, entries)
        if type(value) in (list, tuple):
            return type(value)(self.collect(v, _join(name, i)) for i, v in enumerate(value))
        if isinstance(value, Optimizer):
            return self._optimizer(value, name)
        holder = _with_state(value)
        if holder is None:
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            self.unsavable.append(f"{name or 'the state'} is a {kind}")
            return None
        return self.collect(holder.state_dict(), name)

    def _tensor(self, tensor: Tensor, name: str) -> Tensor:
        tensor = tensor.detach()
        if tensor.is_meta:
            self.unsavable.append(f"{name} has no values because it is on the meta device")
        elif type(tensor) is not Tensor and not is_dtensor(tensor):
            self.unsavable.append(f"{name} is a {type(tensor).__module__}.{type(tensor).__name__}")
        self.found.tensors[name] = tensor
        return tensor

    def _optimizer(self, optimizer: Optimizer, name: str) -> Any:
        """Collect an optimizer's state under the names of parameters instead of their numbers."""
        self.found.has_optimizer = True
        saved = dict(optimizer.state_dict())
        names = [self._parameter_names.get(id(p)) for p in parameters_of(optimizer)]
        moments = saved.pop("state", {})
        content = self.collect(saved, name)
        content["state"] = {
            key: self.collect(
                entry,
                _join(name, names[key])
                if isinstance(key, int) and key < len(names) and names[key]
                else _join(name, f"state.{key}"),
            )
            for key, entry in moments.items()
        }
        return content


def _join(name: str, key: Any) -> str:
    return f"{name}.{key}" if name else str(key)


def _like(original: Mapping[Any, Any], entries: dict[Any, Any]) -> Any:
    if not isinstance(original, OrderedDict):
        return entries
    ordered = OrderedDict(entries)
    if hasattr(original, "_metadata"):  # versions of modules, which load_state_dict reads
        ordered._metadata = original._metadata  # type: ignore[attr-defined]
    return ordered


def _with_state(value: Any) -> Any:
    """Return the object whose ``state_dict()`` stands for ``value``, or None."""
    if isinstance(value, nn.Module):
        return unwrap_model(value)
    # Averages without a state of their own hold a copy of the model.
    held = (value, *(getattr(value, name, None) for name in ("module", "ema")))
    return next((one for one in held if callable(getattr(one, "state_dict", None))), None)


def _parameter_names(state: Any) -> dict[int, str]:
    """Return the names of the parameters of all modules in ``state``, by id."""
    parts = state.values() if isinstance(state, Mapping) else [state]
    modules = [unwrap_model(part) for part in parts if isinstance(part, nn.Module)]
    return {id(p): name for module in modules for name, p in module.named_parameters()}
