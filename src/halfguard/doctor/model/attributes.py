"""What modules hold beside weights: counters, caches, the states of metrics; saved and given back.

Of every attribute the reference is kept, of built-in containers a shallow copy, and of tensors that nobody
trains a clone. An object of any other class is given back as the object it was, in whatever state it is.
"""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from halfguard.doctor.model.frameworks.given import is_a

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
        self._tensors: dict[int, tuple[Tensor, Tensor]] = {}
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
        with torch.no_grad():
            for tensor, value in self._tensors.values():
                if _differ(tensor, value):
                    tensor.copy_(value)

    def _save(self, values: Iterable[Any]) -> None:
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            if isinstance(value, Tensor):
                known = id(value) in self._skipped or id(value) in self._tensors
                if not known and _writable(value):
                    self._tensors[id(value)] = value, value.detach().clone()
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


def _differ(tensor: Tensor, value: Tensor) -> bool:
    """Whether it must be written: a needless write would spoil a backward pass that is pending."""
    plain = tensor.layout is torch.strided and not tensor.is_nested
    return not plain or not torch.equal(tensor, value)
