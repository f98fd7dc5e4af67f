"""Decide on the device whether a step may be applied.

The policy needs one small row of numbers: the loss, the gradient norm, whether a gradient is not finite, and
the loss scale. A step passes if every number is at most its limit. Comparisons with NaN are false, so one
comparison finds spikes and NaN. The same row is copied to the host, where the policy reaches the same answer
and adds the cause.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from halfguard.guard.consensus import DESYNC
from halfguard.guard.policy import Signals, StepLimits
from halfguard.numerics.tensor_rows import to_device

# Rows on their way from the device to the host, read some steps later.
#
# Waiting for a number would stall the device. So a row is copied asynchronously and read ``lag``
# steps later, when it has long arrived. The lag is fixed, not "as soon as it has arrived": ranks
# that act on a row must act at the same step.


Payload = TypeVar("Payload")


@dataclass
class _Pending(Generic[Payload]):
    host: Tensor | list[float]
    arrived: torch.Event | None
    payload: Payload


class PendingRows(Generic[Payload]):
    """A queue of rows, each with a payload, until they are due."""

    def __init__(self, lag: int) -> None:
        self.lag = lag
        self._queue: deque[_Pending[Payload]] = deque()

    def push(self, row: Tensor | list[float], payload: Payload) -> None:
        """Start copying a row to the host, unless it has been read; ``payload`` is returned with it."""
        if isinstance(row, list) or row.device.type == "cpu":
            self._queue.append(_Pending(row, None, payload))
            return
        # On the host, whatever device the user has made the default one.
        host = torch.empty(row.shape, dtype=row.dtype, device="cpu", pin_memory=True)
        host.copy_(row, non_blocking=True)
        arrived = torch.Event(row.device)
        # The stream that copies, whatever device is the current one.
        arrived.record(torch.accelerator.current_stream(row.device))
        self._queue.append(_Pending(host, arrived, payload))

    def clear(self) -> None:
        """Drop all rows."""
        self._queue.clear()

    def pop_due(self, *, everything: bool = False) -> Iterator[tuple[list[float], Payload]]:
        """Yield the rows that are due, oldest first; with ``everything``, wait for all of them.

        One at a time: the handling of the first may discard the rest.
        """
        keep = 0 if everything else self.lag
        while len(self._queue) > keep:
            posted = self._queue.popleft()
            if posted.arrived is not None:
                posted.arrived.synchronize()
            host = posted.host
            yield host if isinstance(host, list) else host.tolist(), posted.payload


_LARGEST = torch.finfo(torch.float32).max


class Gate:
    """Holds the limits on the device and builds the row of each step."""

    def __init__(self) -> None:
        self._limits: StepLimits | None = None
        self._row_limits: tuple[Tensor, Tensor] | None = None

    @staticmethod
    def row(
        loss: Tensor,
        total: Tensor,
        fault: Tensor,
        scale: Tensor,
        statistics: Tensor | None = None,
        alarms: Tensor | None = None,
    ) -> Tensor:
        """Return a step as four numbers: loss, gradient norm, found_inf (and desync), loss scale.

        A model with running statistics adds a fifth, their sum, which decides nothing. The number of ranks
        with an alarm is the sixth, and decides nothing about the step either.
        """
        if alarms is not None and statistics is None:
            statistics = torch.zeros_like(fault)
        further = [part for part in (statistics, alarms) if part is not None]
        parts = [loss, total, fault, scale, *further]
        device = fault.device
        return torch.stack([_as_float32(part, device) for part in parts])

    @staticmethod
    def read(row: Tensor) -> list[float]:
        """Return a row as numbers. This waits for the device: the only read of an ordinary step."""
        return row.tolist()

    def refused(self, row: Tensor, limits: StepLimits) -> Tensor:
        """Return whether the step must not be applied, as a boolean on the device."""
        low, high = self._on_device(limits, row.device)
        row = row if len(row) == len(low) else row[: len(low)]
        # Clamping changes values outside the limits, and NaN is not equal to itself.
        return (row.clamp(low, high) != row).any()

    def _on_device(self, limits: StepLimits, device: torch.device) -> tuple[Tensor, Tensor]:
        known = self._row_limits
        if known is None or known[0].device != device or limits != self._limits:
            high = [min(limits.loss, _LARGEST), min(limits.grad_norm, _LARGEST), 0.0, math.inf]
            low = [-_LARGEST] * 3 + [-math.inf]
            both = torch.tensor([low, high]).to(device, non_blocking=True)
            low_row, high_row = both.unbind()
            self._row_limits = known = low_row, high_row
            self._limits = limits
        return known


def _as_float32(value: Tensor, device: torch.device) -> Tensor:
    if value.dtype is torch.float32 and value.device == device:
        return value
    return to_device(value, device, torch.float32)


def read_signals(row: Sequence[float], limits: StepLimits) -> Signals:
    """Return a row that was copied to the host as the policy's signals."""
    loss, grad_norm, fault, scale, *further = row
    return Signals(
        loss=loss,
        grad_norm=grad_norm,
        grads_finite=fault in {0, DESYNC},
        scale=scale,
        limits=limits,
        desync=fault >= DESYNC,
        statistics_finite=all(map(math.isfinite, further[:1])),
        alarm=any(further[1:]),
    )
