"""What follows an applied step: the learning-rate scheduler and the average of the weights.

Where the host learns late that a step was skipped, the scheduler has been stepped already. It is not taken
back; a later step of it is left out instead, so that it ends where the applied steps put it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from halfguard.errors import UsageError
from halfguard.guard.protocols import Average, Scheduler


class Followers:
    """Advances scheduler and average; with several optimizers, each with its own."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        scheduler: Scheduler | None,
        ema: Average | None,
    ) -> None:
        if isinstance(scheduler, ReduceLROnPlateau):
            raise UsageError(
                "ReduceLROnPlateau follows a metric, not steps, and the guard has none to give it.",
                cure="Leave scheduler out, and call scheduler.step(metric) after each validation.",
            )
        self.scheduler, self.ema = scheduler, ema
        self.held = 0  # scheduler steps that were taken too early and are still to be left out
        self._model = model
        self._last = id(optimizers[-1])

    def advance(self, turn: frozenset[int]) -> None:
        """The optimizers of these ids have made a step."""
        if self.scheduler is not None and self._drives(turn):
            if self.held:
                self.held -= 1
            else:
                self.scheduler.step()
        if self.ema is not None and self._last in turn:
            self.ema.update_parameters(self._model)

    def make_up_for(self, turn: frozenset[int]) -> None:
        """They had not, as it turns out."""
        if self._drives(turn):
            self.held += 1

    def stateful(self) -> dict[str, Any]:
        """Those of the two that can be saved, by name."""
        named = {"scheduler": self.scheduler, "ema": self.ema}
        return {name: part for name, part in named.items() if hasattr(part, "state_dict")}

    def _drives(self, turn: frozenset[int]) -> bool:
        driven = getattr(self.scheduler, "optimizer", None)
        return self.scheduler is not None and (driven is None or id(driven) in turn)
