"""Rows from the device, read late: a copy is started at every step and looked at some steps later.

Waiting for a number makes the device idle. So a row is copied to the host asynchronously, and picked up
``lag`` steps later, when it has long arrived. The lag is fixed rather than "as soon as it is there": ranks
that act on what they read must act at the same step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

Letter = TypeVar("Letter")


@dataclass
class _Posted(Generic[Letter]):
    host: Tensor
    arrived: torch.Event | None
    letter: Letter


class Mailbox(Generic[Letter]):
    """Keeps what was posted, in order, until it is due."""

    def __init__(self, lag: int) -> None:
        self.lag = lag
        self._posted: deque[_Posted[Letter]] = deque()

    def post(self, row: Tensor, letter: Letter) -> None:
        """Start copying a row to the host, and put something beside it."""
        if row.device.type == "cpu":
            self._posted.append(_Posted(row, None, letter))
            return
        host = torch.empty(row.shape, dtype=row.dtype, pin_memory=True)
        host.copy_(row, non_blocking=True)
        arrived = torch.Event(row.device)
        arrived.record()
        self._posted.append(_Posted(host, arrived, letter))

    def collect(self, *, everything: bool = False) -> Iterator[tuple[list[float], Letter]]:
        """What is due now, oldest first; or all that was posted, waiting for the last of it.

        One at a time: what is done about the first may be to give up on the rest.
        """
        keep = 0 if everything else self.lag
        while len(self._posted) > keep:
            posted = self._posted.popleft()
            if posted.arrived is not None:
                posted.arrived.synchronize()
            yield posted.host.tolist(), posted.letter
