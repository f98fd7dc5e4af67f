"""Buffers that a skipped step must not change, restored on the device.

BatchNorm updates its running statistics in the forward pass, before it is known whether the step will be
applied; one NaN batch poisons them for good. So their values are saved at the start of the step. After the
step, either the new or the saved values are written back. The choice is made on the device, and the number of
operations does not depend on the number of buffers.

Running statistics can also be poisoned by a step whose loss is finite, by a padded sample that the loss
leaves out. So each step also checks those of normalization layers, and values that became non-finite are
replaced by the saved ones.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.nn.modules.batchnorm import _NormBase

from halfguard.numerics.tensor_rows import is_plain, to_device

Registry = dict[str, Any]  # a module's ``_buffers``, or its ``__dict__``


@dataclass(frozen=True)
class _Place:
    # By owner and name, not by tensor: a module may replace the tensor.
    registry: Registry
    name: str
    is_statistic: bool  # of a normalization layer: never meant to be non-finite


class Buffers:
    """Saves buffers at the start of a step and restores them if it is refused.

    These are statistics of normalization layers, ranges of quantization's observers, and what is tracked.
    """

    def __init__(self, model: nn.Module) -> None:
        self._places = list(_tracked(model))
        self._live_at_keep: list[Tensor] = []
        self._shapes: list[torch.Size] = []
        self._groups: list[_Group] = []
        self._single: dict[int, _Copy] = {}  # by position: what fits into no group

    @property
    def needs_host(self) -> bool:
        """True if the host must choose between old and new values: some buffers cannot be selected."""
        return bool(self._single)

    def track(self, registry: Registry, name: str) -> None:
        """Track one more tensor from the next ``keep`` on."""
        self._places.append(_Place(registry, name, is_statistic=False))

    def untrack(self, registry: Registry, name: str) -> None:
        """Stop tracking a tensor, from the next ``keep`` on."""
        self._places = [p for p in self._places if p.registry is not registry or p.name != name]

    def tensors(self) -> list[Tensor]:
        """Return the tensors that are tracked."""
        return [tensor for tensor in self._live() if tensor is not None]

    def keep(self) -> None:
        """Save the present values."""
        if self._places:
            self._keep()

    @torch.no_grad()
    def _keep(self) -> None:
        live = self._live()
        if any(tensor is None for tensor in live):  # a module removed its buffer
            self._places = [p for p, t in zip(self._places, live, strict=True) if t is not None]
            live = self._live()
        if self._changed(live):
            self._groups, self._single = _grouped(self._places, live)
            self._shapes = [tensor.shape for tensor in live]
        self._live_at_keep = live
        for group in self._groups:
            torch._foreach_copy_(group.kept, group.of(live))
        for position, copy in self._single.items():
            if not copy.is_of(live[position]):
                self._single[position] = _Copy(live[position])

    @torch.no_grad()
    def restore(self) -> None:
        """Write the saved values back."""
        live = self._live()
        for position, copy in self._single.items():
            if not copy.is_of(live[position]):
                self._replace(position, copy.saved)
        changed = self._changed(live)
        for group in self._groups:
            if not changed:
                _write(group.of(live), group.kept)
                continue
            for position, kept in zip(group.positions, group.kept, strict=True):
                if _same_kind(live[position], kept):
                    _write([live[position]], [kept])
                else:  # resized or removed in the forward pass
                    self._replace(position, kept)

    def _replace(self, position: int, saved: Tensor) -> None:
        place = self._places[position]
        place.registry[place.name] = saved.clone()

    def sum_of_statistics(self) -> Tensor | None:
        """Return the sum of the running statistics of normalization layers: finite only if all are."""
        groups = [group for group in self._groups if group.is_statistic]
        if not groups:
            return None
        live = self._live()
        with torch.no_grad():
            sums = [group.gather(live).sum(dtype=torch.float32) for group in groups]
        first, *others = sums
        return (
            first if not others else torch.stack([to_device(s, first.device) for s in sums]).sum()
        )

    @torch.no_grad()
    def restore_where(self, refused: Tensor) -> None:
        """Write the saved values back if ``refused``, a boolean on the device, is true.

        Where it is false, statistics that became non-finite are replaced by the saved ones.
        """
        live = self._live()
        if self._single or self._changed(live):
            if refused.item():  # rare: ``needs_host`` tells in advance
                self.restore()
            return
        self._select(live, refused)

    @torch.no_grad()
    def restore_poisoned(self) -> None:
        """Write all saved values back if a statistic is not finite, as seen by the device."""
        live = self._live()
        total = None if self._changed(live) else self.sum_of_statistics()
        if total is not None:
            self._select(live, ~total.isfinite())

    @torch.no_grad()
    def restore_nonfinite(self) -> bool:
        """Replace statistics that became non-finite by the saved ones; return whether there were any."""
        live = self._live()
        if self._changed(live):
            return False
        bad = [~group.gather(live).isfinite() for group in self._groups if group.is_statistic]
        found = any(bool(mask.any()) for mask in bad)
        if found:
            self._select(live, torch.zeros((), dtype=torch.bool, device=bad[0].device))
        return found

    def _select(self, live: list[Tensor], refused: Tensor) -> None:
        for group in self._groups:
            group.select(group.of(live), to_device(refused, group.kept_flat.device))

    def _live(self) -> list[Any]:
        values = [dict.get(place.registry, place.name) for place in self._places]
        return [value if isinstance(value, Tensor) else None for value in values]

    def _changed(self, live: list[Any]) -> bool:
        """Return whether the buffers have other shapes than at the last ``keep``, or were moved."""
        if len(live) != len(self._live_at_keep) or any(t is None for t in live):
            return True
        if [tensor.shape for tensor in live] != self._shapes:
            return True
        replaced = (
            (new, old) for new, old in zip(live, self._live_at_keep, strict=True) if new is not old
        )
        return any(new.device != old.device or new.dtype != old.dtype for new, old in replaced)


class _Group:
    """Buffers of one device and dtype, by position, with memory for two copies."""

    def __init__(self, positions: list[int], live: list[Tensor], *, is_statistic: bool) -> None:
        self.positions = positions
        self.kept_flat, self.kept = _room_for(self.of(live))
        self._new_flat, self._new = _room_for(self.of(live))
        self.is_statistic = is_statistic

    def of(self, live: list[Tensor]) -> list[Tensor]:
        return [live[position] for position in self.positions]

    def gather(self, live: list[Tensor]) -> Tensor:
        torch._foreach_copy_(self._new, self.of(live))
        return self._new_flat

    def select(self, live: list[Tensor], refused: Tensor) -> None:
        torch._foreach_copy_(self._new, live)
        new, kept = self._new_flat, self.kept_flat
        if self.is_statistic:
            torch.where(new.isfinite().logical_and_(~refused), new, kept, out=new)
        else:
            torch.where(refused, kept, new, out=new)
        _write(live, self._new)


class _Copy:
    """A copy of a tensor that cannot be written in place: sparse, expanded, nested, quantized."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._version, self.saved = tensor, tensor._version, tensor.clone()

    def is_of(self, tensor: Tensor | None) -> bool:
        return tensor is self._tensor and tensor._version == self._version


def _grouped(places: list[_Place], live: list[Tensor]) -> tuple[list[_Group], dict[int, _Copy]]:
    by_kind: dict[tuple[torch.device, torch.dtype, bool], list[int]] = {}
    single: dict[int, _Copy] = {}
    for position, (place, buffer) in enumerate(zip(places, live, strict=True)):
        if is_plain(buffer):
            checked = place.is_statistic and buffer.is_floating_point()
            by_kind.setdefault((buffer.device, buffer.dtype, checked), []).append(position)
        else:
            single[position] = _Copy(buffer)
    groups = [_Group(at, live, is_statistic=checked) for (_, _, checked), at in by_kind.items()]
    return groups, single


def _write(tensors: list[Tensor], values: list[Tensor]) -> None:
    """Write values without a new version: a graph that saved running statistics may still be needed."""
    with _unsafe_preserve_version_counter(tuple(tensors)):
        torch._foreach_copy_(tensors, values)


def _same_kind(one: Tensor | None, other: Tensor) -> bool:
    return (
        one is not None
        and one.shape == other.shape
        and one.dtype == other.dtype
        and one.device == other.device
        and is_plain(one)
    )


def _room_for(tensors: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    sizes = [tensor.numel() for tensor in tensors]
    flat = torch.empty(sum(sizes), dtype=tensors[0].dtype, device=tensors[0].device)
    parts = flat.split_with_sizes(sizes)
    return flat, [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def _tracked(model: nn.Module) -> Iterator[_Place]:
    for module in model.modules():
        is_norm = isinstance(module, _NormBase)
        if is_norm or _is_observer(module):
            for name, _ in module.named_buffers(recurse=False):
                yield _Place(module._buffers, name, is_statistic=is_norm)


def _is_observer(module: nn.Module) -> bool:
    """Return whether a module collects ranges for quantization; one bad batch poisons those as well."""
    observers = sys.modules.get("torch.ao.quantization.observer")
    fake = sys.modules.get("torch.ao.quantization.fake_quantize")
    kinds = [getattr(observers, "ObserverBase", None), getattr(fake, "FakeQuantizeBase", None)]
    return isinstance(module, tuple(kind for kind in kinds if kind is not None))
