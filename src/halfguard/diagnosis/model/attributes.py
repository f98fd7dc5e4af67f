"""What modules hold beside weights: counters, caches, the states of metrics; saved and given back.

Of every attribute the reference is kept, of built-in containers a shallow copy, and of tensors that nobody
trains a clone. An object of any other class is given back as the object it was, in whatever state it is.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from halfguard.diagnosis.model.frameworks.inputs import is_a

_MAPPINGS = (dict, OrderedDict, defaultdict, Counter)
_CONTAINERS = (*_MAPPINGS, list, set, deque)
# Wrappers whose attributes go together with state that is not theirs, such as the buckets of a reducer.
_WRAPPERS = ("torch.nn.parallel.", "torch.distributed.", "torch._dynamo.")
_OF_WRAPPERS = ("training", "_buffers")


class Attributes:
    """The attributes of a model's modules as they are now; ``restore`` makes them so again."""

    def __init__(self, model: nn.Module) -> None:
        self._skipped = {id(parameter) for parameter in model.parameters()}
        self._containers: dict[int, tuple[Any, Any]] = {}
        self._tensors: dict[int, _Saved] = {}
        sharded = any(map(_is_sharded, model.modules()))
        self._modules: list[tuple[nn.Module, dict[str, Any], bool]] = []
        for module in model.modules():
            whole = not sharded and not type(module).__module__.startswith(_WRAPPERS)
            names = vars(module) if whole else _OF_WRAPPERS
            saved = {name: vars(module)[name] for name in names if name in vars(module)}
            self._modules.append((module, saved, whole))
            self._save(saved.values())

    def restore(self) -> None:
        """Undo what was assigned, added, removed or written in place since."""
        for module, saved, whole in self._modules:
            for name in vars(module).keys() - saved.keys() if whole else ():
                del vars(module)[name]
            vars(module).update(saved)
        for container, content in self._containers.values():
            container.clear()
            add = container.update if isinstance(content, dict | set) else container.extend
            add(content)
        refused = [error for saved in self._tensors.values() if (error := saved.put_back())]
        if refused:
            reason = str(refused[0]).partition("\n")[0]
            warnings.warn(
                f"The model is not quite as it was: tensors that it holds, {len(refused)} in number, could "
                f"not be put back. Of the first: {reason}",
                stacklevel=2,
            )

    def _save(self, values: Iterable[Any]) -> None:
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            if isinstance(value, Tensor):
                known = id(value) in self._skipped or id(value) in self._tensors
                if not known and _writable(value):
                    self._tensors[id(value)] = _Saved(value)
            elif type(value) is tuple:
                waiting.extend(value)
            elif type(value) in _CONTAINERS and id(value) not in self._containers:
                self._containers[id(value)] = value, copy.copy(value)
                waiting.extend(value.values() if isinstance(value, dict) else value)


def _is_sharded(module: nn.Module) -> bool:
    """Whether its parameters come and go with the forward pass, as FSDP does it."""
    return is_a(module, "FullyShardedDataParallel", "torch") or is_a(module, "FSDPModule", "torch")


def _writable(tensor: Tensor) -> bool:
    """Whether anybody may change it in place: not if lazy, in a graph, expanded or for inference."""
    if is_lazy(tensor) or tensor.requires_grad or tensor.is_inference() or tensor.is_meta:
        return False
    if tensor.layout is not torch.strided or tensor.is_nested:
        return True
    return all(step or size < 2 for step, size in zip(tensor.stride(), tensor.shape, strict=True))


class _Saved:
    """A tensor with a copy of its numbers, and a second view of where they are and in which shape."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._place = tensor, tensor.detach()
        self._value = self._place.clone()

    def put_back(self) -> Exception | None:
        """Write what has changed; an error is returned, since other tensors are waiting."""
        try:
            with torch.no_grad():
                plain = _is_plain(self._tensor)
                if plain and not _same_place(self._tensor, self._place):
                    self._tensor.data = self._place
                if not plain or not _same_numbers(self._tensor, self._value):
                    self._tensor.copy_(self._value)
        except Exception as error:  # noqa: BLE001  any kind of tensor, with rules of its own
            return error
        return None


def _is_plain(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested


def _same_place(one: Tensor, other: Tensor) -> bool:
    """Whether two views are of the same numbers: not if one was resized, or given another storage."""
    if type(one) is not Tensor or not torch._C._has_storage(one):
        return True  # a subclass, or a device without storages, has its own idea of a place
    if one.shape != other.shape or one.stride() != other.stride():
        return False
    return one.dtype is other.dtype and one.data_ptr() == other.data_ptr()


def _same_numbers(one: Tensor, other: Tensor) -> bool:
    """Whether a write is needless, which would spoil a backward pass that is pending; NaN equals NaN."""
    if torch.equal(one, other):
        return True
    if not one.is_floating_point() and not one.is_complex():
        return False
    return bool(((one == other) | (one.isnan() & other.isnan())).all())
