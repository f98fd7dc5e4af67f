"""Restore a model after it was examined: weights, gradients, attributes, random state.

The weights are not copied, so a model that just fits into memory can be examined. Converted weights get
their old storage back, and gradients are kept aside meanwhile. Not restored: in-place writes of the forward
pass to its own weights, and changes to objects that are neither modules nor in a plain container of one.

Modules have other attributes: counters, caches, the states of metrics. Every one is saved by reference,
built-in containers also by a shallow copy, and tensors that are not trained by a clone. An object of any
other class is assigned again, but its own state is not restored.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from halfguard.diagnosis.model.frameworks.inputs import is_a
from halfguard.step.random_state import capture_random_state, restore_random_state

_MAPPINGS = (dict, OrderedDict, defaultdict, Counter)
_CONTAINERS = (*_MAPPINGS, list, set, deque)
# Wrappers whose attributes depend on state stored elsewhere, such as the buckets of a reducer.
_WRAPPERS = ("torch.nn.parallel.", "torch.distributed.", "torch._dynamo.")
_WRAPPER_ATTRIBUTES = ("training", "_buffers")
_SHARDED = ("FullyShardedDataParallel", "FSDPModule")


class SavedAttributes:
    """The present attributes of all modules of a model, which ``restore`` assigns again."""

    def __init__(self, model: nn.Module) -> None:
        self._skipped = {id(parameter) for parameter in model.parameters()}
        self._containers: dict[int, tuple[Any, Any]] = {}
        self._tensors: dict[int, _SavedTensor] = {}
        sharded = any(map(_is_sharded, model.modules()))
        self._modules: list[tuple[nn.Module, dict[str, Any], bool]] = []
        for module in model.modules():
            complete = not sharded and not type(module).__module__.startswith(_WRAPPERS)
            names = vars(module) if complete else _WRAPPER_ATTRIBUTES
            saved = {name: vars(module)[name] for name in names if name in vars(module)}
            self._modules.append((module, saved, complete))
            self._save(saved.values())

    def restore(self) -> None:
        """Undo all assignments, additions, removals and in-place writes since the attributes were saved."""
        for module, saved, complete in self._modules:
            for name in vars(module).keys() - saved.keys() if complete else ():
                del vars(module)[name]
            vars(module).update(saved)
        for container, content in self._containers.values():
            container.clear()
            add = container.update if isinstance(content, dict | set) else container.extend
            add(content)
        errors = [error for saved in self._tensors.values() if (error := saved.restore())]
        if errors:
            reason = str(errors[0]).partition("\n")[0]
            warnings.warn(
                f"The model was not fully restored: {len(errors)} of its tensors could not be written back. "
                f"The first error: {reason}",
                stacklevel=2,
            )

    def _save(self, values: Iterable[Any]) -> None:
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            if isinstance(value, Tensor):
                known = id(value) in self._skipped or id(value) in self._tensors
                if not known and _writable(value):
                    self._tensors[id(value)] = _SavedTensor(value)
            elif type(value) is tuple:
                waiting.extend(value)
            elif type(value) in _CONTAINERS and id(value) not in self._containers:
                self._containers[id(value)] = value, copy.copy(value)
                waiting.extend(value.values() if isinstance(value, dict) else value)


def _is_sharded(module: nn.Module) -> bool:
    """Return whether FSDP shards the module, so that its parameters change during a forward pass."""
    return any(is_a(module, name, "torch") for name in _SHARDED)


def _writable(tensor: Tensor) -> bool:
    """Return whether in-place writes are allowed: not if lazy, in a graph, expanded or for inference."""
    if is_lazy(tensor) or tensor.requires_grad or tensor.is_inference() or tensor.is_meta:
        return False
    if tensor.layout is not torch.strided or tensor.is_nested:
        return True
    return all(step or size < 2 for step, size in zip(tensor.stride(), tensor.shape, strict=True))


class _SavedTensor:
    """A tensor with a copy of its values, and a view that keeps its storage and shape."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._view = tensor, tensor.detach()
        self._values = self._view.clone()

    def restore(self) -> Exception | None:
        """Write back what has changed. Return errors instead of raising: other tensors must follow."""
        try:
            with torch.no_grad():
                plain = self._tensor.layout is torch.strided and not self._tensor.is_nested
                if plain and not _same_storage(self._tensor, self._view):
                    self._tensor.data = self._view
                if not plain or not _same_values(self._tensor, self._values):
                    self._tensor.copy_(self._values)
        except Exception as error:  # noqa: BLE001  a tensor subclass may raise anything
            return error
        return None


def _same_storage(one: Tensor, other: Tensor) -> bool:
    """Return whether two views show the same memory: not if one was resized or got another storage."""
    if type(one) is not Tensor or not torch._C._has_storage(one):
        return True  # unknown for a subclass, or on a device without storages
    if one.shape != other.shape or one.stride() != other.stride():
        return False
    return one.dtype is other.dtype and one.data_ptr() == other.data_ptr()


def _same_values(one: Tensor, other: Tensor) -> bool:
    """Return whether the values are equal; NaN equals NaN. A needless write breaks a pending backward."""
    if torch.equal(one, other):
        return True
    if not one.is_floating_point() and not one.is_complex():
        return False
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


@contextmanager
def restore_afterwards(model: nn.Module) -> Iterator[None]:
    """Restore the model after the block, which may convert, move and run it."""
    states = capture_random_state()
    weights = [(parameter, parameter.data, parameter.grad) for parameter in model.parameters()]
    attributes = SavedAttributes(model)
    for parameter, _, _ in weights:
        parameter.grad = None  # a conversion, or a backward pass in the loss, would change it
    try:
        yield
    finally:
        restore_random_state(states)
        for parameter, data, gradient in weights:
            parameter.grad = None
            # Only converted parameters: FSDP replaces the data of a sharded parameter itself.
            if parameter.dtype != data.dtype or parameter.device != data.device:
                parameter.data = data
            parameter.grad = gradient
        attributes.restore()
        # Under autocast torch caches cast weights; those of the converted model must not be used again.
        torch.clear_autocast_cache()


def reshard(model: nn.Module) -> None:
    """Reshard FSDP2 modules: after a forward pass they keep full parameters for the backward pass."""
    module: Any
    for module in model.modules():
        if is_a(module, "FSDPModule", "torch"):
            module.reshard()
