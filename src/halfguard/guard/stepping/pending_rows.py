"""Rows on their way from the device to the host, read some steps later.

Waiting for a number would stall the device. So a row is copied asynchronously and read ``lag`` steps later,
when it has long arrived. The lag is fixed, not "as soon as it has arrived": ranks that act on a row must
act at the same step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

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
