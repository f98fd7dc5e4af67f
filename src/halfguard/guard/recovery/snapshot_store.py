"""The content of a snapshot, the protocol of a store, and the simplest store: host memory."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from halfguard.dist.wrapping import Shard, is_dtensor
from halfguard.step.nested import map_leaves

# Copy tensors of an accelerator to the host without waiting for each of them.
#
# A copy into ordinary memory makes the host wait. Into page-locked memory it runs on the device's
# stream, in order: after the work before it, and before the next update of the weights. So the host
# goes on at once, and waits for one event per device before the copies are read, which is at a
# rollback.


# Nothing to copy from; and Apple's devices, which share the host's memory.
_ORDINARY = ("cpu", "meta", "mps")


class HostCopies:
    """Copies that are on their way: ``copy`` all, then ``record``; ``wait`` before they are read."""

    def __init__(self) -> None:
        self._devices: set[torch.device] = set()
        self._arrived: list[torch.Event] = []
        self._can_lock = True

    def copy(self, tensor: Tensor) -> Tensor:
        """Return a copy on the host that shares no memory with the tensor."""
        source = tensor.detach()
        target = self._locked_like(source)
        if target is None:
            return source.to("cpu", copy=True)
        self._devices.add(source.device)
        return target.copy_(source, non_blocking=True)

    def record(self) -> None:
        """Mark the end of the copies on each device's stream."""
        for device in self._devices:
            arrived = torch.Event(device)
            arrived.record(torch.accelerator.current_stream(device))
            self._arrived.append(arrived)
        self._devices.clear()

    def wait(self) -> None:
        """Wait until all copies have arrived."""
        while self._arrived:
            self._arrived.pop().synchronize()

    def _locked_like(self, source: Tensor) -> Tensor | None:
        """Return page-locked memory for a tensor; None if there is no need for it, or no more of it."""
        plain = source.layout is torch.strided and type(source) in (Tensor, torch.nn.Parameter)
        if source.device.type in _ORDINARY or not plain or not self._can_lock:
            return None
        try:
            return torch.empty_like(source, device="cpu", pin_memory=True)
        except RuntimeError:  # the system limits how much memory may be locked
            self._can_lock = False
            return None


@dataclass(frozen=True)
class SnapshotState:
    """The content of a snapshot: the state that all ranks share, and the state of this rank alone."""

    shared: dict[str, Any]
    own: dict[str, Any] = field(default_factory=dict)


class SnapshotStore(ABC):
    """Stores snapshots; ``save`` returns a handle."""

    # Good snapshots; the older ones are spares, in case the newest is damaged.
    capacity: ClassVar[int] = 1

    @abstractmethod
    def save(self, step: int, state: SnapshotState) -> Any:
        """Start to save a state; return None if that is impossible."""

    @abstractmethod
    def load(self, held: Any) -> SnapshotState:
        """Return a saved state, which shares no memory with the stored one."""

    def mark_good(self, _held: Any) -> bool:
        """Complete a snapshot, and mark it as good; return whether it is whole."""
        return True

    def discard(self, held: Any) -> None:  # noqa: B027 - memory is freed when the caller drops the snapshot
        """Remove a snapshot."""

    def set_aside(self, held: Any) -> None:  # noqa: B027 - copies in memory are not damaged
        """Keep a damaged snapshot from being read again."""

    def good(self) -> list[tuple[int, Any]]:
        """Return the good snapshots of an earlier run with their steps, newest first."""
        return []

    def close(self) -> None:  # noqa: B027 - nobody else can use this memory
        """Let another guard use the store."""


@dataclass(frozen=True)
class _HeldState:
    """A state on the host, and the copies that may still be on their way there."""

    state: SnapshotState
    copies: HostCopies


class MemoryStore(SnapshotStore):
    """Copies in host memory, lost when the process ends."""

    def save(self, step: int, state: SnapshotState) -> _HeldState:  # noqa: ARG002
        """Start to copy a state to the host; only ``load`` waits for the copies."""
        copies = HostCopies()
        held = SnapshotState(to_host(state.shared, copies), to_host(state.own, copies))
        copies.record()
        return _HeldState(held, copies)

    def load(self, held: _HeldState) -> SnapshotState:
        held.copies.wait()
        return SnapshotState(from_host(held.state.shared), from_host(held.state.own))


def to_host(state: Any, copies: HostCopies) -> Any:
    """Return a copy of a state whose tensors lie on the host and share nothing with the original."""

    def leaf_to_host(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return _copy_of_data(value)
        return Shard.of(value, copies.copy) if is_dtensor(value) else copies.copy(value)

    return map_leaves(state, leaf_to_host)


def from_host(state: Any) -> Any:
    """Return a copy of a state from ``to_host``, with its DTensors restored."""
    return map_leaves(state, _leaf_from_host)


def _leaf_from_host(value: Any) -> Any:
    if isinstance(value, Shard):
        return value.to_dtensor()
    return value.clone() if isinstance(value, Tensor) else _copy_of_data(value)


def _copy_of_data(value: Any) -> Any:
    """Copy data that a run may change in place; other objects (functions, models) are shared."""
    is_data = isinstance(value, set | deque | bytearray) or type(value).__module__ == "numpy"
    return copy.deepcopy(value) if is_data else value
