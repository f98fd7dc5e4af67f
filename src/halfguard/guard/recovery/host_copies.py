"""Copy tensors of an accelerator to the host without waiting for each of them.

A copy into ordinary memory makes the host wait. Into page-locked memory it runs on the device's stream, in
order: after the work before it, and before the next update of the weights. So the host goes on at once, and
waits for one event per device before the copies are read, which is at a rollback.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
