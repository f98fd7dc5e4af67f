"""Measure the memory that activation checkpointing would free, on the repeated blocks of a model.

A checkpointed block keeps its input and computes the rest again in the backward pass. So for n blocks, the
tensors saved inside them are freed, the n inputs stay, and one block at a time is computed again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves

from halfguard.workload import Workload
from halfguard.workload.memory import MemoryTracker

Sizes = dict[int, int]  # bytes by storage
_KEPT_ANYWAY = ("weights", "buffers", "weight_copies")


@dataclass(frozen=True)
class RepeatedBlocks:
    """Repeated modules of one container, and the bytes that checkpointing them would free."""

    container: str
    count: int
    freed_bytes: int


@dataclass
class _BlockStorages:
    saved: Sizes = field(default_factory=dict)
    inputs: Sizes = field(default_factory=dict)


def find_best_blocks(workload: Workload, forward: Callable[[], Tensor]) -> RepeatedBlocks | None:
    """Find the container whose blocks free the most; ``forward`` runs the model and returns the loss."""
    found: dict[str, dict[str, _BlockStorages]] = defaultdict(dict)
    active: dict[str, _BlockStorages] = {}
    tracker = MemoryTracker(workload.model, workload.optimizer, workload.device)

    def pack(tensor: Tensor) -> Tensor:
        if tracker.purpose_of(tensor) not in _KEPT_ANYWAY:
            for block in active.values():
                block.saved[_storage_id(tensor)] = _storage_bytes(tensor)
        return tensor.detach()

    with ExitStack() as hooks:
        for container, name, child in _repeated_blocks(workload.model):
            block = found[container].setdefault(name, _BlockStorages())
            for handle in _add_hooks(child, container, block, active):
                hooks.callback(handle.remove)
        if not found:
            return None
        with tracker, saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = forward()
    candidates = [
        RepeatedBlocks(name, len(blocks), _freed_bytes(list(blocks.values())))
        for name, blocks in found.items()
    ]
    del loss  # kept the saved tensors alive until here, so that no address was used twice
    best = max(candidates, key=lambda blocks: blocks.freed_bytes)
    return best if best.freed_bytes > 0 else None


def _repeated_blocks(model: nn.Module) -> Iterator[tuple[str, str, nn.Module]]:
    """Yield the children of containers with several children of one class, which have children."""
    for container, module in model.named_modules():
        if isinstance(module, nn.ModuleList | nn.Sequential):
            kinds = {type(child) for child in module}
            if len(module) > 1 and len(kinds) == 1 and any(True for _ in module[0].children()):
                for name, child in module.named_children():
                    yield container, name, child


def _add_hooks(
    child: nn.Module, container: str, block: _BlockStorages, active: dict[str, _BlockStorages]
) -> Iterator[Any]:
    def enter(_: nn.Module, args: Any, kwargs: Any) -> None:
        active[container] = block
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                block.inputs[_storage_id(leaf)] = _storage_bytes(leaf)

    def leave(*_: Any) -> None:
        active.pop(container, None)

    yield child.register_forward_pre_hook(enter, with_kwargs=True)
    yield child.register_forward_hook(leave, always_call=True)


def _freed_bytes(blocks: list[_BlockStorages]) -> int:
    saved: Sizes = {}
    inputs: Sizes = {}
    for block in blocks:
        saved |= block.saved
        inputs |= block.inputs
    inside = sum(size for key, size in saved.items() if key not in inputs)
    largest = max(sum(v for k, v in b.saved.items() if k not in b.inputs) for b in blocks)
    extra = sum(size for key, size in inputs.items() if key not in saved)
    return inside - largest - extra


def _storage_id(tensor: Tensor) -> int:
    return 0 if tensor.layout is not torch.strided else tensor.untyped_storage()._cdata


def _storage_bytes(tensor: Tensor) -> int:
    return 0 if tensor.layout is not torch.strided else tensor.untyped_storage().nbytes()
