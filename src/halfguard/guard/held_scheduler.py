"""A scheduler for frameworks that step it after every batch, applied or not."""

from __future__ import annotations

from typing import Any

from halfguard.guard.hosted import HostedGuard


class HeldScheduler:
    """A scheduler that stands still if the last step of its optimizer was not applied."""

    def __init__(self, scheduler: Any, guard: HostedGuard) -> None:
        self._scheduler, self._guard = scheduler, guard

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Step, unless the optimizer did not."""
        outcome = self._guard.outcome_of(self._scheduler.optimizer)
        if outcome is None or outcome.applied:
            self._scheduler.step(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "_scheduler":  # not there yet, as in a copy
            raise AttributeError(name)
        return getattr(self._scheduler, name)
