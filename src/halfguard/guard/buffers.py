"""Buffers that a skipped step leaves as they were, restored on the device.

BatchNorm updates its running statistics in the forward pass, long before anybody knows whether the step
will be applied; one NaN batch poisons them for good. So their values at the start of the step are kept,
and after it either the new or the kept ones are written back: a choice made on the device, in a number of
operations that does not depend on how many buffers there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase


class Buffers:
    """Keeps the buffers of a model from the start of a step to its end."""

    def __init__(self, model: nn.Module, which: Literal["batchnorm", "all", "none"]) -> None:
        by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for buffer in _tracked(model, which):
            by_kind.setdefault((buffer.device, buffer.dtype), []).append(buffer)
        self._groups = [_Group(buffers) for buffers in by_kind.values()]

    @torch.no_grad()
    def keep(self) -> None:
        """Remember the values that the buffers have now."""
        for group in self._groups:
            torch._foreach_copy_(group.kept, group.live)

    @torch.no_grad()
    def restore(self) -> None:
        """Write the kept values back."""
        for group in self._groups:
            torch._foreach_copy_(group.live, group.kept)

    @torch.no_grad()
    def restore_where(self, refused: Tensor) -> None:
        """Write the kept values back where ``refused``, a boolean on the device, is true."""
        for group in self._groups:
            group.select(refused.to(group.kept_flat.device, non_blocking=True))


class _Group:
    """Buffers of one device and dtype, with room for two copies of them."""

    def __init__(self, live: list[Tensor]) -> None:
        self.live = live
        self.kept_flat, self.kept = _room_for(live)
        self._new_flat, self._new = _room_for(live)

    def select(self, refused: Tensor) -> None:
        torch._foreach_copy_(self._new, self.live)
        torch.where(refused, self.kept_flat, self._new_flat, out=self._new_flat)
        torch._foreach_copy_(self.live, self._new)


def _room_for(tensors: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    sizes = [tensor.numel() for tensor in tensors]
    flat = torch.empty(sum(sizes), dtype=tensors[0].dtype, device=tensors[0].device)
    parts = flat.split_with_sizes(sizes)
    return flat, [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def _tracked(model: nn.Module, which: Literal["batchnorm", "all", "none"]) -> Iterator[Tensor]:
    if which == "all":
        yield from (buffer for buffer in model.buffers() if buffer.numel())
    elif which == "batchnorm":
        for module in model.modules():
            if isinstance(module, _NormBase):
                yield from (buffer for buffer in module.buffers(recurse=False))
