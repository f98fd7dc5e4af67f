"""Buffers that a skipped step must not change, restored on the device.

BatchNorm updates its running statistics in the forward pass, before it is known whether the step will be
applied; one NaN batch poisons them for good. So their values are saved at the start of the step. After the
step, either the new or the saved values are written back. The choice is made on the device, and the number of
operations does not depend on the number of buffers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from halfguard.numerics.transfer import to_device


class Buffers:
    """Saves the buffers of a model at the start of a step and restores them if it is refused."""

    def __init__(self, model: nn.Module, which: Literal["batchnorm", "all", "none"]) -> None:
        # By owner and name, not by tensor: a module may replace the tensor.
        self._places = list(_tracked(model, which))
        self._kinds: list[tuple[Any, ...]] = []
        self._groups: list[_Group] = []
        self._allocate(self._live())

    @torch.no_grad()
    def keep(self) -> None:
        """Save the present values."""
        live = self._live()
        self._allocate(live)
        for group in self._groups:
            torch._foreach_copy_(group.kept, group.of(live))

    @torch.no_grad()
    def restore(self) -> None:
        """Write the saved values back."""
        live = self._live()
        for group in self._groups:
            torch._foreach_copy_(group.of(live), group.kept)

    @torch.no_grad()
    def restore_where(self, refused: Tensor) -> None:
        """Write the saved values back if ``refused``, a boolean on the device, is true."""
        live = self._live()
        for group in self._groups:
            group.select(group.of(live), to_device(refused, group.kept_flat.device))

    def _allocate(self, live: list[Tensor]) -> None:
        kinds = [(buffer.device, buffer.dtype, buffer.shape) for buffer in live]
        if kinds != self._kinds:  # at first, and after buffers were moved or reshaped
            self._groups, self._kinds = _grouped(live), kinds

    def _live(self) -> list[Tensor]:
        return [getattr(module, name) for module, name in self._places]


class _Group:
    """Buffers of one device and dtype, by position, with memory for two copies."""

    def __init__(self, positions: list[int], live: list[Tensor]) -> None:
        self._positions = positions
        self.kept_flat, self.kept = _room_for(self.of(live))
        self._new_flat, self._new = _room_for(self.of(live))

    def of(self, live: list[Tensor]) -> list[Tensor]:
        return [live[position] for position in self._positions]

    def select(self, live: list[Tensor], refused: Tensor) -> None:
        torch._foreach_copy_(self._new, live)
        torch.where(refused, self.kept_flat, self._new_flat, out=self._new_flat)
        torch._foreach_copy_(live, self._new)


def _grouped(live: list[Tensor]) -> list[_Group]:
    by_kind: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for position, buffer in enumerate(live):
        by_kind.setdefault((buffer.device, buffer.dtype), []).append(position)
    return [_Group(positions, live) for positions in by_kind.values()]


def _room_for(tensors: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    sizes = [tensor.numel() for tensor in tensors]
    flat = torch.empty(sum(sizes), dtype=tensors[0].dtype, device=tensors[0].device)
    parts = flat.split_with_sizes(sizes)
    return flat, [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def _tracked(
    model: nn.Module, which: Literal["batchnorm", "all", "none"]
) -> Iterator[tuple[nn.Module, str]]:
    for module in model.modules():
        if which == "all" or (which == "batchnorm" and isinstance(module, _NormBase)):
            yield from ((module, name) for name, _ in module.named_buffers(recurse=False))
