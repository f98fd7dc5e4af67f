"""A watched run, until half overflows: when that was announced, and when it happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from halfguard import Guard
from halfguard.errors import TrainingHaltedError
from halfguard.records.watch import WatchRow

Training = tuple[nn.Module, Callable[[Any, Any], Tensor], Callable[[int], Any], Optimizer, int]
CONFIG = {"watch": {"every": 5}, "scale": {"init": 256.0}, "incidents": None}


class Watched:
    """A run with its rows, the steps of its first warning of overflow and of its first overflow."""

    def __init__(self, training: Training) -> None:
        model, loss_fn, batch_of, optimizer, steps = training
        guard = Guard(model, optimizer, CONFIG)
        self.warned: int | None = None
        self.overflowed: int | None = None
        self.rows: list[WatchRow] = []
        for step in range(steps):
            try:
                cause = guard.step(loss_fn, batch_of(step)).cause
            except TrainingHaltedError:  # gradients overflowed again and again
                break
            recent = guard._recorder.journal.recent_rows(3)
            rows = [row for row in recent if isinstance(row, WatchRow)]
            if rows and (not self.rows or rows[-1].step > self.rows[-1].step):
                self.rows.append(rows[-1])
                found = [one for one in rows[-1].warnings if one.warning == "overflow_ahead"]
                if found and self.warned is None:
                    self.warned, self.text = step, found[0].text
            beyond = self.rows and self.rows[-1].infinite and self.rows[-1].step == step
            if (cause is not None and str(cause) == "forward_overflow") or beyond:
                self.overflowed = step
                break
