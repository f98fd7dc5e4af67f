"""What activation checkpointing would free: measured on the model's own repeated blocks.

A checkpointed block keeps its input and computes the rest again in the backward pass. So of n blocks, what
the forward pass saves inside them goes, the n inputs stay, and one block at a time comes back.
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
from halfguard.workload.memory import Ledger

Sizes = dict[int, int]  # a storage's address -> its bytes
_KEPT_ANYWAY = ("weights", "buffers", "weight_copies")


@dataclass(frozen=True)
class Blocks:
    """Repeated modules of one container, and the bytes that checkpointing them would free."""

    container: str
    count: int
    frees: int


@dataclass
class _Block:
    saved: Sizes = field(default_factory=dict)
    inputs: Sizes = field(default_factory=dict)


def best_blocks(workload: Workload, forward: Callable[[], Tensor]) -> Blocks | None:
    """The container whose blocks free the most; ``forward`` runs the model once and returns the loss."""
    found: dict[str, dict[str, _Block]] = defaultdict(dict)
    active: dict[str, _Block] = {}
    ledger = Ledger(workload.model, workload.optimizer, workload.device)

    def pack(tensor: Tensor) -> Tensor:
        if ledger.purpose_of(tensor) not in _KEPT_ANYWAY:
            for block in active.values():
                block.saved[_key(tensor)] = _bytes(tensor)
        return tensor.detach()

    with ExitStack() as hooks:
        for container, name, child in _repeated(workload.model):
            block = found[container].setdefault(name, _Block())
            for handle in _watch(child, container, block, active):
                hooks.callback(handle.remove)
        if not found:
            return None
        with ledger, saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = forward()
    candidates = [
        Blocks(name, len(blocks), _freed(list(blocks.values()))) for name, blocks in found.items()
    ]
    del loss  # until here it kept what was saved alive, so that no address came twice
    best = max(candidates, key=lambda blocks: blocks.frees)
    return best if best.frees > 0 else None


def _repeated(model: nn.Module) -> Iterator[tuple[str, str, nn.Module]]:
    """Children of a container, if there are several of one class that have an inside."""
    for container, module in model.named_modules():
        if isinstance(module, nn.ModuleList | nn.Sequential):
            kinds = {type(child) for child in module}
            if len(module) > 1 and len(kinds) == 1 and any(True for _ in module[0].children()):
                for name, child in module.named_children():
                    yield container, name, child


def _watch(
    child: nn.Module, container: str, block: _Block, active: dict[str, _Block]
) -> Iterator[Any]:
    def enter(_: nn.Module, args: Any, kwargs: Any) -> None:
        active[container] = block
        tensors = (t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor))
        block.inputs.update({_key(t): _bytes(t) for t in tensors if t.is_floating_point()})

    def leave(*_: Any) -> None:
        active.pop(container, None)

    yield child.register_forward_pre_hook(enter, with_kwargs=True)
    yield child.register_forward_hook(leave, always_call=True)


def _freed(blocks: list[_Block]) -> int:
    saved: Sizes = {}
    inputs: Sizes = {}
    for block in blocks:
        saved |= block.saved
        inputs |= block.inputs
    inside = sum(size for key, size in saved.items() if key not in inputs)
    largest = max(sum(v for k, v in b.saved.items() if k not in b.inputs) for b in blocks)
    extra = sum(size for key, size in inputs.items() if key not in saved)
    return inside - largest - extra


def _key(tensor: Tensor) -> int:
    return 0 if tensor.layout is not torch.strided else tensor.untyped_storage()._cdata


def _bytes(tensor: Tensor) -> int:
    return 0 if tensor.layout is not torch.strided else tensor.untyped_storage().nbytes()
