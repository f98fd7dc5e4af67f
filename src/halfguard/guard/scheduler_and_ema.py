"""The learning-rate scheduler and the weight average, which advance only with applied steps.

If the host learns late that a step was skipped, the scheduler has already been stepped. That step is not
undone. Instead a later scheduler step is left out, so that the schedule matches the applied steps again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from halfguard.errors import UsageError
from halfguard.guard.protocols import Scheduler, WeightAverage


class SchedulerAndEma:
    """Advances the scheduler and the EMA after an applied step of the optimizer that each belongs to."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        scheduler: Scheduler | None,
        ema: WeightAverage | None,
    ) -> None:
        if isinstance(scheduler, ReduceLROnPlateau):
            raise UsageError(
                "ReduceLROnPlateau follows a metric, not steps, and the guard has none to give it.",
                cure="Leave scheduler out, and call scheduler.step(metric) after each validation.",
            )
        self.scheduler, self.ema = scheduler, ema
        self.early_steps = (
            0  # scheduler steps taken for skipped optimizer steps, still to be left out
        )
        self._model = model
        self._last = id(optimizers[-1])

    def advance(self, turn: frozenset[int]) -> None:
        """Advance after a step of the optimizers with these ids."""
        if self.scheduler is not None and self._belongs_to(turn):
            if self.early_steps:
                self.early_steps -= 1
            else:
                self.scheduler.step()
        if self.ema is not None and self._last in turn:
            self.ema.update_parameters(self._model)

    def undo_early_step(self, turn: frozenset[int]) -> None:
        """Undo one early scheduler step: these optimizers skipped theirs."""
        if self._belongs_to(turn):
            self.early_steps += 1

    def savable_parts(self) -> dict[str, Any]:
        """Return scheduler and EMA by name, if they have a ``state_dict``."""
        named = {"scheduler": self.scheduler, "ema": self.ema}
        return {name: part for name, part in named.items() if hasattr(part, "state_dict")}

    def _belongs_to(self, turn: frozenset[int]) -> bool:
        driven = getattr(self.scheduler, "optimizer", None)
        return self.scheduler is not None and (driven is None or id(driven) in turn)
