"""The content of a snapshot, the protocol of a store, and the simplest store: host memory."""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

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


class SnapshotStore(Protocol):
    """Stores snapshots; ``save`` returns a handle, and ``good`` lists handles, newest first."""

    capacity: ClassVar[
        int
    ]  # good snapshots; the older ones are spares, in case the newest is damaged

    def save(self, step: int, state: SnapshotState) -> Any: ...
    def mark_good(self, held: Any) -> bool: ...
    def load(self, held: Any) -> SnapshotState: ...
    def discard(self, held: Any) -> None: ...
    def set_aside(self, held: Any) -> None: ...
    def good(self) -> list[tuple[int, Any]]: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class _HeldState:
    """A state on the host, and the copies that may still be on their way there."""

    state: SnapshotState
    copies: HostCopies


class MemoryStore:
    """Copies in host memory, lost when the process ends."""

    capacity: ClassVar[int] = 1

    def save(self, step: int, state: SnapshotState) -> _HeldState:  # noqa: ARG002
        """Start to copy a state to the host; only ``load`` waits for the copies."""
        copies = HostCopies()
        held = SnapshotState(to_host(state.shared, copies), to_host(state.own, copies))
        copies.record()
        return _HeldState(held, copies)

    def mark_good(self, held: _HeldState) -> bool:  # noqa: ARG002
        """Always succeeds: a copy in memory needs no verification."""
        return True

    def load(self, held: _HeldState) -> SnapshotState:
        """Return another copy, which shares no memory with the stored one."""
        held.copies.wait()
        return SnapshotState(from_host(held.state.shared), from_host(held.state.own))

    def discard(self, held: _HeldState) -> None:
        """Does nothing: the memory is freed when the caller drops the snapshot."""

    def set_aside(self, held: _HeldState) -> None:
        """Does nothing: copies in memory are not damaged."""

    def good(self) -> list[tuple[int, _HeldState]]:
        """Return nothing: memory does not outlive a run."""
        return []

    def close(self) -> None:
        """Does nothing: nobody else can use this memory."""


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
